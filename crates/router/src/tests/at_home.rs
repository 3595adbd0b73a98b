//! Cursors on a collection that is not sharded, while members die and its database moves.

use super::scans::{batch, by_rank, more, read};
use super::world::{Fault, World, bird, version as placement};
use super::{find, int, run};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::ids::Uuid;
use model::time::ClusterTime;
use model::version::DatabaseVersion;

/// What a shard knows of the database, and of the collection that is not sharded.
pub(super) struct Home {
    /// `None` where the database is not.
    database: Option<DatabaseVersion>,
    pub(super) uuid: [u8; 16],
    is_dropped: bool,
    /// By now.
    is_sharded: bool,
}

/// The version of the database after so many moves.
pub(super) fn version(moves: u32) -> DatabaseVersion {
    let made = DatabaseVersion::new_database(Uuid([3; 16]), ClusterTime::new(4, 1));
    (1..moves).fold(made, |version, _| version.moved())
}

impl Home {
    /// The error for a request that is not for what is here.
    pub(super) fn refuse(&self, body: Doc<'_>) -> Option<Error> {
        let received = body.get_doc("databaseVersion").expect("a version");
        let received = DatabaseVersion::from_document(received).expect("a version");
        if self.database != Some(received) {
            return Some(Error::new(Code::STALE_DB_VERSION, "not here"));
        }
        if self.is_sharded {
            let mut details = DocWriter::new();
            details.begin_document("vWanted");
            placement(7).append_to(&mut details);
            details.end();
            let error = Error::new(Code::STALE_CONFIG, "sharded");
            return Some(error.with_details(details.finish()));
        }
        let part = body.get_doc("_terndbScan").unwrap_or(Doc::EMPTY);
        match part.get("uuid") {
            Some(ValueRef::Binary { bytes, .. }) if self.is_dropped || bytes != self.uuid => {
                Some(Error::new(Code::QUERY_PLAN_KILLED, "another collection"))
            }
            Some(_) => None,
            // ⚑ Whoever goes on says in which collection.
            None => {
                assert!(part.get("after").is_none(), "{body:?}");
                None
            }
        }
    }
}

/// Thirty birds on shard a, the primary.
fn world() -> World {
    let world = World::new();
    world.config.chunks.lock().clear();
    for (name, shard) in &world.shards {
        shard.owned.lock().clear();
        *shard.home.lock() = Some(Home {
            database: (*name == "a").then(|| version(1)),
            uuid: [5; 16],
            is_dropped: false,
            is_sharded: false,
        });
    }
    (0..30).for_each(|key| world.shards["a"].store(bird(key)));
    world
}

impl World {
    /// The database goes from one shard to another; cursors there end.
    fn move_database(&self, from: &str, to: &'static str, moves: u32) {
        *self.config.database.lock() = (to, version(moves));
        let _answering: Vec<_> = { self.shards.values() }
            .map(|shard| shard.answering.lock())
            .collect();
        let moved = std::mem::take(&mut *self.shards[from].documents.lock());
        self.shards[to].documents.lock().extend(moved);
        for (name, shard) in &self.shards {
            if let Some(home) = &mut *shard.home.lock() {
                home.database = (*name == to).then(|| version(moves));
            }
            shard.cursors.lock().clear();
        }
    }

    /// What becomes of the collection, where the database is.
    fn change(&self, change: impl Fn(&mut Home)) {
        for shard in self.shards.values() {
            let _answering = shard.answering.lock();
            if let Some(home) = &mut *shard.home.lock() {
                change(home);
            }
            shard.cursors.lock().clear();
        }
    }
}

fn pipeline() -> DocBuf {
    let mut ask = DocWriter::new().with("aggregate", "birds");
    ask.begin_array("pipeline").end().begin_document("cursor");
    ask.append("batchSize", 3).end().append("$db", "test");
    ask.finish()
}

/// Commands, and what they find.
fn commands() -> Vec<(DocBuf, Vec<i32>)> {
    let all: Vec<i32> = (0..30).collect();
    let down: Vec<i32> = (0..30).rev().collect();
    let window = |writer: DocWriter| writer.with("skip", 4).with("limit", 20);
    let size = |size: i32| find().with("batchSize", size);
    let projection = DocWriter::new().with("k", 1).finish();
    vec![
        (size(3).finish(), all.clone()),
        (size(0).finish(), all.clone()),
        (size(3).with("sort", &by_rank()).finish(), down.clone()),
        (
            size(3)
                .with("sort", &by_rank())
                .with("projection", &projection)
                .finish(),
            down,
        ),
        (window(size(3)).finish(), all[4..24].to_vec()),
        (window(size(0)).finish(), all[4..24].to_vec()),
        (pipeline(), all),
    ]
}

/// A member that dies between two batches, or a reply that is lost: the cursor goes on from its place.
#[test]
fn a_lost_member_repeats_nothing() {
    run(async {
        for (command, expected) in commands() {
            let world = world();
            let found = read(&world, command.clone(), |round| {
                let fault = match round % 2 {
                    0 => Fault::NotSent,
                    _ => Fault::ReplyLost,
                };
                let shard = &world.shards["a"];
                shard.faults.lock().push_back(fault);
                shard.cursors.lock().clear();
            });
            assert_eq!(found.await, expected, "{command:?}");
        }
    });
}

/// The primary of its database moves, again and again.
#[test]
fn a_cursor_follows_its_database() {
    run(async {
        for (command, expected) in commands() {
            let world = world();
            let way = ["a", "c", "b"];
            let found = read(&world, command.clone(), |round| {
                if round < 5 {
                    let (from, to) = (way[round % 3], way[(round + 1) % 3]);
                    world.move_database(from, to, 2 + round as u32);
                }
            });
            assert_eq!(found.await, expected, "{command:?}");
        }
    });
}

/// ⚑ A collection that has taken the name of another is not gone on with, on the same shard or elsewhere.
#[test]
fn another_collection_is_not_gone_on_with() {
    run(async {
        let gone = |home: &mut Home| home.is_dropped = true;
        let anew = |home: &mut Home| home.uuid = [6; 16];
        let changes: [&dyn Fn(&World); 4] = [
            &|world| world.change(gone),
            &|world| world.change(anew),
            &|world| {
                world.change(anew);
                world.move_database("a", "b", 2);
            },
            &|world| world.change(|home| home.is_sharded = true),
        ];
        for (at, change) in changes.iter().enumerate() {
            for (command, _) in commands() {
                let world = world();
                let (_, id) = batch(&world.run(command.clone()).await);
                // Batches of none say where they stand, too.
                let (_, id) = batch(&world.run(more(id)).await);
                change(&world);
                let mut reply = world.run(more(id)).await;
                while reply.as_doc().get("code").is_none() {
                    assert_ne!(batch(&reply).1, 0, "change {at}, {command:?}");
                    reply = world.run(more(id)).await;
                }
                assert_eq!(int(&reply, "code"), Code::QUERY_PLAN_KILLED.0, "{reply:?}");
            }
        }
    });
}

/// Where nothing is left open, nobody is asked for a place.
#[test]
fn what_is_surely_one_batch_passes_as_it_is() {
    run(async {
        let world = world();
        let several = || {
            find()
                .with("limit", 5)
                .with("batchSize", 5)
                .with("sort", &by_rank())
        };
        for (small, count) in [
            (several().with("singleBatch", true), 5),
            (find().with("limit", 1), 1),
        ] {
            let (found, id) = batch(&world.run(small.finish()).await);
            assert_eq!((found.len(), id), (count, 0));
            let asked = world.shards["a"].asked.lock();
            let last = asked.last().expect("a question");
            assert!(last.get("_terndbScan").is_none(), "{last:?}");
        }
        // Five documents may be more than fits.
        let (found, id) = batch(&world.run(several().finish()).await);
        assert_eq!((found.len(), id), (5, 0));
        let asked = world.shards["a"].asked.lock();
        let last = asked.last().expect("a question");
        assert!(last.get("_terndbScan").is_some(), "{last:?}");
    });
}
