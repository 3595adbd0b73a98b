//! Answers that are kept, so that a command that is asked again gets its first one.
//!
//! Whoever asks for a change names it by an id and, when it lost the answer, asks again with the same id:
//!
//! ```text
//!   not known ── begins ──► runs ── ends: one entry, with its answer ──► answered ──► forgotten
//!       ▲                    │                                             │
//!       └ nothing written ◄──┘ asked again: joins it                       └ asked again: the same answer
//! ```
//!
//! ⚑ The answer is written in the entry that carries the change out, or ends it: whoever knows of the one knows of
//! the other, and no change is made twice. ⚑ An id belongs to one command: what comes with it and says something else
//! is refused, whether the first one runs or has ended.
//!
//! An answer is kept for [`KEPT_MS`], and there are at most [`KEPT_MAX`] of them; those that leave do so in the entry
//! that brings another. Whoever asks again does so within minutes of a loss. A clock that jumps by more than the rest
//! may forget answers early, and no other harm comes of it.

use super::OperationId;
use model::bson::DocBuf;
use std::collections::{BTreeMap, BTreeSet};

pub const KEPT_MS: i64 = 60 * 60 * 1000;
pub const KEPT_MAX: usize = 10_000;
/// No entry makes room for more: the rest goes with those that follow.
const LEAVING_MAX: usize = 100;

/// What a command shows when it is asked: its id, and a digest of what it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    pub id: OperationId,
    pub says: [u8; 16],
}

/// The id was given to another command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the operation id {0} belongs to a command with other arguments")]
pub struct OtherCommand(pub OperationId);

impl Ticket {
    /// Whether this is the command that has the id.
    pub fn check(self, says: [u8; 16]) -> Result<(), OtherCommand> {
        match self.says == says {
            true => Ok(()),
            false => Err(OtherCommand(self.id)),
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
struct Kept {
    says: [u8; 16],
    at_ms: i64,
    answer: DocBuf,
}

#[derive(Clone, Default, PartialEq, Debug)]
pub struct Answers {
    by_id: BTreeMap<OperationId, Kept>,
    by_age: BTreeSet<(i64, OperationId)>,
}

impl Answers {
    /// What a command was answered, if it is known.
    pub fn find(&self, ticket: Ticket) -> Result<Option<&DocBuf>, OtherCommand> {
        let Some(kept) = self.by_id.get(&ticket.id) else {
            return Ok(None);
        };
        ticket.check(kept.says)?;
        Ok(Some(&kept.answer))
    }

    /// Those that leave when another one comes.
    pub fn leaving(&self, now_ms: i64) -> Vec<OperationId> {
        let too_many = (self.by_id.len() + 1).saturating_sub(KEPT_MAX);
        let leaves = |(nth, (at_ms, _)): &(usize, &(i64, OperationId))| {
            *nth < too_many || *at_ms < now_ms.saturating_sub(KEPT_MS)
        };
        let oldest = self.by_age.iter().enumerate().take_while(leaves);
        oldest.map(|(_, (_, id))| *id).take(LEAVING_MAX).collect()
    }

    pub fn keep(&mut self, ticket: Ticket, at_ms: i64, answer: DocBuf) {
        self.forget(ticket.id);
        self.by_age.insert((at_ms, ticket.id));
        let kept = Kept {
            says: ticket.says,
            at_ms,
            answer,
        };
        self.by_id.insert(ticket.id, kept);
    }

    pub fn forget(&mut self, id: OperationId) {
        if let Some(kept) = self.by_id.remove(&id) {
            self.by_age.remove(&(kept.at_ms, id));
        }
    }

    pub fn count(&self) -> usize {
        self.by_id.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{Answers, KEPT_MAX, KEPT_MS, LEAVING_MAX, OtherCommand, Ticket};
    use model::bson::{DocBuf, DocWriter};
    use model::ids::Uuid;

    fn ticket(id: u32, says: u8) -> Ticket {
        let id = Uuid(u128::from(id).to_be_bytes());
        let says = [says; 16];
        Ticket { id, says }
    }

    fn answer(number: i32) -> DocBuf {
        DocWriter::new().with("n", number).finish()
    }

    #[test]
    fn an_id_has_one_command_and_one_answer() {
        let mut answers = Answers::default();
        assert_eq!(answers.find(ticket(1, 1)), Ok(None));
        answers.keep(ticket(1, 1), 10, answer(1));
        assert_eq!(answers.find(ticket(1, 1)), Ok(Some(&answer(1))));
        let other = OtherCommand(ticket(1, 2).id);
        assert_eq!(answers.find(ticket(1, 2)), Err(other));
        assert_eq!(answers.find(ticket(2, 2)), Ok(None));
        // Read again after a doubt: it is the same one.
        answers.keep(ticket(1, 1), 10, answer(1));
        assert_eq!((answers.count(), answers.by_age.len()), (1, 1));
        answers.forget(ticket(1, 1).id);
        assert_eq!(answers, Answers::default());
    }

    #[test]
    fn answers_leave_by_age_and_by_number() {
        let mut answers = Answers::default();
        for id in 0..KEPT_MAX as u32 {
            answers.keep(ticket(id, 1), i64::from(id), answer(1));
        }
        let last = KEPT_MAX as i64;
        // The oldest makes room for one more.
        assert_eq!(answers.leaving(last), [ticket(0, 1).id]);
        answers.forget(ticket(0, 1).id);
        assert_eq!(answers.leaving(last), []);
        // Those of more than an hour ago go too, some with each entry.
        assert_eq!(
            answers.leaving(KEPT_MS + 3),
            [1, 2].map(|id| ticket(id, 1).id)
        );
        assert_eq!(answers.leaving(KEPT_MS + last).len(), LEAVING_MAX);
        // A clock that went back forgets nothing.
        assert_eq!(answers.leaving(-KEPT_MS), []);
    }
}
