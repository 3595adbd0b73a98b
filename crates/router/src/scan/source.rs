//! A scan as a running pipeline pulls it.

use super::ElasticScan;
use super::piece::Piece;
use crate::environment::wait;
use crate::merge::kill_cursor;
use model::bson::{Doc, DocBuf};
use model::error::Error;
use query::pipeline::{Advance, Source};
use tokio::runtime::Handle;

pub(crate) struct ScanSource {
    scan: ElasticScan,
    current: Option<Piece>,
}

impl ScanSource {
    /// ⚑ A pipeline under way cannot be routed again.
    pub(crate) fn new(mut scan: ElasticScan) -> ScanSource {
        scan.is_begun();
        ScanSource {
            scan,
            current: None,
        }
    }
}

impl Source for ScanSource {
    fn advance(&mut self) -> Result<Advance, Error> {
        self.current = match self.scan.arrived() {
            Some(piece) => Some(piece),
            None => wait(Box::pin(self.scan.next()))?,
        };
        Ok(match self.current {
            Some(_) => Advance::Document,
            None => Advance::End,
        })
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_ref().map_or(Doc::EMPTY, Piece::document)
    }

    fn take(&mut self) -> DocBuf {
        let taken = self.current.take();
        taken.map_or_else(DocBuf::new, |piece| piece.document().to_owned())
    }
}

impl Drop for ScanSource {
    fn drop(&mut self) {
        let open = self.scan.take_open();
        let namespace = self.scan.namespace().clone();
        if let (false, Ok(runtime)) = (open.is_empty(), Handle::try_current()) {
            runtime.spawn(async move {
                for cursor in open {
                    kill_cursor(&*cursor.member, namespace.as_str(), cursor.id).await;
                }
            });
        }
    }
}
