//! Commands that may be asked again: a router that lost the answer shows its ticket, and is told how it ended.
//!
//! ```text
//!   {_configsvrDdl: 1, db, command: {..}, operation: UUID}
//!
//!   asked ─► answered before?  ── the same answer       config.terndb_answers, in memory as part of the state
//!         ─► runs?             ── joins it              here: begun by this primary, or taken up from a state document
//!         ─► neither           ── begins
//! ```
//!
//! The id of a command is that of its operation: the state document has it for `_id`, and `asked`, a digest of the
//! command. ⚑ The entry that ends the operation records its answer ([`Plan::answering`]); so does the one entry of
//! commands that need no state document. What ends before anything was written leaves no record: asked again it is
//! checked again, as if it had come only now.
//!
//! ⚑ **Nothing changes before it is written down.** `prepare` of an operation only reads, here and on shards, but for
//! what may be there already without doing harm: a database that is made, the new addresses of a shard, and moves that
//! `setAllowMigrations` ends before its one entry.
//! What one shard does alone for an unsharded collection is a step like any other (`operation/alone.rs`).
//!
//! A digest leaves out what is of the message rather than of the command: the session, times, the time limit.
//!
//! Left out: an answer of many kilobytes is kept cut down to its code and the beginning of its message.

use crate::commit::{Commit, by};
use crate::documents::{ANSWERS, Fields, now_ms, uuid_value};
use crate::error::Fault;
use crate::state::{Effect, State};
use crate::store;
use crate::tenure::{Plan, no_primary};
use cluster::authority::{OperationId, OtherCommand};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::{Code, Error};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;
use xxhash_rust::xxh3::xxh3_128;

pub(crate) use cluster::authority::Ticket;

/// What of an answer is kept at most.
const ANSWER_BYTES_MAX: usize = 16 * 1024;
const MESSAGE_CHARS_MAX: usize = 4 * 1024;

/// How a command ended, once it has.
pub(crate) type Waiting = watch::Receiver<Option<Result<DocBuf, Fault>>>;

impl From<OtherCommand> for Fault {
    fn from(other: OtherCommand) -> Self {
        Fault::new(Code::BAD_VALUE, other.to_string())
    }
}

/// The ticket of a command, if its router gave it one.
pub(crate) fn of(body: Doc<'_>, database: &str, command: Doc<'_>) -> Result<Option<Ticket>, Fault> {
    let bytes = match body.get("operation") {
        None => return Ok(None),
        Some(ValueRef::Binary { subtype: 4, bytes }) => bytes.try_into().ok(),
        Some(_) => None,
    };
    let wrong = || Fault::new(Code::TYPE_MISMATCH, "operation must be a UUID");
    let id = model::ids::Uuid(bytes.ok_or_else(wrong)?);
    let says = digest(database, command);
    Ok(Some(Ticket { id, says }))
}

/// The ticket of an operation that was begun before, by its state document.
pub(crate) fn stored(document: Doc<'_>) -> Option<Ticket> {
    let id = Fields::of(crate::documents::OPERATIONS, document).uuid("_id");
    match (id, document.get("asked")) {
        (Ok(id), Some(ValueRef::Binary { bytes, .. })) => {
            let says = bytes.try_into().ok()?;
            Some(Ticket { id, says })
        }
        _ => None,
    }
}

/// Adds to a state document whose command it is.
pub(crate) fn append(writer: &mut DocWriter, ticket: Option<Ticket>) {
    if let Some(ticket) = ticket {
        writer.append("asked", binary(&ticket.says));
    }
}

fn binary(bytes: &[u8]) -> ValueRef<'_> {
    ValueRef::Binary { subtype: 0, bytes }
}

fn digest(database: &str, command: Doc<'_>) -> [u8; 16] {
    let mut says = DocWriter::new().with("db", database);
    says.begin_document("command");
    for element in command.iter() {
        let name = element.key();
        if !name.starts_with('$') && !matches!(name, "lsid" | "txnNumber" | "maxTimeMS") {
            says.append_element(&element);
        }
    }
    says.end();
    xxh3_128(says.finish().as_bytes()).to_be_bytes()
}

/// The id that an operation has: that of its command.
pub(crate) fn id_for(ticket: Option<Ticket>) -> OperationId {
    ticket.map_or_else(crate::documents::new_uuid, |ticket| ticket.id)
}

/// Which commands run.
#[derive(Default)]
pub(crate) struct Tickets {
    running: Arc<Mutex<HashMap<OperationId, Running>>>,
}

struct Running {
    says: [u8; 16],
    waiting: Waiting,
}

/// What becomes of a command that is asked.
pub(crate) enum Shown {
    Begins(Place),
    Joins(Waiting),
    Answered(Result<DocBuf, Fault>),
}

/// A command's place among those that run; given back when it is dropped.
pub(crate) struct Place {
    id: OperationId,
    ended: watch::Sender<Option<Result<DocBuf, Fault>>>,
    running: Arc<Mutex<HashMap<OperationId, Running>>>,
}

impl Place {
    /// Tells all who have joined. ⚑ By now the answer is part of the state, if it is one that is kept.
    pub(crate) fn end(self, ended: &Result<DocBuf, Fault>) {
        // Its entry goes with it, after that: who comes in between reads what was told. ⚑ It goes once: a second
        // time it might be the entry of who has begun anew.
        self.ended.send_replace(Some(ended.clone()));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.running.lock().remove(&self.id);
    }
}

impl Tickets {
    /// Begins a command, or joins it. ⚑ For who knows that it was not answered before.
    pub(crate) fn show(&self, ticket: Ticket) -> Result<Shown, Fault> {
        let mut running = self.running.lock();
        if let Some(known) = running.get(&ticket.id) {
            ticket.check(known.says)?;
            return Ok(Shown::Joins(known.waiting.clone()));
        }
        Ok(Shown::Begins(self.enter_among(&mut running, ticket)))
    }

    /// The place of a command that an earlier primary began.
    pub(crate) fn enter(&self, ticket: Ticket) -> Place {
        self.enter_among(&mut self.running.lock(), ticket)
    }

    fn enter_among(&self, running: &mut HashMap<OperationId, Running>, ticket: Ticket) -> Place {
        let (ended, waiting) = watch::channel(None);
        let says = ticket.says;
        running.insert(ticket.id, Running { says, waiting });
        Place {
            id: ticket.id,
            ended,
            running: self.running.clone(),
        }
    }
}

/// Waits for the end of a command that was joined.
pub(crate) async fn ended(mut waiting: Waiting) -> Result<DocBuf, Fault> {
    let ended = waiting.wait_for(Option::is_some).await;
    // Its sender is gone without a word when the tenure is over.
    let ended = ended.map_err(|_| no_primary())?.clone();
    ended.unwrap_or_else(|| Err(no_primary()))
}

impl<T> Plan<T> {
    /// Records the answer of a command in the entry that carries it out, or ends it.
    pub(crate) fn answering(
        mut self,
        state: &State,
        ticket: Option<Ticket>,
        ended: &Result<DocBuf, Fault>,
    ) -> Self {
        if let Some(ticket) = ticket {
            let effects = record(state, ticket, ended, &mut self.commit);
            self.effects.extend(effects);
        }
        self
    }
}

fn record(
    state: &State,
    ticket: Ticket,
    ended: &Result<DocBuf, Fault>,
    commit: &mut Commit,
) -> Vec<Effect> {
    let (at_ms, answer) = (now_ms(), kept(ended));
    let document = DocWriter::new()
        .with("_id", uuid_value(&ticket.id))
        .with("asked", binary(&ticket.says))
        .with("at", ValueRef::DateTime(at_ms))
        .with("answer", &answer)
        .finish();
    let id = by("_id", uuid_value(&ticket.id));
    commit.put(ANSWERS, id.as_doc(), document.as_doc());
    let mut effects = Vec::new();
    for gone in state.answers.leaving(at_ms) {
        commit.delete(ANSWERS, by("_id", uuid_value(&gone)).as_doc());
        effects.push(Effect::AnswerGone(gone));
    }
    effects.push(Effect::Answered(ticket, at_ms, answer));
    effects
}

/// What is kept of an answer.
fn kept(ended: &Result<DocBuf, Fault>) -> DocBuf {
    let error = match ended {
        Ok(reply) if reply.as_bytes().len() <= ANSWER_BYTES_MAX => return reply.clone(),
        Ok(_) => return crate::server::ok(),
        Err(fault) => fault.clone().into_error(),
    };
    let whole = wire::Reply::error(&error).into_document();
    if whole.as_bytes().len() <= ANSWER_BYTES_MAX {
        return whole;
    }
    let message: String = error.message.chars().take(MESSAGE_CHARS_MAX).collect();
    wire::Reply::error(&Error::new(error.code, message)).into_document()
}

/// A kept answer as it was given.
pub(crate) fn given(answer: &DocBuf) -> Result<DocBuf, Fault> {
    store::check(answer.clone())
}

/// Reads a document of `config.terndb_answers`; `None` if it cannot be understood, for it answers nobody then.
pub(crate) fn read(document: Doc<'_>) -> Option<(Ticket, i64, DocBuf)> {
    let ticket = stored(document)?;
    let at_ms = match document.get("at") {
        Some(ValueRef::DateTime(at_ms)) => at_ms,
        _ => return None,
    };
    let answer = document.get_doc("answer")?;
    Some((ticket, at_ms, answer.to_owned()))
}
