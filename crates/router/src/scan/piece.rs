//! Results where they lie in a shard's reply: one document, or a whole batch that is passed on as it came.

use crate::merge::Batch;
use crate::registry::{array_of, batch_of};
use model::bson::{Doc, Kind};
use std::ops::Range;
use std::sync::Arc;
use wire::Reply;

/// A document where it lies in a shard's reply, or all documents of a batch.
#[derive(Clone)]
pub(crate) struct Piece {
    reply: Arc<Reply>,
    bytes: Range<usize>,
    /// The bytes are a whole array, of so many documents.
    batch_of: Option<u32>,
}

impl Piece {
    /// `document` must be one of the reply's.
    pub(super) fn new(reply: &Arc<Reply>, document: Doc<'_>) -> Option<Piece> {
        Some(Piece {
            bytes: place_in(reply, document.as_bytes())?,
            reply: reply.clone(),
            batch_of: None,
        })
    }

    /// All documents of the reply's batch; `None` if it holds none, or anything else.
    pub(super) fn batch(reply: &Arc<Reply>) -> Option<Piece> {
        let batch = array_of(reply.document().get_doc("cursor")?)?;
        let mut documents = 0;
        for element in batch.elements() {
            if element.kind() != Kind::Document {
                return None;
            }
            documents += 1;
        }
        (documents > 0).then_some(Piece {
            bytes: place_in(reply, batch.as_bytes())?,
            reply: reply.clone(),
            batch_of: Some(documents),
        })
    }

    pub(crate) fn is_batch(&self) -> bool {
        self.batch_of.is_some()
    }

    /// Puts a batch as it came into one that is empty, if it fits.
    pub(crate) fn pass_on(&self, batch: &mut Batch) -> bool {
        let array = &self.reply.document().as_bytes()[self.bytes.clone()];
        // Between its length and its end.
        let elements = &array[4..array.len() - 1];
        self.batch_of
            .is_some_and(|documents| batch.offer_all(elements, documents))
    }

    /// The documents of a batch, each by itself.
    pub(crate) fn split(self) -> Vec<Piece> {
        let cursor = self.reply.document().get_doc("cursor");
        let documents = cursor.into_iter().flat_map(batch_of);
        let pieces = documents.filter_map(|document| Piece::new(&self.reply, document));
        pieces.collect()
    }

    pub(crate) fn document(&self) -> Doc<'_> {
        Doc::from_validated(&self.reply.document().as_bytes()[self.bytes.clone()])
    }
}

/// Where a part of a reply lies in it.
fn place_in(reply: &Reply, part: &[u8]) -> Option<Range<usize>> {
    let whole = reply.document().as_bytes();
    let start = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    let place = start..start + part.len();
    whole.get(place.clone())?;
    Some(place)
}
