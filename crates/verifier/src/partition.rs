//! Partitions of a collection: stretches of the order of `_id`, from MinKey to MaxKey.
//!
//! ```text
//!  MinKey ──────► 500 ──────► Timestamp(12, 23) ──────► MaxKey
//!  [   first     )[   second                   )[    last    ]
//! ```
//!
//! A [`Cutter`] is fed with sampled `_id`s in the server's order and cuts off a partition at each.
//! Every partition begins where the one before it ends, the first begins before everything and the
//! last has no end, so whatever is sampled, every `_id` lies in a partition: were samples to come
//! in the wrong order, documents would be compared twice, none would be skipped.
//!
//! Values that cannot be compared with in a query (see [`Group::can_be_bound`]) are passed over:
//! the partition around them gets larger.

use crate::element::Value;
use crate::order::Group;

/// A stretch of `_id`s: from `lower`, included, to below `upper`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// None is MinKey: from the beginning.
    lower: Option<Value>,
    /// None is MaxKey, included: to the end.
    upper: Option<Value>,
}

impl Partition {
    /// The whole collection.
    pub fn whole() -> Partition {
        Partition {
            lower: None,
            upper: None,
        }
    }

    /// The partition between two bounds.
    pub fn between(lower: Option<Value>, upper: Option<Value>) -> Partition {
        Partition { lower, upper }
    }

    pub fn lower(&self) -> Option<&Value> {
        self.lower.as_ref()
    }

    pub fn upper(&self) -> Option<&Value> {
        self.upper.as_ref()
    }
}

/// Cuts the order of `_id` at sampled values.
#[derive(Debug, Default)]
pub struct Cutter {
    lower: Option<Value>,
}

impl From<Option<Value>> for Cutter {
    /// A cutter that goes on from the end of what was cut before.
    fn from(lower: Option<Value>) -> Cutter {
        Cutter { lower }
    }
}

impl Cutter {
    pub fn new() -> Cutter {
        Cutter::default()
    }

    /// The partition that ends at the sampled value, if one can end there.
    pub fn cut(&mut self, sampled: Value) -> Option<Partition> {
        if !Group::of(sampled.kind).can_be_bound() || self.lower.as_ref() == Some(&sampled) {
            return None;
        }
        let lower = self.lower.replace(sampled.clone());
        Some(Partition {
            lower,
            upper: Some(sampled),
        })
    }

    /// What is not cut off yet.
    pub fn rest(&self) -> Partition {
        Partition {
            lower: self.lower.clone(),
            upper: None,
        }
    }

    /// What is left: up to MaxKey.
    pub fn finish(self) -> Partition {
        Partition {
            lower: self.lower,
            upper: None,
        }
    }
}

/// How finely a collection is to be cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sampling {
    /// Too small to be cut: one task, MinKey to MaxKey.
    None,
    /// Each document becomes a bound with this probability, in one pass in order of `_id`.
    Rate(f64),
    /// That many random documents, for servers without `$sampleRate`.
    Count(u64),
}

/// How to sample a collection so that partitions have about the wanted size.
pub fn sampling(
    documents: u64,
    bytes: u64,
    partition_bytes: u64,
    has_sample_rate: bool,
) -> Sampling {
    let partitions = bytes / partition_bytes.max(1);
    if partitions < 2 || documents < 2 {
        return Sampling::None;
    }
    match has_sample_rate {
        true => Sampling::Rate((partitions as f64 / documents as f64).min(1.0)),
        false => Sampling::Count(partitions.min(documents)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::field;
    use crate::order::hint;
    use bson::{Bson, doc};
    use proptest::prelude::*;
    use std::cmp::Ordering;

    fn value(given: Bson) -> Value {
        let bytes = doc! {"v": given}.to_vec().unwrap();
        field(&bytes, "v").unwrap().unwrap().to_value()
    }

    fn any_id() -> impl Strategy<Value = Bson> {
        prop_oneof![
            Just(Bson::MinKey),
            Just(Bson::MaxKey),
            Just(Bson::Null),
            Just(Bson::Double(f64::NAN)),
            any::<i32>().prop_map(Bson::Int32),
            (-50_i64..50).prop_map(Bson::Int64),
            any::<f64>().prop_map(Bson::Double),
            "[a-c]{0,3}".prop_map(Bson::String),
            "[a-c]{0,3}".prop_map(Bson::JavaScriptCode),
            (0..9_i32).prop_map(|number| Bson::Document(doc! {"a": number})),
            any::<[u8; 12]>()
                .prop_map(|bytes| Bson::ObjectId(bson::oid::ObjectId::from_bytes(bytes))),
            any::<bool>().prop_map(Bson::Boolean),
            (-9_i64..9).prop_map(|ms| Bson::DateTime(bson::DateTime::from_millis(ms))),
            (0_u32..9).prop_map(|time| Bson::Timestamp(bson::Timestamp { time, increment: 1 })),
        ]
    }

    fn contains(partition: &Partition, id: &Value) -> bool {
        let below = |bound: &Value| hint(id.as_ref(), bound.as_ref()) == Ordering::Less;
        !partition.lower().is_some_and(below) && partition.upper().is_none_or(below)
    }

    proptest! {
        #[test]
        fn partitions_cover_the_order_disjointly(
            sampled in proptest::collection::vec(any_id(), 0..40),
            probed in proptest::collection::vec(any_id(), 1..40),
        ) {
            let mut sampled: Vec<Value> = sampled.into_iter().map(value).collect();
            sampled.sort_by(|left, right| hint(left.as_ref(), right.as_ref()));
            let mut cutter = Cutter::new();
            let mut partitions: Vec<Partition> =
                sampled.iter().cloned().filter_map(|bound| cutter.cut(bound)).collect();
            partitions.push(cutter.finish());
            for pair in partitions.windows(2) {
                prop_assert_eq!(pair[0].upper(), pair[1].lower());
            }
            prop_assert_eq!(partitions[0].lower(), None);
            prop_assert_eq!(partitions[partitions.len() - 1].upper(), None);
            for id in probed.into_iter().map(value).chain(sampled) {
                let holding = partitions.iter().filter(|one| contains(one, &id)).count();
                prop_assert_eq!(holding, 1, "{:?}", id);
            }
        }
    }

    #[test]
    fn small_collections_are_one_task() {
        let check = |documents, bytes, rate, expected| {
            assert_eq!(sampling(documents, bytes, 100, rate), expected);
        };
        check(0, 0, true, Sampling::None);
        check(1000, 199, true, Sampling::None);
        check(1, 1000, true, Sampling::None);
        check(1000, 1000, true, Sampling::Rate(0.01));
        check(2, 1000, true, Sampling::Rate(1.0));
        check(1000, 1000, false, Sampling::Count(10));
        check(3, 1000, false, Sampling::Count(3));
    }
}
