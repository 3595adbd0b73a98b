//! The fields that any command may carry: time limit, concerns, session.

use crate::command::arguments::{fields, is_generic, refuse_duplicates};
use crate::session::SessionId;
use model::bson::{Doc, Kind, ValueRef};
use model::number::Number;
use model::time::ClusterTime;
use model::{Code, Error};
use std::time::Duration;

/// What is asked of the log before a write is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteConcern {
    /// Synced before the reply; what every write gets that says nothing else.
    Majority,
    /// `w: 1` or `w: 0` without `j`: applied, and synced soon after.
    Applied,
}

/// Which state a read may see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadConcern {
    /// One member: local, available, majority and linearizable are the same.
    Latest,
    /// As of one time: the given one, or that of the command's start.
    Snapshot(Option<ClusterTime>),
}

#[derive(Debug)]
pub(crate) struct Envelope {
    pub(crate) time_limit: Option<Duration>,
    pub(crate) write_concern: WriteConcern,
    /// False for `w: 0` without `j`: the reply then tells nothing of the outcome.
    pub(crate) acknowledged: bool,
    pub(crate) read_concern: ReadConcern,
    /// The session the command belongs to.
    pub(crate) session: Option<SessionId>,
    /// Given with commands that may be retries.
    pub(crate) transaction_number: Option<i64>,
}

impl Envelope {
    pub(crate) fn parse(command: &str, body: Doc<'_>) -> Result<Self, Error> {
        let mut envelope = Self {
            time_limit: None,
            write_concern: WriteConcern::Majority,
            acknowledged: true,
            read_concern: ReadConcern::Latest,
            session: None,
            transaction_number: None,
        };
        refuse_duplicates("APIParametersFromClient", body)?;
        for element in body.iter().skip(1) {
            // Almost all fields are the command's own: look at the first byte
            // before comparing names.
            if !matches!(
                element.key_bytes().first(),
                Some(b'm' | b'w' | b'r' | b't' | b'a' | b's' | b'l' | b'$')
            ) {
                continue;
            }
            let name = element.key();
            if !is_generic(name) {
                continue;
            }
            match (name, element.value()) {
                ("maxTimeMS", value) => envelope.time_limit = time_limit(value)?,
                ("maxTimeMSOpOnly", _) => {
                    return Err(Error::new(
                        Code::INVALID_OPTIONS,
                        "Can not specify maxTimeMSOpOnly for non internal clients",
                    ));
                }
                ("writeConcern", _) if !takes_write_concern(command) => {
                    return Err(Error::new(
                        Code::INVALID_OPTIONS,
                        "Command does not support writeConcern",
                    ));
                }
                ("writeConcern", ValueRef::Document(doc)) => {
                    envelope.write_concern = write_concern(doc)?;
                    envelope.acknowledged = envelope.write_concern == WriteConcern::Majority
                        || !doc.get("w").and_then(Number::of).is_some_and(is_none_asked);
                }
                ("readConcern", ValueRef::Document(doc)) => {
                    envelope.read_concern = read_concern(command, doc)?
                }
                ("readConcern", _) => {
                    return Err(Error::new(
                        Code::FAILED_TO_PARSE,
                        "readConcern field should be an object",
                    ));
                }
                ("lsid", ValueRef::Document(session)) => {
                    envelope.session =
                        Some(SessionId::parse("OperationSessionInfo.lsid", session)?);
                }
                ("lsid" | "txnNumber" | "autocommit" | "startTransaction", value)
                    if value.is_nullish() => {}
                ("lsid", value) => return Err(wrong_session_field(name, value, "object")),
                ("writeConcern", value) => {
                    return Err(Error::new(
                        Code::TYPE_MISMATCH,
                        format!(
                            "\"{name}\" had the wrong type. Expected object, found {}",
                            value.kind().name()
                        ),
                    ));
                }
                ("txnNumber", ValueRef::Int64(number)) => {
                    envelope.transaction_number = Some(number);
                }
                ("txnNumber", value) => return Err(wrong_session_field(name, value, "long")),
                ("autocommit" | "startTransaction", ValueRef::Boolean(_)) => {}
                ("autocommit" | "startTransaction", value) => {
                    return Err(wrong_session_field(name, value, "bool"));
                }
                ("$readPreference", ValueRef::Document(preference)) => {
                    check_read_preference(preference)?
                }
                ("$queryOptions" | "$readPreference", value)
                    if !matches!(value, ValueRef::Document(_)) =>
                {
                    return Err(Error::new(
                        Code::TYPE_MISMATCH,
                        format!(
                            "BSON field '{command}.{name}' is the wrong type '{}', expected type 'object'",
                            value.kind().name()
                        ),
                    ));
                }
                ("apiStrict" | "apiDeprecationErrors", _) if body.get("apiVersion").is_none() => {
                    return Err(Error::location(
                        4886600,
                        "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion",
                    ));
                }
                ("apiStrict", ValueRef::Boolean(true)) if !is_stable(command) => {
                    return Err(Error::new(
                        Code::API_STRICT_ERROR,
                        format!(
                            "Provided apiStrict:true, but the command {command} is not in API Version 1"
                        ),
                    ));
                }
                ("apiVersion", ValueRef::String("1")) => {}
                ("apiVersion", value) => {
                    return Err(Error::new(
                        Code::API_VERSION_ERROR,
                        format!("API version must be \"1\", found {value:?}"),
                    ));
                }
                _ => {}
            }
        }
        if let Some(number) = envelope.transaction_number {
            check_transaction(command, body, &envelope, number)?;
        } else if let Some(name) = ["autocommit", "startTransaction"]
            .into_iter()
            .find(|name| body.get(name).is_some_and(|value| !value.is_nullish()))
        {
            return Err(Error::new(
                Code::INVALID_OPTIONS,
                format!("'{name}' field requires a transaction number to also be specified"),
            ));
        }
        Ok(envelope)
    }
}

fn wrong_session_field(name: &str, value: ValueRef<'_>, expected: &str) -> Error {
    Error::new(
        Code::TYPE_MISMATCH,
        format!(
            "BSON field 'OperationSessionInfo.{name}' is the wrong type '{}', expected type '{expected}'",
            value.kind().name()
        ),
    )
}

/// What goes together with a transaction number, and with which commands.
fn check_transaction(
    command: &str,
    body: Doc<'_>,
    envelope: &Envelope,
    number: i64,
) -> Result<(), Error> {
    let refuse = |message: &str| Err(Error::new(Code::INVALID_OPTIONS, message));
    if !may_be_numbered(command) {
        return Err(Error::location(
            50889,
            "It is illegal to provide a txnNumber for this command",
        ));
    }
    if envelope.session.is_none() {
        return refuse("Transaction number requires a session ID to also be specified");
    }
    if number < 0 {
        return refuse("Transaction number cannot be negative");
    }
    let autocommit = body.get("autocommit");
    match autocommit {
        Some(ValueRef::Boolean(true)) => {
            return refuse("Specifying autocommit=true is not allowed.");
        }
        // Refused and not ignored: its writes would not be one.
        Some(ValueRef::Boolean(false)) => {
            return Err(Error::new(
                Code::COMMAND_NOT_SUPPORTED,
                "multi-document transactions (autocommit: false) are not supported yet",
            ));
        }
        _ => {}
    }
    if body
        .get("startTransaction")
        .is_some_and(|value| !value.is_nullish())
    {
        return refuse("'startTransaction' field requires 'autocommit' field to also be specified");
    }
    if !is_retryable(command) {
        return Err(Error::new(
            Code::NOT_A_RETRYABLE_WRITE_COMMAND,
            format!(
                "txnNumber may only be provided for multi-document transactions and retryable \
                 write commands. autocommit:false was not provided, and {command} is not a \
                 retryable write command."
            ),
        ));
    }
    Ok(())
}

/// Commands that answer from history when they are sent again.
fn is_retryable(command: &str) -> bool {
    matches!(
        command,
        "insert" | "update" | "delete" | "findAndModify" | "findandmodify"
    )
}

fn time_limit(value: ValueRef<'_>) -> Result<Option<Duration>, Error> {
    let number = match Number::of(value) {
        None => return Err(Error::bad_value("maxTimeMS must be a number")),
        // A decimal is rounded, a double must be whole.
        Some(decimal @ Number::Decimal(_)) => decimal.to_f64().round_ties_even(),
        Some(number) => number.to_f64(),
    };
    if number.fract() != 0.0 || number.is_nan() {
        return Err(Error::bad_value("maxTimeMS has non-integral value"));
    }
    if !(0.0..=f64::from(i32::MAX)).contains(&number) {
        return Err(Error::bad_value(format!(
            "{number} value for maxTimeMS is out of range [0, 2147483647]"
        )));
    }
    Ok((number > 0.0).then(|| Duration::from_millis(number as u64)))
}

/// A number of members as the real server reads it: decimals are rounded,
/// doubles are cut, and NaN is zero.
fn member_count(number: Number) -> f64 {
    let count = match number {
        Number::Decimal(_) => number.to_f64().round_ties_even(),
        _ => number.to_f64().trunc(),
    };
    if count.is_nan() { 0.0 } else { count }
}

fn is_none_asked(members: Number) -> bool {
    member_count(members) == 0.0
}

fn write_concern(doc: Doc<'_>) -> Result<WriteConcern, Error> {
    let (mut majority, mut journal, mut fsync) = (true, None, false);
    for field in fields("WriteConcernOptions", doc) {
        match field.name() {
            "w" => {
                majority = match field.value() {
                    ValueRef::String("majority") => true,
                    ValueRef::String(_) | ValueRef::Null | ValueRef::Undefined => {
                        let mode = match field.value() {
                            ValueRef::String(mode) => mode,
                            _ => "",
                        };
                        return Err(Error::bad_value(format!(
                            "cannot use non-majority 'w' mode \"{mode}\" when a host is not a member of a replica set"
                        )));
                    }
                    ValueRef::Document(tags) if tags.is_empty() => {
                        return Err(Error::new(
                            Code::FAILED_TO_PARSE,
                            "tagged write concern requires tags",
                        ));
                    }
                    // There is one member: any tags are satisfied by it.
                    ValueRef::Document(_) => false,
                    value => match Number::of(value).map(member_count) {
                        Some(0.0 | 1.0) => false,
                        Some(number) if (0.0..=50.0).contains(&number) => {
                            return Err(Error::bad_value(
                                "cannot use 'w' > 1 when a host is not replicated",
                            ));
                        }
                        Some(_) => {
                            return Err(Error::new(
                                Code::FAILED_TO_PARSE,
                                "w has to be a non-negative number and not greater than 50",
                            ));
                        }
                        None => {
                            return Err(Error::new(
                                Code::FAILED_TO_PARSE,
                                "w has to be a number, string, or object",
                            ));
                        }
                    },
                }
            }
            "j" => journal = Some(field.loose_boolean()?),
            "fsync" => fsync = field.loose_boolean()?,
            "wtimeout" => {
                let number = Number::of(field.value()).map(|n| n.to_f64());
                if number.is_some_and(|number| number.abs() > f64::from(i32::MAX)) {
                    return Err(Error::new(
                        Code::FAILED_TO_PARSE,
                        "wtimeout must be a 32-bit integer",
                    ));
                }
            }
            "provenance" | "getLastError" | "wElectionId" | "wOpTime" | "wtimeoutMS" => {}
            _ => return Err(field.unknown()),
        }
    }
    if fsync && journal == Some(true) {
        return Err(Error::new(
            Code::FAILED_TO_PARSE,
            "fsync and j options cannot be used together",
        ));
    }
    Ok(match (majority, journal) {
        (true, _) | (false, Some(true)) => WriteConcern::Majority,
        (false, Some(false) | None) => WriteConcern::Applied,
    })
}

/// Commands that write, or whose result may be written.
fn takes_write_concern(command: &str) -> bool {
    matches!(
        command,
        "insert"
            | "update"
            | "delete"
            | "findAndModify"
            | "findandmodify"
            | "aggregate"
            | "create"
            | "createIndexes"
            | "drop"
            | "dropDatabase"
            | "dropIndexes"
            | "deleteIndexes"
            | "renameCollection"
            | "collMod"
            | "setFeatureCompatibilityVersion"
    )
}

/// Commands that belong to a session; the others say something about the server.
fn may_be_numbered(command: &str) -> bool {
    !matches!(
        command,
        "hello"
            | "isMaster"
            | "ismaster"
            | "ping"
            | "buildInfo"
            | "buildinfo"
            | "connectionStatus"
            | "listCommands"
            | "whatsmyuri"
            | "getLastError"
            | "getnonce"
            | "_isSelf"
    )
}

/// The commands of version 1 of the stable API, which `apiStrict` allows.
fn is_stable(command: &str) -> bool {
    matches!(
        command,
        "abortTransaction"
            | "aggregate"
            | "collMod"
            | "commitTransaction"
            | "count"
            | "create"
            | "createIndexes"
            | "delete"
            | "drop"
            | "dropDatabase"
            | "dropIndexes"
            | "endSessions"
            | "explain"
            | "find"
            | "findAndModify"
            | "getMore"
            | "hello"
            | "insert"
            | "killCursors"
            | "listCollections"
            | "listDatabases"
            | "listIndexes"
            | "ping"
            | "refreshSessions"
            | "update"
    )
}

/// Reads of documents, which may name the state they want to see.
fn takes_read_concern(command: &str) -> bool {
    matches!(
        command,
        "find" | "aggregate" | "distinct" | "count" | "getMore" | "explain" | "dbHash"
    )
}

/// One member serves every read preference, if it is one.
fn check_read_preference(preference: Doc<'_>) -> Result<(), Error> {
    match preference.get("mode") {
        Some(ValueRef::String(
            "primary" | "primaryPreferred" | "secondary" | "secondaryPreferred" | "nearest",
        )) => Ok(()),
        other => Err(Error::bad_value(format!(
            "Could not parse $readPreference mode {other:?}. Only the modes 'primary', 'primaryPreferred', 'secondary', 'secondaryPreferred', and 'nearest' are supported."
        ))),
    }
}

fn read_concern(command: &str, doc: Doc<'_>) -> Result<ReadConcern, Error> {
    let mut concern = ReadConcern::Latest;
    let mut at = None;
    if !doc.is_empty() && !takes_read_concern(command) && doc.get_str("level") != Some("local") {
        return Err(Error::new(
            Code::INVALID_OPTIONS,
            format!("Command {command} does not support readConcern {doc:?}"),
        ));
    }
    for field in fields("readConcern", doc) {
        match field.name() {
            "level" => {
                concern = match field.string()? {
                    "local" | "available" | "majority" | "linearizable" => ReadConcern::Latest,
                    "snapshot" if matches!(command, "count" | "explain") => {
                        return Err(Error::new(
                            Code::INVALID_OPTIONS,
                            format!(
                                "Command {command} does not support readConcern level snapshot"
                            ),
                        ));
                    }
                    "snapshot" => ReadConcern::Snapshot(None),
                    other => {
                        return Err(Error::new(
                            Code::FAILED_TO_PARSE,
                            format!("'{other}' is not a readConcern level"),
                        ));
                    }
                }
            }
            "atClusterTime" => match field.value() {
                ValueRef::Timestamp(time) if time.seconds == 0 && time.increment == 0 => {
                    return Err(Error::new(
                        Code::INVALID_OPTIONS,
                        "atClusterTime cannot be a null timestamp",
                    ));
                }
                ValueRef::Timestamp(time) => {
                    at = Some(ClusterTime::new(time.seconds, time.increment));
                }
                _ => return Err(field.wrong_type("timestamp")),
            },
            "afterClusterTime" if field.element().kind() == Kind::Timestamp => {
                return Err(Error::new(
                    Code::ILLEGAL_OPERATION,
                    "Cannot specify afterClusterTime readConcern without replication enabled",
                ));
            }
            "afterClusterTime" => return Err(field.wrong_type("timestamp")),
            "provenance" => {}
            other => {
                return Err(Error::new(
                    Code::INVALID_OPTIONS,
                    format!("Unrecognized option in readConcern: {other}"),
                ));
            }
        }
    }
    match (concern, at) {
        (ReadConcern::Snapshot(_), at) => Ok(ReadConcern::Snapshot(at)),
        (ReadConcern::Latest, None) => Ok(concern),
        (ReadConcern::Latest, Some(_)) => Err(Error::new(
            Code::INVALID_OPTIONS,
            "atClusterTime field can be set only if level is equal to snapshot",
        )),
    }
}
