//! `_terndbMoveTail`: what the donor's log says about the range.
//!
//! ```text
//!   {_terndbMoveTail: 1, id, from: long, skip: long, bytes, waitMS}
//!   {operations: [{d: document} | {k: BinData}], sessions: [BinData], upTo: long, skip: long}
//! ```
//!
//! Operations are in the order of the log: what a document became, or the key of a record that
//! is not in the range any more. The log was read up to `upTo`, and of the entry behind it the
//! first `skip` operations were told: one entry may have more than an answer has room for.
//!
//! Where records have another order than the range (`stretch.rs`), a record that is put with a
//! document of another range may have had one of this range before: it is told as gone, and the
//! recipient removes what it has.
//!
//! `sessions` are those whose retryable writes are among the entries: their history has to
//! follow, see `history.rs`.
//!
//! ⚑ Reading before the start of the log is an error that ends the move, never a gap.

use super::copy::binary;
use super::stretch::Stretch;
use crate::Shard;
use crate::command::{Answer, finish};
use crate::session::SessionKey;
use model::bson::{Doc, DocWriter, MAX_DOCUMENT_BYTES};
use model::{Code, Error};
use replication::{LogPosition, ReadError};
use std::collections::BTreeSet;
use std::time::Duration;
use storage::entry::{Entry, Operation};
use wire::Reply;

/// How much of the log one answer looks at: at most, and for each byte that it may tell. What it has no room
/// for is read again for the next.
const LOG_BYTES: usize = 8 << 20;
const LOOKS_PER_BYTE: usize = 4;

pub(super) fn unreadable(error: ReadError) -> Error {
    let code = match &error {
        ReadError::TooOld { .. } | ReadError::Gap { .. } | ReadError::TimeTooOld { .. } => {
            Code::CAPPED_POSITION_LOST
        }
        ReadError::Disk { .. } | ReadError::Corrupt { .. } | ReadError::Stopped { .. } => {
            Code::INTERNAL_ERROR
        }
    };
    Error::new(code, error.to_string())
}

pub(super) fn malformed(what: &str) -> Error {
    let message = format!("an entry of the log cannot be read: {what}");
    Error::new(Code::INTERNAL_ERROR, message)
}

/// Where a reader of the log is: behind an entry, and some operations of the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) after: LogPosition,
    pub(super) skip: usize,
}

/// An answer in the making.
struct Told {
    writer: DocWriter,
    bytes: usize,
    sessions: BTreeSet<Vec<u8>>,
}

/// Waits a while for the log to grow past a position.
pub(super) async fn await_growth(shard: &Shard, after: LogPosition, wait: Duration) {
    if shard.log.last_applied() > after || wait.is_zero() {
        return;
    }
    let mut progress = shard.log.watch();
    let grown = progress.wait_for(|progress| !progress.running || progress.applied > after);
    // Nothing new is an answer too.
    let _ = tokio::time::timeout(wait, grown).await;
}

pub(super) fn tail(shard: &Shard, stretch: &Stretch, from: Place, bytes: usize) -> Answer {
    let bytes = bytes.min(MAX_DOCUMENT_BYTES);
    let mut told = Told {
        writer: Reply::writer_with_capacity(bytes / 4),
        bytes: 0,
        sessions: BTreeSet::new(),
    };
    told.writer.begin_array("operations");
    let mut reached = from;
    let looks = LOG_BYTES.min(LOOKS_PER_BYTE * bytes);
    for entry in (shard.log.read(from.after, looks)).map_err(unreadable)? {
        match told.entry(stretch, &entry.payload, reached.skip, bytes)? {
            None => {
                reached = Place {
                    after: entry.position,
                    skip: 0,
                }
            }
            Some(skip) => {
                reached.skip = skip;
                break;
            }
        }
    }
    let Told {
        mut writer,
        sessions,
        ..
    } = told;
    writer.end().begin_array("sessions");
    for session in &sessions {
        writer.push(binary(session));
    }
    writer
        .end()
        .append("upTo", reached.after.get() as i64)
        .append("skip", reached.skip as i64);
    finish(writer)
}

impl Told {
    /// Tells an entry's operations but the first `skip`. If there is no room for all of
    /// them, so many have been told by now.
    fn entry(
        &mut self,
        stretch: &Stretch,
        payload: &[u8],
        skip: usize,
        bytes: usize,
    ) -> Result<Option<usize>, Error> {
        let entry = Entry::decode(payload).map_err(malformed)?;
        if entry.header.names.is_none() {
            return Ok(None);
        }
        let mut told = 0;
        let mut sessions = Vec::new();
        for operation in entry.operations() {
            let (key, document) = match operation.map_err(malformed)? {
                Operation::PutRecord {
                    collection,
                    key,
                    document,
                    ..
                } if collection == stretch.collection => (key, Some(document)),
                Operation::DeleteRecord {
                    collection, key, ..
                } if collection == stretch.collection => (key, None),
                Operation::PutMeta { key, .. } => {
                    sessions.extend(SessionKey::parse(key).map(|_| key[1..].to_vec()));
                    continue;
                }
                Operation::PutRecord { .. }
                | Operation::DeleteRecord { .. }
                | Operation::IndexEntries { .. }
                | Operation::DeleteMeta { .. }
                | Operation::DropCollection { .. }
                | Operation::DropIndex { .. }
                | Operation::Noop
                // Of another range: one that moves is owned.
                | Operation::ForgetRecord { .. }
                | Operation::ForgetRange { .. } => continue,
            };
            if !stretch.may_contain_key(key) {
                continue;
            }
            let put = document
                .map(Doc::from_validated)
                .filter(|document| stretch.has(key, *document));
            told += 1;
            if told <= skip {
                continue;
            }
            let length = put.map_or(key.len(), Doc::len);
            if self.bytes > 0 && self.bytes + length > bytes {
                return Ok(Some(told - 1));
            }
            self.bytes += length + 16;
            self.writer.push_document();
            match put {
                Some(document) => self.writer.append("d", document),
                None => self.writer.append("k", binary(key)),
            };
            self.writer.end();
        }
        if told > 0 {
            self.sessions.extend(sessions);
        }
        Ok(None)
    }
}
