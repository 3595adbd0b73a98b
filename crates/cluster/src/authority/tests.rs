//! Decisions step by step, and any interleaving of commits, settlings and retries.

use super::*;
use crate::routing::initial_chunks;
use model::bson::{DocWriter, ObjectId};
use model::shard_key::ShardKeyPattern;
use model::version::ChunkVersion;
use proptest::prelude::*;
use std::sync::Arc;

const NAME: &str = "fleet.birds";

fn shard(name: &str) -> ShardId {
    ShardId::new(name)
}

fn operation(number: u8) -> OperationId {
    Uuid([number; 16])
}

fn at(key: i32) -> KeyBound {
    let pattern = DocWriter::new().with("k", 1).finish();
    let pattern = ShardKeyPattern::parse(pattern.as_doc()).unwrap();
    let bound = DocWriter::new().with("k", key).finish();
    KeyBound::new(&pattern.key_of_bound(bound.as_doc()).unwrap())
}

fn incarnation(epoch: u8) -> Incarnation {
    Incarnation {
        epoch: ObjectId([epoch; 12]),
        began: ClusterTime::new(epoch.into(), 0),
    }
}

fn table(epoch: u8) -> RoutingTable {
    let pattern = DocWriter::new().with("k", 1).finish();
    let pattern = Arc::new(ShardKeyPattern::parse(pattern.as_doc()).unwrap());
    let chunks = initial_chunks(&pattern, &[at(0), at(10)], &[shard("A")], ClusterTime::ZERO);
    RoutingTable::full(Uuid([9; 16]), incarnation(epoch), pattern, chunks).unwrap()
}

fn authority() -> Authority<&'static str> {
    let mut authority = Authority::default();
    for name in ["A", "B"] {
        authority.set_shard(shard(name), true);
    }
    write(&mut authority, 200, Request::Shard { table: table(1) }).unwrap();
    authority
}

fn expected() -> Expected {
    Expected {
        incarnation: incarnation(1),
        catalog: None,
    }
}

fn moving(min: i32, max: i32, from: &str, to: &str) -> Request {
    Request::Move {
        expected: expected(),
        range: KeyRange::new(at(min), at(max)),
        from: shard(from),
        to: shard(to),
        history: History::default(),
    }
}

/// Decides and applies at once; the outcome.
fn write(
    authority: &mut Authority<&'static str>,
    number: u8,
    request: Request,
) -> Result<Outcome, Refusal> {
    let now = ClusterTime::new(100, 0);
    match authority.decide(operation(number), &NAME, request, now)? {
        Answer::Decided(outcome) => Ok(outcome),
        Answer::Write(decision) => {
            let outcome = decision.outcome;
            authority.apply(decision).unwrap();
            Ok(outcome)
        }
    }
}

fn owner(authority: &Authority<&'static str>, key: i32) -> String {
    let table = authority.table(&NAME).unwrap();
    table.find(at(key).as_bytes()).chunk.shard.to_string()
}

#[test]
fn a_commit_that_arrives_twice_changes_nothing_more() {
    let mut authority = authority();
    let first = write(&mut authority, 1, moving(0, 10, "A", "B")).unwrap();
    assert_eq!(owner(&authority, 5), "B");
    let version = authority.table(&NAME).unwrap().version();
    let since = ClusterTime::new(100, 0);
    assert_eq!(first, Outcome::Committed { version, since });
    // Meanwhile it moved back; the late copy of the first message must not undo that.
    write(&mut authority, 2, moving(0, 10, "B", "A")).unwrap();
    let again = write(&mut authority, 1, moving(0, 10, "A", "B")).unwrap();
    assert_eq!(again, first);
    assert_eq!(owner(&authority, 5), "A");
}

/// ⚑ Who was told "aborted" goes on serving the range: a late commit would give it to two.
#[test]
fn a_commit_after_settling_is_refused() {
    let mut authority = authority();
    let Answer::Write(decision) = authority.settle(operation(1)) else {
        panic!("nothing was decided before");
    };
    assert_eq!(decision.outcome, Outcome::Aborted);
    authority.apply(decision).unwrap();
    let late = write(&mut authority, 1, moving(0, 10, "A", "B"));
    assert_eq!(late, Err(Refusal::Aborted));
    assert_eq!(owner(&authority, 5), "A");
}

#[test]
fn settling_tells_what_was_committed() {
    let mut authority = authority();
    let committed = write(&mut authority, 1, moving(0, 10, "A", "B")).unwrap();
    match authority.settle(operation(1)) {
        Answer::Decided(outcome) => assert_eq!(outcome, committed),
        Answer::Write(decision) => panic!("decided already, not {decision:?}"),
    }
}

#[test]
fn what_no_longer_holds_is_refused() {
    let mut authority = authority();
    let mut check = |request: Request, expected: Refusal| {
        assert_eq!(write(&mut authority, 7, request).unwrap_err(), expected);
        assert_eq!(authority.outcome(operation(7)), None, "nothing is written");
    };
    check(moving(0, 10, "B", "A"), Refusal::NotTheOwner(shard("B")));
    check(moving(0, 10, "A", "C"), Refusal::NoSuchShard(shard("C")));
    check(
        Request::Move {
            expected: Expected {
                incarnation: incarnation(2),
                catalog: None,
            },
            range: KeyRange::new(at(0), at(10)),
            from: shard("A"),
            to: shard("B"),
            history: History::default(),
        },
        Refusal::OtherIncarnation,
    );
    check(Request::Shard { table: table(3) }, Refusal::AlreadySharded);
    check(
        Request::Split {
            expected: expected(),
            points: vec![at(10)],
        },
        Refusal::Change(ChangeError::BadSplitPoint(at(10))),
    );
}

/// ⚑ An index that was created while a range was copied is not on the recipient: the same move is
/// decided once it has caught up, and not while indexes change.
#[test]
fn a_changed_catalog_puts_a_move_off() {
    let mut authority = authority();
    let request = |catalog: u64| Request::Move {
        expected: Expected {
            incarnation: incarnation(1),
            catalog: Some(catalog),
        },
        range: KeyRange::new(at(0), at(10)),
        from: shard("A"),
        to: shard("B"),
        history: History::default(),
    };
    let changes = [(1, true), (2, false), (3, true), (4, false)];
    for (version, changes) in changes {
        authority.set_catalog(&NAME, Catalog { version, changes });
        for known in 0..version {
            let refused = write(&mut authority, 1, request(known));
            assert_eq!(refused, Err(Refusal::CatalogChanged { now: version }));
        }
        if changes {
            let refused = write(&mut authority, 1, request(version));
            let now = version + 1;
            assert_eq!(refused, Err(Refusal::CatalogChanged { now }));
        }
        assert_eq!(authority.outcome(Uuid([1; 16])), None);
    }
    let decided = write(&mut authority, 1, request(4)).unwrap();
    // From now on it is decided, whatever version it is asked for with.
    let again = write(&mut authority, 1, request(0)).unwrap();
    assert_eq!(again, decided);
}

#[test]
fn a_shard_that_is_being_emptied_gets_nothing() {
    let mut authority = authority();
    authority.set_shard(shard("B"), false);
    let refused = write(&mut authority, 1, moving(0, 10, "A", "B"));
    assert_eq!(refused, Err(Refusal::NoSuchShard(shard("B"))));
}

#[test]
fn dropped_collections_can_be_sharded_again() {
    let mut authority = authority();
    let dropped = Request::Drop {
        expected: expected(),
    };
    write(&mut authority, 1, dropped).unwrap();
    assert!(authority.table(&NAME).is_none());
    let refused = write(&mut authority, 2, moving(0, 10, "A", "B"));
    assert_eq!(refused, Err(Refusal::NotSharded));
    let version = write(&mut authority, 3, Request::Shard { table: table(2) }).unwrap();
    let Outcome::Committed { version, .. } = version else {
        panic!("{version:?}");
    };
    assert_eq!(version.chunk, ChunkVersion::new(1, 2));
}

/// A refined key begins another life; what the collection's catalog went through stays.
#[test]
fn refining_keeps_chunks_and_catalog() {
    let mut authority = authority();
    let catalog = Catalog {
        version: 1,
        changes: false,
    };
    authority.set_catalog(&NAME, catalog);
    let longer = DocWriter::new().with("k", 1).with("l", 1).finish();
    let longer = Arc::new(ShardKeyPattern::parse(longer.as_doc()).unwrap());
    let refine = |pattern: &Arc<ShardKeyPattern>| Request::Refine {
        expected: expected(),
        pattern: pattern.clone(),
        incarnation: incarnation(2),
    };
    let before = authority.table(&NAME).unwrap().clone();
    let same = write(&mut authority, 1, refine(&before.pattern));
    assert_eq!(same, Err(Refusal::Change(ChangeError::NotAnExtension)));
    let refined = write(&mut authority, 2, refine(&longer)).unwrap();
    let Outcome::Committed { version, .. } = refined else {
        panic!("{refined:?}");
    };
    assert_eq!(version.incarnation, incarnation(2));
    assert_eq!(version.chunk, before.version().chunk);
    let after = authority.table(&NAME).unwrap();
    assert_eq!(after.chunk_count(), before.chunk_count());
    assert_eq!(authority.catalog(&NAME), Some(catalog));
    // Who still believes in the old life is refused.
    let refused = write(&mut authority, 3, moving(0, 10, "A", "B"));
    assert_eq!(refused, Err(Refusal::OtherIncarnation));
}

#[test]
fn databases_begin_on_usable_shards() {
    let mut authority = authority();
    authority.set_shard(shard("B"), false);
    let now = ClusterTime::new(7, 0);
    for name in ["B", "C"] {
        let refused = authority.new_database(&shard(name), Uuid([1; 16]), now);
        assert_eq!(refused, Err(Refusal::NoSuchShard(shard(name))));
    }
    let placement = authority
        .new_database(&shard("A"), Uuid([1; 16]), now)
        .unwrap();
    assert_eq!(placement.version.last_modified, 1);
    authority.set_database("fleet", Some(placement.clone()));
    assert_eq!(authority.database("fleet"), Some(&placement));
    authority.set_database("fleet", None);
    assert_eq!(authority.database("fleet"), None);
}

#[derive(Clone, Debug)]
enum Message {
    Move { operation: u8, min: i32, to: bool },
    Settle { operation: u8 },
}

fn messages() -> impl Strategy<Value = Vec<Message>> {
    let message = prop_oneof![
        (0u8..6, 0i32..2, any::<bool>()).prop_map(|(operation, slot, to)| Message::Move {
            operation,
            min: slot * 5,
            to
        }),
        (0u8..6).prop_map(|operation| Message::Settle { operation }),
    ];
    prop::collection::vec(message, 1..60)
}

proptest! {
    /// Whatever arrives in whatever order and however often: an outcome that was told
    /// once is told for ever, and only committed moves have moved anything.
    #[test]
    fn outcomes_are_final(messages in messages()) {
        let mut authority = authority();
        let mut told: HashMap<u8, Outcome> = HashMap::new();
        for message in messages {
            let before = authority.table(&NAME).unwrap().version();
            let (number, outcome) = match message {
                Message::Move { operation, min, to } => {
                    let (from, to) = if to { ("A", "B") } else { ("B", "A") };
                    let request = moving(min, min + 5, from, to);
                    (operation, write(&mut authority, operation, request))
                }
                Message::Settle { operation: number } => {
                    let outcome = match authority.settle(operation(number)) {
                        Answer::Decided(outcome) => outcome,
                        Answer::Write(decision) => {
                            let outcome = decision.outcome;
                            authority.apply(decision).unwrap();
                            outcome
                        }
                    };
                    (number, Ok(outcome))
                }
            };
            let after = authority.table(&NAME).unwrap().version();
            match outcome {
                Ok(outcome) => {
                    if let Some(earlier) = told.insert(number, outcome) {
                        prop_assert_eq!(earlier, outcome);
                        prop_assert_eq!(before, after, "told before: nothing may change");
                    }
                    if outcome == Outcome::Aborted {
                        prop_assert_eq!(before, after);
                    }
                }
                Err(refusal) => {
                    prop_assert_eq!(before, after, "{}", refusal);
                    let committed = matches!(told.get(&number), Some(Outcome::Committed { .. }));
                    prop_assert!(!committed, "a committed move was refused: {refusal}");
                }
            }
        }
    }
}

#[test]
fn a_primary_moves_once_and_only_from_where_it_was() {
    let mut authority: Authority<&str> = Authority::default();
    let [here, there, leaving] = ["here", "there", "leaving"].map(ShardId::new);
    authority.set_shard(here.clone(), true);
    authority.set_shard(there.clone(), true);
    authority.set_shard(leaving.clone(), false);
    let now = ClusterTime::new(7, 1);
    let before = authority.new_database(&here, Uuid([9; 16]), now).unwrap();
    authority.set_database("db", Some(before.clone()));
    let [first, second, aborted] = [1, 2, 3].map(|id| Uuid([id; 16]));
    let to = |id, to| authority.decide_primary(id, "db", &before, to, now);
    assert_eq!(
        to(first, &leaving).unwrap_err(),
        Refusal::NoSuchShard(leaving.clone())
    );
    let (answer, after) = to(first, &there).unwrap();
    assert_eq!(after.version, before.version.moved());
    let Answer::Write(decision) = answer else {
        panic!("it is decided now");
    };
    let Answer::Write(abort) = authority.settle(aborted) else {
        panic!("it is decided now");
    };
    authority.apply(abort).unwrap();
    authority.apply(decision).unwrap();
    authority.set_database("db", Some(after.clone()));
    let outcome = Outcome::Committed {
        version: after.version.as_placement(),
        since: now,
    };
    let to = |id| authority.decide_primary(id, "db", &before, &there, now.next());
    assert!(matches!(to(first), Ok((Answer::Decided(found), _)) if found == outcome));
    assert_eq!(to(aborted).unwrap_err(), Refusal::Aborted);
    // A message of another move that was begun before.
    assert_eq!(
        to(second).unwrap_err(),
        Refusal::OtherDatabase("db".to_owned())
    );
}
