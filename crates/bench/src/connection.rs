//! One blocking connection: bytes out, bytes in.
//!
//! A request is sent with one write; its reply is read into a buffer that is kept, usually with one
//! read. The reply's frame is checked (length, opcode, which request it answers) and its body handed
//! out as a slice of that buffer. Nothing is decoded here.
//!
//! A reply that does not come within [`REPLY_TIMEOUT`] is an error: a hanging server must end a
//! benchmark with a message, not hang it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bson::Document;

use crate::command::{BODY_OFFSET, OP_MSG, Request};
use crate::reply;

const REPLY_TIMEOUT: Duration = Duration::from_secs(120);
/// The protocol's own limit on a message.
const MESSAGE_BYTES_MAX: usize = 48_000_000;
const BUFFER_BYTES: usize = 16 * 1024;

#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    last_request_id: i32,
}

impl Connection {
    pub fn open(port: u16) -> Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port))
            .with_context(|| format!("connecting to port {port}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Connection {
            stream,
            buffer: vec![0; BUFFER_BYTES],
            last_request_id: 0,
        })
    }

    /// Sends a request and returns the body of its reply.
    pub fn exchange(&mut self, request: &mut Request) -> Result<&[u8]> {
        self.last_request_id = self.last_request_id.wrapping_add(1);
        request.set_request_id(self.last_request_id);
        self.stream
            .write_all(request.bytes())
            .context("sending a request")?;
        let length = self.receive()?;
        let field = |offset: usize| {
            i32::from_le_bytes(
                self.buffer[offset..offset + 4]
                    .try_into()
                    .expect("four bytes"),
            )
        };
        ensure!(
            field(8) == self.last_request_id,
            "a reply answers another request"
        );
        ensure!(
            field(12) == OP_MSG,
            "a reply has opcode {} instead of OP_MSG",
            field(12)
        );
        ensure!(
            self.buffer[BODY_OFFSET - 1] == 0,
            "a reply begins with another section"
        );
        Ok(&self.buffer[BODY_OFFSET..length])
    }

    /// Reads one whole frame into the buffer and returns its length.
    fn receive(&mut self) -> Result<usize> {
        let mut received = 0;
        let mut expected = BODY_OFFSET + 5;
        let mut length_known = false;
        while received < expected {
            let count = self
                .stream
                .read(&mut self.buffer[received..])
                .context("waiting for a reply")?;
            ensure!(count > 0, "the server closed the connection");
            received += count;
            if !length_known && received >= 4 {
                let length = i32::from_le_bytes(self.buffer[..4].try_into().expect("four bytes"));
                let length = usize::try_from(length).unwrap_or(0);
                ensure!(
                    (expected..=MESSAGE_BYTES_MAX).contains(&length),
                    "a reply's length is {length}"
                );
                expected = length;
                length_known = true;
                if self.buffer.len() < expected {
                    self.buffer.resize(expected, 0);
                }
            }
        }
        ensure!(
            received == expected,
            "more came back than one reply to one request"
        );
        Ok(expected)
    }

    /// Runs a command that is not measured and returns its reply, which must say `ok: 1`.
    pub fn run(&mut self, command: &Document) -> Result<Document> {
        let mut request = Request::new(command)?;
        let body = self.exchange(&mut request)?;
        reply::expect_ok(body).with_context(|| format!("running {command}"))?;
        Document::from_reader(body).context("decoding a reply")
    }
}
