//! Which events an entry makes, and how they look. Pure: entry in, events out.
//!
//! ```text
//!   [to], _id, operationType, clusterTime, [collectionUUID], wallTime, [fullDocument], ns,
//!   [documentKey], [updateDescription | operationDescription], [stateBeforeChange],
//!   [fullDocumentBeforeChange]
//! ```
//!
//! An operation that ends what is watched (the collection is dropped or renamed, the
//! database dropped) is followed by an `invalidate`, the last event of the stream.

use super::token::ResumeToken;
use crate::oplog::{CommandOperation, Logged, operations};
use model::Error;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::time::ClusterTime;
use query::pipeline::Target;
use storage::entry::{Entry, Name};

/// One event before its images are looked up.
#[derive(Clone, Debug)]
pub(super) struct Event<'a> {
    pub(super) token: ResumeToken,
    pub(super) what: What<'a>,
    wall_ms: i64,
}

#[derive(Clone, Debug)]
pub(super) enum What<'a> {
    /// A change of a document.
    Document(Logged<'a>),
    /// A change of the catalog.
    Command(Change<'a>),
    Invalidate,
}

/// A change of the catalog as an event tells it.
#[derive(Clone, Debug)]
pub(super) struct Change<'a> {
    kind: &'static str,
    database: &'a str,
    /// None where it is about the database.
    collection: Option<&'a str>,
    uuid: Option<&'a [u8]>,
    /// The new name, as database and collection.
    to: Option<(&'a str, &'a str)>,
    /// Shown only if expanded events are.
    description: Option<DocBuf>,
    before: Option<DocBuf>,
    /// Kinds that only streams with expanded events know.
    is_expanded: bool,
}

/// When an entry happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) time: ClusterTime,
    pub(super) wall_ms: i64,
}

/// The images that an event is delivered with; the outer `None` where it has no such
/// field, the inner one where there is nothing to show.
#[derive(Default)]
pub(super) struct Images {
    pub(super) full_document: Option<Option<DocBuf>>,
    pub(super) before_change: Option<Option<DocBuf>>,
}

/// The events that an entry makes for one who watches `target`.
pub(super) fn events<'a>(
    entry: &Entry<'a>,
    moment: Moment,
    target: &Target,
    expanded: bool,
) -> Result<Vec<Event<'a>>, Error> {
    if entry.header.origin.is_some() {
        return Ok(Vec::new());
    }
    let mut events = Vec::new();
    for (at, logged) in operations(entry)?.into_iter().enumerate() {
        let (what, invalidates) = match logged {
            Logged::Insert { name, .. }
            | Logged::Replace { name, .. }
            | Logged::Update { name, .. }
            | Logged::Delete { name, .. } => {
                if !watches_namespace(target, name.namespace) {
                    continue;
                }
                (What::Document(logged), false)
            }
            Logged::Command(command) => {
                let Some(change) = change(&command) else {
                    continue;
                };
                if !watches_change(target, &change) || (change.is_expanded && !expanded) {
                    continue;
                }
                let invalidates = invalidates(target, &change);
                (What::Command(change), invalidates)
            }
            Logged::Noop => continue,
        };
        let event = Event {
            token: token(&what, moment.time, at, false),
            what,
            wall_ms: moment.wall_ms,
        };
        let invalidation = invalidates.then(|| Event {
            token: token(&event.what, moment.time, at, true),
            what: What::Invalidate,
            wall_ms: moment.wall_ms,
        });
        events.push(event);
        events.extend(invalidation);
    }
    Ok(events)
}

fn token(what: &What<'_>, time: ClusterTime, at: usize, invalidates: bool) -> ResumeToken {
    match what {
        What::Document(logged) => {
            let key = logged.document_key().unwrap_or_default();
            let name = logged.name();
            let uuid = name.as_ref().map(|name| &name.uuid[..]);
            ResumeToken::event(time, at, invalidates, uuid, key.get("_id"))
        }
        What::Command(change) => ResumeToken::event(time, at, invalidates, change.uuid, None),
        What::Invalidate => ResumeToken::event(time, at, true, None, None),
    }
}

fn split(namespace: &str) -> (&str, &str) {
    namespace.split_once('.').unwrap_or((namespace, ""))
}

fn is_internal(database: &str) -> bool {
    matches!(database, "admin" | "config" | "local")
}

/// Collections that no stream of a database or the cluster shows.
fn is_hidden(collection: &str) -> bool {
    collection.starts_with('$') || (collection.starts_with("system.") && collection != "system.js")
}

fn watches_namespace(target: &Target, namespace: &str) -> bool {
    let (database, collection) = split(namespace);
    match target {
        Target::Collection(watched) => watched.as_str() == namespace,
        Target::Database(watched) => watched == database && !is_hidden(collection),
        Target::Cluster => !is_internal(database) && !is_hidden(collection),
    }
}

fn watches_change(target: &Target, change: &Change<'_>) -> bool {
    let Some(collection) = change.collection else {
        return match target {
            Target::Collection(_) => false,
            Target::Database(watched) => watched == change.database,
            Target::Cluster => !is_internal(change.database),
        };
    };
    let watches = |database: &str, collection: &str| {
        watches_namespace(target, &format!("{database}.{collection}"))
    };
    watches(change.database, collection)
        || change
            .to
            .is_some_and(|(database, collection)| watches(database, collection))
}

/// Whether a change ends what is watched.
fn invalidates(target: &Target, change: &Change<'_>) -> bool {
    match target {
        Target::Collection(_) => matches!(change.kind, "drop" | "rename"),
        Target::Database(_) => change.kind == "dropDatabase",
        Target::Cluster => false,
    }
}

/// What a command of the log changed, if that is an event.
fn change<'a>(logged: &CommandOperation<'a>) -> Option<Change<'a>> {
    let (database, _) = split(logged.namespace);
    let first = logged.command.first()?;
    let of = |kind, is_expanded| Change {
        kind,
        database,
        collection: match first.value() {
            ValueRef::String(name) => Some(name),
            _ => None,
        },
        uuid: logged.uuid,
        to: None,
        description: None,
        before: None,
        is_expanded,
    };
    let indexes = |indexes: &[Doc<'_>]| {
        let mut out = DocWriter::new();
        out.begin_array("indexes");
        for index in indexes {
            out.push(*index);
        }
        out.end();
        Some(out.finish())
    };
    Some(match first.key() {
        "drop" => of("drop", false),
        "dropDatabase" => of("dropDatabase", false),
        "renameCollection" => {
            let ValueRef::String(from) = first.value() else {
                return None;
            };
            let (database, collection) = split(from);
            let to = split(logged.command.get_str("to")?);
            let mut description = DocWriter::new();
            append_namespace(&mut description, "to", to.0, Some(to.1));
            if let Some(replaced) = logged.command.element("dropTarget") {
                description.append_element(&replaced);
            }
            Change {
                database,
                collection: Some(collection),
                to: Some(to),
                description: Some(description.finish()),
                ..of("rename", false)
            }
        }
        "create" => Change {
            description: Some(behind_first(logged.command)),
            ..of("create", true)
        },
        "createIndexes" => Change {
            description: indexes(&[behind_first(logged.command).as_doc()]),
            ..of("createIndexes", true)
        },
        "commitIndexBuild" => {
            let built = logged.command.get_array("indexes")?;
            let built: Vec<Doc<'_>> = built
                .iter()
                .filter_map(|index| match index {
                    ValueRef::Document(index) => Some(index),
                    _ => None,
                })
                .collect();
            Change {
                description: indexes(&built),
                ..of("createIndexes", true)
            }
        }
        "dropIndexes" => Change {
            description: indexes(&[logged.before.unwrap_or(Doc::EMPTY)]),
            ..of("dropIndexes", true)
        },
        "collMod" => {
            let mut before = DocWriter::new();
            for (name, shown) in [
                ("collectionOptions_old", "collectionOptions"),
                ("indexOptions_old", "indexOptions"),
            ] {
                if let Some(old) = logged.before.and_then(|before| before.get_doc(name)) {
                    before.append(shown, old);
                }
            }
            Change {
                description: Some(behind_first(logged.command)),
                before: Some(before.finish()),
                ..of("modify", true)
            }
        }
        _ => return None,
    })
}

/// A command without its name.
fn behind_first(command: Doc<'_>) -> DocBuf {
    let mut out = DocWriter::new();
    for field in command.iter().skip(1) {
        out.append_element(&field);
    }
    out.finish()
}

fn append_namespace(out: &mut DocWriter, name: &str, database: &str, collection: Option<&str>) {
    out.begin_document(name).append("db", database);
    if let Some(collection) = collection {
        out.append("coll", collection);
    }
    out.end();
}

impl Event<'_> {
    pub(super) fn kind(&self) -> &'static str {
        match &self.what {
            What::Document(Logged::Insert { .. }) => "insert",
            What::Document(Logged::Replace { .. }) => "replace",
            What::Document(Logged::Update { .. }) => "update",
            What::Document(Logged::Delete { .. }) => "delete",
            What::Document(Logged::Command(_) | Logged::Noop) => {
                unreachable!("events of documents are made of changes of documents")
            }
            What::Command(change) => change.kind,
            What::Invalidate => "invalidate",
        }
    }

    /// Database and collection, where there are any.
    pub(super) fn namespace(&self) -> Option<(&str, Option<&str>)> {
        match &self.what {
            What::Document(logged) => logged.name().map(|name| {
                let (database, collection) = split(name.namespace);
                (database, Some(collection))
            }),
            What::Command(change) => Some((change.database, change.collection)),
            What::Invalidate => None,
        }
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        match &self.what {
            What::Document(logged) => logged.name().map(|name| name.uuid),
            What::Command(change) => change.uuid.and_then(|uuid| uuid.try_into().ok()),
            What::Invalidate => None,
        }
    }

    /// The event as a client sees it.
    pub(super) fn render(&self, expanded: bool, images: &Images) -> DocBuf {
        let mut out = DocWriter::new();
        if let What::Command(Change {
            to: Some((database, collection)),
            ..
        }) = &self.what
        {
            append_namespace(&mut out, "to", database, Some(collection));
        }
        out.append("_id", &self.token.to_document())
            .append("operationType", self.kind())
            .append("clusterTime", self.token.time);
        if expanded && let Some(bytes) = &self.uuid() {
            out.append("collectionUUID", ValueRef::Binary { subtype: 4, bytes });
        }
        out.append("wallTime", ValueRef::DateTime(self.wall_ms));
        append_image(&mut out, "fullDocument", &images.full_document);
        if let Some((database, collection)) = self.namespace() {
            append_namespace(&mut out, "ns", database, collection);
        }
        match &self.what {
            What::Document(logged) => {
                if let Some(key) = logged.document_key() {
                    out.append("documentKey", &key);
                }
                if let Logged::Update { difference, .. } = logged {
                    let description = query::difference::describe(*difference);
                    out.append("updateDescription", &description);
                }
            }
            What::Command(change) if expanded => {
                if let Some(description) = &change.description {
                    out.append("operationDescription", description);
                }
                if let Some(before) = &change.before {
                    out.append("stateBeforeChange", before);
                }
            }
            What::Command(_) | What::Invalidate => {}
        }
        append_image(&mut out, "fullDocumentBeforeChange", &images.before_change);
        out.finish()
    }
}

fn append_image(out: &mut DocWriter, name: &str, image: &Option<Option<DocBuf>>) {
    match image {
        None => {}
        Some(None) => {
            out.append(name, ValueRef::Null);
        }
        Some(Some(document)) => {
            out.append(name, document);
        }
    }
}

/// The collection that an operation on a document belongs to.
impl<'a> Logged<'a> {
    pub(super) fn name(&self) -> Option<Name<'a>> {
        match self {
            Logged::Insert { name, .. }
            | Logged::Replace { name, .. }
            | Logged::Update { name, .. }
            | Logged::Delete { name, .. } => Some(*name),
            Logged::Command(_) | Logged::Noop => None,
        }
    }
}

#[cfg(test)]
mod tests;
