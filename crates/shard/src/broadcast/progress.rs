//! Progress as it is stored.
//!
//! ```text
//!   meta key  "broadcast/" + slot (16 bytes) + stream (4 bytes, big-endian)
//!   value     { version: 1, number: long, sent: Timestamp, after: binary?,
//!               left: [{ranges: [min, max, ..], after?}], matched: long, modified: long, ended: bool,
//!               error: {code, errmsg, details?}? }
//!
//!   meta key  "broadcastHorizon"
//!   value     { sent: Timestamp }   no progress that was removed is of a request that was first sent later
//! ```
//!
//! Progress of a version before this one has no `sent`: what was sent at the beginning of time is never
//! later than a horizon.

use super::append_left;
use cluster::broadcast::{Left, Progress};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::ids::Uuid;
use model::time::ClusterTime;
use model::{Code, Error};

const VERSION: i32 = 1;

/// A stream of an operation that uses a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ProgressKey {
    pub(crate) slot: Uuid,
    pub(crate) stream: u32,
}

impl ProgressKey {
    pub(crate) const PREFIX: &'static [u8] = b"broadcast/";

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut key = Self::PREFIX.to_vec();
        key.extend_from_slice(&self.slot.0);
        key.extend_from_slice(&self.stream.to_be_bytes());
        key
    }

    pub(crate) fn parse(key: &[u8]) -> Option<Self> {
        let rest = key.strip_prefix(Self::PREFIX)?;
        let (slot, stream) = rest.split_first_chunk::<16>()?;
        Some(Self {
            slot: Uuid(*slot),
            stream: u32::from_be_bytes(stream.try_into().ok()?),
        })
    }
}

/// Where the horizon is stored.
pub(super) const HORIZON_KEY: &[u8] = b"broadcastHorizon";

pub(super) fn encode_horizon(horizon: ClusterTime) -> DocBuf {
    DocWriter::new().with("sent", horizon).finish()
}

pub(super) fn decode_horizon(bytes: &[u8]) -> Result<ClusterTime, Error> {
    let doc = Doc::from_bytes(bytes).map_err(|_| damaged("the horizon is no document"))?;
    sent(doc).ok_or_else(|| damaged("the horizon says no time"))
}

fn sent(doc: Doc<'_>) -> Option<ClusterTime> {
    match doc.get("sent") {
        Some(ValueRef::Timestamp(time)) => Some(ClusterTime::new(time.seconds, time.increment)),
        _ => None,
    }
}

pub(super) fn encode(progress: &Progress<Error>) -> DocBuf {
    let long = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let mut writer = DocWriter::new();
    writer
        .append("version", VERSION)
        .append("number", long(progress.number))
        .append("sent", progress.sent);
    if let Some(bytes) = &progress.after {
        writer.append("after", ValueRef::Binary { subtype: 0, bytes });
    }
    if !progress.left.is_empty() {
        append_left(&mut writer, &progress.left);
    }
    writer
        .append("matched", long(progress.matched))
        .append("modified", long(progress.modified))
        .append("ended", progress.ended);
    if let Some(error) = &progress.fault {
        writer
            .begin_document("error")
            .append("code", error.code.0)
            .append("errmsg", error.message.as_str());
        if let Some(details) = &error.details {
            writer.append("details", &**details);
        }
        writer.end();
    }
    writer.finish()
}

pub(super) fn decode(bytes: &[u8]) -> Result<Progress<Error>, Error> {
    let doc = Doc::from_bytes(bytes).map_err(|_| damaged("it is no document"))?;
    read(doc).ok_or_else(|| damaged("a field is missing, or of another kind"))
}

fn read(doc: Doc<'_>) -> Option<Progress<Error>> {
    let number = |name: &str| match doc.get(name) {
        Some(ValueRef::Int64(number)) => u64::try_from(number).ok(),
        _ => None,
    };
    if doc.get("version") != Some(ValueRef::Int32(VERSION)) {
        return None;
    }
    let place = |doc: Doc<'_>| match doc.get("after") {
        Some(ValueRef::Binary { bytes, .. }) => Some(bytes.to_vec()),
        _ => None,
    };
    let mut left = Vec::new();
    for one in doc.get_array("left").iter().flat_map(|all| all.iter()) {
        let ValueRef::Document(one) = one else {
            return None;
        };
        left.push(Left {
            ranges: crate::read::ranges_of(one.get_array("ranges")?).ok()?,
            after: place(one),
        });
    }
    let fault = match doc.get_doc("error") {
        None => None,
        Some(error) => {
            let Some(ValueRef::Int32(code)) = error.get("code") else {
                return None;
            };
            let told = Error::new(Code(code), error.get_str("errmsg")?);
            Some(match error.get_doc("details") {
                Some(details) => told.with_details(details.to_owned()),
                None => told,
            })
        }
    };
    Some(Progress {
        number: number("number")?,
        sent: sent(doc).unwrap_or(ClusterTime::ZERO),
        after: place(doc),
        left,
        matched: number("matched")?,
        modified: number("modified")?,
        ended: doc.get("ended") == Some(ValueRef::Boolean(true)),
        fault,
    })
}

fn damaged(why: &str) -> Error {
    Error::new(
        Code::INTERNAL_ERROR,
        format!("the stored progress of a write over several shards is damaged: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::broadcast::Sent;
    use model::range::{KeyBound, KeyRange, RangeSet};

    #[test]
    fn progress_comes_back() {
        let key = ProgressKey {
            slot: Uuid([7; 16]),
            stream: 3,
        };
        assert_eq!(ProgressKey::parse(&key.encode()), Some(key));
        let details = DocWriter::new().with("keyValue", 1).finish();
        let range = KeyRange::new(KeyBound::new(&[1]), KeyBound::new(&[2]));
        let sent = Sent {
            number: 9,
            at: ClusterTime::new(7, 3),
        };
        let mut progress = Progress::begin(sent, Some(vec![1, 2]), None, None).unwrap();
        for fault in [
            None,
            Some(Error::new(Code::DUPLICATE_KEY, "taken").with_details(details)),
        ] {
            progress.fault = fault;
            let stored = encode(&progress);
            assert_eq!(decode(stored.as_bytes()).unwrap(), progress);
            progress.left.push(Left {
                ranges: RangeSet::of([range.clone()]),
                after: None,
            });
            progress.advance(Some(vec![5]), 3, 2);
            progress.end();
        }
        assert!(decode(DocWriter::new().with("version", 2).finish().as_bytes()).is_err());
        let horizon = ClusterTime::new(7, 4);
        let stored = encode_horizon(horizon);
        assert_eq!(decode_horizon(stored.as_bytes()).unwrap(), horizon);
    }

    /// As the version before wrote it, when it went by the time of writing.
    #[test]
    fn progress_of_the_version_before_is_read() {
        let stored = DocWriter::new()
            .with("version", 1)
            .with("number", 9i64)
            .with("matched", 3i64)
            .with("modified", 2i64)
            .with("ended", true)
            .with("at", ValueRef::DateTime(77))
            .finish();
        let progress = decode(stored.as_bytes()).unwrap();
        assert_eq!((progress.number, progress.sent), (9, ClusterTime::ZERO));
        assert_eq!((progress.matched, progress.modified), (3, 2));
        assert!(progress.ended);
    }
}
