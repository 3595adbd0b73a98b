//! A scan as bytes that a client can hold, and any router continue from.
//!
//! ```text
//!  token    [version 1 = 4][order 1][query 8][collection 16][epoch 12][began 8][base 8][not before 8]
//!           [skip varint][limit + 1, or 0 for none, varint][floor: length varint, bytes]
//!           [count varint][stream]* [checksum 4]
//!  stream   [shard: length varint, bytes]
//!           [0 base, ranges are what it gave away | 1 the ranges themselves]
//!           [count varint][[min length varint, bytes][max length varint, bytes]]*
//!           [0 beginning | 1 behind][place: length varint, bytes]
//! ```
//!
//! Numbers are big endian. Streams that have ended are left out. The base placement is
//! named, not contained, so the size does not grow with the number of chunks: ten
//! shards and short places take a few hundred bytes. It is named by the time at which its last
//! chunk came to where it was: every later placement tells who owned a key then, for as long as
//! the history of its chunks reaches back. After that the token is refused.
//!
//! A token holds the places *delivered* ⚑: what a router had fetched and not yet
//! handed out is fetched again by whoever continues. *Not before* is a time floor ⚑: later batches
//! read at or after it, so that a member that lags behind cannot lose what an earlier batch saw.
//!
//! The *collection* is named by its UUID: under a shard key that was refined since then it is still the same one, and the
//! token's ranges are put into the words of that key. Tokens of format 3 do not name it, and go on in their own
//! incarnation only.
//!
//! *Query* is a fingerprint of what decides which documents come and in which order: places mean nothing to another
//! query, and a token that comes back with one is refused. A token without streams stands at the end: whoever goes on
//! from it gets nothing, and a token of the end again.
//!
//! The checksum finds accidents, not attacks: a token is checked like any input, and
//! one that was made up can at worst make its own scan return other documents of the
//! same collection.

use super::naming::{Rebased, rebased};
use super::{Order, Part, Place, Reached, Scan, Stream};
use crate::routing::{Owner, RoutingTable, ShardId};
use model::bson::ObjectId;
use model::ids::Uuid;
use model::range::{KeyBound, KeyRange, RangeSet};
use model::time::ClusterTime;
use model::version::Incarnation;
use std::sync::Arc;

const VERSION: u8 = 4;
/// Did not name the collection.
const VERSION_BEFORE: u8 = 3;

/// Why bytes are not a token.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TokenError {
    #[error("the resume token is damaged")]
    Damaged,
    #[error("the resume token has format {0}, which is not known here")]
    Version(u8),
    #[error("the resume token belongs to another incarnation of the collection")]
    OtherIncarnation,
    #[error("the placement that the resume token began with is not known any more")]
    TooOld,
    #[error("the resume token was given out for another query")]
    OtherQuery,
}

/// Where a scan stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanToken {
    query: u64,
    collection: Option<Uuid>,
    incarnation: Incarnation,
    /// When the base placement had come to be.
    base: ClusterTime,
    /// Later batches read at or after this time.
    pub not_before: ClusterTime,
    order: Order,
    skip: u64,
    limit: Option<u64>,
    floor: Vec<u8>,
    streams: Vec<TokenStream>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct TokenStream {
    shard: ShardId,
    ranges: TokenRanges,
    after: Option<Place>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum TokenRanges {
    BaseWithout(RangeSet),
    These(RangeSet),
}

impl<E> Scan<E> {
    /// What is left to deliver; `None` of whole scans and those of the past, from which nobody can go on.
    /// All entries must have come with their places.
    pub fn token(&self, not_before: ClusterTime) -> Option<ScanToken> {
        if self.order == Order::Whole || self.is_past {
            return None;
        }
        let streams: &[Stream<E>] = match self.has_ended() {
            true => &[],
            false => &self.streams,
        };
        let left = streams.iter().filter(|stream| !stream.has_ended());
        let streams = left.map(|stream| TokenStream {
            shard: stream.shard.clone(),
            ranges: match &stream.part {
                Part::Base { without, .. } => TokenRanges::BaseWithout(without.clone()),
                Part::These(ranges) => TokenRanges::These(ranges.clone()),
            },
            after: match &stream.delivered {
                Reached::Behind(place) => Some(place.clone()),
                Reached::Beginning | Reached::End => None,
            },
        });
        Some(ScanToken {
            query: self.query,
            collection: Some(self.base.uuid),
            incarnation: self.base.incarnation,
            base: self.base_time(),
            not_before,
            order: self.order,
            skip: self.skip,
            limit: self.limit,
            floor: self.floor.clone().unwrap_or_default(),
            streams: streams.collect(),
        })
    }

    /// When the base placement had come to be. ⚑ Whoever is asked for ranges by name reads at or after it: a
    /// member that lags behind may have owned a range before it went away and came back.
    pub fn base_time(&self) -> ClusterTime {
        self.base.came_to_be()
    }

    /// Goes on where a token stands. `now` is any placement since the one that it names;
    /// `wanted` are the keys that the query can match, as when it began.
    pub fn resume(
        token: ScanToken,
        now: Arc<RoutingTable>,
        wanted: RangeSet,
    ) -> Result<Self, TokenError> {
        if !token.is_of(&now) {
            return Err(TokenError::OtherIncarnation);
        }
        let in_words = |ranges: &RangeSet| now.pattern.completed_ranges(ranges);
        let mut streams = Vec::with_capacity(token.streams.len());
        for stream in token.streams {
            let ranges = match stream.ranges {
                TokenRanges::These(ranges) => in_words(&ranges),
                TokenRanges::BaseWithout(without) => {
                    let owned = ranges_at(&now, &stream.shard, token.base)?;
                    let asked = owned.intersection(&wanted);
                    asked.difference(&in_words(&without))
                }
            };
            let reached = match (stream.after, ranges.is_empty()) {
                (_, true) => Reached::End,
                (Some(place), false) => Reached::Behind(place),
                (None, false) => Reached::Beginning,
            };
            // ⚑ Ranges are said by the placement of now, so that the next token is small again.
            let rebased = match reached {
                Reached::End => None,
                Reached::Beginning | Reached::Behind(_) => {
                    rebased(&ranges, &stream.shard, &now, &wanted)
                }
            };
            let Some(Rebased { without, gone }) = rebased else {
                let part = Part::These(ranges);
                streams.push(Stream::at(stream.shard, part, reached, 0));
                continue;
            };
            if let Some(without) = without {
                let part = Part::Base {
                    without,
                    by_version: false,
                };
                streams.push(Stream::at(stream.shard, part, reached.clone(), 0));
            }
            for (shard, ranges) in gone {
                let part = Part::These(ranges);
                streams.push(Stream::at(shard, part, reached.clone(), 1));
            }
        }
        Ok(Self {
            base: now,
            wanted,
            order: token.order,
            streams,
            floor: Some(token.floor).filter(|floor| !floor.is_empty()),
            skip: token.skip,
            limit: token.limit,
            is_past: false,
            query: token.query,
        })
    }
}

/// What a shard owned at a time.
fn ranges_at(
    now: &RoutingTable,
    shard: &ShardId,
    time: ClusterTime,
) -> Result<RangeSet, TokenError> {
    let whole = now.whole();
    let mut owned = Vec::new();
    for (range, owner) in now.owners_at(&whole, time) {
        match owner {
            Owner::Shard(owner) if owner == shard => owned.push(range),
            Owner::Shard(_) => {}
            Owner::Forgotten => return Err(TokenError::TooOld),
        }
    }
    Ok(RangeSet::of(owned))
}

impl ScanToken {
    /// Whether a placement is one of the token's collection, under the same shard key or a refined one.
    fn is_of(&self, table: &RoutingTable) -> bool {
        let is_refined =
            self.collection == Some(table.uuid) && table.incarnation.began > self.incarnation.began;
        table.incarnation == self.incarnation || is_refined
    }

    /// Whether a placement tells who owned what in the one that the token names: it is that one, or a later one
    /// of the same collection. Moves are decided one after the other, each at a later time.
    pub fn is_told_by(&self, table: &RoutingTable) -> bool {
        self.is_of(table) && table.came_to_be() >= self.base
    }

    /// The error for a token of another query.
    pub fn check_query(&self, query: u64) -> Result<(), TokenError> {
        match self.query == query {
            true => Ok(()),
            false => Err(TokenError::OtherQuery),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let version = match self.collection {
            Some(_) => VERSION,
            None => VERSION_BEFORE,
        };
        let mut out = vec![version, u8::from(self.order == Order::Sorted)];
        out.extend_from_slice(&self.query.to_be_bytes());
        if let Some(Uuid(collection)) = &self.collection {
            out.extend_from_slice(collection);
        }
        out.extend_from_slice(&self.incarnation.epoch.0);
        for time in [self.incarnation.began, self.base, self.not_before] {
            out.extend_from_slice(&time.to_u64().to_be_bytes());
        }
        put(&mut out, self.skip);
        put(
            &mut out,
            self.limit.map_or(0, |limit| limit.saturating_add(1)),
        );
        put_bytes(&mut out, &self.floor);
        put(&mut out, self.streams.len() as u64);
        for stream in &self.streams {
            put_bytes(&mut out, stream.shard.as_str().as_bytes());
            let (kind, ranges) = match &stream.ranges {
                TokenRanges::BaseWithout(ranges) => (0, ranges),
                TokenRanges::These(ranges) => (1, ranges),
            };
            out.push(kind);
            put(&mut out, ranges.iter().len() as u64);
            for range in ranges.iter() {
                put_bytes(&mut out, range.min.as_bytes());
                put_bytes(&mut out, range.max.as_bytes());
            }
            match &stream.after {
                None => out.push(0),
                Some(place) => {
                    out.push(1);
                    put_bytes(&mut out, place);
                }
            }
        }
        let checksum = crc32c::crc32c(&out);
        out.extend_from_slice(&checksum.to_be_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, TokenError> {
        let (content, checksum) = bytes.split_last_chunk::<4>().ok_or(TokenError::Damaged)?;
        let names_collection = match content.first() {
            Some(&VERSION) => true,
            Some(&VERSION_BEFORE) => false,
            Some(&other) => return Err(TokenError::Version(other)),
            None => return Err(TokenError::Damaged),
        };
        if crc32c::crc32c(content) != u32::from_be_bytes(*checksum) {
            return Err(TokenError::Damaged);
        }
        let mut reader = Reader(&content[1..]);
        let token = reader.token(names_collection).ok_or(TokenError::Damaged)?;
        match reader.0.is_empty() {
            true => Ok(token),
            false => Err(TokenError::Damaged),
        }
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads what `encode` wrote; nothing is trusted.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn token(&mut self, names_collection: bool) -> Option<ScanToken> {
        let order = match self.byte()? {
            0 => Order::Unsorted,
            1 => Order::Sorted,
            _ => return None,
        };
        let query = u64::from_be_bytes(self.array()?);
        let collection = match names_collection {
            true => Some(Uuid(self.array()?)),
            false => None,
        };
        let incarnation = Incarnation {
            epoch: ObjectId(self.array()?),
            began: self.time()?,
        };
        let (base, not_before) = (self.time()?, self.time()?);
        let skip = self.number()?;
        let limit = self.number()?.checked_sub(1);
        let floor = self.bytes()?.to_vec();
        let mut streams = Vec::new();
        for _ in 0..self.number()? {
            streams.push(self.stream()?);
        }
        Some(ScanToken {
            query,
            collection,
            incarnation,
            base,
            not_before,
            order,
            skip,
            limit,
            floor,
            streams,
        })
    }

    fn stream(&mut self) -> Option<TokenStream> {
        let shard = ShardId::new(str::from_utf8(self.bytes()?).ok()?);
        let kind = self.byte()?;
        let mut ranges = Vec::new();
        for _ in 0..self.number()? {
            let min = KeyBound::new(self.bytes()?);
            ranges.push(KeyRange::new(min, KeyBound::new(self.bytes()?)));
        }
        let ranges = RangeSet::of(ranges);
        Some(TokenStream {
            shard,
            ranges: match kind {
                0 => TokenRanges::BaseWithout(ranges),
                1 => TokenRanges::These(ranges),
                _ => return None,
            },
            after: match self.byte()? {
                0 => None,
                1 => Some(self.bytes()?.to_vec()),
                _ => return None,
            },
        })
    }

    fn time(&mut self) -> Option<ClusterTime> {
        Some(ClusterTime::from_u64(u64::from_be_bytes(self.array()?)))
    }

    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7F).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}
