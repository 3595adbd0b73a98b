//! What the router knows of placements: the shell around [`RoutingCache`], and the databases.
//!
//! A question to the config server runs in a task of its own, so that it outlives whoever asked
//! first; everybody who needs the answer waits for the same one. Requests for shards that are not
//! concerned by what is stale go on with the table there is.
//!
//! ⚑ Whoever knows a table knows the times at which its ranges came to their owners: a snapshot that
//! is taken later is not from before them.
//!
//! Databases are fetched in the same way: one question at a time for a name. A database that does
//! not exist is not remembered.

use crate::config::{ConfigServer, Database};
use crate::failure::Stale;
use crate::request::Clock;
use cluster::cache::{Fetch, LookUp, Outcome, Placement, RoutingCache};
use cluster::routing::ShardId;
use model::error::{Code, Error};
use model::namespace::Namespace;
use model::version::ChunkVersion;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// `None` while the question is under way.
type Told = Option<Result<(), Error>>;

#[derive(Default)]
struct Collections {
    cache: RoutingCache<Namespace>,
    asked: HashMap<Namespace, watch::Receiver<Told>>,
    /// What was told a moment ago, beside the cache.
    recent: HashMap<Namespace, (Instant, Placement)>,
}

/// For so long a placement is recent, and so long may it take to ask for it.
const RECENT: Duration = Duration::from_secs(1);

/// One database; the lock is held by who asks.
#[derive(Default)]
struct DatabaseEntry {
    known: Mutex<Option<Database>>,
    asking: tokio::sync::Mutex<()>,
}

pub(crate) struct Routing {
    config: Arc<ConfigServer>,
    clock: Arc<Clock>,
    collections: Arc<Mutex<Collections>>,
    databases: Mutex<HashMap<String, Arc<DatabaseEntry>>>,
    stale_answers: AtomicU64,
}

/// What `serverStatus` tells of it.
pub(crate) struct RoutingStatistics {
    pub(crate) databases: usize,
    pub(crate) collections: usize,
    /// How often a shard said that a request was routed by an old version.
    pub(crate) stale_answers: u64,
}

/// How requests for one namespace are routed now.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) namespace: Namespace,
    pub(crate) placement: Placement,
    /// Its primary shard answers for what is not sharded.
    pub(crate) database: Database,
}

impl Routing {
    pub(crate) fn new(config: Arc<ConfigServer>, clock: Arc<Clock>) -> Routing {
        Routing {
            config,
            clock,
            collections: Arc::default(),
            databases: Mutex::default(),
            stale_answers: AtomicU64::new(0),
        }
    }

    /// What is known of a collection and may be used for these shards.
    pub(crate) async fn placement(
        &self,
        namespace: &Namespace,
        shards: Option<&[ShardId]>,
    ) -> Result<Placement, Error> {
        loop {
            let mut told = {
                let mut collections = self.collections.lock();
                match collections.cache.look_up(namespace, shards) {
                    LookUp::Ready(placement) => return Ok(placement),
                    LookUp::Ask(fetch) => {
                        let (sender, receiver) = watch::channel(None);
                        let asked = &mut collections.asked;
                        asked.insert(namespace.clone(), receiver.clone());
                        let question = Question {
                            config: self.config.clone(),
                            clock: self.clock.clone(),
                            collections: self.collections.clone(),
                            namespace: namespace.clone(),
                        };
                        tokio::spawn(question.run(fetch, sender));
                        receiver
                    }
                    LookUp::Wait => match collections.asked.get(namespace) {
                        Some(receiver) => receiver.clone(),
                        None => continue,
                    },
                }
            };
            match told.wait_for(Option::is_some).await {
                Ok(told) => {
                    if let Some(Err(error)) = &*told {
                        return Err(error.clone());
                    }
                }
                // The task ended with the runtime.
                Err(_) => return Err(Error::new(Code::INTERRUPTED_AT_SHUTDOWN, "stopping")),
            }
        }
    }

    /// The same as it was a moment ago at the oldest, for whoever names it to others; what is known, if nobody tells.
    ///
    /// ⚑ What a router has cached is good for as long as shards take it, which may be days. A token that named such a
    /// placement would be refused at once, wherever its history is over.
    ///
    /// It is asked for beside the cache: what is cached is not wrong, and others go on with it.
    pub(crate) async fn recent_placement(&self, namespace: &Namespace) -> Result<Placement, Error> {
        let begun = Instant::now();
        let known = {
            let collections = self.collections.lock();
            match collections.recent.get(namespace) {
                Some((told, placement)) if told.elapsed() <= RECENT => return Ok(placement.clone()),
                Some(_) | None => collections.cache.fresh(namespace).cloned(),
            }
        };
        let Some(known) = known else {
            return self.placement(namespace, None).await;
        };
        let told = self.ask_beside(namespace, known.clone());
        let Ok(Some(placement)) = tokio::time::timeout(RECENT, told).await else {
            return Ok(known);
        };
        let recent = &mut self.collections.lock().recent;
        recent.retain(|_, (told, _)| told.elapsed() <= RECENT);
        recent.insert(namespace.clone(), (begun, placement.clone()));
        Ok(placement)
    }

    /// What the config server makes of a placement; `None` if it does not say.
    async fn ask_beside(&self, namespace: &Namespace, known: Placement) -> Option<Placement> {
        let mut beside = RoutingCache::beside(namespace.clone(), known);
        let LookUp::Ask(mut fetch) = beside.look_up(namespace, None) else {
            return None;
        };
        loop {
            let (fetched, latest_change) =
                self.config.routing(namespace.as_str(), fetch).await.ok()?;
            self.clock.raise(latest_change);
            match beside.fetched(namespace, Ok(fetched)) {
                Outcome::Ask(again) => fetch = again,
                Outcome::Updated => return beside.known(namespace).cloned(),
                Outcome::GaveUp(_) => return None,
            }
        }
    }

    /// As if what is known had been told long ago.
    #[cfg(test)]
    pub(crate) fn grow_old(&self) {
        self.collections.lock().recent.clear();
    }

    /// What is known of a collection without asking anybody, if nothing of it is stale.
    pub(crate) fn known(&self, namespace: &Namespace) -> Option<Placement> {
        self.collections.lock().cache.fresh(namespace).cloned()
    }

    /// The primary shard of a database; `None` if there is no such database.
    pub(crate) async fn database(
        &self,
        name: &str,
        create: bool,
    ) -> Result<Option<Database>, Error> {
        let entry = {
            let mut databases = self.databases.lock();
            databases.entry(name.to_owned()).or_default().clone()
        };
        if let Some(known) = &*entry.known.lock() {
            return Ok(Some(known.clone()));
        }
        let _one_at_a_time = entry.asking.lock().await;
        if let Some(known) = &*entry.known.lock() {
            return Ok(Some(known.clone()));
        }
        match self.config.database(name, create).await {
            Ok(database) => {
                *entry.known.lock() = Some(database.clone());
                Ok(Some(database))
            }
            Err(error) if error.code == Code::NAMESPACE_NOT_FOUND && !create => {
                self.forget_entry(name, &entry);
                Ok(None)
            }
            Err(error) => {
                self.forget_entry(name, &entry);
                Err(error)
            }
        }
    }

    fn forget_entry(&self, name: &str, entry: &Arc<DatabaseEntry>) {
        let mut databases = self.databases.lock();
        if databases
            .get(name)
            .is_some_and(|now| Arc::ptr_eq(now, entry))
        {
            databases.remove(name);
        }
    }

    /// How a collection is routed; `None` if its database does not exist and is not to be created.
    pub(crate) async fn route(
        &self,
        namespace: &Namespace,
        create: bool,
    ) -> Result<Option<Route>, Error> {
        let Some(database) = self.database(namespace.database(), create).await? else {
            return Ok(None);
        };
        Ok(Some(Route {
            namespace: namespace.clone(),
            placement: self.placement(namespace, None).await?,
            database,
        }))
    }

    pub(crate) fn statistics(&self) -> RoutingStatistics {
        RoutingStatistics {
            databases: self.databases.lock().len(),
            collections: self.collections.lock().cache.names().len(),
            stale_answers: self.stale_answers.load(Ordering::Relaxed),
        }
    }

    /// Takes note of what a shard said.
    pub(crate) fn note(&self, namespace: &Namespace, stale: &Stale) {
        self.stale_answers.fetch_add(1, Ordering::Relaxed);
        match stale {
            Stale::Collection { shard, wanted } => {
                let cache = &mut self.collections.lock().cache;
                cache.stale_shard(namespace, shard, *wanted);
            }
            Stale::Database => self.forget_database(namespace.database()),
        }
    }

    /// Whoever looks a collection up next waits for news of it.
    pub(crate) fn mark_stale(&self, namespace: &Namespace) {
        self.collections.lock().cache.stale(namespace);
    }

    pub(crate) fn forget_collection(&self, namespace: &Namespace) {
        let mut collections = self.collections.lock();
        collections.recent.remove(namespace);
        forget_in(&mut collections.cache, namespace);
    }

    pub(crate) fn forget_database(&self, name: &str) {
        self.databases.lock().remove(name);
    }

    /// A shard has left the cluster: whatever was routed to it is somewhere else.
    pub(crate) fn left(&self, shard: &ShardId) {
        let is_elsewhere = |entry: &Arc<DatabaseEntry>| {
            let known = entry.known.lock();
            known.as_ref().is_none_or(|known| known.primary != *shard)
        };
        self.databases.lock().retain(|_, entry| is_elsewhere(entry));
        let cache = &mut self.collections.lock().cache;
        for namespace in cache.names() {
            let has_some = matches!(
                cache.known(&namespace),
                Some(Placement::Sharded(table)) if table.shard_version(shard).chunk != ChunkVersion::ZERO
            );
            if has_some {
                cache.stale_shard(&namespace, shard, None);
            }
        }
    }

    /// Everything, or what belongs to a database.
    pub(crate) fn forget_all(&self, database: Option<&str>) {
        let concerns = |name: &str| database.is_none_or(|database| database == name);
        self.databases.lock().retain(|name, _| !concerns(name));
        let cache = &mut self.collections.lock().cache;
        for namespace in cache.names() {
            if concerns(namespace.database()) {
                forget_in(cache, &namespace);
            }
        }
    }
}

/// A question under way.
struct Question {
    config: Arc<ConfigServer>,
    clock: Arc<Clock>,
    collections: Arc<Mutex<Collections>>,
    namespace: Namespace,
}

impl Question {
    async fn run(self, mut fetch: Fetch, told: watch::Sender<Told>) {
        loop {
            let answer = self.config.routing(self.namespace.as_str(), fetch).await;
            let answer = answer.map(|(fetched, latest_change)| {
                self.clock.raise(latest_change);
                fetched
            });
            // The cache keeps a text; who waits is told the error itself.
            let error = answer.as_ref().err().cloned();
            let mut collections = self.collections.lock();
            let answer = answer.map_err(|error| error.message);
            let known = collections.cache.known(&self.namespace).cloned();
            let outcome = match collections.cache.fetched(&self.namespace, answer) {
                Outcome::Ask(again) => {
                    fetch = again;
                    continue;
                }
                Outcome::Updated => Ok(()),
                Outcome::GaveUp(reason) => {
                    Err(error.unwrap_or_else(|| Error::new(Code::INTERNAL_ERROR, reason)))
                }
            };
            collections.asked.remove(&self.namespace);
            discard_aside(known);
            told.send_replace(Some(outcome));
            return;
        }
    }
}

fn forget_in(cache: &mut RoutingCache<Namespace>, namespace: &Namespace) {
    let known = cache.known(namespace).cloned();
    cache.forget(namespace);
    discard_aside(known);
}

/// Lets go of a placement that is not looked up any more. A long table takes a while, in which nobody
/// else should have to wait.
fn discard_aside(placement: Option<Placement>) {
    const LONG: usize = 10_000;
    if let Some(Placement::Sharded(table)) = &placement
        && table.chunk_count() > LONG
    {
        tokio::task::spawn_blocking(move || drop(placement));
    }
}
