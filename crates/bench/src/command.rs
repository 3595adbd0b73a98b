//! Commands as prebuilt bytes, patched in place.
//!
//! The client shares the machine with the server it measures, so it must cost little: a command is
//! encoded once per connection, and for each request only the bytes that differ are overwritten.
//! That works because everything that varies has a fixed width (keys and values are padded strings,
//! numbers are int32), so no length inside the BSON changes.
//!
//! ```text
//!  OP_MSG   length | request id | response to | 2013 | flags | 0 | body | [1 | size | name\0 | documents…]
//!                    ^^^^^^^^^^ patched by the connection         ^^^ slots patched by the operation
//! ```
//!
//! Slots are found by *marker*: the command is built with a recognisable value of the right width
//! (see [`marker`]) that must occur exactly once in the frame.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use bson::Document;

pub const OP_MSG: i32 = 2013;
pub const HEADER_BYTES: usize = 16;
/// Header, flags and the kind byte of the first section.
pub const BODY_OFFSET: usize = HEADER_BYTES + 5;

/// Values that stand where a request is patched.
pub mod marker {
    /// An int32 slot; the value is unlikely to occur as bytes of anything else.
    pub const NUMBER: i32 = 0x7e57_1e55;

    /// An int64 slot.
    pub const LONG: i64 = 0x7e57_1e56_7e57_1e57;

    /// A string slot of this many bytes.
    pub fn text(bytes: usize) -> String {
        "@".repeat(bytes)
    }
}

/// A place in a request that is overwritten before each send.
#[derive(Debug, Clone)]
pub struct Slot(Range<usize>);

impl Slot {
    pub fn new(start: usize, bytes: usize) -> Slot {
        Slot(start..start + bytes)
    }
}

/// One OP_MSG frame, ready to send but for its request id.
#[derive(Debug, Clone)]
pub struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// A frame whose only section is the command itself.
    pub fn new(command: &Document) -> Result<Request> {
        let body = command.to_vec().context("encoding a command")?;
        let mut bytes = Vec::with_capacity(BODY_OFFSET + body.len());
        bytes.extend_from_slice(&[0; 12]);
        bytes.extend_from_slice(&OP_MSG.to_le_bytes());
        bytes.extend_from_slice(&[0; 5]);
        bytes.extend_from_slice(&body);
        let mut request = Request { bytes };
        request.write_length();
        Ok(request)
    }

    /// A frame with a document sequence, the way drivers send inserts and updates.
    /// Returns the offset of the first document; the others follow without a gap.
    pub fn with_sequence(
        command: &Document,
        name: &str,
        documents: &[Vec<u8>],
    ) -> Result<(Request, usize)> {
        let mut request = Request::new(command)?;
        let content: usize = documents.iter().map(Vec::len).sum();
        let size = 4 + name.len() + 1 + content;
        request.bytes.push(1);
        request
            .bytes
            .extend_from_slice(&i32::try_from(size)?.to_le_bytes());
        request.bytes.extend_from_slice(name.as_bytes());
        request.bytes.push(0);
        let first = request.bytes.len();
        for document in documents {
            request.bytes.extend_from_slice(document);
        }
        request.write_length();
        Ok((request, first))
    }

    fn write_length(&mut self) {
        let length =
            i32::try_from(self.bytes.len()).expect("a benchmark command is far below 2 GiB");
        self.bytes[..4].copy_from_slice(&length.to_le_bytes());
    }

    /// The slot of a marker that occurs exactly once.
    pub fn slot(&self, marker: &[u8]) -> Result<Slot> {
        find_once(&self.bytes, marker)
    }

    pub fn number_slot(&self) -> Result<Slot> {
        self.slot(&marker::NUMBER.to_le_bytes())
    }

    /// A slot at a known place, for documents repeated in a batch.
    pub fn slot_at(&self, slot: &Slot, shifted_by: usize) -> Slot {
        let shifted = slot.0.start + shifted_by..slot.0.end + shifted_by;
        assert!(
            shifted.end <= self.bytes.len(),
            "a slot lies inside its request"
        );
        Slot(shifted)
    }

    pub fn patch(&mut self, slot: &Slot, value: &[u8]) {
        // copy_from_slice panics on another width, which would be a bug of the operation's own.
        self.bytes[slot.0.clone()].copy_from_slice(value);
    }

    pub fn patch_number(&mut self, slot: &Slot, value: i32) {
        self.patch(slot, &value.to_le_bytes());
    }

    pub fn set_request_id(&mut self, id: i32) {
        self.bytes[4..8].copy_from_slice(&id.to_le_bytes());
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Where a marker stands in some bytes, when it stands there exactly once.
pub fn find_once(bytes: &[u8], marker: &[u8]) -> Result<Slot> {
    let mut found = bytes
        .windows(marker.len())
        .enumerate()
        .filter(|(_, window)| *window == marker);
    let (offset, _) = found.next().context("a marker is missing in a command")?;
    ensure!(
        found.next().is_none(),
        "a marker occurs twice in a command: {marker:?}"
    );
    Ok(Slot(offset..offset + marker.len()))
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    /// The body of a request, decoded again.
    fn body(request: &Request) -> Document {
        let bytes = request.bytes();
        let length = i32::from_le_bytes(
            bytes[BODY_OFFSET..BODY_OFFSET + 4]
                .try_into()
                .expect("four bytes"),
        );
        Document::from_reader(&bytes[BODY_OFFSET..BODY_OFFSET + length as usize])
            .expect("a valid body")
    }

    #[test]
    fn patched_text_and_number_decode() {
        let mut request = Request::new(&doc! {
            "find": "usertable",
            "filter": { "_id": { "$gte": marker::text(8) } },
            "limit": marker::NUMBER,
            "$db": "bench",
        })
        .expect("a request");
        let key = request.slot(marker::text(8).as_bytes()).expect("a slot");
        let limit = request.number_slot().expect("a slot");
        for (text, number) in [("user0001", 1), ("user9999", 100), ("zzzzzzzz", -1)] {
            request.patch(&key, text.as_bytes());
            request.patch_number(&limit, number);
            let expected = doc! {
                "find": "usertable",
                "filter": { "_id": { "$gte": text } },
                "limit": number,
                "$db": "bench",
            };
            assert_eq!(body(&request), expected);
        }
    }

    #[test]
    fn a_marker_must_occur_once() {
        let twice = doc! { "a": marker::text(4), "b": marker::text(4) };
        let request = Request::new(&twice).expect("a request");
        assert!(request.slot(marker::text(4).as_bytes()).is_err());
        assert!(request.slot(b"absent").is_err());
        assert!(request.number_slot().is_err());
    }

    #[test]
    fn a_sequence_keeps_its_documents_apart() {
        let template = doc! { "_id": marker::text(4) }.to_vec().expect("bytes");
        let documents = vec![template.clone(); 3];
        let command = doc! { "insert": "t", "$db": "bench" };
        let (mut request, first) =
            Request::with_sequence(&command, "documents", &documents).expect("a request");
        let slot = find_once(&template, marker::text(4).as_bytes()).expect("a slot");
        for (position, key) in ["aaaa", "bbbb", "cccc"].iter().enumerate() {
            let shifted = request.slot_at(&slot, first + position * template.len());
            request.patch(&shifted, key.as_bytes());
        }
        let bytes = request.bytes();
        assert_eq!(
            bytes.len(),
            i32::from_le_bytes(bytes[..4].try_into().expect("four bytes")) as usize
        );
        assert_eq!(body(&request), command);
        for (position, key) in ["aaaa", "bbbb", "cccc"].iter().enumerate() {
            let start = first + position * template.len();
            let document = Document::from_reader(&bytes[start..start + template.len()])
                .expect("a valid document");
            assert_eq!(document, doc! { "_id": *key });
        }
        let section = first - "documents\0".len() - 4;
        let size = i32::from_le_bytes(bytes[section..section + 4].try_into().expect("four bytes"));
        assert_eq!(size as usize, bytes.len() - section);
    }
}
