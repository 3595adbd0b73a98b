//! The shard as a running pipeline sees it.
//!
//! A pipeline outlives the command that began it: each getMore brings its own
//! operation, whose deadline and end count from then on. Scans that are open
//! between two batches keep a position and no snapshot; since they are buried
//! in the stages, the environment knows them all and suspends them.

use super::while_running;
use crate::Shard;
use crate::change_stream::{EventSource, StreamState};
use crate::command::operations::running_operations;
use crate::command::stats::{Sizes, append_collection_stats, append_count};
use crate::operation::Operation;
use crate::parameters::Settings;
use crate::read::{Budget, Execution, Found, Query, ScanPart, Step, Taken, Visited, spill_into};
use crate::session::SessionId;
use arc_swap::ArcSwap;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::time::ClusterTime;
use model::{Code, Error, Namespace};
use parking_lot::Mutex;
use query::path::Path;
use query::pipeline::{
    Advance, ChangeStream, CollectionStats, Documents, Environment, LatencyStats, ScanRequest,
    SessionsOf, Source, Visitor,
};
use query::sort::Spill;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

pub(crate) struct ShardEnvironment {
    shard: Arc<Shard>,
    /// The command that asks for documents now.
    operation: ArcSwap<Operation>,
    /// Counts these commands, so that scans look for a new one only if there is one.
    commands: AtomicU64,
    allow_disk_use: bool,
    /// The time that all scans see; `None` is now.
    at: Option<ClusterTime>,
    sees_orphans: bool,
    /// The shard's name, for statistics that a router puts beside those of others.
    shown_as: Option<String>,
    /// As they were when the command began.
    settings: Settings,
    scans: Mutex<Vec<Weak<Mutex<Execution>>>>,
    /// What the first scan is a part of; taken by it.
    part: Mutex<Option<Arc<ScanPart>>>,
    /// The first scan, if it is a part of one over several shards.
    main: OnceLock<Weak<Mutex<Execution>>>,
    /// Documents that were taken from it.
    pulled: AtomicU64,
    /// Set once the pipeline is a change stream.
    stream: OnceLock<Arc<Mutex<StreamState>>>,
    this: Weak<ShardEnvironment>,
}

impl ShardEnvironment {
    pub(crate) fn new(
        shard: &Arc<Shard>,
        operation: &Arc<Operation>,
        allow_disk_use: bool,
        at: Option<ClusterTime>,
        sees_orphans: bool,
        from_router: bool,
        part: Option<Arc<ScanPart>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            shard: shard.clone(),
            operation: ArcSwap::new(operation.clone()),
            commands: AtomicU64::new(0),
            allow_disk_use,
            at,
            sees_orphans,
            shown_as: from_router
                .then(|| shard.sharding.shard_name())
                .filter(|name| !name.is_empty()),
            settings: shard.parameters.current(),
            scans: Mutex::new(Vec::new()),
            part: Mutex::new(part),
            main: OnceLock::new(),
            pulled: AtomicU64::new(0),
            stream: OnceLock::new(),
            this: this.clone(),
        })
    }

    /// The state of the change stream that the pipeline is, if it is one.
    pub(crate) fn stream(&self) -> Option<Arc<Mutex<StreamState>>> {
        self.stream.get().cloned()
    }

    /// The scan that is a part of one over several shards, if it still runs.
    pub(super) fn main_scan(&self) -> Option<Arc<Mutex<Execution>>> {
        self.main.get()?.upgrade()
    }

    /// How many documents it has given.
    pub(super) fn pulled(&self) -> u64 {
        self.pulled.load(Ordering::Acquire)
    }

    /// From now on another command asks for documents.
    pub(crate) fn run_for(&self, operation: &Arc<Operation>) {
        self.operation.store(operation.clone());
        self.commands.fetch_add(1, Ordering::Release);
    }

    /// Lets go of all snapshots.
    pub(crate) fn suspend(&self) {
        self.scans.lock().retain(|scan| match scan.upgrade() {
            Some(scan) => {
                scan.lock().suspend();
                true
            }
            None => false,
        });
    }

    /// This server's name and port, as the statistics show it.
    fn host(&self) -> String {
        self.shard.host_of(&self.operation.load().connection)
    }

    fn shared(&self) -> Result<Arc<Self>, Error> {
        self.this
            .upgrade()
            .ok_or_else(|| Error::new(Code::INTERNAL_ERROR, "a pipeline's environment is gone"))
    }

    fn remember(&self, execution: &Arc<Mutex<Execution>>) {
        let mut scans = self.scans.lock();
        // A `$lookup` opens one after the other and ends them all.
        scans.retain(|scan| scan.strong_count() > 0);
        scans.push(Arc::downgrade(execution));
    }
}

impl Environment for ShardEnvironment {
    fn check(&self) -> Result<(), Error> {
        self.operation.load().check()
    }

    fn scan(&self, request: ScanRequest) -> Result<Box<dyn Source>, Error> {
        let found = self.shard.readable(&request.namespace);
        let part = self.part.lock().take();
        if let Some(part) = &part {
            part.check_collection(found.as_deref())?;
        }
        let Some(collection) = found else {
            return Ok(Box::new(Documents::new(Vec::new())));
        };
        let is_main = part.is_some();
        let query = Query {
            part,
            sort: request.sort,
            skip: request.skip,
            limit: request.limit,
            needed: request
                .fields
                .map(|fields| fields.iter().map(|name| Path::new(name)).collect()),
            hint: request.hint,
            allow_disk_use: self.allow_disk_use,
            at: self.at,
            sees_orphans: self.sees_orphans,
            ..Query::new(request.filter)
        };
        let commands = self.commands.load(Ordering::Acquire);
        let operation = self.operation.load_full();
        let execution = Execution::new(&self.shard, &collection, query, &operation)?;
        let execution = Arc::new(Mutex::new(execution));
        self.remember(&execution);
        if is_main {
            // Nobody else took the part.
            let _ = self.main.set(Arc::downgrade(&execution));
        }
        let environment = self.shared()?;
        Ok(Box::new(CollectionScan {
            is_main,
            execution,
            environment,
            operation,
            commands,
            found: None,
        }))
    }

    fn spill(&self) -> Option<Box<dyn Spill>> {
        self.allow_disk_use
            .then(|| spill_into(self.shard.scratch.clone()))
    }

    fn memory_bytes_max(&self) -> usize {
        usize::try_from(self.settings.group_memory_bytes).unwrap_or(usize::MAX)
    }

    fn sort_memory_bytes_max(&self) -> usize {
        usize::try_from(self.settings.sort_memory_bytes).unwrap_or(0)
    }

    fn collection_stats(
        &self,
        namespace: &Namespace,
        stats: &CollectionStats,
    ) -> Result<DocBuf, Error> {
        let shard = &self.shard;
        let mut writer = DocWriter::new();
        writer.append("ns", namespace.as_str());
        if let Some(shard) = &self.shown_as {
            writer.append("shard", shard);
        }
        writer
            .append("host", &self.host())
            .append("localTime", ValueRef::DateTime(shard.clock.now_ms()));
        let collection = shard.readable(namespace);
        let exists_for = |section: &str| match &collection {
            Some(collection) => Ok(collection),
            None => Err(while_running(Error::new(
                Code::NAMESPACE_NOT_FOUND,
                format!(
                    "Unable to retrieve {section} in $collStats stage :: caused by :: Collection \
                     [{namespace}] not found."
                ),
            ))),
        };
        if let Some(latency) = stats.latency {
            append_latency(latency, &mut writer);
        }
        if let Some(storage) = stats.storage {
            exists_for("storageStats")?;
            let mut stats = DocWriter::new();
            append_collection_stats(shard, namespace, storage.scale, &mut stats);
            let stats = stats.finish();
            writer.begin_document("storageStats");
            for field in stats.iter().filter(|field| field.key() != "ns") {
                writer.append_element(&field);
            }
            writer.end();
        }
        if stats.count {
            let collection = exists_for("count")?;
            let count = match &collection.made {
                Some(made) => made.count(shard).unwrap_or(0),
                None => Sizes::of(shard, collection).documents,
            };
            append_count(&mut writer, "count", count);
        }
        if stats.query_execution {
            exists_for("queryExecStats")?;
            writer
                .begin_document("queryExecStats")
                .begin_document("collectionScans")
                .append("total", 0i64)
                .append("nonTailable", 0i64)
                .end()
                .end();
        }
        Ok(writer.finish())
    }

    fn index_stats(&self, namespace: &Namespace) -> Result<Vec<DocBuf>, Error> {
        let Some(collection) = self.shard.catalog.get(namespace) else {
            return Ok(Vec::new());
        };
        let host = self.host();
        let describe = |index: &Arc<crate::catalog::Index>| {
            let ops = index.accesses.load(Ordering::Relaxed);
            let mut writer = DocWriter::new();
            writer
                .append("name", index.definition.name.as_str())
                .append("key", index.definition.key_pattern())
                .append("host", &host)
                .begin_document("accesses")
                .append("ops", i64::try_from(ops).unwrap_or(i64::MAX))
                .append("since", ValueRef::DateTime(index.accesses_since_ms))
                .end();
            if let Some(shard) = &self.shown_as {
                writer.append("shard", shard);
            }
            writer.append("spec", &index.definition.spec);
            if !index.is_ready() {
                writer.append("building", true);
            }
            writer.finish()
        };
        Ok(collection.indexes.iter().map(describe).collect())
    }

    fn current_operations(&self, _options: Doc<'_>) -> Result<Vec<DocBuf>, Error> {
        let operations = running_operations(&self.shard);
        Ok(match &self.shown_as {
            None => operations,
            Some(shard) => operations
                .iter()
                .map(|operation| operation_of(shard, operation.as_doc()))
                .collect(),
        })
    }

    fn local_sessions(&self, whose: SessionsOf) -> Result<Vec<DocBuf>, Error> {
        let own = SessionId::new([0; 16]);
        let sessions = self.shard.session_cache.all().into_iter();
        Ok(sessions
            .filter(|(id, _)| match whose {
                SessionsOf::Own => id.user() == own.user(),
                SessionsOf::Everybody => true,
                SessionsOf::Nobody => false,
            })
            .map(|(id, last_use_ms)| crate::session::describe(id, last_use_ms))
            .collect())
    }

    fn change_stream(
        &self,
        stream: &ChangeStream,
        behind: &[query::pipeline::Step],
    ) -> Result<Box<dyn Source>, Error> {
        let (source, state) = EventSource::open(&self.shard, self.shared()?, stream, behind)?;
        // A pipeline begins with at most one.
        let _ = self.stream.set(state);
        Ok(Box::new(source))
    }

    fn random_below(&self, bound: u64) -> u64 {
        fastrand::u64(..bound)
    }
}

/// A collection as a pipeline reads it.
struct CollectionScan {
    is_main: bool,
    execution: Arc<Mutex<Execution>>,
    environment: Arc<ShardEnvironment>,
    /// The command that asks, as of that count of the environment's.
    operation: Arc<Operation>,
    commands: u64,
    found: Option<Found>,
}

impl CollectionScan {
    /// Looks which command asks.
    fn follow_commands(&mut self) {
        let commands = self.environment.commands.load(Ordering::Acquire);
        if commands != self.commands {
            self.operation = self.environment.operation.load_full();
            self.commands = commands;
        }
    }
}

impl Source for CollectionScan {
    fn visit(&mut self, visitor: Visitor<'_>) -> Result<Advance, Error> {
        self.follow_commands();
        self.found = None;
        let mut execution = self.execution.lock();
        let mut is_over = false;
        loop {
            let mut budget = Budget::unlimited();
            let visited = execution.visit(&self.operation, &mut budget, &mut |document| {
                if self.is_main {
                    self.environment.pulled.fetch_add(1, Ordering::AcqRel);
                }
                is_over = visitor(document)?.is_break();
                Ok(match is_over {
                    true => Taken::Enough,
                    false => Taken::More,
                })
            })?;
            match visited {
                Visited::Stopped if is_over => return Ok(Advance::Document),
                // At its limit it will say that it has ended.
                Visited::Stopped | Visited::Paused => {}
                Visited::Ended => return Ok(Advance::End),
            }
        }
    }

    fn advance(&mut self) -> Result<Advance, Error> {
        self.follow_commands();
        let mut budget = Budget::unlimited();
        loop {
            match self.execution.lock().next(&self.operation, &mut budget)? {
                Step::Found(found) => {
                    if self.is_main {
                        self.environment.pulled.fetch_add(1, Ordering::AcqRel);
                    }
                    self.found = Some(found);
                    return Ok(Advance::Document);
                }
                Step::Ended => {
                    self.found = None;
                    return Ok(Advance::End);
                }
                Step::Paused => budget = Budget::unlimited(),
            }
        }
    }

    fn current(&self) -> Doc<'_> {
        match &self.found {
            Some(found) => found.document(),
            None => Doc::EMPTY,
        }
    }

    fn take(&mut self) -> DocBuf {
        match self.found.take() {
            Some(found) => found.into_document(),
            None => DocBuf::new(),
        }
    }
}

/// Latencies are not kept for each collection: all of them are zero.
fn append_latency(wanted: LatencyStats, writer: &mut DocWriter) {
    writer.begin_document("latencyStats");
    for kind in ["reads", "writes", "commands", "transactions"] {
        writer.begin_document(kind);
        if wanted.histograms {
            writer.begin_array("histogram").end();
        }
        writer.append("latency", 0i64).append("ops", 0i64).end();
    }
    writer.end();
}

/// An operation as a router shows it: its number is the shard's own, and the client is
/// the router.
fn operation_of(shard: &str, operation: Doc<'_>) -> DocBuf {
    let mut shown = DocWriter::new().with("shard", shard);
    for element in operation.iter() {
        match (element.key(), element.value()) {
            ("opid", ValueRef::Int32(number)) => {
                shown.append("opid", format!("{shard}:{number}").as_str())
            }
            ("client", _) => shown.append_renamed("client_s", &element),
            _ => shown.append_element(&element),
        };
    }
    shown.finish()
}
