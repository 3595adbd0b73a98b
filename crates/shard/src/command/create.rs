//! `create`: makes a collection.
//!
//! Options that change nothing here are accepted and, where MongoDB shows them,
//! kept for `listCollections`. Kinds of collections that are not there yet are
//! refused by name: views, capped, time-series and clustered ones, validators.

use super::arguments::{Argument, arguments, fields, missing};
use super::insert::check_target;
use super::{Answer, Invocation, finish, refuse_collation};
use model::bson::{Doc, DocBuf, DocWriter};
use model::number::Number;
use model::text::document_quoted;
use model::{Code, Error, Namespace};
use wire::Reply;

/// What `create` was asked for.
#[derive(Default)]
struct Options {
    /// As `listCollections` shows them.
    kept: DocWriter,
    note: Option<&'static str>,
}

pub(crate) async fn create(invocation: &Invocation<'_>) -> Answer {
    let namespace = invocation.namespace()?;
    let options = parse(invocation, &namespace)?;
    check_target(&namespace)?;
    let shard = invocation.shard;
    let _ddl = shard
        .ddl_in(&[namespace.database()], Some(invocation.operation))
        .await?;
    invocation.check_database_route()?;
    if shard.catalog.get(&namespace).is_some() {
        return Err(Error::new(
            Code::NAMESPACE_EXISTS,
            format!("Collection {namespace} already exists."),
        ));
    }
    shard
        .create_collection(&namespace, options.kept.finish(), Vec::new())
        .await?;
    let mut writer = Reply::writer();
    if let Some(note) = options.note {
        writer.append("note", note);
    }
    finish(writer)
}

pub(crate) fn unsupported(what: &str) -> Error {
    Error::new(
        Code::COMMAND_NOT_SUPPORTED,
        format!("{what} are not supported yet"),
    )
}

fn parse(invocation: &Invocation<'_>, namespace: &Namespace) -> Result<Options, Error> {
    let mut options = Options::default();
    let mut refused = None;
    // A wrong type anywhere is reported before an option that is not there.
    let mut refuse = |error: Error| refused = refused.take().or(Some(error));
    let (mut capped, mut sized, mut limited) = (false, false, false);
    let (mut view, mut pipeline) = (false, false);
    for argument in arguments("create", invocation.request.body()) {
        if argument.value().is_nullish() {
            check_known(&argument)?;
            continue;
        }
        match argument.name() {
            "capped" => capped = argument.loose_boolean()?,
            "size" => {
                let size = argument.integer()?;
                if size < 1 {
                    return Err(Error::location(
                        51024,
                        format!("BSON field 'size' value must be >= 1, actual value '{size}'"),
                    ));
                }
                sized = true;
            }
            "max" => {
                argument.integer()?;
                limited = true;
            }
            "autoIndexId" => {
                if !argument.loose_boolean()? {
                    refuse(Error::location(
                        50001,
                        format!(
                            "autoIndexId:false is not allowed for collection {namespace} because \
                             it can be replicated"
                        ),
                    ));
                }
                options.kept.append("autoIndexId", true);
                options.note = Some(
                    "The autoIndexId option is deprecated and will be removed in a future release",
                );
            }
            "idIndex" => check_id_index(argument.doc()?)?,
            "collation" => {
                let collation = argument.doc()?;
                if collation.get("locale").is_none() {
                    return Err(missing("create.collation", "locale"));
                }
                if let Err(error) = refuse_collation(collation) {
                    refuse(error);
                }
            }
            "storageEngine" | "indexOptionDefaults" => {
                if !argument.doc()?.is_empty() {
                    refuse(unsupported("storage engine options"));
                }
            }
            "validationLevel" => {
                keep_choice(&mut options.kept, &argument, &["off", "strict", "moderate"])?;
            }
            "validationAction" => {
                keep_choice(&mut options.kept, &argument, &["error", "warn"])?;
            }
            "validator" => {
                if !argument.doc()?.is_empty() {
                    refuse(unsupported("validators"));
                }
            }
            "viewOn" => {
                argument.string()?;
                view = true;
            }
            "pipeline" => {
                argument.array()?;
                pipeline = true;
            }
            "clusteredIndex" => refuse(unsupported("clustered collections")),
            "timeseries" => {
                argument.doc()?;
                refuse(unsupported("time-series collections"));
            }
            "expireAfterSeconds" => {
                refuse(Error::new(
                    Code::INVALID_OPTIONS,
                    "'expireAfterSeconds' is only supported on time-series collections or when \
                     the 'clusteredIndex' option is specified",
                ));
            }
            "flags" => {
                argument.integer()?;
            }
            "temp" => refuse(Error::new(
                Code::INVALID_OPTIONS,
                "the 'temp' field is an invalid option",
            )),
            "recordPreImages" => {
                if argument.loose_boolean()? {
                    refuse(unsupported("recorded pre-images"));
                }
            }
            "changeStreamPreAndPostImages" => {
                if wants_images("create", &argument)? {
                    let images = argument.name();
                    options
                        .kept
                        .begin_document(images)
                        .append("enabled", true)
                        .end();
                }
            }
            "encryptedFields" => refuse(unsupported("encrypted fields")),
            _ => return Err(argument.unknown()),
        }
    }
    if (sized || limited) && !capped {
        return Err(Error::new(
            Code::INVALID_OPTIONS,
            "the 'capped' field needs to be true when either the 'size' or 'max' fields are present",
        ));
    }
    if capped && !sized {
        return Err(Error::new(
            Code::INVALID_OPTIONS,
            "the 'size' field is required when 'capped' is true",
        ));
    }
    if pipeline && !view {
        return Err(Error::new(
            Code::INVALID_OPTIONS,
            "'pipeline' requires 'viewOn' to also be specified",
        ));
    }
    if capped {
        refuse(unsupported("capped collections"));
    }
    if view {
        refuse(unsupported("views"));
    }
    match refused {
        Some(error) => Err(error),
        None => Ok(options),
    }
}

const KNOWN: &[&str] = &[
    "capped",
    "size",
    "max",
    "autoIndexId",
    "idIndex",
    "collation",
    "storageEngine",
    "indexOptionDefaults",
    "validationLevel",
    "validationAction",
    "validator",
    "viewOn",
    "pipeline",
    "clusteredIndex",
    "timeseries",
    "expireAfterSeconds",
    "flags",
    "temp",
    "recordPreImages",
    "changeStreamPreAndPostImages",
    "encryptedFields",
];

/// An option that is null counts as absent, but must be one that exists.
fn check_known(argument: &Argument<'_>) -> Result<(), Error> {
    if KNOWN.contains(&argument.name()) {
        return Ok(());
    }
    Err(argument.unknown())
}

fn keep_choice(
    kept: &mut DocWriter,
    argument: &Argument<'_>,
    choices: &[&str],
) -> Result<(), Error> {
    let chosen = argument.string()?;
    if !choices.contains(&chosen) {
        return Err(Error::bad_value(format!(
            "Enumeration value '{chosen}' for field 'create.{}' is not a valid value.",
            argument.name()
        )));
    }
    kept.append(argument.name(), chosen);
    Ok(())
}

/// Whether an option `{enabled: …}` switches recorded images on.
pub(crate) fn wants_images(command: &str, option: &Argument<'_>) -> Result<bool, Error> {
    let path = format!("{command}.{}", option.name());
    let mut enabled = None;
    for field in fields(&path, option.doc()?) {
        match field.name() {
            "enabled" => enabled = Some(field.boolean()?),
            _ => return Err(field.unknown()),
        }
    }
    enabled.ok_or_else(|| missing(&path, "enabled"))
}

fn check_id_index(spec: Doc<'_>) -> Result<(), Error> {
    let empty = DocBuf::new();
    let key = spec.get_doc("key").unwrap_or(empty.as_doc());
    let ascending = key
        .get("_id")
        .and_then(Number::of)
        .is_some_and(|number| number.to_f64() == 1.0);
    if ascending && key.iter().count() == 1 {
        return match spec.get_doc("collation") {
            // It would have to be the collection's, and that can only be simple.
            Some(collation) if refuse_collation(collation).is_err() => Err(Error::bad_value(
                "The _id index must have the same collation as the collection",
            )),
            _ => Ok(()),
        };
    }
    Err(Error::bad_value(format!(
        "The field 'key' for an _id index must be {{_id: 1}}, but got {}",
        document_quoted(key)
    )))
}
