//! `delete`: removes documents, one statement after the other.

use super::arguments::{arguments, fields, missing};
use super::modify::{Action, Modification, Outcome, Selection};
use super::update::is_fatal;
use super::write_reply::{Statements, WriteReply, is_batch_size};
use super::{Answer, Invocation, batch_documents, let_variables};
use model::bson::Doc;
use model::{Code, Error, Namespace};
use query::context::QueryContext;

pub(crate) async fn delete(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.namespace()?;
    let mut ordered = true;
    let mut listed = None;
    let mut variables = None;
    for argument in arguments("delete", invocation.request.body()) {
        match argument.name() {
            "ordered" => ordered = argument.boolean()?,
            "deletes" => listed = Some(argument),
            "let" => variables = argument.optional_doc()?,
            _ => return Err(argument.unknown()),
        }
    }
    let statements = batch_documents(invocation, "delete", "deletes", listed)?;
    is_batch_size(statements.len())?;
    let context = let_variables(invocation, variables)?;

    let mut outcomes = Statements::new(ordered);
    for (index, statement) in statements.iter().enumerate() {
        if outcomes.is_over() {
            break;
        }
        match run_statement(invocation, &namespace, *statement, &context).await {
            Ok(outcome) => {
                outcomes.succeeded(outcome.matched);
                invocation.shard.counters.deleted(outcome.matched);
            }
            Err(error) if is_fatal(&error) => return Err(error),
            Err(error) => outcomes.failed(index, error),
        }
    }
    WriteReply::from(outcomes).finish()
}

async fn run_statement(
    invocation: &Invocation<'_>,
    namespace: &Namespace,
    statement: Doc<'_>,
    context: &QueryContext,
) -> Result<Outcome, Error> {
    let (mut filter, mut limit, mut hint) = (None, None, None);
    for field in fields("delete.deletes", statement) {
        match field.name() {
            "q" => filter = Some(field.doc()?),
            "limit" => limit = Some(field.integer()?),
            "hint" => hint = Some(field.value().to_owned()),
            "collation" => super::refuse_collation(field.doc()?)?,
            "sampleId" => {}
            _ => return Err(field.unknown()),
        }
    }
    let filter = filter.ok_or_else(|| missing("delete.deletes", "q"))?;
    let multi = match limit.ok_or_else(|| missing("delete.deletes", "limit"))? {
        0 => true,
        1 => false,
        other => {
            return Err(Error::new(
                Code::FAILED_TO_PARSE,
                format!("The limit field in delete objects must be 0 or 1. Got {other}"),
            ));
        }
    };
    let selection = Selection::parse(filter, hint, context.clone())?;
    Modification {
        invocation,
        namespace,
        selection: &selection,
        action: &Action::Delete,
        multi,
        upsert: false,
        images: false,
    }
    .run()
    .await
}
