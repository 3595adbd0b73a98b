//! Projections of `find` and `findAndModify`.

use crate::context::QueryContext;
use model::bson::{Doc, DocBuf};
use model::{Code, Error};

/// A parsed projection.
#[derive(Clone, Debug)]
pub struct Projection;

impl Projection {
    /// `filter` is the query's, which the positional projection refers to.
    pub fn parse(
        _spec: Doc<'_>,
        _filter: Option<Doc<'_>>,
        _context: &QueryContext,
    ) -> Result<Self, Error> {
        Err(Error::new(
            Code::COMMAND_NOT_SUPPORTED,
            "projections are not supported yet",
        ))
    }

    pub fn apply(&self, doc: Doc<'_>) -> Result<DocBuf, Error> {
        Ok(doc.to_owned())
    }
}
