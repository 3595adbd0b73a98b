//! A part of a scan over several shards: what a router asks of this one.
//!
//! ```text
//!   _terndbScan: {ranges: [min, max, ..], uuid, version: {e, t, v}, without: [min, max, ..], after: place, places: bool,
//!                 goesOn: bool, bytes: long}
//!     ranges   encoded bounds as binary; absent: what the request's version says
//!     uuid     the collection that is scanned, given with ranges, and with places in one that is not sharded
//!     version  whose incarnation says by which shard key ranges are named
//!     without  of what the version says, others answer for these
//!     after    where an earlier batch ended, here or on another shard
//!     places   a place is wanted for each document
//!     goesOn   the scan has begun, here or elsewhere: what it began with was there then
//!     bytes    what the batch may weigh, unless its first document weighs more; in a `getMore`, too
//!
//!   scan: {place, places, notOwned: [min, max, ..], version: {e, t, v}, uuid, skipped}      in the answer
//!     uuid     of a collection that is not sharded
//! ```
//!
//! Nothing is kept here that matters: a cursor is a warm copy of what `after` says. A *place* is
//! logical, made of index keys and record keys, which are the same on every shard, so that any
//! shard (and any member of it) can go on where another one stopped, with the same plan:
//!
//! ```text
//!   place     [1][plan 8][outputs 4][at]
//!   at        [0][branch 4][mark]                       a scan, or branches one after the other
//!             [1][inclusive 1][sort key, record key]    sorted here
//!             [2][count 4]([mark length 4][mark])*      branches merged in order
//!   mark      [0 beginning | 1 behind | 2 from | 3 ended][key]
//! ```
//!
//! *Outputs* is for pipelines: so many documents that were made from the record the place stands at
//! were returned already.
//!
//! A part is answered from one snapshot, for whole ranges: those that are not owned in that snapshot
//! are named, and nothing of them is shown. While the ranges of a collection change, an execution of
//! a part ends; the router asks again, by place.
//!
//! ⚑ Ranges are compared with keys of the length that their bounds have. So a part that names ranges by another
//! incarnation than the one of its snapshot is refused as stale (`StaleConfig`); a primary that knows less than the
//! router asks the config server first. Routers of an earlier version do not say which one they mean: their scans end with
//! a refined key.

use super::append_ranges;
use crate::catalog::Collection;
use model::bson::{Array, Doc, DocWriter, ValueRef};
use model::ids::Uuid;
use model::range::{KeyBound, KeyRange, RangeSet};
use model::time::ClusterTime;
use model::version::PlacementVersion;
use model::{Code, Error};
use std::sync::Arc;

const VERSION: u8 = 1;

/// What is asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScanPart {
    pub(crate) ranges: Option<RangeSet>,
    pub(crate) uuid: Option<Uuid>,
    /// By which ranges are named.
    pub(crate) version: Option<PlacementVersion>,
    /// Where no ranges are named: what is owned and not asked for.
    pub(crate) without: RangeSet,
    pub(crate) after: Option<Place>,
    pub(crate) places: bool,
    pub(crate) goes_on: bool,
    pub(crate) bytes: Option<usize>,
    /// Of the log: behind the document of this time.
    pub(crate) after_time: Option<ClusterTime>,
    /// A client wants to know where each batch ends: nobody merges it.
    pub(crate) token: bool,
}

impl ScanPart {
    /// Reads `_terndbScan`, if the command has it.
    pub(crate) fn read(body: Doc<'_>) -> Result<Option<Arc<ScanPart>>, Error> {
        let spec = match body.get("_terndbScan") {
            None => return Ok(None),
            Some(ValueRef::Document(spec)) => spec,
            Some(_) => return Err(malformed("it is no document")),
        };
        let mut part = ScanPart::default();
        for field in spec.iter() {
            match (field.key(), field.value()) {
                ("ranges", ValueRef::Array(bounds)) => part.ranges = Some(ranges_of(bounds)?),
                ("uuid", ValueRef::Binary { bytes, .. }) => {
                    let bytes = bytes.try_into().map_err(|_| malformed("uuid"))?;
                    part.uuid = Some(Uuid(bytes));
                }
                ("version", ValueRef::Document(version)) => {
                    part.version = Some(PlacementVersion::from_document(version)?);
                }
                ("without", ValueRef::Array(bounds)) => part.without = ranges_of(bounds)?,
                ("after", ValueRef::Binary { bytes, .. }) => {
                    part.after = Some(Place::decode(bytes)?);
                }
                ("places", ValueRef::Boolean(wanted)) => part.places = wanted,
                ("goesOn", ValueRef::Boolean(goes_on)) => part.goes_on = goes_on,
                ("bytes", ValueRef::Int64(bytes)) => {
                    let bytes = usize::try_from(bytes).map_err(|_| malformed("bytes"))?;
                    part.bytes = Some(bytes);
                }
                (name, _) => return Err(malformed(name)),
            }
        }
        Ok(Some(Arc::new(part)))
    }
}

impl ScanPart {
    /// Whether it is about some of what is owned here.
    pub(crate) fn is_restricted(&self) -> bool {
        self.ranges.is_some() || !self.without.is_empty()
    }

    /// What it asks for of these ranges.
    pub(crate) fn of(&self, owned: &RangeSet) -> RangeSet {
        match &self.ranges {
            Some(asked) => owned.intersection(asked),
            None => owned.difference(&self.without),
        }
    }

    /// The error for a query that cannot be planned ⚑: whoever goes on has had a plan, so that it is the
    /// plan which is gone, and not the query which is wrong.
    pub(crate) fn refusal(&self, error: Error) -> Error {
        let had_plan = self.goes_on || self.after.is_some();
        match had_plan && error.code == Code::BAD_VALUE {
            true => lost_plan(),
            false => error,
        }
    }

    /// The version by which ranges are named, if it is of another incarnation than this one.
    pub(crate) fn of_another_life(&self, known: PlacementVersion) -> Option<PlacementVersion> {
        let named_by = self.ranges.as_ref().and(self.version);
        named_by.filter(|version| version.incarnation != known.incarnation)
    }

    /// Whether nothing of what is asked for can be here: it is another collection, or none
    /// of a cluster.
    pub(crate) fn is_elsewhere(&self, collection: Option<&Collection>) -> bool {
        let known = collection.filter(|known| known.is_sharded());
        let same = known.is_some_and(|known| self.uuid.is_none_or(|uuid| uuid == known.uuid));
        self.ranges.is_some() && !same
    }

    /// ⚑ The error for a part that goes on in a collection that is not sharded, where another one, or none, has its
    /// name by now.
    pub(crate) fn check_collection(&self, found: Option<&Collection>) -> Result<(), Error> {
        let Some(Uuid(uuid)) = self.uuid.filter(|_| self.ranges.is_none()) else {
            return Ok(());
        };
        match found {
            Some(found) if found.uuid.0 == uuid => Ok(()),
            _ => Err(Error::new(
                Code::QUERY_PLAN_KILLED,
                "the collection that a scan has begun with was dropped or renamed",
            )),
        }
    }

    /// Says that nothing of it is here.
    pub(crate) fn append_elsewhere(&self, writer: &mut DocWriter) {
        if let Some(asked) = &self.ranges {
            writer.begin_document("scan");
            append_ranges(writer, "notOwned", asked);
            writer.end();
        }
    }
}

fn malformed(what: &str) -> Error {
    Error::bad_value(format!("_terndbScan is malformed: {what}"))
}

pub(crate) fn ranges_of(bounds: Array<'_>) -> Result<RangeSet, Error> {
    let mut bounds = bounds.iter().map(|bound| match bound {
        ValueRef::Binary { bytes, .. } => Ok(KeyBound::new(bytes)),
        _ => Err(malformed("ranges")),
    });
    let mut ranges = Vec::new();
    while let Some(min) = bounds.next() {
        let max = bounds.next().ok_or_else(|| malformed("ranges"))?;
        ranges.push(KeyRange::new(min?, max?));
    }
    Ok(RangeSet::of(ranges))
}

/// Where a scan over keys stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    Beginning,
    /// Behind this key.
    Behind(Vec<u8>),
    /// At this key, which is still to come.
    From(Vec<u8>),
    Ended,
}

/// Where a plan stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    Branch { branch: u32, mark: Mark },
    Sorted { key: Vec<u8>, inclusive: bool },
    Merged(Vec<Mark>),
}

/// Where a part of a scan stands, on whichever shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Tells the plans of one query apart.
    pub(crate) plan: u64,
    pub(crate) outputs: u32,
    pub(crate) at: Standing,
}

impl Mark {
    fn encode(&self, out: &mut Vec<u8>) {
        let (kind, key): (u8, &[u8]) = match self {
            Mark::Beginning => (0, &[]),
            Mark::Behind(key) => (1, key),
            Mark::From(key) => (2, key),
            Mark::Ended => (3, &[]),
        };
        out.push(kind);
        out.extend_from_slice(key);
    }

    fn decode(bytes: &[u8]) -> Option<Mark> {
        let (kind, key) = bytes.split_first()?;
        Some(match kind {
            0 => Mark::Beginning,
            1 => Mark::Behind(key.to_vec()),
            2 => Mark::From(key.to_vec()),
            3 => Mark::Ended,
            _ => return None,
        })
    }
}

impl Place {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.plan.to_be_bytes());
        out.extend_from_slice(&self.outputs.to_be_bytes());
        match &self.at {
            Standing::Branch { branch, mark } => {
                out.push(0);
                out.extend_from_slice(&branch.to_be_bytes());
                mark.encode(&mut out);
            }
            Standing::Sorted { key, inclusive } => {
                out.extend_from_slice(&[1, u8::from(*inclusive)]);
                out.extend_from_slice(key);
            }
            Standing::Merged(marks) => {
                out.push(2);
                out.extend_from_slice(&(marks.len() as u32).to_be_bytes());
                for mark in marks {
                    let mut bytes = Vec::new();
                    mark.encode(&mut bytes);
                    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
                    out.extend_from_slice(&bytes);
                }
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Place, Error> {
        Self::read(bytes).ok_or_else(|| malformed("after"))
    }

    fn read(bytes: &[u8]) -> Option<Place> {
        let (&version, rest) = bytes.split_first()?;
        if version != VERSION {
            return None;
        }
        let (plan, rest) = rest.split_first_chunk::<8>()?;
        let (outputs, rest) = rest.split_first_chunk::<4>()?;
        let (&kind, rest) = rest.split_first()?;
        let at = match kind {
            0 => {
                let (branch, mark) = rest.split_first_chunk::<4>()?;
                Standing::Branch {
                    branch: u32::from_be_bytes(*branch),
                    mark: Mark::decode(mark)?,
                }
            }
            1 => {
                let (&inclusive, key) = rest.split_first()?;
                Standing::Sorted {
                    key: key.to_vec(),
                    inclusive: inclusive == 1,
                }
            }
            2 => {
                let (count, mut rest) = rest.split_first_chunk::<4>()?;
                let mut marks = Vec::new();
                for _ in 0..u32::from_be_bytes(*count) {
                    let (length, behind) = rest.split_first_chunk::<4>()?;
                    let length = u32::from_be_bytes(*length) as usize;
                    let (mark, behind) = behind.split_at_checked(length)?;
                    marks.push(Mark::decode(mark)?);
                    rest = behind;
                }
                if !rest.is_empty() {
                    return None;
                }
                Standing::Merged(marks)
            }
            _ => return None,
        };
        Some(Place {
            plan: u64::from_be_bytes(*plan),
            outputs: u32::from_be_bytes(*outputs),
            at,
        })
    }
}

/// The error for a place that no plan of this query can have come to.
pub(crate) fn lost_plan() -> Error {
    Error::new(
        Code::QUERY_PLAN_KILLED,
        "the plan that a scan over several shards began with is not available on this shard",
    )
}

/// The error for a token that stands at the record of this number.
pub(crate) fn record_is_gone(number: i64) -> Error {
    Error::new(
        Code::KEY_NOT_FOUND,
        format!(
            "Failed to resume collection scan: the recordId from which we are attempting to resume \
             no longer exists in the collection. recordId: RecordId({number})"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_and_damage_is_found() {
        let standings = [
            Standing::Branch {
                branch: 3,
                mark: Mark::Behind(vec![1, 2]),
            },
            Standing::Branch {
                branch: 0,
                mark: Mark::Beginning,
            },
            Standing::Sorted {
                key: vec![7, 8],
                inclusive: true,
            },
            Standing::Merged(vec![
                Mark::Beginning,
                Mark::From(vec![5]),
                Mark::Ended,
                Mark::Behind(Vec::new()),
            ]),
        ];
        for at in standings {
            let place = Place {
                plan: 0x0102_0304_0506_0708,
                outputs: 9,
                at,
            };
            let bytes = place.encode();
            assert_eq!(Place::decode(&bytes).unwrap(), place);
            for cut in 0..14 {
                assert!(Place::decode(&bytes[..cut]).is_err(), "cut at {cut}");
            }
        }
    }
}
