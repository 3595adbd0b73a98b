//! Reading through commands: finds, cursors, counts, plans. Each test opens a
//! shard of its own in a temporary directory and speaks to it as a client does.

use bson::{Bson, Document, doc};
use model::bson::DocBuf;
use shard::{Shard, ShardOptions};
use std::sync::Arc;
use tempfile::TempDir;
use wire::{ConnectionInfo, Handler, Request};

struct World {
    handler: wire::BoxedHandler,
    connection: Arc<ConnectionInfo>,
    _data: TempDir,
}

impl World {
    fn open() -> Self {
        let data = TempDir::new().expect("a temporary directory");
        let shard = Shard::open(&ShardOptions {
            log_window: shard::LogWindow::default(),
            data: data.path().to_owned(),
            cache_bytes: 8 << 20,
            scan_memory: None,
            parameters: Vec::new(),
        })
        .expect("an empty directory opens");
        Self {
            handler: shard.boxed_handler(),
            connection: Arc::new(ConnectionInfo::in_process(1)),
            _data: data,
        }
    }

    async fn run(&self, mut command: Document) -> Document {
        command.insert("$db", "test");
        let mut bytes = Vec::new();
        command.to_writer(&mut bytes).expect("a command encodes");
        let body = DocBuf::from_bytes(bytes).expect("a command is valid");
        let request = Request::from_parts(body, Vec::new()).expect("a command has a name");
        let reply = self.handler.handle(&self.connection, request).await;
        Document::from_reader(reply.document().as_bytes()).expect("a reply decodes")
    }

    async fn ok(&self, command: Document) -> Document {
        let text = command.to_string();
        let reply = self.run(command).await;
        assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{text}: {reply}");
        reply
    }

    async fn code(&self, command: Document) -> i32 {
        self.run(command).await.get_i32("code").unwrap_or(0)
    }

    async fn insert(&self, documents: Vec<Document>) {
        for chunk in documents.chunks(500) {
            self.ok(doc! {"insert": "c", "documents": chunk.to_vec()})
                .await;
        }
    }

    async fn index(&self, key: Document, name: &str) {
        self.ok(doc! {"createIndexes": "c", "indexes": [{"key": key, "name": name}]})
            .await;
    }

    /// The ids that a find returns, over batches of the given size.
    async fn ids(&self, mut find: Document, batch: i32) -> Vec<i32> {
        find.insert("batchSize", batch);
        let mut reply = self.ok(find).await;
        let mut ids = Vec::new();
        let mut name = "firstBatch";
        loop {
            let cursor = reply.get_document("cursor").expect("a cursor").clone();
            for document in cursor.get_array(name).expect("a batch") {
                ids.push(match document.as_document().and_then(|d| d.get("_id")) {
                    Some(Bson::Int32(id)) => *id,
                    other => panic!("an id: {other:?}"),
                });
            }
            let id = cursor.get_i64("id").expect("an id");
            if id == 0 {
                return ids;
            }
            name = "nextBatch";
            reply = self
                .ok(doc! {"getMore": id, "collection": "c", "batchSize": batch})
                .await;
        }
    }
}

fn numbers(count: i32) -> Vec<Document> {
    (0..count)
        .map(|at| doc! {"_id": at, "a": at % 5, "b": at, "r": [at, at + 1], "s": format!("x{at}")})
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_batch_size_yields_the_same_documents() {
    let world = World::open();
    world.insert(numbers(300)).await;
    world.index(doc! {"a": 1, "b": -1}, "ab").await;
    world.index(doc! {"r": 1}, "r").await;
    world.index(doc! {"s": 1}, "s").await;
    let queries = [
        doc! {"find": "c"},
        doc! {"find": "c", "filter": {"a": 1}},
        doc! {"find": "c", "filter": {"a": {"$in": [1, 3]}, "b": {"$gt": 50}}},
        doc! {"find": "c", "filter": {"a": 2}, "sort": {"b": 1}},
        doc! {"find": "c", "filter": {"a": 2}, "sort": {"s": -1}, "skip": 3, "limit": 20},
        doc! {"find": "c", "filter": {"r": {"$gte": 10, "$lt": 200}}},
        doc! {"find": "c", "filter": {"r": {"$in": [5, 6, 7]}}},
        doc! {"find": "c", "filter": {"$or": [{"a": 1}, {"s": "x2"}, {"r": 7}]}},
        doc! {"find": "c", "filter": {"_id": {"$gt": 7, "$lt": 31}}, "sort": {"_id": -1}},
        doc! {"find": "c", "filter": {"_id": {"$in": [3, 1, 700, 2]}}},
        doc! {"find": "c", "filter": {"s": {"$regex": "^x1"}}},
    ];
    for query in queries {
        let mut natural = query.clone();
        if !natural.contains_key("sort") {
            natural.insert("hint", doc! {"$natural": 1});
        }
        let mut expected = world.ids(natural, 1000).await;
        let sorted = query.contains_key("sort");
        if !sorted {
            expected.sort_unstable();
        }
        for batch in [1, 2, 7, 100, 1000] {
            let mut found = world.ids(query.clone(), batch).await;
            if !sorted {
                found.sort_unstable();
            }
            assert_eq!(found, expected, "{query} in batches of {batch}");
        }
    }
}

/// A position cannot hold a set of seen ids: the key at which a document is
/// emitted is recomputed from the document.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_with_several_keys_is_emitted_at_its_first_key() {
    let world = World::open();
    world
        .insert(vec![
            doc! {"_id": 1, "r": [1, 5, 9]},
            doc! {"_id": 2, "r": [4, 6]},
            doc! {"_id": 3, "r": 5},
            doc! {"_id": 4, "r": [9, 0]},
        ])
        .await;
    world.index(doc! {"r": 1}, "r").await;
    let find = |sort: i32| doc! {"find": "c", "filter": {"r": {"$gte": 0}}, "sort": {"r": sort}, "hint": "r"};
    for batch in [1, 2, 10] {
        assert_eq!(world.ids(find(1), batch).await, [4, 1, 2, 3]);
        assert_eq!(world.ids(find(-1), batch).await.len(), 4);
        let between = doc! {"find": "c", "filter": {"r": {"$in": [5, 6, 9]}}, "hint": "r"};
        assert_eq!(world.ids(between, batch).await, [1, 3, 2, 4]);
    }
}

/// Writers go on while a cursor is open; what did not change is returned once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_goes_on_over_changes() {
    let world = World::open();
    world.insert(numbers(50)).await;
    world.index(doc! {"b": 1}, "b").await;
    let find = doc! {"find": "c", "filter": {"b": {"$gte": 0}}, "hint": "b", "batchSize": 10};
    let first = world.ok(find).await;
    let cursor = first.get_document("cursor").expect("a cursor");
    let id = cursor.get_i64("id").expect("an id");
    world
        .ok(doc! {"delete": "c", "deletes": [{"q": {"_id": {"$lt": 20}}, "limit": 0}]})
        .await;
    world
        .insert(vec![doc! {"_id": 100, "b": -5}, doc! {"_id": 101, "b": 25}])
        .await;
    let rest = world.ok(doc! {"getMore": id, "collection": "c"}).await;
    let cursor = rest.get_document("cursor").expect("a cursor");
    let ids: Vec<i32> = cursor
        .get_array("nextBatch")
        .expect("a batch")
        .iter()
        .filter_map(|document| document.as_document()?.get_i32("_id").ok())
        .collect();
    let mut expected: Vec<i32> = (20..50).collect();
    expected.insert(6, 101);
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    expected.sort_unstable();
    assert_eq!(sorted, expected);
    assert_eq!(cursor.get_i64("id").ok(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursors_end_and_refuse_as_mongodb_has_it() {
    let world = World::open();
    world.insert(numbers(10)).await;
    let open = world.ok(doc! {"find": "c", "batchSize": 0}).await;
    let cursor = open.get_document("cursor").expect("a cursor");
    assert!(cursor.get_array("firstBatch").expect("a batch").is_empty());
    let id = cursor.get_i64("id").expect("an id");
    let more = |id: i64| doc! {"getMore": id, "collection": "c", "batchSize": 3};
    assert_eq!(
        world.code(doc! {"getMore": id, "collection": "d"}).await,
        13
    );
    assert_eq!(
        world
            .code(doc! {"getMore": id, "collection": "c", "maxTimeMS": 5})
            .await,
        2
    );
    world.ok(more(id)).await;
    let killed = world
        .ok(doc! {"killCursors": "c", "cursors": [id, 77_i64]})
        .await;
    assert_eq!(
        killed.get_array("cursorsKilled").map(Vec::len).ok(),
        Some(1)
    );
    assert_eq!(
        killed.get_array("cursorsNotFound").map(Vec::len).ok(),
        Some(1)
    );
    assert_eq!(world.code(more(id)).await, 43);

    let open = world.ok(doc! {"find": "c", "batchSize": 2}).await;
    let id = open
        .get_document("cursor")
        .and_then(|c| c.get_i64("id"))
        .expect("an id");
    world.ok(doc! {"drop": "c"}).await;
    assert_eq!(world.code(more(id)).await, 175);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_arguments_get_mongodbs_codes() {
    let world = World::open();
    world.insert(numbers(3)).await;
    world.index(doc! {"s": 1}, "s").await;
    for (command, code) in [
        (doc! {"find": "c", "limit": -1}, 51024),
        (doc! {"find": "c", "limit": "x"}, 14),
        (doc! {"find": "c", "filter": 1}, 14),
        (doc! {"find": "c", "sort": {"a": 2}}, 15975),
        (doc! {"find": "c", "hint": "nope"}, 2),
        (doc! {"find": "c", "hint": 5}, 9),
        (doc! {"find": "c", "bogus": 1}, 40415),
        (doc! {"find": "c", "tailable": true}, 2),
        (doc! {"find": "c", "awaitData": true}, 9),
        (doc! {"find": "c", "singleBatch": 1}, 14),
        (doc! {"find": "c", "min": {"s": 1}}, 51173),
        (doc! {"find": "c", "min": {"a": 1}, "hint": "s"}, 51174),
        (
            doc! {"find": "c", "min": {"s": 5}, "max": {"s": 3}, "hint": "s"},
            51175,
        ),
        (
            doc! {"find": "c", "min": {"s": 5}, "max": {"a": 3}, "hint": "s"},
            51176,
        ),
        (doc! {"getMore": 5_i64, "collection": "c"}, 43),
        (doc! {"getMore": 5, "collection": "c"}, 14),
        (doc! {"getMore": 5_i64}, 40414),
        (doc! {"killCursors": "c", "cursors": [5]}, 14),
        (doc! {"count": "c", "limit": "x"}, 2),
        (doc! {"count": "c", "skip": -1}, 51024),
        (doc! {"count": "c", "bogus": 1}, 40415),
        (doc! {"distinct": "c"}, 40414),
        (doc! {"distinct": "c", "key": ""}, 40352),
        (doc! {"explain": {"insert": "c"}}, 40414),
        (doc! {"explain": {"insert": "c", "documents": [{}]}}, 20),
        (doc! {"explain": {"bogus": "c"}}, 59),
        (doc! {"explain": 5}, 14),
    ] {
        let reply = world.run(command.clone()).await;
        assert_eq!(reply.get_i32("code").ok(), Some(code), "{command}: {reply}");
    }
}

/// The names of the stages from the root down, first inputs only.
fn stages(explained: &Document) -> Vec<String> {
    let mut names = Vec::new();
    let mut stage = explained
        .get_document("queryPlanner")
        .and_then(|planner| planner.get_document("winningPlan"))
        .ok();
    while let Some(current) = stage {
        names.push(current.get_str("stage").unwrap_or("?").to_owned());
        stage = current.get_document("inputStage").ok();
    }
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_names_stages_as_mongodb_does() {
    let world = World::open();
    world.insert(numbers(20)).await;
    world.index(doc! {"a": 1, "b": -1}, "ab").await;
    for (command, expected) in [
        (doc! {"find": "none"}, "EOF"),
        (doc! {"find": "c"}, "COLLSCAN"),
        (doc! {"find": "c", "filter": {"_id": 3}}, "IDHACK"),
        (
            doc! {"find": "c", "filter": {"_id": {"$gt": 3}}},
            "FETCH IXSCAN",
        ),
        (doc! {"find": "c", "filter": {"a": 1}}, "FETCH IXSCAN"),
        (
            doc! {"find": "c", "filter": {"a": 1}, "sort": {"b": 1}},
            "FETCH IXSCAN",
        ),
        (
            doc! {"find": "c", "filter": {"a": 1}, "sort": {"s": 1}},
            "SORT FETCH IXSCAN",
        ),
        (
            doc! {"find": "c", "sort": {"s": 1}, "skip": 1},
            "SKIP SORT COLLSCAN",
        ),
        (doc! {"find": "c", "limit": 3}, "LIMIT COLLSCAN"),
        (
            doc! {"find": "c", "filter": {"a": 1}, "projection": {"_id": 0, "b": 1}},
            "PROJECTION_COVERED IXSCAN",
        ),
        (
            doc! {"find": "c", "filter": {"a": 1}, "projection": {"b": 1}, "skip": 1, "limit": 2},
            "LIMIT PROJECTION_SIMPLE FETCH SKIP IXSCAN",
        ),
        (
            doc! {"find": "c", "projection": {"a": 0}},
            "PROJECTION_DEFAULT COLLSCAN",
        ),
        (
            doc! {"find": "c", "filter": {"$or": [{"a": 1}, {"_id": 3}]}},
            "SUBPLAN FETCH OR",
        ),
        (doc! {"count": "c"}, "RECORD_STORE_FAST_COUNT"),
        (doc! {"count": "c", "query": {"a": 1}}, "COUNT COUNT_SCAN"),
        (doc! {"count": "c", "query": {"s": 1}}, "COUNT COLLSCAN"),
        (
            doc! {"count": "c", "query": {"a": {"$in": [1, 2]}}},
            "COUNT IXSCAN",
        ),
        (doc! {"distinct": "c", "key": "s"}, "COLLSCAN"),
        (
            doc! {"distinct": "c", "key": "b"},
            "PROJECTION_SIMPLE COLLSCAN",
        ),
        (
            doc! {"distinct": "c", "key": "a"},
            "PROJECTION_COVERED DISTINCT_SCAN",
        ),
        (
            doc! {"update": "c", "updates": [{"q": {"a": 1}, "u": {"$set": {"z": 1}}}]},
            "UPDATE FETCH IXSCAN",
        ),
        (
            doc! {"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]},
            "DELETE IDHACK",
        ),
        (
            doc! {"aggregate": "c", "pipeline": [{"$match": {"a": 1}}], "cursor": {}},
            "FETCH IXSCAN",
        ),
    ] {
        for verbosity in ["queryPlanner", "executionStats", "allPlansExecution"] {
            let explained = world
                .ok(doc! {"explain": command.clone(), "verbosity": verbosity})
                .await;
            assert_eq!(stages(&explained).join(" "), expected, "{command}");
        }
    }
    let explained = world
        .ok(doc! {"explain": {"find": "c", "filter": {"a": 1, "b": {"$gt": 3}}}})
        .await;
    let statistics = explained
        .get_document("executionStats")
        .expect("statistics");
    assert_eq!(statistics.get_i32("nReturned").ok(), Some(3), "{explained}");
    assert_eq!(statistics.get_i32("totalKeysExamined").ok(), Some(3));
    assert_eq!(statistics.get_i32("totalDocsExamined").ok(), Some(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_and_distinct_values() {
    let world = World::open();
    world.insert(numbers(1000)).await;
    world.index(doc! {"a": 1}, "a").await;
    for (command, expected) in [
        (doc! {"count": "c"}, 1000),
        (doc! {"count": "c", "query": {"a": 1}}, 200),
        (doc! {"count": "c", "query": {"a": 1}, "skip": 190}, 10),
        (doc! {"count": "c", "query": {"a": 1}, "limit": -7}, 7),
        (doc! {"count": "c", "skip": 998}, 2),
        (doc! {"count": "c", "query": {"r": {"$gte": 990}}}, 11),
        (doc! {"count": "none"}, 0),
    ] {
        let reply = world.ok(command.clone()).await;
        assert_eq!(reply.get_i32("n").ok(), Some(expected), "{command}");
    }
    let reply = world
        .ok(doc! {"distinct": "c", "key": "a", "query": {"b": {"$lt": 3}}})
        .await;
    assert_eq!(
        reply.get_array("values").ok(),
        Some(&vec![0.into(), 1.into(), 2.into()])
    );
}

/// Chunks of an update scan one snapshot: a document that moves ahead in the
/// index is not met again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_meets_each_document_once() {
    let world = World::open();
    world.insert(numbers(600)).await;
    world.index(doc! {"b": 1}, "b").await;
    let update = doc! {"update": "c", "updates": [
        {"q": {"b": {"$gte": 0}}, "u": {"$inc": {"b": 1000}}, "multi": true, "hint": "b"},
    ]};
    let reply = world.ok(update).await;
    assert_eq!(reply.get_i32("nModified").ok(), Some(600), "{reply}");
    let reply = world
        .ok(doc! {"count": "c", "query": {"b": {"$gte": 1000, "$lt": 1600}}})
        .await;
    assert_eq!(reply.get_i32("n").ok(), Some(600));
}

/// What `explain` says about an update or a delete is what it would do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explained_writes_count_what_they_would_change() {
    let world = World::open();
    world.insert(numbers(10)).await;
    let update = |q: Document, u: Document, multi: bool, upsert: bool| {
        doc! {"update": "c", "updates": [{"q": q, "u": u, "multi": multi, "upsert": upsert}]}
    };
    let zero = doc! {"$set": {"a": 0}};
    for (command, counts) in [
        (
            update(doc! {"b": {"$lt": 4}}, zero.clone(), true, false),
            [4, 3, 0],
        ),
        (
            update(doc! {"b": {"$lt": 4}}, zero.clone(), false, false),
            [1, 0, 0],
        ),
        (update(doc! {"b": 77}, zero.clone(), true, true), [0, 0, 1]),
        (update(doc! {"b": 77}, zero.clone(), true, false), [0, 0, 0]),
        (
            update(doc! {"r": 3}, doc! {"$set": {"r.$": 3}}, true, false),
            [2, 0, 0],
        ),
        (
            doc! {"findAndModify": "c", "query": {"b": 3}, "update": {"$inc": {"b": 1}}},
            [1, 1, 0],
        ),
    ] {
        let explained = world
            .ok(doc! {"explain": command.clone(), "verbosity": "executionStats"})
            .await;
        let stage = explained
            .get_document("executionStats")
            .and_then(|statistics| statistics.get_document("executionStages"))
            .expect("stages");
        let found = ["nMatched", "nWouldModify", "nWouldUpsert"]
            .map(|name| stage.get_i32(name).unwrap_or(-1));
        assert_eq!(found, counts, "{command}");
    }
    for (limit, count) in [(0, 4), (1, 1)] {
        let command = doc! {"delete": "c", "deletes": [{"q": {"b": {"$lt": 4}}, "limit": limit}]};
        let explained = world
            .ok(doc! {"explain": command, "verbosity": "executionStats"})
            .await;
        let stage = explained
            .get_document("executionStats")
            .and_then(|statistics| statistics.get_document("executionStages"))
            .expect("stages");
        assert_eq!(
            stage.get_i32("nWouldDelete").ok(),
            Some(count),
            "{explained}"
        );
    }
    let count = world.ok(doc! {"count": "c", "query": {"a": 0}}).await;
    assert_eq!(count.get_i32("n").ok(), Some(2), "nothing was changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explained_pipelines_show_what_is_left_to_stages() {
    let world = World::open();
    world.insert(numbers(20)).await;
    world.index(doc! {"a": 1}, "a").await;
    let matched = doc! {"$match": {"a": 1}};
    for (pipeline, expected) in [
        (vec![], "COLLSCAN"),
        (
            vec![matched.clone(), doc! {"$project": {"a": 1}}],
            "PROJECTION_SIMPLE FETCH IXSCAN",
        ),
        (
            vec![doc! {"$sort": {"s": 1}}, doc! {"$limit": 2}],
            "SORT COLLSCAN",
        ),
        (
            vec![matched.clone(), doc! {"$unwind": "$r"}],
            "FETCH IXSCAN | $unwind",
        ),
        (
            vec![doc! {"$unwind": "$r"}, matched.clone()],
            "FETCH IXSCAN | $unwind",
        ),
        (
            vec![
                doc! {"$unwind": "$r"},
                doc! {"$sort": {"r": 1}},
                doc! {"$limit": 2},
            ],
            "COLLSCAN | $unwind $sort",
        ),
        (
            vec![matched.clone(), doc! {"$count": "n"}],
            "IXSCAN | $group $project",
        ),
        (vec![matched, doc! {"$out": "o"}], "FETCH IXSCAN | $out"),
        (vec![doc! {"$indexStats": {}}], " | $indexStats"),
    ] {
        let command = doc! {"aggregate": "c", "pipeline": pipeline, "cursor": {}};
        let explained = world
            .ok(doc! {"explain": command.clone(), "verbosity": "queryPlanner"})
            .await;
        let shown = match explained.get_array("stages") {
            Err(_) => stages(&explained).join(" "),
            Ok(all) => {
                let mut names: Vec<&str> = Vec::new();
                let mut search = String::new();
                for stage in all.iter().filter_map(|stage| stage.as_document()) {
                    match stage.get_document("$cursor") {
                        Ok(cursor) => search = stages(cursor).join(" "),
                        Err(_) => names.extend(stage.keys().next().map(String::as_str)),
                    }
                }
                format!("{search} | {}", names.join(" "))
            }
        };
        assert_eq!(shown, expected, "{command}: {explained}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_names_the_query_and_its_trials() {
    let world = World::open();
    world.insert(numbers(50)).await;
    world.index(doc! {"a": 1}, "a").await;
    world.index(doc! {"a": 1, "b": 1}, "ab").await;
    let mut hashes = Vec::new();
    for value in [1, 2] {
        let find = doc! {"find": "c", "filter": {"a": value}};
        let explained = world
            .ok(doc! {"explain": find, "verbosity": "allPlansExecution"})
            .await;
        let planner = explained.get_document("queryPlanner").expect("a plan");
        hashes.push((
            planner.get_str("queryHash").expect("a hash").to_owned(),
            planner.get_str("planCacheKey").expect("a key").to_owned(),
        ));
        let trials = explained
            .get_document("executionStats")
            .and_then(|statistics| statistics.get_array("allPlansExecution"))
            .expect("trials");
        assert_eq!(trials.len(), 2, "{explained}");
        for trial in trials.iter().filter_map(|trial| trial.as_document()) {
            assert_eq!(trial.get_i32("nReturned").ok(), Some(10), "{trial}");
            assert_eq!(trial.get_i32("totalKeysExamined").ok(), Some(10), "{trial}");
        }
    }
    assert_eq!(
        hashes[0], hashes[1],
        "constants are no part of a query's shape"
    );
}

/// A sort that no index serves still knows the keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn return_key_survives_a_sort() {
    let world = World::open();
    world.insert(numbers(3)).await;
    world.index(doc! {"b": 1}, "b").await;
    for (sort, expected) in [
        (
            doc! {"s": -1},
            vec![doc! {"b": 2}, doc! {"b": 1}, doc! {"b": 0}],
        ),
        (
            doc! {"b": 1},
            vec![doc! {"b": 0}, doc! {"b": 1}, doc! {"b": 2}],
        ),
    ] {
        let find = doc! {
            "find": "c", "filter": {"b": {"$gte": 0}}, "hint": "b", "sort": sort, "returnKey": true,
        };
        let reply = world.ok(find).await;
        let batch = reply
            .get_document("cursor")
            .and_then(|cursor| cursor.get_array("firstBatch"))
            .expect("a batch");
        let found: Vec<Document> = batch
            .iter()
            .filter_map(|d| d.as_document().cloned())
            .collect();
        assert_eq!(found, expected, "{reply}");
    }
}

/// What keys decide is not fetched, and the answer is the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_answer_what_they_can() {
    let world = World::open();
    world.insert(numbers(100)).await;
    world
        .insert(vec![doc! {"_id": 100, "a": 1, "b": null, "r": [7, 7, 8]}])
        .await;
    world.index(doc! {"a": 1, "b": -1}, "ab").await;
    world.index(doc! {"r": 1}, "r").await;
    world.index(doc! {"s": 1}, "s").await;
    for (command, keys_max, documents_max, returned) in [
        (doc! {"count": "c", "query": {"r": 7}}, 3, 0, 3),
        (
            doc! {"count": "c", "query": {"r": {"$in": [7, 8]}}},
            6,
            6,
            4,
        ),
        (
            doc! {"find": "c", "filter": {"a": 2}, "hint": "ab", "skip": 15},
            20,
            5,
            5,
        ),
        (
            doc! {"find": "c", "filter": {"r": 7}, "hint": "r", "skip": 1},
            3,
            2,
            2,
        ),
        (
            doc! {"find": "c", "filter": {"s": {"$regex": "9$"}}, "hint": "s"},
            101,
            10,
            10,
        ),
        (
            doc! {"distinct": "c", "key": "b", "query": {"a": 3}},
            21,
            0,
            20,
        ),
        (doc! {"distinct": "c", "key": "a"}, 6, 0, 5),
    ] {
        let explained = world
            .ok(doc! {"explain": command.clone(), "verbosity": "executionStats"})
            .await;
        let statistics = explained
            .get_document("executionStats")
            .expect("statistics");
        let number = |name: &str| statistics.get_i32(name).unwrap_or(i32::MAX);
        assert!(
            number("totalKeysExamined") <= keys_max,
            "{command}: {explained}"
        );
        assert!(
            number("totalDocsExamined") <= documents_max,
            "{command}: {explained}"
        );
        let reply = world.ok(command.clone()).await;
        let found = match reply.get_i32("n") {
            Ok(counted) => counted as usize,
            Err(_) => reply
                .get_array("values")
                .or_else(|_| reply.get_document("cursor")?.get_array("firstBatch"))
                .map_or(0, Vec::len),
        };
        assert_eq!(found, returned, "{command}: {reply}");
    }
    let reply = world
        .ok(doc! {"distinct": "c", "key": "b", "query": {"a": 1}})
        .await;
    let mut expected: Vec<Bson> = vec![Bson::Null];
    expected.extend((0..100).filter(|b| b % 5 == 1).map(Bson::Int32));
    assert_eq!(reply.get_array("values").ok(), Some(&expected));
}
