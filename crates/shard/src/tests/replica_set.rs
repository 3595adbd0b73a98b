//! The set of one member as clients see it: hello, configuration, times, concerns.

use crate::testing::TestShard;
use crate::{Clock, ReplicaSetOptions};
use differential::notation::print_fields;
use differential::value::{Fields, Value, get};
use std::time::Duration;

const SIGNATURE: &str =
    "{hash: Binary(0, \"0000000000000000000000000000000000000000\"), keyId: 0L}";

/// A field of a reply that holds a timestamp, as seconds and increment.
fn time(reply: &Fields, path: &[&str]) -> (u32, u32) {
    let mut value = get(reply, path[0]).expect("the field is there");
    for name in &path[1..] {
        value = value.get(name).expect("the field is there");
    }
    match value {
        Value::Timestamp(seconds, increment) => (*seconds, *increment),
        other => panic!("{path:?} is {other:?}"),
    }
}

fn cluster_time(reply: &Fields) -> (u32, u32) {
    time(reply, &["$clusterTime", "clusterTime"])
}

fn operation_time(reply: &Fields) -> (u32, u32) {
    time(reply, &["operationTime"])
}

fn gossip(seconds: u32) -> String {
    format!("$clusterTime: {{clusterTime: Timestamp({seconds}, 1), signature: {SIGNATURE}}}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_shard_is_a_set_of_one_and_stays_it() {
    let server = TestShard::open().await;
    let script = r#"
        admin {hello: 1} => {setName: "terndb", hosts: ["localhost:27017"], isWritablePrimary: true, secondary: false, primary: "localhost:27017", me: "localhost:27017"}
        admin {isMaster: 1} => {setName: "terndb", ismaster: true}
        admin {replSetGetConfig: 1} => {config: {_id: "terndb", version: 1, members: [{_id: 0, host: "localhost:27017", votes: 1}]}}
        admin {replSetGetStatus: 1} => {set: "terndb", myState: 1, members: [{stateStr: "PRIMARY"}]}
        admin {replSetInitiate: {}} => 23
    "#;
    server.check(script).await;
    let before = server.run("admin", "{replSetGetConfig: 1}").await;
    let server = server.reopen().await;
    server.check(script).await;
    let after = server.run("admin", "{replSetGetConfig: 1}").await;
    assert_eq!(get(&before, "config"), get(&after, "config"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_member_may_move_and_may_not_change_its_set() {
    let server = TestShard::open().await;
    let options = |name: &str, host: &str| ReplicaSetOptions {
        detours: Default::default(),
        name: name.to_owned(),
        host: host.to_owned(),
    };
    let other_set = options("other", "localhost:27017");
    assert!(server.shard.join_replica_set(&other_set).await.is_err());
    let moved = options("terndb", "localhost:27018");
    server
        .shard
        .join_replica_set(&moved)
        .await
        .expect("the set has one member");
    server
        .check(r#"admin {replSetGetConfig: 1} => {config: {version: 2, members: [{host: "localhost:27018"}]}}"#)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn configurations_are_checked_and_follow_each_other() {
    TestShard::open()
        .await
        .check(r#"
        admin {replSetReconfig: {_id: "terndb", version: 2, members: [{_id: 0, host: "localhost:27017", tags: {dc: "a"}}], settings: {getLastErrorModes: {near: {dc: 1}}}}} => {}
        admin {hello: 1} => {setVersion: 2, tags: {dc: "a"}}
        {insert: "c", documents: [{}], writeConcern: {w: "near"}} => {n: 1}
        {insert: "c", documents: [{}], writeConcern: {w: {dc: 1}}} => {n: 1}
        {insert: "c", documents: [{}], writeConcern: {w: {dc: 2}}} => {n: 1, writeConcernError: {code: 100}}
        {insert: "c", documents: [{}], writeConcern: {w: {rack: 1}}} => {n: 1, writeConcernError: {code: 4}}
        {insert: "c", documents: [{}], writeConcern: {w: "far"}} => {n: 1, writeConcernError: {code: 79}}
        {insert: "c", documents: [{}], writeConcern: {w: 2, wtimeout: 5}} => {n: 1, writeConcernError: {code: 100, errInfo: {writeConcern: {w: 2, wtimeout: 5}}}}
        admin {replSetReconfig: {_id: "terndb", version: 2, members: [{_id: 0, host: "localhost:27017"}]}} => 103
        admin {replSetReconfig: {_id: "x", version: 3, members: [{_id: 0, host: "localhost:27017"}]}} => 93
        admin {replSetReconfig: {_id: "terndb", version: 3, members: []}} => 103
        admin {replSetReconfig: {_id: "terndb", version: 3, members: [{_id: 0, host: "localhost:27017", votes: 0}]}} => 93
        admin {replSetReconfig: {_id: "terndb", version: 3, members: [{_id: 0, host: "localhost:27017", foo: 1}]}} => 93
        admin {replSetReconfig: {_id: "terndb", version: 3}} => 93
        admin {replSetReconfig: {_id: "terndb", version: 3, members: [{_id: 0, host: "localhost:27017", arbiterOnly: true}]}} => 115
        admin {replSetReconfig: {_id: "terndb", version: 3, members: [{_id: 0, host: "localhost:27017"}, {_id: 1, host: "example.com:27017"}]}} => 103
        admin {replSetReconfig: {_id: "terndb", version: 3, members: [{_id: 0, host: "localhost:27018"}]}} => 74
        {replSetReconfig: {_id: "terndb", version: 3}} => 13
    "#)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_hello_hears_of_a_change() {
    let server = TestShard::open().await;
    let hello = server.run("admin", "{hello: 1}").await;
    let version = get(&hello, "topologyVersion").expect("it is there");
    let wait = format!(
        "{{hello: 1, topologyVersion: {}, maxAwaitTimeMS: 600000}}",
        differential::notation::print(version)
    );
    let change = r#"admin {replSetReconfig: {_id: "terndb", version: 2, members: [{_id: 0, host: "localhost:27017"}]}} => {}"#;
    let (heard, ()) = tokio::time::timeout(Duration::from_secs(60), async {
        tokio::join!(server.run("admin", &wait), server.check(change))
    })
    .await
    .expect("the change is heard long before the wait is over");
    assert_eq!(get(&heard, "setVersion"), Some(&Value::Int32(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_tell_the_time_and_requests_push_it() {
    let server = TestShard::open().await;
    let write = server.run("test", "{insert: 'c', documents: [{}]}").await;
    assert_eq!(time(&write, &["opTime", "ts"]), operation_time(&write));
    let read = server.run("test", "{find: 'c'}").await;
    assert!(operation_time(&read) >= operation_time(&write));
    let failed = server.run("test", "{nothing: 1}").await;
    assert!(cluster_time(&failed) >= operation_time(&read));

    let (now, _) = cluster_time(&failed);
    let pushed = server
        .run("test", &format!("{{ping: 1, {}}}", gossip(now + 1000)))
        .await;
    assert_eq!(cluster_time(&pushed), (now + 1000, 1));
    assert!(operation_time(&pushed).0 < now + 1000);
    let write = server.run("test", "{insert: 'c', documents: [{}]}").await;
    assert_eq!(operation_time(&write), (now + 1000, 2));
    let too_far = format!("{{ping: 1, {}}} => 205", gossip(now + 400 * 24 * 3600));
    server.check(&too_far).await;
}

/// ⚑ Reading after a time requires an applied entry at or after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_after_a_time_has_an_entry_at_or_after_it() {
    let server = TestShard::open().await;
    server
        .check("{insert: 'c', documents: [{_id: 1}]} => {n: 1}")
        .await;
    let (now, _) = cluster_time(&server.run("test", "{ping: 1}").await);
    let later = now + 500;
    let read = |seconds: u32| {
        format!(
            "{{find: 'c', readConcern: {{afterClusterTime: Timestamp({seconds}, 1)}}, {}}}",
            gossip(later)
        )
    };
    let reply = server.run("test", &read(later)).await;
    assert!(operation_time(&reply) >= (later, 1), "an entry was written");
    // A time that nobody has given out yet cannot be waited for.
    server.check(&format!("{} => 72", read(later + 5))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn default_concerns_hold_and_last() {
    let server = TestShard::open().await;
    server
        .check(r#"
        admin {setDefaultRWConcern: 1, defaultWriteConcern: {w: 2, wtimeout: 3}, defaultReadConcern: {level: "majority"}} => {defaultWriteConcernSource: "global"}
        {insert: "c", documents: [{}]} => {n: 1, writeConcernError: {code: 100, errInfo: {writeConcern: {w: 2, provenance: "customDefault"}}}}
        {insert: "c", documents: [{}], writeConcern: {w: 1}} => {n: 1}
        admin {setDefaultRWConcern: 1, defaultWriteConcern: {}} => 20
        admin {setDefaultRWConcern: 1, defaultReadConcern: {}} => {defaultReadConcernSource: "implicit"}
    "#)
        .await;
    server
        .reopen()
        .await
        .check(r#"admin {getDefaultRWConcern: 1} => {defaultReadConcern: {level: "local"}, defaultWriteConcern: {w: 2, wtimeout: 3}}"#)
        .await;
}

/// The log waits for a primary as long as the configuration says.
#[tokio::test(flavor = "multi_thread")]
async fn the_election_timeout_is_the_configured_one() {
    let server = TestShard::open().await;
    let background = server.shard.spawn_background();
    let timeout = || server.shard.log.election_timeout();
    assert_eq!(timeout(), Duration::from_secs(1));
    let reply = server.run("admin", "{replSetGetConfig: 1}").await;
    let Some(Value::Document(config)) = get(&reply, "config") else {
        panic!("{}", print_fields(&reply));
    };
    let mut config = config.clone();
    for (name, value) in &mut config {
        match (name.as_str(), value) {
            ("version", Value::Int32(version)) => *version += 1,
            ("settings", Value::Document(settings)) => {
                for (name, value) in settings {
                    if name == "electionTimeoutMillis" {
                        assert_eq!(*value, Value::Int32(1000));
                        *value = Value::Int32(5000);
                    }
                }
            }
            _ => {}
        }
    }
    let reconfigure = format!("{{replSetReconfig: {}}}", print_fields(&config));
    server.check(&format!("admin {reconfigure} => {{}}")).await;
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while timeout() != Duration::from_secs(5) {
        assert!(std::time::Instant::now() < deadline, "{:?}", timeout());
        tokio::task::yield_now().await;
    }
    server
        .check("local {find: 'system.replset', projection: {_id: 1, settings: {electionTimeoutMillis: 1}}} => {cursor: {firstBatch: [{settings: {electionTimeoutMillis: 5000}}]}}")
        .await;
    server
        .check("local {insert: 'system.replset', documents: [{_id: 1}]} => 73")
        .await;
    server.shard.begin_shutdown();
    background.await.expect("it ends");
}

/// How far a client may push the clock is what the server was started with.
#[tokio::test(flavor = "multi_thread")]
async fn the_clock_is_pushed_as_far_as_the_parameter_says() {
    let server = TestShard::open_with(&[("maxAcceptableLogicalClockDriftSecs", "3600")]).await;
    let now = (server.clock.now_ms() / 1000) as u32;
    let push = async |seconds: u32| {
        server
            .run("admin", &format!("{{ping: 1, {}}}", gossip(seconds)))
            .await
    };
    let far = push(now + 2 * 3600).await;
    assert_eq!(get(&far, "code"), Some(&Value::Int32(205)));
    let near = push(now + 1800).await;
    assert_eq!(get(&near, "ok"), Some(&Value::Double(1.0)));
    assert_eq!(cluster_time(&near).0, now + 1800);
    server
        .check(
            "admin {getParameter: 1, maxAcceptableLogicalClockDriftSecs: 1} => {maxAcceptableLogicalClockDriftSecs: 3600L}
             admin {setParameter: 1, maxAcceptableLogicalClockDriftSecs: 5} => {ok: 0.0}",
        )
        .await;
}

/// A driver chooses by it; what it asks for must make sense all the same.
#[tokio::test(flavor = "multi_thread")]
async fn read_preferences_are_checked() {
    let shard = TestShard::open().await;
    shard
        .check(
            r#"
            {find: "c", $readPreference: {mode: "secondary", maxStalenessSeconds: 90}} => {ok: 1.0}
            {find: "c", $readPreference: {mode: "nearest", tags: [{a: "b"}, {}], hedge: {enabled: true}}} => {ok: 1.0}
            {find: "c", $readPreference: {mode: "primary", tags: [{}], maxStalenessSeconds: 0}} => {ok: 1.0}
            {find: "c", $readPreference: {}} => 4
            {find: "c", $readPreference: {mode: 1}} => 14
            {find: "c", $readPreference: {mode: "Secondary"}} => 2
            {find: "c", $readPreference: {mode: "secondary", tags: 5}} => 14
            {find: "c", $readPreference: {mode: "primary", tags: [{a: "b"}]}} => 2
            {find: "c", $readPreference: {mode: "secondary", maxStalenessSeconds: 5}} => 160
            {find: "c", $readPreference: {mode: "secondary", maxStalenessSeconds: -1}} => 2
            {find: "c", $readPreference: {mode: "secondary", maxStalenessSeconds: "x"}} => 14
            {find: "c", $readPreference: {mode: "primary", maxStalenessSeconds: 90}} => 2
            {find: "c", $readPreference: {mode: "primary", hedge: {enabled: true}}} => 72
            {find: "c", $readPreference: {mode: "secondary", hedge: 5}} => 14
            "#,
        )
        .await;
}
