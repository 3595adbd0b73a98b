//! What servers put into documents that are inserted, where a document is routed by it: then the router has to,
//! before it knows where the document goes.
//!
//! - An `_id`, if there is none.
//! - The time in place of `Timestamp(0, 0)`, in fields of the document itself other than `_id`. What is nested stays
//!   as it is, as on a shard.
//!
//! ⚑ A retryable insert that is sent again by its driver gets another time. Its shard recognises it, unless
//! a chunk ends between the two times: then it is a document of another shard, and inserted there too.

use crate::hello::{now_ms, object_id};
use crate::routing::Route;
use model::bson::{Doc, DocBuf, DocWriter, Timestamp, ValueRef};
use std::sync::atomic::{AtomicU32, Ordering};

/// The document with all that it is routed by; `None` if it has that already.
pub(crate) fn completed(route: &Route, document: Doc<'_>) -> Option<DocBuf> {
    let fields = route.table()?.pattern.fields();
    let by_id = |path: &str| path == "_id" || path.starts_with("_id.");
    let lacks_id = fields.iter().any(|field| by_id(&field.path)) && document.get("_id").is_none();
    let is_key = |name: &str| {
        fields
            .iter()
            .any(|field| &*field.path == name && name != "_id")
    };
    let is_zero = |value: ValueRef<'_>| matches!(value, ValueRef::Timestamp(time) if time.seconds == 0 && time.increment == 0);
    let lacks_time = fields
        .iter()
        .any(|field| &*field.path != "_id" && document.get(&field.path).is_some_and(is_zero));
    if !lacks_id && !lacks_time {
        return None;
    }
    let mut writer = DocWriter::new();
    if lacks_id {
        writer.append("_id", object_id());
    }
    for element in document.iter() {
        match is_zero(element.value()) && is_key(element.key()) {
            true => writer.append(element.key(), ValueRef::Timestamp(now())),
            false => writer.append_element(&element),
        };
    }
    Some(writer.finish())
}

/// Another one each time.
fn now() -> Timestamp {
    static INCREMENT: AtomicU32 = AtomicU32::new(1);
    Timestamp {
        seconds: u32::try_from(now_ms() / 1000).unwrap_or(u32::MAX),
        increment: INCREMENT.fetch_add(1, Ordering::Relaxed).max(1),
    }
}
