//! One entry that changes several collections: all of it happens or nothing.
//!
//! ```text
//!  gates, by collection id ─► search ─► latch ─► evaluate ─► append ─► all let go ─► applied
//! ```
//!
//! Gates are taken in the order of collection ids by whoever takes more than one
//! (here, in `ddl.rs` and in `sharding/transition.rs`), so that nobody waits in a circle; latches have their own
//! order and are taken behind all gates.
//!
//! Who names records by `_id` shares the gates with other writers: the latches of these
//! records keep what was read true until the entry is appended. Who searches takes the
//! gates for itself: else another writer might append a document that the search should
//! have found. A search reads what is applied, so entries under way are waited for first.

use super::append::NotAppended;
use super::evaluator::{Evaluator, Refusal};
use super::latches::Stripe;
use crate::Shard;
use crate::catalog::Collection;
use crate::command::envelope::WriteConcern;
use model::key::RecordKey;
use model::{Code, Error, Namespace};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};

/// How the collections of an entry are held while it is evaluated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    /// With other writers: only records that are named are looked at.
    Shared,
    /// Alone: what a search finds stays all there is.
    Alone,
}

/// A gate that is held; nobody looks at it again.
#[expect(dead_code, reason = "guards are there to be dropped")]
pub(crate) enum Gate {
    Shared(OwnedRwLockReadGuard<()>),
    Alone(OwnedRwLockWriteGuard<()>),
}

/// What a search found: records to latch, by collection, and the rest.
pub(crate) struct Searched<S> {
    pub(crate) keys: Vec<(Namespace, RecordKey)>,
    pub(crate) found: S,
}

impl Shard {
    /// Evaluates changes of several collections, which must exist, and waits until they
    /// are applied. `search` and `body` may run several times; only the last run counts.
    pub(crate) async fn write_several<S, R>(
        &self,
        namespaces: &BTreeSet<Namespace>,
        hold: Hold,
        concern: WriteConcern,
        mut search: impl FnMut(&[Arc<Collection>]) -> Result<Searched<S>, Error>,
        mut body: impl FnMut(&mut Evaluator<'_>, &S) -> Result<R, Refusal>,
    ) -> Result<R, Error> {
        let began = std::time::Instant::now();
        let (result, pending) = loop {
            let Some((gates, collections)) = self.hold_gates(namespaces, |_| hold).await? else {
                continue;
            };
            if hold == Hold::Alone && !self.overlay.is_empty() {
                self.propose_catalog(|encoder| encoder.noop()).await?;
            }
            let searched = search(&collections)?;
            let stripes = self.stripes(&collections, &searched.keys);
            let evaluated = self.evaluate(&collections, concern, None, stripes, &mut |evaluator| {
                body(evaluator, &searched.found)
            });
            drop(gates);
            match evaluated {
                Ok(evaluated) => break evaluated,
                Err(NotAppended::Busy) => {
                    self.log.ready().await.map_err(crate::error::from_log)?;
                }
                Err(NotAppended::Blocked) => {
                    let blocked = collections.iter().find(|held| held.has_blocks());
                    if let Some(seen) = blocked {
                        let lifted = self.await_other_ownership(seen.id, seen, None, began);
                        Box::pin(lifted).await?;
                    }
                }
                Err(NotAppended::Error(error)) => return Err(error),
            }
        };
        if let Some(pending) = pending {
            pending.await.map_err(crate::error::from_log)?;
        }
        Ok(result)
    }

    /// Gates and collections in the order of ids; `None` if a name meant another
    /// collection by the time its gate was held.
    pub(crate) async fn hold_gates(
        &self,
        namespaces: &BTreeSet<Namespace>,
        hold: impl Fn(&Collection) -> Hold,
    ) -> Result<Option<(Vec<Gate>, Vec<Arc<Collection>>)>, Error> {
        let look_up = || -> Result<Vec<Arc<Collection>>, Error> {
            let catalog = self.catalog.current();
            let mut collections = Vec::with_capacity(namespaces.len());
            for namespace in namespaces {
                collections.push(catalog.get(namespace).cloned().ok_or_else(|| {
                    Error::new(
                        Code::NAMESPACE_NOT_FOUND,
                        format!("ns does not exist: {namespace}"),
                    )
                })?);
            }
            collections.sort_by_key(|collection| collection.id);
            Ok(collections)
        };
        let known = look_up()?;
        let mut gates = Vec::with_capacity(known.len());
        for collection in &known {
            let gate = collection.gate.clone();
            gates.push(match hold(collection) {
                Hold::Shared => Gate::Shared(gate.read_owned().await),
                Hold::Alone => Gate::Alone(gate.write_owned().await),
            });
        }
        // The catalog that holds now holds until the gates are let go.
        let current = look_up()?;
        let ids = |all: &[Arc<Collection>]| all.iter().map(|one| one.id).collect::<Vec<_>>();
        Ok((ids(&known) == ids(&current)).then_some((gates, current)))
    }

    pub(crate) fn stripes(
        &self,
        collections: &[Arc<Collection>],
        keys: &[(Namespace, RecordKey)],
    ) -> Vec<Stripe> {
        let stripe = |(namespace, key): &(Namespace, RecordKey)| {
            let mut all = collections.iter();
            let collection = all.find(|collection| collection.namespace == *namespace)?;
            Some(self.record_stripe(collection, key))
        };
        keys.iter().filter_map(stripe).collect()
    }
}
