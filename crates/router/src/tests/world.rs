//! Shards that are values, and a router over them and the config server of `fake_config.rs`.
//!
//! The shards hold documents of one collection, `test.birds`, sharded by `{k: 1}`, check versions as
//! real ones do, and write down what they are asked. Faults are put in their way by hand.

use super::at_home::{self, Home};
use super::fake_config::{Chunk, FakeConfig};
use crate::{Connect, Router, RouterHandler, RouterOptions};
use model::bson::{Doc, DocBuf, DocWriter, ObjectId, ValueRef};
use model::error::{Code, Error};
use model::range::{KeyBound, KeyRange, RangeSet};
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::{ChunkVersion, Incarnation, PlacementVersion};
use parking_lot::Mutex;
use query::context::QueryContext;
use query::filter::Filter;
use query::sort::SortPattern;
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use wire::{BoxFuture, CallError, Endpoint, Handler, Reply, Request, Sequence};

/// What a command's partial results may weigh in memory.
const MEMORY_BYTES_MAX: i64 = 10_000;

pub(super) fn incarnation() -> Incarnation {
    Incarnation {
        epoch: ObjectId([7; 12]),
        began: ClusterTime::new(5, 1),
    }
}

pub(super) fn version(major: u32) -> PlacementVersion {
    PlacementVersion {
        incarnation: incarnation(),
        chunk: ChunkVersion::new(major, 0),
    }
}

/// What stands in the way of the next requests.
#[derive(Clone)]
pub(super) enum Fault {
    /// Nothing stands in its way.
    None,
    /// Nothing arrives.
    NotSent,
    /// It is carried out, and the reply is lost.
    ReplyLost,
    /// From the statement at this place on the shard says that the version is stale.
    StaleFrom(usize),
    /// The shard knows another life of the collection, and does nothing.
    AnotherLife,
    /// Nobody ever answers.
    Silence,
    /// It is carried out, and the member is deposed before it says so.
    Deposed,
    /// The shard does not know any more whether it has carried it out.
    Forgotten,
    /// It refuses, for this reason.
    Says(Error),
}

pub(super) struct FakeShard {
    pub(super) name: &'static str,
    pub(super) major: Mutex<u32>,
    pub(super) documents: Mutex<Vec<DocBuf>>,
    /// From which key on, and up to which.
    pub(super) owned: Mutex<Vec<(i32, i32)>>,
    pub(super) cursors: Mutex<HashMap<i64, VecDeque<DocBuf>>>,
    pub(super) faults: Mutex<VecDeque<Fault>>,
    /// Once, at this many requests for more.
    loses_cursors_after: Mutex<Option<usize>>,
    pub(super) asked: Mutex<Vec<DocBuf>>,
    /// What it says its replies show.
    pub(super) time: Mutex<Option<ClusterTime>>,
    /// Questions without an answer that whoever asked gave up.
    pub(super) given_up: Arc<AtomicUsize>,
    /// It is like a shard in another process.
    pub(super) is_elsewhere: AtomicBool,
    /// The shard key has another field (`refined.rs`).
    pub(super) is_refined: AtomicBool,
    /// The collection is not sharded (`at_home.rs`).
    pub(super) home: Mutex<Option<Home>>,
    /// Held while it answers. Who changes what it knows does so between two answers: one that is under way would
    /// bring a cursor of before into what is there now.
    pub(super) answering: Mutex<()>,
}

/// Counts when it is dropped.
struct GivenUp(Arc<AtomicUsize>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl FakeShard {
    fn stale(&self, received: Option<PlacementVersion>) -> Option<Error> {
        let wanted = self.version();
        if received == Some(wanted) {
            return None;
        }
        Some(self.stale_error(wanted))
    }

    pub(super) fn stale_error(&self, wanted: PlacementVersion) -> Error {
        let mut details = DocWriter::new().with("ns", "test.birds");
        details.begin_document("vWanted");
        wanted.append_to(&mut details);
        details.end().append("shardId", self.name);
        Error::new(Code::STALE_CONFIG, "stale").with_details(details.finish())
    }

    /// A part of a write over several shards that names its ranges.
    fn change_some(&self, part: Doc<'_>, received: Option<PlacementVersion>) -> Reply {
        let mut asked = crate::scan::ranges_of(part, "ranges");
        let owned = self.ranges();
        if part.get("without").is_some() {
            if let Some(error) = self.stale(received) {
                return Reply::error(&error);
            }
            let without = crate::scan::ranges_of(part, "without");
            asked = owned.difference(&without).union(&asked);
        }
        let here = asked.intersection(&owned);
        let documents = self.documents.lock();
        let keys = documents.iter().map(|doc| self.key_of(doc.as_doc()));
        let changed = keys.filter(|key| here.contains(key)).count() as i32;
        let mut writer = Reply::writer()
            .with("n", changed)
            .with("nModified", changed);
        let left = asked.difference(&owned);
        if !left.is_empty() {
            writer.begin_document("broadcast").begin_array("left");
            writer.push_document();
            crate::scan::append_ranges(&mut writer, "ranges", &left);
            writer.end().end().begin_document("version");
            self.version().append_to(&mut writer);
            writer.end().end();
        }
        Reply::from_writer(writer.with("ok", 1.0))
    }

    fn answer(&self, request: &Request, stale_from: Option<usize>) -> Reply {
        let _answering = self.answering.lock();
        let body = request.body();
        let received = body
            .get_doc("shardVersion")
            .map(|version| PlacementVersion::from_document(version).expect("a version"));
        match request.name() {
            "insert" => {
                let sequence = request.sequence("documents").expect("documents beside");
                let stale = match self.stale(received) {
                    Some(_) => Some(0),
                    None => stale_from,
                };
                let mut n = 0;
                for (at, document) in sequence.iter().enumerate() {
                    if stale.is_some_and(|stale| at >= stale) {
                        break;
                    }
                    self.documents.lock().push(document.to_owned());
                    n += 1;
                }
                let mut writer = Reply::writer().with("n", n);
                if let Some(at) = stale {
                    let ordered = body.get("ordered") != Some(ValueRef::Boolean(false));
                    let error = self.stale_error(self.version());
                    writer.begin_array("writeErrors");
                    let last = if ordered { at + 1 } else { sequence.len() };
                    for at in at..last {
                        writer
                            .push_document()
                            .append("index", at as i32)
                            .append("code", error.code.0)
                            .append("errmsg", "stale")
                            .append("errInfo", &**error.details.as_ref().expect("details"))
                            .end();
                    }
                    writer.end();
                }
                Reply::from_writer(writer.with("ok", 1.0))
            }
            // Of pipelines only how they are asked for.
            "find" | "aggregate" => {
                let part = body.get_doc("_terndbScan").unwrap_or(Doc::EMPTY);
                if let Some(error) = self.other_words(part) {
                    return Reply::error(&error);
                }
                let asked = part.get_array("ranges").map(|_| {
                    let bounds = crate::scan::ranges_of(part, "ranges");
                    (bounds.difference(&self.ranges()), bounds)
                });
                let refused = match &*self.home.lock() {
                    Some(home) => home.refuse(body),
                    None => self.stale(received).filter(|_| asked.is_none()),
                };
                if let Some(error) = refused {
                    return Reply::error(&error);
                }
                let context = QueryContext::new(0);
                let filter = body.get_doc("filter").unwrap_or(Doc::EMPTY);
                let filter = Filter::parse(filter, &context).expect("a filter");
                let mut found: Vec<DocBuf> = self.documents.lock().clone();
                found.retain(|doc| filter.matches(doc.as_doc()).expect("matches"));
                if let Some((_, asked)) = &asked {
                    let owned = asked.intersection(&self.ranges());
                    found.retain(|doc| owned.contains(&self.key_of(doc.as_doc())));
                }
                let without = crate::scan::ranges_of(part, "without");
                found.retain(|doc| !without.contains(&self.key_of(doc.as_doc())));
                let by_key = DocWriter::new().with("k", 1).finish();
                let sort = body.get_doc("sort").unwrap_or(by_key.as_doc());
                let sort = SortPattern::parse(sort).expect("a sort");
                found.sort_by_key(|doc| sort.key(doc.as_doc()).expect("a key"));
                if let Some(ValueRef::Binary { bytes, .. }) = part.get("after") {
                    let last = bird(i32::from_be_bytes(bytes.try_into().expect("a place")));
                    let last = sort.key(last.as_doc()).expect("a key");
                    found.retain(|doc| sort.key(doc.as_doc()).expect("a key") > last);
                }
                if let Some(limit) = crate::find::whole(body.get("limit")).filter(|n| *n > 0) {
                    found.truncate(limit as usize);
                }
                if let Some(skip) = crate::find::whole(body.get("skip")).filter(|n| *n > 0) {
                    assert!(self.home.lock().is_some(), "skipping is the router's");
                    found.drain(..found.len().min(skip as usize));
                }
                let not_owned = asked.map(|(not_owned, _)| not_owned);
                self.batch("firstBatch", found.into(), body, not_owned)
            }
            "getMore" => {
                let Some(ValueRef::Int64(id)) = body.get("getMore") else {
                    panic!("getMore without a cursor");
                };
                let is_lost = self.loses_cursors_after.lock().take_if(|left| {
                    *left = left.saturating_sub(1);
                    *left == 0
                });
                if is_lost.is_some() {
                    self.cursors.lock().remove(&id);
                }
                let Some(rest) = self.cursors.lock().remove(&id) else {
                    return Reply::error(&Error::new(Code::CURSOR_NOT_FOUND, "not found"));
                };
                self.batch("nextBatch", rest, body, None)
            }
            // Everything is changed, and nobody looks at what.
            "update" => match body.get_doc("_terndbBroadcast") {
                Some(part) if part.get("without").is_some() || part.get("ranges").is_some() => {
                    self.change_some(part, received)
                }
                _ => {
                    if let (Some(_), Some(error)) = (received, self.stale(received)) {
                        return Reply::error(&error);
                    }
                    let changed = self.documents.lock().len() as i32;
                    let writer = Reply::writer().with("n", changed);
                    Reply::from_writer(writer.with("nModified", changed).with("ok", 1.0))
                }
            },
            "delete" => Reply::from_writer(Reply::writer().with("n", 1).with("ok", 1.0)),
            "count" => {
                let part = body.get_doc("_terndbScan").unwrap_or(Doc::EMPTY);
                let asked = part
                    .get_array("ranges")
                    .map(|_| crate::scan::ranges_of(part, "ranges"));
                let mut writer = Reply::writer();
                let counted = match asked {
                    Some(asked) => {
                        let owned = asked.intersection(&self.ranges());
                        let documents = self.documents.lock();
                        let keys = documents.iter().map(|doc| self.key_of(doc.as_doc()));
                        writer.begin_document("scan");
                        let not_owned = asked.difference(&owned);
                        crate::scan::append_ranges(&mut writer, "notOwned", &not_owned);
                        writer.begin_document("version");
                        self.version().append_to(&mut writer);
                        writer.end().end();
                        keys.filter(|key| owned.contains(key)).count()
                    }
                    None => match self.stale(received) {
                        Some(error) => return Reply::error(&error),
                        None => self.documents.lock().len(),
                    },
                };
                Reply::from_writer(writer.with("n", counted as i32).with("ok", 1.0))
            }
            "distinct" => {
                let mut writer = Reply::writer();
                writer.begin_array("values");
                for document in &*self.documents.lock() {
                    writer.push(key(document.as_doc()));
                }
                writer.end().append("ok", 1.0);
                Reply::from_writer(writer)
            }
            "endSessions" | "killSessions" | "killOp" => Reply::ok(),
            "explain" => {
                let mut writer = Reply::writer();
                writer.begin_document("queryPlanner").end();
                Reply::from_writer(writer.with("ok", 1.0))
            }
            "killCursors" => {
                for id in body.get_array("cursors").expect("cursors").iter() {
                    if let ValueRef::Int64(id) = id {
                        self.cursors.lock().remove(&id);
                    }
                }
                Reply::ok()
            }
            other => panic!("a shard is asked for {other}"),
        }
    }

    pub(super) fn store(&self, document: DocBuf) {
        self.documents.lock().push(document);
    }

    pub(super) fn remove(&self, removed: i32) {
        self.documents
            .lock()
            .retain(|doc| key(doc.as_doc()) != removed);
    }

    fn ranges(&self) -> RangeSet {
        let owned = self.owned.lock();
        let bound = |key| self.bound(&KeyBound::new(&encoded(key)));
        RangeSet::of(
            owned
                .iter()
                .map(|(min, max)| KeyRange::new(bound(*min), bound(*max))),
        )
    }

    fn batch(
        &self,
        name: &str,
        mut rest: VecDeque<DocBuf>,
        body: Doc<'_>,
        not_owned: Option<RangeSet>,
    ) -> Reply {
        let size =
            crate::find::whole(body.get("batchSize")).filter(|_| body.get("batchSize").is_some());
        let size = size.unwrap_or(2) as usize;
        let mut writer = Reply::writer();
        writer.begin_document("cursor").begin_array(name);
        let mut places = Vec::new();
        for document in rest.drain(..size.min(rest.len())) {
            writer.push(&document);
            places.push(key(document.as_doc()).to_be_bytes());
        }
        let place = places.last();
        let id = match rest.is_empty() {
            true => 0,
            false => {
                let id = fastrand::i64(1..);
                self.cursors.lock().insert(id, rest);
                id
            }
        };
        writer.end();
        let binary = |bytes| ValueRef::Binary { subtype: 0, bytes };
        if id != 0 || not_owned.is_some() {
            writer.begin_document("scan");
            if let Some(place) = place {
                writer.append("place", binary(place));
            }
            if let Some(home) = &*self.home.lock() {
                let bytes = home.uuid.as_slice();
                writer.append("uuid", ValueRef::Binary { subtype: 4, bytes });
            }
            writer.begin_array("places");
            for place in &places {
                writer.push(binary(place));
            }
            writer.end().begin_array("notOwned");
            for range in not_owned.iter().flat_map(|ranges| ranges.iter()) {
                writer.push(binary(range.min.as_bytes()));
                writer.push(binary(range.max.as_bytes()));
            }
            writer.end().begin_document("version");
            self.version().append_to(&mut writer);
            writer.end().end();
        }
        writer.append("id", id).append("ns", "test.birds").end();
        if let Some(time) = *self.time.lock() {
            writer.append("operationTime", time);
        }
        writer.append("ok", 1.0);
        Reply::from_writer(writer)
    }
}

/// The shard key `{k: key}`; the ends of `i32` stand for those of all keys.
pub(super) fn encoded(key: i32) -> Vec<u8> {
    let pattern = DocWriter::new().with("k", 1).finish();
    let pattern = ShardKeyPattern::parse(pattern.as_doc()).expect("a pattern");
    match key {
        i32::MIN => pattern.least(),
        i32::MAX => KeyBound::after_all().as_bytes().to_vec(),
        key => {
            let document = DocWriter::new().with("k", key).finish();
            pattern.key_of(document.as_doc()).expect("a key")
        }
    }
}

impl Endpoint for FakeShard {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        let mut shown = request.body().to_owned();
        if let Some(sequence) = request.sequences().first() {
            let mut writer = DocWriter::new();
            for element in request.body().iter() {
                writer.append_element(&element);
            }
            writer.begin_array(sequence.name());
            for document in sequence {
                writer.push(document);
            }
            writer.end();
            shown = writer.finish();
        }
        let fault = match request.name() {
            "killCursors" => None,
            _ => self.faults.lock().pop_front(),
        };
        if !matches!(fault, Some(Fault::NotSent)) {
            self.asked.lock().push(shown);
        }
        if let Some(Fault::Silence) = fault {
            let waiting = GivenUp(self.given_up.clone());
            return Box::pin(async move {
                let _waiting = waiting;
                std::future::pending().await
            });
        }
        let answered = match fault {
            Some(Fault::NotSent) => Err(CallError::NotSent("away".to_owned())),
            Some(Fault::ReplyLost) => {
                self.answer(&request, None);
                Err(CallError::OutcomeUnknown("lost".to_owned()))
            }
            Some(Fault::StaleFrom(at)) => Ok(self.answer(&request, Some(at))),
            Some(Fault::AnotherLife) => {
                let mut wanted = version(9);
                wanted.incarnation.epoch = ObjectId([9; 12]);
                Ok(Reply::error(&self.stale_error(wanted)))
            }
            Some(Fault::Deposed) => {
                self.answer(&request, None);
                let deposed = Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE;
                Ok(Reply::error(&Error::new(deposed, "deposed")))
            }
            Some(Fault::Forgotten) => {
                let mut writer = Reply::writer().with("n", 0);
                writer.begin_array("writeErrors").push_document();
                writer.append("index", 0);
                writer.append("code", Code::TRANSACTION_TOO_OLD.0);
                writer.append("errmsg", "forgotten").end().end();
                let later = ClusterTime::new(100, 1);
                later.append_to(&mut writer);
                Ok(Reply::from_writer(writer.with("ok", 1.0)))
            }
            Some(Fault::Says(error)) => Ok(Reply::error(&error)),
            Some(Fault::None | Fault::Silence) | None => Ok(self.answer(&request, None)),
        };
        Box::pin(async move { answered })
    }

    fn works_elsewhere(&self) -> bool {
        self.is_elsewhere.load(Ordering::SeqCst)
    }
}

fn router(
    config: &Arc<FakeConfig>,
    shards: &HashMap<&'static str, Arc<FakeShard>>,
    scratch: &Path,
    scan_patience: Duration,
) -> RouterHandler {
    let reached = shards.clone();
    let connect: Connect = Arc::new(move |id, _| reached[id].clone());
    let mut options = RouterOptions::new("router:1");
    options.parameters.group_memory_bytes = MEMORY_BYTES_MAX;
    options.scratch = scratch.to_owned();
    options.scan_patience = scan_patience;
    RouterHandler(Router::new(config.clone(), connect, options))
}

pub(super) struct World {
    pub(super) config: Arc<FakeConfig>,
    pub(super) shards: HashMap<&'static str, Arc<FakeShard>>,
    pub(super) handler: RouterHandler,
    /// What the router cannot hold in memory is there.
    pub(super) scratch: tempfile::TempDir,
    pub(super) connection: Arc<wire::ConnectionInfo>,
}

impl World {
    /// Keys below 10 on a, below 20 on b, others on c.
    pub(super) fn new() -> World {
        let chunks = [(None, "a", 1), (Some(10), "b", 2), (Some(20), "c", 3)];
        let owned = [(i32::MIN, 10), (10, 20), (20, i32::MAX)];
        let shards: HashMap<&'static str, Arc<FakeShard>> = chunks
            .iter()
            .zip(owned)
            .map(|((_, name, major), owned)| {
                let shard = FakeShard {
                    name,
                    major: Mutex::new(*major),
                    documents: Mutex::default(),
                    owned: Mutex::new(vec![owned]),
                    cursors: Mutex::default(),
                    faults: Mutex::default(),
                    loses_cursors_after: Mutex::default(),
                    asked: Mutex::default(),
                    time: Mutex::default(),
                    given_up: Arc::default(),
                    is_elsewhere: AtomicBool::new(false),
                    is_refined: AtomicBool::new(false),
                    home: Mutex::default(),
                    answering: Mutex::default(),
                };
                (*name, Arc::new(shard))
            })
            .collect();
        let chunks = chunks.map(|(min, shard, major)| Chunk {
            min,
            shard,
            major,
            owners: vec![(major, shard)],
        });
        Self::with_chunks(chunks.to_vec(), shards)
    }

    /// Each of these keys is a chunk of its own, a's and b's in turn, and has a document; c has nothing.
    pub(super) fn striped(keys: i32) -> World {
        let owner = |key: i32| if key % 2 == 0 { "a" } else { "b" };
        let chunks = (0..keys).map(|key| Chunk {
            min: (key > 0).then_some(key),
            shard: owner(key),
            major: 1,
            owners: vec![(1, owner(key))],
        });
        let shards = ["a", "b", "c"].map(|name| {
            let own = (0..keys).filter(|key| owner(*key) == name && name != "c");
            let stripe = |key: i32| {
                let min = if key == 0 { i32::MIN } else { key };
                let max = if key + 1 == keys { i32::MAX } else { key + 1 };
                (min, max)
            };
            let shard = FakeShard {
                name,
                major: Mutex::new(u32::from(name != "c")),
                documents: Mutex::new(own.clone().map(bird).collect()),
                owned: Mutex::new(own.map(stripe).collect()),
                cursors: Mutex::default(),
                faults: Mutex::default(),
                loses_cursors_after: Mutex::default(),
                asked: Mutex::default(),
                time: Mutex::default(),
                given_up: Arc::default(),
                is_elsewhere: AtomicBool::new(false),
                is_refined: AtomicBool::new(false),
                home: Mutex::default(),
                answering: Mutex::default(),
            };
            (name, Arc::new(shard))
        });
        Self::with_chunks(chunks.collect(), shards.into_iter().collect())
    }

    /// The chunk of one key goes to another shard, and cursors there end.
    pub(super) fn move_stripe(&self, key: i32, to: &'static str, major: u32) {
        let mut chunks = self.config.chunks.lock();
        let from = std::mem::replace(&mut chunks[key as usize].shard, to);
        chunks[key as usize].owners.insert(0, (major, to));
        chunks[key as usize].major = major;
        if let Some(left) = chunks.iter_mut().find(|chunk| chunk.shard == from) {
            left.major = major;
        }
        let (donor, recipient) = (&self.shards[from], &self.shards[to]);
        let is_it = |doc: &mut DocBuf| self::key(doc.as_doc()) == key;
        let documents = donor
            .documents
            .lock()
            .extract_if(.., is_it)
            .collect::<Vec<_>>();
        recipient.documents.lock().extend(documents);
        let is_it = |range: &mut (i32, i32)| range.0 == key;
        let ranges = donor.owned.lock().extract_if(.., is_it).collect::<Vec<_>>();
        recipient.owned.lock().extend(ranges);
        for shard in [donor, recipient] {
            *shard.major.lock() = major;
            shard.cursors.lock().clear();
        }
    }

    fn with_chunks(chunks: Vec<Chunk>, shards: HashMap<&'static str, Arc<FakeShard>>) -> World {
        let config = Arc::new(FakeConfig {
            chunks: Mutex::new(chunks),
            questions: AtomicUsize::new(0),
            gone: Mutex::default(),
            gate: Mutex::default(),
            fails: AtomicUsize::new(0),
            ddl: Mutex::default(),
            is_refined: AtomicBool::new(false),
            is_another: AtomicBool::new(false),
            database: Mutex::new(("a", at_home::version(1))),
        });
        let scratch = tempfile::tempdir().expect("a directory");
        World {
            handler: router(&config, &shards, scratch.path(), crate::scan::PATIENCE),
            config,
            shards,
            scratch,
            connection: Arc::new(wire::ConnectionInfo::in_process(1)),
        }
    }

    /// Another router takes over, which knows nothing.
    /// A router whose scans wait so long for a range.
    pub(super) fn restart_router_with(&mut self, patience: Duration) {
        self.handler = router(&self.config, &self.shards, self.scratch.path(), patience);
    }

    pub(super) fn restart_router(&mut self) {
        self.restart_router_with(crate::scan::PATIENCE);
    }

    /// The range of b's keys goes to c.
    pub(super) fn move_b_to_c(&self) {
        self.move_b("b", "c", 4);
    }

    /// The range that is b's in the beginning goes from one shard to another; cursors there end.
    pub(super) fn move_b(&self, from: &'static str, to: &'static str, major: u32) {
        let mut chunks = self.config.chunks.lock();
        chunks[1].shard = to;
        chunks[1].major = major;
        chunks[1].owners.insert(0, (major, to));
        *self.shards[to].major.lock() = major;
        // What stays with the donor gets a new version, too.
        let left = chunks.iter_mut().find(|chunk| chunk.shard == from);
        *self.shards[from].major.lock() = match left {
            Some(chunk) => {
                chunk.major = major;
                major
            }
            None => 0,
        };
        let in_range = |doc: &mut DocBuf| (10..20).contains(&key(doc.as_doc()));
        let moved: Vec<DocBuf> = (self.shards[from].documents.lock())
            .extract_if(.., in_range)
            .collect();
        self.shards[to].documents.lock().extend(moved);
        self.shards[from]
            .owned
            .lock()
            .retain(|range| *range != (10, 20));
        self.shards[to].owned.lock().push((10, 20));
        for shard in [from, to] {
            self.shards[shard].cursors.lock().clear();
        }
    }

    /// Nothing moves, but b has another version.
    pub(super) fn advance_b(&self, major: u32) {
        self.config.chunks.lock()[1].major = major;
        *self.shards["b"].major.lock() = major;
    }

    /// What c had goes to b, and c leaves the cluster.
    pub(super) async fn remove_c(&self) {
        {
            let last = &mut self.config.chunks.lock()[2];
            (last.shard, last.major) = ("b", 4);
            last.owners.insert(0, (4, "b"));
        }
        *self.shards["b"].major.lock() = 4;
        let moved: Vec<DocBuf> = std::mem::take(&mut *self.shards["c"].documents.lock());
        self.shards["b"].documents.lock().extend(moved);
        self.shards["b"].owned.lock().push((20, i32::MAX));
        self.shards["c"].owned.lock().clear();
        self.forget_c().await;
    }

    /// It is not listed any more, and the router has heard of that.
    pub(super) async fn forget_c(&self) {
        self.config.gone.lock().push("c");
        let list = DocWriter::new().with("listShards", 1).with("$db", "admin");
        self.run(list.finish()).await;
    }

    /// Sessions that clients have ended, and the cluster has not heard of yet.
    pub(super) fn ended_sessions(&self) -> usize {
        self.handler.0.sessions.ended()
    }

    /// A shard loses a cursor when it is asked for more so often, once.
    pub(super) fn lose_cursors_after(&self, shard: &str, requests: usize) {
        *self.shards[shard].loses_cursors_after.lock() = Some(requests);
    }

    /// What is set aside for batches that were asked for ahead.
    pub(super) fn bytes_ahead(&self) -> usize {
        self.handler.0.scans.bytes_ahead.load(Ordering::SeqCst)
    }

    /// The collection is gone: nobody knows it, and all that it had.
    pub(super) fn drop_collection(&self) {
        self.config.chunks.lock().clear();
        for shard in self.shards.values() {
            shard.documents.lock().clear();
            shard.owned.lock().clear();
            shard.cursors.lock().clear();
            *shard.major.lock() = 0;
        }
    }

    pub(super) async fn run(&self, body: DocBuf) -> DocBuf {
        self.run_with(body, vec![]).await
    }

    pub(super) async fn run_with(&self, body: DocBuf, sequences: Vec<Sequence>) -> DocBuf {
        let request = Request::from_parts(body, sequences).expect("a request");
        self.handler
            .handle(&self.connection, request)
            .await
            .into_document()
    }

    pub(super) async fn insert(
        &self,
        keys: &[i32],
        extra: impl Fn(DocWriter) -> DocWriter,
    ) -> DocBuf {
        let documents: Vec<DocBuf> = keys.iter().map(|key| bird(*key)).collect();
        let body = extra(DocWriter::new().with("insert", "birds")).with("$db", "test");
        let sequence = Sequence::new("documents", documents.iter().map(DocBuf::as_doc));
        self.run_with(body.finish(), vec![sequence]).await
    }

    pub(super) fn keys_on(&self, shard: &str) -> Vec<i32> {
        let documents = self.shards[shard].documents.lock();
        documents.iter().map(|doc| key(doc.as_doc())).collect()
    }

    /// Commands that a shard was asked, by name, and forgets them.
    pub(super) fn asked(&self, shard: &str) -> Vec<String> {
        let names = self.asked_names(shard);
        self.shards[shard].asked.lock().clear();
        names
    }

    pub(super) fn asked_names(&self, shard: &str) -> Vec<String> {
        let asked = self.shards[shard].asked.lock();
        let name = |doc: &DocBuf| doc.as_doc().first().expect("a command").key().to_owned();
        asked.iter().map(name).collect()
    }
}

pub(super) fn bird(key: i32) -> DocBuf {
    DocWriter::new()
        .with("_id", key * 100)
        .with("k", key)
        .with("name", format!("bird {key}").as_str())
        .with("rank", -key)
        .finish()
}

pub(super) fn key(doc: Doc<'_>) -> i32 {
    match doc.get("k") {
        Some(ValueRef::Int32(key)) => key,
        other => panic!("k is {other:?}"),
    }
}
