//! What a shard says beside its results: its cursor, where it stands, and what of the part it does not own.

use cluster::routing::ShardId;
use cluster::scan::Place;
use model::bson::{Doc, ValueRef};
use model::error::{Code, Error};
use model::ids::Uuid;
use model::range::{KeyBound, KeyRange, RangeSet};
use model::version::PlacementVersion;

/// What a reply says of a part of a scan.
pub(super) struct Reported {
    pub(super) cursor: i64,
    pub(super) place: Option<Place>,
    pub(super) places: Vec<Place>,
    pub(super) not_owned: RangeSet,
    pub(super) version: Option<PlacementVersion>,
    /// Of a collection that is not sharded: which it is.
    pub(super) uuid: Option<Uuid>,
}

impl Reported {
    pub(super) fn read(reply: Doc<'_>, shard: &ShardId) -> Result<Reported, Error> {
        // What is no cursor is an answer by itself: a count.
        let Some(cursor) = reply.get_doc("cursor") else {
            let scan = reply.get_doc("scan").unwrap_or(Doc::EMPTY);
            return Ok(Reported {
                cursor: 0,
                place: None,
                places: Vec::new(),
                not_owned: ranges_of(scan, "notOwned"),
                version: version(scan),
                uuid: None,
            });
        };
        let id = match cursor.get("id") {
            Some(ValueRef::Int64(id)) => id,
            _ => return Err(malformed(shard, "the cursor has no id")),
        };
        let scan = cursor.get_doc("scan").unwrap_or(Doc::EMPTY);
        let place = match scan.get("place") {
            Some(ValueRef::Binary { bytes, .. }) => Some(bytes.to_vec()),
            _ => None,
        };
        let places = scan.get_array("places").into_iter();
        let places = places.flat_map(|places| places.iter());
        let places = places.filter_map(|place| match place {
            ValueRef::Binary { bytes, .. } => Some(bytes.to_vec()),
            _ => None,
        });
        Ok(Reported {
            cursor: id,
            place,
            places: places.collect(),
            not_owned: ranges_of(scan, "notOwned"),
            version: version(scan),
            uuid: match scan.get("uuid") {
                Some(ValueRef::Binary { bytes, .. }) => bytes.try_into().ok().map(Uuid),
                _ => None,
            },
        })
    }
}

/// The ranges in an array of bounds.
pub(crate) fn ranges_of(scan: Doc<'_>, name: &str) -> RangeSet {
    let listed = scan.get_array(name).into_iter();
    let bounds: Vec<KeyBound> = listed
        .flat_map(|bounds| bounds.iter())
        .filter_map(|bound| match bound {
            ValueRef::Binary { bytes, .. } => Some(KeyBound::new(bytes)),
            _ => None,
        })
        .collect();
    let (pairs, _) = bounds.as_chunks::<2>();
    let ranges = pairs.iter();
    RangeSet::of(ranges.map(|[min, max]| KeyRange::new(min.clone(), max.clone())))
}

/// The version that a reply says the shard has.
pub(crate) fn version(scan: Doc<'_>) -> Option<PlacementVersion> {
    PlacementVersion::from_document(scan.get_doc("version")?).ok()
}

pub(super) fn malformed(shard: &ShardId, why: &str) -> Error {
    Error::new(
        Code::INTERNAL_ERROR,
        format!("shard {shard} did not answer as it should: {why}"),
    )
}
