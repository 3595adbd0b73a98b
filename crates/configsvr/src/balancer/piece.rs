//! How much of a proposed range is moved at once.

use super::{CHUNK_BYTES, View};
use crate::middle::key_within;
use crate::tenure::Tenure;
use cluster::balance::{Proposal, Reason};
use model::range::KeyRange;

/// The range, or a piece of about the chunk size from its beginning.
pub(super) async fn of(tenure: &Tenure, view: &View, proposal: &Proposal) -> KeyRange {
    let whole = proposal.range.clone();
    // What has to go goes as it is: fewer moves, and nothing is left behind.
    if proposal.reason != Reason::Imbalance {
        return whole;
    }
    let of_donor = view.table.chunks();
    let chunks = of_donor.filter(|chunk| chunk.chunk.shard == proposal.from);
    let chunks = chunks.count().max(1) as u64;
    let load = view.loads.iter().find(|load| load.shard == proposal.from);
    let bytes = load.map_or(0, |load| load.bytes) / chunks;
    if bytes <= CHUNK_BYTES {
        return whole;
    }
    let documents = view.counts.get(&proposal.from).copied().unwrap_or(0) / chunks;
    let share = CHUNK_BYTES as f64 / bytes as f64;
    let cut = key_within(
        tenure,
        &view.entry,
        &view.table,
        &whole,
        share,
        Some(documents as i64),
    );
    match cut.await {
        Ok(Some((key, _))) => KeyRange::new(whole.min, key),
        Ok(None) => whole,
        Err(fault) => {
            tracing::debug!("a chunk is moved as a whole: {fault}");
            whole
        }
    }
}
