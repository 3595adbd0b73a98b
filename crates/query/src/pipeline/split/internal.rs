//! The stages that only a router writes, and what their documents look like.
//!
//! ```text
//!   {$_terndbGroup:  {version: 1, group: {…}}}     as `$group` was written
//!       ─► {_id: key, s: [state, …]}               see `group/table.rs`
//!   {$_terndbSample: {version: 1, sample: {size: …}}}
//!       ─► {k: long, d: document}                  in the order of `k`
//! ```

use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::{Code, Error};

/// `$group`, of which the states are returned instead of the results.
pub const GROUP: &str = "$_terndbGroup";
/// `$sample`, of which the random keys are returned, too.
pub const SAMPLE: &str = "$_terndbSample";

/// What a shard and whoever merges have to agree in: the form of accumulators'
/// states and of keyed documents. It changes with any of them.
pub const VERSION: i32 = 1;

/// Where the random key of a sampled document is.
pub(super) const KEY: &str = "k";
/// Where the document itself is.
pub(super) const DOCUMENT: &str = "d";

pub(super) fn write_group(group: ValueRef<'_>) -> DocBuf {
    DocWriter::new()
        .with("version", VERSION)
        .with("group", group)
        .finish()
}

pub(super) fn write_sample(sample: ValueRef<'_>) -> DocBuf {
    DocWriter::new()
        .with("version", VERSION)
        .with("sample", sample)
        .finish()
}

/// The `$group` inside of a [`GROUP`].
pub(in crate::pipeline) fn read_group(spec: ValueRef<'_>) -> Result<ValueRef<'_>, Error> {
    read(GROUP, "group", spec)
}

/// The `$sample` inside of a [`SAMPLE`].
pub(in crate::pipeline) fn read_sample(spec: ValueRef<'_>) -> Result<ValueRef<'_>, Error> {
    read(SAMPLE, "sample", spec)
}

fn read<'a>(stage: &str, field: &str, spec: ValueRef<'a>) -> Result<ValueRef<'a>, Error> {
    let fail = |why: &str| Error::new(Code::FAILED_TO_PARSE, format!("{stage} {why}"));
    let ValueRef::Document(spec) = spec else {
        return Err(fail("is no document"));
    };
    match spec.get("version") {
        Some(ValueRef::Int32(VERSION)) => {}
        _ => return Err(fail("is of a version that this server does not know")),
    }
    spec.get(field).ok_or_else(|| fail("says too little"))
}

/// A sampled document and the key it was chosen by.
pub(in crate::pipeline) fn with_key(key: i64, document: Doc<'_>) -> DocBuf {
    DocWriter::new()
        .with(KEY, key)
        .with(DOCUMENT, document)
        .finish()
}
