//! Which moves run: who joins, who is refused, who is to be ended.
//!
//! It lives in memory and is complete at any time: a move is here before its state document is written, and
//! a new primary enters what it finds stored before it serves.

use super::Move;
use crate::error::Fault;
use crate::queue::Claim;
use cluster::authority::OperationId;
use cluster::routing::ShardId;
use model::bson::DocBuf;
use model::range::{KeyBound, KeyRange};
use model::text::document_quoted;
use model::{Code, Namespace};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;

/// How a move ended, once it has.
pub(crate) type Waiting = watch::Receiver<Option<Result<DocBuf, Fault>>>;

#[derive(Default)]
pub(crate) struct Moves {
    running: Arc<Mutex<HashMap<OperationId, Running>>>,
}

struct Running {
    moved: Arc<Move>,
    waiting: Waiting,
}

/// Whoever asks for a move either begins it, or waits for one that runs.
pub(super) enum Admission {
    First(Registered),
    Joins(Waiting),
}

/// A move's place among those that run; given back when it is dropped.
pub(super) struct Registered {
    pub(super) moved: Arc<Move>,
    ended: watch::Sender<Option<Result<DocBuf, Fault>>>,
    running: Arc<Mutex<HashMap<OperationId, Running>>>,
}

impl Registered {
    pub(super) fn subscribe(&self) -> Waiting {
        self.ended.subscribe()
    }

    /// Tells all who wait. Its place is free before they are told.
    pub(super) fn end(self, ended: Result<DocBuf, Fault>) {
        self.running.lock().remove(&self.moved.id);
        self.ended.send_replace(Some(ended));
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.running.lock().remove(&self.moved.id);
    }
}

fn overlap(one: &KeyRange, other: &KeyRange) -> bool {
    one.min < other.max && other.min < one.max
}

fn busy(message: String) -> Fault {
    Fault::new(Code::CONFLICTING_OPERATION_IN_PROGRESS, message)
}

impl Moves {
    /// Enters a move, unless it excludes another one or a shard has enough of them.
    pub(super) fn admit(&self, moved: Move, per_shard: usize) -> Result<Admission, Fault> {
        let mut running = self.running.lock();
        for other in running.values() {
            let there = &other.moved;
            if there.namespace != moved.namespace || !overlap(&there.range, &moved.range) {
                continue;
            }
            if there.range == moved.range && there.to == moved.to {
                return Ok(Admission::Joins(other.waiting.clone()));
            }
            return Err(busy(format!(
                "Unable to start a move of {} because the range [{}, {}) of it is moving from {} to {}",
                moved.namespace,
                document_quoted(there.min.as_doc()),
                document_quoted(there.max.as_doc()),
                there.from,
                there.to
            )));
        }
        for shard in [&moved.from, &moved.to] {
            let takes_part =
                |other: &&Running| [&other.moved.from, &other.moved.to].contains(&shard);
            let busy_with = running.values().filter(takes_part).count();
            if busy_with >= per_shard {
                return Err(busy(format!(
                    "Unable to start a move of {} because {shard} takes part in {busy_with} already",
                    moved.namespace
                )));
            }
        }
        Ok(Admission::First(self.enter(&mut running, moved)))
    }

    /// Enters a move that was admitted by an earlier primary.
    pub(super) fn register(&self, moved: Move) -> Registered {
        self.enter(&mut self.running.lock(), moved)
    }

    fn enter(&self, running: &mut HashMap<OperationId, Running>, moved: Move) -> Registered {
        let (ended, waiting) = watch::channel(None);
        let moved = Arc::new(moved);
        let place = Running {
            moved: moved.clone(),
            waiting,
        };
        running.insert(moved.id, place);
        Registered {
            moved,
            ended,
            running: self.running.clone(),
        }
    }

    pub(super) fn get(&self, id: OperationId) -> Option<Arc<Move>> {
        self.running.lock().get(&id).map(|run| run.moved.clone())
    }

    pub(super) fn touched_by(&self, claim: &Claim) -> Vec<Arc<Move>> {
        let running = self.running.lock();
        let touched = running.values().filter(|run| match claim {
            Claim::Database(name) => run.moved.namespace.database() == name,
            Claim::Collections(names) => names.contains(&run.moved.namespace),
        });
        touched.map(|run| run.moved.clone()).collect()
    }

    /// Whether a shard takes part in any.
    pub(crate) fn involve(&self, shard: &ShardId) -> bool {
        let running = self.running.lock();
        let mut all = running.values();
        all.any(|run| run.moved.from == *shard || run.moved.to == *shard)
    }

    /// Whether a range that moves would be cut at a point.
    pub(crate) fn would_be_cut(&self, name: &Namespace, point: &KeyBound) -> bool {
        let running = self.running.lock();
        running.values().any(|run| {
            let range = &run.moved.range;
            run.moved.namespace == *name && range.min < *point && *point < range.max
        })
    }
}
