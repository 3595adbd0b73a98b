//! `_terndbMoveSessions`: what retries of writes to the range are answered from.
//!
//! ```text
//!   {_terndbMoveSessions: 1, id, after: BinData | null}      all, in pages
//!   {_terndbMoveSessions: 1, id, sessions: [BinData]}        those that wrote meanwhile (`tail.rs`)
//!   {sessions: [{k, v, o: [..], i}], next: BinData | null}   documents as they are stored
//! ```
//!
//! The documents are the latest, so they know at least what the log said when it was read. They
//! know of other ranges too, which does no harm (`session/arrival.rs`).
//!
//! ⚑ The recipient says *ready* only when the history of every write up to the donor's blocking
//! entry is in its log: it asks for a page of the log, and then for the sessions of that page,
//! before it says that it has come so far.

use super::copy::binary;
use super::peers::{Failure, ask};
use super::plan::{Fields, uuid_value, wrong};
use super::progress::Progress;
use crate::Shard;
use crate::command::{Answer, finish};
use crate::operation::Operation;
use crate::session::{Arriving, SessionId, SessionKey, Stored};
use model::Error;
use model::bson::{Doc, DocWriter, MAX_DOCUMENT_BYTES, ValueRef};
use model::ids::Uuid;
use std::ops::Bound;
use std::time::Duration;
use storage::Direction;
use wire::{Endpoint, Reply};

/// A page ends behind so many bytes.
const PAGE_BYTES: usize = 1 << 20;
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Sessions of a page, and where the next one begins.
pub(super) fn page(shard: &Shard, after: Option<&[u8]>, named: Option<&[&[u8]]>) -> Answer {
    let fault = crate::error::from_storage;
    let snapshot = shard.store.snapshot();
    let mut writer = Reply::writer_with_capacity(PAGE_BYTES);
    writer.begin_array("sessions");
    let mut next = None;
    if let Some(named) = named {
        for (at, session) in named.iter().enumerate() {
            if writer.len() > PAGE_BYTES && at > 0 {
                next = Some(named[at - 1].to_vec());
                break;
            }
            let key = [SessionKey::SESSIONS, session].concat();
            if let Some(value) = snapshot.get_meta(&key).map_err(fault)? {
                append(&snapshot, &mut writer, session, &value)?;
            }
        }
    } else {
        let range = storage::KeyRange::new(
            after.map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        );
        let mut last: Option<Vec<u8>> = None;
        for pair in snapshot.scan_meta_within(SessionKey::SESSIONS, range, Direction::Forward) {
            let (key, value) = pair.map_err(fault)?;
            if writer.len() > PAGE_BYTES && last.is_some() {
                next = last;
                break;
            }
            append(&snapshot, &mut writer, &key[1..], &value)?;
            last = Some(key[1..].to_vec());
        }
    }
    writer.end();
    match &next {
        Some(next) => writer.append("next", binary(next)),
        None => writer.append("next", ValueRef::Null),
    };
    finish(writer)
}

fn append(
    snapshot: &crate::Snapshot,
    writer: &mut DocWriter,
    session: &[u8],
    value: &[u8],
) -> Result<(), Error> {
    let fault = crate::error::from_storage;
    let Some(id) = SessionId::from_key_bytes(session) else {
        return Err(wrong("session"));
    };
    let stored = Stored::decode(value)?;
    let image = snapshot.get_meta(&SessionKey::image(id)).map_err(fault)?;
    // What does not fit beside others is not told: the retry is told that it is gone.
    let room = image.as_ref().map_or(0, |image| image.len()) <= MAX_DOCUMENT_BYTES;
    writer
        .push_document()
        .append("k", binary(session))
        .append("v", binary(value))
        .begin_array("o");
    for chunk in 0..stored.overflow {
        if let Some(sealed) =
            (snapshot.get_meta(&SessionKey::overflow(id, chunk))).map_err(fault)?
        {
            writer.push(binary(&sealed));
        }
    }
    writer.end();
    if let Some(image) = image.filter(|_| room) {
        writer.append("i", binary(&image));
    }
    writer.end();
    Ok(())
}

/// Fetches histories from the donor and takes them over: all, or those that are named.
pub(super) async fn fetch(
    shard: &Shard,
    donor: &dyn Endpoint,
    id: Uuid,
    named: Option<&[Vec<u8>]>,
    operation: &Operation,
    progress: &Progress,
) -> Result<(), Failure> {
    let mut after: Option<Vec<u8>> = None;
    let mut left = named;
    loop {
        let mut question = DocWriter::new()
            .with("_terndbMoveSessions", 1)
            .with("id", uuid_value(&id));
        match left {
            Some(named) => {
                question.begin_array("sessions");
                for session in named {
                    question.push(binary(session));
                }
                question.end();
            }
            None => {
                let after = after.as_deref().map_or(ValueRef::Null, binary);
                question.append("after", after);
            }
        }
        let reply = ask(shard, donor, question, ANSWER_WAIT).await?;
        let reply = reply.document();
        let sessions = reply
            .get_array("sessions")
            .ok_or_else(|| wrong("sessions"))?;
        for session in sessions.iter() {
            let ValueRef::Document(session) = session else {
                return Err(wrong("session").into());
            };
            take_over(shard, session, id, operation).await?;
            progress.prepares(1);
        }
        let Some(next) = Fields(reply).bytes("next") else {
            return Ok(());
        };
        after = Some(next.to_vec());
        left = left.map(|named| {
            let reached = named.iter().position(|session| session == next);
            &named[reached.map_or(named.len(), |at| at + 1)..]
        });
    }
}

async fn take_over(
    shard: &Shard,
    session: Doc<'_>,
    origin: Uuid,
    operation: &Operation,
) -> Result<(), Error> {
    let fields = Fields(session);
    let key = fields.bytes("k").ok_or_else(|| wrong("k"))?;
    let mut overflow = Vec::new();
    for sealed in session.get_array("o").ok_or_else(|| wrong("o"))?.iter() {
        match sealed {
            ValueRef::Binary { bytes, .. } => overflow.push(bytes),
            _ => return Err(wrong("o")),
        }
    }
    let arriving = Arriving {
        session: SessionId::from_key_bytes(key).ok_or_else(|| wrong("k"))?,
        document: fields.bytes("v").ok_or_else(|| wrong("v"))?,
        overflow,
        image: fields.bytes("i"),
    };
    shard
        .take_over_history(&arriving, &origin.0, operation)
        .await
}
