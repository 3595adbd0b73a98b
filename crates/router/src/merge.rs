//! Streams of several shards put together into one: sorted, or one behind the other.
//!
//! ```text
//!   shard A ─ batch, batch … ─┐
//!   shard B ─ batch, batch … ─┼─► least key first, or stream by stream ─► skip ─► limit ─► projection
//!   shard C ─ batch, batch … ─┘
//! ```
//!
//! A shard answers each document once, and no key is owned twice, so the merged stream has no
//! duplicates. If a stream breaks the merge fails as a whole: never an end that is none.

use crate::failure::{Failure, checked, is_absent, unreachable};
use crate::operation;
use crate::registry::batch_of;
use crate::request::Clock;
use cluster::routing::ShardId;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::{Code, Error};
use query::projection::Projection;
use query::sort::SortPattern;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use wire::{BoxFuture, Endpoint, Reply, Request};

/// What a batch may weigh: one document of the greatest size always fits.
pub(crate) const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
/// What is worth a message of its own.
const BATCH_BYTES_WORTH: usize = 64 * 1024;

/// Documents on their way into a reply.
pub(crate) struct Batch {
    writer: DocWriter,
    start: usize,
    documents: u64,
    documents_max: u64,
}

impl Batch {
    /// Begins the array of documents within `writer`'s open document.
    pub(crate) fn begin(mut writer: DocWriter, name: &str, documents_max: Option<u64>) -> Batch {
        writer.begin_array(name);
        Batch {
            start: writer.len(),
            writer,
            documents: 0,
            documents_max: documents_max.unwrap_or(u64::MAX),
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.documents >= self.documents_max
    }

    /// Whether it may go although there is room left: what a shard's next batch brings is passed on as
    /// it comes then, instead of being taken apart to fill this one. A client's number of documents is
    /// the most that it gets.
    pub(crate) fn is_worth_sending(&self) -> bool {
        self.writer.len() - self.start >= BATCH_BYTES_WORTH
    }

    /// Whether a document of so many bytes still fits.
    fn has_room(&self, bytes: usize) -> bool {
        let taken = self.writer.len() - self.start + bytes + 16;
        self.documents == 0 || taken <= BATCH_BYTES_MAX
    }

    /// Appends a document, unless it does not fit.
    pub(crate) fn offer(&mut self, document: Doc<'_>) -> bool {
        if self.is_full() || !self.has_room(document.len()) {
            return false;
        }
        self.writer.push(document);
        self.documents += 1;
        true
    }

    /// Whether there is room for another batch of so many documents and bytes: none is here yet, and they
    /// are not too many.
    pub(crate) fn has_room_for_batch(&self, documents: u32, bytes: usize) -> bool {
        let fits = u64::from(documents) <= self.documents_max && bytes <= BATCH_BYTES_MAX;
        self.documents == 0 && fits
    }

    /// Takes all documents of another batch: the elements of an array within a reply, where they lie if that
    /// is possible.
    pub(crate) fn take_all(&mut self, reply: Arc<Reply>, elements: Range<usize>, documents: u32) {
        self.documents = documents.into();
        let copied = match Arc::try_unwrap(reply) {
            Ok(own) => match own.go_on_with(&mut self.writer, elements.end, documents) {
                Ok(()) => return,
                Err(other) => Arc::new(other),
            },
            Err(shared) => shared,
        };
        let elements = &copied.document().as_bytes()[elements];
        self.writer.push_all(elements, documents);
    }

    pub(crate) fn end(mut self) -> DocWriter {
        self.writer.end();
        self.writer
    }
}

/// Where the batches of a merged cursor come from.
pub(crate) trait Merge: Send {
    /// Fills a batch; true when there is nothing more.
    fn fill<'a>(&'a mut self, batch: &'a mut Batch) -> BoxFuture<'a, Result<bool, Failure>>;

    /// Ends what is open on the shards.
    fn close(self: Box<Self>) -> BoxFuture<'static, ()>;

    /// A client has its cursor: whatever happens from now on happens to that.
    fn is_kept(&mut self) {}

    /// Says what a getMore asks for.
    fn set_batch_size(&mut self, batch_size: Option<u64>);

    /// Whether a getMore waits for documents to come.
    fn awaits_data(&self) -> bool {
        false
    }

    /// For how long, if the client says so.
    fn set_wait(&mut self, _wait: Option<Duration>) {}

    /// What a reply says of the cursor behind its batch.
    fn append_state(&self, _cursor: &mut DocWriter) {}

    /// What `$currentOp` shows of it.
    fn describe(&self, _cursor: &mut DocWriter) {}
}

/// One shard's results.
pub(crate) struct Stream {
    shard: ShardId,
    member: Arc<dyn Endpoint>,
    /// As the shard calls it; zero when it has given everything.
    cursor: i64,
    namespace: String,
    waiting: VecDeque<Waiting>,
    /// Its shard fell silent, and the client goes on without the rest.
    is_left_out: bool,
}

struct Waiting {
    /// Its place in the order, if there is one.
    key: Vec<u8>,
    document: DocBuf,
}

impl Stream {
    /// Takes over the first batch of a shard's answer.
    pub(crate) fn new(
        answered: crate::scatter::Answered,
        order: Option<&SortPattern>,
    ) -> Result<Stream, Error> {
        let cursor = answered.reply.document().get_doc("cursor");
        let cursor = cursor.ok_or_else(|| malformed(&answered.shard))?;
        let mut stream = Stream {
            shard: answered.shard.clone(),
            member: answered.member.clone(),
            cursor: 0,
            namespace: cursor.get_str("ns").unwrap_or_default().to_owned(),
            waiting: VecDeque::new(),
            is_left_out: false,
        };
        stream.take(cursor, order)?;
        Ok(stream)
    }

    fn take(&mut self, cursor: Doc<'_>, order: Option<&SortPattern>) -> Result<(), Error> {
        self.cursor = match cursor.get("id") {
            Some(ValueRef::Int64(id)) => id,
            _ => return Err(malformed(&self.shard)),
        };
        for document in batch_of(cursor) {
            let mut key = Vec::new();
            if let Some(order) = order {
                order.key_into(document, &mut key)?;
            }
            self.waiting.push_back(Waiting {
                key,
                document: document.to_owned(),
            });
        }
        Ok(())
    }

    /// Makes sure that a document waits, or that there is none.
    async fn fetch(&mut self, shared: &Shared) -> Result<(), Failure> {
        while self.waiting.is_empty() && self.cursor != 0 {
            let (database, collection) = self
                .namespace
                .split_once('.')
                .ok_or_else(|| malformed(&self.shard))?;
            let mut more = DocWriter::new()
                .with("getMore", self.cursor)
                .with("collection", collection);
            if let Some(size) = shared.batch_size {
                more.append("batchSize", i64::try_from(size).unwrap_or(i64::MAX));
            }
            if let Some(session) = &shared.session {
                more.append("lsid", session);
            }
            shared.clock.append_to(&mut more);
            more.append("$db", database);
            let request = Request::from_parts(more.finish(), Vec::new())?;
            let request = request.hurried(shared.may_leave_out);
            let reply = operation::waiting(self.member.call(request)).await?;
            let reply = reply
                .map_err(|error| unreachable(&self.shard, &error, false).into())
                .and_then(|reply| checked(reply, &self.shard));
            let reply = match reply {
                Err(failure) if shared.may_leave_out && is_absent(&failure) => {
                    self.is_left_out = true;
                    self.cursor = 0;
                    break;
                }
                reply => reply?,
            };
            shared.clock.observe(reply.document());
            let cursor = reply.document().get_doc("cursor");
            let cursor = cursor.ok_or_else(|| malformed(&self.shard))?;
            self.take(cursor, shared.order.as_ref())?;
        }
        Ok(())
    }

    /// The next document, if there is one.
    pub(crate) async fn next(&mut self, shared: &Shared) -> Result<Option<DocBuf>, Failure> {
        self.fetch(shared).await?;
        Ok(self.waiting.pop_front().map(|waiting| waiting.document))
    }

    /// The next document, if it has arrived.
    pub(crate) fn arrived(&mut self) -> Option<DocBuf> {
        self.waiting.pop_front().map(|waiting| waiting.document)
    }

    /// Where its cursor is, if it is open; the stream ends.
    pub(crate) fn take_open(&mut self) -> Option<(Arc<dyn Endpoint>, String, i64)> {
        let cursor = std::mem::take(&mut self.cursor);
        self.waiting.clear();
        (cursor != 0).then(|| (self.member.clone(), self.namespace.clone(), cursor))
    }

    async fn kill(mut self) {
        if let Some((member, namespace, cursor)) = self.take_open() {
            kill_cursor(&*member, &namespace, cursor).await;
        }
    }
}

/// Ends a cursor on a shard. If that fails, or the shard is silent, the shard ends it itself after a while.
pub(crate) async fn kill_cursor(member: &dyn Endpoint, namespace: &str, cursor: i64) {
    let Some((database, collection)) = namespace.split_once('.') else {
        return;
    };
    let mut kill = DocWriter::new().with("killCursors", collection);
    kill.begin_array("cursors").push(cursor).end();
    kill.append("$db", database);
    if let Ok(request) = Request::from_parts(kill.finish(), Vec::new())
        && let Err(error) = member.call(request.hurried(true)).await
    {
        tracing::debug!(%error, "a cursor is left to end by itself");
    }
}

fn malformed(shard: &ShardId) -> Error {
    Error::new(
        Code::INTERNAL_ERROR,
        format!("shard {shard} did not answer with a cursor"),
    )
}

/// What the streams of a merge have in common.
pub(crate) struct Shared {
    pub(crate) order: Option<SortPattern>,
    pub(crate) session: Option<DocBuf>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) batch_size: Option<u64>,
    /// The client goes on without shards that nobody answers for.
    pub(crate) may_leave_out: bool,
}

/// The merge of a `find` and of the shard part of a pipeline.
pub(crate) struct Streams {
    pub(crate) streams: Vec<Stream>,
    pub(crate) shared: Shared,
    pub(crate) skip: u64,
    pub(crate) limit: Option<u64>,
    /// Applied here where shards would have removed what documents are ordered by.
    pub(crate) projection: Option<Projection>,
    /// What did not fit into the last batch.
    pub(crate) held: Option<DocBuf>,
    /// Some shards did not even begin to answer.
    pub(crate) left_out: bool,
}

impl Streams {
    /// The next document of all.
    pub(crate) async fn next(&mut self) -> Result<Option<DocBuf>, Failure> {
        loop {
            if self.limit == Some(0) {
                return Ok(None);
            }
            let at = match self.shared.order {
                Some(_) => self.least().await?,
                None => self.first().await?,
            };
            let Some(at) = at else {
                return Ok(None);
            };
            let Some(waiting) = self.streams[at].waiting.pop_front() else {
                return Ok(None);
            };
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            if let Some(limit) = &mut self.limit {
                *limit -= 1;
            }
            return Ok(Some(match &self.projection {
                Some(projection) => projection.apply(waiting.document.as_doc())?,
                None => waiting.document,
            }));
        }
    }

    /// The stream whose first document is the least; of equals the first stream.
    async fn least(&mut self) -> Result<Option<usize>, Failure> {
        for stream in &mut self.streams {
            stream.fetch(&self.shared).await?;
        }
        let heads = self.streams.iter().enumerate();
        let heads = heads.filter_map(|(at, stream)| Some((&stream.waiting.front()?.key, at)));
        Ok(heads.min().map(|(_, at)| at))
    }

    /// The first stream that has anything.
    async fn first(&mut self) -> Result<Option<usize>, Failure> {
        for (at, stream) in self.streams.iter_mut().enumerate() {
            stream.fetch(&self.shared).await?;
            if !stream.waiting.is_empty() {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    async fn fill_from(&mut self, batch: &mut Batch) -> Result<bool, Failure> {
        loop {
            let document = match self.held.take() {
                Some(held) => held,
                None if batch.is_full() => {
                    // The end is told with the last batch where it is known already.
                    return Ok(self.is_over());
                }
                None => match self.next().await? {
                    Some(document) => document,
                    None => return Ok(true),
                },
            };
            if !batch.offer(document.as_doc()) {
                self.held = Some(document);
                return Ok(false);
            }
        }
    }

    fn is_over(&self) -> bool {
        let ended = |stream: &Stream| stream.cursor == 0 && stream.waiting.is_empty();
        self.limit == Some(0) || self.streams.iter().all(ended)
    }

    pub(crate) async fn kill(self) {
        for stream in self.streams {
            stream.kill().await;
        }
    }
}

impl Merge for Streams {
    fn fill<'a>(&'a mut self, batch: &'a mut Batch) -> BoxFuture<'a, Result<bool, Failure>> {
        Box::pin(self.fill_from(batch))
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin((*self).kill())
    }

    fn set_batch_size(&mut self, batch_size: Option<u64>) {
        self.shared.batch_size = batch_size;
    }

    fn append_state(&self, cursor: &mut DocWriter) {
        if self.left_out || self.streams.iter().any(|stream| stream.is_left_out) {
            cursor.append("partialResultsReturned", true);
        }
    }
}
