//! What every member keeps of the log for the moves that its shard gives ranges away by.
//!
//! A recipient replays the donor's log from the position before its scan on. The documents of
//! moves are data, so each member knows from where: it keeps the log from there as long as
//! somebody may ask for it. ⚑ So whoever becomes primary can go on with a move, and does not
//! have to abort it because its own log begins later.
//!
//! The documents are looked at now and then (`background.rs`): a move begins at the end of the
//! log, and what was written last is trimmed last.

use super::plan::DonorState;
use super::{COORDINATORS, documents};
use crate::Shard;
use cluster::migration::donor::Phase;
use model::ids::Uuid;
use parking_lot::Mutex;
use replication::{LogPosition, Pin};
use std::collections::HashMap;

#[derive(Default)]
pub(super) struct Pins(Mutex<HashMap<Uuid, Pin>>);

/// Keeps what moves need by now, and gives up what they do not need any more.
pub(crate) fn keep_log(shard: &Shard) {
    let states = documents(shard, COORDINATORS).into_iter();
    let states = states.filter_map(|document| DonorState::from_document(document.as_doc()).ok());
    let wanted: HashMap<Uuid, u64> = states
        .filter(|state| match state.donor.phase {
            Phase::Copying | Phase::WritesBlocked => true,
            // The recipient has it all; if it is put off, what comes then is kept again.
            Phase::ReadsBlocked | Phase::Committed(_) | Phase::Aborted => false,
        })
        .map(|state| (state.plan.id, state.donor.since))
        .collect();
    let mut pins = shard.migrations.pins.0.lock();
    pins.retain(|id, _| wanted.contains_key(id));
    for (id, since) in wanted {
        if !pins.contains_key(&id)
            && let Ok(pin) = shard.log.pin(LogPosition::new(since))
        {
            pins.insert(id, pin);
        }
    }
}

/// Behind which positions it is kept.
#[cfg(test)]
pub(crate) fn kept_log(shard: &Shard) -> Vec<LogPosition> {
    let pins = shard.migrations.pins.0.lock();
    pins.values().map(Pin::after).collect()
}
