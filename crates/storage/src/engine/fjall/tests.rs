//! What the engine promises, seen from inside: flushes, merges, and what they leave out.

use std::time::Instant;

use super::*;
use crate::engine::garbage::LOOKS_PER_RULE;
use crate::engine::{Direction, EngineSnapshot, KeyRange};

fn put(engine: &FjallEngine, keys: &[&str]) {
    let mut batch = WriteBatch::default();
    for key in keys {
        batch.put(Slice::new(key.as_bytes()), Slice::new(b"v"));
    }
    engine.write(batch).expect("written");
    engine.sync().expect("synced");
}

/// What this thread has read from files so far.
fn bytes_read() -> u64 {
    let counters = std::fs::read_to_string("/proc/thread-self/io").expect("counters");
    let read = counters
        .lines()
        .find_map(|line| line.strip_prefix("rchar: "));
    read.and_then(|bytes| bytes.parse().ok()).expect("a number")
}

/// Whether a key is there is found out without reading the filters of whole tables, also where the cache
/// holds none of them.
#[test]
#[cfg(target_os = "linux")]
fn looking_for_a_key_reads_little() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = FjallOptions {
        cache_bytes: 64 << 10,
        memtable_bytes: 1 << 20,
        level_zero_tables: 2,
        table_bytes: 2 << 20,
        ..FjallOptions::default()
    };
    let engine = FjallEngine::open(directory.path(), &options).expect("opens");
    // Scattered, as `_id`s are.
    let key = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
    let numbers: Vec<u64> = (0..200_000).collect();
    for some in numbers.chunks(20_000) {
        let mut batch = WriteBatch::default();
        for number in some {
            batch.put(Slice::new(&key(2 * number)), Slice::new(&[7; 16]));
        }
        engine.write(batch).expect("written");
        engine.sync().expect("synced");
    }
    let tree = &engine.0.open.keyspace.tree;
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    // Below the tables that were flushed; which number the level has depends on what there is.
    let is_merged = || (1..7).any(|level| tree.level_table_count(level).unwrap_or(0) > 1);
    while !is_merged() {
        assert!(std::time::Instant::now() < deadline, "nothing is merged");
        std::thread::yield_now();
    }
    let looks = 1000;
    let before = bytes_read();
    for number in 0..looks {
        let absent = key(2 * number + 1);
        assert_eq!(engine.get(&absent).expect("read"), None);
    }
    let each = (bytes_read() - before) / looks;
    assert!(each < 16 << 10, "{each} bytes were read for a key");
}

fn write(engine: &FjallEngine, changes: &[(&str, Option<&str>)]) {
    let mut batch = WriteBatch::default();
    for (key, value) in changes {
        let key = Slice::new(key.as_bytes());
        match value {
            Some(value) => batch.put(key, Slice::new(value.as_bytes())),
            None => batch.remove(key),
        }
    }
    engine.write(batch).expect("written");
}

fn is_there(engine: &FjallEngine, key: &str) -> bool {
    engine.get(key.as_bytes()).expect("read").is_some()
}

/// What is dropped does not become a table with the mark of its drop, and comes back for nobody; open
/// snapshots see it on.
#[test]
fn dropped_stretches_are_not_flushed() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
    put(&engine, &["a1", "b1", "c1"]);
    write(
        &engine,
        &[("b1", None), ("b2", Some("v")), ("b3", Some("v"))],
    );
    write(&engine, &[("b3", Some("w")), ("c2", Some("v"))]);
    write(&engine, &[("c2", Some("w"))]);
    let before = engine.snapshot();
    write(&engine, &[("a2", Some("b is dropped"))]);
    let items = || {
        let tables = engine.0.open.keyspace.tree.current_version();
        tables
            .iter_tables()
            .map(|it| it.metadata.item_count)
            .sum::<u64>()
    };
    let flushed_before = items();
    let rule = || -> GarbageRule { Arc::new(|key, _| key.starts_with(b"b")) };
    let dropped = [(b"b".to_vec(), b"c".to_vec())];
    engine.sync_without(&dropped, rule()).expect("synced");
    assert_eq!(engine.0.open.keyspace.tree.sealed_memtable_count(), 0);
    // The removal, the mark, and what the snapshot may ask for.
    assert!((3..=4).contains(&(items() - flushed_before)));
    for key in ["b2", "b3", "c2"] {
        assert!(before.get(key.as_bytes()).expect("read").is_some(), "{key}");
    }
    drop(before);
    let check = |engine: &FjallEngine| {
        let keys = ["a1", "a2", "b1", "b2", "b3", "c1", "c2"];
        let found = keys.map(|key| is_there(engine, key));
        assert_eq!(found, [true, true, false, false, false, true, true]);
        assert_eq!(engine.get(b"c2").expect("read").as_deref(), Some(&b"w"[..]));
    };
    check(&engine);
    // Nothing is left to flush, and it is done again.
    engine.sync_without(&dropped, rule()).expect("synced");
    drop(engine);
    let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
    check(&engine);
}

/// ⚑ A memtable that was sealed before the drop was written does not know of it.
#[test]
fn what_was_sealed_before_the_drop_is_flushed_whole() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
    let rule: GarbageRule = Arc::new(|_, _| false);
    let dropped = [(b"b".to_vec(), b"c".to_vec())];
    let flushing = engine.0.open.keyspace.tree.get_flush_lock();
    write(&engine, &[("b1", Some("v"))]);
    { engine.0.open.rotate(&mut engine.0.open.sealed.lock()) }.expect("sealed");
    write(&engine, &[("a1", Some("b is dropped")), ("b2", Some("v"))]);
    std::thread::scope(|scope| {
        scope.spawn(|| engine.sync_without(&dropped, rule).expect("synced"));
        drop(flushing);
    });
    assert!(is_there(&engine, "a1"));
    assert!(is_there(&engine, "b1"));
    assert!(!is_there(&engine, "b2"));
}

/// A full memtable is left to the thread that gives way, until it is fuller by a quarter: then whoever writes seals it.
#[test]
fn a_memtable_that_nobody_flushes_is_sealed() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = FjallOptions {
        memtable_bytes: 10_000,
        ..FjallOptions::default()
    };
    let engine = FjallEngine::open(directory.path(), &options).expect("opens");
    let tree = &engine.0.open.keyspace.tree;
    let keys: Vec<String> = (0..1000).map(|number| format!("k{number:04}")).collect();
    let mut left = keys.iter();
    {
        let _nobody_flushes = tree.get_flush_lock();
        while tree.active_memtable().size() <= options.memtable_bytes {
            write(&engine, &[(left.next().expect("more"), Some("v"))]);
        }
        assert_eq!(tree.sealed_memtable_count(), 0);
        while tree.sealed_memtable_count() == 0 {
            let size = tree.active_memtable().size();
            assert!(size <= overfull(options.memtable_bytes));
            write(&engine, &[(left.next().expect("more"), Some("v"))]);
        }
    }
    let written = keys.len() - left.len();
    engine.sync().expect("synced");
    drop(engine);
    let engine = FjallEngine::open(directory.path(), &options).expect("opens");
    let found = keys.iter().filter(|key| is_there(&engine, key)).count();
    assert_eq!(found, written);
}

/// ⚑ What a flush leaves out are versions that nobody reads any more, and nothing else.
#[test]
fn a_flush_that_gives_way_keeps_what_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = FjallOptions {
        memtable_bytes: 1 << 20,
        ..FjallOptions::default()
    };
    let engine = FjallEngine::open(directory.path(), &options).expect("opens");
    write(
        &engine,
        &[("a", Some("1")), ("b", Some("1")), ("c", Some("1"))],
    );
    let before = engine.snapshot();
    let long = "2".repeat(1 << 20);
    write(&engine, &[("a", Some(&long)), ("b", None)]);
    // It has been asked for; who comes second finds nothing to do.
    engine.0.open.flush_full(true);
    let tree = &engine.0.open.keyspace.tree;
    let deadline = Instant::now() + Duration::from_secs(60);
    while tree.sealed_memtable_count() > 0 || tree.active_memtable().size() > 0 {
        assert!(Instant::now() < deadline, "it is not flushed");
        std::thread::yield_now();
    }
    for key in ["a", "b", "c"] {
        let found = before.get(key.as_bytes()).expect("read");
        assert_eq!(found.as_deref(), Some(&b"1"[..]), "{key}");
    }
    let check = |engine: &FjallEngine| {
        let found = engine.get(b"a").expect("read");
        assert_eq!(found.as_deref(), Some(long.as_bytes()));
        assert!(!is_there(engine, "b"));
        assert!(is_there(engine, "c"));
    };
    check(&engine);
    drop(before);
    drop(engine);
    check(&FjallEngine::open(directory.path(), &options).expect("opens"));
}

/// Of keys that are new: all but the first lie beside the memtable.
fn write_bulk(engine: &FjallEngine, keys: &[String]) {
    let mut batch = WriteBatch::default();
    batch.in_bulk();
    for key in keys {
        batch.put(Slice::new(key.as_bytes()), Slice::new(b"v"));
    }
    engine.write(batch).expect("written");
    assert_eq!(engine.0.open.keyspace.tree.active_memtable().len(), 1);
    assert!(!engine.0.open.sheaves.is_empty());
}

fn many_keys() -> Vec<String> {
    (0..100).map(|number| format!("k{number:03}")).collect()
}

#[test]
fn a_large_batch_alone_is_synced() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
    let keys = many_keys();
    write_bulk(&engine, &keys);
    engine.sync().expect("synced");
    assert!(engine.0.open.sheaves.is_empty());
    assert_eq!(engine.0.open.unflushed_bytes(), 0);
    drop(engine);
    let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
    assert!(keys.iter().all(|key| is_there(&engine, key)));
}

/// ⚑ Whoever seals a memtable, its large batches are in it.
#[test]
fn a_memtable_that_is_sealed_holds_its_large_batches() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
    let keys = many_keys();
    let flushing = engine.0.open.keyspace.tree.get_flush_lock();
    write_bulk(&engine, &keys);
    let before = engine.snapshot();
    write(&engine, &[("k050", Some("w"))]);
    let memtable = engine.0.open.keyspace.tree.active_memtable();
    { engine.0.open.rotate(&mut engine.0.open.sealed.lock()) }.expect("sealed");
    assert_eq!(memtable.len(), keys.len() + 1);
    assert!(engine.0.open.sheaves.is_empty());
    drop(flushing);
    let found = |key: &[u8]| {
        before
            .get(key)
            .expect("read")
            .as_deref()
            .map(<[u8]>::to_vec)
    };
    assert_eq!(found(b"k050"), Some(b"v".to_vec()));
    engine.sync().expect("synced");
    assert_eq!(found(b"k050"), Some(b"v".to_vec()));
    drop(before);
    drop(engine);
    let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
    assert!(keys.iter().all(|key| is_there(&engine, key)));
    assert_eq!(
        engine.get(b"k050").expect("read").as_deref(),
        Some(&b"w"[..])
    );
}

/// ⚑ What could not be flushed is left to the engine, and is whole.
#[test]
fn large_batches_are_left_to_the_engine_with_their_memtable() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
    let keys = many_keys();
    write_bulk(&engine, &keys);
    let memtable = engine.0.open.keyspace.tree.active_memtable();
    let tables = engine.0.open.keyspace.path().join("tables");
    std::fs::rename(&tables, tables.with_extension("away")).expect("renamed");
    assert!(engine.0.open.flush_now(&[], None).is_err());
    assert_eq!(memtable.len(), keys.len());
    assert!(engine.0.open.sheaves.is_empty());
    assert!(keys.iter().all(|key| is_there(&engine, key)));
}

fn quiet_looks(engine: &FjallEngine) {
    for _ in 0..QUIET_LOOKS_OF_SHEAVES {
        assert!(
            !engine.0.open.sheaves.is_empty(),
            "a burst may be under way"
        );
        engine.tidy().expect("looked");
    }
    engine.tidy().expect("looked");
    assert!(engine.0.open.sheaves.is_empty());
}

/// Readers do not ask large batches for ever; a few of them make no table, which would have to be merged.
#[test]
fn large_batches_make_way_when_no_more_come() {
    let directory = tempfile::tempdir().expect("a directory");
    let keys = many_keys();
    let bytes = {
        let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
        write_bulk(&engine, &keys);
        let bytes = engine.0.open.unflushed_bytes();
        quiet_looks(&engine);
        assert_eq!(engine.0.open.sealed.lock().count, 0);
        assert_eq!(engine.0.open.unflushed_bytes(), bytes);
        assert_eq!(
            engine.0.open.keyspace.tree.active_memtable().len(),
            keys.len()
        );
        assert!(keys.iter().all(|key| is_there(&engine, key)));
        bytes
    };
    let options = FjallOptions {
        memtable_bytes: bytes + bytes / 2,
        ..FjallOptions::default()
    };
    let engine = FjallEngine::open(directory.path(), &options).expect("opens");
    write_bulk(&engine, &keys);
    quiet_looks(&engine);
    assert_eq!(engine.0.open.unflushed_bytes(), 0);
    // It is no writer's work.
    let looks = engine.0.open.looks.lock();
    assert_eq!(looks.last.0, engine.0.open.sealed.lock().count);
    assert!(looks.quiet > 0);
    drop(looks);
    assert!(keys.iter().all(|key| is_there(&engine, key)));
}

/// ⚑ Between the moment when tables hold a sheaf and the one when nobody asks it any more, it is still noticed when a
/// key of it changes, whatever is sealed meanwhile.
#[test]
fn what_changes_right_behind_a_flush_is_found() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
    let open = &engine.0.open;
    write_bulk(&engine, &many_keys());
    let flushing = open.keyspace.tree.get_flush_lock();
    let sheaves = {
        let mut sealed = open.sealed.lock();
        let sheaves = open.take_sheaves(&mut sealed);
        open.seal(&mut sealed).expect("sealed");
        sheaves
    };
    open.keyspace.tree.flush(&flushing, 0).expect("flushed");
    write(&engine, &[("z", Some("v"))]);
    { open.rotate(&mut open.sealed.lock()) }.expect("sealed");
    write(&engine, &[("k050", Some("w")), ("k051", None)]);
    let check = |engine: &FjallEngine| {
        let found = engine.get(b"k050").expect("read");
        assert_eq!(found.as_deref(), Some(&b"w"[..]));
        assert!(!is_there(engine, "k051"));
        let snapshot = engine.snapshot();
        let found = snapshot.get(b"k050").expect("read");
        assert_eq!(found.as_deref(), Some(&b"w"[..]));
        assert_eq!(snapshot.get(b"k051").expect("read"), None);
    };
    check(&engine);
    open.sheaves.remove(&sheaves);
    check(&engine);
}

/// The mark of a drop, and what is dropped, may both be in a large batch.
#[test]
fn dropped_stretches_of_large_batches_are_not_flushed() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
    let bulk = |keys: &[String]| {
        let mut batch = WriteBatch::default();
        batch.in_bulk();
        for key in keys {
            batch.put(Slice::new(key.as_bytes()), Slice::new(b"v"));
        }
        engine.write(batch).expect("written");
    };
    let named = |name: &str| -> Vec<String> {
        (0..100)
            .map(|number| format!("{name}{number:03}"))
            .collect()
    };
    bulk(&named("b"));
    let before = engine.snapshot();
    bulk(&named("a"));
    let dropped = [(b"b".to_vec(), b"c".to_vec())];
    let rule: GarbageRule = Arc::new(|key, _| key.starts_with(b"b"));
    engine.sync_without(&dropped, rule).expect("synced");
    assert_eq!(before.scan(KeyRange::ALL, Direction::Forward).count(), 100);
    drop(before);
    let check = |engine: &FjallEngine| {
        assert!(named("a").iter().all(|key| is_there(engine, key)));
        assert!(!named("b").iter().any(|key| is_there(engine, key)));
    };
    check(&engine);
    drop(engine);
    check(&FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens"));
}

/// More of them than readers should ask go into the memtable.
#[test]
fn few_large_batches_lie_beside_one_memtable() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
    for round in 0..SHEAVES_MAX + 5 {
        let mut batch = WriteBatch::default();
        batch.in_bulk();
        for number in 0..100 {
            let key = format!("{round:03} {number:03}");
            batch.put(Slice::new(key.as_bytes()), Slice::new(b"v"));
        }
        engine.write(batch).expect("written");
    }
    assert_eq!(engine.0.open.sheaves.list().len(), SHEAVES_MAX);
    let pairs = engine.snapshot().scan(KeyRange::ALL, Direction::Forward);
    assert_eq!(pairs.count(), 100 * (SHEAVES_MAX + 5));
}

/// Large batches do not gather without bounds where nobody flushes: who writes one does it.
#[test]
fn who_writes_large_batches_flushes_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = FjallOptions {
        memtable_bytes: 10_000,
        ..FjallOptions::default()
    };
    let engine = FjallEngine::open(directory.path(), &options).expect("opens");
    for round in 0..20 {
        let mut batch = WriteBatch::default();
        batch.in_bulk();
        for number in 0..100 {
            let key = format!("{round:03} {number:03}");
            batch.put(Slice::new(key.as_bytes()), Slice::new(&[7; 100]));
        }
        engine.write(batch).expect("written");
        assert!(engine.0.open.unflushed_bytes() <= OVERFULL_TIMES * options.memtable_bytes);
    }
    assert_eq!(
        engine
            .snapshot()
            .scan(KeyRange::ALL, Direction::Backward)
            .count(),
        2000
    );
}

/// The last memtable of a burst does not stay in memory, unless somebody reads it.
#[test]
fn flushed_memtables_are_let_go() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
    let kept = || engine.0.open.sealed.lock().memtables.len();
    write(&engine, &[("a", Some("v"))]);
    let reader = engine.snapshot();
    engine.sync().expect("synced");
    write(&engine, &[("b", Some("v"))]);
    engine.tidy().expect("nothing to merge");
    assert_eq!(kept(), 1);
    assert!(reader.get(b"a").expect("read").is_some());
    drop(reader);
    // The engine's thread may hold on to it for a moment after the flush.
    let deadline = Instant::now() + Duration::from_secs(60);
    while kept() > 0 && Instant::now() < deadline {
        write(&engine, &[("b", Some("w"))]);
        engine.tidy().expect("nothing to merge");
    }
    assert_eq!(kept(), 0);
    assert!(is_there(&engine, "a"));
}

#[test]
fn a_merge_leaves_out_what_becomes_garbage_meanwhile() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
    let many = 2 * LOOKS_PER_RULE;
    let keys: Vec<String> = (0..many).map(|number| format!("k{number:06}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    put(&engine, &keys);
    put(&engine, &["k", "z"]);
    let garbage = engine.0.open.garbage.clone();
    engine.set_garbage(Arc::new(move |key, _| {
        if key == b"k" {
            garbage.set(Arc::new(|key, _| key == b"z"));
        }
        false
    }));
    engine.compact().expect("compacted");
    assert!(is_there(&engine, "k"));
    assert!(!is_there(&engine, "z"));
}

#[test]
fn what_a_burst_leaves_is_merged_when_it_is_over() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
    let tables = || {
        engine
            .0
            .open
            .keyspace
            .tree
            .level_table_count(0)
            .unwrap_or(0)
    };
    let many = usize::from(LEVEL_ZERO_TABLES_AT_REST) + 2;
    // Some are put into their place at once, as long as there is nothing below them.
    while tables() < many {
        put(&engine, &["a", "b"]);
    }
    // The first look finds what was written before it.
    for _ in 0..QUIET_LOOKS {
        engine.tidy().expect("nothing to do");
        assert!(tables() >= many, "a burst may be under way");
    }
    engine.tidy().expect("merged");
    assert_eq!(tables(), 0);
    assert!(engine.get(b"a").expect("read").is_some());
}

#[test]
fn writers_are_quiet_when_looks_find_little() {
    let check = |found: &[(u64, u64)], quiet: u32| {
        let mut looks = Looks::default();
        let last = found.iter().map(|now| looks.look(*now, 1600)).last();
        assert_eq!(last, Some(quiet), "{found:?}");
    };
    check(&[(1, 0)], 0);
    check(&[(1, 0), (1, 0), (1, 50), (1, 150)], 3);
    check(&[(1, 0), (1, 0), (1, 101)], 0);
    // Sealed, and as full as before.
    check(&[(1, 70), (1, 70), (2, 70)], 0);
    check(&[(1, 70), (2, 70), (2, 80)], 1);
    let mut looks = Looks::default();
    let mut found = |sealed| {
        looks.look((sealed, 0), 1600);
        looks.in_burst
    };
    assert!(!found(0), "nothing was written");
    assert!(found(1));
    for _ in 1..QUIET_LOOKS {
        assert!(found(1), "it may go on");
    }
    assert!(!found(1));
    assert!(found(2));
}

#[test]
fn releasing_writes_nothing_unless_a_whole_table_goes() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
    let version = || engine.0.open.keyspace.tree.current_version().id();
    put(&engine, &["a1", "b1", "c1"]);
    // A worker may write it too, but not for ever: it has one table to put into its place.
    let is_written = || {
        let before = version();
        engine.release_stretch(b"b", b"c").expect("released");
        std::thread::yield_now();
        version() != before
    };
    let wrote = (0..1000).take_while(|_| is_written()).count();
    assert!(wrote < 1000, "the manifest was written for nothing");
    put(&engine, &["b2", "b3"]);
    engine.release_stretch(b"b", b"c").expect("released");
    assert_eq!(engine.get(b"b2").expect("read"), None);
    assert!(engine.get(b"b1").expect("read").is_some());
}
