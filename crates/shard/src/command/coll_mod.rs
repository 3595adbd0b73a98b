//! `collMod`: changes options of an index, and whether change streams see images.
//! Other options of a collection are refused by name, except where they ask for
//! what already holds.

use super::arguments::{Argument, arguments, fields};
use super::create::{unsupported, wants_images};
use super::indexes::same_pattern;
use super::{Answer, Invocation, finish};
use crate::catalog::{Collection, Index};
use crate::ddl::Redefine;
use crate::oplog::Commands;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::number::Number;
use model::text::document_quoted;
use model::{Code, Error};
use std::sync::Arc;
use wire::Reply;

/// What is to become of one index.
#[derive(Default)]
struct IndexChange<'a> {
    name: Option<&'a str>,
    pattern: Option<Doc<'a>>,
    expire_after_seconds: Option<i64>,
    hidden: Option<bool>,
    unique: Option<bool>,
    prepare_unique: Option<bool>,
}

pub(crate) async fn coll_mod(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.namespace()?;
    let mut change = None;
    let mut images = None;
    let mut dry_run = false;
    let mut refused = None;
    let mut given = DocWriter::new();
    for argument in arguments("collMod", invocation.request.body()) {
        given.append_element(&argument.element());
        match argument.name() {
            "index" => change = Some(IndexChange::parse(&argument)?),
            "dryRun" => dry_run = argument.loose_boolean()?,
            "changeStreamPreAndPostImages" => {
                images = Some(wants_images("collMod", &argument)?);
            }
            _ => {
                if let Err(error) = check_other(&argument) {
                    refused.get_or_insert(error);
                }
            }
        }
    }
    // A field that does not exist is reported before a missing collection.
    if let Some(error) = refused.take_if(|error| error.code == Code(40415)) {
        return Err(error);
    }
    let shard = invocation.shard;
    let _ddl = shard
        .ddl_in(&[namespace.database()], Some(invocation.operation))
        .await?;
    invocation.check_database_route()?;
    let Some(collection) = shard.catalog.get(&namespace) else {
        return Err(Error::new(Code::NAMESPACE_NOT_FOUND, "ns does not exist"));
    };
    if let Some(error) = refused {
        return Err(error);
    }
    let mut writer = Reply::writer();
    let given = given.finish();
    let options = images.map(|images| with_images(collection.options.as_doc(), images));
    match &change {
        None if dry_run => {
            return Err(invalid(
                "dry run mode requires an valid index modification.",
            ));
        }
        None => {
            let command = Commands::new().modify(&collection, given.as_doc(), None);
            shard
                .modify_collection(&collection, command, options, None)
                .await?;
        }
        Some(change) => {
            let index = change.resolve(&collection)?;
            if dry_run && change.unique != Some(true) {
                return Err(invalid(
                    "dry run mode requires an index modification with unique: true.",
                ));
            }
            change.describe(&index, &mut writer);
            let redefine = |definition: &query::index::IndexDefinition| {
                let mut definition = definition.clone();
                if let Some(hidden) = change.hidden {
                    let value = hidden.then_some(ValueRef::Boolean(true));
                    definition = definition.with_option("hidden", value)?;
                }
                if let Some(seconds) = change.expire_after_seconds {
                    let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
                    let value = Some(ValueRef::Int32(seconds));
                    definition = definition.with_option("expireAfterSeconds", value)?;
                }
                Ok(definition)
            };
            let old = change.old_options(&index);
            let command = Commands::new().modify(&collection, given.as_doc(), Some(old.as_doc()));
            let redefine = Some((index.definition.name.as_str(), &redefine as &Redefine<'_>));
            shard
                .modify_collection(&collection, command, options, redefine)
                .await?;
        }
    }
    finish(writer)
}

/// Options with the images that change streams see switched on or off.
fn with_images(options: Doc<'_>, images: bool) -> DocBuf {
    const NAME: &str = "changeStreamPreAndPostImages";
    let mut changed = DocWriter::new();
    for option in options.iter().filter(|option| option.key() != NAME) {
        changed.append_element(&option);
    }
    if images {
        changed.begin_document(NAME).append("enabled", true).end();
    }
    changed.finish()
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(Code::INVALID_OPTIONS, message)
}

/// Options besides `index`.
fn check_other(argument: &Argument<'_>) -> Result<(), Error> {
    match argument.name() {
        "validator" if argument.doc()?.is_empty() => Ok(()),
        "validator" | "validationLevel" | "validationAction" => Err(unsupported("validators")),
        "viewOn" | "pipeline" => Err(invalid(format!(
            "option only supported on a view: {}",
            argument.name()
        ))),
        "cappedSize" | "cappedMax" => Err(invalid("Collection must be capped.")),
        "expireAfterSeconds" => Err(invalid(
            "'expireAfterSeconds' option is only supported on collections clustered by _id",
        )),
        "timeseries" => Err(invalid(
            "option only supported on a time-series collection: timeseries",
        )),
        "recordPreImages" => match argument.loose_boolean()? {
            false => Ok(()),
            true => Err(unsupported("recorded pre-images")),
        },
        _ => Err(argument.unknown()),
    }
}

impl<'a> IndexChange<'a> {
    fn parse(argument: &Argument<'a>) -> Result<Self, Error> {
        let mut change = Self::default();
        for field in fields("collMod.index", argument.doc()?) {
            if field.value().is_nullish() {
                continue;
            }
            match field.name() {
                "name" => change.name = Some(field.string()?),
                "keyPattern" => change.pattern = Some(field.doc()?),
                "expireAfterSeconds" => change.expire_after_seconds = Some(seconds(&field)?),
                "hidden" => change.hidden = Some(field.loose_boolean()?),
                "unique" => change.unique = Some(field.loose_boolean()?),
                "prepareUnique" => change.prepare_unique = Some(field.loose_boolean()?),
                _ => return Err(field.unknown()),
            }
        }
        Ok(change)
    }

    /// Finds the index and checks whether it can become what is asked.
    fn resolve(&self, collection: &Collection) -> Result<Arc<Index>, Error> {
        if self.expire_after_seconds.is_none()
            && self.hidden.is_none()
            && self.unique.is_none()
            && self.prepare_unique.is_none()
            && (self.name.is_some() || self.pattern.is_some())
        {
            return Err(invalid(
                "no expireAfterSeconds, hidden, unique, or prepareUnique field",
            ));
        }
        let not_found = |what: String| {
            Err(Error::new(
                Code::INDEX_NOT_FOUND,
                format!("cannot find index {what} for ns {}", collection.namespace),
            ))
        };
        let index = match (self.name, self.pattern) {
            (None, None) => {
                return Err(invalid("Must specify either index name or key pattern."));
            }
            (Some(_), Some(_)) => {
                return Err(invalid("Cannot specify both key pattern and name."));
            }
            (Some(name), None) => match collection.index_by_name(name) {
                Some(index) => index,
                None => return not_found(name.to_owned()),
            },
            (None, Some(pattern)) => {
                let mut found = collection
                    .indexes
                    .iter()
                    .filter(|index| same_pattern(index.definition.key_pattern(), pattern));
                match (found.next(), found.next()) {
                    (Some(index), None) => index,
                    (Some(_), Some(_)) => {
                        return Err(Error::new(
                            Code::AMBIGUOUS_INDEX_KEY_PATTERN,
                            format!(
                                "index keyPattern {} matches several indexes, must use index \
                                 name instead",
                                document_quoted(pattern)
                            ),
                        ));
                    }
                    (None, _) => return not_found(document_quoted(pattern)),
                }
            }
        };
        if let Some(seconds) = self.expire_after_seconds {
            if index.definition.is_id() {
                return Err(invalid("the _id field does not support TTL indexes"));
            }
            if index.definition.fields.len() > 1 {
                return Err(invalid(
                    "TTL indexes are single-field indexes, compound indexes do not support TTL",
                ));
            }
            if seconds < 0 {
                return Err(invalid(
                    "TTL index 'expireAfterSeconds' option cannot be less than 0",
                ));
            }
        }
        if self.hidden.is_some() && index.definition.is_id() {
            return Err(Error::bad_value("can't hide _id index"));
        }
        if self.unique == Some(true) && !index.definition.unique {
            return Err(invalid(
                "Cannot make index unique with 'prepareUnique=false'. Run collMod to set it first.",
            ));
        }
        if self.prepare_unique == Some(true) {
            return Err(unsupported("indexes with 'prepareUnique'"));
        }
        Ok(index.clone())
    }

    /// What was, for readers of the log.
    fn old_options(&self, index: &Index) -> DocBuf {
        let mut old = DocWriter::new();
        if let (Some(_), Some(seconds)) = (
            self.expire_after_seconds,
            index.definition.expire_after_seconds,
        ) {
            old.append("expireAfterSeconds", seconds);
        }
        if self
            .hidden
            .is_some_and(|hidden| hidden != index.definition.hidden)
        {
            old.append("hidden", index.definition.hidden);
        }
        old.finish()
    }

    /// The reply's fields: what was, and what is now.
    fn describe(&self, index: &Index, writer: &mut DocWriter) {
        if let Some(new) = self.expire_after_seconds {
            if let Some(old) = index.definition.expire_after_seconds {
                writer.append("expireAfterSeconds_old", old);
            }
            writer.append("expireAfterSeconds_new", new.min(i64::from(i32::MAX)));
        }
        if let Some(hidden) = self.hidden
            && hidden != index.definition.hidden
        {
            writer
                .append("hidden_old", index.definition.hidden)
                .append("hidden_new", hidden);
        }
    }
}

/// Seconds, cut to an integer; what is not a number of seconds is none.
fn seconds(field: &Argument<'_>) -> Result<i64, Error> {
    match Number::of(field.value()).map(Number::to_f64) {
        Some(number) => Ok(number as i64),
        None => Err(field.wrong_type("[long, int, decimal, double]")),
    }
}
