//! Which moves run: who joins, who is refused, who is to be ended.
//!
//! It lives in memory and is complete at any time: a move is here before its state document is written, and
//! a new primary enters what it finds stored before it serves.
//!
//! **A fair turn.** A move whose donor is about to finish asks which version of options and indexes stands, and
//! waits while they change. Operations on them that follow each other without a gap would put it off for ever.
//! So it is counted how often a move was told of another version than before: from [`PUT_OFF_ENOUGH`] on, the
//! next operation waits until the move has ended, [`TURN`] at most; then it is the operations' turn again.

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
use std::time::Duration;
use tokio::sync::watch;

/// Versions of options and indexes that a move has to wait for until those who change them wait for the move. An
/// operation makes two: one that does not stand yet, and one that does.
const PUT_OFF_ENOUGH: u32 = 4;
/// How long they wait. A recipient may have to build an index first.
const TURN: Duration = Duration::from_secs(30);

/// How a move ended, once it has.
pub(crate) type Waiting = watch::Receiver<Option<Result<DocBuf, Fault>>>;

#[derive(Default)]
pub(crate) struct Moves {
    running: Arc<Mutex<HashMap<OperationId, Running>>>,
}

struct Running {
    moved: Arc<Move>,
    waiting: Waiting,
    /// The version of options and indexes that its donor was told last, when it was about to finish.
    told: Option<u64>,
    /// How often that was another one than before.
    put_off: u32,
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
            told: None,
            put_off: 0,
        };
        running.insert(moved.id, place);
        Registered {
            moved,
            ended,
            running: self.running.clone(),
        }
    }

    /// A move's donor is about to finish, and is told which version of options and indexes there is.
    pub(super) fn is_told(&self, id: OperationId, version: u64) {
        if let Some(run) = self.running.lock().get_mut(&id) {
            let is_news = run.told.is_some_and(|told| told != version);
            run.put_off += u32::from(is_news);
            run.told = Some(version);
        }
    }

    /// Waits, for a limited time, for moves of a collection that had to wait often enough. ⚑ For who is about to
    /// change options or indexes, and has not begun.
    pub(crate) async fn give_way(&self, name: &Namespace) {
        let give_way = async {
            while let Some(mut waiting) = self.put_off_enough(name) {
                // Its sender is gone without a word when the tenure is over.
                if waiting.wait_for(Option::is_some).await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(TURN, give_way).await.is_err() {
            let mut running = self.running.lock();
            for run in running.values_mut() {
                if run.moved.namespace == *name {
                    run.put_off = 0;
                }
            }
        }
    }

    fn put_off_enough(&self, name: &Namespace) -> Option<Waiting> {
        let running = self.running.lock();
        let mut of_it = running.values().filter(|run| run.moved.namespace == *name);
        let found = of_it.find(|run| run.put_off >= PUT_OFF_ENOUGH);
        found.map(|run| run.waiting.clone())
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

    /// From where to where ranges move.
    pub(crate) fn ends(&self) -> Vec<(ShardId, ShardId)> {
        let running = self.running.lock();
        let ends = |run: &Running| (run.moved.from.clone(), run.moved.to.clone());
        running.values().map(ends).collect()
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
