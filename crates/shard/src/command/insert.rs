//! `insert`: adds documents, a batch in as few log entries as possible.
//!
//! Documents of one batch share entries of up to [`ENTRY_DOCUMENTS_MAX`]
//! documents or [`ENTRY_BYTES_MAX`] bytes. Each document succeeds or fails on
//! its own; in an ordered batch the first failure ends it.

use super::arguments::arguments;
use super::statement_ids::StatementIdArguments;
use super::write_reply::{Statements, WriteReply, is_batch_size};
use super::{Answer, Invocation, batch_documents, check_plain};
use crate::session::{Effect, StatementIds, is_to_be_looked_up_again};
use crate::write::{Prepared, Refusal, Shape, prepare};
use model::bson::{Doc, MAX_STORED_DEPTH, nesting_depth};
use model::key::RecordKey;
use model::{Code, Error, Namespace};
use storage::Record;

const ENTRY_DOCUMENTS_MAX: usize = 1000;
const ENTRY_BYTES_MAX: usize = 4 * 1024 * 1024;

pub(crate) async fn insert(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.namespace()?;
    let mut ordered = true;
    let mut listed = None;
    let mut ids = StatementIdArguments::default();
    for argument in arguments("insert", invocation.request.body()) {
        match argument.name() {
            "ordered" if argument.is_null() => {}
            "ordered" => ordered = argument.boolean()?,
            "documents" => listed = Some(argument),
            "stmtId" => ids.first(&argument)?,
            "stmtIds" => ids.listed(&argument)?,
            "bypassDocumentValidation" => {
                argument.loose_boolean()?;
            }
            _ => return Err(argument.unknown()),
        }
    }
    let documents = batch_documents(invocation, "insert", "documents", listed)?;
    is_batch_size(documents.len())?;
    check_target(&namespace)?;

    let mut batch = Batch {
        invocation,
        namespace: &namespace,
        ids: ids.of_batch(documents.len())?,
        statements: Statements::new(ordered),
    };
    if let Some(stale) = &invocation.stale {
        batch.statements.all_failed(documents.len(), stale);
        return WriteReply::from(batch.statements).finish(invocation);
    }
    let mut from = 0;
    while from < documents.len() && !batch.statements.is_over() {
        let to = batch_end(&documents, from);
        invocation.operation.check()?;
        match batch.insert(from, &documents[from..to]).await {
            Err(error) if is_to_be_looked_up_again(&error) => continue,
            inserted => inserted?,
        }
        from = to;
    }
    let counters = &invocation.shard.counters;
    counters.inserted(batch.statements.newly());
    counters
        .operations
        .inserts(batch.statements.tried_inserts());
    if batch.statements.changed_nothing() {
        let concern = invocation.envelope.write_concern;
        Box::pin(invocation.shard.sync_what_was_found(concern)).await?;
    }
    WriteReply::from(batch.statements).finish(invocation)
}

fn batch_end(documents: &[Doc<'_>], from: usize) -> usize {
    let mut bytes = 0;
    let mut to = from;
    while to < documents.len() && to - from < ENTRY_DOCUMENTS_MAX {
        bytes += documents[to].len();
        if to > from && bytes > ENTRY_BYTES_MAX {
            break;
        }
        to += 1;
    }
    to
}

/// Refuses two `_id`s, and what is nested deeper than MongoDB stores.
fn check_shape(doc: Doc<'_>, shape: &Shape<'_>) -> Result<(), Error> {
    shape.check_ids()?;
    if shape.is_flat() || nesting_depth(doc) < MAX_STORED_DEPTH {
        return Ok(());
    }
    Err(Error::new(
        model::Code::OVERFLOW,
        format!("cannot insert document because it exceeds {MAX_STORED_DEPTH} levels of nesting"),
    ))
}

/// Refuses collections that clients may not create.
pub(crate) fn check_target(namespace: &Namespace) -> Result<(), Error> {
    let collection = namespace.collection();
    check_plain(namespace)?;
    let known_system = matches!(
        collection,
        "system.js" | "system.users" | "system.roles" | "system.version" | "system.sessions"
    );
    if collection.starts_with("system.") && !known_system {
        return Err(Error::new(
            Code::INVALID_NAMESPACE,
            format!("Invalid system namespace: {namespace}"),
        ));
    }
    Ok(())
}

struct Batch<'i> {
    invocation: &'i Invocation<'i>,
    namespace: &'i Namespace,
    ids: StatementIds,
    statements: Statements,
}

impl Batch<'_> {
    /// Inserts documents that share an entry; `first` is the index of the first.
    async fn insert(&mut self, first: usize, documents: &[Doc<'_>]) -> Result<(), Error> {
        let shard = self.invocation.shard;
        let mut prepared: Vec<(usize, Prepared<'_>)> = Vec::with_capacity(documents.len());
        let mut refused = Vec::new();
        let retryable = self.invocation.retryable.as_ref();
        let mut retried = Vec::new();
        for (offset, doc) in documents.iter().enumerate() {
            if let Some(retryable) = retryable {
                let statement = self.ids.of(first + offset);
                if retryable.executed(statement)?.is_some() {
                    retried.push((first + offset, statement));
                    continue;
                }
            }
            let shape = Shape::of(*doc);
            let checked = check_shape(*doc, &shape);
            match checked.and_then(|()| prepare(shard, *doc, &shape)) {
                Ok(document) => prepared.push((first + offset, document)),
                Err(error) => {
                    refused.push((first + offset, error));
                    if self.statements.ordered() {
                        break;
                    }
                }
            }
        }
        let ordered = self.statements.ordered();
        let ids = &self.ids;
        let outcomes = loop {
            if prepared.is_empty() {
                break Vec::new();
            }
            let ensured = self.invocation.ensure_collection(self.namespace, None);
            let collection = match ensured.await {
                Ok(collection) => collection,
                // Each document is told so, as MongoDB does.
                Err(error) if error.code == Code::DATABASE_DIFFER_CASE => {
                    let told = if ordered { 1 } else { prepared.len() };
                    let indexes = prepared.iter().take(told).map(|(index, _)| *index);
                    break indexes.map(|index| (index, Err(error.clone()))).collect();
                }
                Err(error) => return Err(error),
            };
            let keys: Vec<RecordKey> = prepared
                .iter()
                .map(|(_, document)| collection.record_key_to_insert(document.doc()))
                .collect();
            let written = shard
                .write_statements(
                    collection.id,
                    self.invocation.envelope.write_concern,
                    retryable,
                    Some(self.invocation.operation),
                    &keys,
                    |evaluator| {
                        let mut outcomes = Vec::with_capacity(prepared.len());
                        for ((index, document), key) in prepared.iter().zip(&keys) {
                            // The one copy on the document's way into the engine.
                            let draft = Record::draft(document.doc().as_bytes());
                            match evaluator.insert_draft(key.clone(), draft) {
                                Ok(()) => {
                                    if retryable.is_some() {
                                        evaluator.executed(ids.of(*index), Effect::Inserted);
                                    }
                                    outcomes.push((*index, Ok(())));
                                }
                                Err(Refusal::Error(error)) => {
                                    outcomes.push((*index, Err(error)));
                                    if ordered {
                                        break;
                                    }
                                }
                                Err(again @ (Refusal::Latch(_) | Refusal::Blocked)) => {
                                    return Err(again);
                                }
                            }
                        }
                        Ok(outcomes)
                    },
                )
                .await?;
            match written {
                Some(outcomes) => break outcomes,
                // Dropped in between: it is created again, as MongoDB does.
                None => continue,
            }
        };
        for (index, outcome) in outcomes {
            match outcome {
                Ok(()) => self.statements.succeeded(1),
                Err(error) => self.statements.failed(index, error),
            }
        }
        for (index, error) in refused {
            self.statements.failed(index, error);
        }
        for (index, statement) in retried {
            // What stands behind a failure of an ordered batch is not looked at.
            if self.statements.is_reached(index) {
                self.statements.retried(statement);
            }
        }
        Ok(())
    }
}
