//! `$changeStream` as data: what is watched, from where, and what events show.
//!
//! Making events needs the log, so that is the environment's. Behind it only stages
//! may stand that take one event and give one or none, since every event that is
//! delivered must still name its place.

use super::parse::Scope;
use super::stage::{Stage, Step};
use model::bson::{Doc, DocBuf, ValueRef};
use model::time::ClusterTime;
use model::{Code, Error, Namespace};

/// A parsed `$changeStream`.
#[derive(Clone, Debug)]
pub struct ChangeStream {
    pub target: Target,
    pub start: Start,
    pub full_document: FullDocument,
    pub full_document_before_change: BeforeChange,
    /// Whether changes of the catalog are events too.
    pub show_expanded_events: bool,
}

/// What is watched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    Collection(Namespace),
    Database(String),
    /// All databases but the internal ones.
    Cluster,
}

/// Where events begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Start {
    Now,
    /// The events at or after a time.
    AtTime(ClusterTime),
    /// Behind the event of this token, which must not be an `invalidate`.
    ResumeAfter(DocBuf),
    /// The same, where it may be one.
    StartAfter(DocBuf),
}

/// The `fullDocument` of updates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FullDocument {
    Default,
    /// The document as it is when the event is delivered.
    UpdateLookup,
    /// As it was after the change, if images are kept.
    WhenAvailable,
    Required,
}

/// The `fullDocumentBeforeChange` of updates, replacements and deletions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BeforeChange {
    Off,
    WhenAvailable,
    Required,
}

const NAME: &str = "$changeStream";

impl ChangeStream {
    pub(super) fn parse(spec: ValueRef<'_>, scope: &Scope<'_>) -> Result<Self, Error> {
        let ValueRef::Document(spec) = spec else {
            return Err(Error::location(
                6188500,
                format!("{NAME} must take a nested object but found: {NAME}: {spec:?}"),
            ));
        };
        let mut options = Options::default();
        for field in spec.iter() {
            options.read(field.key(), field.value())?;
        }
        Ok(Self {
            target: target(scope, options.whole_cluster)?,
            start: options.start()?,
            full_document: options.full_document.unwrap_or(FullDocument::Default),
            full_document_before_change: options.before_change.unwrap_or(BeforeChange::Off),
            show_expanded_events: options.expanded,
        })
    }
}

impl ChangeStream {
    /// Of the stages behind a stream those that give the same for an event whenever it is told:
    /// up to the first that reads what is looked up, if anything is, or what is chance. Who takes an
    /// event as a whole reads that, too. A `$redact` is not looked at, as in MongoDB.
    pub fn lasting(behind: &[Step], looks_up: bool) -> &[Step] {
        let varies = |step: &Step| {
            matches!(step.stage, Stage::Redact(_))
                || (looks_up && LOOKED_UP.iter().any(|name| mentions(&step.spec, name)))
                || CHANCE.iter().any(|name| mentions(&step.spec, name))
        };
        let lasting = behind.iter().position(varies).unwrap_or(behind.len());
        &behind[..lasting]
    }
}

/// Names in stages that read what is looked up: by its name, or with all that an event has.
const LOOKED_UP: [&str; 4] = ["fullDocument", "$$ROOT", "$$CURRENT", "$jsonSchema"];

/// Names in stages by which they give one thing now and another later.
const CHANCE: [&str; 4] = ["$sampleRate", "$rand", "$$NOW", "$$CLUSTER_TIME"];

/// Whether a name occurs anywhere in a stage as it was written.
fn mentions(spec: &DocBuf, name: &str) -> bool {
    let bytes = spec.as_bytes();
    bytes
        .windows(name.len())
        .any(|part| part == name.as_bytes())
}

#[derive(Default)]
struct Options {
    resume_after: Option<DocBuf>,
    start_after: Option<DocBuf>,
    at: Option<ClusterTime>,
    full_document: Option<FullDocument>,
    before_change: Option<BeforeChange>,
    whole_cluster: bool,
    expanded: bool,
}

impl Options {
    fn read(&mut self, name: &str, value: ValueRef<'_>) -> Result<(), Error> {
        if value.is_nullish() && !matches!(name, "allChangesForCluster" | "showExpandedEvents") {
            return match name {
                "resumeAfter"
                | "startAfter"
                | "startAtOperationTime"
                | "fullDocument"
                | "fullDocumentBeforeChange" => Ok(()),
                _ => Err(unknown(name)),
            };
        }
        match name {
            "resumeAfter" => self.resume_after = Some(document(name, value)?.to_owned()),
            "startAfter" => self.start_after = Some(document(name, value)?.to_owned()),
            "startAtOperationTime" => match value {
                ValueRef::Timestamp(time) => {
                    self.at = Some(ClusterTime::new(time.seconds, time.increment));
                }
                _ => return Err(wrong_type(name, value, "timestamp")),
            },
            "fullDocument" => {
                self.full_document = Some(match string(name, value)? {
                    "default" => FullDocument::Default,
                    "updateLookup" => FullDocument::UpdateLookup,
                    "whenAvailable" => FullDocument::WhenAvailable,
                    "required" => FullDocument::Required,
                    other => return Err(no_choice(name, other)),
                });
            }
            "fullDocumentBeforeChange" => {
                self.before_change = Some(match string(name, value)? {
                    "off" => BeforeChange::Off,
                    "whenAvailable" => BeforeChange::WhenAvailable,
                    "required" => BeforeChange::Required,
                    other => return Err(no_choice(name, other)),
                });
            }
            "allChangesForCluster" => match value {
                ValueRef::Boolean(flag) => self.whole_cluster = flag,
                _ => return Err(wrong_type(name, value, "bool")),
            },
            "showExpandedEvents" => self.expanded = flag(name, value)?,
            "showMigrationEvents"
            | "showSystemEvents"
            | "showRawUpdateDescription"
            | "allowToRunOnConfigDB"
            | "allowToRunOnSystemNS" => {
                if flag(name, value)? {
                    return Err(Error::new(
                        Code::COMMAND_NOT_SUPPORTED,
                        format!("{NAME}.{name} is not supported yet"),
                    ));
                }
            }
            _ => return Err(unknown(name)),
        }
        Ok(())
    }

    fn start(&mut self) -> Result<Start, Error> {
        if self.resume_after.is_some() && self.start_after.is_some() {
            return Err(Error::location(
                50865,
                format!("Do not specify both 'resumeAfter' and 'startAfter' in a {NAME} stage"),
            ));
        }
        match (self.at, self.resume_after.take(), self.start_after.take()) {
            (None, None, None) => Ok(Start::Now),
            (Some(time), None, None) => Ok(Start::AtTime(time)),
            (None, Some(token), _) => Ok(Start::ResumeAfter(token)),
            (None, None, Some(token)) => Ok(Start::StartAfter(token)),
            (Some(_), _, _) => Err(Error::location(
                40674,
                "Only one type of resume option is allowed, but multiple were found",
            )),
        }
    }
}

fn target(scope: &Scope<'_>, whole_cluster: bool) -> Result<Target, Error> {
    let database = scope.database;
    if whole_cluster {
        return match scope.collection {
            None if database == "admin" => Ok(Target::Cluster),
            named => {
                let found = named.map_or(format!("{database}.$cmd.aggregate"), |namespace| {
                    namespace.as_str().to_owned()
                });
                Err(Error::new(
                    Code::INVALID_OPTIONS,
                    format!(
                        "A {NAME} with 'allChangesForCluster:true' may only be opened on the \
                         'admin' database, and with no collection name; found {found}"
                    ),
                ))
            }
        };
    }
    let internal = |what: String| {
        Err(Error::new(
            Code::INVALID_NAMESPACE,
            format!("{NAME} may not be opened on the internal {what}"),
        ))
    };
    if matches!(database, "admin" | "config" | "local") {
        return internal(format!("{database} database"));
    }
    match scope.collection {
        None => Ok(Target::Database(database.to_owned())),
        Some(namespace) if namespace.collection().starts_with("system.") => {
            internal(format!("{namespace} collection"))
        }
        Some(namespace) => Ok(Target::Collection(namespace.clone())),
    }
}

/// Refuses stages that cannot stand behind a change stream.
pub(super) fn check_behind(steps: &[Step]) -> Result<(), Error> {
    let watches = |step: &Step| matches!(step.stage, Stage::ChangeStream(_));
    if !steps.first().is_some_and(watches) {
        return Ok(());
    }
    for step in &steps[1..] {
        match step.stage {
            Stage::Match(_) | Stage::Project(_) | Stage::Replace(_) | Stage::Redact(_) => {}
            // Told by the place of the second one.
            Stage::ChangeStream(_) => {}
            Stage::Count(_) => return Err(not_permitted("$group")),
            _ => return Err(not_permitted(step.name())),
        }
    }
    Ok(())
}

fn not_permitted(name: &str) -> Error {
    Error::new(
        Code::ILLEGAL_OPERATION,
        format!("{name} is not permitted in a {NAME} pipeline"),
    )
}

fn unknown(name: &str) -> Error {
    Error::location(
        40415,
        format!("BSON field '{NAME}.{name}' is an unknown field."),
    )
}

fn wrong_type(name: &str, value: ValueRef<'_>, expected: &str) -> Error {
    Error::new(
        Code::TYPE_MISMATCH,
        format!(
            "BSON field '{NAME}.{name}' is the wrong type '{}', expected type '{expected}'",
            value.kind().name()
        ),
    )
}

fn flag(name: &str, value: ValueRef<'_>) -> Result<bool, Error> {
    match value {
        ValueRef::Boolean(flag) => Ok(flag),
        _ => Err(Error::new(
            Code::TYPE_MISMATCH,
            format!(
                "Field '{name}' should be a boolean value, but found: {}",
                value.kind().name()
            ),
        )),
    }
}

fn no_choice(name: &str, value: &str) -> Error {
    Error::bad_value(format!(
        "Enumeration value '{value}' for field '{NAME}.{name}' is not a valid value."
    ))
}

fn document<'a>(name: &str, value: ValueRef<'a>) -> Result<Doc<'a>, Error> {
    match value {
        ValueRef::Document(doc) => Ok(doc),
        _ => Err(wrong_type(name, value, "object")),
    }
}

fn string<'a>(name: &str, value: ValueRef<'a>) -> Result<&'a str, Error> {
    match value {
        ValueRef::String(text) => Ok(text),
        _ => Err(wrong_type(name, value, "string")),
    }
}
