//! The recipient's side of one move: carries out what `cluster::migration::recipient` says.
//!
//! ```text
//!   messages (_terndbReceive, …Finish, …Release) ─┐
//!   the receiver has ended (`receive.rs`) ────────┼─► step ─► document, ownership: one entry ─► answers
//!   nothing was heard for a while ────────────────┘
//! ```
//!
//! One task owns it. Messages wait for their answers in a queue of one each; a message that was
//! answered in vain comes again.
//!
//! | phase | ownership | `config.rangeDeletions` |
//! | --- | --- | --- |
//! | receiving, ready | the range is received | the task, pending |
//! | owner | owned, under the versions of the decision | none |
//! | aborted | neither: what was copied is dead | the task, to be carried out |
//!
//! A part of a move of a database's primary has a collection of its own: it is dropped if the move is
//! aborted, and has no ownership any more, like any collection that is not sharded, when it has come.
//!
//! **Options and indexes may change meanwhile**: the donor tells what they are by now, and they are made so
//! beside the copying (`alignment.rs`). A recipient that is ready, and is told of a newer version of them, goes
//! on receiving: its donor has lifted its blocks.
//!
//! The document of a move that has ended stays for [`KEPT_MS`], so that messages that are
//! repeated late are answered for what they are.

use super::alignment::{Description, align};
use super::learning::learn_earlier;
use super::peers::Failure;
use super::plan::{Fields, Plan, RecipientState, phase_name, uuid_value};
use super::progress::Progress;
use super::receive::{Cleared, Complete, Ended, Orders, Receiver};
use super::stretch::Stretch;
use super::warming::PutOff;
use super::{RECIPIENTS, put, remove};
use crate::Shard;
use crate::catalog::Collection;
use crate::ddl::Telling;
use crate::primary_services::Tenure;
use crate::rules::Rule;
use crate::sharding::range_deletion::{RangeDeletion, WhenToClean};
use crate::sharding::{Ownership, Transition};
use cluster::authority::Outcome;
use cluster::migration::recipient::{Event, Phase};
use cluster::migration::{Digest, Move, Send, ToAuthority, ToRecipient};
use model::bson::{Doc, DocBuf, DocWriter};
use model::ids::CollectionId;
use model::time::ClusterTime;
use model::version::{ChunkVersion, PlacementVersion};
use model::{Code, Error};
use replication::LogPosition;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use wire::ConnectionInfo;

/// How long a move that has ended is remembered.
pub(super) const KEPT_MS: i64 = 10 * 60 * 1000;
/// How long a recipient that is ready waits for the donor before it asks what was decided.
const SILENCE: Duration = Duration::from_secs(5);
/// The same for a part of a whole: the others have to get ready too.
const SILENCE_OF_PARTS: Duration = Duration::from_secs(30);
/// How often a move that has ended is looked at, until it is forgotten.
const LOOK_BACK: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);
const SETTLE_WAIT: Duration = Duration::from_secs(20);
/// How long a donor that asks for the end waits in one question.
const FINISH_WAIT: Duration = Duration::from_secs(5);

/// What a recipient is told or asked.
pub(super) enum Message {
    /// `_terndbReceive` as it came: how far is it, and what is the collection like?
    Receive(DocBuf),
    Finish {
        catalog: u64,
        up_to: LogPosition,
        digest: Digest,
    },
    Release(Outcome),
}

pub(super) struct Letter {
    pub(super) message: Message,
    pub(super) answer: oneshot::Sender<DocBuf>,
}

/// What others hold of a running recipient.
pub(super) struct RecipientHandle {
    pub(super) plan: Plan,
    pub(super) letters: mpsc::Sender<Letter>,
    pub(super) progress: Arc<Progress>,
}

impl RecipientHandle {
    /// Whether it may have been decided that the range is this shard's, and is not written yet.
    pub(super) fn is_ready(&self) -> bool {
        self.progress.ready.load(Ordering::Acquire)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.progress.ended.load(Ordering::Relaxed)
    }
}

pub(super) struct Driver {
    pub(super) shard: Arc<Shard>,
    pub(super) tenure: Tenure,
    pub(super) state: RecipientState,
    pub(super) collection: Option<CollectionId>,
    pub(super) progress: Arc<Progress>,
    pub(super) letters: mpsc::Receiver<Letter>,
    /// What was found when everything had come, until the donor asks for it.
    pub(super) found: Option<Complete>,
    /// From where the log is to be followed again.
    pub(super) goes_on: Option<Complete>,
    pub(super) aligning: Option<Aligning>,
    /// What is to be read into memory when the move has ended.
    pub(super) put_off: Option<PutOff>,
    pub(super) reading: Option<JoinHandle<()>>,
}

/// To whom a receiver tells what is not its own to do.
#[derive(Clone)]
struct Told {
    cleared: mpsc::Sender<Cleared>,
    put_off: mpsc::Sender<PutOff>,
}

/// Options and indexes that are being made those of the donor.
pub(super) struct Aligning {
    catalog: u64,
    task: JoinHandle<Result<bool, Error>>,
    stop: watch::Sender<bool>,
}

/// A donor that waits for *ready*.
struct Finishing {
    catalog: u64,
    up_to: LogPosition,
    wanted: Digest,
    answer: oneshot::Sender<DocBuf>,
}

impl Driver {
    pub(super) async fn run(mut self) {
        let orders = watch::Sender::new(Orders::default());
        let (cleared, mut clearings) = mpsc::channel(1);
        let (put_off, mut all_put_off) = mpsc::channel(1);
        let told = Told { cleared, put_off };
        let mut receiver = self.start_receiver(&orders, &told);
        let mut finishing: Option<Finishing> = None;
        let mut why: Option<Error> = None;
        let silence = match self.state.plan.part_of {
            Some(_) => SILENCE_OF_PARTS,
            None => SILENCE,
        };
        self.drop_copy().await;
        loop {
            if self.has_ended() {
                self.progress.ended.store(true, Ordering::Relaxed);
                orders.send_modify(|orders| orders.stop = true);
                self.stop_aligning();
                self.read_what_was_put_off();
            } else if receiver.is_none() && self.found.is_none() {
                // It was ready, and is not any more.
                receiver = self.start_receiver(&orders, &told);
            }
            if self.is_forgotten() {
                let id = self.state.plan.id;
                let forget = vec![remove(super::namespace(RECIPIENTS), &id)];
                // What stays is forgotten by the next primary.
                let term = self.tenure.term();
                let _ = super::write_documents(&self.shard, term, forget).await;
                break;
            }
            tokio::select! {
                () = self.tenure.ended() => break,
                letter = self.letters.recv() => match letter {
                    None => break,
                    Some(letter) => {
                        self.read(letter, &orders, &mut finishing, why.as_ref()).await;
                    }
                },
                ended = ended(&mut receiver) => {
                    receiver = None;
                    why = self.received(ended, &mut finishing).await;
                }
                Some(Cleared(written)) = clearings.recv() => {
                    // Who is not answered stops.
                    if self.is_cleared().await {
                        let _ = written.send(());
                    }
                }
                Some(put_off) = all_put_off.recv() => self.put_off = Some(put_off),
                aligned = aligned(&mut self.aligning) => {
                    why = self.aligned(aligned).await.or(why);
                }
                () = tokio::time::sleep(silence), if self.state.recipient.phase == Phase::Ready => {
                    self.settle().await;
                }
                () = tokio::time::sleep(LOOK_BACK), if self.has_ended() => {}
                () = tokio::time::sleep(FINISH_WAIT), if finishing.is_some() => {
                    // Not yet: the donor asks again.
                    if let Some(waiting) = finishing.take() {
                        let _ = waiting.answer.send(self.report(None));
                    }
                }
            }
        }
        orders.send_modify(|orders| orders.stop = true);
        self.stop_aligning();
        drop(clearings);
        // They write, so they are never left in the middle.
        if let Some(aligning) = self.aligning.take() {
            let _ = aligning.task.await;
        }
        drop(all_put_off);
        if let Some(receiver) = receiver {
            let _ = receiver.await;
        }
        // It stops as the tenure ends, and has an end of its own where the move is only forgotten.
        if let Some(reading) = self.reading.take() {
            let _ = reading.await;
        }
    }

    /// The move has ended: what it has brought is read into memory, if it stays.
    fn read_what_was_put_off(&mut self) {
        if let Some(put_off) = self.put_off.take()
            && self.state.recipient.phase == Phase::Owner
        {
            self.reading = Some(tokio::spawn(put_off.read(self.tenure.clone())));
        }
    }

    fn stop_aligning(&self) {
        if let Some(aligning) = &self.aligning {
            aligning.stop.send_replace(true);
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self.state.recipient.phase, Phase::Owner | Phase::Aborted)
    }

    fn is_forgotten(&self) -> bool {
        self.state
            .ended_ms
            .is_some_and(|ended| ended + KEPT_MS < self.shard.clock.now_ms())
    }

    fn start_receiver(
        &mut self,
        orders: &watch::Sender<Orders>,
        told: &Told,
    ) -> Option<JoinHandle<Ended>> {
        if !matches!(self.state.recipient.phase, Phase::Receiving { .. }) {
            return None;
        }
        let orders = orders.subscribe();
        let goes_on = self.goes_on.take();
        let plan = self.state.plan.clone();
        let collection = self.shard.catalog.by_id(self.collection?)?;
        let donor = match self
            .shard
            .migrations
            .shards
            .get(&plan.donor, &plan.other_host)
        {
            Ok(donor) => donor,
            Err(error) => return Some(tokio::spawn(async move { Ended::Failed(error) })),
        };
        let shard = self.shard.clone();
        let progress = self.progress.clone();
        let tenure = self.tenure.clone();
        let since = LogPosition::new(self.state.since);
        let resumes = self.state.cleared;
        let Told { cleared, put_off } = told.clone();
        Some(tokio::spawn(async move {
            let described = DocWriter::new()
                .with("_terndbReceive", 1)
                .with("id", uuid_value(&plan.id))
                .with("ns", plan.namespace.as_str())
                .with("from", plan.donor.as_str())
                .finish();
            let connection = Arc::new(ConnectionInfo::in_process(-1));
            let registered = shard
                .operations
                .begin(&connection, described.into_bytes().into());
            let operation = Arc::clone(&registered);
            *progress.operation.lock() = Some(operation.clone());
            let shown = progress.clone();
            let receiver = Receiver {
                shard: shard.clone(),
                stretch: Stretch::new(&collection, &plan.pattern, &plan.range),
                collection: collection.id,
                plan,
                donor,
                orders,
                progress,
                tenure,
                operation,
                since,
                resumes,
                goes_on,
                cleared,
                put_off,
            };
            let ended = receiver.run().await;
            *shown.operation.lock() = None;
            ended
        }))
    }

    /// Writes down that nothing of earlier days is left; false if it does not matter any more.
    async fn is_cleared(&mut self) -> bool {
        if matches!(self.state.recipient.phase, Phase::Receiving { .. }) {
            let mut state = self.state.clone();
            state.cleared = true;
            self.write(state, None).await;
        }
        self.state.cleared
    }

    async fn read(
        &mut self,
        letter: Letter,
        orders: &watch::Sender<Orders>,
        finishing: &mut Option<Finishing>,
        why: Option<&Error>,
    ) {
        let Letter { message, answer } = letter;
        let id = self.state.plan.id;
        match message {
            Message::Receive(request) => {
                if let Err(error) = self.hear(request.as_doc(), orders).await {
                    tracing::warn!("what a donor says of its collection is not read: {error}");
                }
            }
            Message::Finish {
                catalog,
                up_to,
                digest,
            } => {
                // ⚑ Of an earlier attempt: what was ready for that says nothing about now.
                let known = &self.state.recipient;
                let is_this = known.moved.catalog == catalog && known.aligned == Some(catalog);
                if !is_this && !self.has_ended() {
                    let _ = answer.send(self.report_as("receiving", None));
                    return;
                }
                if matches!(self.state.recipient.phase, Phase::Receiving { .. }) {
                    orders.send_modify(|orders| orders.up_to = Some(up_to));
                    let waiting = Finishing {
                        catalog,
                        up_to,
                        wanted: digest,
                        answer,
                    };
                    match self.found {
                        Some(found) => {
                            let why = self.compare(found, &waiting).await;
                            let _ = waiting.answer.send(self.report(why.as_ref()));
                        }
                        // A donor that asks again has given up waiting for the first answer.
                        None => *finishing = Some(waiting),
                    }
                    return;
                }
            }
            Message::Release(outcome) => {
                let event = Event::Message(ToRecipient::Release { id, outcome });
                self.step(event).await;
            }
        }
        let _ = answer.send(self.report(why));
    }

    /// The donor tells of a version of options and indexes, and what the collection is like.
    async fn hear(
        &mut self,
        request: Doc<'_>,
        orders: &watch::Sender<Orders>,
    ) -> Result<(), Error> {
        let was_ready = self.state.recipient.phase == Phase::Ready;
        let moved = Move {
            catalog: Fields(request).count("catalogVersion")?,
            ..self.state.plan.moved()
        };
        let since = self.state.since;
        let receive = ToRecipient::Receive { moved, since };
        self.step(Event::Message(receive)).await;
        let receives = matches!(self.state.recipient.phase, Phase::Receiving { .. });
        if was_ready && receives {
            // More follows behind what was the last position.
            orders.send_replace(Orders::default());
            self.goes_on = self.found.take();
        }
        let recipient = &self.state.recipient;
        let wanted = recipient.moved.catalog;
        if !receives || self.aligning.is_some() || recipient.aligned == Some(wanted) {
            return Ok(());
        }
        let description = Description::from_receive(request)?;
        let description = description.filter(|description| description.catalog == wanted);
        if let (Some(description), Some(collection)) = (description, self.collection) {
            self.begin_to_align(request, description, collection);
        }
        Ok(())
    }

    fn begin_to_align(
        &mut self,
        request: Doc<'_>,
        description: Description,
        collection: CollectionId,
    ) {
        let (shard, plan) = (self.shard.clone(), self.state.plan.clone());
        let catalog = description.catalog;
        let command = request.to_owned().into_bytes();
        let stop = watch::Sender::new(false);
        let mut stopped = stop.subscribe();
        let task = tokio::spawn(async move {
            let connection = Arc::new(ConnectionInfo::in_process(-1));
            let operation = shard.operations.begin(&connection, command.into());
            // Ends the operation at its next step, and never takes its place.
            let stopping = async {
                let _ = stopped.wait_for(|stop| *stop).await;
                operation.kill();
                std::future::pending::<()>().await;
            };
            let aligned = tokio::select! {
                aligned = align(&shard, &plan, collection, &description, &operation) => aligned,
                () = stopping => Ok(false),
            };
            if matches!(aligned, Ok(false)) {
                tokio::time::sleep(PAUSE).await;
            }
            aligned
        });
        self.aligning = Some(Aligning {
            catalog,
            task,
            stop,
        });
    }

    /// Options and indexes are those of the donor, or were not made so.
    async fn aligned(&mut self, aligned: Result<bool, Error>) -> Option<Error> {
        let catalog = self.aligning.take()?.catalog;
        match aligned {
            Ok(true) => self.step(Event::Aligned { catalog }).await,
            // They change again: the donor tells what they are.
            Ok(false) => {}
            Err(_) if self.has_ended() || self.tenure.is_over() => {}
            Err(error) => {
                tracing::warn!(
                    "indexes of {} are not made: {error}",
                    self.state.plan.namespace
                );
                self.step(Event::Failed).await;
                return Some(error);
            }
        }
        None
    }

    /// The receiver has ended.
    async fn received(&mut self, ended: Ended, finishing: &mut Option<Finishing>) -> Option<Error> {
        let why = match ended {
            Ended::Stopped => return None,
            Ended::Failed(error) => {
                tracing::warn!(
                    "a range of {} is not received: {error}",
                    self.state.plan.namespace
                );
                self.step(Event::Failed).await;
                Some(error)
            }
            Ended::Complete(found) => {
                // Nothing changes any more: writes are blocked, or the move ends.
                self.found = Some(found);
                match finishing.as_ref() {
                    Some(waiting) => self.compare(found, waiting).await,
                    None => None,
                }
            }
        };
        if let Some(waiting) = finishing.take() {
            let _ = waiting.answer.send(self.report(why.as_ref()));
        }
        why
    }

    /// ⚑ Everything is here: is it the same?
    async fn compare(&mut self, found: Complete, finishing: &Finishing) -> Option<Error> {
        let (catalog, found) = (finishing.catalog, found.digest);
        let (up_to, wanted) = (finishing.up_to.get(), finishing.wanted);
        let copied = Event::Copied {
            up_to,
            digest: found,
        };
        let step = self.state.recipient.step(copied, self.state.plan.known);
        if let Some(next) = step.and_then(|transition| transition.next) {
            self.state.recipient = next;
        }
        self.step(Event::Finish {
            catalog,
            up_to,
            wanted,
            found,
        })
        .await;
        if wanted == found {
            return None;
        }
        let what = format!(
            "the donor has {} documents with the sum {:032x}, the recipient {} with {:032x}",
            wanted.documents, wanted.sum, found.documents, found.sum
        );
        tracing::error!(
            "a range of {} differs after it was copied: {what}",
            self.state.plan.namespace
        );
        Some(differs(&what))
    }

    /// What the donor is told.
    fn report(&self, why: Option<&Error>) -> DocBuf {
        self.report_as(phase_name(&self.state.recipient.phase), why)
    }

    fn report_as(&self, name: &str, why: Option<&Error>) -> DocBuf {
        let phase = &self.state.recipient.phase;
        let mut writer = DocWriter::new().with("phase", name);
        if let Some(aligned) = self.state.recipient.aligned {
            writer.append("alignedWith", aligned as i64);
        }
        if let (Phase::Aborted, Some(why)) = (phase, why) {
            writer.append("reason", why.message.as_str());
            if why.code == Code::INTERRUPTED {
                writer.append("killed", true);
            }
        }
        if *phase == Phase::Ready {
            // Nothing of the range was received later.
            writer.append("readyAt", self.shard.cluster_time());
        }
        self.progress.append(&mut writer);
        writer
            .append("released", self.has_ended())
            .append("ok", 1.0);
        writer.finish()
    }

    /// Lets the protocol say what an event leads to, and writes it.
    async fn step(&mut self, event: Event) {
        let committed = committed(&event);
        let known = self.state.plan.known;
        let Some(transition) = self.state.recipient.step(event, known) else {
            return;
        };
        let Some(next) = transition.next else {
            return;
        };
        if next == self.state.recipient {
            return;
        }
        let mut state = self.state.clone();
        state.plan.catalog_version = next.moved.catalog as i64;
        state.recipient = next;
        if matches!(state.recipient.phase, Phase::Owner | Phase::Aborted) {
            state.ended_ms = Some(self.shard.clock.now_ms());
        }
        if let (Phase::Owner, Some(committed)) = (state.recipient.phase, committed) {
            let outcome = Outcome::Committed {
                version: committed.version,
                since: committed.since,
            };
            learn_earlier(&self.shard, &self.tenure, &state.plan, outcome).await;
        }
        self.write(state, committed).await;
    }

    /// ⚑ Before anybody is told that it is ready: see `learning.rs`.
    pub(super) fn notes_readiness(&self) {
        let is_ready = self.state.recipient.phase == Phase::Ready;
        self.progress.ready.store(is_ready, Ordering::Release);
    }

    /// Writes until it is written; what this member may not write any more, the next primary
    /// works out anew.
    async fn write(&mut self, state: RecipientState, committed: Option<Committed>) {
        while !self.tenure.is_over() {
            match self.try_write(&state, committed).await {
                Ok(()) => {
                    self.state = state;
                    self.notes_readiness();
                    self.drop_copy().await;
                    return;
                }
                Err(error) => {
                    tracing::warn!("a recipient's state is not written: {error}");
                    tokio::select! {
                        () = self.tenure.ended() => {}
                        () = tokio::time::sleep(PAUSE) => {}
                    }
                }
            }
        }
    }

    /// The copy of a collection whose database stays where it is. What is left is dropped before the next
    /// attempt.
    async fn drop_copy(&self) {
        let plan = &self.state.plan;
        if plan.part_of.is_none() || self.state.recipient.phase != Phase::Aborted {
            return;
        }
        let is_copy = |known: &Collection| {
            let ownership = known.ownership.as_ref();
            Some(known.id) == self.collection && ownership.is_some_and(|it| it.is_dead_copy())
        };
        let dropped = (self.shard).drop_collection_if(&plan.namespace, Telling::Quietly, is_copy);
        if let Err(error) = dropped.await {
            tracing::warn!("a copy of {} is not dropped yet: {error}", plan.namespace);
        }
    }

    async fn try_write(
        &self,
        state: &RecipientState,
        committed: Option<Committed>,
    ) -> Result<(), Error> {
        let plan = &state.plan;
        let (id, range) = (plan.id, plan.range.clone());
        let phase = state.recipient.phase;
        let now = self.shard.log.latest_time();
        let brought = self.progress.documents.load(Ordering::Relaxed) as i64;
        let deletion = match phase {
            _ if plan.part_of.is_some() => None,
            Phase::Receiving { .. } | Phase::Ready => {
                Some(plan.deletion(true, WhenToClean::Now, now, brought)?)
            }
            Phase::Owner => Some(RangeDeletion::delete(id)?),
            Phase::Aborted => Some(plan.deletion(false, WhenToClean::Now, now, brought)?),
        };
        let mut documents = vec![put(super::namespace(RECIPIENTS), state.document())];
        documents.extend(deletion);
        let Some(collection) = self
            .collection
            .filter(|id| self.shard.catalog.by_id(*id).is_some())
        else {
            return self.write_alone(state).await;
        };
        let change = move |known: &Ownership| -> Result<Ownership, Error> {
            Ok(match phase {
                Phase::Receiving { .. } | Phase::Ready => known.clone(),
                Phase::Aborted => known.without_receiving(id),
                Phase::Owner => owning(known, id, range.clone(), committed),
            })
        };
        let transition = Transition {
            ownership: Some(Box::new(change)),
            counts_from: committed
                .filter(|_| phase == Phase::Owner)
                .map(|committed| committed.since),
            forgets_ownership: plan.part_of.is_some() && phase == Phase::Owner,
            documents,
            term: Some(self.tenure.term()),
            ..Transition::default()
        };
        if phase == Phase::Ready && !self.shard.rules.hold(Rule::CommitReadiness) {
            self.shard.begin_transition(collection, transition);
            return Ok(());
        }
        self.shard.transition(collection, &transition).await?;
        Ok(())
    }

    /// The collection is gone: only the document is left to be changed.
    async fn write_alone(&self, state: &RecipientState) -> Result<(), Error> {
        let documents = vec![
            put(super::namespace(RECIPIENTS), state.document()),
            RangeDeletion::delete(state.plan.id)?,
        ];
        super::write_documents(&self.shard, self.tenure.term(), documents).await
    }

    /// ⚑ A recipient that said *ready* never aborts on its own: it asks what was decided.
    async fn settle(&mut self) {
        let known = self.state.plan.known;
        let Some(transition) = self.state.recipient.step(Event::Timer, known) else {
            return;
        };
        let settles = |send: &Send| matches!(send, Send::Authority(ToAuthority::Settle { .. }));
        if !transition.send.iter().any(settles) {
            return;
        }
        match super::settle(&self.shard, &self.state.plan, SETTLE_WAIT).await {
            Ok(outcome) => self.step(Event::Decided(outcome)).await,
            Err(Failure::Unreachable(why)) => {
                tracing::warn!("the config server does not say what became of a move: {why}");
            }
            Err(Failure::Refused(error)) => {
                tracing::warn!("the config server does not say what became of a move: {error}");
            }
        }
    }
}

fn differs(what: &str) -> Error {
    let message = format!("donor and recipient do not hold the same documents: {what}");
    Error::new(Code::OPERATION_FAILED, message)
}

/// A decision by which the range is this shard's.
#[derive(Clone, Copy)]
struct Committed {
    version: PlacementVersion,
    since: ClusterTime,
}

fn committed(event: &Event) -> Option<Committed> {
    let outcome = match event {
        Event::Message(ToRecipient::Release { outcome, .. }) | Event::Decided(outcome) => outcome,
        Event::Message(_)
        | Event::Copied { .. }
        | Event::Aligned { .. }
        | Event::Finish { .. }
        | Event::Failed
        | Event::Timer => return None,
    };
    match *outcome {
        Outcome::Committed { version, since } => Some(Committed { version, since }),
        Outcome::Aborted => None,
    }
}

/// The ownership of a shard that a range was given to.
fn owning(
    known: &Ownership,
    id: model::ids::Uuid,
    range: model::range::KeyRange,
    committed: Option<Committed>,
) -> Ownership {
    let gained = known.without_receiving(id).gaining(range);
    let Some(Committed { version, .. }) = committed else {
        return gained;
    };
    // The range itself gets the first of the new major version: see `RoutingTable::moving`.
    let chunk = ChunkVersion::new(version.chunk.major, 0);
    super::with_versions(&gained, chunk, version)
}

/// Waits for options and indexes to be made, or for ever.
async fn aligned(aligning: &mut Option<Aligning>) -> Result<bool, Error> {
    match aligning {
        Some(aligning) => (&mut aligning.task).await.unwrap_or_else(|failed| {
            let why = format!("the alignment failed: {failed}");
            Err(Error::new(Code::INTERNAL_ERROR, why))
        }),
        None => std::future::pending().await,
    }
}

/// Waits for a receiver, or for ever.
async fn ended(receiver: &mut Option<JoinHandle<Ended>>) -> Ended {
    match receiver {
        Some(running) => running.await.unwrap_or_else(|failed| {
            let why = format!("the receiver failed: {failed}");
            Ended::Failed(Error::new(Code::INTERNAL_ERROR, why))
        }),
        None => std::future::pending().await,
    }
}
