//! What all scans of a router have done, for `serverStatus`.

use model::bson::DocWriter;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[derive(Default)]
pub(crate) struct ScanCounters {
    pub(crate) opened: AtomicU64,
    pub(crate) virtual_opened: AtomicU64,
    pub(crate) batches_repeated: AtomicU64,
    pub(crate) hops: AtomicU64,
    pub(crate) asked_ahead: AtomicU64,
    /// Placements that were put under a refined shard key.
    pub(crate) bases_refined: AtomicU64,
    /// Streams whose partial results did not fit into memory.
    pub(crate) spilled: AtomicU64,
    /// What the answers weigh that were asked for ahead, or may weigh if they are not here yet.
    pub(crate) bytes_ahead: AtomicUsize,
}

impl ScanCounters {
    pub(crate) fn append_to(&self, writer: &mut DocWriter) {
        let number = |counter: &AtomicU64| {
            let number = counter.load(Ordering::Relaxed);
            i64::try_from(number).unwrap_or(i64::MAX)
        };
        writer
            .append("scans", number(&self.opened))
            .append("virtualScansOpened", number(&self.virtual_opened))
            .append("batchesRepeated", number(&self.batches_repeated))
            .append("hops", number(&self.hops))
            .append("batchesAskedAhead", number(&self.asked_ahead))
            .append("basesRefined", number(&self.bases_refined))
            .append("streamsSpilled", number(&self.spilled));
    }
}
