//! Time series collections: measurements as the server shows them.
//!
//! A measurement need not have an `_id` of its own, the order of its fields is that of the bucket
//! it happens to lie in, and change streams do not tell of it. So both sides are read in order of
//! time, measurements of one time are compared as a bag, fields in any order (those of documents within only if
//! order is to be ignored), and a collection is
//! compared once: at the end, when writes are off.
//!
//! ```text
//! source       t1: {a} {b}   t2: {c}      bags of one time
//! destination  t1: {b} {a}   t2: {c'}     c is missing, c' is extra
//! ```
//!
//! A mismatch is named by the whole measurement. Memory is one batch for each side and the
//! measurements of one time.

use crate::compare::{Comparison, sorted_fields};
use crate::element::{Element, LEVELS_MAX, Malformed, Value, check_depth, elements, field, kind};
use crate::error::VerifyError;
use crate::ledger::Judged;
use crate::merge::{Batch, Side};
use crate::order::hint;
use crate::range_query::both;
use crate::reading::Documents;
use crate::report::MismatchKind;
use crate::scan::Running;
use std::cmp::Ordering;
use std::collections::HashMap;

/// Measurements with one time: how often each is on the source, less how often on the destination.
type Bag = HashMap<Vec<u8>, i64>;

/// One side's measurements.
struct Measurements {
    side: Side,
    documents: Documents,
    batch: Option<Batch>,
    position: usize,
}

impl Measurements {
    fn head(&self) -> Option<&[u8]> {
        self.batch.as_ref()?.get(self.position)
    }
}

/// The fields of a measurement, by name: where they stand in it says nothing. Within its values the order
/// of fields counts, unless it is to be ignored.
fn normalized(comparison: Comparison, measurement: &[u8]) -> Result<Vec<u8>, Malformed> {
    if comparison == Comparison::IgnoreFieldOrder {
        check_depth(measurement, LEVELS_MAX)?;
    }
    rewritten(comparison, &sorted_fields(measurement)?)
}

fn rewritten(comparison: Comparison, fields: &[Element<'_>]) -> Result<Vec<u8>, Malformed> {
    let mut bytes = vec![0; 4];
    for element in fields {
        bytes.push(element.value.kind);
        bytes.extend_from_slice(element.name);
        bytes.push(0);
        let inner = element.value.bytes;
        match (comparison, element.value.kind) {
            (Comparison::IgnoreFieldOrder, kind::DOCUMENT) => {
                bytes.extend(rewritten(comparison, &sorted_fields(inner)?)?);
            }
            (Comparison::IgnoreFieldOrder, kind::ARRAY) => {
                // Its items keep their places.
                let items = elements(inner)?.collect::<Result<Vec<_>, _>>()?;
                bytes.extend(rewritten(comparison, &items)?);
            }
            (_, _) => bytes.extend_from_slice(inner),
        }
    }
    bytes.push(0);
    let length = i32::try_from(bytes.len()).map_err(|_| Malformed)?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

fn time_of(measurement: &[u8], time_field: &str) -> Result<Value, Malformed> {
    let time = field(measurement, time_field)?.ok_or(Malformed)?;
    Ok(time.to_value())
}

impl Running<'_> {
    pub async fn compare_series(&mut self, time_field: &str) -> Result<(), VerifyError> {
        let pair = self.task.pair.clone();
        let (shared, name) = (self.shared.clone(), pair.source.to_string());
        // There is one task: what an earlier try of it noted is stale.
        shared.ledger.forget(&shared.store, &name).await?;
        self.lane.enter_if_heavy(&pair.weight).await;
        let mut source = self.open_series(Side::Source, time_field).await?;
        let mut destination = self.open_series(Side::Destination, time_field).await?;
        loop {
            self.fill(&mut source).await?;
            self.fill(&mut destination).await?;
            let malformed = |Malformed| shared.source.malformed("read measurements");
            let head = |side: &Measurements| {
                let head = side.head().map(|head| time_of(head, time_field));
                head.transpose().map_err(malformed)
            };
            let time = match (head(&source)?, head(&destination)?) {
                (None, None) => return Ok(()),
                (Some(one), Some(other)) => match hint(one.as_ref(), other.as_ref()) {
                    Ordering::Greater => other,
                    Ordering::Less | Ordering::Equal => one,
                },
                (Some(one), None) | (None, Some(one)) => one,
            };
            let mut bag = Bag::new();
            let on_source = self
                .gather(&mut source, (time_field, &time), 1, &mut bag)
                .await?;
            self.gather(&mut destination, (time_field, &time), -1, &mut bag)
                .await?;
            self.note_bag(bag, on_source).await?;
        }
    }

    async fn open_series(&self, side: Side, time_field: &str) -> Result<Measurements, VerifyError> {
        let everything = crate::element::Writer::new().finish();
        let filter = both(everything, self.shared.settings.filter.as_deref());
        let pair = &self.task.pair;
        let documents = self
            .shared
            .side(side)
            .find_by(
                pair.namespace(side),
                &filter,
                time_field,
                pair.size.batch_documents(),
            )
            .await?;
        Ok(Measurements {
            side,
            documents,
            batch: None,
            position: 0,
        })
    }

    /// Reads on until there is a measurement to look at, or none is left.
    async fn fill(&mut self, from: &mut Measurements) -> Result<(), VerifyError> {
        while from.head().is_none() {
            let Some(batch) = from.documents.next().await? else {
                from.batch = None;
                return Ok(());
            };
            self.count(from.side, &batch);
            self.task.pair.weight.saw(&batch);
            self.lane.enter_if_heavy(&self.task.pair.weight).await;
            self.pay(&batch).await;
            from.batch = Some(batch);
            from.position = 0;
        }
        Ok(())
    }

    /// Adds a side's measurements of one time to the bag.
    async fn gather(
        &mut self,
        from: &mut Measurements,
        (time_field, time): (&str, &Value),
        sign: i64,
        bag: &mut Bag,
    ) -> Result<u64, VerifyError> {
        let mut gathered = 0;
        loop {
            self.fill(from).await?;
            let malformed = |Malformed| self.shared.side(from.side).malformed("read measurements");
            let Some(head) = from.head() else {
                return Ok(gathered);
            };
            if time_of(head, time_field).map_err(malformed)? != *time {
                return Ok(gathered);
            }
            let comparison = self.shared.settings.comparison;
            let measurement = normalized(comparison, head).map_err(malformed)?;
            *bag.entry(measurement).or_default() += sign;
            from.position += 1;
            gathered += 1;
        }
    }

    async fn note_bag(&mut self, bag: Bag, on_source: u64) -> Result<(), VerifyError> {
        let mut judged = Vec::new();
        let mut missing = 0;
        for (measurement, balance) in bag {
            let mismatch = match balance.cmp(&0) {
                Ordering::Equal => continue,
                Ordering::Greater => MismatchKind::Missing,
                Ordering::Less => MismatchKind::Extra,
            };
            missing += u64::try_from(balance).unwrap_or(0);
            judged.push(Judged {
                id: Value {
                    kind: kind::DOCUMENT,
                    bytes: measurement.into(),
                },
                kind: Some(mismatch),
                differences: Vec::new(),
                changed_ms: None,
            });
        }
        self.counts.equal += on_source.saturating_sub(missing);
        let name = self.task.pair.source.to_string();
        let shared = self.shared;
        shared.ledger.note(&shared.store, &name, &judged).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Document, doc};

    #[test]
    fn order_within_values_counts_unless_it_is_ignored() {
        let check = |one: Document, other: Document, by_bytes: bool, ignoring_order: bool| {
            let expected = [
                (Comparison::Bytes, by_bytes),
                (Comparison::IgnoreFieldOrder, ignoring_order),
            ];
            for (comparison, expected) in expected {
                let rewritten =
                    |given: &Document| normalized(comparison, &given.to_vec().unwrap()).unwrap();
                let same = rewritten(&one) == rewritten(&other);
                assert_eq!(same, expected, "{comparison:?} {one} {other}");
            }
        };
        check(doc! {"a": 1, "b": 2}, doc! {"b": 2, "a": 1}, true, true);
        check(
            doc! {"t": 1, "m": {"a": 1, "b": [{"c": 1, "d": {"e": 1, "f": 2}}]}},
            doc! {"m": {"b": [{"d": {"f": 2, "e": 1}, "c": 1}], "a": 1}, "t": 1},
            false,
            true,
        );
        check(doc! {"a": [1, 2]}, doc! {"a": [2, 1]}, false, false);
        check(doc! {"a": {"b": 1}}, doc! {"a": {"b": 1.0}}, false, false);
        let whole = doc! {"a": {"b": [1, {"c": 2}]}, "z": "x"}.to_vec().unwrap();
        let same = normalized(Comparison::IgnoreFieldOrder, &whole).unwrap();
        assert_eq!(same, whole);
    }
}
