//! What waits for the log's loop: proposals, packets of other members, requests of handles.

use tokio::sync::oneshot;

use crate::copying::{Gathering, PartRead};
use crate::entry::{Applied, Entry, LogPosition};
use crate::error::{BoxError, ChangeError, LeaderError, ProposeError};
use crate::member::MemberId;
use crate::message::Envelope;
use crate::state_machine::{CopyId, StateParts};

pub(crate) type Answer = oneshot::Sender<Result<Applied, ProposeError>>;

/// An entry on its way into the log.
pub(crate) struct Proposal<C> {
    pub entry: Entry,
    pub companion: Option<C>,
    /// Nobody waits for what the log proposes to itself.
    pub answer: Option<Answer>,
}

impl<C> Proposal<C> {
    pub fn answer(self, outcome: Result<Applied, ProposeError>) {
        if let Some(answer) = self.answer {
            // A proposer that no longer listens does not mind.
            let _ = answer.send(outcome);
        }
    }
}

/// Proposals that are written and synced together.
pub(crate) struct Batch<C> {
    pub proposals: Vec<Proposal<C>>,
    pub needs_sync: bool,
    pub bytes: usize,
}

impl<C> Default for Batch<C> {
    fn default() -> Self {
        Self {
            proposals: Vec::new(),
            needs_sync: false,
            bytes: 0,
        }
    }
}

/// What a handle asks of the loop.
pub(crate) enum Request {
    Barrier(oneshot::Sender<Result<LogPosition, LeaderError>>),
    Transfer {
        to: Option<MemberId>,
        answer: oneshot::Sender<Result<(), LeaderError>>,
    },
    Change {
        voters: Vec<MemberId>,
        learners: Vec<MemberId>,
        answer: oneshot::Sender<Result<(), ChangeError>>,
    },
    Unreachable(MemberId),
    /// The member's process has ended.
    Gone(MemberId),
    /// Ask for votes now.
    Campaign,
    /// Do not stand for election for so long; zero ends it.
    Rest {
        ticks: u64,
    },
    /// A part of a copy was read, and its source comes back.
    PartRead {
        to: MemberId,
        position: LogPosition,
        parts: Box<dyn StateParts>,
        next: Result<PartRead, BoxError>,
    },
    /// It is known what there is of a copy that is being received.
    CopyResumed {
        copy: CopyId,
        resumed: Result<Option<Gathering>, BoxError>,
    },
    StepDown(oneshot::Sender<Result<(), LeaderError>>),
}

/// Everything that waits for the loop.
pub(crate) struct Work<C> {
    pub batch: Batch<C>,
    pub packets: Vec<Envelope>,
    pub requests: Vec<Request>,
}

impl<C> Default for Work<C> {
    fn default() -> Self {
        Self {
            batch: Batch::default(),
            packets: Vec::new(),
            requests: Vec::new(),
        }
    }
}

impl<C> Work<C> {
    pub fn is_empty(&self) -> bool {
        self.batch.proposals.is_empty() && self.packets.is_empty() && self.requests.is_empty()
    }
}
