//! The engine in memory, for simulation and tests.
//!
//! A map from key to its versions, oldest first, each marked with the sequence
//! number of the batch that wrote it. A snapshot is a sequence number: it sees the
//! newest version at or below it. Versions that no open snapshot can see are
//! pruned when their key is written, or when a later batch finds that the oldest
//! snapshot has gone.
//!
//! Clones share the map, so a clone kept aside is the "disk" that survives a
//! restart of the store above. [`MemoryEngine::power_cut`] gives the state that
//! a power cut would leave: everything up to the last sync and nothing after,
//! the hardest legal outcome. That needs old versions, so it must be asked for
//! when the engine is created.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::{Direction, Engine, EngineSnapshot, GarbageRule, KeyRange, Pair, Slice, WriteBatch};
use crate::error::Result;

#[derive(Clone, Default)]
pub struct MemoryEngine(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: RwLock<State>,
    /// Open snapshots by sequence number. Locked after `state`, never before.
    open: Mutex<BTreeMap<u64, usize>>,
    rule: RwLock<Option<GarbageRule>>,
}

/// One key's versions, oldest first; `None` is a removal.
type Versions = Vec<(u64, Option<Slice>)>;

#[derive(Default)]
struct State {
    keys: BTreeMap<Slice, Versions>,
    sequence: u64,
    synced: u64,
    keeps_unsynced: bool,
    /// Keys that hold versions beyond the newest live one.
    unpruned: BTreeSet<Slice>,
    pruned_to: u64,
    size_bytes: u64,
    /// Where the next sweep for garbage begins.
    sweep_from: Option<Slice>,
}

impl MemoryEngine {
    pub fn new() -> Self {
        Self::default()
    }

    /// An engine that remembers what was not synced, for [`Self::power_cut`].
    pub fn with_power_cuts() -> Self {
        let engine = Self::default();
        engine.0.state.write().keeps_unsynced = true;
        engine
    }

    /// A new engine that holds exactly what was synced. The old one stays as it is.
    pub fn power_cut(&self) -> Self {
        let engine = Self::with_power_cuts();
        let old = self.0.state.read();
        let mut batch = WriteBatch::default();
        for (key, versions) in &old.keys {
            if let Some(value) = visible(versions, old.synced) {
                batch.put(key.clone(), value.clone());
            }
        }
        engine.0.commit(batch);
        {
            let mut state = engine.0.state.write();
            state.synced = state.sequence;
        }
        engine
    }
}

fn visible(versions: &Versions, sequence: u64) -> Option<&Slice> {
    versions
        .iter()
        .rev()
        .find(|(written, _)| *written <= sequence)
        .and_then(|(_, value)| value.as_ref())
}

impl Shared {
    fn commit(&self, batch: WriteBatch) {
        self.commit_to(&mut self.state.write(), batch);
    }

    fn commit_to(&self, state: &mut State, batch: WriteBatch) {
        state.sequence += 1;
        let sequence = state.sequence;
        let oldest_needed = {
            let snapshots = self.open.lock();
            let oldest = snapshots.keys().next().copied().unwrap_or(sequence);
            if state.keeps_unsynced {
                oldest.min(state.synced)
            } else {
                oldest
            }
        };
        for (key, value) in batch.into_changes() {
            let added = value.as_ref().map_or(0, |value| key.len() + value.len());
            let versions = state.keys.entry(key.clone()).or_default();
            let removed = versions
                .last()
                .and_then(|(_, value)| value.as_ref())
                .map_or(0, |value| key.len() + value.len());
            state.size_bytes = state.size_bytes + added as u64 - removed as u64;
            if versions.last().is_some_and(|(at, _)| *at == sequence) {
                versions.pop();
            }
            versions.push((sequence, value));
            state.unpruned.insert(key);
        }
        // Also frees what an older snapshot held back, once it has gone.
        if oldest_needed > state.pruned_to {
            state.pruned_to = oldest_needed;
            for key in std::mem::take(&mut state.unpruned) {
                prune(state, key, oldest_needed);
            }
        }
    }
}

/// Drops the versions of `key` that nobody at or after `oldest_needed` can see.
fn prune(state: &mut State, key: Slice, oldest_needed: u64) {
    let Some(versions) = state.keys.get_mut(&key) else {
        return;
    };
    if let Some(base) = versions.iter().rposition(|(at, _)| *at <= oldest_needed) {
        versions.drain(..base);
        if versions[0].1.is_none() {
            versions.remove(0);
        }
    }
    match versions.as_slice() {
        [] => {
            state.keys.remove(&key);
        }
        [(_, Some(_))] => {}
        _ => {
            state.unpruned.insert(key);
        }
    }
}

impl Engine for MemoryEngine {
    type Snapshot = MemorySnapshot;

    fn get(&self, key: &[u8]) -> Result<Option<Slice>> {
        let state = self.0.state.read();
        Ok(state
            .keys
            .get(key)
            .and_then(|versions| visible(versions, u64::MAX))
            .cloned())
    }

    fn snapshot(&self) -> MemorySnapshot {
        let state = self.0.state.read();
        MemorySnapshot::open(&self.0, state.sequence)
    }

    fn write(&self, batch: WriteBatch) -> Result<()> {
        if !batch.is_empty() {
            self.0.commit(batch);
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.0.state.write();
        state.synced = state.sequence;
        Ok(())
    }

    fn approximate_size_bytes(&self) -> u64 {
        self.0.state.read().size_bytes
    }

    fn set_garbage(&self, rule: GarbageRule) {
        *self.0.rule.write() = Some(rule);
    }

    fn collect_garbage(&self, budget: usize) -> Result<()> {
        let Some(rule) = self.0.rule.read().clone() else {
            return Ok(());
        };
        let mut batch = WriteBatch::default();
        // Until it is removed: a key may be written again.
        let mut guard = self.0.state.write();
        let state = &mut *guard;
        let low = match &state.sweep_from {
            Some(key) => Bound::Excluded(key.as_ref()),
            None => Bound::Unbounded,
        };
        let mut last = None;
        for (key, versions) in state
            .keys
            .range::<[u8], _>((low, Bound::Unbounded))
            .take(budget)
        {
            let newest = visible(versions, u64::MAX);
            if newest.is_some() && rule(key, &|| newest.cloned()) {
                batch.remove(key.clone());
            }
            last = Some(key.clone());
        }
        state.sweep_from = last;
        if !batch.is_empty() {
            self.0.commit_to(state, batch);
        }
        Ok(())
    }

    fn release_stretch(&self, _low: &[u8], _high: &[u8]) -> Result<()> {
        Ok(())
    }

    fn compact(&self) -> Result<()> {
        self.0.state.write().sweep_from = None;
        self.collect_garbage(usize::MAX)
    }
}

pub struct MemorySnapshot {
    shared: Arc<Shared>,
    sequence: u64,
}

impl MemorySnapshot {
    /// The caller holds the state's lock, or another snapshot of this sequence.
    fn open(shared: &Arc<Shared>, sequence: u64) -> Self {
        *shared.open.lock().entry(sequence).or_default() += 1;
        Self {
            shared: Arc::clone(shared),
            sequence,
        }
    }
}

impl Clone for MemorySnapshot {
    fn clone(&self) -> Self {
        Self::open(&self.shared, self.sequence)
    }
}

impl Drop for MemorySnapshot {
    fn drop(&mut self) {
        let mut open = self.shared.open.lock();
        if let Some(count) = open.get_mut(&self.sequence) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.sequence);
            }
        }
    }
}

impl EngineSnapshot for MemorySnapshot {
    type Scan = MemoryScan;

    fn get(&self, key: &[u8]) -> Result<Option<Slice>> {
        let state = self.shared.state.read();
        Ok(state
            .keys
            .get(key)
            .and_then(|versions| visible(versions, self.sequence))
            .cloned())
    }

    fn scan(&self, range: KeyRange<'_>, direction: Direction) -> MemoryScan {
        let owned = |bound: Bound<&[u8]>| bound.map(Slice::from);
        MemoryScan {
            snapshot: self.clone(),
            low: owned(range.low),
            high: owned(range.high),
            direction,
        }
    }
}

/// Steps by key, so that it holds no lock between steps.
pub struct MemoryScan {
    snapshot: MemorySnapshot,
    low: Bound<Slice>,
    high: Bound<Slice>,
    direction: Direction,
}

impl Iterator for MemoryScan {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        let range = KeyRange::new(
            self.low.as_ref().map(|key| &key[..]),
            self.high.as_ref().map(|key| &key[..]),
        );
        if range.is_empty() {
            return None;
        }
        let state = self.snapshot.shared.state.read();
        let mut keys = state.keys.range::<[u8], _>((range.low, range.high));
        let sequence = self.snapshot.sequence;
        let live = |(key, versions): (&Slice, &Versions)| {
            visible(versions, sequence).map(|value| (key.clone(), value.clone()))
        };
        let pair = match self.direction {
            Direction::Forward => keys.find_map(live),
            Direction::Backward => keys.rev().find_map(live),
        }?;
        drop(state);
        match self.direction {
            Direction::Forward => self.low = Bound::Excluded(pair.0.clone()),
            Direction::Backward => self.high = Bound::Excluded(pair.0.clone()),
        }
        Some(Ok(pair))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(engine: &MemoryEngine, key: &str, value: Option<&str>) {
        let mut batch = WriteBatch::default();
        match value {
            Some(value) => batch.put(key.into(), value.into()),
            None => batch.remove(key.into()),
        }
        engine.write(batch).expect("memory");
    }

    fn dump(snapshot: &MemorySnapshot, direction: Direction) -> String {
        snapshot
            .scan(KeyRange::ALL, direction)
            .map(|pair| {
                let (key, value) = pair.expect("memory");
                format!(
                    "{}={} ",
                    String::from_utf8_lossy(&key),
                    String::from_utf8_lossy(&value)
                )
            })
            .collect()
    }

    #[test]
    fn snapshots_do_not_move_and_old_versions_go() {
        let engine = MemoryEngine::new();
        put(&engine, "a", Some("1"));
        put(&engine, "b", Some("1"));
        let old = engine.snapshot();
        put(&engine, "a", Some("2"));
        put(&engine, "b", None);
        assert_eq!(dump(&old, Direction::Forward), "a=1 b=1 ");
        assert_eq!(dump(&old, Direction::Backward), "b=1 a=1 ");
        assert_eq!(dump(&engine.snapshot(), Direction::Forward), "a=2 ");
        drop(old);
        put(&engine, "c", Some("1"));
        let state = engine.0.state.read();
        assert_eq!(state.keys.len(), 2, "the removed key is gone");
        assert!(state.keys.values().all(|versions| versions.len() == 1));
        assert_eq!(state.size_bytes, 4);
    }

    #[test]
    fn power_cut_keeps_what_was_synced() {
        let engine = MemoryEngine::with_power_cuts();
        put(&engine, "a", Some("1"));
        engine.sync().expect("memory");
        put(&engine, "a", Some("2"));
        put(&engine, "b", Some("1"));
        let after = engine.power_cut();
        assert_eq!(dump(&after.snapshot(), Direction::Forward), "a=1 ");
        put(&after, "a", None);
        assert_eq!(
            dump(&after.power_cut().snapshot(), Direction::Forward),
            "a=1 "
        );
    }
}
