//! What a document must be to be stored.

use crate::Shard;
use model::bson::{Doc, DocBuf, DocWriter, Element, Kind, MAX_DOCUMENT_BYTES, ValueRef};
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
    let mut ids = doc.iter().filter(|element| element.key() == "_id");
    let id = ids.next();
    if ids.next().is_some() {
        return Err(Error::bad_value(
            "can't have multiple _id fields in one document",
        ));
    }
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

/// `_id` must not look like an operator, at any depth; a reference may stand in
/// it: `{$ref: "collection", $id: anything}`, perhaps with `$db`.
fn check_id_fields(id: ValueRef<'_>) -> Result<(), Error> {
    let doc = match id {
        ValueRef::Document(doc) => doc,
        ValueRef::Array(array) => return array.iter().try_for_each(check_id_fields),
        _ => return Ok(()),
    };
    for element in doc.iter().skip(reference_fields(doc)) {
        if element.key().starts_with('$') {
            return Err(Error::new(
                Code::DOLLAR_PREFIXED_FIELD_NAME,
                format!(
                    "_id fields may not contain '$'-prefixed fields: {} is not valid for storage.",
                    element.key()
                ),
            ));
        }
        check_id_fields(element.value())?;
    }
    Ok(())
}

/// How many of the first fields make a reference to another document.
fn reference_fields(doc: Doc<'_>) -> usize {
    let mut fields = doc.iter();
    let is_text = |field: &Element<'_>, name| field.key() == name && field.kind() == Kind::String;
    match (fields.next(), fields.next(), fields.next()) {
        (Some(first), Some(second), third) if is_text(&first, "$ref") && second.key() == "$id" => {
            2 + usize::from(third.is_some_and(|third| is_text(&third, "$db")))
        }
        _ => 0,
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
