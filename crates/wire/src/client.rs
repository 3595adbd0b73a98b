//! A lean blocking client: OP_MSG over one TCP connection, bytes in and bytes out.
//!
//! It performs no handshake and interprets no reply: the load generator and the differential
//! tests use it because it adds nothing of its own. Buffers are reused, a request costs one write
//! and, unless the reply is long or slow to arrive in full, one read. `send_frame` and
//! `read_frame` pass raw messages through, well formed or not.
//!
//! Left out on purpose: compression, checksums, pools, retries, TLS.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::time::Duration;

use crate::protocol::{
    FLAG_CHECKSUM_PRESENT, FLAG_MORE_TO_COME, HEADER_SIZE, Header, MESSAGE_BYTES_MAX, OP_MSG,
};

/// What can go wrong between sending bytes and having a reply's bytes.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
    /// The server closed the connection between two messages or inside one.
    #[error("connection closed by the server")]
    Closed,
    #[error("the reply is not what the protocol promises: {0}")]
    Malformed(&'static str),
    #[error("a message of {0} bytes is longer than the protocol allows")]
    TooLong(usize),
}

/// The buffer's size to begin with, and the least that is free before each read.
const READ_STEP_BYTES: usize = 32 * 1024;

/// One connection. Requests are answered in order, one at a time.
pub struct Client {
    stream: TcpStream,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// Bytes of `incoming` that are received and not yet handed out.
    unread: Range<usize>,
    next_request_id: i32,
}

impl Client {
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Client {
            stream,
            outgoing: Vec::with_capacity(1024),
            incoming: vec![0; READ_STEP_BYTES],
            unread: 0..0,
            next_request_id: 1,
        })
    }

    /// Bounds how long one read may wait; `None` waits forever.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(timeout)
    }

    /// Sends one command document and returns the reply document's bytes.
    pub fn command_bytes(&mut self, body: &[u8]) -> Result<&[u8], ClientError> {
        self.send_command(0, body, None)?;
        self.read_reply()
    }

    /// Sends a command with a document sequence, as drivers do for `documents` of an insert.
    pub fn command_bytes_with_sequence(
        &mut self,
        body: &[u8],
        sequence_name: &str,
        docs: &[&[u8]],
    ) -> Result<&[u8], ClientError> {
        self.send_command(0, body, Some((sequence_name, docs)))?;
        self.read_reply()
    }

    /// Sends a command that the server must not answer (write concern `w: 0`).
    pub fn send_without_reply(&mut self, body: &[u8]) -> Result<(), ClientError> {
        self.send_command(FLAG_MORE_TO_COME, body, None)
    }

    /// Sends a command with the given flag bits and reads nothing, for streaming requests.
    pub fn send_with_flags(&mut self, flags: u32, body: &[u8]) -> Result<(), ClientError> {
        self.send_command(flags & !FLAG_CHECKSUM_PRESENT, body, None)
    }

    /// Reads one OP_MSG and returns its document's bytes.
    pub fn read_reply(&mut self) -> Result<&[u8], ClientError> {
        self.read_reply_with_flags().map(|(_, document)| document)
    }

    /// Reads one OP_MSG and returns its flag bits with its document's bytes.
    pub fn read_reply_with_flags(&mut self) -> Result<(u32, &[u8]), ClientError> {
        reply_document(self.read_frame()?)
    }

    /// Writes bytes as they are: for tests of malformed input.
    pub fn send_frame(&mut self, frame: &[u8]) -> Result<(), ClientError> {
        self.stream.write_all(frame)?;
        Ok(())
    }

    /// Reads one whole message, header included, whatever its opcode.
    pub fn read_frame(&mut self) -> Result<&[u8], ClientError> {
        self.receive_at_least(HEADER_SIZE)?;
        let at = self.unread.start;
        let length = i32::from_le_bytes([
            self.incoming[at],
            self.incoming[at + 1],
            self.incoming[at + 2],
            self.incoming[at + 3],
        ]);
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length >= HEADER_SIZE)
            .ok_or(ClientError::Malformed(
                "message length below the header's size",
            ))?;
        if length > MESSAGE_BYTES_MAX {
            return Err(ClientError::TooLong(length));
        }
        self.receive_at_least(length)?;
        let at = self.unread.start;
        self.unread.start += length;
        Ok(&self.incoming[at..at + length])
    }

    fn send_command(
        &mut self,
        flags: u32,
        body: &[u8],
        sequence: Option<(&str, &[&[u8]])>,
    ) -> Result<(), ClientError> {
        let request_id = self.next_request_id;
        self.next_request_id = request_id.wrapping_add(1);

        let out = &mut self.outgoing;
        out.clear();
        let header = Header {
            length: 0,
            request_id,
            response_to: 0,
            opcode: OP_MSG,
        };
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(&flags.to_le_bytes());
        out.push(0);
        out.extend_from_slice(body);
        if let Some((name, docs)) = sequence {
            let size = 4 + name.len() + 1 + docs.iter().map(|doc| doc.len()).sum::<usize>();
            if size > MESSAGE_BYTES_MAX {
                return Err(ClientError::TooLong(size));
            }
            out.push(1);
            out.extend_from_slice(&(size as i32).to_le_bytes());
            out.extend_from_slice(name.as_bytes());
            out.push(0);
            for doc in docs {
                out.extend_from_slice(doc);
            }
        }
        if out.len() > MESSAGE_BYTES_MAX {
            return Err(ClientError::TooLong(out.len()));
        }
        let length = (out.len() as i32).to_le_bytes();
        out[0..4].copy_from_slice(&length);
        self.stream.write_all(out)?;
        Ok(())
    }

    /// Reads until `count` bytes are unread, making room in front or at the end as needed.
    fn receive_at_least(&mut self, count: usize) -> Result<(), ClientError> {
        if self.unread.is_empty() {
            self.unread = 0..0;
        }
        while self.unread.len() < count {
            if self.unread.start > 0 {
                self.incoming.copy_within(self.unread.clone(), 0);
                self.unread = 0..self.unread.len();
            }
            if self.incoming.len() < count {
                // The claimed length is within the limit, but memory follows what arrives.
                let grown = (self.unread.len() * 2).max(READ_STEP_BYTES).min(count);
                if self.incoming.len() < grown {
                    self.incoming.resize(grown, 0);
                }
            }
            match self.stream.read(&mut self.incoming[self.unread.end..]) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(received) => self.unread.end += received,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(ClientError::Closed);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Finds the body document of an OP_MSG frame.
fn reply_document(frame: &[u8]) -> Result<(u32, &[u8]), ClientError> {
    let Some((header, payload)) = frame.split_first_chunk::<HEADER_SIZE>() else {
        return Err(ClientError::Malformed("shorter than a header"));
    };
    if Header::parse(header).opcode != OP_MSG {
        return Err(ClientError::Malformed("not an OP_MSG"));
    }
    let Some((flags, sections)) = payload.split_first_chunk::<4>() else {
        return Err(ClientError::Malformed("no flag bits"));
    };
    let flags = u32::from_le_bytes(*flags);
    let Some((0, document)) = sections.split_first() else {
        return Err(ClientError::Malformed("the first section is not a body"));
    };
    let Some(size) = document.first_chunk::<4>() else {
        return Err(ClientError::Malformed("the body has no size"));
    };
    let size = usize::try_from(i32::from_le_bytes(*size)).unwrap_or(usize::MAX);
    match document.get(..size) {
        Some(document) if size >= 5 => Ok((flags, document)),
        Some(_) | None => Err(ClientError::Malformed("the body's size does not fit")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A document `{x: <string of n bytes>}`.
    fn document(n: usize) -> Vec<u8> {
        let mut doc = vec![0; 4];
        doc.extend_from_slice(b"\x02x\0");
        doc.extend_from_slice(&(n as i32 + 1).to_le_bytes());
        doc.extend(std::iter::repeat_n(b'a', n));
        doc.extend_from_slice(&[0, 0]);
        let length = (doc.len() as i32).to_le_bytes();
        doc[..4].copy_from_slice(&length);
        doc
    }

    /// Echoes every frame, as many as come, until the peer closes.
    fn echo_server() -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut writer = stream.try_clone().unwrap();
            io::copy(&mut stream, &mut writer).ok();
        });
        address
    }

    #[test]
    fn replies_of_every_size_come_back_whole() {
        let mut client = Client::connect(echo_server()).unwrap();
        for n in [0, 1, 100, 30_000, 40_000, 70_000, 500_000, 3, 1_000_000, 0] {
            let doc = document(n);
            assert_eq!(
                client.command_bytes(&doc).unwrap(),
                &doc[..],
                "string of {n} bytes"
            );
        }
    }

    #[test]
    fn several_replies_in_one_read_are_handed_out_one_by_one() {
        let mut client = Client::connect(echo_server()).unwrap();
        for n in 0..50 {
            client.send_with_flags(0, &document(n * 100)).unwrap();
        }
        for n in 0..50 {
            assert_eq!(client.read_reply().unwrap(), &document(n * 100)[..]);
        }
    }

    #[test]
    fn a_sequence_is_framed_after_the_body() {
        let mut client = Client::connect(echo_server()).unwrap();
        let (body, first, second) = (document(1), document(2), document(3));
        client
            .send_command(0, &body, Some(("documents", &[&first, &second])))
            .unwrap();
        let frame = client.read_frame().unwrap().to_vec();
        let mut expected = vec![0u8; 4];
        expected.push(0);
        expected.extend_from_slice(&body);
        expected.push(1);
        let size = 4 + 10 + first.len() + second.len();
        expected.extend_from_slice(&(size as i32).to_le_bytes());
        expected.extend_from_slice(b"documents\0");
        expected.extend_from_slice(&first);
        expected.extend_from_slice(&second);
        assert_eq!(&frame[HEADER_SIZE..], &expected[..]);
    }

    #[test]
    fn odd_replies_are_errors() {
        let check = |sent: &[u8], expected: &str| {
            let mut client = Client::connect(echo_server()).unwrap();
            client.send_frame(sent).unwrap();
            client.stream.shutdown(std::net::Shutdown::Write).unwrap();
            let error = client.read_reply().unwrap_err().to_string();
            assert!(error.contains(expected), "{sent:?}: {error}");
        };
        let frame = |length: i32, opcode: i32, payload: &[u8]| {
            let header = Header {
                length,
                request_id: 1,
                response_to: 0,
                opcode,
            };
            [&header.encode()[..], payload].concat()
        };
        check(&[], "closed");
        check(&[1, 2, 3], "closed");
        check(&frame(20, OP_MSG, &[]), "closed");
        check(&frame(3, OP_MSG, &[]), "below the header");
        check(&frame(-1, OP_MSG, &[]), "below the header");
        check(&frame(i32::MAX, OP_MSG, &[]), "longer than");
        check(&frame(16, 1, &[]), "not an OP_MSG");
        check(&frame(18, OP_MSG, &[0, 0]), "no flag bits");
        check(&frame(21, OP_MSG, &[0, 0, 0, 0, 1]), "not a body");
        check(&frame(23, OP_MSG, &[0, 0, 0, 0, 0, 5, 0]), "no size");
        check(
            &frame(26, OP_MSG, &[0, 0, 0, 0, 0, 6, 0, 0, 0, 0]),
            "does not fit",
        );
    }
}
