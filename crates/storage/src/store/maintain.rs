//! Forgetting: the start of history moves on, and dropped data goes.
//!
//! Called from a background task with a budget, so that no call takes long.
//!
//! ```text
//!  history    start ── moves to ──► min(now - window, lowest pin, applied time)
//!             entries that ended at or before the start are garbage to the engine
//!  dropped    marked by apply ─► synced ─► whole files released ─► rest removed key by key ─► mark removed
//!  forgotten  the same for ranges of a collection: see `forgotten.rs` and `sweep.rs`
//! ```
//!
//! - **Sync before forgetting.** The engine may remove garbage durably at any
//!   moment, while the batch that made it garbage is still unsynced. A power cut
//!   would then leave a past in which the data is needed but gone, so the engine
//!   is synced before it learns a new rule. The same sync may leave out what was dropped: the mark of the drop is in
//!   it, and becomes durable with it.
//! - **Not in a burst.** What is dropped is garbage to the engine, which leaves it out when it
//!   merges; removing it key by key reads all of it, and writes as many removals, beside writers
//!   that fill one memtable after the other. So that waits until they are quiet, for a minute at
//!   most, and finds little left then.
//! - Nobody reads dropped ids, and reads before the start of history are refused,
//!   so no reader iterates over what is being removed. Removal itself remembers
//!   its position and never walks over its own tombstones.
//! - A scan at an earlier time that spans several snapshots holds a [`HistoryPin`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use model::time::ClusterTime;

use super::forgotten::{Mark, Marks};
use super::sweep::Sweep;
use super::{Shared, Store};
use crate::engine::{Direction, Engine, EngineSnapshot, GarbageRule, KeyRange, Slice, WriteBatch};
use crate::error::{Error, Result};
use crate::layout::{self, Owner, Subject};

/// History's start moves in steps of this part of the window: each needs a sync.
const STEPS_PER_WINDOW: u32 = 16;
/// So many calls remove nothing because writers are busy; then dropped data goes all the same.
const WAITED_MAX: u32 = 60;
/// Stretches that one call releases: each may need several syncs.
const RELEASES_MAX: usize = 8;

/// How far removal has come. Lost in a restart, which begins again.
#[derive(Default)]
pub(super) struct Removals {
    /// What the engine was told; `None` before the first time.
    told: Option<Rule>,
    /// Stretches to be released before any of their keys is removed: a released
    /// table may hold the removals.
    to_release: Vec<(Vec<u8>, Vec<u8>)>,
    /// The key after which the next step goes on.
    resume_after: Option<Slice>,
    /// How many calls have left dropped data for later, since there is some.
    waited: u32,
    pub(super) sweep: Option<Sweep>,
}

impl Removals {
    /// Whether dropped data is removed now, key by key.
    fn is_due(&mut self, has_dropped: bool, in_burst: bool) -> bool {
        if !has_dropped {
            self.waited = 0;
        } else if in_burst && self.waited < WAITED_MAX {
            self.waited += 1;
            return false;
        }
        true
    }

    /// The forgotten ranges that the engine was told of.
    pub(super) fn told_forgotten(&self) -> &[Arc<Mark>] {
        self.told.as_ref().map_or(&[], |told| told.forgotten.all())
    }
}

#[derive(Clone, PartialEq)]
struct Rule {
    history_start: ClusterTime,
    dropped: Arc<BTreeSet<Subject>>,
    /// Those that are ripe.
    forgotten: Marks,
}

impl Rule {
    /// Whether everything that this one covers was covered by another.
    fn is_within(&self, other: &Rule) -> bool {
        self.history_start <= other.history_start
            && self.dropped.is_subset(&other.dropped)
            && self.forgotten == other.forgotten
    }

    /// As the engine is told it.
    fn told(&self) -> GarbageRule {
        let rule = self.clone();
        Arc::new(move |key, value| rule.covers(key, value))
    }

    fn covers(&self, key: &[u8], value: &dyn Fn() -> Option<Slice>) -> bool {
        let is_forgotten =
            || !self.forgotten.is_empty() && self.forgotten.covers_stored(key, value);
        match layout::owner(key) {
            Some(Owner::Record(collection, _)) => {
                self.dropped.contains(&Subject::Collection(collection)) || is_forgotten()
            }
            Some(Owner::Index(index, _)) => {
                self.dropped.contains(&Subject::Index(index)) || is_forgotten()
            }
            Some(Owner::History(collection, rest)) => {
                self.dropped.contains(&Subject::Collection(collection))
                    || layout::split_history(rest)
                        .is_ok_and(|(_, ended)| ended <= self.history_start)
            }
            Some(Owner::Meta) | None => false,
        }
    }
}

/// What one call of [`Store::maintain`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Maintained {
    pub removed_keys: usize,
    /// Whether calling again soon would find something to do.
    pub has_more: bool,
}

/// Which times must stay readable.
#[derive(Default)]
pub(super) struct Pins {
    /// How many there are at each time.
    counts: BTreeMap<ClusterTime, usize>,
    /// Where the start of history is about to be, while that is being written.
    announced: Option<ClusterTime>,
}

/// Keeps history readable from a time on, until dropped.
pub struct HistoryPin {
    shared: Arc<Shared>,
    time: ClusterTime,
}

impl Drop for HistoryPin {
    fn drop(&mut self) {
        let mut pins = self.shared.pins.lock();
        if let Some(count) = pins.counts.get_mut(&self.time) {
            *count -= 1;
            if *count == 0 {
                pins.counts.remove(&self.time);
            }
        }
    }
}

impl<E: Engine> Store<E> {
    /// Promises that reads at `time` stay possible while the pin is held.
    pub fn pin_history(&self, time: ClusterTime) -> Result<HistoryPin> {
        let mut pins = self.shared.pins.lock();
        let start = self.shared.history_start();
        let oldest = pins.announced.map_or(start, |to| to.max(start));
        if time < oldest {
            return Err(Error::SnapshotTooOld {
                asked: time,
                oldest,
            });
        }
        *pins.counts.entry(time).or_default() += 1;
        Ok(HistoryPin {
            shared: Arc::clone(&self.shared),
            time,
        })
    }

    /// The earliest time that somebody keeps.
    pub fn pinned_history(&self) -> Option<ClusterTime> {
        let pins = self.shared.pins.lock();
        pins.counts.first_key_value().map(|(time, _)| *time)
    }

    /// The earliest time that can be read.
    pub fn history_start(&self) -> ClusterTime {
        self.shared.history_start()
    }

    /// Changes how far back reads at an earlier time may go, from the next step on. What was
    /// forgotten stays so.
    pub fn set_history_window(&self, seconds: u32) {
        self.history_window.store(seconds, Ordering::Relaxed);
    }

    /// One bounded step of background work. `now` is the cluster's time.
    pub fn maintain(&self, now: ClusterTime, budget_keys: usize) -> Result<Maintained> {
        let mut removals = self.removals.lock();
        self.advance_history(now)?;
        let rule = Rule {
            history_start: self.shared.history_start(),
            dropped: self.shared.dropped(),
            forgotten: self.ripe(),
        };
        if removals.told.as_ref() != Some(&rule) {
            let told = removals.told.as_ref();
            // What becomes garbage no more needs no sync, which would flush a memtable.
            let needs_sync = told.is_none_or(|told| !rule.is_within(told));
            let news = (rule.dropped.iter())
                .filter(|subject| told.is_none_or(|told| !told.dropped.contains(subject)));
            let news = joined(news.flat_map(|&subject| stretches(subject)));
            if needs_sync {
                let dropped = joined(rule.dropped.iter().flat_map(|&it| stretches(it)));
                self.engine.sync_without(&dropped, rule.told())?;
            }
            removals.to_release.extend(news);
            match needs_sync {
                true => removals.told = Some(rule),
                false => self.tell(&mut removals, rule),
            }
        }
        self.engine.collect_garbage(budget_keys)?;
        for _ in 0..RELEASES_MAX {
            if let Some((low, high)) = removals.to_release.pop() {
                self.engine.release_stretch(&low, &high)?;
            }
        }
        self.release_forgotten(&removals)?;
        let mut removed_keys = 0;
        let mut budget = budget_keys;
        let has_dropped = !self.shared.dropped().is_empty();
        let is_due = removals.is_due(has_dropped, self.engine.is_in_burst());
        while is_due
            && removals.to_release.is_empty()
            && budget > 0
            && let Some(&subject) = self.shared.dropped().first()
        {
            let removed = self.remove_some(subject, &mut removals, budget)?;
            removed_keys += removed;
            // Its mark is a key too.
            budget = budget.saturating_sub(removed + 1);
        }
        let swept = self.sweep(&mut removals, now, budget)?;
        Ok(Maintained {
            removed_keys: removed_keys + swept,
            has_more: !self.shared.dropped().is_empty() || removals.sweep.is_some(),
        })
    }

    fn tell(&self, removals: &mut Removals, rule: Rule) {
        self.engine.set_garbage(rule.told());
        removals.told = Some(rule);
    }

    /// The engine keeps everything, until it is told anew, and removal begins again.
    pub(super) fn tell_nothing(&self, removals: &mut Removals) {
        *removals = Removals::default();
        self.engine.set_garbage(Arc::new(|_, _| false));
    }

    /// The engine heeds some forgotten ranges no more. A compaction under way hears of it within a thousand keys;
    /// the tables that it reads were written before.
    pub(super) fn untell(&self, removals: &mut Removals, gone: &Marks) {
        if let Some(mut rule) = removals.told.clone() {
            rule.forgotten = rule.forgotten.without(gone);
            self.tell(removals, rule);
        }
    }

    /// Puts into order what a burst of writes has left, unless writes go on. May take some
    /// seconds, and may be called beside everything else.
    pub fn tidy(&self) -> Result<()> {
        self.engine.tidy()
    }

    /// Rewrites the engine's files without garbage. Takes long.
    pub fn compact(&self) -> Result<()> {
        self.engine.compact()
    }

    fn advance_history(&self, now: ClusterTime) -> Result<()> {
        let window = self.history_window.load(Ordering::Relaxed);
        let mut pins = self.shared.pins.lock();
        let mut target = ClusterTime::new(now.seconds().saturating_sub(window), 0);
        target = target.min(self.shared.time());
        if let Some((&lowest, _)) = pins.counts.first_key_value() {
            target = target.min(lowest);
        }
        let start = self.shared.history_start();
        let step = (window / STEPS_PER_WINDOW).max(1);
        let is_far = |from: u32, to: u32| to >= from.saturating_add(step);
        // Where nothing is written any more it goes on to the last entry, at some time.
        let is_idle = is_far(target.seconds(), now.seconds().saturating_sub(window));
        let is_due = is_far(start.seconds(), target.seconds()) || (is_idle && target > start);
        if !is_due {
            return Ok(());
        }
        // ⚑ No pin slips in below the new start from here on. The lock is not held while the engine writes:
        // whoever reads at an earlier time would wait for a disk that has nothing to do with it.
        pins.announced = Some(target);
        drop(pins);
        let written = self.write_history_start(target);
        self.shared.pins.lock().announced = None;
        written
    }

    fn write_history_start(&self, target: ClusterTime) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(
            layout::history_start().to_slice(),
            Slice::new(&layout::time_bytes(target)),
        );
        // Before anybody sees it: what is applied from then on may leave versions out that only
        // earlier reads would need, and must not be there without it after a crash.
        self.engine.write(batch)?;
        self.shared
            .history_start
            .store(target.to_u64(), Ordering::Release);
        Ok(())
    }

    /// Removes up to `budget` keys of something dropped; when none are left, also
    /// the mark.
    fn remove_some(
        &self,
        subject: Subject,
        removals: &mut Removals,
        budget: usize,
    ) -> Result<usize> {
        let state = self.engine.snapshot();
        let mut batch = WriteBatch::default();
        for prefix in stretches(subject) {
            let end = layout::after_prefix(&prefix);
            let low = match &removals.resume_after {
                Some(key) if key.as_ref() >= &prefix[..] => Bound::Excluded(&key[..]),
                Some(_) | None => Bound::Included(&prefix[..]),
            };
            let high = match &end {
                Some(end) => Bound::Excluded(&end[..]),
                None => Bound::Unbounded,
            };
            let mut last = None;
            for pair in state.scan(KeyRange::new(low, high), Direction::Forward) {
                if batch.len() >= budget {
                    break;
                }
                let (key, _) = pair?;
                batch.remove(key.clone());
                last = Some(key);
            }
            if let Some(last) = last {
                removals.resume_after = Some(Slice::new(&last));
            }
            if batch.len() >= budget {
                break;
            }
        }
        let removed = batch.len();
        let is_done = removed < budget;
        if is_done {
            batch.remove(layout::dropped(subject).to_slice());
        }
        self.engine.write(batch)?;
        if is_done {
            removals.resume_after = None;
            if let Subject::Collection(collection) = subject {
                self.shared.cache.forget(&layout::records(collection));
            }
            self.shared.change_dropped(|all| {
                all.remove(&subject);
            });
        }
        Ok(removed)
    }
}

/// Where the keys of a collection or index lie, in key order.
fn stretches(subject: Subject) -> Vec<Vec<u8>> {
    match subject {
        Subject::Collection(id) => {
            vec![layout::records(id).to_vec(), layout::histories(id).to_vec()]
        }
        Subject::Index(id) => vec![layout::index(id).to_vec()],
    }
}

/// Prefixes as stretches from low to high; what lies side by side is one.
fn joined(prefixes: impl Iterator<Item = Vec<u8>>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut prefixes: Vec<_> = prefixes.collect();
    prefixes.sort_unstable();
    let mut stretches: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for low in prefixes {
        let Some(high) = layout::after_prefix(&low) else {
            continue;
        };
        match stretches.last_mut() {
            Some((_, end)) if *end == low => *end = high,
            _ => stretches.push((low, high)),
        }
    }
    stretches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::memory::{MemoryEngine, MemorySnapshot};
    use crate::entry::{Description, Encoder};
    use crate::store::StoreOptions;
    use model::ids::CollectionId;
    use parking_lot::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    /// Writes nothing while it is told to wait, and counts its syncs.
    #[derive(Clone, Default)]
    struct Held {
        engine: MemoryEngine,
        writes: Arc<Mutex<()>>,
        syncs: Arc<AtomicU64>,
        in_burst: Arc<AtomicBool>,
    }

    impl Engine for Held {
        type Snapshot = MemorySnapshot;

        fn get(&self, key: &[u8]) -> Result<Option<Slice>> {
            self.engine.get(key)
        }

        fn snapshot(&self) -> MemorySnapshot {
            self.engine.snapshot()
        }

        fn write(&self, batch: WriteBatch) -> Result<()> {
            let _turn = self.writes.lock();
            self.engine.write(batch)
        }

        fn sync(&self) -> Result<()> {
            self.syncs.fetch_add(1, Ordering::Relaxed);
            self.engine.sync()
        }

        fn is_in_burst(&self) -> bool {
            self.in_burst.load(Ordering::Relaxed)
        }

        fn approximate_size_bytes(&self) -> u64 {
            self.engine.approximate_size_bytes()
        }

        fn set_garbage(&self, rule: GarbageRule) {
            self.engine.set_garbage(rule);
        }

        fn collect_garbage(&self, budget: usize) -> Result<()> {
            self.engine.collect_garbage(budget)
        }

        fn release_stretch(&self, low: &[u8], high: &[u8]) -> Result<()> {
            self.engine.release_stretch(low, high)
        }

        fn compact(&self) -> Result<()> {
            self.engine.compact()
        }
    }

    /// ⚑ Who pins history waits for no disk, and gets nothing that is about to be forgotten.
    #[test]
    fn pins_do_not_wait_for_the_engine() {
        let writes = Arc::new(Mutex::new(()));
        let engine = Held {
            writes: writes.clone(),
            ..Held::default()
        };
        let options = StoreOptions {
            history_window_seconds: 10,
            ..StoreOptions::default()
        };
        let store = Arc::new(Store::open(engine, options).expect("opened"));
        let at = |seconds: u32| ClusterTime::new(seconds, 0);
        let mut payload = Vec::new();
        Encoder::new(&mut payload).noop();
        store
            .apply(&[crate::Committed {
                position: 1,
                time: at(1000),
                payload: &payload,
                before: &[],
                after: &[],
            }])
            .expect("applied");
        assert!(store.pin_history(at(500)).is_ok(), "all of it is there");
        let held = writes.lock();
        let maintaining = std::thread::spawn({
            let store = store.clone();
            move || store.maintain(at(1010), 100).map(|_| ())
        });
        let (told, pinned) = std::sync::mpsc::channel();
        let pinning = std::thread::spawn({
            let store = store.clone();
            move || {
                // The engine is written to, sooner or later, and does not come back: what is earlier is
                // refused then.
                while store.pin_history(at(500)).is_ok() {
                    std::thread::yield_now();
                }
                let start = store.history_start();
                let pin = store.pin_history(at(1000)).expect("it stays");
                let _ = told.send((start, pin));
            }
        });
        let pinned = pinned.recv_timeout(std::time::Duration::from_secs(60));
        drop(held);
        maintaining.join().expect("ends").expect("maintains");
        pinning.join().expect("ends");
        let (start, _pin) = pinned.expect("who pins does not wait for the engine");
        assert_eq!(start, ClusterTime::ZERO);
        assert_eq!(store.history_start(), at(1000));
    }

    /// Dropped data waits for the end of a burst, but not for ever; and the engine is synced when
    /// something becomes garbage, not when it is gone.
    #[test]
    fn dropped_data_is_removed_when_writers_are_quiet() {
        let check = |quiet_after: u32, calls: u32| {
            let engine = Held::default();
            let store = Store::open(engine.clone(), StoreOptions::default()).expect("opened");
            let mut position = 0;
            let mut apply = |encode: &dyn Fn(&mut Encoder<'_>)| {
                let mut payload = Vec::new();
                encode(&mut Encoder::new(&mut payload));
                position += 1;
                let entry = crate::Committed {
                    position,
                    time: ClusterTime::new(1000 + position as u32, 0),
                    payload: &payload,
                    before: &[],
                    after: &[],
                };
                store.apply(&[entry]).expect("applied");
            };
            let collection = CollectionId(7);
            apply(&|encoder| {
                for key in [b"a", b"b", b"c"] {
                    let document = [5, 0, 0, 0, 0];
                    encoder.put_record(collection, key, &document, Description::Insert, &[]);
                }
            });
            let now = ClusterTime::new(1000, 0);
            store.maintain(now, 100).expect("maintained");
            apply(&|encoder| encoder.drop_collection(collection));
            let syncs = || engine.syncs.load(Ordering::Relaxed);
            let before = syncs();
            let mut waited = 0;
            loop {
                let is_quiet = waited >= quiet_after;
                engine.in_burst.store(!is_quiet, Ordering::Relaxed);
                let maintained = store.maintain(now, 100).expect("maintained");
                if !maintained.has_more {
                    break;
                }
                waited += 1;
            }
            assert_eq!(waited, calls);
            store.maintain(now, 100).expect("maintained");
            assert_eq!(syncs(), before + 1, "when it was dropped");
        };
        check(0, 0);
        check(3, 3);
        check(u32::MAX, WAITED_MAX);
    }

    #[test]
    fn neighbours_are_one_stretch() {
        let records = |id: u32| layout::records(CollectionId(id)).to_vec();
        let after = |id: u32| layout::after_prefix(&records(id)).expect("there is more");
        let found = joined([7, 5, 6, 9].into_iter().map(records));
        assert_eq!(found, [(records(5), after(7)), (records(9), after(9))]);
    }
}
