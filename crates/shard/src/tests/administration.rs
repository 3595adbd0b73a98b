//! Sizes, parameters, running operations, and short answers.

use crate::testing::TestShard;

#[tokio::test(flavor = "multi_thread")]
async fn sizes() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            {collStats: "c"} => {ns: "test.c", size: 0, count: 0, storageSize: 0, nindexes: 0, indexSizes: {}, scaleFactor: 1}
            {dbStats: 1} => {db: "test", collections: 0, objects: 0, avgObjSize: 0, dataSize: 0}
            {insert: "c", documents: [{_id: 1, x: 1}, {_id: 2, x: 2}, {_id: 3, x: 3}]} => {n: 3}
            {createIndexes: "c", indexes: [{key: {x: 1}, name: "x"}]} => {}
            {collStats: "c"} => {size: 63, count: 3, avgObjSize: 21, nindexes: 2, capped: false, numOrphanDocs: 0, indexBuilds: [], indexSizes: {_id_: 0}}
            {collStats: "c", scale: 2} => {size: 31, count: 3, avgObjSize: 21, scaleFactor: 2}
            {collStats: "c", scale: 0} => 51024
            {collStats: "c", scale: "x"} => 14
            {collStats: 5} => 73
            {dbStats: 1, scale: 2} => {collections: 1, views: 0, objects: 3, avgObjSize: 21.0, dataSize: 31.5, indexes: 2, scaleFactor: 2.0}
            {dbStats: 1, scale: 0} => {ok: 0.0}
            {dbStats: "x"} => 73
            {dataSize: "test.c"} => {estimate: false, size: 63, numObjects: 3}
            {dataSize: "test.no"} => {size: 0, numObjects: 0}
            {dataSize: "test.c", keyPattern: {_id: 1}, min: {_id: 2}, max: {_id: 3}} => {size: 21, numObjects: 1}
            {dataSize: "test.c", min: {x: 1}, max: {x: 3}} => {size: 42, numObjects: 2}
            {dataSize: "test.c", min: {q: 1}, max: {q: 3}} => {ok: 0.0}
            {dataSize: "test.c", min: {x: 1}} => 2
            {dataSize: "test.c", maxObjects: 1} => {maxReached: true, size: 42, numObjects: 2}
            {dataSize: "nodot"} => 73
            "#,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            admin {getParameter: 1, ttlMonitorSleepSecs: 1, quiet: 1} => {quiet: false, ttlMonitorSleepSecs: 60}
            admin {getParameter: 1, bogus: 1} => {ok: 0.0, errmsg: "no option found to get"}
            admin {getParameter: "*"} => {cursorTimeoutMillis: 600000L, featureCompatibilityVersion: {version: "6.0"}}
            admin {getParameter: {showDetails: true}, quiet: 1} => {quiet: {value: false}}
            admin {getParameter: {bogus: true}, quiet: 1} => 40415
            {getParameter: 1, quiet: 1} => 13
            admin {setParameter: 1, ttlMonitorSleepSecs: 5.5} => {was: 60}
            admin {getParameter: 1, ttlMonitorSleepSecs: 1} => {ttlMonitorSleepSecs: 5}
            admin {setParameter: 1, ttlMonitorSleepSecs: 0} => 2
            admin {setParameter: 1, ttlMonitorSleepSecs: "x"} => 2
            admin {setParameter: 1, ttlMonitorEnabled: false} => {was: true}
            admin {setParameter: 1, bogus: 1} => {ok: 0.0}
            admin {setParameter: 1} => {ok: 0.0}
            admin {setParameter: 1, featureCompatibilityVersion: "6.0"} => {ok: 0.0}
            admin {setParameter: 1, logLevel: 9} => {was: 0}
            admin {getParameter: 1, logLevel: 1} => {logLevel: 5}
            "#,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_and_probes() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            admin {currentOp: 1} => {inprog: [{type: "op", op: "command", ns: "admin.$cmd.aggregate", command: {currentOp: 1}}]}
            admin {currentOp: 1, op: "insert"} => {inprog: []}
            admin {currentOp: 1, $foo: 1} => 2
            {currentOp: 1} => 13
            admin {killOp: 1, op: 99999} => {info: "attempting to kill op"}
            admin {killOp: 1} => 4
            admin {killOp: 1, op: "x"} => 14
            admin {killOp: 1, op: 1.5} => 2
            admin {killOp: 1, op: 1099511627776} => 26823
            admin {fsync: 1} => {numFiles: 1}
            admin {fsync: 1, lock: true} => 115
            admin {fsyncUnlock: 1} => {ok: 0.0}
            {shutdown: 1} => 13
            admin {replSetGetStatus: 1} => {myState: 1}
            admin {isdbgrid: 1} => 59
            admin {getDefaultRWConcern: 1} => {defaultWriteConcern: {w: "majority"}}
            admin {getLastError: 1} => 5739000
            {profile: -1} => {was: 0, slowms: 100, sampleRate: 1.0}
            {profile: 2} => 115
            # Nothing is logged as slow: what says when may only repeat what holds.
            {profile: 0, slowms: 100, sampleRate: 1.0, filter: "unset"} => {was: 0, slowms: 100}
            {profile: 0, slowms: 50} => 115
            {profile: 0, sampleRate: 0.5} => 115
            {profile: -1, filter: {op: "query"}} => 115
            {profile: 0, slowms: "x"} => 14
            {profile: 0, sampleRate: 2} => 2
            {profile: 0, filter: 3} => 2
            {compact: "c"} => 115
            {usersInfo: 1} => {users: []}
            {connectionStatus: 1, showPrivileges: true} => {authInfo: {authenticatedUserPrivileges: []}}
            {connectionStatus: 1, bogus: 1} => 40415
            admin {top: 1} => {totals: {note: "all times in microseconds"}}
            admin {getDiagnosticData: 1} => {data: {serverStatus: {process: "terndb"}}}
            admin {setFeatureCompatibilityVersion: "6.0"} => {}
            admin {setFeatureCompatibilityVersion: "7.0"} => 2
            admin {getLog: "x"} => 96
            "#,
        )
        .await;
}

/// Writes count by the statements that were tried, everything else by commands.
#[tokio::test(flavor = "multi_thread")]
async fn operations_are_counted_as_mongodb_counts_them() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            {insert: "c", documents: [{_id: 1}, {_id: 2}, {_id: 1}, {_id: 3}]} => {n: 2}
            {insert: "c", documents: [{_id: 1}, {_id: 3}], ordered: false} => {n: 1}
            {insert: "c"} => 40414
            {update: "c", updates: [{q: {_id: 1}, u: {$set: {a: 1}}}, {q: {_id: 1}, u: {$set: {_id: 2}}}, {q: {_id: 1}, u: {$set: {a: 2}}}]} => {n: 1}
            {update: "c", updates: [{q: {}, u: {$set: {a: 3}}, multi: true}]} => {n: 3}
            {delete: "c", deletes: [{q: {_id: 1}, limit: 1}, {q: {_id: 9}, limit: 1}]} => {n: 1}
            {find: "c", filter: {$bad: 1}} => 2
            {count: "c"} => {n: 2}
            admin {serverStatus: 1} => {opcounters: {insert: 5L, query: 1L, update: 3L, delete: 2L, getmore: 0L, command: 2L}}
            admin {serverStatus: 1} => {opLatencies: {reads: {ops: 2L}, writes: {ops: 6L}, commands: {ops: 1L}, transactions: {ops: 0L}}}
            admin {serverStatus: 1} => {asserts: {regular: 0, user: 2}, globalLock: {activeClients: {total: 0, readers: 0, writers: 0}}}
            "#,
        )
        .await;
}

/// `listCommands` names what there is: none of them is an unknown command.
#[tokio::test(flavor = "multi_thread")]
async fn listed_commands_exist() {
    use differential::value::{Value, get};
    let server = TestShard::open().await;
    let reply = server.run("admin", "{listCommands: 1}").await;
    let Some(Value::Document(commands)) = get(&reply, "commands") else {
        panic!("commands are listed");
    };
    for (name, _) in commands.iter().filter(|(name, _)| name != "shutdown") {
        let reply = server.run("admin", &format!("{{{name}: 1}}")).await;
        let code = get(&reply, "code");
        assert_ne!(code, Some(&Value::Int32(59)), "{name}");
    }
}

/// A request to stop reaches who waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_is_requested() {
    let server = TestShard::open().await;
    server.check("admin {shutdown: 1} => {ok: 1.0}").await;
    server.shard.shutdown_requested().await;
}

/// Who asks for more time than there is gets a day.
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_waits_for_a_day_at_most() {
    let server = TestShard::open().await;
    for (seconds, limit_s) in [
        ("9223372036854775807L", 86_400),
        ("86401", 86_400),
        ("7.0", 7),
        ("-1", 0),
    ] {
        let shutdown = format!("admin {{shutdown: 1, timeoutSecs: {seconds}}} => {{ok: 1.0}}");
        server.check(&shutdown).await;
        let limit = *server.shard.shutdown_limit.lock();
        let limit = limit.expect("it was given");
        assert_eq!(limit, std::time::Duration::from_secs(limit_s), "{seconds}");
        // Clients are told how much is left of it.
        let none = std::time::Duration::ZERO;
        server.shard.begin_quiesce(none, limit).await;
    }
}

/// A command that is not there is not there, whatever is wrong with it besides.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_command_is_unknown_first() {
    let session = "lsid: {id: UUID(\"00000000-0000-4000-8000-000000000001\")}, txnNumber: 1L";
    TestShard::open()
        .await
        .check(&format!(
            "{{nothing: 1, {session}}} => 59
             {{nothing: 1, txnNumber: 1L}} => 59
             {{nothing: 1, readConcern: {{level: 'x'}}}} => 59
             {{nothing: 1, maxTimeMS: -1}} => 59
             {{ping: 1, {session}}} => 50889
             admin {{isMaster: 1, {session}}} => 50889
             admin {{ismaster: 1, {session}}} => 50889
             {{find: 'c', maxTimeMS: -1}} => 2"
        ))
        .await;
}
