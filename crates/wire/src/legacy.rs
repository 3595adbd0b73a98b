//! OP_QUERY, as far as it still lives: the handshake of drivers that do not yet know whether the
//! server speaks OP_MSG.
//!
//! Only a handful of commands may come this way, addressed to `<database>.$cmd`. The command is
//! rewritten as an OP_MSG would carry it: out of its `$query` wrapper, and with a `$db`. So a
//! handler sees one kind of request. The opcodes of older servers (OP_INSERT and its like) are not
//! read at all.

use bytes::Bytes;
use model::bson::{Doc, DocWriter, MAX_INTERNAL_BYTES, ValueRef, validate};
use model::error::{Code, Error};

use crate::envelope::{Envelope, Form};
use crate::frame::{CloseReason, Fault, Incoming};
use crate::protocol::{HEADER_SIZE, OP_QUERY};
use crate::reply::Reply;
use crate::request::{Request, check_database_name, invalid_bson, split_document};

/// The commands that the real server still accepts in an OP_QUERY.
const ALLOWED_COMMANDS: [&str; 8] = [
    "hello",
    "isMaster",
    "ismaster",
    "buildInfo",
    "buildinfo",
    "saslStart",
    "saslContinue",
    "_isSelf",
];

const UPGRADE_HINT: &str = "The client driver may require an upgrade. For more details see \
    https://dochub.mongodb.org/core/legacy-opcode-removal";

const FLAG_EXHAUST: i32 = 64;

/// Parses an OP_QUERY message.
pub(crate) fn parse_query(mut envelope: Envelope, message: Bytes) -> Result<Incoming, Fault> {
    let logical_bytes = message.len();
    let truncated = || Fault::Close(CloseReason::Truncated(OP_QUERY));
    let payload = &message[HEADER_SIZE..];
    let (flags, payload) = split_i32(payload).ok_or_else(truncated)?;
    let name_length = payload
        .iter()
        .position(|byte| *byte == 0)
        .ok_or_else(truncated)?;
    let (namespace, payload) = (&payload[..name_length], &payload[name_length + 1..]);
    let (_skip, payload) = split_i32(payload).ok_or_else(truncated)?;
    let (limit, documents) = split_i32(payload).ok_or_else(truncated)?;

    let Some(database) = namespace.strip_suffix(b".$cmd") else {
        return Err(no_longer_supported(envelope, "OP_QUERY"));
    };
    envelope.form = Form::LegacyCommand;
    match parse_command(database, flags, limit, documents) {
        Ok(request) => Ok(Incoming {
            envelope,
            request,
            logical_bytes,
        }),
        Err(error) => Err(Fault::Answer {
            envelope,
            reply: Reply::error(&error),
        }),
    }
}

/// The answer to what OP_MSG commands have replaced.
pub(crate) fn no_longer_supported(mut envelope: Envelope, opcode: &str) -> Fault {
    envelope.form = Form::LegacyFailure;
    let message = format!("{opcode} is no longer supported. {UPGRADE_HINT}");
    let writer = Reply::writer()
        .with("$err", message.as_str())
        .with("code", 5_739_101)
        .with("ok", 0.0);
    Fault::Answer {
        envelope,
        reply: Reply::from_writer(writer),
    }
}

fn parse_command(
    database: &[u8],
    flags: i32,
    limit: i32,
    documents: &[u8],
) -> Result<Request, Error> {
    let command = validated_documents(documents)?;
    let database = std::str::from_utf8(database)
        .map_err(|_| Error::new(Code::INVALID_NAMESPACE, "Invalid database name: not UTF-8"))?;
    check_database_name(database)?;
    if limit != 1 && limit != -1 {
        let message =
            format!("Bad numberToReturn ({limit}) for $cmd type ns - can only be 1 or -1");
        return Err(Error::location(16979, message));
    }
    if flags & FLAG_EXHAUST != 0 {
        let message =
            format!("The 'exhaust' OP_QUERY flag is invalid for commands: {database}.$cmd");
        return Err(Error::location(18527, message));
    }
    let command = unwrap_query(command);
    let name = command.first().map_or("$db", |first| first.key());
    if !ALLOWED_COMMANDS.contains(&name) {
        let message = format!("Unsupported OP_QUERY command: {name}. {UPGRADE_HINT}");
        return Err(Error::new(Code::UNSUPPORTED_OP_QUERY_COMMAND, message));
    }
    if command.element("$db").is_some() {
        return Err(Error::location(
            40621,
            "$db is not allowed in OP_QUERY requests",
        ));
    }
    let mut body = DocWriter::new();
    for element in command {
        body.append_element(&element);
    }
    body.append("$db", database);
    Request::from_parts(body.finish(), Vec::new())
}

/// The command document; a second document selects fields and has no meaning for commands.
fn validated_documents(documents: &[u8]) -> Result<Doc<'_>, Error> {
    let (command, fields) = split_document(documents)?;
    validate(command, MAX_INTERNAL_BYTES).map_err(invalid_bson)?;
    if !fields.is_empty() {
        let (fields, _) = split_document(fields)?;
        validate(fields, MAX_INTERNAL_BYTES).map_err(invalid_bson)?;
    }
    Ok(Doc::from_validated(command))
}

/// Old drivers wrap a command to send a read preference beside it.
fn unwrap_query(command: Doc<'_>) -> Doc<'_> {
    match command.first() {
        Some(first) if matches!(first.key(), "$query" | "query") => match first.value() {
            ValueRef::Document(inner) => inner,
            _ => command,
        },
        Some(_) | None => command,
    }
}

fn split_i32(bytes: &[u8]) -> Option<(i32, &[u8])> {
    let (value, rest) = bytes.split_first_chunk::<4>()?;
    Some((i32::from_le_bytes(*value), rest))
}
