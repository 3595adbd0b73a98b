//! Cluster time: the hybrid logical clock value that orders all writes.
//!
//! A [`ClusterTime`] is what MongoDB calls a `Timestamp`: seconds since 1970 in
//! the high half, a counter within the second in the low half. Times are given
//! to log entries when they are appended and increase along each log. This file
//! holds the value only; the clock that advances it belongs to the log.

use crate::bson::{Doc, DocWriter};
use std::fmt;

/// A point in the cluster's logical time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClusterTime {
    seconds: u32,
    increment: u32,
}

impl ClusterTime {
    /// Before every write.
    pub const ZERO: ClusterTime = ClusterTime::new(0, 0);
    /// After every write.
    pub const MAX: ClusterTime = ClusterTime::new(u32::MAX, u32::MAX);

    pub const fn new(seconds: u32, increment: u32) -> Self {
        Self { seconds, increment }
    }

    /// Appends the field `$clusterTime` of a message, with the dummy signature of servers without
    /// authentication.
    pub fn append_to(self, message: &mut DocWriter) {
        let mut field = GOSSIP;
        field[FIELD_BYTES + TIME_AT..][..8].copy_from_slice(&self.to_u64().to_le_bytes());
        message.append_encoded(&field);
    }

    /// The time in a `$clusterTime` that is what [`ClusterTime::append_to`] writes: servers tell each other
    /// the time with every message. `None` of one with a signature or of any other form.
    pub fn of_unsigned(gossip: Doc<'_>) -> Option<Self> {
        let usual = &GOSSIP[FIELD_BYTES..];
        let given = gossip.as_bytes();
        let behind = TIME_AT + 8;
        if given.len() != usual.len()
            || given[..TIME_AT] != usual[..TIME_AT]
            || given[behind..] != usual[behind..]
        {
            return None;
        }
        let time = given[TIME_AT..].first_chunk()?;
        Some(Self::from_u64(u64::from_le_bytes(*time)))
    }

    /// Whether a reply ends as servers end theirs: with `$clusterTime`, unsigned, and `operationTime`. Told by the
    /// last bytes, so that fields before them are not looked at.
    pub fn ends(reply: Doc<'_>) -> bool {
        let bytes = reply.as_bytes();
        let Some(start) = bytes
            .len()
            .checked_sub(GOSSIP.len() + OPERATION_TIME.len() + 9)
        else {
            return false;
        };
        let (gossip, operation) = bytes[start..].split_at(GOSSIP.len());
        let time_at = FIELD_BYTES + TIME_AT;
        gossip[..time_at] == GOSSIP[..time_at]
            && gossip[time_at + 8..] == GOSSIP[time_at + 8..]
            && operation.starts_with(OPERATION_TIME)
    }

    pub const fn seconds(self) -> u32 {
        self.seconds
    }

    pub const fn increment(self) -> u32 {
        self.increment
    }

    /// Seconds in the high half: integer order equals time order.
    pub const fn to_u64(self) -> u64 {
        ((self.seconds as u64) << 32) | self.increment as u64
    }

    pub const fn from_u64(packed: u64) -> Self {
        Self::new((packed >> 32) as u32, packed as u32)
    }

    /// The smallest time after this one.
    pub const fn next(self) -> Self {
        Self::from_u64(self.to_u64() + 1)
    }
}

/// ```text
///   0x03 "$clusterTime\0"  i32 88
///     0x11 "clusterTime\0"  u64
///     0x03 "signature\0"  i32 51
///       0x05 "hash\0"  i32 20  0x00  20 bytes of zero
///       0x12 "keyId\0"  i64 0
///       0x00
///     0x00
/// ```
const GOSSIP: [u8; 102] = *b"\x03$clusterTime\0\x58\0\0\0\
    \x11clusterTime\0\0\0\0\0\0\0\0\0\
    \x03signature\0\x33\0\0\0\
    \x05hash\0\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \x12keyId\0\0\0\0\0\0\0\0\0\
    \0\0";
/// What stands before the time of an operation.
const OPERATION_TIME: &[u8] = b"\x11operationTime\0";
/// Its type and its name.
const FIELD_BYTES: usize = 14;
/// Where the time lies in the document behind them.
const TIME_AT: usize = 17;

impl fmt::Debug for ClusterTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.seconds, self.increment)
    }
}

impl fmt::Display for ClusterTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timestamp({}, {})", self.seconds, self.increment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bson::{DocBuf, ValueRef};

    fn written(time: ClusterTime, hash: &[u8], key_id: i64) -> DocBuf {
        let mut writer = DocWriter::new();
        writer
            .begin_document("$clusterTime")
            .append("clusterTime", time)
            .begin_document("signature")
            .append(
                "hash",
                ValueRef::Binary {
                    subtype: 0,
                    bytes: hash,
                },
            )
            .append("keyId", key_id)
            .end()
            .end();
        writer.finish()
    }

    #[test]
    fn the_time_is_told_as_a_writer_writes_it() {
        let time = ClusterTime::new(7, 0x0102_0304);
        let mut told = DocWriter::new();
        time.append_to(&mut told);
        assert_eq!(told.finish(), written(time, &[0; 20], 0));
    }

    #[test]
    fn a_reply_that_tells_the_time_ends_with_it() {
        let time = ClusterTime::new(5, 6);
        let reply = |operation: &str| {
            let mut writer = DocWriter::new();
            writer.append("ok", 1.0);
            time.append_to(&mut writer);
            writer.append(operation, time);
            writer.finish()
        };
        assert!(ClusterTime::ends(reply("operationTime").as_doc()));
        assert!(!ClusterTime::ends(reply("operationtime").as_doc()));
        let plain = DocWriter::new().with("ok", 1.0).finish();
        assert!(!ClusterTime::ends(plain.as_doc()));
        assert!(!ClusterTime::ends(written(time, &[0; 20], 0).as_doc()));
    }

    #[test]
    fn only_a_time_without_a_signature_is_read_at_once() {
        let time = ClusterTime::new(5, u32::MAX);
        let of = |doc: DocBuf| {
            let gossip = doc.as_doc().get_doc("$clusterTime");
            ClusterTime::of_unsigned(gossip.expect("it is there"))
        };
        assert_eq!(of(written(time, &[0; 20], 0)), Some(time));
        assert_eq!(of(written(time, &[1; 20], 0)), None);
        assert_eq!(of(written(time, &[0; 20], 1)), None);
        assert_eq!(of(written(time, &[0; 19], 0)), None);
        assert_eq!(ClusterTime::of_unsigned(Doc::EMPTY), None);
    }
}
