//! What moves of ranges leave in a collection's ownership.
//!
//! ```text
//!   meta key  "sharding/moving/" + collection id as 8 hex digits
//!   value     { changedAt: Timestamp,
//!               blocks:    [{ operation: UUID, min, max, reads: bool, since: Timestamp }, ..],
//!               receiving: [{ operation: UUID, min, max }, ..],
//!               dead:      [min, max, ..],
//!               past:      [{ until: Timestamp, gained: [min, max, ..], lost: [min, max, ..] }, ..],
//!               knownSince: Timestamp }
//! ```
//!
//! Bounds are encoded, as binary. An entry of the log does not know its own time while it is
//! encoded; `changedAt` is the first field so that the time can be filled in where it stands
//! ([`fill_in_time`]), and `since` and `until` are absent where they are that time.
//!
//! *Past* ownerships are kept as differences, the latest last: before `until` the shard did not
//! own what it gained then, and owned what it lost. What is older than the window of history is
//! dropped; `knownSince` is the earliest time that is still known. ⚑ A read at an earlier time
//! is refused: it would see another time's ranges.
//!
//! ⚑ *One time for everybody.* A move is decided together with the time `S` from which on the
//! recipient owns the range; donor, recipient and the chunk's history in routing tables all use it
//! as `until`, whenever they come to know of it:
//!
//! ```text
//!   recipient   last received R ┐                                 ┌ S ┄ first own entry G
//!   donor                       └─► reads blocked B ─► decided: S ┤
//!                                                                 └ S ┄ range lost L
//!   time T      ─────────── donor ───────────────────────────────►│◄─── recipient ───────
//! ```
//!
//! `R < B < S`: the donor writes its block after it has heard of `R`, the config server chooses `S`
//! behind the block. `S < L` and `S < G`: whoever hears of the decision takes note of its time before
//! it writes. So for `T < S` the donor answers, in whose range nothing has changed since the block;
//! for `T >= S` the recipient, which has had all of it since `R`. In `[B, ..)` the donor lets reads
//! wait until it is decided. Changes of other ranges may come between; times of one key always
//! increase along `past`.
//!
//! *Dead* ranges are not owned and may hold documents of earlier days, until a range deletion
//! has been there.

use model::bson::{Array, Doc, DocBuf, DocWriter, ValueRef};
use model::ids::Uuid;
use model::range::{KeyBound, KeyRange, RangeSet};
use model::time::ClusterTime;
use model::{Code, Error};

/// What a block keeps away.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum BlockLevel {
    Writes,
    /// Reads and writes.
    Reads,
}

/// A range that waits for the end of a move.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Block {
    pub(crate) operation: Uuid,
    pub(crate) range: KeyRange,
    pub(crate) level: BlockLevel,
    /// The time of the entry that set this level; `None`: the one in the making.
    pub(crate) since: Option<ClusterTime>,
}

/// A range that is copied to this shard: stored, not owned, not seen.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Receiving {
    pub(crate) operation: Uuid,
    pub(crate) range: KeyRange,
}

/// What a change of the ranges did.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Earlier {
    /// The time of the entry; `None`: the one in the making.
    pub(crate) until: Option<ClusterTime>,
    pub(crate) gained: RangeSet,
    pub(crate) lost: RangeSet,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Moving {
    pub(crate) blocks: Vec<Block>,
    pub(crate) receiving: Vec<Receiving>,
    pub(crate) dead: RangeSet,
    pub(crate) past: Vec<Earlier>,
    /// Of times before this one nothing is known.
    pub(crate) known_since: Option<ClusterTime>,
}

impl Moving {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Ranges whose owner is about to change.
    pub(crate) fn undecided(&self) -> RangeSet {
        let blocked = self.blocks.iter().map(|block| &block.range);
        let received = self.receiving.iter().map(|received| &received.range);
        RangeSet::of(blocked.chain(received).cloned())
    }

    pub(crate) fn received(&self) -> RangeSet {
        RangeSet::of(self.receiving.iter().map(|received| received.range.clone()))
    }

    /// The ranges that a reader waits for; one who reads at an earlier time than a block's
    /// does not wait for it.
    pub(crate) fn blocked_for_reads(&self, at: Option<ClusterTime>) -> RangeSet {
        let blocked = self.blocks.iter().filter(|block| {
            let before = match (at, block.since) {
                (Some(at), Some(since)) => at < since,
                _ => false,
            };
            block.level == BlockLevel::Reads && !before
        });
        RangeSet::of(blocked.map(|block| block.range.clone()))
    }

    /// The same with other bounds.
    pub(super) fn map(&self, bound: impl Fn(&KeyBound) -> KeyBound) -> Moving {
        let range = |range: &KeyRange| KeyRange::new(bound(&range.min), bound(&range.max));
        let set = |set: &RangeSet| RangeSet::of(set.iter().map(range));
        let mut mapped = self.clone();
        for block in &mut mapped.blocks {
            block.range = range(&block.range);
        }
        for received in &mut mapped.receiving {
            received.range = range(&received.range);
        }
        mapped.dead = set(&mapped.dead);
        for earlier in &mut mapped.past {
            earlier.gained = set(&earlier.gained);
            earlier.lost = set(&earlier.lost);
        }
        mapped
    }

    /// What was owned at a time, if it is still known.
    pub(super) fn owned_at(&self, now: &RangeSet, at: ClusterTime) -> Option<RangeSet> {
        if self.known_since.is_some_and(|since| at < since) {
            return None;
        }
        let mut owned = now.clone();
        let is_later = |until: Option<ClusterTime>| until.is_none_or(|until| at < until);
        // Changes of other ranges may have come before one that counts from an earlier time.
        let changes = self.past.iter().rev();
        for earlier in changes.filter(|earlier| is_later(earlier.until)) {
            owned = owned.difference(&earlier.gained).union(&earlier.lost);
        }
        Some(owned)
    }

    /// Whether anything came or went behind a time, until another one, as far as it is known.
    pub(super) fn changes_between(&self, after: ClusterTime, until: ClusterTime) -> bool {
        let is_forgotten = self.known_since.is_some_and(|since| after < since);
        let is_between = |change: &Earlier| {
            let at = change.until;
            at.is_none_or(|at| after < at && at <= until)
        };
        is_forgotten || self.past.iter().any(is_between)
    }

    /// Reads at this time and later, if they are answered at all, see nothing of what is dead in
    /// a range: whatever was owned of it was lost by then.
    pub(super) fn unseen_since(&self, range: &RangeSet) -> ClusterTime {
        let lost = self
            .past
            .iter()
            .filter(|it| !it.lost.intersection(range).is_empty());
        let latest = lost.map(|it| it.until.unwrap_or(ClusterTime::MAX)).max();
        latest.max(self.known_since).unwrap_or(ClusterTime::ZERO)
    }

    /// Forgets ownerships that no read may ask for any more.
    pub(super) fn forget_before(&mut self, start: ClusterTime) {
        let old = |earlier: &Earlier| earlier.until.is_some_and(|until| until < start);
        let forgotten = self.past.iter().filter(|earlier| old(earlier));
        let latest = forgotten.filter_map(|earlier| earlier.until).max();
        self.known_since = self.known_since.max(latest);
        self.past.retain(|earlier| !old(earlier));
    }

    pub(crate) fn to_document(&self) -> DocBuf {
        let mut writer = DocWriter::new();
        writer.append(CHANGED_AT, ClusterTime::ZERO);
        writer.begin_array("blocks");
        for block in &self.blocks {
            writer.push_document();
            append_move(&mut writer, block.operation, &block.range);
            writer.append("reads", block.level == BlockLevel::Reads);
            if let Some(since) = block.since {
                writer.append("since", since);
            }
            writer.end();
        }
        writer.end().begin_array("receiving");
        for received in &self.receiving {
            writer.push_document();
            append_move(&mut writer, received.operation, &received.range);
            writer.end();
        }
        writer.end();
        append_ranges(&mut writer, "dead", &self.dead);
        writer.begin_array("past");
        for earlier in &self.past {
            writer.push_document();
            if let Some(until) = earlier.until {
                writer.append("until", until);
            }
            append_ranges(&mut writer, "gained", &earlier.gained);
            append_ranges(&mut writer, "lost", &earlier.lost);
            writer.end();
        }
        writer.end();
        if let Some(since) = self.known_since {
            writer.append("knownSince", since);
        }
        writer.finish()
    }

    pub(crate) fn from_document(doc: Doc<'_>) -> Result<Self, Error> {
        let changed_at = time_of_change(doc)?;
        let mut moving = Moving {
            dead: ranges(doc, "dead")?,
            known_since: time(doc, "knownSince")?,
            ..Moving::default()
        };
        for block in documents(doc, "blocks")? {
            let block = block?;
            moving.blocks.push(Block {
                operation: operation(block)?,
                range: range(block)?,
                level: match block.get("reads") {
                    Some(ValueRef::Boolean(true)) => BlockLevel::Reads,
                    Some(ValueRef::Boolean(false)) => BlockLevel::Writes,
                    _ => return Err(damaged("reads")),
                },
                since: time(block, "since")?.or(Some(changed_at)),
            });
        }
        for received in documents(doc, "receiving")? {
            let received = received?;
            moving.receiving.push(Receiving {
                operation: operation(received)?,
                range: range(received)?,
            });
        }
        for earlier in documents(doc, "past")? {
            let earlier = earlier?;
            moving.past.push(Earlier {
                until: time(earlier, "until")?.or(Some(changed_at)),
                gained: ranges(earlier, "gained")?,
                lost: ranges(earlier, "lost")?,
            });
        }
        Ok(moving)
    }
}

const CHANGED_AT: &str = "changedAt";

/// Fills the time of its entry into an encoded document.
pub(crate) fn fill_in_time(document: &mut [u8], time: ClusterTime) {
    // The length of the document, the kind of its first field, the name and its end.
    let at = 4 + 1 + CHANGED_AT.len() + 1;
    if let Some(place) = document.get_mut(at..at + 8) {
        place[..4].copy_from_slice(&time.increment().to_le_bytes());
        place[4..].copy_from_slice(&time.seconds().to_le_bytes());
    }
}

/// A document that has nothing but the time of its entry.
pub(crate) fn moment() -> DocBuf {
    let time = ClusterTime::ZERO;
    DocWriter::new().with(CHANGED_AT, time).finish()
}

/// The time that was filled in.
pub(crate) fn time_of_change(doc: Doc<'_>) -> Result<ClusterTime, Error> {
    time(doc, CHANGED_AT)?.ok_or_else(|| damaged(CHANGED_AT))
}

fn binary(bound: &KeyBound) -> ValueRef<'_> {
    ValueRef::Binary {
        subtype: 0,
        bytes: bound.as_bytes(),
    }
}

fn append_move(writer: &mut DocWriter, operation: Uuid, range: &KeyRange) {
    writer
        .append(
            "operation",
            ValueRef::Binary {
                subtype: 4,
                bytes: &operation.0,
            },
        )
        .append("min", binary(&range.min))
        .append("max", binary(&range.max));
}

pub(super) fn append_ranges(writer: &mut DocWriter, name: &str, ranges: &RangeSet) {
    writer.begin_array(name);
    for range in ranges.iter() {
        writer.push(binary(&range.min)).push(binary(&range.max));
    }
    writer.end();
}

fn documents<'a>(
    doc: Doc<'a>,
    name: &'static str,
) -> Result<impl Iterator<Item = Result<Doc<'a>, Error>>, Error> {
    let listed = doc.get_array(name).ok_or_else(|| damaged(name))?;
    Ok(listed.iter().map(move |value| match value {
        ValueRef::Document(doc) => Ok(doc),
        _ => Err(damaged(name)),
    }))
}

fn operation(doc: Doc<'_>) -> Result<Uuid, Error> {
    match doc.get("operation") {
        Some(ValueRef::Binary { subtype: 4, bytes }) => {
            bytes.try_into().map(Uuid).map_err(|_| damaged("operation"))
        }
        _ => Err(damaged("operation")),
    }
}

fn range(doc: Doc<'_>) -> Result<KeyRange, Error> {
    let bound = |name| match doc.get(name) {
        Some(ValueRef::Binary { bytes, .. }) => Ok(KeyBound::new(bytes)),
        _ => Err(damaged(name)),
    };
    Ok(KeyRange::new(bound("min")?, bound("max")?))
}

fn time(doc: Doc<'_>, name: &'static str) -> Result<Option<ClusterTime>, Error> {
    match doc.get(name) {
        None => Ok(None),
        Some(ValueRef::Timestamp(time)) => Ok(Some(ClusterTime::new(time.seconds, time.increment))),
        Some(_) => Err(damaged(name)),
    }
}

pub(super) fn ranges(doc: Doc<'_>, name: &'static str) -> Result<RangeSet, Error> {
    let listed: Array<'_> = doc.get_array(name).ok_or_else(|| damaged(name))?;
    let mut bounds = listed.iter().map(|value| match value {
        ValueRef::Binary { bytes, .. } => Ok(KeyBound::new(bytes)),
        _ => Err(damaged(name)),
    });
    let mut ranges = Vec::new();
    while let Some(min) = bounds.next() {
        let max = bounds.next().ok_or_else(|| damaged(name))?;
        ranges.push(KeyRange::new(min?, max?));
    }
    Ok(RangeSet::of(ranges))
}

pub(super) fn damaged(what: &str) -> Error {
    Error::new(
        Code::INTERNAL_ERROR,
        format!("a stored ownership is damaged: {what}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min: u8, max: u8) -> KeyRange {
        KeyRange::new(KeyBound::new(&[min]), KeyBound::new(&[max]))
    }

    fn set(min: u8, max: u8) -> RangeSet {
        RangeSet::of([range(min, max)])
    }

    fn at(seconds: u32) -> ClusterTime {
        ClusterTime::new(seconds, 1)
    }

    #[test]
    fn what_is_stored_is_read_with_the_time_of_its_entry() {
        let moving = Moving {
            blocks: vec![
                Block {
                    operation: Uuid([1; 16]),
                    range: range(1, 3),
                    level: BlockLevel::Writes,
                    since: Some(at(5)),
                },
                Block {
                    operation: Uuid([2; 16]),
                    range: range(3, 4),
                    level: BlockLevel::Reads,
                    since: None,
                },
            ],
            receiving: vec![Receiving {
                operation: Uuid([3; 16]),
                range: range(7, 9),
            }],
            dead: set(20, 30),
            past: vec![Earlier {
                until: None,
                gained: set(1, 2),
                lost: RangeSet::new(),
            }],
            known_since: Some(at(2)),
        };
        let document = moving.to_document();
        let mut bytes = document.as_bytes().to_vec();
        fill_in_time(&mut bytes, at(9));
        let doc = Doc::from_bytes(&bytes).expect("a document");
        let read = Moving::from_document(doc).expect("readable");
        let mut expected = moving;
        expected.blocks[1].since = Some(at(9));
        expected.past[0].until = Some(at(9));
        assert_eq!(read, expected);
    }

    /// ⚑ A time has the ranges of that time.
    #[test]
    fn what_was_owned_at_a_time() {
        let change = |until, gained, lost| Earlier {
            until: Some(at(until)),
            gained,
            lost,
        };
        let mut moving = Moving {
            past: vec![
                change(10, set(5, 9), RangeSet::new()),
                change(20, RangeSet::new(), set(1, 5)),
            ],
            ..Moving::default()
        };
        let now = set(5, 9);
        assert_eq!(moving.owned_at(&now, at(20)), Some(set(5, 9)));
        assert_eq!(moving.owned_at(&now, at(19)), Some(set(1, 9)));
        assert_eq!(moving.owned_at(&now, at(10)), Some(set(1, 9)));
        assert_eq!(moving.owned_at(&now, at(9)), Some(set(1, 5)));
        moving.forget_before(at(15));
        assert_eq!(moving.owned_at(&now, at(12)), Some(set(1, 9)));
        assert_eq!(moving.owned_at(&now, at(9)), None);
    }
}
