//! The shard that is to own the range.

use super::{
    CatalogVersion, Digest, LogPosition, Move, Send, ToAuthority, ToDonor, ToRecipient, Transition,
};
use crate::authority::Outcome;
use model::version::{Age, PlacementVersion};

/// The recipient's document. It stays when the move has ended, until no message of the
/// move can arrive any more.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Recipient {
    /// With the newest version of the catalog that the donor named.
    pub moved: Move,
    /// Options and indexes here are those of this version.
    pub aligned: Option<CatalogVersion>,
    pub phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// Has everything up to this position of the donor's log.
    Receiving {
        copied: LogPosition,
    },
    /// Has everything, and waits for the decision.
    Ready,
    Owner,
    /// What was copied is to be removed.
    Aborted,
}

/// What can happen to a recipient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// More was copied and is in this shard's log. `digest` is that of the content.
    Copied {
        up_to: LogPosition,
        digest: Digest,
    },
    Message(ToRecipient),
    /// Options and indexes are those of a version, durably.
    Aligned {
        catalog: CatalogVersion,
    },
    /// The content here, for a `finish` that has just arrived.
    Finish {
        catalog: CatalogVersion,
        up_to: LogPosition,
        wanted: Digest,
        found: Digest,
    },
    /// The authority says what became of it.
    Decided(Outcome),
    /// Copying fails for good: a unique index, the disk, the operator.
    Failed,
    /// Nothing was heard for a while, or this is a new primary.
    Timer,
}

/// What a shard knows of a range when it is asked to receive it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It owns the range, or some of it.
    Owns,
    /// It still holds what an earlier move left behind.
    HoldsDeadData,
    Empty,
}

impl Recipient {
    /// Answers `receive` where there is no document of that move. `None`: not now;
    /// the donor will ask again.
    pub fn begin(
        moved: Move,
        since: LogPosition,
        standing: Standing,
    ) -> Option<Transition<Recipient>> {
        match standing {
            Standing::Empty => {
                let id = moved.id;
                let recipient = Recipient {
                    moved,
                    aligned: None,
                    phase: Phase::Receiving { copied: since },
                };
                let progress = ToDonor::Progress { id, copied: since };
                Some(Transition::to(recipient, [Send::Donor(progress)]))
            }
            Standing::HoldsDeadData => None,
            // A message from a move that is over: this range is not to be received, and
            // above all not to be cleaned up afterwards.
            Standing::Owns => Some(Transition {
                next: None,
                send: vec![Send::Donor(ToDonor::Cannot { id: moved.id })],
            }),
        }
    }

    pub fn owns(&self) -> bool {
        self.phase == Phase::Owner
    }

    /// What an event leads to; `None` if it means nothing in this phase. `known` is the
    /// newest version of the collection that this shard had learned, by becoming an owner
    /// or ceasing to be one, when this began: what it has learned since may be of a move of
    /// another range, decided later than this one.
    pub fn step(&self, event: Event, known: PlacementVersion) -> Option<Transition<Recipient>> {
        let id = self.moved.id;
        let answer = |message: ToDonor| [Send::Donor(message)];
        match (self.phase, event) {
            (Phase::Receiving { copied }, Event::Copied { up_to, .. }) => {
                let copied = copied.max(up_to);
                let progress = answer(ToDonor::Progress { id, copied });
                Some(self.become_and(Phase::Receiving { copied }, progress))
            }
            (
                Phase::Receiving { copied },
                Event::Finish {
                    catalog,
                    up_to,
                    wanted,
                    found,
                },
            ) => {
                let is_this = catalog == self.moved.catalog && Some(catalog) == self.aligned;
                if copied < up_to || !is_this {
                    // Not yet, and the donor asks again; or of an earlier attempt.
                    return None;
                }
                match wanted == found {
                    true => {
                        let ready = ToDonor::Ready { id, catalog };
                        Some(self.become_and(Phase::Ready, answer(ready)))
                    }
                    false => Some(self.become_and(Phase::Aborted, answer(ToDonor::Cannot { id }))),
                }
            }
            // Before it was ready it may end this by itself.
            (Phase::Receiving { .. }, Event::Failed) => {
                Some(self.become_and(Phase::Aborted, answer(ToDonor::Cannot { id })))
            }
            (
                Phase::Receiving { .. },
                Event::Message(ToRecipient::Release {
                    outcome: Outcome::Aborted,
                    ..
                })
                | Event::Decided(Outcome::Aborted),
            )
            | (
                Phase::Ready,
                Event::Message(ToRecipient::Release {
                    outcome: Outcome::Aborted,
                    ..
                })
                | Event::Decided(Outcome::Aborted),
            ) => Some(self.become_and(Phase::Aborted, answer(ToDonor::Released { id }))),
            (
                Phase::Ready,
                Event::Message(ToRecipient::Release {
                    outcome: Outcome::Committed { version, .. },
                    ..
                })
                | Event::Decided(Outcome::Committed { version, .. }),
            ) => {
                // An old commit, of a move that has long ended: see the module's header.
                let phase = match version.age(known) {
                    Age::Newer | Age::Unknown => Phase::Owner,
                    Age::Same | Age::Older => Phase::Aborted,
                };
                Some(self.become_and(phase, answer(ToDonor::Released { id })))
            }
            (Phase::Ready, Event::Finish { catalog, .. }) if catalog == self.moved.catalog => {
                let ready = ToDonor::Ready { id, catalog };
                Some(self.become_and(Phase::Ready, answer(ready)))
            }
            // The donor knows that the version this was ready for will never be committed.
            (Phase::Ready, Event::Message(ToRecipient::Receive { moved, since }))
                if moved.catalog > self.moved.catalog =>
            {
                let next = Recipient {
                    moved,
                    aligned: self.aligned,
                    phase: Phase::Receiving { copied: since },
                };
                let progress = ToDonor::Progress { id, copied: since };
                Some(Transition::to(next, answer(progress)))
            }
            (Phase::Receiving { .. }, Event::Aligned { catalog }) => {
                let next = Recipient {
                    aligned: self.aligned.max(Some(catalog)),
                    ..self.clone()
                };
                Some(Transition::to(next, []))
            }
            // The donor may be gone for good: somebody has to ask.
            (Phase::Ready, Event::Timer) => {
                let settle = Send::Authority(ToAuthority::Settle { id });
                Some(self.become_and(Phase::Ready, [settle]))
            }
            (Phase::Receiving { copied }, Event::Timer) => {
                let progress = answer(ToDonor::Progress { id, copied });
                Some(self.become_and(self.phase, progress))
            }
            (Phase::Receiving { copied }, Event::Message(ToRecipient::Receive { moved, .. })) => {
                let mut next = self.clone();
                next.moved.catalog = self.moved.catalog.max(moved.catalog);
                let progress = answer(ToDonor::Progress { id, copied });
                Some(Transition::to(next, progress))
            }
            (Phase::Owner, Event::Message(ToRecipient::Release { .. })) => {
                Some(self.become_and(self.phase, answer(ToDonor::Released { id })))
            }
            (Phase::Aborted, Event::Message(message)) => Some(match message {
                ToRecipient::Release { .. } => {
                    self.become_and(self.phase, answer(ToDonor::Released { id }))
                }
                ToRecipient::Receive { .. } | ToRecipient::Finish { .. } => {
                    self.become_and(self.phase, answer(ToDonor::Cannot { id }))
                }
            }),
            (Phase::Aborted, Event::Finish { .. }) => {
                Some(self.become_and(self.phase, answer(ToDonor::Cannot { id })))
            }
            // Late, repeated, or carried by another event (`Finish` with the digest).
            (Phase::Receiving { .. } | Phase::Ready | Phase::Owner | Phase::Aborted, _) => None,
        }
    }

    fn become_and(
        &self,
        phase: Phase,
        send: impl IntoIterator<Item = Send>,
    ) -> Transition<Recipient> {
        let recipient = Recipient {
            moved: self.moved.clone(),
            aligned: self.aligned,
            phase,
        };
        Transition::to(recipient, send)
    }
}
