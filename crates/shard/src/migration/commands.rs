//! What is asked of a shard that takes part in moves.
//!
//! All of it may be asked again, and late: a move that runs is joined, one that has ended is
//! answered for as long as it is remembered.

use super::database::DatabasePlan;
use super::donor::EndedMove;
use super::killing::{self, Wish};
use super::plan::{Fields, Plan, append_outcome, wrong};
use super::recipient::{Letter, Message};
use super::service::Known;
use super::tail::{Place, await_growth};
use super::{copy, history, tail};
use crate::aside::aside;
use crate::command::{Answer, Invocation, finish};
use cluster::authority::Outcome;
use cluster::migration::Digest;
use model::bson::{Doc, DocWriter, ValueRef};
use model::ids::Uuid;
use model::shard_key::ShardKeyPattern;
use model::version::PlacementVersion;
use model::{Code, Error, Namespace};
use replication::LogPosition;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use wire::Reply;

/// How long the log may be waited for in one question.
const TAIL_WAIT_MAX: Duration = Duration::from_secs(5);

impl Plan {
    /// As the config server gives it; the donor fills in what it knows.
    fn from_move(doc: Doc<'_>) -> Result<Self, Error> {
        let fields = Fields(doc);
        let key = fields.doc("key")?;
        Ok(Self {
            id: fields.uuid("id")?,
            part_of: None,
            namespace: Namespace::parse(fields.text("ns")?)?,
            uuid: fields.uuid("uuid")?,
            pattern: ShardKeyPattern::parse(key)?,
            key: key.to_owned(),
            range: fields.range("range")?,
            bounds: fields.doc("bounds")?.to_owned(),
            donor: String::new(),
            recipient: fields.text("to")?.to_owned(),
            other_host: fields.text("toHost")?.to_owned(),
            catalog_version: fields.long("catalogVersion")?,
            known: PlacementVersion::UNSHARDED,
            secondary_throttle: fields.flag("secondaryThrottle"),
            wait_for_delete: fields.flag("waitForDelete"),
        })
    }

    /// As the donor gives it to a recipient of this name.
    pub(super) fn from_receive(doc: Doc<'_>, recipient: &str) -> Result<Self, Error> {
        let fields = Fields(doc);
        let key = fields.doc("key")?;
        Ok(Self {
            id: fields.uuid("id")?,
            part_of: fields.uuid("partOf").ok(),
            namespace: Namespace::parse(fields.text("ns")?)?,
            uuid: fields.uuid("uuid")?,
            pattern: ShardKeyPattern::parse(key)?,
            key: key.to_owned(),
            range: fields.range("range")?,
            bounds: fields.doc("bounds")?.to_owned(),
            donor: fields.text("from")?.to_owned(),
            recipient: recipient.to_owned(),
            other_host: fields.text("fromHost")?.to_owned(),
            catalog_version: fields.long("catalogVersion")?,
            known: PlacementVersion::UNSHARDED,
            secondary_throttle: fields.flag("secondaryThrottle"),
            wait_for_delete: fields.flag("waitForDelete"),
        })
    }
}

fn over() -> Error {
    Error::new(
        Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
        "this member does not lead any more",
    )
}

fn no_such_move(id: Uuid) -> Error {
    Error::new(Code::NO_SUCH_KEY, format!("there is no move {id} here"))
}

fn told(ended: &EndedMove) -> Answer {
    let mut writer = Reply::writer();
    append_outcome(&mut writer, ended.outcome);
    if let Some(reason) = &ended.reason {
        writer.append("reason", reason.as_str());
    }
    if ended.is_killed {
        writer.append("reasonCode", Code::INTERRUPTED.0);
    }
    writer.append("stats", &ended.stats);
    finish(writer)
}

/// `_terndbMoveRange`: begins a move or joins it, and waits for its end.
pub(crate) async fn move_range(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let plan = Plan::from_move(invocation.request.body())?;
    let migrations = &invocation.shard.migrations;
    let handle = match migrations.donor(plan.id)? {
        Known::Runs(handle) => handle,
        Known::Ended(ended) => return told(&ended),
        Known::Unknown => migrations.begin_donor(plan).await?,
    };
    let mut ended = handle.ended.subscribe();
    let plan = handle.plan.clone();
    drop(handle);
    let waited = async {
        match ended.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().ok_or_else(over),
            Err(_) => Err(over()),
        }
    };
    let mut waited = std::pin::pin!(waited);
    let mut is_killed = false;
    let ended = loop {
        tokio::select! {
            ended = &mut waited => break ended?,
            () = invocation.shard.shutdown_begun() => return Err(over()),
            () = invocation.operation.interrupted(), if !is_killed => {
                is_killed = killing::is_killed(invocation.operation);
                if !is_killed {
                    invocation.operation.check()?;
                    return Err(over());
                }
                // ⚑ Who kills the one that waits means the move. How that ended is still the answer.
                if let Ok(Known::Runs(handle)) = migrations.donor(plan.id) {
                    handle.wish(Wish::Killed);
                }
            }
        }
    };
    if plan.wait_for_delete && matches!(ended.outcome, Outcome::Committed { .. }) {
        let deleted = invocation.shard.await_range_deletions(
            plan.uuid,
            Some(&plan.range),
            invocation.operation,
        );
        deleted.await?;
    }
    told(&ended)
}

/// `_terndbMovePrimary {id, db, version, to, toHost}`: the same for the primary of a database.
pub(crate) async fn move_primary(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let plan = DatabasePlan::from_command(invocation.request.body())?;
    let migrations = &invocation.shard.migrations;
    let handle = match migrations.database(plan.id)? {
        Known::Runs(handle) => handle,
        Known::Ended(ended) => return told(&ended),
        Known::Unknown => migrations.begin_database(plan).await?,
    };
    let mut ended = handle.ended.subscribe();
    drop(handle);
    tokio::select! {
        ended = ended.wait_for(Option::is_some) => match ended {
            Ok(ended) => told(ended.as_ref().ok_or_else(over)?),
            Err(_) => Err(over()),
        },
        () = invocation.shard.shutdown_begun() => Err(over()),
        () = invocation.operation.interrupted() => {
            invocation.operation.check()?;
            Err(over())
        }
    }
}

/// `_terndbAbortMoves {ns, uuid, for}`: waits until no move of the collection can be committed.
pub(crate) async fn abort_moves(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let body = invocation.request.body();
    let uuid = Fields(body).uuid("uuid")?;
    let ended_by: Arc<str> = body.get_str("for").unwrap_or("another operation").into();
    let migrations = &invocation.shard.migrations;
    // Whether this member knows its moves at all.
    migrations.recipient(uuid)?;
    for handle in migrations.donors() {
        if handle.plan.uuid != uuid {
            continue;
        }
        handle.wish(Wish::End(ended_by.clone()));
        let mut ended = handle.ended.subscribe();
        drop(handle);
        tokio::select! {
            ended = ended.wait_for(Option::is_some) => {
                if ended.is_err() {
                    return Err(over());
                }
            }
            () = invocation.shard.shutdown_begun() => return Err(over()),
            () = invocation.operation.interrupted() => {
                invocation.operation.check()?;
                return Err(over());
            }
        }
    }
    finish(Reply::writer())
}

/// Lets a recipient read a message, and returns its answer.
async fn deliver(invocation: &Invocation<'_>, id: Uuid, message: Message) -> Option<Answer> {
    let handle = match invocation.shard.migrations.recipient(id) {
        Ok(handle) => handle?,
        Err(error) => return Some(Err(error)),
    };
    let (answer, answered) = oneshot::channel();
    let letter = Letter { message, answer };
    Some(match handle.letters.send(letter).await {
        Ok(()) => match answered.await {
            Ok(report) => Ok(Reply::from(report)),
            Err(_) => Err(over()),
        },
        Err(_) => Err(over()),
    })
}

/// `_terndbReceive`: begins to receive, or tells how far it is.
pub(crate) async fn receive(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let body = invocation.request.body();
    let id = Fields(body).uuid("id")?;
    let message = || Message::Receive(body.to_owned());
    if let Some(answer) = deliver(invocation, id, message()).await {
        return answer;
    }
    let migrations = &invocation.shard.migrations;
    if migrations.is_beginning(id) {
        let report = DocWriter::new()
            .with("phase", "receiving")
            .with("copied", 0_i64)
            .with("scanned", false)
            .with("prepared", invocation.shard.counters.preparation() as i64)
            .with("ok", 1.0)
            .finish();
        return Ok(Reply::from(report));
    }
    migrations.begin_recipient(body.to_owned()).await?;
    let answer = deliver(invocation, id, message()).await;
    answer.unwrap_or_else(|| Err(over()))
}

pub(crate) async fn receive_finish(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let fields = Fields(invocation.request.body());
    let id = fields.uuid("id")?;
    let sum = fields.bytes("sum").and_then(|sum| sum.try_into().ok());
    let message = Message::Finish {
        catalog: fields.count("catalogVersion")?,
        up_to: LogPosition::new(fields.count("upTo")?),
        digest: Digest {
            documents: fields.count("documents")?,
            sum: u128::from_be_bytes(sum.ok_or_else(|| wrong("sum"))?),
        },
    };
    match deliver(invocation, id, message).await {
        Some(answer) => answer,
        None => finish(
            Reply::writer()
                .with("phase", "aborted")
                .with("reason", "there is no such move on the recipient"),
        ),
    }
}

pub(crate) async fn receive_release(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let fields = Fields(invocation.request.body());
    let id = fields.uuid("id")?;
    let outcome = fields.outcome()?;
    match deliver(invocation, id, Message::Release(outcome)).await {
        Some(answer) => answer,
        // Of a move that is forgotten here: it has ended.
        None => finish(Reply::writer().with("released", true)),
    }
}

/// The stretch of a move that this shard gives away.
fn stretch_of(invocation: &Invocation<'_>, id: Uuid) -> Result<super::stretch::Stretch, Error> {
    match invocation.shard.migrations.donor(id)? {
        Known::Runs(handle) => handle.stretch.clone().ok_or_else(|| no_such_move(id)),
        Known::Ended(_) | Known::Unknown => Err(no_such_move(id)),
    }
}

fn bytes_wanted(fields: Fields<'_>) -> Result<usize, Error> {
    usize::try_from(fields.count("bytes")?).map_err(|_| wrong("bytes"))
}

pub(crate) async fn move_copy(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let fields = Fields(invocation.request.body());
    let stretch = stretch_of(invocation, fields.uuid("id")?)?;
    let (after, bytes) = (fields.bytes("after"), bytes_wanted(fields)?);
    let (shard, after) = (Arc::clone(invocation.shard), after.map(<[u8]>::to_vec));
    aside(move || copy::copy(&shard, &stretch, after.as_deref(), bytes)).await
}

pub(crate) async fn move_tail(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let fields = Fields(invocation.request.body());
    let stretch = stretch_of(invocation, fields.uuid("id")?)?;
    let bytes = bytes_wanted(fields)?;
    let from = Place {
        after: LogPosition::new(fields.count("from")?),
        skip: usize::try_from(fields.count("skip")?).map_err(|_| wrong("skip"))?,
    };
    let wait = Duration::from_millis(fields.count("waitMS")?).min(TAIL_WAIT_MAX);
    tokio::select! {
        () = await_growth(invocation.shard, from.after, wait) => {}
        () = invocation.shard.shutdown_begun() => return Err(over()),
    }
    tokio::task::block_in_place(|| tail::tail(invocation.shard, &stretch, from, bytes))
}

pub(crate) async fn move_sessions(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let body = invocation.request.body();
    let fields = Fields(body);
    stretch_of(invocation, fields.uuid("id")?)?;
    let named = match body.get_array("sessions") {
        None => None,
        Some(listed) => {
            let mut named = Vec::new();
            for session in listed.iter() {
                match session {
                    ValueRef::Binary { bytes, .. } => named.push(bytes),
                    _ => return Err(wrong("sessions")),
                }
            }
            Some(named)
        }
    };
    let after = fields.bytes("after");
    tokio::task::block_in_place(|| history::page(invocation.shard, after, named.as_deref()))
}
