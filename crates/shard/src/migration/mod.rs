//! Ranges move from shard to shard while they are read and written.
//!
//! ```text
//!  config server ─ _terndbMoveRange ─► donor ── _terndbReceive, …Finish, …Release ──► recipient
//!        ▲                              │  ◄── _terndbMoveCopy, …Tail, …Sessions ───────┘ pulls
//!        └──── _configsvrCommitMove ────┘
//! ```
//!
//! What happens in which order, and why nothing is lost, is decided by `cluster::migration`; here
//! it is carried out. Each side is one task that owns the move, reads messages, and writes the
//! move's state document through the log before anything follows from it (`donor.rs`,
//! `recipient.rs`). A document that is there is a move that runs: whoever becomes primary reads
//! the documents and goes on (`service.rs`).
//!
//! The data path: the recipient scans the range in the order of record keys, then replays the
//! donor's log from the position before the scan on (`copy.rs`, `tail.rs`, `receive.rs`). Entries
//! hold post-images, so it converges, whatever the scan saw. What retries are answered from comes
//! too (`history.rs`). Then writes wait, both sides compare what they hold (`digest.rs`), reads
//! wait, and the config server decides.
//!
//! | file | part |
//! | --- | --- |
//! | `service.rs` | which moves run on this primary; how they begin |
//! | `donor.rs`, `recipient.rs` | the two sides, driven by their documents |
//! | `database.rs` | all unsharded collections of a database together |
//! | `alignment.rs` | the recipient's options and indexes, which may change meanwhile |
//! | `learning.rs` | in which order a shard learns of commits |
//! | `plan.rs` | what a move is about; the documents |
//! | `commands.rs` | what is asked of a shard |
//! | `stretch.rs` | where the documents of a range lie |
//! | `copy.rs`, `tail.rs`, `history.rs` | what the donor tells |
//! | `receive.rs` | what the recipient makes of it |
//! | `digest.rs` | whether both hold the same |
//! | `pacing.rs` | how fast it may go |
//! | `making_way.rs` | writers who are faster than anybody could follow |
//! | `progress.rs`, `report.rs` | how far it is |
//! | `killing.rs` | how somebody ends one |
//! | `peers.rs` | how shards reach each other |
//! | `pins.rs`, `stall.rs` | what members keep of the log, and for how long |
//!
//! Copying slows down when clients wait longer, on either side (`pacing.rs`). With `secondaryThrottle` each batch
//! is applied before the next one is asked for, in any case.

mod alignment;
mod commands;
mod copy;
mod database;
mod digest;
mod donor;
mod history;
mod killing;
mod learning;
mod making_way;
mod pacing;
mod peers;
mod pins;
mod plan;
mod progress;
mod receive;
mod recipient;
mod report;
mod service;
mod stall;
mod stretch;
mod tail;
mod warming;

pub(crate) use commands::{
    abort_moves, move_copy, move_primary, move_range, move_sessions, move_tail, receive,
    receive_finish, receive_release,
};
pub(crate) use making_way::WayRequest;
pub use peers::Connect;
pub(crate) use pins::keep_log;
#[cfg(test)]
pub(crate) use pins::kept_log;
pub(crate) use report::{append_statistics, of_moves, running_moves};
pub(crate) use service::{Migrations, run};

use crate::Shard;
use crate::sharding::{Ownership, StateChange, StateWrite, Transition};
use cluster::authority::Outcome;
use model::bson::{Doc, DocBuf, DocWriter};
use model::ids::Uuid;
use model::version::{Age, ChunkVersion, PlacementVersion};
use model::{Code, Error, Namespace};
use peers::{Failure, ask};
use plan::{Fields, Plan, uuid_value};
use replication::Term;
use std::sync::Arc;
use std::time::Duration;
use storage::Direction;
use wire::{Endpoint, Reply};

const COORDINATORS: &str = "migrationCoordinators";
const RECIPIENTS: &str = "migrationRecipients";

/// A collection of the shard's own `config` database.
fn namespace(collection: &str) -> Namespace {
    Namespace::new("config", collection).expect("the names of state collections are valid")
}

fn put(namespace: Namespace, document: DocBuf) -> StateWrite {
    StateWrite {
        namespace,
        change: StateChange::Put(document),
    }
}

fn remove(namespace: Namespace, id: &Uuid) -> StateWrite {
    StateWrite {
        namespace,
        change: StateChange::Delete(uuid_value(id).to_owned()),
    }
}

/// The documents of one side's moves.
fn documents(shard: &Shard, collection: &str) -> Vec<DocBuf> {
    let Some(collection) = shard.catalog.get(&namespace(collection)) else {
        return Vec::new();
    };
    let snapshot = shard.store.snapshot();
    let all = storage::KeyRange::ALL;
    let records = snapshot.scan_records(collection.id, all, Direction::Forward);
    let readable = records.filter_map(Result::ok);
    readable
        .map(|record| Doc::from_validated(record.document()).to_owned())
        .collect()
}

/// Writes documents of a move whose collection is gone, as primary in that term.
async fn write_documents(
    shard: &Shard,
    term: Term,
    documents: Vec<StateWrite>,
) -> Result<(), Error> {
    let first = shard
        .ensure_collection(&namespace(COORDINATORS), None)
        .await?;
    let transition = Transition {
        ownership: None,
        documents,
        term: Some(term),
        ..Transition::default()
    };
    shard.transition(first.id, &transition).await?;
    Ok(())
}

/// The ownership under the versions of a decision, or newer ones that are known already: moves
/// of other ranges may have ended earlier, though they were decided later.
fn with_versions(known: &Ownership, chunk: ChunkVersion, decided: PlacementVersion) -> Ownership {
    let is_newer = match decided.age(known.collection_version) {
        Age::Newer | Age::Unknown => true,
        Age::Same | Age::Older => false,
    };
    let collection = match is_newer {
        true => decided,
        false => known.collection_version,
    };
    let chunk = match (known.owned.is_empty(), is_newer) {
        (true, _) => ChunkVersion::ZERO,
        (false, true) => chunk,
        (false, false) => chunk.max(known.placement.chunk),
    };
    let placement = PlacementVersion {
        incarnation: collection.incarnation,
        chunk,
    };
    known.with_versions(placement, collection)
}

/// Asks the config server about a move.
async fn ask_config(
    shard: &Shard,
    mut question: DocWriter,
    wait: Duration,
) -> Result<Reply, Failure> {
    let Some(config) = shard.refresh.config() else {
        let why = "this shard was not told where its config server is";
        return Err(Failure::Unreachable(why.to_owned()));
    };
    shard.sharding.config_time.append_to(&mut question);
    let reply = ask(shard, &**config, question, wait).await?;
    shard.hear_config_time(reply.document());
    Ok(reply)
}

/// Why it is asked which version of options and indexes stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asking {
    /// The move is about to finish, and has to wait if it is another one.
    ToFinish,
    ToAlign,
}

/// The version of a collection's options and indexes that all owners have; `None` while they change.
async fn standing_catalog(
    shard: &Shard,
    plan: &Plan,
    why: Asking,
    wait: Duration,
) -> Result<Option<u64>, Failure> {
    let mut question = DocWriter::new()
        .with("_configsvrCatalogVersion", 1)
        .with("ns", plan.namespace.as_str())
        .with("uuid", uuid_value(&plan.uuid));
    if why == Asking::ToFinish {
        question.append("id", uuid_value(&plan.id));
    }
    let reply = ask_config(shard, question, wait).await?;
    let fields = Fields(reply.document());
    let version = fields.count("catalogVersion")?;
    Ok((!fields.flag("changes")).then_some(version))
}

/// Refuses to begin what is not known to run: the config server is asked, and decides nothing by it.
async fn check_runs(shard: &Shard, plan: &Plan, wait: Duration) -> Result<(), Error> {
    let operation = plan.operation();
    let question = DocWriter::new()
        .with("_configsvrOutcome", 1)
        .with("operation", uuid_value(&operation));
    let reply = ask_config(shard, question, wait).await;
    let reply = reply.map_err(|failure| match failure {
        Failure::Unreachable(why) => Error::new(Code::HOST_UNREACHABLE, why),
        Failure::Refused(error) => error,
    })?;
    match reply.document().get_str("outcome") {
        Some("undecided") => Ok(()),
        _ => Err(Error::new(
            Code::OPERATION_FAILED,
            format!("the move {operation} of {} has ended", plan.namespace),
        )),
    }
}

/// What became of a move; if nothing was decided, it is aborted by this. ⚑
async fn settle(shard: &Shard, plan: &Plan, wait: Duration) -> Result<Outcome, Failure> {
    settle_operation(shard, plan.operation(), wait).await
}

async fn settle_operation(shard: &Shard, id: Uuid, wait: Duration) -> Result<Outcome, Failure> {
    let question = DocWriter::new()
        .with("_configsvrSettle", 1)
        .with("operation", uuid_value(&id));
    let reply = ask_config(shard, question, wait).await?;
    Ok(Fields(reply.document()).outcome()?)
}

impl Shard {
    /// Says where the config server of the shard's cluster is, and how other shards are reached.
    /// The first ones count.
    pub fn join_cluster(&self, config: Arc<dyn Endpoint>, connect: Connect) {
        self.refresh.set_config(config);
        self.migrations.shards.reached_by(connect);
    }

    /// Whether it was told how: [`Shard::join_cluster`].
    pub(crate) fn reaches_other_shards(&self) -> bool {
        self.migrations.shards.are_reached()
    }

    /// `set/host,host` of this shard.
    pub(crate) fn connection_string(&self) -> String {
        let topology = self.replica_set.topology();
        match &topology.configuration {
            Some(configuration) => {
                let members = configuration.members.iter();
                let hosts: Vec<&str> = members.map(|member| member.host.as_str()).collect();
                format!("{}/{}", configuration.name, hosts.join(","))
            }
            None => self.replica_set.host().to_owned(),
        }
    }
}
