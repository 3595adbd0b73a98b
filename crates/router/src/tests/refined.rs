//! The shard key gets another field, `l`, while cursors are open: shards and router hear of it one after the other.

use super::scans::{batch, batch_with_token, by_rank, full_world, go_round, more, read, token};
use super::world::{FakeShard, World, encoded, key};
use super::{find, int, run};
use model::bson::{Doc, DocBuf, DocWriter, ObjectId, ValueRef};
use model::error::{Code, Error};
use model::key::{Direction, KeyBuilder};
use model::range::KeyBound;
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::{Age, PlacementVersion};
use std::sync::atomic::Ordering;

/// The version of the collection under the one key or the other.
pub(super) fn version(is_refined: bool, major: u32) -> PlacementVersion {
    let mut version = super::world::version(major);
    if is_refined {
        version.incarnation.epoch = ObjectId([8; 12]);
        version.incarnation.began = ClusterTime::new(6, 1);
    }
    version
}

impl FakeShard {
    pub(super) fn version(&self) -> PlacementVersion {
        version(self.is_refined.load(Ordering::SeqCst), *self.major.lock())
    }

    /// A bound as it is stored here.
    pub(super) fn bound(&self, bound: &KeyBound) -> KeyBound {
        if !self.is_refined.load(Ordering::SeqCst) {
            return bound.clone();
        }
        let pattern = DocWriter::new().with("k", 1).with("l", 1).finish();
        let pattern = ShardKeyPattern::parse(pattern.as_doc()).expect("a pattern");
        pattern.completed(bound)
    }

    /// The shard key of a document: of birds `l` is missing.
    pub(super) fn key_of(&self, document: Doc<'_>) -> Vec<u8> {
        let mut bytes = encoded(key(document));
        if self.is_refined.load(Ordering::SeqCst) {
            let mut further = KeyBuilder::new();
            further.push(ValueRef::Null, Direction::Ascending);
            bytes.extend(further.finish().0);
        }
        bytes
    }

    /// The error for ranges that are named by another key. Whoever knows less asks, and answers.
    pub(super) fn other_words(&self, part: Doc<'_>) -> Option<Error> {
        let named_by = part.get_array("ranges").and(part.get_doc("version"))?;
        let named_by = PlacementVersion::from_document(named_by).expect("a version");
        let known = self.version();
        if named_by.incarnation == known.incarnation {
            return None;
        }
        match named_by.age(known) {
            Age::Newer => {
                self.is_refined.store(true, Ordering::SeqCst);
                self.cursors.lock().clear();
                None
            }
            _ => Some(self.stale_error(known)),
        }
    }
}

impl World {
    /// The config server has decided it; these shards know.
    fn refine(&self, shards: &[&str]) {
        self.config.is_refined.store(true, Ordering::SeqCst);
        for shard in shards {
            let shard = &self.shards[*shard];
            shard.is_refined.store(true, Ordering::SeqCst);
            // What is owned is said by other bounds.
            shard.cursors.lock().clear();
        }
    }
}

const ALL: [&str; 3] = ["a", "b", "c"];

/// Whoever hears of it, and when, a cursor goes on from its place; ranges may move before and after.
#[test]
fn cursors_over_several_shards_outlive_a_refined_key() {
    run(async {
        for sort in [None, Some(by_rank())] {
            for who in [&ALL[..], &["b"], &[]] {
                for at in 0..4 {
                    let world = full_world().await;
                    let mut first = find().with("batchSize", 3);
                    if let Some(sort) = &sort {
                        first.append("sort", sort);
                    }
                    let mut moves = go_round(&world);
                    let found = read(&world, first.finish(), |round| {
                        if round == at {
                            world.refine(who);
                        }
                        // Ranges do not move before all have heard of it.
                        if round > at + 1 {
                            world.refine(&ALL);
                            moves(round);
                        }
                    });
                    let mut found = found.await;
                    if sort.is_some() {
                        assert!(found.is_sorted_by(|a, b| a >= b), "{found:?}");
                    }
                    found.sort_unstable();
                    let who = format!("{who:?} know, from batch {at} on");
                    assert_eq!(found, (0..30).collect::<Vec<_>>(), "{who}");
                }
            }
        }
    });
}

/// However many cursors are open, one table is made for them.
#[test]
fn cursors_share_what_is_made_of_their_placement() {
    run(async {
        let world = full_world().await;
        let mut open = Vec::new();
        for _ in 0..5 {
            let (_, id) = batch(&world.run(find().with("batchSize", 3).finish()).await);
            open.push(id);
        }
        world.refine(&ALL);
        for mut id in open {
            while id != 0 {
                id = batch(&world.run(more(id)).await).1;
            }
        }
        let made = &world.handler.0.scans.bases_refined;
        assert_eq!(made.load(Ordering::Relaxed), 1);
    });
}

/// A range that moved before is asked for by name, in the words of the longer key.
#[test]
fn ranges_that_moved_before_are_found_under_the_longer_key() {
    run(async {
        let world = full_world().await;
        let found = read(
            &world,
            find().with("batchSize", 2).finish(),
            |round| match round {
                0 => world.move_b("b", "c", 9),
                2 => world.refine(&ALL),
                4 => world.move_b("c", "a", 10),
                _ => {}
            },
        );
        let mut found = found.await;
        found.sort_unstable();
        assert_eq!(found, (0..30).collect::<Vec<_>>());
    });
}

/// A token of the shorter key goes on at another router, which knows the longer one only; shards that have not heard of
/// it learn it from the question.
#[test]
fn tokens_outlive_a_refined_key() {
    run(async {
        for who in [&ALL[..], &["c"], &[]] {
            let mut world = full_world().await;
            let ask = |resume: Option<&DocBuf>| batch_with_token(4, resume);
            let mut reply = world.run(ask(None)).await;
            let mut found = batch(&reply).0;
            world.move_b("b", "c", 9);
            for round in 0.. {
                if round == 1 {
                    world.refine(who);
                }
                world.restart_router();
                reply = world.run(ask(Some(&token(&reply)))).await;
                let (keys, _) = batch(&reply);
                if keys.is_empty() {
                    break;
                }
                found.extend(keys);
                assert!(round < 100, "the scan does not end");
            }
            found.sort_unstable();
            assert_eq!(found, (0..30).collect::<Vec<_>>(), "{who:?}");
        }
    });
}

/// A moment of the past has the same owners under the longer key.
#[test]
fn a_snapshot_outlives_a_refined_key() {
    run(async {
        let world = full_world().await;
        let mut first = find().with("batchSize", 3);
        first
            .begin_document("readConcern")
            .append("level", "snapshot")
            .append("atClusterTime", ClusterTime::new(100, 1))
            .end();
        let found = read(&world, first.finish(), |round| {
            if round == 1 {
                world.refine(&ALL);
            }
        });
        let mut found = found.await;
        found.sort_unstable();
        assert_eq!(found, (0..30).collect::<Vec<_>>());
    });
}

/// ⚑ A collection of the same name that was made anew is none that was refined.
#[test]
fn another_collection_is_no_refined_one() {
    run(async {
        let world = full_world().await;
        let (_, id) = batch(&world.run(find().with("batchSize", 3).finish()).await);
        world.refine(&ALL);
        world.config.is_another.store(true, Ordering::SeqCst);
        let mut reply = world.run(more(id)).await;
        while reply.as_doc().get("code").is_none() {
            assert_ne!(batch(&reply).1, 0, "it does not end as if it were the same");
            reply = world.run(more(id)).await;
        }
        assert_eq!(int(&reply, "code"), Code::QUERY_PLAN_KILLED.0);
    });
}
