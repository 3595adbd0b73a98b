//! `local.oplog.rs`: the log with MongoDB's shape of entries.

use crate::testing::TestShard;
use differential::notation::print;
use differential::value::{Fields, Value, get};

/// Entries of database `test`, without what differs from run to run.
async fn entries(shard: &TestShard, filter: &str) -> Vec<String> {
    let reply = shard
        .run(
            "local",
            &format!(
                "{{find: 'oplog.rs', filter: {filter}, batchSize: 1000,
                   projection: {{ui: 0, ts: 0, t: 0, wall: 0, v: 0}}}}"
            ),
        )
        .await;
    let batch = get(&reply, "cursor").and_then(|cursor| cursor.get("firstBatch"));
    let batch = batch.and_then(Value::as_array).expect("a batch");
    batch.iter().map(print).collect()
}

/// ⚑ The oplog of a young set begins when the set does.
#[tokio::test(flavor = "multi_thread")]
async fn it_begins_with_the_first_configuration() {
    let shard = TestShard::open().await;
    let reply = shard.run("local", "{find: 'oplog.rs', limit: 1}").await;
    let batch = get(&reply, "cursor").and_then(|cursor| cursor.get("firstBatch"));
    let batch = batch.and_then(Value::as_array).expect("a batch");
    let first = batch.first().expect("an entry");
    let message = first.get("o").and_then(|o| o.get("msg"));
    assert_eq!(
        message,
        Some(&Value::from("initiating set")),
        "{}",
        print(first)
    );
    let Some(Value::Timestamp(seconds, _)) = first.get("ts") else {
        panic!("no time: {}", print(first));
    };
    assert!(*seconds > 0);
}

const OF_TEST: &str = "{op: {$ne: 'n'}}";

#[tokio::test(flavor = "multi_thread")]
async fn entries_have_the_shape_of_mongodb() {
    let shard = TestShard::open().await;
    shard
        .check(
            "{insert: 'c', documents: [{_id: 1, x: 1, a: [1, 2]}]} => {n: 1}
             {update: 'c', updates: [{q: {_id: 1}, u: {$set: {x: 2}}}]} => {nModified: 1}
             {update: 'c', updates: [{q: {_id: 1}, u: {$push: {a: 3}}}]} => {nModified: 1}
             {update: 'c', updates: [{q: {_id: 1}, u: {y: 1}}]} => {nModified: 1}
             {delete: 'c', deletes: [{q: {_id: 1}, limit: 1}]} => {n: 1}
             # A key that is equal to 1 but not an int.
             {insert: 'c', documents: [{_id: 1.0}, {_id: 2}]} => {n: 2}
             {delete: 'c', deletes: [{q: {_id: 1}, limit: 1}]} => {n: 1}",
        )
        .await;
    let found = entries(&shard, OF_TEST).await;
    let expected = [
        r#"{op: "c", ns: "test.$cmd", o: {create: "c", idIndex: {v: 2, key: {_id: 1}, name: "_id_"}}}"#,
        r#"{op: "i", ns: "test.c", o: {_id: 1, x: 1, a: [1, 2]}, o2: {_id: 1}}"#,
        r#"{op: "u", ns: "test.c", o: {$v: 2, diff: {u: {x: 2}}}, o2: {_id: 1}}"#,
        r#"{op: "u", ns: "test.c", o: {$v: 2, diff: {sa: {a: true, u2: 3}}}, o2: {_id: 1}}"#,
        r#"{op: "u", ns: "test.c", o: {_id: 1, y: 1}, o2: {_id: 1}}"#,
        r#"{op: "d", ns: "test.c", o: {_id: 1}}"#,
        r#"{op: "i", ns: "test.c", o: {_id: 1.0}, o2: {_id: 1.0}}"#,
        r#"{op: "i", ns: "test.c", o: {_id: 2}, o2: {_id: 2}}"#,
        r#"{op: "d", ns: "test.c", o: {_id: 1.0}}"#,
    ];
    let expected: Vec<String> = expected.iter().map(|text| (*text).to_owned()).collect();
    let found: Vec<String> = found.iter().map(|text| without_ids(text)).collect();
    assert_eq!(found, expected);
}

/// The times and documents of what was inserted, as they are found.
async fn inserted(shard: &TestShard, filter: &str, direction: i32) -> Vec<((u32, u32), Value)> {
    let reply = shard
        .run(
            "local",
            &format!(
                "{{find: 'oplog.rs', filter: {filter}, sort: {{$natural: {direction}}}, batchSize: 1000}}"
            ),
        )
        .await;
    let batch = get(&reply, "cursor").and_then(|cursor| cursor.get("firstBatch"));
    let batch = batch.and_then(Value::as_array).expect("a batch");
    let entry = |entry: &Value| {
        let Some(Value::Timestamp(seconds, increment)) = entry.get("ts") else {
            panic!("no time: {}", print(entry));
        };
        let id = entry.get("o").and_then(|document| document.get("_id"));
        ((*seconds, *increment), id.expect("an _id").clone())
    };
    batch.iter().map(entry).collect()
}

/// ⚑ A time names one document, and who goes on behind it misses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn documents_of_one_insert_have_times_of_their_own() {
    let shard = TestShard::open().await;
    let reply = shard
        .run(
            "test",
            "{insert: 'c', documents: [{_id: 1}, {_id: 2}, {_id: 3}], lsid: {id: UUID('00000000-0000-4000-8000-000000000001')}, txnNumber: 1L}",
        )
        .await;
    shard
        .check("{insert: 'c', documents: [{_id: 4}, {_id: 5}]} => {n: 2}")
        .await;
    let all = inserted(&shard, "{op: 'i'}", 1).await;
    let ids: Vec<Value> = all.iter().map(|(_, id)| id.clone()).collect();
    assert_eq!(ids, (1..=5).map(Value::Int32).collect::<Vec<_>>());
    assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0), "{all:?}");
    // The reply tells the time of the last one.
    let Some(Value::Timestamp(seconds, increment)) = get(&reply, "operationTime") else {
        panic!("no time");
    };
    assert_eq!(all[2].0, (*seconds, *increment));
    for (at, ((seconds, increment), _)) in all.iter().enumerate() {
        let behind = format!("{{op: 'i', ts: {{$gt: Timestamp({seconds}, {increment})}}}}");
        assert_eq!(
            inserted(&shard, &behind, 1).await,
            all[at + 1..],
            "{behind}"
        );
        let same = format!("{{op: 'i', ts: Timestamp({seconds}, {increment})}}");
        assert_eq!(inserted(&shard, &same, 1).await, all[at..=at], "{same}");
    }
    let mut backward = inserted(&shard, "{op: 'i'}", -1).await;
    backward.reverse();
    assert_eq!(backward, all);
    let (first, second) = (all[0].0, all[1].0);
    shard
        .check(&format!(
            "local {{find: 'oplog.rs', filter: {{op: 'i', txnNumber: 1L}}, projection: {{stmtId: 1, prevOpTime: {{ts: 1}}}}}} => \
             {{cursor: {{firstBatch: [{{stmtId: 0, prevOpTime: {{ts: Timestamp(0, 0)}}}}, \
             {{stmtId: 1, prevOpTime: {{ts: Timestamp({}, {})}}}}, {{stmtId: 2, prevOpTime: {{ts: Timestamp({}, {})}}}}]}}}}",
            first.0, first.1, second.0, second.1
        ))
        .await;
}

/// Operations of `applyOps` name their collection by its random id, too.
fn without_ids(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("ui: ") {
        out.push_str(before);
        rest = after.split_once("), ").map_or("", |(_, rest)| rest);
    }
    out.push_str(rest);
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_the_catalog_are_commands() {
    let shard = TestShard::open().await;
    shard
        .check(
            "{create: 'c', changeStreamPreAndPostImages: {enabled: true}} => {}
             {createIndexes: 'c', indexes: [{key: {a: 1}, name: 'a', unique: true}]} => {}
             {insert: 'c', documents: [{_id: 1}]} => {}
             {createIndexes: 'c', indexes: [{key: {b: 1}, name: 'b'}]} => {}
             {collMod: 'c', index: {name: 'b', hidden: true}} => {}
             {collMod: 'c', changeStreamPreAndPostImages: {enabled: false}} => {}
             {dropIndexes: 'c', index: 'b'} => {}
             admin {renameCollection: 'test.c', to: 'test.d'} => {}
             {drop: 'd'} => {}
             {create: 'e'} => {}
             {dropDatabase: 1} => {}",
        )
        .await;
    // The collection that was dropped long ago still has its name.
    let found = entries(&shard, "{op: 'c'}").await;
    let found: Vec<String> = found.iter().map(|text| without_ids(text)).collect();
    let starts = [
        r#"{op: "c", ns: "test.$cmd", o: {create: "c", changeStreamPreAndPostImages: {enabled: true}, idIndex"#,
        r#"{op: "c", ns: "test.$cmd", o: {createIndexes: "c", v: 2, key: {a: 1}, name: "a", unique: true}}"#,
        r#"{op: "c", ns: "test.$cmd", o: {commitIndexBuild: "c", indexBuildUUID: "#,
        r#"{op: "c", ns: "test.$cmd", o: {collMod: "c", index: {name: "b", hidden: true}}, o2: {collectionOptions_old: {uuid: "#,
        r#"{op: "c", ns: "test.$cmd", o: {collMod: "c", changeStreamPreAndPostImages: {enabled: false}}, o2: {collectionOptions_old: {uuid: "#,
        r#"{op: "c", ns: "test.$cmd", o: {dropIndexes: "c", index: "b"}, o2: {v: 2, "#,
        r#"{op: "c", ns: "test.$cmd", o: {renameCollection: "test.c", to: "test.d", stayTemp: false}}"#,
        r#"{op: "c", ns: "test.$cmd", o: {drop: "d"}, o2: {numRecords: 1}}"#,
        r#"{op: "c", ns: "test.$cmd", o: {create: "e", idIndex"#,
        r#"{op: "c", ns: "test.$cmd", o: {drop: "e"}, o2: {numRecords: 0}}"#,
        r#"{op: "c", ns: "test.$cmd", o: {dropDatabase: 1}}"#,
    ];
    assert_eq!(found.len(), starts.len(), "{found:#?}");
    for (found, start) in found.iter().zip(starts) {
        assert!(found.starts_with(start), "{found}\n  is not {start}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_read_like_any_collection_and_never_written() {
    let shard = TestShard::open().await;
    shard
        .check(
            "{insert: 'c', documents: [{_id: 1}]} => {n: 1}
             {insert: 'c', documents: [{_id: 2}]} => {n: 1}
             {insert: 'c', documents: [{_id: 3}]} => {n: 1}
             local {count: 'oplog.rs', query: {op: 'i'}} => {n: 3}
             local {distinct: 'oplog.rs', key: 'o._id', query: {op: 'i'}} => {values: [1, 2, 3]}
             local {aggregate: 'oplog.rs', cursor: {}, pipeline: [{$match: {op: 'i'}}, {$group: {_id: '$ns', n: {$sum: 1}}}]} => {cursor: {firstBatch: [{_id: 'test.c', n: 3}]}}
             local {find: 'oplog.rs', sort: {$natural: -1}, limit: 1, projection: {o: 1}} => {cursor: {firstBatch: [{o: {_id: 3}}], id: 0L}}
             local {find: 'oplog.rs', filter: {op: 'i'}, sort: {'o._id': -1}, skip: 1, limit: 1, projection: {o: 1}} => {cursor: {firstBatch: [{o: {_id: 2}}], id: 0L}}
             local {collStats: 'oplog.rs'} => {ns: 'local.oplog.rs', capped: true, nindexes: 0}
             local {listCollections: 1} => {cursor: {firstBatch: [{name: 'oplog.rs', options: {capped: true}}, {name: 'system.replset'}]}}
             local {insert: 'oplog.rs', documents: [{_id: 1}]} => 73
             local {delete: 'oplog.rs', deletes: [{q: {}, limit: 0}]} => 73
             local {drop: 'oplog.rs'} => 5255000
             admin {renameCollection: 'test.c', to: 'local.oplog.rs'} => 20
             local {createIndexes: 'oplog.rs', indexes: [{key: {a: 1}, name: 'a'}]} => 73",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_of_time_starts_the_read_there() {
    let shard = TestShard::open().await;
    let numbers: Vec<String> = (0..300).map(|n| format!("{{_id: {n}}}")).collect();
    for number in &numbers {
        shard.insert(std::slice::from_ref(number)).await;
    }
    let reply = shard
        .run("local", "{find: 'oplog.rs', filter: {'o._id': 250}}")
        .await;
    let entry = get(&reply, "cursor")
        .and_then(|cursor| cursor.get("firstBatch"))
        .and_then(Value::as_array)
        .and_then(|batch| batch.first().cloned())
        .expect("an entry");
    let time = print(entry.get("ts").expect("a time"));
    for (filter, expected) in [
        (format!("{{ts: {time}}}"), 1),
        (format!("{{ts: {{$gte: {time}}}}}"), 50),
        (format!("{{ts: {{$gt: {time}}}}}"), 49),
        (format!("{{ts: {{$gt: {time}}}, 'o._id': {{$lt: 255}}}}"), 4),
    ] {
        let explain = format!(
            "{{explain: {{find: 'oplog.rs', filter: {filter}}}, verbosity: 'executionStats'}}"
        );
        let reply = shard.run("local", &explain).await;
        let statistics = get(&reply, "executionStats").expect("statistics");
        let returned = statistics.get("nReturned").map(print);
        assert_eq!(returned, Some(expected.to_string()), "{filter}");
        let examined = statistics.get("totalDocsExamined").map(print);
        let at_most = 50;
        assert!(
            examined.clone().and_then(|text| text.parse::<i32>().ok()) <= Some(at_most),
            "{filter} looked at {examined:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tailable_cursor_waits_for_what_comes() {
    let shard = TestShard::open().await;
    shard
        .check("{insert: 'c', documents: [{_id: 1}]} => {n: 1}")
        .await;
    let find = "{find: 'oplog.rs', filter: {op: 'i'}, tailable: true, awaitData: true}";
    let reply = shard.run("local", find).await;
    let cursor = get(&reply, "cursor").expect("a cursor");
    let Some(&Value::Int64(id)) = cursor.get("id") else {
        panic!("{reply:?}");
    };
    assert_ne!(id, 0, "it stays open at the end");
    // Nothing comes: an empty batch, and the cursor is still there.
    let more = format!("{{getMore: {id}L, collection: 'oplog.rs', maxTimeMS: 1}}");
    shard
        .check(&format!(
            "local {more} => {{cursor: {{nextBatch: [], id: {id}L}}}}"
        ))
        .await;
    // Something comes while it waits: it is woken long before its time is up.
    let more = format!("{{getMore: {id}L, collection: 'oplog.rs', maxTimeMS: 600000}}");
    let (reply, ()) = tokio::join!(shard.run("local", &more), async {
        tokio::task::yield_now().await;
        shard
            .check("{insert: 'c', documents: [{_id: 2}]} => {n: 1}")
            .await;
    });
    let batch = get(&reply, "cursor").and_then(|cursor| cursor.get("nextBatch"));
    let batch = batch.and_then(Value::as_array).expect("a batch");
    assert_eq!(batch.len(), 1);
    // A kill ends the wait.
    let kill = format!("{{killCursors: 'oplog.rs', cursors: [{id}L]}}");
    let (reply, _) = tokio::join!(shard.run("local", &more), async {
        loop {
            tokio::task::yield_now().await;
            if shard.shard.cursors.counts().1 == 1 {
                break shard.run("local", &kill).await;
            }
        }
    });
    assert_eq!(get(&reply, "code"), Some(&Value::Int32(237)), "{reply:?}");
    shard
        .check(
            "{find: 'c', tailable: true} => 2
             local {find: 'oplog.rs', tailable: true, sort: {$natural: -1}} => 2
             local {find: 'oplog.rs', tailable: true, singleBatch: true} => 2",
        )
        .await;
}

/// As in MongoDB a token is the time of the last document that was looked at, and `$_resumeAfter` takes it as a
/// number.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_times() {
    let shard = TestShard::open().await;
    let documents: Vec<String> = (1..=9).map(|id| format!("{{_id: {id}}}")).collect();
    shard.insert(&documents).await;
    let ask = async |rest: &str| {
        let find = "find: 'oplog.rs', hint: {$natural: 1}, $_requestResumeToken: true";
        shard.run("local", &format!("{{{find}{rest}}}")).await
    };
    let batch_of = |reply: &Fields| {
        let cursor = get(reply, "cursor").unwrap_or_else(|| panic!("{reply:?}"));
        let batch = cursor.get("firstBatch").and_then(Value::as_array);
        let times: Vec<Value> = batch
            .expect("a batch")
            .iter()
            .map(|entry| entry.get("ts").expect("a time").clone())
            .collect();
        let token = cursor.get("postBatchResumeToken").expect("a token").clone();
        (times, token)
    };
    let number = |token: &Value| match token.get("ts") {
        Some(Value::Timestamp(seconds, increment)) => {
            (i64::from(*seconds) << 32) | i64::from(*increment)
        }
        _ => panic!("{} is no time", print(token)),
    };
    let (all, end) = batch_of(&ask(", batchSize: 1000").await);
    assert_eq!(end.get("ts"), all.last());
    // Every batch is a cursor of its own.
    let (mut found, mut last) = batch_of(&ask(", batchSize: 2, singleBatch: true").await);
    while found.len() < all.len() {
        assert_eq!(last.get("ts"), found.last());
        let after = format!("$_resumeAfter: {{$recordId: {}L}}", number(&last));
        let reply = ask(&format!(", batchSize: 2, singleBatch: true, {after}")).await;
        let (times, token) = batch_of(&reply);
        assert!(!times.is_empty(), "{reply:?}");
        found.extend(times);
        last = token;
    }
    assert_eq!(found, all);
    // What was looked at counts, also if it was not wanted; nothing was, of a batch of none.
    let (times, token) = batch_of(&ask(", filter: {op: 'nothing'}").await);
    assert_eq!((times.len(), token.get("ts")), (0, all.last()));
    let (_, token) = batch_of(&ask(", batchSize: 0").await);
    assert_eq!(token.get("ts"), Some(&Value::Timestamp(0, 0)));
    let from_null = ask(", $_resumeAfter: {$recordId: null}, batchSize: 1000").await;
    assert_eq!(batch_of(&from_null).0, all);
    let of_the_filter = format!(
        ", filter: {{ts: {{$gte: {}}}}}, $_resumeAfter: {{$recordId: {}L}}, batchSize: 1000",
        print(&all[0]),
        number(&end)
    );
    assert_eq!(batch_of(&ask(&of_the_filter).await).0, []);
    // Where nothing is in the log nobody can go on, nor from MongoDB's own tokens.
    for (after, code) in [
        ("{$recordId: 5L}", 211),
        ("{$recordId: 4611686018427387904L}", 211),
        ("{$recordId: -1L}", 211),
        (&*print(&end), 2),
        ("{$recordId: 'x'}", 2),
    ] {
        let reply = ask(&format!(", $_resumeAfter: {after}")).await;
        assert_eq!(get(&reply, "code"), Some(&Value::Int32(code)), "{after}");
    }
    // Others that are made when they are read say that they have none.
    for (database, name) in [("local", "system.replset"), ("config", "transactions")] {
        let find = format!("{{find: '{name}', hint: {{$natural: 1}}, $_requestResumeToken: true}}");
        let reply = shard.run(database, &find).await;
        assert_eq!(get(&reply, "code"), Some(&Value::Int32(115)), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_not_read_as_of_one_time() {
    TestShard::open()
        .await
        .check(
            "local {find: 'oplog.rs', readConcern: {level: 'snapshot'}} => 246
             local {aggregate: 'oplog.rs', pipeline: [], cursor: {}, readConcern: {level: 'snapshot'}} => 246
             local {distinct: 'oplog.rs', key: 'op', readConcern: {level: 'snapshot'}} => 246
             local {count: 'oplog.rs', readConcern: {level: 'snapshot'}} => 72
             local {find: 'oplog.rs', readConcern: {level: 'majority'}} => {}
             {find: 'oplog.rs', readConcern: {level: 'snapshot'}} => {}",
        )
        .await;
}
