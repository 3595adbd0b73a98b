//! Writers make way for a move that cannot follow them.
//!
//! A recipient that has every document follows the donor's log, and so does the digest of the donor. Following takes
//! about as long as writing: on busy processors, several writers of large documents stay ahead of it for as long as
//! they like. Without help such a move is given up after a minute, and the range that keeps a shard busy is the one
//! that cannot leave it.
//!
//! ```text
//!   everything copied ─► comes to the end of the log in time (`donor/catching_up.rs`) ──► writes are blocked, as ever
//!                                  │ no
//!                                  ▼
//!      who has written to the range gets its answer later: HELD_AT_FIRST at most, after each second twice as late,
//!      HELD_MAX at most ─► caught up ─► nobody is held any more
//! ```
//!
//! So a connection is slowed down to one command in each of these times, however much that command writes. With very
//! many connections this may still be too much; then the move is given up, as it would have been.
//!
//! ⚑ Who is held has neither session nor gate nor latches: its write is done and applied. Moves that bring history of
//! the same session could wait for each other in a circle otherwise.
//! ⚑ It does have a connection, and routers have a bounded number of them to this shard, for everybody. So only
//! [`HELD_AT_ONCE_MAX`] are held at once, and nobody for so long that a router takes this member for lost.
//! ⚑ Nobody is held for the sake of a recipient that cannot be reached, or does not answer: it follows nothing.
//! ⚑ Who is held is answered in half of what is left of its time limit: no answer changes because of this. (A router
//! may send several parts of one command one after the other, and each of them may be held.)
//!
//! This is a matter of pace alone, kept in memory: a primary that takes over begins anew. Held are commands that have
//! written records which may lie in the range: all of the collection's here, where it is not ordered by its shard
//! key. Left out: what the server writes by itself (TTL, what the config server asks for), and parts of a move of a
//! database's primary, which wait for each other.

use super::stretch::Stretch;
use crate::operation::Operation;
use model::ids::CollectionId;
use model::key::RecordKey;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};

/// Nobody makes way for somebody who does not answer for so long.
const SILENCE: Duration = Duration::from_millis(500);
/// How late an answer comes at most, when that begins.
const HELD_AT_FIRST: Duration = Duration::from_millis(100);
const DOUBLES_AFTER: Duration = Duration::from_secs(1);
/// A router asks what became of a member that does not answer for two seconds.
const HELD_MAX: Duration = Duration::from_secs(1);
/// Half of the connections that a router may have to a member.
const HELD_AT_ONCE_MAX: usize = 128;

/// The moves of this donor that ask writers to make way.
pub(crate) struct MakingWay {
    /// How many there are, for writers who have nothing to do with any of them.
    asking: AtomicUsize,
    requests: Mutex<Vec<Arc<WayRequest>>>,
    /// How many commands were held.
    held: AtomicU64,
    places: Semaphore,
}

impl Default for MakingWay {
    fn default() -> Self {
        Self {
            asking: AtomicUsize::default(),
            requests: Mutex::default(),
            held: AtomicU64::default(),
            places: Semaphore::new(HELD_AT_ONCE_MAX),
        }
    }
}

/// What one move asks for.
pub(crate) struct WayRequest {
    stretch: Stretch,
    since: Instant,
    is_over: watch::Sender<bool>,
}

/// One move, which may ask or not.
pub(super) struct Asker {
    all: Arc<MakingWay>,
    /// When it asked first: who rests meanwhile goes on where it was.
    since: Option<Instant>,
    request: Option<Arc<WayRequest>>,
}

impl Asker {
    pub(super) fn new(all: &Arc<MakingWay>) -> Self {
        Self {
            all: all.clone(),
            since: None,
            request: None,
        }
    }

    pub(super) fn is_asking(&self) -> bool {
        self.request.is_some()
    }

    /// From now on those who write to a stretch make way.
    pub(super) fn ask(&mut self, stretch: &Stretch) {
        if self.is_asking() {
            return;
        }
        let request = Arc::new(WayRequest {
            stretch: stretch.clone(),
            since: *self.since.get_or_insert_with(Instant::now),
            is_over: watch::Sender::new(false),
        });
        self.request = Some(request.clone());
        let mut requests = self.all.requests.lock();
        requests.push(request);
        self.all.asking.store(requests.len(), Ordering::Release);
    }

    /// Waits for an answer. Nobody makes way while it does not come.
    pub(super) async fn unless_silent<T>(&mut self, answer: impl Future<Output = T>) -> T {
        let mut answer = std::pin::pin!(answer);
        tokio::select! {
            biased;
            answered = &mut answer => answered,
            () = tokio::time::sleep(SILENCE) => {
                self.rest();
                answer.await
            }
        }
    }

    /// The next request is a new one.
    pub(super) fn end(&mut self) {
        self.rest();
        self.since = None;
    }

    /// Nobody is held any more, for the time being.
    pub(super) fn rest(&mut self) {
        let Some(request) = self.request.take() else {
            return;
        };
        let mut requests = self.all.requests.lock();
        requests.retain(|other| !Arc::ptr_eq(other, &request));
        self.all.asking.store(requests.len(), Ordering::Release);
        drop(requests);
        request.is_over.send_replace(true);
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.rest();
    }
}

/// How late an answer comes at most, if writers have been asked for so long, and so much of its time is left.
fn held_for(asked: Duration, left: Option<Duration>) -> Duration {
    let doublings = asked.as_millis() / DOUBLES_AFTER.as_millis();
    let doublings = u32::try_from(doublings.min(16)).expect("it is small");
    let most = (HELD_AT_FIRST * (1 << doublings)).min(HELD_MAX);
    left.map_or(most, |left| most.min(left / 2))
}

impl MakingWay {
    /// Whether anybody asks.
    pub(crate) fn is_asked(&self) -> bool {
        self.asking.load(Ordering::Acquire) > 0
    }

    /// How many commands were held.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// The request that concerns a write to these records.
    pub(crate) fn request_for(
        &self,
        collection: CollectionId,
        keys: &[RecordKey],
    ) -> Option<Arc<WayRequest>> {
        let requests = self.requests.lock();
        let concerns = |request: &&Arc<WayRequest>| {
            let stretch = &request.stretch;
            let mut keys = keys.iter();
            stretch.collection == collection
                && keys.any(|key| stretch.may_contain_key(key.as_bytes()))
        };
        requests.iter().find(concerns).cloned()
    }

    /// Waits while the answer to a write is held.
    pub(crate) async fn hold(&self, request: &WayRequest, operation: &Operation) {
        let mut is_over = request.is_over.subscribe();
        let Ok(_place) = self.places.try_acquire() else {
            return;
        };
        if *is_over.borrow_and_update() {
            return;
        }
        self.held.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let left = operation.deadline();
        let left = left.map(|deadline| deadline.saturating_duration_since(now));
        tokio::select! {
            _ = is_over.wait_for(|is_over| *is_over) => {}
            () = tokio::time::sleep(held_for(request.since.elapsed(), left)) => {}
            () = operation.interrupted() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestShard;
    use model::Namespace;
    use model::bson::DocWriter;
    use model::range::KeyRange;
    use model::shard_key::ShardKeyPattern;

    /// ⚑ Who has nothing to do with the range does not wait for it.
    #[tokio::test(flavor = "multi_thread")]
    async fn only_writers_of_the_range_are_held() {
        let shard = TestShard::open().await;
        shard
            .insert(&["{_id: 1}".to_owned(), "{_id: 7}".to_owned()])
            .await;
        let namespace = Namespace::new("test", "c").expect("it is valid");
        let collection = shard.shard.catalog.get(&namespace).expect("it is there");
        let pattern = DocWriter::new().with("_id", 1).finish();
        let pattern = ShardKeyPattern::parse(pattern.as_doc()).expect("a pattern");
        let bound = |id: i32| {
            let bound = DocWriter::new().with("_id", id).finish();
            pattern.bound(bound.as_doc()).expect("a bound")
        };
        let range = KeyRange::new(bound(5), bound(9));
        let making_way = &shard.shard.migrations.making_way;
        let mut asker = Asker::new(making_way);
        asker.ask(&Stretch::new(&collection, &pattern, &range));
        let update = |id: i32| {
            format!(
                "{{update: 'c', updates: [{{q: {{_id: {id}}}, u: {{$inc: {{n: 1}}}}}}]}} => {{n: 1, nModified: 1}}"
            )
        };
        for (id, held) in [(1, 0), (7, 1), (1, 1)] {
            shard.check(&update(id)).await;
            assert_eq!(making_way.held(), held, "_id {id}");
        }
        drop(asker);
        assert!(!making_way.is_asked());
        shard.check(&update(7)).await;
        assert_eq!(making_way.held(), 1);
    }

    #[test]
    fn answers_come_later_and_later_up_to_a_bound() {
        let check = |asked: u64, left: Option<u64>, expected: u128| {
            let left = left.map(Duration::from_millis);
            let held = held_for(Duration::from_millis(asked), left).as_millis();
            assert_eq!(held, expected, "asked for {asked} ms, {left:?} left");
        };
        for (asked, expected) in [
            (0, 100),
            (999, 100),
            (1_000, 200),
            (3_500, 800),
            (4_000, 1_000),
        ] {
            check(asked, None, expected);
            check(asked, Some(60_000), expected);
        }
        check(u64::MAX / 2, None, 1_000);
        // ⚑ Whose time ends sooner is answered in half of it.
        check(10_000, Some(1_000), 500);
        check(0, Some(20), 10);
        check(0, Some(0), 0);
    }
}
