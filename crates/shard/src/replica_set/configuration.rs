//! The configuration of a replica set: who its members are, and what clients may ask of them.
//!
//! It is a document in the meta space, changed only by entries of the log, so that every member has the
//! one that holds at its place in the log.
//!
//! ```text
//!   meta key  "replica-set/configuration"
//!   value     what `replSetGetConfig` answers: { _id, version, term, members: [ … ], settings: { … } }
//! ```
//!
//! Reading it checks it as MongoDB does: unknown fields, types, unique ids and hosts, votes and
//! priorities. Whether a change from one configuration to the next is allowed is decided by
//! [`Configuration::check_successor`].

use model::bson::{Doc, DocBuf, DocWriter, ObjectId, ValueRef};
use model::number::Number;
use model::{Code, Error};

/// Where the configuration is stored.
pub(crate) const CONFIGURATION_KEY: &[u8] = b"replica-set/configuration";

pub(crate) const MEMBERS_MAX: usize = 50;
pub(crate) const VOTERS_MAX: usize = 7;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Configuration {
    pub(crate) name: String,
    pub(crate) version: i32,
    pub(crate) term: i64,
    pub(crate) members: Vec<MemberConfiguration>,
    pub(crate) journal_default: bool,
    pub(crate) settings: SetSettings,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MemberConfiguration {
    pub(crate) id: i32,
    /// As clients and other members reach it.
    pub(crate) host: String,
    pub(crate) hidden: bool,
    pub(crate) priority: f64,
    pub(crate) tags: Vec<(String, String)>,
    pub(crate) votes: i32,
}

/// What MongoDB's drivers and tools expect among the settings. Raft has its own clock: the intervals
/// are kept and shown, the election timeout is used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SetSettings {
    pub(crate) chaining_allowed: bool,
    pub(crate) heartbeat_interval_ms: i32,
    pub(crate) heartbeat_timeout_secs: i32,
    pub(crate) election_timeout_ms: i32,
    pub(crate) catch_up_timeout_ms: i32,
    pub(crate) catch_up_takeover_delay_ms: i32,
    /// Named write concerns: for each tag, how many different values must have confirmed.
    pub(crate) modes: Vec<(String, Vec<(String, i32)>)>,
    pub(crate) replica_set_id: ObjectId,
}

impl SetSettings {
    pub(crate) fn new(replica_set_id: ObjectId) -> Self {
        Self {
            chaining_allowed: true,
            heartbeat_interval_ms: 2_000,
            heartbeat_timeout_secs: 10,
            election_timeout_ms: 10_000,
            catch_up_timeout_ms: -1,
            catch_up_takeover_delay_ms: 30_000,
            modes: Vec::new(),
            replica_set_id,
        }
    }
}

impl MemberConfiguration {
    pub(crate) fn new(id: i32, host: impl Into<String>) -> Self {
        Self {
            id,
            host: host.into(),
            hidden: false,
            priority: 1.0,
            tags: Vec::new(),
            votes: 1,
        }
    }

    /// A member that can never be primary is shown to clients as passive.
    pub(crate) fn is_electable(&self) -> bool {
        self.priority > 0.0
    }

    pub(crate) fn is_voter(&self) -> bool {
        self.votes > 0
    }
}

impl Configuration {
    /// A new set with these members, all of them alike.
    pub(crate) fn first(name: &str, hosts: &[String], replica_set_id: ObjectId) -> Self {
        let members = hosts.iter().zip(0..);
        Self {
            name: name.to_owned(),
            version: 1,
            term: 1,
            members: members
                .map(|(host, id)| MemberConfiguration::new(id, host))
                .collect(),
            journal_default: true,
            settings: SetSettings::new(replica_set_id),
        }
    }

    pub(crate) fn member(&self, id: i32) -> Option<&MemberConfiguration> {
        self.members.iter().find(|member| member.id == id)
    }

    pub(crate) fn member_at(&self, host: &str) -> Option<&MemberConfiguration> {
        self.members.iter().find(|member| member.host == host)
    }

    pub(crate) fn voters(&self) -> usize {
        self.members
            .iter()
            .filter(|member| member.is_voter())
            .count()
    }

    /// How many voters are more than half of them.
    pub(crate) fn majority(&self) -> usize {
        self.voters() / 2 + 1
    }

    pub(crate) fn to_document(&self) -> DocBuf {
        let mut writer = DocWriter::new();
        writer
            .append("_id", self.name.as_str())
            .append("version", self.version)
            .append("term", small(self.term));
        writer.begin_array("members");
        for member in &self.members {
            writer
                .push_document()
                .append("_id", member.id)
                .append("host", member.host.as_str())
                .append("arbiterOnly", false)
                .append("buildIndexes", true)
                .append("hidden", member.hidden)
                .append("priority", member.priority)
                .begin_document("tags");
            for (name, value) in &member.tags {
                writer.append(name, value.as_str());
            }
            writer
                .end()
                .append("secondaryDelaySecs", 0i64)
                .append("votes", member.votes)
                .end();
        }
        writer
            .end()
            .append("protocolVersion", 1i64)
            .append("writeConcernMajorityJournalDefault", self.journal_default);
        let settings = &self.settings;
        writer
            .begin_document("settings")
            .append("chainingAllowed", settings.chaining_allowed)
            .append("heartbeatIntervalMillis", settings.heartbeat_interval_ms)
            .append("heartbeatTimeoutSecs", settings.heartbeat_timeout_secs)
            .append("electionTimeoutMillis", settings.election_timeout_ms)
            .append("catchUpTimeoutMillis", settings.catch_up_timeout_ms)
            .append(
                "catchUpTakeoverDelayMillis",
                settings.catch_up_takeover_delay_ms,
            )
            .begin_document("getLastErrorModes");
        for (name, tags) in &settings.modes {
            writer.begin_document(name);
            for (tag, count) in tags {
                writer.append(tag, *count);
            }
            writer.end();
        }
        writer
            .end()
            .begin_document("getLastErrorDefaults")
            .append("w", 1)
            .append("wtimeout", 0)
            .end()
            .append("replicaSetId", settings.replica_set_id)
            .end();
        writer.finish()
    }

    /// Reads and checks a configuration. `new_id` names the set if the document does not.
    pub(crate) fn from_document(doc: Doc<'_>, new_id: ObjectId) -> Result<Self, Error> {
        let mut configuration = Self::first("", &[], new_id);
        configuration.name = match doc.get("_id") {
            Some(ValueRef::String(name)) => name.to_owned(),
            Some(other) => return Err(wrong_type("_id", "string", other)),
            None => return Err(missing("_id")),
        };
        let mut has_members = false;
        for element in doc.iter() {
            let (name, value) = (element.key(), element.value());
            match name {
                "_id" => {}
                "version" => {
                    configuration.version = int32(name, value)?;
                }
                "term" => configuration.term = integer(name, value)?,
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
                "configsvr" => {
                    return Err(Error::new(
                        Code::COMMAND_NOT_SUPPORTED,
                        "configsvr is not supported yet",
                    ));
                }
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
        configuration.check()?;
        Ok(configuration)
    }

    fn check(&self) -> Result<(), Error> {
        if self.name.is_empty() {
            return Err(Error::bad_value("Replica set name must not be empty"));
        }
        if self.version < 1 {
            return Err(bad(format!(
                "version field value of {} is out of range",
                self.version
            )));
        }
        if !(1..=MEMBERS_MAX).contains(&self.members.len()) {
            return Err(bad(format!(
                "Replica set configuration contains {} members, but must have at least 1 and no \
                 more than  {MEMBERS_MAX}",
                self.members.len()
            )));
        }
        for (at, member) in self.members.iter().enumerate() {
            let before = &self.members[..at];
            if before.iter().any(|other| other.id == member.id) {
                return Err(bad(format!(
                    "Found two member configurations with same _id field, members with _id: {}",
                    member.id
                )));
            }
            if before.iter().any(|other| other.host == member.host) {
                return Err(bad(format!(
                    "Found two member configurations with same host field, host: {}",
                    member.host
                )));
            }
        }
        if !(1..=VOTERS_MAX).contains(&self.voters()) {
            return Err(bad(format!(
                "Replica set configuration contains {} voting members, but must be between 1 and \
                 {VOTERS_MAX}",
                self.voters()
            )));
        }
        let electable = |member: &MemberConfiguration| member.is_electable() && member.is_voter();
        if !self.members.iter().any(electable) {
            return Err(bad(
                "Replica set configuration must contain at least one non-arbiter member with \
                 priority > 0",
            ));
        }
        for (mode, tags) in &self.settings.modes {
            if let Some((tag, _)) = tags.iter().find(|(tag, _)| self.tag_values(tag) == 0) {
                return Err(Error::new(
                    Code::NO_SUCH_KEY,
                    format!(
                        "Invalid mode getLastErrorModes.{mode}: no replica set tag key {tag} in \
                         config"
                    ),
                ));
            }
        }
        Ok(())
    }

    /// How many different values members have for a tag.
    pub(crate) fn tag_values(&self, tag: &str) -> usize {
        let mut values: Vec<&str> = self
            .members
            .iter()
            .flat_map(|member| &member.tags)
            .filter(|(name, _)| name == tag)
            .map(|(_, value)| value.as_str())
            .collect();
        values.sort_unstable();
        values.dedup();
        values.len()
    }

    /// Whether `next` may follow this configuration.
    pub(crate) fn check_successor(&self, next: &Configuration, forced: bool) -> Result<(), Error> {
        let incompatible = |message: String| {
            Err(Error::new(
                Code::NEW_REPLICA_SET_CONFIGURATION_INCOMPATIBLE,
                message,
            ))
        };
        if next.name != self.name {
            return incompatible(format!(
                "New and old configurations differ in replica set name; old was {}, and new is {}",
                self.name, next.name
            ));
        }
        if next.settings.replica_set_id != self.settings.replica_set_id {
            return incompatible("New and old configurations differ in replica set ID".to_owned());
        }
        if next.version <= self.version && !forced {
            return incompatible(format!(
                "New replica set configuration version must be greater than old, but {} is not \
                 greater than {} for replica set {}",
                next.version, self.version, self.name
            ));
        }
        let moved = next.members.iter().find(|member| {
            self.member_at(&member.host)
                .is_some_and(|before| before.id != member.id)
        });
        if let Some(member) = moved {
            return incompatible(format!(
                "New and old configurations both have members with host of {} but in the new \
                 configuration the _id field is {}",
                member.host, member.id
            ));
        }
        let voters = |configuration: &Configuration| -> Vec<i32> {
            let members = configuration.members.iter();
            members
                .filter(|member| member.is_voter())
                .map(|member| member.id)
                .collect()
        };
        let (before, after) = (voters(self), voters(next));
        let added = after.iter().filter(|id| !before.contains(id)).count();
        let removed = before.iter().filter(|id| !after.contains(id)).count();
        if added + removed > 1 && !forced {
            return Err(Error::new(
                Code::INVALID_REPLICA_SET_CONFIG,
                "Non force replica set reconfig can only add or remove at most 1 voting member.",
            ));
        }
        Ok(())
    }
}

fn read_member(doc: Doc<'_>) -> Result<MemberConfiguration, Error> {
    let mut member = MemberConfiguration::new(-1, "");
    let mut priority_given = false;
    for element in doc.iter() {
        let (name, value) = (element.key(), element.value());
        match name {
            "_id" => {
                member.id = int32("members._id", value)?;
                if !(0..=255).contains(&member.id) {
                    return Err(bad(format!(
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
            "secondaryDelaySecs" | "slaveDelay" if integer(name, value)? != 0 => {
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
            "arbiterOnly" | "secondaryDelaySecs" | "slaveDelay" | "buildIndexes" => {}
            "hidden" => member.hidden = boolean(name, value)?,
            "priority" => {
                priority_given = true;
                member.priority = number("members.priority", value)?;
                if !(0.0..=1000.0).contains(&member.priority) {
                    return Err(bad(format!(
                        "priority field value of {} is out of range",
                        member.priority
                    )));
                }
            }
            "votes" => {
                member.votes = int32("members.votes", value)?;
                if !(0..=1).contains(&member.votes) {
                    return Err(bad(format!(
                        "votes field value of {} is out of range",
                        member.votes
                    )));
                }
            }
            "tags" => match value {
                ValueRef::Document(tags) => member.tags = read_tags(tags)?,
                other => return Err(wrong_type("members.tags", "object", other)),
            },
            "newlyAdded" | "horizons" => {
                return Err(Error::new(
                    Code::COMMAND_NOT_SUPPORTED,
                    format!("the field {name} of a member is not supported"),
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
    if member.votes == 0 && !priority_given {
        member.priority = 0.0;
    }
    if member.votes == 0 && member.priority > 0.0 {
        return Err(bad("priority must be 0 when non-voting (votes:0)"));
    }
    if member.hidden && member.priority > 0.0 {
        return Err(bad("priority must be 0 when hidden=true"));
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
                false => Err(bad(format!(
                    "{name} field value of {number} is out of range"
                ))),
            }
        };
        match name {
            "chainingAllowed" => settings.chaining_allowed = boolean(name, value)?,
            "heartbeatIntervalMillis" => settings.heartbeat_interval_ms = positive(1)?,
            "heartbeatTimeoutSecs" => settings.heartbeat_timeout_secs = positive(1)?,
            "electionTimeoutMillis" => settings.election_timeout_ms = positive(1)?,
            "catchUpTimeoutMillis" => settings.catch_up_timeout_ms = positive(-1)?,
            "catchUpTakeoverDelayMillis" => settings.catch_up_takeover_delay_ms = positive(-1)?,
            "replicaSetId" => match value {
                ValueRef::ObjectId(id) => settings.replica_set_id = id,
                other => return Err(wrong_type(name, "objectId", other)),
            },
            "getLastErrorModes" => match value {
                ValueRef::Document(modes) => settings.modes = read_modes(modes)?,
                other => return Err(wrong_type(name, "object", other)),
            },
            // Superseded by setDefaultRWConcern; only what says nothing is accepted.
            "getLastErrorDefaults" => {
                let plain = matches!(value, ValueRef::Document(defaults)
                if defaults.iter().all(|element| match element.key() {
                    "w" => Number::of(element.value()).is_some_and(|w| w.to_f64() == 1.0),
                    "wtimeout" => Number::of(element.value()).is_some_and(|t| t.to_f64() == 0.0),
                    _ => false,
                }));
                if !plain {
                    return Err(invalid(
                        "Default write concern must be set with setDefaultRWConcern, not with \
                         getLastErrorDefaults",
                    ));
                }
            }
            other => {
                return Err(invalid(format!(
                    "Unexpected field {other} in replica set configuration settings"
                )));
            }
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
                return Err(bad(format!(
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

/// A term is shown as a small number while it is one.
fn small(term: i64) -> ValueRef<'static> {
    match i32::try_from(term) {
        Ok(term) => ValueRef::Int32(term),
        Err(_) => ValueRef::Int64(term),
    }
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(Code::BAD_VALUE, message)
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(Code::INVALID_REPLICA_SET_CONFIG, message)
}

fn missing(name: &str) -> Error {
    Error::new(
        Code::NO_SUCH_KEY,
        format!("Missing expected field \"{name}\""),
    )
}

fn wrong_type(name: &str, expected: &str, found: ValueRef<'_>) -> Error {
    Error::new(
        Code::TYPE_MISMATCH,
        format!(
            "\"{name}\" had the wrong type. Expected {expected}, found {}",
            found.kind().name()
        ),
    )
}

fn number(name: &str, value: ValueRef<'_>) -> Result<f64, Error> {
    Number::of(value)
        .map(Number::to_f64)
        .ok_or_else(|| wrong_type(name, "number", value))
}

fn integer(name: &str, value: ValueRef<'_>) -> Result<i64, Error> {
    Number::of(value)
        .and_then(|number| number.to_i64_truncated())
        .ok_or_else(|| wrong_type(name, "number", value))
}

fn int32(name: &str, value: ValueRef<'_>) -> Result<i32, Error> {
    i32::try_from(integer(name, value)?)
        .map_err(|_| bad(format!("{name} field value is out of range")))
}

fn boolean(name: &str, value: ValueRef<'_>) -> Result<bool, Error> {
    match value {
        ValueRef::Boolean(truth) => Ok(truth),
        other => match Number::of(other) {
            Some(number) => Ok(number.to_f64() != 0.0),
            None => Err(wrong_type(name, "bool", other)),
        },
    }
}
