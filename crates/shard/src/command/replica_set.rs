//! Commands about the replica set: its status and its configuration.

use super::{Answer, Invocation, finish};
use crate::Shard;
use crate::replica_set::configuration::{Configuration, MemberConfiguration};
use crate::replica_set::transport::{configuration_id, member_id};
use model::bson::{DocWriter, ValueRef};
use model::number::Number;
use model::time::ClusterTime;
use model::{Code, Error};
use replication::{LeaderError, LogPosition, Members};
use std::sync::Arc;
use std::time::Duration;
use wire::Reply;

const PRIMARY: i32 = 1;
const SECONDARY: i32 = 2;
const UNKNOWN: i32 = 6;
const DOWN: i32 = 8;

/// A member of which nothing was heard for so many ticks is taken to be away.
const TICKS_AWAY: u64 = 50;
const TICK_MS: i64 = 100;

fn configuration(invocation: &Invocation<'_>) -> Result<Arc<Configuration>, Error> {
    invocation.admin_only()?;
    invocation.shard.replica_set.configuration().ok_or_else(|| {
        Error::new(
            Code::NOT_YET_INITIALIZED,
            "no replset config has been received",
        )
    })
}

pub(crate) fn get_config(invocation: &Invocation<'_>) -> Answer {
    let configuration = configuration(invocation)?;
    // The real server looks at nothing else.
    let commitment = invocation.request.body().get("commitmentStatus");
    let commitment = commitment.is_some_and(model::number::is_truthy);
    let mut writer = Reply::writer();
    writer.append("config", &configuration.to_document());
    if commitment {
        // A configuration is published when it is applied, and that is after its commit.
        writer.append("commitmentStatus", true);
    }
    finish(writer)
}

pub(crate) fn initiate(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    match invocation.shard.replica_set.configuration() {
        Some(_) => Err(Error::new(Code::ALREADY_INITIALIZED, "already initialized")),
        None => Err(Error::new(
            Code::NOT_YET_INITIALIZED,
            "the member has not joined its set yet",
        )),
    }
}

pub(crate) async fn reconfigure(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let shard = invocation.shard;
    let (mut document, mut forced) = (None, false);
    for element in invocation.request.body().iter() {
        match (element.key(), element.value()) {
            ("replSetReconfig", ValueRef::Document(doc)) => document = Some(doc),
            ("replSetReconfig", _) => {
                return Err(Error::bad_value("no configuration specified"));
            }
            ("force", value) => forced = model::number::is_truthy(value),
            _ => {}
        }
    }
    let document = document.ok_or_else(|| Error::bad_value("no configuration specified"))?;
    let _ddl = shard.ddl.lock().await;
    let current = configuration(invocation)?;
    let mut next = Configuration::from_document(document, current.settings.replica_set_id)?;
    current.check_successor(&next, forced)?;
    if forced {
        next.version = next.version.max(current.version.saturating_add(1));
    }
    if next.member_at(shard.replica_set.host()).is_none() {
        return Err(Error::new(
            Code::NODE_NOT_FOUND,
            format!(
                "No host described in new configuration with {{version: {}}} for replica set {} \
                 maps to this node",
                next.version, next.name
            ),
        ));
    }
    shard.store_configuration(next).await?;
    finish(Reply::writer())
}

pub(crate) async fn step_down(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let shard = invocation.shard;
    let (mut seconds, mut catch_up, mut forced) = (60, None, false);
    for element in invocation.request.body().iter() {
        let value = element.value();
        let number = || Number::of(value).and_then(|number| number.to_i64_truncated());
        match element.key() {
            "replSetStepDown" => seconds = number().filter(|number| *number != 0).unwrap_or(60),
            "secondaryCatchUpPeriodSecs" => catch_up = number(),
            "force" => forced = model::number::is_truthy(value),
            _ => {}
        }
    }
    let catch_up = catch_up.unwrap_or(if forced { 0 } else { 10 });
    if seconds < 0 {
        return Err(Error::bad_value(
            "stepdown period must be a positive integer",
        ));
    }
    if catch_up < 0 {
        return Err(Error::bad_value(
            "secondaryCatchUpPeriodSecs period must be a positive or absent",
        ));
    }
    if catch_up > seconds {
        return Err(Error::bad_value(
            "stepdown period must be longer than secondaryCatchUpPeriodSecs",
        ));
    }
    if !shard.replica_set.is_primary() {
        return Err(Error::new(
            Code::NOT_WRITABLE_PRIMARY,
            "not primary so can't step down",
        ));
    }
    let led = shard.replica_set.topology().role;
    let limit = Duration::from_secs(catch_up.max(1).unsigned_abs());
    match tokio::time::timeout(limit, shard.log.transfer(None)).await {
        Ok(Ok(())) => {
            // The next `hello` must not call this member the primary any more.
            let mut topology = shard.replica_set.watch();
            tokio::select! {
                _ = topology.wait_for(|topology| topology.role != led) => {}
                () = shard.shutdown_begun() => {}
            }
            finish(Reply::writer())
        }
        Ok(Err(LeaderError::NotLeader { .. })) => finish(Reply::writer()),
        Ok(Err(
            LeaderError::TimedOut | LeaderError::NotAVoter(_) | LeaderError::Stopped { .. },
        ))
        | Err(_) => Err(Error::new(
            Code::EXCEEDED_TIME_LIMIT,
            "No electable secondaries caught up as of the deadline. Please use the \
             replSetStepDown command with the argument {force: true} to force node to step down.",
        )),
    }
}

/// A member that is frozen does not ask for votes. The log decides by itself when to ask, and cannot be
/// told to wait; what can be done is to end a rest.
pub(crate) fn freeze(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let first = invocation.request.body().first();
    let seconds = first.and_then(|first| Number::of(first.value()));
    match seconds.map(Number::to_f64) {
        None => Err(Error::new(
            Code::TYPE_MISMATCH,
            "replSetFreeze takes a number of seconds",
        )),
        Some(_) if invocation.shard.replica_set.is_primary() => Err(Error::new(
            Code::NOT_SECONDARY,
            "cannot freeze node when primary or running for election. state: Primary",
        )),
        Some(0.0) => {
            let mut writer = Reply::writer();
            writer.append("info", "unfreezing");
            finish(writer)
        }
        Some(_) => Err(Error::new(
            Code::COMMAND_NOT_SUPPORTED,
            "replSetFreeze is not supported yet: give the member priority 0",
        )),
    }
}

pub(crate) fn get_status(invocation: &Invocation<'_>) -> Answer {
    let configuration = configuration(invocation)?;
    let shard = invocation.shard;
    let term = i64::try_from(shard.log.term().get()).unwrap_or(i64::MAX);
    let applied = OpTime {
        time: shard.store.applied_time(),
        term,
    };
    let wall = ValueRef::DateTime(shard.replica_set.applied_wall_ms());
    let members = shard.log.members();
    let role = shard.replica_set.topology().role;
    let leader = members.leader.filter(|leader| *leader != members.me);
    let source = leader.and_then(|leader| configuration.member(configuration_id(leader)));
    let voters = i32::try_from(configuration.voters()).unwrap_or(i32::MAX);
    let majority = i32::try_from(configuration.majority()).unwrap_or(i32::MAX);
    let mut writer = Reply::writer_with_capacity(2048);
    writer
        .append("set", configuration.name.as_str())
        .append("date", ValueRef::DateTime(shard.clock.now_ms()))
        .append(
            "myState",
            if role.is_leader() { PRIMARY } else { SECONDARY },
        )
        .append("term", term)
        .append(
            "syncSourceHost",
            source.map_or("", |source| source.host.as_str()),
        )
        .append("syncSourceId", source.map_or(-1, |source| source.id))
        .append(
            "heartbeatIntervalMillis",
            i64::from(configuration.settings.heartbeat_interval_ms),
        )
        .append("majorityVoteCount", majority)
        .append("writeMajorityCount", majority)
        .append("votingMembersCount", voters)
        .append("writableVotingMembersCount", voters);
    writer.begin_document("optimes");
    applied.append_to(&mut writer, "lastCommittedOpTime");
    writer.append("lastCommittedWallTime", wall);
    for name in [
        "readConcernMajorityOpTime",
        "appliedOpTime",
        "durableOpTime",
    ] {
        applied.append_to(&mut writer, name);
    }
    writer
        .append("lastAppliedWallTime", wall)
        .append("lastDurableWallTime", wall)
        .end();
    writer.begin_array("members");
    for member in &configuration.members {
        append_member(
            &mut writer,
            shard,
            &configuration,
            &members,
            member,
            applied,
        );
    }
    writer.end();
    finish(writer)
}

#[derive(Clone, Copy)]
struct OpTime {
    time: ClusterTime,
    term: i64,
}

impl OpTime {
    fn append_to(self, writer: &mut DocWriter, name: &str) {
        writer
            .begin_document(name)
            .append("ts", self.time)
            .append("t", self.term)
            .end();
    }

    fn date(self) -> ValueRef<'static> {
        ValueRef::DateTime(i64::from(self.time.seconds()) * 1000)
    }
}

/// One member, as far as this one knows it.
fn append_member(
    writer: &mut DocWriter,
    shard: &Shard,
    configuration: &Configuration,
    members: &Members,
    member: &MemberConfiguration,
    applied: OpTime,
) {
    let id = member_id(member.id);
    let is_self = id == members.me;
    let progress = members.of(id);
    let is_leader = members.leader == Some(id);
    let heard = progress.and_then(|progress| progress.ticks_since_contact);
    // Whoever does not lead hears from the leader only.
    let is_up = is_self || heard.is_some_and(|ticks| ticks < TICKS_AWAY) || is_leader;
    let (state, name) = match (is_up, is_leader) {
        (false, _) if members.leader == Some(members.me) => (DOWN, "(not reachable/healthy)"),
        (false, _) => (UNKNOWN, "UNKNOWN"),
        (true, true) => (PRIMARY, "PRIMARY"),
        (true, false) => (SECONDARY, "SECONDARY"),
    };
    let wall = ValueRef::DateTime(shard.replica_set.applied_wall_ms());
    let uptime = shard.started.elapsed().as_secs();
    let behind = progress.and_then(|progress| progress.matched);
    writer
        .push_document()
        .append("_id", member.id)
        .append("name", member.host.as_str())
        .append("health", if is_up { 1.0 } else { 0.0 })
        .append("state", state)
        .append("stateStr", name)
        .append("uptime", i32::try_from(uptime).unwrap_or(i32::MAX));
    let optime = match behind {
        // Positions have times: the time of the entry there, if the log still has it.
        Some(position) if !is_self => shard.time_of(position).map_or(applied, |time| OpTime {
            time: time.min(applied.time),
            ..applied
        }),
        _ => applied,
    };
    optime.append_to(writer, "optime");
    writer
        .append("optimeDate", optime.date())
        .append("lastAppliedWallTime", wall)
        .append("lastDurableWallTime", wall);
    if !is_self {
        let now = shard.clock.now_ms();
        let ago = i64::try_from(heard.unwrap_or(0)).unwrap_or(0) * TICK_MS;
        writer
            .append("lastHeartbeat", ValueRef::DateTime(now))
            .append("lastHeartbeatRecv", ValueRef::DateTime(now - ago))
            .append("pingMs", 0i64);
    }
    let leader = members.leader.filter(|leader| *leader != id);
    let source = leader.and_then(|leader| configuration.member(configuration_id(leader)));
    writer
        .append(
            "syncSourceHost",
            source.map_or("", |source| source.host.as_str()),
        )
        .append("syncSourceId", source.map_or(-1, |source| source.id))
        .append("infoMessage", "")
        .append("configVersion", configuration.version)
        .append(
            "configTerm",
            i32::try_from(configuration.term).unwrap_or(i32::MAX),
        );
    if is_self {
        writer.append("self", true);
    }
    writer.append("lastHeartbeatMessage", "").end();
}

impl Shard {
    /// The time of the entry at a position, if the log has it.
    fn time_of(&self, position: LogPosition) -> Option<ClusterTime> {
        let entries = self.log.read(position.previous(), 1).ok()?;
        entries.first().map(|entry| entry.time)
    }
}
