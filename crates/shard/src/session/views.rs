//! `config.transactions` and `config.image_collection`: what is kept of sessions,
//! as documents in MongoDB's shape.
//!
//! ```text
//!   transactions      {_id: {id, uid}, txnNum, lastWriteOpTime: {ts, t}, lastWriteDate}
//!   image_collection  {_id: {id, uid}, txnNum, ts, imageKind, image, invalidated: false}
//! ```
//!
//! A scan holds the key it has reached and a few documents, no snapshot. Dropping
//! `config.transactions` is allowed, other writes are not: see `reap.rs`.

use super::document::{SessionKey, Stored, StoredImage};
use super::history::ImageKind;
use crate::Shard;
use crate::read::{Query, VirtualCollection, VirtualSource};
use model::bson::{DocBuf, DocWriter, Timestamp, ValueRef};
use model::time::ClusterTime;
use model::{Code, Error};
use query::plan::ScanDirection;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;
use storage::{Direction, KeyRange};

/// Documents that are made at once.
const PORTION: usize = 64;

#[derive(Debug)]
pub(crate) struct Transactions;

#[derive(Debug)]
pub(crate) struct Images;

impl VirtualCollection for Transactions {
    fn namespace(&self) -> &'static str {
        "config.transactions"
    }

    fn open(
        &self,
        _shard: &Arc<Shard>,
        _query: &Query,
        direction: ScanDirection,
    ) -> Result<Box<dyn VirtualSource>, Error> {
        Ok(Scan::begin(SessionKey::SESSIONS, direction, transaction))
    }

    fn can_be_dropped(&self) -> bool {
        true
    }

    fn refusal(&self, command: &str) -> Error {
        not_writable(self.namespace(), command)
    }
}

impl VirtualCollection for Images {
    fn namespace(&self) -> &'static str {
        "config.image_collection"
    }

    fn open(
        &self,
        _shard: &Arc<Shard>,
        _query: &Query,
        direction: ScanDirection,
    ) -> Result<Box<dyn VirtualSource>, Error> {
        Ok(Scan::begin(SessionKey::IMAGES, direction, image))
    }

    fn refusal(&self, command: &str) -> Error {
        not_writable(self.namespace(), command)
    }
}

fn not_writable(namespace: &str, command: &str) -> Error {
    Error::new(
        Code::COMMAND_NOT_SUPPORTED,
        format!(
            "{command} is not supported on {namespace}, which shows what sessions have written"
        ),
    )
}

/// Makes a document of a stored one; some are not shown.
type Describe = fn(&[u8], &[u8]) -> Result<Option<DocBuf>, Error>;

struct Scan {
    prefix: &'static [u8],
    direction: ScanDirection,
    describe: Describe,
    /// The last key that was read, without the prefix.
    reached: Option<Vec<u8>>,
    ended: bool,
    made: VecDeque<DocBuf>,
}

impl Scan {
    fn begin(
        prefix: &'static [u8],
        direction: ScanDirection,
        describe: Describe,
    ) -> Box<dyn VirtualSource> {
        Box::new(Self {
            prefix,
            direction,
            describe,
            reached: None,
            ended: false,
            made: VecDeque::new(),
        })
    }

    fn fill(&mut self, shard: &Shard) -> Result<(), Error> {
        let reached = self.reached.take();
        let reached = reached.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let (range, direction) = match self.direction {
            ScanDirection::Forward => {
                (KeyRange::new(reached, Bound::Unbounded), Direction::Forward)
            }
            ScanDirection::Backward => (
                KeyRange::new(Bound::Unbounded, reached),
                Direction::Backward,
            ),
        };
        let snapshot = shard.store.snapshot();
        self.ended = true;
        for pair in snapshot
            .scan_meta_within(self.prefix, range, direction)
            .take(PORTION)
        {
            let (key, value) = pair.map_err(crate::error::from_storage)?;
            self.made.extend((self.describe)(&key, &value)?);
            self.reached = Some(key[self.prefix.len()..].to_vec());
            self.ended = false;
        }
        Ok(())
    }
}

impl VirtualSource for Scan {
    fn next(&mut self, shard: &Shard) -> Result<Option<DocBuf>, Error> {
        while self.made.is_empty() && !self.ended {
            self.fill(shard)?;
        }
        Ok(self.made.pop_front())
    }
}

fn begin(key: &[u8]) -> Option<DocWriter> {
    let id = SessionKey::parse(key)?;
    let mut writer = DocWriter::new();
    id.append(&mut writer, "_id");
    Some(writer)
}

fn timestamp(time: ClusterTime) -> ValueRef<'static> {
    ValueRef::Timestamp(Timestamp {
        seconds: time.seconds(),
        increment: time.increment(),
    })
}

fn transaction(key: &[u8], value: &[u8]) -> Result<Option<DocBuf>, Error> {
    let Some(mut writer) = begin(key) else {
        return Ok(None);
    };
    let stored = Stored::decode(value)?;
    writer
        .append("txnNum", stored.number)
        .begin_document("lastWriteOpTime")
        .append("ts", timestamp(stored.last.time))
        .append("t", i64::try_from(stored.last.term).unwrap_or(i64::MAX))
        .end()
        .append("lastWriteDate", ValueRef::DateTime(stored.last.wall_ms));
    Ok(Some(writer.finish()))
}

fn image(key: &[u8], value: &[u8]) -> Result<Option<DocBuf>, Error> {
    let Some(mut writer) = begin(key) else {
        return Ok(None);
    };
    let stored = StoredImage::decode(value)?;
    let kind = match stored.image.kind {
        ImageKind::Before => "preImage",
        ImageKind::After => "postImage",
        ImageKind::Inserted => return Ok(None),
    };
    writer
        .append("txnNum", stored.number)
        .append("ts", timestamp(stored.time))
        .append("imageKind", kind)
        .append("image", &stored.image.document)
        .append("invalidated", false);
    Ok(Some(writer.finish()))
}
