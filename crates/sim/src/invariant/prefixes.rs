//! Applied prefixes are equal: at each position, every member that has applied it has
//! applied the same entry, whatever it lost and applied again.

use crate::machine::{Ledger, Record};
use replication::MemberId;

#[derive(Default)]
pub struct Prefixes {
    records: Vec<Record>,
}

impl Prefixes {
    /// Compares what a member has applied after a position.
    pub fn check(&mut self, member: MemberId, ledger: &Ledger, after: u64) -> Result<(), String> {
        for (index, record) in ledger.after(after).into_iter().enumerate() {
            let position = after as usize + index;
            match self.records.get(position) {
                Some(known) if *known == record => {}
                Some(known) => {
                    return Err(format!(
                        "{member:?} has applied {record:?} at {}, another member {known:?}",
                        position + 1
                    ));
                }
                None => self.records.push(record),
            }
        }
        Ok(())
    }

    pub fn longest(&self) -> usize {
        self.records.len()
    }
}
