//! Times increase: along the log, and from a write that was acknowledged to every write
//! that was proposed afterwards, wherever the clocks were.

use crate::machine::Ledger;
use model::time::ClusterTime;
use replication::{Applied, MemberId};

/// Looks at what a member has applied after a position.
pub fn check_log(member: MemberId, ledger: &Ledger, after: u64) -> Result<(), String> {
    let mut previous = match after {
        0 => ClusterTime::ZERO,
        after => ledger.get(after).map_or(ClusterTime::ZERO, |it| it.time),
    };
    for (index, record) in ledger.after(after).iter().enumerate() {
        if record.time <= previous {
            return Err(format!(
                "on {member:?} the time {} at {} is not after {previous}",
                record.time,
                after as usize + index + 1
            ));
        }
        previous = record.time;
    }
    Ok(())
}

/// A write that was proposed after another was acknowledged has a later time.
pub fn check_order(after: ClusterTime, applied: Applied) -> Result<(), String> {
    if applied.time > after {
        return Ok(());
    }
    Err(format!(
        "a write got the time {}, but {after} had been acknowledged before",
        applied.time
    ))
}
