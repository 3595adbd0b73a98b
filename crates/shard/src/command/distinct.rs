//! `distinct`: the different values of a field among matching documents.
//!
//! Values come in BSON order, each once by BSON equality and as it was first
//! seen; arrays at the end of the path give their elements.
//! An index that begins with the field names its values by itself.

use super::arguments::{arguments, missing};
use super::find::read_time;
use super::{Answer, Invocation, check_plain, finish, refuse_collation};
use crate::operation::Operation;
use crate::read::{Budget, DistinctScan, Execution, Query, ScanPart, Step};
use model::bson::{Doc, DocBuf, DocWriter, Value, ValueRef};
use model::key::{Direction, TypeBits, encode_into};
use model::{Code, Error};
use query::filter::Filter;
use query::path::{Path, visit_values};
use std::collections::BTreeMap;
use wire::Reply;

/// What the values may weigh together.
const REPLY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A parsed `distinct`.
pub(crate) struct DistinctCommand {
    pub(crate) query: Query,
    pub(crate) path: Path,
}

impl DistinctCommand {
    pub(crate) fn parse(invocation: &Invocation<'_>, body: Doc<'_>) -> Result<Self, Error> {
        let mut key = None;
        let mut filter = None;
        for argument in arguments("distinct", body) {
            match argument.name() {
                "key" if argument.is_null() => {}
                "key" => key = Some(argument.string()?),
                "query" => filter = argument.optional_doc()?,
                "collation" => {
                    if let Some(collation) = argument.optional_doc()? {
                        refuse_collation(collation)?;
                    }
                }
                _ => return Err(argument.unknown()),
            }
        }
        let key = key.ok_or_else(|| missing("distinct", "key"))?;
        if key.contains('\0') {
            return Err(Error::location(
                31032,
                "Key field cannot contain an embedded null byte",
            ));
        }
        // A sort over the field has the same rules for paths.
        let as_sort: DocBuf = DocWriter::new().with(key, 1).finish();
        query::sort::SortPattern::parse(as_sort.as_doc())?;
        let context = invocation.context();
        let filter = Filter::parse(filter.unwrap_or(Doc::EMPTY), &context)?.optimized();
        let mut query = Query::new(filter);
        query.at = read_time(invocation);
        query.part = ScanPart::read(body)?;
        query.sees_orphans = invocation.envelope.sees_orphans;
        Ok(Self {
            query,
            path: Path::new(key),
        })
    }
}

pub(crate) fn distinct(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.namespace_of_check()?;
    check_plain(&namespace)?;
    let command = DistinctCommand::parse(invocation, invocation.request.body())?;
    let mut values = Values {
        found: BTreeMap::new(),
        bytes: 0,
        path: &command.path,
    };
    let at = command.query.at;
    let collection = invocation.shard.readable(&namespace);
    let part = command
        .query
        .part
        .clone()
        .filter(|part| part.is_restricted());
    if let Some(part) = &part
        && part.is_elsewhere(collection.as_deref())
    {
        let mut writer = Reply::writer();
        writer.begin_array("values").end();
        part.append_elsewhere(&mut writer);
        return finish(writer);
    }
    let mut told = DocWriter::new();
    let by_index = collection
        .as_ref()
        .filter(|_| part.is_none())
        .and_then(|collection| DistinctScan::find(collection, &command.query, &command.path));
    if let Some(scan) = by_index {
        tokio::task::block_in_place(|| {
            scan.run(
                invocation.shard,
                invocation.operation,
                |value| match value {
                    Value::Array(array) => array.iter().try_for_each(|value| values.insert(value)),
                    value => values.insert(value.as_ref()),
                },
            )
        })?;
        if let Some(collection) = &collection {
            invocation.shard.check_read_with(collection)?;
        }
    } else if let Some(collection) = collection {
        let operation = invocation.operation;
        let mut execution =
            Execution::new(invocation.shard, &collection, command.query, operation)?;
        const STEPS_INLINE: u64 = 512;
        if !values.collect(&mut execution, operation, &mut Budget::of(STEPS_INLINE))? {
            tokio::task::block_in_place(|| {
                values.collect(&mut execution, operation, &mut Budget::unlimited())
            })?;
        }
        execution.append_part(&mut told, None, &[]);
    }
    let mut writer = Reply::writer_with_capacity(values.bytes + 64);
    writer.begin_array("values");
    for value in values.found.values() {
        writer.push(value);
    }
    writer.end();
    if let Some(time) = at {
        writer.append("atClusterTime", time);
    }
    for element in told.finish().iter() {
        writer.append_element(&element);
    }
    finish(writer)
}

struct Values<'p> {
    /// By their encoding, so that equal values of different types are one.
    found: BTreeMap<Vec<u8>, Value>,
    bytes: usize,
    path: &'p Path,
}

impl Values<'_> {
    /// False if the budget ended first.
    fn collect(
        &mut self,
        execution: &mut Execution,
        operation: &Operation,
        budget: &mut Budget,
    ) -> Result<bool, Error> {
        loop {
            match execution.next(operation, budget)? {
                Step::Found(found) => self.add(found.document())?,
                Step::Paused => return Ok(false),
                Step::Ended => return Ok(true),
            }
        }
    }

    fn add(&mut self, document: Doc<'_>) -> Result<(), Error> {
        let mut found: Vec<ValueRef<'_>> = Vec::new();
        visit_values(document, self.path.components(), &mut |value| {
            found.push(value);
        });
        found.into_iter().try_for_each(|value| self.insert(value))
    }

    fn insert(&mut self, value: ValueRef<'_>) -> Result<(), Error> {
        let mut key = Vec::new();
        encode_into(&mut key, &mut TypeBits::new(), value, Direction::Ascending);
        if self.found.contains_key(&key) {
            return Ok(());
        }
        // An encoding is about as long as the value, and its name is short.
        self.bytes += key.len() + 8;
        self.found.insert(key, value.to_owned());
        if self.bytes > REPLY_BYTES_MAX {
            return Err(Error::new(Code(17217), "distinct too big, 16mb cap"));
        }
        Ok(())
    }
}
