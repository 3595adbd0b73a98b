//! What an update may do to the shard key of a document: MongoDB's rules.
//!
//! A key that changes, be it only in its type, must be named whole in the filter, one document
//! at a time, in a retryable write; it has no arrays; and the document stays on its shard. One
//! that would leave is refused with WouldChangeOwningShard: a router that can run a
//! transaction moves it then.

use super::Ownership;
use model::bson::{Doc, DocWriter, Value, ValueRef};
use model::shard_key::ShardKeyField;
use model::{Code, Error};
use query::filter::Filter;

/// The statement that updates.
pub(crate) struct UpdateStatement<'a> {
    pub(crate) filter: &'a Filter,
    pub(crate) multi: bool,
    /// Whether it has a transaction number.
    pub(crate) is_retryable: bool,
}

impl Ownership {
    /// Refuses an update that must not lead from one version to the other.
    pub(crate) fn check_update(
        &self,
        before: Doc<'_>,
        after: Doc<'_>,
        statement: &UpdateStatement<'_>,
    ) -> Result<(), Error> {
        let mut fields = self.pattern.fields().iter();
        let stays = |field: &ShardKeyField| {
            query::index::is_untouched(&field.path, before, after)
                || is_same(value_of(before, field), value_of(after, field))
        };
        if fields.all(stays) {
            return Ok(());
        }
        let Ok(key) = self.pattern.key_of(after) else {
            return Err(array_in_key(after));
        };
        let named = statement.filter.equalities();
        let is_named = |field: &ShardKeyField| {
            let mut paths = named.iter().map(|(path, _)| path.as_str());
            paths.any(|path| path == &*field.path)
        };
        if !self.pattern.fields().iter().all(is_named) {
            return Err(Error::location(
                31025,
                "Shard key update is not allowed without specifying the full shard key in the \
                 query",
            ));
        }
        if statement.multi {
            return Err(Error::new(
                Code::INVALID_OPTIONS,
                "Multi-update operations are not allowed when updating the shard key field.",
            ));
        }
        if !statement.is_retryable {
            return Err(Error::new(
                Code::ILLEGAL_OPERATION,
                "Must run update to shard key field in a multi-statement transaction or with \
                 retryWrites: true.",
            ));
        }
        match self.owned.contains(&key) {
            true => Ok(()),
            false => Err(would_leave()),
        }
    }
}

/// Whether a value stays what it was, byte by byte: of one that is not a number it cannot be said otherwise.
fn is_same(before: Option<Value>, after: Option<Value>) -> bool {
    let bytes = |value: &Value| DocWriter::new().with("", value).finish();
    before == after || before.as_ref().map(bytes) == after.as_ref().map(bytes)
}

/// The value of a field of the key as it counts: hashed, or exact.
fn value_of(document: Doc<'_>, field: &ShardKeyField) -> Option<Value> {
    let mut value = ValueRef::Document(document);
    for part in field.path.split('.') {
        value = match value {
            ValueRef::Document(doc) => doc.get(part)?,
            // Has no place in a key; different from whatever has.
            array @ ValueRef::Array(_) => return Some(array.to_owned()),
            _ => return None,
        };
    }
    match (field.hashed, value) {
        (true, ValueRef::Array(_)) | (false, _) => Some(value.to_owned()),
        (true, value) => Some(Value::Int64(model::hash::hashed_index_key(value))),
    }
}

/// The document belongs to another shard from now on.
pub(crate) fn would_leave() -> Error {
    Error::new(
        Code::WOULD_CHANGE_OWNING_SHARD,
        "This update would cause the doc to change owning shards",
    )
}

fn array_in_key(document: Doc<'_>) -> Error {
    let id = document.get("_id").map(|id| model::text::value_quoted(id));
    Error::new(
        Code::NOT_SINGLE_VALUE_FIELD,
        format!(
            "After applying the update to the document {{_id: {} , ...}}, the (immutable) shard \
             key was found to be an array or array descendant.",
            id.unwrap_or_default()
        ),
    )
}
