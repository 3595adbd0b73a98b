//! `update`: changes documents, one statement after the other.

use super::arguments::{arguments, fields, missing};
use super::modify::{Action, Modification, Outcome, Selection};
use super::write_reply::{Statements, WriteReply, is_batch_size};
use super::{Answer, Invocation, batch_documents, let_variables};
use model::bson::{Doc, ValueRef};
use model::{Code, Error, Namespace};
use query::context::QueryContext;
use query::update::Update;

pub(crate) async fn update(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.namespace()?;
    let mut ordered = true;
    let mut listed = None;
    let mut variables = None;
    for argument in arguments("update", invocation.request.body()) {
        match argument.name() {
            "ordered" => ordered = argument.boolean()?,
            "updates" => listed = Some(argument),
            "bypassDocumentValidation" => {
                argument.loose_boolean()?;
            }
            "let" => variables = argument.optional_doc()?,
            _ => return Err(argument.unknown()),
        }
    }
    let statements = batch_documents(invocation, "update", "updates", listed)?;
    is_batch_size(statements.len())?;
    let context = let_variables(invocation, variables)?;

    let mut outcomes = Statements::new(ordered);
    outcomes.modified(0);
    for (index, statement) in statements.iter().enumerate() {
        if outcomes.is_over() {
            break;
        }
        match run_statement(invocation, &namespace, *statement, &context).await {
            Ok(outcome) => {
                let upserted = outcome.upserted.as_ref();
                outcomes.succeeded(outcome.matched + upserted.map_or(0, |_| 1));
                outcomes.modified(outcome.modified);
                if let Some(id) = upserted.and_then(|document| document.get("_id")) {
                    outcomes.upserted(index, id.to_owned());
                }
                invocation.shard.counters.updated(outcome.modified);
            }
            Err(error) if is_fatal(&error) => return Err(error),
            Err(error) => outcomes.failed(index, error),
        }
    }
    WriteReply::from(outcomes).finish()
}

/// Errors that end the command rather than its statement.
pub(crate) fn is_fatal(error: &Error) -> bool {
    matches!(
        error.code,
        Code::INTERRUPTED_AT_SHUTDOWN | Code::CLIENT_DISCONNECT | Code::INTERRUPTED
    ) || matches!(error.code.0, 40414 | 40415 | 40413)
}

async fn run_statement(
    invocation: &Invocation<'_>,
    namespace: &Namespace,
    statement: Doc<'_>,
    context: &QueryContext,
) -> Result<Outcome, Error> {
    let (mut filter, mut change, mut array_filters, mut hint) = (None, None, None, None);
    let (mut multi, mut upsert) = (false, false);
    let mut context = context.clone();
    for field in fields("update.updates", statement) {
        match field.name() {
            "q" => filter = Some(field.doc()?),
            "u" => change = Some(field.value()),
            "c" => {
                for element in field.doc()?.iter() {
                    context
                        .variables
                        .push((element.key().to_owned(), element.value().to_owned()));
                }
            }
            "multi" => multi = field.boolean()?,
            "upsert" => upsert = field.boolean()?,
            "arrayFilters" => array_filters = Some(field.array()?),
            "hint" => hint = Some(field.value().to_owned()),
            "collation" => super::refuse_collation(field.doc()?)?,
            "upsertSupplied" | "sampleId" => {}
            _ => return Err(field.unknown()),
        }
    }
    let filter = filter.ok_or_else(|| missing("update.updates", "q"))?;
    let change = change.ok_or_else(|| missing("update.updates", "u"))?;
    let update = Update::parse(change, array_filters, &context)?;
    if multi && matches!(update, Update::Replacement(_)) {
        return Err(Error::new(
            Code::FAILED_TO_PARSE,
            "multi update is not supported for replacement-style update",
        ));
    }
    if let ValueRef::Document(_) = change {
        super::insert::check_target(namespace)?;
    }
    let selection = Selection::parse(filter, hint, context)?;
    Modification {
        invocation,
        namespace,
        selection: &selection,
        action: &Action::Update(Box::new(update)),
        multi,
        upsert,
        images: false,
    }
    .run()
    .await
}
