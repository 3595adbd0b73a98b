//! One period of this member as primary of the config server: what it knows, and how it decides.
//!
//! ```text
//!   elected ─► collections made, state read ─► unfinished operations queued ─► serves
//!           ── leadership lost, or stopping ──► operations end where they are ─► over
//! ```
//!
//! **Decisions are made one after the other.** Each is worked out on what is in memory, becomes one
//! entry of the log with conditions on what it was worked out from, and is taken over into memory once
//! it is applied. ⚑ While the entry is under way, and if its outcome is not known afterwards, what is
//! in memory is in doubt: it is read anew before anything else is decided.

use crate::balancer::{self, Balancer};
use crate::commit::Commit;
use crate::error::{Fault, Retry};
use crate::moves::Moves;
use crate::operation;
use crate::queue::{Claim, Queue};
use crate::state::{Effect, State};
use crate::store::{self, Store};
use crate::ticket::{self, Shown, Ticket, Tickets};
use crate::{Connect, documents, schema};
use cluster::routing::ShardId;
use model::bson::{Doc, DocBuf, DocWriter};
use model::time::ClusterTime;
use model::{Code, Error};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use wire::Endpoint;

/// Between two attempts at what did not work: the first pause, doubled up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How long a shard may take to answer one internal command.
const SHARD_LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Tenure {
    pub(crate) store: Arc<Store>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) moves: Moves,
    pub(crate) tickets: Tickets,
    pub(crate) balancer: Balancer,
    connect: Connect,
    state: RwLock<State>,
    deciding: tokio::sync::Mutex<()>,
    in_doubt: AtomicBool,
    /// Somebody else has written what is known here, and was told so: whoever looks from now on sees it.
    is_outdated: AtomicBool,
    links: Mutex<HashMap<ShardId, Link>>,
    tasks: tokio::sync::Mutex<Option<JoinSet<()>>>,
    /// Names of operations that cannot be finished.
    closed: Mutex<BTreeSet<String>>,
    over: watch::Sender<bool>,
}

/// The way to a shard, and the connection string that it was made from.
struct Link {
    host: String,
    endpoint: Arc<dyn Endpoint>,
}

/// What a decision writes, and what that means here.
pub(crate) struct Plan<T> {
    pub(crate) commit: Commit,
    pub(crate) effects: Vec<Effect>,
    pub(crate) answer: T,
}

impl Tenure {
    pub(crate) async fn begin(store: Arc<Store>, connect: Connect) -> Result<Arc<Tenure>, Fault> {
        let state = State::load(&store).await?;
        schema::complete(&store).await?;
        let tenure = Arc::new(Tenure {
            store,
            queue: Arc::default(),
            moves: Moves::default(),
            tickets: Tickets::default(),
            balancer: Balancer::default(),
            connect,
            state: RwLock::new(state),
            deciding: tokio::sync::Mutex::new(()),
            in_doubt: AtomicBool::new(false),
            is_outdated: AtomicBool::new(false),
            links: Mutex::new(HashMap::new()),
            tasks: tokio::sync::Mutex::new(Some(JoinSet::new())),
            closed: Mutex::default(),
            over: watch::Sender::new(false),
        });
        operation::resume_all(&tenure).await?;
        // Nobody waits for it: it ends with the tenure.
        drop(tenure.spawn(balancer::run(tenure.clone())).await);
        Ok(tenure)
    }

    /// Closes names to further operations.
    pub(crate) fn close(&self, claim: &Claim) {
        self.close_names(claim.names());
    }

    pub(crate) fn close_names(&self, names: Vec<String>) {
        self.closed.lock().extend(names);
    }

    /// A name that is closed, if the claim has one.
    pub(crate) fn closed(&self, claim: &Claim) -> Option<String> {
        let closed = self.closed.lock();
        claim.names().into_iter().find(|name| closed.contains(name))
    }

    /// Ends everything that runs, at the next step of each, and waits for that.
    pub(crate) async fn end(&self) {
        self.over.send_replace(true);
        // ⚑ The lock is let go before anybody is waited for: what runs may be about to begin something else.
        let tasks = self.tasks.lock().await.take();
        if let Some(mut tasks) = tasks {
            while tasks.join_next().await.is_some() {}
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    pub(crate) async fn ended(&self) {
        let mut over = self.over.subscribe();
        let _ = over.wait_for(|over| *over).await;
    }

    /// Runs something to its end whether or not somebody waits for it.
    pub(crate) async fn spawn<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> oneshot::Receiver<Result<T, Fault>> {
        let (tell, told) = oneshot::channel();
        let mut tasks = self.tasks.lock().await;
        if let Some(tasks) = tasks.as_mut() {
            while tasks.try_join_next().is_some() {}
            tasks.spawn(async move {
                // Nobody may be waiting any more.
                let _ = tell.send(work.await);
            });
        }
        told
    }

    /// [`Tenure::spawn`], and waits for it.
    pub(crate) async fn complete<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        let told = self.spawn(work).await;
        told.await.unwrap_or_else(|_| Err(no_primary()))
    }

    /// What is known, once nothing of it is in doubt.
    pub(crate) async fn state(&self) -> Result<parking_lot::RwLockReadGuard<'_, State>, Fault> {
        // ⚑ Also while somebody decides: the write that is missing has been acknowledged.
        if self.is_outdated.load(Ordering::Acquire) {
            let _deciding = self.deciding.lock().await;
            self.clear_doubt().await?;
        }
        // Somebody who decides right now clears the doubt soon; the state before that is right.
        if self.in_doubt.load(Ordering::Acquire)
            && let Ok(_deciding) = self.deciding.try_lock()
        {
            self.clear_doubt().await?;
        }
        Ok(self.state.read())
    }

    /// [`Tenure::state`] when nothing is being decided: all that was written is part of it.
    pub(crate) async fn certain<T>(&self, look: impl FnOnce(&State) -> T) -> Result<T, Fault> {
        let _deciding = self.deciding.lock().await;
        self.clear_doubt().await?;
        Ok(look(&self.state.read()))
    }

    /// What becomes of a command: it is answered, joined, or begins. ⚑ Answers first: a command leaves those that
    /// run only when its answer is there.
    pub(crate) async fn show(&self, ticket: Ticket) -> Result<Shown, Fault> {
        self.certain(|state| match state.answers.find(ticket)? {
            Some(answer) => Ok(Shown::Answered(ticket::given(answer))),
            None => self.tickets.show(ticket),
        })
        .await?
    }

    /// What is known, for looking something up.
    pub(crate) fn with_state<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.read())
    }

    async fn clear_doubt(&self) -> Result<(), Fault> {
        if self.in_doubt.load(Ordering::Acquire) {
            let read = State::load(&self.store).await?;
            *self.state.write() = read;
            self.in_doubt.store(false, Ordering::Release);
            self.is_outdated.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Works something out on the state and makes it so.
    pub(crate) async fn decide<T>(
        &self,
        work_out: impl FnOnce(&State) -> Result<Plan<T>, Fault>,
    ) -> Result<T, Fault> {
        let _deciding = self.deciding.lock().await;
        self.clear_doubt().await?;
        if self.is_over() {
            return Err(no_primary());
        }
        let plan = work_out(&self.state.read())?;
        self.in_doubt.store(true, Ordering::Release);
        self.store.commit(&plan.commit).await?;
        let mut state = self.state.write();
        for effect in plan.effects {
            state.apply(effect)?;
        }
        self.in_doubt.store(false, Ordering::Release);
        Ok(plan.answer)
    }

    /// Lets somebody else write what is known here: between two decisions, and it is read again before the next.
    pub(crate) async fn beside<T>(&self, writing: impl Future<Output = T>) -> T {
        let _deciding = self.deciding.lock().await;
        self.in_doubt.store(true, Ordering::Release);
        let written = writing.await;
        self.is_outdated.store(true, Ordering::Release);
        written
    }

    /// Writes what nothing in memory follows from.
    pub(crate) async fn write(&self, commit: Commit) -> Result<(), Fault> {
        self.decide(|_| {
            Ok(Plan {
                commit,
                effects: Vec::new(),
                answer: (),
            })
        })
        .await
    }

    /// How a shard is reached.
    pub(crate) fn shard(&self, shard: &ShardId) -> Result<Arc<dyn Endpoint>, Fault> {
        let host = self.with_state(|state| match state.hosts.get(shard) {
            Some(host) => Ok(host.clone()),
            None => {
                state.check_shard(shard)?;
                let message = format!("Shard {shard} not found");
                Err(Fault::new(Code::SHARD_NOT_FOUND, message))
            }
        })?;
        let mut links = self.links.lock();
        match links.get(shard) {
            Some(known) if known.host == host => Ok(known.endpoint.clone()),
            Some(_) | None => {
                let endpoint = (self.connect)(shard.as_str(), &host);
                let link = Link {
                    host,
                    endpoint: endpoint.clone(),
                };
                links.insert(shard.clone(), link);
                Ok(endpoint)
            }
        }
    }

    /// How somebody is reached who is no shard yet.
    pub(crate) fn reach(&self, name: &str, host: &str) -> Arc<dyn Endpoint> {
        (self.connect)(name, host)
    }

    /// Asks a shard once.
    pub(crate) async fn ask(
        &self,
        shard: &ShardId,
        database: &str,
        command: Doc<'_>,
    ) -> Result<DocBuf, Fault> {
        let link = self.shard(shard)?;
        // What one shard did is not later than what another is asked for next.
        let mut writer = DocWriter::new();
        for element in command.iter() {
            if !matches!(element.key(), "$clusterTime" | "$configTime") {
                writer.append_element(&element);
            }
        }
        let told = self.store.told();
        if told > ClusterTime::ZERO {
            told.append_to(&mut writer);
        }
        writer.append("$configTime", self.store.config_time());
        let timed = writer.finish();
        let answered = ask_endpoint(&*link, shard.as_str(), database, timed.as_doc()).await;
        if let Ok(reply) = &answered {
            self.store.observe(reply.as_doc());
        }
        answered
    }

    /// Asks a shard what it can be asked again, until it answers or the tenure is over.
    pub(crate) async fn insist(
        &self,
        shard: &ShardId,
        database: &str,
        command: Doc<'_>,
    ) -> Result<DocBuf, Fault> {
        let mut pause = FIRST_PAUSE;
        loop {
            let answered = tokio::select! {
                answered = self.ask(shard, database, command) => answered,
                // Whoever comes next asks again.
                () = self.ended() => return Err(no_primary()),
            };
            match answered {
                Err(fault) if fault.retry() == Retry::AfterBackoff => {
                    tracing::debug!("{shard} is asked again: {fault}");
                    self.pause(&mut pause).await?;
                }
                answered => return answered,
            }
        }
    }

    /// Waits before another attempt; an error when the tenure is over.
    pub(crate) async fn pause(&self, pause: &mut Duration) -> Result<(), Fault> {
        tokio::select! {
            () = self.ended() => {}
            () = tokio::time::sleep(*pause) => {}
        }
        *pause = (*pause * 2).min(LAST_PAUSE);
        match self.is_over() {
            true => Err(no_primary()),
            false => Ok(()),
        }
    }

    pub(crate) fn first_pause() -> Duration {
        FIRST_PAUSE
    }
}

/// Asks somebody once, within a limit.
pub(crate) async fn ask_endpoint(
    endpoint: &dyn Endpoint,
    name: &str,
    database: &str,
    command: Doc<'_>,
) -> Result<DocBuf, Fault> {
    let mut body = DocWriter::new();
    for element in command.iter() {
        if !matches!(element.key(), "$db" | "lsid" | "txnNumber") {
            body.append_element(&element);
        }
    }
    body.append("$db", database);
    let asked = store::call(endpoint, body.finish());
    match tokio::time::timeout(SHARD_LIMIT, asked).await {
        Ok(answered) => answered,
        Err(_) => Err(Fault::Unknown(format!("{name} does not answer"))),
    }
}

pub(crate) fn no_primary() -> Fault {
    Fault::Unreachable(Error::new(
        Code::NOT_WRITABLE_PRIMARY,
        "not primary: another member of the config server decides",
    ))
}

/// A line of the changelog, to be written with what it tells of.
pub(crate) fn log_change(commit: &mut Commit, what: &str, namespace: &str, details: Doc<'_>) {
    let document = DocWriter::new()
        .with(
            "_id",
            format!("config-{}", documents::new_object_id()).as_str(),
        )
        .with("server", "config")
        .with("shard", "config")
        .with("clientAddr", "")
        .with("time", model::bson::ValueRef::DateTime(documents::now_ms()))
        .with("what", what)
        .with("ns", namespace)
        .with("details", details)
        .finish();
    commit.insert(documents::CHANGELOG, document.as_doc());
}
