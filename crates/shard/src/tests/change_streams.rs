//! Change streams over a whole shard: events, tokens, images, and how streams end.
//!
//! What events look like was taken from a real `mongod` 6.0.

use crate::LogWindow;
use crate::testing::TestShard;
use crate::write::Companion;
use differential::notation::print;
use differential::value::{Fields, Value, get};
use model::Namespace;
use model::bson::DocWriter;
use model::key::RecordKey;
use replication::Durability;
use storage::entry::{Description, Encoder, Header};

/// A stream that a test reads.
struct Stream<'a> {
    shard: &'a TestShard,
    database: &'static str,
    collection: &'static str,
    id: i64,
    token: Value,
    invalidated: bool,
    seen: Vec<Value>,
}

impl<'a> Stream<'a> {
    /// Watches `test.c`.
    async fn open(shard: &'a TestShard, spec: &str, stages: &str) -> Self {
        Self::on(shard, "test", "'c'", spec, stages).await
    }

    async fn on(
        shard: &'a TestShard,
        database: &'static str,
        target: &str,
        spec: &str,
        stages: &str,
    ) -> Self {
        let command = format!(
            "{{aggregate: {target}, pipeline: [{{$changeStream: {spec}}}{stages}], cursor: {{}}}}"
        );
        let reply = shard.run(database, &command).await;
        let mut stream = Self {
            shard,
            database,
            collection: if target == "1" { "$cmd.aggregate" } else { "c" },
            id: 0,
            token: Value::Null,
            invalidated: false,
            seen: Vec::new(),
        };
        stream.take(&reply, "firstBatch");
        stream
    }

    fn take(&mut self, reply: &Fields, batch: &str) {
        let cursor = get(reply, "cursor").unwrap_or_else(|| panic!("{reply:?}"));
        match cursor.get("id") {
            Some(Value::Int64(id)) => self.id = *id,
            other => panic!("{other:?}"),
        }
        self.invalidated = cursor.get("invalidated").is_some();
        self.token = cursor.get("postBatchResumeToken").expect("a token").clone();
        let events = cursor
            .get(batch)
            .and_then(Value::as_array)
            .expect("a batch");
        self.seen.extend(events.to_vec());
    }

    async fn get_more(&self, wait_ms: u32) -> Fields {
        let (id, collection) = (self.id, self.collection);
        let command =
            format!("{{getMore: {id}L, collection: '{collection}', maxTimeMS: {wait_ms}}}");
        self.shard.run(self.database, &command).await
    }

    /// Reads to the end of what there is; the events that were not told before.
    async fn events(&mut self) -> Vec<Value> {
        while self.id != 0 {
            let before = self.seen.len();
            let reply = self.get_more(1).await;
            self.take(&reply, "nextBatch");
            if self.seen.len() == before {
                break;
            }
        }
        std::mem::take(&mut self.seen)
    }

    /// The same without what differs from run to run.
    async fn told(&mut self) -> Vec<String> {
        self.events().await.iter().map(told).collect()
    }

    async fn close(self) {
        if self.id != 0 {
            let (id, collection) = (self.id, self.collection);
            let command = format!("{{killCursors: '{collection}', cursors: [{id}L]}}");
            self.shard.run(self.database, &command).await;
        }
    }
}

fn told(event: &Value) -> String {
    let Value::Document(fields) = event else {
        panic!("{event:?}");
    };
    let told = fields
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "_id" | "clusterTime" | "wallTime"))
        .cloned()
        .collect();
    print(&Value::Document(told))
}

fn id_of(event: &Value) -> String {
    print(event.get("_id").expect("a token"))
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_documents() {
    let shard = TestShard::open().await;
    shard.check("{create: 'c'} => {}").await;
    let mut stream = Stream::open(&shard, "{}", "").await;
    shard
        .check(
            "{insert: 'c', documents: [{_id: 1, x: 1, a: [1, 2, 3], o: {p: 1}}]} => {n: 1}
             {update: 'c', updates: [{q: {_id: 1}, u: {$set: {x: 2, 'o.p': 5, n: 1}, $unset: {a: 1}}}]} => {nModified: 1}
             {update: 'c', updates: [{q: {_id: 1}, u: [{$set: {a: [1, 2, 3, 4, 5, 6, 7, 8, 9]}}]}]} => {nModified: 1}
             {update: 'c', updates: [{q: {_id: 1}, u: [{$set: {a: [1, 2, 3, 4, 5, 6, 7]}}]}]} => {nModified: 1}
             {update: 'c', updates: [{q: {_id: 1}, u: {$set: {'a.0': 9}}}]} => {nModified: 1}
             {update: 'c', updates: [{q: {_id: 1}, u: {y: 1}}]} => {nModified: 1}
             {insert: 'other', documents: [{_id: 1}]} => {n: 1}
             {delete: 'c', deletes: [{q: {_id: 1}, limit: 1}]} => {n: 1}
             {insert: 'c', documents: [{_id: 2}, {_id: 3}]} => {n: 2}
             {findAndModify: 'c', query: {_id: 3}, remove: true} => {}",
        )
        .await;
    let ns = r#"ns: {db: "test", coll: "c"}"#;
    let update = |description: &str| {
        format!(
            r#"{{operationType: "update", {ns}, documentKey: {{_id: 1}}, updateDescription: {description}}}"#
        )
    };
    let expected = [
        format!(
            r#"{{operationType: "insert", fullDocument: {{_id: 1, x: 1, a: [1, 2, 3], o: {{p: 1}}}}, {ns}, documentKey: {{_id: 1}}}}"#
        ),
        update(
            r#"{updatedFields: {x: 2, n: 1, "o.p": 5}, removedFields: ["a"], truncatedArrays: []}"#,
        ),
        update(
            "{updatedFields: {a: [1, 2, 3, 4, 5, 6, 7, 8, 9]}, removedFields: [], truncatedArrays: []}",
        ),
        update(
            r#"{updatedFields: {}, removedFields: [], truncatedArrays: [{field: "a", newSize: 7}]}"#,
        ),
        update(r#"{updatedFields: {"a.0": 9}, removedFields: [], truncatedArrays: []}"#),
        format!(
            r#"{{operationType: "replace", fullDocument: {{_id: 1, y: 1}}, {ns}, documentKey: {{_id: 1}}}}"#
        ),
        format!(r#"{{operationType: "delete", {ns}, documentKey: {{_id: 1}}}}"#),
        format!(
            r#"{{operationType: "insert", fullDocument: {{_id: 2}}, {ns}, documentKey: {{_id: 2}}}}"#
        ),
        format!(
            r#"{{operationType: "insert", fullDocument: {{_id: 3}}, {ns}, documentKey: {{_id: 3}}}}"#
        ),
        format!(r#"{{operationType: "delete", {ns}, documentKey: {{_id: 3}}}}"#),
    ];
    assert_eq!(stream.told().await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_and_the_cluster_show_all_collections() {
    let shard = TestShard::open().await;
    let mut database = Stream::on(&shard, "test", "1", "{}", "").await;
    let mut cluster = Stream::on(&shard, "admin", "1", "{allChangesForCluster: true}", "").await;
    let stages = ", {$project: {operationType: 1, ns: 1, 'documentKey._id': 1}}";
    let mut brief = Stream::on(&shard, "test", "1", "{}", stages).await;
    shard
        .check(
            "{insert: 'a', documents: [{_id: 1}]} => {n: 1}
             other {insert: 'b', documents: [{_id: 2}]} => {n: 1}
             admin {insert: 'hidden', documents: [{_id: 3}]} => {n: 1}
             {insert: 'system.js', documents: [{_id: 4}]} => {n: 1}
             admin {renameCollection: 'test.a', to: 'test.d'} => {}
             {drop: 'd'} => {}
             {dropDatabase: 1} => {}",
        )
        .await;
    let of_test = [
        r#"{operationType: "insert", fullDocument: {_id: 1}, ns: {db: "test", coll: "a"}, documentKey: {_id: 1}}"#,
        r#"{operationType: "insert", fullDocument: {_id: 4}, ns: {db: "test", coll: "system.js"}, documentKey: {_id: 4}}"#,
        r#"{to: {db: "test", coll: "d"}, operationType: "rename", ns: {db: "test", coll: "a"}}"#,
        r#"{operationType: "drop", ns: {db: "test", coll: "d"}}"#,
        r#"{operationType: "drop", ns: {db: "test", coll: "system.js"}}"#,
        r#"{operationType: "dropDatabase", ns: {db: "test"}}"#,
    ];
    let mut expected: Vec<&str> = of_test.to_vec();
    expected.push(r#"{operationType: "invalidate"}"#);
    assert_eq!(database.told().await, expected);
    assert!(database.invalidated && database.id == 0);
    let mut expected: Vec<&str> = of_test.to_vec();
    expected.insert(
        1,
        r#"{operationType: "insert", fullDocument: {_id: 2}, ns: {db: "other", coll: "b"}, documentKey: {_id: 2}}"#,
    );
    assert_eq!(cluster.told().await, expected);
    assert_ne!(cluster.id, 0, "the cluster goes on");
    assert_eq!(
        brief.told().await[0],
        r#"{operationType: "insert", ns: {db: "test", coll: "a"}, documentKey: {_id: 1}}"#
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn expanded_events_tell_of_the_catalog() {
    let shard = TestShard::open().await;
    let mut stream = Stream::on(&shard, "test", "1", "{showExpandedEvents: true}", "").await;
    shard
        .check(
            "{create: 'c'} => {}
             {createIndexes: 'c', indexes: [{key: {x: 1}, name: 'x'}]} => {}
             {collMod: 'c', index: {name: 'x', hidden: true}} => {}
             {insert: 'c', documents: [{_id: 1}]} => {n: 1}
             {createIndexes: 'c', indexes: [{key: {y: 1}, name: 'y'}]} => {}
             {dropIndexes: 'c', index: 'y'} => {}
             {create: 'd'} => {}
             admin {renameCollection: 'test.c', to: 'test.d', dropTarget: true} => {}",
        )
        .await;
    let kinds: Vec<String> = stream
        .events()
        .await
        .iter()
        .map(|event| {
            assert!(event.get("collectionUUID").is_some(), "{event:?}");
            let mut description = event
                .get("operationDescription")
                .map_or(String::new(), print);
            if let Some(at) = description.find(", dropTarget") {
                description.truncate(at);
            }
            format!(
                "{} {description}",
                print(&event.get("operationType").cloned().unwrap_or(Value::Null))
            )
        })
        .collect();
    assert_eq!(
        kinds,
        [
            r#""create" {idIndex: {v: 2, key: {_id: 1}, name: "_id_"}}"#,
            r#""createIndexes" {indexes: [{v: 2, key: {x: 1}, name: "x"}]}"#,
            r#""modify" {index: {name: "x", hidden: true}}"#,
            r#""insert" "#,
            r#""createIndexes" {indexes: [{v: 2, key: {y: 1}, name: "y"}]}"#,
            r#""dropIndexes" {indexes: [{v: 2, key: {y: 1}, name: "y"}]}"#,
            r#""create" {idIndex: {v: 2, key: {_id: 1}, name: "_id_"}}"#,
            r#""rename" {to: {db: "test", coll: "d"}"#,
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_resumes_behind_any_token() {
    let shard = TestShard::open().await;
    shard.check("{create: 'c'} => {}").await;
    let mut stream = Stream::open(&shard, "{}", "").await;
    let start = print(&stream.token);
    // Several events of one entry, entries between that are not watched.
    shard
        .check(
            "{insert: 'c', documents: [{_id: 1}, {_id: 2}, {_id: 3}]} => {n: 3}
             {insert: 'other', documents: [{_id: 1}]} => {n: 1}
             {update: 'c', updates: [{q: {}, u: {$set: {x: 1}}, multi: true}]} => {nModified: 3}
             {insert: 'other', documents: [{_id: 2}]} => {n: 1}",
        )
        .await;
    let all = stream.events().await;
    assert_eq!(all.len(), 6);
    let end = print(&stream.token);
    stream.close().await;
    // What is behind a token is the same after the shard was opened again.
    let shard = shard.reopen().await;
    let mut tokens = vec![start];
    tokens.extend(all.iter().map(id_of));
    for (seen, token) in tokens.iter().enumerate() {
        for option in ["resumeAfter", "startAfter"] {
            let mut stream = Stream::open(&shard, &format!("{{{option}: {token}}}"), "").await;
            let rest: Vec<String> = stream.events().await.iter().map(print).collect();
            let expected: Vec<String> = all[seen..].iter().map(print).collect();
            assert_eq!(rest, expected, "{option} {token}");
            stream.close().await;
        }
    }
    let mut stream = Stream::open(&shard, &format!("{{resumeAfter: {end}}}"), "").await;
    assert!(stream.events().await.is_empty());
    // Before anything is read, the token is still the one that was given.
    for token in &tokens {
        let command = format!(
            "{{aggregate: 'c', pipeline: [{{$changeStream: {{resumeAfter: {token}}}}}],
               cursor: {{batchSize: 0}}}}"
        );
        let reply = shard.run("test", &command).await;
        let found = get(&reply, "cursor").and_then(|cursor| cursor.get("postBatchResumeToken"));
        assert_eq!(found.map(print).as_ref(), Some(token));
    }
    // From a time: the events at that time and later.
    let time = print(all[3].get("clusterTime").expect("a time"));
    let mut stream = Stream::open(&shard, &format!("{{startAtOperationTime: {time}}}"), "").await;
    assert_eq!(stream.events().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn filtered_events_still_move_the_token() {
    let shard = TestShard::open().await;
    shard.check("{create: 'c'} => {}").await;
    let stages = ", {$match: {operationType: 'delete'}}";
    let mut stream = Stream::open(&shard, "{}", stages).await;
    let before = print(&stream.token);
    shard
        .check(
            "{insert: 'c', documents: [{_id: 1}]} => {n: 1}
             {insert: 'other', documents: [{_id: 1}]} => {n: 1}",
        )
        .await;
    assert!(stream.events().await.is_empty());
    let after = print(&stream.token);
    assert!(after > before, "{after} is behind {before}");
    // ⚑ Going on from there leaves nothing out.
    shard
        .check("{delete: 'c', deletes: [{q: {_id: 1}, limit: 1}]} => {n: 1}")
        .await;
    let resume = format!("{{resumeAfter: {after}}}");
    let mut resumed = Stream::open(&shard, &resume, stages).await;
    assert_eq!(resumed.events().await.len(), 1);
    // A batch that is full ends at its last event.
    let batches = format!(
        "{{aggregate: 'c', pipeline: [{{$changeStream: {{resumeAfter: {before}}}}}],
           cursor: {{batchSize: 1}}}}"
    );
    let reply = shard.run("test", &batches).await;
    let cursor = get(&reply, "cursor").expect("a cursor");
    let first = &cursor
        .get("firstBatch")
        .and_then(Value::as_array)
        .expect("a batch")[0];
    assert_eq!(cursor.get("postBatchResumeToken"), first.get("_id"));
}

/// Whether a stream tells the event that it is resumed behind does not depend on what was looked up, be it named
/// or part of a whole event.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_resumes_behind_an_event_that_what_was_looked_up_has_let_through() {
    let shard = TestShard::open().await;
    shard
        .check("{insert: 'c', documents: [{_id: 1, a: 1}]} => {n: 1}")
        .await;
    let whole = |name: &str| {
        format!(", {{$match: {{$expr: {{$gt: [{{$size: {{$objectToArray: '{name}'}}}}, 7]}}}}}}")
    };
    let stages = [
        ", {$match: {'fullDocument.a': {$gt: 1}}}".to_owned(),
        whole("$$ROOT"),
        whole("$$CURRENT"),
    ];
    for (at, stages) in stages.iter().enumerate() {
        let lookup = "fullDocument: 'updateLookup'";
        let mut stream = Stream::open(&shard, &format!("{{{lookup}}}"), stages).await;
        let update = |by: usize| {
            format!(
                "{{update: 'c', updates: [{{q: {{_id: 1}}, u: {{$set: {{a: {by}}}}}}}]}} => {{nModified: 1}}"
            )
        };
        shard.check(&update(10 * at + 10)).await;
        let first = stream.events().await;
        assert_eq!(first.len(), 1, "{stages}");
        shard.check(&update(10 * at + 11)).await;
        let resume = format!("{{{lookup}, resumeAfter: {}}}", id_of(&first[0]));
        let mut resumed = Stream::open(&shard, &resume, stages).await;
        assert_eq!(resumed.events().await.len(), 1, "{stages}");
        resumed.close().await;
        stream.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_or_renaming_ends_a_stream() {
    let shard = TestShard::open().await;
    for (end, kind) in [
        ("{drop: 'c'} => {}", "drop"),
        (
            "admin {renameCollection: 'test.c', to: 'test.e'} => {}",
            "rename",
        ),
        (
            "admin {renameCollection: 'test.d', to: 'test.c', dropTarget: true} => {}",
            "rename",
        ),
        ("{dropDatabase: 1} => {}", "drop"),
    ] {
        shard.run("test", "{create: 'c'}").await;
        let mut stream = Stream::open(&shard, "{}", "").await;
        shard.check(end).await;
        let events = stream.events().await;
        let kinds: Vec<String> = events
            .iter()
            .map(|event| print(event.get("operationType").expect("a kind")))
            .collect();
        assert_eq!(
            kinds,
            [format!("{kind:?}"), "\"invalidate\"".to_owned()],
            "{end}"
        );
        assert!(stream.invalidated && stream.id == 0, "{end}");
        let invalidate = id_of(&events[1]);
        shard
            .check(&format!(
                "{{aggregate: 'c', cursor: {{}}, pipeline: [{{$changeStream: {{resumeAfter: {invalidate}}}}}]}} => 260
                 {{insert: 'c', documents: [{{_id: '{kind}'}}]}} => {{n: 1}}"
            ))
            .await;
        // A new stream may begin behind the end of the old one.
        let mut next = Stream::open(&shard, &format!("{{startAfter: {invalidate}}}"), "").await;
        let kinds: Vec<Value> = next.events().await;
        assert_eq!(kinds.len(), 1, "{kinds:?}");
        // The one before it ends the stream once more.
        let before = format!("{{resumeAfter: {}}}", id_of(&events[0]));
        let mut again = Stream::open(&shard, &before, "").await;
        let told = again.told().await;
        assert_eq!(told, [r#"{operationType: "invalidate"}"#]);
        next.close().await;
        shard.run("test", "{drop: 'c'}").await;
        shard.run("test", "{create: 'd'}").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn images_before_and_after_a_change() {
    let shard = TestShard::open().await;
    shard
        .check(
            "{create: 'c', changeStreamPreAndPostImages: {enabled: true}} => {}
             {create: 'plain'} => {}",
        )
        .await;
    let spec = "{fullDocument: 'required', fullDocumentBeforeChange: 'required'}";
    let mut images = Stream::open(&shard, spec, "").await;
    let mut now = Stream::open(&shard, "{fullDocument: 'updateLookup'}", "").await;
    let spec = "{fullDocument: 'whenAvailable', fullDocumentBeforeChange: 'whenAvailable'}";
    let mut available = Stream::on(&shard, "test", "1", spec, "").await;
    let changes = |name: &str| {
        format!(
            "{{insert: '{name}', documents: [{{_id: 1, x: 1}}]}} => {{n: 1}}
             {{update: '{name}', updates: [{{q: {{_id: 1}}, u: {{$set: {{x: 2}}}}}}]}} => {{nModified: 1}}
             {{update: '{name}', updates: [{{q: {{_id: 1}}, u: {{$set: {{x: 3}}}}}}]}} => {{nModified: 1}}
             {{update: '{name}', updates: [{{q: {{_id: 1}}, u: {{y: 1}}}}]}} => {{nModified: 1}}"
        )
    };
    shard.check(&changes("c")).await;
    shard.check(&changes("plain")).await;
    let shown = |events: Vec<Value>| -> Vec<String> {
        events
            .iter()
            .map(|event| {
                let image = |name: &str| event.get(name).map_or("-".to_owned(), print);
                format!(
                    "{} {}",
                    image("fullDocumentBeforeChange"),
                    image("fullDocument")
                )
            })
            .collect()
    };
    assert_eq!(
        shown(images.events().await),
        [
            "- {_id: 1, x: 1}",
            "{_id: 1, x: 1} {_id: 1, x: 2}",
            "{_id: 1, x: 2} {_id: 1, x: 3}",
            "{_id: 1, x: 3} {_id: 1, y: 1}",
        ]
    );
    assert_eq!(
        shown(now.events().await),
        [
            "- {_id: 1, x: 1}",
            "- {_id: 1, y: 1}",
            "- {_id: 1, y: 1}",
            "- {_id: 1, y: 1}"
        ]
    );
    assert_eq!(
        shown(available.events().await)[4..],
        [
            "- {_id: 1, x: 1}",
            "null null",
            "null null",
            "null {_id: 1, y: 1}"
        ]
    );
    shard
        .check("{delete: 'c', deletes: [{q: {_id: 1}, limit: 1}]} => {n: 1}")
        .await;
    assert_eq!(shown(images.events().await), ["{_id: 1, y: 1} -"]);
    // Without images the stream cannot keep its promise.
    for option in ["fullDocument", "fullDocumentBeforeChange"] {
        let mut stream = Stream::on(
            &shard,
            "test",
            "1",
            &format!("{{{option}: 'required'}}"),
            "",
        )
        .await;
        shard
            .check(
                "{update: 'plain', updates: [{q: {_id: 1}, u: {$inc: {z: 1}}}]} => {nModified: 1}",
            )
            .await;
        let reply = stream.get_more(1).await;
        assert_eq!(get(&reply, "code"), Some(&Value::Int32(47)), "{reply:?}");
        stream.id = 0;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_stream_is_woken() {
    let shard = TestShard::open().await;
    shard.check("{create: 'c'} => {}").await;
    let mut stream = Stream::open(&shard, "{}", "").await;
    // By news, long before its time is up; by writes elsewhere it is not ended.
    let (reply, ()) = tokio::join!(stream.get_more(600_000), async {
        tokio::task::yield_now().await;
        shard
            .check(
                "{insert: 'other', documents: [{_id: 1}]} => {n: 1}
                 {insert: 'c', documents: [{_id: 1}]} => {n: 1}",
            )
            .await;
    });
    stream.take(&reply, "nextBatch");
    assert_eq!(stream.seen.len(), 1);
    // By a kill.
    let kill = format!("{{killCursors: 'c', cursors: [{}L]}}", stream.id);
    let (reply, _) = tokio::join!(stream.get_more(600_000), async {
        while shard.shard.cursors.counts().1 == 0 {
            tokio::task::yield_now().await;
        }
        shard.run("test", &kill).await
    });
    assert_eq!(get(&reply, "code"), Some(&Value::Int32(237)), "{reply:?}");
    // By the end of the server.
    let stream = Stream::open(&shard, "{}", "").await;
    let (reply, ()) = tokio::join!(stream.get_more(600_000), async {
        while shard.shard.cursors.counts().1 == 0 {
            tokio::task::yield_now().await;
        }
        shard.shard.begin_shutdown();
    });
    assert!(get(&reply, "cursor").is_some(), "{reply:?}");
    // From then on nothing comes here, and a driver goes on elsewhere: it is not to ask again and again.
    let reply = stream.get_more(600_000).await;
    assert_eq!(get(&reply, "code"), Some(&Value::Int32(91)), "{reply:?}");
    let labels = get(&reply, "errorLabels").and_then(Value::as_array);
    assert_eq!(
        labels,
        Some(&[Value::String("ResumableChangeStreamError".to_owned())][..])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals() {
    let shard = TestShard::open().await;
    shard
        .check("{insert: 'c', documents: [{_id: 1}]} => {n: 1}")
        .await;
    for (target, spec, stages, code) in [
        ("'c'", "5", "", 6188500),
        ("'c'", "{no: 1}", "", 40415),
        ("'c'", "{fullDocument: 'x'}", "", 2),
        ("'c'", "{fullDocument: 1}", "", 14),
        ("'c'", "{fullDocumentBeforeChange: 'x'}", "", 2),
        ("'c'", "{showExpandedEvents: 1}", "", 14),
        ("'c'", "{startAtOperationTime: 1}", "", 14),
        ("'c'", "{resumeAfter: 1}", "", 14),
        ("'c'", "{resumeAfter: {}}", "", 40647),
        ("'c'", "{resumeAfter: {_data: ''}}", "", 40649),
        ("'c'", "{resumeAfter: {_data: 'zz'}}", "", 9),
        ("'c'", "{resumeAfter: {_data: '82'}}", "", 15),
        (
            "'c'",
            "{resumeAfter: {_data: '8200000001000000032B022C0100296E5A1004041D04057F784D15806D2209D18ABD87461E5F6964002B020004'}}",
            "",
            280,
        ),
        (
            "'c'",
            "{resumeAfter: {_data: '826AFA4822000000062B0229296E04'}, startAtOperationTime: Timestamp(1, 1)}",
            "",
            40674,
        ),
        (
            "'c'",
            "{resumeAfter: {_data: '826AFA4822000000062B0229296E04'}, startAfter: {_data: '826AFA4822000000062B0229296E04'}}",
            "",
            50865,
        ),
        ("1", "{allChangesForCluster: true}", "", 72),
        ("'system.views'", "{}", "", 73),
        ("'c'", "{}", ", {$group: {_id: 1}}", 20),
        ("'c'", "{}", ", {$sort: {a: 1}}", 20),
        ("'c'", "{}", ", {$limit: 1}", 20),
        (
            "'c'",
            "{}",
            ", {$lookup: {from: 'a', as: 'x', pipeline: []}}",
            20,
        ),
        ("'c'", "{}", ", {$out: 'x'}", 20),
        ("'c'", "{}", ", {$count: 'x'}", 20),
        ("'c'", "{}", ", {$changeStream: {}}", 40602),
    ] {
        shard
            .check(&format!(
                "{{aggregate: {target}, pipeline: [{{$changeStream: {spec}}}{stages}], cursor: {{}}}} => {code}"
            ))
            .await;
    }
    shard
        .check(
            "local {aggregate: 1, pipeline: [{$changeStream: {}}], cursor: {}} => 73
             {aggregate: 'c', pipeline: [{$match: {}}, {$changeStream: {}}], cursor: {}} => 40602
             {aggregate: 'c', pipeline: [{$facet: {a: [{$changeStream: {}}]}}], cursor: {}} => 40600
             {aggregate: 'c', pipeline: [{$changeStream: {}}], cursor: {}, readConcern: {level: 'local'}} => 72
             {aggregate: 'c', pipeline: [{$changeStream: {}}], cursor: {}, readConcern: {level: 'majority'}} => {}",
        )
        .await;
    // A pipeline that loses the token.
    let stream = Stream::open(&shard, "{}", ", {$project: {_id: 0}}").await;
    shard
        .check("{insert: 'c', documents: [{_id: 2}]} => {n: 1}")
        .await;
    let reply = stream.get_more(1).await;
    assert_eq!(get(&reply, "code"), Some(&Value::Int32(280)), "{reply:?}");
    assert!(get(&reply, "errorLabels").is_some(), "{reply:?}");
}

/// ⚑ What moves and range deletions write is in the log and in no stream.
#[tokio::test(flavor = "multi_thread")]
async fn entries_of_moves_never_appear() {
    let shard = TestShard::open().await;
    shard.check("{create: 'c'} => {}").await;
    let mut stream = Stream::open(&shard, "{}", "").await;
    let collection = shard
        .shard
        .catalog
        .get(&Namespace::new("test", "c").expect("a name"))
        .expect("the collection");
    for (number, origin) in [(1, Some(&b"move"[..])), (2, None)] {
        let document = DocWriter::new().with("_id", number).finish();
        let key = RecordKey::from_id(document.get("_id").expect("an id"));
        let header = Header {
            origin,
            names: Some(collection.name()),
            ..Header::default()
        };
        let mut payload = Vec::new();
        Encoder::with_header(&mut payload, header).put_record(
            collection.id,
            key.as_bytes(),
            document.as_bytes(),
            Description::Insert,
            &[],
        );
        shard
            .shard
            .log
            .propose(Durability::Synced, payload, |_, _, _| Companion::empty())
            .expect("the log takes it")
            .await
            .expect("it is applied");
    }
    let seen: Vec<String> = stream.events().await.iter().map(id_of_document).collect();
    assert_eq!(seen, ["{_id: 2}"]);
    shard
        .check(
            "local {find: 'oplog.rs', filter: {op: 'i'}, projection: {o: 1, fromMigrate: 1}} => {cursor: {firstBatch: [{o: {_id: 1}, fromMigrate: true}, {o: {_id: 2}}]}}",
        )
        .await;
}

fn id_of_document(event: &Value) -> String {
    print(event.get("documentKey").expect("a key"))
}

/// A shard whose log keeps little, and the token and time from before all of it.
async fn trimmed() -> (TestShard, String, String) {
    let shard = TestShard::open_keeping(LogWindow {
        bytes: 128 << 10,
        age_ms: 0,
        segment_bytes: 64 << 10,
    })
    .await;
    shard.check("{create: 'c'} => {}").await;
    let mut stream = Stream::open(&shard, "{}", "").await;
    shard
        .check("{insert: 'c', documents: [{_id: 'first'}]} => {n: 1}")
        .await;
    let first = stream.events().await.remove(0);
    stream.close().await;
    let time = print(first.get("clusterTime").expect("a time"));
    (shard, id_of(&first), time)
}

async fn write_past_the_window(shard: &TestShard) {
    let filling = "x".repeat(10_000);
    for number in 0..100 {
        let insert = format!("{{_id: {number}, filling: '{filling}'}}");
        shard.insert(&[insert]).await;
    }
    tokio::task::block_in_place(|| shard.shard.log.maintain());
    assert!(
        shard.shard.log.first_position().get() > 10,
        "the log was cut"
    );
}

/// ⚑ A stream whose place has left the log says so, and never leaves events out.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_has_left_the_log_is_an_error() {
    let (shard, token, time) = trimmed().await;
    let resting = Stream::open(&shard, "{}", "").await;
    let high_water_mark = print(&resting.token);
    write_past_the_window(&shard).await;
    for spec in [
        format!("{{resumeAfter: {token}}}"),
        format!("{{startAfter: {token}}}"),
        format!("{{resumeAfter: {high_water_mark}}}"),
        format!("{{startAtOperationTime: {time}}}"),
    ] {
        let command =
            format!("{{aggregate: 'c', pipeline: [{{$changeStream: {spec}}}], cursor: {{}}}}");
        shard.check(&format!("{command} => 286")).await;
    }
    let reply = resting.get_more(1).await;
    assert_eq!(get(&reply, "code"), Some(&Value::Int32(286)), "{reply:?}");
    assert!(get(&reply, "errorLabels").is_some(), "{reply:?}");
}

/// ⚑ The same for those who read the oplog.
#[tokio::test(flavor = "multi_thread")]
async fn an_oplog_cursor_is_never_told_of_a_gap_in_silence() {
    let (shard, _, time) = trimmed().await;
    let reply = shard.run("local", "{find: 'oplog.rs', batchSize: 1}").await;
    let resting = print(
        get(&reply, "cursor")
            .and_then(|c| c.get("id"))
            .expect("an id"),
    );
    write_past_the_window(&shard).await;
    // It may still hand out what it had read.
    let mut code = None;
    for _ in 0..200 {
        let more = format!("{{getMore: {resting}, collection: 'oplog.rs', batchSize: 1}}");
        let reply = shard.run("local", &more).await;
        if let Some(found) = get(&reply, "code") {
            code = Some(found.clone());
            break;
        }
    }
    assert_eq!(code, Some(Value::Int32(136)));
    shard
        .check(&format!(
            "local {{find: 'oplog.rs', filter: {{ts: {{$gte: {time}}}}}, tailable: true}} => 326
             local {{find: 'oplog.rs', filter: {{ts: {{$gte: {time}}}}}, limit: 1}} => {{}}
             local {{find: 'oplog.rs', limit: 1}} => {{}}"
        ))
        .await;
}

/// A write wakes the streams that it may concern, and no other: counted, not timed.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_wakes_whom_it_concerns() {
    let server = std::sync::Arc::new(TestShard::open().await);
    server
        .check("{create: 'c'} => {}\n{create: 'd'} => {}")
        .await;
    let watchers = &server.shard.watchers;
    for (watched, writes, wakes) in [("'d'", "c", 0), ("'d'", "d", 1), ("1", "c", 1)] {
        let open =
            format!("{{aggregate: {watched}, pipeline: [{{$changeStream: {{}}}}], cursor: {{}}}}");
        let (id, _) = server.batch(&open).await;
        let collection = if watched == "1" {
            "$cmd.aggregate"
        } else {
            "d"
        };
        let more = format!("{{getMore: {id}L, collection: '{collection}', maxTimeMS: 60000}}");
        let waiting = tokio::spawn({
            let server = server.clone();
            async move { server.batch(&more).await.1.len() }
        });
        while watchers.count() == 0 {
            tokio::task::yield_now().await;
        }
        let before = watchers.wakes();
        if wakes == 0 {
            for _ in 0..20 {
                server
                    .check(&format!(
                        "{{insert: '{writes}', documents: [{{}}]}} => {{n: 1}}"
                    ))
                    .await;
            }
            assert_eq!(watchers.wakes(), before, "nobody watches {writes}");
        }
        let last = if wakes == 0 { "d" } else { writes };
        server
            .check(&format!(
                "{{insert: '{last}', documents: [{{}}]}} => {{n: 1}}"
            ))
            .await;
        assert_eq!(waiting.await.expect("it ends"), 1);
        // It may have read the event before it waited.
        assert!(watchers.wakes() <= before + 1);
    }
}
