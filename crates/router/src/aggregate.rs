//! `aggregate`: a pipeline in two halves.
//!
//! ```text
//!   pipeline ─► prepare ─┬ not sharded, written beside it    the command passes through
//!                        ├ documents of a collection          shard half ─► streams ─► merging half
//!                        ├ what shards tell of one            its stages up to the first that reads elsewhere
//!                        └ makes its own documents            run here
//! ```
//!
//! The shard half is an elastic scan (`scan/`), of one shard too, so that ranges may move and members die
//! meanwhile; of a half that has to see all documents (groups), a shard's results count when they are all there.
//!
//! The merging half runs here (`environment.rs` is its world). What it reads besides, it reads
//! through this router's own `find`, so that versions are checked there too; what it writes, it
//! writes through this router's own writes (`output.rs`).
//!
//! Change streams watch all shards, whatever they own: `change_stream.rs`.
//!
//! ⚑ With `explain: true` nothing is run here: what does not pass through to one shard is asked as
//! an `explain` (`explain.rs`).

use crate::apart::stages_apart;
use crate::change_stream;
use crate::distribution;
use crate::environment::{RemoteStream, RouterEnvironment};
use crate::explain;
use crate::failure::Failure;
use crate::find::{CursorOptions, no_progress, open_streams, whole};
use crate::merge::{Batch, Merge, Shared, Streams};
use crate::output;
use crate::request::{fields_without, snapshot_time};
use crate::routing::Route;
use crate::scan::{ElasticScan, PartialRoom, ScanCommand, ScanSource, home};
use crate::targeting::context_of;
use crate::{Router, STALE_RETRIES_MAX};
use cluster::routing::{RoutingTable, ShardId};
use model::bson::{Doc, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::namespace::Namespace;
use model::number::Number;
use model::range::RangeSet;
use query::context::QueryContext;
use query::filter::Filter;
use query::pipeline::split::{Order, Origin, Prepared, Split, prepare};
use query::pipeline::{
    Advance, Environment, Place, Scope, Source, Step, not_an_array, parse, start,
};
use query::plan::shard_key_ranges;
use std::path::PathBuf;
use std::sync::Arc;
use wire::{BoxFuture, Reply, Request};

pub(crate) async fn aggregate(router: &Arc<Router>, request: &Request) -> Result<Reply, Failure> {
    match distribution::resolved(router, request).await? {
        Some(resolved) => run(router, &resolved).await,
        None => run(router, request).await,
    }
}

async fn run(router: &Arc<Router>, request: &Request) -> Result<Reply, Failure> {
    let body = request.body();
    let collection = collection_of(body, request.database())?;
    let context = context_of(body, &router.clock)?;
    let stages = match body.get("pipeline") {
        Some(ValueRef::Array(stages)) => stages,
        Some(_) => return Err(not_an_array().into()),
        None => {
            let message = "BSON field 'aggregate.pipeline' is missing but a required field";
            return Err(Error::location(40414, message).into());
        }
    };
    let scope = Scope {
        database: request.database(),
        collection: collection.as_ref(),
        context: &context,
        place: Place::Command,
        depth: 0,
    };
    let prepared = stages_apart(stages, || {
        prepare(parse(stages, &scope)?, request.database())
    })?;
    let explains = match body.get("explain") {
        None => false,
        Some(ValueRef::Boolean(explains)) => explains,
        Some(_) => {
            let message = "explain must be a boolean";
            return Err(Error::new(Code::TYPE_MISMATCH, message).into());
        }
    };
    if body.get("cursor").is_none() && body.get("explain").is_none() {
        let message =
            "The 'cursor' option is required, except for aggregate with the explain argument";
        return Err(Error::new(Code::FAILED_TO_PARSE, message).into());
    }
    check_cursor(body)?;
    let command = Command {
        router,
        request,
        namespace: match &collection {
            Some(collection) => collection.clone(),
            None => Namespace::new(request.database(), "$cmd.aggregate")?,
        },
        context,
        explains,
    };
    match prepared.origin() {
        Origin::Here | Origin::EveryShard | Origin::Events if explains => {
            explain::aggregate(router, request).await
        }
        Origin::Here => command.run_here(prepared, collection).await,
        Origin::EveryShard => {
            let shards = router.registry.all(&router.config).await?;
            let shards: Vec<ShardId> = shards.into_iter().map(|shard| shard.id).collect();
            let split = prepared.for_shards(None)?;
            let everything = Filter::everything();
            let origin = Origin::EveryShard;
            command
                .run_split(split, origin, &everything, None, &shards)
                .await
        }
        Origin::Events => change_stream::watch(&command, prepared).await,
        Origin::Collection | Origin::Owners => command.run_routed(prepared).await,
    }
}

/// Shards get a cursor of the router's own making, so the client's is checked here.
fn check_cursor(body: Doc<'_>) -> Result<(), Error> {
    let cursor = match body.get("cursor") {
        None => return Ok(()),
        Some(ValueRef::Document(cursor)) => cursor,
        Some(_) => {
            let message = "cursor field must be missing or an object";
            return Err(Error::new(Code::TYPE_MISMATCH, message));
        }
    };
    for field in cursor.iter() {
        let value = field.value();
        match field.key() {
            "batchSize" if !value.is_number() && !value.is_nullish() => {
                return Err(Error::new(
                    Code::TYPE_MISMATCH,
                    format!(
                        "BSON field 'cursor.batchSize' is the wrong type '{}', expected types \
                         '[long, int, decimal, double']",
                        value.kind().name()
                    ),
                ));
            }
            "batchSize" if whole(Some(value)).is_none() => {
                let message = "BSON field 'batchSize' value must be >= 0";
                return Err(Error::location(51024, message));
            }
            "batchSize" => {}
            name => {
                let message = format!("BSON field 'cursor.{name}' is an unknown field.");
                return Err(Error::location(40415, message));
            }
        }
    }
    Ok(())
}

/// The collection that is named; `None` for `{aggregate: 1}`.
pub(crate) fn collection_of(body: Doc<'_>, database: &str) -> Result<Option<Namespace>, Error> {
    match body.first().map(|first| first.value()) {
        Some(ValueRef::String(name)) if name == "$cmd.aggregate" => Err(Error::new(
            Code::INVALID_NAMESPACE,
            format!("Invalid namespace specified '{database}.{name}'"),
        )),
        Some(ValueRef::String(name)) => Namespace::new(database, name).map(Some),
        Some(value) if Number::of(value).and_then(Number::to_i64_exact) == Some(1) => Ok(None),
        Some(value) if value.is_number() => Err(Error::new(
            Code::FAILED_TO_PARSE,
            "Invalid command format: the 'aggregate' field must specify a collection name or 1",
        )),
        other => Err(Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "collection name has invalid type: {}",
                other.map_or("missing", |value| value.kind().name())
            ),
        )),
    }
}

/// One `aggregate` under way.
pub(crate) struct Command<'a> {
    pub(crate) router: &'a Arc<Router>,
    pub(crate) request: &'a Request,
    pub(crate) namespace: Namespace,
    pub(crate) context: QueryContext,
    explains: bool,
}

impl Command<'_> {
    /// Where to put what does not fit into memory; `None` if the command may not use the disk.
    pub(crate) fn scratch(&self) -> Option<PathBuf> {
        let allowed = match self.request.body().get("allowDiskUse") {
            Some(ValueRef::Boolean(allowed)) => allowed,
            // Anything else is refused by the shards.
            _ => self.router.parameters().disk_use,
        };
        allowed.then(|| self.router.options.scratch.clone())
    }

    fn options(&self) -> CursorOptions {
        CursorOptions {
            at: snapshot_time(self.request.body()),
            ..crate::catalog::cursor_options(self.request.body())
        }
    }

    async fn run_here(
        &self,
        prepared: Prepared,
        collection: Option<Namespace>,
    ) -> Result<Reply, Failure> {
        let (steps, output) = prepared.into_steps();
        let environment: Arc<dyn Environment> = RouterEnvironment::new(self);
        let source = tokio::task::block_in_place(|| start(steps, collection, None, &environment))?;
        self.finish(source, output.as_ref()).await
    }

    async fn run_routed(&self, prepared: Prepared) -> Result<Reply, Failure> {
        let filter = prepared.filter();
        let origin = prepared.origin();
        for _ in 0..STALE_RETRIES_MAX {
            let target = |route: &Route| match origin {
                Origin::Collection => route.targets_of(&filter, self.request.body()),
                Origin::Owners | Origin::Events | Origin::EveryShard | Origin::Here => {
                    Ok(route.all())
                }
            };
            let routed = self.router.route_to(&self.namespace, false, target).await?;
            let Some((route, shards)) = routed else {
                return match self.explains {
                    true => explain::aggregate(self.router, self.request).await,
                    false => self.run_on_nothing(prepared.clone()).await,
                };
            };
            let answered = match shards.as_slice() {
                [only]
                    if self.is_one_answer(&prepared, &route)?
                        && self.may_pass(&prepared, &route).await? =>
                {
                    self.router.pass_cursor(self.request, &route, only).await
                }
                _ if self.explains => {
                    return explain::aggregate(self.router, self.request).await;
                }
                [_] if origin != Origin::Collection => {
                    let split = prepared.clone().for_one_shard();
                    self.run_split(split, origin, &filter, Some(&route), &shards)
                        .await
                }
                _ => {
                    let pattern = route.table().map(|table| &*table.pattern);
                    let split = prepared.clone().for_shards(pattern)?;
                    self.run_split(split, origin, &filter, Some(&route), &shards)
                        .await
                }
            };
            match answered {
                Err(Failure::Stale(stale)) => self.router.routing.note(&self.namespace, &stale),
                other => return other,
            }
        }
        Err(no_progress())
    }

    /// Whether one shard's answer is as good as a scan: it has no documents of a collection, or none at all, because
    /// they are written. Of what is explained nobody asks for more.
    fn is_one_answer(&self, prepared: &Prepared, route: &Route) -> Result<bool, Error> {
        if prepared.origin() != Origin::Collection {
            return Ok(true);
        }
        if route.table().is_some() {
            return Ok(false);
        }
        if prepared.target().is_some() {
            return Ok(true);
        }
        let passes = || Ok(prepared.clone().for_shards(None)?.passes_through());
        match self.explains {
            true => passes(),
            false => Ok(false),
        }
    }

    /// The placement that the documents of a pipeline are scanned by, if they are: statistics have no ranges.
    fn elastic(
        &self,
        origin: Origin,
        route: Option<&Route>,
    ) -> Result<Option<RoutingTable>, Error> {
        let Some(route) = route.filter(|_| origin == Origin::Collection) else {
            return Ok(None);
        };
        match route.table() {
            Some(table) => Ok(Some(table.clone())),
            None => home(&route.database.primary).map(Some),
        }
    }

    /// Whether the one shard that is asked can do everything by itself: it reads nothing else, and
    /// what it writes is not sharded and at home there.
    ///
    /// ⚑ That is known of the database that the command is for, whose version is sent with it and
    /// checked. Another one may have moved without this router's knowledge, so it is written to by
    /// this router's own writes, which carry its version.
    async fn may_pass(&self, prepared: &Prepared, route: &Route) -> Result<bool, Error> {
        if !prepared.foreign().is_empty() {
            return Ok(false);
        }
        let Some(target) = prepared.target() else {
            return Ok(true);
        };
        // Nothing is written, so it does not matter where, and no database is made for it.
        if self.explains {
            return Ok(route.table().is_none());
        }
        if target.database() != self.namespace.database() {
            return Ok(false);
        }
        let Some(there) = self.router.routing.route(target, true).await? else {
            return Ok(false);
        };
        let at_home = there.database.primary == route.database.primary;
        Ok(at_home && there.table().is_none() && route.table().is_none())
    }

    /// The database does not exist: no documents, but the rest of the pipeline may make some.
    async fn run_on_nothing(&self, prepared: Prepared) -> Result<Reply, Failure> {
        if prepared.origin() == Origin::Owners {
            let message = format!("Database [{}] not found.", self.request.database());
            return Err(Error::new(Code::NAMESPACE_NOT_FOUND, message).into());
        }
        let (steps, output) = prepared.into_steps();
        let environment: Arc<dyn Environment> = RouterEnvironment::new(self);
        let collection = Some(self.namespace.clone());
        let source = tokio::task::block_in_place(|| start(steps, collection, None, &environment))?;
        self.finish(source, output.as_ref()).await
    }

    /// The command for a shard, without what it was routed by.
    fn shard_half(&self, split: &Split, batch_size: Option<u64>) -> DocWriter {
        let dropped = ["pipeline", "cursor", "explain", "runtimeConstants"];
        let mut writer = fields_without(self.request.body(), &dropped);
        writer
            .append("pipeline", &split.shard_pipeline())
            .begin_document("cursor");
        // Who merges needs whole batches, unless they are passed on as they come.
        if let Some(size) = batch_size.filter(|_| split.passes_through()) {
            writer.append("batchSize", i64::try_from(size).unwrap_or(i64::MAX));
        }
        writer
            .end()
            .append("fromMongos", true)
            .append("needsMerge", true)
            .begin_document("runtimeConstants")
            .append("localNow", ValueRef::DateTime(self.context.now_ms))
            .append("clusterTime", self.router.clock.now())
            .end();
        writer
    }

    /// Runs the shard half as a scan, and the merging half over it.
    async fn run_elastic(
        &self,
        split: Split,
        table: RoutingTable,
        filter: &Filter,
        shards: &[ShardId],
        batch_size: Option<u64>,
    ) -> Result<Reply, Failure> {
        let is_at_home = table.version().is_unsharded();
        let passes = split.passes_through();
        let is_past = snapshot_time(self.request.body()).is_some();
        let command = ScanCommand {
            namespace: self.namespace.clone(),
            body: self.shard_half(&split, batch_size).finish(),
            order: match split.order() {
                Order::Sorted(pattern) => Some(pattern.clone()),
                Order::Any | Order::Events => None,
            },
            whole: !split.streams(),
            passes: false,
            places: false,
            is_past,
            is_at_home,
            session: self.request.body().get_doc("lsid").map(Doc::to_owned),
        };
        let batch_size = batch_size.filter(|_| passes);
        let room = PartialRoom::new(
            self.router.parameters().group_memory_bytes(),
            self.scratch(),
        );
        let scan = match is_past {
            _ if is_at_home => {
                let everything = RangeSet::of([table.whole()]);
                ElasticScan::new(self.router, command, table, everything)
            }
            true => ElasticScan::of_past(self.router, command, table, shards),
            false => {
                let wanted = shard_key_ranges(filter, &table.pattern);
                ElasticScan::new(self.router, command, table, wanted)
            }
        };
        let mut scan = scan.with_batch_size(batch_size).with_room(room);
        if let Err(failure) = scan.ask().await {
            Merge::close(Box::new(scan)).await;
            return Err(failure);
        }
        if passes {
            let name = self.namespace.as_str();
            let merge: Box<dyn Merge> = Box::new(scan);
            return self.router.first_batch(name, merge, self.options()).await;
        }
        let output = split.output().cloned();
        let environment: Arc<dyn Environment> = RouterEnvironment::new(self);
        let sources: Vec<Box<dyn Source>> = vec![Box::new(ScanSource::new(scan))];
        let source = tokio::task::block_in_place(|| split.merge(sources, &environment))?;
        match output {
            Some(stage) => output::write(self, source, &stage).await,
            None => self.reply(source).await,
        }
    }

    async fn run_split(
        &self,
        split: Split,
        origin: Origin,
        filter: &Filter,
        route: Option<&Route>,
        shards: &[ShardId],
    ) -> Result<Reply, Failure> {
        let body = self.request.body();
        let size = body.get_doc("cursor").and_then(|doc| doc.get("batchSize"));
        let batch_size = size.and_then(|size| whole(Some(size)));
        if let Some(table) = self.elastic(origin, route)? {
            return self
                .run_elastic(split, table, filter, shards, batch_size)
                .await;
        }
        let mut requests = Vec::with_capacity(shards.len());
        for shard in shards {
            let mut writer = self.shard_half(&split, batch_size);
            if let Some(route) = route {
                route.stamp(&mut writer, shard);
            }
            self.router.clock.append_to(&mut writer);
            let request = Request::from_parts(writer.finish(), Vec::new())?;
            requests.push((shard.clone(), request));
        }
        let shared = Shared {
            order: None,
            session: body.get_doc("lsid").map(Doc::to_owned),
            clock: self.router.clock.clone(),
            batch_size: None,
            may_leave_out: false,
        };
        let streams = open_streams(self.router, requests, shared).await?;
        if split.passes_through() {
            let merge: Box<dyn Merge> = Box::new(streams);
            let name = self.namespace.as_str();
            return self.router.first_batch(name, merge, self.options()).await;
        }
        let output = split.output().cloned();
        let environment: Arc<dyn Environment> = RouterEnvironment::new(self);
        let Streams {
            streams, shared, ..
        } = streams;
        let shared = Arc::new(shared);
        let sources = streams.into_iter().map(|stream| {
            let source: Box<dyn Source> = Box::new(RemoteStream::new(stream, shared.clone()));
            source
        });
        let sources = sources.collect();
        let source = tokio::task::block_in_place(|| split.merge(sources, &environment))?;
        match output {
            Some(stage) => output::write(self, source, &stage).await,
            None => self.reply(source).await,
        }
    }

    async fn finish(
        &self,
        source: Box<dyn Source>,
        output: Option<&Step>,
    ) -> Result<Reply, Failure> {
        match output {
            Some(step) => output::write(self, source, &step.stage).await,
            None => self.reply(source).await,
        }
    }

    async fn reply(&self, source: Box<dyn Source>) -> Result<Reply, Failure> {
        let merge: Box<dyn Merge> = Box::new(Pipeline {
            source,
            held: false,
        });
        let name = self.namespace.as_str();
        self.router.first_batch(name, merge, self.options()).await
    }
}

/// A running merging half as a cursor. Streams end their cursors when they are dropped.
struct Pipeline {
    source: Box<dyn Source>,
    /// The current document did not fit into the last batch.
    held: bool,
}

impl Pipeline {
    fn fill_from(&mut self, batch: &mut Batch) -> Result<bool, Failure> {
        loop {
            if !self.held {
                if batch.is_full() {
                    return Ok(false);
                }
                match self.source.advance()? {
                    Advance::Document => {}
                    Advance::Paused => continue,
                    Advance::End => return Ok(true),
                }
            }
            self.held = !batch.offer(self.source.current());
            if self.held {
                return Ok(false);
            }
        }
    }
}

impl Merge for Pipeline {
    fn fill<'a>(&'a mut self, batch: &'a mut Batch) -> BoxFuture<'a, Result<bool, Failure>> {
        Box::pin(async move { tokio::task::block_in_place(|| self.fill_from(batch)) })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        drop(self);
        Box::pin(async {})
    }

    fn set_batch_size(&mut self, _batch_size: Option<u64>) {}
}
