//! What a document must be to be stored.

use crate::Shard;
use model::bson::{
    Doc, DocBuf, DocWriter, Element, Kind, MAX_DOCUMENT_BYTES, MAX_INTERNAL_BYTES, ValueRef,
};
use model::{Code, Error};
use query::update::check_id;

/// A document in the form in which it is stored.
pub(crate) enum Prepared<'a> {
    /// It came in this form: nothing needs to be copied yet.
    AsSent(Doc<'a>),
    Rewritten(DocBuf),
}

impl Prepared<'_> {
    pub(crate) fn doc(&self) -> Doc<'_> {
        match self {
            Prepared::AsSent(doc) => *doc,
            Prepared::Rewritten(document) => document.as_doc(),
        }
    }
}

/// The document as it is stored: `_id` first, made if it is missing, and zero
/// timestamps at the top level replaced by the current time.
pub(crate) fn prepare_insert(shard: &Shard, doc: Doc<'_>) -> Result<DocBuf, Error> {
    Ok(match prepare(shard, doc, &Shape::of(doc))? {
        Prepared::AsSent(doc) => doc.to_owned(),
        Prepared::Rewritten(document) => document,
    })
}

/// What a document is, as far as storing it depends on it: found in one walk over its
/// fields, because a load does this for every document.
pub(crate) struct Shape<'a> {
    id: Option<Element<'a>>,
    ids: usize,
    /// The first field is `_id`.
    is_headed: bool,
    /// Nothing is nested in it.
    is_flat: bool,
    /// A field other than `_id` is the timestamp that stands for the current time.
    has_zero_timestamp: bool,
}

impl<'a> Shape<'a> {
    pub(crate) fn of(doc: Doc<'a>) -> Self {
        let mut shape = Self {
            id: None,
            ids: 0,
            is_headed: false,
            is_flat: true,
            has_zero_timestamp: false,
        };
        for (place, element) in doc.iter().enumerate() {
            if element.key_bytes() == b"_id" {
                shape.ids += 1;
                shape.is_headed |= place == 0;
                shape.id.get_or_insert(element);
            } else if element.kind() == Kind::Timestamp {
                shape.has_zero_timestamp |= is_zero_timestamp(element.value());
            }
            shape.is_flat &= !matches!(
                element.kind(),
                Kind::Document | Kind::Array | Kind::JavaScriptWithScope
            );
        }
        shape
    }

    pub(crate) fn is_flat(&self) -> bool {
        self.is_flat
    }

    /// Refuses two `_id`s.
    pub(crate) fn check_ids(&self) -> Result<(), Error> {
        if self.ids > 1 {
            return Err(Error::bad_value(
                "can't have multiple _id fields in one document",
            ));
        }
        Ok(())
    }
}

/// The same, without a copy where the document has that form already.
pub(crate) fn prepare<'a>(
    shard: &Shard,
    doc: Doc<'a>,
    shape: &Shape<'a>,
) -> Result<Prepared<'a>, Error> {
    if doc.len() > MAX_DOCUMENT_BYTES {
        return Err(Error::bad_value(format!(
            "object to insert too large. size in bytes: {}, max size: {MAX_DOCUMENT_BYTES}",
            doc.len()
        )));
    }
    shape.check_ids()?;
    let id = &shape.id;
    if let Some(id) = id {
        check_id(id.value())?;
    }
    if shape.is_headed && !shape.has_zero_timestamp {
        return Ok(Prepared::AsSent(doc));
    }
    let mut writer = DocWriter::with_buffer(Vec::with_capacity(doc.len() + 24));
    match id {
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
    Ok(Prepared::Rewritten(writer.finish()))
}

fn is_zero_timestamp(value: ValueRef<'_>) -> bool {
    matches!(value, ValueRef::Timestamp(time) if time.seconds == 0 && time.increment == 0)
}

/// Checks the result of an update.
pub(crate) fn check_stored(doc: Doc<'_>) -> Result<(), Error> {
    if doc.len() > MAX_INTERNAL_BYTES {
        return Err(Error::new(
            Code::BSON_OBJECT_TOO_LARGE,
            format!(
                "BSONObj size: {} is invalid. Size must be between 0 and {MAX_INTERNAL_BYTES}(16MB)",
                doc.len()
            ),
        ));
    }
    if doc.len() > MAX_DOCUMENT_BYTES {
        return Err(Error::location(
            17419,
            format!("Resulting document after update is larger than {MAX_DOCUMENT_BYTES}"),
        ));
    }
    if let Some(id) = doc.get("_id") {
        check_id(id)?;
    }
    Ok(())
}
