//! Cursors over sharded collections while ranges move, members die, and the collection goes away.

use super::world::{Fault, World, bird, key};
use super::{find, int, plain, run};
use cluster::cache::Placement;
use cluster::scan::ScanToken;
use model::bson::{DocBuf, DocWriter, ValueRef};
use model::error::Code;
use model::namespace::Namespace;
use model::time::ClusterTime;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// One batch: its keys, and the cursor.
pub(super) fn batch(reply: &DocBuf) -> (Vec<i32>, i64) {
    let cursor = reply.as_doc().get_doc("cursor");
    let cursor = cursor.unwrap_or_else(|| panic!("no cursor in {reply:?}"));
    let keys = crate::registry::batch_of(cursor).map(key).collect();
    match cursor.get("id") {
        Some(ValueRef::Int64(id)) => (keys, id),
        other => panic!("the cursor is {other:?}"),
    }
}

pub(super) fn more(id: i64) -> DocBuf {
    DocWriter::new()
        .with("getMore", id)
        .with("collection", "birds")
        .with("batchSize", 3)
        .with("$db", "test")
        .finish()
}

/// Reads a cursor to its end; between two batches something happens.
pub(super) async fn read(world: &World, first: DocBuf, mut between: impl FnMut(usize)) -> Vec<i32> {
    let (mut found, mut id) = batch(&world.run(first).await);
    for round in 0.. {
        if id == 0 {
            return found;
        }
        between(round);
        let (keys, next) = batch(&world.run(more(id)).await);
        found.extend(keys);
        id = next;
        assert!(round < 1000, "the cursor does not end");
    }
    found
}

pub(super) async fn full_world() -> World {
    let world = World::new();
    world.insert(&(0..30).collect::<Vec<_>>(), plain).await;
    world
}

/// The range in the middle goes round: to c, to a, back to b, and so on.
pub(super) fn go_round(world: &World) -> impl FnMut(usize) + '_ {
    let way = ["b", "c", "a"];
    let mut at = 0;
    move |_| {
        let (from, to) = (way[at % 3], way[(at + 1) % 3]);
        world.move_b(from, to, 10 + at as u32);
        at += 1;
    }
}

pub(super) fn by_rank() -> DocBuf {
    DocWriter::new().with("rank", 1).finish()
}

#[test]
fn a_range_that_moves_again_and_again_comes_once() {
    run(async {
        let world = full_world().await;
        let first = find().with("batchSize", 3).finish();
        let mut found = read(&world, first, go_round(&world)).await;
        found.sort_unstable();
        assert_eq!(found, (0..30).collect::<Vec<_>>());
    });
}

/// Batches pass as they came from shards, unless they are larger than what is asked for then, or
/// not the first in theirs: then they are taken apart. Nobody notices.
#[test]
fn batches_have_the_size_that_each_getmore_asks_for() {
    run(async {
        let world = full_world().await;
        let first = find().with("batchSize", 4).finish();
        let mut reply = world.run(first).await;
        let mut found = Vec::new();
        for size in [4, 7, 2, 1, 8, 3, 100].map(Some).into_iter().chain([None]) {
            let cursor = reply.as_doc().get_doc("cursor").expect("a cursor");
            let array = crate::registry::array_of(cursor).expect("a batch");
            for (at, element) in array.elements().enumerate() {
                assert_eq!(element.key(), at.to_string());
            }
            let (keys, id) = batch(&reply);
            found.push(keys.len());
            let Some(size) = size else {
                assert_eq!(id, 0);
                break;
            };
            if id == 0 {
                break;
            }
            let next = DocWriter::new()
                .with("getMore", id)
                .with("collection", "birds")
                .with("batchSize", size)
                .with("$db", "test");
            reply = world.run(next.finish()).await;
        }
        assert_eq!(found, [4, 4, 7, 2, 1, 8, 3, 1]);
    });
}

#[test]
fn a_sorted_scan_stays_sorted_while_ranges_move() {
    run(async {
        let world = full_world().await;
        let first = find().with("batchSize", 3).with("sort", &by_rank());
        let found = read(&world, first.finish(), go_round(&world)).await;
        assert_eq!(found, (0..30).rev().collect::<Vec<_>>());
    });
}

#[test]
fn skip_and_limit_hold_while_ranges_move() {
    run(async {
        let world = full_world().await;
        let first = find()
            .with("batchSize", 3)
            .with("sort", &by_rank())
            .with("skip", 7)
            .with("limit", 17);
        let found = read(&world, first.finish(), go_round(&world)).await;
        assert_eq!(found, (6..23).rev().collect::<Vec<_>>());
    });
}

/// One shard answers the client's own command; what is left of it survives a move all the same.
#[test]
fn a_scan_of_one_shard_follows_its_range() {
    run(async {
        let world = full_world().await;
        let filter = DocWriter::new().with("k", &range(10, 20)).finish();
        let first = find().with("batchSize", 3).with("filter", &filter);
        let found = read(&world, first.finish(), go_round(&world)).await;
        assert_eq!(found, (10..20).collect::<Vec<_>>());
        // What the shard says to the router is not told to the client.
        let world = full_world().await;
        let reply = world.run(find().with("batchSize", 3).with("filter", &filter).finish());
        let reply = reply.await;
        let cursor = reply.as_doc().get_doc("cursor").expect("a cursor");
        assert!(cursor.get("scan").is_none(), "{reply:?}");
    });
}

pub(super) fn range(from: i32, to: i32) -> DocBuf {
    DocWriter::new().with("$gte", from).with("$lt", to).finish()
}

/// A member that dies between two batches, or a reply that is lost: the scan goes on from its place.
#[test]
fn a_lost_member_repeats_nothing() {
    run(async {
        for sort in [None, Some(by_rank())] {
            let world = full_world().await;
            let mut first = find().with("batchSize", 3);
            if let Some(sort) = &sort {
                first.append("sort", sort);
            }
            let shards = ["a", "b", "c"];
            let found = read(&world, first.finish(), |round| {
                let fault = match round % 2 {
                    0 => Fault::NotSent,
                    _ => Fault::ReplyLost,
                };
                let shard = &world.shards[shards[round % 3]];
                shard.faults.lock().push_back(fault);
                shard.cursors.lock().clear();
            });
            let mut found = found.await;
            found.sort_unstable();
            assert_eq!(found, (0..30).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_dropped_collection_ends_the_cursor() {
    for size in [0, 3] {
        check_dropped(size);
    }
}

/// ⚑ Whether the client has seen anything or not: it has the cursor.
fn check_dropped(size: i32) {
    run(async {
        let world = full_world().await;
        let (_, id) = batch(&world.run(find().with("batchSize", size).finish()).await);
        world.drop_collection();
        let mut reply = world.run(more(id)).await;
        // What had arrived before is told.
        while reply.as_doc().get("code").is_none() {
            assert_ne!(
                batch(&reply).1,
                0,
                "it does not end as if nothing had happened"
            );
            reply = world.run(more(id)).await;
        }
        assert_eq!(int(&reply, "code"), Code::QUERY_PLAN_KILLED.0);
    });
}

/// ⚑ Some shards have answered, another one has to be asked again, and by then the collection has another
/// shard key: nobody has seen anything, so that all is routed anew.
#[test]
fn a_total_begins_anew_as_long_as_nobody_has_seen_anything() {
    run(async {
        let world = full_world().await;
        world.move_b_to_c();
        // b is asked with a version that it has not, then by ranges.
        let faults = [Fault::None, Fault::AnotherLife];
        world.shards["b"].faults.lock().extend(faults);
        let count = DocWriter::new().with("count", "birds").with("$db", "test");
        let reply = world.run(count.finish()).await;
        assert_eq!(int(&reply, "n"), 30, "{reply:?}");
        assert!(world.shards["b"].faults.lock().is_empty());
        // The same behind a range that was found elsewhere.
        let world = full_world().await;
        world.move_b_to_c();
        let faults = [Fault::None, Fault::None, Fault::AnotherLife];
        world.shards["c"].faults.lock().extend(faults);
        let count = DocWriter::new().with("count", "birds").with("$db", "test");
        let reply = world.run(count.finish()).await;
        assert_eq!(int(&reply, "n"), 30, "{reply:?}");
        assert!(world.shards["c"].faults.lock().is_empty());
    });
}

/// What comes to be while a scan goes on may come or not, but nothing comes twice.
#[test]
fn inserts_and_deletes_between_batches() {
    run(async {
        let world = full_world().await;
        let mut moves = go_round(&world);
        let first = find().with("batchSize", 3).finish();
        let found = read(&world, first, |round| {
            world.shards["a"].remove(9);
            if round == 1 {
                world.shards["c"].store(bird(40));
            }
            moves(round);
        });
        let mut found = found.await;
        found.retain(|key| *key != 9 && *key != 40);
        found.sort_unstable();
        let expected: Vec<i32> = (0..30).filter(|key| *key != 9).collect();
        assert_eq!(found, expected);
    });
}

/// ⚑ Whatever is asked behind an answer is read at or after it, also before the client has seen anything: a
/// member that lags behind would answer for a range as it was before it went away from there.
#[test]
fn who_is_asked_later_reads_later() {
    run(async {
        let world = full_world().await;
        // The router does not know yet that b's range is c's.
        world.move_b_to_c();
        *world.shards["b"].time.lock() = Some(ClusterTime::new(70, 1));
        *world.shards["a"].time.lock() = Some(ClusterTime::new(60, 1));
        world.asked("c");
        // All of them have to answer before the first document is delivered.
        let first = find().with("batchSize", 1).with("sort", &by_rank());
        let found = batch(&world.run(first.finish()).await);
        let rest = read_on(&world, found).await;
        assert_eq!(rest, (0..30).collect::<Vec<_>>());
        let opened: Vec<DocBuf> = (world.shards["c"].asked.lock().iter())
            .filter(|asked| asked.get("find").is_some())
            .cloned()
            .collect();
        assert!(opened.len() > 1, "{opened:?}");
        let floor = |asked: &DocBuf| {
            let concern = asked.as_doc().get_doc("readConcern");
            let floor = concern.and_then(|concern| concern.get("afterClusterTime"));
            crate::config::time_of(floor)
        };
        let named = |asked: &&DocBuf| {
            let part = asked.as_doc().get_doc("_terndbScan");
            part.is_some_and(|part| part.get("ranges").is_some())
        };
        for asked in opened.iter().filter(named) {
            assert!(floor(asked) >= Some(ClusterTime::new(60, 1)), "{asked:?}");
        }
    });
}

/// All of a cursor, in order.
async fn read_on(world: &World, first: (Vec<i32>, i64)) -> Vec<i32> {
    let (mut found, mut id) = first;
    while id != 0 {
        let (keys, next) = batch(&world.run(more(id)).await);
        found.extend(keys);
        id = next;
    }
    found.sort_unstable();
    found
}

/// What is asked ahead is on its way before the client asks; the shard's cursor goes with the client's.
#[test]
fn batches_are_asked_for_ahead() {
    run(async {
        let world = full_world().await;
        let (_, id) = batch(&world.run(find().with("batchSize", 2).finish()).await);
        world.asked("a");
        // From the second batch on that a shard's cursor has answered.
        let (_, id) = batch(&world.run(more(id)).await);
        let (_, id) = batch(&world.run(more(id)).await);
        until(|| world.asked_names("a").len() >= 3).await;
        assert_eq!(world.asked_names("a"), ["getMore"; 3]);
        let killed = DocWriter::new().with("killCursors", "birds");
        let mut killed = killed.with("$db", "test");
        killed.begin_array("cursors").push(id).end();
        world.run(killed.finish()).await;
        assert!(world.asked_names("a").contains(&"killCursors".to_owned()));
        assert!(world.asked_names("b").contains(&"killCursors".to_owned()));
    });
}

/// A shard elsewhere works on the next batch while this one goes to the client: it is asked before, even where
/// nobody else could run a task meanwhile. One in this process would only hold up the client.
#[test]
fn a_shard_elsewhere_is_asked_before_the_client_is_answered() {
    for (is_elsewhere, asked) in [(true, 3), (false, 2)] {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(async {
            let world = full_world().await;
            for shard in world.shards.values() {
                shard.is_elsewhere.store(is_elsewhere, Ordering::SeqCst);
            }
            let (_, id) = batch(&world.run(find().with("batchSize", 2).finish()).await);
            world.asked("a");
            let (_, id) = batch(&world.run(more(id)).await);
            world.run(more(id)).await;
            let names = world.asked_names("a");
            assert_eq!(names.len(), asked, "elsewhere: {is_elsewhere}");
        });
    }
}

/// ⚑ What is asked for ahead takes no more memory than was set aside for it: the shard is told.
#[test]
fn what_is_asked_for_ahead_has_a_limit() {
    run(async {
        let world = full_world().await;
        let (_, mut id) = batch(&world.run(find().with("batchSize", 2).finish()).await);
        for _ in 0..2 {
            id = batch(&world.run(more(id)).await).1;
        }
        let limits = || -> Vec<Option<i64>> {
            let asked = world.shards["a"].asked.lock();
            let more = asked.iter().filter(|asked| asked.get("getMore").is_some());
            let limit = |asked: &DocBuf| match asked.as_doc().get_doc("_terndbScan")?.get("bytes") {
                Some(ValueRef::Int64(bytes)) => Some(bytes),
                _ => None,
            };
            more.map(limit).collect()
        };
        until(|| limits().len() >= 3).await;
        let limits = limits();
        assert_eq!(limits[0], None, "nobody asked ahead yet");
        assert!(
            limits[1..].iter().all(|limit| limit.is_some()),
            "{limits:?}"
        );
        // What has arrived counts by what it weighs, and nothing when it is over.
        until(|| world.bytes_ahead() < 1000).await;
        read_on(&world, (Vec::new(), id)).await;
        assert_eq!(world.bytes_ahead(), 0);
    });
}

/// A cursor that goes on says so: what cannot be planned any more could be when it began.
#[test]
fn shards_are_told_that_a_scan_goes_on() {
    run(async {
        let world = full_world().await;
        let (_, id) = batch(&world.run(find().with("batchSize", 3).finish()).await);
        for name in ["a", "b", "c"] {
            world.asked(name);
        }
        go_round(&world)(0);
        read_on(&world, (Vec::new(), id)).await;
        let goes_on = |asked: &DocBuf| {
            let part = asked.as_doc().get_doc("_terndbScan");
            part.is_some_and(|part| part.get("goesOn") == Some(ValueRef::Boolean(true)))
        };
        for name in ["a", "b", "c"] {
            let asked = world.shards[name].asked.lock();
            let mut opened = asked.iter().filter(|asked| asked.get("find").is_some());
            assert!(opened.all(goes_on), "{name}: {asked:?}");
        }
    });
}

/// Waits until something holds.
async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::task::yield_now().await;
    }
}

/// The token of a reply.
pub(super) fn token(reply: &DocBuf) -> DocBuf {
    let cursor = reply.as_doc().get_doc("cursor").expect("a cursor");
    let token = cursor.get_doc("postBatchResumeToken").expect("a token");
    token.to_owned()
}

/// Asks for a batch and a token, from the beginning or from a token.
pub(super) fn batch_with_token(size: i32, resume: Option<&DocBuf>) -> DocBuf {
    let mut find = find()
        .with("batchSize", size)
        .with("$_requestResumeToken", true);
    if let Some(token) = resume {
        find.append("$_resumeAfter", token);
    }
    find.finish()
}

/// ⚑ A token that stands at the end is one like any other: whoever goes on from it gets nothing, and does not begin
/// again.
#[test]
fn the_end_is_a_place_too() {
    run(async {
        let mut world = full_world().await;
        let ask = |resume: Option<&DocBuf>| batch_with_token(100, resume);
        let first = world.run(ask(None)).await;
        let (found, id) = batch(&first);
        assert_eq!((found.len(), id), (30, 0));
        let mut end = token(&first);
        world.move_b_to_c();
        world.restart_router();
        for _ in 0..2 {
            let reply = world.run(ask(Some(&end))).await;
            assert_eq!(batch(&reply), (vec![], 0));
            end = token(&reply);
        }
        // An empty document is none.
        let again = world.run(ask(Some(&DocBuf::new()))).await;
        assert_eq!(batch(&again).0.len(), 30);
    });
}

/// ⚑ A token names what its scan began with: not what the router has known for longer than any history is kept.
#[test]
fn tokens_name_a_recent_placement() {
    run(async {
        let world = full_world().await;
        let ask = |resume: Option<&DocBuf>| batch_with_token(4, resume);
        let is_told_by = |reply: &DocBuf, known: &Placement| {
            let token = token(reply);
            let Some(ValueRef::Binary { bytes, .. }) = token.get("terndbScan") else {
                panic!("{token:?}");
            };
            let token = ScanToken::decode(bytes).expect("a token");
            matches!(known, Placement::Sharded(table) if token.is_told_by(table))
        };
        let namespace = Namespace::parse("test.birds").expect("a name");
        let routing = |world: &World| world.handler.0.routing.known(&namespace).expect("is known");
        let first = world.run(ask(None)).await;
        let known = routing(&world);
        assert!(is_told_by(&first, &known));
        world.move_b_to_c();
        // The first shard has nothing to say against what is cached.
        world.handler.0.routing.grow_old();
        let resumed = world.run(ask(Some(&token(&first)))).await;
        assert!(!is_told_by(&resumed, &known));
        world.handler.0.routing.grow_old();
        let begun = world.run(ask(None)).await;
        assert!(!is_told_by(&begun, &known));
        assert_eq!(routing(&world).version(), known.version(), "others go on");
        // Nobody tells: what is known is good for a token, too.
        world.handler.0.routing.grow_old();
        world.config.fails.store(100, Ordering::SeqCst);
        let begun = world.run(ask(None)).await;
        assert!(is_told_by(&begun, &known));
    });
}

/// ⚑ Places mean nothing to another query. The same on every router.
#[test]
fn a_token_goes_on_with_its_own_query_only() {
    run(async {
        let mut world = full_world().await;
        let filter = DocWriter::new().with("k", &range(5, 25)).finish();
        let asked = || {
            find()
                .with("batchSize", 4)
                .with("$_requestResumeToken", true)
        };
        let ask = || asked().with("filter", &filter);
        let token = token(&world.run(ask().with("sort", &by_rank()).finish()).await);
        let other = DocWriter::new().with("k", &range(5, 26)).finish();
        let projection = DocWriter::new().with("k", 1).finish();
        for _ in 0..2 {
            let refused = [
                ask(),
                ask().with("sort", &DocWriter::new().with("rank", -1).finish()),
                ask().with("sort", &by_rank()).with("hint", &by_rank()),
                asked().with("sort", &by_rank()),
                asked().with("sort", &by_rank()).with("filter", &other),
            ];
            for find in refused {
                let reply = world.run(find.with("$_resumeAfter", &token).finish()).await;
                assert_eq!(int(&reply, "code"), Code::INVALID_RESUME_TOKEN.0);
            }
            let own = ask()
                .with("sort", &by_rank())
                .with("projection", &projection);
            let reply = world.run(own.with("$_resumeAfter", &token).finish()).await;
            assert_eq!(batch(&reply).0, [20, 19, 18, 17]);
            let fewer = ask().with("sort", &by_rank()).with("limit", 2);
            let reply = world
                .run(fewer.with("$_resumeAfter", &token).finish())
                .await;
            assert_eq!(batch(&reply), (vec![20, 19], 0));
            world.restart_router();
        }
    });
}

pub(super) fn with_snapshot(mut find: DocWriter) -> DocWriter {
    find.begin_document("readConcern")
        .append("level", "snapshot")
        .append("atClusterTime", ClusterTime::new(100, 1))
        .end();
    find
}

/// A moment of the past is read on at another member from where it was, and by whichever version holds then.
#[test]
fn a_snapshot_goes_on_at_another_member() {
    run(async {
        let one_shard = DocWriter::new().with("k", &range(10, 20)).finish();
        let cases = [
            (None, None, (0..30).collect::<Vec<_>>()),
            (Some(by_rank()), None, (0..30).rev().collect()),
            (None, Some(&one_shard), (10..20).collect()),
            (Some(by_rank()), Some(&one_shard), (10..20).rev().collect()),
        ];
        for (sort, filter, expected) in cases {
            let world = full_world().await;
            let mut first = with_snapshot(find().with("batchSize", 3));
            if let Some(sort) = &sort {
                first.append("sort", sort);
            }
            if let Some(filter) = filter {
                first.append("filter", filter);
            }
            let found = read(&world, first.finish(), |round| {
                for shard in world.shards.values() {
                    shard.cursors.lock().clear();
                }
                // A chunk is split: b has another version.
                if round == 1 {
                    world.advance_b(9);
                }
            });
            assert_eq!(found.await, expected);
        }
        // ⚑ The router has not heard that b's range was c's by then.
        let world = full_world().await;
        world.asked("c");
        world.move_b_to_c();
        let first = with_snapshot(find().with("batchSize", 3));
        let mut found = read(&world, first.finish(), |_| {}).await;
        found.sort_unstable();
        assert_eq!(found, (0..30).collect::<Vec<_>>());
        // It says at which time it is.
        let world = full_world().await;
        let reply = world.run(with_snapshot(find()).finish()).await;
        let cursor = reply.as_doc().get_doc("cursor").expect("a cursor");
        let time = crate::config::time_of(cursor.get("atClusterTime"));
        assert_eq!(time, Some(ClusterTime::new(100, 1)));
    });
}

/// One shard answers at once, but not all that is wanted; what is left is sorted by what clients do not get.
#[test]
fn what_is_sorted_by_a_field_that_nobody_gets_goes_on() {
    run(async {
        let filter = DocWriter::new().with("k", &range(10, 20)).finish();
        let projection = DocWriter::new().with("k", 1).finish();
        let ask = || {
            find()
                .with("filter", &filter)
                .with("sort", &by_rank())
                .with("projection", &projection)
                .with("limit", 8)
                .finish()
        };
        let expected: Vec<i32> = (12..20).rev().collect();
        let world = full_world().await;
        assert_eq!(read(&world, ask(), go_round(&world)).await, expected);
        let world = full_world().await;
        let lost = read(&world, ask(), |_| {
            world.shards["b"].faults.lock().push_back(Fault::NotSent);
            world.shards["b"].cursors.lock().clear();
        });
        assert_eq!(lost.await, expected);
    });
}

/// ⚑ Groups of one shard are as those of many: the router has them, whatever becomes of the member.
#[test]
fn groups_of_one_shard_outlive_its_member() {
    run(async {
        let world = full_world().await;
        let mut ask = DocWriter::new().with("aggregate", "birds");
        ask.begin_array("pipeline").push_document();
        ask.begin_document("$match")
            .append("k", &range(10, 20))
            .end();
        ask.end().push_document();
        ask.begin_document("$group").append("_id", "$k").end();
        ask.end().end().begin_document("cursor");
        ask.append("batchSize", 3).end().append("$db", "test");
        let found = read(&world, ask.finish(), |round| {
            if round == 0 {
                world.move_b("b", "c", 9);
            }
            for shard in world.shards.values() {
                shard.cursors.lock().clear();
            }
        });
        assert_eq!(found.await, (10..20).collect::<Vec<_>>());
    });
}

/// ⚑ A token stands behind what was delivered to the client, with what is left of its window; another
/// router goes on from it, whatever has moved meanwhile.
#[test]
fn another_router_goes_on_from_a_token() {
    run(async {
        let mut world = full_world().await;
        let ask = |resume: Option<DocBuf>| {
            let mut find = find()
                .with("batchSize", 4)
                .with("sort", &by_rank())
                .with("skip", 3)
                .with("limit", 20)
                .with("$_requestResumeToken", true);
            if let Some(token) = resume {
                find.append("$_resumeAfter", &token);
            }
            find.finish()
        };
        let mut found = Vec::new();
        let mut reply = world.run(ask(None)).await;
        let way = ["b", "c", "a"];
        for round in 0..100 {
            let (keys, _) = batch(&reply);
            if keys.is_empty() {
                break;
            }
            found.extend(keys);
            let token = token(&reply);
            world.move_b(way[round % 3], way[(round + 1) % 3], 10 + round as u32);
            world.restart_router();
            reply = world.run(ask(Some(token))).await;
            assert!(round < 99, "the scan does not end");
        }
        assert_eq!(found, (7..27).rev().collect::<Vec<_>>());
        let bad = DocWriter::new().with("other", 1).finish();
        let refused = world.run(ask(Some(bad))).await;
        assert_eq!(int(&refused, "code"), Code::BAD_VALUE.0);
    });
}

/// A range that is said to be where it is not is waited for, and the error that follows says which and where; who asks
/// again when it has come goes on.
#[test]
fn a_range_that_does_not_arrive_is_named() {
    run(async {
        let mut world = full_world().await;
        world.restart_router_with(Duration::from_millis(200));
        let ask = |resume: Option<&DocBuf>| batch_with_token(4, resume);
        let first = world.run(ask(None)).await;
        let token = token(&first);
        world.move_b("b", "c", 10);
        world.shards["c"]
            .owned
            .lock()
            .retain(|range| *range != (10, 20));
        let (mut found, mut token) = (batch(&first).0, token);
        let refused = loop {
            let reply = world.run(ask(Some(&token))).await;
            if reply.get("cursor").is_none() {
                break reply;
            }
            let (keys, _) = batch(&reply);
            assert!(!keys.is_empty(), "it ended without the range: {found:?}");
            found.extend(keys);
            token = self::token(&reply);
        };
        assert_eq!(int(&refused, "code"), Code::EXCEEDED_TIME_LIMIT.0);
        let why = refused.as_doc().get_str("errmsg").unwrap_or_default();
        assert!(
            why.contains("a range of test.birds did not arrive at shard c"),
            "{why}"
        );
        world.shards["c"].owned.lock().push((10, 20));
        loop {
            let reply = world.run(ask(Some(&token))).await;
            let (keys, _) = batch(&reply);
            if keys.is_empty() {
                break;
            }
            found.extend(keys);
            token = self::token(&reply);
        }
        found.sort_unstable();
        assert_eq!(found, (0..30).collect::<Vec<_>>());
    });
}

/// What a shard had that was emptied and has left the cluster is scanned where it is now, from where it was.
#[test]
fn a_shard_that_leaves_is_scanned_elsewhere() {
    for sort in [None, Some(by_rank())] {
        run(async {
            let world = full_world().await;
            let mut first = find().with("batchSize", 3);
            if let Some(sort) = &sort {
                first.append("sort", sort);
            }
            let (found, id) = batch(&world.run(first.finish()).await);
            world.remove_c().await;
            for shard in world.shards.values() {
                shard.cursors.lock().clear();
            }
            world.asked("c");
            assert_eq!(
                read_on(&world, (found, id)).await,
                (0..30).collect::<Vec<_>>()
            );
            assert!(!world.asked_names("c").contains(&"find".to_owned()));
        });
    }
}

/// ⚑ Whoever goes on from a token reads at or after all that was delivered with it, on another router too: a member that
/// lags behind would not have it.
#[test]
fn a_token_says_how_late_to_read() {
    run(async {
        let mut world = full_world().await;
        for shard in world.shards.values() {
            *shard.time.lock() = Some(ClusterTime::new(70, 1));
        }
        let asked = |token: Option<DocBuf>| {
            let mut find = find()
                .with("batchSize", 4)
                .with("$_requestResumeToken", true);
            if let Some(token) = token {
                find.append("$_resumeAfter", &token);
            }
            find.finish()
        };
        let token = token(&world.run(asked(None)).await);
        world.restart_router();
        for name in ["a", "b", "c"] {
            world.asked(name);
        }
        world.run(asked(Some(token))).await;
        let mut opened = 0;
        for shard in world.shards.values() {
            for asked in &*shard.asked.lock() {
                let concern = asked.as_doc().get_doc("readConcern");
                let floor = concern.and_then(|concern| concern.get("afterClusterTime"));
                let floor = crate::config::time_of(floor);
                assert!(floor >= Some(ClusterTime::new(70, 1)), "{asked:?}");
                // Shards refuse to read after what nobody has told them.
                let told = asked.as_doc().get_doc("$clusterTime");
                let told = crate::config::time_of(told.and_then(|told| told.get("clusterTime")));
                assert!(told >= floor, "{asked:?}");
                opened += 1;
            }
        }
        assert!(opened > 0, "somebody is asked");
    });
}

#[test]
fn cursors_are_shown_with_their_streams() {
    run(async {
        let world = full_world().await;
        let (_, id) = batch(&world.run(find().with("batchSize", 3).finish()).await);
        world.move_b("b", "c", 9);
        let (_, id) = batch(&world.run(more(id)).await);
        let (_, id) = batch(&world.run(more(id)).await);
        let (_, id) = batch(&world.run(more(id)).await);
        let (_, id) = batch(&world.run(more(id)).await);
        assert_ne!(id, 0);
        let mut ask = DocWriter::new().with("aggregate", 1);
        ask.begin_array("pipeline")
            .push_document()
            .begin_document("$currentOp")
            .append("localOps", true)
            .append("idleCursors", true)
            .end()
            .end()
            .end()
            .begin_document("cursor")
            .end()
            .append("$db", "admin");
        let reply = world.run(ask.finish()).await;
        let shown = format!("{reply:?}");
        assert!(shown.contains("elasticScan: {collectionUUID"), "{shown}");
        assert!(shown.contains("baseVersion: {"), "{shown}");
        assert!(shown.contains("position: "), "{shown}");
        assert!(shown.contains("shard: \"c\", virtual: true"), "{shown}");
        let opened_by = "originatingCommand: {find: \"birds\", $db: \"test\", batchSize: 3}";
        assert!(shown.contains(opened_by), "{shown}");
    });
}
