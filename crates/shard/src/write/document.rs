//! What a document must be to be stored.

use crate::Shard;
use model::bson::{Doc, DocBuf, DocWriter, Kind, MAX_DOCUMENT_BYTES, ValueRef};
use model::{Code, Error};
use query::update::check_id;

/// The document as it is stored: `_id` first, made if it is missing, and zero
/// timestamps at the top level replaced by the current time.
pub(crate) fn prepare_insert(shard: &Shard, doc: Doc<'_>) -> Result<DocBuf, Error> {
    if doc.len() > MAX_DOCUMENT_BYTES {
        return Err(Error::bad_value(format!(
            "object to insert too large. size in bytes: {}, max size: {MAX_DOCUMENT_BYTES}",
            doc.len()
        )));
    }
    let id = doc.element("_id");
    if let Some(id) = &id {
        check_id(id.value())?;
        check_id_fields(id.value())?;
    }
    let first = doc.first().is_some_and(|first| first.key() == "_id");
    let zero_timestamp = doc
        .iter()
        .any(|e| e.kind() == Kind::Timestamp && is_zero_timestamp(e.value()) && e.key() != "_id");
    if first && !zero_timestamp {
        return Ok(doc.to_owned());
    }
    let mut writer = DocWriter::with_buffer(Vec::with_capacity(doc.len() + 24));
    match &id {
        Some(id) => writer.append_element(id),
        None => writer.append("_id", shard.new_object_id()),
    };
    let mut id_seen = id.is_none();
    for element in doc.iter() {
        if !id_seen && element.key() == "_id" {
            id_seen = true;
            continue;
        }
        if is_zero_timestamp(element.value()) {
            writer.append(element.key(), shard.log.latest_time().next());
        } else {
            writer.append_element(&element);
        }
    }
    Ok(writer.finish())
}

fn is_zero_timestamp(value: ValueRef<'_>) -> bool {
    matches!(value, ValueRef::Timestamp(time) if time.seconds == 0 && time.increment == 0)
}

/// `_id` must not look like an operator, at any depth.
fn check_id_fields(id: ValueRef<'_>) -> Result<(), Error> {
    let ValueRef::Document(doc) = id else {
        return Ok(());
    };
    match doc.iter().find(|e| e.key().starts_with('$')) {
        Some(field) => Err(Error::new(
            Code::DOLLAR_PREFIXED_FIELD_NAME,
            format!(
                "_id fields may not contain '$'-prefixed fields: {} is not valid for storage.",
                field.key()
            ),
        )),
        None => Ok(()),
    }
}

/// Checks the result of an update.
pub(crate) fn check_stored(doc: Doc<'_>) -> Result<(), Error> {
    if doc.len() > MAX_DOCUMENT_BYTES {
        return Err(Error::location(
            17419,
            format!("Resulting document after update is larger than {MAX_DOCUMENT_BYTES}"),
        ));
    }
    if let Some(id) = doc.get("_id") {
        check_id(id)?;
        check_id_fields(id)?;
    }
    Ok(())
}
