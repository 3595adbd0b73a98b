//! How a request wants to be answered, and the bytes of that answer.
//!
//! A reply mirrors its request: an OP_MSG for an OP_MSG, an OP_REPLY for the legacy OP_QUERY, a
//! checksum for a checksum, the same compressor. (A client must not compress a handshake; one
//! that does gets a compressed reply, as from the real server.)

use crate::compression::Compressor;
use crate::protocol::{
    FLAG_CHECKSUM_PRESENT, FLAG_MORE_TO_COME, HEADER_SIZE, Header, OP_COMPRESSED, OP_MSG, OP_REPLY,
    REPLY_DOCUMENT_BYTES_MAX,
};
use crate::reply::{PREFIX_BYTES, Reply, too_large};

/// OP_REPLY: the server understands waiting on cursors, which every server does today.
const REPLY_FLAG_AWAIT_CAPABLE: i32 = 8;
/// OP_REPLY: the document is an error of the form `{$err, code}`.
const REPLY_FLAG_QUERY_FAILURE: i32 = 2;

/// The shape of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Message {
        checksum: bool,
    },
    /// The answer to a command inside OP_QUERY.
    LegacyCommand,
    /// The answer to any other legacy request: always an error.
    LegacyFailure,
}

/// What must be known of a request to answer it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub request_id: i32,
    pub form: Form,
    pub compressor: Option<Compressor>,
    /// The request asked for no reply, not even an error.
    pub silent: bool,
    pub exhaust_allowed: bool,
}

/// An encoded reply.
pub(crate) struct Encoded {
    pub bytes: Vec<u8>,
    /// Bytes of the message before compression.
    pub logical_bytes: usize,
}

impl Envelope {
    /// Encodes a reply. `response_to` is the request's id or, in a stream, the previous reply's.
    pub fn seal(
        &self,
        reply: Reply,
        reply_id: i32,
        response_to: i32,
        more_to_come: bool,
    ) -> Encoded {
        let document_bytes = reply.document().len();
        let reply = if document_bytes > REPLY_DOCUMENT_BYTES_MAX {
            Reply::error(&too_large(document_bytes, REPLY_DOCUMENT_BYTES_MAX))
        } else {
            reply
        };
        let header = Header {
            length: 0,
            request_id: reply_id,
            response_to,
            opcode: OP_MSG,
        };
        let message = match self.form {
            Form::Message { checksum } => seal_message(header, reply, checksum, more_to_come),
            Form::LegacyCommand => seal_legacy(header, reply, REPLY_FLAG_AWAIT_CAPABLE),
            Form::LegacyFailure => seal_legacy(header, reply, REPLY_FLAG_QUERY_FAILURE),
        };
        let logical_bytes = message.len();
        let bytes = match self.compressor {
            Some(compressor) => seal_compressed(compressor, message),
            None => message,
        };
        Encoded {
            bytes,
            logical_bytes,
        }
    }
}

/// Fills in the room in front of the document; nothing is copied.
fn seal_message(mut header: Header, reply: Reply, checksum: bool, more_to_come: bool) -> Vec<u8> {
    let mut message = reply.into_buffer();
    let mut flags = 0;
    if more_to_come {
        flags |= FLAG_MORE_TO_COME;
    }
    if checksum {
        flags |= FLAG_CHECKSUM_PRESENT;
    }
    header.length = (message.len() + if checksum { 4 } else { 0 }) as i32;
    message[..HEADER_SIZE].copy_from_slice(&header.encode());
    message[HEADER_SIZE..HEADER_SIZE + 4].copy_from_slice(&flags.to_le_bytes());
    message[PREFIX_BYTES - 1] = 0;
    if checksum {
        let sum = crc32c::crc32c(&message);
        message.extend_from_slice(&sum.to_le_bytes());
    }
    message
}

fn seal_legacy(mut header: Header, reply: Reply, flags: i32) -> Vec<u8> {
    let document = reply.document().as_bytes();
    let mut message = Vec::with_capacity(HEADER_SIZE + 20 + document.len());
    header.opcode = OP_REPLY;
    header.length = (HEADER_SIZE + 20 + document.len()) as i32;
    message.extend_from_slice(&header.encode());
    message.extend_from_slice(&flags.to_le_bytes());
    message.extend_from_slice(&0i64.to_le_bytes()); // cursor id: none
    message.extend_from_slice(&0i32.to_le_bytes()); // starting from
    message.extend_from_slice(&1i32.to_le_bytes()); // number of documents
    message.extend_from_slice(document);
    message
}

/// Wraps a message; one that does not compress for any reason is sent as it is, which every
/// client must be able to read.
fn seal_compressed(compressor: Compressor, message: Vec<u8>) -> Vec<u8> {
    let Some((header, payload)) = message.split_first_chunk::<HEADER_SIZE>() else {
        return message;
    };
    let mut header = Header::parse(header);
    let mut wrapped = Vec::with_capacity(HEADER_SIZE + 9 + payload.len() / 2);
    wrapped.extend_from_slice(&[0; HEADER_SIZE]);
    wrapped.extend_from_slice(&header.opcode.to_le_bytes());
    wrapped.extend_from_slice(&(payload.len() as i32).to_le_bytes());
    wrapped.push(compressor.id());
    if let Err(error) = compressor.compress(payload, &mut wrapped) {
        tracing::warn!(%error, compressor = compressor.name(), "reply is sent uncompressed");
        return message;
    }
    header.opcode = OP_COMPRESSED;
    header.length = wrapped.len() as i32;
    wrapped[..HEADER_SIZE].copy_from_slice(&header.encode());
    wrapped
}
