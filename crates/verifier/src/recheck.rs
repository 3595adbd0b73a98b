//! Looking documents up by `_id` on both sides: the second look of a scan, and every later one.
//!
//! Only this gives verdicts. Both sides are read at the same time (large documents one by one), after whatever cluster time is
//! known of them, and what is found is matched by the exact bytes of the `_id`.

use crate::compare::{Verdict, judge, pairs};
use crate::difference::differences;
use crate::element::{Malformed, Value};
use crate::error::VerifyError;
use crate::ledger::Judged;
use crate::merge::{Side, id_of};
use crate::range_query::{both, ids_filter};
use crate::repeated;
use crate::report::MismatchKind;
use crate::scan::{Pair, Shared};
use std::collections::HashMap;
use std::time::{Duration, Instant};

pub const LOOKED_UP_DOCUMENTS_MAX: u64 = 500;
const ATTEMPTS: u32 = 4;
/// As in `generation`.
const UNREACHABLE_MAX: u32 = 2;
const RETRY_DELAY: Duration = Duration::from_millis(250);

/// What a look at one document showed, and how often the `_id` was there.
pub struct Looked {
    pub judged: Judged,
    pub on_source: u64,
    pub on_destination: u64,
    /// How many of the source's documents the destination has.
    pub pairs: u64,
}

/// Documents by their `_id`s.
type Found = HashMap<Value, Vec<Vec<u8>>>;

impl Shared {
    /// How many documents of a pair to look up at once.
    pub fn looked_up_at_once(pair: &Pair) -> usize {
        let documents = pair.size.batch_documents().min(LOOKED_UP_DOCUMENTS_MAX);
        let documents = documents.min(pair.weight.held_at_once());
        usize::try_from(documents).unwrap_or(1)
    }

    /// Looks at documents on both sides.
    pub async fn look(&self, pair: &Pair, ids: &[Value]) -> Result<Vec<Looked>, VerifyError> {
        let in_lane = self.lanes.enter_look_if_heavy(&pair.weight).await;
        let source = self.look_up(pair, Side::Source, ids);
        let destination = self.look_up(pair, Side::Destination, ids);
        let (source, destination) = match in_lane {
            // Receiving takes twice the memory of having: one side at a time.
            Some(_) => (source.await?, destination.await?),
            None => tokio::try_join!(source, destination)?,
        };
        let judged = ids.iter().map(|id| {
            let (one, other) = (found(&source, id), found(&destination, id));
            self.judge(pair, id, one, other)
        });
        judged
            .collect::<Result<_, Malformed>>()
            .map_err(|Malformed| {
                self.source
                    .malformed(&format!("look up documents of {}", pair.source))
            })
    }

    /// As [`Shared::look`], again if a connection breaks.
    pub async fn look_with_retries(
        &self,
        pair: &Pair,
        ids: &[Value],
    ) -> Result<Vec<Looked>, VerifyError> {
        let mut delay = RETRY_DELAY;
        let mut unreachable = 0;
        for _ in 1..ATTEMPTS {
            match self.look(pair, ids).await {
                Err(error) if error.is_transient() => {
                    unreachable += u32::from(matches!(error, VerifyError::Unreachable { .. }));
                    if unreachable == UNREACHABLE_MAX {
                        return Err(error);
                    }
                    tokio::time::sleep(delay).await;
                    delay *= 4;
                }
                ended => return ended,
            }
        }
        self.look(pair, ids).await
    }

    async fn look_up(&self, pair: &Pair, side: Side, ids: &[Value]) -> Result<Found, VerifyError> {
        let cluster = self.side(side);
        let refs: Vec<_> = ids.iter().map(Value::as_ref).collect();
        let filter = both(ids_filter(&refs), self.settings.filter.as_deref());
        let mut documents = cluster
            .find(pair.namespace(side), &filter, ids.len())
            .await?;
        let mut found = Found::new();
        while let Some(batch) = documents.next().await? {
            pair.weight.saw(&batch);
            for document in batch.documents() {
                let id =
                    id_of(document).map_err(|Malformed| cluster.malformed("look up documents"))?;
                found
                    .entry(id.to_value())
                    .or_default()
                    .push(document.to_vec());
            }
            tokio::time::sleep(self.pace.charge(batch.document_bytes(), Instant::now())).await;
        }
        Ok(found)
    }

    fn judge(
        &self,
        pair: &Pair,
        id: &Value,
        source: &[Vec<u8>],
        destination: &[Vec<u8>],
    ) -> Result<Looked, Malformed> {
        let comparison = self.settings.comparison;
        let kind = match judge(comparison, source, destination)? {
            Verdict::Same => None,
            Verdict::Missing => Some(MismatchKind::Missing),
            Verdict::Extra => Some(MismatchKind::Extra),
            Verdict::Content => Some(MismatchKind::Content),
            Verdict::Repeated => Some(MismatchKind::Repeated),
        };
        // Beyond what a report describes, the kind is enough.
        let described = (self.settings.described_max as u64) > self.ledger.total();
        let differences = match (kind, source, destination) {
            (Some(MismatchKind::Content), [one], [other]) if described => {
                differences(comparison, one, other)?
            }
            (Some(MismatchKind::Repeated), _, _) if described => {
                repeated::describe(comparison, &pair.shard_key, source, destination)?
            }
            (_, _, _) => Vec::new(),
        };
        Ok(Looked {
            judged: Judged {
                id: id.clone(),
                kind,
                differences,
                changed_ms: None,
            },
            on_source: source.len() as u64,
            on_destination: destination.len() as u64,
            pairs: match kind {
                None => source.len(),
                Some(MismatchKind::Repeated) => pairs(comparison, source, destination)?,
                Some(MismatchKind::Missing | MismatchKind::Extra | MismatchKind::Content) => 0,
            } as u64,
        })
    }
}

fn found<'a>(documents: &'a Found, id: &Value) -> &'a [Vec<u8>] {
    documents.get(id).map_or(&[], Vec::as_slice)
}
