//! Results that count as a whole, and do not fit into memory.

use super::scans::batch;
use super::world::{World, bird};
use super::{int, plain, run};
use model::bson::{DocBuf, DocWriter};
use model::error::Code;

/// Ten birds on a, two hundred on b: these weigh more than memory holds.
async fn crowded() -> World {
    let world = World::new();
    world.insert(&(0..10).collect::<Vec<_>>(), plain).await;
    for key in 0..200 {
        world.shards["b"].store(bird(key % 10 + 10));
    }
    world
}

/// Groups that need no merging, since they are made by the shard key: what shards answer is the result.
fn grouped(sorted: bool, allow_disk_use: Option<bool>) -> DocBuf {
    let mut group = DocWriter::new().with("aggregate", "birds");
    group.begin_array("pipeline").push_document();
    group.begin_document("$group").append("_id", "$k").end();
    group.end();
    if sorted {
        group.push_document().begin_document("$sort");
        group.append("k", 1).end().end();
    }
    group.end().begin_document("cursor").append("batchSize", 30);
    group.end();
    if let Some(allowed) = allow_disk_use {
        group.append("allowDiskUse", allowed);
    }
    group.with("$db", "test").finish()
}

/// Files that this process has open in the router's directory, named or not.
fn open_files(world: &World) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("open files");
    open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|path| path.starts_with(world.scratch.path()))
        .count()
}

fn named_files(world: &World) -> usize {
    let files = std::fs::read_dir(world.scratch.path());
    files.expect("a directory").count()
}

fn more(id: i64) -> DocBuf {
    DocWriter::new()
        .with("getMore", id)
        .with("collection", "birds")
        .with("batchSize", 70)
        .with("$db", "test")
        .finish()
}

fn expected() -> Vec<i32> {
    let mut all: Vec<i32> = (0..10).collect();
    all.extend((0..200).map(|key| key % 10 + 10));
    all.sort_unstable();
    all
}

/// ⚑ They go to a file that has no name, are all there, in order if they are sorted, and leave nothing.
#[test]
fn what_memory_does_not_hold_goes_to_disk() {
    for sorted in [false, true] {
        run(async {
            let world = crowded().await;
            let (mut found, mut id) = batch(&world.run(grouped(sorted, None)).await);
            assert_eq!(found.len(), 30);
            assert_eq!((open_files(&world), named_files(&world)), (1, 0));
            while id != 0 {
                let (keys, next) = batch(&world.run(more(id)).await);
                found.extend(keys);
                id = next;
            }
            assert_eq!(open_files(&world), 0);
            if !sorted {
                found.sort_unstable();
            }
            assert_eq!(found, expected());
        });
    }
}

/// A cursor that is killed takes its file with it.
#[test]
fn a_file_goes_with_its_cursor() {
    run(async {
        let world = crowded().await;
        let (_, id) = batch(&world.run(grouped(false, Some(true))).await);
        assert_eq!(open_files(&world), 1);
        let mut kill = DocWriter::new().with("killCursors", "birds");
        kill.begin_array("cursors").push(id).end();
        world.run(kill.with("$db", "test").finish()).await;
        assert_eq!(open_files(&world), 0);
    });
}

/// What came before ranges moved counts for nothing, on disk as in memory.
#[test]
fn a_stream_that_begins_anew_writes_anew() {
    run(async {
        let world = crowded().await;
        // Its cursor is lost after some batches.
        world.lose_cursors_after("b", 5);
        let (mut found, mut id) = batch(&world.run(grouped(false, None)).await);
        while id != 0 {
            let (keys, next) = batch(&world.run(more(id)).await);
            found.extend(keys);
            id = next;
        }
        found.sort_unstable();
        assert_eq!(found, expected());
        assert_eq!(open_files(&world), 0);
        let asked = world.asked_names("b");
        let began = asked.iter().filter(|name| *name == "aggregate").count();
        assert_eq!(began, 2, "{asked:?}");
    });
}

/// A command that may not use the disk has MongoDB's error.
#[test]
fn without_the_disk_too_much_is_an_error() {
    run(async {
        let world = crowded().await;
        let reply = world.run(grouped(false, Some(false))).await;
        let code = Code::QUERY_EXCEEDED_MEMORY_LIMIT_NO_DISK_USE_ALLOWED;
        assert_eq!(int(&reply, "code"), code.0, "{reply:?}");
        let message = reply.as_doc().get_str("errmsg").unwrap_or_default();
        assert!(message.contains("allowDiskUse:true"), "{message}");
        assert!(world.asked_names("b").contains(&"killCursors".to_owned()));
        assert_eq!(open_files(&world), 0);
    });
}

/// What a killed router left in the moment between making a file and removing its name goes when the next one
/// starts; others' files stay.
#[test]
fn leftovers_of_a_crash_are_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let scratch = directory.path().join("new");
    crate::prepare_scratch(&scratch).expect("made");
    for name in ["terndb-router-1-2-3", "another"] {
        std::fs::write(scratch.join(name), "").expect("written");
    }
    crate::prepare_scratch(&scratch).expect("cleaned");
    let left = std::fs::read_dir(&scratch).expect("a directory");
    let left: Vec<_> = left
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(left, ["another"]);
}
