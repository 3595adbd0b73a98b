//! Documents that a move brings.
//!
//! They are entries of this shard's log, with their index entries, so that a failover loses
//! nothing; marked with the move they come from, so that change streams do not show them. They
//! are stored in a range that is received and not owned: nobody sees them until the range is
//! owned.
//!
//! ⚑ Only what lies in a range that the move has registered is taken.
//!
//! Unique indexes begin with the shard key, so that the donor has seen to them; the one that
//! does not is the local index on `_id`. A document is refused, and with it the move, if an
//! owned document has its `_id`; and while it is here, no other can be inserted with it. Copies
//! of one move do not count among each other: one whose document has changed its place may
//! still be there until the log of the donor is replayed.

use super::transition::{Applied, StateWrite};
use crate::Shard;
use crate::command::envelope::WriteConcern;
use crate::write::{Evaluator, Hold, NotAppended, Writer};
use model::bson::DocBuf;
use model::ids::{CollectionId, Uuid};
use model::key::RecordKey;
use model::{Code, Error};
use replication::Term;
use std::collections::BTreeSet;

/// What becomes of a record of a range that is received.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedChange {
    pub(crate) key: RecordKey,
    /// `None`: it was removed.
    pub(crate) document: Option<DocBuf>,
}

impl Shard {
    /// Stores a batch of a move, with state documents in the same entry, and waits until it is
    /// applied. 117 if the move does not receive the range (any more). Refused if this member has not
    /// led without a break since that term.
    pub(crate) async fn write_received(
        &self,
        term: Term,
        collection: CollectionId,
        operation: Uuid,
        changes: &[ReceivedChange],
        documents: &[StateWrite],
        concern: WriteConcern,
    ) -> Result<Applied, Error> {
        let gone = || Error::new(Code::NAMESPACE_NOT_FOUND, "the collection is gone");
        let state = documents.iter().map(|write| write.namespace.clone());
        let state: BTreeSet<_> = state.collect();
        for namespace in &state {
            self.ensure_collection(namespace, None).await?;
        }
        let pending = loop {
            let known = self.catalog.by_id(collection).ok_or_else(gone)?;
            let mut namespaces = state.clone();
            namespaces.insert(known.namespace.clone());
            let held = self.hold_gates(&namespaces, |_| Hold::Shared).await?;
            let Some((gates, collections)) = held else {
                continue;
            };
            let Some(current) = collections.iter().find(|held| held.id == collection) else {
                continue;
            };
            let mut keys: Vec<_> = changes
                .iter()
                .map(|change| (current.namespace.clone(), change.key.clone()))
                .collect();
            for write in documents {
                keys.push((write.namespace.clone(), write.change.record_key()?));
            }
            let stripes = self.stripes(&collections, &keys);
            let namespace = &current.namespace;
            let writer = Writer {
                concern,
                session: None,
                operation: None,
                term: Some(term),
                together: None,
            };
            let mut evaluate = |evaluator: &mut Evaluator<'_>| {
                evaluator.select(namespace)?;
                evaluator.set_origin(&operation.0);
                for change in changes {
                    evaluator.receive(operation, &change.key, change.document.as_ref())?;
                }
                for write in documents {
                    evaluator.select(&write.namespace)?;
                    write.change.evaluate(evaluator)?;
                }
                Ok(())
            };
            let evaluated = self.evaluate_for(&collections, writer, false, stripes, &mut evaluate);
            drop(gates);
            match evaluated {
                Ok(((), pending)) => break pending,
                Err(NotAppended::Busy | NotAppended::Blocked) => {
                    self.log.ready().await.map_err(crate::error::from_log)?;
                }
                Err(NotAppended::Error(error)) => return Err(error),
            }
        };
        self.applied(pending, concern).await
    }
}
