//! The protocol, step by step.

use super::*;
use crate::routing::initial_chunks;
use model::bson::{DocWriter, ObjectId};
use model::ids::Uuid;
use model::range::{KeyBound, KeyRange};
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::{ChunkVersion, Incarnation};
use std::sync::Arc;

const NAME: &str = "fleet.birds";

fn shard(name: &str) -> ShardId {
    ShardId::new(name)
}

fn table(epoch: u8) -> RoutingTable {
    let pattern = DocWriter::new().with("k", 1).finish();
    let pattern = Arc::new(ShardKeyPattern::parse(pattern.as_doc()).unwrap());
    let bounds = [at(0), at(10)];
    let owners = [shard("A"), shard("B"), shard("A")];
    let chunks = initial_chunks(&pattern, &bounds, &owners, ClusterTime::ZERO);
    let incarnation = Incarnation {
        epoch: ObjectId([epoch; 12]),
        began: ClusterTime::new(epoch.into(), 0),
    };
    RoutingTable::full(Uuid([1; 16]), incarnation, pattern, chunks).unwrap()
}

fn at(key: i32) -> KeyBound {
    let pattern = DocWriter::new().with("k", 1).finish();
    let pattern = ShardKeyPattern::parse(pattern.as_doc()).unwrap();
    let bound = DocWriter::new().with("k", key).finish();
    KeyBound::new(&pattern.key_of_bound(bound.as_doc()).unwrap())
}

/// The chunk in the middle goes from B to C.
fn moved(table: &RoutingTable) -> (RoutingTable, Vec<ChunkWithEnd>) {
    let range = KeyRange::new(at(0), at(10));
    let to = if table.find(at(5).as_bytes()).chunk.shard == shard("C") {
        "B"
    } else {
        "C"
    };
    let changes = table
        .moving(&range, &shard(to), ClusterTime::new(9, 0))
        .unwrap();
    (table.with_changes(changes.clone()).unwrap(), changes)
}

fn cache_with(table: &RoutingTable) -> RoutingCache<&'static str> {
    let mut cache = RoutingCache::default();
    assert_eq!(asks(cache.look_up(&NAME, None)), Fetch::Everything);
    let answer = Ok(Fetched::Everything(table.clone()));
    assert_eq!(cache.fetched(&NAME, answer), Outcome::Updated);
    cache
}

fn asks(look_up: LookUp) -> Fetch {
    match look_up {
        LookUp::Ask(fetch) => fetch,
        other => panic!("expected a question, got {other:?}"),
    }
}

fn ready(look_up: LookUp) -> ChunkVersion {
    match look_up {
        LookUp::Ready(placement) => placement.version().chunk,
        other => panic!("expected a placement, got {other:?}"),
    }
}

#[test]
fn one_question_for_all_who_wait() {
    let mut cache: RoutingCache<&str> = RoutingCache::default();
    asks(cache.look_up(&NAME, None));
    assert!(matches!(cache.look_up(&NAME, None), LookUp::Wait));
    assert!(matches!(
        cache.look_up(&NAME, Some(&[shard("A")])),
        LookUp::Wait
    ));
    cache.fetched(&NAME, Ok(Fetched::Unsharded));
    assert_eq!(ready(cache.look_up(&NAME, None)), ChunkVersion::ZERO);
}

#[test]
fn only_requests_for_a_stale_shard_wait() {
    let old = table(1);
    let (new, changes) = moved(&old);
    let mut cache = cache_with(&old);
    cache.stale_shard(&NAME, &shard("B"), None);
    assert_eq!(
        ready(cache.look_up(&NAME, Some(&[shard("A")]))),
        old.version().chunk
    );
    ready(cache.look_up(&NAME, None));
    let fetch = asks(cache.look_up(&NAME, Some(&[shard("A"), shard("B")])));
    assert_eq!(fetch, Fetch::Since(old.version()));
    ready(cache.look_up(&NAME, Some(&[shard("A")])));
    cache.fetched(&NAME, Ok(Fetched::Changes(changes)));
    assert_eq!(
        ready(cache.look_up(&NAME, Some(&[shard("B")]))),
        new.version().chunk
    );
}

#[test]
fn news_that_is_known_already_changes_nothing() {
    let table = table(1);
    let mut cache = cache_with(&table);
    let known = table.shard_version(&shard("A"));
    cache.stale_shard(&NAME, &shard("A"), Some(known));
    ready(cache.look_up(&NAME, Some(&[shard("A")])));
}

/// ⚑ The answer may have been on its way when the shard changed again.
#[test]
fn an_answer_does_not_clear_what_was_marked_after_the_question() {
    let old = table(1);
    let (_, changes) = moved(&old);
    let mut cache = cache_with(&old);
    cache.stale_shard(&NAME, &shard("A"), None);
    asks(cache.look_up(&NAME, Some(&[shard("A")])));
    cache.stale_shard(&NAME, &shard("A"), None);
    cache.fetched(&NAME, Ok(Fetched::Changes(changes)));
    asks(cache.look_up(&NAME, Some(&[shard("A")])));
}

#[test]
fn a_mark_that_asks_for_no_more_than_was_brought_is_taken_back() {
    let old = table(1);
    let (new, changes) = moved(&old);
    let mut cache = cache_with(&old);
    let wanted = new.shard_version(&shard("C"));
    cache.stale_shard(&NAME, &shard("C"), Some(wanted));
    asks(cache.look_up(&NAME, Some(&[shard("C")])));
    cache.stale_shard(&NAME, &shard("C"), Some(wanted));
    cache.fetched(&NAME, Ok(Fetched::Changes(changes)));
    ready(cache.look_up(&NAME, Some(&[shard("C")])));
}

/// ⚑ Its version is zero, which is a lower number than the router knows. Taken for old
/// news, the router would send to it for ever.
#[test]
fn a_shard_that_gave_away_its_last_chunk_is_news() {
    let old = table(1);
    let (new, changes) = moved(&old);
    let mut cache = cache_with(&old);
    let wanted = new.shard_version(&shard("B"));
    assert_eq!(wanted.chunk, ChunkVersion::ZERO);
    cache.stale_shard(&NAME, &shard("B"), Some(wanted));
    asks(cache.look_up(&NAME, Some(&[shard("B")])));
    cache.fetched(&NAME, Ok(Fetched::Changes(changes)));
    ready(cache.look_up(&NAME, Some(&[shard("B")])));
    cache.stale_shard(&NAME, &shard("B"), Some(wanted));
    ready(cache.look_up(&NAME, Some(&[shard("B")])));
}

#[test]
fn another_incarnation_makes_everything_stale() {
    let mut cache = cache_with(&table(1));
    let other = table(2);
    cache.stale_shard(&NAME, &shard("A"), Some(other.shard_version(&shard("A"))));
    asks(cache.look_up(&NAME, None));
    cache.fetched(&NAME, Ok(Fetched::Everything(other.clone())));
    match cache.look_up(&NAME, None) {
        LookUp::Ready(placement) => assert_eq!(placement.version(), other.version()),
        unexpected => panic!("{unexpected:?}"),
    }
}

#[test]
fn failures_are_tried_twice_more() {
    let old = table(1);
    let mut cache = cache_with(&old);
    cache.stale(&NAME);
    let fetch = asks(cache.look_up(&NAME, None));
    let failed = || Err("no answer".to_owned());
    assert_eq!(cache.fetched(&NAME, failed()), Outcome::Ask(fetch));
    assert!(matches!(cache.look_up(&NAME, None), LookUp::Wait));
    assert_eq!(cache.fetched(&NAME, failed()), Outcome::Ask(fetch));
    let gave_up = Outcome::GaveUp("no answer".to_owned());
    assert_eq!(cache.fetched(&NAME, failed()), gave_up);
    // The mark stays: the next one asks again.
    asks(cache.look_up(&NAME, None));
}

#[test]
fn changes_that_leave_a_hole_lead_to_a_full_fetch() {
    let old = table(1);
    let (new, _) = moved(&old);
    let mut cache = cache_with(&old);
    cache.stale(&NAME);
    asks(cache.look_up(&NAME, None));
    let piece = new.splitting(&[at(5)]).unwrap().remove(0);
    let outcome = cache.fetched(&NAME, Ok(Fetched::Changes(vec![piece])));
    assert_eq!(outcome, Outcome::Ask(Fetch::Everything));
    cache.fetched(&NAME, Ok(Fetched::Everything(new.clone())));
    assert_eq!(ready(cache.look_up(&NAME, None)), new.version().chunk);
}

/// A member of the source that lags behind must not take knowledge away.
#[test]
fn an_older_answer_counts_as_a_failure() {
    let old = table(1);
    let (new, _) = moved(&old);
    let mut cache = cache_with(&new);
    cache.stale(&NAME);
    asks(cache.look_up(&NAME, None));
    let outcome = cache.fetched(&NAME, Ok(Fetched::Everything(old)));
    assert_eq!(outcome, Outcome::Ask(Fetch::Since(new.version())));
    cache.fetched(&NAME, Ok(Fetched::Everything(new.clone())));
    assert_eq!(ready(cache.look_up(&NAME, None)), new.version().chunk);
}

#[test]
fn a_dropped_collection_is_not_sharded_any_more() {
    let mut cache = cache_with(&table(1));
    let dropped = Some(PlacementVersion::UNSHARDED);
    cache.stale_shard(&NAME, &shard("A"), dropped);
    asks(cache.look_up(&NAME, None));
    cache.fetched(&NAME, Ok(Fetched::Unsharded));
    assert_eq!(ready(cache.look_up(&NAME, None)), ChunkVersion::ZERO);
}

#[test]
fn what_is_forgotten_is_asked_for_again() {
    let old = table(1);
    let mut cache = cache_with(&old);
    cache.forget(&NAME);
    assert_eq!(asks(cache.look_up(&NAME, None)), Fetch::Everything);
    // Forgotten while being fetched: the answer is not trusted.
    cache.forget(&NAME);
    cache.fetched(&NAME, Ok(Fetched::Everything(old.clone())));
    assert_eq!(
        asks(cache.look_up(&NAME, None)),
        Fetch::Since(old.version())
    );
}
