//! The configuration of a replica set: who its members are, and what clients may ask of them.
//!
//! It is a document in the meta space, changed only by entries of the log, so that every member has the
//! one that holds at its place in the log.
//!
//! ```text
//!   meta key  "replica-set/configuration"
//!   value     what `replSetGetConfig` answers: { _id, version, term, members: [ … ], settings: { … } },
//!             and which lives the members are in (`lives.rs`)
//! ```
//!
//! `reading.rs` reads it, and refuses what MongoDB refuses of single fields: unknown ones, types,
//! ranges. Here is what must hold of it as a whole (unique ids and hosts, votes and priorities), and of
//! a change from one configuration to the next: [`Configuration::successor`].
//!
//! MongoDB has two codes for all of it. What cannot be read is `InvalidReplicaSetConfig`; what can be
//! read and does not hold is that too for a set that is founded, and for one that is changed
//! `NewReplicaSetConfigurationIncompatible`.

mod lives;
mod reading;

use model::bson::{Doc, DocBuf, DocWriter, ObjectId, ValueRef};
use model::{Code, Error};

pub(crate) use lives::Lives;
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
    pub(crate) lives: Lives,
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
            lives: Lives::default(),
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

    /// What must hold of a configuration as a whole; says what does not.
    fn check(&self) -> Result<(), String> {
        if !(1..=MEMBERS_MAX).contains(&self.members.len()) {
            return Err(format!(
                "Replica set configuration contains {} members, but must have at least 1 and no \
                 more than  {MEMBERS_MAX}",
                self.members.len()
            ));
        }
        for (at, member) in self.members.iter().enumerate() {
            let before = &self.members[..at];
            if before.iter().any(|other| other.id == member.id) {
                return Err(format!(
                    "Found two member configurations with same _id field, members with _id: {}",
                    member.id
                ));
            }
            if before.iter().any(|other| other.host == member.host) {
                return Err(format!(
                    "Found two member configurations with same host field, host: {}",
                    member.host
                ));
            }
        }
        if !(1..=VOTERS_MAX).contains(&self.voters()) {
            return Err(format!(
                "Replica set configuration contains {} voting members, but must be between 1 and \
                 {VOTERS_MAX}",
                self.voters()
            ));
        }
        let electable = |member: &MemberConfiguration| member.is_electable() && member.is_voter();
        if !self.members.iter().any(electable) {
            return Err(
                "Replica set configuration must contain at least one non-arbiter member with \
                 priority > 0"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Members that call each other by names of one machine alone cannot be reached from another.
    pub(crate) fn check_hosts(&self) -> Result<(), String> {
        let local = |member: &&MemberConfiguration| is_local(&member.host);
        let local = self.members.iter().filter(local).count();
        if local == 0 || local == self.members.len() {
            return Ok(());
        }
        Err(format!(
            "Either all host names in a replica set configuration must be localhost references, \
             or none must be; found {local} out of {}",
            self.members.len()
        ))
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

    /// The configuration that a client wants to follow this one.
    pub(crate) fn successor(&self, doc: Doc<'_>, forced: bool) -> Result<Self, Error> {
        let mut next = Self::read(doc, self.settings.replica_set_id)?;
        if doc
            .get("version")
            .is_none_or(|version| version.is_nullish())
        {
            return Err(invalid(
                "BSON field 'ReplSetConfig.version' is missing but a required field",
            ));
        }
        if next.name != self.name {
            return Err(invalid(format!(
                "Rejecting reconfig where new config has a different set name: old was {}, and \
                 new is {}",
                self.name, next.name
            )));
        }
        if forced {
            next.version = next.version.max(self.version.saturating_add(1));
        }
        let allowed = reading::check_role(doc)
            .and_then(|()| next.check())
            .and_then(|()| next.check_hosts())
            .and_then(|()| self.check_successor(&next, forced));
        allowed.map_err(|why| Error::new(Code::NEW_REPLICA_SET_CONFIGURATION_INCOMPATIBLE, why))?;
        Ok(next)
    }

    /// Whether `next` may follow this configuration; says why not.
    fn check_successor(&self, next: &Configuration, forced: bool) -> Result<(), String> {
        if next.settings.replica_set_id != self.settings.replica_set_id {
            return Err("New and old configurations differ in replica set ID".to_owned());
        }
        if next.version <= self.version {
            return Err(format!(
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
            return Err(format!(
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
        // New members have no vote until they have caught up, whatever their number.
        let raised = |id: &&i32| !before.contains(id) && self.member(**id).is_some();
        let added = after.iter().filter(raised).count();
        let removed = before.iter().filter(|id| !after.contains(id)).count();
        if !forced && !after.iter().any(|id| self.member(*id).is_some()) {
            return Err(format!(
                "Replica set configuration contains 0 voting members, but must be at least 1 and \
                 no more than {VOTERS_MAX}: new members have no vote yet"
            ));
        }
        if added + removed > 1 && !forced {
            return Err(
                "Non force replica set reconfig can only add or remove at most 1 voting member."
                    .to_owned(),
            );
        }
        Ok(())
    }
}

fn is_local(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let name = name.trim_matches(['[', ']']);
    name == "localhost"
        || name
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// A term is shown as a small number while it is one.
fn small(term: i64) -> ValueRef<'static> {
    match i32::try_from(term) {
        Ok(term) => ValueRef::Int32(term),
        Err(_) => ValueRef::Int64(term),
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(Code::INVALID_REPLICA_SET_CONFIG, message)
}
