//! `update`: changes documents, one statement after the other.
//!
//! All statements are read before the first one runs: a field of the wrong type
//! fails the command, what is wrong with an update fails its statement only.

use super::arguments::{arguments, fields, missing};
use super::modify::{Action, Modification, Outcome, Selection};
use super::statement_ids::StatementIdArguments;
use super::write_reply::{Statements, WriteReply, is_batch_size};
use super::{Answer, Invocation, batch_documents, let_variables};
use crate::broadcast::Part;
use crate::session::{Effect, incompatible, is_to_be_looked_up_again, refuse_multi};
use crate::write::Together;
use model::bson::{Array, Doc, Kind, Value, ValueRef};
use model::{Code, Error, Namespace};
use query::context::QueryContext;
use query::filter::refuse_expression_in_upsert;
use query::update::Update;

pub(crate) async fn update(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.plain_namespace()?;
    let mut ordered = true;
    let mut listed = None;
    let mut ids = StatementIdArguments::default();
    let mut variables = None;
    let mut part = None;
    for argument in arguments("update", invocation.request.body()) {
        match argument.name() {
            "ordered" => ordered = argument.boolean()?,
            "updates" => listed = Some(argument),
            "stmtId" => ids.first(&argument)?,
            "stmtIds" => ids.listed(&argument)?,
            "bypassDocumentValidation" => {
                argument.loose_boolean()?;
            }
            "let" => variables = argument.optional_doc()?,
            "_terndbBroadcast" => part = Some(Part::read(argument.doc()?)?),
            _ => return Err(argument.unknown()),
        }
    }
    let statements = batch_documents(invocation, "update", "updates", listed)?;
    is_batch_size(statements.len())?;
    is_alone(part.as_ref(), statements.len())?;
    let ids = ids.of_batch(statements.len())?;
    let context = let_variables(invocation, variables)?;
    let statements = statements
        .iter()
        .map(|statement| Statement::parse(*statement))
        .collect::<Result<Vec<_>, Error>>()?;

    let mut outcomes = Statements::new(ordered);
    outcomes.modified(0);
    if let Some(stale) = &invocation.stale {
        outcomes.all_failed(statements.len(), stale);
        return WriteReply::from(outcomes).finish(invocation);
    }
    let together = Together::default();
    let waits_together = (statements.len() > 1).then_some(&together);
    let ran: Result<(), Error> = async {
        for (index, statement) in statements.iter().enumerate() {
            if outcomes.is_over() {
                break;
            }
            if together.is_full() {
                together.applied(invocation.retryable.as_ref()).await?;
            }
            let id = ids.of(index);
            if invocation.retryable.is_some() && statement.multi {
                outcomes.failed(index, refuse_multi("multi=true"));
                continue;
            }
            let outcome = loop {
                if let Some(retryable) = &invocation.retryable
                    && let Some(effect) = retryable.executed(id)?
                {
                    answer_from_history(&mut outcomes, index, id, &effect)?;
                    break None;
                }
                let over_shards = (part.as_ref(), waits_together);
                match statement
                    .run(invocation, &namespace, &context, id, over_shards)
                    .await
                {
                    Err(error) if is_to_be_looked_up_again(&error) => {}
                    outcome => break Some(outcome),
                }
            };
            let Some(outcome) = outcome else {
                continue;
            };
            invocation.shard.counters.operations.updates(1);
            match outcome {
                Ok(outcome) => {
                    let upserted = outcome.upserted.as_ref();
                    outcomes.succeeded(outcome.matched + upserted.map_or(0, |_| 1));
                    outcomes.modified(outcome.modified);
                    if let Some(id) = upserted.and_then(|document| document.get("_id")) {
                        outcomes.upserted(index, id.to_owned());
                    }
                    outcomes.left_behind(outcome.left);
                    invocation.shard.counters.updated(outcome.modified);
                }
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => outcomes.failed(index, error),
            }
        }
        Ok(())
    }
    .await;
    // ⚑ Whatever is answered: nothing of it is under way any more.
    let settled = together.applied(invocation.retryable.as_ref()).await;
    ran.and(settled)?;
    if outcomes.changed_nothing() {
        let concern = invocation.envelope.write_concern;
        Box::pin(invocation.shard.sync_what_was_found(concern)).await?;
    }
    WriteReply::from(outcomes).finish(invocation)
}

/// A write over several shards is one statement.
pub(super) fn is_alone(part: Option<&Part>, statements: usize) -> Result<(), Error> {
    match part {
        Some(_) if statements != 1 => Err(Error::bad_value("a part of a write is one statement")),
        Some(_) | None => Ok(()),
    }
}

/// What the statement answered when it was executed.
fn answer_from_history(
    outcomes: &mut Statements,
    index: usize,
    id: i32,
    effect: &Effect,
) -> Result<(), Error> {
    match effect {
        Effect::Updated | Effect::UpdatedWithImage(_) => outcomes.modified(1),
        Effect::Upserted(document) | Effect::UpsertedWithImage(document) => {
            if let Some(id) = document.get("_id") {
                outcomes.upserted(index, id.to_owned());
            }
        }
        // The ids of plain inserts are not remembered.
        Effect::Inserted | Effect::Deleted | Effect::DeletedWithImage => {
            return Err(incompatible(40638, "update", effect));
        }
    }
    outcomes.retried(id);
    Ok(())
}

/// Errors that end the command rather than its statement.
pub(crate) fn is_fatal(error: &Error) -> bool {
    matches!(
        error.code,
        Code::INTERRUPTED_AT_SHUTDOWN
            | Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE
            | Code::NOT_WRITABLE_PRIMARY
            | Code::CLIENT_DISCONNECT
            | Code::INTERRUPTED
            | Code::MAX_TIME_MS_EXPIRED
    ) || matches!(error.code.0, 40324 | 40413 | 40414 | 40415)
}

/// One element of `updates`.
pub(super) struct Statement<'a> {
    pub(super) filter: Doc<'a>,
    pub(super) change: ValueRef<'a>,
    pub(super) constants: Option<Doc<'a>>,
    pub(super) array_filters: Option<Array<'a>>,
    pub(super) hint: Option<Value>,
    pub(super) multi: bool,
    pub(super) upsert: bool,
}

impl<'a> Statement<'a> {
    pub(super) fn parse(statement: Doc<'a>) -> Result<Self, Error> {
        let (mut filter, mut change) = (None, None);
        let (mut constants, mut array_filters, mut hint) = (None, None, None);
        let (mut multi, mut upsert) = (false, false);
        for field in fields("update.updates", statement) {
            match (field.name(), field.value()) {
                ("q", _) => filter = Some(field.doc()?),
                ("u", value) => change = Some(change_of(value)?),
                // Null stands for an optional field that is absent.
                (
                    "c" | "multi" | "upsert" | "arrayFilters" | "hint" | "collation",
                    ValueRef::Null,
                ) => {}
                ("c", _) => constants = Some(field.doc()?),
                ("multi", _) => multi = field.boolean()?,
                ("upsert", _) => upsert = field.boolean()?,
                ("arrayFilters", _) => {
                    let filters = field.array()?;
                    check_documents(filters)?;
                    array_filters = Some(filters);
                }
                ("hint", value @ (ValueRef::Document(_) | ValueRef::String(_))) => {
                    hint = Some(value.to_owned());
                }
                ("hint", _) => {
                    return Err(Error::new(
                        Code::FAILED_TO_PARSE,
                        "Hint must be a string or an object",
                    ));
                }
                ("collation", _) => super::refuse_collation(field.doc()?)?,
                _ => return Err(field.unknown()),
            }
        }
        Ok(Self {
            filter: filter.ok_or_else(|| missing("update.updates", "q"))?,
            change: change.ok_or_else(|| missing("update.updates", "u"))?,
            constants,
            array_filters,
            hint,
            multi,
            upsert,
        })
    }

    async fn run(
        &self,
        invocation: &Invocation<'_>,
        namespace: &Namespace,
        context: &QueryContext,
        id: i32,
        (part, together): (Option<&Part>, Option<&Together>),
    ) -> Result<Outcome, Error> {
        let mut context = context.clone();
        if let Some(constants) = self.constants {
            if let ValueRef::Document(_) = self.change {
                return Err(Error::location(
                    51198,
                    "Constant values may only be specified for pipeline updates",
                ));
            }
            for element in constants.iter() {
                context
                    .variables
                    .push((element.key().to_owned(), element.value().to_owned()));
            }
        }
        let update = Update::parse(self.change, self.array_filters, &context)?;
        if self.multi && matches!(update, Update::Replacement(_)) {
            return Err(Error::new(
                Code::FAILED_TO_PARSE,
                "multi update is not supported for replacement-style update",
            ));
        }
        if let ValueRef::Document(_) = self.change {
            super::insert::check_target(namespace)?;
        }
        let selection = Selection::parse(self.filter, self.hint.clone(), context)?;
        if self.upsert {
            refuse_expression_in_upsert(self.filter)?;
        }
        Modification {
            invocation,
            namespace,
            selection: &selection,
            action: &Action::Update(Box::new(update)),
            multi: self.multi,
            upsert: self.upsert,
            images: None,
            statement: id,
            part,
            together,
        }
        .run()
        .await
    }
}

/// A document or a pipeline, whose stages are documents of one field.
fn change_of(value: ValueRef<'_>) -> Result<ValueRef<'_>, Error> {
    match value {
        ValueRef::Document(_) => Ok(value),
        ValueRef::Array(stages) => {
            for stage in stages.iter() {
                let ValueRef::Document(stage) = stage else {
                    return Err(Error::new(
                        Code::TYPE_MISMATCH,
                        "Each element of the 'pipeline' array must be an object",
                    ));
                };
                if stage.iter().count() != 1 {
                    return Err(Error::location(
                        40323,
                        "A pipeline stage specification object must contain exactly one field.",
                    ));
                }
            }
            Ok(value)
        }
        _ => Err(Error::new(
            Code::FAILED_TO_PARSE,
            "Update argument must be either an object or an array",
        )),
    }
}

fn check_documents(filters: Array<'_>) -> Result<(), Error> {
    for (index, filter) in filters.iter().enumerate() {
        if filter.kind() != Kind::Document {
            return Err(Error::new(
                Code::TYPE_MISMATCH,
                format!(
                    "BSON field 'update.updates.arrayFilters.{index}' is the wrong type '{}', expected type 'object'",
                    filter.kind().name()
                ),
            ));
        }
    }
    Ok(())
}
