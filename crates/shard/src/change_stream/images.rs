//! The documents that events show beside the change itself.
//!
//! | asked for | comes from |
//! | --- | --- |
//! | `fullDocument` of inserts and replacements | the entry |
//! | `updateLookup` | the document as it is now; null if it is gone |
//! | `fullDocument: whenAvailable, required` of updates | the entry, if the collection kept images then |
//! | `fullDocumentBeforeChange` | the store's history, if the collection kept images then |

use super::event::{Event, Images, What};
use crate::Shard;
use crate::error::from_storage;
use crate::oplog::{Logged, Place};
use model::bson::{Doc, DocBuf};
use model::time::ClusterTime;
use model::{Code, Error};
use query::pipeline::{BeforeChange, ChangeStream, FullDocument};
use storage::entry::Name;

pub(super) fn images(
    shard: &Shard,
    stream: &ChangeStream,
    event: &Event<'_>,
) -> Result<Images, Error> {
    let What::Document(logged) = &event.what else {
        return Ok(Images::default());
    };
    Ok(Images {
        full_document: full_document(shard, stream.full_document, event, logged)?,
        before_change: before_change(shard, stream, event, logged)?,
    })
}

/// Whether an event shows anything that is looked up, and may be another one the next time.
pub(super) fn looks_up(stream: &ChangeStream, what: &What<'_>) -> bool {
    let What::Document(logged) = what else {
        return false;
    };
    let before = stream.full_document_before_change != BeforeChange::Off;
    match logged {
        Logged::Update { .. } => before || stream.full_document != FullDocument::Default,
        Logged::Replace { .. } | Logged::Delete { .. } => before,
        Logged::Insert { .. } | Logged::Command(_) | Logged::Noop => false,
    }
}

/// What the entry itself shows, without a look at anything that may have changed since.
pub(super) fn own_images(what: &What<'_>) -> Images {
    let document = match what {
        What::Document(Logged::Insert { document, .. } | Logged::Replace { document, .. }) => {
            Some(Some((*document).to_owned()))
        }
        What::Document(_) | What::Command(_) | What::Invalidate => None,
    };
    Images {
        full_document: document,
        before_change: None,
    }
}

fn full_document(
    shard: &Shard,
    asked: FullDocument,
    event: &Event<'_>,
    logged: &Logged<'_>,
) -> Result<Option<Option<DocBuf>>, Error> {
    match logged {
        Logged::Insert { document, .. } | Logged::Replace { document, .. } => {
            Ok(Some(Some((*document).to_owned())))
        }
        Logged::Update { name, document, .. } => match asked {
            FullDocument::Default => Ok(None),
            FullDocument::UpdateLookup => look_up(shard, name, logged).map(Some),
            FullDocument::WhenAvailable | FullDocument::Required if name.keeps_images => {
                Ok(Some(Some((*document).to_owned())))
            }
            FullDocument::WhenAvailable => Ok(Some(None)),
            FullDocument::Required => Err(missing(
                event,
                "Change stream was configured to require a post-image for all update events, but \
                 the post-image was not found for event",
            )),
        },
        Logged::Delete { .. } | Logged::Command(_) | Logged::Noop => Ok(None),
    }
}

/// The document as it is now, in the collection that the change was made in.
fn look_up(shard: &Shard, name: &Name<'_>, logged: &Logged<'_>) -> Result<Option<DocBuf>, Error> {
    let there = shard
        .catalog
        .by_id(name.collection)
        .is_some_and(|collection| collection.uuid.0 == name.uuid);
    if !there {
        return Ok(None);
    }
    let record = shard
        .store
        .get(name.collection, place(logged).now)
        .map_err(from_storage)?;
    Ok(record.map(|record| Doc::from_validated(record.document()).to_owned()))
}

fn before_change(
    shard: &Shard,
    stream: &ChangeStream,
    event: &Event<'_>,
    logged: &Logged<'_>,
) -> Result<Option<Option<DocBuf>>, Error> {
    let name = match logged {
        Logged::Update { name, .. }
        | Logged::Replace { name, .. }
        | Logged::Delete { name, .. } => name,
        Logged::Insert { .. } | Logged::Command(_) | Logged::Noop => return Ok(None),
    };
    let asked = stream.full_document_before_change;
    if asked == BeforeChange::Off {
        return Ok(None);
    }
    let image = match name.keeps_images {
        true => look_back(shard, name, logged, event.token.time)?,
        false => None,
    };
    match (image, asked) {
        (None, BeforeChange::Required) => Err(missing(
            event,
            "Change stream was configured to require a pre-image for all update, delete and \
             replace events, but the pre-image was not found for event",
        )),
        (image, _) => Ok(Some(image)),
    }
}

/// The document right before a time. `None` also where history does not reach.
fn look_back(
    shard: &Shard,
    name: &Name<'_>,
    logged: &Logged<'_>,
    time: ClusterTime,
) -> Result<Option<DocBuf>, Error> {
    let before = ClusterTime::from_u64(time.to_u64().saturating_sub(1));
    let record = shard
        .store
        .snapshot()
        .at(before)
        .and_then(|past| past.get(name.collection, place(logged).before));
    match record {
        Ok(record) => Ok(record.map(|record| Doc::from_validated(record.document()).to_owned())),
        Err(storage::Error::SnapshotTooOld { .. }) => Ok(None),
        Err(error) => Err(from_storage(error)),
    }
}

/// Where the document is stored.
fn place<'a>(logged: &Logged<'a>) -> Place<'a> {
    match logged {
        Logged::Update { place, .. }
        | Logged::Replace { place, .. }
        | Logged::Delete { place, .. } => *place,
        Logged::Insert { .. } | Logged::Command(_) | Logged::Noop => Place {
            before: &[],
            now: &[],
        },
    }
}

fn missing(event: &Event<'_>, what: &str) -> Error {
    let (database, collection) = event.namespace().unwrap_or_default();
    let collection = collection.unwrap_or_default();
    Error::new(
        Code::NO_MATCHING_DOCUMENT,
        format!(
            "{what}: {{operationType: \"{}\", ns: {{db: \"{database}\", coll: \"{collection}\"}}, \
             clusterTime: {}}}",
            event.kind(),
            event.token.time
        ),
    )
}
