//! A config server that is a value: it knows who owns which keys of `test.birds`, and counts what it is asked.

use super::refined;
use super::world::version;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::time::ClusterTime;
use model::version::DatabaseVersion;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::Semaphore;
use wire::{BoxFuture, CallError, Endpoint, Reply, Request};

/// Who owns what: from each bound on, with the version of the chunk.
#[derive(Clone)]
pub(super) struct Chunk {
    pub(super) min: Option<i32>,
    pub(super) shard: &'static str,
    pub(super) major: u32,
    /// Its owners and since when, the one of now first.
    pub(super) owners: Vec<(u32, &'static str)>,
}

pub(super) struct FakeConfig {
    pub(super) chunks: Mutex<Vec<Chunk>>,
    pub(super) questions: AtomicUsize,
    /// Shards that were removed.
    pub(super) gone: Mutex<Vec<&'static str>>,
    /// Closed unless a test wants questions to wait.
    pub(super) gate: Mutex<Option<Arc<Semaphore>>>,
    pub(super) fails: AtomicUsize,
    pub(super) ddl: Mutex<FakeDdl>,
    /// The shard key has another field (`refined.rs`).
    pub(super) is_refined: AtomicBool,
    /// The collection was made anew.
    pub(super) is_another: AtomicBool,
    /// The primary of the one database.
    pub(super) database: Mutex<(&'static str, DatabaseVersion)>,
}

/// Commands that change the catalog: each is carried out once, and what it was answered is known by its id.
#[derive(Default)]
pub(super) struct FakeDdl {
    pub(super) losses: VecDeque<Lost>,
    /// What is answered in the end; success if nothing is said.
    pub(super) refusal: Option<Error>,
    pub(super) asked: Vec<DocBuf>,
    answered: Vec<(Vec<u8>, i32)>,
}

/// How an answer is lost.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lost {
    /// Nobody is there.
    Absent,
    /// It is carried out, and the connection ends.
    Connection,
    /// It is carried out, and the primary is one no more.
    Primary,
}

impl FakeDdl {
    fn answer(&mut self, body: Doc<'_>) -> Result<Reply, CallError> {
        self.asked.push(body.to_owned());
        let lost = self.losses.pop_front();
        if let Some(Lost::Absent) = lost {
            return Err(CallError::NotSent("away".to_owned()));
        }
        let Some(ValueRef::Binary { subtype: 4, bytes }) = body.get("operation") else {
            panic!("no id in {body:?}");
        };
        let known = self.answered.iter().find(|(id, _)| id == bytes);
        let number = match known {
            Some((_, number)) => *number,
            None => {
                let number = self.answered.len() as i32 + 1;
                self.answered.push((bytes.to_vec(), number));
                number
            }
        };
        match (lost, &self.refusal) {
            (Some(Lost::Connection), _) => Err(CallError::OutcomeUnknown("killed".to_owned())),
            (Some(Lost::Primary | Lost::Absent), _) => {
                let deposed = Error::new(Code::NOT_WRITABLE_PRIMARY, "not primary");
                Ok(Reply::error(&deposed))
            }
            (None, Some(refusal)) => Ok(Reply::error(refusal)),
            (None, None) => {
                let told = Reply::writer().with("number", number);
                Ok(Reply::from_writer(told.with("ok", 1.0)))
            }
        }
    }

    /// How many commands were carried out.
    pub(super) fn carried_out(&self) -> usize {
        self.answered.len()
    }
}

impl FakeConfig {
    /// Sessions are in one chunk.
    fn routing_of_sessions() -> Reply {
        let mut writer = Reply::writer().with("sharded", true).with(
            "uuid",
            ValueRef::Binary {
                subtype: 4,
                bytes: &[2; 16],
            },
        );
        writer.begin_document("key").append("_id", 1).end();
        writer.begin_document("version");
        version(1).append_to(&mut writer);
        writer
            .end()
            .append("incremental", false)
            .begin_array("chunks")
            .push_document();
        for (bound, end) in [("min", ValueRef::MinKey), ("max", ValueRef::MaxKey)] {
            writer.begin_document(bound).append("_id", end).end();
        }
        writer
            .append("shard", "a")
            .append("lastmod", ClusterTime::new(1, 0))
            .begin_array("history")
            .end()
            .end()
            .end()
            .append("from", 0i64)
            .append("more", false)
            .append("ok", 1.0);
        Reply::from_writer(writer)
    }

    fn routing(&self) -> Reply {
        let chunks = self.chunks.lock();
        if chunks.is_empty() {
            return Reply::from_writer(Reply::writer().with("sharded", false).with("ok", 1.0));
        }
        let highest = chunks.iter().map(|chunk| chunk.major).max().unwrap_or(0);
        let mut writer = Reply::writer().with("sharded", true).with(
            "uuid",
            ValueRef::Binary {
                subtype: 4,
                bytes: match self.is_another.load(Ordering::SeqCst) {
                    true => &[9; 16],
                    false => &[1; 16],
                },
            },
        );
        let is_refined = self.is_refined.load(Ordering::SeqCst);
        writer.begin_document("key").append("k", 1);
        if is_refined {
            writer.append("l", 1);
        }
        writer.end().begin_document("version");
        refined::version(is_refined, highest).append_to(&mut writer);
        writer
            .end()
            .append("incremental", false)
            .begin_array("chunks");
        for (at, chunk) in chunks.iter().enumerate() {
            writer.push_document();
            writer.begin_document("min");
            bound(&mut writer, chunk.min, ValueRef::MinKey);
            if is_refined {
                writer.append("l", ValueRef::MinKey);
            }
            writer.end().begin_document("max");
            let next = chunks.get(at + 1).and_then(|next| next.min);
            bound(&mut writer, next, ValueRef::MaxKey);
            if is_refined {
                writer.append("l", next.map_or(ValueRef::MaxKey, |_| ValueRef::MinKey));
            }
            writer
                .end()
                .append("shard", chunk.shard)
                .append("lastmod", ClusterTime::new(chunk.major, 0))
                .begin_array("history");
            for (since, owner) in &chunk.owners {
                writer
                    .push_document()
                    .append("validAfter", ClusterTime::new(*since, 0))
                    .append("shard", *owner)
                    .end();
            }
            writer.end().end();
        }
        writer
            .end()
            .append("from", 0i64)
            .append("more", false)
            .append("ok", 1.0);
        Reply::from_writer(writer)
    }
}

pub(super) fn bound(writer: &mut DocWriter, value: Option<i32>, end: ValueRef<'_>) {
    match value {
        Some(value) => writer.append("k", value),
        None => writer.append("k", end),
    };
}

impl Endpoint for FakeConfig {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        let gate = self.gate.lock().clone();
        Box::pin(async move {
            match request.name() {
                "find" => {
                    let mut writer = Reply::writer();
                    writer.begin_document("cursor").begin_array("firstBatch");
                    let gone = self.gone.lock().clone();
                    for shard in ["a", "b", "c"] {
                        if gone.contains(&shard) {
                            continue;
                        }
                        let host = format!("{shard}/{shard}:1");
                        writer
                            .push_document()
                            .append("_id", shard)
                            .append("host", host.as_str())
                            .end();
                    }
                    writer
                        .end()
                        .append("id", 0i64)
                        .append("ns", "config.shards");
                    writer.end().append("ok", 1.0);
                    Ok(Reply::from_writer(writer))
                }
                "_configsvrGetDatabase" | "_configsvrCreateDatabase" => {
                    let (primary, version) = *self.database.lock();
                    let mut writer = Reply::writer().with("primary", primary);
                    writer.begin_document("version");
                    version.append_to(&mut writer);
                    writer.end().append("ok", 1.0);
                    Ok(Reply::from_writer(writer))
                }
                "_configsvrGetRouting"
                    if request.body().get_str("ns") == Some(cluster::sessions::NAMESPACE) =>
                {
                    Ok(FakeConfig::routing_of_sessions())
                }
                "_configsvrSessionsCollection" => {
                    let told = Reply::writer().with("exists", true);
                    Ok(Reply::from_writer(told.with("ok", 1.0)))
                }
                "_configsvrGetRouting" => {
                    self.questions.fetch_add(1, Ordering::SeqCst);
                    if let Some(gate) = gate {
                        gate.acquire().await.expect("never closed").forget();
                    }
                    if self.fails.load(Ordering::SeqCst) > 0 {
                        self.fails.fetch_sub(1, Ordering::SeqCst);
                        return Err(CallError::NotSent("away".to_owned()));
                    }
                    Ok(self.routing())
                }
                "_configsvrDdl" => self.ddl.lock().answer(request.body()),
                "getParameter" => Ok(match request.body().get("orphanCleanupDelaySecs") {
                    Some(_) => {
                        let told = Reply::writer().with("orphanCleanupDelaySecs", 900);
                        Reply::from_writer(told.with("ok", 1.0))
                    }
                    None => Reply::from_writer(Reply::writer().with("ok", 0.0)),
                }),
                "endSessions" | "killSessions" => Ok(Reply::ok()),
                other => panic!("the config server is asked for {other}"),
            }
        })
    }
}
