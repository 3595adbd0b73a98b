//! The fields that any command may carry: time limit, concerns, session.

use crate::command::arguments::{fields, is_generic, refuse_duplicates};
use model::bson::{Doc, ValueRef};
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
    pub(crate) read_concern: ReadConcern,
}

impl Envelope {
    pub(crate) fn parse(body: Doc<'_>) -> Result<Self, Error> {
        let mut envelope = Self {
            time_limit: None,
            write_concern: WriteConcern::Majority,
            read_concern: ReadConcern::Latest,
        };
        refuse_duplicates("APIParametersFromClient", body)?;
        for element in body.iter().skip(1) {
            // Almost all fields are the command's own: look at the first byte
            // before comparing names.
            if !matches!(
                element.key_bytes().first(),
                Some(b'm' | b'w' | b'r' | b't' | b'a' | b's' | b'l')
            ) {
                continue;
            }
            let name = element.key();
            if !is_generic(name) {
                continue;
            }
            match (name, element.value()) {
                ("maxTimeMS", value) => envelope.time_limit = time_limit(value)?,
                ("writeConcern", ValueRef::Document(doc)) => {
                    envelope.write_concern = write_concern(doc)?
                }
                ("readConcern", ValueRef::Document(doc)) => {
                    envelope.read_concern = read_concern(doc)?
                }
                ("lsid", ValueRef::Document(_)) => {}
                ("writeConcern" | "readConcern" | "lsid", value) => {
                    return Err(Error::new(
                        Code::TYPE_MISMATCH,
                        format!(
                            "\"{name}\" had the wrong type. Expected object, found {}",
                            value.kind().name()
                        ),
                    ));
                }
                ("txnNumber" | "autocommit" | "startTransaction", _) => {
                    return Err(Error::new(
                        Code::ILLEGAL_OPERATION,
                        "Transaction numbers are only allowed on a replica set member or mongos",
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
        Ok(envelope)
    }
}

fn time_limit(value: ValueRef<'_>) -> Result<Option<Duration>, Error> {
    let number = match model::number::Number::of(value) {
        None => return Err(Error::bad_value("maxTimeMS must be a number")),
        // A decimal is rounded, a double must be whole.
        Some(decimal @ model::number::Number::Decimal(_)) => decimal.to_f64().round_ties_even(),
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
                    value => match model::number::Number::of(value).map(|n| n.to_f64().trunc()) {
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
                let number = model::number::Number::of(field.value()).map(|n| n.to_f64());
                if number.is_some_and(|number| number.abs() > f64::from(i32::MAX)) {
                    return Err(Error::new(
                        Code::FAILED_TO_PARSE,
                        "wtimeout must be a 32-bit integer",
                    ));
                }
            }
            "provenance" | "getLastError" | "wElectionId" | "wOpTime"
            | "wtimeoutMS" => {}
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

fn read_concern(doc: Doc<'_>) -> Result<ReadConcern, Error> {
    let mut concern = ReadConcern::Latest;
    let mut at = None;
    for field in fields("readConcern", doc) {
        match field.name() {
            "level" => {
                concern = match field.string()? {
                    "local" | "available" | "majority" | "linearizable" => ReadConcern::Latest,
                    "snapshot" => ReadConcern::Snapshot(None),
                    other => {
                        return Err(Error::bad_value(format!(
                            "Enumeration value '{other}' for field 'readConcern.level' is not a valid value."
                        )));
                    }
                }
            }
            "atClusterTime" => match field.value() {
                ValueRef::Timestamp(time) => {
                    at = Some(ClusterTime::new(time.seconds, time.increment));
                }
                _ => return Err(field.wrong_type("timestamp")),
            },
            "afterClusterTime"
            | "afterOpTime"
            | "provenance"
            | "allowTransactionTableSnapshot"
            | "waitLastStableRecoveryTimestamp" => {}
            _ => return Err(field.unknown()),
        }
    }
    match (concern, at) {
        (ReadConcern::Snapshot(_), at) => Ok(ReadConcern::Snapshot(at)),
        (ReadConcern::Latest, None) => Ok(concern),
        (ReadConcern::Latest, Some(_)) => Err(Error::new(
            Code::INVALID_OPTIONS,
            "readConcern.atClusterTime is only allowed with readConcern level snapshot",
        )),
    }
}
