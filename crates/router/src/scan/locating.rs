//! Where ranges went that a shard does not own.
//!
//! The shard says by which version it answered. Who owned its ranges at that version is not asked, but
//! who owns them now: the routing table is brought at least to that version. If it still says that the
//! range is with the shard which does not have it, one of the two will hear of the other soon.
//!
//! If the shard key was refined meanwhile, the scan goes on in the words of the new one ([`Scan::go_by`]).

use super::ElasticScan;
use crate::Router;
use crate::failure::Failure;
use cluster::cache::Placement;
use cluster::routing::{RoutingTable, ShardId};
#[cfg(doc)]
use cluster::scan::Scan;
use cluster::scan::refined_base;
use model::range::{KeyRange, RangeSet};
use model::version::{Age, PlacementVersion};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl ElasticScan {
    /// The owners of ranges; `None` if one of them is said to be with the shard that does not have
    /// it.
    pub(super) async fn locate(
        &mut self,
        shard: &ShardId,
        ranges: &RangeSet,
        version: Option<PlacementVersion>,
    ) -> Result<Option<Vec<(KeyRange, ShardId)>>, Failure> {
        if self.command.is_at_home {
            return self.locate_home(shard).await;
        }
        let known = self.table(false).await?;
        let is_older = match version {
            Some(version) => matches!(known.version().age(version), Age::Older | Age::Unknown),
            None => true,
        };
        // ⚑ The shard may have been asked in the words of a shorter key.
        let moved = owners(&known, &self.scan.in_words(ranges));
        if !is_older && moved.iter().all(|(_, owner)| owner != shard) {
            return Ok(Some(moved));
        }
        let known = self.table(true).await?;
        let moved = owners(&known, &self.scan.in_words(ranges));
        let elsewhere = moved.iter().all(|(_, owner)| owner != shard);
        Ok(elsewhere.then_some(moved))
    }

    /// The placement of the collection whose scan this is.
    async fn table(&mut self, anew: bool) -> Result<RoutingTable, Failure> {
        let namespace = &self.command.namespace;
        let routing = &self.router.routing;
        if anew {
            routing.mark_stale(namespace);
        }
        match routing.placement(namespace, None).await? {
            Placement::Sharded(table) if self.goes_by(&table).await => Ok(table),
            Placement::Sharded(_) | Placement::Unsharded if anew => Err(self.killed()),
            Placement::Sharded(_) | Placement::Unsharded => Box::pin(self.table(true)).await,
        }
    }

    /// Goes by the shard key of a placement, if it is the scanned collection's.
    async fn goes_by(&mut self, table: &RoutingTable) -> bool {
        if table.incarnation == self.scan.base().incarnation {
            return true;
        }
        // Whoever has not seen anything yet begins anew instead.
        if !self.begun {
            return false;
        }
        match self.router.refined(self.scan.base(), table).await {
            Some(refined) => {
                self.scan.go_by(refined);
                true
            }
            None => false,
        }
    }

    /// A shard knows another incarnation of the collection: the scan goes on with the one that the config server tells
    /// of, if that is the same collection under a refined key. If it is the one that the scan goes by, the shard
    /// will hear of it.
    pub(super) async fn follow_key(&mut self, shard: &ShardId) -> Result<(), Failure> {
        let shards = [shard.clone()];
        let routing = &self.router.routing;
        let placement = routing.placement(&self.command.namespace, Some(&shards));
        match placement.await? {
            Placement::Sharded(table) if self.goes_by(&table).await => Ok(()),
            Placement::Sharded(_) | Placement::Unsharded => Err(self.killed()),
        }
    }
}

impl Router {
    /// A scan's base under the key of a later placement, made once for all scans that began with it.
    async fn refined(
        &self,
        base: &Arc<RoutingTable>,
        now: &RoutingTable,
    ) -> Option<Arc<RoutingTable>> {
        if let Some(known) = base.refinement(now.incarnation) {
            return Some(known);
        }
        let _one_at_a_time = self.refining.lock().await;
        let is_made = base.refinement(now.incarnation).is_none();
        let (from, to) = (base.clone(), now.clone());
        // It looks at every chunk.
        let refined = tokio::task::spawn_blocking(move || refined_base(&from, &to));
        let refined = refined.await.ok()?.ok()?;
        let counter = &self.scans.bases_refined;
        counter.fetch_add(u64::from(is_made), Ordering::Relaxed);
        Some(refined)
    }
}

/// Who owns what of these ranges.
pub(crate) fn owners(table: &RoutingTable, ranges: &RangeSet) -> Vec<(KeyRange, ShardId)> {
    let mut owners: Vec<(KeyRange, ShardId)> = Vec::new();
    for range in ranges.iter() {
        for view in table.overlapping(range) {
            let part = RangeSet::of([view.range()]).intersection(&RangeSet::of([range.clone()]));
            let parts = part.into_iter();
            owners.extend(parts.map(|part| (part, view.chunk.shard.clone())));
        }
    }
    owners
}
