//! What connections cost in memory. The process is measured as a whole, so this file holds one
//! test, which runs its parts one after the other.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use support::*;
use wire::protocol::OP_MSG;

#[test]
fn memory() {
    idle_connections_cost_little();
    half_a_message_and_silence_hold_no_more_than_they_sent();
}

fn half_a_message_and_silence_hold_no_more_than_they_sent() {
    let server = TestServer::start();
    // Each claims 48 MB and sends little of it: the process must stay far below the claims.
    let before = resident_bytes();
    let mut streams = Vec::new();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(server.address).unwrap();
        let mut sent = frame_with_length(48_000_000, OP_MSG, &[0; 5]);
        sent.resize(10_000, 0);
        stream.write_all(&sent).unwrap();
        streams.push(stream);
    }
    wait_for("all of them", || {
        server.handle.metrics().connections_current == 50
    });
    let mut client = server.connect();
    assert!(is_ok(
        client.command_bytes(command("ping", 1).as_bytes()).unwrap()
    ));
    assert!(resident_bytes() < before + 50_000_000);
    for mut stream in streams {
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0; 10]).unwrap_or(0), 0);
    }
}

fn idle_connections_cost_little() {
    let server = TestServer::start();
    let count = 2000;
    let request = message(0, &[&body(command("grow", 20_000).as_bytes())]);
    let mut reply = vec![0; 64 * 1024];
    let mut open = |count: usize| -> Vec<TcpStream> {
        let mut streams = Vec::with_capacity(count);
        for _ in 0..count {
            // Used once, so that whatever a request leaves behind is counted.
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.write_all(&request).unwrap();
            let mut received = 0;
            while received < 20_000 {
                received += stream.read(&mut reply).unwrap();
            }
            streams.push(stream);
        }
        streams
    };
    let warm = open(100);
    let before = resident_bytes();
    let streams = open(count);
    let each = resident_bytes().saturating_sub(before) / count;
    println!("{each} bytes of memory per idle connection");
    assert!(each < 8 * 1024, "{each} bytes per idle connection");
    drop((warm, streams));
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}
