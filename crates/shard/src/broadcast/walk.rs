//! One request of a write over several shards, from its progress to its end.

use super::progress::{decode, encode};
use super::{LeftBehind, Part, Settled, malformed};
use crate::Shard;
use crate::catalog::Collection;
use crate::command::modify::{ENTRY_DOCUMENTS_MAX, Evaluated, Modification, Outcome};
use crate::read::{Further, RecordOrder, ScanPart, Sought};
use crate::sharding::is_to_be_read_again;
use crate::write::{Companion, Evaluator, Refusal, Writer};
use cluster::broadcast::{Progress, Unwanted};
use model::key::RecordKey;
use model::range::RangeSet;
use model::time::ClusterTime;
use model::{Code, Error};
use replication::{Durability, ProposeError, Term};
use std::sync::Arc;
use storage::entry::{Encoder, Header};

/// Carries a part out as far as this shard can.
pub(crate) async fn walk(modification: &Modification<'_>, part: &Part) -> Result<Outcome, Error> {
    let invocation = modification.invocation;
    let shard = invocation.shard;
    let owned = invocation.route.as_ref().and_then(|route| route.owned());
    let asked = match (&part.ranges, &part.without, owned) {
        (ranges, Some(without), Some(owned)) => {
            let of_version = owned.difference(without);
            Arc::new(match ranges {
                Some(besides) => of_version.union(besides),
                None => of_version,
            })
        }
        (_, Some(_), None) => return Err(malformed("it says no version")),
        (Some(ranges), None, _) => Arc::new(ranges.clone()),
        (None, None, Some(owned)) => owned.clone(),
        (None, None, None) => return Err(malformed("it says neither a version nor ranges")),
    };
    // The history of a session says more than progress would.
    if invocation.retryable.is_some() {
        let progress = begin(part, None, None)?;
        let mut walk = Walk {
            modification,
            part,
            asked,
            progress,
            term: None,
        };
        walk.carry_out().await?;
        return walk.outcome();
    }
    let operation = invocation.operation;
    let clock = &*shard.clock;
    let mut held = shard.broadcasts.hold(part.key, operation, clock).await?;
    let term = shard.log.leading().map_err(crate::error::from_log)?;
    if part.again || *held.settled == Settled::No {
        shard.propose_catalog(|encoder| encoder.noop()).await?;
    }
    let stored = shard.store.get_meta(&part.key.encode());
    let stored = stored.map_err(crate::error::from_storage)?;
    let stored = stored.map(|bytes| decode(&bytes)).transpose()?;
    let progress = begin(part, stored.clone(), shard.broadcast_horizon()?)?;
    // Until it is known that nothing is on its way.
    *held.settled = Settled::No;
    let mut walk = Walk {
        modification,
        part,
        asked,
        progress,
        term: Some(term),
    };
    walk.carry_out().await?;
    if part.again && stored.as_ref() != Some(&walk.progress) {
        walk.fence(term).await?;
    }
    *held.settled = Settled::Yes;
    walk.outcome()
}

fn begin(
    part: &Part,
    stored: Option<Progress<Error>>,
    horizon: Option<ClusterTime>,
) -> Result<Progress<Error>, Error> {
    let begun = Progress::begin(part.sent, part.after.clone(), stored, horizon);
    begun.map_err(|unwanted| match unwanted {
        Unwanted::Superseded => Error::new(
            Code::OPERATION_FAILED,
            "a later write over several shards has taken the place of this one",
        ),
        Unwanted::Forgotten => Error::new(
            Code::TRANSACTION_TOO_OLD,
            "it is not known any more whether this part of a write over several shards was carried out",
        ),
    })
}

struct Walk<'a> {
    modification: &'a Modification<'a>,
    part: &'a Part,
    asked: Arc<RangeSet>,
    progress: Progress<Error>,
    /// In which the progress was read, if any is kept.
    term: Option<Term>,
}

/// What became of a batch.
enum Batch {
    Walked(Progress<Error>),
    /// Ranges are not owned any more: nothing was written.
    OtherRanges,
}

impl Walk<'_> {
    fn shard(&self) -> &Arc<Shard> {
        self.modification.invocation.shard
    }

    fn outcome(&self) -> Result<Outcome, Error> {
        if let Some(error) = &self.progress.fault {
            return Err(error.clone());
        }
        let known = self.collection();
        let ownership = known.as_ref().and_then(|known| known.ownership.as_ref());
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        Ok(Outcome {
            matched: count(self.progress.matched),
            modified: count(self.progress.modified),
            left: (!self.progress.left.is_empty()).then(|| {
                Box::new(LeftBehind {
                    left: self.progress.left.clone(),
                    version: ownership.map(|known| known.collection_version),
                })
            }),
            ..Outcome::default()
        })
    }

    /// The collection that is meant, if it is here.
    fn collection(&self) -> Option<Arc<Collection>> {
        let known = self.shard().catalog.get(self.modification.namespace)?;
        let same = self.part.uuid.is_none_or(|uuid| uuid == known.uuid);
        (same && known.ownership.is_some()).then_some(known)
    }

    /// Searches and writes until there is nothing left to do.
    async fn carry_out(&mut self) -> Result<(), Error> {
        while !self.progress.ended {
            let collection = self.collection();
            let none = Arc::new(RangeSet::new());
            let owned = match collection
                .as_ref()
                .and_then(|known| known.ownership.as_ref())
            {
                Some(ownership) => &ownership.owned,
                None => &none,
            };
            let is_all = Arc::ptr_eq(owned, &self.asked) && self.progress.left.is_empty();
            if !is_all {
                self.progress.meet(&self.asked, owned);
            }
            let here = match is_all {
                true => self.asked.clone(),
                false => Arc::new(self.progress.remaining(&self.asked)),
            };
            match collection {
                Some(collection) if !here.is_empty() => {
                    self.search(&collection, &here, is_all).await?;
                }
                _ => self.progress.end(),
            }
        }
        Ok(())
    }

    /// One search, until it is used up or the ranges are others.
    async fn search(
        &mut self,
        collection: &Arc<Collection>,
        here: &Arc<RangeSet>,
        is_all: bool,
    ) -> Result<(), Error> {
        let modification = self.modification;
        let operation = modification.invocation.operation;
        let part = (!is_all).then(|| {
            Arc::new(ScanPart {
                ranges: Some(RangeSet::clone(here)),
                ..ScanPart::default()
            })
        });
        let sought = Sought {
            filter: &modification.selection.filter,
            hint: modification.selection.hint.as_ref(),
            part,
            after: self.progress.after.as_deref(),
        };
        let found = RecordOrder::new(self.shard(), collection, sought, operation);
        let mut found = match found {
            Err(error) if is_to_be_read_again(&error).is_some() => {
                let readable = self
                    .shard()
                    .await_readable(modification.namespace, operation);
                let invocation = modification.invocation;
                return Box::pin(invocation.without_session(None, readable)).await;
            }
            found => found?,
        };
        let keys_max = match modification.multi {
            true => ENTRY_DOCUMENTS_MAX,
            false => 1,
        };
        loop {
            let (keys, further) = match found.next_keys(keys_max, operation) {
                // What it stood on has changed: the next search finds what is there now.
                Err(error) if error.code == Code::QUERY_PLAN_KILLED => return Ok(()),
                next => next?,
            };
            match self.write(collection, here, &keys, further).await? {
                Some(Batch::Walked(progress)) => self.progress = progress,
                Some(Batch::OtherRanges) | None => return Ok(()),
            }
            if self.progress.ended || further == Further::Search {
                return Ok(());
            }
            operation.check()?;
        }
    }

    async fn write(
        &self,
        collection: &Arc<Collection>,
        here: &Arc<RangeSet>,
        keys: &[RecordKey],
        further: Further,
    ) -> Result<Option<Batch>, Error> {
        let invocation = self.modification.invocation;
        let writer = Writer {
            together: None,
            concern: invocation.envelope.write_concern,
            session: invocation.retryable.as_ref(),
            operation: Some(invocation.operation),
            term: self.term,
        };
        let body = |evaluator: &mut Evaluator<'_>| {
            self.evaluate(evaluator, here, keys, further == Further::Nothing)
        };
        self.shard()
            .write_as(writer, collection.id, keys, body)
            .await
    }

    /// One batch, under the collection's gate.
    fn evaluate(
        &self,
        evaluator: &mut Evaluator<'_>,
        here: &RangeSet,
        keys: &[RecordKey],
        is_last: bool,
    ) -> Result<Batch, Refusal> {
        let modification = self.modification;
        let Some(ownership) = &evaluator.collection().ownership else {
            return Ok(Batch::OtherRanges);
        };
        // ⚑ Only what is owned at the entry's place in the log is written.
        if !std::ptr::eq(&*ownership.owned, here) && !here.difference(&ownership.owned).is_empty() {
            return Ok(Batch::OtherRanges);
        }
        // ⚑ What is not found here may be there on the shard that takes writes by now.
        if ownership.keeps_away(&modification.selection.filter, Some(here), None) {
            return Err(Refusal::Blocked);
        }
        let is_restricted = !std::ptr::eq(&*ownership.owned, here);
        let mut evaluated = Evaluated::default();
        for key in keys {
            let Some(version) = evaluator.latest(key)? else {
                continue;
            };
            // ⚑ Other ranges of this shard belong to other streams.
            if is_restricted {
                match ownership.pattern.key_of(version.doc()) {
                    Ok(key) if here.contains(&key) => {}
                    Ok(_) | Err(_) => continue,
                }
            }
            match modification.evaluate_one(evaluator, key, &version, &mut evaluated) {
                Ok(()) => {}
                // What came before it in this entry stays, as in MongoDB.
                Err(Refusal::Error(error)) => {
                    evaluated.error = Some(error);
                    break;
                }
                Err(again @ (Refusal::Latch(_) | Refusal::Blocked)) => return Err(again),
            }
        }
        let count = |count: i64| u64::try_from(count).unwrap_or(0);
        let mut progress = self.progress.clone();
        let place = keys.last().map(|key| key.as_bytes().to_vec());
        progress.advance(place, count(evaluated.matched), count(evaluated.modified));
        match evaluated.error {
            Some(error) => progress.fail(error),
            None if is_last => progress.end(),
            None if !modification.multi && progress.matched > 0 => progress.end(),
            None => {}
        }
        if evaluated.modified > 0 && self.term.is_some() {
            evaluator.keep_progress(self.part.key.encode(), encode(&progress));
        }
        Ok(Batch::Walked(progress))
    }

    /// ⚑ Leaves what is answered in the log: an earlier request may still be on its way.
    async fn fence(&self, term: Term) -> Result<(), Error> {
        let shard = self.shard();
        loop {
            let document = encode(&self.progress);
            let mut payload = Vec::new();
            let mut encoder = Encoder::with_header(&mut payload, Header::default());
            encoder.put_meta(&self.part.key.encode(), document.as_bytes());
            let proposed = (shard.log).propose_in(term, Durability::Synced, payload, |_, _, _| {
                Companion::empty()
            });
            match proposed {
                Ok(pending) => {
                    pending.await.map_err(crate::error::from_log)?;
                    return Ok(());
                }
                Err(ProposeError::Busy) => {
                    shard.log.ready().await.map_err(crate::error::from_log)?;
                }
                Err(error) => return Err(crate::error::from_log(error)),
            }
        }
    }
}
