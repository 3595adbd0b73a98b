//! What is left of forgotten ranges goes (see `forgotten.rs`).
//!
//! ```text
//!   ripe, and the engine was told ─► whole tables released, once ─► a while for compactions ─► sweep
//!   sweep of a collection: its ripe marks ─► their records, then all entries of their indexes, in key order:
//!     what is covered is removed, step by step ─► cached values out ─► the marks go
//! ```
//!
//! Compactions leave out what they meet, for nothing. So a sweep waits for them, unless a collection has
//! gathered many marks. Each step looks at a snapshot without a lock; before it removes what it found there, under the
//! writer's lock, it looks again if anything was stored in one of the ranges since.
//!
//! Where a sweep has come to is not stored: after a restart it begins again, and finds less.

use std::ops::Bound;
use std::sync::Arc;

use model::time::ClusterTime;

use super::Store;
use super::forgotten::{Mark, Marks};
use super::maintain::Removals;
use crate::engine::{Direction, Engine, EngineSnapshot, KeyRange, Slice, WriteBatch};
use crate::error::Result;
use crate::layout;

/// With more marks than this a collection is swept at once: every read heeds all of them.
const MARKS_MAX: usize = 8;
/// Tables are released for so many marks in one call: each may need several syncs.
const RELEASES_MAX: usize = 4;
/// Keys that a step looks at for each key that it may remove.
const LOOKS_PER_KEY: usize = 4;
/// Keys that are removed under the lock at once: who applies waits for it.
const LOCKED_KEYS: usize = 500;

/// A pass over everything that some marks of a collection may cover.
pub(super) struct Sweep {
    marks: Marks,
    /// Stretches of stored keys that are still to be looked at, the next one last.
    left: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Where the next step goes on in it.
    after: Option<Slice>,
}

impl Sweep {
    fn new(marks: Marks) -> Self {
        let mut left = Vec::new();
        for mark in marks.all() {
            let (low, high) = mark.records();
            left.push((low, Some(high)));
            for index in &mark.indexes {
                let low = layout::index(*index).to_vec();
                let high = layout::after_prefix(&low);
                left.push((low, high));
            }
        }
        // The same index may be among several marks'.
        left.sort_unstable();
        left.dedup();
        left.reverse();
        Self {
            marks,
            left,
            after: None,
        }
    }

    fn covers(&self, key: &[u8], value: &Slice) -> bool {
        self.marks.covers_stored(key, &|| Some(value.clone()))
    }
}

impl<E: Engine> Store<E> {
    /// Forgotten ranges of which nothing can be read at any time.
    pub(super) fn ripe(&self) -> Marks {
        let history_start = self.shared.history_start();
        let marks = self.shared.forgotten().unwrap_or_default();
        marks.only(|mark| mark.is_ripe(history_start))
    }

    /// Has whole tables released that lie inside forgotten ranges.
    pub(super) fn release_forgotten(&self, removals: &Removals) -> Result<()> {
        let mut released = 0;
        for mark in removals.told_forgotten() {
            let mut is_done = mark.releasing.lock();
            if *is_done {
                continue;
            }
            // ⚑ What was stored since must stay; whoever is about to store something waits for the lock.
            if !mark.is_written() {
                let (low, high) = mark.records();
                self.engine.release_stretch(&low, &high)?;
                released += 1;
            }
            *is_done = true;
            if released >= RELEASES_MAX {
                break;
            }
        }
        Ok(())
    }

    /// One step of removing what forgotten ranges have left; how many keys went.
    pub(super) fn sweep(
        &self,
        removals: &mut Removals,
        now: ClusterTime,
        budget: usize,
    ) -> Result<usize> {
        if removals.sweep.is_none() {
            removals.sweep = self.next_sweep(removals, now);
        }
        let Some(mut sweep) = removals.sweep.take() else {
            return Ok(0);
        };
        let mut removed = 0;
        let mut looks = budget.saturating_mul(LOOKS_PER_KEY).max(1);
        while looks > 0 && removed <= budget && !sweep.left.is_empty() {
            removed += self.sweep_step(&mut sweep, &mut looks)?;
        }
        match sweep.left.is_empty() {
            true => {
                // ⚑ Before the marks go: index entries that are added for their keys from then on have no time,
                // and a compaction that still went by a mark would take them for older ones.
                self.untell(removals, &sweep.marks);
                self.end_sweep(&sweep.marks)?;
            }
            false => removals.sweep = Some(sweep),
        }
        Ok(removed)
    }

    /// The collection that is to be swept next, if one is.
    fn next_sweep(&self, removals: &Removals, now: ClusterTime) -> Option<Sweep> {
        let told = removals.told_forgotten();
        let is_due = |mark: &&Arc<Mark>| {
            let due = { mark.time.seconds() }.saturating_add(self.sweep_after_seconds);
            let of_collection = told.iter().filter(|it| it.collection == mark.collection);
            now.seconds() >= due || of_collection.count() > MARKS_MAX
        };
        let collection = told.iter().find(is_due)?.collection;
        let mut marks = Marks::default();
        // ⚑ Released first: a table that goes later could bring back what was removed.
        let ready = |mark: &&Arc<Mark>| mark.collection == collection && *mark.releasing.lock();
        { told.iter().filter(ready) }.for_each(|mark| marks.add(Arc::clone(mark)));
        // Those whose collection was dropped stay told until the next call.
        let known = self.shared.forgotten().unwrap_or_default();
        let marks = marks.only(|mark| known.all().iter().any(|it| std::ptr::eq(&**it, mark)));
        (!marks.is_empty()).then(|| Sweep::new(marks))
    }

    fn sweep_step(&self, sweep: &mut Sweep, looks: &mut usize) -> Result<usize> {
        let Some((low, high)) = sweep.left.last() else {
            return Ok(0);
        };
        let low = match &sweep.after {
            Some(after) => Bound::Excluded(&after[..]),
            None => Bound::Included(&low[..]),
        };
        let high = match high {
            Some(high) => Bound::Excluded(&high[..]),
            None => Bound::Unbounded,
        };
        let mut found = Vec::new();
        let mut last = None;
        let state = self.engine.snapshot();
        let mut pairs = state.scan(KeyRange::new(low, high), Direction::Forward);
        let is_ended = loop {
            if found.len() >= LOCKED_KEYS || *looks == 0 {
                break false;
            }
            let Some(pair) = pairs.next() else {
                break true;
            };
            let (key, value) = pair?;
            *looks -= 1;
            if sweep.covers(&key, &value) {
                found.push(Slice::new(&key));
            }
            last = Some(key);
        };
        drop(pairs);
        let removed = self.remove_covered(sweep, found)?;
        match is_ended {
            true => {
                sweep.left.pop();
                sweep.after = None;
            }
            false => sweep.after = last.map(|last| Slice::new(&last)).or(sweep.after.take()),
        }
        Ok(removed)
    }

    fn remove_covered(&self, sweep: &Sweep, found: Vec<Slice>) -> Result<usize> {
        if found.is_empty() {
            return Ok(0);
        }
        let _writer = self.writer.lock();
        // ⚑ What was stored since they were found stays.
        let looks_again = sweep.marks.all().iter().any(|mark| mark.is_written());
        let mut batch = WriteBatch::default();
        for key in found {
            let is_covered = !looks_again || { self.engine.get(&key)? }
                .is_some_and(|value| sweep.covers(&key, &value));
            if is_covered {
                batch.remove(key);
            }
        }
        let removed = batch.len();
        if removed > 0 {
            self.engine.write(batch)?;
        }
        Ok(removed)
    }

    /// Nothing of the marks is left.
    fn end_sweep(&self, swept: &Marks) -> Result<()> {
        let covers = |key: &[u8], value: &Slice| swept.covers_stored(key, &|| Some(value.clone()));
        self.shared.cache.forget_values(covers);
        let _writer = self.writer.lock();
        let mut batch = WriteBatch::default();
        for mark in swept.all() {
            batch.remove(mark.key().to_slice());
        }
        self.engine.write(batch)?;
        self.shared.change_forgotten(|marks| marks.without(swept));
        Ok(())
    }
}
