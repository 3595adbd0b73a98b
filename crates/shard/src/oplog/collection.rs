//! `local.oplog.rs`: the log's entries, oldest first, as documents.
//!
//! A filter that bounds `ts` from below, or a token, starts the read there. A scan holds the
//! position it has reached and nothing else, so it may rest for as long as the log
//! keeps what follows.
//!
//! Invariant ⚑: what is returned has no holes. Where the next entry has left the
//! log, or was lost in a power cut, the scan ends with an error. A tailable cursor
//! that asks for entries after a time is refused if the log begins later; other
//! reads begin where the log begins, as in MongoDB.

use super::view;
use crate::Shard;
use crate::read::{Query, VirtualCollection, VirtualSource, record_is_gone};
use model::bson::{DocBuf, DocWriter, Value, ValueRef};
use model::time::ClusterTime;
use model::{Code, Error};
use query::filter::{Comparison, Filter, Predicate};
use query::plan::ScanDirection;
use replication::{Entry, LogBytes, LogPosition, ReadError};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

/// What is read from the log at once.
const READ_BYTES: usize = 256 * 1024;
/// Entries that a scan from the end reads at once.
const BACKWARD_ENTRIES: u64 = 128;

/// The collection of all entries.
#[derive(Debug)]
pub(crate) struct Oplog;

impl VirtualCollection for Oplog {
    fn namespace(&self) -> &'static str {
        "local.oplog.rs"
    }

    fn open(
        &self,
        shard: &Arc<Shard>,
        query: &Query,
        direction: ScanDirection,
    ) -> Result<Box<dyn VirtualSource>, Error> {
        let bound = lower_bound(&query.filter);
        let log = &shard.log;
        if let Some(time) = query.part.as_ref().and_then(|part| part.after_time) {
            let behind = Forward::behind(shard, time)?;
            if bound.is_none_or(|bound| bound <= time) {
                return Ok(Box::new(behind));
            }
        }
        let start = match bound {
            None => log.first_position().previous(),
            Some(time) => match log.position_at_time(time) {
                Ok(position) => position,
                Err(ReadError::TimeTooOld { first }) if !query.tailable => first.previous(),
                Err(error) => return Err(unreadable(error)),
            },
        };
        Ok(match direction {
            ScanDirection::Forward => Box::new(Forward {
                reached: start,
                read: VecDeque::new(),
                shown: VecDeque::new(),
            }),
            ScanDirection::Backward => Box::new(Backward {
                start,
                next: log.last_applied(),
                read: Vec::new(),
                shown: Vec::new(),
            }),
        })
    }

    /// About right: entries that are no documents count too.
    fn count(&self, shard: &Shard) -> Option<u64> {
        let first = shard.log.first_position().get();
        Some((shard.log.last_applied().get() + 1).saturating_sub(first))
    }

    fn bytes(&self, shard: &Shard) -> Option<LogBytes> {
        Some(shard.log.bytes())
    }

    fn is_tailable(&self) -> bool {
        true
    }

    fn options(&self) -> DocBuf {
        DocWriter::new()
            .with("capped", true)
            .with("autoIndexId", false)
            .finish()
    }

    fn refusal(&self, command: &str) -> Error {
        match command {
            "drop" => Error::location(5255000, "can't drop live oplog while replicating"),
            "renameCollection" => Error::new(
                Code::ILLEGAL_OPERATION,
                "can't rename live oplog while replicating, nor to its name",
            ),
            _ => Error::new(Code::INVALID_NAMESPACE, "cannot write to 'local.oplog.rs'"),
        }
    }
}

/// The earliest time that a document may have to pass the filter.
fn lower_bound(filter: &Filter) -> Option<ClusterTime> {
    match filter {
        Filter::And(children) => children.iter().filter_map(lower_bound).max(),
        Filter::Field {
            path,
            predicate: Predicate::Compare(comparison, Value::Timestamp(time)),
        } if path.as_str() == "ts" => {
            let time = ClusterTime::new(time.seconds, time.increment);
            match comparison {
                Comparison::Equal | Comparison::GreaterOrEqual => Some(time),
                Comparison::Greater if time < ClusterTime::MAX => Some(time.next()),
                Comparison::Greater => Some(time),
                Comparison::Less | Comparison::LessOrEqual => None,
            }
        }
        _ => None,
    }
}

/// What a client is told when entries cannot be read.
fn unreadable(error: ReadError) -> Error {
    match error {
        ReadError::TooOld { .. } | ReadError::Gap { .. } => Error::new(
            Code::CAPPED_POSITION_LOST,
            format!(
                "CollectionScan died due to position in capped collection being deleted. {error}"
            ),
        ),
        ReadError::TimeTooOld { .. } => Error::new(
            Code::OPLOG_QUERY_MIN_TS_MISSING,
            format!("Specified minTs has already fallen off the oplog: {error}"),
        ),
        ReadError::Corrupt { .. } | ReadError::Disk { .. } => {
            Error::new(Code::INTERNAL_ERROR, error.to_string())
        }
        ReadError::Stopped { .. } => Error::new(Code::INTERRUPTED_AT_SHUTDOWN, error.to_string()),
    }
}

/// From a position on; at the end it waits there for more.
struct Forward {
    reached: LogPosition,
    read: VecDeque<Entry>,
    /// What is left of the entry at `reached`.
    shown: VecDeque<DocBuf>,
}

impl Forward {
    /// Behind the document of a time; the error for a token that stands where nothing is in the log (any more).
    fn behind(shard: &Shard, time: ClusterTime) -> Result<Forward, Error> {
        let gone = || record_is_gone(time.to_u64().cast_signed());
        let reached = match shard.log.position_at_time(time) {
            Ok(reached) => reached,
            Err(ReadError::TimeTooOld { .. }) => return Err(gone()),
            Err(error) => return Err(unreadable(error)),
        };
        let mut behind = Forward {
            reached,
            read: VecDeque::new(),
            shown: VecDeque::new(),
        };
        // It stands in the first entry that is not before it, among others perhaps.
        while let Some(document) = behind.next(shard)? {
            let found = match document.as_doc().get("ts") {
                Some(ValueRef::Timestamp(found)) => found,
                _ => break,
            };
            match ClusterTime::new(found.seconds, found.increment).cmp(&time) {
                Ordering::Less => {}
                Ordering::Equal => return Ok(behind),
                Ordering::Greater => break,
            }
        }
        Err(gone())
    }
}

impl VirtualSource for Forward {
    fn next(&mut self, shard: &Shard) -> Result<Option<DocBuf>, Error> {
        loop {
            if let Some(document) = self.shown.pop_front() {
                return Ok(Some(document));
            }
            if self.read.is_empty() {
                let entries = shard.log.read(self.reached, READ_BYTES);
                self.read = entries.map_err(unreadable)?.into();
            }
            let Some(entry) = self.read.pop_front() else {
                return Ok(None);
            };
            self.reached = entry.position;
            self.shown = view::documents(&entry)?.into();
        }
    }
}

/// From the end back to a position.
struct Backward {
    start: LogPosition,
    next: LogPosition,
    /// Entries up to `next`, oldest first.
    read: Vec<Entry>,
    /// What is left of the entry behind `next`, oldest first.
    shown: Vec<DocBuf>,
}

impl VirtualSource for Backward {
    fn next(&mut self, shard: &Shard) -> Result<Option<DocBuf>, Error> {
        loop {
            if let Some(document) = self.shown.pop() {
                return Ok(Some(document));
            }
            let Some(entry) = self.read.pop() else {
                if self.next <= self.start {
                    return Ok(None);
                }
                self.read = self.read_window(shard)?;
                continue;
            };
            self.next = entry.position.previous();
            self.shown = view::documents(&entry)?;
        }
    }
}

impl Backward {
    /// The entries before and at `next`, some of them.
    fn read_window(&self, shard: &Shard) -> Result<Vec<Entry>, Error> {
        let from = self.next.get().saturating_sub(BACKWARD_ENTRIES);
        let mut reached = LogPosition::new(from).max(self.start);
        let mut entries = Vec::new();
        while reached < self.next {
            let some = shard.log.read(reached, READ_BYTES).map_err(unreadable)?;
            for entry in some.into_iter().filter(|e| e.position <= self.next) {
                reached = entry.position;
                entries.push(entry);
            }
        }
        Ok(entries)
    }
}
