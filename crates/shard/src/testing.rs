//! What tests of this crate stand on: a shard in a temporary directory, asked
//! with requests inside the process, and scripts of commands with what they
//! must answer.
//!
//! A script has one command in each line, written in the notation of the
//! differential tests, and what is expected of its reply behind `=>`:
//!
//! ```text
//!   {insert: "c", documents: [{_id: 1}]}   => {n: 1}     these fields, and maybe others
//!   {create: "c"}                          => 48         the code of an error
//!   admin {listDatabases: 1}               => {}         another database
//! ```
//!
//! Documents must hold the expected fields with values of the same type; arrays
//! must have as many elements. An empty pattern accepts any success. Lines that
//! begin with `#` say why.

use crate::command;
use crate::{Clock, LogWindow, ReplicaSetOptions, Shard, ShardOptions, SystemClock};
use differential::notation::{parse, print, print_fields};
use differential::value::{Fields, Value, decode, encode, get};
use model::bson::DocBuf;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tempfile::TempDir;
use wire::{ConnectionInfo, Request};

/// A clock that tests move.
#[derive(Default)]
pub(crate) struct TestClock {
    /// How far ahead of the machine's.
    wall_ms: AtomicI64,
    elapsed_ms: AtomicI64,
}

impl TestClock {
    /// So much time passes.
    pub(crate) fn advance_minutes(&self, minutes: i64) {
        self.set_ahead_minutes(minutes);
        self.elapsed_ms
            .fetch_add(minutes * 60_000, Ordering::SeqCst);
    }

    /// Somebody sets the clock.
    pub(crate) fn set_ahead_minutes(&self, minutes: i64) {
        self.wall_ms.fetch_add(minutes * 60_000, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    /// Goes by the machine's clock, moved ahead.
    fn now_ms(&self) -> i64 {
        SystemClock.now_ms() + self.wall_ms.load(Ordering::SeqCst)
    }

    fn elapsed_ms(&self) -> i64 {
        SystemClock.elapsed_ms() + self.elapsed_ms.load(Ordering::SeqCst)
    }
}

pub(crate) struct TestShard {
    pub(crate) shard: Arc<Shard>,
    pub(crate) clock: Arc<TestClock>,
    connection: Arc<ConnectionInfo>,
    directory: TempDir,
}

impl TestShard {
    pub(crate) async fn open() -> Self {
        Self::open_keeping(LogWindow::default()).await
    }

    /// With a log that keeps so much.
    pub(crate) async fn open_keeping(window: LogWindow) -> Self {
        Self::open_as(window, &[]).await
    }

    /// With parameters that it starts with.
    pub(crate) async fn open_with(parameters: &[(&str, &str)]) -> Self {
        Self::open_as(LogWindow::default(), parameters).await
    }

    /// A shard that was opened as the caller likes, on its data.
    pub(crate) fn of(shard: Arc<Shard>, directory: TempDir) -> Self {
        Self {
            shard,
            clock: Arc::default(),
            connection: Arc::new(ConnectionInfo::in_process(1)),
            directory,
        }
    }

    async fn open_as(window: LogWindow, parameters: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let clock = Arc::<TestClock>::default();
        let shard = open(directory.path(), &clock, window, parameters).await;
        Self {
            shard,
            clock,
            connection: Arc::new(ConnectionInfo::in_process(1)),
            directory,
        }
    }

    /// Closes the shard and opens it again from what it has stored.
    pub(crate) async fn reopen(self) -> Self {
        let Self {
            shard,
            clock,
            connection,
            directory,
        } = self;
        tokio::task::block_in_place(|| shard.close()).expect("the shard closes");
        assert_eq!(Arc::strong_count(&shard), 1, "nobody else holds the shard");
        drop(shard);
        let shard = open(directory.path(), &clock, LogWindow::default(), &[]).await;
        Self {
            shard,
            clock,
            connection,
            directory,
        }
    }

    /// Where it keeps its data.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Runs one command, written as text.
    pub(crate) async fn run(&self, database: &str, text: &str) -> Fields {
        let Value::Document(mut fields) = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
        else {
            panic!("{text} is not a document");
        };
        fields.push(("$db".to_owned(), Value::String(database.to_owned())));
        let body = DocBuf::from_bytes(encode(&fields)).expect("encoded BSON is valid");
        let request = Request::from_parts(body, Vec::new()).expect("a command");
        let reply = command::dispatch(&self.shard, &self.connection, &request).await;
        decode(reply.document().as_bytes()).expect("a reply is valid BSON")
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
            let (database, command) = command.split_at(brace);
            let database = match database.trim() {
                "" => "test",
                named => named,
            };
            let reply = self.run(database, command).await;
            let expected = parse(expected.trim()).unwrap_or_else(|e| panic!("{line}: {e}"));
            check_reply(line, &reply, &expected);
        }
    }

    /// Runs a command that opens a cursor; its id, and the documents of the batch.
    pub(crate) async fn batch(&self, command: &str) -> (i64, Vec<Value>) {
        let reply = self.run("test", command).await;
        let cursor = get(&reply, "cursor");
        let documents = cursor
            .and_then(|cursor| cursor.get("firstBatch").or(cursor.get("nextBatch")))
            .and_then(Value::as_array);
        match (cursor.and_then(|cursor| cursor.get("id")), documents) {
            (Some(&Value::Int64(id)), Some(documents)) => (id, documents.to_vec()),
            _ => panic!("{command}\n  answered {}", print_fields(&reply)),
        }
    }

    /// What is left of the cursor of collection `c`, in batches.
    pub(crate) async fn rest(&self, mut id: i64, batch_size: usize) -> Vec<Value> {
        let mut all = Vec::new();
        while id != 0 {
            let more = format!("{{getMore: {id}L, collection: 'c', batchSize: {batch_size}}}");
            let (next, documents) = self.batch(&more).await;
            all.extend(documents);
            id = next;
        }
        all
    }

    /// Inserts documents into collection `c`.
    pub(crate) async fn insert(&self, documents: &[String]) {
        for some in documents.chunks(500) {
            let insert = format!("{{insert: 'c', documents: [{}]}}", some.join(", "));
            self.check(&format!("{insert} => {{n: {}}}", some.len()))
                .await;
        }
    }

    /// Checks that the collection's records and indexes agree.
    pub(crate) async fn check_valid(&self, collection: &str) -> Fields {
        let reply = self
            .run("test", &format!("{{validate: \"{collection}\"}}"))
            .await;
        let printed = print_fields(&reply);
        assert_eq!(get(&reply, "valid"), Some(&Value::Bool(true)), "{printed}");
        reply
    }
}

/// What a shard of a test is opened with.
pub(crate) fn options(
    directory: &Path,
    log_window: LogWindow,
    parameters: &[(&str, &str)],
) -> ShardOptions {
    let parameters = parameters.iter();
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    ShardOptions {
        log_window,
        data: directory.to_owned(),
        cache_bytes: 8 << 20,
        scan_memory: None,
        parameters: parameters.map(owned).collect(),
    }
}

async fn open(
    directory: &Path,
    clock: &Arc<TestClock>,
    log_window: LogWindow,
    parameters: &[(&str, &str)],
) -> Arc<Shard> {
    let options = options(directory, log_window, parameters);
    let shard = tokio::task::block_in_place(|| Shard::open_with_clock(&options, clock.clone()))
        .expect("the shard opens");
    let set = ReplicaSetOptions {
        detours: Default::default(),
        name: "terndb".to_owned(),
        host: "localhost:27017".to_owned(),
    };
    shard
        .join_replica_set(&set)
        .await
        .expect("the shard joins its set");
    shard
        .discard_unfinished_builds()
        .await
        .expect("unfinished builds are discarded");
    shard
}

fn check_reply(line: &str, reply: &Fields, expected: &Value) {
    let printed = print_fields(reply);
    let code = get(reply, "code").or_else(|| {
        let first = get(reply, "writeErrors")?.as_array()?.first()?;
        first.get("code")
    });
    match expected {
        Value::Int32(_) => assert_eq!(code, Some(expected), "{line}\n  answered {printed}"),
        pattern => {
            let ok = get(reply, "ok") == Some(&Value::Double(1.0)) || get_ok(pattern);
            assert!(ok, "{line}\n  answered {printed}");
            let whole = Value::Document(reply.clone());
            if let Err(why) = matches(&whole, pattern) {
                panic!("{line}\n  answered {printed}\n  {why}");
            }
        }
    }
}

/// Whether a pattern speaks about `ok` itself.
fn get_ok(pattern: &Value) -> bool {
    pattern.get("ok").is_some()
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
