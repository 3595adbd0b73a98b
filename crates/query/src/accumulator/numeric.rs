//! Means, deviations and extremes, shared by accumulators and expressions.

use model::bson::{Doc, DocBuf, DocWriter, Value, ValueRef};
use model::number::{Number, Sum};
use model::order;

/// A sum and how many were added.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mean {
    pub(super) sum: Sum,
    pub(super) count: i64,
}

impl Mean {
    pub(crate) fn add(&mut self, value: ValueRef<'_>) {
        if let Some(number) = Number::of(value) {
            self.sum.add(number);
            self.count = self.count.saturating_add(1);
        }
    }

    pub(crate) fn finish(&self) -> Value {
        match u64::try_from(self.count) {
            Ok(count) if count > 0 => self.sum.average(count).to_value(),
            _ => Value::Null,
        }
    }
}

/// Mean and squared distance from it, updated one number at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deviation {
    count: i64,
    mean: f64,
    squares: f64,
}

impl Deviation {
    pub(crate) fn add(&mut self, value: ValueRef<'_>) {
        let Some(number) = Number::of(value) else {
            return;
        };
        let number = number.to_f64();
        self.count = self.count.saturating_add(1);
        let delta = number - self.mean;
        if delta != 0.0 {
            self.mean += delta / self.count as f64;
            self.squares += delta * (number - self.mean);
        }
    }

    pub(super) fn merge(&mut self, other: &Deviation) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = other.clone();
            return;
        }
        let (count, other_count) = (self.count as f64, other.count as f64);
        let delta = other.mean - self.mean;
        let both = count + other_count;
        if delta != 0.0 {
            self.mean = (count * self.mean + other_count * other.mean) / both;
            self.squares += delta * delta * (count * other_count / both);
        }
        self.squares += other.squares;
        self.count = self.count.saturating_add(other.count);
    }

    pub(super) fn to_document(&self) -> DocBuf {
        DocWriter::new()
            .with("m2", self.squares)
            .with("mean", self.mean)
            .with("count", self.count)
            .finish()
    }

    pub(super) fn from_document(doc: Doc<'_>) -> Option<Deviation> {
        match (doc.get("m2"), doc.get("mean"), doc.get("count")) {
            (
                Some(ValueRef::Double(squares)),
                Some(ValueRef::Double(mean)),
                Some(ValueRef::Int64(count @ 0..)),
            ) => Some(Deviation {
                count,
                mean,
                squares,
            }),
            _ => None,
        }
    }

    pub(crate) fn population(&self) -> Value {
        self.over(self.count)
    }

    pub(crate) fn sample(&self) -> Value {
        self.over(self.count - 1)
    }

    fn over(&self, count: i64) -> Value {
        if count <= 0 {
            return Value::Null;
        }
        Value::Double((self.squares / count as f64).sqrt())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extreme {
    Min,
    Max,
}

impl Extreme {
    /// Like [`Extreme::replaces`], but of equals the latest stays.
    pub(crate) fn replaces_or_equals(self, value: ValueRef<'_>, best: ValueRef<'_>) -> bool {
        let against = order::compare(value, best);
        match self {
            Extreme::Min => against.is_le(),
            Extreme::Max => against.is_ge(),
        }
    }

    /// Whether `value` is more extreme than `best`; of equals the first stays.
    pub(crate) fn replaces(self, value: ValueRef<'_>, best: ValueRef<'_>) -> bool {
        let against = order::compare(value, best);
        match self {
            Extreme::Min => against.is_lt(),
            Extreme::Max => against.is_gt(),
        }
    }

    /// Puts a value among the `n` most extreme, the most extreme first, and
    /// returns the one that has to go. Of equal values the first to come are
    /// kept; the largest are listed with the latest of equals first.
    pub(crate) fn insert<T>(
        self,
        values: &mut Vec<T>,
        n: usize,
        value: T,
        view: impl Fn(&T) -> ValueRef<'_>,
    ) -> Option<T> {
        if values.len() >= n {
            let enters = values
                .last()
                .is_some_and(|least| self.replaces(view(&value), view(least)));
            if !enters {
                return Some(value);
            }
        }
        let at = values.partition_point(|known| match self {
            Extreme::Min => order::compare(view(known), view(&value)).is_le(),
            Extreme::Max => order::compare(view(known), view(&value)).is_gt(),
        });
        values.insert(at, value);
        if values.len() > n { values.pop() } else { None }
    }
}
