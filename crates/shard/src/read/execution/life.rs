//! From one batch to the next: an execution goes live over a snapshot and is
//! suspended as a value.
//!
//! ```text
//!   resume ─► live (snapshot, scan, multikey flags) ─► suspend: position
//!     ▲                                                   │
//!     └────── collection and indexes still there? ◄───────┘
//! ```

use super::super::part::Mark;
use super::super::planning::Planned;
use super::super::scan::{Scan, Space, Windows};
use super::{Execution, Stage};
use crate::Snapshot;
use crate::catalog::Index;
use model::{Code, Error};
use query::index_keys::MultikeyPaths;
use query::plan::{Access, ScanBounds, ScanDirection};
use std::sync::atomic::Ordering;

/// Lives from `resume` to `suspend`.
pub(super) struct Live {
    pub(super) snapshot: Snapshot,
    pub(super) scan: Option<Scan>,
    /// For each index of the plan's list, where documents have arrays; read after
    /// the snapshot was taken.
    pub(super) multikey: Vec<MultikeyPaths>,
}

impl Execution {
    /// Whether everything that is still to come was read, or is read by key.
    pub(super) fn reads_nothing_more(&self) -> bool {
        matches!(self.stage, Stage::Sorted(_) | Stage::Ended)
            || matches!(self.planned.plan.access, Access::Id(_))
    }

    /// Takes a snapshot, unless there is one.
    pub(super) fn resume(&mut self) -> Result<(), Error> {
        if self.live.is_some() || self.collection.made.is_some() {
            return Ok(());
        }
        self.go_live(self.shard.store.snapshot())
    }

    /// Reads this snapshot, unless there is one already.
    pub(in crate::read) fn go_live_once(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        match self.live {
            Some(_) => Ok(()),
            None => self.go_live(snapshot.clone()),
        }
    }

    /// The error for a batch after a change of the catalog that took away what
    /// the plan stands on. MongoDB asks it even of a sort that has read all.
    pub(super) fn check_catalog(&self) -> Result<(), Error> {
        let collection = &self.collection;
        if collection.made.is_some() {
            return Ok(());
        }
        let Some(current) = self.shard.catalog.by_id(collection.id) else {
            return Err(self.collection_dropped());
        };
        if current.namespace != collection.namespace {
            return Err(killed(format!(
                "collection renamed from '{}' to '{}'. UUID {}",
                collection.namespace,
                current.namespace,
                uuid_text(&collection.uuid.0)
            )));
        }
        for index in self.planned.used_indexes() {
            let there = current
                .indexes
                .iter()
                .any(|other| other.id == index.id && !other.definition.hidden);
            if !there {
                return Err(index_dropped(index));
            }
        }
        Ok(())
    }

    fn collection_dropped(&self) -> Error {
        killed(format!(
            "collection dropped. UUID {}",
            uuid_text(&self.collection.uuid.0)
        ))
    }

    pub(super) fn go_live(&mut self, snapshot: Snapshot) -> Result<(), Error> {
        // The catalog may not show yet what the snapshot holds already.
        if self.suspended && snapshot.has_dropped_collection(self.collection.id) {
            return Err(self.collection_dropped());
        }
        for index in self.planned.used_indexes() {
            if index.id.is_some_and(|id| snapshot.has_dropped_index(id)) {
                return Err(index_dropped(index));
            }
        }
        let multikey = self
            .planned
            .indexes
            .iter()
            .map(|index| index.multikey_paths())
            .collect();
        self.live = Some(Live {
            snapshot,
            scan: None,
            multikey,
        });
        Ok(())
    }

    /// Ends a batch: lets go of the snapshot and keeps the position.
    pub(crate) fn suspend(&mut self) {
        self.note_scan();
        self.judge_plan();
        if let Some(merging) = &mut self.merging {
            merging.suspend(&mut self.statistics);
        }
        if let Some(last) = self.last.take() {
            self.mark = Mark::Behind(last.as_bytes().to_vec());
        }
        if let Some(found) = &mut self.put_back {
            found.detach();
        }
        self.live = None;
        self.suspended = true;
    }

    /// Forgets that the plan once won, if it does badly this time.
    pub(super) fn judge_plan(&self) {
        let (steps, returned) = (self.statistics.steps, self.statistics.returned);
        if let Some(remembered) = &self.planned.remembered
            && remembered.disappoints(steps, returned)
        {
            let cache = &self.shard.plan_cache;
            cache.forget(self.collection.id, remembered);
        }
    }

    /// Takes over the counts of the scan that ends here.
    pub(super) fn note_scan(&mut self) {
        let Some(scan) = self.live.as_mut().and_then(|live| live.scan.as_mut()) else {
            return;
        };
        self.statistics.seeks += scan.seeks;
        if let Some(branch) = self.statistics.branches.get_mut(self.branch) {
            branch.seeks += scan.seeks;
        }
        scan.seeks = 0;
    }
}

impl Live {
    /// The scan under way, opened if there is none, and what it reads.
    pub(super) fn scan(
        &mut self,
        space: Space,
        bounds: Option<&ScanBounds>,
        direction: ScanDirection,
        mark: &Mark,
        windows: Option<&Windows>,
    ) -> Result<(&mut Scan, &Snapshot), Error> {
        if self.scan.is_none() {
            let scan = Scan::open(&self.snapshot, space, bounds, direction, mark, windows)?;
            self.scan = Some(scan);
        }
        let scan = self.scan.as_mut().expect("just opened");
        Ok((scan, &self.snapshot))
    }
}

fn killed(message: String) -> Error {
    Error::new(Code::QUERY_PLAN_KILLED, message)
}

fn index_dropped(index: &Index) -> Error {
    killed(format!("index '{}' dropped", index.definition.name))
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

impl Planned {
    /// Adds to the counters that `$indexStats` shows.
    pub(super) fn count_use(&self) {
        for index in self.used_indexes() {
            index.accesses.fetch_add(1, Ordering::Relaxed);
        }
    }
}
