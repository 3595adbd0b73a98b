//! Elastic scans: cursors over sharded collections that lose nothing and repeat nothing while
//! ranges move. The shell around [`cluster::scan`].
//!
//! ```text
//!   deliver ◄─ buffers ◄─ answered ◄─┬─ getMore on the shard's cursor, if there is one       (asking.rs)
//!                                    └─ else the command again, from the stream's place
//!                             │
//!                             └─ what is not owned there: who owns it now?                   (locating.rs)
//! ```
//!
//! A shard's cursor is only a warm copy: when it is lost (the shard's ranges changed, its member died,
//! it was idle for too long), the same command is sent again with the place that was reached, to whoever
//! answers for the range then. At rest a batch costs what a `getMore` costs.
//!
//! A *whole* scan is one whose results count per set of ranges or not at all: partial groups. Of these
//! a stream is answered when its cursor has ended; what came before a failure is thrown away.
//!
//! Every wait has a deadline: [`PATIENCE`] for a range to arrive where it is said to be, and for a
//! shard to have a primary again. ⚑ It counts from the moment on which nobody answers any more: what a
//! shard needs to sort or to group is not waiting for a range.
//!
//! Batches that weigh something are asked for ahead (`ahead.rs`).

mod ahead;
mod asking;
mod locating;
mod source;

pub(crate) use asking::{Piece, append_ranges, code_of, is_passing, ranges_of, version};
pub(crate) use locating::owners;
pub(crate) use source::ScanSource;

use crate::Router;
use crate::failure::{Failure, Stale};
use crate::merge::{Batch, Merge, kill_cursor};
use ahead::Ahead;
use asking::{Ask, Asker, OpenCursor, Reported};
use cluster::cache::Placement;
use cluster::routing::ShardId;
use cluster::scan::{self, Entry, Order, Question, Reached, Scan, ScanToken, StreamId, TokenError};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::namespace::Namespace;
use model::range::RangeSet;
use model::time::ClusterTime;
use query::projection::Projection;
use query::sort::SortPattern;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use wire::BoxFuture;

/// How long a scan waits for a range, or for a shard, before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Since when nobody has answered.
#[derive(Default)]
struct Patience(Option<Instant>);

impl Patience {
    /// Whether it is over at a time; it begins with the first that is asked about.
    fn ends(&mut self, at: Instant) -> bool {
        at.duration_since(*self.0.get_or_insert(at)) >= PATIENCE
    }
}

/// What all scans of a router have done, for `serverStatus`.
#[derive(Default)]
pub(crate) struct ScanCounters {
    pub(crate) opened: AtomicU64,
    pub(crate) virtual_opened: AtomicU64,
    pub(crate) batches_repeated: AtomicU64,
    pub(crate) hops: AtomicU64,
    pub(crate) asked_ahead: AtomicU64,
    /// What the answers are expected to weigh that were asked for ahead.
    pub(crate) bytes_ahead: AtomicUsize,
}

impl ScanCounters {
    pub(crate) fn append_to(&self, writer: &mut DocWriter) {
        let number = |counter: &AtomicU64| {
            let number = counter.load(Ordering::Relaxed);
            i64::try_from(number).unwrap_or(i64::MAX)
        };
        writer
            .append("scans", number(&self.opened))
            .append("virtualScansOpened", number(&self.virtual_opened))
            .append("batchesRepeated", number(&self.batches_repeated))
            .append("hops", number(&self.hops))
            .append("batchesAskedAhead", number(&self.asked_ahead));
    }
}

/// What is scanned.
pub(crate) struct ScanCommand {
    pub(crate) namespace: Namespace,
    /// The command as it goes to shards, without versions, window and batch size.
    pub(crate) body: DocBuf,
    /// Documents are ordered by this, if by anything.
    pub(crate) order: Option<SortPattern>,
    /// Results count as a whole.
    pub(crate) whole: bool,
    /// Nobody here looks at single documents: batches are passed on as they came.
    pub(crate) passes: bool,
    /// A place is wanted for each document.
    pub(crate) places: bool,
    pub(crate) session: Option<DocBuf>,
}

/// One scan under way.
pub(crate) struct ElasticScan {
    router: Arc<Router>,
    command: Arc<ScanCommand>,
    scan: Scan<Piece>,
    /// By stream.
    cursors: Vec<Option<OpenCursor>>,
    /// By stream: what was asked before it is needed.
    ahead: Vec<Option<Ahead>>,
    batch_size: Option<u64>,
    /// Applied here where shards would have removed what documents are ordered by.
    projection: Option<Projection>,
    /// Anything was delivered: from then on nothing can begin again.
    begun: bool,
    /// Later batches read at or after this time.
    not_before: ClusterTime,
}

impl ElasticScan {
    /// Begins a scan. Nothing is asked yet.
    pub(crate) fn new(
        router: &Arc<Router>,
        command: ScanCommand,
        base: cluster::routing::RoutingTable,
        wanted: RangeSet,
    ) -> ElasticScan {
        let order = match &command.order {
            Some(_) => Order::Sorted,
            None => Order::Unsorted,
        };
        let scan = Scan::begin(Arc::new(base), wanted, order);
        Self::with_scan(router, command, scan)
    }

    pub(crate) fn with_scan(
        router: &Arc<Router>,
        command: ScanCommand,
        scan: Scan<Piece>,
    ) -> ElasticScan {
        router.scans.opened.fetch_add(1, Ordering::Relaxed);
        ElasticScan {
            router: router.clone(),
            command: Arc::new(command),
            scan,
            cursors: Vec::new(),
            ahead: Vec::new(),
            batch_size: None,
            projection: None,
            begun: false,
            not_before: ClusterTime::ZERO,
        }
    }

    /// Goes on where a token stands, on whichever router it was given out.
    pub(crate) async fn resume(
        router: &Arc<Router>,
        command: ScanCommand,
        token: Doc<'_>,
        wanted: RangeSet,
    ) -> Result<ElasticScan, Failure> {
        let refuse = |error: TokenError| {
            let code = match error {
                TokenError::Damaged | TokenError::Version(_) => Code::BAD_VALUE,
                TokenError::OtherIncarnation => Code::QUERY_PLAN_KILLED,
                TokenError::TooOld => Code::STALE_CHUNK_HISTORY,
            };
            Failure::Error(Error::new(code, error.to_string()))
        };
        let Some(ValueRef::Binary { bytes, .. }) = token.get(TOKEN) else {
            return Err(refuse(TokenError::Damaged));
        };
        let token = ScanToken::decode(bytes).map_err(refuse)?;
        let not_before = token.not_before;
        let mut placement = router.routing.placement(&command.namespace, None).await?;
        // What is known here may be older than what the scan began with.
        if !matches!(&placement, Placement::Sharded(table) if token.is_told_by(table)) {
            router.routing.mark_stale(&command.namespace);
            placement = router.routing.placement(&command.namespace, None).await?;
        }
        let Placement::Sharded(table) = placement else {
            return Err(refuse(TokenError::OtherIncarnation));
        };
        let scan = Scan::resume(token, Arc::new(table), wanted).map_err(refuse)?;
        let mut resumed = Self::with_scan(router, command, scan);
        resumed.begun = true;
        resumed.not_before = not_before;
        Ok(resumed)
    }

    pub(crate) fn with_window(mut self, skip: u64, limit: Option<u64>) -> ElasticScan {
        self.scan = self.scan.with_window(skip, limit);
        self
    }

    pub(crate) fn with_projection(mut self, projection: Option<Projection>) -> ElasticScan {
        self.projection = projection;
        self
    }

    pub(crate) fn with_batch_size(mut self, batch_size: Option<u64>) -> ElasticScan {
        self.batch_size = batch_size;
        self
    }

    /// Takes over what one shard answered to the client's own command: the client has that batch,
    /// the scan goes on behind it.
    pub(crate) fn take_over(&mut self, answered: &crate::scatter::Answered) -> Result<(), Failure> {
        let reported = Reported::read(answered.reply.document(), &answered.shard)?;
        self.note_time(answered.reply.document());
        for question in self.scan.questions() {
            let cursor = (reported.cursor != 0).then(|| OpenCursor {
                member: answered.member.clone(),
                id: reported.cursor,
            });
            self.keep_cursor(question.stream, cursor);
            let batch = scan::Batch {
                entries: Vec::new(),
                reached: reported.place.clone(),
                ended: reported.cursor == 0,
                moved: Vec::new(),
            };
            self.take(question.stream, batch)?;
        }
        self.begun = true;
        Ok(())
    }

    fn note_time(&mut self, reply: Doc<'_>) {
        if let Some(time) = crate::config::time_of(reply.get("operationTime")) {
            self.not_before = self.not_before.max(time);
        }
    }

    fn keep_cursor(&mut self, stream: StreamId, cursor: Option<OpenCursor>) {
        let at = stream.index();
        if self.cursors.len() <= at {
            self.cursors.resize_with(at + 1, || None);
        }
        self.cursors[at] = cursor;
    }

    /// Asks every shard that must answer before anything more can be delivered.
    pub(crate) async fn ask(&mut self) -> Result<(), Failure> {
        let mut patience = Patience::default();
        let mut pause = PAUSE_MIN;
        loop {
            let mut answers = self.awaited().await;
            let questions = self.scan.questions();
            if questions.is_empty() && answers.is_empty() {
                return match self.scan.has_ended() {
                    true => Ok(()),
                    false => Err(Failure::Error(Error::new(
                        Code::INTERNAL_ERROR,
                        "a question of a scan got lost",
                    ))),
                };
            }
            answers.extend(self.ask_all(questions).await);
            let (mut must_wait, mut failure) = (None, None);
            let mut answered = Vec::new();
            for (question, answer) in answers {
                let bytes = match &answer {
                    Ok(Ask::Answered(answer)) => answer.bytes_on_cursor,
                    Ok(Ask::Lost | Ask::Stale(_) | Ask::Away(_)) | Err(_) => None,
                };
                let settled = match answer {
                    Ok(answer) => self.settle(&question, answer).await,
                    Err(failure) => Err(failure),
                };
                match settled {
                    Ok(None) => answered.push((question.stream, bytes)),
                    Ok(Some(reason)) => must_wait = Some(reason),
                    Err(other) => {
                        self.scan.unanswered(question.stream);
                        // Of several the first is told, unless another says that all is to be
                        // routed again.
                        if failure.is_none() || matches!(other, Failure::Stale(_)) {
                            failure = Some(other);
                        }
                    }
                }
            }
            if let Some(failure) = failure {
                return Err(failure);
            }
            if !answered.is_empty() {
                patience = Patience::default();
            }
            for (stream, bytes) in answered {
                if let Some(bytes) = bytes {
                    self.ask_ahead(stream, bytes);
                }
            }
            let Some(reason) = must_wait else {
                return Ok(());
            };
            // What is here can be delivered meanwhile.
            if self.scan.peek().is_some() {
                return Ok(());
            }
            if patience.ends(Instant::now() + pause) {
                return Err(reason);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn asker(&self) -> Arc<Asker> {
        Arc::new(Asker {
            router: self.router.clone(),
            command: self.command.clone(),
            base: self.scan.base().clone(),
            batch_size: self.batch_size,
            limit: self.scan.wanted_results(),
            not_before: self.not_before,
            begun: self.begun,
        })
    }

    async fn ask_all(&mut self, questions: Vec<Question>) -> Vec<(Question, Result<Ask, Failure>)> {
        let asker = self.asker();
        let with_cursor: Vec<(Question, Option<OpenCursor>)> = questions
            .into_iter()
            .map(|question| {
                let at = question.stream.index();
                let cursor = self.cursors.get_mut(at).and_then(Option::take);
                (question, cursor)
            })
            .collect();
        if with_cursor.len() == 1 {
            let mut answers = Vec::with_capacity(1);
            for (question, cursor) in with_cursor {
                let answer = asker.ask(&question, cursor).await;
                answers.push((question, answer));
            }
            return answers;
        }
        let mut asking = JoinSet::new();
        for (question, cursor) in with_cursor {
            let asker = asker.clone();
            asking.spawn(async move {
                let answer = asker.ask(&question, cursor).await;
                (question, answer)
            });
        }
        let mut answers = Vec::with_capacity(asking.len());
        while let Some(ended) = asking.join_next().await {
            match ended {
                Ok(answer) => answers.push(answer),
                // It panicked, or the runtime ends: whoever asked is not answered.
                Err(error) => tracing::error!(%error, "a question to a shard did not end"),
            }
        }
        answers.sort_by_key(|(question, _)| question.stream);
        answers
    }

    /// Takes an answer. If it says that there is nothing to take yet, why.
    async fn settle(&mut self, question: &Question, ask: Ask) -> Result<Option<Failure>, Failure> {
        let stream = question.stream;
        match ask {
            Ask::Answered(answered) => {
                let moved = match answered.not_owned.is_empty() {
                    true => Some(Vec::new()),
                    false => {
                        let (shard, version) = (&question.shard, answered.version);
                        self.locate(shard, &answered.not_owned, version).await?
                    }
                };
                let Some(moved) = moved else {
                    // It is said to be where it is not: the news are on their way, somewhere.
                    if let Some(cursor) = answered.cursor {
                        kill_cursor(&*cursor.member, self.command.namespace.as_str(), cursor.id)
                            .await;
                    }
                    self.scan.unanswered(stream);
                    self.count_repeat();
                    return Ok(Some(self.did_not_arrive(&question.shard)));
                };
                for time in answered.times {
                    self.not_before = self.not_before.max(time);
                }
                self.keep_cursor(stream, answered.cursor);
                let batch = scan::Batch {
                    entries: answered.entries,
                    reached: answered.place,
                    ended: answered.ended,
                    moved,
                };
                self.take(stream, batch)?;
                Ok(None)
            }
            Ask::Lost => {
                self.count_repeat();
                self.scan.name_ranges(stream);
                Ok(Some(self.did_not_arrive(&question.shard)))
            }
            Ask::Stale(stale) => {
                let is_of_this = match &stale {
                    Stale::Collection {
                        wanted: Some(wanted),
                        ..
                    } => wanted.incarnation == self.scan.base().incarnation,
                    Stale::Collection { wanted: None, .. } => self.begun,
                    Stale::Database => false,
                };
                self.router.routing.note(&self.command.namespace, &stale);
                if !is_of_this {
                    return Err(self.killed());
                }
                // Some of its ranges went, or came: it is asked for those it had.
                self.count_repeat();
                self.scan.name_ranges(stream);
                Ok(Some(self.did_not_arrive(&question.shard)))
            }
            Ask::Away(reason) => {
                self.count_repeat();
                self.scan.unanswered(stream);
                Ok(Some(reason))
            }
        }
    }

    fn count_repeat(&self) {
        let counters = &self.router.scans;
        counters.batches_repeated.fetch_add(1, Ordering::Relaxed);
    }

    /// Hands a batch to the core, and counts the streams that it opens.
    fn take(&mut self, stream: StreamId, batch: scan::Batch<Piece>) -> Result<(), Failure> {
        let hops_of = |scan: &Scan<Piece>| {
            let streams = scan.streams().filter(|stream| stream.is_virtual);
            let hops = streams.map(|stream| u64::from(stream.hops));
            hops.fold((0, 0), |(count, sum), hops| (count + 1, sum + hops))
        };
        let moves = !batch.moved.is_empty();
        let before: (u64, u64) = if moves { hops_of(&self.scan) } else { (0, 0) };
        let taken = self.scan.answered(stream, batch);
        taken.map_err(|error| Error::new(Code::INTERNAL_ERROR, error.to_string()))?;
        if moves {
            let after = hops_of(&self.scan);
            let counters = &self.router.scans;
            let opened = after.0.saturating_sub(before.0);
            counters.virtual_opened.fetch_add(opened, Ordering::Relaxed);
            let hops = after.1.saturating_sub(before.1);
            counters.hops.fetch_add(hops, Ordering::Relaxed);
        }
        Ok(())
    }

    fn did_not_arrive(&self, shard: &ShardId) -> Failure {
        Failure::Error(Error::new(
            Code::EXCEEDED_TIME_LIMIT,
            format!(
                "a range of {} did not arrive at shard {shard} within {} seconds",
                self.command.namespace,
                PATIENCE.as_secs()
            ),
        ))
    }

    /// The error for a collection that is not the one whose scan this is any more. As long as
    /// nobody has seen anything of it, all is routed again instead.
    fn killed(&self) -> Failure {
        if !self.begun {
            let base = self.scan.streams().next();
            return Failure::Stale(Stale::Collection {
                shard: base.map_or_else(|| ShardId::new(""), |stream| stream.shard.clone()),
                wanted: None,
            });
        }
        Failure::Error(Error::new(
            Code::QUERY_PLAN_KILLED,
            format!(
                "collection {} was dropped, renamed or resharded during the scan",
                self.command.namespace
            ),
        ))
    }

    /// The next result.
    pub(crate) async fn next(&mut self) -> Result<Option<Piece>, Failure> {
        loop {
            if let Some(piece) = self.arrived() {
                return Ok(Some(piece));
            }
            if self.scan.has_ended() {
                return Ok(None);
            }
            self.ask().await?;
        }
    }

    /// The next result, if it has arrived.
    pub(crate) fn arrived(&mut self) -> Option<Piece> {
        let Entry { value, .. } = self.scan.deliver()?;
        self.begun = true;
        Some(value)
    }

    /// What does not fit is not delivered: a token that goes with the batch stands before it.
    async fn fill_from(&mut self, batch: &mut Batch) -> Result<bool, Failure> {
        loop {
            // The end is told with the last batch where it is known already.
            if batch.is_full() || (self.command.passes && batch.is_ample()) {
                return Ok(self.scan.has_ended());
            }
            let Some(entry) = self.scan.peek() else {
                if self.scan.has_ended() {
                    return Ok(true);
                }
                self.ask().await?;
                continue;
            };
            if entry.value.is_batch() {
                if entry.value.pass_on(batch) {
                    self.arrived();
                } else {
                    self.scan.split_next(|piece| piece.split());
                }
                continue;
            }
            let document = entry.value.document();
            let taken = match &self.projection {
                Some(projection) => batch.offer(projection.apply(document)?.as_doc()),
                None => batch.offer(document),
            };
            if !taken {
                return Ok(false);
            }
            self.arrived();
        }
    }

    /// What is open on shards; the scan ends.
    pub(crate) fn take_open(&mut self) -> Vec<OpenCursor> {
        let mut open: Vec<OpenCursor> = self.cursors.drain(..).flatten().collect();
        open.extend(self.take_ahead());
        open
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.command.namespace
    }

    async fn kill(mut self) {
        for cursor in self.take_open() {
            kill_cursor(&*cursor.member, self.command.namespace.as_str(), cursor.id).await;
        }
    }
}

impl Merge for ElasticScan {
    fn fill<'a>(&'a mut self, batch: &'a mut Batch) -> BoxFuture<'a, Result<bool, Failure>> {
        Box::pin(self.fill_from(batch))
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin((*self).kill())
    }

    fn set_batch_size(&mut self, batch_size: Option<u64>) {
        self.batch_size = batch_size;
    }

    fn append_state(&self, cursor: &mut DocWriter) {
        if self.command.places {
            cursor.begin_document("postBatchResumeToken");
            if let Some(token) = self.scan.token(self.not_before) {
                let bytes = token.encode();
                let bytes = ValueRef::Binary {
                    subtype: 0,
                    bytes: &bytes,
                };
                cursor.append(TOKEN, bytes);
            }
            cursor.end();
        }
    }

    fn describe(&self, cursor: &mut DocWriter) {
        let base = self.scan.base();
        let uuid = ValueRef::Binary {
            subtype: 4,
            bytes: &base.uuid.0,
        };
        cursor
            .begin_document("elasticScan")
            .append("collectionUUID", uuid)
            .begin_document("baseVersion");
        base.version().append_to(cursor);
        cursor.end().begin_array("streams");
        for stream in self.scan.streams() {
            let state = match (stream.has_ended, stream.reached) {
                (true, _) => "ended",
                (false, Reached::Beginning) => "opened",
                (false, Reached::Behind(_) | Reached::End) => "under way",
            };
            cursor
                .push_document()
                .append("shard", stream.shard.as_str())
                .append("virtual", stream.is_virtual)
                .append("hops", i64::from(stream.hops))
                .append("state", state);
            if let Some(ranges) = stream.ranges {
                cursor.append("ranges", ranges.iter().len() as i32);
            }
            if let Reached::Behind(place) = stream.reached {
                let bytes = place.as_slice();
                cursor.append("position", ValueRef::Binary { subtype: 0, bytes });
            }
            cursor.end();
        }
        cursor.end().end();
    }
}

/// The field of a resume token.
pub(crate) const TOKEN: &str = "terndbScan";

#[cfg(test)]
mod tests {
    use super::*;

    /// ⚑ A shard that sorts or groups for minutes beside one whose range has moved is no reason to give up.
    #[test]
    fn patience_begins_when_nobody_answers() {
        let mut patience = Patience::default();
        // The others have answered after an hour, and one has to be asked again.
        let begins = Instant::now() + Duration::from_secs(3600);
        assert!(!patience.ends(begins));
        assert!(!patience.ends(begins + PATIENCE / 2));
        assert!(patience.ends(begins + PATIENCE));
    }
}
