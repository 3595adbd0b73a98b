//! The recipient's work: documents, history of sessions, log.
//!
//! ```text
//!   left-overs removed ─► sessions ─► scan ─► log, page by page, from `since` on, until the donor's
//!                                      │       last entry
//!     fetch ─► [2 answers] ─► index entries ─► [1 entry] ─► append ─► [4 entries] ─► applied
//! ```
//!
//! The scan comes in the order of record keys, and entries are appended in that order: the
//! next answers are fetched and worked out while this one is appended and earlier ones are being applied. So
//! where the range is one place, a new primary goes on behind the last record that is stored:
//! nothing else has to be remembered, not even whether the scan was finished. Otherwise it begins
//! again, and compares.
//!
//! One task writes to the range, this one. It keeps the digest as it writes; after a change of
//! primaries it takes it from what is stored.
//!
//! ⚑ A document that would take the place of one that this shard owns, or has an `_id` that one
//! of them has, ends the move: the range stays where it is. So does one that is inserted at the
//! same moment and comes first; one that comes later is refused.

use super::digest::{self, add, join, take_away};
use super::history;
use super::killing;
use super::pacing::{Felt, Pacer};
use super::peers::{Failure, ask};
use super::plan::{Fields, Plan, uuid_value, wrong};
use super::progress::{Progress, StepWatch};
use super::stretch::Stretch;
use super::tail::Place;
use super::warming::{PutOff, Warming};
use crate::Shard;
use crate::aside::aside;
use crate::catalog::{Collection, Index};
use crate::command::envelope::WriteConcern;
use crate::operation::Operation;
use crate::primary_services::Tenure;
use crate::sharding::ReceivedChange;
use crate::write::{Received, ReceivedEntry};
use cluster::migration::Digest;
use cluster::migration::pace::BATCH_BYTES_BESIDE_CLIENTS;
use model::bson::{Array, Doc, DocWriter, ValueRef};
use model::ids::{CollectionId, IndexId, Uuid};
use model::key::RecordKey;
use model::{Code, Error};
use replication::LogPosition;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use storage::giving_way;
use storage::{Direction, Record};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use wire::operation::Interruption;
use wire::{Endpoint, Reply};

/// What one answer about the donor's log is to weigh. It becomes one entry, and clients' writes wait behind that.
const LOG_BYTES: i64 = 256 << 10;
/// Answers that wait to be worked out.
const FETCHED_MAX: usize = 2;
/// Entries that wait to be appended.
const MADE_MAX: usize = 1;
/// How long the donor waits for its log to grow before it answers.
const TAIL_WAIT_MS: i64 = 500;
const ANSWER_WAIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);
/// Records that one entry of a removal has.
const REMOVED_RECORDS: usize = 1000;

/// What the recipient's driver tells its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Orders {
    /// Nothing of the range comes behind this position.
    pub(super) up_to: Option<LogPosition>,
    pub(super) stop: bool,
}

/// What has been received when everything up to a last position is here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Complete {
    pub(super) digest: Digest,
    place: Place,
}

/// Why receiving ended.
pub(super) enum Ended {
    /// Everything up to the last position is here.
    Complete(Complete),
    Failed(Error),
    /// It was told to, or the tenure is over.
    Stopped,
}

/// Nothing of earlier days is left in the range. It is answered when that is written down.
pub(super) struct Cleared(pub(super) oneshot::Sender<()>);

pub(super) struct Receiver {
    pub(super) shard: Arc<Shard>,
    pub(super) plan: Plan,
    pub(super) collection: CollectionId,
    pub(super) stretch: Stretch,
    pub(super) donor: Arc<dyn Endpoint>,
    pub(super) orders: watch::Receiver<Orders>,
    pub(super) progress: Arc<Progress>,
    pub(super) tenure: Tenure,
    pub(super) operation: Arc<Operation>,
    pub(super) since: LogPosition,
    /// Whether an earlier primary has begun to copy.
    pub(super) resumes: bool,
    /// What an earlier receiver of this primary came to, before more of the log had to follow.
    pub(super) goes_on: Option<Complete>,
    /// To whom it is told that nothing of earlier days is left.
    pub(super) cleared: mpsc::Sender<Cleared>,
    /// Who reads into memory what was put off.
    pub(super) put_off: mpsc::Sender<PutOff>,
}

/// What ends the work early.
enum Stop {
    Stopped,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

impl Receiver {
    pub(super) async fn run(mut self) -> Ended {
        match self.receive().await {
            Ok(complete) => Ended::Complete(complete),
            Err(Stop::Stopped) => Ended::Stopped,
            Err(Stop::Failed(error)) => Ended::Failed(error),
        }
    }

    async fn receive(&mut self) -> Result<Complete, Stop> {
        let mut watch = StepWatch::begin();
        if let Some(complete) = self.goes_on {
            return self.follow(complete).await;
        }
        let mut digest = digest::NOTHING;
        let mut after = None;
        if !self.resumes {
            self.remove_left_overs().await?;
        } else {
            digest = tokio::task::block_in_place(|| {
                let looks = |records| self.progress.prepares(records);
                digest::of_stored(&self.shard, &self.stretch, looks)
            })?;
            after = self.last_stored()?;
            if after.is_some() {
                self.progress.resumes_at(digest.documents);
            }
        }
        self.sessions(None).await?;
        watch.ends(&self.progress.preparing_ms);
        self.scan(after, &mut digest).await?;
        watch.ends(&self.progress.scanning_ms);
        self.progress.scanned.store(true, Ordering::Release);
        let place = Place {
            after: self.since,
            skip: 0,
        };
        let complete = self.follow(Complete { digest, place }).await?;
        watch.ends(&self.progress.catching_up_ms);
        Ok(complete)
    }

    fn check(&self) -> Result<(), Stop> {
        if self.tenure.is_over() || self.orders.borrow().stop {
            return Err(Stop::Stopped);
        }
        match killing::is_killed(&self.operation) {
            true => Err(Stop::Failed(Interruption::Killed.error())),
            false => Ok(()),
        }
    }

    /// Completes when [`Self::check`] would say so.
    async fn is_to_stop(&self) {
        let mut orders = self.orders.clone();
        let killed = async {
            self.operation.interrupted().await;
            if !killing::is_killed(&self.operation) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.tenure.ended() => {}
            _ = orders.wait_for(|orders| orders.stop) => {}
            () = killed => {}
        }
    }

    /// Waits a little before the donor is asked again.
    async fn pause(&self) {
        tokio::select! {
            () = self.tenure.ended() => {}
            () = tokio::time::sleep(PAUSE) => {}
        }
    }

    /// Lets clients go first.
    async fn rest(&self, pause: Duration) {
        if pause.is_zero() {
            return;
        }
        tokio::select! {
            () = self.tenure.ended() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// Asks the donor until it answers.
    async fn ask_donor(&self, question: impl Fn() -> DocWriter) -> Result<Reply, Stop> {
        loop {
            self.check()?;
            // Only read there: an answer that nobody wants any more is not waited for.
            let answered = tokio::select! {
                answered = ask(&self.shard, &*self.donor, question(), ANSWER_WAIT) => answered,
                () = self.is_to_stop() => continue,
            };
            match answered {
                Ok(reply) => return Ok(reply),
                Err(Failure::Unreachable(_)) => self.pause().await,
                Err(Failure::Refused(error)) => return Err(Stop::Failed(error)),
            }
        }
    }

    fn known(&self) -> Result<Arc<Collection>, Error> {
        self.shard.catalog.by_id(self.collection).ok_or_else(|| {
            Error::new(
                Code::NAMESPACE_NOT_FOUND,
                format!("{} was dropped", self.plan.namespace),
            )
        })
    }

    /// ⚑ Whoever receives a range begins with nothing, and has it written down that it does: a new
    /// primary could not tell what was left behind from what was copied. The driver writes it, as everything
    /// that its document says: nobody else knows what else has changed.
    async fn remove_left_overs(&self) -> Result<(), Stop> {
        loop {
            self.check()?;
            let found = tokio::task::block_in_place(|| self.stored_keys(REMOVED_RECORDS))?;
            let is_last = found.is_empty();
            self.progress.prepares(found.len() as u64);
            if is_last {
                let (written, answered) = oneshot::channel();
                let told = self.cleared.send(Cleared(written)).await;
                told.map_err(|_| Stop::Stopped)?;
                return answered.await.map_err(|_| Stop::Stopped);
            }
            self.write(found).await?;
        }
    }

    /// Removals of what is stored of the range.
    fn stored_keys(&self, records_max: usize) -> Result<Vec<ReceivedChange>, Error> {
        let snapshot = self.shard.store.snapshot();
        let range = self.stretch.records(None);
        let mut found = Vec::new();
        for record in snapshot.scan_records(self.collection, range, Direction::Forward) {
            let record = record.map_err(crate::error::from_storage)?;
            if self
                .stretch
                .has(record.key(), Doc::from_validated(record.document()))
            {
                found.push(ReceivedChange {
                    key: RecordKey::from_bytes(record.key()),
                    document: None,
                });
            }
            if found.len() == records_max {
                break;
            }
        }
        Ok(found)
    }

    /// Where an earlier primary's scan has come to.
    fn last_stored(&self) -> Result<Option<Vec<u8>>, Error> {
        if !self.stretch.is_exact() {
            return Ok(None);
        }
        let snapshot = self.shard.store.snapshot();
        let range = self.stretch.records(None);
        let mut backward = snapshot.scan_records(self.collection, range, Direction::Backward);
        let last = backward.next().transpose();
        let last = last.map_err(crate::error::from_storage)?;
        Ok(last.map(|record| record.key().to_vec()))
    }

    async fn sessions(&self, named: Option<&[Vec<u8>]>) -> Result<(), Stop> {
        loop {
            self.check()?;
            let (donor, id) = (&*self.donor, self.plan.id);
            let fetched = history::fetch(
                &self.shard,
                donor,
                id,
                named,
                &self.operation,
                &self.progress,
            );
            match fetched.await {
                Ok(()) => return Ok(()),
                Err(Failure::Unreachable(_)) => self.pause().await,
                Err(Failure::Refused(error)) => return Err(Stop::Failed(error)),
            }
        }
    }

    async fn scan(&mut self, after: Option<Vec<u8>>, digest: &mut Digest) -> Result<(), Stop> {
        let (fetched, answers) = mpsc::channel(FETCHED_MAX);
        let (made, entries) = mpsc::channel(MADE_MAX);
        let turns = Semaphore::new(1);
        let mut pacer = Pacer::new();
        // What the donor's clients feel comes with its first answer.
        let batch_bytes = AtomicU64::new(BATCH_BYTES_BESIDE_CLIENTS);
        let mut warming = Warming::new(self.shard.clone(), self.stretch.clone(), after.clone());
        let fetching = self.fetch(after, fetched, &batch_bytes);
        let making = self.make(answers, made, &turns);
        let working = async {
            // ⚑ Its own, so that who makes entries does not wait for ever to hand over what nobody takes.
            let mut entries = entries;
            let _copying = self.shard.latency.copying();
            let mut in_flight = VecDeque::new();
            let mut is_ahead = false;
            let mut for_clients = true;
            while let Some(made) = entries.recv().await {
                let Made {
                    answer,
                    entry,
                    took,
                } = made?;
                self.check()?;
                if is_ahead {
                    turns.add_permits(1);
                }
                let began = Instant::now();
                self.take_documents(&answer, entry, digest, &mut in_flight)
                    .await?;
                warming.comes(answer.document());
                let pace = pacer.pace(&self.shard, felt_there(answer.document()));
                batch_bytes.store(pace.batch_bytes(), Ordering::Relaxed);
                self.progress.set_pace(pace);
                let limit = match self.plan.secondary_throttle {
                    true => 0,
                    false => pace.in_flight(),
                };
                while in_flight.len() > limit {
                    applied(&mut in_flight).await?;
                }
                let felt = Felt::on(&self.shard).and(felt_there(answer.document()));
                for_clients = !felt.is_nobody();
                warming.applied(in_flight.len(), for_clients).await?;
                let most = &self.progress.in_flight_max;
                most.fetch_max(in_flight.len() as u64, Ordering::Relaxed);
                self.rest(pace.pause_after(took + began.elapsed())).await;
                // Where clients are, the next one is made when this one is done; where nobody is, beside it.
                if !is_ahead {
                    turns.add_permits(1);
                }
                is_ahead = limit > 0;
            }
            while !in_flight.is_empty() {
                applied(&mut in_flight).await?;
            }
            warming.applied(0, for_clients).await?;
            Ok::<(), Stop>(())
        };
        let ((), (), worked) = tokio::join!(fetching, making, working);
        worked?;
        if let Some(put_off) = warming.into_put_off() {
            // Without anybody who takes it, it is left to scans.
            let _ = self.put_off.send(put_off).await;
        }
        Ok(())
    }

    /// Makes entries of the donor's answers, in their order, one for each permit; the last thing is an error, if there
    /// is one.
    async fn make(
        &self,
        mut answers: mpsc::Receiver<Result<Reply, Stop>>,
        made: mpsc::Sender<Result<Made, Stop>>,
        turns: &Semaphore,
    ) {
        loop {
            let next = async {
                let answer = answers.recv().await?;
                // Who appends gives the next permit.
                turns.acquire().await.expect("nobody closes it").forget();
                Some(answer)
            };
            let answer = tokio::select! {
                answer = next => answer,
                () = made.closed() => return,
            };
            let next = match answer {
                Some(Ok(answer)) => self.make_one(Arc::new(answer)).await,
                Some(Err(stop)) => Err(stop),
                None => return,
            };
            let is_last = next.is_err();
            if made.send(next).await.is_err() || is_last {
                return;
            }
        }
    }

    async fn make_one(&self, answer: Arc<Reply>) -> Result<Made, Stop> {
        self.check()?;
        let began = Instant::now();
        let entry = match self.comes_anew() {
            true => Some(self.make_entry(&answer, self.known()?).await?),
            false => None,
        };
        Ok(Made {
            answer,
            entry,
            took: began.elapsed(),
        })
    }

    async fn make_entry(
        &self,
        answer: &Arc<Reply>,
        collection: Arc<Collection>,
    ) -> Result<MadeEntry, Error> {
        let (answer, origin) = (Arc::clone(answer), self.plan.id);
        aside(move || entry_of(collection, &answer, origin)).await
    }

    /// Whether nothing is here of what the donor sends, and its order is that of what is stored here.
    fn comes_anew(&self) -> bool {
        !self.resumes && self.stretch.is_exact()
    }

    /// Hands over the donor's documents, answer by answer; the last thing is an error, if
    /// there is one.
    async fn fetch(
        &self,
        after: Option<Vec<u8>>,
        fetched: mpsc::Sender<Result<Reply, Stop>>,
        batch_bytes: &AtomicU64,
    ) {
        let mut after = after;
        loop {
            let question = || {
                let after = after.as_deref().map_or(ValueRef::Null, super::copy::binary);
                DocWriter::new()
                    .with("_terndbMoveCopy", 1)
                    .with("id", uuid_value(&self.plan.id))
                    .with("after", after)
                    .with("bytes", batch_bytes.load(Ordering::Relaxed) as i64)
            };
            let answer = self.ask_donor(question).await;
            let next = match &answer {
                Ok(reply) => Fields(reply.document()).bytes("next").map(<[u8]>::to_vec),
                Err(_) => None,
            };
            // Who receives has stopped for a reason of his own.
            if fetched.send(answer).await.is_err() || next.is_none() {
                return;
            }
            after = next;
        }
    }

    async fn take_documents(
        &self,
        answer: &Arc<Reply>,
        mut made: Option<MadeEntry>,
        digest: &mut Digest,
        in_flight: &mut VecDeque<replication::Pending>,
    ) -> Result<(), Stop> {
        let documents = answer.document().get_array("documents");
        let documents = documents.ok_or_else(|| wrong("documents"))?;
        let mut bytes = 0;
        if self.comes_anew() {
            loop {
                self.shard
                    .log
                    .ready()
                    .await
                    .map_err(crate::error::from_log)?;
                let collection = self.known()?;
                self.check_receiving(&collection)?;
                // ⚑ By the indexes as they are now.
                let as_it_is = |made: &MadeEntry| Arc::ptr_eq(&made.collection, &collection);
                let made = match made.take().filter(as_it_is) {
                    Some(made) => made,
                    None => self.make_entry(answer, Arc::clone(&collection)).await?,
                };
                // Not held while that was made: who wants it for himself would wait, and writers behind him.
                let _gate = collection.gate.read().await;
                if !Arc::ptr_eq(&self.known()?, &collection) {
                    continue;
                }
                let append = || self.shard.append_received(self.tenure.term(), made.entry);
                if let Some(pending) = tokio::task::block_in_place(append)? {
                    join(digest, made.digest);
                    in_flight.push_back(pending);
                    tokio::task::block_in_place(|| self.check_ids(&collection, documents))?;
                    break;
                }
            }
            for document in documents.iter() {
                if let ValueRef::Document(document) = document {
                    bytes += document.len();
                }
            }
        } else {
            let collection = self.known()?;
            let mut changes = Vec::new();
            for document in documents.iter() {
                let ValueRef::Document(document) = document else {
                    return Err(wrong("documents").into());
                };
                bytes += document.len();
                changes.push(ReceivedChange {
                    key: collection.record_key(document)?,
                    document: Some(document.to_owned()),
                });
            }
            self.count(&collection, &changes, digest)?;
            self.write(changes).await?;
        }
        let count = documents.count() as u64;
        self.progress.copied(count, bytes as u64);
        let migrations = &self.shard.migrations;
        migrations
            .received_documents
            .fetch_add(count, Ordering::Relaxed);
        migrations
            .received_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }

    /// ⚑ Whether somebody else's document has the `_id` of one that has come, which is appended
    /// by now. Who inserts looks for the `_id` and appends with a latch held: those who looked
    /// before are waited for, and those who look afterwards find what has come.
    fn check_ids(&self, collection: &Collection, documents: Array<'_>) -> Result<(), Error> {
        let Some((index, id)) = self.id_index(collection) else {
            return Ok(());
        };
        let mut looked_for = Vec::new();
        for document in documents.iter() {
            let ValueRef::Document(document) = document else {
                continue;
            };
            let key = collection.record_key(document)?;
            for entry in index.definition.keys(document)?.keys {
                self.shard.await_evaluations(id, &entry.fields)?;
                looked_for.push((key.clone(), entry));
            }
        }
        let violated = |entry| crate::write::unique_violation(collection, index, entry);
        // In this order: what is applied meanwhile is found in the engine.
        for (key, entry) in &looked_for {
            for (other, present) in self.shard.overlay.index_key(id, &entry.fields) {
                if present && self.counts(collection, key, &RecordKey::from_bytes(&other))? {
                    return Err(violated(entry));
                }
            }
        }
        let snapshot = self.shard.store.snapshot();
        for (key, entry) in &looked_for {
            // Documents that are not owned may have it too, in front of one that is.
            for found in snapshot.index_entries_with_prefix(id, &entry.fields) {
                let found = found.map_err(crate::error::from_storage)?;
                if self.counts(collection, key, &RecordKey::from_bytes(found.record_key()))? {
                    return Err(violated(entry));
                }
            }
        }
        Ok(())
    }

    /// The index on `_id`, where records have another order and others may have documents.
    fn id_index<'a>(&self, collection: &'a Collection) -> Option<(&'a Index, IndexId)> {
        let ownership = collection.ownership.as_ref()?;
        let mut receiving = ownership.moving.receiving.iter();
        let is_alone = ownership.owned.is_empty()
            && receiving.all(|received| received.operation == self.plan.id);
        let index = collection.indexes.first().filter(|_| !is_alone)?;
        index.id.map(|id| (&**index, id))
    }

    /// Whether another record that has the `_id` of one that has come is owned, or brought by another move.
    fn counts(
        &self,
        collection: &Collection,
        key: &RecordKey,
        other: &RecordKey,
    ) -> Result<bool, Error> {
        let Some(ownership) = collection.ownership.as_ref().filter(|_| other != key) else {
            return Ok(false);
        };
        let version = self.shard.latest_received(collection, other)?;
        Ok(version.is_some_and(|version| {
            let document = Doc::from_validated(version.document());
            ownership.owns(document) || ownership.is_received_except(Some(self.plan.id), document)
        }))
    }

    fn check_receiving(&self, collection: &Collection) -> Result<(), Error> {
        let receives = collection.ownership.as_ref().is_some_and(|ownership| {
            let mut receiving = ownership.moving.receiving.iter();
            receiving.any(|received| received.operation == self.plan.id)
        });
        match receives {
            true => Ok(()),
            false => Err(Error::new(
                Code::CONFLICTING_OPERATION_IN_PROGRESS,
                "the range is not received any more",
            )),
        }
    }

    /// Brings the digest up to date with changes that are about to be written.
    fn count(
        &self,
        collection: &Collection,
        changes: &[ReceivedChange],
        digest: &mut Digest,
    ) -> Result<(), Error> {
        tokio::task::block_in_place(|| {
            for change in changes {
                let key = change.key.as_bytes();
                let before = self.shard.latest_received(collection, &change.key)?;
                if let Some(before) = before
                    && self
                        .stretch
                        .has(key, Doc::from_validated(before.document()))
                {
                    take_away(digest, key, before.document());
                }
                if let Some(document) = &change.document {
                    add(digest, key, document.as_bytes());
                }
            }
            Ok(())
        })
    }

    async fn write(&self, changes: Vec<ReceivedChange>) -> Result<(), Error> {
        let (collection, id) = (self.collection, self.plan.id);
        let (term, concern) = (self.tenure.term(), WriteConcern::Applied);
        let written = self
            .shard
            .write_received(term, collection, id, &changes, &[], concern);
        written.await.map(|_| ())
    }

    /// Replays the donor's log up to the last position, from what is here on.
    async fn follow(&mut self, from: Complete) -> Result<Complete, Stop> {
        let Complete {
            mut digest,
            mut place,
        } = from;
        loop {
            self.check()?;
            let up_to = self.orders.borrow_and_update().up_to;
            if up_to.is_some_and(|up_to| place.after >= up_to) {
                return Ok(Complete { digest, place });
            }
            let question = || {
                DocWriter::new()
                    .with("_terndbMoveTail", 1)
                    .with("id", uuid_value(&self.plan.id))
                    .with("from", place.after.get() as i64)
                    .with("skip", place.skip as i64)
                    .with("bytes", LOG_BYTES)
                    .with("waitMS", TAIL_WAIT_MS)
            };
            let Some(reply) = self.answer_or_orders(question, place).await? else {
                continue;
            };
            let fields = Fields(reply.document());
            self.replay(reply.document(), &mut digest).await?;
            self.sessions_of(reply.document()).await?;
            place = Place {
                after: LogPosition::new(fields.count("upTo")?),
                skip: usize::try_from(fields.count("skip")?).map_err(|_| wrong("skip"))?,
            };
            let reached = place.after.get();
            self.progress.copied_up_to.store(reached, Ordering::Release);
        }
    }

    /// Asks for more of the log; `None` if there is nothing to wait for any more. A question that
    /// is under way is not given up because the donor has named the last position: the entry
    /// that blocks writes answers it, and to ask again would take another connection.
    async fn answer_or_orders(
        &self,
        question: impl Fn() -> DocWriter,
        place: Place,
    ) -> Result<Option<Reply>, Stop> {
        let mut orders = self.orders.clone();
        let mut asking = std::pin::pin!(self.ask_donor(question));
        loop {
            tokio::select! {
                reply = &mut asking => return reply.map(Some),
                changed = orders.changed() => {
                    let now = *orders.borrow_and_update();
                    let has_all = now.up_to.is_some_and(|up_to| place.after >= up_to);
                    if now.stop || has_all || changed.is_err() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    async fn replay(&self, reply: Doc<'_>, digest: &mut Digest) -> Result<(), Stop> {
        let operations = reply.get_array("operations");
        let collection = self.known()?;
        let mut changes: Vec<ReceivedChange> = Vec::new();
        let mut places: HashMap<RecordKey, usize> = HashMap::new();
        let mut bytes = 0;
        for operation in operations.ok_or_else(|| wrong("operations"))?.iter() {
            let ValueRef::Document(operation) = operation else {
                return Err(wrong("operations").into());
            };
            let change = match (operation.get_doc("d"), Fields(operation).bytes("k")) {
                (Some(document), _) => ReceivedChange {
                    key: collection.record_key(document)?,
                    document: Some(document.to_owned()),
                },
                (None, Some(key)) => ReceivedChange {
                    key: RecordKey::from_bytes(key),
                    document: None,
                },
                (None, None) => return Err(wrong("operations").into()),
            };
            bytes += operation.len() as u64;
            // Only what a record is in the end counts.
            match places.get(&change.key) {
                Some(&at) => changes[at] = change,
                None => {
                    places.insert(change.key.clone(), changes.len());
                    changes.push(change);
                }
            }
        }
        if changes.is_empty() {
            return Ok(());
        }
        self.count(&collection, &changes, digest)?;
        self.progress.replayed(changes.len() as u64, bytes);
        self.write(changes).await?;
        Ok(())
    }

    async fn sessions_of(&self, reply: Doc<'_>) -> Result<(), Stop> {
        let mut named = Vec::new();
        for session in reply
            .get_array("sessions")
            .iter()
            .flat_map(|all| all.iter())
        {
            match session {
                ValueRef::Binary { bytes, .. } => named.push(bytes.to_vec()),
                _ => return Err(wrong("sessions").into()),
            }
        }
        match named.is_empty() {
            true => Ok(()),
            false => self.sessions(Some(&named)).await,
        }
    }
}

/// An answer of the donor that can be appended.
struct Made {
    answer: Arc<Reply>,
    /// `None` if what comes has to be compared with what is here.
    entry: Option<MadeEntry>,
    /// How long that was worked on.
    took: Duration,
}

/// The entry that brings the documents of an answer. All are new here.
struct MadeEntry {
    /// As it was then.
    collection: Arc<Collection>,
    entry: ReceivedEntry,
    /// Of these documents.
    digest: Digest,
}

fn entry_of(collection: Arc<Collection>, answer: &Reply, origin: Uuid) -> Result<MadeEntry, Error> {
    let mut digest = digest::NOTHING;
    let mut received = Vec::new();
    let documents = answer.document().get_array("documents");
    for document in documents.ok_or_else(|| wrong("documents"))?.iter() {
        giving_way::look();
        let ValueRef::Document(document) = document else {
            return Err(wrong("documents"));
        };
        received.push(received_anew(&collection, document, &mut digest)?);
    }
    let entry = ReceivedEntry::new(&collection, &origin.0, received)?;
    Ok(MadeEntry {
        collection,
        entry,
        digest,
    })
}

/// A document that is new here.
fn received_anew(
    collection: &Collection,
    document: Doc<'_>,
    digest: &mut Digest,
) -> Result<Received, Error> {
    let key = collection.record_key(document)?;
    add(digest, key.as_bytes(), document.as_bytes());
    Ok(Received {
        key,
        before: None,
        after: Some(Record::draft(document.as_bytes())),
    })
}

/// What clients of the donor feel, as its answer says.
fn felt_there(answer: Doc<'_>) -> Felt {
    Felt {
        strain: match answer.get("strain") {
            Some(ValueRef::Double(strain)) => Some(strain),
            _ => None,
        },
        lately: answer.get("lately") == Some(ValueRef::Boolean(true)),
    }
}

/// Waits for the oldest entry that is under way.
async fn applied(in_flight: &mut VecDeque<replication::Pending>) -> Result<(), Error> {
    match in_flight.pop_front() {
        Some(pending) => pending.await.map(|_| ()).map_err(crate::error::from_log),
        None => Ok(()),
    }
}
