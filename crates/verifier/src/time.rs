//! Cluster times: the logical clock of a replica set or sharded cluster.
//!
//! A cluster time is a pair of seconds and a counter within the second. Every entry of an oplog has
//! one, every reply names one, and a read can be asked to wait for one (`afterClusterTime`).
//!
//! A resume token begins with the time of its event, in a form that sorts: the byte 0x82 and the two
//! numbers, big-endian, as hexadecimal text. It is read here because a stream on which nothing
//! happens hands out tokens, not events, and only they say how far it has come.

use bson::{Bson, Document, Timestamp};
use mongodb::change_stream::event::ResumeToken;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClusterTime {
    pub seconds: u32,
    pub counter: u32,
}

impl ClusterTime {
    pub fn timestamp(self) -> Timestamp {
        Timestamp {
            time: self.seconds,
            increment: self.counter,
        }
    }

    /// Milliseconds since 1970, as far as a cluster's clock is right.
    pub fn milliseconds(self) -> i64 {
        i64::from(self.seconds) * 1000
    }

    fn as_number(self) -> u64 {
        u64::from(self.seconds) << 32 | u64::from(self.counter)
    }

    fn of_number(number: u64) -> ClusterTime {
        ClusterTime {
            seconds: (number >> 32) as u32,
            counter: number as u32,
        }
    }

    /// The time in front of a resume token; None if it has another form.
    pub fn of_token(token: &ResumeToken) -> Option<ClusterTime> {
        let Bson::Document(token) = bson::serialize_to_bson(token).ok()? else {
            return None;
        };
        ClusterTime::of_token_document(&token)
    }

    pub fn of_token_document(token: &Document) -> Option<ClusterTime> {
        ClusterTime::of_token_text(token.get_str("_data").ok()?)
    }

    fn of_token_text(text: &str) -> Option<ClusterTime> {
        let hexadecimal = text.get(..18)?.strip_prefix("82")?;
        u64::from_str_radix(hexadecimal, 16)
            .ok()
            .map(ClusterTime::of_number)
    }

    /// The time that a reply names, if the server has such times.
    pub fn of_reply(reply: &Document) -> Option<ClusterTime> {
        reply.get_timestamp("operationTime").ok().map(Into::into)
    }

    /// The latest time that the server has heard of, which may lie ahead of all its writes.
    pub fn heard_of(reply: &Document) -> Option<ClusterTime> {
        let clock = reply.get_document("$clusterTime").ok()?;
        clock.get_timestamp("clusterTime").ok().map(Into::into)
    }
}

impl From<Timestamp> for ClusterTime {
    fn from(given: Timestamp) -> ClusterTime {
        ClusterTime {
            seconds: given.time,
            counter: given.increment,
        }
    }
}

/// A cluster time that only ever grows; zero is none.
#[derive(Debug, Default)]
pub struct Watermark(AtomicU64);

impl Watermark {
    pub fn raise(&self, time: ClusterTime) {
        self.0.fetch_max(time.as_number(), Ordering::SeqCst);
    }

    pub fn get(&self) -> Option<ClusterTime> {
        match self.0.load(Ordering::SeqCst) {
            0 => None,
            number => Some(ClusterTime::of_number(number)),
        }
    }
}

/// Milliseconds since 1970, by this machine's clock.
pub fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// A moment as people and programs read it.
pub fn shown_moment(milliseconds: i64) -> String {
    match jiff::Timestamp::from_millisecond(milliseconds) {
        Ok(moment) => moment.to_string(),
        Err(_) => milliseconds.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_begin_with_their_time() {
        let check = |text: &str, expected: Option<(u32, u32)>| {
            let expected = expected.map(|(seconds, counter)| ClusterTime { seconds, counter });
            assert_eq!(ClusterTime::of_token_text(text), expected, "{text}");
        };
        // As a real server gave it, for a stream on which nothing had happened.
        check("826AFA41D8000000192B0229296E04", Some((0x6afa_41d8, 0x19)));
        check("81000000000000000000", None);
        check("826AFA41D80000", None);
        check("82zzzzzzzzzzzzzzzz", None);
        check("", None);
    }

    #[test]
    fn a_watermark_only_rises() {
        let mark = Watermark::default();
        assert_eq!(mark.get(), None);
        let early = ClusterTime {
            seconds: 5,
            counter: 9,
        };
        let late = ClusterTime {
            seconds: 6,
            counter: 1,
        };
        mark.raise(late);
        mark.raise(early);
        assert_eq!(mark.get(), Some(late));
        assert!(early < late);
    }
}
