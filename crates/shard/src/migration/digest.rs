//! Count and sum of hashes of the documents of a range, from what is stored.
//!
//! Both sides keep it while they work, so that nothing is scanned while writes wait:
//!
//! ```text
//!   recipient   + what it puts, - what it replaces or removes        it is the only writer
//!   donor       scan, stretch by stretch, each of its own snapshot   [ a | b | c |   not yet   ]
//!               then the log: an entry that is behind the snapshot     time of each
//!               of the stretch it falls into adds its version and
//!               takes away the one before it
//! ```
//!
//! The donor's version before an entry is read from history, at the time right before the
//! entry; times increase along the log. An entry that falls into no stretch yet will be seen
//! by the scan, because what is read from the log is applied.
//!
//! The hash is of record key and document bytes: the same document under another key, or with
//! its fields in another order, is another. Sums do not depend on the order of anything.

use super::donor::{Changes, Followed};
use super::stretch::Stretch;
use crate::Shard;
use crate::sharding::Applied;
use cluster::migration::Digest;
use model::Error;
use model::bson::Doc;
use model::time::ClusterTime;
use replication::LogPosition;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;
use storage::entry::{Entry, Operation};
use storage::giving_way;
use storage::store::HistoryPin;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

/// Records that one step of the scan looks at, at most.
const SCAN_RECORDS: usize = 1024;
/// After so many of them it looks at the clock.
const RECORDS_PER_LOOK: usize = 64;
/// Bytes of the log that one step looks at.
const LOG_BYTES: usize = 1 << 20;

pub(super) const NOTHING: Digest = Digest {
    documents: 0,
    sum: 0,
};

fn hash(key: &[u8], document: &[u8]) -> u128 {
    xxh3_128_with_seed(document, xxh3_64(key))
}

pub(super) fn add(digest: &mut Digest, key: &[u8], document: &[u8]) {
    digest.documents = digest.documents.wrapping_add(1);
    digest.sum = digest.sum.wrapping_add(hash(key, document));
}

pub(super) fn take_away(digest: &mut Digest, key: &[u8], document: &[u8]) {
    digest.documents = digest.documents.wrapping_sub(1);
    digest.sum = digest.sum.wrapping_sub(hash(key, document));
}

/// Adds what others have.
pub(super) fn join(digest: &mut Digest, others: Digest) {
    digest.documents = digest.documents.wrapping_add(others.documents);
    digest.sum = digest.sum.wrapping_add(others.sum);
}

/// What is stored of a stretch now; how many records were looked at is told now and then. The caller sees to
/// it that nothing of it changes.
pub(super) fn of_stored(
    shard: &Shard,
    stretch: &Stretch,
    looks: impl Fn(u64),
) -> Result<Digest, Error> {
    let mut digest = NOTHING;
    let snapshot = shard.store.snapshot();
    let records = stretch.records(None);
    // ⚑ From the engine: what scans keep in memory may be what was copied.
    let records = snapshot.scan_records_stored(stretch.collection, records);
    for (number, record) in records.enumerate() {
        if number % SCAN_RECORDS == 0 {
            looks(SCAN_RECORDS as u64);
        }
        let record = record.map_err(crate::error::from_storage)?;
        if stretch.has(record.key(), Doc::from_validated(record.document())) {
            add(&mut digest, record.key(), record.document());
        }
    }
    Ok(digest)
}

/// The donor's digest in the making.
pub(super) struct Follower {
    stretch: Stretch,
    digest: Digest,
    /// What was scanned: the last key of each step, and the time its snapshot shows.
    scanned: Vec<(Box<[u8]>, ClusterTime)>,
    /// The time of the last step, if that reached the end.
    scanned_rest: Option<ClusterTime>,
    /// The log was followed up to here.
    followed: LogPosition,
    /// Changes of the stretch that the recipient may not have: their entry, and those that it has; or the last of
    /// several entries, and those that they have.
    ahead: VecDeque<(LogPosition, Changes)>,
    /// How many entries had changes of the stretch.
    of_the_stretch: u64,
    /// Keeps the versions that the next entries have replaced.
    pin: Option<HistoryPin>,
}

/// Entries ahead of a recipient that are counted one by one. A recipient that scans for hours is far behind, and how
/// far matters only when it is close.
const AHEAD_MAX: usize = 10_000;

fn sum<'a>(changes: impl IntoIterator<Item = &'a Changes>) -> Changes {
    let mut sum = Changes::default();
    for &changes in changes {
        sum += changes;
    }
    sum
}

/// Half as many: each two neighbours as one, at the place of the later.
fn joined(ahead: &VecDeque<(LogPosition, Changes)>) -> VecDeque<(LogPosition, Changes)> {
    let (one, other) = (ahead.iter().step_by(2), ahead.iter().skip(1).step_by(2));
    let pairs = one.zip(other);
    let mut joined: VecDeque<_> = pairs
        .map(|((_, first), (at, second))| (*at, sum([first, second])))
        .collect();
    if ahead.len() % 2 == 1 {
        joined.extend(ahead.back());
    }
    joined
}

impl Follower {
    /// Begins behind a position: what came before it the scan will see.
    pub(super) fn new(stretch: Stretch, after: LogPosition) -> Self {
        Self {
            stretch,
            digest: NOTHING,
            scanned: Vec::new(),
            scanned_rest: None,
            followed: after,
            ahead: VecDeque::new(),
            of_the_stretch: 0,
            pin: None,
        }
    }

    pub(super) fn is_scanned(&self) -> bool {
        self.scanned_rest.is_some()
    }

    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    pub(super) fn followed(&self) -> Followed {
        Followed {
            position: self.followed.get(),
            of_the_range: self.of_the_stretch,
        }
    }

    /// Changes of the stretch behind a position, as far as the log was followed. Whoever is there
    /// does not go back.
    pub(super) fn changes_behind(&mut self, position: u64) -> Changes {
        let is_known = |(at, _): &mut (LogPosition, Changes)| at.get() <= position;
        while self.ahead.pop_front_if(is_known).is_some() {}
        sum(self.ahead.iter().map(|(_, changes)| changes))
    }

    /// Writes are blocked, and the digest is told: nothing of the stretch changes until [`Follower::goes_on`],
    /// so that no version of it has to be kept.
    pub(super) fn rests(&mut self) {
        self.pin = None;
    }

    /// Writes are free again from an entry on. ⚑ What lies in between is of other ranges.
    pub(super) fn goes_on(&mut self, shard: &Shard, freed: Applied) {
        self.followed = self.followed.max(freed.position);
        self.pin = shard.store.pin_history(freed.time).ok();
    }

    /// Scans a bit, hardly longer than until then; true if that was the last.
    pub(super) fn scan(&mut self, shard: &Shard, until: Instant) -> Result<bool, Error> {
        if self.is_scanned() {
            return Ok(true);
        }
        let fault = crate::error::from_storage;
        if self.pin.is_none() {
            // Before the first snapshot: what is earlier is not asked for.
            self.pin = shard.store.pin_history(shard.store.applied_time()).ok();
        }
        let snapshot = shard.store.snapshot();
        // ⚑ That of all it shows: an entry that it contains is not followed again.
        let time = snapshot.last_time().map_err(fault)?;
        let after = self.scanned.last().map(|(key, _)| key.clone());
        let range = self.stretch.records(after.as_deref());
        let mut last = None;
        let mut records = 0_usize;
        for record in snapshot.scan_records_stored(self.stretch.collection, range) {
            giving_way::look();
            let record = record.map_err(fault)?;
            let key = record.key();
            if self
                .stretch
                .has(key, Doc::from_validated(record.document()))
            {
                add(&mut self.digest, key, record.document());
            }
            records += 1;
            let is_time_up = || records.is_multiple_of(RECORDS_PER_LOOK) && Instant::now() >= until;
            if records == SCAN_RECORDS || is_time_up() {
                last = Some(Box::from(key));
                break;
            }
        }
        match last {
            Some(last) => self.scanned.push((last, time)),
            None => self.scanned_rest = Some(time),
        }
        Ok(self.is_scanned())
    }

    /// When the part of the stretch was scanned that a key falls into.
    fn scanned_at(&self, key: &[u8]) -> Option<ClusterTime> {
        let at = self.scanned.partition_point(|(last, _)| &**last < key);
        match self.scanned.get(at) {
            Some((_, time)) => Some(*time),
            None => self.scanned_rest,
        }
    }

    /// Follows the log a bit; true if there was nothing left up to `until`.
    pub(super) fn follow(&mut self, shard: &Shard, until: LogPosition) -> Result<bool, Error> {
        if self.followed >= until {
            return Ok(true);
        }
        let mut followed_at = None;
        let entries = shard.log.read(self.followed, LOG_BYTES);
        for entry in entries.map_err(super::tail::unreadable)? {
            if entry.position > until {
                self.followed = until;
                break;
            }
            self.entry(shard, &entry)?;
            self.followed = entry.position;
            followed_at = Some(entry.time);
        }
        // The next entries are later, and what they replaced was there at this time.
        if let Some(time) = followed_at
            && let Ok(pin) = shard.store.pin_history(time)
        {
            self.pin = Some(pin);
        }
        Ok(self.followed >= until)
    }

    fn entry(&mut self, shard: &Shard, entry: &replication::Entry) -> Result<(), Error> {
        let decoded = Entry::decode(&entry.payload).map_err(super::tail::malformed)?;
        if decoded.header.names.is_none() {
            return Ok(());
        }
        let mut changes = Changes::default();
        let mut seen: BTreeMap<&[u8], Option<&[u8]>> = BTreeMap::new();
        for operation in decoded.operations() {
            let (collection, key, document) = match operation.map_err(super::tail::malformed)? {
                Operation::PutRecord {
                    collection,
                    key,
                    document,
                    ..
                } => (collection, key, Some(document)),
                Operation::DeleteRecord {
                    collection, key, ..
                } => (collection, key, None),
                Operation::IndexEntries { .. }
                | Operation::PutMeta { .. }
                | Operation::DeleteMeta { .. }
                | Operation::DropCollection { .. }
                | Operation::DropIndex { .. }
                | Operation::Noop
                // Of another range: one that moves is owned.
                | Operation::ForgetRecord { .. }
                | Operation::ForgetRange { .. } => continue,
            };
            let is_here =
                collection == self.stretch.collection && self.stretch.may_contain_key(key);
            if !is_here {
                continue;
            }
            changes += Changes {
                count: 1,
                bytes: document.map_or(0, <[u8]>::len) as u64,
            };
            if self
                .scanned_at(key)
                .is_some_and(|scanned| scanned < entry.time)
            {
                seen.insert(key, document);
            }
        }
        if changes.count > 0 {
            self.of_the_stretch += 1;
            self.ahead.push_back((entry.position, changes));
            if self.ahead.len() > AHEAD_MAX {
                self.ahead = joined(&self.ahead);
            }
        }
        if seen.is_empty() {
            return Ok(());
        }
        let fault = crate::error::from_storage;
        let before = ClusterTime::from_u64(entry.time.to_u64() - 1);
        let past = shard.store.snapshot().at(before).map_err(fault)?;
        for (key, document) in seen {
            let old = past.get(self.stretch.collection, key).map_err(fault)?;
            if let Some(old) = old
                && self.stretch.has(key, Doc::from_validated(old.document()))
            {
                take_away(&mut self.digest, key, old.document());
            }
            if let Some(document) = document
                && self.stretch.has(key, Doc::from_validated(document))
            {
                add(&mut self.digest, key, document);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joining_keeps_the_sum_and_the_last_place() {
        for length in [2_u64, 3, 10, 11] {
            let changes = |count| Changes {
                count,
                bytes: 100 * count,
            };
            let ahead: VecDeque<_> = (0..length)
                .map(|at| (LogPosition::new(at), changes(at + 1)))
                .collect();
            let joined = joined(&ahead);
            assert_eq!(joined.len() as u64, length.div_ceil(2));
            let sum = |of: &VecDeque<(LogPosition, Changes)>| sum(of.iter().map(|it| &it.1));
            assert_eq!(sum(&joined), sum(&ahead));
            assert_eq!(sum(&joined), changes(length * (length + 1) / 2));
            assert_eq!(joined.back().map(|it| it.0), ahead.back().map(|it| it.0));
        }
    }
}
