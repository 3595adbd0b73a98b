//! Parts of scans over several shards: places that another shard goes on from, with every plan.

use crate::testing::TestShard;
use crate::tests::sharding::{HIGH, LOW, UUID, WHOLE, placed, sharded, version};
use differential::notation::print;
use differential::value::{Value, get};
use model::bson::DocWriter;
use model::shard_key::ShardKeyPattern;

/// The bound before `{x: 10}`, or an end.
pub(super) fn bound(x: Option<i32>, is_min: bool) -> String {
    let key = DocWriter::new().with("x", 1).finish();
    let pattern = ShardKeyPattern::parse(key.as_doc()).expect("a pattern");
    let bytes = match (x, is_min) {
        (Some(x), _) => {
            let doc = DocWriter::new().with("x", x).finish();
            pattern.key_of(doc.as_doc()).expect("a key")
        }
        (None, true) => pattern.least(),
        (None, false) => vec![0xFF],
    };
    print(&Value::Binary(0, bytes))
}

pub(super) fn whole() -> String {
    format!("[{}, {}]", bound(None, true), bound(None, false))
}

fn high() -> String {
    format!("[{}, {}]", bound(Some(10), true), bound(None, false))
}

/// Two shards that both store all documents; who owns them is what changes.
struct Two {
    a: TestShard,
    b: TestShard,
    major: u32,
}

impl Two {
    async fn open() -> Two {
        let documents: Vec<String> = (1..=30)
            .map(|x| {
                let (y, w) = (x % 3, x * 7 % 11);
                let tags = format!("[{}, {}, {}]", x % 5, x % 7, 100 - x);
                format!(
                    "{{_id: {x}, x: {x}, y: {y}, z: {}, w: {w}, tags: {tags}}}",
                    50 - x
                )
            })
            .collect();
        let mut two = Two {
            a: sharded(WHOLE).await,
            b: sharded(WHOLE).await,
            major: 1,
        };
        for shard in [&two.a, &two.b] {
            shard.insert(&documents).await;
            shard
                .check(
                    "{createIndexes: 'c', indexes: [{key: {y: 1}, name: 'y'}, {key: {z: 1}, name: 'z'}, {key: {y: 1, z: 1}, name: 'yz'}, {key: {tags: 1}, name: 'tags'}]} => {}",
                )
                .await;
        }
        two.place(WHOLE, "").await;
        two
    }

    fn shard(&self, is_a: bool) -> &TestShard {
        if is_a { &self.a } else { &self.b }
    }

    /// Who owns what from now on.
    async fn place(&mut self, a: &str, b: &str) {
        self.major += 1;
        let version = (self.major, 0);
        for (shard, owned) in [(&self.a, a), (&self.b, b)] {
            let command = placed("_terndbSetPlacement", version, version, owned);
            shard.check(&format!("admin {command} => {{}}")).await;
        }
    }
}

/// A batch of a part: its `_id`s, its cursor, where it stands, and what is not owned.
struct Batch {
    ids: Vec<Value>,
    cursor: i64,
    place: Option<String>,
    not_owned: usize,
}

async fn ask(shard: &TestShard, command: &str) -> Result<Batch, Value> {
    let reply = shard.run("test", command).await;
    if let Some(code) = get(&reply, "code") {
        return Err(code.clone());
    }
    let cursor = get(&reply, "cursor").expect("a cursor");
    let documents = cursor.get("firstBatch").or(cursor.get("nextBatch"));
    let documents = documents.and_then(Value::as_array).expect("a batch");
    let scan = cursor.get("scan");
    let not_owned = scan.and_then(|scan| scan.get("notOwned"));
    Ok(Batch {
        ids: documents.iter().map(id_of).collect(),
        cursor: match cursor.get("id") {
            Some(Value::Int64(id)) => *id,
            other => panic!("the cursor is {other:?}"),
        },
        place: scan.and_then(|scan| scan.get("place")).map(print),
        not_owned: not_owned
            .and_then(Value::as_array)
            .map_or(0, <[Value]>::len),
    })
}

/// Covered results have no `_id`, but their `z` says it.
fn id_of(document: &Value) -> Value {
    match (document.get("_id"), document.get("z")) {
        (Some(id), _) => id.clone(),
        (None, Some(Value::Int32(z))) => Value::Int32(50 - z),
        (None, _) => panic!("{} has no id", print(document)),
    }
}

fn more(cursor: i64) -> String {
    format!("{{getMore: {cursor}L, collection: 'c', batchSize: 4}}")
}

fn open(query: &str, ranges: &str, after: Option<&String>) -> String {
    let after = after.map_or(String::new(), |place| format!(", after: {place}"));
    let part = format!("_terndbScan: {{ranges: {ranges}, uuid: {UUID}{after}}}");
    match query.starts_with("pipeline") {
        true => format!(
            "{{aggregate: 'c', {query}, cursor: {{batchSize: 4}}, fromMongos: true, needsMerge: true, {part}}}"
        ),
        false => format!("{{find: 'c', {query}, batchSize: 4, {part}}}"),
    }
}

/// Reads a part to its end.
async fn rest(shard: &TestShard, mut batch: Batch, ids: &mut Vec<Value>) {
    loop {
        ids.append(&mut batch.ids);
        if batch.cursor == 0 {
            return;
        }
        batch = ask(shard, &more(batch.cursor)).await.expect("a batch");
    }
}

const QUERIES: &[&str] = &[
    "filter: {}",
    "filter: {}, sort: {$natural: -1}",
    "filter: {x: {$gte: 3, $lte: 25}}",
    "filter: {y: {$in: [0, 2]}}, hint: 'y'",
    "filter: {}, sort: {z: 1}",
    "filter: {}, sort: {z: -1}",
    "filter: {y: 1}, hint: 'yz', projection: {_id: 0, z: 1}",
    // Sorted by the shard itself, with many alike.
    "filter: {}, sort: {w: 1}",
    "filter: {}, sort: {w: -1}, limit: 20",
    // ⚑ Several entries of one document: at the first only.
    "filter: {tags: {$gte: 0}}, hint: 'tags'",
    "filter: {tags: {$in: [1, 2, 3, 4, 90]}}, hint: 'tags'",
    "filter: {$or: [{y: 1}, {z: {$lt: 35}}]}",
    "filter: {$or: [{tags: {$gt: 3}}, {y: 2}]}",
    // Branches merged in order.
    "filter: {y: {$in: [0, 1, 2]}}, hint: 'yz', sort: {z: 1}",
    "pipeline: [{$match: {y: {$ne: 1}}}, {$project: {z: 1}}]",
    "pipeline: [{$unwind: '$tags'}, {$project: {tags: 1}}]",
    "pipeline: [{$sort: {w: 1}}, {$project: {z: 1}}]",
];

/// However many batches a shard has given: the next one goes on, for what it still owns and for what
/// went to the other, and nothing is lost or comes twice.
#[tokio::test(flavor = "multi_thread")]
async fn another_shard_goes_on_from_a_place() {
    let mut two = Two::open().await;
    for query in QUERIES {
        let mut expected = Vec::new();
        let all = ask(&two.a, &open(query, &whole(), None)).await;
        rest(&two.a, all.expect("a batch"), &mut expected).await;
        let is_sorted_here = query.contains("w:");
        for batches in 1..4 {
            let mut ids = Vec::new();
            let mut last = ask(&two.a, &open(query, &whole(), None))
                .await
                .expect("a batch");
            assert_eq!(last.not_owned, 0, "{query}");
            for _ in 1..batches {
                ids.append(&mut last.ids);
                if last.cursor != 0 {
                    last = ask(&two.a, &more(last.cursor)).await.expect("a batch");
                }
            }
            ids.append(&mut last.ids);
            if last.cursor == 0 {
                continue;
            }
            two.place(LOW, HIGH).await;
            // What was sorted was read from one snapshot; any other scan is over here.
            if !is_sorted_here {
                let ended = ask(&two.a, &more(last.cursor)).await.err();
                assert_eq!(ended, Some(Value::Int32(175)), "{query}");
            }
            let here = ask(&two.a, &open(query, &whole(), last.place.as_ref())).await;
            let here = here.unwrap_or_else(|code| panic!("{query}: {}", print(&code)));
            assert_eq!(here.not_owned, 2, "{query}");
            rest(&two.a, here, &mut ids).await;
            let there = ask(&two.b, &open(query, &high(), last.place.as_ref())).await;
            let there = there.unwrap_or_else(|code| panic!("{query}: {}", print(&code)));
            assert_eq!(there.not_owned, 0, "{query}");
            rest(&two.b, there, &mut ids).await;
            two.place(WHOLE, "").await;
            let sorted = |ids: &[Value]| {
                let mut texts: Vec<String> = ids.iter().map(print).collect();
                texts.sort();
                texts
            };
            match query.contains("limit") {
                // Each of them may have given as many as are wanted.
                true => {
                    let different: std::collections::BTreeSet<String> =
                        ids.iter().map(print).collect();
                    assert_eq!(different.len(), ids.len(), "{query}, {batches} batches");
                    assert!(expected.iter().all(|id| ids.contains(id)), "{query}");
                }
                false => assert_eq!(
                    sorted(&ids),
                    sorted(&expected),
                    "{query}, {batches} batches"
                ),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_ranges_asked_for_are_answered() {
    let mut two = Two::open().await;
    let mut ids = Vec::new();
    let asked = ask(&two.a, &open("filter: {}, sort: {x: 1}", &high(), None)).await;
    rest(&two.a, asked.expect("a batch"), &mut ids).await;
    let expected: Vec<Value> = (10..=30).map(Value::Int32).collect();
    assert_eq!(ids, expected);
    let part = |ranges: String| format!("_terndbScan: {{ranges: {ranges}, uuid: {UUID}}}");
    let (all, above) = (part(whole()), part(high()));
    two.a
        .check(&format!(
            "{{count: 'c', {above}}} => {{n: 21, scan: {{notOwned: []}}}}
             {{count: 'c', query: {{y: 1}}, {above}}} => {{n: 7}}
             {{distinct: 'c', key: 'y', query: {{x: {{$lt: 12}}}}, {above}}} => {{values: [1, 2]}}
             {{aggregate: 'c', pipeline: [{{$group: {{_id: '$y', n: {{$sum: 1}}}}}}, {{$match: {{_id: 0}}}}], cursor: {{}}, {above}}} => {{cursor: {{firstBatch: [{{_id: 0, n: 7}}]}}}}
             {{find: 'c', filter: {{_id: 3}}, {above}}} => {{cursor: {{firstBatch: []}}}}
             {{find: 'c', filter: {{_id: 13}}, {above}}} => {{cursor: {{firstBatch: [{{_id: 13}}]}}}}
             # Another collection, or none: nothing of it is here.
             {{count: 'nothing', {above}}} => {{n: 0, scan: {{notOwned: [{min}, {max}]}}}}
             {{find: 'nothing', {above}}} => {{cursor: {{firstBatch: [], scan: {{notOwned: [{min}, {max}]}}}}}}
             {{find: 'c', _terndbScan: 1}} => 2
             {{find: 'c', _terndbScan: {{after: Binary(0, \"01\")}}}} => 2",
            min = bound(Some(10), true),
            max = bound(None, false),
        ))
        .await;
    two.place(LOW, HIGH).await;
    two.a
        .check(&format!(
            "{{count: 'c', {all}}} => {{n: 9, scan: {{notOwned: [{min}, {max}]}}}}
             {{count: 'c', {above}}} => {{n: 0, scan: {{notOwned: [{min}, {max}]}}}}",
            min = bound(Some(10), true),
            max = bound(None, false),
        ))
        .await;
}

/// A part may be what a version says, but for some ranges; another version is refused.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_version_says_without_some_ranges() {
    let mut two = Two::open().await;
    two.place(WHOLE, "").await;
    let part = |major: u32| {
        let version = version(major, 0);
        format!(
            "shardVersion: {version}, _terndbScan: {{without: {}}}",
            high()
        )
    };
    let (below, stale) = (part(two.major), part(two.major - 1));
    for query in QUERIES.iter().filter(|query| !query.contains("limit")) {
        let named = format!("[{}, {}]", bound(None, true), bound(Some(10), true));
        let (mut expected, mut ids) = (Vec::new(), Vec::new());
        let named = ask(&two.a, &open(query, &named, None)).await;
        rest(&two.a, named.expect("a batch"), &mut expected).await;
        let command = match query.starts_with("pipeline") {
            true => format!(
                "{{aggregate: 'c', {query}, cursor: {{batchSize: 4}}, fromMongos: true, needsMerge: true, {below}}}"
            ),
            false => format!("{{find: 'c', {query}, batchSize: 4, {below}}}"),
        };
        let asked = ask(&two.a, &command).await;
        let asked = asked.unwrap_or_else(|code| panic!("{query}: {}", print(&code)));
        rest(&two.a, asked, &mut ids).await;
        assert_eq!(ids, expected, "{query}");
        assert!(!ids.is_empty(), "{query}");
    }
    two.a
        .check(&format!(
            "{{count: 'c', {below}}} => {{n: 9}}
             {{count: 'c', query: {{y: 1}}, {below}}} => {{n: 3}}
             {{distinct: 'c', key: 'y', query: {{x: {{$gt: 8}}}}, {below}}} => {{values: [0]}}
             {{find: 'c', filter: {{_id: 13}}, {below}}} => {{cursor: {{firstBatch: []}}}}
             {{find: 'c', filter: {{_id: 3}}, {below}}} => {{cursor: {{firstBatch: [{{_id: 3}}]}}}}
             {{count: 'c', {stale}}} => 13388
             {{find: 'c', _terndbScan: {{without: 1}}}} => 2"
        ))
        .await;
    // A cursor ends with the version that it was opened by.
    let opened = ask(&two.a, &format!("{{find: 'c', batchSize: 4, {below}}}")).await;
    let opened = opened.expect("a batch");
    two.place(LOW, HIGH).await;
    let ended = ask(&two.a, &more(opened.cursor)).await.err();
    assert_eq!(ended, Some(Value::Int32(175)));
}

/// ⚑ Where documents have arrays each shard knows for itself, and what can be asked of an index depends on it: a scan
/// goes on with its plan all the same.
#[tokio::test(flavor = "multi_thread")]
async fn arrays_on_one_shard_only() {
    let mut two = Two::open().await;
    // Not one of b's ranges, but b's index has it.
    two.place("", WHOLE).await;
    let array = "{_id: 2.5, x: 2.5, y: 1, z: [3, 20], w: [5, 7], tags: 1}";
    two.b.insert(&[array.to_owned()]).await;
    two.place(WHOLE, "").await;
    let queries = [
        "filter: {z: {$gte: 21, $lte: 45}}, hint: 'z'",
        "filter: {z: {$gte: 21, $lte: 45}}, hint: 'z', sort: {z: 1}",
        "filter: {z: {$gte: 21, $lte: 45}}, hint: 'z', sort: {z: -1}",
        "filter: {z: {$gte: 21}}, sort: {z: 1}",
        "filter: {y: {$in: [0, 1]}, z: {$gte: 21, $lte: 45}}, hint: 'yz'",
        "filter: {y: 1, z: {$gte: 21}}, hint: 'yz', sort: {z: -1}",
        "filter: {y: {$in: [0, 1]}, z: {$gte: 21}}, hint: 'yz', sort: {z: 1}",
    ];
    for query in queries {
        for from_a in [true, false] {
            let (before, after) = match from_a {
                true => ((WHOLE, ""), (LOW, HIGH)),
                false => (("", WHOLE), (HIGH, LOW)),
            };
            two.place(before.0, before.1).await;
            let first = ask(two.shard(from_a), &open(query, &whole(), None)).await;
            let first = first.unwrap_or_else(|code| panic!("{query}: {}", print(&code)));
            assert_eq!(first.ids.len(), 4, "{query}");
            two.place(after.0, after.1).await;
            let mut ids = first.ids;
            for (is_a, ranges) in [(from_a, whole()), (!from_a, high())] {
                let shard = two.shard(is_a);
                let more = ask(shard, &open(query, &ranges, first.place.as_ref())).await;
                let more = more.unwrap_or_else(|code| panic!("{query}: {}", print(&code)));
                rest(shard, more, &mut ids).await;
            }
            let mut found: Vec<String> = ids.iter().map(print).collect();
            found.sort();
            let mut expected: Vec<String> = (1..=30)
                .filter(|x| (!query.contains("$lte") || 50 - x <= 45) && 50 - x >= 21)
                .filter(|x| !query.contains("y: 1,") || x % 3 == 1)
                .filter(|x| !query.contains("$in") || x % 3 != 2)
                .map(|x| x.to_string())
                .collect();
            expected.sort();
            assert_eq!(found, expected, "{query}, from a: {from_a}");
        }
    }
}

/// ⚑ What becomes an array while an index is read in order would come where it does not belong.
#[tokio::test(flavor = "multi_thread")]
async fn arrays_that_come_to_be_do_not_disturb_the_order() {
    let two = Two::open().await;
    for (query, changed) in [
        ("filter: {z: {$gte: 25}}, sort: {z: 1}", "[2, 45]"),
        ("filter: {z: {$lte: 45}}, sort: {z: -1}", "[2, 99]"),
    ] {
        let first = ask(&two.a, &open(query, &whole(), None)).await;
        let mut first = first.expect("a batch");
        let mut ids = std::mem::take(&mut first.ids);
        let change = format!("{{q: {{x: 15}}, u: {{$set: {{z: {changed}}}}}}}");
        let update = format!("{{update: 'c', updates: [{change}]}} => {{nModified: 1}}");
        two.a.check(&update).await;
        let cursor = first.cursor;
        rest(&two.a, first, &mut ids).await;
        assert_ne!(cursor, 0);
        assert!(!ids.contains(&Value::Int32(15)), "{query}");
        let back = "{update: 'c', updates: [{q: {x: 15}, u: {$set: {z: 35}}}]} => {nModified: 1}";
        two.a.check(back).await;
    }
}

/// ⚑ A place in an index is none in another that has its name.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_holds_in_its_index_only() {
    let two = Two::open().await;
    let query = "filter: {}, hint: 'y'";
    let first = ask(&two.a, &open(query, &whole(), None))
        .await
        .expect("a batch");
    two.a
        .check(
            "{dropIndexes: 'c', index: ['y', 'z']} => {}
             {createIndexes: 'c', indexes: [{key: {z: 1}, name: 'y'}]} => {}",
        )
        .await;
    let lost = ask(&two.a, &open(query, &whole(), first.place.as_ref())).await;
    assert_eq!(lost.err(), Some(Value::Int32(175)));
}

/// A plan that is not there any more is an error, never another order.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_holds_with_its_plan_only() {
    let two = Two::open().await;
    let query = "filter: {y: {$gte: 0}}, hint: 'y'";
    let first = ask(&two.a, &open(query, &whole(), None))
        .await
        .expect("a batch");
    let other = "filter: {y: {$gte: 0}}, hint: 'yz'";
    let lost = ask(&two.a, &open(other, &whole(), first.place.as_ref())).await;
    assert_eq!(lost.err(), Some(Value::Int32(175)));
}

/// ⚑ Whoever goes on has had a plan: that its hinted index is gone is no mistake in the query.
#[tokio::test(flavor = "multi_thread")]
async fn a_hinted_index_that_is_dropped_ends_the_scan() {
    let two = Two::open().await;
    let query = "filter: {y: {$gte: 0}}, hint: 'y'";
    let first = ask(&two.a, &open(query, &whole(), None))
        .await
        .expect("a batch");
    for shard in [&two.a, &two.b] {
        shard.check("{dropIndexes: 'c', index: 'y'} => {}").await;
    }
    let begun = open(query, &whole(), None).replace("uuid:", "goesOn: true, uuid:");
    for (command, code) in [
        (more(first.cursor), 175),
        (open(query, &whole(), first.place.as_ref()), 175),
        (begun, 175),
        (open(query, &whole(), None), 2),
    ] {
        let ended = ask(&two.a, &command).await.err();
        assert_eq!(ended, Some(Value::Int32(code)), "{command}");
    }
}

/// A router says what a batch may weigh; one document comes in any case.
#[tokio::test(flavor = "multi_thread")]
async fn batches_weigh_no_more_than_they_may() {
    let shard = sharded(WHOLE).await;
    let documents: Vec<String> = (0..30)
        .map(|x| format!("{{_id: {x}, x: {x}, long: '{}'}}", "y".repeat(1000)))
        .collect();
    shard.insert(&documents).await;
    let found = ask(&shard, &open("filter: {}", &whole(), None)).await;
    let cursor = found.expect("a batch").cursor;
    for (bytes, expected) in [(5_000, 4), (10, 1), (1 << 20, 21)] {
        let asked =
            format!("{{getMore: {cursor}L, collection: 'c', _terndbScan: {{bytes: {bytes}L}}}}");
        let batch = ask(&shard, &asked).await.expect("a batch");
        assert_eq!(batch.ids.len(), expected, "{bytes} bytes");
    }
    let negative = "{getMore: 1L, collection: 'c', _terndbScan: {bytes: -1L}}";
    assert_eq!(ask(&shard, negative).await.err(), Some(Value::Int32(2)));
}

/// What comes beside the documents counts: a reply with places fits into a message all the same.
#[tokio::test(flavor = "multi_thread")]
async fn places_count_as_part_of_the_reply() {
    let shard = sharded(WHOLE).await;
    // Their places are as long as the documents: they hold what is sorted by.
    let documents: Vec<String> = (0..320)
        .map(|x| format!("{{_id: {x}, x: {x}, long: '{}'}}", "y".repeat(60_000)))
        .collect();
    for some in documents.chunks(160) {
        shard.insert(some).await;
    }
    let find = format!(
        "{{find: 'c', sort: {{long: 1}}, batchSize: 1000, _terndbScan: {{ranges: {}, uuid: {UUID}, places: true}}}}",
        whole()
    );
    let reply = shard.run("test", &find).await;
    let bytes = differential::value::encode(&reply).len();
    assert!(bytes > 15 << 20, "{bytes} bytes are no full batch");
    assert!(bytes <= 16 << 20, "{bytes} bytes do not fit");
}

/// ⚑ Places in a collection that is not sharded are gone on with in that collection: another one that has taken its name
/// has other documents there.
#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_is_not_sharded_is_told_by_its_uuid() {
    let server = TestShard::open().await;
    for command in [
        "find: 'c', batchSize: 4",
        "find: 'c', sort: {x: -1}, batchSize: 4",
        "aggregate: 'c', pipeline: [], cursor: {batchSize: 4}, fromMongos: true, needsMerge: true",
    ] {
        let documents: Vec<String> = (0..9).map(|id| format!("{{_id: {id}, x: {id}}}")).collect();
        let insert = format!("{{insert: 'c', documents: [{}]}}", documents.join(", "));
        server.check(&format!("{insert} => {{n: 9}}")).await;
        let first = server
            .run("test", &format!("{{{command}, _terndbScan: {{}}}}"))
            .await;
        let cursor = get(&first, "cursor").expect("a cursor");
        let scan = cursor.get("scan").expect("where it stands");
        let told = |name| {
            print(
                scan.get(name)
                    .unwrap_or_else(|| panic!("{name} of {command}")),
            )
        };
        let part = |uuid: &str| {
            let place = told("place");
            format!("{{{command}, _terndbScan: {{uuid: {uuid}, after: {place}, goesOn: true}}}}")
        };
        let own = part(&told("uuid"));
        let ids = |reply: &differential::value::Fields| -> Vec<Value> {
            let cursor = get(reply, "cursor").expect("a cursor");
            let batch = cursor.get("firstBatch").and_then(Value::as_array);
            batch.expect("a batch").iter().map(id_of).collect()
        };
        let next = ids(&server.run("test", &own).await);
        assert!(next.iter().all(|id| !ids(&first).contains(id)), "{command}");
        assert_eq!(next.len(), 4, "{command}");
        server
            .check(&format!(
                "{} => 175
                 {{drop: 'c'}} => {{}}
                 {own} => 175
                 {insert} => {{n: 9}}
                 {own} => 175
                 {{drop: 'c'}} => {{}}",
                part(UUID)
            ))
            .await;
    }
}
