//! A server with a scripted handler on a free port, and the bytes of messages.
//!
//! The handler understands, besides `ping` and `hello`:
//!
//! ```text
//!   echo      {ok, name, database, sequences: {<name>: <count>}, body}
//!   stream n  {ok, left: n}, followed by n-1 while n > 0
//!   grow n    {ok, text: <n bytes>}
//!   hold      waits until the test releases it, then {ok, closed}
//!   hangup    waits until the client is gone, then tells the test so
//!   compute   looks for itself until the client is gone, without ever waiting
//!   panic     panics
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::{Code, Error};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use wire::client::{Client, ClientError};
use wire::protocol::{Header, OP_MSG};
use wire::{ConnectionInfo, Handler, Reply, Request, Server, ServerHandle, ServerOptions};

pub struct Script {
    pub release: Semaphore,
    pub holding: AtomicUsize,
    pub hangups: AtomicUsize,
    pub disconnected: AtomicUsize,
    pub handled: AtomicUsize,
}

impl Handler for Script {
    async fn handle(&self, connection: &Arc<ConnectionInfo>, request: Request) -> Reply {
        self.handled.fetch_add(1, Ordering::SeqCst);
        match request.name() {
            "ping" | "hello" => Reply::ok(),
            "echo" => echo(&request),
            "stream" => stream(&request).into(),
            "grow" => {
                let text = "x".repeat(integer(&request, "grow") as usize);
                Reply::from_writer(Reply::writer().with("ok", 1.0).with("text", text.as_str()))
            }
            "hold" => {
                self.holding.fetch_add(1, Ordering::SeqCst);
                self.release.acquire().await.expect("never closed").forget();
                let closed = connection.is_closed();
                Reply::from_writer(Reply::writer().with("ok", 1.0).with("closed", closed))
            }
            "hangup" => {
                self.holding.fetch_add(1, Ordering::SeqCst);
                connection.closed().await;
                self.hangups.fetch_add(1, Ordering::SeqCst);
                Reply::ok()
            }
            "compute" => {
                self.holding.fetch_add(1, Ordering::SeqCst);
                let deadline = Instant::now() + DEADLINE;
                while !connection.look_for_hangup() && Instant::now() < deadline {
                    std::thread::yield_now();
                }
                self.hangups
                    .fetch_add(usize::from(connection.is_closed()), Ordering::SeqCst);
                Reply::ok()
            }
            "panic" => panic!("as the test asked for"),
            name => {
                let message = format!("no such command: '{name}'");
                Reply::error(&Error::new(Code::COMMAND_NOT_FOUND, message))
            }
        }
    }

    fn disconnected(&self, connection: &Arc<ConnectionInfo>) {
        assert!(connection.is_closed());
        self.disconnected.fetch_add(1, Ordering::SeqCst);
    }
}

fn echo(request: &Request) -> Reply {
    let mut writer = Reply::writer()
        .with("ok", 1.0)
        .with("name", request.name())
        .with("database", request.database());
    writer.begin_document("sequences");
    for sequence in request.sequences() {
        assert_eq!(sequence.iter().count(), sequence.len());
        writer.append(sequence.name(), sequence.len() as i32);
    }
    writer.end();
    writer.append("body", ValueRef::Document(request.body()));
    Reply::from_writer(writer)
}

fn stream(request: &Request) -> Result<Reply, Error> {
    let left = integer(request, "stream");
    let reply = Reply::from_writer(Reply::writer().with("ok", 1.0).with("left", left));
    if left == 0 {
        return Ok(reply);
    }
    let next = DocWriter::new()
        .with("stream", left - 1)
        .with("$db", "admin")
        .finish();
    Ok(reply.then(Request::from_parts(next, vec![])?))
}

fn integer(request: &Request, name: &str) -> i32 {
    match request.body().get(name) {
        Some(ValueRef::Int32(value)) => value,
        other => panic!("{name} is {other:?}"),
    }
}

pub struct TestServer {
    pub address: SocketAddr,
    pub script: Arc<Script>,
    pub handle: ServerHandle,
    runtime: Runtime,
    serving: Option<tokio::task::JoinHandle<()>>,
}

impl TestServer {
    pub fn start() -> TestServer {
        TestServer::start_with(ServerOptions::default())
    }

    pub fn start_with(options: ServerOptions) -> TestServer {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let script = Arc::new(Script {
            release: Semaphore::new(0),
            holding: AtomicUsize::new(0),
            hangups: AtomicUsize::new(0),
            disconnected: AtomicUsize::new(0),
            handled: AtomicUsize::new(0),
        });
        let server = Server::new(Arc::clone(&script), options);
        let handle = server.handle();
        let (address, serving) = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let second = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            (address, tokio::spawn(server.serve(vec![second, listener])))
        });
        TestServer {
            address,
            script,
            handle,
            runtime,
            serving: Some(serving),
        }
    }

    pub fn connect(&self) -> Client {
        connect(self.address)
    }

    /// Waits for the server to end after a shutdown.
    pub fn join(&mut self) {
        let serving = self.serving.take().expect("joined once");
        self.runtime
            .block_on(async { tokio::time::timeout(DEADLINE, serving).await })
            .expect("the server ends in time")
            .unwrap();
    }
}

pub const DEADLINE: Duration = Duration::from_secs(60);

pub fn connect(address: SocketAddr) -> Client {
    let client = Client::connect(address).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    client
}

/// Waits until `condition` holds.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::yield_now();
    }
}

pub fn command(name: &str, argument: i32) -> DocBuf {
    DocWriter::new()
        .with(name, argument)
        .with("$db", "admin")
        .finish()
}

pub fn number(document: &[u8], name: &str) -> i32 {
    match Doc::from_bytes(document).unwrap().get(name) {
        Some(ValueRef::Int32(value)) => value,
        other => panic!("{name} is {other:?}"),
    }
}

pub fn is_ok(document: &[u8]) -> bool {
    matches!(
        Doc::from_bytes(document).unwrap().get("ok"),
        Some(ValueRef::Double(1.0))
    )
}

pub fn closes(client: &mut Client) -> bool {
    matches!(client.read_frame(), Err(ClientError::Closed))
}

pub fn frame(opcode: i32, payload: &[u8]) -> Vec<u8> {
    frame_with_length(16 + payload.len() as i32, opcode, payload)
}

pub fn frame_with_length(length: i32, opcode: i32, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        length,
        request_id: 7,
        response_to: 0,
        opcode,
    };
    [&header.encode()[..], payload].concat()
}

/// An OP_MSG of the given sections.
pub fn message(flags: u32, sections: &[&[u8]]) -> Vec<u8> {
    frame(
        OP_MSG,
        &[&flags.to_le_bytes()[..], &sections.concat()].concat(),
    )
}

/// An OP_MSG with a checksum, right or wrong.
pub fn message_with_checksum(flags: u32, sections: &[&[u8]], right: bool) -> Vec<u8> {
    let payload = [&(flags | 1).to_le_bytes()[..], &sections.concat()].concat();
    let mut message = frame_with_length(16 + payload.len() as i32 + 4, OP_MSG, &payload);
    let sum = crc32c::crc32c(&message) ^ u32::from(!right);
    message.extend_from_slice(&sum.to_le_bytes());
    message
}

pub fn body(document: &[u8]) -> Vec<u8> {
    [&[0][..], document].concat()
}

pub fn sequence(name: &str, documents: &[&[u8]]) -> Vec<u8> {
    let size = 4 + name.len() + 1 + documents.concat().len();
    sequence_with_size(size as i32, name, documents)
}

pub fn sequence_with_size(size: i32, name: &str, documents: &[&[u8]]) -> Vec<u8> {
    [
        &[1][..],
        &size.to_le_bytes(),
        name.as_bytes(),
        &[0],
        &documents.concat(),
    ]
    .concat()
}
