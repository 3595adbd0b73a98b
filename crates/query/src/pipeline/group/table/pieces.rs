//! Partials on their way through a sorter.
//!
//! ```text
//!   partial ──┬─ small ─► {_id, s} ───────────────────────────────────┬──► partial
//!             └─ large ─► {piece, rest} {piece, rest} … {piece, rest: 0} ┘
//! ```
//!
//! A large partial goes in pieces, for two reasons: what comes back from a sorter is at
//! most as large as a document may be, and whoever merges runs holds the next record of
//! each, which would be all there is if every run were one large partial.
//!
//! - ⚑ Pieces of a partial follow each other: they have its key, and a sorter keeps the
//!   order of what has equal keys, in whichever run each piece lies.
//! - ⚑ Pieces come from a disk: what they make is validated as any document is, but for
//!   its size.

use super::malformed;
use crate::sort::{Sorted, Sorter};
use model::bson::{DocBuf, DocWriter, ValueRef, validate};
use model::{Code, Error};

/// Larger partials go in pieces of this size.
const PIECE_BYTES: usize = 64 * 1024;

/// Every piece has the key, so that large keys go with larger pieces; up to this.
const PIECE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Whether a partial of so many bytes is merged for so long that it counts for more than
/// a document.
pub(in super::super) fn is_large(bytes: usize) -> bool {
    bytes > PIECE_BYTES
}

pub(super) fn push(sorter: &mut Sorter, key: Vec<u8>, partial: DocBuf) -> Result<(), Error> {
    if !is_large(partial.as_bytes().len()) {
        return sorter.push_with_key(key, partial);
    }
    let mut rest = partial.as_bytes();
    while !rest.is_empty() {
        let length = key.len().clamp(PIECE_BYTES, PIECE_BYTES_MAX);
        let (bytes, behind) = rest.split_at(length.min(rest.len()));
        rest = behind;
        let piece = DocWriter::new()
            .with("piece", ValueRef::Binary { subtype: 0, bytes })
            .with("rest", rest.len() as i64)
            .finish();
        sorter.push_with_key(key.clone(), piece)?;
    }
    Ok(())
}

/// The next partial, whole again.
pub(in super::super) fn next(sorted: &mut Sorted) -> Result<Option<DocBuf>, Error> {
    let Some(mut record) = sorted.next().transpose()? else {
        return Ok(None);
    };
    if record.get("piece").is_none() {
        return Ok(Some(record));
    }
    let mut whole = Vec::new();
    loop {
        let (Some(ValueRef::Binary { bytes, .. }), Some(ValueRef::Int64(rest))) =
            (record.get("piece"), record.get("rest"))
        else {
            return Err(malformed());
        };
        whole.extend_from_slice(bytes);
        if rest == 0 {
            break;
        }
        record = sorted.next().transpose()?.ok_or_else(malformed)?;
    }
    validate(&whole, usize::MAX).map_err(|error| {
        Error::new(
            Code::INTERNAL_ERROR,
            format!("a spilled group cannot be read back: {error}"),
        )
    })?;
    Ok(Some(DocBuf::from_validated(whole)))
}
