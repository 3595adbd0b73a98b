//! `bench idle`: what open connections cost a server that has nothing to do.
//!
//! Each connection says `hello` as a driver does and then keeps still. The server's memory is read
//! before the first and after the last of them. A server that takes fewer than asked for is reported
//! with what it took, and the command fails. (`mongod` has a thread per connection and ends when it
//! meets the kernel's limit on memory mappings, `vm.max_map_count`: at its default of 65,530 that is
//! just below ten thousand connections.)

use anyhow::{Context, Result, ensure};
use bson::{Document, doc};

use crate::command::Request;
use crate::connection::Connection;
use crate::options::IdleOptions;
use crate::place::{self, Place};
use crate::reply;
use crate::servers::{Product, Server};
use crate::table::{Table, megabytes, number};

/// Files that client and server need besides their connections.
const OTHER_FILES: u64 = 200;
/// Connections between two readings of the server's memory.
const READING_STEP: usize = 100;

pub fn run(options: &IdleOptions) -> Result<()> {
    let files = place::raise_open_files();
    ensure!(
        files.is_none_or(|files| files >= options.connections as u64 + OTHER_FILES),
        "{} connections need more open files than the {} allowed here (see ulimit -Hn)",
        options.connections,
        files.unwrap_or(0)
    );
    let place = Place::new(&options.servers)?;
    let mut table = Table::new(
        1,
        &[
            "server",
            "connections",
            "before",
            "with connections",
            "kB each",
        ],
    );
    let products = match options.only {
        Some(product) => vec![product],
        None => vec![Product::Mongod, Product::Terndb],
    };
    let mut refusals = Vec::new();
    for product in products {
        let binaries = options.servers.binaries();
        let server = Server::start(product, product.name(), &binaries, place.path())?;
        let idle = open(&server, options.connections)?;
        let grown = idle.bytes_with.saturating_sub(idle.bytes_before) as f64;
        table.push(vec![
            product.name().to_owned(),
            idle.connections.to_string(),
            megabytes(idle.bytes_before),
            megabytes(idle.bytes_with),
            number(grown / 1e3 / idle.connections.max(1) as f64),
        ]);
        if let Some(refusal) = idle.refusal {
            refusals.push(format!("{} did not take more: {refusal:#}", product.name()));
            if let Err(error) = server.stop() {
                refusals.push(format!("{error:#}"));
            }
        } else {
            server.stop()?;
        }
    }
    print!("{}", table.text());
    ensure!(refusals.is_empty(), "{}", refusals.join("; "));
    place.clear()
}

/// What a server took with its idle connections.
struct Idle {
    connections: usize,
    bytes_before: u64,
    bytes_with: u64,
    /// Why there are fewer connections than asked for.
    refusal: Option<anyhow::Error>,
}

/// Opens as many connections as the server takes; all of them must still answer at the end.
fn open(server: &Server, count: usize) -> Result<Idle> {
    let bytes_before = server.resident_bytes()?;
    let mut idle = Idle {
        connections: 0,
        bytes_before,
        bytes_with: bytes_before,
        refusal: None,
    };
    let mut connections = Vec::with_capacity(count);
    let mut request = Request::new(&hello())?;
    while connections.len() < count {
        match greet(server, &mut request) {
            Ok(connection) => connections.push(connection),
            Err(error) => {
                idle.refusal = Some(error);
                break;
            }
        }
        // Read on the way too: a server may end over a connection too many.
        if connections.len().is_multiple_of(READING_STEP) || connections.len() == count {
            idle.connections = connections.len();
            idle.bytes_with = server.resident_bytes()?;
        }
    }
    if idle.refusal.is_none() {
        let mut ping = Request::new(&doc! { "ping": 1, "$db": "admin" })?;
        for connection in &mut connections {
            let answer = connection.exchange(&mut ping);
            answer
                .and_then(reply::expect_ok)
                .with_context(|| format!("an idle connection to {}", server.product.name()))?;
        }
    }
    Ok(idle)
}

fn greet(server: &Server, hello: &mut Request) -> Result<Connection> {
    let mut connection = server.connect()?;
    reply::expect_ok(connection.exchange(hello)?)?;
    Ok(connection)
}

fn hello() -> Document {
    doc! {
        "hello": 1,
        "client": {
            "driver": { "name": "bench", "version": env!("CARGO_PKG_VERSION") },
            "os": { "type": "Linux" },
        },
        "compression": [],
        "$db": "admin",
    }
}
