//! Reads behind a barrier are linearizable: when a barrier is passed, the member has
//! applied everything that was acknowledged to anybody before it was asked for.

use crate::machine::Ledger;
use replication::{LogPosition, MemberId};

pub fn check(member: MemberId, ledger: &Ledger, after: LogPosition) -> Result<(), String> {
    if ledger.applied() >= after.get() {
        return Ok(());
    }
    Err(format!(
        "{member:?} let a read pass at {}, but {after} had been acknowledged before",
        ledger.applied()
    ))
}
