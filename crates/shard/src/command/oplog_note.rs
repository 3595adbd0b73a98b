//! `appendOplogNote`: an entry of the log that means nothing, so that the log's time
//! moves on.
//!
//! Who merges the change streams of several shards sends it to a shard that is at rest,
//! with the cluster time that it has to pass; `maxClusterTime` spares the entry where
//! the shard has passed it already. The entry is greater than every time the shard has
//! heard of, and streams are told of it when it is applied.
//!
//! Left out: `data` is checked and not kept.

use super::{Answer, Invocation, finish};
use model::bson::ValueRef;
use model::time::ClusterTime;
use model::{Code, Error};
use wire::Reply;

pub(crate) async fn append_oplog_note(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let body = invocation.request.body();
    if let Some(value) = body.get("maxClusterTime") {
        let ValueRef::Timestamp(time) = value else {
            return Err(wrong_type("maxClusterTime", "timestamp", value));
        };
        check_time(
            ClusterTime::new(time.seconds, time.increment),
            invocation.shard.log.watch().borrow().time,
        )?;
    }
    match body.get("data") {
        Some(ValueRef::Document(_)) => {}
        Some(value) => return Err(wrong_type("data", "object", value)),
        None => {
            return Err(Error::new(
                Code::NO_SUCH_KEY,
                "Missing expected field \"data\"",
            ));
        }
    }
    let shard = invocation.shard;
    shard.propose_catalog(|encoder| encoder.noop()).await?;
    finish(Reply::writer())
}

fn check_time(wanted: ClusterTime, applied: ClusterTime) -> Result<(), Error> {
    if wanted > applied {
        return Ok(());
    }
    let shown = |time: ClusterTime| format!("Timestamp({}, {})", time.seconds(), time.increment());
    Err(Error::new(
        Code::STALE_CLUSTER_TIME,
        format!(
            "Requested maxClusterTime {{ ts: {} }} is less or equal to the last primary OpTime: \
             {{ ts: {} }}",
            shown(wanted),
            shown(applied)
        ),
    ))
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
