//! Where ranges went that a shard does not own.
//!
//! The shard says by which version it answered. Who owned its ranges at that version is not asked, but
//! who owns them now: the routing table is brought at least to that version. If it still says that the
//! range is with the shard which does not have it, one of the two will hear of the other soon.

use super::ElasticScan;
use crate::failure::Failure;
use cluster::cache::Placement;
use cluster::routing::{RoutingTable, ShardId};
use model::range::{KeyRange, RangeSet};
use model::version::PlacementVersion;

impl ElasticScan {
    /// The owners of ranges; `None` if one of them is said to be with the shard that does not have
    /// it.
    pub(super) async fn locate(
        &self,
        shard: &ShardId,
        ranges: &RangeSet,
        version: Option<PlacementVersion>,
    ) -> Result<Option<Vec<(KeyRange, ShardId)>>, Failure> {
        let known = self.table(false).await?;
        let is_older = match version {
            Some(version) => known.version().chunk < version.chunk,
            None => true,
        };
        let moved = owners(&known, ranges);
        if !is_older && moved.iter().all(|(_, owner)| owner != shard) {
            return Ok(Some(moved));
        }
        let moved = owners(&self.table(true).await?, ranges);
        let elsewhere = moved.iter().all(|(_, owner)| owner != shard);
        Ok(elsewhere.then_some(moved))
    }

    /// The placement of the collection whose scan this is.
    async fn table(&self, anew: bool) -> Result<RoutingTable, Failure> {
        let namespace = &self.command.namespace;
        let routing = &self.router.routing;
        if anew {
            routing.mark_stale(namespace);
        }
        match routing.placement(namespace, None).await? {
            Placement::Sharded(table) if table.incarnation == self.scan.base().incarnation => {
                Ok(table)
            }
            Placement::Sharded(_) | Placement::Unsharded if anew => Err(self.killed()),
            Placement::Sharded(_) | Placement::Unsharded => Box::pin(self.table(true)).await,
        }
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
