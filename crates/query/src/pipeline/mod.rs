//! Aggregation pipelines.

use crate::context::QueryContext;
use model::bson::{Array, Doc, DocBuf};
use model::{Code, Error};

/// The stages that change one document at a time, as updates use them.
#[derive(Clone, Debug)]
pub struct Transform;

impl Transform {
    /// Parses the pipeline of an update.
    pub fn parse_update(_stages: Array<'_>, _context: &QueryContext) -> Result<Self, Error> {
        Err(Error::new(
            Code::COMMAND_NOT_SUPPORTED,
            "pipeline updates are not supported yet",
        ))
    }

    pub fn apply(&self, doc: Doc<'_>) -> Result<DocBuf, Error> {
        Ok(doc.to_owned())
    }
}
