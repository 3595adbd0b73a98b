//! `$merge`: finds each document in the target and does what was said for the
//! case that it is there, or is not.
//!
//! Documents that are joined by `_id`, which is the rule, name their records, so
//! that a portion is one entry of the log (`merge_by_id.rs`). Joined by other
//! fields, each is searched for and changed on its own.
//!
//! But for a pipeline, a document is joined by the update that a client would send: `$set`,
//! `$setOnInsert` or a replacement, so that the names of its fields are paths to an operator,
//! and what is not there is inserted as an upsert makes it.
//!
//! The target may go to another shard with its database meanwhile. Until something is
//! written whoever routed the command may begin again; from then on it is told that the
//! command was killed, because what is there would be joined twice.

use super::out::insert_all;
use super::{portion, while_running};
use crate::command::Invocation;
use crate::command::insert::check_target;
use crate::command::modify::{Action, Modification, Selection, moment};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::{Code, Error, Namespace};
use query::context::QueryContext;
use query::filter::Filter;
use query::pipeline::{Merge, Source, WhenMatched, WhenNotMatched};
use query::update::Update;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often a document that appears and vanishes is tried.
const ATTEMPTS: usize = 10;

/// A field list must be unique in the target, or a document would join several.
pub(crate) fn check_unique(invocation: &Invocation<'_>, merge: &Merge) -> Result<(), Error> {
    let Some(on) = &merge.on else {
        return Ok(());
    };
    if on.len() == 1 && on[0] == "_id" {
        return Ok(());
    }
    let collection = invocation.shard.catalog.get(&merge.target);
    let unique = collection.is_some_and(|collection| {
        collection.secondary_indexes().any(|(_, index)| {
            let definition = &index.definition;
            index.is_ready()
                && definition.unique
                && definition.partial.is_none()
                && definition.fields.len() == on.len()
                && definition
                    .fields
                    .iter()
                    .all(|field| on.iter().any(|name| name == field.path.as_str()))
        })
    });
    if unique {
        return Ok(());
    }
    Err(Error::location(
        51183,
        "Cannot find index to verify that join fields will be unique",
    ))
}

pub(crate) async fn merge_into(
    invocation: &Invocation<'_>,
    source: &mut dyn Source,
    merge: &Merge,
    context: &QueryContext,
) -> Result<(), Error> {
    check_target(&merge.target).map_err(while_running)?;
    invocation.shard.check_writable(&merge.target, "$merge")?;
    let joining = Joining {
        invocation,
        merge,
        context,
        by_id: merge
            .on
            .as_ref()
            .is_none_or(|on| on.iter().any(|name| name == "_id")),
        has_written: AtomicBool::new(false),
    };
    let joined = joining.join_all(source).await;
    joined.map_err(|error| match joining.has_written.load(Ordering::Relaxed) {
        true => killed_halfway(error, &merge.target),
        false => error,
    })
}

/// ⚑ Whoever routed the command begins again after an error that says that its route is old. What has been
/// written would be joined once more.
fn killed_halfway(error: Error, target: &Namespace) -> Error {
    match error.code {
        Code::STALE_DB_VERSION | Code::STALE_CONFIG | Code::STALE_EPOCH => {
            let message = format!("{target} moved to another shard while it was merged into");
            while_running(Error::new(Code::QUERY_PLAN_KILLED, message))
        }
        _ => error,
    }
}

pub(super) struct Joining<'a> {
    pub(super) invocation: &'a Invocation<'a>,
    pub(super) merge: &'a Merge,
    context: &'a QueryContext,
    by_id: bool,
    /// Whether anything of the target was changed so far.
    pub(super) has_written: AtomicBool,
}

impl Joining<'_> {
    async fn join_all(&self, source: &mut dyn Source) -> Result<(), Error> {
        let operation = self.invocation.operation;
        loop {
            let documents = portion(source).map_err(while_running)?;
            if documents.is_empty() {
                return Ok(());
            }
            // Documents that cannot be identified end the command before any of the
            // portion is written; other failures only after all of it.
            let identified = documents
                .into_iter()
                .map(|document| self.identify(document))
                .collect::<Result<Vec<_>, Error>>()
                .map_err(while_running)?;
            if self.is_by_id_alone() {
                self.join_by_id(identified).await.map_err(while_running)?;
                operation.check()?;
                continue;
            }
            let mut failed = None;
            for (document, identity) in identified {
                let joined = self.join(document.as_doc(), identity.as_doc()).await;
                failed = failed.or(joined.err());
                operation.check()?;
            }
            if let Some(error) = failed {
                return Err(while_running(error));
            }
        }
    }

    /// The document, with an `_id` if it needs one, and the fields that find it.
    fn identify(&self, document: DocBuf) -> Result<(DocBuf, DocBuf), Error> {
        let document = match document.get("_id") {
            None if self.by_id => self.with_id(document.as_doc()),
            _ => document,
        };
        let identity = self.merge.identity(document.as_doc())?;
        Ok((document, identity))
    }

    async fn join(&self, document: Doc<'_>, identity: Doc<'_>) -> Result<(), Error> {
        let change = self.change(document)?;
        for _ in 0..ATTEMPTS {
            if let Some(change) = &change
                && self.update(change, identity).await?
            {
                return Ok(());
            }
            match self.merge.when_not_matched {
                WhenNotMatched::Discard => return Ok(()),
                WhenNotMatched::Fail => return Err(no_match()),
                WhenNotMatched::Insert => {}
            }
            let target = &self.merge.target;
            let inserted = self.inserted(document, identity, change.as_ref())?;
            match insert_all(self.invocation, target, vec![inserted]).await {
                Ok(()) => {
                    self.has_written.store(true, Ordering::Relaxed);
                    return Ok(());
                }
                // Somebody inserted it meanwhile: now there is one to change.
                Err(error)
                    if error.code == Code::DUPLICATE_KEY
                        && self.is_identity(&error)
                        && !matches!(self.merge.when_matched, WhenMatched::Fail) => {}
                Err(error) => return Err(self.not_inserted(error)),
            }
        }
        Err(Error::new(
            Code::WRITE_CONFLICT,
            "$merge lost too many races for one document",
        ))
    }

    /// The error of an insert as this stage tells it.
    pub(super) fn not_inserted(&self, error: Error) -> Error {
        if error.code != Code::DUPLICATE_KEY {
            return error;
        }
        if self.is_identity(&error) && matches!(self.merge.when_matched, WhenMatched::Fail) {
            return prefixed(
                "$merge with whenMatched: fail found an existing document with the same values \
                 for the 'on' fields",
                error,
            );
        }
        prefixed("$merge failed due to a DuplicateKey error", error)
    }

    fn is_by_id_alone(&self) -> bool {
        let target = self.invocation.shard.catalog.get(&self.merge.target);
        if target.is_some_and(|target| target.clustering.is_some()) {
            return false;
        }
        match &self.merge.on {
            None => true,
            Some(on) => on.len() == 1 && on[0] == "_id",
        }
    }

    fn with_id(&self, doc: Doc<'_>) -> DocBuf {
        let mut writer = DocWriter::new();
        writer.append("_id", self.invocation.shard.new_object_id());
        for element in doc.iter() {
            writer.append_element(&element);
        }
        writer.finish()
    }

    /// Whether a violated index is the one on the join fields.
    fn is_identity(&self, error: &Error) -> bool {
        let pattern = error
            .details
            .as_ref()
            .and_then(|details| details.as_doc().get_doc("keyPattern"));
        let Some(pattern) = pattern else {
            return false;
        };
        match &self.merge.on {
            None => pattern.iter().all(|field| field.key() == "_id"),
            Some(on) => pattern
                .iter()
                .all(|field| on.iter().any(|name| name == field.key())),
        }
    }

    /// How a document of the target changes, and what that refers to; `None` if one
    /// must not be there at all.
    pub(super) fn change(
        &self,
        document: Doc<'_>,
    ) -> Result<Option<(Update, QueryContext)>, Error> {
        if let Some(operators) = self.merge.operators(document) {
            let update = Update::parse(ValueRef::from(&operators), None, self.context)?;
            return Ok(Some((update, self.context.clone())));
        }
        match &self.merge.when_matched {
            WhenMatched::Pipeline(stages) => {
                let context = self.merge.bound(document, self.context)?;
                let update = Update::parse(ValueRef::from(stages), None, &context)?;
                Ok(Some((update, context)))
            }
            WhenMatched::Fail
            | WhenMatched::Replace
            | WhenMatched::Merge
            | WhenMatched::KeepExisting => Ok(None),
        }
    }

    /// The document that is inserted where none is found: by an upsert of the change, but for a
    /// pipeline, which only changes what is there.
    pub(super) fn inserted(
        &self,
        document: Doc<'_>,
        identity: Doc<'_>,
        change: Option<&(Update, QueryContext)>,
    ) -> Result<DocBuf, Error> {
        match change {
            Some((update @ (Update::Modifiers(_) | Update::Replacement(_)), context)) => {
                let moment = moment(self.invocation.shard, None, true);
                update.upsert(&identity_filter(identity), moment, context)
            }
            Some((Update::Pipeline(_), _)) | None => Ok(document.to_owned()),
        }
    }

    /// Changes the document in the target; false if there is none.
    async fn update(
        &self,
        (update, context): &(Update, QueryContext),
        identity: Doc<'_>,
    ) -> Result<bool, Error> {
        let selection = Selection {
            filter: identity_filter(identity).normalized(),
            sort: None,
            hint: None,
            context: context.clone(),
        };
        let outcome = Modification {
            invocation: self.invocation,
            namespace: &self.merge.target,
            selection: &selection,
            action: &Action::Update(Box::new(update.clone())),
            multi: false,
            upsert: false,
            images: None,
            statement: 0,
            part: None,
            together: None,
        }
        .run()
        .await
        .map_err(not_changed)?;
        if outcome.matched > 0 {
            self.has_written.store(true, Ordering::Relaxed);
        }
        Ok(outcome.matched > 0)
    }
}

pub(super) fn no_match() -> Error {
    Error::new(
        Code::MERGE_STAGE_NO_MATCHING_DOCUMENT,
        "$merge could not find a matching document in the target collection for at least one \
         document in the source collection",
    )
}

/// The error of a change as this stage tells it.
pub(super) fn not_changed(error: Error) -> Error {
    if error.code != Code::IMMUTABLE_FIELD {
        return error;
    }
    prefixed(
        "$merge failed to update the matching document, did you attempt to modify the _id or the \
         shard key?",
        error,
    )
}

/// Values are meant as they are, never as operators.
fn identity_filter(identity: Doc<'_>) -> Filter {
    Filter::And(
        identity
            .iter()
            .map(|field| {
                Filter::equal(
                    query::path::Path::new(field.key()),
                    field.value().to_owned(),
                )
            })
            .collect(),
    )
    .optimized()
}

fn prefixed(what: &str, error: Error) -> Error {
    Error {
        message: format!("{what} :: caused by :: {}", error.message),
        ..error
    }
}
