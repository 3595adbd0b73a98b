//! A configuration from a document that a client, a founder or the log gives.

use super::{Configuration, MemberConfiguration, SetSettings, invalid};
use crate::replica_set::fields::{boolean, int32, integer, missing, number, wrong_type};
use model::bson::{Doc, ObjectId, ValueRef};
use model::number::Number;
use model::{Code, Error};

/// A default write concern is given, which is not the place for it.
const DEFAULTS_GIVEN: Code = Code(5624102);

impl Configuration {
    /// Reads and checks a configuration. `new_id` names the set if the document does not.
    pub(crate) fn from_document(doc: Doc<'_>, new_id: ObjectId) -> Result<Self, Error> {
        let configuration = Self::read(doc, new_id)?;
        check_role(doc)
            .and_then(|()| configuration.check())
            .map_err(invalid)?;
        Ok(configuration)
    }

    /// Reads a configuration, field by field.
    pub(super) fn read(doc: Doc<'_>, new_id: ObjectId) -> Result<Self, Error> {
        Self::read_fields(doc, new_id).map_err(|error| match error.code {
            // What TernDB has not is told as such, and this one MongoDB tells by its own code.
            Code::COMMAND_NOT_SUPPORTED | DEFAULTS_GIVEN => error,
            _ => invalid(error.message),
        })
    }

    fn read_fields(doc: Doc<'_>, new_id: ObjectId) -> Result<Self, Error> {
        let mut configuration = Self::first("", &[], new_id);
        configuration.name = match doc.get("_id") {
            Some(ValueRef::String("")) => {
                return Err(invalid("Replica set name must not be empty"));
            }
            Some(ValueRef::String(name)) => name.to_owned(),
            Some(other) => return Err(wrong_type("_id", "string", other)),
            None => return Err(missing("_id")),
        };
        let mut has_members = false;
        for element in doc.iter() {
            let (name, value) = (element.key(), element.value());
            match name {
                "_id" => {}
                "configsvr" => match value {
                    // What it claims is looked at when all can be read.
                    ValueRef::Boolean(_) => {}
                    other => return Err(wrong_type(name, "bool", other)),
                },
                _ if value.is_nullish() => {}
                "version" => {
                    configuration.version = exact_int32(name, value)?;
                    if configuration.version < 1 {
                        return Err(invalid(format!(
                            "version field value of {} is out of range",
                            configuration.version
                        )));
                    }
                }
                "term" => {
                    configuration.term = integer(name, value)?;
                    if configuration.term < -1 {
                        return Err(invalid(format!(
                            "term field value of {} is out of range",
                            configuration.term
                        )));
                    }
                }
                "members" => {
                    has_members = true;
                    let ValueRef::Array(members) = value else {
                        return Err(wrong_type(name, "array", value));
                    };
                    for member in members.iter() {
                        let ValueRef::Document(member) = member else {
                            return Err(wrong_type("members", "object", member));
                        };
                        configuration.members.push(read_member(member)?);
                    }
                }
                "protocolVersion" if integer(name, value)? != 1 => {
                    return Err(invalid("protocolVersion must be 1"));
                }
                "writeConcernMajorityJournalDefault" => {
                    configuration.journal_default = boolean(name, value)?;
                    if !configuration.journal_default {
                        return Err(Error::new(
                            Code::COMMAND_NOT_SUPPORTED,
                            "writeConcernMajorityJournalDefault: false is not supported: what a \
                             majority confirms is on disk",
                        ));
                    }
                }
                "settings" => match value {
                    ValueRef::Document(settings) => {
                        read_settings(settings, &mut configuration.settings)?;
                    }
                    other => return Err(wrong_type(name, "object", other)),
                },
                "protocolVersion" | "$clusterTime" => {}
                other => {
                    return Err(invalid(format!(
                        "Unexpected field {other} in replica set configuration"
                    )));
                }
            }
        }
        if !has_members {
            return Err(missing("members"));
        }
        for (mode, tags) in &configuration.settings.modes {
            let unknown = |tag: &str| configuration.tag_values(tag) == 0;
            if let Some((tag, _)) = tags.iter().find(|(tag, _)| unknown(tag)) {
                return Err(invalid(format!(
                    "Invalid mode getLastErrorModes.{mode}: no replica set tag key {tag} in config"
                )));
            }
        }
        Ok(configuration)
    }
}

/// No set is one of MongoDB's config servers.
pub(super) fn check_role(doc: Doc<'_>) -> Result<(), String> {
    match doc.get("configsvr") {
        Some(ValueRef::Boolean(true)) => Err(
            "Nodes being used for config servers must be started with the --configsvr flag"
                .to_owned(),
        ),
        _ => Ok(()),
    }
}

/// A whole number, however it is written.
fn exact_int32(name: &str, value: ValueRef<'_>) -> Result<i32, Error> {
    let exact = Number::of(value).and_then(Number::to_i64_exact);
    let number = exact.ok_or_else(|| wrong_type(name, "a whole number", value))?;
    i32::try_from(number)
        .map_err(|_| invalid(format!("{name} field value of {number} is out of range")))
}

fn read_member(doc: Doc<'_>) -> Result<MemberConfiguration, Error> {
    let mut member = MemberConfiguration::new(-1, "");
    for element in doc.iter() {
        let (name, value) = (element.key(), element.value());
        match name {
            _ if value.is_nullish() => {}
            "_id" => {
                member.id = int32("members._id", value)?;
                if !(0..=255).contains(&member.id) {
                    return Err(invalid(format!(
                        "_id field value of {} is out of range.",
                        member.id
                    )));
                }
            }
            "host" => match value {
                ValueRef::String(host) => member.host = read_host(host)?,
                other => return Err(wrong_type("members.host", "string", other)),
            },
            "arbiterOnly" if boolean(name, value)? => {
                return Err(Error::new(
                    Code::COMMAND_NOT_SUPPORTED,
                    "arbiters are not supported: every member holds the data",
                ));
            }
            "secondaryDelaySecs" if integer(name, value)? != 0 => {
                return Err(Error::new(
                    Code::COMMAND_NOT_SUPPORTED,
                    "delayed members are not supported",
                ));
            }
            "buildIndexes" if !boolean(name, value)? => {
                return Err(Error::new(
                    Code::COMMAND_NOT_SUPPORTED,
                    "members without indexes are not supported",
                ));
            }
            "arbiterOnly" | "secondaryDelaySecs" | "buildIndexes" => {}
            "hidden" => member.hidden = boolean(name, value)?,
            "priority" => {
                member.priority = number("members.priority", value)?;
                if !(0.0..=1000.0).contains(&member.priority) {
                    return Err(invalid(format!(
                        "priority field value of {} is out of range",
                        member.priority
                    )));
                }
            }
            "votes" => {
                member.votes = int32("members.votes", value)?;
                if !(0..=1).contains(&member.votes) {
                    return Err(invalid(format!(
                        "votes field value of {} is out of range",
                        member.votes
                    )));
                }
            }
            "tags" => match value {
                ValueRef::Document(tags) => member.tags = read_tags(tags)?,
                other => return Err(wrong_type("members.tags", "object", other)),
            },
            "horizons" => match value {
                ValueRef::Document(_) => {
                    return Err(Error::new(
                        Code::COMMAND_NOT_SUPPORTED,
                        "the field horizons of a member is not supported",
                    ));
                }
                other => return Err(wrong_type("members.horizons", "object", other)),
            },
            "newlyAdded" => {
                return Err(invalid(
                    "Cannot provide newlyAdded field to member config during reconfig.",
                ));
            }
            other => {
                return Err(invalid(format!(
                    "Unexpected field {other} in replica set member configuration"
                )));
            }
        }
    }
    if doc.get("_id").is_none() {
        return Err(missing("_id"));
    }
    if doc.get("host").is_none() {
        return Err(missing("host"));
    }
    if member.votes == 0 && member.priority > 0.0 {
        return Err(invalid("priority must be 0 when non-voting (votes:0)"));
    }
    if member.hidden && member.priority > 0.0 {
        return Err(invalid("priority must be 0 when hidden=true"));
    }
    Ok(member)
}

/// A host with its port, which is MongoDB's if it is not said.
pub(crate) fn read_host(host: &str) -> Result<String, Error> {
    let refuse = || {
        Err(Error::new(
            Code::FAILED_TO_PARSE,
            format!("Bad host:port {host:?} in replica set configuration"),
        ))
    };
    match host.rsplit_once(':') {
        Some(("", _)) => refuse(),
        // An IPv6 address without a port ends in a bracket.
        Some(_) if host.ends_with(']') => Ok(format!("{host}:27017")),
        Some((_, port)) if port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(host.to_owned()),
        Some(_) => refuse(),
        None if host.is_empty() => refuse(),
        None => Ok(format!("{host}:27017")),
    }
}

fn read_tags(doc: Doc<'_>) -> Result<Vec<(String, String)>, Error> {
    doc.iter()
        .map(|element| match element.value() {
            ValueRef::String(value) => Ok((element.key().to_owned(), value.to_owned())),
            other => Err(Error::new(
                Code::TYPE_MISMATCH,
                format!(
                    "tags.{} field has non-string value of type {}",
                    element.key(),
                    other.kind().name()
                ),
            )),
        })
        .collect()
}

fn read_settings(doc: Doc<'_>, settings: &mut SetSettings) -> Result<(), Error> {
    for element in doc.iter() {
        let (name, value) = (element.key(), element.value());
        let positive = |least: i32| {
            let number = int32(name, value)?;
            match number >= least {
                true => Ok(number),
                false => Err(invalid(format!(
                    "{name} field value of {number} is out of range"
                ))),
            }
        };
        match name {
            _ if value.is_nullish() => {}
            "chainingAllowed" => settings.chaining_allowed = boolean(name, value)?,
            "heartbeatIntervalMillis" => settings.heartbeat_interval_ms = positive(1)?,
            "heartbeatTimeoutSecs" => settings.heartbeat_timeout_secs = positive(1)?,
            "electionTimeoutMillis" => settings.election_timeout_ms = positive(1)?,
            "catchUpTimeoutMillis" => settings.catch_up_timeout_ms = positive(-1)?,
            "catchUpTakeoverDelayMillis" => settings.catch_up_takeover_delay_ms = positive(-1)?,
            "replicaSetId" => match value {
                ValueRef::ObjectId(ObjectId([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])) => {
                    return Err(invalid("replicaSetId field value cannot be null"));
                }
                ValueRef::ObjectId(id) => settings.replica_set_id = id,
                other => return Err(wrong_type(name, "objectId", other)),
            },
            "getLastErrorModes" => match value {
                ValueRef::Document(modes) => settings.modes = read_modes(modes)?,
                other => return Err(wrong_type(name, "object", other)),
            },
            // Superseded by setDefaultRWConcern; only what says nothing is accepted.
            "getLastErrorDefaults" => {
                let ValueRef::Document(defaults) = value else {
                    return Err(wrong_type(name, "object", value));
                };
                let plain = defaults.iter().all(|element| match element.key() {
                    "w" => Number::of(element.value()).is_some_and(|w| w.to_f64() == 1.0),
                    "wtimeout" => Number::of(element.value()).is_some_and(|t| t.to_f64() == 0.0),
                    _ => false,
                });
                if !plain {
                    return Err(Error::new(
                        DEFAULTS_GIVEN,
                        "Default write concern must be set with setDefaultRWConcern, not with \
                         getLastErrorDefaults",
                    ));
                }
            }
            // The real server does not look at them either.
            _ => {}
        }
    }
    Ok(())
}

type Modes = Vec<(String, Vec<(String, i32)>)>;

fn read_modes(doc: Doc<'_>) -> Result<Modes, Error> {
    let mut modes: Modes = Vec::new();
    for element in doc.iter() {
        let name = element.key();
        if modes.iter().any(|(other, _)| other == name) {
            return Err(Error::new(
                Code::DUPLICATE_KEY,
                format!("settings.getLastErrorModes.{name} is given twice"),
            ));
        }
        let ValueRef::Document(tags) = element.value() else {
            return Err(wrong_type(name, "object", element.value()));
        };
        let mut counts = Vec::new();
        for tag in tags.iter() {
            let count = int32(tag.key(), tag.value())?;
            if count < 1 {
                return Err(invalid(format!(
                    "Value for getLastErrorModes.{name}.{} must be positive, but found {count}",
                    tag.key()
                )));
            }
            counts.push((tag.key().to_owned(), count));
        }
        modes.push((name.to_owned(), counts));
    }
    Ok(modes)
}
