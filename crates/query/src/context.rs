//! What an expression may refer to besides the document: variables.
//!
//! Names are resolved to slots when an expression is parsed, so that evaluating
//! a variable is an index and never a search by name.

use model::bson::{DocBuf, Timestamp, Value};

/// Fixed for the duration of one command.
#[derive(Clone, Debug)]
pub struct QueryContext {
    /// `$$NOW`, milliseconds since 1970.
    pub now_ms: i64,
    /// `$$CLUSTER_TIME`; absent where the server has no oplog.
    pub cluster_time: Option<Timestamp>,
    /// The command's `let`: already evaluated, in order of definition.
    pub variables: Vec<(String, Value)>,
}

impl QueryContext {
    pub fn new(now_ms: i64) -> Self {
        Self {
            now_ms,
            cluster_time: None,
            variables: Vec::new(),
        }
    }
}

/// An empty document, for evaluating expressions that refer to none.
pub fn no_document() -> DocBuf {
    DocBuf::new()
}
