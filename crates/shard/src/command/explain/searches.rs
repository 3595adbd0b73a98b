//! The searches that commands begin with: the same arguments, the same errors.

use super::{Change, Explained, Purpose};
use crate::command::arguments::{arguments, missing};
use crate::command::count::CountCommand;
use crate::command::distinct::DistinctCommand;
use crate::command::find::{FindCommand, sort_pattern};
use crate::command::{Invocation, delete, envelope, find_and_modify, let_variables, update};
use crate::read::Query;
use model::bson::{Doc, ValueRef};
use model::{Code, Error, Namespace};
use query::filter::Filter;
use query::update::Update;

pub(super) fn namespace_of(
    invocation: &Invocation<'_>,
    command: Doc<'_>,
) -> Result<Namespace, Error> {
    match command.first().map(|first| first.value()) {
        Some(ValueRef::String(name)) => Namespace::new(invocation.request.database(), name),
        Some(other) => Err(Error::bad_value(format!(
            "collection name has invalid type {}",
            other.kind().name()
        ))),
        None => Err(Error::bad_value("the command is empty")),
    }
}

/// The fields that any command may carry, in one that is explained: a time limit, and the database.
pub(super) fn check_envelope(invocation: &Invocation<'_>, command: Doc<'_>) -> Result<(), Error> {
    let name = command.first().map_or("", |first| first.key());
    let expected = invocation.request.database();
    match command.get("$db") {
        Some(ValueRef::String(named)) if named != expected => {
            return Err(Error::new(
                Code::INVALID_NAMESPACE,
                format!("Mismatched $db in explain command. Expected {expected} but got {named}"),
            ));
        }
        _ => {}
    }
    match command.get("maxTimeMS") {
        Some(limit) if matches!(name, "find" | "count" | "distinct" | "aggregate") => {
            envelope::time_limit(name, limit).map(|_| ())
        }
        _ => Ok(()),
    }
}

impl Explained {
    pub(super) fn find(invocation: &Invocation<'_>, command: Doc<'_>) -> Result<Self, Error> {
        let parsed = FindCommand::parse(invocation, command)?;
        let namespace = namespace_of(invocation, command)?;
        parsed.check_tailable(invocation.shard.readable(&namespace).as_deref())?;
        let projection = parsed
            .projection_spec
            .filter(|spec| !spec.as_doc().is_empty())
            .map(|spec| {
                (
                    spec,
                    parsed.projection.as_ref().is_some_and(|p| p.is_simple()),
                )
            });
        Ok(Self {
            namespace,
            query: parsed.query,
            purpose: Purpose::Find { projection },
        })
    }

    pub(super) fn count(invocation: &Invocation<'_>, command: Doc<'_>) -> Result<Self, Error> {
        let parsed = CountCommand::parse(invocation, command)?;
        let fast = parsed.is_fast();
        Ok(Self {
            namespace: parsed.namespace,
            query: parsed.query,
            purpose: Purpose::Count { fast },
        })
    }

    pub(super) fn distinct(invocation: &Invocation<'_>, command: Doc<'_>) -> Result<Self, Error> {
        let parsed = DistinctCommand::parse(invocation, command)?;
        Ok(Self {
            namespace: namespace_of(invocation, command)?,
            query: parsed.query,
            purpose: Purpose::Distinct { path: parsed.path },
        })
    }

    /// The one statement of an `update` or `delete`.
    pub(super) fn write(
        invocation: &Invocation<'_>,
        command: Doc<'_>,
        name: &str,
    ) -> Result<Self, Error> {
        let list = match name {
            "update" => "updates",
            _ => "deletes",
        };
        let namespace = namespace_of(invocation, command)?;
        for argument in arguments(name, command) {
            match argument.name() {
                "ordered" | "stmtId" | "stmtIds" | "let" => {}
                "bypassDocumentValidation" => {}
                known if known == list => {}
                _ => return Err(argument.unknown()),
            }
        }
        let statements = match command.get(list) {
            Some(ValueRef::Array(statements)) => statements,
            _ => return Err(missing(name, list)),
        };
        let mut statements = statements.iter();
        let (Some(ValueRef::Document(statement)), None) = (statements.next(), statements.next())
        else {
            return Err(Error::new(
                Code::INVALID_LENGTH,
                "explained write batches must be of size 1",
            ));
        };
        let mut context = let_variables(invocation, command.get_doc("let"))?;
        let (filter, wanted_hint, purpose) = match name {
            "update" => {
                let statement = update::Statement::parse(statement)?;
                for element in statement.constants.iter().flat_map(|c| c.iter()) {
                    let value = element.value().to_owned();
                    context.variables.push((element.key().to_owned(), value));
                }
                let change = Change {
                    update: Update::parse(statement.change, statement.array_filters, &context)?,
                    context: context.clone(),
                };
                let purpose = Purpose::Update {
                    multi: statement.multi,
                    upsert: statement.upsert,
                    change,
                };
                (statement.filter, statement.hint, purpose)
            }
            _ => {
                let statement = delete::Statement::parse(statement)?;
                let multi = statement.multi;
                (statement.filter, statement.hint, Purpose::Delete { multi })
            }
        };
        let mut query = Query::new(Filter::parse(filter, &context)?.optimized());
        query.hint = wanted_hint;
        if let Purpose::Update { multi: false, .. } | Purpose::Delete { multi: false } = purpose {
            query.limit = Some(1);
        }
        Ok(Self {
            namespace,
            query,
            purpose,
        })
    }

    pub(super) fn find_and_modify(
        invocation: &Invocation<'_>,
        command: Doc<'_>,
    ) -> Result<Self, Error> {
        let namespace = namespace_of(invocation, command)?;
        let parsed = find_and_modify::parse(command)?;
        let context = let_variables(invocation, parsed.variables)?;
        let filter = Filter::parse(parsed.query.unwrap_or(Doc::EMPTY), &context)?;
        let mut query = Query::new(filter.optimized());
        query.limit = Some(1);
        query.hint = parsed.hint;
        if let Some(sort) = parsed.sort {
            query.sort = sort_pattern(sort, &mut query.hint)?;
        }
        let change = match parsed.update {
            Some(change) => Some(Change {
                update: Update::parse(change, parsed.array_filters, &context)?,
                context,
            }),
            None => None,
        };
        let purpose = Purpose::FindAndModify {
            change,
            upsert: parsed.upsert,
            fields: parsed
                .fields
                .filter(|fields| !fields.is_empty())
                .map(Doc::to_owned),
        };
        Ok(Self {
            namespace,
            query,
            purpose,
        })
    }
}

/// The error for a command that is never explained. Its arguments are looked at
/// first, as far as they are needed to know what it is.
pub(super) fn not_explained(invocation: &Invocation<'_>, command: Doc<'_>, name: &str) -> Error {
    match check_arguments(invocation, command, name) {
        Ok(()) => Error::new(
            Code::ILLEGAL_OPERATION,
            format!("Cannot explain cmd: {name}"),
        ),
        Err(error) => error,
    }
}

fn check_arguments(invocation: &Invocation<'_>, command: Doc<'_>, name: &str) -> Result<(), Error> {
    let required = match name {
        "insert" => "documents",
        "getMore" => "collection",
        "createIndexes" => "indexes",
        "killCursors" => "cursors",
        _ => return Ok(()),
    };
    let Some(value) = command.get(required) else {
        return Err(missing(name, required));
    };
    match name {
        "insert" => {
            namespace_of(invocation, command)?;
            for argument in arguments(name, command) {
                match argument.name() {
                    "documents" if argument.array()?.is_empty() => {
                        return Err(Error::new(
                            Code::INVALID_LENGTH,
                            "Write batch sizes must be between 1 and 100000. Got 0 operations.",
                        ));
                    }
                    "documents" | "ordered" | "bypassDocumentValidation" | "stmtId" | "stmtIds" => {
                    }
                    _ => return Err(argument.unknown()),
                }
            }
            Ok(())
        }
        "getMore" => match command.first().map(|first| first.value()) {
            Some(ValueRef::Int64(_)) if matches!(value, ValueRef::String(_)) => Ok(()),
            first => Err(Error::new(
                Code::TYPE_MISMATCH,
                format!(
                    "BSON field 'getMore.getMore' is the wrong type '{}', expected type 'long'",
                    first.map_or("missing", |first| first.kind().name())
                ),
            )),
        },
        _ => Ok(()),
    }
}
