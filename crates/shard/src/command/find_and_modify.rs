//! `findAndModify`: changes one document and returns it as it was or as it is.

use super::arguments::arguments;
use super::modify::{Action, Modification, Outcome, Selection};
use super::statement_ids::StatementIdArguments;
use super::{Answer, Invocation, finish, let_variables};
use crate::session::{Effect, Image, ImageKind, Retryable, incompatible, is_to_be_looked_up_again};
use model::bson::{Array, Doc, DocBuf, DocWriter, Value, ValueRef};
use model::{Code, Error};
use query::projection::Projection;
use query::sort::SortPattern;
use query::update::Update;
use wire::Reply;

/// The command's arguments.
#[derive(Default)]
pub(super) struct Arguments<'a> {
    pub(super) query: Option<Doc<'a>>,
    pub(super) sort: Option<Doc<'a>>,
    pub(super) fields: Option<Doc<'a>>,
    pub(super) update: Option<ValueRef<'a>>,
    pub(super) array_filters: Option<Array<'a>>,
    pub(super) variables: Option<Doc<'a>>,
    pub(super) hint: Option<Value>,
    pub(super) remove: bool,
    pub(super) new: bool,
    pub(super) upsert: bool,
    pub(super) ids: StatementIdArguments,
}

pub(super) fn parse(body: Doc<'_>) -> Result<Arguments<'_>, Error> {
    let mut parsed = Arguments::default();
    for argument in arguments("findAndModify", body) {
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
            // Left over from commands that a driver builds alike.
            "batchSize" | "singleBatch" => {}
            "bypassDocumentValidation" => {
                argument.loose_boolean()?;
            }
            "stmtId" => parsed.ids.first(&argument)?,
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
    if parsed.array_filters.is_some() && matches!(parsed.update, Some(ValueRef::Array(_))) {
        return refuse("Cannot specify arrayFilters and a pipeline update");
    }
    Ok(parsed)
}

pub(crate) async fn find_and_modify(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.plain_namespace()?;
    let mut parsed = parse(invocation.request.body())?;
    let statement = std::mem::take(&mut parsed.ids).of_batch(1)?.of(0);
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
    let mut selection = Selection::parse(filter, parsed.hint.clone(), context.clone())?;
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
    if parsed.upsert {
        query::filter::refuse_expression_in_upsert(filter)?;
    }
    if let Some(sort) = parsed.sort.filter(|sort| !sort.is_empty()) {
        selection.sort = Some(SortPattern::parse(sort)?);
    }
    let modification = Modification {
        invocation,
        namespace: &namespace,
        selection: &selection,
        action: &action,
        multi: false,
        upsert: parsed.upsert,
        images: Some(match parsed.new {
            true => ImageKind::After,
            false => ImageKind::Before,
        }),
        statement,
        part: None,
        together: None,
    };
    let outcome = loop {
        if let Some(retryable) = &invocation.retryable
            && let Some(effect) = retryable.executed(statement)?
        {
            let retried = Retried::find(invocation, retryable, statement, &effect, &parsed)?;
            return retried.reply(statement, projection.as_ref());
        }
        match modification.run().await {
            Err(error) if is_to_be_looked_up_again(&error) => {}
            outcome => break outcome?,
        }
    };
    if outcome.modified == 0 && outcome.upserted.is_none() {
        let concern = invocation.envelope.write_concern;
        Box::pin(invocation.shard.sync_what_was_found(concern)).await?;
    }
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
    append_value(&mut writer, value, projection)?;
    finish(writer)
}

fn append_value(
    writer: &mut DocWriter,
    value: Option<&DocBuf>,
    projection: Option<&Projection>,
) -> Result<(), Error> {
    match (value, projection) {
        (None, _) => writer.append("value", ValueRef::Null),
        (Some(document), None) => writer.append("value", document),
        (Some(document), Some(projection)) => {
            writer.append("value", &projection.apply(document.as_doc())?)
        }
    };
    Ok(())
}

/// What the command answered when it was executed before.
struct Retried {
    /// `None` for a removal.
    updated_existing: Option<bool>,
    /// `{_id}` of a new document.
    upserted: Option<DocBuf>,
    value: Option<DocBuf>,
}

impl Retried {
    fn find(
        invocation: &Invocation<'_>,
        retryable: &Retryable,
        statement: i32,
        effect: &Effect,
        parsed: &Arguments<'_>,
    ) -> Result<Self, Error> {
        const NAME: &str = "findAndModify";
        let image = || {
            let image = invocation.shard.stored_image(retryable, statement);
            image.map(|Image { document, .. }| Some(document))
        };
        match effect {
            Effect::DeletedWithImage if parsed.remove => Ok(Self {
                updated_existing: None,
                upserted: None,
                value: image()?,
            }),
            Effect::Deleted if parsed.remove => Err(Error::location(
                40607,
                "No pre-image available for findAndModify retry request",
            )),
            Effect::Deleted | Effect::DeletedWithImage => Err(incompatible(40606, NAME, effect)),
            Effect::UpdatedWithImage(_) => Ok(Self {
                updated_existing: Some(true),
                upserted: None,
                value: image()?,
            }),
            Effect::Updated if parsed.new => Err(Error::location(
                40611,
                "findAndModify retry request wants the document after update returned, but only \
                 before update document is stored",
            )),
            Effect::Updated => Err(Error::location(
                40612,
                "findAndModify retry request wants the document before update returned, but only \
                 after update document is stored",
            )),
            Effect::Upserted(id) | Effect::UpsertedWithImage(id) if parsed.upsert => Ok(Self {
                updated_existing: Some(false),
                upserted: Some(id.clone()),
                value: if parsed.new { image()? } else { None },
            }),
            Effect::Inserted | Effect::Upserted(_) | Effect::UpsertedWithImage(_) => {
                Err(incompatible(40608, NAME, effect))
            }
        }
    }

    /// Unlike MongoDB's, it has the shape that was asked for: theirs ignores
    /// `fields` when it answers a retry.
    fn reply(&self, statement: i32, projection: Option<&Projection>) -> Answer {
        let mut last_error = DocWriter::new();
        last_error.append("n", 1);
        if let Some(updated_existing) = self.updated_existing {
            last_error.append("updatedExisting", updated_existing);
        }
        if let Some(id) = self.upserted.as_ref().and_then(|doc| doc.get("_id")) {
            last_error.append("upserted", id);
        }
        let mut writer = Reply::writer();
        writer.append("lastErrorObject", &last_error.finish());
        append_value(&mut writer, self.value.as_ref(), projection)?;
        writer.append("retriedStmtId", statement);
        finish(writer)
    }
}
