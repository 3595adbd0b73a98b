//! A retryable write takes effect exactly once: whatever its client sent again, and to
//! whom, every member has applied it at most once; and once it was acknowledged, whoever
//! leads and everybody in the end has it.

use std::collections::{BTreeMap, BTreeSet};

use crate::machine::Ledger;
use crate::session::Statement;
use replication::MemberId;

#[derive(Default)]
pub struct Once {
    /// Where each statement was applied first, on whichever member.
    places: BTreeMap<Statement, u64>,
    acknowledged: BTreeSet<Statement>,
}

impl Once {
    pub fn note(&mut self, statement: Statement) {
        self.acknowledged.insert(statement);
    }

    pub fn count(&self) -> usize {
        self.acknowledged.len()
    }

    /// Looks at what a member has applied after a position.
    pub fn check(&mut self, member: MemberId, ledger: &Ledger, after: u64) -> Result<(), String> {
        for (position, record) in (after + 1..).zip(ledger.after(after)) {
            let Some(statement) = Statement::decode(&record.payload) else {
                continue;
            };
            let place = *self.places.entry(statement).or_insert(position);
            if place != position {
                return Err(format!(
                    "{statement:?} took effect twice: at {place}, and on {member:?} at {position}"
                ));
            }
        }
        Ok(())
    }

    /// A member must have all that were acknowledged: this is the end.
    pub fn check_complete(&self, member: MemberId, ledger: &Ledger) -> Result<(), String> {
        let missing = self.acknowledged.iter().find(|statement| {
            let place = self.places.get(statement);
            place.is_none_or(|place| *place > ledger.applied())
        });
        match missing {
            None => Ok(()),
            Some(statement) => Err(format!(
                "{member:?} lacks {statement:?}, which was acknowledged"
            )),
        }
    }
}
