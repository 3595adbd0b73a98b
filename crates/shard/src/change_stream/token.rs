//! Resume tokens: `{_data: "<hexadecimal>"}`, a place in the log.
//!
//! ```text
//!   [82][seconds 4][increment 4]    the time of the entry
//!   [2B 02]                         version 1
//!   [29] | [2C 01 00]               a high-water mark | an event
//!   [number]                        which operation of the entry
//!   [6E] | [6F]                     the operation's own event | the invalidation it causes
//!   [5A 10 04][uuid 16]             the collection, if there is one
//!   [46][record key][00]            the document, if there is one
//!   [04]
//! ```
//!
//! The layout is MongoDB's, so that tools which look for the time find it; the bytes
//! of a document's key are our own. Tokens order as their bytes do: by time, then a
//! high-water mark before the events, then by operation. A high-water mark at a time
//! stands before everything of that time.

use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::key::RecordKey;
use model::time::ClusterTime;
use model::{Code, Error};

const TIME: u8 = 0x82;
const VERSION: [u8; 2] = [0x2B, 0x02];
const ZERO: u8 = 0x29;
/// Numbers of one, two and three bytes.
const NUMBERS: [u8; 3] = [0x2B, 0x2C, 0x2D];
const EVENT: [u8; 3] = [0x2C, 0x01, 0x00];
const FALSE: u8 = 0x6E;
const TRUE: u8 = 0x6F;
const BINARY: [u8; 3] = [0x5A, 0x10, 0x04];
const DOCUMENT: u8 = 0x46;
const END: u8 = 0x04;

/// A place in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ResumeToken {
    pub(crate) time: ClusterTime,
    pub(crate) at: At,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum At {
    /// Before everything of the time.
    HighWaterMark,
    /// Right behind an event.
    Event {
        operation: u32,
        /// The `invalidate` that follows the operation's own event.
        invalidates: bool,
        /// Collection and document, as they stand in the token.
        identity: Vec<u8>,
    },
}

impl ResumeToken {
    pub(crate) fn high_water_mark(time: ClusterTime) -> Self {
        Self {
            time,
            at: At::HighWaterMark,
        }
    }

    pub(crate) fn event(
        time: ClusterTime,
        operation: usize,
        invalidates: bool,
        uuid: Option<&[u8]>,
        id: Option<ValueRef<'_>>,
    ) -> Self {
        let mut identity = Vec::new();
        if let Some(uuid) = uuid {
            identity.extend_from_slice(&BINARY);
            identity.extend_from_slice(uuid);
        }
        if let Some(id) = id {
            identity.push(DOCUMENT);
            identity.extend_from_slice(RecordKey::from_id(id).as_bytes());
            identity.push(0);
        }
        Self {
            time,
            at: At::Event {
                operation: u32::try_from(operation).unwrap_or(u32::MAX),
                invalidates,
                identity,
            },
        }
    }

    pub(crate) fn to_document(&self) -> DocBuf {
        let mut bytes = vec![TIME];
        bytes.extend_from_slice(&self.time.to_u64().to_be_bytes());
        bytes.extend_from_slice(&VERSION);
        match &self.at {
            At::HighWaterMark => bytes.extend_from_slice(&[ZERO, ZERO, FALSE]),
            At::Event {
                operation,
                invalidates,
                identity,
            } => {
                bytes.extend_from_slice(&EVENT);
                put_number(&mut bytes, *operation);
                bytes.push(if *invalidates { TRUE } else { FALSE });
                bytes.extend_from_slice(identity);
            }
        }
        bytes.push(END);
        let hexadecimal: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
        DocWriter::new()
            .with("_data", hexadecimal.as_str())
            .finish()
    }

    /// Reads a token that a client sent.
    pub(crate) fn parse(token: Doc<'_>) -> Result<Self, Error> {
        let Some(text) = token.get_str("_data") else {
            return Err(Error::location(
                40647,
                format!(
                    "Bad resume token: _data of missing or of wrong type. Expected string, got \
                     {token:?}"
                ),
            ));
        };
        if text.is_empty() {
            return Err(Error::location(40649, "invalid empty resume token"));
        }
        let bytes = from_hexadecimal(text).ok_or_else(|| {
            Error::new(
                Code::FAILED_TO_PARSE,
                "resume token string was not a valid hex string",
            )
        })?;
        let mut rest = &bytes[..];
        take_time(&mut rest)?;
        let (time, mut rest) = rest.split_first_chunk::<8>().ok_or_else(too_short)?;
        let time = ClusterTime::from_u64(u64::from_be_bytes(*time));
        if !skip(&mut rest, &VERSION) {
            return Err(malformed("unknown version"));
        }
        let is_event = skip(&mut rest, &EVENT);
        if !is_event && !skip(&mut rest, &[ZERO]) {
            return Err(malformed("unknown kind"));
        }
        let operation = take_number(&mut rest)?;
        let (&flag, rest) = rest.split_first().ok_or_else(too_short)?;
        let invalidates = match flag {
            FALSE => false,
            TRUE => true,
            _ => return Err(malformed("unknown flag")),
        };
        let Some((&END, identity)) = rest.split_last() else {
            return Err(malformed("no end"));
        };
        let at = match is_event {
            false => At::HighWaterMark,
            true => At::Event {
                operation,
                invalidates,
                identity: identity.to_vec(),
            },
        };
        Ok(Self { time, at })
    }
}

fn put_number(bytes: &mut Vec<u8>, number: u32) {
    if number == 0 {
        bytes.push(ZERO);
        return;
    }
    // Operations of one entry never need more than three bytes; see `insert.rs`.
    let shifted = (number << 1).to_be_bytes();
    let length = match number {
        0..0x80 => 1,
        0x80..0x8000 => 2,
        _ => 3,
    };
    bytes.push(NUMBERS[length - 1]);
    bytes.extend_from_slice(&shifted[4 - length..]);
}

fn take_number(rest: &mut &[u8]) -> Result<u32, Error> {
    if skip(rest, &[ZERO]) {
        return Ok(0);
    }
    let (&tag, after) = rest.split_first().ok_or_else(too_short)?;
    let length = NUMBERS
        .iter()
        .position(|number| *number == tag)
        .ok_or_else(|| malformed("unknown number"))?
        + 1;
    let (digits, after) = after.split_at_checked(length).ok_or_else(too_short)?;
    *rest = after;
    let number = digits
        .iter()
        .fold(0u32, |number, digit| number << 8 | u32::from(*digit));
    Ok(number >> 1)
}

fn take_time(rest: &mut &[u8]) -> Result<(), Error> {
    match skip(rest, &[TIME]) {
        true => Ok(()),
        false => Err(malformed("it does not begin with a time")),
    }
}

fn skip(rest: &mut &[u8], prefix: &[u8]) -> bool {
    match rest.strip_prefix(prefix) {
        Some(after) => {
            *rest = after;
            true
        }
        None => false,
    }
}

fn from_hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|digit| digit.to_digit(16).map(|digit| digit as u8))
        .collect();
    let digits = digits?;
    if digits.len() % 2 == 1 {
        return None;
    }
    Some(
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect(),
    )
}

fn too_short() -> Error {
    Error::new(Code::OVERFLOW, "the resume token ends too early")
}

fn malformed(what: &str) -> Error {
    Error::new(
        Code::INVALID_RESUME_TOKEN,
        format!("Invalid resume token: {what}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(operation: usize, id: i32) -> ResumeToken {
        let time = ClusterTime::new(0x6AFA_420D, 3);
        ResumeToken::event(
            time,
            operation,
            false,
            Some(&[7; 16]),
            Some(ValueRef::Int32(id)),
        )
    }

    #[test]
    fn a_high_water_mark_is_written_as_mongodb_does() {
        let mark = ResumeToken::high_water_mark(ClusterTime::new(0x6AFA_4822, 6));
        let document = mark.to_document();
        assert_eq!(
            document.as_doc().get_str("_data"),
            Some("826AFA4822000000062B0229296E04")
        );
    }

    #[test]
    fn bad_tokens_are_refused_with_mongodbs_codes() {
        let check = |token: DocBuf, code: i32| {
            let error = ResumeToken::parse(token.as_doc()).expect_err("a bad token");
            assert_eq!(error.code, Code(code), "{token:?}");
        };
        let data = |text: &str| DocWriter::new().with("_data", text).finish();
        check(DocBuf::new(), 40647);
        check(DocWriter::new().with("_data", 1).finish(), 40647);
        check(data(""), 40649);
        check(data("zz"), 9);
        check(data("825"), 9);
        check(data("82"), 15);
        check(data("04"), 260);
        check(data("826AFA4822000000062B04292"), 9);
        check(data("826AFA4822000000062B0429296E04"), 260);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(operation in 0..100_000usize, id in any::<i32>()) {
            let token = token(operation, id);
            let document = token.to_document();
            prop_assert_eq!(ResumeToken::parse(document.as_doc()).unwrap(), token);
        }

        #[test]
        fn tokens_order_as_their_places(a in 0..100_000usize, b in 0..100_000usize) {
            let text = |operation| {
                let document = token(operation, 1).to_document();
                document.as_doc().get_str("_data").unwrap().to_owned()
            };
            prop_assert_eq!(text(a).cmp(&text(b)), a.cmp(&b));
            let mark = ResumeToken::high_water_mark(ClusterTime::new(0x6AFA_420D, 3));
            let mark = mark.to_document();
            prop_assert!(mark.as_doc().get_str("_data").unwrap() < text(a).as_str());
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9A-F]{0,80}") {
            let document = DocWriter::new().with("_data", text.as_str()).finish();
            let _ = ResumeToken::parse(document.as_doc());
        }
    }
}
