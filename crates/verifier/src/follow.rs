//! Following the changes of one side: every changed document is put into the open queue.
//!
//! ```text
//! change stream ──► some events ──► raise the side's watermark
//!                                   queue: rechecks, then marks, then the resume token
//! ```
//!
//! **Nothing is missed**: a token is kept only behind the rechecks of everything before it, so a
//! process that dies between them reads some events twice. **Nothing older is seen**: the watermark
//! is raised before a recheck can be found in the queue, so that whoever looks at the document
//! reads a state that has the change.
//!
//! Changes of collections and indexes are kept for the report, and make the next generation look at
//! what both sides have. A collection that gets a name by `rename` is marked to be scanned anew: what
//! happened to it under its old name may have gone unnoticed. Dropped and created ones are told apart
//! by their uuid (see `collections`).

use crate::element::{Malformed, field, kind};
use crate::error::VerifyError;
use crate::merge::Side;
use crate::namespace::Namespace;
use crate::record::{
    DefinitionChange, Recheck, StreamRecord, definition_key, put, rescan_key, stream_key,
};
use crate::scan::Shared;
use crate::status::Position;
use crate::store::Change;
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

/// One event, as far as it matters here.
struct Event {
    what: String,
    namespace: Namespace,
    to: Option<Namespace>,
    time: ClusterTime,
    id: Option<crate::element::Value>,
}

/// Follows a side until that is no longer possible, and says why.
pub async fn follow(shared: Arc<Shared>, side: Side, start: ClusterTime) -> VerifyError {
    match follow_until(&shared, side, start).await {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

enum Never {}

async fn follow_until(
    shared: &Arc<Shared>,
    side: Side,
    start: ClusterTime,
) -> Result<Never, VerifyError> {
    let cluster = shared.side(side);
    let kept: Option<StreamRecord> = crate::record::read(&shared.store, &stream_key(side)).await?;
    let mut token = kept.map(|record| record.token);
    let mut expanded = true;
    let mut worked = Instant::now();
    loop {
        let error = match cluster.changes(start, token.clone(), expanded).await {
            Ok(stream) => pump(shared, side, stream, &mut token, &mut worked).await?,
            // Servers before 6.0 do not have the option.
            Err(error) if expanded && is_refused(&error) => {
                expanded = false;
                continue;
            }
            Err(error) => error,
        };
        let transient = cluster.failed("tell its changes", &error).is_transient();
        if !transient || worked.elapsed() > PATIENCE {
            return Err(cannot_follow(shared, side, &error));
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

fn is_refused(error: &DriverError) -> bool {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => command.message.contains("showExpandedEvents"),
        _ => false,
    }
}

fn cannot_follow(shared: &Shared, side: Side, error: &DriverError) -> VerifyError {
    let cluster = shared.side(side);
    match error.kind.as_ref() {
        ErrorKind::Command(command) if command.code == HISTORY_LOST => VerifyError::NoChanges {
            side,
            address: cluster.address.clone(),
            detail: "its oplog no longer reaches back to where this run left off: make the oplog larger and begin anew with --restart".to_owned(),
        },
        _ => cluster.failed("tell its changes", error),
    }
}

/// Takes events from a stream until it breaks; what breaks it is not an error of ours.
async fn pump(
    shared: &Arc<Shared>,
    side: Side,
    mut stream: ChangeStream<RawDocumentBuf>,
    token: &mut Option<ResumeToken>,
    worked: &mut Instant,
) -> Result<DriverError, VerifyError> {
    let cluster = shared.side(side);
    loop {
        let mut events = Vec::new();
        let gathering = Instant::now();
        let idle = loop {
            match stream.next_if_any().await {
                Err(error) => return Ok(error),
                Ok(None) => break true,
                Ok(Some(event)) => {
                    let event = parse(event.as_bytes());
                    events.push(event.map_err(|Malformed| cluster.malformed("tell its changes"))?);
                }
            }
            if events.len() >= EVENTS_AT_ONCE || gathering.elapsed() > GATHERING_TIME {
                break false;
            }
        };
        *worked = Instant::now();
        let Some(next) = stream.resume_token() else {
            continue;
        };
        let Some(time) = ClusterTime::of_token(&next) else {
            return Err(VerifyError::NoChanges {
                side,
                address: cluster.address.clone(),
                detail: "its resume tokens have a form that this build does not know".to_owned(),
            });
        };
        shared.absorb(side, &events, &next).await?;
        *token = Some(next);
        let position = Position { time, idle };
        shared.status.stream(side).position.send_replace(position);
    }
}

impl Shared {
    /// Puts what events changed into the queue, and keeps the token behind it.
    async fn absorb(
        &self,
        side: Side,
        events: &[Event],
        token: &ResumeToken,
    ) -> Result<(), VerifyError> {
        let mut rechecks = Vec::new();
        let mut then = Vec::new();
        for event in events {
            self.side(side).reads_after.raise(event.time);
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
                    then.push(self.definition(side, event)?);
                }
            }
        }
        then.push(put(
            stream_key(side),
            &StreamRecord {
                token: token.clone(),
            },
        )?);
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

fn parse(event: &[u8]) -> Result<Event, Malformed> {
    let text = |document: &[u8], name: &str| -> Result<Option<String>, Malformed> {
        let Some(value) = field(document, name)?.filter(|value| value.kind == kind::STRING) else {
            return Ok(None);
        };
        let text = value.bytes.get(4..value.bytes.len().saturating_sub(1));
        let text = std::str::from_utf8(text.ok_or(Malformed)?).map_err(|_| Malformed)?;
        Ok(Some(text.to_owned()))
    };
    let namespace = |name: &str| -> Result<Option<Namespace>, Malformed> {
        let Some(value) = field(event, name)?.filter(|value| value.kind == kind::DOCUMENT) else {
            return Ok(None);
        };
        let database = text(value.bytes, "db")?.ok_or(Malformed)?;
        // Dropping a whole database names no collection.
        let collection = text(value.bytes, "coll")?.unwrap_or_default();
        Ok(Some(Namespace::new(database, collection)))
    };
    let id = match field(event, "documentKey")? {
        Some(key) if key.kind == kind::DOCUMENT => field(key.bytes, "_id")?.map(|id| id.to_value()),
        Some(_) | None => None,
    };
    let time = field(event, "clusterTime")?.ok_or(Malformed)?;
    let time = time.bytes.first_chunk::<8>().ok_or(Malformed)?;
    let [c0, c1, c2, c3, s0, s1, s2, s3] = *time;
    Ok(Event {
        what: text(event, "operationType")?.ok_or(Malformed)?,
        namespace: namespace("ns")?.unwrap_or_else(|| Namespace::new("", "")),
        to: namespace("to")?,
        time: ClusterTime {
            seconds: u32::from_le_bytes([s0, s1, s2, s3]),
            counter: u32::from_le_bytes([c0, c1, c2, c3]),
        },
        id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Timestamp, doc};

    #[test]
    fn events_are_taken_apart() {
        let time = Timestamp {
            time: 7,
            increment: 9,
        };
        let check = |event: bson::Document, what: &str, namespace: &str, has_id: bool| {
            let event = parse(&event.to_vec().unwrap()).unwrap();
            assert_eq!(event.what, what);
            assert_eq!(event.namespace.to_string(), namespace);
            assert_eq!(event.id.is_some(), has_id);
            assert_eq!(event.time.timestamp(), time);
        };
        check(
            doc! {"operationType": "insert", "ns": {"db": "a", "coll": "b.c"}, "documentKey": {"_id": 1}, "clusterTime": time},
            "insert",
            "a.b.c",
            true,
        );
        check(
            doc! {"operationType": "dropDatabase", "ns": {"db": "a"}, "clusterTime": time},
            "dropDatabase",
            "a.",
            false,
        );
        for wrong in [doc! {}, doc! {"operationType": "insert", "ns": {}}] {
            assert!(parse(&wrong.to_vec().unwrap()).is_err());
        }
    }
}
