//! The shard that owns the range.

use super::{
    CatalogVersion, Digest, LogPosition, Move, Send, ToAuthority, ToRecipient, Transition,
};
use crate::authority::Outcome;

/// The donor's document.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Donor {
    pub moved: Move,
    /// The recipient follows the log from here on.
    pub since: LogPosition,
    pub phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// The recipient copies, and follows the log.
    Copying,
    /// Writes to the range wait since the entry that wrote this.
    WritesBlocked,
    /// Reads wait too. Only the authority can end this.
    ReadsBlocked,
    /// The recipient owns the range.
    Committed(Outcome),
    Aborted,
}

/// What can happen to a donor.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// The recipient is close enough: writes may be blocked.
    AlmostCaughtUp,
    /// Writes are blocked, and nothing of the range is under way any more: nothing comes
    /// behind this position, and the content up to it has this digest. It can be worked out
    /// again as long as writes stay blocked, so it is not part of the document.
    Drained {
        at: LogPosition,
        digest: Digest,
    },
    /// For the attempt with this version of the catalog.
    RecipientReady {
        catalog: CatalogVersion,
    },
    RecipientCannot,
    /// The authority says which version of options and indexes stands.
    CatalogStands {
        catalog: CatalogVersion,
    },
    /// The authority did not commit with the version that was `known`, and never will: it is `now`
    /// another one. Nothing was decided.
    CatalogChanged {
        known: CatalogVersion,
        now: CatalogVersion,
    },
    /// The authority says what became of it.
    Decided(Outcome),
    /// The authority did not commit, because something it was told no longer holds.
    CommitRefused,
    /// Somebody wants the move to end: an operator, a change of the collection, a
    /// deadline.
    Abort,
    RecipientReleased,
    /// Nothing was heard for a while, or this is a new primary.
    Timer,
}

impl Donor {
    /// Begins a move of a range that is owned and not in another move.
    pub fn begin(moved: Move, since: LogPosition) -> Transition<Donor> {
        let donor = Donor {
            moved,
            since,
            phase: Phase::Copying,
        };
        let again = donor.again();
        Transition::to(donor, again)
    }

    pub fn blocks_writes(&self) -> bool {
        matches!(self.phase, Phase::WritesBlocked | Phase::ReadsBlocked)
    }

    pub fn blocks_reads(&self) -> bool {
        matches!(self.phase, Phase::ReadsBlocked)
    }

    /// Whether the range has been given away.
    pub fn has_given_away(&self) -> bool {
        matches!(self.phase, Phase::Committed(_))
    }

    /// What an event leads to; `None` if it means nothing in this phase.
    pub fn step(&self, event: Event) -> Option<Transition<Donor>> {
        let next = match (self.phase, event) {
            (_, Event::Timer) => return Some(Transition::to(self.clone(), self.again())),
            (Phase::Copying, Event::AlmostCaughtUp) => Phase::WritesBlocked,
            (Phase::Copying, Event::CatalogStands { catalog }) => {
                let is_newer = catalog > self.moved.catalog;
                return is_newer.then(|| self.with(catalog, Phase::Copying));
            }
            // Of this attempt: what was asked before is answered for good as well.
            (Phase::ReadsBlocked, Event::CatalogChanged { known, now }) => {
                let is_this = known == self.moved.catalog;
                return is_this.then(|| self.with(now.max(known + 1), Phase::Copying));
            }
            (Phase::WritesBlocked, Event::Drained { at, digest }) => {
                let finish = ToRecipient::Finish {
                    id: self.moved.id,
                    catalog: self.moved.catalog,
                    up_to: at,
                    digest,
                };
                return Some(Transition::to(self.clone(), [Send::Recipient(finish)]));
            }
            (Phase::WritesBlocked, Event::RecipientReady { catalog })
                if catalog == self.moved.catalog =>
            {
                Phase::ReadsBlocked
            }
            // Nothing was asked of the authority yet, by this primary or another: that
            // happens only after `ReadsBlocked` is durable. What was asked for an earlier
            // version of the catalog will never be.
            (Phase::Copying | Phase::WritesBlocked, Event::RecipientCannot | Event::Abort) => {
                Phase::Aborted
            }
            // Here it may have been decided: ask, and be told.
            (Phase::ReadsBlocked, Event::CommitRefused | Event::Abort) => {
                let id = self.moved.id;
                let settle = Send::Authority(ToAuthority::Settle { id });
                return Some(Transition::to(self.clone(), [settle]));
            }
            (Phase::ReadsBlocked, Event::Decided(outcome)) => match outcome {
                Outcome::Committed { .. } => Phase::Committed(outcome),
                Outcome::Aborted => Phase::Aborted,
            },
            (Phase::Committed(_) | Phase::Aborted, Event::RecipientReleased) => {
                return Some(Transition {
                    next: None,
                    send: Vec::new(),
                });
            }
            // Late, or repeated.
            (
                Phase::Copying
                | Phase::WritesBlocked
                | Phase::ReadsBlocked
                | Phase::Committed(_)
                | Phase::Aborted,
                _,
            ) => return None,
        };
        Some(self.with(self.moved.catalog, next))
    }

    fn with(&self, catalog: CatalogVersion, phase: Phase) -> Transition<Donor> {
        let moved = Move {
            catalog,
            ..self.moved.clone()
        };
        let donor = Donor {
            moved,
            since: self.since,
            phase,
        };
        let again = donor.again();
        Transition::to(donor, again)
    }

    /// What this phase waits for an answer to.
    fn again(&self) -> Vec<Send> {
        let id = self.moved.id;
        let message = match self.phase {
            Phase::Copying => Send::Recipient(ToRecipient::Receive {
                moved: self.moved.clone(),
                since: self.since,
            }),
            // Sent when what it says has been worked out.
            Phase::WritesBlocked => return Vec::new(),
            Phase::ReadsBlocked => Send::Authority(ToAuthority::Commit {
                moved: self.moved.clone(),
            }),
            Phase::Committed(outcome) => Send::Recipient(ToRecipient::Release { id, outcome }),
            Phase::Aborted => Send::Recipient(ToRecipient::Release {
                id,
                outcome: Outcome::Aborted,
            }),
        };
        vec![message]
    }
}
