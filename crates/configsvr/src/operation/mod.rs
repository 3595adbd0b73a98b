//! Long operations: what they have in common.
//!
//! ```text
//!   queue ─► prepare: checked, nothing written ─► state document and locks, one entry
//!         ─► step ─► state document ─► step ─► … ─► removed with its locks, one entry ─► the client is told
//! ```
//!
//! **Every step may be repeated**, because a primary may be lost after its effects and before the next
//! state is written; the next primary reads the state document and goes on. What a step decides goes
//! into the same entry as the state behind it. ⚑
//!
//! **A command that asks again gets the first answer**: it is recorded in the entry that removes the state document, by
//! the id of both (`ticket.rs`). ⚑ So `prepare` only reads, and a step that is repeated answers what it would have
//! answered the first time.
//!
//! **The lock lives and dies with the operation**: the documents in `config.locks` are written and
//! removed in the entries that write and remove the state document, so there is nothing to ping and
//! nothing to take over (`docs/decisions`).
//!
//! Moves of ranges are long operations too, with rules of their own (`moves`). An operation that changes a
//! collection as a whole ends them before its first step; one on its indexes lets them run.
//!
//! A fault that passes (a shard between two primaries) is waited out. One that does not pass ends the
//! operation, which has undone before what it may undo. Where that is not possible any more, a step that is
//! refused is tried [`REFUSALS_MAX`] times; then the client is told `ManualInterventionRequired`. The state
//! document stays, its names are closed to other operations, and the next primary tries again. No lost
//! message and no lost primary leads there (`tests/lost_primaries.rs`): it takes a shard that says no to
//! what it must not refuse.

pub(crate) mod add_shard;
mod alone;
mod before;
pub(crate) mod drop;
pub(crate) mod drop_database;
mod first_chunks;
pub(crate) mod move_primary;
pub(crate) mod on_owners;
pub(crate) mod refine;
pub(crate) mod rename;
pub(crate) mod shard_collection;

use crate::commit::{Commit, by};
use crate::documents::{self, Fields, LOCKS, OPERATIONS, uuid_value};
use crate::error::{Fault, Retry};
use crate::moves;
use crate::queue::{Claim, Patience};
use crate::settle;
use crate::state::Effect;
use crate::tenure::{Plan, Tenure, log_change, no_primary};
use crate::ticket::{self, Ticket};
use cluster::authority::OperationId;
use model::Code;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use std::sync::Arc;
use wire::BoxFuture;

/// How often a step is refused in a row before somebody is asked to look.
const REFUSALS_MAX: u32 = 8;

/// What comes after a step.
pub(crate) enum Step {
    /// Write down the state and go on.
    Next,
    /// The state was written with what the step decided; go on.
    Written,
    /// The operation has ended; the reply.
    Done(DocBuf),
    /// The operation has ended and has undone what it did; why.
    Failed(Fault),
}

pub(crate) trait Operation: Send + Sync {
    /// As the state document, the locks and the changelog name it.
    fn kind(&self) -> &'static str;

    fn claim(&self) -> Claim;

    /// Names whose routing is about to change.
    fn changes(&self) -> Vec<String>;

    /// Whether moves of what it claims have to end first. None begins while it holds its claim.
    fn halts_moves(&self) -> bool;

    /// Writes what must be known to go on.
    fn append_state(&self, writer: &mut DocWriter);

    /// Checks and works out, in the operation's turn. A reply if there is nothing to do.
    fn prepare<'a>(
        &'a mut self,
        tenure: &'a Tenure,
    ) -> BoxFuture<'a, Result<Option<DocBuf>, Fault>>;

    /// Takes the next step. Whatever it did before may have been done already.
    fn step<'a>(&'a mut self, context: Context<'a>) -> BoxFuture<'a, Result<Step, Fault>>;

    /// What stays of the state document when the operation has ended: its outcome, if others ask for it.
    fn remains(&self, _id: OperationId) -> Option<DocBuf> {
        None
    }

    /// Writes and effects that go with the last entry.
    fn last_words(&self, _tenure: &Tenure, _commit: &mut Commit) -> Result<Vec<Effect>, Fault> {
        Ok(Vec::new())
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) tenure: &'a Tenure,
    pub(crate) id: OperationId,
    /// Of the command that asked for it.
    pub(crate) ticket: Option<Ticket>,
}

impl Context<'_> {
    /// Adds the operation's new state to a commit.
    pub(crate) fn write_state(&self, operation: &dyn Operation, commit: &mut Commit) {
        let id = by("_id", uuid_value(&self.id));
        let state = state_document(self.id, self.ticket, operation);
        commit.put(OPERATIONS, id.as_doc(), state.as_doc());
    }
}

fn state_document(id: OperationId, ticket: Option<Ticket>, operation: &dyn Operation) -> DocBuf {
    let mut writer = DocWriter::new()
        .with("_id", uuid_value(&id))
        .with("kind", operation.kind());
    ticket::append(&mut writer, ticket);
    operation.append_state(&mut writer);
    writer.finish()
}

/// Reads an operation from its state document.
fn restore(doc: Doc<'_>) -> Result<Box<dyn Operation>, Fault> {
    let fields = Fields::of(OPERATIONS, doc);
    Ok(match fields.text("kind")? {
        add_shard::KIND => Box::new(add_shard::AddShard::restore(&fields)?),
        drop::KIND => Box::new(drop::Drop::restore(&fields)?),
        drop_database::KIND => Box::new(drop_database::DropDatabase::restore(&fields)?),
        move_primary::KIND => Box::new(move_primary::MovePrimary::restore(&fields)?),
        on_owners::KIND => Box::new(on_owners::OnOwners::restore(&fields)?),
        refine::KIND => Box::new(refine::Refine::restore(&fields)?),
        rename::KIND => Box::new(rename::Rename::restore(&fields)?),
        shard_collection::KIND => Box::new(shard_collection::ShardCollection::restore(&fields)?),
        other => {
            return Err(Fault::new(
                Code::MANUAL_INTERVENTION_REQUIRED,
                format!("an operation of an unknown kind {other:?} is unfinished"),
            ));
        }
    })
}

/// Whether a document of `config.terndb_operations` can be understood.
pub(crate) fn check_stored(doc: Doc<'_>) -> Result<(), Fault> {
    let fields = Fields::of(OPERATIONS, doc);
    fields.uuid("_id")?;
    match fields.text("kind")? {
        settle::OUTCOME => Ok(()),
        moves::KIND => moves::Move::restore(doc).map(|_| ()),
        _ => restore(doc).map(|_| ()),
    }
}

/// Closes the names of an operation whose state document cannot be understood: nobody knows how far it is. ⚑ Its
/// locks tell them, and what can be read of the document.
async fn close_damaged(tenure: &Tenure, doc: Doc<'_>) -> Result<(), Fault> {
    let mut names = Vec::new();
    if let Some(id) = doc.get("_id") {
        for lock in (tenure.store)
            .find(LOCKS, by("ts", id).as_doc(), Doc::EMPTY)
            .await?
        {
            names.extend(lock.as_doc().get_str("_id").map(str::to_owned));
        }
    }
    let fields = ["ns", "db", "from", "to"].iter();
    names.extend(fields.filter_map(|field| doc.get_str(field).map(str::to_owned)));
    tracing::error!("an operation that cannot be understood closes {names:?}");
    tenure.close_names(names);
    Ok(())
}

/// Begins an operation and waits for its end. Whose patience ends before its turn comes has done nothing.
pub(crate) async fn run(
    tenure: &Arc<Tenure>,
    operation: impl Operation + 'static,
    patience: Patience,
    ticket: Option<Ticket>,
) -> Result<DocBuf, Fault> {
    let here = tenure.clone();
    tenure
        .complete(async move { begin(&here, Box::new(operation), patience, ticket).await })
        .await
}

/// Queues what an earlier primary left unfinished, before anybody else comes.
pub(crate) async fn resume_all(tenure: &Arc<Tenure>) -> Result<(), Fault> {
    let mut running = DocWriter::new();
    running
        .begin_document("kind")
        .append("$ne", settle::OUTCOME)
        .end();
    let unfinished = tenure
        .store
        .find(OPERATIONS, running.finish().as_doc(), Doc::EMPTY)
        .await?;
    let mut understood = Vec::with_capacity(unfinished.len());
    for document in unfinished {
        match check_stored(document.as_doc()) {
            Ok(()) => understood.push(document),
            Err(_) => close_damaged(tenure, document.as_doc()).await?,
        }
    }
    let unfinished = understood;
    let is_move = |document: &DocBuf| document.as_doc().get_str("kind") == Some(moves::KIND);
    let (moving, unfinished): (Vec<_>, Vec<_>) = unfinished.into_iter().partition(is_move);
    // First, so that whoever has to end them knows them.
    for document in moving {
        moves::resume(tenure, document.as_doc()).await?;
    }
    for document in unfinished {
        let id = Fields::of(OPERATIONS, document.as_doc()).uuid("_id")?;
        let operation = restore(document.as_doc())?;
        tracing::info!("{} goes on after a change of primary", operation.kind());
        // They held their claims when they were begun, so none of them waits for another.
        let turn = tenure.queue.enter(&operation.claim()).await;
        let changing = tenure.queue.changing(operation.changes());
        let ticket = ticket::stored(document.as_doc());
        // Whoever asked for it asks again.
        let place = ticket.map(|ticket| tenure.tickets.enter(ticket));
        let here = tenure.clone();
        let told = tenure
            .spawn(async move {
                let context = Context {
                    tenure: &here,
                    id,
                    ticket,
                };
                let ended = go_on(context, operation).await;
                drop((changing, turn));
                if let Some(place) = place {
                    place.end(&ended);
                }
                if let Err(fault) = &ended {
                    tracing::warn!("an operation that went on has failed: {fault}");
                }
                ended
            })
            .await;
        // Who waits does so by its ticket.
        drop(told);
    }
    Ok(())
}

async fn begin(
    tenure: &Arc<Tenure>,
    mut operation: Box<dyn Operation>,
    patience: Patience,
    ticket: Option<Ticket>,
) -> Result<DocBuf, Fault> {
    let claim = operation.claim();
    let _turn = tenure.queue.enter_within(&claim, patience).await?;
    if let Some(name) = tenure.closed(&claim) {
        return Err(Fault::new(
            Code::MANUAL_INTERVENTION_REQUIRED,
            format!("an earlier operation on {name} could not be finished"),
        ));
    }
    if let Some(reply) = operation.prepare(tenure).await? {
        return Ok(reply);
    }
    let id = ticket::id_for(ticket);
    let context = Context { tenure, id, ticket };
    let _changing = tenure.queue.changing(operation.changes());
    let mut pause = Tenure::first_pause();
    // ⚑ If the answer to this is lost it is written again: else it could be stored, and run by nobody.
    while let Err(fault) = tenure.write(first_entry(context, &*operation)).await {
        if fault.retry() == Retry::Never {
            return Err(fault);
        }
        tenure.pause(&mut pause).await?;
    }
    go_on(context, operation).await
}

/// The state document and the locks.
fn first_entry(context: Context<'_>, operation: &dyn Operation) -> Commit {
    let mut commit = Commit::default();
    context.write_state(operation, &mut commit);
    for name in operation.claim().names() {
        let lock = lock_document(&name, context.id, operation.kind());
        // A leftover would be a mistake of ours; the queue is what excludes others.
        commit.put(LOCKS, by("_id", name.as_str()).as_doc(), lock.as_doc());
        let what = format!("{}.start", operation.kind());
        log_change(&mut commit, &what, &name, Doc::EMPTY);
    }
    commit
}

fn lock_document(name: &str, id: OperationId, kind: &str) -> DocBuf {
    DocWriter::new()
        .with("_id", name)
        .with("state", 2)
        .with("process", "ConfigServer")
        .with("ts", uuid_value(&id))
        .with("when", ValueRef::DateTime(documents::now_ms()))
        .with("who", format!("ConfigServer:{id}").as_str())
        .with("why", kind)
        .finish()
}

/// Takes step after step until the end.
async fn go_on(context: Context<'_>, mut operation: Box<dyn Operation>) -> Result<DocBuf, Fault> {
    let tenure = context.tenure;
    let mut pause = Tenure::first_pause();
    let mut refusals = 0;
    let mut halted = !operation.halts_moves();
    loop {
        if tenure.is_over() {
            return Err(no_primary());
        }
        let stepped = match halted {
            true => operation.step(context).await,
            false => halt(tenure, &*operation).await,
        };
        halted |= stepped.is_ok();
        let done = match stepped {
            Ok(Step::Written) => {
                refusals = 0;
                continue;
            }
            Ok(Step::Next) => write_state(context, &*operation).await.map(|()| None),
            Ok(Step::Done(reply)) => finish(context, &*operation, Ok(reply)).await.map(Some),
            Ok(Step::Failed(why)) => finish(context, &*operation, Err(why)).await.map(Some),
            Err(fault) => Err(fault),
        };
        match done {
            Ok(None) => (pause, refusals) = (Tenure::first_pause(), 0),
            Ok(Some(ended)) => return ended,
            Err(fault) => {
                if fault.retry() == Retry::Never {
                    refusals += 1;
                    tracing::error!("{} cannot go on: {fault}", operation.kind());
                }
                if refusals >= REFUSALS_MAX {
                    tenure.close(&operation.claim());
                    return Err(Fault::new(
                        Code::MANUAL_INTERVENTION_REQUIRED,
                        format!("{} cannot go on: {fault}", operation.kind()),
                    ));
                }
                tenure.pause(&mut pause).await?;
                // The step may have been written or not: what is stored decides where to go on.
                operation = match read_again(context).await {
                    Ok(Some(stored)) => stored,
                    Ok(None) => return answered(context).await,
                    Err(fault) => {
                        tracing::debug!("the state of an operation is read again: {fault}");
                        operation
                    }
                };
            }
        }
    }
}

/// Ends the moves that an operation cannot go on with.
async fn halt(tenure: &Tenure, operation: &dyn Operation) -> Result<Step, Fault> {
    moves::halt(tenure, &operation.claim(), operation.kind()).await?;
    Ok(Step::Written)
}

async fn read_again(context: Context<'_>) -> Result<Option<Box<dyn Operation>>, Fault> {
    let id = by("_id", uuid_value(&context.id));
    let stored = context
        .tenure
        .store
        .find_one(OPERATIONS, id.as_doc())
        .await?;
    let is_running = |doc: &DocBuf| doc.as_doc().get_str("kind") != Some(settle::OUTCOME);
    let running = stored.filter(is_running);
    running.map(|doc| restore(doc.as_doc())).transpose()
}

/// How an operation ended whose last entry was written without anybody hearing of it.
async fn answered(context: Context<'_>) -> Result<DocBuf, Fault> {
    let Some(ticket) = context.ticket else {
        return Ok(by("ok", 1.0));
    };
    let answer = (context.tenure)
        .certain(|state| Ok::<_, Fault>(state.answers.find(ticket)?.cloned()))
        .await??;
    answer.map_or_else(|| Ok(by("ok", 1.0)), |answer| ticket::given(&answer))
}

async fn write_state(context: Context<'_>, operation: &dyn Operation) -> Result<(), Fault> {
    let mut commit = Commit::default();
    context.write_state(operation, &mut commit);
    context.tenure.write(commit).await
}

/// Removes the state document, but for what remains of it, and the locks; records the answer.
async fn finish(
    context: Context<'_>,
    operation: &dyn Operation,
    ended: Result<DocBuf, Fault>,
) -> Result<Result<DocBuf, Fault>, Fault> {
    let mut commit = Commit::default();
    let id = by("_id", uuid_value(&context.id));
    match operation.remains(context.id) {
        Some(outcome) => commit.put(OPERATIONS, id.as_doc(), outcome.as_doc()),
        None => commit.delete(OPERATIONS, id.as_doc()),
    };
    for name in operation.claim().names() {
        commit.delete(LOCKS, by("_id", name.as_str()).as_doc());
        let what = format!("{}.end", operation.kind());
        log_change(&mut commit, &what, &name, Doc::EMPTY);
    }
    let effects = operation.last_words(context.tenure, &mut commit)?;
    context
        .tenure
        .decide(|state| {
            let plan = Plan {
                commit,
                effects,
                answer: (),
            };
            Ok(plan.answering(state, context.ticket, &ended))
        })
        .await?;
    Ok(ended)
}
