//! The cost of a request that does nothing: a server that answers `{ok: 1}`, a blocking client,
//! both in this process, and the CPU time that the server spends on each request.
//!
//! `cargo run --release -p wire --example ping_floor -- <requests> <connections>`

use std::sync::Arc;
use std::time::Instant;

use model::bson::DocWriter;
use wire::client::Client;
use wire::{ConnectionInfo, Handler, Reply, Request, Server, ServerOptions};

struct AlwaysOk;

impl Handler for AlwaysOk {
    async fn handle(&self, _connection: &Arc<ConnectionInfo>, _request: Request) -> Reply {
        Reply::ok()
    }
}

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .filter_map(|text| text.parse::<usize>().ok());
    let requests = arguments.next().unwrap_or(100_000);
    let connections = arguments.next().unwrap_or(8);

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime starts");
    let server = Server::new(Arc::new(AlwaysOk), ServerOptions::default());
    let handle = server.handle();
    let listener = runtime
        .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
        .expect("a free port is found");
    let address = listener
        .local_addr()
        .expect("a bound listener has an address");
    let serving = runtime.spawn(server.serve(vec![listener]));

    let ping = DocWriter::new()
        .with("ping", 1)
        .with("$db", "admin")
        .finish();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..connections {
            scope.spawn(|| {
                let mut client = Client::connect(address).expect("the server accepts");
                for _ in 0..requests / connections {
                    client
                        .command_bytes(ping.as_bytes())
                        .expect("the server answers");
                }
            });
        }
    });
    let elapsed = start.elapsed();
    let count = handle.metrics().requests;
    println!(
        "{count} requests, {:.0} per second, server: {:.2} µs of CPU each",
        count as f64 / elapsed.as_secs_f64(),
        worker_cpu_us() / count as f64,
    );
    handle.shutdown();
    runtime.block_on(serving).expect("the server ends");
}

/// CPU time of the runtime's worker threads, in microseconds.
fn worker_cpu_us() -> f64 {
    let mut nanoseconds = 0.0;
    for task in std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
    {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        if read("comm").starts_with("tokio-rt") {
            let spent = read("schedstat");
            let first = spent
                .split_whitespace()
                .next()
                .and_then(|text| text.parse::<f64>().ok());
            nanoseconds += first.unwrap_or(0.0);
        }
    }
    nanoseconds / 1000.0
}
