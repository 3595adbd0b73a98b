//! What a handler answers: one document, and possibly the request that continues the stream.
//!
//! The document is built behind room for the message header, so that sending it fills in the
//! header and copies nothing:
//!
//! ```text
//!   | header 16 | flags 4 | section kind 1 | document ... |
//!   '----------- PREFIX_BYTES ------------'
//! ```

use model::bson::{Doc, DocBuf, DocWriter};
use model::error::{Code, Error};

use crate::protocol::HEADER_SIZE;
use crate::request::Request;
use crate::spare;

/// Room in front of a reply's document: the message header, flag bits, and the section's kind.
pub(crate) const PREFIX_BYTES: usize = HEADER_SIZE + 4 + 1;

/// The answer to a [`Request`].
#[derive(Debug)]
pub struct Reply {
    /// `PREFIX_BYTES` of room, then the document.
    buffer: Vec<u8>,
    next: Option<Box<Request>>,
}

impl Reply {
    /// A writer for a reply's document; [`Reply::from_writer`] takes it back.
    pub fn writer() -> DocWriter {
        Reply::writer_with_capacity(512)
    }

    /// Like [`Reply::writer`], with room for a document of `document_bytes`.
    pub fn writer_with_capacity(document_bytes: usize) -> DocWriter {
        let mut buffer = spare::take(PREFIX_BYTES + document_bytes);
        buffer.resize(PREFIX_BYTES, 0);
        DocWriter::with_buffer(buffer)
    }

    /// Finishes a document that was begun with [`Reply::writer`].
    pub fn from_writer(writer: DocWriter) -> Reply {
        let buffer = writer.finish_buffer();
        let claimed = buffer
            .get(PREFIX_BYTES..)
            .and_then(|document| document.first_chunk::<4>())
            .map(|length| i32::from_le_bytes(*length) as usize);
        assert_eq!(
            claimed,
            Some(buffer.len() - PREFIX_BYTES),
            "a reply's document begins behind the room that Reply::writer makes"
        );
        Reply { buffer, next: None }
    }

    /// A reply that copies a finished document.
    pub fn from_doc(document: Doc<'_>) -> Reply {
        let mut buffer = Vec::with_capacity(PREFIX_BYTES + document.len());
        buffer.resize(PREFIX_BYTES, 0);
        buffer.extend_from_slice(document.as_bytes());
        Reply { buffer, next: None }
    }

    /// `{ok: 1}`.
    pub fn ok() -> Reply {
        Reply::from_writer(Reply::writer_with_capacity(32).with("ok", 1.0))
    }

    /// `{ok: 0, errmsg, code, codeName}` and the error's own details.
    pub fn error(error: &Error) -> Reply {
        let mut writer = Reply::writer_with_capacity(128 + error.message.len())
            .with("ok", 0.0)
            .with("errmsg", error.message.as_str())
            .with("code", error.code.0)
            .with("codeName", error.code.name().as_str());
        if let Some(details) = &error.details {
            for element in details.iter() {
                writer.append_element(&element);
            }
        }
        Reply::from_writer(writer)
    }

    /// Adds elements, encoded, at the end of the document.
    pub fn append_elements(&mut self, elements: &[u8]) {
        // The document's last byte is its end.
        self.buffer.pop();
        self.buffer.reserve_exact(elements.len() + 1);
        self.buffer.extend_from_slice(elements);
        self.buffer.push(0);
        let length = (self.buffer.len() - PREFIX_BYTES) as i32;
        self.buffer[PREFIX_BYTES..][..4].copy_from_slice(&length.to_le_bytes());
    }

    /// Continues a stream: if the client allowed it ([`Request::exhaust_allowed`]), `next` is
    /// handled as soon as this reply is sent, without being asked for. Otherwise it is dropped.
    pub fn then(mut self, next: Request) -> Reply {
        self.next = Some(Box::new(next));
        self
    }

    /// The answer's document.
    pub fn document(&self) -> Doc<'_> {
        Doc::from_validated(&self.buffer[PREFIX_BYTES..])
    }

    pub fn into_document(self) -> DocBuf {
        self.document().to_owned()
    }

    /// Takes the request that continues the stream, if there is one.
    pub fn take_next(&mut self) -> Option<Request> {
        self.next.take().map(|next| *next)
    }

    /// Lets a writer of another reply go on in this one's buffer, if it begins alike: see
    /// [`DocWriter::go_on_in`]. `until` counts from the beginning of the document.
    pub fn go_on_with(
        mut self,
        writer: &mut DocWriter,
        until: usize,
        count: u32,
    ) -> Result<(), Reply> {
        let buffer = std::mem::take(&mut self.buffer);
        match writer.go_on_in(buffer, PREFIX_BYTES + until, count) {
            // A long one is missed by the next reply that comes.
            Ok(former) => {
                spare::give(former);
                Ok(())
            }
            Err(buffer) => {
                self.buffer = buffer;
                Err(self)
            }
        }
    }

    /// Takes a whole received message whose one section is a validated document.
    pub(crate) fn from_message(buffer: Vec<u8>) -> Reply {
        Reply { buffer, next: None }
    }

    pub(crate) fn into_buffer(mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        spare::give(std::mem::take(&mut self.buffer));
    }
}

impl From<DocBuf> for Reply {
    fn from(document: DocBuf) -> Reply {
        Reply::from_doc(document.as_doc())
    }
}

impl From<Result<Reply, Error>> for Reply {
    fn from(result: Result<Reply, Error>) -> Reply {
        result.unwrap_or_else(|error| Reply::error(&error))
    }
}

/// The error for a document that no message may carry.
pub(crate) fn too_large(bytes: usize, bytes_max: usize) -> Error {
    let message = format!(
        "BSONObj size: {bytes} (0x{bytes:X}) is invalid. Size must be between 0 and {bytes_max}(16MB)"
    );
    Error::new(Code::BSON_OBJECT_TOO_LARGE, message)
}
