//! Cluster-wide operations on one namespace or one database run one after the other.
//!
//! ```text
//!   an operation on a collection    database, shared     then the collection, alone
//!   an operation on a database      database, alone
//! ```
//!
//! Whoever waits is woken by the one before, in the order of arrival; nobody polls. Claims are taken
//! in one order (databases by name, then collections by name), so two operations never wait for each
//! other. Nobody waits without an end ([`Patience`]): an operation that moves a whole database may take
//! hours. Who gives up has done nothing. The queue lives in memory: what an operation has done is in its state document, and a new
//! primary queues unfinished operations first (`docs/decisions`, on locks without pings).

use crate::error::Fault;
use model::bson::Doc;
use model::number::Number;
use model::{Code, Namespace};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::time::{Instant, timeout_at};

/// How long somebody without a limit of its own waits for its turn, as in MongoDB.
const LONGEST_WAIT: Duration = Duration::from_secs(5 * 60);

/// Until when somebody waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Until it gets its turn.
    turn: Instant,
    /// Until it is told how it ended: what has begun goes on without it.
    end: Option<Instant>,
}

impl Patience {
    /// Of who sent a command: its `maxTimeMS`, if it has one.
    pub(crate) fn of(command: Doc<'_>) -> Result<Self, Fault> {
        let limit = match command.get("maxTimeMS") {
            None => return Ok(Self::usual()),
            Some(value) => Number::of(value).and_then(Number::to_i64_exact),
        };
        match limit.map(u32::try_from) {
            Some(Ok(0)) => Ok(Self::usual()),
            Some(Ok(limit_ms)) => {
                let until = Instant::now() + Duration::from_millis(u64::from(limit_ms));
                Ok(Self {
                    turn: until,
                    end: Some(until),
                })
            }
            Some(Err(_)) | None => Err(Fault::new(
                Code::BAD_VALUE,
                "maxTimeMS must be a whole number of milliseconds, and not negative",
            )),
        }
    }

    /// Without a limit of its own.
    pub(crate) fn usual() -> Self {
        Self {
            turn: Instant::now() + LONGEST_WAIT,
            end: None,
        }
    }

    /// Waits for the end of something that runs by itself.
    pub(crate) async fn see<T>(
        self,
        ended: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        match self.end {
            None => ended.await,
            Some(until) => match timeout_at(until, ended).await {
                Ok(ended) => ended,
                Err(_) => Err(expired()),
            },
        }
    }

    fn over(self, claim: &Claim) -> Fault {
        match self.end {
            Some(_) => expired(),
            None => Fault::new(
                Code::LOCK_BUSY,
                format!(
                    "other operations have {} for themselves, and did not end in time",
                    claim.names().join(", ")
                ),
            ),
        }
    }
}

fn expired() -> Fault {
    Fault::new(Code::MAX_TIME_MS_EXPIRED, "operation exceeded time limit")
}

/// What an operation needs for itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    Database(String),
    Collections(BTreeSet<Namespace>),
}

impl Claim {
    pub(crate) fn one(name: &Namespace) -> Claim {
        Claim::Collections(BTreeSet::from([name.clone()]))
    }

    /// The names of the lock documents.
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            Claim::Database(name) => vec![name.clone()],
            Claim::Collections(names) => names.iter().map(|name| name.to_string()).collect(),
        }
    }
}

#[derive(Default)]
pub(crate) struct Queue {
    places: Mutex<HashMap<String, Arc<RwLock<()>>>>,
    /// Names whose routing is about to change: who asks for it waits.
    changing: Mutex<HashMap<String, usize>>,
    changed: Notify,
}

/// A claim that holds until it is dropped.
pub(crate) struct Turn {
    _shared: Vec<OwnedRwLockReadGuard<()>>,
    _alone: Vec<OwnedRwLockWriteGuard<()>>,
}

impl Queue {
    /// The turn of who does not wait longer than that.
    pub(crate) async fn enter_within(
        &self,
        claim: &Claim,
        patience: Patience,
    ) -> Result<Turn, Fault> {
        let entering = timeout_at(patience.turn, self.enter(claim));
        entering.await.map_err(|_| patience.over(claim))
    }

    /// The turn of who was here before all others, and waits for none of them.
    pub(crate) async fn enter(&self, claim: &Claim) -> Turn {
        let (mut shared, mut alone) = (Vec::new(), Vec::new());
        match claim {
            Claim::Database(name) => alone.push(self.place(name).write_owned().await),
            Claim::Collections(names) => {
                let databases: BTreeSet<&str> = names.iter().map(Namespace::database).collect();
                for name in databases {
                    shared.push(self.place(name).read_owned().await);
                }
                for name in names {
                    alone.push(self.place(name.as_str()).write_owned().await);
                }
            }
        }
        Turn {
            _shared: shared,
            _alone: alone,
        }
    }

    fn place(&self, name: &str) -> Arc<RwLock<()>> {
        let mut places = self.places.lock();
        if let Some(place) = places.get(name) {
            return place.clone();
        }
        // Names come and go: those that nobody holds or waits for need no place.
        places.retain(|_, place| Arc::strong_count(place) > 1);
        let place = Arc::new(RwLock::new(()));
        places.insert(name.to_owned(), place.clone());
        place
    }

    /// Says that routing of these names is about to change, until the result is dropped.
    pub(crate) fn changing(self: &Arc<Self>, names: Vec<String>) -> Changing {
        let mut changing = self.changing.lock();
        for name in &names {
            *changing.entry(name.clone()).or_default() += 1;
        }
        Changing {
            queue: self.clone(),
            names,
        }
    }

    /// Completes when none of these names is about to change.
    pub(crate) async fn settled(&self, names: &[&str]) {
        loop {
            let mut signal = std::pin::pin!(self.changed.notified());
            signal.as_mut().enable();
            let busy = {
                let changing = self.changing.lock();
                names.iter().any(|name| changing.contains_key(*name))
            };
            if !busy {
                return;
            }
            signal.await;
        }
    }
}

pub(crate) struct Changing {
    queue: Arc<Queue>,
    names: Vec<String>,
}

impl Drop for Changing {
    fn drop(&mut self) {
        let mut changing = self.queue.changing.lock();
        for name in &self.names {
            if let Some(count) = changing.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    changing.remove(name);
                }
            }
        }
        drop(changing);
        self.queue.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Claim {
        let names = names.iter().map(|name| Namespace::parse(name).unwrap());
        Claim::Collections(names.collect())
    }

    #[tokio::test]
    async fn claims_exclude_what_they_touch() {
        let queue = Queue::default();
        let waits = |claim: Claim| {
            let queue = &queue;
            async move {
                let entering = queue.enter(&claim);
                let moment = Duration::from_millis(20);
                tokio::time::timeout(moment, entering).await.is_err()
            }
        };
        let turn = queue.enter(&of(&["a.x"])).await;
        assert!(waits(of(&["a.x"])).await);
        assert!(waits(Claim::Database("a".to_owned())).await);
        assert!(!waits(of(&["a.y"])).await);
        assert!(!waits(of(&["b.x"])).await);
        assert!(!waits(Claim::Database("b".to_owned())).await);
        drop(turn);
        assert!(!waits(of(&["a.x"])).await);
        let turn = queue.enter(&Claim::Database("a".to_owned())).await;
        assert!(waits(of(&["a.y", "b.x"])).await);
        drop(turn);
        queue.enter(&of(&["c.z"])).await;
        assert!(queue.places.lock().len() <= 2, "places are given back");
    }

    /// ⚑ A database that moves for hours is no reason to wait for hours.
    #[tokio::test]
    async fn nobody_waits_for_a_turn_without_an_end() {
        let queue = Queue::default();
        let claim = of(&["a.x"]);
        let limited = |limit_ms: i32| {
            let command = model::bson::DocWriter::new().with("maxTimeMS", limit_ms);
            Patience::of(command.finish().as_doc())
        };
        assert!(limited(-1).is_err());
        let began = Instant::now();
        let usual = limited(0).unwrap();
        assert!(usual.turn <= Instant::now() + LONGEST_WAIT && usual.turn >= began + LONGEST_WAIT);
        let turn = queue.enter(&Claim::Database("a".to_owned())).await;
        let code = |entered: Result<Turn, Fault>| entered.err().and_then(|fault| fault.code());
        let entered = queue.enter_within(&claim, limited(1).unwrap()).await;
        assert_eq!(code(entered), Some(Code::MAX_TIME_MS_EXPIRED));
        let over = Patience {
            turn: Instant::now(),
            end: None,
        };
        let entered = queue.enter_within(&claim, over).await;
        assert_eq!(code(entered), Some(Code::LOCK_BUSY));
        // Who gave up is in nobody's way.
        drop(turn);
        let database = Claim::Database("a".to_owned());
        assert!(queue.enter_within(&database, usual).await.is_ok());
    }

    #[tokio::test]
    async fn who_asks_for_routing_waits_for_changes() {
        let queue = Arc::new(Queue::default());
        let one = queue.changing(vec!["a.x".to_owned()]);
        let two = queue.changing(vec!["a.x".to_owned(), "a".to_owned()]);
        queue.settled(&["b.x", "b"]).await;
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { queue.settled(&["a.x", "a"]).await }
        });
        tokio::task::yield_now().await;
        drop(one);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(two);
        waiting.await.unwrap();
    }
}
