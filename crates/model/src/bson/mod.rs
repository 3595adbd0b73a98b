//! BSON as bytes: documents are read where they lie and written once.
//!
//! A document stays in the form in which it arrived. [`Doc`] borrows the bytes
//! of one, [`DocBuf`] owns them; looking up a field walks the elements and skips
//! their values without decoding. Values come in two shapes: [`ValueRef`]
//! borrows, [`Value`] owns; nested documents and arrays stay bytes in both, so
//! that every function over values (order, hash, key encoding, writing) exists
//! once, for `ValueRef`.
//!
//! Invariant: the bytes inside a `Doc` or `DocBuf` have passed [`validate`] or
//! were produced by a [`DocWriter`]. Readers rely on it and panic with a
//! message that says so if it is broken, because only our own bug can break it.
//! Bytes from a client or a peer enter through [`Doc::from_bytes`] /
//! [`DocBuf::from_bytes`], which validate. One exception: documents of a batch that is only passed
//! on ([`validate_around_batch`]) are never made a `Doc` of before they are validated.
//!
//! Deliberately absent: extended JSON and serde, which the `bson` crate has.

mod debug;
mod doc;
mod validate;
mod value;
mod writer;

pub use doc::{Array, ArrayBuf, Doc, DocBuf, Element, Elements};
pub use validate::{
    InvalidBson, MAX_DEPTH, MAX_DOCUMENT_BYTES, MAX_INTERNAL_BYTES, MAX_STORED_DEPTH,
    nesting_depth, validate, validate_around_batch,
};
pub use value::{Decimal128, Kind, ObjectId, Timestamp, Value, ValueRef};
pub use writer::{ArrayWriter, DocWriter};
