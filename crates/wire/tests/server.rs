//! A real server on a real socket: requests whole and in pieces, streams, hang-ups, shutdown.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use model::bson::{Doc, DocWriter};
use support::*;
use wire::client::ClientError;
use wire::protocol::*;
use wire::{Compressor, ConnectionInfo, Handler, Request, Sequence, ServerOptions};

#[test]
fn a_request_arrives_as_it_was_sent() {
    let server = TestServer::start();
    let mut client = server.connect();
    let sent = DocWriter::new()
        .with("echo", 1)
        .with("text", "öß")
        .with("$db", "test")
        .finish();
    let (first, second) = (command("a", 1), command("b", 2));
    let docs: Vec<&[u8]> = vec![first.as_bytes(), second.as_bytes(), first.as_bytes()];
    let reply = client
        .command_bytes_with_sequence(sent.as_bytes(), "documents", &docs)
        .unwrap();
    let reply = Doc::from_bytes(reply).unwrap();
    assert_eq!(reply.get_str("name"), Some("echo"));
    assert_eq!(reply.get_str("database"), Some("test"));
    assert_eq!(reply.get_doc("body").unwrap().as_bytes(), sent.as_bytes());
    assert_eq!(
        number(reply.get_doc("sequences").unwrap().as_bytes(), "documents"),
        3
    );
}

#[test]
fn messages_may_arrive_in_any_pieces() {
    let server = TestServer::start();
    let ping = message(0, &[&body(command("ping", 1).as_bytes())]);
    let grown = message(0, &[&body(command("grow", 100_000).as_bytes())]);
    let large = {
        let text = "y".repeat(300_000);
        let doc = DocWriter::new()
            .with("echo", 1)
            .with("t", text.as_str())
            .with("$db", "x");
        message(0, &[&body(doc.finish().as_bytes())])
    };
    let all = [&ping[..], &grown, &ping, &ping, &large, &ping].concat();

    let check = |piece_bytes: usize, whole: &[u8], replies: usize| {
        let mut client = server.connect();
        for piece in whole.chunks(piece_bytes) {
            client.send_frame(piece).unwrap();
        }
        for reply in 0..replies {
            let document = client.read_reply().unwrap();
            assert!(
                is_ok(document),
                "reply {reply} of pieces of {piece_bytes} bytes"
            );
        }
    };
    check(1, &[&ping[..], &ping].concat(), 2);
    check(15, &[&ping[..], &grown, &ping].concat(), 3);
    for piece_bytes in [1000, 4096, 65_536, all.len()] {
        check(piece_bytes, &all, 6);
    }
}

#[test]
fn requests_and_replies_of_many_sizes() {
    let server = TestServer::start();
    let mut client = server.connect();
    for bytes in [
        0, 1, 900, 1000, 1024, 5000, 65_000, 65_536, 70_000, 3_000_000, 16_000_000, 1,
    ] {
        let text = "z".repeat(bytes);
        let sent = DocWriter::new()
            .with("echo", 1)
            .with("t", text.as_str())
            .with("$db", "x");
        let sent = sent.finish();
        let reply = client.command_bytes(sent.as_bytes()).unwrap();
        let reply = Doc::from_bytes(reply).unwrap();
        assert_eq!(reply.get_doc("body").unwrap().as_bytes(), sent.as_bytes());
    }
    // A reply that no message may carry becomes an error.
    let reply = client
        .command_bytes(command("grow", 19_000_000).as_bytes())
        .unwrap();
    assert_eq!(number(reply, "code"), 10334);
    assert!(is_ok(
        client.command_bytes(command("ping", 1).as_bytes()).unwrap()
    ));
}

#[test]
fn the_largest_message_is_accepted() {
    let server = TestServer::start();
    let mut client = server.connect();
    let ping = command("ping", 1);
    let head = 16 + 4 + (1 + ping.as_bytes().len()) + (1 + 4 + 2);
    let count = 4;
    let each = (MESSAGE_BYTES_MAX - head) / count;
    let rest = (MESSAGE_BYTES_MAX - head) % count;
    let document = |bytes: usize| {
        let text = "x".repeat(bytes - 4 - 1 - 2 - 4 - 1 - 1);
        DocWriter::new().with("t", text.as_str()).finish()
    };
    let (usual, last) = (document(each), document(each + rest));
    let mut docs: Vec<&[u8]> = vec![usual.as_bytes(); count - 1];
    docs.push(last.as_bytes());
    assert!(is_ok(
        client
            .command_bytes_with_sequence(ping.as_bytes(), "d", &docs)
            .unwrap()
    ));
    assert_eq!(server.handle.metrics().bytes_in, MESSAGE_BYTES_MAX as u64);
}

#[test]
fn a_checksum_is_answered_with_one() {
    let server = TestServer::start();
    let mut client = server.connect();
    let echo = command("echo", 1);
    client
        .send_frame(&message_with_checksum(0, &[&body(echo.as_bytes())], true))
        .unwrap();
    let frame = client.read_frame().unwrap();
    assert_eq!(frame[16] & 1, 1);
    let (content, sum) = frame.split_at(frame.len() - 4);
    assert_eq!(sum, crc32c::crc32c(content).to_le_bytes());
}

#[test]
fn a_compressed_request_is_answered_with_the_same_compressor() {
    let server = TestServer::start();
    let payload = [&[0; 5][..], command("grow", 100_000).as_bytes()].concat();
    for compressor in Compressor::ALL {
        let mut client = server.connect();
        let mut sent = [
            &OP_MSG.to_le_bytes()[..],
            &(payload.len() as i32).to_le_bytes(),
        ]
        .concat();
        sent.push(compressor.id());
        compressor.compress(&payload, &mut sent).unwrap();
        client.send_frame(&frame(OP_COMPRESSED, &sent)).unwrap();
        let reply = client.read_frame().unwrap();
        assert!(
            reply.len() < 10_000,
            "{} did not compress",
            compressor.name()
        );
        let header = Header::parse(reply.first_chunk().unwrap());
        assert_eq!((header.opcode, header.response_to), (OP_COMPRESSED, 7));
        assert_eq!(
            (&reply[16..20], reply[24]),
            (&OP_MSG.to_le_bytes()[..], compressor.id())
        );
        let size = i32::from_le_bytes(*reply[20..].first_chunk().unwrap());
        let restored = compressor.decompress(&[], &reply[25..], size).unwrap();
        assert!(is_ok(&restored[5..]));
        // An uncompressed request on the same connection is answered uncompressed.
        assert!(is_ok(
            client.command_bytes(command("ping", 1).as_bytes()).unwrap()
        ));
    }
    let metrics = server.handle.metrics();
    assert!(metrics.physical_bytes_out < metrics.bytes_out / 10);
    for traffic in metrics.compression {
        assert!(traffic.decompressor_bytes_out > 0);
        assert!(traffic.compressor_bytes_in > traffic.compressor_bytes_out * 10);
    }
}

#[test]
fn an_exhaust_request_is_answered_until_the_handler_has_no_more() {
    let server = TestServer::start();
    let mut client = server.connect();
    client
        .send_frame(&message(
            FLAG_EXHAUST_ALLOWED,
            &[&body(command("stream", 3).as_bytes())],
        ))
        .unwrap();
    let mut response_to = 7;
    for left in [3, 2, 1, 0] {
        let frame = client.read_frame().unwrap();
        let header = Header::parse(frame.first_chunk().unwrap());
        assert_eq!(
            header.response_to, response_to,
            "each reply answers the one before"
        );
        response_to = header.request_id;
        let flags = u32::from_le_bytes(*frame[16..].first_chunk().unwrap());
        assert_eq!(flags, if left > 0 { FLAG_MORE_TO_COME } else { 0 });
        assert_eq!(number(&frame[21..], "left"), left);
    }
    // Without the flag there is one reply, and the connection is in step either way.
    let reply = client
        .command_bytes(command("stream", 3).as_bytes())
        .unwrap();
    assert_eq!(number(reply, "left"), 3);
    assert!(is_ok(
        client.command_bytes(command("ping", 1).as_bytes()).unwrap()
    ));
    wait_for("no stream counted", || {
        server.handle.metrics().exhaust_streams == 0
    });
}

#[test]
fn an_endless_stream_ends_with_its_reader() {
    let server = TestServer::start();
    let mut client = server.connect();
    client
        .send_with_flags(FLAG_EXHAUST_ALLOWED, command("stream", i32::MAX).as_bytes())
        .unwrap();
    for _ in 0..10 {
        let (flags, _) = client.read_reply_with_flags().unwrap();
        assert_eq!(flags, FLAG_MORE_TO_COME);
    }
    drop(client);
    wait_for("the stream to end", || {
        server.script.disconnected.load(SeqCst) == 1
    });
    assert_eq!(server.handle.metrics().connections_current, 0);
}

#[test]
fn fire_and_forget_is_executed_and_not_answered() {
    let server = TestServer::start();
    let mut client = server.connect();
    for _ in 0..3 {
        client
            .send_without_reply(command("grow", 10).as_bytes())
            .unwrap();
    }
    let reply = client
        .command_bytes(command("stream", 0).as_bytes())
        .unwrap();
    assert_eq!(number(reply, "left"), 0);
    // Hanging up at once takes nothing back.
    client
        .send_without_reply(command("ping", 1).as_bytes())
        .unwrap();
    drop(client);
    wait_for("the last command", || {
        server.script.handled.load(SeqCst) == 5
    });
}

#[test]
fn a_running_command_learns_that_the_client_is_gone() {
    let server = TestServer::start();
    let mut client = server.connect();
    client
        .send_with_flags(0, command("hangup", 1).as_bytes())
        .unwrap();
    wait_for("the command", || server.script.holding.load(SeqCst) == 1);
    assert_eq!(server.handle.metrics().connections_active, 1);
    drop(client);
    wait_for("the hang-up to be noticed", || {
        server.script.hangups.load(SeqCst) == 1
    });
    wait_for("the end", || {
        server.handle.metrics().connections_current == 0
    });
    assert_eq!(server.handle.metrics().connections_active, 0);
}

#[test]
fn a_computing_command_can_look_for_its_client() {
    let server = TestServer::start();
    let mut client = server.connect();
    client
        .send_with_flags(0, command("compute", 1).as_bytes())
        .unwrap();
    wait_for("the command", || server.script.holding.load(SeqCst) == 1);
    assert_eq!(server.script.hangups.load(SeqCst), 0);
    drop(client);
    wait_for("the hang-up to be seen", || {
        server.script.hangups.load(SeqCst) == 1
    });
    wait_for("the end", || {
        server.handle.metrics().connections_current == 0
    });
}

#[test]
fn pipelined_requests_hide_no_hang_up() {
    let server = TestServer::start();
    let mut client = server.connect();
    client
        .send_with_flags(0, command("hangup", 1).as_bytes())
        .unwrap();
    wait_for("the command", || server.script.holding.load(SeqCst) == 1);
    client
        .send_without_reply(command("ping", 1).as_bytes())
        .unwrap();
    client
        .send_without_reply(command("ping", 1).as_bytes())
        .unwrap();
    drop(client);
    wait_for("the hang-up to be noticed", || {
        server.script.hangups.load(SeqCst) == 1
    });
    wait_for("what was sent before it", || {
        server.script.handled.load(SeqCst) == 3
    });
}

#[test]
fn what_is_sent_while_a_command_runs_waits_its_turn() {
    let server = TestServer::start();
    let mut client = server.connect();
    client
        .send_with_flags(0, command("hold", 1).as_bytes())
        .unwrap();
    wait_for("the command", || server.script.holding.load(SeqCst) == 1);
    // More than the server buffers meanwhile, less than the sockets hold.
    let text = "w".repeat(1000);
    let waiting = DocWriter::new()
        .with("ping", 1)
        .with("t", text.as_str())
        .with("$db", "x");
    let waiting = waiting.finish();
    for _ in 0..150 {
        client.send_with_flags(0, waiting.as_bytes()).unwrap();
    }
    assert_eq!(server.script.handled.load(SeqCst), 1);
    server.script.release.add_permits(1);
    for _ in 0..151 {
        assert!(is_ok(client.read_reply().unwrap()));
    }
}

#[test]
fn a_panic_ends_one_connection() {
    let server = TestServer::start();
    let (mut other, mut victim) = (server.connect(), server.connect());
    victim
        .send_with_flags(0, command("panic", 1).as_bytes())
        .unwrap();
    assert!(closes(&mut victim));
    assert!(is_ok(
        other.command_bytes(command("ping", 1).as_bytes()).unwrap()
    ));
    wait_for("the count", || {
        server.handle.metrics().connections_current == 1
    });
    assert_eq!(server.handle.metrics().connections_active, 0);
}

#[test]
fn connections_beyond_the_limit_are_closed() {
    let options = ServerOptions {
        connections_max: 2,
        ..ServerOptions::default()
    };
    let server = TestServer::start_with(options);
    let ping = command("ping", 1);
    let mut first = server.connect();
    let mut second = server.connect();
    assert!(is_ok(first.command_bytes(ping.as_bytes()).unwrap()));
    assert!(is_ok(second.command_bytes(ping.as_bytes()).unwrap()));
    assert!(closes(&mut server.connect()));
    let metrics = server.handle.metrics();
    assert_eq!(
        (metrics.connections_current, metrics.connections_available),
        (2, 0)
    );
    assert_eq!(
        (metrics.connections_created, metrics.connections_rejected),
        (2, 1)
    );
    drop(first);
    wait_for("room", || server.handle.metrics().connections_current == 1);
    assert!(is_ok(
        server.connect().command_bytes(ping.as_bytes()).unwrap()
    ));
}

#[test]
fn a_shutdown_lets_running_commands_finish() {
    let mut server = TestServer::start();
    let (mut idle, mut busy) = (server.connect(), server.connect());
    assert!(is_ok(
        idle.command_bytes(command("ping", 1).as_bytes()).unwrap()
    ));
    busy.send_with_flags(0, command("hold", 1).as_bytes())
        .unwrap();
    wait_for("the command", || server.script.holding.load(SeqCst) == 1);
    server.handle.shutdown();
    assert!(closes(&mut idle));
    let mut let_in = 0;
    wait_for("the listener to close", || {
        let refused = TcpStream::connect(server.address).is_err();
        let_in += usize::from(!refused);
        refused
    });
    server.script.release.add_permits(1);
    assert!(is_ok(busy.read_reply().unwrap()));
    assert!(closes(&mut busy));
    server.join();
    // Those that came while the listener was closing may have been served, or not.
    let disconnected = server.script.disconnected.load(SeqCst);
    assert!((2..=2 + let_in).contains(&disconnected), "{disconnected}");
}

#[test]
fn a_shutdown_does_not_wait_forever() {
    let options = ServerOptions {
        drain_timeout: Duration::from_millis(50),
        ..ServerOptions::default()
    };
    let mut server = TestServer::start_with(options);
    let mut busy = server.connect();
    busy.send_with_flags(0, command("hold", 1).as_bytes())
        .unwrap();
    wait_for("the command", || server.script.holding.load(SeqCst) == 1);
    server.handle.shutdown();
    server.join();
    assert!(closes(&mut busy));
    assert_eq!(server.script.disconnected.load(SeqCst), 1);
}

#[test]
fn a_shutdown_ends_streams() {
    let mut server = TestServer::start();
    let mut client = server.connect();
    client
        .send_with_flags(FLAG_EXHAUST_ALLOWED, command("stream", i32::MAX).as_bytes())
        .unwrap();
    client.read_reply().unwrap();
    server.handle.shutdown();
    let last = loop {
        match client.read_reply_with_flags() {
            Ok((FLAG_MORE_TO_COME, _)) => {}
            other => break other.map(|(flags, _)| flags),
        }
    };
    assert!(matches!(last, Ok(0)), "{last:?}");
    assert!(closes(&mut client));
    server.join();
}

#[test]
fn a_handler_can_be_called_without_a_socket() {
    let server = TestServer::start();
    let connection = Arc::new(ConnectionInfo::in_process(1));
    let doc = command("d", 1);
    let sequence = Sequence::new("documents", [doc.as_doc(), doc.as_doc()]);
    let request = Request::from_parts(command("echo", 1), vec![sequence.clone()]).unwrap();
    assert_eq!(request.sequence("documents").map(Sequence::len), Some(2));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let reply = runtime.block_on(server.script.handle(&connection, request));
    assert!(is_ok(reply.document().as_bytes()));
    assert_eq!(
        number(
            reply.document().get_doc("sequences").unwrap().as_bytes(),
            "documents"
        ),
        2
    );

    let nameless = DocWriter::new().with("echo", 1).finish();
    assert_eq!(
        Request::from_parts(nameless, vec![]).unwrap_err().code.0,
        40571
    );
    let twice = vec![sequence.clone(), sequence];
    assert_eq!(
        Request::from_parts(command("echo", 1), twice)
            .unwrap_err()
            .code
            .0,
        40431
    );

    assert!(!connection.is_closed());
    connection.mark_closed();
    runtime.block_on(connection.closed());
}

#[test]
fn a_connection_keeps_what_the_handshake_learned() {
    let connection = ConnectionInfo::in_process(1);
    assert!(connection.set_client_metadata(command("a", 1)).is_ok());
    assert!(connection.set_client_metadata(command("b", 1)).is_err());
    assert_eq!(connection.client_metadata(), Some(&command("a", 1)));
    let agreed = connection.negotiate_compressors(["lz4", "zlib", "snappy"]);
    assert_eq!(agreed, [Compressor::Zlib, Compressor::Snappy]);
    assert_eq!(connection.compressors(), agreed);
    assert_eq!(connection.existing_handler_state::<String>(), None);
    assert_eq!(connection.handler_state(|| "made".to_owned()), "made");
    assert_eq!(connection.handler_state(|| "again".to_owned()), "made");
}

#[test]
fn the_client_reports_a_closed_connection() {
    let mut server = TestServer::start();
    let mut client = server.connect();
    assert!(is_ok(
        client.command_bytes(command("ping", 1).as_bytes()).unwrap()
    ));
    server.handle.shutdown();
    server.join();
    let result = client.command_bytes(command("ping", 1).as_bytes());
    assert!(matches!(
        result,
        Err(ClientError::Closed | ClientError::Io(_))
    ));
}
