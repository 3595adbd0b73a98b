//! What tests of this crate stand on: a cluster in one process, asked with scripts.
//!
//! A script has one command in each line and behind `=>` what is expected of its reply: fields that it
//! must have, or the code of an error. `admin {..}` names the database of a command that a client would
//! send through a router; `config! {..}` goes to the config server as it is, `shard0! db {..}` to a shard.
//!
//! The document servers are real ones. Everything that the config server says to them and to shards passes a
//! [`Wire`], which can be cut after so many messages: that is how a primary is lost between two steps.

use crate::fake_donor::FakeDonor;
use crate::rules::Rule;
use crate::{ConfigHandler, ConfigServer, Connect};
use differential::notation::{parse, print, print_fields};
use differential::value::{Fields, Value, decode, encode, get};
use model::bson::{Doc, DocBuf};
use parking_lot::Mutex;
use shard::{LogWindow, ReplicaSetOptions, Shard, ShardOptions};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use wire::{BoxFuture, CallError, Endpoint, InProcess, Reply, Request};

/// How a message is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loss {
    /// Nothing arrives.
    Request,
    /// The last one arrives, and its answer does not.
    Reply,
}

/// Whether a message is the one.
pub(crate) type IsMeant = Box<dyn Fn(Doc<'_>) -> bool + Send + Sync>;

/// What the config server's messages pass.
pub(crate) struct Wire {
    state: Mutex<WireState>,
    cut: Notify,
    /// A message that is to wait on its way, and for what.
    holding: Mutex<Option<(IsMeant, Arc<Semaphore>)>>,
}

struct WireState {
    /// Messages that still pass; `None` if all do.
    left: Option<i64>,
    loss: Loss,
    /// Shards say no to what the config server tells them.
    refuses: bool,
    /// What overtakes the next message of a name to a shard.
    overtaking: Option<Overtaking>,
}

struct Overtaking {
    shard: String,
    message: &'static str,
    command: Request,
    succeeds: bool,
}

/// What happens to one message.
enum Fate {
    Passes,
    ArrivesUnanswered,
    Lost,
}

impl Wire {
    pub(crate) fn whole() -> Arc<Wire> {
        Arc::new(Wire {
            state: Mutex::new(WireState {
                left: None,
                loss: Loss::Request,
                refuses: false,
                overtaking: None,
            }),
            cut: Notify::new(),
            holding: Mutex::new(None),
        })
    }

    /// The next message that is meant waits until there is a permit.
    pub(crate) fn hold(&self, is_meant: IsMeant) -> Arc<Semaphore> {
        let release = Arc::new(Semaphore::new(0));
        *self.holding.lock() = Some((is_meant, release.clone()));
        release
    }

    fn held(&self, message: Doc<'_>) -> Option<Arc<Semaphore>> {
        let is_meant = |(is_meant, _): &mut (IsMeant, Arc<Semaphore>)| is_meant(message);
        let held = self.holding.lock().take_if(is_meant);
        held.map(|(_, release)| release)
    }

    /// From now on so many messages pass.
    pub(crate) fn cut_after(&self, messages: i64, loss: Loss) {
        *self.state.lock() = WireState {
            left: Some(messages),
            loss,
            refuses: false,
            overtaking: None,
        };
    }

    /// A client's command reaches a shard just before the next message of this name does.
    pub(crate) fn overtake(&self, shard: &str, message: &'static str, database: &str, line: &str) {
        self.let_overtake(shard, message, database, line, true);
    }

    /// The same, and the shard refuses it.
    pub(crate) fn overtake_in_vain(
        &self,
        shard: &str,
        message: &'static str,
        database: &str,
        line: &str,
    ) {
        self.let_overtake(shard, message, database, line, false);
    }

    fn let_overtake(
        &self,
        shard: &str,
        message: &'static str,
        database: &str,
        line: &str,
        succeeds: bool,
    ) {
        let Ok(Value::Document(mut fields)) = parse(line) else {
            panic!("{line} is not a command");
        };
        fields.push(("$db".to_owned(), Value::String(database.to_owned())));
        let body = DocBuf::from_bytes(encode(&fields)).expect("encoded BSON is valid");
        self.state.lock().overtaking = Some(Overtaking {
            shard: shard.to_owned(),
            message,
            command: Request::from_parts(body, Vec::new()).expect("a command"),
            succeeds,
        });
    }

    /// Whether the command has overtaken its message.
    pub(crate) fn has_overtaken(&self) -> bool {
        self.state.lock().overtaking.is_none()
    }

    fn overtaking(&self, shard: &str, message: &str) -> Option<Overtaking> {
        let overtaking = &mut self.state.lock().overtaking;
        let meant = |it: &mut Overtaking| it.shard == shard && it.message == message;
        overtaking.take_if(meant)
    }

    /// From now on shards refuse whatever the config server tells them of placements.
    pub(crate) fn refuse(&self) {
        self.state.lock().refuses = true;
    }

    /// Whether a message was lost.
    pub(crate) fn is_cut(&self) -> bool {
        self.state.lock().left.is_some_and(|left| left < 0)
    }

    /// Completes when a message was lost.
    pub(crate) async fn cut(&self) {
        loop {
            let mut signal = std::pin::pin!(self.cut.notified());
            signal.as_mut().enable();
            if self.is_cut() {
                return;
            }
            signal.await;
        }
    }

    fn fate(&self) -> Fate {
        let mut state = self.state.lock();
        let loss = state.loss;
        let Some(left) = &mut state.left else {
            return Fate::Passes;
        };
        *left -= 1;
        match (*left, loss) {
            (0.., _) => Fate::Passes,
            (-1, Loss::Reply) => Fate::ArrivesUnanswered,
            (..=-1, Loss::Request | Loss::Reply) => Fate::Lost,
        }
    }
}

struct Wired {
    name: String,
    donor: Arc<FakeDonor>,
    wire: Arc<Wire>,
    to: Arc<dyn Endpoint>,
}

impl Endpoint for Wired {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        Box::pin(async move {
            if self.wire.state.lock().refuses && request.name() == "_terndbForgetPlacement" {
                let refused = model::Error::new(model::Code::UNKNOWN_ERROR, "refused");
                return Ok(Reply::error(&refused));
            }
            if let Some(first) = self.wire.overtaking(&self.name, request.name()) {
                let reply = self.to.call(first.command).await?;
                let doc = reply.document();
                let ok = doc.get("ok") == Some(model::bson::ValueRef::Double(1.0));
                let succeeded = ok && doc.get("writeErrors").is_none();
                assert_eq!(succeeded, first.succeeds, "{doc:?}");
            }
            if let Some(release) = self.wire.held(request.body()) {
                release.acquire().await.expect("never closed").forget();
            }
            let arrives =
                async |request: Request| match self.donor.answer(&self.name, &request).await {
                    Some(answered) => answered,
                    None => self.to.call(request).await,
                };
            match self.wire.fate() {
                Fate::Passes => return arrives(request).await,
                Fate::ArrivesUnanswered => {
                    let _ = arrives(request).await;
                }
                Fate::Lost => {}
            }
            self.wire.cut.notify_waiters();
            Err(CallError::OutcomeUnknown("the wire is cut".to_owned()))
        })
    }
}

pub(crate) struct Server {
    pub(crate) shard: Arc<Shard>,
    _directory: TempDir,
}

impl Server {
    async fn open(set: &str) -> Server {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let shard = open(directory.path(), set).await;
        Server {
            shard,
            _directory: directory,
        }
    }

    fn endpoint(&self) -> Arc<dyn Endpoint> {
        self.shard.endpoint()
    }
}

/// Whoever a shard would ask here: the config server is asked for what a test wants to know, and asks by itself.
struct Nobody;

impl Endpoint for Nobody {
    fn call(&self, _request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        Box::pin(async { Err(CallError::NotSent("nobody is there".to_owned())) })
    }
}

async fn open(directory: &Path, set: &str) -> Arc<Shard> {
    let options = ShardOptions {
        log_window: LogWindow::default(),
        data: directory.to_owned(),
        cache_bytes: 8 << 20,
        scan_memory: None,
        parameters: Vec::new(),
    };
    let shard =
        tokio::task::block_in_place(|| Shard::open(&options)).expect("the document server opens");
    let set = ReplicaSetOptions {
        name: set.to_owned(),
        host: format!("{set}:1"),
        detours: Default::default(),
    };
    shard
        .join_replica_set(&set)
        .await
        .expect("it joins its set");
    shard
}

/// One life of a config server.
struct Life {
    handler: Arc<dyn Endpoint>,
    server: Arc<ConfigServer>,
    leads: watch::Sender<Option<u64>>,
    running: JoinHandle<()>,
}

pub(crate) struct Cluster {
    pub(crate) donor: Arc<FakeDonor>,
    documents: Server,
    shards: Arc<Mutex<Vec<Server>>>,
    life: Mutex<Option<Life>>,
    term: AtomicU64,
    ids: AtomicU64,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.donor.leaves();
    }
}

impl Cluster {
    /// With so many shards, named shard0, shard1, …
    pub(crate) async fn start(shards: usize) -> Cluster {
        let cluster = Cluster {
            donor: Arc::default(),
            documents: Server::open("config").await,
            shards: Arc::default(),
            life: Mutex::new(None),
            term: AtomicU64::new(0),
            ids: AtomicU64::new(0),
        };
        cluster.elect(Wire::whole()).await;
        for _ in 0..shards {
            let name = cluster.spare().await;
            let add = format!("admin {{addShard: '{name}/{name}:1'}} => {{}}");
            cluster.check(&add).await;
        }
        cluster
    }

    /// A server that is no shard yet, and its name.
    pub(crate) async fn spare(&self) -> String {
        let name = self.loner().await;
        let loner = self.shards.lock().last().map(|server| server.shard.clone());
        let loner = loner.expect("it was pushed above");
        loner.join_cluster(
            Arc::new(Nobody),
            Arc::new(|_: &str, _: &str| Arc::new(Nobody)),
        );
        name
    }

    /// One that was started without config servers.
    pub(crate) async fn loner(&self) -> String {
        let name = format!("shard{}", self.shards.lock().len());
        let server = Server::open(&name).await;
        self.shards.lock().push(server);
        name
    }

    /// Another primary takes over, and speaks through this.
    pub(crate) async fn elect(&self, wire: Arc<Wire>) {
        self.depose().await;
        let life = self.begin(wire);
        life.server.ready().await;
        *self.life.lock() = Some(life);
    }

    fn begin(&self, wire: Arc<Wire>) -> Life {
        let shards = self.shards.clone();
        let through = wire.clone();
        let donor = self.donor.clone();
        let connect: Connect = Arc::new(move |name: &str, _host: &str| {
            let shards = shards.lock();
            let at: usize = name
                .trim_start_matches("shard")
                .parse()
                .expect("a shard of ours");
            let to = shards[at].endpoint();
            Arc::new(Wired {
                name: name.to_owned(),
                donor: donor.clone(),
                wire: through.clone(),
                to,
            })
        });
        let documents = Arc::new(Wired {
            name: "config".to_owned(),
            donor: self.donor.clone(),
            wire,
            to: self.documents.endpoint(),
        });
        let server = ConfigServer::new(documents, connect);
        let handler = ConfigHandler::new(server.clone(), self.documents.shard.boxed_handler());
        let (leads, leadership) = watch::channel(Some(self.term.fetch_add(1, Ordering::SeqCst)));
        let running = tokio::spawn(server.clone().run(leadership, std::future::pending()));
        let handler: Arc<dyn Endpoint> = Arc::new(InProcess::new(Arc::new(handler)));
        self.donor.meets(handler.clone());
        Life {
            handler,
            server,
            leads,
            running,
        }
    }

    /// For this primary a rule does not hold.
    pub(crate) fn switch_off(&self, rule: Rule) {
        let life = self.life.lock();
        let life = life.as_ref().expect("a primary");
        life.server.rules().switch_off(rule);
    }

    /// The primary is no longer one, and everything that it did has ended.
    pub(crate) async fn depose(&self) {
        let life = self.life.lock().take();
        if let Some(life) = life {
            drop(life.leads);
            life.running.await.expect("a config server ends in order");
        }
    }

    /// Completes when no operation is unfinished.
    pub(crate) async fn settled(&self) {
        let unfinished = "{find: 'terndb_operations', filter: {kind: {$ne: 'outcome'}}}";
        loop {
            let reply = self.run("config! config", unfinished).await;
            let batch = get(&reply, "cursor").and_then(|cursor| cursor.get("firstBatch"));
            if batch.and_then(Value::as_array).is_some_and(<[_]>::is_empty) {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    fn handler(&self) -> Arc<dyn Endpoint> {
        let life = self.life.lock();
        life.as_ref().expect("a primary").handler.clone()
    }

    async fn ask(&self, to: &dyn Endpoint, fields: &Fields) -> Fields {
        let body = DocBuf::from_bytes(encode(fields)).expect("encoded BSON is valid");
        let request = Request::from_parts(body, Vec::new()).expect("a command");
        let reply = to.call(request).await.expect("in process nothing is lost");
        decode(reply.document().as_bytes()).expect("a reply is valid BSON")
    }

    /// Sends a command as the head of a script's line says.
    pub(crate) async fn run(&self, head: &str, command: &str) -> Fields {
        let Value::Document(mut fields) =
            parse(command).unwrap_or_else(|e| panic!("{command}: {e}"))
        else {
            panic!("{command} is not a document");
        };
        let name = |fields: &mut Fields, database: &str| {
            fields.push(("$db".to_owned(), Value::String(database.to_owned())));
        };
        match head.split_once('!') {
            Some(("config", database)) => {
                let database = database.trim();
                name(
                    &mut fields,
                    if database.is_empty() {
                        "admin"
                    } else {
                        database
                    },
                );
                self.ask(&*self.handler(), &fields).await
            }
            Some((shard, database)) => {
                name(&mut fields, database.trim());
                let at: usize = shard.trim_start_matches("shard").parse().expect("a shard");
                let endpoint = self.shards.lock()[at].endpoint();
                self.ask(&*endpoint, &fields).await
            }
            None => {
                let database = if head.is_empty() { "test" } else { head };
                let mut wrapped = vec![
                    ("_configsvrDdl".to_owned(), Value::Int32(1)),
                    ("db".to_owned(), Value::String(database.to_owned())),
                    ("command".to_owned(), Value::Document(fields)),
                ];
                name(&mut wrapped, "admin");
                self.ask(&*self.handler(), &wrapped).await
            }
        }
    }

    /// An id as a router gives one to a command.
    pub(crate) fn new_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::SeqCst)
    }

    /// Sends a command as a router does that may ask again: with an id.
    pub(crate) async fn run_as(&self, id: u64, database: &str, command: &str) -> Fields {
        let line = format!(
            "{{_configsvrDdl: 1, operation: UUID(\"00000000-0000-4000-8000-{id:012}\"), db: '{database}', command: {command}}}"
        );
        self.run("config!", &line).await
    }

    /// How many lines the changelog has of one kind, or of one kind and name.
    pub(crate) async fn changes(&self, line: &str) -> i64 {
        let query = match line.split_once(' ') {
            Some((what, name)) => format!("{{what: '{what}', ns: '{name}'}}"),
            None => format!("{{what: '{line}'}}"),
        };
        let count = format!("{{count: 'changelog', query: {query}}}");
        let reply = self.run("config! config", &count).await;
        match get(&reply, "n") {
            Some(Value::Int32(n)) => i64::from(*n),
            other => panic!("{other:?} is no count"),
        }
    }

    /// What the config server has stored.
    pub(crate) async fn stored(&self) -> Vec<String> {
        let mut stored = Vec::new();
        for collection in [
            "shards",
            "databases",
            "collections",
            "chunks",
            "tags",
            "settings",
            "locks",
            "changelog",
            "terndb_operations",
            "terndb_answers",
        ] {
            let find = format!("{{find: '{collection}', batchSize: 10000}}");
            let reply = self.run("config! config", &find).await;
            let batch = get(&reply, "cursor").and_then(|cursor| cursor.get("firstBatch"));
            let batch = batch.and_then(Value::as_array).expect("a batch");
            stored.extend(batch.iter().map(print));
        }
        stored
    }

    /// Runs a script: see the header of this file.
    pub(crate) async fn check(&self, script: &str) {
        for line in script.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (command, expected) = line
                .rsplit_once("=>")
                .unwrap_or_else(|| panic!("{line} expects nothing"));
            let brace = command.find('{').unwrap_or_default();
            let (head, command) = command.split_at(brace);
            let reply = self.run(head.trim(), command).await;
            let expected = parse(expected.trim()).unwrap_or_else(|e| panic!("{line}: {e}"));
            check_reply(line, &reply, &expected);
        }
    }
}

/// A reply without what differs from one asking to the next.
pub(crate) fn without_times(reply: &Fields) -> Fields {
    let is_time = |name: &str| name.starts_with('$') || name == "operationTime";
    let kept = reply.iter().filter(|(name, _)| !is_time(name));
    kept.cloned().collect()
}

pub(crate) fn check_reply(line: &str, reply: &Fields, expected: &Value) {
    let printed = print_fields(reply);
    match expected {
        Value::Int32(_) => {
            let code = get(reply, "code");
            assert_eq!(code, Some(expected), "{line}\n  answered {printed}");
        }
        pattern => {
            let ok = get(reply, "ok") == Some(&Value::Double(1.0));
            assert!(ok, "{line}\n  answered {printed}");
            if let Err(why) = matches(&Value::Document(reply.clone()), pattern) {
                panic!("{line}\n  answered {printed}\n  {why}");
            }
        }
    }
}

fn matches(found: &Value, pattern: &Value) -> Result<(), String> {
    match (found, pattern) {
        (Value::Document(fields), Value::Document(expected)) => {
            for (name, value) in expected {
                match get(fields, name) {
                    Some(found) => matches(found, value)?,
                    None => return Err(format!("{name} is missing")),
                }
            }
            Ok(())
        }
        (Value::Array(found), Value::Array(expected)) if found.len() == expected.len() => found
            .iter()
            .zip(expected)
            .try_for_each(|(found, expected)| matches(found, expected)),
        _ if found == pattern => Ok(()),
        _ => Err(format!("{} is not {}", print(found), print(pattern))),
    }
}
