//! Large batches that lie beside the memtable: whatever happens to them, and whoever reads, nobody can tell.
//!
//! Random batches, of which some are said to be large, go into an engine so small that nearly each of them fills a
//! memtable, and into a map. Snapshots are kept for a while, and must show on what they showed. After a restart there
//! is a prefix of the batches, with all that was synced.

use std::collections::BTreeMap;
use std::ops::Bound;

use proptest::prelude::*;
use storage::engine::{Engine, EngineSnapshot, KeyRange, Slice, WriteBatch};
use storage::{Direction, FjallEngine, FjallOptions};

const KEYS: u16 = 400;
/// Fewer changes are no large batch.
const LARGE: usize = 64;

type State = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
struct Batch {
    /// The first key, the step to the next, and how many.
    from: u16,
    step: u16,
    count: usize,
    /// Every so many changes is a removal.
    removals: usize,
    value_bytes: usize,
    is_bulk: bool,
}

impl Batch {
    fn changes(&self, number: usize) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let key = |place: usize| {
            let key = (self.from as usize + place * self.step as usize) % KEYS as usize;
            format!("key {key:04}").into_bytes()
        };
        let value = |place: usize| {
            let mut value = format!("{number} {place} ").into_bytes();
            value.resize(value.len() + self.value_bytes, b'x');
            value
        };
        let change = |place| {
            let is_removal = place % self.removals == 0;
            (key(place), (!is_removal).then(|| value(place)))
        };
        (0..self.count).map(change).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(Batch),
    Sync,
    Snapshot,
    LetGo,
    Tidy,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let batch = (
        0..KEYS,
        prop_oneof![3 => Just(1u16), 1 => 2u16..50],
        prop_oneof![1 => 1..LARGE, 4 => LARGE..250],
        prop_oneof![2 => Just(usize::MAX), 1 => 2usize..20],
        0usize..200,
        any::<bool>(),
    );
    let batch = batch.prop_map(
        |(from, step, count, removals, value_bytes, is_bulk)| Batch {
            from,
            step,
            count,
            removals,
            value_bytes,
            is_bulk,
        },
    );
    let step = prop_oneof![
        8 => batch.prop_map(Step::Write),
        1 => Just(Step::Sync),
        2 => Just(Step::Snapshot),
        1 => Just(Step::LetGo),
        1 => Just(Step::Tidy),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..40)
}

fn options(memtable_bytes: u64) -> FjallOptions {
    FjallOptions {
        memtable_bytes,
        level_zero_tables: 2,
        table_bytes: 64 << 10,
        ..FjallOptions::default()
    }
}

fn apply(state: &mut State, changes: &[(Vec<u8>, Option<Vec<u8>>)]) {
    for (key, value) in changes {
        match value {
            Some(value) => state.insert(key.clone(), value.clone()),
            None => state.remove(key),
        };
    }
}

fn write(engine: &FjallEngine, changes: &[(Vec<u8>, Option<Vec<u8>>)], is_bulk: bool) {
    let mut batch = WriteBatch::default();
    if is_bulk {
        batch.in_bulk();
    }
    for (key, value) in changes {
        match value {
            Some(value) => batch.put(Slice::new(key), Slice::new(value)),
            None => batch.remove(Slice::new(key)),
        }
    }
    engine.write(batch).expect("written");
}

fn all(snapshot: &impl EngineSnapshot, direction: Direction) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pairs = snapshot.scan(KeyRange::ALL, direction);
    pairs
        .map(|pair| pair.expect("read"))
        .map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect()
}

fn check_snapshot(snapshot: &impl EngineSnapshot, state: &State) {
    let wanted: Vec<_> = state.clone().into_iter().collect();
    assert_eq!(all(snapshot, Direction::Forward), wanted);
    let mut found = all(snapshot, Direction::Backward);
    found.reverse();
    assert_eq!(found, wanted);
    for key in (0..KEYS).step_by(7) {
        let key = format!("key {key:04}").into_bytes();
        let found = snapshot.get(&key).expect("read");
        assert_eq!(found.as_deref(), state.get(&key).map(|value| &value[..]));
    }
    let (low, high) = (b"key 0101".to_vec(), b"key 0203".to_vec());
    let range = KeyRange::new(Bound::Excluded(&low), Bound::Included(&high));
    let found: Vec<_> = snapshot
        .scan(range, Direction::Backward)
        .map(|pair| pair.expect("read").0.to_vec())
        .collect();
    let within = state.range((Bound::Excluded(low.clone()), Bound::Included(high.clone())));
    let wanted: Vec<_> = within.map(|(key, _)| key.clone()).rev().collect();
    assert_eq!(found, wanted);
}

fn check_latest(engine: &FjallEngine, state: &State) {
    for key in 0..KEYS {
        let key = format!("key {key:04}").into_bytes();
        let found = engine.get(&key).expect("read");
        assert_eq!(found.as_deref(), state.get(&key).map(|value| &value[..]));
    }
}

fn run(steps: Vec<Step>, memtable_bytes: u64) {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || FjallEngine::open(directory.path(), &options(memtable_bytes)).expect("opens");
    let mut engine = open();
    // After each batch since the last restart.
    let mut states = vec![State::new()];
    let mut synced = 0;
    let mut kept = Vec::new();
    for (number, step) in steps.into_iter().enumerate() {
        let state = states.last().expect("one").clone();
        match step {
            Step::Write(batch) => {
                let changes = batch.changes(number);
                write(&engine, &changes, batch.is_bulk);
                let mut state = state;
                apply(&mut state, &changes);
                check_latest(&engine, &state);
                check_snapshot(&engine.snapshot(), &state);
                states.push(state);
            }
            Step::Sync => {
                engine.sync().expect("synced");
                synced = states.len() - 1;
            }
            Step::Snapshot => kept.push((engine.snapshot(), state)),
            Step::LetGo => kept.clear(),
            Step::Tidy => engine.tidy().expect("tidied"),
            Step::Restart => {
                kept.clear();
                drop(engine);
                engine = open();
                let found: State = all(&engine.snapshot(), Direction::Forward)
                    .into_iter()
                    .collect();
                // Of several batches that leave the same, it does not matter which was the last.
                let prefix = states[synced..].iter().rposition(|state| *state == found);
                assert!(
                    prefix.is_some(),
                    "no prefix of the batches with all that was synced"
                );
                (states, synced) = (vec![found], 0);
            }
        }
        for (snapshot, state) in &kept {
            check_snapshot(snapshot, state);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nobody_can_tell_where_a_batch_lies(steps in steps(), memtable_kb in prop_oneof![Just(8u64), Just(64), Just(4096)]) {
        run(steps, memtable_kb << 10);
    }
}

/// The numbers of a large batch are seen together, while memtables are flushed under it.
#[test]
fn a_snapshot_never_shows_half_of_a_large_batch() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = FjallEngine::open(directory.path(), &options(64 << 10)).expect("opens");
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let each = 200u64;
    let rounds = 300u64;
    std::thread::scope(|scope| {
        for direction in [Direction::Forward, Direction::Backward] {
            let (engine, is_done) = (&engine, &is_done);
            scope.spawn(move || {
                let mut seen = 0;
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    let snapshot = engine.snapshot();
                    let count = snapshot.scan(KeyRange::ALL, direction).count() as u64;
                    assert_eq!(count % each, 0, "half of a batch");
                    assert!(count >= seen, "went back from {seen} to {count}");
                    let again = snapshot.scan(KeyRange::ALL, direction).count() as u64;
                    assert_eq!(again, count, "a snapshot changes");
                    seen = count;
                }
            });
        }
        for round in 0..rounds {
            // Spread among those of other rounds.
            let changes: Vec<_> = (0..each)
                .map(|place| {
                    let key = [place.to_be_bytes(), round.to_be_bytes()].concat();
                    (key, Some(vec![7; 50]))
                })
                .collect();
            write(&engine, &changes, true);
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(
        all(&engine.snapshot(), Direction::Forward).len() as u64,
        each * rounds
    );
}
