//! `delete`: removes documents, one statement after the other.

use super::arguments::{arguments, fields, missing};
use super::modify::{Action, Modification, Outcome, Selection};
use super::update::is_fatal;
use super::write_reply::{Statements, WriteReply, is_batch_size};
use super::{Answer, Invocation, batch_documents, let_variables};
use model::bson::{Doc, Value, ValueRef};
use model::number::Number;
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
    let statements = statements
        .iter()
        .map(|statement| Statement::parse(*statement))
        .collect::<Result<Vec<_>, Error>>()?;

    let mut outcomes = Statements::new(ordered);
    for (index, statement) in statements.iter().enumerate() {
        if outcomes.is_over() {
            break;
        }
        match statement.run(invocation, &namespace, &context).await {
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

/// One element of `deletes`.
struct Statement<'a> {
    filter: Doc<'a>,
    hint: Option<Value>,
    multi: bool,
}

impl<'a> Statement<'a> {
    fn parse(statement: Doc<'a>) -> Result<Self, Error> {
        let (mut filter, mut limit, mut hint) = (None, None, None);
        for field in fields("delete.deletes", statement) {
            match field.name() {
                "q" => filter = Some(field.doc()?),
                "limit" => limit = Some(field.value()),
                "hint" => hint = Some(field.value().to_owned()),
                "collation" => super::refuse_collation(field.doc()?)?,
                "sampleId" => {}
                _ => return Err(field.unknown()),
            }
        }
        let limit = limit.ok_or_else(|| missing("delete.deletes", "limit"))?;
        Ok(Self {
            filter: filter.ok_or_else(|| missing("delete.deletes", "q"))?,
            hint,
            multi: is_unlimited(limit)?,
        })
    }

    async fn run(
        &self,
        invocation: &Invocation<'_>,
        namespace: &Namespace,
        context: &QueryContext,
    ) -> Result<Outcome, Error> {
        let selection = Selection::parse(self.filter, self.hint.clone(), context.clone())?;
        Modification {
            invocation,
            namespace,
            selection: &selection,
            action: &Action::Delete,
            multi: self.multi,
            upsert: false,
            images: false,
        }
        .run()
        .await
    }
}

/// Zero is no limit. What is no number counts as zero, as MongoDB reads it.
fn is_unlimited(limit: ValueRef<'_>) -> Result<bool, Error> {
    match Number::of(limit).map_or(0.0, Number::to_f64) {
        0.0 => Ok(true),
        1.0 => Ok(false),
        other => Err(Error::new(
            Code::FAILED_TO_PARSE,
            format!("The limit field in delete objects must be 0 or 1. Got {other}"),
        )),
    }
}
