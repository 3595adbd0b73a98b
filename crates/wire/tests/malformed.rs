//! What every kind of malformed message gets, side by side with what the real server does.
//!
//! Each row is sent on a connection of its own and followed by a `ping`, which shows whether the
//! connection survived. With `TERNDB_WIRE_PEER=host:port` in the environment the same table is
//! checked against that server instead: that is how it was made.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use model::bson::{Doc, DocWriter, ValueRef};
use support::*;
use wire::Compressor;
use wire::client::{Client, ClientError};
use wire::protocol::*;

/// What a message gets.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Gets {
    Ok,
    /// An error in an OP_MSG; the connection lives on.
    Code(i32),
    /// A command's error in an OP_REPLY; the connection lives on.
    LegacyCode(i32),
    /// `{$err, code}` in an OP_REPLY flagged as failed; the connection lives on.
    LegacyFailure(i32),
    LegacyOk,
    /// Nothing, and the connection lives on.
    Silence,
    Closed,
}

fn check(address: SocketAddr, name: &str, sent: &[u8], expected: Gets) {
    let mut client = connect(address);
    client.send_frame(sent).unwrap();
    let ping = message(0, &[&body(ping().as_bytes())]);
    if expected == Gets::Silence {
        client.send_frame(&ping).unwrap();
        assert!(
            is_ok(client.read_reply().unwrap()),
            "{name}: no ping after silence"
        );
        client.send_frame(&ping).unwrap();
        assert!(
            is_ok(client.read_reply().unwrap()),
            "{name}: more than one reply"
        );
        return;
    }
    let got = observe(&mut client);
    assert_eq!(got, expected, "{name}");
    if got != Gets::Closed {
        client.send_frame(&ping).unwrap();
        assert!(
            is_ok(client.read_reply().unwrap()),
            "{name}: the connection did not survive"
        );
    }
}

fn observe(client: &mut Client) -> Gets {
    let frame = match client.read_frame() {
        Ok(frame) => frame,
        Err(ClientError::Closed) => return Gets::Closed,
        Err(other) => panic!("{other}"),
    };
    let mut header = Header::parse(frame.first_chunk().unwrap());
    assert_eq!(header.response_to, 7);
    let mut payload = frame[16..].to_vec();
    if header.opcode == OP_COMPRESSED {
        header.opcode = i32::from_le_bytes(*payload.first_chunk().unwrap());
        let size = i32::from_le_bytes(*payload[4..].first_chunk().unwrap());
        let compressor = Compressor::from_id(payload[8]).unwrap();
        payload = compressor.decompress(&[], &payload[9..], size).unwrap();
    }
    let document = |at: usize| {
        let length = i32::from_le_bytes(*payload[at..].first_chunk().unwrap()) as usize;
        Doc::from_bytes(&payload[at..at + length]).unwrap()
    };
    let code = |document: Doc<'_>| match document.get("code") {
        Some(ValueRef::Int32(code)) => Some(code),
        _ => None,
    };
    match header.opcode {
        OP_MSG => code(document(5)).map_or(Gets::Ok, Gets::Code),
        OP_REPLY if payload[0] == 2 => {
            assert!(document(20).get("$err").is_some());
            Gets::LegacyFailure(code(document(20)).unwrap())
        }
        OP_REPLY => code(document(20)).map_or(Gets::LegacyOk, Gets::LegacyCode),
        opcode => panic!("opcode {opcode}"),
    }
}

fn ping() -> model::bson::DocBuf {
    command("ping", 1)
}

/// The address to test, and a server of ours if it is that.
fn peer() -> (SocketAddr, Option<TestServer>) {
    match std::env::var("TERNDB_WIRE_PEER") {
        Ok(address) => (address.parse().unwrap(), None),
        Err(_) => {
            let server = TestServer::start();
            (server.address, Some(server))
        }
    }
}

#[test]
fn lengths_opcodes_flags_and_checksums() {
    let (address, server) = peer();
    let ours = server.is_some();
    let check = |name: &str, sent: &[u8], expected| check(address, name, sent, expected);
    let ping = body(ping().as_bytes());

    check("a sound ping", &message(0, &[&ping]), Gets::Ok);
    for length in [0, -1, i32::MIN, 15, 16, 48_000_001, i32::MAX] {
        let sent = frame_with_length(length, OP_MSG, &[]);
        check(&format!("length {length}"), &sent, Gets::Closed);
    }
    check("length 17", &frame(OP_MSG, &[0]), Gets::Closed);
    check("flag bits only", &frame(OP_MSG, &[0; 4]), Gets::Code(40587));
    for opcode in [-1, 1, 1000, 2001, 2002, 2003, 2006, 2007, 2010, 2011, 9999] {
        check(
            &format!("opcode {opcode}"),
            &frame(opcode, &[0; 16]),
            Gets::Closed,
        );
    }
    if ours {
        // The real server ignores it in silence, and with it what the peer waits for.
        check("opcode 0", &frame(0, &[0; 16]), Gets::Closed);
    }
    check(
        "opcode 2005",
        &frame(2005, &[0; 16]),
        Gets::LegacyFailure(5_739_101),
    );

    check("required flag 2", &message(1 << 2, &[&ping]), Gets::Closed);
    check(
        "required flag 15",
        &message(1 << 15, &[&ping]),
        Gets::Closed,
    );
    check("optional flag 17", &message(1 << 17, &[&ping]), Gets::Ok);
    check(
        "exhaust allowed, not used",
        &message(1 << 16, &[&ping]),
        Gets::Ok,
    );
    check("no reply wanted", &message(2, &[&ping]), Gets::Silence);
    check(
        "no reply wanted, exhaust",
        &message(2 | 1 << 16, &[&ping]),
        Gets::Silence,
    );
    check("no reply wanted, no body", &message(2, &[]), Gets::Silence);
    check(
        "no reply wanted, kind 3",
        &message(2, &[&[3]]),
        Gets::Silence,
    );

    check(
        "checksum",
        &message_with_checksum(0, &[&ping], true),
        Gets::Ok,
    );
    check(
        "wrong checksum",
        &message_with_checksum(0, &[&ping], false),
        Gets::Closed,
    );
    check(
        "wrong checksum, silent",
        &message_with_checksum(2, &[&ping], false),
        Gets::Closed,
    );
    check(
        "no room for a checksum",
        &frame(OP_MSG, &[1, 0, 0, 0, 0, 0]),
        Gets::Code(51252),
    );
}

/// A browser's request is answered in its own language; the real server answers `GET` only.
#[test]
fn http_requests() {
    let (address, server) = peer();
    let methods: &[&str] = match server {
        Some(_) => &["GET", "HEAD", "POST", "PUT"],
        None => &["GET"],
    };
    for method in methods {
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!("{method} / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with("HTTP/1.0 200 OK\r\n"),
            "{method}: {answer}"
        );
        assert!(answer.contains("\r\n\r\n"), "{method}: {answer}");
    }
}

#[test]
fn sections_and_documents() {
    let (address, server) = peer();
    let ours = server.is_some();
    let check = |name: &str, sections: &[&[u8]], expected| {
        check(address, name, &message(0, sections), expected);
    };
    let ping = body(ping().as_bytes());
    let empty: &[u8] = &[5, 0, 0, 0, 0];
    let one = sequence("documents", &[empty]);

    check("two bodies", &[&ping, &ping], Gets::Code(40430));
    check("a zero after the body", &[&ping, &[0]], Gets::Code(40430));
    check("a security token", &[&[2], empty], Gets::Code(13));
    check("section kind 3", &[&[3], empty], Gets::Code(40432));
    check(
        "section kind 255 after the body",
        &[&ping, &[255]],
        Gets::Code(40432),
    );
    check("a sequence only", &[&one], Gets::Code(40587));
    check("a sequence before the body", &[&one, &ping], Gets::Ok);
    check("a sequence twice", &[&ping, &one, &one], Gets::Code(40431));
    let named = DocWriter::new()
        .with("ping", 1)
        .with("documents", 1)
        .with("$db", "x")
        .finish();
    check(
        "a field and a sequence",
        &[&body(named.as_bytes()), &one],
        Gets::Code(40433),
    );
    check(
        "a sequence without documents",
        &[&ping, &sequence("d", &[])],
        Gets::Ok,
    );
    check(
        "a sequence without a name",
        &[&ping, &sequence("", &[empty])],
        Gets::Ok,
    );
    for size in [0, 3, 12, 1000, -1, i32::MIN, i32::MAX] {
        let wrong = sequence_with_size(size, "documents", &[empty]);
        check(
            &format!("sequence size {size}"),
            &[&ping, &wrong],
            Gets::Code(15),
        );
    }
    check(
        "a sequence's size one short",
        &[&ping, &sequence_with_size(18, "documents", &[empty])],
        Gets::Code(22),
    );
    check(
        "a sequence of size 4",
        &[&ping, &[1, 4, 0, 0, 0]],
        Gets::Code(15),
    );
    check("a sequence cut short", &[&ping, &[1, 4]], Gets::Code(15));
    check(
        "a name without an end",
        &[&ping, &[1, 6, 0, 0, 0, b'a', b'b']],
        Gets::Code(15),
    );
    check(
        "a document too long",
        &[&ping, &sequence("d", &[&[9, 0, 0, 0, 0]])],
        Gets::Code(22),
    );
    check(
        "a document's end",
        &[&ping, &sequence("d", &[&[5, 0, 0, 0, 1]])],
        Gets::Code(22),
    );

    for size in [0, 4, -1, i32::MIN, i32::MAX, 17 * 1024 * 1024] {
        let wrong = [&[0][..], &size.to_le_bytes(), &[0]].concat();
        check(&format!("body size {size}"), &[&wrong], Gets::Code(22));
    }
    check("no bytes of a body", &[&[0]], Gets::Code(22));
    check(
        "an unknown type",
        &[&with_element(&[0x30, b'x', 0])],
        Gets::Code(22),
    );
    check(
        "a boolean of 7",
        &[&with_element(&[8, b'x', 0, 7])],
        Gets::Code(22),
    );
    check("an empty body", &[&body(empty)], Gets::Code(40571));

    let without = DocWriter::new().with("ping", 1).finish();
    check("no $db", &[&body(without.as_bytes())], Gets::Code(40571));
    let mistyped = DocWriter::new().with("ping", 1).with("$db", 1).finish();
    check(
        "$db of a wrong type",
        &[&body(mistyped.as_bytes())],
        Gets::Code(13111),
    );
    let twice = DocWriter::new()
        .with("ping", 1)
        .with("$db", "a")
        .with("$db", "a")
        .finish();
    check("$db twice", &[&body(twice.as_bytes())], Gets::Code(40413));
    for name in [
        "",
        "a b",
        "a/b",
        "a\\b",
        "a.b",
        "a\"b",
        "a\0b",
        &"a".repeat(64),
    ] {
        let named = DocWriter::new().with("ping", 1).with("$db", name).finish();
        check(
            &format!("$db {name:?}"),
            &[&body(named.as_bytes())],
            Gets::Code(73),
        );
    }
    for name in ["$external", "a$b", "a:b", "a*b", &"a".repeat(63)] {
        let named = DocWriter::new().with("ping", 1).with("$db", name).finish();
        check(
            &format!("$db {name:?}"),
            &[&body(named.as_bytes())],
            Gets::Ok,
        );
    }
    check(
        "nesting",
        &[&ping, &sequence("d", &[&nested(200)])],
        Gets::Ok,
    );
    check(
        "deep nesting",
        &[&ping, &sequence("d", &[&nested(201)])],
        Gets::Code(15),
    );
    check(
        "deepest nesting",
        &[&ping, &sequence("d", &[&nested(50_000)])],
        Gets::Code(15),
    );
    let largest = INTERNAL_DOCUMENT_BYTES_MAX;
    check(
        "a large document",
        &[&ping, &sequence("d", &[&sized(largest)])],
        Gets::Ok,
    );
    check(
        "too large",
        &[&ping, &sequence("d", &[&sized(largest + 1)])],
        Gets::Code(10334),
    );
    check(
        "too large a body",
        &[&body(&sized(largest + 1))],
        Gets::Code(10334),
    );
    if ours {
        // The real server stores such strings, and clients then fail to read them.
        let invalid = with_element(&[2, b'x', 0, 2, 0, 0, 0, 0xff, 0]);
        check("a string that is not UTF-8", &[&invalid], Gets::Code(22));
        let name = [&[1, 11, 0, 0, 0, 0xff, 0][..], empty].concat();
        check("a name that is not UTF-8", &[&ping, &name], Gets::Code(22));
    }
}

/// `{ping: 1, $db: "admin", <element>}` as a section.
fn with_element(element: &[u8]) -> Vec<u8> {
    let mut document = ping().into_bytes();
    document.pop();
    document.extend_from_slice(element);
    document.push(0);
    let length = (document.len() as i32).to_le_bytes();
    document[..4].copy_from_slice(&length);
    body(&document)
}

/// A document of `depth` documents within it.
fn nested(depth: usize) -> Vec<u8> {
    let mut document = Vec::with_capacity(depth * 8 + 5);
    for level in 0..=depth {
        document.extend_from_slice(&(((depth - level) * 8 + 5) as i32).to_le_bytes());
        if level < depth {
            document.extend_from_slice(b"\x03a\0");
        }
    }
    document.extend(std::iter::repeat_n(0, depth + 1));
    document
}

/// `{b: <zeros>}` of exactly so many bytes.
fn sized(bytes: usize) -> Vec<u8> {
    let zeros = bytes - 13;
    let mut document = (bytes as i32).to_le_bytes().to_vec();
    document.extend_from_slice(b"\x05b\0");
    document.extend_from_slice(&(zeros as i32).to_le_bytes());
    document.resize(bytes, 0);
    document
}

#[test]
fn legacy_queries() {
    let (address, _server) = peer();
    let check = |name: &str, sent: &[u8], expected| check(address, name, sent, expected);
    let hello = DocWriter::new().with("hello", 1).finish();
    let hello = hello.as_bytes();

    check("hello", &query(0, "admin.$cmd", -1, hello), Gets::LegacyOk);
    check(
        "hello, one to return",
        &query(0, "admin.$cmd", 1, hello),
        Gets::LegacyOk,
    );
    check(
        "hello, secondary allowed",
        &query(4, "admin.$cmd", 1, hello),
        Gets::LegacyOk,
    );
    check(
        "hello, other database",
        &query(0, "other.$cmd", -1, hello),
        Gets::LegacyOk,
    );
    let fields = [hello, hello].concat();
    check(
        "hello, fields",
        &query(0, "admin.$cmd", -1, &fields),
        Gets::LegacyOk,
    );
    for wrapper in ["$query", "query"] {
        let mut wrapped = DocWriter::new();
        wrapped
            .begin_document(wrapper)
            .append("hello", 1)
            .end()
            .append("$orderby", 1);
        let sent = query(0, "admin.$cmd", -1, wrapped.finish().as_bytes());
        check(wrapper, &sent, Gets::LegacyOk);
    }
    check(
        "none to return",
        &query(0, "admin.$cmd", 0, hello),
        Gets::LegacyCode(16979),
    );
    check(
        "five to return",
        &query(0, "admin.$cmd", 5, hello),
        Gets::LegacyCode(16979),
    );
    check(
        "exhaust",
        &query(64, "admin.$cmd", -1, hello),
        Gets::LegacyCode(18527),
    );
    let named = DocWriter::new()
        .with("hello", 1)
        .with("$db", "admin")
        .finish();
    check(
        "$db",
        &query(0, "admin.$cmd", -1, named.as_bytes()),
        Gets::LegacyCode(40621),
    );
    let trailing = [hello, &[1, 2, 3]].concat();
    check(
        "bytes behind",
        &query(0, "admin.$cmd", -1, &trailing),
        Gets::LegacyCode(22),
    );
    for name in ["ping", "nonesuch", "find"] {
        let sent = DocWriter::new().with(name, 1).finish();
        check(
            name,
            &query(0, "admin.$cmd", -1, sent.as_bytes()),
            Gets::LegacyCode(352),
        );
    }
    check(
        "empty",
        &query(0, "admin.$cmd", -1, &[5, 0, 0, 0, 0]),
        Gets::LegacyCode(352),
    );
    check(
        "no database",
        &query(0, ".$cmd", -1, hello),
        Gets::LegacyCode(73),
    );
    for namespace in ["test.foo", "admin", "", "admin.$cmd.sys.inprog"] {
        check(
            namespace,
            &query(0, namespace, -1, hello),
            Gets::LegacyFailure(5_739_101),
        );
    }
    check(
        "no document",
        &query(0, "admin.$cmd", -1, &[]),
        Gets::LegacyCode(22),
    );
    check(
        "a document too long",
        &query(0, "admin.$cmd", -1, &[9, 0, 0, 0, 0]),
        Gets::LegacyCode(22),
    );
    check("no flags", &frame(OP_QUERY, &[0, 0]), Gets::Closed);
    check(
        "no end of the name",
        &frame(OP_QUERY, b"\0\0\0\0admin"),
        Gets::Closed,
    );
}

fn query(flags: i32, namespace: &str, limit: i32, documents: &[u8]) -> Vec<u8> {
    let payload = [
        &flags.to_le_bytes()[..],
        namespace.as_bytes(),
        &[0; 5], // the end of the name, and nothing to skip
        &limit.to_le_bytes(),
        documents,
    ];
    frame(OP_QUERY, &payload.concat())
}

#[test]
fn compressed_messages() {
    let (address, server) = peer();
    let ours = server.is_some();
    let check = |name: &str, sent: &[u8], expected| check(address, name, sent, expected);
    let plain = [&[0; 4][..], &body(ping().as_bytes())].concat();
    let size = plain.len() as i32;
    let zlib = deflate(Compressor::Zlib, &plain);

    for compressor in Compressor::ALL {
        let id = compressor.id();
        let bytes = deflate(compressor, &plain);
        check(
            compressor.name(),
            &compressed(OP_MSG, size, id, &bytes),
            Gets::Ok,
        );
        let empty = deflate(compressor, &[0; 4]);
        check(
            "nothing inside",
            &compressed(OP_MSG, 4, id, &empty),
            Gets::Code(40587),
        );
        check(
            "corrupt",
            &compressed(OP_MSG, size, id, &[0xff; 5]),
            Gets::Closed,
        );
        check(
            "smaller claim",
            &compressed(OP_MSG, size - 1, id, &bytes),
            Gets::Closed,
        );
        if ours {
            // The real server appends whatever was in its memory, where the compressor
            // does not notice: it takes that for another section.
            let answer = || match compressor {
                Compressor::Zlib => Gets::Code(40432),
                Compressor::Snappy | Compressor::Zstd => Gets::Closed,
            };
            for claim in [size + 1, 40_000_000] {
                let sent = compressed(OP_MSG, claim, id, &bytes);
                check("a larger claim", &sent, answer());
            }
        }
        for claim in [0, -1, i32::MIN, i32::MAX, 48_000_000, 48_000_000 - 15] {
            let sent = compressed(OP_MSG, claim, id, &bytes);
            check(
                &format!("{} claims {claim}", compressor.name()),
                &sent,
                Gets::Closed,
            );
        }
        let flagged = deflate(compressor, &[&[4, 0, 0, 0][..], &plain[4..]].concat());
        check(
            "required flag 2",
            &compressed(OP_MSG, size, id, &flagged),
            Gets::Closed,
        );
    }
    check(
        "compressor 0",
        &compressed(OP_MSG, size, 0, &plain),
        Gets::Closed,
    );
    check(
        "compressor 4",
        &compressed(OP_MSG, size, 4, &plain),
        Gets::Closed,
    );
    check(
        "compressor 255",
        &compressed(OP_MSG, size, 255, &plain),
        Gets::Closed,
    );
    check(
        "header cut short",
        &frame(OP_COMPRESSED, &[0; 5]),
        Gets::Closed,
    );
    check(
        "opcode 9999 inside",
        &compressed(9999, size, 2, &zlib),
        Gets::Closed,
    );
    if ours {
        // The real server ignores it in silence.
        let inner = &compressed(OP_MSG, size, 2, &zlib)[16..];
        let bytes = deflate(Compressor::Zlib, inner);
        let sent = compressed(OP_COMPRESSED, inner.len() as i32, 2, &bytes);
        check("compressed twice", &sent, Gets::Closed);
    }
    let hello = &query(
        0,
        "admin.$cmd",
        -1,
        DocWriter::new().with("hello", 1).finish().as_bytes(),
    );
    let inner = deflate(Compressor::Zlib, &hello[16..]);
    let sent = compressed(OP_QUERY, hello.len() as i32 - 16, 2, &inner);
    check("a legacy handshake inside", &sent, Gets::LegacyOk);
    for (right, expected) in [(true, Gets::Ok), (false, Gets::Closed)] {
        let summed = &message_with_checksum(0, &[&plain[4..]], right)[16..];
        let bytes = deflate(Compressor::Zlib, summed);
        let sent = compressed(OP_MSG, summed.len() as i32, 2, &bytes);
        check("checksum inside", &sent, expected);
    }
}

fn deflate(compressor: Compressor, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![];
    compressor.compress(payload, &mut out).unwrap();
    out
}

fn compressed(opcode: i32, size: i32, compressor: u8, bytes: &[u8]) -> Vec<u8> {
    let payload = [
        &opcode.to_le_bytes()[..],
        &size.to_le_bytes(),
        &[compressor],
        bytes,
    ];
    frame(OP_COMPRESSED, &payload.concat())
}
