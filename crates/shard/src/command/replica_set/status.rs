//! `replSetGetStatus`: how far each member is, as far as this one knows.
//!
//! The primary hears from everybody. A secondary hears from the primary only, and asks it about the
//! others; if it does not answer, they are unknown.

use super::configuration;
use super::elections::append_elections;
use crate::Shard;
use crate::command::{Answer, Invocation, finish};
use crate::replica_set::configuration::{Configuration, MemberConfiguration};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::time::ClusterTime;
use model::{Code, Error};
use replication::{LogPosition, MemberProgress, Members, Role};
use std::sync::Arc;
use wire::Reply;

/// A member of which nothing was heard for so many ticks is taken to be away.
const TICKS_AWAY: u64 = 50;
const TICK_MS: i64 = 100;

/// What a member is, as MongoDB numbers and names it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Primary,
    Secondary,
    /// It is given a copy of the state.
    Copying,
    Unknown,
    Down,
}

impl State {
    fn number(self) -> i32 {
        match self {
            State::Primary => 1,
            State::Secondary => 2,
            State::Copying => 5,
            State::Unknown => 6,
            State::Down => 8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            State::Primary => "PRIMARY",
            State::Secondary => "SECONDARY",
            State::Copying => "STARTUP2",
            State::Unknown => "UNKNOWN",
            State::Down => "(not reachable/healthy)",
        }
    }

    fn is_up(self) -> bool {
        match self {
            State::Primary | State::Secondary | State::Copying => true,
            State::Unknown | State::Down => false,
        }
    }

    fn of_role(role: Role) -> State {
        match role {
            Role::Leader { .. } => State::Primary,
            Role::Follower { .. } | Role::Candidate { .. } => State::Secondary,
            Role::Installing { .. } => State::Copying,
            Role::Gone => State::Down,
        }
    }
}

pub(crate) async fn get_status(invocation: &Invocation<'_>) -> Answer {
    let configuration = configuration(invocation)?;
    let shard = invocation.shard;
    if configuration.member_at(shard.replica_set.host()).is_none() {
        return Err(Error::new(
            Code::INVALID_REPLICA_SET_CONFIG,
            "Our replica set config is invalid or we are not a member of it",
        ));
    }
    let asked = invocation.request.body().get("_terndbOwnView").is_some();
    let by_primary = match shard.replica_set.is_primary() || asked {
        true => None,
        false => ask(shard).await,
    };
    let view = View {
        shard,
        members: shard.log.members(),
        role: shard.replica_set.topology().role,
        applied: shard.store.applied_time(),
        term: i64::try_from(shard.log.term().get()).unwrap_or(i64::MAX),
        by_primary,
        configuration,
    };
    let mut writer = Reply::writer_with_capacity(2048);
    view.append_to(&mut writer);
    finish(writer)
}

/// What the primary says of everybody.
async fn ask(shard: &Arc<Shard>) -> Option<DocBuf> {
    let command = DocWriter::new()
        .with("replSetGetStatus", 1)
        .with("_terndbOwnView", true)
        .with("$db", "admin")
        .finish();
    shard.ask_primary(&command).await.ok()
}

/// The set as this member sees it.
struct View<'a> {
    shard: &'a Shard,
    configuration: Arc<Configuration>,
    members: Arc<Members>,
    role: Role,
    applied: ClusterTime,
    term: i64,
    by_primary: Option<DocBuf>,
}

impl View<'_> {
    fn append_to(&self, writer: &mut DocWriter) {
        let configuration = &self.configuration;
        let voters = i32::try_from(configuration.voters()).unwrap_or(i32::MAX);
        let majority = i32::try_from(configuration.majority()).unwrap_or(i32::MAX);
        writer
            .append("set", configuration.name.as_str())
            .append("date", ValueRef::DateTime(self.shard.clock.now_ms()))
            .append("myState", State::of_role(self.role).number())
            .append("term", self.term);
        self.append_source(writer, self.members.me);
        writer
            .append(
                "heartbeatIntervalMillis",
                i64::from(configuration.settings.heartbeat_interval_ms),
            )
            .append("majorityVoteCount", majority)
            .append("writeMajorityCount", majority)
            .append("votingMembersCount", voters)
            .append("writableVotingMembersCount", voters);
        self.append_optimes(writer);
        append_elections(writer, configuration, &self.members);
        writer.begin_array("members");
        for member in &configuration.members {
            writer.push_document();
            self.append_member(writer, member);
            writer.end();
        }
        writer.end();
    }

    /// From whom a member gets the log.
    fn append_source(&self, writer: &mut DocWriter, member: replication::MemberId) {
        let leader = self.members.leader.filter(|leader| *leader != member);
        let source = leader.and_then(|leader| self.configuration.member_in_log(leader));
        writer
            .append(
                "syncSourceHost",
                source.map_or("", |source| source.host.as_str()),
            )
            .append("syncSourceId", source.map_or(-1, |source| source.id));
    }

    /// What is applied is committed and synced: all of them are the same.
    fn append_optimes(&self, writer: &mut DocWriter) {
        let wall = ValueRef::DateTime(self.shard.replica_set.applied_wall_ms());
        writer.begin_document("optimes");
        self.append_optime(writer, "lastCommittedOpTime", self.applied);
        writer.append("lastCommittedWallTime", wall);
        for name in [
            "readConcernMajorityOpTime",
            "appliedOpTime",
            "durableOpTime",
        ] {
            self.append_optime(writer, name, self.applied);
        }
        writer
            .append("lastAppliedWallTime", wall)
            .append("lastDurableWallTime", wall)
            .end();
    }

    fn append_optime(&self, writer: &mut DocWriter, name: &str, time: ClusterTime) {
        // Of a member that is away nothing is known.
        let term = match time == ClusterTime::ZERO {
            true => -1,
            false => self.term,
        };
        writer
            .begin_document(name)
            .append("ts", time)
            .append("t", term)
            .end();
    }

    fn append_member(&self, writer: &mut DocWriter, member: &MemberConfiguration) {
        let id = self.configuration.in_log(member);
        if id == self.members.me {
            return self.append_self(writer, member);
        }
        if self.members.leader != Some(id)
            && let Some(known) = self.known_by_primary(member.id)
        {
            for element in known.iter() {
                writer.append_element(&element);
            }
            return;
        }
        self.append_other(writer, member);
    }

    fn known_by_primary(&self, id: i32) -> Option<Doc<'_>> {
        let members = self.by_primary.as_ref()?.as_doc().get_array("members")?;
        members.iter().find_map(|member| match member {
            ValueRef::Document(member) if member.get("_id") == Some(ValueRef::Int32(id)) => {
                Some(member)
            }
            _ => None,
        })
    }

    fn append_state(&self, writer: &mut DocWriter, member: &MemberConfiguration, state: State) {
        let uptime = match state.is_up() {
            true => self.shard.started.elapsed().as_secs(),
            false => 0,
        };
        writer
            .append("_id", member.id)
            .append("name", member.host.as_str())
            .append("health", if state.is_up() { 1.0 } else { 0.0 })
            .append("state", state.number())
            .append("stateStr", state.name())
            .append("uptime", i32::try_from(uptime).unwrap_or(i32::MAX));
    }

    fn append_self(&self, writer: &mut DocWriter, member: &MemberConfiguration) {
        let wall = ValueRef::DateTime(self.shard.replica_set.applied_wall_ms());
        self.append_state(writer, member, State::of_role(self.role));
        self.append_optime(writer, "optime", self.applied);
        writer
            .append("optimeDate", date(self.applied))
            .append("lastAppliedWallTime", wall)
            .append("lastDurableWallTime", wall);
        self.append_source(writer, self.members.me);
        writer.append("infoMessage", "");
        self.append_election_time(writer, self.role.is_leader());
        self.append_versions(writer);
        writer
            .append("self", true)
            .append("lastHeartbeatMessage", "");
    }

    fn append_other(&self, writer: &mut DocWriter, member: &MemberConfiguration) {
        let id = self.configuration.in_log(member);
        let progress = self.members.of(id);
        let is_leader = self.members.leader == Some(id);
        let state = self.state_of(progress, is_leader);
        self.append_state(writer, member, state);
        let (applied, durable) = match progress.filter(|_| state.is_up()) {
            Some(progress) => (
                self.time_of(progress.applied),
                self.time_of(progress.matched.or(progress.applied)),
            ),
            None => (ClusterTime::ZERO, ClusterTime::ZERO),
        };
        self.append_optime(writer, "optime", applied);
        self.append_optime(writer, "optimeDurable", durable);
        let heard = progress.and_then(|progress| progress.ticks_since_contact);
        let now = self.shard.clock.now_ms();
        let ago = heard.map(|ticks| i64::try_from(ticks).unwrap_or(0) * TICK_MS);
        let message = match (state, ago) {
            (State::Down, Some(ago)) => format!("nothing was heard of it for {ago} ms"),
            (State::Down, None) => "nothing was ever heard of it".to_owned(),
            _ => String::new(),
        };
        writer
            .append("optimeDate", date(applied))
            .append("optimeDurableDate", date(durable))
            .append("lastAppliedWallTime", date(applied))
            .append("lastDurableWallTime", date(durable))
            .append("lastHeartbeat", ValueRef::DateTime(now))
            .append(
                "lastHeartbeatRecv",
                ValueRef::DateTime(ago.map_or(0, |ago| now - ago)),
            )
            .append("pingMs", 0i64)
            .append("lastHeartbeatMessage", message.as_str());
        match state.is_up() {
            true => self.append_source(writer, id),
            false => {
                writer
                    .append("syncSourceHost", "")
                    .append("syncSourceId", -1);
            }
        }
        writer.append("infoMessage", copying(progress).as_str());
        self.append_election_time(writer, is_leader);
        match heard {
            Some(_) => self.append_versions(writer),
            // Nobody knows which one it has, if any.
            None => {
                writer.append("configVersion", -1).append("configTerm", -1);
            }
        }
    }

    fn state_of(&self, progress: Option<&MemberProgress>, is_leader: bool) -> State {
        let heard = progress.and_then(|progress| progress.ticks_since_contact);
        let is_up = heard.is_some_and(|ticks| ticks < TICKS_AWAY);
        let is_copying = progress.is_some_and(|progress| progress.snapshot.is_some());
        match (is_up, is_leader) {
            (_, true) => State::Primary,
            (true, false) if is_copying => State::Copying,
            (true, false) => State::Secondary,
            // Whoever does not lead hears from the leader only.
            (false, false) if self.role.is_leader() => State::Down,
            (false, false) => State::Unknown,
        }
    }

    /// The time of the entry at a position, if the log still has it.
    fn time_of(&self, position: Option<LogPosition>) -> ClusterTime {
        let Some(position) = position else {
            return self.applied;
        };
        let entries = self.shard.log.read(position.previous(), 1);
        let time = entries.ok().and_then(|read| read.first().map(|e| e.time));
        time.map_or(self.applied, |time| time.min(self.applied))
    }

    /// When the primary was elected, as far as this member knows.
    fn append_election_time(&self, writer: &mut DocWriter, is_leader: bool) {
        let elections = &self.members.elections;
        let known = match (elections.won, elections.voted) {
            (Some(won), _) => Some(won.wall_ms),
            (None, Some(voted)) if voted.term == self.members.term => Some(voted.wall_ms),
            (None, _) => None,
        };
        if let Some(wall_ms) = known.filter(|_| is_leader) {
            let seconds = u32::try_from(wall_ms.div_euclid(1000)).unwrap_or(0);
            writer
                .append("electionTime", ClusterTime::new(seconds, 1))
                .append(
                    "electionDate",
                    ValueRef::DateTime(i64::from(seconds) * 1000),
                );
        }
    }

    fn append_versions(&self, writer: &mut DocWriter) {
        writer
            .append("configVersion", self.configuration.version)
            .append(
                "configTerm",
                i32::try_from(self.configuration.term).unwrap_or(i32::MAX),
            );
    }
}

fn date(time: ClusterTime) -> ValueRef<'static> {
    ValueRef::DateTime(i64::from(time.seconds()) * 1000)
}

/// How far a copy of the state has come.
fn copying(progress: Option<&MemberProgress>) -> String {
    let parts = progress.and_then(|progress| progress.snapshot_parts);
    parts.map_or_else(String::new, |parts| {
        format!("a copy of the state is under way: {parts} parts")
    })
}
