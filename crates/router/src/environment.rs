//! The router as a running pipeline sees it: streams from shards, other collections by `find`.
//!
//! Stages pull; a stream that has to ask its shard blocks its thread meanwhile. That is why
//! merging halves run where blocking is told to the runtime.
//!
//! A collection is read with that part of a filter that a `find` can carry; what refers to values
//! known only here (the variables of a `$lookup`) is checked here.
//!
//! What does not fit into memory goes into temporary files (`spill.rs`), unless `allowDiskUse` is false.

use crate::Router;
use crate::aggregate::Command;
use crate::current_op;
use crate::failure::Failure;
use crate::find::find;
use crate::get_more::get_more;
use crate::merge::{Shared, Stream, kill_cursor};
use crate::operation;
use crate::registry::batch_of;
use model::bson::{ArrayWriter, Doc, DocBuf, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::key::Direction;
use model::namespace::Namespace;
use query::filter::Filter;
use query::pipeline::{Advance, CollectionStats, Environment, ScanRequest, SessionsOf, Source};
use query::sort::Spill;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use wire::{Reply, Request};

pub(crate) struct RouterEnvironment {
    router: Arc<Router>,
    /// Fields of the command that reads of other collections carry too.
    carried: DocBuf,
    deadline: Option<Instant>,
    /// Where to put what does not fit into memory, if that may be.
    scratch: Option<PathBuf>,
}

impl RouterEnvironment {
    pub(crate) fn new(command: &Command<'_>) -> Arc<RouterEnvironment> {
        let mut carried = DocWriter::new();
        let mut deadline = None;
        for element in command.request.body().iter() {
            match element.key() {
                "lsid" | "readConcern" | "$readPreference" | "comment" | "apiVersion" => {
                    carried.append_element(&element);
                }
                "maxTimeMS" => {
                    let limit = model::number::Number::of(element.value());
                    let limit = limit.and_then(model::number::Number::to_i64_exact);
                    deadline = limit
                        .and_then(|limit| u64::try_from(limit).ok())
                        .filter(|limit| *limit > 0)
                        .map(|limit| Instant::now() + Duration::from_millis(limit));
                }
                _ => {}
            }
        }
        Arc::new(RouterEnvironment {
            router: command.router.clone(),
            carried: carried.finish(),
            deadline,
            scratch: command.scratch(),
        })
    }
}

impl Environment for RouterEnvironment {
    fn check(&self) -> Result<(), Error> {
        if self
            .deadline
            .is_some_and(|deadline| Instant::now() > deadline)
        {
            let message = "operation exceeded time limit";
            return Err(Error::new(Code::MAX_TIME_MS_EXPIRED, message));
        }
        operation::check()
    }

    fn scan(&self, request: ScanRequest) -> Result<Box<dyn Source>, Error> {
        let ScanRequest {
            namespace,
            filter,
            sort,
            skip,
            limit,
            hint,
            fields,
        } = request;
        let mut command = DocWriter::new().with("find", namespace.collection());
        let (sent, is_all) = portable(&filter);
        command.append("filter", &sent);
        if let Some(sort) = &sort {
            command.begin_document("sort");
            for (path, direction) in sort.fields() {
                let direction = match direction {
                    Direction::Ascending => 1,
                    Direction::Descending => -1,
                };
                command.append(path.as_str(), direction);
            }
            command.end();
        }
        if let (Some(limit), true) = (limit, is_all) {
            let fetched = i64::try_from(limit.saturating_add(skip)).unwrap_or(i64::MAX);
            command.append("limit", fetched);
        }
        if let Some(hint) = &hint {
            command.append("hint", hint);
        }
        // A filter that is checked here needs the whole document.
        if let (Some(fields), true) = (&fields, is_all) {
            command.begin_document("projection");
            // Where nothing but the number of documents is wanted, the shortest that there is.
            if fields.is_empty() || !fields.contains("_id") {
                command.append("_id", fields.is_empty());
            }
            for field in fields {
                command.append(field, true);
            }
            command.end();
        }
        for element in self.carried.iter() {
            command.append_element(&element);
        }
        command.append("$db", namespace.database());
        let request = Request::from_parts(command.finish(), Vec::new())?;
        let reply = wait(Box::pin(find(&self.router, &request)))?;
        let scan = Scan {
            router: self.router.clone(),
            carried: self.carried.clone(),
            namespace,
            filter: (!is_all).then_some(filter),
            skip,
            limit,
            waiting: VecDeque::new(),
            cursor: 0,
            current: DocBuf::new(),
        };
        Ok(Box::new(scan.begin(&reply)?))
    }

    fn spill(&self) -> Option<Box<dyn Spill>> {
        self.scratch.clone().map(crate::spill::spill)
    }

    fn memory_bytes_max(&self) -> usize {
        self.router.parameters().group_memory_bytes()
    }

    fn sort_memory_bytes_max(&self) -> usize {
        self.router.parameters().sort_memory_bytes()
    }

    fn collection_stats(&self, _: &Namespace, _: &CollectionStats) -> Result<DocBuf, Error> {
        Err(not_here("$collStats"))
    }

    fn index_stats(&self, _namespace: &Namespace) -> Result<Vec<DocBuf>, Error> {
        Err(not_here("$indexStats"))
    }

    fn current_operations(&self, options: Doc<'_>) -> Result<Vec<DocBuf>, Error> {
        let mut all = current_op::own_operations(&self.router);
        if options.get("idleCursors") == Some(ValueRef::Boolean(true)) {
            all.extend(self.router.cursors.describe_idle());
        }
        Ok(all)
    }

    fn local_sessions(&self, whose: SessionsOf) -> Result<Vec<DocBuf>, Error> {
        Ok(self.router.sessions.describe(whose))
    }

    fn random_below(&self, bound: u64) -> u64 {
        fastrand::u64(..bound)
    }
}

fn not_here(stage: &str) -> Error {
    let message = format!("{stage} inside of a pipeline is not supported by a router yet");
    Error::new(Code::COMMAND_NOT_SUPPORTED, message)
}

/// Waits for a shard on a thread that may block.
pub(crate) fn wait<T>(future: wire::BoxFuture<'_, Result<T, Failure>>) -> Result<T, Error> {
    let watched = operation::watching(future);
    let ended = tokio::task::block_in_place(|| Handle::current().block_on(watched));
    ended.map_err(error_of)
}

fn error_of(failure: Failure) -> Error {
    match failure {
        Failure::Error(error) => error,
        other => crate::config::error_of(other.into_reply().document()),
    }
}

/// The part of a filter that a `find` can carry, and whether that is all of it.
fn portable(filter: &Filter) -> (DocBuf, bool) {
    if filter.is_everything() {
        return (DocBuf::new(), true);
    }
    if !has_expression(filter) {
        return (filter.to_document(), true);
    }
    let Filter::And(parts) = filter else {
        return (DocBuf::new(), false);
    };
    let mut list = ArrayWriter::new();
    for part in parts.iter().filter(|part| !has_expression(part)) {
        list.push(&part.to_document());
    }
    if list.is_empty() {
        return (DocBuf::new(), false);
    }
    let sent = DocWriter::new().with("$and", &list.finish()).finish();
    (sent, false)
}

fn has_expression(filter: &Filter) -> bool {
    match filter {
        Filter::Expression { .. } | Filter::SampleRate(_) => true,
        Filter::And(parts) | Filter::Or(parts) | Filter::Nor(parts) => {
            parts.iter().any(has_expression)
        }
        Filter::Not(part) => has_expression(part),
        Filter::Field { .. } | Filter::AlwaysTrue | Filter::AlwaysFalse => false,
    }
}

/// Another collection, by one of this router's own cursors.
struct Scan {
    router: Arc<Router>,
    carried: DocBuf,
    namespace: Namespace,
    /// What is left to check.
    filter: Option<Filter>,
    skip: u64,
    limit: Option<u64>,
    waiting: VecDeque<DocBuf>,
    cursor: i64,
    current: DocBuf,
}

impl Scan {
    fn begin(mut self, reply: &Reply) -> Result<Scan, Error> {
        self.take_batch(reply)?;
        Ok(self)
    }

    fn take_batch(&mut self, reply: &Reply) -> Result<(), Error> {
        let reply = reply.document();
        if !crate::failure::is_ok(reply) {
            return Err(crate::config::error_of(reply));
        }
        let cursor = reply.get_doc("cursor").unwrap_or(Doc::EMPTY);
        self.cursor = match cursor.get("id") {
            Some(ValueRef::Int64(id)) => id,
            _ => 0,
        };
        self.waiting.extend(batch_of(cursor).map(Doc::to_owned));
        Ok(())
    }

    fn next(&mut self) -> Result<Option<DocBuf>, Error> {
        loop {
            if let Some(document) = self.waiting.pop_front() {
                return Ok(Some(document));
            }
            if self.cursor == 0 {
                return Ok(None);
            }
            let mut more = DocWriter::new()
                .with("getMore", std::mem::take(&mut self.cursor))
                .with("collection", self.namespace.collection());
            if let Some(session) = self.carried.as_doc().element("lsid") {
                more.append_element(&session);
            }
            more.append("$db", self.namespace.database());
            let request = Request::from_parts(more.finish(), Vec::new())?;
            let reply = wait(Box::pin(get_more(&self.router, &request)))?;
            self.take_batch(&reply)?;
        }
    }
}

impl Source for Scan {
    fn advance(&mut self) -> Result<Advance, Error> {
        if self.limit == Some(0) {
            return Ok(Advance::End);
        }
        while let Some(document) = self.next()? {
            if let Some(filter) = &self.filter
                && !filter.matches(document.as_doc())?
            {
                continue;
            }
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            if let Some(limit) = &mut self.limit {
                *limit -= 1;
            }
            self.current = document;
            return Ok(Advance::Document);
        }
        Ok(Advance::End)
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn take(&mut self) -> DocBuf {
        std::mem::take(&mut self.current)
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        let killed = match self.cursor {
            0 => None,
            id => self.router.cursors.kill(id, self.namespace.as_str()),
        };
        if let (Some(Some(cursor)), Ok(runtime)) = (killed, Handle::try_current()) {
            runtime.spawn(cursor.close());
        }
    }
}

/// The stream of one shard as a pipeline pulls it.
pub(crate) struct RemoteStream {
    stream: Stream,
    shared: Arc<Shared>,
    current: DocBuf,
}

impl RemoteStream {
    pub(crate) fn new(stream: Stream, shared: Arc<Shared>) -> RemoteStream {
        RemoteStream {
            stream,
            shared,
            current: DocBuf::new(),
        }
    }
}

impl Source for RemoteStream {
    fn advance(&mut self) -> Result<Advance, Error> {
        let next = match self.stream.arrived() {
            Some(document) => Some(document),
            None => wait(Box::pin(self.stream.next(&self.shared)))?,
        };
        match next {
            Some(document) => {
                self.current = document;
                Ok(Advance::Document)
            }
            None => Ok(Advance::End),
        }
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn take(&mut self) -> DocBuf {
        std::mem::take(&mut self.current)
    }
}

impl Drop for RemoteStream {
    fn drop(&mut self) {
        if let (Some((member, namespace, cursor)), Ok(runtime)) =
            (self.stream.take_open(), Handle::try_current())
        {
            runtime.spawn(async move { kill_cursor(&*member, &namespace, cursor).await });
        }
    }
}
