//! From the bytes of one whole message to a [`Request`], or to what is wrong with it.
//!
//! The bytes come from anyone, so nothing is trusted. Faults are of two kinds, and which is which
//! follows the real server:
//!
//! ```text
//!   Fault::Close    the peer does not speak the protocol, or its bytes were damaged on the way:
//!                   a bad checksum, an unknown required flag, an opcode that is not answered,
//!                   bytes that do not decompress
//!   Fault::Answer   a message whose boundary and header are sound, with a wrong content: the
//!                   peer gets an error, and the connection lives on
//! ```

use bytes::Bytes;
use model::bson::{MAX_INTERNAL_BYTES, validate};
use model::error::{Code, Error};

use crate::compression::{CompressionFault, Compressor};
use crate::envelope::{Envelope, Form};
use crate::legacy;
use crate::protocol::{
    FLAG_CHECKSUM_PRESENT, FLAG_EXHAUST_ALLOWED, FLAG_MORE_TO_COME, HEADER_SIZE, Header,
    MESSAGE_BYTES_MAX, OP_COMPRESSED, OP_GET_MORE, OP_MSG, OP_QUERY,
};
use crate::reply::Reply;
use crate::request::{Request, Sequence, invalid_bson, split_document};

/// The low half of the flag bits must be understood by the receiver, the high half need not be.
const REQUIRED_FLAGS: u32 = 0xffff;
const KNOWN_REQUIRED_FLAGS: u32 = FLAG_CHECKSUM_PRESENT | FLAG_MORE_TO_COME;

/// A message that became a request.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub envelope: Envelope,
    pub request: Request,
    /// Bytes of the message after decompression.
    pub logical_bytes: usize,
}

/// A message that did not.
#[derive(Debug)]
pub(crate) enum Fault {
    Close(CloseReason),
    Answer { envelope: Envelope, reply: Reply },
}

/// Why a connection is closed without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    #[error("a message length of {0} bytes is out of bounds")]
    Length(i32),
    #[error("a message of opcode {0} is too short")]
    Truncated(i32),
    #[error("opcode {0} is not supported")]
    Opcode(i32),
    #[error("required flag bits {0:#x} are not known")]
    Flags(u32),
    #[error("the checksum does not match")]
    Checksum,
    #[error("an HTTP request came instead of a message")]
    Http,
    #[error("compressor {0} is not supported")]
    Compressor(u8),
    #[error("compressed message: {0}")]
    Compression(#[from] CompressionFault),
}

/// Why [`parse_request`] gave no request.
#[derive(Debug)]
pub enum Rejection {
    /// The connection would be closed without an answer.
    Close(CloseReason),
    /// This error would be sent, and the connection kept.
    Answer(Reply),
}

/// What a connection makes of one message, without a connection: for fuzzing and for tests.
pub fn parse_request(message: Bytes) -> Result<Request, Rejection> {
    match message_length(&message) {
        Ok(Some(length)) if length == message.len() => {}
        Ok(_) => return Err(Rejection::Close(CloseReason::Length(message.len() as i32))),
        Err(reason) => return Err(Rejection::Close(reason)),
    }
    match parse(message) {
        Ok(incoming) => Ok(incoming.request),
        Err(Fault::Close(reason)) => Err(Rejection::Close(reason)),
        Err(Fault::Answer { reply, .. }) => Err(Rejection::Answer(reply)),
    }
}

/// As lengths, these are far above any that is allowed.
const HTTP_METHODS: [&[u8]; 4] = [b"GET ", b"POST ", b"HEAD ", b"PUT "];

/// Reads the length of the message that begins with `bytes`, once enough of it is there.
pub(crate) fn message_length(bytes: &[u8]) -> Result<Option<usize>, CloseReason> {
    // The length alone decides, but a hostile one is only looked at with the rest of its header.
    let Some(header) = bytes.first_chunk::<HEADER_SIZE>() else {
        return Ok(None);
    };
    if HTTP_METHODS
        .iter()
        .any(|&method| header.starts_with(method))
    {
        return Err(CloseReason::Http);
    }
    let Header { length, opcode, .. } = Header::parse(header);
    // What is not this protocol (a TLS handshake, say) is not waited for to its end.
    if !matches!(opcode, OP_MSG | OP_QUERY | OP_COMPRESSED | OP_GET_MORE) {
        return Err(CloseReason::Opcode(opcode));
    }
    match usize::try_from(length) {
        Ok(bytes) if (HEADER_SIZE..=MESSAGE_BYTES_MAX).contains(&bytes) => Ok(Some(bytes)),
        Ok(_) | Err(_) => Err(CloseReason::Length(length)),
    }
}

/// Parses one whole message, whose length field has been checked.
pub(crate) fn parse(message: Bytes) -> Result<Incoming, Fault> {
    let header = header_of(&message)?;
    if header.opcode == OP_COMPRESSED {
        let (message, compressor) = decompress(header, &message)?;
        let header = header_of(&message)?;
        return parse_plain(header, message, Some(compressor));
    }
    parse_plain(header, message, None)
}

fn header_of(message: &[u8]) -> Result<Header, Fault> {
    match message.first_chunk::<HEADER_SIZE>() {
        Some(header) => Ok(Header::parse(header)),
        None => Err(Fault::Close(CloseReason::Length(message.len() as i32))),
    }
}

fn parse_plain(
    header: Header,
    message: Bytes,
    compressor: Option<Compressor>,
) -> Result<Incoming, Fault> {
    let envelope = plain_envelope(header, compressor);
    match header.opcode {
        OP_MSG => parse_message(envelope, message),
        OP_QUERY => legacy::parse_query(envelope, message),
        OP_GET_MORE => Err(legacy::no_longer_supported(envelope, "OP_GET_MORE")),
        opcode => Err(Fault::Close(CloseReason::Opcode(opcode))),
    }
}

fn plain_envelope(header: Header, compressor: Option<Compressor>) -> Envelope {
    Envelope {
        request_id: header.request_id,
        form: Form::Message { checksum: false },
        compressor,
        silent: false,
        exhaust_allowed: false,
    }
}

/// Restores the message inside an OP_COMPRESSED, header included.
fn decompress(header: Header, message: &[u8]) -> Result<(Bytes, Compressor), Fault> {
    let close = |reason| Err(Fault::Close(reason));
    let payload = &message[HEADER_SIZE..];
    let Some((fixed, compressed)) = payload.split_first_chunk::<9>() else {
        return close(CloseReason::Truncated(OP_COMPRESSED));
    };
    let opcode = i32::from_le_bytes([fixed[0], fixed[1], fixed[2], fixed[3]]);
    let size = i32::from_le_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
    // One inside another would let a small message cost a lot of work.
    if opcode == OP_COMPRESSED {
        return close(CloseReason::Opcode(opcode));
    }
    let Some(compressor) = Compressor::from_id(fixed[8]) else {
        return close(CloseReason::Compressor(fixed[8]));
    };
    let length = size.saturating_add(HEADER_SIZE as i32);
    let restored = Header {
        length,
        opcode,
        ..header
    };
    match compressor.decompress(&restored.encode(), compressed, size) {
        Ok(message) => Ok((Bytes::from(message), compressor)),
        // The real server takes what is missing for another section.
        Err(fault @ CompressionFault::Short { .. }) => Err(Fault::Answer {
            envelope: plain_envelope(header, Some(compressor)),
            reply: Reply::error(&Error::location(40432, fault.to_string())),
        }),
        Err(fault) => close(fault.into()),
    }
}

fn parse_message(mut envelope: Envelope, message: Bytes) -> Result<Incoming, Fault> {
    let Some(flags) = message[HEADER_SIZE..].first_chunk::<4>() else {
        return Err(Fault::Close(CloseReason::Truncated(OP_MSG)));
    };
    let flags = u32::from_le_bytes(*flags);
    let unknown = flags & REQUIRED_FLAGS & !KNOWN_REQUIRED_FLAGS;
    if unknown != 0 {
        return Err(Fault::Close(CloseReason::Flags(unknown)));
    }
    let checksum = flags & FLAG_CHECKSUM_PRESENT != 0;
    envelope.form = Form::Message { checksum };
    envelope.silent = flags & FLAG_MORE_TO_COME != 0;
    envelope.exhaust_allowed = flags & FLAG_EXHAUST_ALLOWED != 0 && !envelope.silent;

    let logical_bytes = message.len();
    let answer = |error: Error| Fault::Answer {
        envelope,
        reply: Reply::error(&error),
    };
    let sections = if checksum {
        check_sum(&message).map_err(|fault| match fault {
            SumFault::Mismatch => Fault::Close(CloseReason::Checksum),
            SumFault::NoRoom => answer(Error::location(
                51252,
                "Invalid message size for an OpMsg containing a checksum",
            )),
        })?
    } else {
        message.slice(HEADER_SIZE + 4..)
    };
    let request = parse_sections(sections).map_err(answer)?;
    let request = request.with_flags(envelope.exhaust_allowed, envelope.silent);
    Ok(Incoming {
        envelope,
        request,
        logical_bytes,
    })
}

enum SumFault {
    NoRoom,
    Mismatch,
}

/// Verifies the checksum at the end and returns the sections in front of it.
fn check_sum(message: &Bytes) -> Result<Bytes, SumFault> {
    let end = message
        .len()
        .checked_sub(4)
        .filter(|end| *end > HEADER_SIZE + 4);
    let (Some(end), Some(sum)) = (end, message.last_chunk::<4>()) else {
        return Err(SumFault::NoRoom);
    };
    if crc32c::crc32c(&message[..end]) != u32::from_le_bytes(*sum) {
        return Err(SumFault::Mismatch);
    }
    Ok(message.slice(HEADER_SIZE + 4..end))
}

fn parse_sections(mut sections: Bytes) -> Result<Request, Error> {
    let mut body: Option<Bytes> = None;
    let mut sequences = Vec::new();
    while let Some(kind) = sections.first().copied() {
        let rest = sections.slice(1..);
        match kind {
            0 => {
                if body.is_some() {
                    return Err(Error::location(40430, "Multiple body sections in message"));
                }
                let (document, _) = split_document(&rest)?;
                validate(document, MAX_INTERNAL_BYTES).map_err(invalid_bson)?;
                let length = document.len();
                body = Some(rest.slice(..length));
                sections = rest.slice(length..);
            }
            1 => {
                let (sequence, after) = parse_sequence(rest)?;
                sequences.push(sequence);
                sections = after;
            }
            // A security token, which only a multitenant deployment accepts.
            2 => {
                let message = "Unsupported Security Token provided";
                return Err(Error::new(Code::UNAUTHORIZED, message));
            }
            kind => {
                let message = format!("Unknown section kind {kind}");
                return Err(Error::location(40432, message));
            }
        }
    }
    match body {
        Some(body) => Request::from_validated(body, sequences),
        None => Err(Error::location(40587, "OP_MSG messages must have a body")),
    }
}

/// Parses a section of kind 1 and returns what follows it.
fn parse_sequence(section: Bytes) -> Result<(Sequence, Bytes), Error> {
    let overflow = |message: &str| Error::new(Code::OVERFLOW, message);
    let Some(size) = section.first_chunk::<4>() else {
        return Err(overflow("a document sequence ends inside its size"));
    };
    let size = i32::from_le_bytes(*size);
    let Some(size) = usize::try_from(size)
        .ok()
        .filter(|size| (4..=section.len()).contains(size))
    else {
        return Err(overflow(
            "a document sequence reaches past the end of its message",
        ));
    };
    let content = section.slice(4..size);
    let Some(name_length) = content.iter().position(|byte| *byte == 0) else {
        return Err(overflow("the name of a document sequence has no end"));
    };
    let sequence = Sequence::parse(
        content.slice(..name_length),
        content.slice(name_length + 1..),
    )?;
    Ok((sequence, section.slice(size..)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::bson::{DocBuf, DocWriter};

    fn message(opcode: i32, parts: &[&[u8]]) -> Vec<u8> {
        let payload = parts.concat();
        let length = (HEADER_SIZE + payload.len()) as i32;
        let header = Header {
            length,
            request_id: 1,
            response_to: 0,
            opcode,
        };
        [&header.encode()[..], &payload].concat()
    }

    fn document() -> DocBuf {
        DocWriter::new()
            .with("insert", "c")
            .with("$db", "test")
            .with("ordered", true)
            .finish()
    }

    fn samples() -> Vec<Vec<u8>> {
        let document = document();
        let document = document.as_bytes();
        let size = 4 + 10 + 2 * document.len() as i32;
        let sections = [
            &[0; 5][..],
            document,
            &[1],
            &size.to_le_bytes(),
            b"documents\0",
            document,
            document,
        ];
        let plain = sections.concat();
        let mut samples = vec![message(OP_MSG, &sections)];
        let hello = DocWriter::new().with("hello", 1).finish();
        let limit = (-1i32).to_le_bytes();
        let query = [
            &[0; 4][..],
            b"admin.$cmd\0\0\0\0\0",
            &limit,
            hello.as_bytes(),
        ];
        samples.push(message(OP_QUERY, &query));
        for compressor in Compressor::ALL {
            let mut compressed = vec![];
            compressor
                .compress(&plain, &mut compressed)
                .expect("compresses");
            let (opcode, size) = (OP_MSG.to_le_bytes(), (plain.len() as i32).to_le_bytes());
            let parts = [&opcode[..], &size, &[compressor.id()], &compressed];
            samples.push(message(OP_COMPRESSED, &parts));
        }
        samples
    }

    #[test]
    fn samples_are_requests() {
        for sample in samples() {
            let request = parse_request(Bytes::from(sample)).expect("a sound message");
            assert!(["insert", "hello"].contains(&request.name()));
            assert!(["test", "admin"].contains(&request.database()));
            if let Some(sequence) = request.sequence("documents") {
                assert!(sequence.iter().all(|found| found == document().as_doc()));
                assert_eq!(sequence.len(), 2);
            }
        }
    }

    /// As the real server: zlib that yields too little gets an answer, all else ends
    /// the connection.
    #[test]
    fn a_wrong_uncompressed_size_is_answered_where_the_real_server_does() {
        for (sample, compressor) in samples()[2..].iter().zip(Compressor::ALL) {
            let size = i32::from_le_bytes([sample[20], sample[21], sample[22], sample[23]]);
            for (wrong, answered) in [
                (size + 1, compressor == Compressor::Zlib),
                (size - 1, false),
            ] {
                let mut damaged = sample.clone();
                damaged[20..24].copy_from_slice(&wrong.to_le_bytes());
                match parse_request(Bytes::from(damaged)) {
                    Err(Rejection::Answer(_)) => assert!(answered, "{compressor:?} {wrong}"),
                    Err(Rejection::Close(_)) => assert!(!answered, "{compressor:?} {wrong}"),
                    Ok(_) => panic!("{compressor:?} took {wrong} for {size}"),
                }
            }
        }
    }

    #[test]
    fn damaged_messages_are_answered_or_refused_but_never_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        for sample in samples() {
            for cut in 0..sample.len() {
                let mut cut_short = sample[..cut].to_vec();
                let _ = parse_request(Bytes::from(cut_short.clone()));
                if cut >= 4 {
                    cut_short[..4].copy_from_slice(&(cut as i32).to_le_bytes());
                    let _ = parse_request(Bytes::from(cut_short));
                }
            }
            for _ in 0..3000 {
                let mut damaged = sample.clone();
                for _ in 0..1 + random(4) {
                    let at = 4 + random(damaged.len() - 4);
                    damaged[at] = [0, 1, 0x7f, 0x80, 0xff, random(256) as u8][random(6)];
                }
                // Whatever came through must be readable to its end.
                if let Ok(request) = parse_request(Bytes::from(damaged)) {
                    let fields = request.body().iter().count();
                    assert!(fields > 0 && !request.database().is_empty());
                    for sequence in request.sequences() {
                        assert_eq!(sequence.iter().count(), sequence.len());
                    }
                }
            }
        }
    }
}
