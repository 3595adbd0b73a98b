//! Collections and indexes: made, listed, changed, dropped.

use crate::testing::TestShard;

#[tokio::test(flavor = "multi_thread")]
async fn collections_are_created_and_listed() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            {create: "a"} => {ok: 1.0}
            {create: "a"} => 48
            {create: "a", validator: {x: 1}} => 115
            {create: ""} => 73
            {create: ".a"} => 73
            {create: "a$b"} => 73
            {create: "system.x"} => 73
            {create: 5} => 2
            {create: "b", bogus: 1} => 40415
            {create: "b", capped: "x"} => 14
            {create: "b", size: 5} => 72
            {create: "b", capped: true, size: 5} => 115
            {create: "b", viewOn: "a", pipeline: []} => 115
            {create: "b", pipeline: []} => 72
            {create: "b", timeseries: {timeField: "t"}} => 115
            {create: "b", clusteredIndex: {key: {_id: 1}, unique: true}} => 115
            {create: "b", collation: {locale: "fr"}} => 115
            {create: "b", collation: {}} => 40414
            {create: "b", autoIndexId: false} => 50001
            {create: "b", temp: true} => 72
            {create: "b", validationLevel: "foo"} => 2
            {create: "b", idIndex: {key: {_id: -1}, name: "_id_"}} => 2
            {create: "b", idIndex: {key: {_id: 1}, name: "_id_", collation: {locale: "en"}}} => 2
            {create: "b", collation: {locale: "simple"}, capped: null} => {}
            {listCollections: 1, nameOnly: true} => {cursor: {id: 0L, ns: "test.$cmd.listCollections", firstBatch: [{name: "a", type: "collection"}, {name: "b"}]}}
            {listCollections: 1, filter: {name: "a"}} => {cursor: {firstBatch: [{name: "a", type: "collection", options: {}, info: {readOnly: false}, idIndex: {v: 2, key: {_id: 1}, name: "_id_"}}]}}
            {listCollections: 1, filter: {type: "view"}} => {cursor: {firstBatch: []}}
            {listCollections: 1, cursor: {batchSize: 1}} => {cursor: {firstBatch: [{name: "a"}]}}
            {listCollections: 1, cursor: {batchSize: -1}} => 51024
            {listCollections: 1, nameOnly: 5} => 14
            other {listCollections: 1} => {cursor: {id: 0L, firstBatch: []}}
            {listDatabases: 1} => 13
            admin {listDatabases: 1, nameOnly: true} => {databases: [{name: "config"}, {name: "local"}, {name: "test"}]}
            admin {listDatabases: 1, filter: {name: "no"}} => {databases: [], totalSize: 0L, totalSizeMb: 0L}
            # A database whose name differs only in case cannot be made.
            TEST {create: "a"} => 13297
            TEST {insert: "a", documents: [{_id: 1}, {_id: 2}]} => {n: 0, writeErrors: [{index: 0, code: 13297}]}
            TEST {insert: "a", documents: [{_id: 1}, {_id: 2}], ordered: false} => {n: 0, writeErrors: [{index: 0, code: 13297}, {index: 1, code: 13297}]}
            # Databases that a server needs cannot be dropped.
            admin {dropDatabase: 1} => 20
            local {dropDatabase: 1} => 20
            config {dropDatabase: 1, lsid: {id: UUID("00000000-0000-4000-8000-000000000001")}} => 40528
            "#,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn collections_are_dropped_and_renamed() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            {drop: "a"} => 26
            {insert: "a", documents: [{_id: 1, x: 1}, {_id: 2, x: 2}]} => {n: 2}
            {createIndexes: "a", indexes: [{key: {x: 1}, name: "x_1"}]} => {numIndexesAfter: 2}
            {renameCollection: "test.a", to: "test.b"} => 13
            admin {renameCollection: "test.a", to: "test.b"} => {ok: 1.0}
            admin {renameCollection: "test.a", to: "test.c"} => 26
            {count: "a"} => {n: 0}
            {count: "b", query: {x: 2}} => {n: 1}
            {insert: "c", documents: [{_id: 9}]} => {n: 1}
            admin {renameCollection: "test.b", to: "test.c"} => 48
            admin {renameCollection: "test.b", to: "test.b"} => 20
            admin {renameCollection: "test.b", to: "test.c", dropTarget: true} => {}
            {count: "c"} => {n: 2}
            {listIndexes: "c"} => {cursor: {firstBatch: [{name: "_id_"}, {name: "x_1"}]}}
            admin {renameCollection: "test.c", to: "other.c"} => {}
            other {count: "c", query: {x: 1}} => {n: 1}
            {listCollections: 1} => {cursor: {firstBatch: []}}
            admin {renameCollection: "nodot", to: "test.c"} => 73
            admin {renameCollection: "other.c", to: "nodot"} => 73
            admin {renameCollection: "other.c", to: "test.a$b"} => 20
            admin {renameCollection: "other.c", to: "test.system.x"} => 20
            admin {renameCollection: "other.c", to: 5} => 14
            admin {renameCollection: "other.c"} => 40414
            admin {renameCollection: "other.c", to: "test.x", dropTarget: 5} => 14
            other {drop: "c"} => {nIndexesWas: 2, ns: "other.c"}
            {drop: "system.js"} => 26
            {create: "system.js"} => {}
            {drop: "system.js"} => 20
            {insert: "x", documents: [{_id: 1}]} => {n: 1}
            {insert: "y", documents: [{_id: 1}]} => {n: 1}
            {dropDatabase: 2} => 5255100
            {dropDatabase: "x"} => 14
            admin {dropDatabase: 1} => 20
            {dropDatabase: 1} => {ok: 1.0}
            {dropDatabase: 1} => {ok: 1.0}
            {count: "x"} => {n: 0}
            # What is inserted afterwards is a new collection.
            {insert: "x", documents: [{_id: 1}]} => {n: 1}
            {count: "x"} => {n: 1}
            "#,
        )
        .await;
    let server = server.reopen().await;
    server
        .check(
            r#"
            {listCollections: 1} => {cursor: {firstBatch: [{name: "x"}]}}
            {count: "x"} => {n: 1}
            other {listCollections: 1} => {cursor: {firstBatch: []}}
            "#,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_are_created_and_conflict() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            {createIndexes: "a", indexes: []} => 2
            {createIndexes: "a"} => 40414
            {createIndexes: "a", indexes: [5]} => 14
            {createIndexes: "a", indexes: [{key: {x: 1}}]} => 9
            {createIndexes: "a", indexes: [{key: {x: 0}, name: "n"}]} => 67
            {createIndexes: "a", indexes: [{key: {x: 1}, name: "n"}], commitQuorum: 2} => 278
            {createIndexes: "a", indexes: [{key: {q: 1}, name: "q"}, {key: {q: 1}, name: "q"}]} => 68
            {listCollections: 1} => {cursor: {firstBatch: []}}
            {createIndexes: "a", indexes: [{key: {x: 1}, name: "x_1"}]} => {numIndexesBefore: 1, numIndexesAfter: 2, createdCollectionAutomatically: true}
            {createIndexes: "a", indexes: [{key: {x: 1.0}, name: "x_1"}]} => {numIndexesBefore: 2, numIndexesAfter: 2, note: "all indexes already exist"}
            {createIndexes: "a", indexes: [{key: {_id: 1}, name: "n"}]} => {numIndexesAfter: 2, note: "all indexes already exist"}
            {createIndexes: "a", indexes: [{key: {x: 1}, name: "other"}]} => 85
            {createIndexes: "a", indexes: [{key: {x: 1}, name: "x_1", expireAfterSeconds: 5}]} => 85
            {createIndexes: "a", indexes: [{key: {x: 1}, name: "x_1", unique: true}]} => 86
            {createIndexes: "a", indexes: [{key: {y: 1}, name: "x_1"}]} => 86
            {createIndexes: "a", indexes: [{key: {x: 1}, name: "x_1", hidden: true}]} => {note: "all indexes already exist"}
            {createIndexes: "a", indexes: [{key: {y: 1}, name: "y"}, {key: {y: 1}, name: "y"}]} => 96
            {createIndexes: "a", indexes: [{key: {y: 1}, name: "y"}, {key: {y: 1}, name: "z"}]} => 85
            {createIndexes: "a", indexes: [{key: {x: 1}, name: "s", sparse: true}]} => {numIndexesAfter: 3}
            {createIndexes: "a", indexes: [{key: {x: 1}, name: "x_1"}, {key: {q: 1}, name: "q_1"}]} => {numIndexesAfter: 4, note: "index already exists"}
            {dropIndexes: "a", index: "no"} => 27
            {dropIndexes: "a", index: "_id_"} => 72
            {dropIndexes: "a", index: {_id: 1}} => 72
            {dropIndexes: "a", index: {no: 1}} => 27
            {dropIndexes: "a", index: {x: 1}} => 181
            {dropIndexes: "a", index: ["q_1", "no"]} => 27
            {dropIndexes: "a", index: ["q_1", "q_1"]} => 27
            {dropIndexes: "a", index: 5} => 14
            {dropIndexes: "a"} => 40414
            {dropIndexes: "no", index: "*"} => 26
            {dropIndexes: "a", index: "s"} => {nIndexesWas: 4}
            {dropIndexes: "a", index: {x: 1.0}} => {nIndexesWas: 3}
            {dropIndexes: "a", index: "*"} => {nIndexesWas: 2, msg: "non-_id indexes dropped for collection"}
            {listIndexes: "a"} => {cursor: {ns: "test.a", firstBatch: [{name: "_id_"}]}}
            {listIndexes: "no"} => 26
            "#,
        )
        .await;
    let many = |count: usize| {
        let specs: Vec<String> = (0..count)
            .map(|at| format!("{{key: {{f{at}: 1}}, name: \"f{at}\"}}"))
            .collect();
        format!("{{createIndexes: \"m\", indexes: [{}]}}", specs.join(", "))
    };
    server.check(&format!("{} => 67", many(64))).await;
    server
        .check(&format!("{} => {{numIndexesAfter: 64}}", many(63)))
        .await;
    server
        .check("{createIndexes: 'm', indexes: [{key: {g: 1}, name: 'g'}]} => 67")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_hold_what_was_there_before() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            {insert: "a", documents: [{_id: 1, x: 1, t: [1, 2]}, {_id: 2, x: 1}, {_id: 3, x: [4, 5]}]} => {n: 3}
            {createIndexes: "a", indexes: [{key: {x: 1}, name: "u", unique: true}]} => 11000
            {createIndexes: "a", indexes: [{key: {t: "hashed"}, name: "h"}]} => 16766
            {createIndexes: "a", indexes: [{key: {x: 1, t: 1}, name: "xt"}]} => {numIndexesAfter: 2}
            {createIndexes: "a", indexes: [{key: {x: 1}, name: "p", partialFilterExpression: {x: 1}}]} => {numIndexesAfter: 3}
            {createIndexes: "a", indexes: [{key: {t: 1}, name: "s", sparse: true}]} => {numIndexesAfter: 4}
            {listIndexes: "a"} => {cursor: {firstBatch: [{name: "_id_"}, {name: "xt"}, {name: "p"}, {name: "s"}]}}
            {validate: "a"} => {valid: true, nrecords: 3, nIndexes: 4, keysPerIndex: {_id_: 3, xt: 5, p: 2, s: 2}}
            {insert: "a", documents: [{_id: 4, x: [1, 2], t: [1, 2]}]} => 171
            {find: "a", filter: {x: 4}, hint: "xt"} => {cursor: {firstBatch: [{_id: 3}]}}
            "#,
        )
        .await;
    let server = server.reopen().await;
    server
        .check(
            r#"
            {validate: "a"} => {valid: true, keysPerIndex: {_id_: 3, xt: 5, p: 2, s: 2}}
            {find: "a", filter: {x: {$gte: 4}}, hint: "xt"} => {cursor: {firstBatch: [{_id: 3}]}}
            "#,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn index_options_change() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            {collMod: "a"} => 26
            {createIndexes: "a", indexes: [{key: {x: 1}, name: "x_1"}, {key: {t: 1}, name: "t_1", expireAfterSeconds: 100}, {key: {p: 1, q: 1}, name: "pq"}]} => {numIndexesAfter: 4}
            {collMod: "a"} => {ok: 1.0}
            {collMod: "a", index: {name: "x_1", hidden: true}} => {hidden_old: false, hidden_new: true}
            {listIndexes: "a"} => {cursor: {firstBatch: [{}, {name: "x_1", hidden: true}, {}, {}]}}
            {collMod: "a", index: {keyPattern: {x: 1}, hidden: false}} => {hidden_old: true, hidden_new: false}
            {collMod: "a", index: {name: "t_1", expireAfterSeconds: 7.9}} => {expireAfterSeconds_old: 100L, expireAfterSeconds_new: 7L}
            {listIndexes: "a"} => {cursor: {firstBatch: [{}, {}, {name: "t_1", expireAfterSeconds: 7}, {}]}}
            {collMod: "a", index: {name: "t_1", expireAfterSeconds: NaN}} => {expireAfterSeconds_new: 0L}
            {collMod: "a", index: {name: "t_1", expireAfterSeconds: 1e20}} => {expireAfterSeconds_new: 2147483647L}
            {collMod: "a", index: {name: "x_1", expireAfterSeconds: 50}} => {expireAfterSeconds_new: 50L}
            {collMod: "a", index: {name: "t_1", expireAfterSeconds: -1}} => 72
            {collMod: "a", index: {name: "t_1", expireAfterSeconds: "x"}} => 14
            {collMod: "a", index: {name: "pq", expireAfterSeconds: 5}} => 72
            {collMod: "a", index: {name: "_id_", expireAfterSeconds: 5}} => 72
            {collMod: "a", index: {name: "_id_", hidden: true}} => 2
            {collMod: "a", index: {name: "no", hidden: true}} => 27
            {collMod: "a", index: {keyPattern: {no: 1}, hidden: true}} => 27
            {collMod: "a", index: {hidden: true}} => 72
            {collMod: "a", index: {name: "x_1"}} => 72
            {collMod: "a", index: {name: "x_1", keyPattern: {x: 1}, hidden: true}} => 72
            {collMod: "a", index: {name: "x_1", bogus: 1}} => 40415
            {collMod: "a", index: {name: "x_1", unique: true}} => 72
            {collMod: "a", validator: {x: 1}} => 115
            {collMod: "a", cappedSize: 5} => 72
            {collMod: "a", bogus: 1} => 40415
            {collMod: "a", dryRun: true} => 72
            "#,
        )
        .await;
    let server = server.reopen().await;
    server
        .check("{listIndexes: 'a'} => {cursor: {firstBatch: [{}, {name: 'x_1', expireAfterSeconds: 50}, {name: 't_1'}, {name: 'pq'}]}}")
        .await;
}

/// Where documents have arrays is kept per component of a path, found by builds
/// as well as by writes, and goes with the index.
#[tokio::test(flavor = "multi_thread")]
async fn arrays_are_known_per_path() {
    let explain =
        "{explain: {find: 'c', filter: {a: 1, 'b.c': 2}, hint: 'i'}, verbosity: 'queryPlanner'}";
    let shows = |paths: &str| {
        format!(
            "{explain} => {{queryPlanner: {{winningPlan: {{inputStage: {{multiKeyPaths: {paths}}}}}}}}}"
        )
    };
    let server = TestShard::open().await;
    server
        .check(&format!(
            r#"
            {{insert: "c", documents: [{{_id: 1, a: 1, b: {{c: [2]}}}}]}} => {{n: 1}}
            {{createIndexes: "c", indexes: [{{key: {{a: 1, "b.c": 1}}, name: "i"}}]}} => {{}}
            {}
            {{insert: "c", documents: [{{_id: 2, a: 1, b: [{{c: 3}}, {{c: 2}}]}}]}} => {{n: 1}}
            {}
            "#,
            shows("{a: [], 'b.c': ['b.c']}"),
            shows("{a: [], 'b.c': ['b', 'b.c']}"),
        ))
        .await;
    let server = server.reopen().await;
    server
        .check(&format!(
            r#"
            {}
            {{update: "c", updates: [{{q: {{_id: 1}}, u: {{$set: {{a: [], b: 1}}}}}}]}} => {{n: 1}}
            {}
            "#,
            shows("{a: [], 'b.c': ['b', 'b.c']}"),
            shows("{a: ['a'], 'b.c': ['b', 'b.c']}"),
        ))
        .await;
    server.check_valid("c").await;
    server
        .check(&format!(
            r#"
            {{delete: "c", deletes: [{{q: {{}}, limit: 0}}]}} => {{}}
            {{dropIndexes: "c", index: "i"}} => {{}}
            {{createIndexes: "c", indexes: [{{key: {{a: 1, "b.c": 1}}, name: "i"}}]}} => {{}}
            {}
            "#,
            shows("{a: [], 'b.c': []}"),
        ))
        .await;
    let server = server.reopen().await;
    server.check(&shows("{a: [], 'b.c': []}")).await;
}
