//! The numbers of the protocol: opcodes, flag bits, limits, and the message header.
//!
//! ```text
//!   every message     | length i32 | request id i32 | response to i32 | opcode i32 | payload |
//!   OP_MSG            | flags u32 | section, section, ... | checksum u32 if flag bit 0 |
//!     section kind 0  | 0 u8 | document |                          exactly one: the command
//!     section kind 1  | 1 u8 | size i32 | name cstring | documents |
//!   OP_COMPRESSED     | original opcode i32 | uncompressed size i32 | compressor u8 | bytes |
//!   OP_QUERY          | flags i32 | namespace cstring | skip i32 | limit i32 | document | [fields] |
//!   OP_REPLY          | flags i32 | cursor id i64 | starting from i32 | count i32 | documents |
//! ```
//!
//! All integers are little-endian; `length` counts the header.

/// Bytes of the header in front of every message.
pub const HEADER_SIZE: usize = 16;

/// The largest message that is accepted, header included, and what `hello` advertises.
pub const MESSAGE_BYTES_MAX: usize = 48_000_000;

/// The largest document that users may store, as `hello` advertises it.
pub const DOCUMENT_BYTES_MAX: usize = model::bson::MAX_DOCUMENT_BYTES;

/// The largest document inside a request: a command that carries the largest user document needs
/// room for its own fields.
pub const INTERNAL_DOCUMENT_BYTES_MAX: usize = model::bson::MAX_INTERNAL_BYTES;

/// The largest document of a reply: a batch of the largest user document, or a page of what goes from
/// member to member, with all that is said beside it (places within keys, lists of ranges, histories).
pub const REPLY_DOCUMENT_BYTES_MAX: usize = DOCUMENT_BYTES_MAX + 2 * 1024 * 1024;

/// Statements in one write command, as `hello` advertises it.
pub const WRITE_BATCH_COUNT_MAX: usize = 100_000;

pub const OP_REPLY: i32 = 1;
pub const OP_QUERY: i32 = 2004;
pub const OP_GET_MORE: i32 = 2005;
pub const OP_COMPRESSED: i32 = 2012;
pub const OP_MSG: i32 = 2013;

/// A CRC-32C of everything before it ends the message.
pub const FLAG_CHECKSUM_PRESENT: u32 = 1;
/// The sender sends another message without waiting: no reply to this one.
pub const FLAG_MORE_TO_COME: u32 = 1 << 1;
/// The client accepts several replies to this request.
pub const FLAG_EXHAUST_ALLOWED: u32 = 1 << 16;

/// The header in front of every message, as received: nothing in it is checked yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub length: i32,
    pub request_id: i32,
    pub response_to: i32,
    pub opcode: i32,
}

impl Header {
    pub fn parse(bytes: &[u8; HEADER_SIZE]) -> Header {
        let field = |at: usize| {
            i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Header {
            length: field(0),
            request_id: field(4),
            response_to: field(8),
            opcode: field(12),
        }
    }

    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.request_id.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.response_to.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.opcode.to_le_bytes());
        bytes
    }
}
