//! A scan as bytes that a client can hold, and any router continue from.
//!
//! ```text
//!  token    [version 1 = 1][order 1][epoch 12][began 8][major 4][minor 4]
//!           [skip varint][limit + 1, or 0 for none, varint]
//!           [count varint][stream]* [checksum 4]
//!  stream   [shard: length varint, bytes]
//!           [0 base, ranges are what it gave away | 1 the ranges themselves]
//!           [count varint][[min length varint, bytes][max length varint, bytes]]*
//!           [0 beginning | 1 after][position: length varint, bytes]
//! ```
//!
//! Numbers are big endian. Streams that have ended are left out. The base placement is
//! named, not contained, so the size does not grow with the number of chunks: ten
//! shards and short positions take a few hundred bytes.
//!
//! A token holds the positions *delivered* ⚑: what a router had fetched and not yet
//! handed out is fetched again by whoever continues.
//!
//! The checksum finds accidents, not attacks: a token is checked like any input, and
//! one that was made up can at worst make its own scan return other documents of the
//! same collection.

use super::{Order, Reached, Scan, Stream};
use crate::routing::{RoutingTable, ShardId};
use model::bson::ObjectId;
use model::range::{KeyBound, KeyRange, RangeSet};
use model::time::ClusterTime;
use model::version::{ChunkVersion, Incarnation, PlacementVersion};
use std::collections::VecDeque;

const VERSION: u8 = 1;

/// Positions as bytes whose order is the scan's.
type Position = Vec<u8>;

/// Why bytes are not a token.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TokenError {
    #[error("the resume token is damaged")]
    Damaged,
    #[error("the resume token has format {0}, which is not known here")]
    Version(u8),
    #[error("the resume token belongs to another placement of the collection")]
    OtherBase,
}

/// Where a scan stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanToken {
    /// The placement to fetch before the scan can go on.
    pub base: PlacementVersion,
    order: Order,
    skip: u64,
    limit: Option<u64>,
    streams: Vec<TokenStream>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct TokenStream {
    shard: ShardId,
    ranges: TokenRanges,
    after: Option<Position>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum TokenRanges {
    BaseWithout(RangeSet),
    These(RangeSet),
}

impl<E> Scan<Position, E> {
    /// What is left to deliver; `None` if nothing is.
    pub fn token(&self) -> Option<ScanToken> {
        if self.has_ended() {
            return None;
        }
        let mut streams = Vec::new();
        for (stream, delivered) in self.streams.iter().zip(&self.delivered) {
            if stream.reached == Reached::End && stream.buffer.is_empty() {
                continue;
            }
            let after = match (self.order, delivered) {
                // All streams have delivered what is before the floor.
                (Order::Sorted, _) => self.floor.clone(),
                (Order::Unsorted, Reached::After(position)) => Some(position.clone()),
                (Order::Unsorted, Reached::Beginning | Reached::End) => None,
            };
            streams.push(TokenStream {
                shard: stream.shard.clone(),
                ranges: match &stream.given_away {
                    Some(given_away) => TokenRanges::BaseWithout(given_away.clone()),
                    None => TokenRanges::These(stream.ranges.clone()),
                },
                after,
            });
        }
        Some(ScanToken {
            base: self.base,
            order: self.order,
            skip: self.skip,
            limit: self.limit,
            streams,
        })
    }

    /// Goes on where a token stands. `base` is the placement it names, from history;
    /// `wanted` are the keys that the query can match, as when it began.
    pub fn resume(
        token: ScanToken,
        base: &RoutingTable,
        wanted: &RangeSet,
    ) -> Result<Self, TokenError> {
        if base.version() != token.base {
            return Err(TokenError::OtherBase);
        }
        let mut scan = Self {
            base: token.base,
            order: token.order,
            streams: Vec::with_capacity(token.streams.len()),
            delivered: Vec::with_capacity(token.streams.len()),
            floor: None,
            skip: token.skip,
            limit: token.limit,
        };
        for stream in token.streams {
            let (ranges, given_away) = match stream.ranges {
                TokenRanges::These(ranges) => (ranges, None),
                TokenRanges::BaseWithout(without) => {
                    let owned = base.ranges_of(&stream.shard).intersection(wanted);
                    (owned.difference(&without), Some(without))
                }
            };
            let reached = match stream.after {
                Some(position) => Reached::After(position),
                None => Reached::Beginning,
            };
            scan.delivered.push(reached.clone());
            scan.floor = match (scan.order, &reached) {
                (Order::Sorted, Reached::After(floor)) => Some(floor.clone()),
                _ => None,
            };
            scan.streams.push(Stream {
                shard: stream.shard,
                reached: if ranges.is_empty() {
                    Reached::End
                } else {
                    reached
                },
                ranges,
                buffer: VecDeque::new(),
                asked: false,
                given_away,
            });
        }
        Ok(scan)
    }
}

impl ScanToken {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, u8::from(self.order == Order::Sorted)];
        out.extend_from_slice(&self.base.incarnation.epoch.0);
        out.extend_from_slice(&self.base.incarnation.began.to_u64().to_be_bytes());
        out.extend_from_slice(&self.base.chunk.major.to_be_bytes());
        out.extend_from_slice(&self.base.chunk.minor.to_be_bytes());
        put(&mut out, self.skip);
        put(&mut out, self.limit.map_or(0, |limit| limit + 1));
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
                Some(position) => {
                    out.push(1);
                    put_bytes(&mut out, position);
                }
            }
        }
        let checksum = crc32c::crc32c(&out);
        out.extend_from_slice(&checksum.to_be_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, TokenError> {
        let (content, checksum) = bytes.split_last_chunk::<4>().ok_or(TokenError::Damaged)?;
        match content.first() {
            Some(&VERSION) => {}
            Some(&other) => return Err(TokenError::Version(other)),
            None => return Err(TokenError::Damaged),
        }
        if crc32c::crc32c(content) != u32::from_be_bytes(*checksum) {
            return Err(TokenError::Damaged);
        }
        let mut reader = Reader(&content[1..]);
        let token = reader.token().ok_or(TokenError::Damaged)?;
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
    fn token(&mut self) -> Option<ScanToken> {
        let order = match self.byte()? {
            0 => Order::Unsorted,
            1 => Order::Sorted,
            _ => return None,
        };
        let base = PlacementVersion {
            incarnation: Incarnation {
                epoch: ObjectId(self.array()?),
                began: ClusterTime::from_u64(u64::from_be_bytes(self.array()?)),
            },
            chunk: ChunkVersion::new(
                u32::from_be_bytes(self.array()?),
                u32::from_be_bytes(self.array()?),
            ),
        };
        let skip = self.number()?;
        let limit = self.number()?.checked_sub(1);
        let mut streams = Vec::new();
        for _ in 0..self.number()? {
            streams.push(self.stream()?);
        }
        Some(ScanToken {
            base,
            order,
            skip,
            limit,
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
