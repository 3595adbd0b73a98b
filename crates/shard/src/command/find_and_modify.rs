//! `findAndModify`: changes one document and returns it as it was or as it is.

use super::arguments::arguments;
use super::modify::{Action, Modification, Outcome, Selection};
use super::{Answer, Invocation, finish, let_variables};
use model::bson::{Array, Doc, DocWriter, Value, ValueRef};
use model::{Code, Error};
use query::projection::Projection;
use query::sort::SortPattern;
use query::update::Update;
use wire::Reply;

/// The command's arguments.
#[derive(Default)]
struct Arguments<'a> {
    query: Option<Doc<'a>>,
    sort: Option<Doc<'a>>,
    fields: Option<Doc<'a>>,
    update: Option<ValueRef<'a>>,
    array_filters: Option<Array<'a>>,
    variables: Option<Doc<'a>>,
    hint: Option<Value>,
    remove: bool,
    new: bool,
    upsert: bool,
}

fn parse<'a>(invocation: &'a Invocation<'_>) -> Result<Arguments<'a>, Error> {
    let mut parsed = Arguments::default();
    for argument in arguments("findAndModify", invocation.request.body()) {
        match argument.name() {
            "query" => parsed.query = argument.optional_doc()?,
            "sort" => parsed.sort = argument.optional_doc()?,
            "fields" => parsed.fields = argument.optional_doc()?,
            "update" => parsed.update = Some(argument.value()),
            "arrayFilters" => parsed.array_filters = Some(argument.array()?),
            "let" => parsed.variables = argument.optional_doc()?,
            "hint" => parsed.hint = Some(argument.value().to_owned()),
            "remove" => parsed.remove = argument.loose_boolean()?,
            "new" => parsed.new = argument.loose_boolean()?,
            "upsert" => parsed.upsert = argument.loose_boolean()?,
            "bypassDocumentValidation" => {
                argument.loose_boolean()?;
            }
            "collation" => super::refuse_collation(argument.doc()?)?,
            _ => return Err(argument.unknown()),
        }
    }
    let refuse = |message: &str| Err(Error::new(Code::FAILED_TO_PARSE, message));
    if parsed.remove {
        if parsed.update.is_some() {
            return refuse("Cannot specify both an update and remove=true");
        }
        if parsed.upsert {
            return refuse("Cannot specify both upsert=true and remove=true ");
        }
        if parsed.array_filters.is_some() {
            return refuse("Cannot specify arrayFilters and remove=true");
        }
        if parsed.new {
            return refuse(
                "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document",
            );
        }
    } else if parsed.update.is_none() {
        return refuse("Either an update or remove=true must be specified");
    }
    Ok(parsed)
}

pub(crate) async fn find_and_modify(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.namespace()?;
    let parsed = parse(invocation)?;
    let context = let_variables(invocation, parsed.variables)?;
    let action = match parsed.update {
        None => Action::Delete,
        Some(update) => Action::Update(Box::new(Update::parse(
            update,
            parsed.array_filters,
            &context,
        )?)),
    };
    let filter = parsed.query.unwrap_or(Doc::EMPTY);
    let projection = match parsed.fields {
        Some(fields) if !fields.is_empty() => {
            Some(Projection::parse(fields, Some(filter), &context)?)
        }
        _ => None,
    };
    if parsed.new && projection.as_ref().is_some_and(Projection::uses_position) {
        return Err(Error::bad_value(
            "cannot use a positional projection and return the new document",
        ));
    }
    let mut selection = Selection::parse(filter, parsed.hint.clone(), context)?;
    if parsed.upsert {
        query::filter::refuse_expression_in_upsert(filter)?;
    }
    if let Some(sort) = parsed.sort.filter(|sort| !sort.is_empty()) {
        selection.sort = Some(SortPattern::parse(sort)?);
    }
    let outcome = Modification {
        invocation,
        namespace: &namespace,
        selection: &selection,
        action: &action,
        multi: false,
        upsert: parsed.upsert,
        images: true,
    }
    .run()
    .await?;
    reply(&parsed, &outcome, projection.as_ref())
}

fn reply(parsed: &Arguments<'_>, outcome: &Outcome, projection: Option<&Projection>) -> Answer {
    let mut last_error = DocWriter::new();
    let count = outcome.matched + i64::from(outcome.upserted.is_some());
    last_error.append("n", count as i32);
    if !parsed.remove {
        last_error.append("updatedExisting", outcome.matched > 0);
    }
    if let Some(id) = outcome.upserted.as_ref().and_then(|doc| doc.get("_id")) {
        last_error.append("upserted", id);
    }
    let value = match (&outcome.changed, &outcome.upserted) {
        (Some(changed), _) if parsed.new => Some(changed.after.as_ref().unwrap_or(&changed.before)),
        (Some(changed), _) => Some(&changed.before),
        (None, Some(upserted)) if parsed.new => Some(upserted),
        (None, _) => None,
    };
    let mut writer = Reply::writer();
    writer.append("lastErrorObject", &last_error.finish());
    match value {
        None => {
            writer.append("value", ValueRef::Null);
        }
        Some(document) => match projection {
            None => {
                writer.append("value", document);
            }
            Some(projection) => {
                writer.append("value", &projection.apply(document.as_doc())?);
            }
        },
    }
    finish(writer)
}
