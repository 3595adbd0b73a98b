//! Sessions whose statements are sent again until one answer has come.
//!
//! A session sends one statement at a time. An attempt goes as the shard handles it:
//!
//! ```text
//!   check out      the member leads in a term; its history does not have the statement
//!     … some rounds pass: it is evaluated …
//!   propose        named the term of the check-out; refused if there was a break since
//! ```
//!
//! A member checks a session out for one attempt at a time. The client loses its patience
//! now and then and tries elsewhere, while the old attempt may still be under way. A
//! statement that is found in the history is answered from there.

use model::time::ClusterTime;
use replication::{Durability, Group, LogPosition, MemberId, Pending, Term};

use crate::machine::Ledger;
use crate::random::Random;

/// Long enough for leadership to go away and to come back.
const EVALUATION_ROUNDS_MAX: u64 = 40;

/// Tells statements from other payloads.
const MARK: &[u8; 8] = b"session:";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Statement {
    pub session: u64,
    pub number: u64,
}

impl Statement {
    fn encode(self) -> Vec<u8> {
        let mut payload = MARK.to_vec();
        payload.extend_from_slice(&self.session.to_le_bytes());
        payload.extend_from_slice(&self.number.to_le_bytes());
        payload
    }

    pub fn decode(payload: &[u8]) -> Option<Statement> {
        let numbers = payload.strip_prefix(MARK)?;
        let (session, rest) = numbers.split_first_chunk::<8>()?;
        let (number, _) = rest.split_first_chunk::<8>()?;
        Some(Statement {
            session: u64::from_le_bytes(*session),
            number: u64::from_le_bytes(*number),
        })
    }
}

enum Phase {
    /// Checked out in a term; proposed some rounds later.
    Evaluating {
        term: Term,
        rounds: u64,
    },
    Proposed(Pending),
}

/// A statement that a member has in hand. It goes on there whatever its client does.
struct Attempt {
    member: MemberId,
    statement: Statement,
    phase: Phase,
}

pub struct Sessions {
    /// What each session wants done now.
    wanted: Vec<Statement>,
    attempts: Vec<Attempt>,
    /// Whether a break in leadership between check-out and proposal is noticed.
    heed_terms: bool,
}

impl Sessions {
    pub fn new(count: u64, heed_terms: bool) -> Self {
        let first = |session| Statement { session, number: 1 };
        Self {
            wanted: (0..count).map(first).collect(),
            attempts: Vec::new(),
            heed_terms,
        }
    }

    /// Some sessions try at a member. Statements that it answers from its history come back.
    pub fn ask(
        &mut self,
        member: MemberId,
        group: &Group<Ledger>,
        ledger: &Ledger,
        random: &mut Random,
    ) -> Vec<Statement> {
        let mut acknowledged = Vec::new();
        for wanted in &mut self.wanted {
            let has_it = |attempt: &Attempt| {
                attempt.member == member && attempt.statement.session == wanted.session
            };
            // The member has it checked out, or the client is patient.
            if self.attempts.iter().any(has_it) || !random.chance(150) {
                continue;
            }
            let Ok(term) = group.leading() else { continue };
            if ledger.has(*wanted) {
                acknowledged.push(*wanted);
                wanted.number += 1;
                continue;
            }
            let rounds = random.below(EVALUATION_ROUNDS_MAX);
            self.attempts.push(Attempt {
                member,
                statement: *wanted,
                phase: Phase::Evaluating { term, rounds },
            });
        }
        acknowledged
    }

    /// A round passes at a member: what was evaluated is proposed, what is answered is
    /// heard. Without a group the member is down, and what it had in hand is gone.
    pub fn pass(&mut self, member: MemberId, group: Option<&Group<Ledger>>) -> Vec<Statement> {
        let mut acknowledged = Vec::new();
        for attempt in std::mem::take(&mut self.attempts) {
            if attempt.member != member {
                self.attempts.push(attempt);
                continue;
            }
            let Some(group) = group else { continue };
            let statement = attempt.statement;
            let phase = match attempt.phase {
                Phase::Evaluating { term, rounds: 0 } => self.propose(group, term, statement),
                Phase::Evaluating { term, rounds } => Some(Phase::Evaluating {
                    term,
                    rounds: rounds - 1,
                }),
                Phase::Proposed(mut pending) => match pending.poll_now() {
                    None => Some(Phase::Proposed(pending)),
                    Some(Ok(_)) => {
                        acknowledged.push(statement);
                        let wanted = &mut self.wanted[statement.session as usize];
                        wanted.number = wanted.number.max(statement.number + 1);
                        None
                    }
                    // Whether it happened is unknown: it is sent again.
                    Some(Err(_)) => None,
                },
            };
            self.attempts.extend(phase.map(|phase| Attempt {
                member,
                statement,
                phase,
            }));
        }
        acknowledged
    }

    fn propose(&self, group: &Group<Ledger>, term: Term, statement: Statement) -> Option<Phase> {
        let payload = statement.encode();
        let companion = |_: &mut [u8], position: LogPosition, _: ClusterTime| position.get();
        let proposed = match self.heed_terms {
            true => group.propose_in(term, Durability::Synced, payload, companion),
            false => group.propose(Durability::Synced, payload, companion),
        };
        proposed.ok().map(Phase::Proposed)
    }
}
