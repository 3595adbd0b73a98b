//! The donor's side of one move: carries out what `cluster::migration::donor` says.
//!
//! ```text
//!   copying         asks the recipient how far it is; follows its own log for the digest
//!   writesBlocked   the digest up to the blocking entry is told; the recipient answers when it has it all
//!   readsBlocked    the config server is asked, until it says what was decided
//!   committed,      the recipient is told, until it says that it has heard
//!   aborted
//! ```
//!
//! One task owns it and goes from phase to phase; each is one entry of the log that changes the
//! document and the ownership together, before anything follows from it.
//!
//! | phase | ownership | `config.rangeDeletions` |
//! | --- | --- | --- |
//! | copying | owned | the task, pending |
//! | writes blocked, reads blocked | owned, blocked | |
//! | committed | lost, under the versions of the decision | the task, to be carried out |
//! | aborted | owned, not blocked | none |
//!
//! A new primary goes on from the document. In *writesBlocked* the digest was lost with the old
//! primary's memory: it is worked out again if that is quick, else the move is aborted. ⚑ Nothing
//! is scanned for long while writes wait.
//!
//! A part of a move of a database's primary (`database.rs`) waits for the others before it blocks writes,
//! and before it blocks reads; what became of it it is told. It has an ownership, and there is no task to
//! delete a range: the collection is dropped when it is given away.
//!
//! **Options and indexes may change meanwhile.** Before writes are blocked the config server is asked which
//! version of them stands, and the recipient is told what the collection is like by now until it is the same
//! there (`alignment.rs`). ⚑ What it is told is looked up after the version was heard. If they change later,
//! the commit is put off: the blocks are lifted, and the same move goes on from copying.
//!
//! The log is pinned from the position before the copy on, here and on the other members
//! (`pins.rs`). If one has less of it when it takes over, because it got a copy of the state
//! meanwhile, the recipient is told so, and the move is aborted. One that does not get on keeps it for a
//! limited time (`stall.rs`). ⚑ Once reads are blocked nothing is kept, neither log nor history: the config
//! server may stay away for as long as it likes.
//!
//! **Who wants a move to end** says so (`killing.rs`), and is told how it ended. Until reads are blocked it is aborted
//! by this; then ⚑ the config server is asked what was decided, and what it has decided stays. What the recipient is
//! asked meanwhile is not waited for.
//!
//! *copying* is in `donor/copying.rs` and `donor/catching_up.rs`, the phases in which clients wait in
//! `donor/critical_section.rs`.

mod catching_up;
mod copying;
mod critical_section;

pub(super) use catching_up::{Changes, Followed};

use super::database::{DatabaseHandle, Reached, Stage};
use super::digest::Follower;
use super::killing::Wish;
use super::peers::{Failure, ask};
use super::plan::{DonorState, Fields, Plan, append_outcome, uuid_value};
use super::stretch::Stretch;
use super::{COORDINATORS, put, remove, settle};
use crate::Shard;
use crate::catalog::Collection;
use crate::ddl::Telling;
use crate::operation::Operation;
use crate::primary_services::Tenure;
use crate::rules::Rule;
use crate::sharding::range_deletion::RangeDeletion;
use crate::sharding::{Applied, BlockLevel, Ownership, Transition};
use cluster::authority::Outcome;
use cluster::migration::donor::{Event, Phase};
use model::Error;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::ids::CollectionId;
use model::version::{ChunkVersion, PlacementVersion};
use parking_lot::Mutex;
use replication::{LogPosition, Pin};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use wire::{Endpoint, Reply};

/// Between two looks at the recipient.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// How long a recipient may take to hear of the end before others are told of it.
const TELL_LIMIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(100);
const ANSWER_WAIT: Duration = Duration::from_secs(20);
/// How long the config server may take to hear that a move was killed.
const SETTLE_WAIT: Duration = Duration::from_secs(5);
/// Why a move that somebody killed is aborted.
const KILLED: &str = "operation was interrupted";

/// How a move ended.
#[derive(Clone, Debug)]
pub(super) struct EndedMove {
    pub(super) outcome: Outcome,
    pub(super) reason: Option<String>,
    /// Whether it was aborted because somebody killed it.
    pub(super) is_killed: bool,
    pub(super) stats: DocBuf,
}

/// What the steps took.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps {
    /// Until the recipient had begun: it removes what is left there of earlier days first.
    pub(super) recipient_begins_ms: u64,
    pub(super) copying_ms: u64,
    pub(super) critical_section_us: u64,
    /// Parts of it: until the recipient has everything, until reads are blocked too, until the
    /// config server has decided.
    pub(super) ready_us: u64,
    pub(super) reads_blocked_us: u64,
    pub(super) commit_us: u64,
    pub(super) documents: i64,
    /// How many of them an earlier primary of the recipient had received.
    pub(super) resumed_at: i64,
    pub(super) bytes: i64,
    pub(super) replayed: i64,
    /// Documents of the range, once they have been counted.
    pub(super) expected: Option<u64>,
    /// The part of its time that the recipient's copy works.
    pub(super) pace: Option<f64>,
    /// What the recipient says of its own steps.
    pub(super) to: DocBuf,
}

/// What others hold of a running donor.
pub(super) struct DonorHandle {
    pub(super) plan: Plan,
    pub(super) began: Instant,
    pub(super) collection: Option<CollectionId>,
    pub(super) stretch: Option<Stretch>,
    /// What others want of it.
    pub(super) wish: watch::Sender<Wish>,
    pub(super) ended: watch::Sender<Option<EndedMove>>,
    /// What `$currentOp` shows and `killOp` kills, while the move is driven.
    pub(super) operation: OnceLock<Arc<Operation>>,
    pub(super) phase: Mutex<&'static str>,
    pub(super) steps: Mutex<Steps>,
    /// The move of a database's primary that it is a part of, while that runs.
    pub(super) whole: Option<Arc<DatabaseHandle>>,
    pub(super) reached: watch::Sender<Reached>,
    /// Of a part: the collection as it was when this began, under whoever led then.
    pub(super) described: Option<DocBuf>,
}

pub(super) struct Driver {
    pub(super) shard: Arc<Shard>,
    pub(super) tenure: Tenure,
    pub(super) state: DonorState,
    pub(super) handle: Arc<DonorHandle>,
    pub(super) recipient: Arc<dyn Endpoint>,
    /// Keeps the log that the recipient still needs.
    pub(super) pin: Option<Pin>,
    pub(super) follower: Option<Follower>,
    /// The entry that blocked writes, if this primary wrote it.
    pub(super) blocked: Option<(Applied, Instant)>,
    pub(super) reason: Option<String>,
    /// Whether that is `killOp`, here or on the recipient.
    pub(super) is_killed: bool,
    /// The recipient is being told that it owns the range.
    pub(super) telling: Option<JoinHandle<Result<Reply, Failure>>>,
    /// The version of options and indexes that this primary last heard to stand. What the collection is like
    /// here since then is of that version, or newer.
    pub(super) standing: Option<u64>,
    /// How often the commit was put off.
    pub(super) put_off: u32,
}

/// A phase was left because the member does not lead any more.
struct Over;

pub(super) fn phase_name(phase: &Phase) -> &'static str {
    match phase {
        Phase::Copying => "copying",
        Phase::WritesBlocked => "writesBlocked",
        Phase::ReadsBlocked => "readsBlocked",
        Phase::Committed(_) => "committed",
        Phase::Aborted => "aborted",
    }
}

impl Driver {
    pub(super) async fn run(mut self) {
        // It ends with the tenure; the next primary goes on.
        let _ = self.drive().await;
        if let Some(telling) = self.telling.take() {
            telling.abort();
        }
    }

    async fn drive(&mut self) -> Result<(), Over> {
        loop {
            *self.handle.phase.lock() = phase_name(&self.state.donor.phase);
            let event = match self.state.donor.phase {
                Phase::Copying => {
                    let since = LogPosition::new(self.state.donor.since);
                    self.copying(since).await?
                }
                Phase::WritesBlocked => self.finishing().await?,
                Phase::ReadsBlocked => self.deciding().await?,
                Phase::Committed(outcome) => self.releasing(outcome).await?,
                Phase::Aborted => self.releasing(Outcome::Aborted).await?,
            };
            let before = self.state.donor.phase;
            if self.step(event).await? {
                let outcome = match before {
                    Phase::Committed(outcome) => outcome,
                    Phase::Copying
                    | Phase::WritesBlocked
                    | Phase::ReadsBlocked
                    | Phase::Aborted => Outcome::Aborted,
                };
                self.shard.migrations.forget_donor(self.state.plan.id);
                self.ended(outcome);
                return Ok(());
            }
        }
    }

    fn check(&self) -> Result<(), Over> {
        match self.tenure.is_over() {
            true => Err(Over),
            false => Ok(()),
        }
    }

    async fn pause(&self, pause: Duration) {
        tokio::select! {
            () = self.tenure.ended() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    fn is_to_abort(&self) -> bool {
        let is_over =
            |whole: &Arc<DatabaseHandle>| whole.stage() == Stage::Decided(Outcome::Aborted);
        let whole = self.handle.whole.as_ref();
        *self.handle.wish.borrow() != Wish::GoOn
            || whole.is_some_and(is_over)
            || (whole.is_none() && self.state.plan.part_of.is_some())
    }

    /// Tells how far this part is, and waits until all may go on; false if it is to be aborted.
    async fn await_others(&self, reached: Reached, wanted: Stage) -> Result<bool, Over> {
        let Some(whole) = &self.handle.whole else {
            return Ok(!self.is_to_abort());
        };
        self.handle.reached.send_replace(reached);
        let mut stage = whole.stage.subscribe();
        let mut wish = self.handle.wish.subscribe();
        tokio::select! {
            _ = stage.wait_for(|now| *now == wanted || matches!(now, Stage::Decided(_))) => {}
            _ = wish.wait_for(|wish| *wish != Wish::GoOn) => {}
            () = self.tenure.ended() => return Err(Over),
        }
        Ok(!self.is_to_abort())
    }

    fn gives_up(&mut self, why: impl Into<String>) -> Event {
        let why = why.into();
        tracing::warn!("a move of {} is aborted: {why}", self.state.plan.namespace);
        self.reason = Some(why);
        Event::Abort
    }

    // What all phases need.

    fn note(&self, fields: Fields<'_>) {
        let mut steps = self.handle.steps.lock();
        steps.documents = fields.long("documents").unwrap_or(steps.documents);
        steps.resumed_at = fields.long("resumedAt").unwrap_or(steps.resumed_at);
        steps.bytes = fields.long("bytes").unwrap_or(steps.bytes);
        steps.replayed = fields.long("replayed").unwrap_or(steps.replayed);
        if let Some(ValueRef::Double(pace)) = fields.0.get("pace") {
            steps.pace = Some(pace);
        }
        if let Ok(to) = fields.doc("to") {
            steps.to = to.to_owned();
        }
    }

    async fn ask_recipient(&self, question: DocWriter) -> Result<Reply, Failure> {
        ask(&self.shard, &*self.recipient, question, ANSWER_WAIT).await
    }

    /// Waits for an answer that is of no use any more when the move is to end; `None` then.
    async fn unless_it_ends<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let mut wish = self.handle.wish.subscribe();
        tokio::select! {
            answer = answer => Some(answer),
            _ = wish.wait_for(|wish| *wish != Wish::GoOn) => None,
        }
    }

    /// The move is given up because somebody wants it to end.
    fn obeys(&mut self) -> Event {
        let wish = self.handle.wish.borrow().clone();
        self.is_killed = wish == Wish::Killed;
        self.gives_up(match wish {
            Wish::Killed => KILLED.to_owned(),
            Wish::End(ended_by) => format!("it was ended by {ended_by}"),
            Wish::GoOn => "the move that it is a part of ends".to_owned(),
        })
    }

    /// The recipient says that it will not have the range.
    fn is_refused(&mut self, report: Doc<'_>) -> Event {
        let why = report.get_str("reason");
        self.reason = Some(why.unwrap_or("the recipient has given up").to_owned());
        self.is_killed = Fields(report).flag("killed");
        Event::RecipientCannot
    }

    fn collection(&self) -> Option<Arc<Collection>> {
        self.shard.catalog.by_id(self.handle.collection?)
    }

    // The end.

    async fn releasing(&mut self, outcome: Outcome) -> Result<Event, Over> {
        // What the log still held for the recipient is not needed any more.
        self.pin = None;
        if self.is_killed && outcome == Outcome::Aborted {
            self.settles_killed().await;
        }
        let began = Instant::now();
        if let Some(telling) = &mut self.telling {
            let told = tokio::select! {
                told = telling => told,
                () = self.tenure.ended() => return Err(Over),
            };
            self.telling = None;
            if matches!(told, Ok(Ok(reply)) if is_released(&reply)) {
                return Ok(Event::RecipientReleased);
            }
        }
        loop {
            self.check()?;
            let released = self.ask_recipient(release(&self.state.plan, outcome)).await;
            // Whoever waits is told in any case: it is decided.
            if released.is_err() && began.elapsed() > TELL_LIMIT {
                self.ended(outcome);
            }
            match released {
                Ok(reply) if is_released(&reply) => return Ok(Event::RecipientReleased),
                // A primary that is being replaced hears it, and has not written it.
                Ok(_) => self.pause(PAUSE).await,
                Err(failure) => {
                    tracing::warn!("a recipient does not hear of the end of a move: {failure}");
                    self.pause(PAUSE).await;
                }
            }
        }
    }

    /// Has it decided that a move that somebody killed is aborted, so that nobody begins it anew who asks for it again.
    /// A config server that is away decides so when it is answered.
    async fn settles_killed(&self) {
        let settled = settle(&self.shard, &self.state.plan, SETTLE_WAIT).await;
        if let Err(failure) = settled {
            tracing::warn!("it is not decided yet that a killed move is aborted: {failure}");
        }
    }

    fn ended(&mut self, outcome: Outcome) {
        if self.handle.ended.borrow().is_some() {
            return;
        }
        let steps = self.handle.steps.lock().clone();
        let total = self.handle.began.elapsed();
        self.shard.migrations.count(outcome, &steps, total);
        let reason = match outcome {
            Outcome::Committed { .. } => None,
            Outcome::Aborted => self.reason.clone(),
        };
        let ended = EndedMove {
            outcome,
            is_killed: self.is_killed && reason.is_some(),
            reason,
            stats: describe_steps(&steps, total),
        };
        let id = self.state.plan.id;
        self.shard.migrations.remember(id, ended.clone());
        self.handle.ended.send_replace(Some(ended));
    }

    // Writing.

    /// Lets the protocol say what an event leads to, and writes it; true if nothing is left.
    async fn step(&mut self, event: Event) -> Result<bool, Over> {
        let Some(transition) = self.state.donor.step(event) else {
            return Ok(false);
        };
        let next = transition.next.map(|donor| DonorState {
            plan: Plan {
                catalog_version: donor.moved.catalog as i64,
                ..self.state.plan.clone()
            },
            donor,
            described: self.state.described.clone(),
            documents: self.state.documents,
        });
        loop {
            self.check()?;
            let written = match self.drop_given_away(next.is_none()).await {
                Ok(()) => self.write(next.as_ref()).await,
                Err(error) => Err(error),
            };
            match written {
                Ok(applied) => {
                    let Some(next) = next else { return Ok(true) };
                    self.entered(&next, applied);
                    self.state = next;
                    return Ok(false);
                }
                Err(error) => {
                    tracing::warn!("a donor's state is not written: {error}");
                    self.pause(PAUSE).await;
                }
            }
        }
    }

    fn entered(&mut self, next: &DonorState, applied: Applied) {
        match next.donor.phase {
            Phase::WritesBlocked => self.blocked = Some((applied, Instant::now())),
            // The recipient has everything, and asks for nothing any more.
            Phase::ReadsBlocked => {
                self.pin = None;
                if let Some(follower) = &mut self.follower {
                    follower.rests();
                }
                if let Some((_, since)) = &self.blocked {
                    let took = since.elapsed().as_micros() as u64;
                    let mut steps = self.handle.steps.lock();
                    steps.reads_blocked_us = took.saturating_sub(steps.ready_us);
                }
            }
            Phase::Copying | Phase::Committed(_) | Phase::Aborted => {
                if let Some((_, since)) = self.blocked.take() {
                    let took = since.elapsed().as_micros() as u64;
                    self.handle.steps.lock().critical_section_us += took;
                }
                if next.donor.phase == Phase::Copying {
                    // Put off: more of the log is asked for. It was let go a moment ago.
                    let since = LogPosition::new(next.donor.since);
                    self.pin = self.shard.log.pin(since).ok();
                    // ⚑ Only from there: otherwise writes were free all the time.
                    if self.state.donor.phase == Phase::ReadsBlocked
                        && let Some(follower) = &mut self.follower
                    {
                        follower.goes_on(&self.shard, applied);
                    }
                } else {
                    self.follower = None;
                }
            }
        }
    }

    /// The collection that went with its database is dropped, once its new owner knows that it has it.
    async fn drop_given_away(&self, has_ended: bool) -> Result<(), Error> {
        let plan = &self.state.plan;
        let is_given_away = matches!(self.state.donor.phase, Phase::Committed(_));
        if !has_ended || !is_given_away || plan.part_of.is_none() {
            return Ok(());
        }
        let is_meant = |known: &Collection| {
            let ownership = known.ownership.as_ref();
            Some(known.id) == self.handle.collection
                && ownership.is_some_and(|it| it.is_dead_copy())
        };
        let dropped = (self.shard).drop_collection_if(&plan.namespace, Telling::Quietly, is_meant);
        dropped.await.map(|_| ())
    }

    async fn write(&self, next: Option<&DonorState>) -> Result<Applied, Error> {
        let plan = &self.state.plan;
        let (id, range) = (plan.id, plan.range.clone());
        let mut documents = Vec::new();
        match next {
            Some(next) => {
                documents.push(put(super::namespace(COORDINATORS), next.document()));
                match next.donor.phase {
                    _ if plan.part_of.is_some() => {}
                    Phase::Committed(_) => {
                        let now = self.shard.cluster_time();
                        let (when, left) = (plan.when_to_clean(), next.documents);
                        documents.push(plan.deletion(false, when, now, left)?);
                    }
                    Phase::Aborted => documents.push(RangeDeletion::delete(id)?),
                    Phase::Copying | Phase::WritesBlocked | Phase::ReadsBlocked => {}
                }
            }
            None => documents.push(remove(super::namespace(COORDINATORS), &id)),
        }
        let Some(collection) = self.collection() else {
            super::write_documents(&self.shard, self.tenure.term(), documents).await?;
            return Ok(Applied {
                position: self.shard.log.last_applied(),
                time: self.shard.store.applied_time(),
            });
        };
        let phase = next.map(|next| next.donor.phase);
        let counts_from = match phase {
            Some(Phase::Committed(Outcome::Committed { since, .. })) => Some(since),
            Some(_) | None => None,
        };
        let change = move |known: &Ownership| -> Result<Ownership, Error> {
            let range = range.clone();
            Ok(match phase {
                Some(Phase::WritesBlocked) => known.with_block(id, range, BlockLevel::Writes),
                Some(Phase::ReadsBlocked) => known.with_block(id, range, BlockLevel::Reads),
                Some(Phase::Committed(Outcome::Committed { version, .. })) => {
                    losing(&known.without_block(id), range, version)
                }
                Some(Phase::Committed(Outcome::Aborted) | Phase::Aborted) => {
                    known.without_block(id)
                }
                // Put off: whatever was blocked is free again.
                Some(Phase::Copying) => known.without_block(id),
                None => known.clone(),
            })
        };
        let first = match plan.part_of {
            Some(_) => Some(Ownership::of_unsharded(plan.known, true)?),
            None => None,
        };
        let transition = Transition {
            ownership: Some(Box::new(change)),
            counts_from,
            forgets_ownership: first.is_some()
                && matches!(
                    phase,
                    Some(Phase::Aborted | Phase::Committed(Outcome::Aborted))
                ),
            first,
            documents,
            expect: Vec::new(),
            term: Some(self.tenure.term()),
        };
        if phase == Some(Phase::ReadsBlocked) && !self.shard.rules.hold(Rule::CommitBlock) {
            return Ok(self.shard.begin_transition(collection.id, transition));
        }
        self.shard.transition(collection.id, &transition).await
    }
}

/// The ownership of a shard that gave a range away.
fn losing(
    known: &Ownership,
    range: model::range::KeyRange,
    version: PlacementVersion,
) -> Ownership {
    let left = known.losing(range);
    let chunk = match left.owned.is_empty() {
        true => ChunkVersion::ZERO,
        false => version.chunk,
    };
    super::with_versions(&left, chunk, version)
}

/// Whether a recipient has written the end of a move ⚑: that it heard of it is not enough to forget
/// the move here.
fn is_released(reply: &Reply) -> bool {
    reply.document().get("released") == Some(ValueRef::Boolean(true))
}

fn release(plan: &Plan, outcome: Outcome) -> DocWriter {
    let mut writer = DocWriter::new()
        .with("_terndbReceiveRelease", 1)
        .with("id", uuid_value(&plan.id));
    append_outcome(&mut writer, outcome);
    writer
}

/// What a recipient needs to make the same collection.
pub(super) fn describe(collection: &Collection, plan: &Plan, writer: &mut DocWriter) {
    writer.append("options", &collection.options);
    if plan.part_of.is_some() {
        writer.begin_document("collectionVersion");
        plan.known.append_to(writer);
        writer.end();
    } else if let Some(ownership) = &collection.ownership {
        writer.append("unique", ownership.unique);
        writer.begin_document("collectionVersion");
        ownership.collection_version.append_to(writer);
        writer.end();
    }
    match &collection.clustering {
        Some(clustering) => writer.append("clustering", &clustering.key),
        None => writer.append("clustering", ValueRef::Null),
    };
    writer.begin_array("indexes");
    for (_, index) in collection.secondary_indexes() {
        if index.is_ready() && !index.definition.is_id() {
            writer.push(&index.definition.spec);
        }
    }
    writer.end();
}

fn describe_steps(steps: &Steps, total: Duration) -> DocBuf {
    DocWriter::new()
        .with("totalMillis", total.as_millis() as i64)
        .with("recipientBeginsMillis", steps.recipient_begins_ms as i64)
        .with("cloneMillis", steps.copying_ms as i64)
        .with("criticalSectionMicros", steps.critical_section_us as i64)
        .with("readyMicros", steps.ready_us as i64)
        .with("blockReadsMicros", steps.reads_blocked_us as i64)
        .with("commitMicros", steps.commit_us as i64)
        .with("clonedDocs", steps.documents)
        .with("clonedBytes", steps.bytes)
        .with("replayedChanges", steps.replayed)
        .with("to", &steps.to)
        .finish()
}
