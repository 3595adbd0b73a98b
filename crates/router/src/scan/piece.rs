//! Results where they lie in a shard's reply: one document, or a whole batch that is passed on as it came.

use crate::merge::Batch;
use crate::registry::array_of;
use model::bson::{Array, Doc, Kind};
use model::error::{Code, Error};
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

    /// A document that lies in no reply.
    pub(super) fn of(document: Doc<'_>) -> Piece {
        let reply = Reply::from_doc(document);
        Piece {
            bytes: 0..reply.document().len(),
            reply: Arc::new(reply),
            batch_of: None,
        }
    }

    /// All documents of the reply's batch, which need not be checked; `None` if it holds none.
    pub(super) fn batch(reply: &Arc<Reply>) -> Result<Option<Piece>, &'static str> {
        let cursor = reply.document().get_doc("cursor");
        let batch = cursor.and_then(array_of).ok_or("it holds no batch")?;
        let mut documents = 0;
        for element in batch.elements() {
            if element.kind() != Kind::Document {
                return Err("its batch holds something else than documents");
            }
            documents += 1;
        }
        let bytes = place_in(reply, batch.as_bytes()).ok_or("its batch lies outside")?;
        Ok((documents > 0).then(|| Piece {
            bytes,
            reply: reply.clone(),
            batch_of: Some(documents),
        }))
    }

    /// How many documents it is.
    pub(super) fn documents(&self) -> u64 {
        self.batch_of.map_or(1, u64::from)
    }

    pub(crate) fn is_batch(&self) -> bool {
        self.batch_of.is_some()
    }

    /// Whether it is a batch that can be passed on as it came.
    pub(crate) fn fits(&self, batch: &Batch) -> bool {
        self.batch_of
            .is_some_and(|documents| batch.has_room_for_batch(documents, self.bytes.len()))
    }

    /// Puts a batch that [fits](Piece::fits) into another one.
    pub(crate) fn pass_on(self, batch: &mut Batch) {
        // Between its length and its end.
        let elements = self.bytes.start + 4..self.bytes.end - 1;
        batch.take_all(self.reply, elements, self.batch_of.unwrap_or(0));
    }

    /// The documents of a batch, each by itself; they are checked now.
    pub(crate) fn split(&self) -> Result<Vec<Piece>, Error> {
        let cursor = self.reply.document().get_doc("cursor");
        let batch = cursor.and_then(array_of).unwrap_or(Array::EMPTY);
        let mut pieces = Vec::with_capacity(self.batch_of.unwrap_or(0) as usize);
        for element in batch.elements() {
            let document = Doc::from_bytes(element.value_bytes());
            let document = document.map_err(|error| {
                let message = format!("a shard sent a document that is none: {error}");
                Error::new(Code::INVALID_BSON, message)
            })?;
            pieces.extend(Piece::new(&self.reply, document));
        }
        Ok(pieces)
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

#[cfg(test)]
mod tests {
    use super::*;
    use model::bson::DocWriter;

    fn reply(elements: &[u8], documents: u32) -> Arc<Reply> {
        let mut writer = Reply::writer();
        writer.begin_document("cursor").begin_array("nextBatch");
        writer.push_all(elements, documents);
        writer.end().end();
        Arc::new(Reply::from_writer(writer))
    }

    fn element(kind: u8, key: &str, value: &[u8]) -> Vec<u8> {
        [&[kind][..], key.as_bytes(), &[0], value].concat()
    }

    #[test]
    fn a_batch_is_checked_when_it_is_taken_apart() {
        let whole = DocWriter::new().with("a", 1).finish();
        let mut broken = DocWriter::new().with("a", "text").finish().into_bytes();
        // The string's length.
        broken[7] = 0x7f;
        for (second, taken) in [(whole.as_bytes(), true), (&broken, false)] {
            let first = element(3, "0", whole.as_bytes());
            let elements = [first, element(3, "1", second)].concat();
            let batch = Piece::batch(&reply(&elements, 2)).expect("a batch");
            let batch = batch.expect("that is not empty");
            assert!(batch.is_batch());
            match batch.split() {
                Ok(pieces) => {
                    assert!(taken, "a broken document was taken");
                    assert!(
                        pieces
                            .iter()
                            .all(|piece| piece.document() == whole.as_doc())
                    );
                    assert_eq!(pieces.len(), 2);
                }
                Err(error) => {
                    assert!(!taken, "{error}");
                    assert_eq!(error.code, Code::INVALID_BSON);
                }
            }
        }
    }

    #[test]
    fn batches_without_documents() {
        assert!(matches!(Piece::batch(&reply(&[], 0)), Ok(None)));
        let number = element(16, "0", &7_i32.to_le_bytes());
        assert!(Piece::batch(&reply(&number, 1)).is_err());
        assert!(Piece::batch(&Arc::new(Reply::ok())).is_err());
    }
}
