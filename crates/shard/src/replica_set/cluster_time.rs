//! `$clusterTime` and `operationTime`: how far time has come, gossiped with every command.
//!
//! What a client sends pushes this member's clock, within a bound (`maxAcceptableLogicalClockDriftSecs`), so
//! that a client that goes from one server to another takes the order of its own operations along. So do
//! servers that ask each other, in the question and in the answer. Every
//! reply tells the latest time known here, and the time of the last entry that the answer can have seen.
//!
//! ```text
//!   operationTime ≤ $clusterTime.clusterTime      the reply followed the entry's application
//! ```
//!
//! Both are always in the same place, at the end of the reply, so they are one array of bytes in which only
//! the times change: see [`trailer`]. Without authentication the signature is a dummy, as MongoDB's is then.

use super::fields::{missing, wrong_type};
use crate::Shard;
use model::bson::{Doc, DocWriter, ValueRef};
use model::time::ClusterTime;
use model::{Code, Error};
use wire::Reply;

const HASH_BYTES: usize = 20;

/// Reads a client's `$clusterTime`.
pub(crate) fn parse(value: ValueRef<'_>) -> Result<ClusterTime, Error> {
    let ValueRef::Document(gossip) = value else {
        return Err(Error::location(
            10065,
            "invalid parameter: expected an object ($clusterTime)",
        ));
    };
    if let Some(time) = ClusterTime::of_unsigned(gossip) {
        return Ok(time);
    }
    let time = match required(gossip, "clusterTime")? {
        ValueRef::Timestamp(time) => ClusterTime::new(time.seconds, time.increment),
        other => return Err(wrong_type("clusterTime", "timestamp", other)),
    };
    let signature = match required(gossip, "signature")? {
        ValueRef::Document(signature) => signature,
        other => return Err(wrong_type("signature", "object", other)),
    };
    match required(signature, "hash")? {
        ValueRef::Binary { bytes, .. } if bytes.len() == HASH_BYTES => {}
        ValueRef::Binary { bytes, .. } => {
            return Err(Error::new(
                Code::UNSUPPORTED_FORMAT,
                format!("Unsupported SHA1Block hash length: {}", bytes.len()),
            ));
        }
        other => return Err(wrong_type("hash", "binData", other)),
    }
    match required(signature, "keyId")? {
        ValueRef::Int64(_) | ValueRef::Int32(_) | ValueRef::Double(_) => Ok(time),
        other => Err(wrong_type("keyId", "long", other)),
    }
}

fn required<'a>(doc: Doc<'a>, name: &str) -> Result<ValueRef<'a>, Error> {
    doc.get(name).ok_or_else(|| missing(name))
}

impl Shard {
    /// Takes a client's time into account.
    pub(crate) fn observe_time(&self, time: ClusterTime) -> Result<(), Error> {
        self.log.observe(time).map_err(|drift| {
            Error::new(
                Code::CLUSTER_TIME_FAILS_RATE_LIMITER,
                format!(
                    "New $clusterTime, {}, is too far from this node's wall clock time, {}.",
                    drift.seconds, drift.wall_seconds
                ),
            )
        })
    }

    /// The latest cluster time known here.
    pub(crate) fn cluster_time(&self) -> ClusterTime {
        self.log.latest_time().max(self.store.applied_time())
    }

    /// Ends a question to another server of the cluster with what the time is.
    pub(crate) fn gossip(&self, question: &mut DocWriter) {
        let time = self.cluster_time();
        if time > ClusterTime::ZERO {
            time.append_to(question);
        }
    }

    /// Takes the time in another server's answer into account. One that is too far ahead says
    /// nothing that is needed.
    pub(crate) fn hear_time(&self, reply: Doc<'_>) {
        if let Some(Ok(time)) = reply.get("$clusterTime").map(parse) {
            let _ = self.observe_time(time);
        }
    }

    /// Ends a reply with what the time is.
    pub(crate) fn tell_time(&self, reply: &mut Reply) {
        // In this order: the second can only have grown meanwhile.
        let operation = self.store.applied_time();
        let cluster = self.cluster_time();
        // Before the first entry there is no time to tell.
        if cluster > ClusterTime::ZERO {
            reply.append_elements(&trailer(cluster, operation));
        }
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
///   0x11 "operationTime\0"  u64
/// ```
fn trailer(cluster: ClusterTime, operation: ClusterTime) -> [u8; TRAILER.len()] {
    let mut bytes = TRAILER;
    bytes[CLUSTER_AT..][..8].copy_from_slice(&cluster.to_u64().to_le_bytes());
    bytes[OPERATION_AT..].copy_from_slice(&operation.to_u64().to_le_bytes());
    bytes
}

const CLUSTER_AT: usize = 31;
const OPERATION_AT: usize = TRAILER.len() - 8;
const TRAILER: [u8; 125] = *b"\x03$clusterTime\0\x58\0\0\0\
    \x11clusterTime\0\0\0\0\0\0\0\0\0\
    \x03signature\0\x33\0\0\0\
    \x05hash\0\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \x12keyId\0\0\0\0\0\0\0\0\0\
    \0\0\
    \x11operationTime\0\0\0\0\0\0\0\0\0";

#[cfg(test)]
mod tests {
    use super::*;
    use model::bson::DocBuf;

    #[test]
    fn the_trailer_is_what_a_writer_writes() {
        let (cluster, operation) = (ClusterTime::new(7, 9), ClusterTime::new(5, 0x0102_0304));
        let mut writer = DocWriter::new();
        writer.append("ok", 1.0);
        cluster.append_to(&mut writer);
        writer.append("operationTime", operation);
        let expected = writer.finish();
        let mut reply = Reply::ok();
        reply.append_elements(&trailer(cluster, operation));
        let found = DocBuf::from_bytes(reply.document().as_bytes().to_vec());
        assert_eq!(found.expect("valid BSON"), expected);
        let gossip = expected.get("$clusterTime").expect("it is there");
        assert_eq!(parse(gossip), Ok(cluster));
    }
}
