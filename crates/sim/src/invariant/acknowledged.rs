//! No acknowledged write is lost: whatever a member has applied at the position that was
//! acknowledged is that write, and at the end every member has it. A member that begins
//! to lead has all of them.

use std::collections::BTreeMap;

use crate::machine::Ledger;
use model::time::ClusterTime;
use replication::{Applied, LogPosition, MemberId};

#[derive(Default)]
pub struct Acknowledged {
    writes: BTreeMap<u64, Vec<u8>>,
    time: ClusterTime,
}

impl Acknowledged {
    /// The latest position and time that anybody was told of.
    pub fn latest(&self) -> (LogPosition, ClusterTime) {
        let position = self.writes.last_key_value().map_or(0, |(last, _)| *last);
        (LogPosition::new(position), self.time)
    }

    pub fn count(&self) -> usize {
        self.writes.len()
    }

    pub fn note(&mut self, applied: Applied, payload: Vec<u8>) -> Result<(), String> {
        self.time = self.time.max(applied.time);
        let position = applied.position.get();
        if let Some(other) = self.writes.insert(position, payload)
            && other != self.writes[&position]
        {
            return Err(format!("two writes were acknowledged at {position}"));
        }
        Ok(())
    }

    /// Compares what a member has applied after a position.
    pub fn check_applied(
        &self,
        member: MemberId,
        ledger: &Ledger,
        after: u64,
    ) -> Result<(), String> {
        for (position, payload) in self.writes.range(after + 1..) {
            match ledger.get(*position) {
                None => break,
                Some(record) if record.payload == *payload => {}
                Some(_) => {
                    return Err(format!(
                        "{member:?} has something else at {position}, where a write was acknowledged"
                    ));
                }
            }
        }
        Ok(())
    }

    /// A member must have all of them: it leads, or this is the end.
    pub fn check_complete(&self, member: MemberId, ledger: &Ledger) -> Result<(), String> {
        let (latest, _) = self.latest();
        if ledger.applied() < latest.get() {
            return Err(format!(
                "{member:?} has applied up to {}, but {latest} was acknowledged",
                ledger.applied()
            ));
        }
        self.check_applied(member, ledger, 0)
    }
}
