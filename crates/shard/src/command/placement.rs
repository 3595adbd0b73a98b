//! Where a command may run: on the primary, on a secondary that the client has agreed to, or anywhere.
//!
//! A member that is not the primary refuses with MongoDB's errors, and tells in them how its view of the
//! set is numbered (`topologyVersion`), so that a driver knows whether it has heard of the change already.
//!
//! ⚑ A refusal is told after the change that it is for. A driver that has heard of that number as the
//! primary's takes the refusal for an old one, and sends its only retry to the same member.

use super::diagnostic::is_command;
use super::envelope::Envelope;
use super::not_found;
use crate::Shard;
use crate::replica_set::Topology;
use model::bson::{DocWriter, ObjectId, ValueRef};
use model::{Code, Error};
use replication::Role;
use std::time::{Duration, Instant};
use wire::Request;

/// How often a member that hands over looks whether it has given up.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How long a refusal waits for its change: a hand-over ends within an election timeout.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Placement {
    /// Asks about the member itself, or goes on with what it has begun there.
    Anywhere,
    /// Reads documents or the catalog: on a secondary only if the client says so.
    Read,
    Primary,
}

/// What a driver does on its own account after an error that passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MayGoOn {
    No,
    /// A write with a number is sent again.
    Write,
    /// A change stream is resumed, on whatever member there is.
    Stream,
}

impl MayGoOn {
    pub(crate) fn of(
        request: &Request,
        is_retryable_write: bool,
        goes_on_with_stream: bool,
    ) -> Self {
        if is_retryable_write {
            MayGoOn::Write
        } else if goes_on_with_stream || opens_stream(request) {
            MayGoOn::Stream
        } else {
            MayGoOn::No
        }
    }

    /// What an error is called for a driver that may go on.
    pub(crate) fn label_after(self, code: Code) -> Option<&'static str> {
        let passes = tells_of_another_state(code) || is_worth_a_retry(code);
        match self {
            MayGoOn::Write if passes => Some("RetryableWriteError"),
            MayGoOn::Stream if passes => Some("ResumableChangeStreamError"),
            MayGoOn::Write | MayGoOn::Stream | MayGoOn::No => None,
        }
    }
}

fn placement(command: &str) -> Placement {
    match command {
        "find" | "aggregate" | "count" | "distinct" | "explain" | "listCollections"
        | "listIndexes" | "listDatabases" | "collStats" | "collstats" | "dbStats" | "dbstats"
        | "dataSize" | "datasize" | "dbHash" | "dbhash" | "validate" => Placement::Read,
        "insert"
        | "update"
        | "delete"
        | "findAndModify"
        | "findandmodify"
        | "create"
        | "drop"
        | "dropDatabase"
        | "renameCollection"
        | "collMod"
        | "createIndexes"
        | "dropIndexes"
        | "deleteIndexes"
        | "setDefaultRWConcern"
        | "replSetReconfig"
        | "appendOplogNote"
        | "cleanupOrphaned"
        | "commitTransaction"
        | "abortTransaction"
        | "setFeatureCompatibilityVersion"
        | "_terndbBecomeShard"
        | "_terndbCommit"
        | "_terndbCreateSharded"
        | "_terndbDataSize"
        | "_terndbForgetDatabase"
        | "_terndbForgetPlacement"
        | "_terndbMovePrimary"
        | "_terndbMoveRange"
        | "_terndbAbortMoves"
        | "_terndbReceive"
        | "_terndbReceiveFinish"
        | "_terndbReceiveRelease"
        | "_terndbMoveCopy"
        | "_terndbMoveTail"
        | "_terndbMoveSessions"
        | "_terndbRename"
        | "_terndbSetDatabase"
        | "_terndbSetNextKey"
        | "_terndbSetPlacement" => Placement::Primary,
        _ => Placement::Anywhere,
    }
}

/// Whether there may be a command of this name, in whatever case and spelling.
pub(super) fn may_exist(command: &str) -> bool {
    is_command(command)
        || command.starts_with('_')
        || placement(command) != Placement::Anywhere
        || command.eq_ignore_ascii_case("isMaster")
}

/// Whether a command answers by what the store holds.
pub(crate) fn reads_state(command: &str) -> bool {
    placement(command) == Placement::Read || command == "getMore"
}

/// What a server says to a command that only a member of a set can run, before it is one.
pub(crate) fn refuse_outside_a_set(request: &Request) -> Error {
    let secondary_ok = Envelope::parse(request).is_ok_and(|envelope| envelope.secondary_ok);
    match placement(request.name()) {
        Placement::Primary => not_primary(),
        Placement::Read if !secondary_ok => not_secondary_ok(),
        Placement::Anywhere if !is_command(request.name()) => not_found(request.name()),
        Placement::Read | Placement::Anywhere => no_member(),
    }
}

fn not_secondary_ok() -> Error {
    Error::new(
        Code::NOT_PRIMARY_NO_SECONDARY_OK,
        "not primary and secondaryOk=false",
    )
}

pub(crate) fn no_member() -> Error {
    Error::new(
        Code::NOT_PRIMARY_OR_SECONDARY,
        "node is not in primary or recovering state",
    )
}

fn not_primary() -> Error {
    Error::new(Code::NOT_WRITABLE_PRIMARY, "not primary")
}

impl Shard {
    /// Refuses what this member may not run now.
    pub(crate) fn check_placement(
        &self,
        request: &Request,
        envelope: &Envelope,
    ) -> Result<(), Error> {
        if self.is_shutting_down() {
            return self.check_shutdown(request.name());
        }
        if self.replica_set.is_primary() {
            return Ok(());
        }
        let linearizable = envelope.read_wait.is_some_and(|wait| wait.linearizable);
        match placement(request.name()) {
            Placement::Anywhere => Ok(()),
            Placement::Primary => Err(not_primary()),
            // A change stream takes no such concern anywhere, and says so itself.
            Placement::Read if linearizable && !opens_stream(request) => Err(Error::new(
                Code::NOT_WRITABLE_PRIMARY,
                "cannot satisfy linearizable read concern on non-primary node",
            )),
            Placement::Read if writes_documents(request) => {
                self.check_readable().and(Err(not_primary()))
            }
            Placement::Read if !envelope.secondary_ok => Err(not_secondary_ok()),
            Placement::Read => self.check_readable(),
        }
    }

    fn check_readable(&self) -> Result<(), Error> {
        let topology = self.replica_set.topology();
        let is_member = topology
            .configuration
            .as_ref()
            .is_some_and(|now| now.member_at(self.replica_set.host()).is_some());
        let serves = match topology.role {
            Role::Leader { .. } | Role::Follower { .. } | Role::Candidate { .. } => is_member,
            Role::Installing { .. } | Role::Gone => false,
        };
        if serves {
            return Ok(());
        }
        Err(no_member())
    }

    /// Refuses to go on with a cursor where no read could begin, whoever leads.
    pub(crate) fn check_goes_on(&self) -> Result<(), Error> {
        match self.replica_set.is_primary() {
            true => Ok(()),
            false => self.check_readable(),
        }
    }

    /// Work that arrives when the member is about to stop belongs elsewhere.
    fn check_shutdown(&self, command: &str) -> Result<(), Error> {
        match placement(command) {
            Placement::Read | Placement::Primary => Err(shutting_down()),
            Placement::Anywhere => Ok(()),
        }
    }

    /// Whether clients are told still that this member leads, although its log takes nothing.
    fn is_called_primary(&self, topology: &Topology) -> bool {
        topology.role.is_leader()
            && topology.quiesces_until.is_none()
            && (topology.role != *self.log.role().borrow() || self.log.is_handing_over())
    }

    /// Lets clients hear of another role before they hear of what it refuses.
    pub(crate) async fn await_change(&self, error: &Error) {
        if !tells_of_another_state(error.code) {
            return;
        }
        let deadline = Instant::now() + CHANGE_TIMEOUT;
        let mut topology = self.replica_set.watch();
        while self.is_called_primary(&topology.borrow_and_update()) && Instant::now() < deadline {
            let _ = tokio::time::timeout(LOOK_INTERVAL, topology.changed()).await;
        }
    }

    /// An error as a client of a replica set is told it.
    pub(crate) fn explain_to_drivers(&self, error: Error, may_go_on: MayGoOn) -> Error {
        let changes_state = tells_of_another_state(error.code);
        let label = may_go_on.label_after(error.code);
        if !changes_state && label.is_none() {
            return error;
        }
        let mut details = DocWriter::new();
        if let Some(known) = &error.details {
            for element in known.iter() {
                details.append_element(&element);
            }
        }
        if changes_state {
            append_topology_version(&mut details, self.process_id, &self.replica_set.topology());
        }
        if let Some(label) = label {
            details.begin_array("errorLabels").push(label).end();
        }
        error.with_details(details.finish())
    }
}

pub(crate) fn shutting_down() -> Error {
    Error::new(
        Code::SHUTDOWN_IN_PROGRESS,
        "The server is in quiesce mode and will shut down",
    )
}

pub(crate) fn append_topology_version(
    writer: &mut DocWriter,
    process_id: ObjectId,
    topology: &Topology,
) {
    writer
        .begin_document("topologyVersion")
        .append("processId", process_id)
        .append("counter", topology.version)
        .end();
}

/// Errors after which a driver looks at the set again.
pub(crate) fn tells_of_another_state(code: Code) -> bool {
    matches!(
        code,
        Code::NOT_WRITABLE_PRIMARY
            | Code::NOT_PRIMARY_NO_SECONDARY_OK
            | Code::NOT_PRIMARY_OR_SECONDARY
            | Code::PRIMARY_STEPPED_DOWN
            | Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE
            | Code::INTERRUPTED_AT_SHUTDOWN
            | Code::SHUTDOWN_IN_PROGRESS
    )
}

/// Other errors after which a write may be sent again.
fn is_worth_a_retry(code: Code) -> bool {
    matches!(
        code,
        Code::HOST_UNREACHABLE
            | Code::HOST_NOT_FOUND
            | Code::NETWORK_TIMEOUT
            | Code::EXCEEDED_TIME_LIMIT
    )
}

/// Whether only a primary can have answered it.
pub(crate) fn needs_primary(request: &Request) -> bool {
    placement(request.name()) == Placement::Primary || writes_documents(request)
}

/// Whether a pipeline ends by writing.
fn writes_documents(request: &Request) -> bool {
    let pipeline = request.body().get_array("pipeline");
    let last = pipeline.and_then(|pipeline| pipeline.iter().last());
    matches!(last.and_then(stage_name), Some("$out" | "$merge"))
}

fn opens_stream(request: &Request) -> bool {
    let pipeline = request.body().get_array("pipeline");
    let first = pipeline.and_then(|pipeline| pipeline.get(0));
    request.name() == "aggregate" && first.and_then(stage_name) == Some("$changeStream")
}

fn stage_name(stage: ValueRef<'_>) -> Option<&str> {
    match stage {
        ValueRef::Document(stage) => stage.first().map(|element| element.key()),
        _ => None,
    }
}
