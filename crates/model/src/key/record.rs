//! The key a record is stored under.

use super::{Direction, KeyError, TypeBits, encode_into, skip_value};
use crate::bson::ValueRef;
use std::fmt;
use std::sync::Arc;

/// Where a record stands in its collection: the encoded `_id`, or the encoded
/// fields the collection is clustered by and then the encoded `_id`. Byte order
/// is the collection's natural order.
///
/// There are no type bits beside it: the document itself holds the exact values,
/// and equal `_id`s are the same record whatever their types.
///
/// Cheap to clone: a write keeps its key in several places at once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey(Arc<[u8]>);

impl RecordKey {
    /// The record key of a collection clustered by `_id`.
    pub fn from_id(id: ValueRef<'_>) -> Self {
        // What it takes, for most, so that it does not grow: a load does this for every document.
        let mut bytes = Vec::with_capacity(match id {
            ValueRef::String(text) => text.len() + 2,
            _ => 16,
        });
        encode_into(&mut bytes, &mut TypeBits::new(), id, Direction::Ascending);
        Self(bytes.into())
    }

    /// The record key of a collection clustered by other fields, which come encoded.
    pub fn clustered(mut fields: Vec<u8>, id: ValueRef<'_>) -> Self {
        encode_into(&mut fields, &mut TypeBits::new(), id, Direction::Ascending);
        Self(fields.into())
    }

    /// Takes the bytes of a stored key.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Splits an index key into its encoded fields and the record key behind them.
    pub fn split_off<'a>(
        index_key: &'a [u8],
        directions: &[Direction],
    ) -> Result<(&'a [u8], &'a [u8]), KeyError> {
        let mut at = 0;
        for direction in directions {
            at += skip_value(&index_key[at..], *direction)?;
        }
        Ok(index_key.split_at(at))
    }
}

impl AsRef<[u8]> for RecordKey {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordKey(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}
