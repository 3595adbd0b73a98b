//! Change streams: every shard is watched, and `cluster::events` puts what they tell into one order.
//!
//! ```text
//!   aggregate ─► all shards, from one cluster time on
//!   getMore ───► step ─┬ Deliver   into the batch
//!                      └ Wait      shards are asked for more, all at once;
//!                                  if an event waits for them, they are moved past it first
//! ```
//!
//! The time is the router's own, which every shard hears of before it begins to watch: what happens
//! after the reply is later. Who goes on behind an event asks all shards from the event's time on.
//!
//! Shards wait for news themselves. As soon as one tells an event, the others that are still waiting
//! are moved past it, which is news for them.
//!
//! A change of the catalog that several shards make at one cluster time is one event.
//!
//! **Shards that are added.** ⚑ Before an event or a place of time T is told, the list of shards was read
//! from the config server by a request that told it T: a shard that is not in the list is added later
//! than T, and its events are later still. New ones are watched from the last time on for which the list
//! was known.
//!
//! Left out: going on behind an `invalidate`, where what other shards did at the very same cluster time
//! is left out.

use crate::Router;
use crate::aggregate::Command;
use crate::failure::{Failure, checked, unreachable};
use crate::merge::{Batch, Merge, kill_cursor};
use crate::operation;
use crate::registry::batch_of;
use crate::request::fields_without;
use crate::scatter::Answered;
use cluster::events::{Begin, EventMerge, Next};
use cluster::routing::ShardId;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::time::ClusterTime;
use query::pipeline::Start;
use query::pipeline::split::{Prepared, Split};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use wire::{BoxFuture, Endpoint, Reply, Request};

/// How long a `getMore` waits for news, as on one server.
const AWAIT_DATA_DEFAULT: Duration = Duration::from_secs(1);
const AWAIT_DATA_MAX: Duration = Duration::from_secs(600);

/// Opens a change stream over all shards.
pub(crate) async fn watch(command: &Command<'_>, prepared: Prepared) -> Result<Reply, Failure> {
    let router = command.router;
    let split = prepared.for_shards(None)?;
    let place = Place::of(&split, router.clock.now())?;
    let known_until = router.clock.now();
    let shards = shards_at(router, known_until).await?;
    let dropped = ["pipeline", "cursor", "explain", "runtimeConstants"];
    let fields = fields_without(command.request.body(), &dropped).finish();
    let mut events = Events {
        router: router.clone(),
        merge: EventMerge::new(shards.clone(), mark(place.time), place.begin.clone()),
        cursors: BTreeMap::new(),
        session: command.request.body().get_doc("lsid").map(Doc::to_owned),
        wait: Duration::ZERO,
        held: None,
        told: place.token(),
        shards: shards.iter().cloned().collect(),
        known_until,
        fields,
        split,
    };
    let opened = events.open(&shards, place.time).await;
    if let Err(failure) = opened {
        Box::new(events).close().await;
        return Err(failure);
    }
    let name = command.namespace.as_str();
    let options = crate::catalog::cursor_options(command.request.body());
    router.first_batch(name, Box::new(events), options).await
}

/// Where a stream begins.
struct Place {
    /// What all shards are asked from.
    time: ClusterTime,
    begin: Begin<String>,
}

impl Place {
    fn of(split: &Split, now: ClusterTime) -> Result<Place, Error> {
        let start = split.change_stream().map(|stream| &stream.start);
        let (token, may_invalidate) = match start {
            Some(Start::ResumeAfter(token)) => (token, false),
            Some(Start::StartAfter(token)) => (token, true),
            Some(Start::AtTime(time)) => return Ok(Place::at(*time)),
            Some(Start::Now) | None => return Ok(Place::at(now.next())),
        };
        let text = token.as_doc().get_str("_data").unwrap_or_default();
        // Whatever is wrong with a token a shard says best.
        let time = time_of(text).ok_or_else(|| malformed_token(token.as_doc()))?;
        let text = text.to_ascii_uppercase();
        if text == mark(time) {
            return Ok(Place::at(time));
        }
        if invalidates(&text) {
            return match may_invalidate {
                true => Ok(Place::at(time.next())),
                false => Err(Error::new(
                    Code::INVALID_RESUME_TOKEN,
                    "Attempting to resume a change stream using 'resumeAfter' is not allowed from \
                     an invalidate notification",
                )),
            };
        }
        Ok(Place {
            time,
            begin: Begin::Behind(text),
        })
    }

    fn at(time: ClusterTime) -> Place {
        Place {
            time,
            begin: Begin::At(mark(time)),
        }
    }

    fn token(&self) -> String {
        match &self.begin {
            Begin::At(token) | Begin::Behind(token) => token.clone(),
        }
    }
}

/// The token before everything of a time.
fn mark(time: ClusterTime) -> String {
    format!("82{:016X}2B0229296E04", time.to_u64())
}

/// The time in a token.
fn time_of(token: &str) -> Option<ClusterTime> {
    let time = token.strip_prefix("82")?.get(..16)?;
    u64::from_str_radix(time, 16)
        .ok()
        .map(ClusterTime::from_u64)
}

/// Whether a token of an event is that of an `invalidate`: its flag follows the number of the
/// operation, which takes one to three bytes behind its first.
fn invalidates(token: &str) -> bool {
    let Some(number) = token.get(28..) else {
        return false;
    };
    let digits = match number.get(..2) {
        Some("2B") => 2,
        Some("2C") => 4,
        Some("2D") => 6,
        _ => 0,
    };
    number.get(2 + digits..4 + digits) == Some("6F")
}

fn malformed_token(token: Doc<'_>) -> Error {
    match token.get("_data") {
        Some(ValueRef::String("")) => Error::location(40649, "invalid empty resume token"),
        Some(ValueRef::String(_)) => Error::new(
            Code::FAILED_TO_PARSE,
            "resume token string was not a valid hex string",
        ),
        _ => Error::location(
            40647,
            format!(
                "Bad resume token: _data of missing or of wrong type. Expected string, got \
                 {token:?}"
            ),
        ),
    }
}

/// A shard's cursor.
#[derive(Clone)]
struct Remote {
    member: Arc<dyn Endpoint>,
    namespace: String,
    id: i64,
}

/// An open change stream.
struct Events {
    router: Arc<Router>,
    merge: EventMerge<String, DocBuf>,
    /// Those that are open.
    cursors: BTreeMap<ShardId, Remote>,
    session: Option<DocBuf>,
    wait: Duration,
    /// What did not fit into the last batch.
    held: Option<(String, DocBuf)>,
    /// The token behind what was delivered.
    told: String,
    /// All that are or were watched.
    shards: BTreeSet<ShardId>,
    /// No other shard tells anything up to this time.
    known_until: ClusterTime,
    /// The client's command without its pipeline.
    fields: DocBuf,
    split: Split,
}

/// The shards that may have told something up to a time.
async fn shards_at(router: &Router, time: ClusterTime) -> Result<Vec<ShardId>, Error> {
    let mut find = DocWriter::new().with("find", "shards");
    find.begin_document("projection").append("_id", 1).end();
    if time > ClusterTime::ZERO {
        time.append_to(&mut find);
    }
    find.append("$db", "config");
    let listed = router.config.find_all(find).await?;
    let ids = listed
        .iter()
        .filter_map(|shard| shard.as_doc().get_str("_id"));
    let shards: Vec<ShardId> = ids.map(ShardId::new).collect();
    if shards
        .iter()
        .any(|shard| router.registry.find(shard.as_str()).is_none())
    {
        router.registry.reload(&router.config).await?;
    }
    Ok(shards)
}

impl Events {
    async fn open(&mut self, shards: &[ShardId], time: ClusterTime) -> Result<(), Failure> {
        let pipeline = self.split.shard_pipeline_from(time);
        let mut requests = Vec::with_capacity(shards.len());
        for shard in shards {
            let mut writer = fields_without(self.fields.as_doc(), &[]);
            writer
                .append("pipeline", &pipeline)
                .begin_document("cursor")
                .end()
                .append("fromMongos", true)
                .append("needsMerge", true);
            self.router.clock.append_to(&mut writer);
            let request = Request::from_parts(writer.finish(), Vec::new())?;
            requests.push((shard.clone(), request));
        }
        let mut failure = None;
        for answered in self.router.ask_all(requests).await? {
            let told = match answered {
                Ok(Answered {
                    shard,
                    reply,
                    member,
                    ..
                }) => self.told_by(&shard, &member, reply.document()),
                Err(failure) => Err(failure),
            };
            // All are looked at, so that all that are open can be closed.
            failure = failure.or(told.err());
        }
        failure.map_or(Ok(()), Err)
    }

    /// Makes sure that all shards are watched that may tell something up to a time; whether there were
    /// others than those that are.
    async fn meet(&mut self, time: ClusterTime) -> Result<bool, Failure> {
        if time <= self.known_until {
            return Ok(false);
        }
        let time = time.max(self.router.clock.now());
        let listed = shards_at(&self.router, time).await?;
        let is_new = |shard: &ShardId| !self.shards.contains(shard);
        let new: Vec<ShardId> = listed.into_iter().filter(is_new).collect();
        let from = self.known_until.next();
        for shard in &new {
            let added = self.merge.add(shard.clone(), mark(from));
            added.map_err(|error| Error::new(Code::INTERNAL_ERROR, error.to_string()))?;
            self.shards.insert(shard.clone());
        }
        if !new.is_empty() {
            self.open(&new, from).await?;
        }
        self.known_until = time;
        Ok(!new.is_empty())
    }

    /// Takes over a batch of a shard.
    fn told_by(
        &mut self,
        shard: &ShardId,
        member: &Arc<dyn Endpoint>,
        reply: Doc<'_>,
    ) -> Result<(), Failure> {
        let malformed = || {
            Error::new(
                Code::INTERNAL_ERROR,
                format!("shard {shard} did not answer with a change stream"),
            )
        };
        let cursor = reply.get_doc("cursor").ok_or_else(malformed)?;
        let Some(ValueRef::Int64(id)) = cursor.get("id") else {
            return Err(malformed().into());
        };
        let remote = Remote {
            member: member.clone(),
            namespace: cursor.get_str("ns").unwrap_or_default().to_owned(),
            id,
        };
        match id {
            0 => self.cursors.remove(shard),
            _ => self.cursors.insert(shard.clone(), remote),
        };
        let token = |doc: Option<Doc<'_>>| {
            doc.and_then(|doc| doc.get_str("_data"))
                .map(str::to_owned)
                .ok_or_else(malformed)
        };
        let mut batch = Vec::new();
        for event in batch_of(cursor) {
            batch.push((token(event.get_doc("_id"))?, event.to_owned()));
        }
        let mark = token(cursor.get_doc("postBatchResumeToken"))?;
        let merged = self.merge.answered(shard, batch, mark);
        merged.map_err(|error| Error::new(Code::INTERNAL_ERROR, error.to_string()))?;
        if id == 0 {
            self.merge.ended(shard);
        }
        Ok(())
    }

    async fn fill_from(&mut self, batch: &mut Batch) -> Result<bool, Failure> {
        let deadline = Instant::now() + self.wait;
        let mut is_empty = true;
        loop {
            if batch.is_full() {
                return Ok(false);
            }
            let next = match self.held.take() {
                Some((token, event)) => Next::Deliver(token, event),
                None => {
                    let coming = self.merge.next_token().and_then(|token| time_of(token));
                    if let Some(time) = coming {
                        self.meet(time).await?;
                    }
                    self.merge.step()
                }
            };
            match next {
                // The same change of the catalog on another shard.
                Next::Deliver(token, event)
                    if token == self.told && event.get("documentKey").is_none() => {}
                Next::Deliver(token, event) => {
                    if !batch.offer(event.as_doc()) {
                        self.held = Some((token, event));
                        return Ok(false);
                    }
                    is_empty = false;
                    self.told = token;
                    // What the others have to tell comes too late.
                    if event.as_doc().get_str("operationType") == Some("invalidate") {
                        return Ok(true);
                    }
                }
                Next::Wait { shards, until } => {
                    let place = self.merge.place();
                    if let Some(time) = time_of(&place)
                        && self.meet(time).await?
                    {
                        continue;
                    }
                    self.told = place;
                    let left = deadline.saturating_duration_since(Instant::now());
                    if !is_empty || left.is_zero() {
                        return Ok(false);
                    }
                    self.ask(shards, until.as_deref(), left).await?;
                }
                Next::PlaceLost => return Err(place_lost(&self.told).into()),
                Next::End => return Ok(true),
            }
        }
    }

    /// Asks shards for more, all at once. If an event waits for them they are moved past it, or
    /// as soon as one of them tells one.
    async fn ask(
        &mut self,
        shards: Vec<ShardId>,
        until: Option<&str>,
        left: Duration,
    ) -> Result<(), Failure> {
        let past = until.and_then(time_of);
        let wait = match past {
            Some(_) => Duration::from_millis(1),
            None => left,
        };
        let mut asking = JoinSet::new();
        let mut moving = JoinSet::new();
        for shard in shards {
            let Some(remote) = self.cursors.get(&shard).cloned() else {
                self.merge.ended(&shard);
                continue;
            };
            let more = self.more(&shard, &remote, wait)?;
            let note = match past {
                Some(time) => Some(self.note(&shard, time).await?),
                None => None,
            };
            asking.spawn(async move {
                if let Some(note) = note {
                    note.await;
                }
                let answered = remote.member.call(more).await;
                (shard, remote, answered)
            });
        }
        let mut failure = None;
        while let Some(ended) = operation::waiting(asking.join_next()).await? {
            let (shard, remote, answered) = ended.map_err(|error| {
                Error::new(Code::INTERNAL_ERROR, format!("a call did not end: {error}"))
            })?;
            let answered = answered
                .map_err(|error| Failure::from(unreachable(&shard, &error, false)))
                .and_then(|reply| checked(reply, &shard));
            let told = answered.and_then(|reply| {
                self.router.clock.observe(reply.document());
                self.told_by(&shard, &remote.member, reply.document())
            });
            failure = failure.or(told.err());
            let held_up = self.merge.held_up();
            if let Some((token, shards)) = held_up.filter(|_| moving.is_empty())
                && let Some(time) = time_of(token)
            {
                for shard in shards {
                    moving.spawn(self.note(&shard, time).await?);
                }
            }
        }
        while moving.join_next().await.is_some() {}
        failure.map_or(Ok(()), Err)
    }

    /// Moves a shard's log past a time, unless it is.
    async fn note(
        &self,
        shard: &ShardId,
        time: ClusterTime,
    ) -> Result<impl Future<Output = ()> + Send + use<>, Error> {
        let primary = self.router.shard(shard).await?.endpoint;
        let note = note(time)?;
        let shard = shard.clone();
        Ok(async move {
            // Refused where the shard is past it. If it fails, the shard's mark says so.
            if let Err(error) = primary.call(note).await {
                tracing::debug!(%error, %shard, "a log at rest was not moved");
            }
        })
    }

    fn more(&self, shard: &ShardId, remote: &Remote, wait: Duration) -> Result<Request, Error> {
        let Some((database, collection)) = remote.namespace.split_once('.') else {
            let message = format!("shard {shard} did not name its cursor's namespace");
            return Err(Error::new(Code::INTERNAL_ERROR, message));
        };
        let wait_ms = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX).max(1);
        let mut more = DocWriter::new()
            .with("getMore", remote.id)
            .with("collection", collection)
            .with("maxTimeMS", wait_ms);
        if let Some(session) = &self.session {
            more.append("lsid", session);
        }
        self.router.clock.append_to(&mut more);
        more.append("$db", database);
        Request::from_parts(more.finish(), Vec::new())
    }
}

fn note(time: ClusterTime) -> Result<Request, Error> {
    let mut note = DocWriter::new().with("appendOplogNote", 1);
    note.begin_document("data").end();
    note.append("maxClusterTime", time);
    time.append_to(&mut note);
    note.append("$db", "admin");
    Request::from_parts(note.finish(), Vec::new())
}

fn place_lost(token: &str) -> Error {
    let mut labels = DocWriter::new();
    labels
        .begin_array("errorLabels")
        .push("NonResumableChangeStreamError")
        .end();
    let message =
        format!("cannot resume stream; the resume token was not found. {{_data: \"{token}\"}}");
    Error::new(Code::CHANGE_STREAM_FATAL_ERROR, message).with_details(labels.finish())
}

impl Merge for Events {
    fn fill<'a>(&'a mut self, batch: &'a mut Batch) -> BoxFuture<'a, Result<bool, Failure>> {
        Box::pin(self.fill_from(batch))
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            for remote in self.cursors.into_values() {
                kill_cursor(&*remote.member, &remote.namespace, remote.id).await;
            }
        })
    }

    fn set_batch_size(&mut self, _batch_size: Option<u64>) {}

    fn awaits_data(&self) -> bool {
        true
    }

    fn set_wait(&mut self, wait: Option<Duration>) {
        self.wait = wait.unwrap_or(AWAIT_DATA_DEFAULT).min(AWAIT_DATA_MAX);
    }

    fn append_state(&self, cursor: &mut DocWriter) {
        cursor
            .begin_document("postBatchResumeToken")
            .append("_data", self.told.as_str())
            .end();
    }
}
