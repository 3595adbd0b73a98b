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
//! `reading.rs` reads it, and refuses what MongoDB refuses: unknown fields, types. Here is what
//! must hold of it as a whole: unique ids and hosts, votes and priorities. Whether a change from one configuration to the next is allowed is decided by
//! [`Configuration::check_successor`].

mod reading;

use model::bson::{DocBuf, DocWriter, ObjectId, ValueRef};
use model::{Code, Error};

pub(crate) use reading::read_host;

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

/// How long members wait to hear of a primary before they elect another, unless they are told
/// otherwise. MongoDB waits for ten seconds; a new primary is wanted sooner here.
pub(crate) const ELECTION_TIMEOUT_MS: i32 = 1000;

/// What MongoDB's drivers and tools expect among the settings. The election timeout is the log's;
/// heartbeats follow from it, and the other intervals and timeouts are kept and shown.
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
            election_timeout_ms: ELECTION_TIMEOUT_MS,
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

    /// The priority as the log compares it; zero only if it is zero.
    pub(crate) fn rank(&self) -> u64 {
        (self.priority * 1e6).ceil() as u64
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
