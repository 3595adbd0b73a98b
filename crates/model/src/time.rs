//! Cluster time: the hybrid logical clock value that orders all writes.
//!
//! A [`ClusterTime`] is what MongoDB calls a `Timestamp`: seconds since 1970 in
//! the high half, a counter within the second in the low half. Times are given
//! to log entries when they are appended and increase along each log. This file
//! holds the value only; the clock that advances it belongs to the log.

use crate::bson::{DocWriter, ValueRef};
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
        message
            .begin_document("$clusterTime")
            .append("clusterTime", self)
            .begin_document("signature")
            .append(
                "hash",
                ValueRef::Binary {
                    subtype: 0,
                    bytes: &[0; 20],
                },
            )
            .append("keyId", 0i64)
            .end()
            .end();
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
