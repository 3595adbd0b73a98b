//! One blocking connection: a prebuilt request out, the body of its reply in.
//!
//! [`wire::client::Client`] moves the bytes. This adds what a measurement needs: request ids patched
//! into prebuilt frames, the check that a reply answers the request just sent, and a deadline, because
//! a hanging server must end a benchmark with a message instead of hanging it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bson::Document;
use wire::client::Client;

use crate::command::{BODY_OFFSET, OP_MSG, Request};
use crate::reply;

const REPLY_TIMEOUT: Duration = Duration::from_secs(120);

pub struct Connection {
    client: Client,
    last_request_id: i32,
}

impl Connection {
    pub fn open(port: u16) -> Result<Connection> {
        let client = Client::connect(("127.0.0.1", port))
            .with_context(|| format!("connecting to port {port}"))?;
        client.set_read_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Connection {
            client,
            last_request_id: 0,
        })
    }

    /// For commands that may take longer than requests do.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        self.client.set_read_timeout(Some(timeout))?;
        Ok(())
    }

    /// Sends a request and returns the body of its reply.
    pub fn exchange(&mut self, request: &mut Request) -> Result<&[u8]> {
        self.last_request_id = self.last_request_id.wrapping_add(1);
        request.set_request_id(self.last_request_id);
        self.client
            .send_frame(request.bytes())
            .context("sending a request")?;
        let frame = self.client.read_frame().context("waiting for a reply")?;
        let (head, body) = frame
            .split_at_checked(BODY_OFFSET)
            .context("a reply is shorter than a message")?;
        let field =
            |at: usize| i32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        ensure!(
            field(8) == self.last_request_id,
            "a reply answers another request"
        );
        ensure!(
            field(12) == OP_MSG && head[BODY_OFFSET - 1] == 0,
            "a reply is no OP_MSG that begins with a body"
        );
        Ok(body)
    }

    /// Runs a command that is not measured and returns its reply, which must say `ok: 1`.
    pub fn run(&mut self, command: &Document) -> Result<Document> {
        let mut request = Request::new(command)?;
        let body = self.exchange(&mut request)?;
        reply::expect_ok(body).with_context(|| format!("running {command}"))?;
        Document::from_reader(body).context("decoding a reply")
    }
}
