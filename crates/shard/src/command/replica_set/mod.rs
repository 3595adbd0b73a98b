//! Commands about the replica set: its configuration, and who leads it. Its status is in `status.rs`
//! and `elections.rs`.

mod elections;
mod status;

use super::{Answer, Invocation, bare_failure, finish};
use crate::Shard;
use crate::error::from_log;
use crate::replica_set::configuration::{Configuration, Lives};
use crate::replica_set::waiting_room::already_initialized;
use model::bson::ValueRef;
use model::number::Number;
use model::{Code, Error};
use replication::LeaderError;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::Reply;

pub(crate) use elections::append_server_status;
pub(crate) use status::get_status;

/// How often a member that is to step down looks for another one.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

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
    if commitment && !invocation.shard.replica_set.is_primary() {
        return Err(Error::new(
            Code::NOT_WRITABLE_PRIMARY,
            "commitmentStatus is only supported on primary.",
        ));
    }
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
    // Who serves has a place in a set, even where the set's configuration is still on its way.
    Err(already_initialized())
}

pub(crate) async fn reconfigure(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let shard = invocation.shard;
    let (mut document, mut forced) = (None, false);
    for element in invocation.request.body().iter() {
        match (element.key(), element.value()) {
            ("replSetReconfig", ValueRef::Document(doc)) => document = Some(doc),
            ("force", value) => forced = model::number::is_truthy(value),
            _ => {}
        }
    }
    let Some(document) = document else {
        return bare_failure("no configuration specified");
    };
    loop {
        invocation.operation.check()?;
        let term = shard.log.leading().map_err(from_log)?;
        let current = configuration(invocation)?;
        let mut next = current.successor(document, forced)?;
        if next.member_at(shard.replica_set.host()).is_none() {
            return Err(Error::new(
                Code::NODE_NOT_FOUND,
                format!(
                    "No host described in new configuration with {{version: {}}} for replica set \
                     {} maps to this node",
                    next.version, next.name
                ),
            ));
        }
        // Hosts may be silent for long: nobody else waits for them meanwhile.
        let returning = shard.returning(&current, &next).await;
        next.lives = Lives::successor(&current, &next, &returning);
        let _ddl = shard.ddl.lock().await;
        // ⚑ What follows another configuration than the one that holds would undo it, and give lives that
        // it has given. It is checked against that one again.
        if configuration(invocation)? == current {
            shard.store_configuration(term, next).await?;
            return finish(Reply::writer());
        }
    }
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
    shard
        .step_down(
            Duration::from_secs(seconds.unsigned_abs()),
            Duration::from_secs(catch_up.unsigned_abs()),
            forced,
        )
        .await?;
    finish(Reply::writer())
}

impl Shard {
    /// Hands over to another member, or follows without knowing whom, and does not stand for
    /// election for some time.
    async fn step_down(
        &self,
        rest: Duration,
        catch_up: Duration,
        forced: bool,
    ) -> Result<(), Error> {
        let led = self.replica_set.topology().role;
        let deadline = Instant::now() + catch_up;
        self.log.rest(rest);
        loop {
            match self.log.transfer(None).await {
                Ok(()) | Err(LeaderError::NotLeader { .. }) => break,
                // Somebody has everything and rests itself: it will be elected in time.
                Err(LeaderError::Nobody) if self.has_electable_successor() => {
                    let _ = self.log.step_down().await;
                    break;
                }
                Err(
                    LeaderError::Nobody
                    | LeaderError::TimedOut
                    | LeaderError::NotAVoter(_)
                    | LeaderError::Stopped { .. },
                ) => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                tokio::time::sleep(left.min(LOOK_INTERVAL)).await;
            } else if forced {
                let _ = self.log.step_down().await;
                break;
            } else {
                self.log.rest(Duration::ZERO);
                return Err(Error::new(
                    Code::EXCEEDED_TIME_LIMIT,
                    "No electable secondaries caught up as of the deadline. Please use the \
                     replSetStepDown command with the argument {force: true} to force node to \
                     step down.",
                ));
            }
        }
        // The next `hello` must not call this member the primary any more.
        let mut topology = self.replica_set.watch();
        tokio::select! {
            _ = topology.wait_for(|topology| topology.role != led) => {}
            () = self.shutdown_begun() => {}
        }
        Ok(())
    }
}

/// A member that is frozen votes, and does not ask for votes.
pub(crate) fn freeze(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let shard = invocation.shard;
    let first = invocation.request.body().first();
    let seconds = first
        .and_then(|first| Number::of(first.value()))
        .and_then(|number| number.to_i64_truncated())
        .unwrap_or(0);
    if shard.replica_set.is_primary() {
        return Err(Error::new(
            Code::NOT_SECONDARY,
            "Cannot freeze node when primary or running for election, state: Primary",
        ));
    }
    shard
        .log
        .rest(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
    let mut writer = Reply::writer();
    match seconds {
        0 => {
            writer.append("info", "unfreezing");
        }
        1 => {
            writer.append("warning", "you really want to freeze for only 1 second?");
        }
        _ => {}
    }
    finish(writer)
}
