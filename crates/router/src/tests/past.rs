//! Reads at a moment of the past at which a shard had a range that has left the cluster since, and may be back.

use super::scans::{batch, full_world, more, range, with_snapshot};
use super::world::{Fault, World};
use super::{find, int, run};
use model::bson::{DocBuf, DocWriter};
use model::error::{Code, Error};

/// What a shard says that does not know the collection.
fn forget(world: &World) {
    let details = DocWriter::new().with("ns", "test.birds").finish();
    let unknown = Error::new(Code::STALE_CONFIG, "unknown").with_details(details);
    let shard = &world.shards["c"];
    shard.cursors.lock().clear();
    shard.faults.lock().extend(vec![Fault::Says(unknown); 100]);
}

fn snapshots() -> Vec<DocBuf> {
    let one_shard = DocWriter::new().with("k", &range(20, 29)).finish();
    let distinct = DocWriter::new().with("distinct", "birds").with("key", "k");
    let mut pipeline = DocWriter::new().with("aggregate", "birds");
    pipeline.begin_array("pipeline").end();
    pipeline.begin_document("cursor").append("batchSize", 3);
    pipeline.end();
    let small = || find().with("batchSize", 3);
    [
        small(),
        small().with("filter", &one_shard),
        pipeline.with("$db", "test"),
        distinct.with("$db", "test"),
    ]
    .map(|command| with_snapshot(command).finish())
    .to_vec()
}

/// A new read is told at once: not after all attempts to route it better.
#[test]
fn new_reads_are_told_that_the_moment_is_gone() {
    run(async {
        for command in snapshots() {
            let world = full_world().await;
            forget(&world);
            world.asked("c");
            let reply = world.run(command.clone()).await;
            assert_eq!(
                int(&reply, "code"),
                Code::SNAPSHOT_UNAVAILABLE.0,
                "{reply:?}"
            );
            assert!(world.asked("c").len() <= 2, "{command:?}");
            // The same where it is not a shard of the cluster any more.
            let world = full_world().await;
            world.forget_c().await;
            let reply = world.run(command).await;
            assert_eq!(
                int(&reply, "code"),
                Code::SNAPSHOT_UNAVAILABLE.0,
                "{reply:?}"
            );
        }
    });
}

/// So is a cursor that has come to what the shard had.
#[test]
fn cursors_are_told_that_the_moment_is_gone() {
    run(async {
        for has_come_back in [true, false] {
            for command in &snapshots()[..3] {
                let world = full_world().await;
                let (_, id) = batch(&world.run(command.clone()).await);
                match has_come_back {
                    true => forget(&world),
                    false => {
                        world.shards["c"].cursors.lock().clear();
                        world.forget_c().await;
                    }
                }
                let mut reply = world.run(more(id)).await;
                while reply.as_doc().get("code").is_none() {
                    assert_ne!(batch(&reply).1, 0, "{command:?}");
                    reply = world.run(more(id)).await;
                }
                assert_eq!(
                    int(&reply, "code"),
                    Code::SNAPSHOT_UNAVAILABLE.0,
                    "{reply:?}"
                );
            }
        }
    });
}

/// ⚑ A router that is behind is none whose moment is gone: the range was another shard's then.
#[test]
fn an_old_placement_is_looked_at_again() {
    run(async {
        let world = full_world().await;
        // Since before that moment.
        world.move_b_to_c();
        let details = DocWriter::new().with("ns", "test.birds").finish();
        let unknown = Error::new(Code::STALE_CONFIG, "unknown").with_details(details);
        let faults = &world.shards["b"].faults;
        faults.lock().push_back(Fault::Says(unknown));
        let (found, id) = batch(
            &world
                .run(with_snapshot(find().with("batchSize", 100)).finish())
                .await,
        );
        assert_eq!((found.len(), id), (30, 0));
    });
}
