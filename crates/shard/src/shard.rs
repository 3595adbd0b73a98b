//! The shard itself: opened from a directory, closed in good order.

use crate::broadcast::Broadcasts;
use crate::catalog::multikey;
use crate::catalog::{Catalog, CatalogKey, CatalogLock, Collection, NextIds};
use crate::change_stream::Watchers;
use crate::clock::Clock;
use crate::command;
use crate::command::default_concerns::{ConcernDefaults, DEFAULTS_KEY};
use crate::counters::Counters;
use crate::cursor::Cursors;
use crate::host::Host;
use crate::index_build::DuplicateKeys;
use crate::latency::Latency;
use crate::migration::Migrations;
use crate::operation::Operations;
use crate::parameters::Parameters;
use crate::quiesce::Callers;
use crate::read::{PlanCache, virtual_collections};
use crate::replica_set::MemberNumber;
use crate::replica_set::configuration::{CONFIGURATION_KEY, Configuration};
use crate::replica_set::primary;
use crate::replica_set::transport::{self, Peers};
use crate::replica_set::waiting_room;
use crate::replica_set::{Membership, ReplicaSet, Topology};
use crate::rules::Rules;
use crate::session::{SessionCache, SessionCatalog, SessionHome};
use crate::sharding::{
    Ownership, OwnershipKey, OwnershipUpdate, RangeDeleter, Refresh, ShardingState, time_of_change,
};
use crate::write::{Applier, Latches, Overlay};
use crate::{Store, SystemClock};
use model::bson::{Doc, DocBuf, ObjectId};
use model::ids::Uuid;
use parking_lot::Mutex;
use replication::{Group, GroupId, LogPosition, Role};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use storage::{FjallEngine, FjallOptions, ScanMemory, StoreOptions};
use tokio::sync::{Notify, watch};
use wire::{ConnectionInfo, Handler, MetricsSnapshot, Reply, Request, ServerHandle};

/// How a shard is opened.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    pub data: PathBuf,
    /// Memory for data: the engine's memtables and blocks, whole records, and what scans keep.
    pub cache_bytes: u64,
    /// What scans keep in it is one with that of other shards of the process, which were given a clone
    /// of this; `None` for a part of its own.
    pub scan_memory: Option<ScanMemory>,
    /// Server parameters with the values they start with.
    pub parameters: Vec<(String, String)>,
    pub log_window: LogWindow,
}

/// Whether a server can be started with these parameters: before anything else, so that nobody waits for a member that
/// cannot open.
pub fn check_parameters(given: &[(String, String)]) -> Result<(), OpenError> {
    match Parameters::at_startup(given) {
        Ok(_) => Ok(()),
        Err(error) => Err(OpenError::Parameter(error.message)),
    }
}

impl ShardOptions {
    /// With twice the size, half as much is merged again while loading; but a restart replays more, and small
    /// servers have no memory for it.
    fn memtable_bytes(cache_bytes: u64) -> u64 {
        (cache_bytes / 16).clamp(32 << 20, 64 << 20)
    }

    /// What is left for caches beside what is not flushed: twice a memtable's size, with what lies beside it, once
    /// more what is being flushed, and once more what caches and tables take that nobody counts (their own tables,
    /// filters, what the allocator keeps). For small servers that is more than they have memory: a quarter is all
    /// that is counted.
    fn cached_bytes(cache_bytes: u64) -> u64 {
        let others = 4 * Self::memtable_bytes(cache_bytes);
        cache_bytes - others.min(cache_bytes / 4)
    }

    /// The part of it that is for scans alone.
    fn scan_bytes(cache_bytes: u64) -> u64 {
        Self::cached_bytes(cache_bytes) / 4
    }

    /// What scans of several shards keep, which have so much for caching together.
    pub fn scan_memory_of(cache_bytes: u64) -> ScanMemory {
        ScanMemory::of(Self::scan_bytes(cache_bytes))
    }
}

/// How much of the log is kept, for change streams and others who read it. What is
/// younger than the age or within the bytes stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogWindow {
    pub bytes: u64,
    pub age_ms: i64,
    /// It is cut off file by file.
    pub segment_bytes: u64,
}

impl LogWindow {
    /// So much of it, whatever its age.
    pub fn of_bytes(bytes: u64) -> Self {
        let usual = Self::default();
        let page = 4096;
        // Several files, so that not all of it leaves at once.
        let segment_bytes = (bytes / 8 / page * page).min(usual.segment_bytes);
        Self {
            bytes,
            segment_bytes,
            ..usual
        }
    }
}

impl Default for LogWindow {
    fn default() -> Self {
        let options = replication::Options::new(GroupId(1));
        Self {
            bytes: options.window_bytes,
            age_ms: options.window_ms,
            segment_bytes: options.segment_bytes,
        }
    }
}

/// Why a shard could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Storage(#[from] storage::Error),
    #[error(transparent)]
    Log(#[from] replication::Error),
    #[error("a parameter cannot be set: {0}")]
    Parameter(String),
    #[error("the catalog cannot be read: {0}")]
    Catalog(#[from] model::Error),
}

pub struct Shard {
    pub(crate) store: Arc<Store>,
    pub(crate) log: Group<Applier>,
    /// The last entry that the log held when it was opened, committed or not.
    pub(crate) log_at_start: LogPosition,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) virtual_collections: Vec<Arc<Collection>>,
    pub(crate) overlay: Arc<Overlay>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) replica_set: Arc<ReplicaSet>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) latches: Latches,
    pub(crate) duplicate_keys: Arc<DuplicateKeys>,
    pub(crate) operations: Arc<Operations>,
    /// Cursors that wait for the log to grow.
    pub(crate) watchers: Arc<Watchers>,
    pub(crate) counters: Counters,
    pub(crate) latency: Latency,
    pub(crate) cursors: Cursors,
    pub(crate) plan_cache: PlanCache,
    pub(crate) sessions: Arc<SessionCatalog>,
    pub(crate) session_cache: SessionCache,
    pub(crate) session_home: SessionHome,
    /// Who this shard is in its cluster.
    pub(crate) sharding: Arc<ShardingState>,
    /// Where to ask about it.
    pub(crate) refresh: Refresh,
    pub(crate) range_deleter: RangeDeleter,
    /// Ranges that come and go.
    pub(crate) migrations: Migrations,
    /// Parts in writes over several shards.
    pub(crate) broadcasts: Broadcasts,
    pub(crate) parameters: Parameters,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) host: Host,
    pub(crate) started: Instant,
    /// Names this life of the process to drivers that watch it.
    pub(crate) process_id: ObjectId,
    /// Where queries put what does not fit into memory.
    pub(crate) scratch: PathBuf,
    /// Changes of the catalog happen one after the other.
    pub(crate) ddl: CatalogLock,
    ids: ObjectIds,
    shutdown: watch::Sender<bool>,
    shutdown_wanted: Notify,
    /// How long a client that asked for the shutdown lets others be told of it.
    pub(crate) shutdown_limit: Mutex<Option<Duration>>,
    /// Connections of other members.
    pub(crate) callers: Callers,
    server: OnceLock<ServerHandle>,
    closed: AtomicBool,
}

impl Shard {
    /// Opens the data, replays the log's tail, and is ready to answer.
    pub fn open(options: &ShardOptions) -> Result<Arc<Shard>, OpenError> {
        Self::open_with_clock(options, Arc::new(SystemClock))
    }

    /// The same by another clock than the machine's.
    pub fn open_with_clock(
        options: &ShardOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Shard>, OpenError> {
        Self::open_all(options, clock, Membership::ALONE)
    }

    /// Opens one member of a set of several.
    pub fn open_member(
        options: &ShardOptions,
        membership: Membership,
    ) -> Result<Arc<Shard>, OpenError> {
        Self::open_all(options, Arc::new(SystemClock), membership)
    }

    fn open_all(
        options: &ShardOptions,
        clock: Arc<dyn Clock>,
        membership: Membership,
    ) -> Result<Arc<Shard>, OpenError> {
        let parameters = Parameters::at_startup(&options.parameters)
            .map_err(|error| OpenError::Parameter(error.message))?;
        // Records are asked for far more often than blocks: see docs/benchmarks.md.
        let cached_bytes = ShardOptions::cached_bytes(options.cache_bytes);
        let record_cache_bytes = cached_bytes / 2;
        let scan_bytes = ShardOptions::scan_bytes(options.cache_bytes);
        let scan_memory = options.scan_memory.clone();
        let engine = FjallEngine::open(
            &options.data,
            &FjallOptions {
                cache_bytes: cached_bytes - record_cache_bytes - scan_bytes,
                memtable_bytes: ShardOptions::memtable_bytes(options.cache_bytes),
                ..FjallOptions::default()
            },
        )?;
        // A state from another member may have been taken over half-way.
        storage::finish_install(&engine, &options.data)?;
        let store = Arc::new(Store::open(
            engine,
            StoreOptions {
                record_cache_bytes,
                scan_memory: scan_memory.unwrap_or_else(|| ScanMemory::of(scan_bytes)),
                ..StoreOptions::default()
            },
        )?);
        let catalog = Arc::new(Catalog::new(load_collections(&store, &*clock)?));
        let rules = Arc::new(Rules::default());
        let overlay = Arc::new(Overlay::new(rules.clone()));
        let peers = Arc::new(Peers::new());
        match &membership {
            // The process knows where all of its members are.
            Membership::Founder {
                founders,
                configuration: None,
                ..
            } => peers.fix_hosts(
                founders
                    .iter()
                    .map(|(id, host)| (MemberNumber::first(*id).in_log(), host.clone())),
            ),
            Membership::Founder { founders, .. } => {
                for (id, host) in founders {
                    peers.set_host(MemberNumber::first(*id).in_log(), host);
                }
            }
            Membership::Newcomer {
                caller: (caller, host),
                ..
            } => peers.set_host(caller.in_log(), host),
        }
        let sessions = Arc::new(SessionCatalog::new());
        let operations = Arc::new(Operations::default());
        let watchers = Arc::new(Watchers::default());
        let replica_set = Arc::new(load_replica_set(&store, membership, peers.clone())?);
        let sharding = Arc::new(ShardingState::load(&store)?);
        let applier = Applier {
            store: store.clone(),
            catalog: catalog.clone(),
            overlay: overlay.clone(),
            replica_set: replica_set.clone(),
            sessions: sessions.clone(),
            sharding: sharding.clone(),
            operations: operations.clone(),
            watchers: watchers.clone(),
            clock: clock.clone(),
            data: options.data.clone(),
        };
        let log = open_log(
            &options.data,
            options.log_window,
            parameters.current().clock_drift_secs,
            applier,
            &replica_set,
            peers.clone(),
        )?;
        if *replica_set.membership() == Membership::ALONE {
            replica_set.took_role(*log.role().borrow());
        }
        let scratch = options.data.join("scratch");
        clear_scratch(&scratch)?;
        Ok(Arc::new(Shard {
            store,
            log_at_start: log.last_appended(),
            log,
            catalog,
            virtual_collections: virtual_collections(),
            overlay,
            rules,
            replica_set,
            peers,
            latches: Latches::new(),
            duplicate_keys: Arc::default(),
            operations,
            watchers,
            counters: Counters::default(),
            latency: Latency::default(),
            cursors: Cursors::new(),
            plan_cache: PlanCache::new(),
            sessions,
            session_cache: SessionCache::new(),
            session_home: SessionHome::default(),
            sharding,
            refresh: Refresh::default(),
            range_deleter: RangeDeleter::default(),
            migrations: Migrations::default(),
            broadcasts: Broadcasts::default(),
            parameters,
            clock,
            host: Host::look_up(),
            started: Instant::now(),
            process_id: ObjectIds::new().next(0),
            scratch,
            ddl: CatalogLock::default(),
            ids: ObjectIds::new(),
            shutdown: watch::Sender::new(false),
            shutdown_wanted: Notify::new(),
            shutdown_limit: Mutex::default(),
            callers: Callers::default(),
            server: OnceLock::new(),
            closed: AtomicBool::new(false),
        }))
    }

    /// Lets `serverStatus` see the counters of the server in front.
    pub fn attach_server(&self, server: ServerHandle) {
        // A second server would be a mistake of the caller, but a harmless one.
        let _ = self.server.set(server);
    }

    pub(crate) fn wire_metrics(&self) -> MetricsSnapshot {
        self.server
            .get()
            .map(ServerHandle::metrics)
            .unwrap_or_default()
    }

    /// Says that the shard is about to stop: what waits for news stops waiting.
    pub fn begin_shutdown(&self) {
        self.shutdown.send_replace(true);
    }

    /// Ends the operations that did not finish by themselves after the shutdown began.
    pub fn interrupt_operations(&self) {
        self.operations.interrupt_for_shutdown();
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        *self.shutdown.borrow()
    }

    pub(crate) async fn shutdown_begun(&self) {
        let mut changes = self.shutdown.subscribe();
        // The sender lives in self, so this ends only by the value.
        let _ = changes.wait_for(|begun| *begun).await;
    }

    /// Completes with the reason when the log has stopped for good: a failed
    /// write, a full disk. Never completes otherwise.
    pub async fn log_stopped(&self) -> String {
        // By the role, which hardly ever changes: who follows the progress wakes with every write.
        let mut role = self.log.role();
        let _ = role.wait_for(|role| *role == Role::Gone).await;
        match self.log.stopped() {
            Some(reason) => reason.to_string(),
            None => std::future::pending().await,
        }
    }

    /// Completes when this member's part as primary is another than `known`: the term in
    /// which clients see it as primary, or `None`.
    pub async fn leadership_changed(&self, known: Option<u64>) -> Option<u64> {
        let term = |topology: &Topology| match topology.role {
            Role::Leader { term } if topology.quiesces_until.is_none() => Some(term.get()),
            Role::Leader { .. }
            | Role::Follower { .. }
            | Role::Candidate { .. }
            | Role::Installing { .. }
            | Role::Gone => None,
        };
        let mut changes = self.replica_set.watch();
        match changes.wait_for(|topology| term(topology) != known).await {
            Ok(topology) => term(&topology),
            // The sender lives in self.
            Err(_) => None,
        }
    }

    /// A client asked for the process to end.
    pub(crate) fn request_shutdown(&self) {
        self.shutdown_wanted.notify_one();
    }

    /// Completes when a client has asked for the process to end.
    pub async fn shutdown_requested(&self) {
        self.shutdown_wanted.notified().await;
    }

    /// Finishes the log's work and makes everything durable. Blocks.
    pub fn close(&self) -> Result<(), OpenError> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.peers.close();
        self.log.close()?;
        self.store.sync()?;
        Ok(())
    }

    pub(crate) fn new_object_id(&self) -> ObjectId {
        let seconds = self.clock.now_ms().div_euclid(1000);
        self.ids.next(seconds as u32)
    }

    pub(crate) fn new_uuid(&self) -> Uuid {
        let mut bytes = fastrand::u128(..).to_be_bytes();
        // Version 4, variant 1: a random UUID.
        bytes[6] = bytes[6] & 0x0F | 0x40;
        bytes[8] = bytes[8] & 0x3F | 0x80;
        Uuid(bytes)
    }

    /// The ids that the next collection and index get.
    pub(crate) fn next_ids(&self) -> Result<NextIds, model::Error> {
        let stored = self
            .store
            .get_meta(CatalogKey::NEXT_ID)
            .map_err(crate::error::from_storage)?;
        match stored {
            None => Ok(NextIds::FIRST),
            Some(value) => NextIds::from_document(Doc::from_validated(&value)),
        }
    }
}

/// Answers requests on behalf of a shard.
pub struct ShardHandler(pub Arc<Shard>);

impl Handler for ShardHandler {
    async fn handle(&self, connection: &Arc<ConnectionInfo>, request: Request) -> Reply {
        match request.name() {
            transport::REPLICATE => self.0.receive(connection, &request).into(),
            primary::ADVANCE => self.0.advance(&request).await.into(),
            transport::JOIN => self.0.answer_call(&request).into(),
            waiting_room::FOUND => Err(waiting_room::already_initialized()).into(),
            _ => command::dispatch(&self.0, connection, &request).await,
        }
    }

    fn disconnected(&self, connection: &Arc<ConnectionInfo>) {
        self.0.callers.disconnected(connection);
    }
}

fn open_log(
    data: &Path,
    window: LogWindow,
    clock_drift_secs: i64,
    applier: Applier,
    replica_set: &ReplicaSet,
    peers: Arc<Peers>,
) -> Result<Group<Applier>, replication::Error> {
    let directory = data.join("log");
    let disk = replication::disk::FileDisk::open(&directory).map_err(|source| {
        replication::Error::Disk {
            action: format!("cannot open the log in {}", directory.display()),
            source,
        }
    })?;
    let membership = replica_set.membership();
    let options = replication::Options {
        drift_seconds_max: u32::try_from(clock_drift_secs).unwrap_or(u32::MAX),
        window_bytes: window.bytes,
        window_ms: window.age_ms,
        segment_bytes: window.segment_bytes,
        member: membership.member(),
        beginning: membership.beginning(),
        ..replication::Options::new(GroupId(1))
    };
    Group::open(
        options,
        Arc::new(disk),
        Arc::new(replication::SystemClock),
        peers,
        applier,
    )
}

fn clear_scratch(scratch: &Path) -> Result<(), storage::Error> {
    let io = |source| storage::Error::Io {
        path: scratch.to_owned(),
        source,
    };
    if scratch.exists() {
        std::fs::remove_dir_all(scratch).map_err(io)?;
    }
    std::fs::create_dir_all(scratch).map_err(io)
}

fn load_replica_set(
    store: &Store,
    membership: Membership,
    peers: Arc<Peers>,
) -> Result<ReplicaSet, OpenError> {
    let document = |key| -> Result<Option<DocBuf>, OpenError> {
        let stored = store.get_meta(key)?;
        let read = stored.map(|stored| DocBuf::from_bytes(stored.to_vec()));
        Ok(read
            .transpose()
            .map_err(|fault| model::Error::new(model::Code::INVALID_BSON, fault.to_string()))?)
    };
    let configuration = document(CONFIGURATION_KEY)?
        .map(|doc| Configuration::from_stored(doc.as_doc()))
        .transpose()?;
    let defaults = document(DEFAULTS_KEY)?
        .map(|doc| ConcernDefaults::from_document(doc.as_doc()))
        .transpose()?;
    Ok(ReplicaSet::new(configuration, defaults, membership, peers))
}

/// Reads what memory holds of the store anew: all of it has been replaced.
pub(crate) fn reload(applier: &Applier) -> Result<(), OpenError> {
    let collections = load_collections(&applier.store, &*applier.clock)?;
    let time = applier.store.applied_time();
    applier.catalog.replace(collections, time)?;
    applier.sharding.reload(&applier.store)?;
    let loaded = load_replica_set(&applier.store, Membership::ALONE, Arc::new(Peers::new()))?;
    applier.replica_set.take_over(&loaded);
    Ok(())
}

fn load_collections(store: &Store, clock: &dyn Clock) -> Result<Vec<Collection>, OpenError> {
    let snapshot = store.snapshot();
    let mut collections = Vec::new();
    for pair in snapshot.scan_meta(CatalogKey::COLLECTIONS) {
        let (key, value) = pair?;
        let Some(id) = CatalogKey::parse(&key) else {
            return Err(model::Error::new(
                model::Code::INTERNAL_ERROR,
                "a catalog document has a damaged key",
            )
            .into());
        };
        let doc = Doc::from_bytes(&value)
            .map_err(|fault| model::Error::new(model::Code::INVALID_BSON, fault.to_string()))?;
        let mut collection = Collection::from_document(id, doc, clock.now_ms())?;
        let document = |key: Vec<u8>| -> Result<Option<DocBuf>, OpenError> {
            let Some(bytes) = snapshot.get_meta(&key)? else {
                return Ok(None);
            };
            let read = DocBuf::from_bytes(bytes.to_vec());
            let read = read
                .map_err(|fault| model::Error::new(model::Code::INVALID_BSON, fault.to_string()));
            Ok(Some(read?))
        };
        let stored = OwnershipUpdate {
            head: document(OwnershipKey::head(id))?,
            ranges: document(OwnershipKey::ranges(id))?,
            moving: document(OwnershipKey::moving(id))?,
        };
        collection.ownership = Ownership::updated(None, &stored)?;
        collection.since = match document(CatalogKey::since(id))? {
            Some(since) => time_of_change(since.as_doc())?,
            // By an earlier version: nobody knows, so it is from now on.
            None => store.applied_time(),
        };
        for (id, index) in collection.secondary_indexes() {
            for pair in snapshot.scan_meta(&multikey::prefix(id)) {
                let (key, value) = pair?;
                if let Some((_, stored)) = multikey::parse(&key, &value) {
                    let fields = index.definition.fields.len();
                    index.multikey.add(&stored.paths(fields));
                }
            }
        }
        collections.push(collection);
    }
    Ok(collections)
}

/// Makes ObjectIds: seconds, a random part of this process, a counter.
pub(crate) struct ObjectIds {
    process: [u8; 5],
    counter: AtomicU32,
}

impl ObjectIds {
    pub(crate) fn new() -> Self {
        let mut process = [0; 5];
        process.fill_with(|| fastrand::u8(..));
        Self {
            process,
            counter: AtomicU32::new(fastrand::u32(..)),
        }
    }

    pub(crate) fn next(&self, seconds: u32) -> ObjectId {
        let counter = self.counter.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&seconds.to_be_bytes());
        bytes[4..9].copy_from_slice(&self.process);
        bytes[9..].copy_from_slice(&counter[1..]);
        ObjectId(bytes)
    }
}
