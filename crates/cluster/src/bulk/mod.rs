//! A batch of writes that goes to several shards: in which order, in which parts, and
//! what the one reply says.
//!
//! ```text
//!   statements ─► next_round: parts per shard ─► sent ─► answered ─┐
//!        ▲                                                        │
//!        └──────────── again: routed by a stale version ◄──────────┤
//!                                                     all done ─► Summary
//! ```
//!
//! *Unordered*: everything that is left goes out in one round, one part per shard.
//! *Ordered*: a round is the longest run of statements that go to one and the same
//! shard, or a single statement that goes to several; nothing after a failure is sent.
//!
//! A statement about many documents of a sharded collection goes *alone*: it is an operation of its
//! own over all shards ([`crate::broadcast`]), in its turn if the batch is ordered, behind all parts if
//! it is not.
//!
//! Invariants:
//! - **A statement is sent to a shard once more only if that shard said that it did
//!   not carry it out**, because it was routed by a stale version. What a shard has
//!   carried out of a statement is kept, and the statement goes only to the others
//!   that remain. ⚑ A multi-update that ran on one shard and was refused by another
//!   would otherwise run twice on the first.
//! - **Indexes are the client's.** Whatever part a statement went in, errors and
//!   upserted ids name its place in the batch that the client sent.
//! - A shard that is asked again and again without carrying anything out ends the
//!   batch after [`STALE_ROUNDS_MAX`] rounds without progress.
//!
//! Left to the shell: targeting (it has the routing table), encoding, retries of lost
//! connections with the statement ids of the session, waiting for write concerns.

use crate::broadcast::Totals;
use crate::routing::ShardId;
use model::bson::DocBuf;
use std::collections::{BTreeMap, BTreeSet};

#[cfg(test)]
mod tests;

/// How many rounds may end with nothing carried out.
pub const STALE_ROUNDS_MAX: u32 = 10;

/// How many statements, and bytes of them, one part may have.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub statements: usize,
    pub bytes: usize,
}

/// Why a statement failed: a code and a message, as in `writeErrors`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteFault {
    pub code: i32,
    pub message: String,
    /// Further fields, such as `keyPattern`.
    pub details: Option<Box<DocBuf>>,
}

impl WriteFault {
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: None,
        }
    }

    /// What one statement gets whose shards disagree about what is wrong.
    const SEVERAL: i32 = 583;
    const NO_PROGRESS: i32 = 82;
}

/// Statements for one shard, by their place in the client's batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    pub shard: ShardId,
    pub statements: Vec<usize>,
}

/// Where a statement goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Goes {
    To(Vec<ShardId>),
    /// Carried out by itself, over all shards that it concerns.
    Alone,
}

/// What is to be done next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Round {
    /// Sent together, answered one by one.
    Parts(Vec<Part>),
    /// One statement, by its place in the batch.
    Alone(usize),
    /// The batch has ended.
    Over,
}

/// What became of one statement on one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect<U> {
    /// Carried out: matched, modified, and the id of what was upserted.
    Done {
        matched: u64,
        modified: u64,
        upserted: Option<U>,
    },
    Failed(WriteFault),
    /// Not carried out: the shard does not own what the statement was routed by, or
    /// an earlier statement of an ordered part failed.
    NotDone,
}

/// What the client is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary<U> {
    /// Matched, inserted or deleted, upserts included.
    pub n: u64,
    pub modified: u64,
    /// By place in the batch.
    pub upserted: Vec<(usize, U)>,
    pub errors: Vec<(usize, WriteFault)>,
}

/// A batch under way.
#[derive(Debug)]
pub struct BulkWrite<U> {
    ordered: bool,
    limits: Limits,
    statements: Vec<Statement<U>>,
    /// All statements before this one have ended well.
    begin: usize,
    /// What was sent and not answered yet, by shard.
    under_way: BTreeMap<ShardId, Vec<usize>>,
    /// The statement that is carried out by itself.
    alone: Option<usize>,
    progress: bool,
    rounds_without_progress: u32,
}

#[derive(Debug)]
struct Statement<U> {
    bytes: usize,
    state: State,
    /// The shards that have carried it out.
    done_on: BTreeSet<ShardId>,
    matched: u64,
    modified: u64,
    upserted: Option<U>,
    faults: Vec<WriteFault>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// To be targeted, for the first time or again.
    Open,
    /// Sent to this many shards that have not answered.
    Sent {
        waiting: usize,
        again: bool,
    },
    Ended,
}

impl<U: Clone> BulkWrite<U> {
    /// `bytes` are the sizes of the statements.
    pub fn new(ordered: bool, limits: Limits, bytes: impl IntoIterator<Item = usize>) -> Self {
        let statements = bytes
            .into_iter()
            .map(|bytes| Statement {
                bytes,
                state: State::Open,
                done_on: BTreeSet::new(),
                matched: 0,
                modified: 0,
                upserted: None,
                faults: Vec::new(),
            })
            .collect();
        Self {
            ordered,
            limits,
            statements,
            begin: 0,
            under_way: BTreeMap::new(),
            alone: None,
            progress: true,
            rounds_without_progress: 0,
        }
    }

    /// What goes out next. `target` says which shards
    /// a statement concerns, by the routing table that holds now, or why it cannot be
    /// routed. All parts of a round go out together; the next round begins when all
    /// of them are answered.
    pub fn next_round(
        &mut self,
        mut target: impl FnMut(usize) -> Result<Goes, WriteFault>,
    ) -> Round {
        let is_answered = self.under_way.is_empty() && self.alone.is_none();
        assert!(is_answered, "the last round is not answered");
        self.count_progress();
        let mut first_alone = None;
        let mut parts = Parts::new(self.limits);
        let ended_well = |statement: &Statement<U>| {
            statement.state == State::Ended && statement.faults.is_empty()
        };
        let done = self.statements[self.begin..].iter();
        self.begin += done.take_while(|statement| ended_well(statement)).count();
        for at in self.begin..self.statements.len() {
            if self.statements[at].state == State::Ended {
                if self.ordered && !self.statements[at].faults.is_empty() {
                    break;
                }
                continue;
            }
            let shards = match target(at) {
                Ok(Goes::To(shards)) => self.still_to_do(at, shards),
                Ok(Goes::Alone) => {
                    first_alone.get_or_insert(at);
                    if self.ordered {
                        break;
                    }
                    continue;
                }
                Err(fault) => {
                    // In its turn: what stands before it is sent first.
                    if self.ordered && !parts.is_empty() {
                        break;
                    }
                    self.end(at, Some(fault));
                    if self.ordered {
                        break;
                    }
                    continue;
                }
            };
            if shards.is_empty() {
                self.end(at, None);
                continue;
            }
            if self.ordered && !parts.may_follow(&shards) {
                break;
            }
            if !parts.add(at, self.statements[at].bytes, &shards) {
                // This round is full.
                if self.ordered {
                    break;
                }
                continue;
            }
            self.statements[at].state = State::Sent {
                waiting: shards.len(),
                again: false,
            };
            if self.ordered && shards.len() > 1 {
                break;
            }
        }
        if parts.is_empty() {
            self.alone = first_alone;
            return first_alone.map_or(Round::Over, Round::Alone);
        }
        self.under_way = parts.of_shards;
        let sent = self.under_way.iter().map(|(shard, statements)| Part {
            shard: shard.clone(),
            statements: statements.clone(),
        });
        Round::Parts(sent.collect())
    }

    /// What became of the statement that went alone; `None` if it is to be targeted again.
    pub fn alone_ended(&mut self, totals: Option<Totals>) {
        let Some(at) = self.alone.take() else {
            return;
        };
        let Some(totals) = totals else {
            return;
        };
        self.progress = true;
        let statement = &mut self.statements[at];
        statement.matched += totals.matched;
        statement.modified += totals.modified;
        statement.faults.extend(totals.faults);
        statement.state = State::Ended;
    }

    /// A shard's answer: the effect of each statement of its part, in order.
    pub fn answered(&mut self, shard: &ShardId, effects: Vec<Effect<U>>) {
        let Some(sent) = self.under_way.remove(shard) else {
            return;
        };
        assert_eq!(sent.len(), effects.len(), "one effect for each statement");
        for (at, effect) in sent.into_iter().zip(effects) {
            let statement = &mut self.statements[at];
            let State::Sent { waiting, mut again } = statement.state else {
                unreachable!("a statement that was sent waits for its answers");
            };
            match effect {
                Effect::Done {
                    matched,
                    modified,
                    upserted,
                } => {
                    self.progress = true;
                    statement.done_on.insert(shard.clone());
                    statement.matched += matched;
                    statement.modified += modified;
                    statement.upserted = statement.upserted.take().or(upserted);
                }
                Effect::Failed(fault) => {
                    self.progress = true;
                    statement.done_on.insert(shard.clone());
                    statement.faults.push(fault);
                }
                Effect::NotDone => again = true,
            }
            statement.state = match waiting - 1 {
                0 if again && statement.faults.is_empty() => State::Open,
                0 => State::Ended,
                waiting => State::Sent { waiting, again },
            };
        }
    }

    /// What the client is told. The batch has ended.
    pub fn summary(&self) -> Summary<U> {
        let mut summary = Summary {
            n: 0,
            modified: 0,
            upserted: Vec::new(),
            errors: Vec::new(),
        };
        for (at, statement) in self.statements.iter().enumerate() {
            summary.n += statement.matched + u64::from(statement.upserted.is_some());
            summary.modified += statement.modified;
            if let Some(id) = &statement.upserted {
                summary.upserted.push((at, id.clone()));
            }
            if let Some(fault) = combined(&statement.faults) {
                summary.errors.push((at, fault));
            }
        }
        summary
    }

    fn still_to_do(&self, at: usize, mut shards: Vec<ShardId>) -> Vec<ShardId> {
        shards.sort();
        shards.dedup();
        shards.retain(|shard| !self.statements[at].done_on.contains(shard));
        shards
    }

    fn end(&mut self, at: usize, fault: Option<WriteFault>) {
        let statement = &mut self.statements[at];
        statement.faults.extend(fault);
        statement.state = State::Ended;
    }

    /// Ends a batch that gets nowhere.
    fn count_progress(&mut self) {
        if std::mem::take(&mut self.progress) {
            self.rounds_without_progress = 0;
            return;
        }
        self.rounds_without_progress += 1;
        if self.rounds_without_progress < STALE_ROUNDS_MAX {
            return;
        }
        let open = |statement: &&mut Statement<U>| statement.state == State::Open;
        let left = self.statements.iter_mut().filter(open);
        let told = if self.ordered { 1 } else { usize::MAX };
        for statement in left.take(told) {
            statement.faults.push(WriteFault::new(
                WriteFault::NO_PROGRESS,
                format!(
                    "no progress was made executing batch write op after {STALE_ROUNDS_MAX} rounds"
                ),
            ));
            statement.state = State::Ended;
        }
    }
}

/// What one statement failed with, on whatever shards.
fn combined(faults: &[WriteFault]) -> Option<WriteFault> {
    let first = faults.first()?;
    if faults.iter().all(|fault| fault.code == first.code) {
        return Some(first.clone());
    }
    let messages: Vec<&str> = faults.iter().map(|fault| fault.message.as_str()).collect();
    Some(WriteFault::new(
        WriteFault::SEVERAL,
        format!("multiple errors for op: {}", messages.join(" :: and :: ")),
    ))
}

/// The parts of a round under construction.
struct Parts {
    limits: Limits,
    of_shards: BTreeMap<ShardId, Vec<usize>>,
    bytes: BTreeMap<ShardId, usize>,
}

impl Parts {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            of_shards: BTreeMap::new(),
            bytes: BTreeMap::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.of_shards.is_empty()
    }

    /// In an ordered batch: only what goes to the one shard that is there.
    fn may_follow(&self, shards: &[ShardId]) -> bool {
        match shards {
            [only] => self.of_shards.keys().all(|shard| shard == only),
            _ => self.is_empty(),
        }
    }

    /// False if there is no room for it. A part always has room for one.
    fn add(&mut self, at: usize, bytes: usize, shards: &[ShardId]) -> bool {
        let fits = |shard: &ShardId| {
            self.of_shards.get(shard).is_none_or(|part| {
                let taken = self.bytes.get(shard).copied().unwrap_or(0);
                part.len() < self.limits.statements && taken + bytes <= self.limits.bytes
            })
        };
        if !shards.iter().all(fits) {
            return false;
        }
        for shard in shards {
            self.of_shards.entry(shard.clone()).or_default().push(at);
            *self.bytes.entry(shard.clone()).or_default() += bytes;
        }
        true
    }
}
