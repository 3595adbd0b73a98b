//! This shard's part in a write over several shards that changes each document once, while ranges
//! move and members fail over. The protocol is `cluster::broadcast`; here it is carried out.
//!
//! ```text
//!   update, delete with  _terndbBroadcast: {slot, number, stream, sent, again, ranges: [min, max, ..], uuid,
//!                                           without: [min, max, ..], after}
//!     slot, number   the operation; numbers of a slot grow
//!     stream         which part of it
//!     sent           when it was sent for the first time
//!     again          it was sent before, and may arrive twice
//!     ranges, uuid   encoded bounds as binary, and of which collection; absent: what the version says
//!     without        of what the version says, all but these; and `ranges` besides
//!     after          the record key up to which all is done
//!
//!   reply   n, nModified, writeErrors as ever, and
//!           broadcast: {left: [{ranges: [min, max, ..], after}], version: {e, t, v}}   if something was left
//!
//!   hold (slot, stream) ─► progress? ─► search, in the order of record keys ─► 128 keys ─┐
//!                                          ▲    ▲                                        ▼
//!                        other ranges: leave    └── one entry: writes and progress ◄── gate, latches
//! ```
//!
//! Progress is a document of the meta space (`progress.rs`), put by the entry whose writes it counts;
//! nobody else sees it, not change streams, not moves. It belongs to the shard, not to a range: what goes
//! with a range is the place that the router is told.
//!
//! What must hold:
//! - One request at a time has a stream ([`Broadcasts`]). Who takes it over from one whose entry nobody
//!   waited for, or repeats a request, first lets the log catch up, then reads the progress.
//! - ⚑ Entries are of the term in which progress was read: another primary may have gone on meanwhile.
//! - A batch is evaluated under the collection's gate, and only for ranges that are owned then. Where
//!   one of them is blocked it waits, as any write does; where it is blocked for reads too, also if
//!   nothing of it was found: what is there by now may be on another shard.
//! - A retryable statement keeps no progress: the session's history, which moves with the range, says
//!   what was done. Its part is limited to its ranges all the same, and told what it left.
//!
//! Progress is removed when it was neither written nor used for an hour, with the sessions; ⚑ a request whose
//! progress may have been removed is refused with 225 (`expiry.rs`).

mod expiry;
mod progress;
mod walk;

pub(crate) use walk::walk;

use progress::ProgressKey;

use crate::clock::Clock;
use crate::operation::Operation;
use crate::read::append_ranges;
use cluster::broadcast::{Left, Sent};
use model::Error;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::ids::Uuid;
use model::range::RangeSet;
use model::time::ClusterTime;
use model::version::PlacementVersion;
use parking_lot::Mutex;
use replication::Term;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;

/// What a router asks of this shard.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    key: ProgressKey,
    sent: Sent,
    again: bool,
    ranges: Option<RangeSet>,
    /// `None`: the version says nothing where ranges do.
    without: Option<RangeSet>,
    uuid: Option<Uuid>,
    after: Option<Vec<u8>>,
}

impl Part {
    pub(crate) fn read(spec: Doc<'_>) -> Result<Part, Error> {
        let (mut slot, mut number, mut stream, mut sent) = (None, None, None, None);
        let (mut again, mut ranges, mut uuid, mut after) = (false, None, None, None);
        let mut without = None;
        for field in spec.iter() {
            match (field.key(), field.value()) {
                ("slot", ValueRef::Binary { bytes, .. }) => slot = bytes.try_into().ok().map(Uuid),
                ("number", ValueRef::Int64(given)) => number = u64::try_from(given).ok(),
                ("stream", ValueRef::Int32(given)) => stream = u32::try_from(given).ok(),
                ("sent", ValueRef::Timestamp(given)) => {
                    sent = Some(ClusterTime::new(given.seconds, given.increment));
                }
                ("again", ValueRef::Boolean(given)) => again = given,
                ("ranges", ValueRef::Array(bounds)) => {
                    ranges = Some(crate::read::ranges_of(bounds)?)
                }
                ("without", ValueRef::Array(bounds)) => {
                    without = Some(crate::read::ranges_of(bounds)?)
                }
                ("uuid", ValueRef::Binary { bytes, .. }) => uuid = bytes.try_into().ok().map(Uuid),
                ("after", ValueRef::Binary { bytes, .. }) => after = Some(bytes.to_vec()),
                (name, _) => return Err(malformed(name)),
            }
        }
        Ok(Part {
            key: ProgressKey {
                slot: slot.ok_or_else(|| malformed("slot"))?,
                stream: stream.ok_or_else(|| malformed("stream"))?,
            },
            sent: Sent {
                number: number.ok_or_else(|| malformed("number"))?,
                at: sent.ok_or_else(|| malformed("sent"))?,
            },
            again,
            ranges,
            without,
            uuid,
            after,
        })
    }
}

fn malformed(what: &str) -> Error {
    Error::bad_value(format!("_terndbBroadcast is malformed: {what}"))
}

/// What a part leaves to others.
#[derive(Clone, Debug)]
pub(crate) struct LeftBehind {
    pub(crate) left: Vec<Left>,
    /// By which version, if the collection is known here.
    pub(crate) version: Option<PlacementVersion>,
}

impl LeftBehind {
    pub(crate) fn to_document(&self) -> DocBuf {
        let mut writer = DocWriter::new();
        append_left(&mut writer, &self.left);
        if let Some(version) = self.version {
            writer.begin_document("version");
            version.append_to(&mut writer);
            writer.end();
        }
        writer.finish()
    }
}

fn append_left(writer: &mut DocWriter, all: &[Left]) {
    writer.begin_array("left");
    for left in all {
        writer.push_document();
        append_ranges(writer, "ranges", &left.ranges);
        if let Some(bytes) = &left.after {
            writer.append("after", ValueRef::Binary { subtype: 0, bytes });
        }
        writer.end();
    }
    writer.end();
}

/// Streams that requests work on, or have worked on within the lifetime of progress.
#[derive(Default)]
pub(crate) struct Broadcasts {
    held: Mutex<HashMap<ProgressKey, Stream>>,
    leads_since: Mutex<Option<(Term, i64)>>,
}

struct Stream {
    settled: Arc<tokio::sync::Mutex<Settled>>,
    /// When somebody has worked on it last, by the clock that nobody sets.
    used_ms: i64,
}

/// Whether all that was appended of a stream is applied, as far as this member knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Settled {
    Yes,
    /// An entry was on its way when its writer gave up.
    No,
}

/// A stream that nobody else works on.
struct Held<'a> {
    all: &'a Broadcasts,
    clock: &'a dyn Clock,
    key: ProgressKey,
    settled: OwnedMutexGuard<Settled>,
}

impl Broadcasts {
    async fn hold<'a>(
        &'a self,
        key: ProgressKey,
        operation: &Operation,
        clock: &'a dyn Clock,
    ) -> Result<Held<'a>, Error> {
        let stream = {
            let mut held = self.held.lock();
            let new = || Stream {
                settled: Arc::new(tokio::sync::Mutex::new(Settled::Yes)),
                used_ms: clock.elapsed_ms(),
            };
            held.entry(key).or_insert_with(new).settled.clone()
        };
        let settled = operation.wait_for(stream.lock_owned()).await?;
        Ok(Held {
            all: self,
            clock,
            key,
            settled,
        })
    }

    /// Forgets streams that nobody works on, nor has since then.
    fn forget_unused(&self, cutoff_ms: i64) {
        let mut held = self.held.lock();
        held.retain(|_, stream| {
            // Who waits for it has it, too.
            stream.used_ms >= cutoff_ms || Arc::strong_count(&stream.settled) > 1
        });
    }

    /// Keeps a stream from being worked on, unless somebody does, or has of late.
    fn hold_unused(&self, key: ProgressKey) -> Option<OwnedMutexGuard<Settled>> {
        let mut held = self.held.lock();
        if held.contains_key(&key) {
            return None;
        }
        let settled = Arc::new(tokio::sync::Mutex::new(Settled::Yes));
        let guard = settled.clone().try_lock_owned().ok()?;
        let used_ms = i64::MIN;
        held.insert(key, Stream { settled, used_ms });
        Some(guard)
    }

    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        self.held.lock().len()
    }

    /// Since when this member has led, as far as it was asked, by the same clock.
    fn leads_since(&self, term: Term, now_ms: i64) -> i64 {
        let mut known = self.leads_since.lock();
        match *known {
            Some((of, since_ms)) if of == term => since_ms,
            Some(_) | None => {
                *known = Some((term, now_ms));
                now_ms
            }
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let now_ms = self.clock.elapsed_ms();
        if let Some(stream) = self.all.held.lock().get_mut(&self.key) {
            stream.used_ms = now_ms;
        }
    }
}
