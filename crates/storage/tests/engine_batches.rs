//! Batches of the engine on disk: visible whole or not at all while tables are flushed
//! and merged under them, and after a crash a prefix of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use storage::engine::{Engine, EngineSnapshot, KeyRange, Slice, WriteBatch};
use storage::{Direction, FjallEngine, FjallOptions};

/// So small that nearly every batch ends a memtable.
fn restless() -> FjallOptions {
    FjallOptions {
        memtable_bytes: 16 << 10,
        level_zero_tables: 2,
        table_bytes: 64 << 10,
        ..FjallOptions::default()
    }
}

const KEYS: u64 = 400;

/// All keys get the number of the batch, in the last key's place last.
fn write(engine: &FjallEngine, number: u64) {
    let mut batch = WriteBatch::default();
    if !number.is_multiple_of(3) {
        batch.in_bulk();
    }
    for key in 0..KEYS {
        batch.put(
            Slice::new(&key.to_be_bytes()),
            Slice::new(&number.to_be_bytes()),
        );
    }
    engine.write(batch).expect("written");
}

/// The number of the batch that a state shows.
fn number(state: &impl EngineSnapshot) -> u64 {
    let pairs: Vec<_> = state
        .scan(KeyRange::ALL, Direction::Forward)
        .map(|pair| pair.expect("read"))
        .collect();
    assert_eq!(pairs.len() as u64, KEYS);
    let first = &pairs[0].1;
    for (_, value) in &pairs {
        assert_eq!(value, first, "half of a batch");
    }
    u64::from_be_bytes(first[..].try_into().expect("eight bytes"))
}

#[test]
fn a_snapshot_never_shows_half_of_a_batch_while_tables_change() {
    // In the larger one batches are overwritten before they are flushed.
    for memtable_kb in [16, 128] {
        half_of_a_batch_is_never_seen(&FjallOptions {
            memtable_bytes: memtable_kb << 10,
            ..restless()
        });
    }
}

fn half_of_a_batch_is_never_seen(options: &FjallOptions) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = FjallEngine::open(dir.path(), options).expect("opened");
    write(&engine, 0);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut seen = 0;
                while !is_done.load(Ordering::Relaxed) {
                    let found = number(&engine.snapshot());
                    assert!(found >= seen, "went back from {seen} to {found}");
                    seen = found;
                }
            });
        }
        scope.spawn(|| {
            // Without a snapshot: a batch a moment earlier, but never one that was replaced.
            let mut seen = [0; KEYS as usize];
            while !is_done.load(Ordering::Relaxed) {
                for (key, seen) in (0..KEYS).zip(&mut seen) {
                    let found = engine.get(&key.to_be_bytes()).expect("read");
                    let found = found.expect("it was written");
                    let found = u64::from_be_bytes(found[..].try_into().expect("eight bytes"));
                    assert!(found >= *seen, "went back from {seen} to {found}");
                    *seen = found;
                }
            }
        });
        for round in 1..500 {
            write(&engine, round);
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(number(&engine.snapshot()), 499);
}

/// Long batches are put into the order of their keys.
#[test]
fn the_last_change_of_a_key_wins_in_a_long_batch() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = FjallEngine::open(dir.path(), &FjallOptions::default()).expect("opened");
    let key = |number: u64| Slice::new(&number.to_be_bytes());
    let mut batch = WriteBatch::default();
    for number in (0..KEYS).rev() {
        batch.put(key(number), Slice::new(b"first"));
    }
    for number in 0..KEYS {
        match number % 3 {
            0 => batch.remove(key(number)),
            1 => {
                batch.remove(key(number));
                batch.put(key(number), Slice::new(b"again"));
            }
            _ => batch.put(key(number), Slice::new(b"last")),
        }
    }
    engine.write(batch).expect("written");
    for number in 0..KEYS {
        let found = engine.get(&number.to_be_bytes()).expect("read");
        let wanted: Option<&[u8]> = match number % 3 {
            0 => None,
            1 => Some(b"again"),
            _ => Some(b"last"),
        };
        assert_eq!(found.as_deref(), wanted, "key {number}");
    }
}

/// Whatever was flushed when the process died, it ends between two batches.
#[test]
fn what_is_left_without_a_sync_is_a_prefix_of_the_batches() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut written = 0;
    for round in 0..10 {
        let engine = FjallEngine::open(dir.path(), &restless()).expect("opened");
        for _ in 0..round {
            written += 1;
            write(&engine, written);
        }
        written += 1;
        write(&engine, written);
        engine.sync().expect("synced");
        let synced = written;
        for _ in 0..2 * round {
            written += 1;
            write(&engine, written);
        }
        // Dropped, an engine writes nothing more than a process that is killed.
        drop(engine);
        let engine = FjallEngine::open(dir.path(), &restless()).expect("opened");
        let found = number(&engine.snapshot());
        assert!(
            (synced..=written).contains(&found),
            "{found} after {synced} was synced and {written} written"
        );
    }
}

/// Flushes and compactions that have nothing to do with a batch take numbers of their own.
#[test]
fn numbers_go_on_behind_a_restart() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for round in 0..5 {
        let engine = FjallEngine::open(dir.path(), &restless()).expect("opened");
        if round > 0 {
            assert_eq!(number(&engine.snapshot()), round - 1);
        }
        write(&engine, round);
        assert_eq!(
            number(&engine.snapshot()),
            round,
            "newer than what is flushed"
        );
        engine.sync().expect("synced");
    }
}

/// In the memtable, in one that is being flushed, in tables, or removed again: the latest
/// is found without a snapshot, and what was never written is not.
#[test]
fn the_latest_is_found_wherever_it_lies() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut latest = std::collections::BTreeMap::new();
    for start in 0..3u32 {
        let engine = FjallEngine::open(dir.path(), &restless()).expect("opened");
        for round in 0..40u32 {
            let mut batch = WriteBatch::default();
            for step in 0..100u32 {
                let key = (round * 7919 + step * 104_729) % 2_000 * 2;
                let value = [start, round, step].map(u32::to_be_bytes).concat();
                if step % 5 == 0 {
                    batch.remove(Slice::new(&key.to_be_bytes()));
                    latest.remove(&key);
                } else {
                    batch.put(Slice::new(&key.to_be_bytes()), Slice::new(&value));
                    latest.insert(key, value);
                }
            }
            engine.write(batch).expect("written");
            for key in (round % 3..4_000).step_by(3) {
                let found = engine.get(&key.to_be_bytes()).expect("read");
                let expected = latest.get(&key).map(|value| &value[..]);
                assert_eq!(found.as_deref(), expected, "key {key} in round {round}");
            }
        }
        engine.sync().expect("synced");
    }
}
