//! The fields that any command may carry: time limit, concerns, session.

use crate::command::arguments::refuse_duplicates;
use crate::command::default_concerns::ConcernDefaults;
pub(crate) use crate::command::read_concern::ReadConcern;
use crate::command::read_concern::ReadConcernOptions;
use crate::command::read_preference::allows_secondaries;
pub(crate) use crate::command::write_concern::WriteConcern;
use crate::command::write_concern::WriteConcernOptions;
use crate::replica_set::cluster_time;
use crate::session::SessionId;
use crate::sharding::Routed;
use model::bson::{Doc, ValueRef};
use model::number::Number;
use model::time::ClusterTime;
use model::{Code, Error};
use std::time::Duration;
use wire::Request;

#[derive(Debug)]
pub(crate) struct Envelope {
    pub(crate) time_limit: Option<Duration>,
    pub(crate) write_concern: WriteConcern,
    /// False for `w: 0` without `j`: the reply then tells nothing of the outcome.
    pub(crate) acknowledged: bool,
    names_write_concern: bool,
    /// What the log's own commit does not satisfy.
    pub(crate) confirmation: Option<Box<WriteConcernOptions>>,
    pub(crate) read_concern: ReadConcern,
    /// Read concern `available`: what is stored here counts, whoever owns it.
    pub(crate) sees_orphans: bool,
    /// Whether a secondary may answer.
    pub(crate) secondary_ok: bool,
    /// What must be waited for before the command may run, if anything.
    pub(crate) read_wait: Option<ReadConcernOptions>,
    /// The cluster time that the client knows.
    pub(crate) cluster_time: Option<ClusterTime>,
    /// The session the command belongs to.
    pub(crate) session: Option<SessionId>,
    /// Given with commands that may be retries.
    pub(crate) transaction_number: Option<i64>,
    /// What a router says about the placement of data.
    pub(crate) routed: Option<Box<Routed>>,
}

impl Envelope {
    pub(crate) fn parse(request: &Request) -> Result<Self, Error> {
        let (command, body) = (request.name(), request.body());
        let mut envelope = Self {
            time_limit: None,
            write_concern: WriteConcern::Majority,
            acknowledged: true,
            names_write_concern: false,
            confirmation: None,
            read_concern: ReadConcern::Latest,
            sees_orphans: false,
            secondary_ok: false,
            read_wait: None,
            cluster_time: None,
            session: None,
            transaction_number: None,
            routed: None,
        };
        if request.may_repeat_names() {
            refuse_duplicates("APIParametersFromClient", body)?;
        }
        let mut of_transaction = None;
        for element in body.iter().skip(1) {
            // Almost all fields are the command's own: look at the first byte
            // before comparing names.
            if !matches!(
                element.key_bytes().first(),
                Some(b'm' | b'w' | b'r' | b't' | b'a' | b's' | b'l' | b'd' | b'$')
            ) {
                continue;
            }
            // As bytes: they need no look at their characters.
            match (element.key_bytes(), element.value()) {
                (b"maxTimeMS", value) => envelope.time_limit = time_limit(command, value)?,
                (b"maxTimeMSOpOnly", _) => {
                    return Err(Error::new(
                        Code::INVALID_OPTIONS,
                        "Can not specify maxTimeMSOpOnly for non internal clients",
                    ));
                }
                (b"$maxTimeMS", _) => wire::refuse_former_time_limit(command)?,
                (b"writeConcern", _) if !takes_write_concern(command) => {
                    return Err(Error::new(
                        Code::INVALID_OPTIONS,
                        "Command does not support writeConcern",
                    ));
                }
                (b"writeConcern", ValueRef::Document(doc)) => {
                    envelope.writes_as(WriteConcernOptions::parse(doc)?);
                    envelope.names_write_concern = !doc.is_empty();
                }
                (b"readConcern", ValueRef::Document(doc)) => {
                    let options = ReadConcernOptions::parse(command, doc)?;
                    envelope.read_concern = options.concern;
                    envelope.sees_orphans = options.available;
                    envelope.read_wait =
                        (options != ReadConcernOptions::DEFAULT).then_some(options);
                }
                (b"$clusterTime", value) => {
                    envelope.cluster_time = Some(cluster_time::parse(value)?);
                }
                (b"readConcern", _) => {
                    return Err(Error::new(
                        Code::FAILED_TO_PARSE,
                        "readConcern field should be an object",
                    ));
                }
                (b"lsid", ValueRef::Document(session)) => {
                    envelope.session =
                        Some(SessionId::parse("OperationSessionInfo.lsid", session)?);
                }
                (b"lsid" | b"txnNumber" | b"autocommit" | b"startTransaction", value)
                    if value.is_nullish() => {}
                (b"lsid", value) => {
                    return Err(wrong_session_field(element.key(), value, "object"));
                }
                (b"writeConcern", value) => {
                    return Err(Error::new(
                        Code::TYPE_MISMATCH,
                        format!(
                            "\"writeConcern\" had the wrong type. Expected object, found {}",
                            value.kind().name()
                        ),
                    ));
                }
                (b"txnNumber", ValueRef::Int64(number)) => {
                    envelope.transaction_number = Some(number);
                }
                (b"txnNumber", value) => {
                    return Err(wrong_session_field(element.key(), value, "long"));
                }
                (b"autocommit", ValueRef::Boolean(_)) => of_transaction = Some(element.key()),
                (b"startTransaction", ValueRef::Boolean(_)) => {
                    of_transaction.get_or_insert(element.key());
                }
                (b"autocommit" | b"startTransaction", value) => {
                    return Err(wrong_session_field(element.key(), value, "bool"));
                }
                (b"$readPreference", ValueRef::Document(preference)) => {
                    envelope.secondary_ok = allows_secondaries(preference)?;
                }
                (b"$queryOptions" | b"$readPreference", value)
                    if !matches!(value, ValueRef::Document(_)) =>
                {
                    return Err(Error::new(
                        Code::TYPE_MISMATCH,
                        format!(
                            "BSON field '{command}.{}' is the wrong type '{}', expected type 'object'",
                            element.key(),
                            value.kind().name()
                        ),
                    ));
                }
                (b"apiStrict" | b"apiDeprecationErrors", _) if body.get("apiVersion").is_none() => {
                    return Err(Error::location(
                        4886600,
                        "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion",
                    ));
                }
                (b"apiStrict", ValueRef::Boolean(true)) if !is_stable(command) => {
                    return Err(Error::new(
                        Code::API_STRICT_ERROR,
                        format!(
                            "Provided apiStrict:true, but the command {command} is not in API Version 1"
                        ),
                    ));
                }
                (b"shardVersion" | b"databaseVersion" | b"routedBy", value) => {
                    let routed = envelope.routed.get_or_insert_default();
                    routed.read(element.key(), value)?;
                }
                (b"apiVersion", ValueRef::String("1")) => {}
                (b"apiVersion", value) => {
                    return Err(Error::new(
                        Code::API_VERSION_ERROR,
                        format!("API version must be \"1\", found {value:?}"),
                    ));
                }
                _ => {}
            }
        }
        if let (Some(routed), ReadConcern::Snapshot(Some(time))) =
            (&mut envelope.routed, envelope.read_concern)
        {
            routed.reads_at(time);
        }
        if envelope.session.is_some() && !belongs_to_session(command) {
            if envelope.transaction_number.is_some() {
                return Err(Error::location(
                    50889,
                    "It is illegal to provide a txnNumber for this command",
                ));
            }
            envelope.session = None;
        }
        if let Some(number) = envelope.transaction_number {
            check_transaction(command, body, &envelope, number)?;
        } else if let Some(name) = of_transaction {
            return Err(Error::new(
                Code::INVALID_OPTIONS,
                format!("'{name}' field requires a transaction number to also be specified"),
            ));
        }
        Ok(envelope)
    }

    fn writes_as(&mut self, options: WriteConcernOptions) {
        self.write_concern = options.durability();
        self.acknowledged = options.is_acknowledged();
        self.confirmation = options.waits_for_members().then(|| Box::new(options));
    }

    /// Gives the concerns that the set has for commands without one. All that can be set for
    /// reads see the same here.
    pub(crate) fn apply_defaults(&mut self, command: &str, defaults: &ConcernDefaults) {
        if let Some(write) = &defaults.write
            && !self.names_write_concern
            && takes_write_concern(command)
        {
            self.writes_as(write.clone());
        }
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

/// A limit as a command gives it; zero is none.
pub(crate) fn time_limit(command: &str, value: ValueRef<'_>) -> Result<Option<Duration>, Error> {
    let number = match Number::of(value) {
        None => return Err(Error::bad_value("maxTimeMS must be a number")),
        // A decimal is rounded, a double must be whole.
        Some(decimal @ Number::Decimal(_)) => decimal.to_f64().round_ties_even(),
        Some(number) => number.to_f64(),
    };
    if number.fract() != 0.0 || number.is_nan() {
        return Err(Error::bad_value("maxTimeMS has non-integral value"));
    }
    if number < 0.0 && command == "aggregate" {
        return Err(Error::location(
            51024,
            format!("BSON field 'maxTimeMS' value must be >= 0, actual value '{number}'"),
        ));
    }
    if !(0.0..=f64::from(i32::MAX)).contains(&number) {
        return Err(Error::bad_value(format!(
            "{number} value for maxTimeMS is out of range [0, 2147483647]"
        )));
    }
    Ok((number > 0.0).then(|| Duration::from_millis(number as u64)))
}

/// Commands that write, or whose result may be written.
pub(crate) fn takes_write_concern(command: &str) -> bool {
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
            | "_terndbCommit"
            | "_terndbBecomeShard"
            | "_terndbCreateSharded"
            | "_terndbForgetDatabase"
            | "_terndbForgetPlacement"
            | "_terndbRename"
            | "_terndbSetDatabase"
            | "_terndbSetNextKey"
            | "_terndbSetPlacement"
    )
}

/// Commands that belong to a session; the others say something about the server.
fn belongs_to_session(command: &str) -> bool {
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
