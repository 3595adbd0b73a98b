//! `allowPartialResults`: shards that nobody answers for are left out, and the client is told.

use super::world::{Fault, World, key};
use super::{find, int, plain, run};
use model::bson::{DocBuf, DocWriter, ValueRef};
use model::error::Code;

/// The keys of a batch, its cursor, and whether anything is missing.
fn batch(reply: &DocBuf) -> (Vec<i32>, i64, bool) {
    let cursor = reply.as_doc().get_doc("cursor");
    let cursor = cursor.unwrap_or_else(|| panic!("no cursor in {reply:?}"));
    let Some(ValueRef::Int64(id)) = cursor.get("id") else {
        panic!("{reply:?}");
    };
    let is_partial = cursor.get("partialResultsReturned") == Some(ValueRef::Boolean(true));
    (
        crate::registry::batch_of(cursor).map(key).collect(),
        id,
        is_partial,
    )
}

async fn all(world: &World, command: DocBuf) -> (Vec<i32>, Vec<bool>) {
    let (mut found, mut id, is_partial) = batch(&world.run(command).await);
    let mut told = vec![is_partial];
    while id != 0 {
        let more = DocWriter::new()
            .with("getMore", id)
            .with("collection", "birds")
            .with("$db", "test");
        let (more, next, is_partial) = batch(&world.run(more.finish()).await);
        found.extend(more);
        told.push(is_partial);
        id = next;
    }
    (found, told)
}

async fn full_world() -> World {
    let world = World::new();
    world.insert(&(0..30).collect::<Vec<_>>(), plain).await;
    world
}

fn lose(world: &World, shard: &str, faults: &[Fault]) {
    world.shards[shard]
        .faults
        .lock()
        .extend(faults.iter().cloned());
}

#[test]
fn a_shard_that_is_away_is_left_out() {
    run(async {
        let partial = || find().with("allowPartialResults", true);
        let by_key = DocWriter::new().with("k", -1).finish();
        let mut rest: Vec<i32> = (0..10).chain(20..30).collect();
        for is_sorted in [false, true] {
            let world = full_world().await;
            lose(&world, "b", &[Fault::NotSent]);
            let command = match is_sorted {
                true => partial().with("sort", &by_key),
                false => partial(),
            };
            let (mut found, told) = all(&world, command.finish()).await;
            if is_sorted {
                assert!(found.is_sorted_by(|a, b| a > b), "{found:?}");
            }
            found.sort_unstable();
            assert_eq!(found, rest);
            assert!(told.iter().all(|is_partial| *is_partial), "{told:?}");
            // Nothing is missing when all are there, and nobody says so.
            let (found, told) = all(&world, partial().finish()).await;
            assert_eq!((found.len(), told.contains(&true)), (30, false));
            // Without the option the command fails.
            lose(&world, "b", &[Fault::NotSent]);
            let refused = world.run(find().finish()).await;
            assert_eq!(int(&refused, "code"), Code::HOST_UNREACHABLE.0);
        }
        // The only shard that was asked.
        let world = full_world().await;
        lose(&world, "b", &[Fault::NotSent]);
        let one = DocWriter::new().with("k", 15).finish();
        let (found, told) = all(&world, partial().with("filter", &one).finish()).await;
        assert_eq!((found, told), (vec![], vec![true]));
        // Between two batches: what came before is there.
        let world = full_world().await;
        let asked = partial().finish();
        lose(&world, "b", &[Fault::None, Fault::NotSent]);
        let (found, told) = all(&world, asked).await;
        assert!(told.last() == Some(&true), "{told:?}");
        rest.retain(|key| !found.contains(key));
        assert!(rest.is_empty(), "{rest:?} are missing");
        assert!(found.len() < 30);
    });
}

/// A moment of the past is read by other means.
#[test]
fn a_shard_is_left_out_of_the_past() {
    run(async {
        let world = full_world().await;
        lose(&world, "b", &[Fault::NotSent]);
        let time = model::time::ClusterTime::new(100, 1);
        let mut command = find().with("allowPartialResults", true);
        command
            .begin_document("readConcern")
            .append("level", "snapshot")
            .append("atClusterTime", time)
            .end();
        let (found, told) = all(&world, command.finish()).await;
        assert_eq!(found.len(), 20);
        assert!(told.iter().all(|is_partial| *is_partial), "{told:?}");
    });
}

/// Everywhere but in `_id` servers put the time in the place of an empty one: here before it is known who gets it.
#[test]
fn empty_times_in_shard_keys_are_filled_in() {
    run(async {
        let world = World::new();
        let empty = || {
            ValueRef::Timestamp(model::bson::Timestamp {
                seconds: 0,
                increment: 0,
            })
        };
        let document = DocWriter::new()
            .with("_id", empty())
            .with("k", empty())
            .with("other", empty())
            .finish();
        let sequence = wire::Sequence::new("documents", [document.as_doc()]);
        let body = DocWriter::new().with("insert", "birds").with("$db", "test");
        let reply = world.run_with(body.finish(), vec![sequence]).await;
        assert_eq!(int(&reply, "n"), 1);
        let asked = world.shards["c"].asked.lock().clone();
        let inserted = asked.last().expect("times are behind all numbers").as_doc();
        let inserted = inserted.get_array("documents").expect("documents");
        let Some(ValueRef::Document(inserted)) = inserted.iter().next() else {
            panic!("{asked:?}");
        };
        let is_empty = |name: &str| inserted.get(name) == Some(empty());
        // The shard sees to the others.
        let names = ["_id", "k", "other"].map(is_empty);
        assert_eq!(names, [true, false, true], "{inserted:?}");
    });
}
