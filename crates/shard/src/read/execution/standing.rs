//! Where an execution stands, as any shard understands it: for parts of scans over several
//! shards (`read/part.rs`).

use super::super::part::{Mark, Place, Standing, lost_plan};
use super::super::planning::fingerprint;
use super::{Execution, Found};
use model::Error;
use model::bson::{DocWriter, ValueRef};
use model::range::RangeSet;
use query::plan::Access;

impl Execution {
    /// Where the next document comes from; `again` if the last one is still to come.
    pub(crate) fn place(&self, again: bool, outputs: u32) -> Place {
        let again = again || self.put_back.is_some();
        let at = match (&self.merging, &self.sorted_at) {
            (Some(merging), _) => Standing::Merged(merging.marks(again)),
            (None, Some((key, inclusive))) => Standing::Sorted {
                key: key.clone(),
                inclusive: *inclusive || again,
            },
            // Nothing was returned of what is sorted.
            (None, None) if self.planned.plan.needs_sort => Standing::Branch {
                branch: 0,
                mark: Mark::Beginning,
            },
            (None, None) => Standing::Branch {
                branch: u32::try_from(self.branch).unwrap_or(u32::MAX),
                mark: self.mark_now(again),
            },
        };
        Place {
            plan: fingerprint(&self.planned.plan, &self.planned.indexes),
            outputs,
            at,
        }
    }

    /// Behind the last item, or at it.
    pub(in crate::read) fn mark_now(&self, again: bool) -> Mark {
        let behind = match &self.last {
            Some(last) => Mark::Behind(last.as_bytes().to_vec()),
            None => self.mark.clone(),
        };
        match behind {
            Mark::Behind(key) if again => Mark::From(key),
            mark => mark,
        }
    }

    pub(in crate::read) fn stand_at_mark(&mut self, mark: &Mark) {
        self.mark = mark.clone();
    }

    /// Whether the last item looked at is this one.
    pub(crate) fn stands_at(&self, place: &Place) -> bool {
        self.place(true, place.outputs) == *place
    }

    /// Goes on where the query says.
    pub(super) fn stand_at_place(&mut self) -> Result<(), Error> {
        let part = self.query.part.clone();
        let Some(place) = part.as_ref().and_then(|part| part.after.as_ref()) else {
            return Ok(());
        };
        match (&place.at, &mut self.merging, self.planned.plan.needs_sort) {
            (Standing::Merged(marks), Some(merging), false) => merging.stand_at(marks),
            (Standing::Sorted { key, inclusive }, None, true) => {
                self.sorted_at = Some((key.clone(), *inclusive));
                Ok(())
            }
            (Standing::Branch { mark, .. }, None, true) if *mark == Mark::Beginning => Ok(()),
            (Standing::Branch { branch, mark }, None, false) => {
                // Behind the last one is where a union ends. What says more was not written by us.
                let last = match &self.planned.plan.access {
                    Access::Union(union) => union.branches.len(),
                    Access::Nothing | Access::Id(_) | Access::Records { .. } | Access::Index(_) => {
                        0
                    }
                };
                if *branch as usize > last {
                    return Err(lost_plan());
                }
                self.branch = *branch as usize;
                self.mark = mark.clone();
                Ok(())
            }
            _ => Err(lost_plan()),
        }
    }

    /// The key that a part of a scan is sorted by: the sort's, and then one that no two
    /// documents share and that is the same on every shard.
    pub(super) fn key_of_part(&self, found: &Found) -> Result<Option<Vec<u8>>, Error> {
        let (Some(_), Some(pattern)) = (&self.query.part, &self.query.sort) else {
            return Ok(None);
        };
        let mut key = pattern.key(found.document())?.into_bytes();
        key.extend_from_slice(&(self.branch as u32).to_be_bytes());
        if let Some(last) = &self.last {
            key.extend_from_slice(last.as_bytes());
        }
        Ok(Some(key))
    }

    /// Whether a document was returned by an earlier batch of the scan.
    pub(super) fn is_behind(&self, key: &[u8]) -> bool {
        match &self.sorted_at {
            Some((at, true)) => key < at.as_slice(),
            Some((at, false)) => key <= at.as_slice(),
            None => false,
        }
    }

    /// Says which collection it is that is not sharded: nothing else tells it from another of its name.
    pub(crate) fn append_uuid(&self, writer: &mut DocWriter) {
        if self.collection.sharded_ownership().is_none() {
            let uuid = ValueRef::Binary {
                subtype: 4,
                bytes: &self.collection.uuid.0,
            };
            writer.append("uuid", uuid);
        }
    }

    /// Ends a reply about a part of a scan: where it stands, and what is not answered here.
    pub(crate) fn append_part(
        &self,
        writer: &mut DocWriter,
        place: Option<Place>,
        places: &[Vec<u8>],
    ) {
        let Some(part) = &self.query.part else {
            return;
        };
        // One that names no ranges and has ended is an answer like any other.
        if part.ranges.is_none() && place.is_none() && places.is_empty() {
            return;
        }
        writer.begin_document("scan");
        if let Some(place) = place {
            writer.append("place", binary(&place.encode()));
        }
        if part.places {
            writer.begin_array("places");
            for place in places {
                writer.push(binary(place));
            }
            writer.end();
        }
        self.append_uuid(writer);
        if part.ranges.is_some() {
            append_ranges(writer, "notOwned", &self.not_owned());
            if let Some(ownership) = &self.collection.ownership {
                writer.begin_document("version");
                ownership.collection_version.append_to(writer);
                writer.end();
            }
        }
        let skipped = i64::try_from(self.skipped).unwrap_or(i64::MAX);
        writer.append("skipped", skipped).end();
    }
}

pub(crate) fn append_ranges(writer: &mut DocWriter, name: &str, ranges: &RangeSet) {
    writer.begin_array(name);
    for range in ranges.iter() {
        writer.push(binary(range.min.as_bytes()));
        writer.push(binary(range.max.as_bytes()));
    }
    writer.end();
}

fn binary(bytes: &[u8]) -> ValueRef<'_> {
    ValueRef::Binary { subtype: 0, bytes }
}
