//! Intervals of BSON values, and what can be done with lists of them.
//!
//! The bounds of one field of an index scan are a list of intervals in ascending
//! BSON order, none touching another. Endpoints are values, so that explain can
//! print them; scans use their encoded form (see `scan_bounds.rs`).

use model::bson::{ArrayBuf, DocBuf, Kind, ObjectId, Timestamp, Value};
use model::order;
use std::cmp::Ordering;

/// A stretch of values.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    pub low: Value,
    pub low_included: bool,
    pub high: Value,
    pub high_included: bool,
}

/// The values of one field that a scan visits.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FieldBounds {
    intervals: Vec<Interval>,
}

fn compare(left: &Value, right: &Value) -> Ordering {
    order::compare(left.as_ref(), right.as_ref())
}

impl Interval {
    pub fn point(value: Value) -> Self {
        Self {
            low: value.clone(),
            low_included: true,
            high: value,
            high_included: true,
        }
    }

    pub fn new(low: Value, low_included: bool, high: Value, high_included: bool) -> Self {
        Self {
            low,
            low_included,
            high,
            high_included,
        }
    }

    pub fn is_point(&self) -> bool {
        self.low_included && self.high_included && compare(&self.low, &self.high).is_eq()
    }

    fn is_empty(&self) -> bool {
        match compare(&self.low, &self.high) {
            Ordering::Less => false,
            Ordering::Equal => !(self.low_included && self.high_included),
            Ordering::Greater => true,
        }
    }

    fn contains(&self, value: &Value) -> bool {
        let above = match compare(&self.low, value) {
            Ordering::Less => true,
            Ordering::Equal => self.low_included,
            Ordering::Greater => false,
        };
        let below = match compare(value, &self.high) {
            Ordering::Less => true,
            Ordering::Equal => self.high_included,
            Ordering::Greater => false,
        };
        above && below
    }
}

/// Which of two lower ends comes first.
fn compare_low(left: &Interval, right: &Interval) -> Ordering {
    compare(&left.low, &right.low).then(right.low_included.cmp(&left.low_included))
}

/// Which of two upper ends comes first.
fn compare_high(left: &Interval, right: &Interval) -> Ordering {
    compare(&left.high, &right.high).then(left.high_included.cmp(&right.high_included))
}

impl FieldBounds {
    pub fn everything() -> Self {
        Self::of(vec![Interval::new(
            Value::MinKey,
            true,
            Value::MaxKey,
            true,
        )])
    }

    pub fn nothing() -> Self {
        Self::default()
    }

    pub fn point(value: Value) -> Self {
        Self::of(vec![Interval::point(value)])
    }

    /// Sorts and joins intervals; empty ones disappear.
    pub fn of(mut intervals: Vec<Interval>) -> Self {
        intervals.retain(|interval| !interval.is_empty());
        intervals.sort_by(compare_low);
        let mut joined: Vec<Interval> = Vec::with_capacity(intervals.len());
        for interval in intervals {
            match joined.last_mut() {
                Some(last) if touches(last, &interval) => {
                    if compare_high(last, &interval).is_lt() {
                        last.high = interval.high;
                        last.high_included = interval.high_included;
                    }
                }
                _ => joined.push(interval),
            }
        }
        Self { intervals: joined }
    }

    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    pub fn is_everything(&self) -> bool {
        matches!(&self.intervals[..], [only]
            if only.low == Value::MinKey && only.high == Value::MaxKey
                && only.low_included && only.high_included)
    }

    pub fn is_nothing(&self) -> bool {
        self.intervals.is_empty()
    }

    pub fn is_single_point(&self) -> bool {
        matches!(&self.intervals[..], [only] if only.is_point())
    }

    pub fn all_points(&self) -> bool {
        self.intervals.iter().all(Interval::is_point)
    }

    pub fn contains(&self, value: &Value) -> bool {
        self.intervals
            .iter()
            .any(|interval| interval.contains(value))
    }

    pub fn union(self, other: Self) -> Self {
        let mut intervals = self.intervals;
        intervals.extend(other.intervals);
        Self::of(intervals)
    }

    pub fn intersection(&self, other: &Self) -> Self {
        let mut common = Vec::new();
        let (mut left, mut right) = (0, 0);
        while let (Some(a), Some(b)) = (self.intervals.get(left), other.intervals.get(right)) {
            let low = if compare_low(a, b).is_gt() { a } else { b };
            let high = if compare_high(a, b).is_lt() { a } else { b };
            let both = Interval::new(
                low.low.clone(),
                low.low_included,
                high.high.clone(),
                high.high_included,
            );
            if !both.is_empty() {
                common.push(both);
            }
            if compare_high(a, b).is_lt() {
                left += 1;
            } else {
                right += 1;
            }
        }
        Self { intervals: common }
    }

    /// All values that are not inside.
    pub fn complement(&self) -> Self {
        let mut gaps = Vec::new();
        let (mut low, mut low_included) = (Value::MinKey, true);
        for interval in &self.intervals {
            gaps.push(Interval::new(
                low,
                low_included,
                interval.low.clone(),
                !interval.low_included,
            ));
            (low, low_included) = (interval.high.clone(), !interval.high_included);
        }
        gaps.push(Interval::new(low, low_included, Value::MaxKey, true));
        // Nothing is between undefined and null.
        let nullish = |gap: &Interval| gap.low == Value::Undefined && gap.high == Value::Null;
        gaps.retain(|gap| {
            !gap.is_empty() && (!nullish(gap) || gap.low_included || gap.high_included)
        });
        Self { intervals: gaps }
    }
}

/// Whether `next`, which does not begin before `last`, continues it.
fn touches(last: &Interval, next: &Interval) -> bool {
    match compare(&next.low, &last.high) {
        Ordering::Less => true,
        Ordering::Equal => next.low_included || last.high_included,
        Ordering::Greater => false,
    }
}

/// The least value of a type's bracket.
pub(super) fn least_of(kind: Kind) -> Value {
    match kind {
        Kind::MinKey => Value::MinKey,
        Kind::Undefined => Value::Undefined,
        Kind::Null => Value::Null,
        Kind::Double | Kind::Int32 | Kind::Int64 | Kind::Decimal128 => Value::Double(f64::NAN),
        Kind::String | Kind::Symbol => Value::String(String::new()),
        Kind::Document => Value::Document(DocBuf::new()),
        Kind::Array => Value::Array(ArrayBuf::new()),
        Kind::Binary => Value::Binary {
            subtype: 0,
            bytes: Vec::new(),
        },
        Kind::ObjectId => Value::ObjectId(ObjectId([0; 12])),
        Kind::Boolean => Value::Boolean(false),
        Kind::DateTime => Value::DateTime(i64::MIN),
        Kind::Timestamp => Value::Timestamp(Timestamp {
            seconds: 0,
            increment: 0,
        }),
        Kind::Regex => Value::Regex {
            pattern: String::new(),
            options: String::new(),
        },
        Kind::DbPointer => Value::DbPointer {
            namespace: String::new(),
            id: ObjectId([0; 12]),
        },
        Kind::JavaScript => Value::JavaScript(String::new()),
        Kind::JavaScriptWithScope => Value::JavaScriptWithScope {
            code: String::new(),
            scope: DocBuf::new(),
        },
        Kind::MaxKey => Value::MaxKey,
    }
}

/// The upper end of a type's bracket: its greatest value where there is one,
/// else the least of the next bracket, excluded.
pub(super) fn upper_end_of(kind: Kind) -> (Value, bool) {
    let next = |kind| (least_of(kind), false);
    match kind {
        Kind::MinKey => (Value::MinKey, true),
        Kind::Undefined => (Value::Undefined, true),
        Kind::Null => (Value::Null, true),
        Kind::Double | Kind::Int32 | Kind::Int64 | Kind::Decimal128 => {
            (Value::Double(f64::INFINITY), true)
        }
        Kind::String | Kind::Symbol => next(Kind::Document),
        Kind::Document => next(Kind::Array),
        Kind::Array => next(Kind::Binary),
        Kind::Binary => next(Kind::ObjectId),
        Kind::ObjectId => (Value::ObjectId(ObjectId([0xFF; 12])), true),
        Kind::Boolean => (Value::Boolean(true), true),
        Kind::DateTime => (Value::DateTime(i64::MAX), true),
        Kind::Timestamp => (
            Value::Timestamp(Timestamp {
                seconds: u32::MAX,
                increment: u32::MAX,
            }),
            true,
        ),
        Kind::Regex => next(Kind::DbPointer),
        Kind::DbPointer => next(Kind::JavaScript),
        Kind::JavaScript => next(Kind::JavaScriptWithScope),
        Kind::JavaScriptWithScope => next(Kind::MaxKey),
        Kind::MaxKey => (Value::MaxKey, true),
    }
}

/// All values of a type's bracket.
pub(super) fn bracket_of(kind: Kind) -> Interval {
    let (high, high_included) = upper_end_of(kind);
    Interval::new(least_of(kind), true, high, high_included)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(list: &[(i32, bool, i32, bool)]) -> FieldBounds {
        FieldBounds::of(
            list.iter()
                .map(|&(low, low_included, high, high_included)| {
                    Interval::new(
                        Value::Int32(low),
                        low_included,
                        Value::Int32(high),
                        high_included,
                    )
                })
                .collect(),
        )
    }

    #[test]
    fn set_operations_agree_with_membership() {
        let lists = [
            bounds(&[]),
            bounds(&[(1, true, 1, true)]),
            bounds(&[(1, true, 3, false), (3, true, 5, true)]),
            bounds(&[(1, true, 3, false), (3, false, 5, true)]),
            bounds(&[(0, false, 4, false), (2, true, 6, true)]),
            bounds(&[(5, true, 1, true)]),
            FieldBounds::everything(),
        ];
        for left in &lists {
            for right in &lists {
                let union = left.clone().union(right.clone());
                let both = left.intersection(right);
                let not = left.complement();
                for half in -2..16 {
                    let value = Value::Double(f64::from(half) / 2.0);
                    let (a, b) = (left.contains(&value), right.contains(&value));
                    assert_eq!(
                        union.contains(&value),
                        a || b,
                        "{left:?} {right:?} {value:?}"
                    );
                    assert_eq!(
                        both.contains(&value),
                        a && b,
                        "{left:?} {right:?} {value:?}"
                    );
                    assert_eq!(not.contains(&value), !a, "{left:?} {value:?}");
                }
            }
        }
    }
}
