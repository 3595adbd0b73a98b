//! Scans over shards with very many ranges: what is asked for stays short while some of them move.

use super::world::{World, key};
use super::{find, int, mark_all, run};
use model::bson::{DocBuf, DocWriter, ValueRef};

/// Half of them on each of two shards: more than are named one by one.
const KEYS: i32 = 1200;
/// All ranges of a shard weigh ten times as much.
const REQUEST_BYTES_MAX: usize = 3000;

/// The keys of a batch, the cursor, and the token if there is one.
fn batch(reply: &DocBuf) -> (Vec<i32>, i64, Option<DocBuf>) {
    let cursor = reply.as_doc().get_doc("cursor");
    let cursor = cursor.unwrap_or_else(|| panic!("no cursor in {reply:?}"));
    let keys = crate::registry::batch_of(cursor).map(key).collect();
    let token = cursor.get_doc("postBatchResumeToken");
    let token = token.filter(|token| !token.is_empty());
    match cursor.get("id") {
        Some(ValueRef::Int64(id)) => (keys, id, token.map(|token| token.to_owned())),
        other => panic!("the cursor is {other:?}"),
    }
}

fn more(id: i64) -> DocBuf {
    DocWriter::new()
        .with("getMore", id)
        .with("collection", "birds")
        .with("batchSize", 150)
        .with("$db", "test")
        .finish()
}

/// Moves a range that was scanned, one that was not, and one that comes back: of those that are a's, and b's.
fn move_some(world: &World, round: u32) {
    let major = 10 + 4 * round;
    let at = 37 * (round as i32 + 1);
    world.move_stripe(2 * at, "b", major);
    world.move_stripe(2 * at + 1, "a", major + 1);
    world.move_stripe(KEYS - 2 * at, "c", major + 2);
    if round > 0 {
        world.move_stripe(2 * 37 * round as i32, "a", major + 3);
    }
}

fn check_requests(world: &World) {
    let mut by_version = 0;
    for shard in world.shards.values() {
        for asked in &*shard.asked.lock() {
            let bytes = asked.as_doc().len();
            assert!(bytes < REQUEST_BYTES_MAX, "{bytes} bytes");
            let part = asked.as_doc().get_doc("_terndbScan");
            by_version += usize::from(part.is_some_and(|part| part.get("without").is_some()));
        }
    }
    assert!(by_version > 3, "{by_version} requests say what is left out");
}

#[test]
fn requests_are_short_however_many_ranges_there_are() {
    for sorted in [false, true] {
        run(async {
            let world = World::striped(KEYS);
            let mut first = find().with("batchSize", 150);
            if sorted {
                first.begin_document("sort").append("rank", 1).end();
            }
            let (mut found, mut id, _) = batch(&world.run(first.finish()).await);
            for round in 0.. {
                if id == 0 {
                    break;
                }
                if round < 6 {
                    move_some(&world, round);
                }
                let (keys, next, _) = batch(&world.run(more(id)).await);
                found.extend(keys);
                id = next;
            }
            if sorted {
                assert!(found.is_sorted_by(|a, b| a > b), "{found:?}");
            }
            found.sort_unstable();
            assert_eq!(found, (0..KEYS).collect::<Vec<_>>());
            check_requests(&world);
        });
    }
}

/// Whoever goes on from token to token holds small ones all the way.
#[test]
fn tokens_are_short_however_many_ranges_there_are() {
    run(async {
        let mut world = World::striped(KEYS);
        let ask = |token: Option<DocBuf>| {
            let mut find = find()
                .with("batchSize", 150)
                .with("$_requestResumeToken", true);
            if let Some(token) = token {
                find.append("$_resumeAfter", &token);
            }
            find.finish()
        };
        let mut found = Vec::new();
        let mut token = None;
        for round in 0.. {
            let (keys, _, next) = batch(&world.run(ask(token)).await);
            if keys.is_empty() {
                break;
            }
            found.extend(keys);
            let next = next.expect("a token");
            let bytes = next.as_doc().len();
            assert!(bytes < REQUEST_BYTES_MAX, "{bytes} bytes");
            if round < 6 {
                move_some(&world, round);
            }
            world.restart_router();
            token = Some(next);
        }
        found.sort_unstable();
        assert_eq!(found, (0..KEYS).collect::<Vec<_>>());
        check_requests(&world);
    });
}

/// ⚑ What a shard is asked to write is said as shortly once some of its ranges have moved.
#[test]
fn broadcast_writes_are_short_however_many_ranges_there_are() {
    run(async {
        let world = World::striped(KEYS);
        assert_eq!(int(&world.run(mark_all()).await, "n"), KEYS);
        let asked =
            |world: &World, shard: &str| std::mem::take(&mut *world.shards[shard].asked.lock());
        for shard in ["a", "b", "c"] {
            asked(&world, shard);
        }
        move_some(&world, 0);
        assert_eq!(int(&world.run(mark_all()).await, "n"), KEYS);
        let mut by_difference = 0;
        for shard in ["a", "b"] {
            let all = asked(&world, shard);
            for one in &all {
                let bytes = one.as_doc().len();
                assert!(bytes < REQUEST_BYTES_MAX, "{bytes} bytes");
                let part = one.as_doc().get_doc("_terndbBroadcast").expect("a part");
                by_difference += usize::from(part.get("without").is_some());
            }
        }
        assert_eq!(by_difference, 2, "each of them was told what has changed");
    });
}
