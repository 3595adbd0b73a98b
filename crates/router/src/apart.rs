//! Arguments that may take long to parse, away from the connections.
//!
//! Constants are folded when expressions are parsed: a filter of a few bytes can keep a worker busy for hours,
//! and a router has few of them. Such arguments are parsed with the runtime told that the thread blocks: another
//! one takes the worker's place. The names of operators tell which ones ([`query::costly`]), as on shards. They
//! still end with their time, when they are killed, or when their client has gone.

use model::bson::{Array, Doc};
use query::costly::{PLAIN_BYTES_MAX, is_costly_to_parse, may_compute_long};

/// Parses what `argument` holds.
pub(crate) fn apart<T>(argument: Doc<'_>, parse: impl FnOnce() -> T) -> T {
    aside_if(may_compute_long(argument), parse)
}

/// Parses a pipeline.
pub(crate) fn stages_apart<T>(stages: Array<'_>, parse: impl FnOnce() -> T) -> T {
    let is_long = stages.as_bytes().len() > PLAIN_BYTES_MAX;
    aside_if(is_long || is_costly_to_parse(stages), parse)
}

fn aside_if<T>(is_costly: bool, parse: impl FnOnce() -> T) -> T {
    match is_costly {
        true => tokio::task::block_in_place(parse),
        false => parse(),
    }
}
