//! A change stream over shards whose logs are lists.

use super::{cluster_time, run};
use crate::registry::batch_of;
use crate::{Connect, Router, RouterHandler, RouterOptions};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::time::ClusterTime;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use wire::{BoxFuture, CallError, ConnectionInfo, Endpoint, Handler, Reply, Request};

const SHARDS: [&str; 3] = ["a", "b", "c"];

/// Events of one batch, at most.
const BATCH: usize = 2;

#[derive(Default)]
struct Log {
    /// Greater than every time that was given or heard of.
    now: ClusterTime,
    /// The time of the last entry.
    last: ClusterTime,
    events: Vec<(ClusterTime, DocBuf)>,
    /// How many events each cursor has told, and the mark it began with.
    cursors: HashMap<i64, (usize, String)>,
    notes: usize,
}

struct LogShard {
    name: &'static str,
    log: Mutex<Log>,
}

fn mark(time: ClusterTime) -> String {
    format!("82{:016X}2B0229296E04", time.to_u64())
}

impl LogShard {
    fn write(&self, operation: &str, number: i32) -> String {
        let mut log = self.log.lock();
        log.now = log.now.next();
        log.last = log.now;
        let flag = match operation {
            "invalidate" => "6F",
            _ => "6E",
        };
        // A dropped collection is the same everywhere.
        let identity = match operation {
            "drop" => "z".repeat(16),
            _ => self.name.repeat(16),
        };
        let identity = identity.into_bytes();
        let identity: String = identity.iter().map(|byte| format!("{byte:02X}")).collect();
        let token = format!(
            "82{:016X}2B022C010029{flag}5A1004{identity}04",
            log.now.to_u64()
        );
        let mut event = DocWriter::new();
        event.begin_document("_id").append("_data", token.as_str());
        event.end().append("operationType", operation);
        event.append("n", number);
        let time = log.now;
        log.events.push((time, event.finish()));
        token
    }

    fn answer(&self, request: &Request) -> Result<Reply, Error> {
        let body = request.body();
        let mut log = self.log.lock();
        let told = body.get_doc("$clusterTime");
        if let Some(ValueRef::Timestamp(time)) = told.and_then(|told| told.get("clusterTime")) {
            log.now = log.now.max(ClusterTime::new(time.seconds, time.increment));
        }
        match request.name() {
            "aggregate" => {
                let stages = body.get_array("pipeline").expect("a pipeline");
                let Some(ValueRef::Document(stage)) = stages.get(0) else {
                    panic!("{body:?} has no stages");
                };
                let stage = stage.get_doc("$changeStream").expect("a change stream");
                let Some(ValueRef::Timestamp(start)) = stage.get("startAtOperationTime") else {
                    panic!("{stage:?} does not begin at a time");
                };
                let start = ClusterTime::new(start.seconds, start.increment);
                let begun = log.events.partition_point(|(time, _)| *time < start);
                let id = 1 + log.cursors.len() as i64;
                log.cursors.insert(id, (begun, mark(start)));
                Ok(batch(&mut log, id, "firstBatch"))
            }
            "getMore" => {
                let Some(ValueRef::Int64(id)) = body.get("getMore") else {
                    panic!("getMore without a cursor");
                };
                assert!(body.get("maxTimeMS").is_some(), "a shard waits for so long");
                Ok(batch(&mut log, id, "nextBatch"))
            }
            "appendOplogNote" => {
                let Some(ValueRef::Timestamp(past)) = body.get("maxClusterTime") else {
                    panic!("{body:?} says no time");
                };
                if ClusterTime::new(past.seconds, past.increment) <= log.last {
                    return Err(Error::new(Code::STALE_CLUSTER_TIME, "it is past it"));
                }
                log.now = log.now.next();
                log.last = log.now;
                log.notes += 1;
                Ok(Reply::ok())
            }
            "killCursors" => {
                for id in body.get_array("cursors").expect("cursors").iter() {
                    if let ValueRef::Int64(id) = id {
                        log.cursors.remove(&id);
                    }
                }
                Ok(Reply::ok())
            }
            other => panic!("a shard is asked for {other}"),
        }
    }
}

fn batch(log: &mut Log, id: i64, name: &str) -> Reply {
    let (told, begun) = log.cursors.get(&id).cloned().expect("a known cursor");
    let end = log.events.len().min(told + BATCH);
    let mut writer = Reply::writer();
    writer.begin_document("cursor").begin_array(name);
    let mut token = begun;
    for (_, event) in &log.events[told..end] {
        writer.push(event);
        token = data(event.as_doc().get_doc("_id"));
    }
    if end == log.events.len() {
        token = token.max(mark(log.last.next()));
    }
    let over = log.events[told..end]
        .iter()
        .any(|(_, event)| event.as_doc().get_str("operationType") == Some("invalidate"));
    log.cursors.insert(id, (end, token.clone()));
    if over {
        log.cursors.remove(&id);
    }
    writer.end().begin_document("postBatchResumeToken");
    writer.append("_data", token.as_str()).end();
    writer
        .append("id", if over { 0 } else { id })
        .append("ns", "test.birds")
        .end()
        .append("ok", 1.0);
    Reply::from_writer(writer)
}

fn data(token: Option<Doc<'_>>) -> String {
    let data = token.and_then(|token| token.get_str("_data"));
    data.expect("a token").to_owned()
}

impl Endpoint for LogShard {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        let answered = self.answer(&request);
        Box::pin(async move { Ok(answered.unwrap_or_else(|error| Reply::error(&error))) })
    }
}

/// Knows the names of the shards.
struct Names;

impl Endpoint for Names {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        assert_eq!(request.name(), "find");
        let mut writer = Reply::writer();
        writer.begin_document("cursor").begin_array("firstBatch");
        for shard in SHARDS {
            let host = format!("{shard}/{shard}:1");
            let shown = writer.push_document().append("_id", shard);
            shown.append("host", host.as_str()).end();
        }
        writer
            .end()
            .append("id", 0i64)
            .append("ns", "config.shards");
        writer.end().append("ok", 1.0);
        Box::pin(async move { Ok(Reply::from_writer(writer)) })
    }
}

struct World {
    shards: BTreeMap<&'static str, Arc<LogShard>>,
    handler: RouterHandler,
    connection: Arc<ConnectionInfo>,
}

/// A stream as a client has it.
struct Client {
    cursor: i64,
    token: String,
}

impl World {
    fn new() -> World {
        let shards: BTreeMap<&'static str, Arc<LogShard>> = SHARDS
            .iter()
            .enumerate()
            .map(|(at, name)| {
                // Their clocks do not agree.
                let log = Log {
                    now: ClusterTime::new(100 + 7 * at as u32, 1),
                    ..Log::default()
                };
                let shard = LogShard {
                    name,
                    log: Mutex::new(log),
                };
                (*name, Arc::new(shard))
            })
            .collect();
        let reached = shards.clone();
        let connect: Connect = Arc::new(move |id, _| reached[id].clone());
        let options = RouterOptions::new("router:1");
        World {
            handler: RouterHandler(Router::new(Arc::new(Names), connect, options)),
            shards,
            connection: Arc::new(ConnectionInfo::in_process(1)),
        }
    }

    async fn run(&self, body: DocBuf) -> DocBuf {
        let request = Request::from_parts(body, Vec::new()).expect("a request");
        let reply = self.handler.handle(&self.connection, request).await;
        reply.into_document()
    }

    async fn watch(&self, option: Option<(&str, &str)>) -> Result<(Client, Vec<i32>), i32> {
        let mut command = DocWriter::new().with("aggregate", "birds");
        command.begin_array("pipeline").push_document();
        command.begin_document("$changeStream");
        if let Some((name, token)) = option {
            command.begin_document(name).append("_data", token).end();
        }
        command.end().end().end();
        command.begin_document("cursor").end();
        // What a client has heard of.
        command.append("$clusterTime", &cluster_time(120));
        command.append("$db", "test");
        told(self.run(command.finish()).await)
    }

    async fn more(&self, client: &mut Client) -> Result<Vec<i32>, i32> {
        let command = DocWriter::new()
            .with("getMore", client.cursor)
            .with("collection", "birds")
            .with("maxTimeMS", 30)
            .with("$db", "test");
        let (next, numbers) = told(self.run(command.finish()).await)?;
        assert!(next.token >= client.token, "places only move on");
        *client = next;
        Ok(numbers)
    }

    /// Batches until there is nothing. One that is empty may only have come too late.
    async fn rest(&self, client: &mut Client) -> Result<Vec<i32>, i32> {
        let last = self.last_token();
        let mut all = Vec::new();
        while client.cursor != 0 {
            let batch = self.more(client).await?;
            if batch.is_empty() && client.token >= last {
                break;
            }
            all.extend(batch);
        }
        Ok(all)
    }

    /// The token of the last event of all.
    fn last_token(&self) -> String {
        let of_shard = |shard: &Arc<LogShard>| {
            let log = shard.log.lock();
            let tokens = log.events.iter();
            tokens
                .map(|(_, event)| data(event.as_doc().get_doc("_id")))
                .max()
        };
        let last = self.shards.values().filter_map(of_shard).max();
        last.unwrap_or_default()
    }
}

fn told(reply: DocBuf) -> Result<(Client, Vec<i32>), i32> {
    let Some(cursor) = reply.as_doc().get_doc("cursor") else {
        return match reply.get("code") {
            Some(ValueRef::Int32(code)) => Err(code),
            other => panic!("{reply:?} has {other:?}"),
        };
    };
    let numbers = batch_of(cursor).map(|event| match event.get("n") {
        Some(ValueRef::Int32(number)) => number,
        other => panic!("{event:?} has {other:?}"),
    });
    let Some(ValueRef::Int64(id)) = cursor.get("id") else {
        panic!("{reply:?} has no cursor");
    };
    let client = Client {
        cursor: id,
        token: data(cursor.get_doc("postBatchResumeToken")),
    };
    Ok((client, numbers.collect()))
}

/// ⚑ Events of all shards come in the order of cluster time, though most logs are at rest.
#[test]
fn events_come_in_the_order_of_time() {
    run(async {
        let world = World::new();
        world.shards["b"].write("insert", -1);
        let (mut client, first) = world.watch(None).await.expect("a stream");
        assert_eq!(first, [0; 0]);
        assert_eq!(world.more(&mut client).await, Ok(vec![]));
        // All have heard of the same time, so the order among shards is that of counters.
        world.shards["a"].write("insert", 1);
        world.shards["a"].write("insert", 3);
        world.shards["c"].write("insert", 2);
        world.shards["a"].write("insert", 4);
        let found = world.rest(&mut client).await.expect("events");
        assert_eq!(found, [1, 2, 3, 4]);
        assert!(world.shards["b"].log.lock().notes > 0, "b was at rest");
        // Whom the router has moved on writes later.
        world.shards["b"].write("insert", 5);
        assert_eq!(world.rest(&mut client).await, Ok(vec![5]));
        // An open stream that nothing happens on writes nothing.
        let notes = || -> Vec<usize> {
            let shards = world.shards.values();
            shards.map(|shard| shard.log.lock().notes).collect()
        };
        let before = notes();
        assert_eq!(world.more(&mut client).await, Ok(vec![]));
        assert_eq!(notes(), before);
    });
}

#[test]
fn going_on_behind_any_event() {
    run(async {
        let world = World::new();
        let (mut client, _) = world.watch(None).await.expect("a stream");
        let begin = client.token.clone();
        let mut tokens = Vec::new();
        for number in 0..9 {
            let shard = SHARDS[[0, 1, 1, 2, 0, 2, 2, 1, 0][number as usize]];
            tokens.push((world.shards[shard].write("insert", number), number));
            // Each is delivered before the next is written, so the others have moved on.
            assert_eq!(world.rest(&mut client).await, Ok(vec![number]));
        }
        for (token, number) in &tokens {
            for option in ["resumeAfter", "startAfter"] {
                let (mut again, mut found) =
                    world.watch(Some((option, token))).await.expect("a stream");
                found.extend(world.rest(&mut again).await.expect("events"));
                assert_eq!(found, (number + 1..9).collect::<Vec<_>>());
            }
        }
        let (mut again, mut found) = world
            .watch(Some(("resumeAfter", &begin)))
            .await
            .expect("a stream");
        found.extend(world.rest(&mut again).await.expect("events"));
        assert_eq!(found, (0..9).collect::<Vec<_>>());

        let foreign = tokens[4].0.replace("6161", "7A7A");
        let lost = world.watch(Some(("resumeAfter", &foreign))).await;
        assert_eq!(lost.err(), Some(280));
        for (broken, code) in [("", 40649), ("8", 9), ("xyz", 9)] {
            let refused = world.watch(Some(("resumeAfter", broken))).await;
            assert_eq!(refused.err(), Some(code), "{broken}");
        }
    });
}

#[test]
fn an_invalidation_ends_the_stream() {
    run(async {
        let world = World::new();
        let (mut client, _) = world.watch(None).await.expect("a stream");
        // Both at the same time.
        world.shards["a"].write("drop", 1);
        world.shards["b"].write("drop", 9);
        let token = world.shards["a"].write("invalidate", 2);
        assert_eq!(world.rest(&mut client).await, Ok(vec![1, 2]));
        assert_eq!(client.cursor, 0);
        assert_eq!(client.token, token);
        for shard in world.shards.values() {
            assert_eq!(shard.log.lock().cursors.len(), 0, "nothing is left open");
        }
        assert_eq!(
            world.watch(Some(("resumeAfter", &token))).await.err(),
            Some(260)
        );
        world.shards["c"].write("insert", 3);
        let (mut again, mut found) = world
            .watch(Some(("startAfter", &token)))
            .await
            .expect("a stream");
        found.extend(world.rest(&mut again).await.expect("events"));
        assert_eq!(found, [3]);
    });
}
