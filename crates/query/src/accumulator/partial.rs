//! States on their way: spilled to disk, or sent to whoever puts groups together.
//!
//! | accumulator | partial |
//! | --- | --- |
//! | `$sum`, `$count` | `[widest, whole, …]`, see `Sum::partial` of `model` |
//! | `$avg` | `{sum: as above, count: long}` |
//! | `$stdDevPop`, `$stdDevSamp` | `{m2: double, mean: double, count: long}` |
//! | `$min`, `$max`, `$first`, `$last` | `[value]`, or `[]` while there is none: null is a value |
//! | `$top`, `$topN`, `$bottom`, `$bottomN` | `[[[key, …], value], …]` in their order |
//! | all others | the result |
//!
//! - ⚑ Nothing is lost: a state merged into an empty one goes on as the first would have,
//!   to the last bit. Merging partials of documents in their order gives what one state
//!   over all of them would; only deviations and sums beyond the digits of a double
//!   depend on where the parts were cut.
//! - ⚑ A partial comes from a disk or a peer: one of another form is an error, and no
//!   number in it makes anything overflow.
//!
//! The form is part of what routers and shards agree in, see `pipeline/split/internal.rs`.

use super::numeric::{Deviation, Extreme};
use super::state::{Gathered, State, broken};
use model::Error;
use model::bson::{ArrayWriter, DocWriter, Value, ValueRef};
use model::number::Sum;

impl State {
    /// What [`Self::merge`] of another state takes.
    pub fn partial(self) -> Value {
        match self.gathered {
            Gathered::Sum(sum) => Value::Array(sum.partial()),
            Gathered::Mean(mean) => {
                let partial = DocWriter::new()
                    .with("sum", &mean.sum.partial())
                    .with("count", mean.count)
                    .finish();
                Value::Document(partial)
            }
            Gathered::Deviation { deviation, .. } => Value::Document(deviation.to_document()),
            // Nothing yet and null are different: the empty array is nothing.
            Gathered::Extreme(_, _, value) | Gathered::First(value) | Gathered::Last(value) => {
                Value::Array(value.into_iter().collect())
            }
            Gathered::Ranked { entries, .. } => {
                let mut pairs = ArrayWriter::new();
                for (key, value) in &entries {
                    let mut pair = ArrayWriter::new();
                    pair.push(key);
                    pair.push(value);
                    pairs.push(&pair.finish());
                }
                Value::Array(pairs.finish())
            }
            gathered @ (Gathered::Push(_)
            | Gathered::Set(_)
            | Gathered::Merged(_)
            | Gathered::FirstN(..)
            | Gathered::LastN(..)
            | Gathered::ExtremeN(..)) => State::new(gathered).finish(),
        }
    }

    /// Adds a partial of the same accumulator over documents that come later.
    pub fn merge(&mut self, partial: ValueRef<'_>) -> Result<(), Error> {
        let malformed = || broken("a partial result is malformed");
        match (&mut self.gathered, partial) {
            (Gathered::Sum(sum), ValueRef::Array(partial)) => {
                sum.merge(&Sum::from_partial(partial).ok_or_else(malformed)?);
            }
            (Gathered::Mean(mean), ValueRef::Document(doc)) => {
                let partial = doc.get_array("sum").and_then(Sum::from_partial);
                let Some(ValueRef::Int64(count @ 0..)) = doc.get("count") else {
                    return Err(malformed());
                };
                mean.sum.merge(&partial.ok_or_else(malformed)?);
                mean.count = mean.count.saturating_add(count);
            }
            (Gathered::Deviation { deviation, .. }, ValueRef::Document(doc)) => {
                deviation.merge(&Deviation::from_document(doc).ok_or_else(malformed)?);
            }
            (Gathered::Merged(_), document @ ValueRef::Document(_)) => self.add(Some(document))?,
            (Gathered::Ranked { .. }, ValueRef::Array(pairs)) => {
                for pair in pairs.iter() {
                    let ValueRef::Array(pair) = pair else {
                        return Err(malformed());
                    };
                    let (Some(ValueRef::Array(key)), Some(value)) = (pair.get(0), pair.get(1))
                    else {
                        return Err(malformed());
                    };
                    self.add_ranked(key.to_owned(), Some(value))?;
                }
            }
            // What was there first stays the first, even null.
            (
                Gathered::Extreme(..) | Gathered::First(_) | Gathered::Last(_),
                ValueRef::Array(values),
            ) => match (values.count(), values.get(0)) {
                (0, _) => {}
                (1, Some(value)) => self.add(Some(value))?,
                _ => return Err(malformed()),
            },
            (Gathered::ExtremeN(Extreme::Max, ..), ValueRef::Array(values)) => {
                // The latest of equals are listed first.
                let values: Vec<_> = values.iter().collect();
                for value in values.into_iter().rev() {
                    self.add(Some(value))?;
                }
            }
            (
                Gathered::Push(_)
                | Gathered::Set(_)
                | Gathered::FirstN(..)
                | Gathered::LastN(..)
                | Gathered::ExtremeN(Extreme::Min, ..),
                ValueRef::Array(values),
            ) => {
                for value in values.iter() {
                    self.add(Some(value))?;
                }
            }
            _ => return Err(malformed()),
        }
        Ok(())
    }
}
