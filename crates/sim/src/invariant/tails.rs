//! Who reads the log sees it without holes: what comes after a position begins right behind
//! it and goes on without a gap, or it is an error; and it is what was applied.

use crate::machine::Ledger;
use replication::{Entry, LogPosition, MemberId};

pub fn check(
    member: MemberId,
    ledger: &Ledger,
    after: LogPosition,
    entries: &[Entry],
) -> Result<(), String> {
    for (expected, entry) in (after.get() + 1..).zip(entries) {
        let position = entry.position.get();
        if position != expected {
            return Err(format!(
                "{member:?} reads {position} where {expected} was to come: a hole"
            ));
        }
        let applied = ledger.get(position);
        if applied.is_none_or(|record| record.payload != *entry.payload) {
            return Err(format!(
                "{member:?} reads something else at {position} than it has applied"
            ));
        }
    }
    Ok(())
}
