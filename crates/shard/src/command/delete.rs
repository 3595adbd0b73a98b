//! `delete`: removes documents, one statement after the other.

use super::arguments::{arguments, fields, missing, refuse_duplicates};
use super::modify::{Action, Modification, Outcome, Selection};
use super::statement_ids::StatementIdArguments;
use super::update::{is_alone, is_fatal};
use super::write_reply::{Statements, WriteReply, is_batch_size};
use super::{Answer, Invocation, batch_documents, let_variables};
use crate::broadcast::Part;
use crate::session::{is_to_be_looked_up_again, refuse_multi};
use crate::write::Together;
use model::bson::{Doc, Value, ValueRef};
use model::number::Number;
use model::{Code, Error, Namespace};
use query::context::QueryContext;

pub(crate) async fn delete(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.plain_namespace()?;
    let mut ordered = true;
    let mut listed = None;
    let mut ids = StatementIdArguments::default();
    let mut variables = None;
    let mut part = None;
    for argument in arguments("delete", invocation.request.body()) {
        match argument.name() {
            "ordered" if argument.is_null() => {}
            "ordered" => ordered = argument.boolean()?,
            "deletes" => listed = Some(argument),
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
    let statements = batch_documents(invocation, "delete", "deletes", listed)?;
    is_batch_size(statements.len())?;
    is_alone(part.as_ref(), statements.len())?;
    let ids = ids.of_batch(statements.len())?;
    // One statement that cannot be read refuses them all.
    let statements = statements
        .iter()
        .map(|statement| Statement::parse(*statement))
        .collect::<Result<Vec<_>, Error>>()?;

    let mut outcomes = Statements::new(ordered);
    if let Some(stale) = &invocation.stale {
        outcomes.all_failed(statements.len(), stale);
        return WriteReply::from(outcomes).finish(invocation);
    }
    let together = Together::default();
    let waits_together = (statements.len() > 1).then_some(&together);
    let ran: Result<(), Error> = async {
        for (index, statement) in statements.into_iter().enumerate() {
            if outcomes.is_over() {
                break;
            }
            if together.is_full() {
                together.applied(invocation.retryable.as_ref()).await?;
            }
            let id = ids.of(index);
            if invocation.retryable.is_some() && statement.multi {
                outcomes.failed(index, refuse_multi("limit=0"));
                continue;
            }
            let outcome = loop {
                if let Some(retryable) = &invocation.retryable
                    && retryable.executed(id)?.is_some()
                {
                    outcomes.retried(id);
                    break None;
                }
                let context = match let_variables(invocation, variables) {
                    Ok(context) => context,
                    Err(error) => break Some(Err(error)),
                };
                let over_shards = (part.as_ref(), waits_together);
                match statement
                    .run(invocation, &namespace, context, id, over_shards)
                    .await
                {
                    Err(error) if is_to_be_looked_up_again(&error) => {}
                    outcome => break Some(outcome),
                }
            };
            let Some(outcome) = outcome else {
                continue;
            };
            invocation.shard.counters.operations.deletes(1);
            match outcome {
                Ok(outcome) => {
                    outcomes.succeeded(outcome.matched);
                    outcomes.left_behind(outcome.left);
                    invocation.shard.counters.deleted(outcome.matched);
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

/// One statement of the command.
pub(super) struct Statement<'a> {
    pub(super) filter: Doc<'a>,
    pub(super) hint: Option<Value>,
    pub(super) multi: bool,
}

impl<'a> Statement<'a> {
    pub(super) fn parse(statement: Doc<'a>) -> Result<Self, Error> {
        const PATH: &str = "delete.deletes";
        refuse_duplicates(PATH, statement)?;
        let (mut filter, mut multi, mut hint) = (None, None, None);
        for field in fields(PATH, statement) {
            match field.name() {
                "q" => filter = field.optional_doc()?,
                "limit" => multi = Some(is_unlimited(field.value())?),
                "hint" => match field.value() {
                    ValueRef::String(_) | ValueRef::Document(_) => {
                        hint = Some(field.value().to_owned());
                    }
                    _ => {
                        return Err(Error::new(
                            Code::FAILED_TO_PARSE,
                            "Hint must be a string or an object",
                        ));
                    }
                },
                "collation" => {
                    if let Some(collation) = field.optional_doc()? {
                        super::refuse_collation(collation)?;
                    }
                }
                _ => return Err(field.unknown()),
            }
        }
        Ok(Self {
            filter: filter.ok_or_else(|| missing(PATH, "q"))?,
            multi: multi.ok_or_else(|| missing(PATH, "limit"))?,
            hint,
        })
    }

    async fn run(
        &self,
        invocation: &Invocation<'_>,
        namespace: &Namespace,
        context: QueryContext,
        id: i32,
        (part, together): (Option<&Part>, Option<&Together>),
    ) -> Result<Outcome, Error> {
        let selection = Selection::parse(self.filter, self.hint.clone(), context)?;
        Modification {
            invocation,
            namespace,
            selection: &selection,
            action: &Action::Delete,
            multi: self.multi,
            upsert: false,
            images: None,
            statement: id,
            part,
            together,
        }
        .run()
        .await
    }
}

/// Whether a limit means all documents: 0 does, 1 does not. What is no number
/// counts as 0, as with the real server.
fn is_unlimited(limit: ValueRef<'_>) -> Result<bool, Error> {
    let Some(number) = Number::of(limit) else {
        return Ok(true);
    };
    match number.to_i64_exact() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => Err(Error::new(
            Code::FAILED_TO_PARSE,
            format!(
                "The limit field in delete objects must be 0 or 1. Got {}",
                number.to_f64()
            ),
        )),
    }
}
