//! Where the first chunks of an empty collection are: the pure part of `shardCollection`.
//!
//! ```text
//!   zones          one chunk for each zone's range, on a shard of it in turn; what lies between
//!                  them goes to all shards in turn
//!   presplit       the same, but each zone's range is cut at hashes into several
//!   a hashed key   the hashes cut into equal parts, on all shards
//!   else           one chunk
//! ```

use crate::error::Fault;
use cluster::balance::Zone;
use cluster::routing::ShardId;
use model::Error;
use model::bson::{DocBuf, DocWriter, ValueRef};
use model::range::KeyBound;
use model::shard_key::ShardKeyPattern;

/// The bounds between chunks, and who owns each chunk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FirstChunks {
    pub(crate) bounds: Vec<KeyBound>,
    pub(crate) owners: Vec<ShardId>,
}

/// A zone's range, and what may own it.
pub(crate) struct ZoneOnShards {
    pub(crate) zone: Zone,
    pub(crate) shards: Vec<ShardId>,
    /// Where its range is cut, in order.
    pub(crate) cuts: Vec<KeyBound>,
}

/// `zones` in the order of their ranges, which do not overlap; nothing of them is empty.
pub(crate) fn by_zones(
    pattern: &ShardKeyPattern,
    zones: &[ZoneOnShards],
    shards: &[ShardId],
) -> FirstChunks {
    let (mut begins, mut owners) = (Vec::new(), Vec::new());
    let mut for_gaps = shards.iter().cycle();
    let mut fill = |begins: &mut Vec<KeyBound>, owners: &mut Vec<ShardId>, from: &KeyBound| {
        begins.push(from.clone());
        owners.extend(for_gaps.next().cloned());
    };
    let mut reached = KeyBound::new(&pattern.least());
    for part in zones {
        if reached < part.zone.range.min {
            fill(&mut begins, &mut owners, &reached);
        }
        let starts = [&part.zone.range.min].into_iter().chain(&part.cuts);
        let chunks = part.cuts.len() + 1;
        // Neighbours on one shard, so that they can be merged.
        let together = chunks.div_ceil(part.shards.len());
        for (at, start) in starts.enumerate() {
            begins.push(start.clone());
            owners.push(part.shards[at / together].clone());
        }
        reached = part.zone.range.max.clone();
    }
    if reached < KeyBound::after_all() {
        fill(&mut begins, &mut owners, &reached);
    }
    FirstChunks {
        bounds: begins.split_off(1),
        owners,
    }
}

/// Where `presplitHashedZones` cuts a zone's range into so many chunks: at hashes, behind the fields
/// before the hashed one as the range's beginning has them.
pub(crate) fn zone_cuts(
    pattern: &ShardKeyPattern,
    zone: &Zone,
    chunks: usize,
) -> Result<Vec<KeyBound>, Fault> {
    let fields = pattern.fields();
    let Some(hashed) = fields.iter().position(|field| field.hashed) else {
        return Err(refused(
            31387,
            "presplitHashedZones needs a shard key with a hashed field",
        ));
    };
    let min = pattern.bound_of_key(zone.range.min.as_bytes())?;
    if min
        .iter()
        .skip(hashed)
        .any(|field| field.value() != ValueRef::MinKey)
    {
        return Err(refused(
            31390,
            "the lower bound of a zone must be MinKey in the hashed field and those behind it, to \
             split it before there are data",
        ));
    }
    if hashed == 0 && zone.range.max != KeyBound::after_all() {
        return Err(refused(
            31412,
            "where the shard key begins with its hashed field, a zone to be split before there are \
             data must have all keys",
        ));
    }
    let cuts = hashed_cuts(pattern, &min, hashed, chunks)?;
    Ok(cuts
        .into_iter()
        .filter(|cut| *cut < zone.range.max)
        .collect())
}

fn refused(code: i32, message: &str) -> Fault {
    Fault::Refused(Error::location(code, message))
}

/// Bounds that cut the hashes of a key's first field into so many equal parts.
pub(crate) fn hashed_bounds(
    pattern: &ShardKeyPattern,
    chunks: usize,
) -> Result<Vec<KeyBound>, Fault> {
    hashed_cuts(pattern, &DocBuf::new(), 0, chunks)
}

/// Bounds with equal distances in field number `hashed`, with `before` in the fields before it.
fn hashed_cuts(
    pattern: &ShardKeyPattern,
    before: &DocBuf,
    hashed: usize,
    chunks: usize,
) -> Result<Vec<KeyBound>, Fault> {
    let mut hashes = Vec::new();
    if chunks > 1 {
        let count = chunks as i64;
        let interval = (i64::MAX / count) * 2;
        let mut current = 0;
        if count % 2 == 0 {
            hashes.push(current);
            current += interval;
        } else {
            current += interval / 2;
        }
        for _ in 0..(count - 1) / 2 {
            hashes.push(current);
            hashes.push(-current);
            current = current.saturating_add(interval);
        }
        hashes.sort_unstable();
    }
    let bound = |hash: i64| {
        let mut writer = DocWriter::new();
        for element in before.iter().take(hashed) {
            writer.append_element(&element);
        }
        for (at, field) in pattern.fields().iter().enumerate().skip(hashed) {
            match at == hashed {
                true => writer.append(&field.path, hash),
                false => writer.append(&field.path, ValueRef::MinKey),
            };
        }
        Ok(pattern.bound(writer.finish().as_doc())?)
    };
    hashes.into_iter().map(bound).collect()
}

#[cfg(test)]
mod tests {
    use super::{FirstChunks, ZoneOnShards, by_zones, zone_cuts};
    use cluster::balance::Zone;
    use cluster::routing::ShardId;
    use model::bson::{DocBuf, DocWriter, ValueRef};
    use model::shard_key::ShardKeyPattern;
    use model::text::document_quoted;

    fn doc<'a>(fields: &[(&str, ValueRef<'a>)]) -> DocBuf {
        let mut writer = DocWriter::new();
        for (name, value) in fields {
            writer.append(name, *value);
        }
        writer.finish()
    }

    fn pattern(key: &[(&str, ValueRef<'_>)]) -> ShardKeyPattern {
        ShardKeyPattern::parse(doc(key).as_doc()).expect("a key")
    }

    fn on(pattern: &ShardKeyPattern, min: &DocBuf, max: &DocBuf, shards: &[&str]) -> ZoneOnShards {
        let range = pattern.range_of(min.as_doc(), max.as_doc());
        ZoneOnShards {
            zone: Zone {
                range: range.expect("a range"),
                name: "zone".to_owned(),
            },
            shards: shards.iter().map(|name| ShardId::new(name)).collect(),
            cuts: Vec::new(),
        }
    }

    /// Owners, and the bounds between their chunks.
    fn told(pattern: &ShardKeyPattern, chunks: &FirstChunks) -> String {
        let bounds = chunks.bounds.iter().map(|bound| {
            let bound = pattern.bound_of_key(bound.as_bytes()).expect("a bound");
            document_quoted(bound.as_doc())
        });
        let bounds: Vec<String> = bounds.chain([String::new()]).collect();
        assert_eq!(bounds.len(), chunks.owners.len());
        let pairs = chunks.owners.iter().zip(bounds);
        let pairs = pairs.map(|(owner, bound)| format!("{} {bound}", owner.as_str()));
        pairs.collect::<Vec<_>>().join("|").trim().to_owned()
    }

    #[test]
    fn one_chunk_for_each_zone_and_for_each_gap() {
        let pattern = pattern(&[("a", 1.into())]);
        let at = |value: i32| doc(&[("a", value.into())]);
        let least = doc(&[("a", ValueRef::MinKey)]);
        let greatest = doc(&[("a", ValueRef::MaxKey)]);
        let shards = ["s0", "s1", "s2"].map(ShardId::new);
        let zones = [
            on(&pattern, &at(1), &at(5), &["s1"]),
            on(&pattern, &at(5), &at(7), &["s2", "s0"]),
            on(&pattern, &at(9), &greatest, &["s2"]),
        ];
        let chunks = by_zones(&pattern, &zones, &shards);
        assert_eq!(
            told(&pattern, &chunks),
            "s0 { a: 1 }|s1 { a: 5 }|s2 { a: 7 }|s1 { a: 9 }|s2"
        );
        let all = [on(&pattern, &least, &greatest, &["s1"])];
        assert_eq!(told(&pattern, &by_zones(&pattern, &all, &shards)), "s1");
    }

    #[test]
    fn zones_are_cut_at_hashes() {
        let pattern = pattern(&[("land", 1.into()), ("k", "hashed".into())]);
        let at = |land: &str, k| doc(&[("land", land.into()), ("k", k)]);
        let (min, max) = (at("a", ValueRef::MinKey), at("b", ValueRef::MinKey));
        let shards = ["s0", "s1", "s2"].map(ShardId::new);
        let mut north = on(&pattern, &min, &max, &["s1", "s2"]);
        north.cuts = zone_cuts(&pattern, &north.zone, 4).expect("cuts");
        let chunks = by_zones(&pattern, &[north], &shards);
        let quarter = 4_611_686_018_427_387_902_i64;
        assert_eq!(
            told(&pattern, &chunks),
            format!(
                "s0 {{ land: \"a\", k: MinKey }}|s1 {{ land: \"a\", k: -{quarter} }}|\
                 s1 {{ land: \"a\", k: 0 }}|s2 {{ land: \"a\", k: {quarter} }}|\
                 s2 {{ land: \"b\", k: MinKey }}|s1"
            )
        );
        let odd = on(&pattern, &at("a", 5i64.into()), &max, &["s1"]);
        assert!(zone_cuts(&pattern, &odd.zone, 4).is_err());
    }
}
