//! `count`: how many documents match.
//!
//! Without a filter and a hint the collection's counter answers, which is exact.

use super::arguments::arguments;
use super::find::{hint, read_time};
use super::{Answer, Invocation, check_plain, finish, refuse_collation};
use crate::operation::Operation;
use crate::read::{Budget, Execution, Query, ScanPart, Step};
use model::bson::{Doc, DocWriter, Kind, Value, ValueRef};
use model::number::Number;
use model::{Code, Error, Namespace};
use query::filter::Filter;
use wire::Reply;

/// A parsed `count`.
pub(crate) struct CountCommand {
    pub(crate) namespace: Namespace,
    pub(crate) query: Query,
}

impl CountCommand {
    pub(crate) fn parse(invocation: &Invocation<'_>, body: Doc<'_>) -> Result<Self, Error> {
        let namespace = match body.first().map(|first| first.value()) {
            Some(ValueRef::String(name)) => Namespace::new(invocation.request.database(), name)?,
            other => {
                return Err(Error::new(
                    Code::INVALID_NAMESPACE,
                    format!(
                        "collection name has invalid type {}",
                        other.map_or("missing", |value| value.kind().name())
                    ),
                ));
            }
        };
        let mut filter = None;
        let mut wanted_hint: Option<Value> = None;
        let (mut skip, mut limit) = (0, None);
        for argument in arguments("count", body) {
            match argument.name() {
                "query" => filter = argument.optional_doc()?,
                "hint" => wanted_hint = hint(&argument)?,
                "limit" => limit = count_limit(argument.value())?,
                "skip" => {
                    if !matches!(argument.element().kind(), Kind::Null | Kind::Undefined) {
                        skip = argument.non_negative()? as u64;
                    }
                }
                "collation" => {
                    if let Some(collation) = argument.optional_doc()? {
                        refuse_collation(collation)?;
                    }
                }
                "fields" | "queryOptions" | "mirrored" => {}
                _ => return Err(argument.unknown()),
            }
        }
        let context = invocation.context();
        let filter = Filter::parse(filter.unwrap_or(Doc::EMPTY), &context)?.optimized();
        let mut query = Query::new(filter);
        query.hint = wanted_hint;
        query.skip = skip;
        query.limit = limit;
        query.needed = Some(Vec::new());
        query.at = read_time(invocation);
        query.part = ScanPart::read(body)?;
        query.sees_orphans = invocation.envelope.sees_orphans;
        Ok(Self { namespace, query })
    }

    /// Whether the collection's counter is the answer.
    pub(crate) fn is_fast(&self) -> bool {
        self.query.filter.is_everything() && self.query.hint.is_none() && self.query.at.is_none()
    }
}

/// A negative limit means the same as a positive one.
fn count_limit(value: ValueRef<'_>) -> Result<Option<u64>, Error> {
    let Some(number) = Number::of(value) else {
        return Err(Error::bad_value("limit value is not a valid number"));
    };
    let Some(limit) = number.to_i64_exact() else {
        return Err(Error::new(
            Code::FAILED_TO_PARSE,
            format!("Expected an integer: limit: {value:?}"),
        ));
    };
    if limit == i64::MIN {
        return Err(Error::bad_value("limit value for count cannot be min long"));
    }
    Ok(Some(limit.unsigned_abs()).filter(|limit| *limit > 0))
}

pub(crate) fn count(invocation: &Invocation<'_>) -> Answer {
    let command = CountCommand::parse(invocation, invocation.request.body())?;
    check_plain(&command.namespace)?;
    let shard = invocation.shard;
    let collection = shard.readable(&command.namespace);
    let part = command
        .query
        .part
        .clone()
        .filter(|part| part.is_restricted());
    if let Some(part) = &part
        && part.is_elsewhere(collection.as_deref())
    {
        let mut writer = Reply::writer().with("n", 0);
        part.append_elsewhere(&mut writer);
        return finish(writer);
    }
    let known = match collection.as_deref() {
        Some(collection)
            if command.is_fast() && part.is_none() && !collection.may_hold_orphans() =>
        {
            match &collection.made {
                Some(made) => made.count(shard),
                None => {
                    let items = shard.store.collection_counter(collection.id).items;
                    if !command.query.sees_orphans {
                        shard.check_read_with(collection)?;
                    }
                    Some(items)
                }
            }
        }
        _ => None,
    };
    let mut told = DocWriter::new();
    let counted = match (collection, known) {
        (None, _) => 0,
        (Some(_), Some(all)) => {
            let behind = all.saturating_sub(command.query.skip);
            behind.min(command.query.limit.unwrap_or(u64::MAX))
        }
        (Some(collection), None) => {
            let mut execution =
                Execution::new(shard, &collection, command.query, invocation.operation)?;
            let counted = count_all(&mut execution, invocation.operation)?;
            execution.append_part(&mut told, None, &[]);
            counted
        }
    };
    let mut writer = Reply::writer();
    match i32::try_from(counted) {
        Ok(small) => writer.append("n", small),
        Err(_) => writer.append("n", counted as i64),
    };
    for element in told.finish().iter() {
        writer.append_element(&element);
    }
    finish(writer)
}

/// Runs an execution to its end and counts what it yields.
pub(crate) fn count_all(execution: &mut Execution, operation: &Operation) -> Result<u64, Error> {
    const STEPS_INLINE: u64 = 512;
    let mut counted = 0;
    let mut run = |budget: &mut Budget| loop {
        match execution.next(operation, budget)? {
            Step::Found(_) => counted += 1,
            Step::Paused => return Ok(false),
            Step::Ended => return Ok::<bool, Error>(true),
        }
    };
    if !run(&mut Budget::of(STEPS_INLINE))? {
        tokio::task::block_in_place(|| run(&mut Budget::unlimited()))?;
    }
    Ok(counted)
}
