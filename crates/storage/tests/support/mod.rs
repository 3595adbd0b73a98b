//! The naive model, what can happen to it, and how the store is compared with it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use model::ids::{CollectionId, IndexId};
use model::time::ClusterTime;
use proptest::prelude::*;
use storage::entry::{Description, Encoder, ForgottenIndex, IndexAction, IndexChange};
use storage::{
    Before, Committed, Direction, Engine, EngineSnapshot, FjallEngine, FjallOptions, KeyRange,
    MemoryEngine, Record, Result, ScanMemory, Snapshot, Store, StoreOptions,
};

/// Something an engine can be opened on, again and again.
pub trait Bed {
    type Engine: Engine;
    fn open(&mut self) -> Result<Self::Engine>;
    /// Loses what was not synced, if this bed can.
    fn power_cut(&mut self);
}

pub struct Memory(MemoryEngine);

impl Memory {
    pub fn new() -> Self {
        Self(MemoryEngine::with_power_cuts())
    }
}

impl Bed for Memory {
    type Engine = MemoryEngine;
    fn open(&mut self) -> Result<MemoryEngine> {
        Ok(self.0.clone())
    }
    fn power_cut(&mut self) {
        self.0 = self.0.power_cut();
    }
}

pub struct Disk(tempfile::TempDir);

impl Disk {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }
}

impl Bed for Disk {
    type Engine = FjallEngine;
    fn open(&mut self) -> Result<FjallEngine> {
        FjallEngine::open(self.0.path(), &FjallOptions::default())
    }
    fn power_cut(&mut self) {}
}

#[derive(Clone, Debug)]
pub enum Action {
    /// Entries applied as one group.
    Apply(Vec<Step>),
    Maintain {
        budget: usize,
    },
    Compact,
    Reopen,
    PowerCut,
    Sync,
}

#[derive(Clone, Debug)]
pub struct Step {
    /// How much later than the entry before.
    later: (u32, u32),
    operations: Vec<Op>,
}

#[derive(Clone, Debug)]
enum Op {
    Put {
        slot: usize,
        key: usize,
        size: usize,
        tell: bool,
        index: Vec<(usize, u8, bool)>,
    },
    Delete {
        slot: usize,
        key: usize,
        tell: bool,
        index: Vec<(usize, u8, bool)>,
    },
    Index {
        key: usize,
        index: Vec<(usize, u8, bool)>,
    },
    PutMeta(u8, u8),
    DeleteMeta(u8),
    DropCollection(usize),
    DropIndex(usize),
    /// From one key to before another.
    ForgetRange {
        slot: usize,
        low: usize,
        high: usize,
    },
    Noop,
}

fn index_changes() -> impl Strategy<Value = Vec<(usize, u8, bool)>> + Clone {
    prop::collection::vec((0..INDEXES, 0u8..3, any::<bool>()), 0..3)
}

fn operation() -> impl Strategy<Value = Op> {
    let record = (
        0..COLLECTIONS,
        0..KEYS.len(),
        any::<bool>(),
        index_changes(),
    );
    prop_oneof![
        10 => (record.clone(), prop_oneof![9 => 0usize..40, 1 => 500usize..6_000]).prop_map(
            |((slot, key, tell, index), size)| Op::Put { slot, key, size, tell, index }
        ),
        5 => record.prop_map(|(slot, key, tell, index)| Op::Delete { slot, key, tell, index }),
        2 => (0..KEYS.len(), index_changes()).prop_map(|(key, index)| Op::Index { key, index }),
        1 => (0u8..3, any::<u8>()).prop_map(|(key, value)| Op::PutMeta(key, value)),
        1 => (0u8..3).prop_map(Op::DeleteMeta),
        1 => (0..COLLECTIONS).prop_map(Op::DropCollection),
        1 => (0..INDEXES).prop_map(Op::DropIndex),
        4 => (0..COLLECTIONS, 0..KEYS.len(), 0..KEYS.len())
            .prop_map(|(slot, low, high)| Op::ForgetRange { slot, low, high }),
        1 => Just(Op::Noop),
    ]
}

pub fn actions(count: usize) -> impl Strategy<Value = Vec<Action>> {
    let later = prop_oneof![
        5 => Just((0u32, 1u32)),
        3 => (1u32..3, 0u32..20_000)
    ];
    let step = (later, prop::collection::vec(operation(), 0..4))
        .prop_map(|(later, operations)| Step { later, operations });
    let action = prop_oneof![
        20 => prop::collection::vec(step, 1..4).prop_map(Action::Apply),
        4 => (1usize..6).prop_map(|budget| Action::Maintain { budget }),
        1 => Just(Action::Compact),
        2 => Just(Action::Reopen),
        1 => Just(Action::PowerCut),
        1 => Just(Action::Sync),
    ];
    prop::collection::vec(action, 1..count)
}

const COLLECTIONS: usize = 3;
const INDEXES: usize = 2;

/// No key is a prefix of another; the last one has no successor of its length.
const KEYS: [&[u8]; 7] = [
    &[0],
    &[1, 0],
    &[1, 1],
    &[2; 40],
    &[3; 200],
    &[0xFE, 0xFF],
    &[0xFF, 0xFF],
];

#[derive(Clone, Default)]
struct State {
    position: u64,
    time: ClusterTime,
    records: BTreeMap<(u32, Vec<u8>), (ClusterTime, Vec<u8>)>,
    /// By index and position: fields, record key, type bits.
    index: BTreeMap<(u32, Vec<u8>), [Vec<u8>; 3]>,
    meta: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The ids that the slots stand for; dropping one gives the slot a new id.
    collections: [u32; COLLECTIONS],
    indexes: [u32; INDEXES],
    next_id: u32,
    serial: u8,
}

type Outcome = std::result::Result<(), String>;

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Outcome {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: found {found:?}, expected {expected:?}"))
}

pub fn run<B: Bed>(mut bed: B, actions: &[Action]) -> Outcome {
    let text = |error: storage::Error| error.to_string();
    let options = StoreOptions {
        record_cache_bytes: 8 << 10,
        // Every scan leaves stretches, and there is no room for all.
        scan_memory: ScanMemory::of(4 << 10),
        long_scan_pairs: 1,
        history_window_seconds: 6,
        sweep_after_seconds: 1,
    };
    let mut store = Store::open(bed.open().map_err(text)?, options.clone()).map_err(text)?;
    let first = State {
        collections: [2, 50, 4_000],
        indexes: [3, 200_000],
        next_id: 5_000,
        ..State::default()
    };
    let mut states = vec![first];
    // A snapshot that stays open over several actions, and what it must show.
    let mut held = None;
    for (at, action) in actions.iter().enumerate() {
        if at % 5 == 0 {
            held = states
                .last()
                .cloned()
                .map(|state| (store.snapshot(), state));
        }
        match action {
            Action::Apply(steps) => apply(&store, &mut states, steps)?,
            Action::Maintain { budget } => {
                store
                    .maintain(store.applied_time(), *budget)
                    .map_err(text)?;
            }
            Action::Compact => store.compact().map_err(text)?,
            Action::Sync => {
                store.sync().map_err(text)?;
            }
            Action::Reopen | Action::PowerCut => {
                held = None;
                drop(store);
                if matches!(action, Action::PowerCut) {
                    bed.power_cut();
                }
                store = Store::open(bed.open().map_err(text)?, options.clone()).map_err(text)?;
                let position = store.applied();
                states.retain(|state| state.position <= position);
            }
        }
        compare(&store, &states)?;
        if let Some((snapshot, then)) = &held {
            for collection in states[states.len() - 1].collections {
                let expected = then.of_collection(collection);
                compare_records(snapshot, CollectionId(collection), &expected)
                    .map_err(|error| format!("held snapshot: {error}"))?;
            }
        }
    }
    Ok(())
}

fn apply<E: Engine>(store: &Store<E>, states: &mut Vec<State>, steps: &[Step]) -> Outcome {
    let mut entries = Vec::new();
    // An entry that was applied before must change nothing.
    entries.push((
        states[states.len() - 1].position,
        ClusterTime::ZERO,
        vec![],
        Told::default(),
    ));
    for step in steps {
        let mut state = states[states.len() - 1].clone();
        state.position += 1 + u64::from(step.later.1 % 3);
        state.time = match step.later {
            (0, increment) => ClusterTime::from_u64(state.time.to_u64() + u64::from(increment)),
            (seconds, increment) => ClusterTime::new(state.time.seconds() + seconds, increment),
        };
        let mut payload = Vec::new();
        let mut told = Told::default();
        let mut encoder = Encoder::new(&mut payload);
        // An entry that forgets a range does nothing else.
        let is_forgetting = |op: &Op| matches!(op, Op::ForgetRange { .. });
        let forgets = step.operations.iter().any(is_forgetting);
        let operations = step.operations.iter();
        for operation in operations.filter(|op| !forgets || is_forgetting(op)) {
            state.operation(operation, &mut encoder, &mut told);
        }
        if state.position.is_multiple_of(2) {
            // As after a restart: what was put is known from the payload only.
            told.after.clear();
        }
        entries.push((state.position, state.time, payload, told));
        states.push(state);
    }
    let entries: Vec<Committed<'_>> = entries
        .iter()
        .map(|(position, time, payload, told)| Committed {
            position: *position,
            time: *time,
            payload,
            before: &told.before,
            after: &told.after,
        })
        .collect();
    store.apply(&entries).map_err(|error| error.to_string())
}

/// What an evaluator tells the store besides the payload.
#[derive(Default)]
struct Told {
    before: Vec<Before>,
    after: Vec<Record>,
}

impl State {
    fn operation(&mut self, op: &Op, encoder: &mut Encoder<'_>, told: &mut Told) {
        self.serial = self.serial.wrapping_add(1);
        match op {
            Op::Put {
                slot,
                key,
                size,
                tell,
                index,
            } => {
                let id = (self.collections[*slot], KEYS[*key].to_vec());
                told.before.push(self.before(&id, *tell));
                let document = vec![self.serial; *size];
                let changes = self.changes(KEYS[*key], index);
                let collection = CollectionId(id.0);
                encoder.put_record(
                    collection,
                    KEYS[*key],
                    &document,
                    Description::Insert,
                    &borrowed(&changes),
                );
                told.after.push(Record::new(self.time, &document));
                self.records.insert(id, (self.time, document));
            }
            Op::Delete {
                slot,
                key,
                tell,
                index,
            } => {
                let id = (self.collections[*slot], KEYS[*key].to_vec());
                told.before.push(self.before(&id, *tell));
                let changes = self.changes(KEYS[*key], index);
                encoder.delete_record(CollectionId(id.0), KEYS[*key], b"", &borrowed(&changes));
                self.records.remove(&id);
            }
            Op::Index { key, index } => {
                let changes = self.changes(KEYS[*key], index);
                let collection = CollectionId(self.collections[0]);
                encoder.index_entries(collection, KEYS[*key], &borrowed(&changes));
            }
            Op::PutMeta(key, value) => {
                encoder.put_meta(&[*key, 7], &[*value]);
                self.meta.insert(vec![*key, 7], vec![*value]);
            }
            Op::DeleteMeta(key) => {
                encoder.delete_meta(&[*key, 7]);
                self.meta.remove(&[*key, 7][..]);
            }
            Op::DropCollection(slot) => {
                let id = self.collections[*slot];
                encoder.drop_collection(CollectionId(id));
                // What is written to it later in the log must not come back.
                encoder.put_record(CollectionId(id), KEYS[0], b"late", Description::Insert, &[]);
                told.before.push(Before::Unknown);
                told.after.push(Record::new(self.time, b"late"));
                self.records.retain(|(collection, _), _| *collection != id);
                self.collections[*slot] = self.next_id;
                self.next_id += 1;
            }
            Op::DropIndex(slot) => {
                let id = self.indexes[*slot];
                encoder.drop_index(IndexId(id));
                self.index.retain(|(index, _), _| *index != id);
                self.indexes[*slot] = self.next_id;
                self.next_id += 1;
            }
            Op::ForgetRange { slot, low, high } => self.forget_range(*slot, *low, *high, encoder),
            Op::Noop => encoder.noop(),
        }
    }

    /// Records of a range and what leads to them: keys of all collections are the same.
    fn forget_range(&mut self, slot: usize, low: usize, high: usize, encoder: &mut Encoder<'_>) {
        let (low, high) = (KEYS[low.min(high)], KEYS[low.max(high)]);
        let is_inside = |key: &[u8]| low <= key && key < high;
        let collection = self.collections[slot];
        let gone = { self.records.iter() }
            .filter(|((id, key), _)| *id == collection && is_inside(key))
            .map(|(_, (_, document))| document.len() as u64);
        let counted = (gone.clone().count() as u64, gone.sum());
        let indexes = self.indexes.map(|id| {
            let entries = { self.index.iter() }
                .filter(|((index, _), [_, key, _])| *index == id && is_inside(key))
                .count() as u64;
            ForgottenIndex {
                index: IndexId(id),
                entries,
                bytes: 0,
            }
        });
        encoder.forget_range(CollectionId(collection), (low, high), counted, &indexes);
        self.records
            .retain(|(id, key), _| *id != collection || !is_inside(key));
        let indexes = self.indexes;
        self.index
            .retain(|(id, _), [_, key, _]| !indexes.contains(id) || !is_inside(key));
    }

    fn before(&self, id: &(u32, Vec<u8>), tell: bool) -> Before {
        if !tell {
            return Before::Unknown;
        }
        match self.records.get(id) {
            Some((time, document)) => Before::Present(Record::new(*time, document)),
            None => Before::Absent,
        }
    }

    /// Adds what is not there and removes what is, so that counts can be exact.
    fn changes(&mut self, key: &[u8], wanted: &[(usize, u8, bool)]) -> Vec<Change> {
        let mut changes = Vec::new();
        for (slot, field, add) in wanted {
            let fields = vec![*field, 0x80];
            let id = (self.indexes[*slot], [&fields[..], key].concat());
            if self.index.contains_key(&id) == *add {
                continue;
            }
            let bits = vec![self.serial; usize::from(*field)];
            changes.push((id.0, fields.clone(), add.then(|| bits.clone())));
            if *add {
                self.index.insert(id, [fields, key.to_vec(), bits]);
            } else {
                self.index.remove(&id);
            }
        }
        changes
    }
}

type Change = (u32, Vec<u8>, Option<Vec<u8>>);

fn borrowed(changes: &[Change]) -> Vec<IndexChange<'_>> {
    changes
        .iter()
        .map(|(index, fields, bits)| IndexChange {
            index: IndexId(*index),
            fields,
            action: match bits {
                Some(type_bits) => IndexAction::Add { type_bits },
                None => IndexAction::Remove,
            },
        })
        .collect()
}

fn compare<E: Engine>(store: &Store<E>, states: &[State]) -> Outcome {
    let text = |error: storage::Error| error.to_string();
    let now = &states[states.len() - 1];
    same("position", store.applied(), now.position)?;
    same("time", store.applied_time(), now.time)?;
    let snapshot = store.snapshot();
    for collection in now.collections {
        let id = CollectionId(collection);
        let expected = now.of_collection(collection);
        for key in KEYS {
            let stored = |record: Record| (record.time(), record.document().to_vec());
            let model = expected.get(key).cloned();
            let latest = store.get(id, key).map_err(text)?.map(stored);
            same("get", latest, model)?;
        }
        compare_records(&snapshot, id, &expected)?;
        let counter = store.collection_counter(id);
        let bytes = expected.values().map(|(_, document)| document.len() as u64);
        same("items", counter.items, expected.len() as u64)?;
        same("bytes", counter.bytes, bytes.sum())?;
    }
    for index in now.indexes {
        compare_index(store, &snapshot, now, index)?;
    }
    let meta: std::result::Result<BTreeMap<_, _>, _> = snapshot
        .scan_meta(&[])
        .map(|pair| pair.map(|(key, value)| (key, value.to_vec())))
        .collect();
    same("meta", meta.map_err(text)?, now.meta.clone())?;
    compare_past(store, &snapshot, states)
}

fn compare_records<S: EngineSnapshot>(
    snapshot: &Snapshot<S>,
    id: CollectionId,
    expected: &BTreeMap<Vec<u8>, Version>,
) -> Outcome {
    for key in KEYS {
        let found = snapshot.get(id, key).map_err(|error| error.to_string())?;
        let found = found.map(|record| (record.time(), record.document().to_vec()));
        same("snapshot get", found, expected.get(key).cloned())?;
    }
    scans(expected, |range, direction| {
        records(snapshot.scan_records(id, range, direction))
    })
}

fn compare_index<E: Engine>(
    store: &Store<E>,
    snapshot: &Snapshot<E::Snapshot>,
    now: &State,
    index: u32,
) -> Outcome {
    let id = IndexId(index);
    let expected: BTreeMap<Vec<u8>, _> = now
        .index
        .iter()
        .filter(|((other, _), _)| *other == index)
        .map(|((_, position), entry)| (position.clone(), entry.clone()))
        .collect();
    scans(&expected, |range, direction| {
        snapshot
            .scan_index(id, range, direction)
            .map(|entry| {
                let entry = entry.map_err(|error| error.to_string())?;
                let parts = [
                    entry.fields().to_vec(),
                    entry.record_key().to_vec(),
                    entry.type_bits().to_vec(),
                ];
                Ok((entry.fields_and_record_key().to_vec(), parts))
            })
            .collect()
    })?;
    for field in 0..3 {
        let fields = [field, 0x80];
        let found: Vec<Vec<u8>> = snapshot
            .index_entries_with_prefix(id, &fields)
            .map(|entry| entry.map(|entry| entry.fields_and_record_key().to_vec()))
            .collect::<storage::Result<_>>()
            .map_err(|error| error.to_string())?;
        let model = expected.keys().filter(|key| key.starts_with(&fields));
        same("with prefix", found, model.cloned().collect())?;
    }
    same(
        "entries",
        store.index_counter(id).items,
        expected.len() as u64,
    )
}

fn compare_past<E: Engine>(
    store: &Store<E>,
    snapshot: &Snapshot<E::Snapshot>,
    states: &[State],
) -> Outcome {
    let now = &states[states.len() - 1];
    let start = store.history_start();
    let mut times: BTreeSet<ClusterTime> = states
        .iter()
        .rev()
        .step_by(2)
        .take(5)
        .flat_map(|state| [state.time, state.time.next()])
        .collect();
    times.insert(start);
    for time in times {
        let past = match snapshot.at(time) {
            Ok(past) => past,
            Err(storage::Error::SnapshotTooOld { .. }) if time < start => continue,
            Err(storage::Error::TimeNotReached { .. }) if time > now.time => continue,
            Err(error) => return Err(format!("at {time}: {error}")),
        };
        let Some(then) = states.iter().rev().find(|state| state.time <= time) else {
            continue;
        };
        for collection in now.collections {
            let id = CollectionId(collection);
            let expected = then.of_collection(collection);
            scans(&expected, |range, direction| {
                records(past.scan_records(id, range, direction))
            })
            .map_err(|error| format!("at {time}: {error}"))?;
            for key in KEYS {
                let found = past.get(id, key).map_err(|error| error.to_string())?;
                let found = found.map(|record| (record.time(), record.document().to_vec()));
                same("past get", found, expected.get(key).cloned())?;
            }
        }
    }
    Ok(())
}

type Version = (ClusterTime, Vec<u8>);

impl State {
    fn of_collection(&self, collection: u32) -> BTreeMap<Vec<u8>, Version> {
        self.records
            .iter()
            .filter(|((other, _), _)| *other == collection)
            .map(|((_, key), version)| (key.clone(), version.clone()))
            .collect()
    }
}

type Found<V> = std::result::Result<Vec<(Vec<u8>, V)>, String>;

fn records(scan: impl Iterator<Item = Result<storage::StoredRecord>>) -> Found<Version> {
    scan.map(|record| {
        let record = record.map_err(|error| error.to_string())?;
        let version = (record.record.time(), record.document().to_vec());
        Ok((record.key().to_vec(), version))
    })
    .collect()
}

/// Compares scans over several ranges, both ways, with the same part of a map.
fn scans<V: Clone + PartialEq + std::fmt::Debug>(
    expected: &BTreeMap<Vec<u8>, V>,
    scan: impl Fn(KeyRange<'_>, Direction) -> Found<V>,
) -> Outcome {
    let middle: &[u8] = &[1, 1];
    let ranges = [
        KeyRange::ALL,
        KeyRange::new(Bound::Included(middle), Bound::Unbounded),
        KeyRange::new(Bound::Excluded(middle), Bound::Excluded(KEYS[6])),
        KeyRange::new(Bound::Unbounded, Bound::Excluded(middle)),
        KeyRange::new(Bound::Excluded(&[1]), Bound::Included(&[2])),
        KeyRange::new(Bound::Excluded(&[0]), Bound::Included(KEYS[3])),
        KeyRange::only(KEYS[6]),
        KeyRange::new(Bound::Excluded(middle), Bound::Excluded(middle)),
        KeyRange::new(Bound::Included(&[9]), Bound::Included(middle)),
    ];
    for range in ranges {
        let mut model: Vec<(Vec<u8>, V)> = expected
            .iter()
            .filter(|(key, _)| contains(&range, key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let what = format!("scan of {range:?}");
        same(&what, scan(range, Direction::Forward)?, model.clone())?;
        model.reverse();
        same(&what, scan(range, Direction::Backward)?, model)?;
    }
    Ok(())
}

fn contains(range: &KeyRange<'_>, key: &[u8]) -> bool {
    (match range.low {
        Bound::Included(low) => key >= low,
        Bound::Excluded(low) => key > low,
        Bound::Unbounded => true,
    }) && match range.high {
        Bound::Included(high) => key <= high,
        Bound::Excluded(high) => key < high,
        Bound::Unbounded => true,
    }
}
