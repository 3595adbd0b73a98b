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
            self.count += 1;
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
        self.count += 1;
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
        let (count, other_count) = (self.count as f64, other.count as f64);
        let delta = other.mean - self.mean;
        let both = count + other_count;
        if delta != 0.0 {
            self.mean = (count * self.mean + other_count * other.mean) / both;
            self.squares += delta * delta * (count * other_count / both);
        }
        self.squares += other.squares;
        self.count += other.count;
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
                Some(ValueRef::Int64(count)),
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
        // Not a number among them leaves nothing to say.
        if count <= 0 {
            return Value::Null;
        }
        let deviation = (self.squares / count as f64).sqrt();
        if deviation.is_nan() {
            return Value::Null;
        }
        Value::Double(deviation)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extreme {
    Min,
    Max,
}

impl Extreme {
    /// Whether `value` is more extreme than `best`; of equals the first stays.
    pub(crate) fn replaces(self, value: ValueRef<'_>, best: ValueRef<'_>) -> bool {
        let against = order::compare(value, best);
        match self {
            Extreme::Min => against.is_lt(),
            Extreme::Max => against.is_gt(),
        }
    }
}
