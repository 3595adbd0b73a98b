//! The bounds of an index scan in encoded form, and how a scan skips.
//!
//! Every interval of values is a half-open interval of bytes, whatever the
//! field's direction, because encodings delimit themselves:
//!
//! ```text
//!   ascending   [a, b]  ->  [enc a, end(enc b))        end(x): the least bytes above
//!               (a, b)  ->  [end(enc a), enc b)                all that begin with x
//!   descending  [a, b]  ->  [~enc b, end(~enc a))
//! ```
//!
//! A scan walks over `range()` and asks `check` for each key. A key outside says
//! where the next one inside can be at the earliest; the scan goes on there.
//! If the range alone decides, nothing is asked.

use super::interval::{FieldBounds, Interval};
use model::bson::ValueRef;
use model::key::{Direction, KeyError, TypeBits, encode_into, prefix_end, skip_value};
use std::ops::Bound;

type Bytes = Vec<u8>;

/// `[low, high)` in the order of stored bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ByteInterval {
    pub(super) low: Bytes,
    pub(super) high: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanBounds {
    /// For each field, ascending in stored order, disjoint.
    fields: Vec<Vec<ByteInterval>>,
    directions: Vec<Direction>,
    low: Bound<Bytes>,
    high: Bound<Bytes>,
    range_decides: bool,
}

/// What a key means for a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    Inside,
    /// Nothing between here and these bytes is inside. Forward: go on at them
    /// or after; backward: go on before them.
    SeekTo(Vec<u8>),
    /// Nothing further is inside.
    Ended,
}

/// Which way a scan goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanDirection {
    Forward,
    Backward,
}

fn encode(value: ValueRef<'_>, direction: Direction) -> Bytes {
    let mut bytes = Vec::new();
    encode_into(&mut bytes, &mut TypeBits::new(), value, direction);
    bytes
}

/// No encoded value begins with FF, so there is always an end.
pub(super) fn end_of(bytes: &[u8]) -> Bytes {
    prefix_end(bytes).expect("an encoded value has bytes after it")
}

pub(super) fn byte_interval(interval: &Interval, direction: Direction) -> ByteInterval {
    let (first, first_included, last, last_included) = match direction {
        Direction::Ascending => (
            &interval.low,
            interval.low_included,
            &interval.high,
            interval.high_included,
        ),
        Direction::Descending => (
            &interval.high,
            interval.high_included,
            &interval.low,
            interval.low_included,
        ),
    };
    let low = encode(first.as_ref(), direction);
    let high = encode(last.as_ref(), direction);
    ByteInterval {
        low: if first_included { low } else { end_of(&low) },
        high: if last_included { end_of(&high) } else { high },
    }
}

impl ScanBounds {
    pub fn new(fields: &[FieldBounds], directions: &[Direction]) -> Self {
        let encoded: Vec<Vec<ByteInterval>> = fields
            .iter()
            .zip(directions)
            .map(|(bounds, &direction)| {
                let mut intervals: Vec<ByteInterval> = bounds
                    .intervals()
                    .iter()
                    .map(|interval| byte_interval(interval, direction))
                    .collect();
                if direction == Direction::Descending {
                    intervals.reverse();
                }
                intervals
            })
            .collect();
        let (low, high, range_decides) = outer_range(fields, &encoded, directions);
        Self {
            fields: encoded,
            directions: directions.to_vec(),
            low,
            high,
            range_decides,
        }
    }

    /// All keys between two whole keys, for `min` and `max`.
    pub fn between(low: Bound<Vec<u8>>, high: Bound<Vec<u8>>, directions: &[Direction]) -> Self {
        Self {
            fields: Vec::new(),
            directions: directions.to_vec(),
            low,
            high,
            range_decides: true,
        }
    }

    /// The stretch of keys outside of which nothing is inside.
    pub fn range(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (
            self.low.as_ref().map(Vec::as_slice),
            self.high.as_ref().map(Vec::as_slice),
        )
    }

    /// Whether every key of the range is inside.
    pub fn range_decides(&self) -> bool {
        self.range_decides
    }

    /// Whether a key is inside; it may be any key of the index.
    pub fn contains(&self, key: &[u8]) -> Result<bool, KeyError> {
        let above = match &self.low {
            Bound::Included(low) => key >= &low[..],
            Bound::Excluded(low) => key > &low[..],
            Bound::Unbounded => true,
        };
        let below = match &self.high {
            Bound::Included(high) => key <= &high[..],
            Bound::Excluded(high) => key < &high[..],
            Bound::Unbounded => true,
        };
        if !above || !below {
            return Ok(false);
        }
        if self.range_decides {
            return Ok(true);
        }
        Ok(self.check(key, ScanDirection::Forward)? == Check::Inside)
    }

    /// What a key within the range means. Bytes behind the fields are ignored.
    pub fn check(&self, key: &[u8], direction: ScanDirection) -> Result<Check, KeyError> {
        let mut at = 0;
        for (intervals, &field_direction) in self.fields.iter().zip(&self.directions) {
            let length = skip_value(&key[at..], field_direction)?;
            let field = &key[at..at + length];
            // The first interval that does not end before the field.
            let candidate = intervals.partition_point(|interval| &interval.high[..] <= field);
            let inside = intervals
                .get(candidate)
                .is_some_and(|interval| &interval.low[..] <= field);
            if !inside {
                let prefix = &key[..at];
                return Ok(match direction {
                    ScanDirection::Forward => match intervals.get(candidate) {
                        Some(next) => Check::SeekTo([prefix, &next.low].concat()),
                        None if at == 0 => Check::Ended,
                        None => match prefix_end(prefix) {
                            Some(end) => Check::SeekTo(end),
                            None => Check::Ended,
                        },
                    },
                    ScanDirection::Backward => match candidate.checked_sub(1) {
                        Some(previous) => {
                            Check::SeekTo([prefix, &intervals[previous].high].concat())
                        }
                        None if at == 0 => Check::Ended,
                        None => Check::SeekTo(prefix.to_vec()),
                    },
                });
            }
            at += length;
        }
        Ok(Check::Inside)
    }
}

/// The tightest range that holds all keys, and whether it holds no others: as
/// long as fields are single points the next field narrows the range further.
fn outer_range(
    fields: &[FieldBounds],
    encoded: &[Vec<ByteInterval>],
    directions: &[Direction],
) -> (Bound<Bytes>, Bound<Bytes>, bool) {
    let nothing = Bound::Excluded(Vec::new());
    if fields.iter().any(FieldBounds::is_nothing) {
        return (nothing.clone(), nothing, true);
    }
    let mut prefix = Vec::new();
    for (at, bounds) in fields.iter().enumerate() {
        if bounds.is_single_point() {
            let value = bounds.intervals()[0].low.as_ref();
            encode_into(&mut prefix, &mut TypeBits::new(), value, directions[at]);
            continue;
        }
        let (Some(first), Some(last)) = (encoded[at].first(), encoded[at].last()) else {
            return (nothing.clone(), nothing, true);
        };
        let low = [&prefix[..], &first.low].concat();
        let high = [&prefix[..], &last.high].concat();
        let decides =
            encoded[at].len() == 1 && fields[at + 1..].iter().all(FieldBounds::is_everything);
        return (Bound::Included(low), Bound::Excluded(high), decides);
    }
    let high = end_of(&prefix);
    (Bound::Included(prefix), Bound::Excluded(high), true)
}
