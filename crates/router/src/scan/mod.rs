//! Elastic scans: cursors that lose nothing and repeat nothing while ranges move and members die. The shell around
//! [`cluster::scan`]. Collections that are not sharded are scanned as one range (`at_home.rs`).
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
//! a stream is answered when its cursor has ended; what came before a failure is thrown away. What does not fit into
//! memory goes to disk (`partials.rs`).
//!
//! Batches that weigh something are asked for ahead (`ahead.rs`).

mod ahead;
mod asking;
mod at_home;
mod counters;
mod delivering;
mod locating;
mod naming;
mod partials;
mod past;
mod piece;
mod reported;
mod rounds;
mod showing;
mod source;
mod tokens;

pub(crate) use asking::{append_ranges, code_of, is_passing};
pub(crate) use at_home::home;
pub(crate) use counters::ScanCounters;
pub(crate) use locating::owners;
pub(crate) use partials::PartialRoom;
pub(crate) use piece::Piece;
pub(crate) use reported::{ranges_of, version};
pub(crate) use rounds::PATIENCE;
pub(crate) use source::ScanSource;
pub(crate) use tokens::{TokenFields, gone, has_token, query_of};

use crate::Router;
use crate::failure::Failure;
use crate::merge::kill_cursor;
use crate::registry::batch_of;
use ahead::Ahead;
use asking::OpenCursor;
use cluster::routing::ShardId;
use cluster::scan::{self, Order, Scan, StreamId};
use model::bson::{Doc, DocBuf};
use model::error::Error;
use model::ids::Uuid;
use model::namespace::Namespace;
use model::range::RangeSet;
use model::time::ClusterTime;
use partials::Spilled;
use query::projection::Projection;
use query::sort::SortPattern;
use reported::Reported;
use showing::StreamCounts;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    /// It reads at one moment of the past.
    pub(crate) is_past: bool,
    /// The collection is not sharded.
    pub(crate) is_at_home: bool,
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
    /// The client goes on without shards that nobody answers for.
    may_leave_out: bool,
    /// It does.
    left_out: bool,
    /// For what counts as a whole.
    room: Arc<PartialRoom>,
    /// What of it has left memory.
    spilled: Vec<Spilled>,
    /// Which collection it is; of one that is not sharded, once a shard has told.
    collection: Option<Uuid>,
    /// The keys that the query can match, in the words of the key that it began with. To be shown.
    wanted: RangeSet,
    /// It goes on from a token.
    is_resumed: bool,
    /// By stream.
    counts: Vec<StreamCounts>,
}

impl ElasticScan {
    /// Begins a scan. Nothing is asked yet.
    pub(crate) fn new(
        router: &Arc<Router>,
        command: ScanCommand,
        base: cluster::routing::RoutingTable,
        wanted: RangeSet,
    ) -> ElasticScan {
        let scan = Scan::begin(Arc::new(base), wanted.clone(), order_of(&command));
        Self::with_scan(router, command, scan, wanted)
    }

    /// Begins a scan of a moment of the past, at those who owned what is wanted then.
    pub(crate) fn of_past(
        router: &Arc<Router>,
        command: ScanCommand,
        base: cluster::routing::RoutingTable,
        shards: &[ShardId],
    ) -> ElasticScan {
        let scan = Scan::of_past(Arc::new(base), shards.to_vec(), order_of(&command));
        Self::with_scan(router, command, scan, RangeSet::new())
    }

    pub(crate) fn with_scan(
        router: &Arc<Router>,
        command: ScanCommand,
        scan: Scan<Piece>,
        wanted: RangeSet,
    ) -> ElasticScan {
        router.scans.opened.fetch_add(1, Ordering::Relaxed);
        let collection = (!command.is_at_home).then(|| scan.base().uuid);
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
            may_leave_out: false,
            left_out: false,
            room: Arc::default(),
            spilled: Vec::new(),
            collection,
            wanted,
            is_resumed: false,
            counts: Vec::new(),
        }
    }

    /// Begins a scan of a collection that is not sharded.
    pub(crate) fn at_home(
        router: &Arc<Router>,
        command: ScanCommand,
        primary: &ShardId,
    ) -> Result<ElasticScan, Error> {
        let home = home(primary)?;
        let everything = RangeSet::of([home.whole()]);
        Ok(Self::new(router, command, home, everything))
    }

    pub(crate) fn leaving_out(mut self, may_leave_out: bool) -> ElasticScan {
        self.may_leave_out = may_leave_out;
        self
    }

    pub(crate) fn with_room(mut self, room: Arc<PartialRoom>) -> ElasticScan {
        self.room = room;
        self
    }

    /// Says which query it is, for tokens.
    pub(crate) fn with_query(mut self, query: u64) -> ElasticScan {
        self.scan = self.scan.with_query(query);
        self
    }

    /// Whoever goes on with it cannot be routed again: from now on it goes on from its places.
    pub(crate) fn is_begun(&mut self) {
        self.begun = true;
    }

    pub(crate) fn with_window(mut self, skip: u64, limit: Option<u64>) -> ElasticScan {
        self.scan = self.scan.with_window(skip, limit);
        self
    }

    pub(crate) fn limited_to(mut self, limit: Option<u64>) -> ElasticScan {
        self.scan = self.scan.limited_to(limit);
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
    /// the scan goes on behind it. The shard's cursor is used if it returns what the scan's own command would.
    pub(crate) async fn take_over(
        &mut self,
        answered: &crate::scatter::Answered,
        is_alike: bool,
    ) -> Result<(), Failure> {
        let reported = Reported::read(answered.reply.document(), &answered.shard)?;
        self.note_time(answered.reply.document());
        self.collection = self.collection.or(reported.uuid);
        if reported.cursor != 0 && !is_alike {
            let namespace = self.command.namespace.as_str();
            kill_cursor(&*answered.member, namespace, reported.cursor).await;
        }
        let cursor = answered.reply.document().get_doc("cursor");
        let results = cursor.map_or(0, |cursor| batch_of(cursor).count());
        for question in self.scan.questions() {
            let counts = self.counts(question.stream);
            (counts.batches, counts.results) = (1, results as u64);
            let cursor = (reported.cursor != 0 && is_alike).then(|| OpenCursor {
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

    /// What is open on shards; the scan ends.
    pub(crate) fn take_open(&mut self) -> Vec<OpenCursor> {
        let mut open: Vec<OpenCursor> = self.cursors.drain(..).flatten().collect();
        open.extend(self.take_ahead());
        open
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.command.namespace
    }
}

fn order_of(command: &ScanCommand) -> Order {
    match &command.order {
        Some(_) => Order::Sorted,
        None if command.whole => Order::Whole,
        None => Order::Unsorted,
    }
}
