//! Following the changes of one side: every changed document is put into the open queue.
//!
//! ```text
//! change stream ─┐
//!                ├─► some events ──► raise the side's watermark
//! or oplog ──────┘                   queue: rechecks, then marks, then where to resume
//! ```
//!
//! **Nothing is missed**: where to resume is kept only behind the rechecks of everything before it, so
//! that a process that dies between them reads some events twice. **Nothing older is seen**: the watermark
//! is raised before a recheck can be found in the queue, so that whoever looks at the document
//! reads a state that has the change.
//!
//! Changes of collections and indexes are kept for the report, and make the next generation look at
//! what both sides have. A collection that gets a name by `rename` is marked to be scanned anew: what
//! happened to it under its old name may have gone unnoticed. So is one that is dropped or created: its
//! uuid tells it from its successor (see `collections`) unless somebody gave that the same one, as
//! restoring a dump can. Which of the two events a server tells depends on its version.

use crate::cluster::{Cluster, code_of};
use crate::element::Malformed;
use crate::error::VerifyError;
use crate::event::Event;
use crate::late::series_of;
use crate::merge::Side;
use crate::namespace::Namespace;
use crate::record::{
    DefinitionChange, Mark, Recheck, StreamRecord, definition_key, put, rescan_key, stream_key,
};
use crate::scan::Shared;
use crate::settings::Changes;
use crate::status::Position;
use crate::store::Change;
use crate::tail::Tail;
use crate::time::ClusterTime;
use bson::RawDocumentBuf;
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::ResumeToken;
use mongodb::error::{Error as DriverError, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const EVENTS_AT_ONCE: usize = 2000;
const GATHERING_TIME: Duration = Duration::from_millis(100);
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// How long a side may be out of reach before a run gives up; it can be resumed.
const PATIENCE: Duration = Duration::from_secs(300);
const HISTORY_LOST: i32 = 286;
const ACTION: &str = "tell its changes";

/// Follows a side until that is no longer possible, and says why.
pub async fn follow(shared: Arc<Shared>, side: Side, start: ClusterTime) -> VerifyError {
    let kept = crate::record::read(&shared.store, &stream_key(side)).await;
    let mut mark = match kept {
        Ok(kept) => kept.map(|record: StreamRecord| record.mark),
        Err(error) => return error,
    };
    // Behind what is known to be as it was, changes may have been put back.
    if let Some(known) = shared.historian(side).resumed_at() {
        mark = mark.map(|mark| match mark.time() {
            Some(time) if time <= known => mark,
            Some(_) | None => Mark::Time(known),
        });
    }
    let cluster = shared.side(side);
    let mut worked = Instant::now();
    loop {
        let opened = Feed::open(cluster, shared.settings.changes, start, mark.as_ref()).await;
        let error = match opened {
            Ok(feed) => pump(&shared, side, feed, &mut mark, &mut worked).await,
            Err(error) => error,
        };
        if !error.is_transient() || worked.elapsed() > PATIENCE {
            return error;
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Where changes come from.
enum Feed {
    Stream(Box<Streamed>),
    Oplog(Box<Tail>),
}

struct Streamed {
    cluster: Cluster,
    stream: ChangeStream<RawDocumentBuf>,
}

/// What a feed handed over at once.
struct Gathered {
    events: Vec<Event>,
    /// Where to resume behind them.
    mark: Mark,
    position: Position,
}

impl Feed {
    async fn open(
        cluster: &Cluster,
        changes: Changes,
        start: ClusterTime,
        mark: Option<&Mark>,
    ) -> Result<Feed, VerifyError> {
        let token = match mark {
            Some(Mark::Token(token)) => Some(token),
            Some(Mark::Time(_)) | None => None,
        };
        // A run may go on in another way than it began in: a time serves both.
        let time = match mark {
            Some(mark) => mark.time().unwrap_or(start),
            None => start,
        };
        match changes {
            Changes::Oplog => Ok(Feed::Oplog(Box::new(Tail::new(cluster.clone(), time)))),
            Changes::Stream => Feed::open_stream(cluster, time, token)
                .await
                .map_err(|error| stream_failed(cluster, &error)),
        }
    }

    async fn open_stream(
        cluster: &Cluster,
        time: ClusterTime,
        token: Option<&ResumeToken>,
    ) -> Result<Feed, DriverError> {
        let stream = match cluster.changes(time, token.cloned(), true).await {
            // Servers before 6.0 do not have the option.
            Err(error) if is_refused(&error) => cluster.changes(time, token.cloned(), false).await,
            opened => opened,
        };
        Ok(Feed::Stream(Box::new(Streamed {
            cluster: cluster.clone(),
            stream: stream?,
        })))
    }

    /// What has happened; None if there is nothing to say, not even how far it has come.
    async fn next(&mut self) -> Result<Option<Gathered>, VerifyError> {
        match self {
            Feed::Stream(streamed) => streamed.gather().await,
            Feed::Oplog(tail) => {
                let tailed = tail.next().await?;
                Ok(Some(Gathered {
                    events: tailed.events,
                    mark: Mark::Time(tailed.resume_at),
                    position: Position {
                        time: tailed.reached,
                        idle: tailed.is_idle,
                    },
                }))
            }
        }
    }
}

fn is_refused(error: &DriverError) -> bool {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => command.message.contains("showExpandedEvents"),
        _ => false,
    }
}

fn stream_failed(cluster: &Cluster, error: &DriverError) -> VerifyError {
    match code_of(error) {
        Some(HISTORY_LOST) => cluster.history_lost(),
        _ => match cluster.failed(ACTION, error) {
            // The stream is over all databases, whatever is included.
            VerifyError::Privilege { detail, .. } => cluster.no_changes(format!(
                "its user may not watch all databases ({detail}): grant it the role readAnyDatabase"
            )),
            other => other,
        },
    }
}

impl Streamed {
    async fn gather(&mut self) -> Result<Option<Gathered>, VerifyError> {
        let Streamed { cluster, stream } = self;
        let mut events = Vec::new();
        let gathering = Instant::now();
        let idle = loop {
            let next = stream.next_if_any().await;
            match next.map_err(|error| stream_failed(cluster, &error))? {
                None => break true,
                Some(event) => {
                    let event = Event::of_stream(event.as_bytes());
                    events.push(event.map_err(|Malformed| cluster.malformed(ACTION))?);
                }
            }
            if events.len() >= EVENTS_AT_ONCE || gathering.elapsed() > GATHERING_TIME {
                break false;
            }
        };
        let Some(token) = stream.resume_token() else {
            return Ok(None);
        };
        let time = ClusterTime::of_token(&token).ok_or_else(|| {
            cluster.no_changes(
                "its resume tokens have a form that this build does not know".to_owned(),
            )
        })?;
        Ok(Some(Gathered {
            events,
            mark: Mark::Token(token),
            position: Position { time, idle },
        }))
    }
}

/// Takes events from a feed until it breaks, and says how.
async fn pump(
    shared: &Arc<Shared>,
    side: Side,
    mut feed: Feed,
    mark: &mut Option<Mark>,
    worked: &mut Instant,
) -> VerifyError {
    loop {
        let gathered = match feed.next().await {
            Ok(gathered) => gathered,
            Err(error) => return error,
        };
        *worked = Instant::now();
        let Some(gathered) = gathered else { continue };
        if let Err(error) = shared.absorb(side, &gathered.events, &gathered.mark).await {
            return error;
        }
        *mark = Some(gathered.mark);
        let stream = shared.status.stream(side);
        stream.position.send_replace(gathered.position);
    }
}

impl Shared {
    /// Puts what events changed into the queue, and keeps behind it where to resume.
    async fn absorb(&self, side: Side, events: &[Event], mark: &Mark) -> Result<(), VerifyError> {
        let mut rechecks = Vec::new();
        let mut then = Vec::new();
        for event in events {
            self.side(side).reads_after.raise(event.time);
            if let (Some(series), Some(_)) = (series_of(&event.namespace), &event.id) {
                self.count_measurements(side, event, &series);
                continue;
            }
            let name = self.name_on_source(side, &event.namespace);
            if !self.settings.verifies(&event.namespace, &name) {
                // A collection may still get a name that is verified.
                if let Some(to) = &event.to {
                    self.renamed(side, event, to, &mut then)?;
                }
                continue;
            }
            self.count(side, event);
            match &event.id {
                Some(id) => rechecks.push(Recheck {
                    namespace: name.to_string(),
                    id: id.clone(),
                    changed_ms: Some(event.time.milliseconds()),
                }),
                None => {
                    if let Some(to) = &event.to {
                        self.renamed(side, event, to, &mut then)?;
                    }
                    match event.what.as_str() {
                        "drop" | "create" => {
                            then.push(put(rescan_key(&name.to_string()), &event.time)?);
                        }
                        "dropDatabase" => self.dropped_database(side, event, &mut then).await?,
                        _ => {}
                    }
                    then.push(self.definition(side, event)?);
                }
            }
        }
        let mark = mark.clone();
        then.push(put(stream_key(side), &StreamRecord { mark })?);
        let defined = events.iter().any(|event| event.id.is_none());
        self.queue.add(&self.store, &rechecks, then).await?;
        if defined {
            // Behind the marks, so that who reads them after this sees them.
            self.status.definitions_have_changed();
        }
        Ok(())
    }

    pub fn name_on_source(&self, side: Side, namespace: &Namespace) -> Namespace {
        match side {
            Side::Source => namespace.clone(),
            Side::Destination => self.settings.mapping.to_source(namespace),
        }
    }

    fn renamed(
        &self,
        side: Side,
        event: &Event,
        to: &Namespace,
        changes: &mut Vec<Change>,
    ) -> Result<(), VerifyError> {
        let name = self.name_on_source(side, to);
        if self.settings.verifies(to, &name) {
            changes.push(put(rescan_key(&name.to_string()), &event.time)?);
        }
        Ok(())
    }

    /// Every collection goes with its database. (Servers tell of each before, as far as is known.)
    async fn dropped_database(
        &self,
        side: Side,
        event: &Event,
        changes: &mut Vec<Change>,
    ) -> Result<(), VerifyError> {
        for record in self.compared_collections().await? {
            let name = match side {
                Side::Source => &record.source,
                Side::Destination => &record.destination,
            };
            let database = name
                .split_once('.')
                .map_or(name.as_str(), |(first, _)| first);
            if database == event.namespace.database {
                changes.push(put(rescan_key(&record.source), &event.time)?);
            }
        }
        Ok(())
    }

    fn definition(&self, side: Side, event: &Event) -> Result<Change, VerifyError> {
        let change = DefinitionChange {
            side,
            what: event.what.clone(),
            namespace: event.namespace.to_string(),
            to: event.to.as_ref().map(ToString::to_string),
            at_ms: event.time.milliseconds(),
        };
        put(definition_key(event.time, &change), &change)
    }

    /// Time series are compared as a whole, at the end: all there is to know before is that they changed.
    fn count_measurements(&self, side: Side, event: &Event, series: &Namespace) {
        let name = self.name_on_source(side, series);
        if self.settings.verifies(series, &name) {
            self.count(side, event);
        }
    }

    fn count(&self, side: Side, event: &Event) {
        let stream = self.status.stream(side);
        let counter = match event.what.as_str() {
            "insert" => &stream.inserts,
            "update" => &stream.updates,
            "replace" => &stream.replaces,
            "delete" => &stream.deletes,
            _ => &stream.definitions,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let off = self.status.writes_off.get();
        if off.is_some_and(|off| event.time > off.on(side)) {
            stream.after_writes_off.fetch_add(1, Ordering::Relaxed);
        }
    }
}
