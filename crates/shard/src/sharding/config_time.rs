//! The time of the config server's log that this shard has seen, below which it believes nobody.
//!
//! ```text
//!   config server ── command, $configTime 7 ──► [seen 7] ── the entry that carries it out ──► [stored 7]
//!   this shard    ── question, $configTime 7 ─► a member that knows less refuses to answer
//! ```
//!
//! A member of the config server that was deposed without noticing would answer with what was true
//! once. Versions tell that from the truth only where something is known to compare with. So each
//! message of the config server says how far its log had come, and each question to it how far it
//! must have come at least.
//!
//! ⚑ What a shard did because of the config server is stored with the time it was told at, in the
//! same entry: whoever becomes primary next has seen as much.
//!
//! Crash windows: a time that was seen with nothing done about it is forgotten with its primary.

use crate::Shard;
use crate::error::from_storage;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::time::ClusterTime;
use std::sync::atomic::{AtomicU64, Ordering};

/// The key in the meta space; the value is `{time: Timestamp}`.
pub(crate) const CONFIG_TIME_KEY: &[u8] = b"sharding/configTime";

const FIELD: &str = "$configTime";

#[derive(Default)]
pub(crate) struct ConfigTime {
    seen: AtomicU64,
    stored: AtomicU64,
}

impl Shard {
    /// Takes note of the time in a message of the config server. One that is further ahead than
    /// clocks may be is nobody's: the config server would never come as far.
    pub(crate) fn hear_config_time(&self, message: Doc<'_>) {
        let now = self.clock.now_ms() / 1000;
        let limit = now.saturating_add(self.parameters.current().clock_drift_secs);
        if let Some(ValueRef::Timestamp(time)) = message.get(FIELD)
            && i64::from(time.seconds) <= limit
        {
            let time = ClusterTime::new(time.seconds, time.increment);
            let seen = &self.sharding.config_time.seen;
            seen.fetch_max(time.to_u64(), Ordering::AcqRel);
        }
    }
}

impl ConfigTime {
    /// A question for the config server says what must be known.
    pub(crate) fn append_to(&self, question: &mut DocWriter) {
        let seen = ClusterTime::from_u64(self.seen.load(Ordering::Acquire));
        if seen > ClusterTime::ZERO {
            question.append(FIELD, seen);
        }
    }

    /// What has to be stored with an entry, if it is not yet.
    pub(crate) fn to_store(&self) -> Option<DocBuf> {
        let seen = self.seen.load(Ordering::Acquire);
        let time = ClusterTime::from_u64(seen);
        (seen > self.stored.load(Ordering::Acquire))
            .then(|| DocWriter::new().with("time", time).finish())
    }

    /// An entry that stored it was applied, or it was read from the store.
    pub(super) fn stored(&self, document: Doc<'_>) {
        if let Some(ValueRef::Timestamp(time)) = document.get("time") {
            let time = ClusterTime::new(time.seconds, time.increment).to_u64();
            self.seen.fetch_max(time, Ordering::AcqRel);
            self.stored.fetch_max(time, Ordering::AcqRel);
        }
    }

    pub(super) fn load(&self, store: &crate::Store) -> Result<(), model::Error> {
        let found = store.snapshot().get_meta(CONFIG_TIME_KEY);
        if let Some(bytes) = found.map_err(from_storage)? {
            self.stored(super::state::document(&bytes)?);
        }
        Ok(())
    }
}
