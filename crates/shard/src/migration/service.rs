//! Which moves run on this primary, and how they begin.
//!
//! ```text
//!   elected ─► documents read, a task for each ─► messages ─► begin ─► task ─► …
//!   tenure over ─► tasks end between two steps, and are waited for
//! ```
//!
//! Until the documents are read nobody is told that a move does not exist: the answer is that
//! this member is not the primary yet.
//!
//! ⚑ A move begins only where it may: the donor owns the whole range, and no other move of it
//! runs; the recipient owns nothing of it and receives nothing of it.
//!
//! ⚑ **A recipient makes nothing for a move that has ended.** The message by which it begins may be late: the
//! move was aborted without it, and its collection dropped. So the config server is asked whether the move runs,
//! and that still holds when the collection is made: whoever drops a collection settles its moves first and
//! then comes to this shard for its `ddl` lock, so that it came before the question, and the answer is that
//! the move has ended; or it is noticed that somebody had the lock since, and it is asked again; or it comes
//! later, and finds what it drops. All of that is in one term: another primary may be asked to drop it, too.

use super::alignment::{self, Description, listed_indexes};
use super::database::{self, DATABASES, DatabaseHandle, DatabasePlan, Reached, description};
use super::donor::{self, DonorHandle, EndedMove, Steps};
use super::killing::{self, Wish};
use super::making_way::MakingWay;
use super::peers::OtherShards;
use super::pins::Pins;
use super::plan::{DonorState, Fields, Plan, RecipientState};
use super::progress::Progress;
use super::recipient::{self, Letter, RecipientHandle};
use super::stretch::Stretch;
use super::{COORDINATORS, RECIPIENTS, check_runs, put, report};
use crate::Shard;
use crate::catalog::{Clustering, Collection};
use crate::command::indexes::choose;
use crate::ddl::{New, Order, Telling};
use crate::primary_services::Tenure;
use crate::sharding::range_deletion::WhenToClean;
use crate::sharding::{Ownership, Transition};
use cluster::authority::Outcome;
use cluster::migration::donor::{Donor, Phase};
use cluster::migration::recipient::{Recipient, Standing};
use model::bson::{Doc, DocBuf};
use model::ids::Uuid;
use model::range::RangeSet;
use model::version::{ChunkVersion, PlacementVersion};
use model::{Code, Error};
use parking_lot::Mutex;
use replication::{LogPosition, Term};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{MutexGuard, mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// Letters that wait for a recipient.
const LETTERS_MAX: usize = 16;
/// How long the config server is waited for.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// How often others may have taken the lock until it is held while the config server is asked.
const OVERTAKEN_MAX: usize = 10;
/// Moves that ended lately, for those who ask again.
const ENDED_MAX: usize = 1000;

/// A move that is to begin.
pub(super) enum Begin {
    Database(
        Box<DatabasePlan>,
        oneshot::Sender<Result<Arc<DatabaseHandle>, Error>>,
    ),
    Donor(Box<Plan>, oneshot::Sender<Result<Arc<DonorHandle>, Error>>),
    Recipient(DocBuf, oneshot::Sender<Result<Arc<RecipientHandle>, Error>>),
}

#[derive(Default)]
struct Inner {
    /// Set while this member is primary and has read its documents.
    service: Option<mpsc::UnboundedSender<Begin>>,
    donors: HashMap<Uuid, Arc<DonorHandle>>,
    databases: HashMap<Uuid, Arc<DatabaseHandle>>,
    recipients: HashMap<Uuid, Arc<RecipientHandle>>,
    /// Recipients that make their collection ready.
    beginning: HashSet<Uuid>,
    ended: VecDeque<(Uuid, EndedMove)>,
}

/// The moves of this shard.
#[derive(Default)]
pub(crate) struct Migrations {
    pub(super) shards: OtherShards,
    pub(super) pins: Pins,
    pub(crate) making_way: Arc<MakingWay>,
    inner: Mutex<Inner>,
    pub(super) started: AtomicU64,
    pub(super) committed: AtomicU64,
    pub(super) aborted: AtomicU64,
    pub(super) documents: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) critical_section_us: AtomicU64,
    pub(super) commit_us: AtomicU64,
    pub(super) copying_us: AtomicU64,
    pub(super) total_us: AtomicU64,
    pub(super) receptions: AtomicU64,
    pub(super) received_documents: AtomicU64,
    pub(super) received_bytes: AtomicU64,
}

/// What is known of a move.
pub(super) enum Known<T> {
    Runs(Arc<T>),
    Ended(EndedMove),
    Unknown,
}

fn not_primary() -> Error {
    Error::new(Code::NOT_WRITABLE_PRIMARY, "not primary")
}

impl Migrations {
    fn service(&self) -> Result<mpsc::UnboundedSender<Begin>, Error> {
        self.inner.lock().service.clone().ok_or_else(not_primary)
    }

    pub(super) fn donor(&self, id: Uuid) -> Result<Known<DonorHandle>, Error> {
        let inner = self.inner.lock();
        if inner.service.is_none() {
            return Err(not_primary());
        }
        if let Some(handle) = inner.donors.get(&id) {
            return Ok(Known::Runs(handle.clone()));
        }
        let ended = inner.ended.iter().find(|(other, _)| *other == id);
        Ok(ended.map_or(Known::Unknown, |(_, ended)| Known::Ended(ended.clone())))
    }

    pub(super) fn database(&self, id: Uuid) -> Result<Known<DatabaseHandle>, Error> {
        let inner = self.inner.lock();
        if inner.service.is_none() {
            return Err(not_primary());
        }
        if let Some(handle) = inner.databases.get(&id) {
            return Ok(Known::Runs(handle.clone()));
        }
        let ended = inner.ended.iter().find(|(other, _)| *other == id);
        Ok(ended.map_or(Known::Unknown, |(_, ended)| Known::Ended(ended.clone())))
    }

    pub(super) async fn begin_database(
        &self,
        plan: DatabasePlan,
    ) -> Result<Arc<DatabaseHandle>, Error> {
        let (answer, answered) = oneshot::channel();
        let begin = Begin::Database(Box::new(plan), answer);
        self.service()?.send(begin).map_err(|_| not_primary())?;
        answered.await.map_err(|_| not_primary())?
    }

    pub(super) fn recipient(&self, id: Uuid) -> Result<Option<Arc<RecipientHandle>>, Error> {
        let inner = self.inner.lock();
        if inner.service.is_none() {
            return Err(not_primary());
        }
        Ok(inner.recipients.get(&id).cloned())
    }

    pub(super) fn donors(&self) -> Vec<Arc<DonorHandle>> {
        self.inner.lock().donors.values().cloned().collect()
    }

    pub(super) fn recipients(&self) -> Vec<Arc<RecipientHandle>> {
        self.inner.lock().recipients.values().cloned().collect()
    }

    /// How many documents a move has brought so far, as long as this member is its recipient.
    pub(crate) fn received(&self, id: Uuid) -> u64 {
        let inner = self.inner.lock();
        let known = inner.recipients.get(&id);
        known.map_or(0, |it| it.progress.documents.load(Ordering::Relaxed))
    }

    /// Whether a recipient has begun to make its collection ready.
    pub(super) fn is_beginning(&self, id: Uuid) -> bool {
        self.inner.lock().beginning.contains(&id)
    }

    pub(super) async fn begin_donor(&self, plan: Plan) -> Result<Arc<DonorHandle>, Error> {
        let (answer, answered) = oneshot::channel();
        let begin = Begin::Donor(Box::new(plan), answer);
        self.service()?.send(begin).map_err(|_| not_primary())?;
        answered.await.map_err(|_| not_primary())?
    }

    pub(super) async fn begin_recipient(
        &self,
        request: DocBuf,
    ) -> Result<Arc<RecipientHandle>, Error> {
        let (answer, answered) = oneshot::channel();
        let begin = Begin::Recipient(request, answer);
        self.service()?.send(begin).map_err(|_| not_primary())?;
        answered.await.map_err(|_| not_primary())?
    }

    /// A move does not run any more.
    pub(super) fn forget_donor(&self, id: Uuid) {
        self.inner.lock().donors.remove(&id);
    }

    /// Remembers how a move has ended.
    pub(super) fn remember(&self, id: Uuid, ended: EndedMove) {
        let mut inner = self.inner.lock();
        inner.ended.push_back((id, ended));
        if inner.ended.len() > ENDED_MAX {
            inner.ended.pop_front();
        }
    }

    /// Counts a move that has ended on the donor.
    pub(super) fn count(&self, outcome: Outcome, steps: &Steps, total: Duration) {
        let add = |counter: &AtomicU64, number: u64| counter.fetch_add(number, Ordering::Relaxed);
        match outcome {
            Outcome::Committed { .. } => add(&self.committed, 1),
            Outcome::Aborted => add(&self.aborted, 1),
        };
        add(&self.documents, steps.documents.unsigned_abs());
        add(&self.bytes, steps.bytes.unsigned_abs());
        add(&self.critical_section_us, steps.critical_section_us);
        add(&self.commit_us, steps.commit_us);
        add(&self.copying_us, steps.copying_ms * 1000);
        add(&self.total_us, total.as_micros() as u64);
    }
}

/// Runs the moves of one tenure.
pub(crate) async fn run(shard: &Arc<Shard>, tenure: &Tenure) {
    let mut service = Service {
        shard: shard.clone(),
        tenure: tenure.clone(),
        tasks: JoinSet::new(),
    };
    let (begin, mut begun) = mpsc::unbounded_channel();
    service.resume();
    shard.migrations.inner.lock().service = Some(begin);
    loop {
        tokio::select! {
            () = tenure.ended() => break,
            Some(begin) = begun.recv() => service.begin(begin).await,
            Some(_) = service.tasks.join_next(), if !service.tasks.is_empty() => {}
        }
    }
    *shard.migrations.inner.lock() = Inner::default();
    begun.close();
    while service.tasks.join_next().await.is_some() {}
}

struct Service {
    shard: Arc<Shard>,
    tenure: Tenure,
    tasks: JoinSet<()>,
}

impl Service {
    /// Goes on with what the documents say.
    fn resume(&mut self) {
        let fault = |error: Error| tracing::error!("a move cannot go on: {error}");
        // ⚑ Recipients are known before anything goes on: who hears of a commit looks at them.
        let mut recipients = Vec::new();
        for document in super::documents(&self.shard, RECIPIENTS) {
            match RecipientState::from_document(document.as_doc()) {
                Ok(state) => recipients.push(recipient_driver(&self.shard, &self.tenure, state)),
                Err(error) => fault(error),
            }
        }
        let mut databases = Vec::new();
        for document in super::documents(&self.shard, DATABASES) {
            match DatabasePlan::from_document(document.as_doc()) {
                Ok(plan) => databases.push(self.enter_database(plan)),
                Err(error) => fault(error),
            }
        }
        for document in super::documents(&self.shard, COORDINATORS) {
            match DonorState::from_document(document.as_doc()) {
                Ok(state) => {
                    if let Err(error) = self.start_donor(state, None) {
                        fault(error);
                    }
                }
                Err(error) => fault(error),
            }
        }
        for handle in databases {
            self.start_database(handle);
        }
        for driver in recipients {
            self.tasks.spawn(driver);
        }
    }

    async fn begin(&mut self, begin: Begin) {
        match begin {
            Begin::Database(plan, answer) => {
                let _ = answer.send(self.begin_database(*plan).await);
            }
            Begin::Donor(plan, answer) => {
                let _ = answer.send(self.begin_donor(*plan).await);
            }
            Begin::Recipient(request, answer) => {
                let id = match Fields(request.as_doc()).uuid("id") {
                    Ok(id) => id,
                    Err(error) => {
                        let _ = answer.send(Err(error));
                        return;
                    }
                };
                let (shard, tenure) = (self.shard.clone(), self.tenure.clone());
                let migrations = &self.shard.migrations;
                if let Some(handle) = migrations.inner.lock().recipients.get(&id) {
                    let _ = answer.send(Ok(handle.clone()));
                    return;
                }
                if !migrations.inner.lock().beginning.insert(id) {
                    let _ = answer.send(Err(conflict("the recipient begins".to_owned())));
                    return;
                }
                self.tasks.spawn(async move {
                    let begun = begin_recipient(&shard, tenure.term(), &request).await;
                    let driver = match begun {
                        Ok(state) => {
                            let driver = recipient_driver(&shard, &tenure, state);
                            let known = shard.migrations.inner.lock().recipients.get(&id).cloned();
                            let _ = answer.send(known.ok_or_else(not_primary));
                            Some(driver)
                        }
                        Err(error) => {
                            let _ = answer.send(Err(error));
                            None
                        }
                    };
                    shard.migrations.inner.lock().beginning.remove(&id);
                    if let Some(driver) = driver {
                        driver.await;
                    }
                });
            }
        }
    }

    async fn begin_donor(&mut self, mut plan: Plan) -> Result<Arc<DonorHandle>, Error> {
        let shard = self.shard.clone();
        if let Known::Runs(handle) = shard.migrations.donor(plan.id)? {
            return Ok(handle);
        }
        plan.donor = shard.sharding.shard_name();
        let is_part = plan.part_of.is_some();
        let collection = shard.catalog.get(&plan.namespace);
        let collection = collection.filter(|known| known.uuid == plan.uuid);
        let collection = collection.ok_or_else(|| {
            Error::new(
                Code::NAMESPACE_NOT_FOUND,
                format!("ns does not exist: {}", plan.namespace),
            )
        })?;
        let first = match (is_part, collection.sharded_ownership()) {
            (false, Some(ownership)) => {
                plan.known = ownership.collection_version;
                None
            }
            (true, None) => Some(Ownership::of_unsharded(plan.known, true)?),
            (true, Some(_)) => {
                return Err(conflict(format!("{} is sharded by now", plan.namespace)));
            }
            (false, None) => {
                return Err(Error::new(
                    Code::NAMESPACE_NOT_SHARDED,
                    format!("{} is not sharded", plan.namespace),
                ));
            }
        };
        shard
            .migrations
            .shards
            .get(&plan.recipient, &plan.other_host)?;
        let wanted = RangeSet::of([plan.range.clone()]);
        for other in shard.migrations.donors() {
            let theirs = RangeSet::of([other.plan.range.clone()]);
            if other.plan.uuid == plan.uuid && !theirs.intersection(&wanted).is_empty() {
                return Err(conflict(format!(
                    "another move of a range of {} runs",
                    plan.namespace
                )));
            }
        }
        // The log from before the first document is read on.
        let since = shard.log.last_applied();
        let begun = Donor::begin(plan.moved(), since.get());
        let donor = begun
            .next
            .ok_or_else(|| conflict("no move begins".to_owned()))?;
        let described = is_part.then(|| description(&collection, &plan));
        let state = DonorState {
            plan,
            donor,
            described,
            documents: 0,
        };
        let plan = &state.plan;
        let check = |known: &Ownership| -> Result<Ownership, Error> {
            if known.pattern != plan.pattern {
                return Err(conflict("the shard key is another one".to_owned()));
            }
            if !wanted.difference(&known.owned).is_empty() {
                return Err(Error::new(
                    Code::ILLEGAL_OPERATION,
                    format!(
                        "this shard does not own the whole range of {}",
                        plan.namespace
                    ),
                ));
            }
            if !wanted.intersection(&known.moving.undecided()).is_empty() {
                return Err(conflict("another move of the range runs".to_owned()));
            }
            Ok(known.clone())
        };
        let mut documents = vec![put(super::namespace(COORDINATORS), state.document())];
        if !is_part {
            let now = shard.log.latest_time();
            documents.push(plan.deletion(true, plan.when_to_clean(), now, 0)?);
        }
        let transition = Transition {
            ownership: Some(Box::new(check)),
            first,
            documents,
            term: Some(self.tenure.term()),
            ..Transition::default()
        };
        shard.transition(collection.id, &transition).await?;
        drop(transition);
        shard.migrations.started.fetch_add(1, Ordering::Relaxed);
        // It stood when the config server asked for the move.
        let standing = Some(state.donor.moved.catalog);
        self.start_donor(state, standing)
    }

    /// `standing` is the version of options and indexes that was heard to stand before this.
    fn start_donor(
        &mut self,
        state: DonorState,
        standing: Option<u64>,
    ) -> Result<Arc<DonorHandle>, Error> {
        let shard = self.shard.clone();
        let plan = state.plan.clone();
        let collection = shard.catalog.get(&plan.namespace);
        let collection = collection.filter(|known| known.uuid == plan.uuid);
        let stretch = collection
            .as_ref()
            .map(|collection| Stretch::new(collection, &plan.pattern, &plan.range));
        let recipient = shard
            .migrations
            .shards
            .get(&plan.recipient, &plan.other_host)?;
        let whole = plan.part_of.and_then(|whole| {
            let inner = shard.migrations.inner.lock();
            inner.databases.get(&whole).cloned()
        });
        // If it is gone the recipient is told so when it asks for it.
        let pin = match state.donor.phase {
            Phase::Copying | Phase::WritesBlocked => {
                shard.log.pin(LogPosition::new(state.donor.since)).ok()
            }
            // Nobody asks for it, and the config server may stay away for long.
            Phase::ReadsBlocked | Phase::Committed(_) | Phase::Aborted => None,
        };
        let handle = Arc::new(DonorHandle {
            began: Instant::now(),
            collection: collection.map(|collection| collection.id),
            stretch,
            plan,
            wish: watch::Sender::new(Wish::GoOn),
            operation: OnceLock::new(),
            ended: watch::Sender::new(None),
            phase: Mutex::new(donor::phase_name(&state.donor.phase)),
            steps: Mutex::default(),
            whole,
            reached: watch::Sender::new(Reached::Copying),
            described: state.described.clone(),
        });
        let id = handle.plan.id;
        shard
            .migrations
            .inner
            .lock()
            .donors
            .insert(id, handle.clone());
        let driver = donor::Driver {
            shard: shard.clone(),
            tenure: self.tenure.clone(),
            state,
            handle: handle.clone(),
            recipient,
            pin,
            follower: None,
            blocked: None,
            reason: None,
            is_killed: false,
            telling: None,
            standing,
            put_off: 0,
        };
        let running = handle.clone();
        self.tasks.spawn(async move {
            let command = report::command(&running.plan).into_bytes();
            let operation = (shard.operations).begin(&in_process(), command.into());
            let _ = running.operation.set(Arc::clone(&operation));
            tokio::select! {
                () = driver.run() => {}
                () = killing::obey(&operation, &running) => {}
            }
            shard.migrations.inner.lock().donors.remove(&id);
            drop(running);
        });
        Ok(handle)
    }
}

impl Service {
    async fn begin_database(
        &mut self,
        mut plan: DatabasePlan,
    ) -> Result<Arc<DatabaseHandle>, Error> {
        let shard = self.shard.clone();
        if let Known::Runs(handle) = shard.migrations.database(plan.id)? {
            return Ok(handle);
        }
        plan.donor = shard.sharding.shard_name();
        let known = shard.sharding.database(&plan.name);
        if !known.is_some_and(|known| known.primary && known.version == plan.version) {
            return Err(Error::new(
                Code::ILLEGAL_OPERATION,
                format!(
                    "this shard is not the primary of {} by that version",
                    plan.name
                ),
            ));
        }
        let is_there = |inner: &Inner| inner.databases.values().any(|it| it.plan.name == plan.name);
        if is_there(&shard.migrations.inner.lock()) {
            return Err(conflict(format!(
                "the primary of {} moves already",
                plan.name
            )));
        }
        let (recipient, host) = (&plan.recipient, &plan.other_host);
        shard.migrations.shards.get(recipient, host)?;
        let begun = vec![put(super::namespace(DATABASES), plan.document())];
        super::write_documents(&shard, self.tenure.term(), begun).await?;
        let handle = self.enter_database(plan);
        self.start_database(handle.clone());
        Ok(handle)
    }

    fn enter_database(&mut self, plan: DatabasePlan) -> Arc<DatabaseHandle> {
        let handle = DatabaseHandle::new(plan);
        let mut inner = self.shard.migrations.inner.lock();
        inner.databases.insert(handle.plan.id, handle.clone());
        handle
    }

    /// Its parts are known.
    fn start_database(&mut self, handle: Arc<DatabaseHandle>) {
        let shard = self.shard.clone();
        let id = handle.plan.id;
        let mut parts = shard.migrations.donors();
        parts.retain(|part| part.plan.part_of == Some(id));
        let driver = database::Driver {
            shard: shard.clone(),
            tenure: self.tenure.clone(),
            handle,
            parts,
            reason: None,
        };
        self.tasks.spawn(async move {
            driver.run().await;
            shard.migrations.inner.lock().databases.remove(&id);
        });
    }
}

fn in_process() -> Arc<wire::ConnectionInfo> {
    Arc::new(wire::ConnectionInfo::in_process(-1))
}

fn conflict(why: String) -> Error {
    Error::new(Code::CONFLICTING_OPERATION_IN_PROGRESS, why)
}

/// Makes a recipient known, and what drives it.
fn recipient_driver(
    shard: &Arc<Shard>,
    tenure: &Tenure,
    state: RecipientState,
) -> impl Future<Output = ()> + Send + use<> {
    let plan = state.plan.clone();
    let collection = shard.catalog.get(&plan.namespace);
    let collection = collection.filter(|known| known.uuid == plan.uuid);
    let (letters, read) = mpsc::channel::<Letter>(LETTERS_MAX);
    let progress = Arc::new(Progress::new(state.since));
    let id = plan.id;
    let handle = Arc::new(RecipientHandle {
        plan,
        letters,
        progress: progress.clone(),
    });
    let driver = recipient::Driver {
        shard: shard.clone(),
        tenure: tenure.clone(),
        state,
        collection: collection.map(|collection| collection.id),
        progress,
        letters: read,
        found: None,
        goes_on: None,
        aligning: None,
        put_off: None,
        reading: None,
    };
    driver.notes_readiness();
    shard.migrations.inner.lock().recipients.insert(id, handle);
    let shard = shard.clone();
    async move {
        driver.run().await;
        shard.migrations.inner.lock().recipients.remove(&id);
    }
}

/// Makes the collection ready and registers the range, durably.
async fn begin_recipient(
    shard: &Arc<Shard>,
    term: Term,
    request: &DocBuf,
) -> Result<RecipientState, Error> {
    let request = request.as_doc();
    let fields = Fields(request);
    let mut plan = Plan::from_receive(request, &shard.sharding.shard_name())?;
    shard.migrations.shards.get(&plan.donor, &plan.other_host)?;
    check_runs(shard, &plan, ANSWER_WAIT).await?;
    let since = fields.count("since")?;
    let is_part = plan.part_of.is_some();
    let description = Description::from_receive(request)?;
    let described = description.as_ref().map(|description| description.catalog);
    let (collection, aligned) = match is_part {
        true => {
            let new = new_collection(shard, term, &plan, request);
            (new.await?, described)
        }
        false => {
            let ready = ready_collection(shard, term, &plan, request, description).await?;
            (ready.collection, described.filter(|_| ready.is_aligned))
        }
    };
    let Some(ownership) = &collection.ownership else {
        return Err(conflict(format!("{} is not sharded here", plan.namespace)));
    };
    plan.known = ownership.collection_version;
    // ⚑ What is left of earlier days goes first: into history, so that nobody waits for it. If it
    // was all that was left, the collection has another id afterwards.
    let mut collection = collection;
    if !is_part {
        shard.remove_dead(&collection, &plan.range).await?;
        let known = shard.catalog.get(&plan.namespace);
        collection = known
            .filter(|known| known.uuid == plan.uuid)
            .ok_or_else(|| conflict(format!("{} was dropped", plan.namespace)))?;
    }
    let begun = Recipient::begin(plan.moved(), since, Standing::Empty);
    let mut recipient = begun
        .and_then(|begun| begun.next)
        .ok_or_else(|| conflict("no move begins".to_owned()))?;
    recipient.aligned = aligned;
    let state = RecipientState {
        plan,
        recipient,
        since,
        cleared: false,
        ended_ms: None,
    };
    let plan = &state.plan;
    let check = |known: &Ownership| -> Result<Ownership, Error> {
        if known.pattern != plan.pattern {
            return Err(conflict("the shard key is another one".to_owned()));
        }
        known.with_receiving(plan.id, plan.range.clone())
    };
    let mut documents = vec![put(super::namespace(RECIPIENTS), state.document())];
    if !is_part {
        let now = shard.log.latest_time();
        documents.push(plan.deletion(true, WhenToClean::Now, now, 0)?);
    }
    let transition = Transition {
        ownership: Some(Box::new(check)),
        documents,
        term: Some(term),
        ..Transition::default()
    };
    shard.transition(collection.id, &transition).await?;
    drop(transition);
    shard.migrations.receptions.fetch_add(1, Ordering::Relaxed);
    Ok(state)
}

/// Takes the lock for changes of the catalog, with the move known to run at a moment since which nobody else had it.
async fn while_it_runs<'a>(
    shard: &'a Arc<Shard>,
    plan: &Plan,
) -> Result<MutexGuard<'a, ()>, Error> {
    for _ in 0..OVERTAKEN_MAX {
        let place = shard.ddl.place();
        check_runs(shard, plan, ANSWER_WAIT).await?;
        let ddl = shard.ddl.lock().await;
        if shard.ddl.is_next(place) {
            return Ok(ddl);
        }
    }
    // Others change the catalog without a pause.
    let ddl = shard.ddl.lock().await;
    check_runs(shard, plan, ANSWER_WAIT).await?;
    Ok(ddl)
}

/// A collection that comes with its database. What an earlier attempt left under its name is dropped.
async fn new_collection(
    shard: &Arc<Shard>,
    term: Term,
    plan: &Plan,
    request: Doc<'_>,
) -> Result<Arc<Collection>, Error> {
    let fields = Fields(request);
    let indexes = listed_indexes(request)?;
    let indexes = choose(None, &plan.namespace, &indexes)?.new;
    if let Some(known) = shard.catalog.get(&plan.namespace) {
        let is_copy = |known: &Collection| {
            let ownership = known.ownership.as_ref();
            ownership.is_some_and(|it| it.is_dead_copy())
        };
        let comes = known.ownership.as_ref();
        let comes = comes.is_some_and(|it| !it.moving.receiving.is_empty());
        if known.uuid == plan.uuid && comes {
            return Err(conflict(format!("{} comes already", plan.namespace)));
        }
        if known.uuid != plan.uuid || !is_copy(&known) {
            return Err(Error::new(
                Code::NAMESPACE_EXISTS,
                format!("{} is there on the recipient already", plan.namespace),
            ));
        }
        let dropped = shard.drop_collection_if(&plan.namespace, Telling::Quietly, |now| {
            now.id == known.id && is_copy(now)
        });
        dropped.await?;
    }
    let new = New {
        uuid: plan.uuid,
        options: fields.doc("options")?.to_owned(),
        indexes,
        ownership: Some(Ownership::of_unsharded(
            fields.version("collectionVersion")?,
            false,
        )?),
        replaces: None,
        order: Order::Like(None),
        telling: Telling::Aloud,
        term: Some(term),
    };
    let _ddl = while_it_runs(shard, plan).await?;
    if shard.catalog.get(&plan.namespace).is_some() {
        return Err(conflict(format!("{} is made by another", plan.namespace)));
    }
    shard.create_new(&plan.namespace, new).await
}

/// A collection that a range can be received into.
struct ReadyCollection {
    collection: Arc<Collection>,
    /// Whether it is as the donor describes it; if not, that is made up for later.
    is_aligned: bool,
}

/// The collection with the donor's order and all of its indexes, created if it is not there.
async fn ready_collection(
    shard: &Arc<Shard>,
    term: Term,
    plan: &Plan,
    request: Doc<'_>,
    description: Option<Description>,
) -> Result<ReadyCollection, Error> {
    let fields = Fields(request);
    let indexes = listed_indexes(request)?;
    let clustering = request.get_doc("clustering").map(Doc::to_owned);
    let version = fields.version("collectionVersion")?;
    let new = |indexes, replaces: Option<Arc<Collection>>| -> Result<New, Error> {
        Ok(New {
            uuid: plan.uuid,
            options: fields.doc("options")?.to_owned(),
            indexes,
            ownership: Some(Ownership {
                pattern: plan.pattern.clone(),
                key: plan.key.clone(),
                unique: fields.flag("unique"),
                placement: PlacementVersion {
                    incarnation: version.incarnation,
                    chunk: ChunkVersion::ZERO,
                },
                collection_version: version,
                owned: Arc::default(),
                orphans: false,
                moving: Arc::default(),
                unsharded: false,
                next_key: None,
            }),
            replaces,
            order: Order::Like(clustering.clone()),
            telling: Telling::Aloud,
            term: Some(term),
        })
    };
    // ⚑ What is made of a description is as of its version, or that does not stand any more when the move is
    // to be committed.
    let as_described = |collection: Arc<Collection>| ReadyCollection {
        collection,
        is_aligned: true,
    };
    let collection = {
        let _ddl = while_it_runs(shard, plan).await?;
        let Some(collection) = shard.catalog.get(&plan.namespace) else {
            let indexes = choose(None, &plan.namespace, &indexes)?.new;
            let created = shard.create_new(&plan.namespace, new(indexes, None)?).await;
            return created.map(as_described);
        };
        if collection.uuid != plan.uuid {
            return Err(Error::new(
                Code::INVALID_UUID,
                format!("{} is another collection here", plan.namespace),
            ));
        }
        let order = clustering.as_ref().map(|key| Clustering::by(key.as_doc()));
        let order = order.transpose()?.flatten();
        if order.as_ref() != collection.clustering.as_deref() {
            // ⚑ The same order on every shard. What is empty is put into it.
            let gate = collection.gate.write().await;
            shard.wait_for_proposed().await?;
            let owns = collection.ownership.as_ref();
            // ⚑ Or another move brings something.
            let owns = owns.is_some_and(|ownership| {
                !ownership.owned.is_empty() || !ownership.moving.receiving.is_empty()
            });
            if owns || shard.store.collection_counter(collection.id).items > 0 {
                return Err(conflict(format!(
                    "{} has another order on this shard",
                    plan.namespace
                )));
            }
            let indexes = choose(None, &plan.namespace, &indexes)?.new;
            let ordered = new(indexes, Some(collection.clone()))?;
            let created = shard.create_new(&plan.namespace, ordered).await;
            drop(gate);
            return created.map(as_described);
        }
        collection
    };
    let mut is_aligned = false;
    if let Some(description) = description {
        let command = request.to_owned().into_bytes().into();
        let operation = shard.operations.begin(&in_process(), command);
        let aligned = alignment::align(shard, plan, collection.id, &description, &operation);
        is_aligned = aligned.await?;
    }
    // With the indexes that it has by now.
    let collection = shard.catalog.by_id(collection.id).unwrap_or(collection);
    Ok(ReadyCollection {
        collection,
        is_aligned,
    })
}
