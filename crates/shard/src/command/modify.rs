//! Changing documents that a filter selects: what `update`, `delete` and
//! `findAndModify` have in common.
//!
//! ```text
//!   candidates (applied state, by plan) ─► latch ─► latest version still matches? ─► change
//! ```
//!
//! Candidates come from the applied state and may be outdated when their turn
//! comes: each is read again and matched again under its latch, and what no
//! longer matches is passed over. A filter that names one `_id` needs no search.

use super::Invocation;
use crate::Shard;
use crate::broadcast::{self, LeftBehind, Part};
use crate::catalog::Collection;
use crate::read::{Candidates, named_key};
use crate::session::{Effect, Image, ImageKind};
use crate::sharding::{UpdateStatement, is_to_be_read_again, would_leave};
use crate::write::{Evaluator, Refusal, Together, Version, Writer, check_stored, prepare_insert};
use model::bson::{Doc, DocBuf, DocWriter, Value, ValueRef};
use model::key::RecordKey;
use model::{Code, Error, Namespace};
use query::context::QueryContext;
use query::filter::Filter;
use query::plan::named_shard_key;
use query::sort::SortPattern;
use query::update::{Update, UpdateMoment};
use std::sync::Arc;

/// Candidates that one log entry takes in a change of many documents.
pub(crate) const ENTRY_DOCUMENTS_MAX: usize = 128;
/// How often an upsert that lost a race to another insert starts over.
const UPSERT_ATTEMPTS: usize = 10;

/// Which documents to change.
pub(crate) struct Selection {
    /// Normalized: positions of `$` are asked of this form.
    pub(crate) filter: Filter,
    pub(crate) sort: Option<SortPattern>,
    pub(crate) hint: Option<Value>,
    pub(crate) context: QueryContext,
}

impl Selection {
    pub(crate) fn parse(
        filter: Doc<'_>,
        hint: Option<Value>,
        context: QueryContext,
    ) -> Result<Self, Error> {
        Ok(Self {
            filter: Filter::parse(filter, &context)?.normalized(),
            sort: None,
            hint,
            context,
        })
    }
}

/// What to do with a selected document.
pub(crate) enum Action {
    Update(Box<Update>),
    Delete,
}

/// A document that was selected, before and after.
pub(crate) struct Changed {
    pub(crate) before: DocBuf,
    /// `None` if nothing changed or it was removed.
    pub(crate) after: Option<DocBuf>,
}

/// What became of one statement.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) matched: i64,
    pub(crate) modified: i64,
    /// The new document of an upsert.
    pub(crate) upserted: Option<DocBuf>,
    /// The one document of a single change, where images were asked for.
    pub(crate) changed: Option<Changed>,
    /// What other shards have to do, of a write over several.
    pub(crate) left: Option<Box<LeftBehind>>,
}

/// One statement under way.
pub(crate) struct Modification<'a> {
    pub(crate) invocation: &'a Invocation<'a>,
    pub(crate) namespace: &'a Namespace,
    pub(crate) selection: &'a Selection,
    pub(crate) action: &'a Action,
    pub(crate) multi: bool,
    pub(crate) upsert: bool,
    /// Which version the caller returns, if it returns one: then the outcome
    /// carries the documents themselves.
    pub(crate) images: Option<ImageKind>,
    /// Which statement of a retryable write this is.
    pub(crate) statement: i32,
    /// Which part this shard has, in a write over several.
    pub(crate) part: Option<&'a Part>,
    /// What the command's statements have appended so far, if they are waited for together.
    pub(crate) together: Option<&'a Together>,
}

impl Modification<'_> {
    pub(crate) async fn run(&self) -> Result<Outcome, Error> {
        if let Some(part) = self.part {
            return Box::pin(broadcast::walk(self, part)).await;
        }
        let shard = self.invocation.shard;
        for _ in 0..UPSERT_ATTEMPTS {
            let mut outcome = Outcome::default();
            let collection = shard.catalog.get(self.namespace);
            let changed = match &collection {
                Some(collection) => self.change(collection, &mut outcome).await,
                None => Ok(()),
            };
            changed
                .and_then(|()| self.invocation.check_not_given_away(collection.as_deref()))
                .map_err(|error| match outcome.matched > 0 {
                    true => killed_halfway(error, self.namespace),
                    false => error,
                })?;
            if outcome.matched > 0 || !self.upsert {
                return Ok(outcome);
            }
            match self.insert().await {
                Ok(document) => {
                    outcome.upserted = Some(document);
                    return Ok(outcome);
                }
                // Somebody inserted it meanwhile: now there is one to update. It may
                // only be appended so far, and a search sees what is applied.
                Err(error) if error.code == Code::DUPLICATE_KEY && self.may_match(&error) => {
                    shard.propose_catalog(|encoder| encoder.noop()).await?;
                }
                Err(error) => return Err(error),
            }
        }
        self.insert().await.map(|document| Outcome {
            upserted: Some(document),
            ..Outcome::default()
        })
    }

    /// Whether a duplicate key may be the document that the filter asks for:
    /// the filter binds every field of the violated index.
    fn may_match(&self, error: &Error) -> bool {
        let Some(pattern) = error
            .details
            .as_ref()
            .and_then(|details| details.as_doc().get_doc("keyPattern"))
        else {
            return false;
        };
        let equalities = self.selection.filter.equalities();
        pattern.iter().all(|field| {
            equalities
                .iter()
                .any(|(path, _)| path.as_str() == field.key())
        })
    }

    async fn change(
        &self,
        collection: &Arc<Collection>,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        let invocation = self.invocation;
        let mut named = self.selection.named_key(collection);
        let is_named = named.is_some();
        // A search sees what is applied.
        if let (Some(together), false) = (self.together, is_named) {
            together.applied(invocation.retryable.as_ref()).await?;
        }
        let mut candidates = loop {
            if let Some(key) = named.take() {
                break Candidates::one(key);
            }
            let found = Candidates::search(
                invocation.shard,
                collection,
                &self.selection.filter,
                self.selection.sort.as_ref(),
                self.selection.hint.as_ref(),
                invocation.operation,
            );
            match found {
                Err(error) if is_to_be_read_again(&error).is_some() => {
                    let operation = invocation.operation;
                    let readable = invocation.shard.await_readable(self.namespace, operation);
                    Box::pin(invocation.without_session(self.together, readable)).await?;
                }
                found => break found?,
            }
        };
        let chunk_max = if self.multi { ENTRY_DOCUMENTS_MAX } else { 1 };
        loop {
            let keys = candidates.next_keys(chunk_max, invocation.operation)?;
            if keys.is_empty() {
                // ⚑ What was not found may have gone to another shard while this one searched.
                let now = invocation.shard.catalog.by_id(collection.id);
                return match now {
                    Some(now) if !self.multi => invocation.check_route(&now),
                    _ => Ok(()),
                };
            }
            let writer = self.writer(is_named && !self.multi);
            let written = invocation
                .shard
                .write_as(writer, collection.id, &keys, |evaluator| {
                    self.evaluate(evaluator, &keys)
                })
                .await?;
            let Some(evaluated) = written else {
                return Ok(());
            };
            outcome.matched += evaluated.matched;
            outcome.modified += evaluated.modified;
            outcome.changed = evaluated.changed;
            if let Some(error) = evaluated.error {
                return Err(error);
            }
            if !self.multi && outcome.matched > 0 {
                return Ok(());
            }
            invocation.operation.check()?;
        }
    }

    fn writer(&self, together: bool) -> Writer<'_> {
        let invocation = self.invocation;
        Writer {
            concern: invocation.envelope.write_concern,
            session: invocation.retryable.as_ref(),
            operation: Some(invocation.operation),
            term: None,
            together: self.together.filter(|_| together),
        }
    }

    fn evaluate(
        &self,
        evaluator: &mut Evaluator<'_>,
        keys: &[RecordKey],
    ) -> Result<Evaluated, Refusal> {
        self.invocation.check_route(evaluator.collection())?;
        // ⚑ What is not found here may be there on the shard that takes writes by now.
        if let Some(ownership) = &evaluator.collection().ownership
            && ownership.keeps_away(&self.selection.filter, None, None)
        {
            return Err(Refusal::Blocked);
        }
        let mut evaluated = Evaluated::default();
        for key in keys {
            let Some(version) = evaluator.latest(key)? else {
                continue;
            };
            match self.evaluate_one(evaluator, key, &version, &mut evaluated) {
                Ok(()) => {}
                // What came before it in this entry stays, as in MongoDB.
                Err(Refusal::Error(error)) => {
                    evaluated.error = Some(error);
                    break;
                }
                Err(again @ (Refusal::Latch(_) | Refusal::Blocked)) => return Err(again),
            }
        }
        Ok(evaluated)
    }

    pub(crate) fn evaluate_one(
        &self,
        evaluator: &mut Evaluator<'_>,
        key: &RecordKey,
        version: &Version,
        evaluated: &mut Evaluated,
    ) -> Result<(), Refusal> {
        let doc = version.doc();
        let uses_position = match self.action {
            Action::Update(update) => update.uses_position(),
            Action::Delete => false,
        };
        let mut position = None;
        if uses_position {
            match self.selection.filter.matches_with_position(doc)? {
                Some(matched) => position = matched.position.map(|at| at.to_string()),
                None => return Ok(()),
            }
        } else if !self.selection.filter.matches(doc)? {
            return Ok(());
        }
        let after = match self.action {
            Action::Delete => {
                evaluator.remove(key.clone(), version)?;
                evaluated.modified += 1;
                self.note(evaluator, doc, None);
                None
            }
            Action::Update(update) => {
                let moment = self.moment(position.as_deref(), false);
                let after = update.apply(doc, moment, &self.selection.context)?;
                if let Some(after) = &after {
                    check_stored(after.as_doc())?;
                    if let Some(ownership) = evaluator.collection().sharded_ownership() {
                        let statement = UpdateStatement {
                            filter: &self.selection.filter,
                            multi: self.multi,
                            is_retryable: self.invocation.retryable.is_some(),
                        };
                        ownership.check_update(doc, after.as_doc(), &statement)?;
                    }
                    let difference = update.difference(doc, after.as_doc(), moment);
                    evaluator.replace(key.clone(), version, after.as_doc(), difference)?;
                    evaluated.modified += 1;
                    self.note(evaluator, doc, Some(after.as_doc()));
                }
                after
            }
        };
        evaluated.matched += 1;
        if self.images.is_some() {
            evaluated.changed = Some(Changed {
                before: doc.to_owned(),
                after,
            });
        }
        Ok(())
    }

    /// Leaves behind what a retry of this statement is answered from.
    fn note(&self, evaluator: &mut Evaluator<'_>, before: Doc<'_>, after: Option<Doc<'_>>) {
        if self.invocation.retryable.is_none() {
            return;
        }
        let effect = match (self.images, after) {
            (None, None) => Effect::Deleted,
            (None, Some(_)) => Effect::Updated,
            (Some(_), None) => Effect::DeletedWithImage,
            (Some(kind), Some(_)) => Effect::UpdatedWithImage(kind),
        };
        evaluator.executed(self.statement, effect);
        let image = match (self.images, after) {
            (None, _) => return,
            (Some(ImageKind::After), Some(after)) => Image {
                kind: ImageKind::After,
                document: after.to_owned(),
            },
            (Some(_), _) => Image {
                kind: ImageKind::Before,
                document: before.to_owned(),
            },
        };
        evaluator.keep_image(image);
    }

    /// The same for the new document of an upsert.
    fn note_upsert(&self, evaluator: &mut Evaluator<'_>, document: &DocBuf) {
        if self.invocation.retryable.is_none() {
            return;
        }
        let id = document.get("_id").unwrap_or(ValueRef::Null);
        let id = DocWriter::new().with("_id", id).finish();
        if self.images != Some(ImageKind::After) {
            evaluator.executed(self.statement, Effect::Upserted(id));
            return;
        }
        evaluator.executed(self.statement, Effect::UpsertedWithImage(id));
        evaluator.keep_image(Image {
            kind: ImageKind::Inserted,
            document: document.clone(),
        });
    }

    fn moment<'m>(&self, matched: Option<&'m str>, is_insert: bool) -> UpdateMoment<'m> {
        moment(self.invocation.shard, matched, is_insert)
    }

    /// Refuses a new document that belongs to another shard than the key that it was looked for by: whoever
    /// routed it was right.
    fn check_stays(&self, collection: &Collection, document: Doc<'_>) -> Result<(), Error> {
        let Some(ownership) = collection.sharded_ownership() else {
            return Ok(());
        };
        let named = named_shard_key(&self.selection.filter, &ownership.pattern);
        match named.is_some_and(|named| ownership.owned.contains(&named)) {
            true if !ownership.owns(document) => Err(would_leave()),
            _ => Ok(()),
        }
    }

    /// Inserts what the filter and the update describe.
    async fn insert(&self) -> Result<DocBuf, Error> {
        let Action::Update(update) = self.action else {
            unreachable!("only updates upsert");
        };
        let shard = self.invocation.shard;
        let new = update.upsert(
            &self.selection.filter,
            self.moment(None, true),
            &self.selection.context,
        )?;
        let document = prepare_insert(shard, new.as_doc())?;
        check_stored(document.as_doc())?;
        loop {
            let ensured = self
                .invocation
                .ensure_collection(self.namespace, self.together);
            let collection = ensured.await?;
            self.check_stays(&collection, document.as_doc())?;
            let key = collection.record_key_to_insert(document.as_doc());
            let is_named = self.selection.named_key(&collection).is_some();
            let writer = self.writer(is_named);
            let written = shard
                .write_as(
                    writer,
                    collection.id,
                    std::slice::from_ref(&key),
                    |evaluator| {
                        evaluator.insert(key.clone(), document.clone())?;
                        self.note_upsert(evaluator, &document);
                        Ok(())
                    },
                )
                .await?;
            if written.is_some() {
                return Ok(document);
            }
        }
    }
}

impl Selection {
    /// The record that is named, so that nothing is searched for.
    fn named_key(&self, collection: &Collection) -> Option<RecordKey> {
        named_key(collection, &self.filter, self.hint.as_ref())
    }
}

/// What an update may refer to besides the document: the array position that
/// matched, whether it makes a new document, and the time.
pub(crate) fn moment<'m>(
    shard: &Shard,
    matched: Option<&'m str>,
    is_insert: bool,
) -> UpdateMoment<'m> {
    let time = shard.log.latest_time().next();
    UpdateMoment {
        matched,
        is_insert,
        timestamp: model::bson::Timestamp {
            seconds: time.seconds(),
            increment: time.increment(),
        },
    }
}

/// The error for a statement that has changed some documents of a collection when that went to another
/// shard with its database. Whoever routed it must not begin again: some were changed.
fn killed_halfway(error: Error, namespace: &Namespace) -> Error {
    if error.code != Code::STALE_DB_VERSION {
        return error;
    }
    Error::new(
        Code::QUERY_PLAN_KILLED,
        format!("{namespace} moved to another shard with its database while it was written to"),
    )
}

#[derive(Default)]
pub(crate) struct Evaluated {
    pub(crate) matched: i64,
    pub(crate) modified: i64,
    changed: Option<Changed>,
    pub(crate) error: Option<Error>,
}
