//! One change of a side, as far as it matters here, and how a change stream tells it.
//!
//! What a document became is not looked at: it is read when its recheck comes, on both sides alike.

use crate::element::{Malformed, Value, field, kind};
use crate::namespace::Namespace;
use crate::time::ClusterTime;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// `insert`, `delete`, `rename`, …
    pub what: String,
    pub namespace: Namespace,
    /// The new name after a rename.
    pub to: Option<Namespace>,
    pub time: ClusterTime,
    /// The document that changed; None for a change of collections or indexes.
    pub id: Option<Value>,
}

impl Event {
    /// Takes apart an event of a change stream.
    pub fn of_stream(event: &[u8]) -> Result<Event, Malformed> {
        let namespace = |name: &str| -> Result<Option<Namespace>, Malformed> {
            let Some(value) = field(event, name)?.filter(|value| value.kind == kind::DOCUMENT)
            else {
                return Ok(None);
            };
            let database = text(value.bytes, "db")?.ok_or(Malformed)?;
            // Dropping a whole database names no collection.
            let collection = text(value.bytes, "coll")?.unwrap_or_default();
            Ok(Some(Namespace::new(database, collection)))
        };
        let id = match field(event, "documentKey")? {
            Some(key) if key.kind == kind::DOCUMENT => {
                field(key.bytes, "_id")?.map(|id| id.to_value())
            }
            Some(_) | None => None,
        };
        Ok(Event {
            what: text(event, "operationType")?.ok_or(Malformed)?,
            namespace: namespace("ns")?.unwrap_or_else(|| Namespace::new("", "")),
            to: namespace("to")?,
            time: time(event, "clusterTime")?,
            id,
        })
    }
}

/// A field that holds a text, if there is one.
pub fn text(document: &[u8], name: &str) -> Result<Option<String>, Malformed> {
    match field(document, name)? {
        Some(value) => text_of(value),
        None => Ok(None),
    }
}

/// The text that a value is, if it is one.
pub fn text_of(value: crate::element::ValueRef<'_>) -> Result<Option<String>, Malformed> {
    if value.kind != kind::STRING {
        return Ok(None);
    }
    let text = value.bytes.get(4..value.bytes.len().saturating_sub(1));
    let text = std::str::from_utf8(text.ok_or(Malformed)?).map_err(|_| Malformed)?;
    Ok(Some(text.to_owned()))
}

/// A field that holds a cluster time.
pub fn time(document: &[u8], name: &str) -> Result<ClusterTime, Malformed> {
    let time = field(document, name)?.filter(|value| value.kind == kind::TIMESTAMP);
    let time = time.ok_or(Malformed)?.bytes;
    let [c0, c1, c2, c3, s0, s1, s2, s3] = *time.first_chunk::<8>().ok_or(Malformed)?;
    Ok(ClusterTime {
        seconds: u32::from_le_bytes([s0, s1, s2, s3]),
        counter: u32::from_le_bytes([c0, c1, c2, c3]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Timestamp, doc};

    #[test]
    fn events_are_taken_apart() {
        let time = Timestamp {
            time: 7,
            increment: 9,
        };
        let check = |event: bson::Document, what: &str, namespace: &str, has_id: bool| {
            let event = Event::of_stream(&event.to_vec().unwrap()).unwrap();
            assert_eq!(event.what, what);
            assert_eq!(event.namespace.to_string(), namespace);
            assert_eq!(event.id.is_some(), has_id);
            assert_eq!(event.time.timestamp(), time);
        };
        check(
            doc! {"operationType": "insert", "ns": {"db": "a", "coll": "b.c"}, "documentKey": {"_id": 1}, "clusterTime": time},
            "insert",
            "a.b.c",
            true,
        );
        check(
            doc! {"operationType": "dropDatabase", "ns": {"db": "a"}, "clusterTime": time},
            "dropDatabase",
            "a",
            false,
        );
        for wrong in [doc! {}, doc! {"operationType": "insert", "ns": {}}] {
            assert!(Event::of_stream(&wrong.to_vec().unwrap()).is_err());
        }
    }
}
