//! Calls that wait, watched: a member that has fallen silent is not waited for while another one leads.
//!
//! A process that is stopped, a machine whose cable is pulled or whose disk hangs keeps its connections:
//! nothing tells a caller that there will be no answer, and its set has had another primary for long.
//!
//! ```text
//!   call ─► a reply
//!     │ none within hello_limit
//!     ▼
//!   hello to the same member ─► it answers: the command takes its time, on with waiting
//!     │ silence
//!     ▼
//!   look at all members ─► another one leads (or, for reads of secondaries, another one answers, and
//!     │                    this was silent for some rounds): OutcomeUnknown, the caller asks again
//!     └► nobody does: on with waiting; new calls look for somebody
//! ```
//!
//! ⚑ Silence alone never ends a call: a member that is only slow would lose work that nobody else can
//! take over; only a hurried call, whose caller goes on without the answer. Of several calls that wait for one member, one says `hello`.
//!
//! A write that its caller drops (a time limit of his own) casts doubt on the member as well: the next
//! call looks first. Reads are dropped whenever a client has had enough, which says nothing about the member: others
//! go on with it while it is said `hello` to, and doubt it only if it stays silent.

use std::sync::Arc;

use tokio::time::Instant;

use super::read_preference::ReadMode;
use super::replica_set::{Role, Shared};
use super::{Answer, BoxFuture, CallError, Endpoint};
use crate::operation::only_reads;
use crate::reply::Reply;
use crate::request::Request;

/// Rounds of silence before a read of a secondary is taken elsewhere.
const SILENT_ROUNDS: u32 = 3;

/// When a member was last said `hello` to because calls wait for it, and whether it answered.
#[derive(Default)]
pub(super) struct Heard(tokio::sync::Mutex<Option<(Instant, bool)>>);

/// One member of a set.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) set: Arc<Shared>,
    pub(super) host: String,
    pub(super) endpoint: Arc<dyn Endpoint>,
    /// What whoever asked wanted of a member.
    pub(super) mode: ReadMode,
}

/// Doubts a member whose call is dropped.
struct Waiting<'a> {
    member: &'a Watched,
    reads: bool,
    has_ended: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if self.reads => {
                let member = self.member.clone();
                runtime.spawn(async move {
                    if !member.is_heard().await {
                        member.set.doubt(&member.host);
                    }
                });
            }
            Ok(_) | Err(_) => self.member.set.doubt(&self.member.host),
        }
    }
}

impl Watched {
    pub(super) async fn ask(&self, request: Request) -> Result<Reply, CallError> {
        let mut waiting = Waiting {
            member: self,
            reads: only_reads(request.name()),
            has_ended: false,
        };
        let is_hurried = request.is_hurried();
        let mut call = self.endpoint.call(request);
        let mut silent_rounds = 0;
        let result = loop {
            let answered = self.set.pulse.within(self.set.times.hello_limit, &mut call);
            if let Some(result) = answered.await {
                break result;
            }
            let is_replaced = tokio::select! {
                biased;
                result = &mut call => break result,
                is_replaced = self.is_replaced(&mut silent_rounds) => is_replaced,
            };
            let is_given_up = is_hurried && silent_rounds > 0;
            if is_replaced || is_given_up {
                break Err(CallError::OutcomeUnknown(format!(
                    "{} does not answer any more{}",
                    self.host,
                    if is_replaced {
                        ", and others of its set do"
                    } else {
                        ""
                    }
                )));
            }
        };
        waiting.has_ended = true;
        result
    }

    /// A reply of this member, which alone can go on with what it began.
    pub(super) fn answered(self, reply: Reply) -> Answer {
        Answer {
            reply,
            member: Some(Arc::new(self)),
        }
    }

    /// Whether it is silent while another member does what it should.
    async fn is_replaced(&self, silent_rounds: &mut u32) -> bool {
        if self.is_heard().await {
            *silent_rounds = 0;
            return false;
        }
        *silent_rounds += 1;
        let looks = {
            self.set.doubt(&self.host);
            self.set.known.lock().looks
        };
        self.set.look(looks, self.mode).await;
        let known = self.set.known.lock();
        let mut others = known.members.iter().filter(|(host, _)| **host != self.host);
        match self.mode {
            ReadMode::Primary => others.any(|(_, other)| other.role == Role::Primary),
            ReadMode::PrimaryPreferred
            | ReadMode::Secondary
            | ReadMode::SecondaryPreferred
            | ReadMode::Nearest => {
                *silent_rounds >= SILENT_ROUNDS
                    && others.any(|(_, other)| other.role != Role::Unknown)
            }
        }
    }

    /// Whether it still says anything.
    async fn is_heard(&self) -> bool {
        let asked_at = Instant::now();
        let heard = {
            let known = self.set.known.lock();
            known
                .members
                .get(&self.host)
                .map(|member| member.heard.clone())
        };
        let Some(heard) = heard else {
            return self.set.ask(&self.host, &self.endpoint).await.is_some();
        };
        let mut last = heard.0.lock().await;
        if let Some((at, answered)) = *last
            && at + self.set.times.hello_limit >= asked_at
        {
            return answered;
        }
        let answered = self.set.ask(&self.host, &self.endpoint).await.is_some();
        *last = Some((Instant::now(), answered));
        answered
    }
}

impl Endpoint for Watched {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        Box::pin(self.ask(request))
    }

    fn works_elsewhere(&self) -> bool {
        self.endpoint.works_elsewhere()
    }
}
