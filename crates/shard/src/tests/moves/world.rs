//! Shards that can reach each other, and a config server that decides about moves.

use crate::testing::TestShard;
use crate::{Connect, ShardHandler};
use differential::value::{Fields, Value, get};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::time::ClusterTime;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use wire::{BoxFuture, CallError, Endpoint, InProcess, Reply, Request};

pub(super) const UUID: &str = "UUID(\"00000000-0000-4000-8000-000000000001\")";
const EPOCH: &str = "ObjectId(\"00000000000000000000000a\")";
/// How long anything may take that a test waits for.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The version of a database that moves, as its commit tells it: `test` after one move.
const MOVED_DATABASE: &str =
    "{e: ObjectId(\"000000000000400080000000\"), t: Timestamp(3, 0), v: Timestamp(2, 0)}";

/// The version that a move led to, and the time from which on it counts.
type Commit = (String, ClusterTime);

/// Something that happens before a question is answered.
struct Interlude {
    question: &'static str,
    happens: BoxFuture<'static, ()>,
}

/// Something that happens again and again.
pub(super) type Happens = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Decides moves by their ids; each outcome once.
pub(super) struct Authority {
    outcomes: Mutex<BTreeMap<Vec<u8>, Option<Commit>>>,
    /// How far behind a donor's block the time of a decision is.
    pub(super) later: AtomicU64,
    /// The time that the next decisions count from, whatever donors say of their blocks.
    pub(super) counts_from: Mutex<Option<ClusterTime>>,
    major: AtomicU32,
    /// The version of the collection's catalog, and whether it is about to change.
    pub(super) catalog: AtomicU64,
    pub(super) changes: AtomicBool,
    /// Commits that were put off because the catalog is another.
    pub(super) put_off: AtomicU32,
    /// What happens before the next question of a kind is answered, in this order.
    interludes: Mutex<VecDeque<Interlude>>,
    /// What happens before each question of a kind is answered.
    pub(super) always: Mutex<Option<(&'static str, Happens)>>,
    /// Commits that are not answered, although they are decided.
    pub(super) answers_lost: AtomicU32,
}

impl Authority {
    fn answer(&self, body: Doc<'_>) -> Option<DocBuf> {
        let command = body.first()?.key().to_owned();
        let bytes = |name: &str| match body.get(name) {
            Some(ValueRef::Binary { bytes, .. }) => Some(bytes.to_vec()),
            _ => None,
        };
        let outcome = match command.as_str() {
            "_configsvrSettle" => {
                let mut outcomes = self.outcomes.lock();
                let outcome = outcomes.entry(bytes("operation")?).or_insert(None);
                outcome.clone()
            }
            "_configsvrOutcome" => {
                let outcomes = self.outcomes.lock();
                let knowing = bytes("knowing");
                let is_known = |knowing: &Vec<u8>| outcomes.contains_key(knowing);
                assert!(knowing.as_ref().is_none_or(is_known), "it was decided");
                match outcomes.get(&bytes("operation")?) {
                    Some(outcome) => outcome.clone(),
                    None => return Some(document("{outcome: 'undecided', ok: 1.0}")),
                }
            }
            "_configsvrCommitMove" | "_configsvrCommitPrimary" => {
                let is_database = command == "_configsvrCommitPrimary";
                let catalog = body.get("catalogVersion");
                let mut outcomes = self.outcomes.lock();
                let id = bytes("id")?;
                let is_known = outcomes.contains_key(&id);
                let now = self.catalog.load(Ordering::SeqCst) as i64;
                let stands = !self.changes.load(Ordering::SeqCst);
                let is_named = stands && catalog == Some(ValueRef::Int64(now));
                if !is_known && !is_database && !is_named {
                    self.put_off.fetch_add(1, Ordering::SeqCst);
                    let put_off = DocWriter::new()
                        .with("outcome", "catalogChanged")
                        .with("catalogVersion", now)
                        .with("ok", 1.0);
                    return Some(put_off.finish());
                }
                let blocked = match body.get("blockedAt") {
                    Some(ValueRef::Timestamp(time)) => {
                        ClusterTime::new(time.seconds, time.increment)
                    }
                    _ => return None,
                };
                let later = self.later.load(Ordering::SeqCst);
                let behind = ClusterTime::from_u64(blocked.to_u64() + later);
                let since = self.counts_from.lock().unwrap_or(behind);
                let outcome = outcomes.entry(id).or_insert_with(|| {
                    let version = match is_database {
                        true => MOVED_DATABASE.to_owned(),
                        false => version(self.major.fetch_add(1, Ordering::SeqCst) + 1, 1),
                    };
                    Some((version, since))
                });
                outcome.clone()
            }
            "_configsvrCatalogVersion" => {
                let told = DocWriter::new()
                    .with("catalogVersion", self.catalog.load(Ordering::SeqCst) as i64)
                    .with("changes", self.changes.load(Ordering::SeqCst))
                    .with("ok", 1.0);
                return Some(told.finish());
            }
            _ => {
                let refused = DocWriter::new().with("ok", 0.0).with("code", 59);
                return Some(refused.with("errmsg", "no such command").finish());
            }
        };
        let reply = match outcome {
            None => "{outcome: 'aborted', ok: 1.0}".to_owned(),
            Some((version, since)) => format!(
                "{{outcome: 'committed', version: {version}, validAfter: Timestamp({}, {}), ok: 1.0}}",
                since.seconds(),
                since.increment()
            ),
        };
        Some(document(&reply))
    }

    /// Decides that a move is aborted, whatever comes.
    pub(super) fn abort(&self, id: &[u8]) {
        self.outcomes.lock().insert(id.to_vec(), None);
    }

    /// Something happens before the next question of a kind is answered, behind what was said before.
    pub(super) fn before(&self, question: &'static str, happens: BoxFuture<'static, ()>) {
        let interlude = Interlude { question, happens };
        self.interludes.lock().push_back(interlude);
    }

    async fn interlude(&self, question: &str) {
        let due = {
            let mut interludes = self.interludes.lock();
            interludes.pop_front_if(|next| next.question == question)
        };
        if let Some(due) = due {
            due.happens.await;
        }
        let happens = match &*self.always.lock() {
            Some((always, happens)) if *always == question => Some(happens()),
            Some(_) | None => None,
        };
        if let Some(happens) = happens {
            happens.await;
        }
    }

    pub(super) fn is_decided(&self) -> usize {
        self.outcomes.lock().len()
    }

    /// The times from which on commits count.
    pub(super) fn times(&self) -> Vec<ClusterTime> {
        let outcomes = self.outcomes.lock();
        outcomes.values().flatten().map(|(_, time)| *time).collect()
    }
}

impl Endpoint for Authority {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        Box::pin(async move {
            self.interlude(request.name()).await;
            let answer = self.answer(request.body()).expect("a well-formed question");
            let lost = self
                .answers_lost
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(1)
                });
            match lost {
                Ok(_) => Err(CallError::OutcomeUnknown("lost".to_owned())),
                Err(_) => Ok(Reply::from(answer)),
            }
        })
    }
}

pub(super) fn version(major: u32, minor: u32) -> String {
    format!("{{e: {EPOCH}, t: Timestamp(5, 0), v: Timestamp({major}, {minor})}}")
}

pub(super) fn document(text: &str) -> DocBuf {
    let Ok(Value::Document(fields)) = differential::notation::parse(text) else {
        panic!("{text} is not a document");
    };
    DocBuf::from_bytes(differential::value::encode(&fields)).expect("encoded BSON is valid")
}

/// An endpoint that can be cut off.
type Doors = Arc<Mutex<HashMap<String, Arc<dyn Endpoint>>>>;

/// Changes answers on their way.
pub(super) type Tamper = Box<dyn Fn(&str, DocBuf) -> DocBuf + Send + Sync>;

/// Whether a request is lost on its way.
pub(super) type Loses = Box<dyn Fn(Doc<'_>) -> bool + Send + Sync>;

/// What happens to messages between shards, and to the config server.
#[derive(Default)]
pub(super) struct Network {
    /// Messages that were answered. Of those that are sent again and again only the first two
    /// count: how often a donor asks for progress depends on how fast the machine is.
    answered: AtomicU32,
    by_command: Mutex<HashMap<String, u32>>,
    /// Behind so many answers nothing comes through any more; zero: everything does.
    pub(super) cut_after: AtomicU32,
    pub(super) was_cut: tokio::sync::Notify,
    pub(super) tamper: Mutex<Option<Tamper>>,
    /// Requests that never arrive.
    pub(super) loses: Mutex<Option<Loses>>,
    /// Requests that nobody answers, nor says that he does not.
    pub(super) silences: Mutex<Option<Loses>>,
}

impl Network {
    fn is_cut(&self) -> bool {
        let limit = self.cut_after.load(Ordering::SeqCst);
        limit > 0 && self.answered.load(Ordering::SeqCst) >= limit
    }

    /// Lets an answer through, unless it is the one that is lost.
    fn pass(&self, command: &str, reply: Reply) -> Result<Reply, CallError> {
        let is_first = {
            let mut answered = self.by_command.lock();
            let count = answered.entry(command.to_owned()).or_insert(0);
            *count += 1;
            *count <= 2
        };
        if is_first {
            self.answered.fetch_add(1, Ordering::SeqCst);
        }
        if self.is_cut() {
            self.was_cut.notify_one();
            return Err(CallError::OutcomeUnknown("cut".to_owned()));
        }
        Ok(match &*self.tamper.lock() {
            Some(tamper) => Reply::from(tamper(command, reply.into_document())),
            None => reply,
        })
    }

    pub(super) fn answered(&self) -> u32 {
        self.answered.load(Ordering::SeqCst)
    }

    pub(super) fn cut_behind(&self, answers: u32) {
        self.answered.store(0, Ordering::SeqCst);
        self.by_command.lock().clear();
        self.cut_after.store(answers, Ordering::SeqCst);
    }

    pub(super) fn mend(&self) {
        self.cut_after.store(0, Ordering::SeqCst);
    }
}

struct Door {
    name: String,
    doors: Doors,
    network: Arc<Network>,
}

impl Endpoint for Door {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        let endpoint = self.doors.lock().get(&self.name).cloned();
        Box::pin(async move {
            let endpoint = endpoint.filter(|_| !self.network.is_cut());
            let Some(endpoint) = endpoint else {
                return Err(CallError::NotSent("nobody is there".to_owned()));
            };
            let is_lost = |loses: &Loses| loses(request.body());
            if self.network.loses.lock().as_ref().is_some_and(is_lost) {
                return Err(CallError::NotSent("lost".to_owned()));
            }
            if self.network.silences.lock().as_ref().is_some_and(is_lost) {
                std::future::pending::<()>().await;
            }
            let command = request.name().to_owned();
            let reply = endpoint.call(request).await?;
            self.network.pass(&command, reply)
        })
    }
}

pub(super) struct World {
    pub(super) shards: Vec<Option<TestShard>>,
    background: Vec<Option<JoinHandle<()>>>,
    doors: Doors,
    pub(super) authority: Arc<Authority>,
    pub(super) network: Arc<Network>,
    moves: AtomicU32,
    /// The collection's shard key.
    key: &'static str,
}

impl World {
    /// Two shards and a collection `test.c`, all of it on the first.
    pub(super) async fn new(key: &'static str) -> Self {
        let mut world = Self::empty(key);
        for number in 0..2 {
            let shard = TestShard::open().await;
            become_shard(number, &shard).await;
            world.shards.push(None);
            world.background.push(None);
            world.enter(number, shard);
        }
        world
    }

    /// The same with shards that run.
    pub(super) async fn of(key: &'static str, shards: [(TestShard, JoinHandle<()>); 2]) -> Self {
        let mut world = Self::empty(key);
        for (number, (shard, background)) in shards.into_iter().enumerate() {
            become_shard(number, &shard).await;
            world.join(number, &shard);
            world.shards.push(Some(shard));
            world.background.push(Some(background));
        }
        world
    }

    fn empty(key: &'static str) -> Self {
        let world = Self {
            shards: Vec::new(),
            background: Vec::new(),
            doors: Doors::default(),
            authority: Arc::new(Authority {
                outcomes: Mutex::default(),
                later: AtomicU64::new(1),
                counts_from: Mutex::default(),
                major: AtomicU32::new(1),
                catalog: AtomicU64::new(0),
                changes: AtomicBool::new(false),
                put_off: AtomicU32::new(0),
                interludes: Mutex::default(),
                always: Mutex::default(),
                answers_lost: AtomicU32::new(0),
            }),
            network: Arc::default(),
            moves: AtomicU32::new(0),
            key,
        };
        let authority: Arc<dyn Endpoint> = world.authority.clone();
        world.doors.lock().insert("config".to_owned(), authority);
        world
    }

    pub(super) fn enter(&mut self, number: usize, shard: TestShard) {
        self.join(number, &shard);
        self.background[number] = Some(shard.shard.spawn_background());
        self.shards[number] = Some(shard);
    }

    /// Shards find it from now on, and it finds them.
    fn join(&self, number: usize, shard: &TestShard) {
        let (doors, network) = (self.doors.clone(), self.network.clone());
        let connect: Connect = Arc::new(move |name: &str, _: &str| {
            Arc::new(Door {
                name: name.to_owned(),
                doors: doors.clone(),
                network: network.clone(),
            })
        });
        let config = connect("config", "");
        shard.shard.join_cluster(config, connect);
        let handler = Arc::new(ShardHandler(shard.shard.clone()));
        let endpoint: Arc<dyn Endpoint> = Arc::new(InProcess::new(handler));
        self.doors.lock().insert(format!("shard{number}"), endpoint);
    }

    /// Makes the collection on the first shard, which owns all of it.
    pub(super) async fn create(&self, indexes: &str) {
        self.create_as(UUID, indexes).await;
    }

    /// The same for a collection that may be there, under this UUID.
    pub(super) async fn create_as(&self, uuid: &str, indexes: &str) {
        let bound = |value: &str| {
            self.key
                .replace("\"hashed\"", "1")
                .replace(": 1", &format!(": {value}"))
        };
        let create = format!(
            "admin {{_terndbCreateSharded: 1, ns: 'test.c', uuid: {uuid}, key: {}, unique: false, options: {{}}, indexes: [{indexes}], placement: {v}, collectionVersion: {v}, owned: [{{min: {}, max: {}}}]}} => {{}}",
            self.key,
            bound("MinKey"),
            bound("MaxKey"),
            v = version(1, 0),
        );
        self.on(0).check(&create).await;
    }

    pub(super) fn on(&self, number: usize) -> &TestShard {
        self.shards[number].as_ref().expect("the shard is there")
    }

    /// Stops a shard and starts it again: its next primary.
    pub(super) async fn restart(&mut self, number: usize) {
        let shard = self.reopen(number).await;
        self.enter(number, shard);
    }

    /// The first half of that: nothing of what it had begun goes on before it is entered again.
    pub(super) async fn reopen(&mut self, number: usize) -> TestShard {
        self.doors.lock().remove(&format!("shard{number}"));
        let shard = self.shards[number].take().expect("the shard is there");
        shard.shard.begin_shutdown();
        if let Some(background) = self.background[number].take() {
            background.await.expect("background work ends");
        }
        let deadline = Instant::now() + PATIENCE;
        while Arc::strong_count(&shard.shard) > 1 {
            assert!(Instant::now() < deadline, "somebody holds the shard");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        shard.reopen().await
    }

    /// The command that moves a range.
    pub(super) fn command(&self, from: usize, to: usize, min: &str, max: &str) -> String {
        let number = self.moves.fetch_add(1, Ordering::SeqCst);
        self.command_of(number, from, to, min, max)
    }

    pub(super) fn command_of(
        &self,
        number: u32,
        _from: usize,
        to: usize,
        min: &str,
        max: &str,
    ) -> String {
        let pattern = document(self.key);
        let pattern = model::shard_key::ShardKeyPattern::parse(pattern.as_doc()).expect("a key");
        let (low, high) = (document(min), document(max));
        let range = pattern
            .range_of(low.as_doc(), high.as_doc())
            .expect("bounds");
        let hex =
            |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
        format!(
            "{{_terndbMoveRange: 1, id: UUID(\"00000000-0000-4000-8000-1{number:011x}\"), ns: 'test.c', uuid: {UUID}, key: {}, range: {{min: Binary(0, \"{}\"), max: Binary(0, \"{}\")}}, bounds: {{min: {min}, max: {max}}}, to: 'shard{to}', toHost: 'shard{to}', catalogVersion: {}L, waitForDelete: false, forceJumbo: false, secondaryThrottle: false}}",
            self.key,
            hex(range.min.as_bytes()),
            hex(range.max.as_bytes()),
            self.authority.catalog.load(Ordering::SeqCst),
        )
    }

    /// Sends a command to a shard whenever this is awaited, if the shard is there then.
    pub(super) fn later(&self, number: usize, command: &str) -> BoxFuture<'static, ()> {
        let doors = self.doors.clone();
        let body = document(command);
        Box::pin(async move {
            let endpoint = doors.lock().get(&format!("shard{number}")).cloned();
            let Some(endpoint) = endpoint else { return };
            let mut writer = DocWriter::new();
            for element in body.iter() {
                writer.append_element(&element);
            }
            let body = writer.with("$db", "test").finish();
            let request = Request::from_parts(body, Vec::new()).expect("a command");
            let _ = endpoint.call(request).await;
        })
    }

    /// An operation on the indexes of the collection, as the config server carries it out: on the first
    /// shard, which owns all of it. ⚑ To its end, also if whoever waits for it goes away: a version that is about to
    /// change for ever keeps every move from its commit.
    pub(super) fn changes_indexes(&self, command: &str) -> BoxFuture<'static, ()> {
        let authority = self.authority.clone();
        let told = self.later(0, command);
        Box::pin(async move {
            let changed = tokio::spawn(async move {
                authority.changes.store(true, Ordering::SeqCst);
                authority.catalog.fetch_add(1, Ordering::SeqCst);
                told.await;
                authority.catalog.fetch_add(1, Ordering::SeqCst);
                authority.changes.store(false, Ordering::SeqCst);
            });
            changed.await.expect("indexes change");
        })
    }

    /// The specifications of all indexes on a shard, in no order.
    pub(super) async fn indexes(&self, number: usize) -> Vec<String> {
        let (_, listed) = self.on(number).batch("{listIndexes: 'c'}").await;
        let mut all: Vec<String> = listed.iter().map(differential::notation::print).collect();
        all.sort();
        all
    }

    /// Moves a range; what the donor answers.
    pub(super) async fn moves(&self, from: usize, to: usize, min: &str, max: &str) -> Fields {
        let command = self.command(from, to, min, max);
        self.on(from).run("admin", &command).await
    }

    /// All documents that a shard shows, by `_id`.
    pub(super) async fn shown(&self, number: usize) -> Vec<Value> {
        let (id, mut documents) = self
            .on(number)
            .batch("{find: 'c', sort: {_id: 1}, batchSize: 100000}")
            .await;
        documents.extend(self.on(number).rest(id, 100_000).await);
        documents
    }

    /// How many documents a shard shows at a time.
    pub(super) async fn count_at(&self, number: usize, time: ClusterTime) -> usize {
        let command = format!(
            "{{find: 'c', batchSize: 100000, readConcern: {{level: 'snapshot', atClusterTime: Timestamp({}, {})}}}}",
            time.seconds(),
            time.increment()
        );
        let (_, documents) = self.on(number).batch(&command).await;
        documents.len()
    }

    /// ⚑ At the times around each commit, and at what follows, every document is shown by one
    /// shard: what the first two show.
    pub(super) async fn check_times(&self, documents: usize) -> Vec<(usize, usize)> {
        let mut shown = Vec::new();
        for time in self.authority.times() {
            for time in [time.to_u64() - 1, time.to_u64(), time.to_u64() + 1] {
                let time = ClusterTime::from_u64(time);
                let counts = (self.count_at(0, time).await, self.count_at(1, time).await);
                assert_eq!(counts.0 + counts.1, documents, "{counts:?} at {time:?}");
                shown.push(counts);
            }
        }
        shown
    }

    /// ⚑ The same by what is known of owners: after a restart earlier times cannot be read.
    pub(super) fn check_owners(&self, keys: &[i32]) {
        let times = self.authority.times().into_iter();
        for time in times.flat_map(|time| [time.to_u64() - 1, time.to_u64(), time.to_u64() + 1]) {
            let time = ClusterTime::from_u64(time);
            for x in keys {
                let document = document(&format!("{{x: {x}}}"));
                let owners = (self.shards.iter().flatten()).filter(|shard| {
                    let name = model::Namespace::new("test", "c").expect("a name");
                    let collection = shard.shard.catalog.get(&name).expect("it is there");
                    let ownership = collection.ownership.as_ref().expect("it is sharded");
                    let then = ownership.at(time).expect("it is known");
                    then.owns(document.as_doc())
                });
                assert_eq!(owners.count(), 1, "owners of {x} at {time:?}");
            }
        }
    }

    pub(super) async fn close(mut self) {
        for number in 0..self.shards.len() {
            self.doors.lock().remove(&format!("shard{number}"));
        }
        for number in 0..self.shards.len() {
            if let Some(shard) = &self.shards[number] {
                shard.shard.begin_shutdown();
            }
            if let Some(background) = self.background[number].take() {
                background.await.expect("background work ends");
            }
        }
    }
}

pub(super) async fn become_shard(number: usize, shard: &TestShard) {
    shard
        .check(&format!(
            "admin {{_terndbBecomeShard: 1, shard: 'shard{number}', clusterId: ObjectId(\"0000000000000000000000ff\")}} => {{}}
             admin {{_terndbSetDatabase: 1, db: 'test', version: {{uuid: UUID(\"00000000-0000-4000-8000-0000000000db\"), timestamp: Timestamp(3, 0), lastMod: 1}}, primary: {}}} => {{}}",
            number == 0
        ))
        .await;
}

pub(super) fn outcome(reply: &Fields) -> &str {
    match get(reply, "outcome") {
        Some(Value::String(outcome)) => outcome,
        _ => panic!(
            "no outcome: {}",
            differential::notation::print_fields(reply)
        ),
    }
}
