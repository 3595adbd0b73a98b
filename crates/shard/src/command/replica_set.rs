//! Commands about the replica set: its status and its configuration.

use super::{Answer, Invocation, finish};
use crate::Shard;
use crate::replica_set::configuration::{Configuration, MemberConfiguration};
use model::bson::{DocWriter, ValueRef};
use model::time::ClusterTime;
use model::{Code, Error};
use std::sync::Arc;
use wire::Reply;

const PRIMARY: i32 = 1;

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
    let moved = |member: &MemberConfiguration| {
        let before = current.member(member.id);
        before.is_none_or(|before| before.host != member.host)
    };
    if next.members.len() != current.members.len() || next.members.iter().any(moved) {
        return Err(Error::new(
            Code::COMMAND_NOT_SUPPORTED,
            "members cannot be added, removed or moved yet",
        ));
    }
    shard.store_configuration(next).await?;
    finish(Reply::writer())
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
    let voters = i32::try_from(configuration.voters()).unwrap_or(i32::MAX);
    let majority = i32::try_from(configuration.majority()).unwrap_or(i32::MAX);
    let mut writer = Reply::writer_with_capacity(2048);
    writer
        .append("set", configuration.name.as_str())
        .append("date", ValueRef::DateTime(shard.clock.now_ms()))
        .append("myState", PRIMARY)
        .append("term", term)
        .append("syncSourceHost", "")
        .append("syncSourceId", -1)
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
    append_members(&mut writer, shard, &configuration, applied);
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

fn append_members(
    writer: &mut DocWriter,
    shard: &Shard,
    configuration: &Configuration,
    applied: OpTime,
) {
    let wall = ValueRef::DateTime(shard.replica_set.applied_wall_ms());
    let uptime = shard.started.elapsed().as_secs();
    writer.begin_array("members");
    for member in &configuration.members {
        writer
            .push_document()
            .append("_id", member.id)
            .append("name", member.host.as_str())
            .append("health", 1.0)
            .append("state", PRIMARY)
            .append("stateStr", "PRIMARY")
            .append("uptime", i32::try_from(uptime).unwrap_or(i32::MAX));
        applied.append_to(writer, "optime");
        writer
            .append("optimeDate", applied.date())
            .append("lastAppliedWallTime", wall)
            .append("lastDurableWallTime", wall)
            .append("syncSourceHost", "")
            .append("syncSourceId", -1)
            .append("infoMessage", "")
            .append("configVersion", configuration.version)
            .append(
                "configTerm",
                i32::try_from(configuration.term).unwrap_or(i32::MAX),
            )
            .append("self", true)
            .append("lastHeartbeatMessage", "")
            .end();
    }
    writer.end();
}
