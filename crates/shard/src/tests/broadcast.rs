//! Parts in writes over several shards: repeated, late, after a restart, with ranges that are elsewhere.

use crate::testing::TestShard;
use crate::tests::parts::{bound, whole};
use crate::tests::sharding::{HIGH, WHOLE, placed, sharded, version};
use differential::notation::print;
use differential::value::{Fields, Value, get};
use model::bson::DocWriter;

fn low() -> String {
    format!("[{}, {}]", bound(None, true), bound(Some(10), false))
}

/// A part of operation `number`, and what else is said of it.
fn part(number: i64, more: &str) -> String {
    part_sent(number, number, more)
}

/// The same, first sent at a time of its own.
fn part_sent(number: i64, sent: i64, more: &str) -> String {
    let slot = print(&Value::Binary(4, vec![3; 16]));
    let sent = format!("sent: Timestamp({sent}, 1)");
    format!("{{slot: {slot}, number: {number}L, stream: 0, {sent}, {more}}}")
}

/// Marks the documents that a filter selects.
fn mark(filter: &str, part: &str) -> String {
    format!(
        "{{update: 'c', updates: [{{q: {filter}, u: {{$inc: {{n: 1}}}}, multi: true}}], _terndbBroadcast: {part}}}"
    )
}

/// With documents whose `x` is 0 to `count` - 1.
async fn filled(count: i32) -> TestShard {
    let shard = sharded(WHOLE).await;
    let documents: Vec<String> = (0..count)
        .map(|x| format!("{{_id: {}, x: {x}, y: {}}}", count - x, x % 7))
        .collect();
    shard.insert(&documents).await;
    shard
}

async fn place(shard: &TestShard, major: u32, owned: &str) {
    let command = placed("_terndbSetPlacement", (major, 0), (major, 0), owned);
    shard.check(&format!("admin {command} => {{}}")).await;
}

/// How many documents were marked so often.
async fn marked(shard: &TestShard, times: i32) -> Value {
    let reply = shard
        .run("test", &format!("{{count: 'c', query: {{n: {times}}}}}"))
        .await;
    get(&reply, "n").expect("a count").clone()
}

fn left(reply: &Fields) -> usize {
    let left = get(reply, "broadcast").and_then(|broadcast| broadcast.get("left"));
    left.and_then(Value::as_array).map_or(0, <[Value]>::len)
}

/// ⚑ A request that is sent again finds what it has done, also after a restart; another number is
/// another operation.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_does_nothing_twice() {
    let mut shard = filled(300).await;
    for filter in ["{}", "{x: {$gte: 0}}", "{y: {$lt: 100}}"] {
        let number = match filter {
            "{}" => 1,
            "{x: {$gte: 0}}" => 2,
            _ => 3,
        };
        if number == 3 {
            shard
                .check("{createIndexes: 'c', indexes: [{key: {y: 1}, name: 'y'}]} => {}")
                .await;
        }
        let first = part(number, &format!("ranges: {}", whole()));
        let again = part(number, &format!("again: true, ranges: {}", whole()));
        let script = format!("{} => {{n: 300, nModified: 300}}", mark(filter, &first));
        shard.check(&script).await;
        let script = format!("{} => {{n: 300, nModified: 300}}", mark(filter, &again));
        shard.check(&script).await;
        shard = shard.reopen().await;
        shard.check(&script).await;
        assert_eq!(marked(&shard, number as i32).await, Value::Int32(300));
    }
    // A late one of an operation that is over.
    let late = part(2, &format!("ranges: {}", whole()));
    let reply = shard.run("test", &mark("{}", &late)).await;
    let errors = get(&reply, "writeErrors")
        .and_then(Value::as_array)
        .expect("errors");
    assert_eq!(errors[0].get("code"), Some(&Value::Int32(96)));
    assert_eq!(marked(&shard, 3).await, Value::Int32(300));
}

/// ⚑ What is not owned is left, with its place; what was not asked for is not touched.
#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_asked_for_and_owned_is_written() {
    let shard = filled(20).await;
    let reply = shard
        .run("test", &mark("{}", &part(1, &format!("ranges: {}", low()))))
        .await;
    assert_eq!(get(&reply, "n"), Some(&Value::Int32(10)));
    assert_eq!(left(&reply), 0);
    place(&shard, 3, HIGH).await;
    let reply = shard
        .run(
            "test",
            &mark("{}", &part(2, &format!("ranges: {}", whole()))),
        )
        .await;
    assert_eq!(get(&reply, "n"), Some(&Value::Int32(10)));
    assert_eq!(left(&reply), 1);
    place(&shard, 4, WHOLE).await;
    assert_eq!(marked(&shard, 1).await, Value::Int32(20));
    // From behind a record: `x` 4 and what comes before is done.
    let document = DocWriter::new().with("_id", 16).with("x", 4).finish();
    let collection = crate::tests::transitions::collection(&shard);
    let key = collection.record_key(document.as_doc()).expect("a key");
    let after = print(&Value::Binary(0, key.as_bytes().to_vec()));
    let rest = part(3, &format!("ranges: {}, after: {after}", whole()));
    shard
        .check(&format!(
            "{} => {{n: 15, nModified: 15}}",
            mark("{}", &rest)
        ))
        .await;
    assert_eq!(marked(&shard, 2).await, Value::Int32(15));
}

/// Very many ranges are said by a version: all that it says but some, and others besides, which are left here.
#[tokio::test(flavor = "multi_thread")]
async fn ranges_are_said_by_what_differs_from_a_version() {
    let shard = filled(30).await;
    place(&shard, 3, HIGH).await;
    let said = |major: u32, without: &str, more: &str| {
        let mark = mark("{}", &part(1, &format!("without: {without}{more}")));
        format!(
            "{}, shardVersion: {}}}",
            &mark[..mark.len() - 1],
            version(major, 0)
        )
    };
    let some = format!("[{}, {}]", bound(Some(15), false), bound(Some(20), false));
    let besides = format!(", ranges: {}", low());
    let reply = shard.run("test", &said(2, &some, &besides)).await;
    let stale = get(&reply, "writeErrors").and_then(Value::as_array);
    let stale = stale.and_then(|errors| errors[0].get("code"));
    let stale = stale.or(get(&reply, "code"));
    assert_eq!(stale, Some(&Value::Int32(13388)), "{reply:?}");
    let reply = shard.run("test", &said(3, &some, &besides)).await;
    assert_eq!(get(&reply, "n"), Some(&Value::Int32(15)), "{reply:?}");
    assert_eq!(left(&reply), 1);
    place(&shard, 4, WHOLE).await;
    assert_eq!(marked(&shard, 1).await, Value::Int32(15));
    let unversioned = mark("{}", &part(2, &format!("without: {some}")));
    let reply = shard.run("test", &unversioned).await;
    assert_eq!(get(&reply, "n"), Some(&Value::Int32(0)), "{reply:?}");
}

/// ⚑ Who answers a request that was sent before leaves that in the log: the earlier one comes when the
/// range has been elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_request_is_fenced_off() {
    let shard = filled(20).await;
    place(&shard, 3, HIGH).await;
    let ranges = format!("ranges: {}", low());
    let again = part(1, &format!("again: true, {ranges}"));
    let reply = shard.run("test", &mark("{}", &again)).await;
    assert_eq!(
        (get(&reply, "n"), left(&reply)),
        (Some(&Value::Int32(0)), 1)
    );
    place(&shard, 4, WHOLE).await;
    let reply = shard.run("test", &mark("{}", &part(1, &ranges))).await;
    assert_eq!(
        (get(&reply, "n"), left(&reply)),
        (Some(&Value::Int32(0)), 1)
    );
    assert_eq!(marked(&shard, 1).await, Value::Int32(0));
}

/// What came before an error stays, once, and a repeated request gets the same error.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_is_kept() {
    let shard = filled(20).await;
    shard
        .check(
            "{createIndexes: 'c', indexes: [{key: {x: 1, m: 1}, name: 'm', unique: true}]} => {}",
        )
        .await;
    let update = |more: &str| {
        let part = part(1, &format!("{more} ranges: {}", whole()));
        format!(
            "{{update: 'c', updates: [{{q: {{}}, u: [{{$set: {{n: {{$add: [{{$ifNull: ['$n', 0]}}, 1]}}, m: {{$divide: [1, {{$subtract: ['$x', 5]}}]}}}}}}], multi: true}}], _terndbBroadcast: {part}}}"
        )
    };
    for more in ["", "again: true,"] {
        let reply = shard.run("test", &update(more)).await;
        let errors = get(&reply, "writeErrors")
            .and_then(Value::as_array)
            .expect("errors");
        assert_eq!(errors.len(), 1, "{reply:?}");
        assert_eq!(marked(&shard, 1).await, Value::Int32(5));
        assert_eq!(marked(&shard, 2).await, Value::Int32(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deletes_and_single_documents() {
    let shard = filled(20).await;
    let ranges = format!("ranges: {}", whole());
    let delete = |filter: &str, limit: i32, part: &str| {
        format!(
            "{{delete: 'c', deletes: [{{q: {filter}, limit: {limit}}}], _terndbBroadcast: {part}}}"
        )
    };
    let (first, again) = (part(1, &ranges), part(1, &format!("again: true, {ranges}")));
    for part in [&first, &again] {
        let script = format!("{} => {{n: 3}}", delete("{y: 0}", 0, part));
        shard.check(&script).await;
    }
    let (first, again) = (part(2, &ranges), part(2, &format!("again: true, {ranges}")));
    for part in [&first, &again] {
        let script = format!("{} => {{n: 1}}", delete("{_id: 3}", 1, part));
        shard.check(&script).await;
    }
    shard.check("{count: 'c'} => {n: 16}").await;
    shard
        .check(&format!(
            "{} => {{n: 0}}",
            delete("{_id: 3}", 1, &part(3, &ranges))
        ))
        .await;
}

/// Progress goes when nobody has written it for long.
#[tokio::test(flavor = "multi_thread")]
async fn old_progress_is_removed() {
    let shard = filled(5).await;
    let first = part(1, &format!("ranges: {}", low()));
    shard
        .check(&format!("{} => {{n: 5}}", mark("{}", &first)))
        .await;
    let prefix = b"broadcast/";
    let kept = || shard.shard.store.snapshot().scan_meta(prefix).count();
    assert_eq!(kept(), 1);
    shard
        .check("admin {reapLogicalSessionCacheNow: 1} => {}")
        .await;
    assert_eq!(kept(), 1);
    shard.clock.advance_minutes(61);
    shard
        .check("admin {reapLogicalSessionCacheNow: 1} => {}")
        .await;
    assert_eq!(kept(), 0);
}

/// ⚑ A clock that somebody sets ahead by an hour, or a day, makes nobody forget.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_makes_nobody_forget() {
    let shard = filled(30).await;
    let ranges = format!("ranges: {}", whole());
    let reap = "admin {reapLogicalSessionCacheNow: 1} => {}";
    shard.check(reap).await;
    let first = mark("{}", &part(1, &ranges));
    shard.check(&format!("{first} => {{n: 30}}")).await;
    for minutes in [61, 24 * 60, -48 * 60, 61] {
        shard.clock.set_ahead_minutes(minutes);
        shard.check(reap).await;
        let again = mark("{}", &part(1, &format!("again: true, {ranges}")));
        shard.check(&format!("{again} => {{n: 30}}")).await;
        assert_eq!(marked(&shard, 1).await, Value::Int32(30));
    }
}

/// ⚑ What was forgotten is refused, never repeated: also by who has only what is stored. What was first sent
/// later is carried out.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_forgotten_is_refused() {
    let mut shard = filled(30).await;
    let ranges = format!("ranges: {}", whole());
    let reap = "admin {reapLogicalSessionCacheNow: 1} => {}";
    shard.check(reap).await;
    let first = mark("{}", &part_sent(1, 7, &ranges));
    shard.check(&format!("{first} => {{n: 30}}")).await;
    shard.clock.advance_minutes(61);
    shard.check(reap).await;
    let prefix = b"broadcast/";
    assert_eq!(shard.shard.store.snapshot().scan_meta(prefix).count(), 0);
    for _ in 0..2 {
        for (sent, more) in [(7, "again: true,"), (7, ""), (6, ""), (6, "again: true,")] {
            let late = mark("{}", &part_sent(1, sent, &format!("{more} {ranges}")));
            let reply = shard.run("test", &late).await;
            let errors = get(&reply, "writeErrors")
                .and_then(Value::as_array)
                .expect("errors");
            assert_eq!(errors[0].get("code"), Some(&Value::Int32(225)));
            assert_eq!(marked(&shard, 1).await, Value::Int32(30));
        }
        shard = shard.reopen().await;
    }
    let new = mark("{}", &part_sent(2, 8, &ranges));
    shard.check(&format!("{new} => {{n: 30}}")).await;
    assert_eq!(marked(&shard, 2).await, Value::Int32(30));
}

/// ⚑ What a request did is remembered while it, or one that asks again, is at work, however long ago it was
/// written; and by a new primary for as long, which does not know who was at work before.
#[tokio::test(flavor = "multi_thread")]
async fn progress_in_use_is_kept() {
    let mut shard = filled(30).await;
    let ranges = format!("ranges: {}", whole());
    let again = format!(
        "{} => {{n: 30}}",
        mark("{}", &part(1, &format!("again: true, {ranges}")))
    );
    let first = format!("{} => {{n: 30}}", mark("{}", &part(1, &ranges)));
    let reap = "admin {reapLogicalSessionCacheNow: 1} => {}";
    shard.check(reap).await;
    shard.check(&first).await;
    shard.clock.advance_minutes(59);
    shard.check(&again).await;
    // Its last use was two minutes ago.
    shard.clock.advance_minutes(2);
    shard.check(reap).await;
    shard.check(&again).await;
    assert_eq!(marked(&shard, 1).await, Value::Int32(30));
    // Another primary finds it old.
    shard.clock.advance_minutes(50);
    shard = shard.reopen().await;
    shard.check(reap).await;
    shard.clock.advance_minutes(30);
    shard.check(reap).await;
    shard.check(&again).await;
    assert_eq!(marked(&shard, 1).await, Value::Int32(30));
    // Nothing is kept for ever, also of what ended with an error.
    let fails = "{update: 'c', updates: [{q: {$expr: {$gt: [{$divide: [1, '$y']}, 0]}}, u: {$inc: {y: 1}}, multi: true}]";
    let fails = format!("{fails}, _terndbBroadcast: {}}}", part(2, &ranges));
    let reply = shard.run("test", &fails).await;
    assert!(get(&reply, "writeErrors").is_some(), "{reply:?}");
    assert_eq!(shard.shard.broadcasts.remembered(), 1);
    shard.clock.advance_minutes(61);
    shard.check(reap).await;
    assert_eq!(shard.shard.broadcasts.remembered(), 0);
    let prefix = b"broadcast/";
    assert_eq!(shard.shard.store.snapshot().scan_meta(prefix).count(), 0);
}

/// Malformed parts are refused.
#[tokio::test(flavor = "multi_thread")]
async fn malformed_parts() {
    let shard = filled(3).await;
    for bad in ["{}", "{slot: 1}", "{number: 1L, stream: 0}"] {
        shard.check(&format!("{} => 2", mark("{}", bad))).await;
    }
    let neither = part(1, "again: false");
    let reply = shard.run("test", &mark("{}", &neither)).await;
    assert!(get(&reply, "writeErrors").is_some(), "{reply:?}");
}

/// ⚑ A search over an index that ends half-way hands out nothing: what it has found is no beginning in
/// the order of records, and going on behind it would leave documents out.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_search_changes_nothing() {
    const ENDLESS: &str = "{$reduce: {input: {$range: [0, 100000]}, initialValue: 0, in: {$reduce: \
        {input: {$range: [0, 100000]}, initialValue: 0, in: {$add: ['$$value', '$$this', '$x']}}}}}";
    let shard = filled(20).await;
    shard
        .check("{createIndexes: 'c', indexes: [{key: {y: -1}, name: 'y'}]} => {}")
        .await;
    // The index begins with what comes late in the order of records.
    let slow = format!("{{$cond: [{{$eq: ['$x', 0]}}, {ENDLESS}, true]}}");
    let filter = format!("{{y: {{$gte: 0}}, $expr: {slow}}}");
    let first = part(1, &format!("ranges: {}", whole()));
    let command = mark(&filter, &first);
    let limited = format!("{}, maxTimeMS: 1000}}", &command[..command.len() - 1]);
    let reply = shard.run("test", &limited).await;
    assert_eq!(get(&reply, "code"), Some(&Value::Int32(50)), "{reply:?}");
    assert_eq!(marked(&shard, 1).await, Value::Int32(0));
    // What was given up can be asked for again.
    let again = part(1, &format!("again: true, ranges: {}", whole()));
    shard
        .check(&format!("{} => {{n: 20}}", mark("{y: {$gte: 0}}", &again)))
        .await;
    assert_eq!(marked(&shard, 1).await, Value::Int32(20));
}
