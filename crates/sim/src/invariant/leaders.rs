//! One leader per term: whoever says that it leads in a term, or names the leader of a
//! term, names the same member as everybody else, for ever.

use std::collections::BTreeMap;

use replication::{MemberId, Term};

#[derive(Default)]
pub struct Leaders {
    by_term: BTreeMap<Term, MemberId>,
}

impl Leaders {
    pub fn note(&mut self, term: Term, leader: MemberId) -> Result<(), String> {
        let known = *self.by_term.entry(term).or_insert(leader);
        if known == leader {
            return Ok(());
        }
        Err(format!(
            "{known:?} and {leader:?} both lead in term {}",
            term.get()
        ))
    }

    pub fn terms(&self) -> usize {
        self.by_term.len()
    }
}
