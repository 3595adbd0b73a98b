//! Rounds and replies, step by step, and random clusters against a plain count.

use super::*;
use proptest::prelude::*;

const ROOMY: Limits = Limits {
    statements: 1_000,
    bytes: 1 << 20,
};

fn shard(name: &str) -> ShardId {
    ShardId::new(name)
}

/// Statements by the shards they go to: `A`, or `AB` for both.
fn routed(to: &'static [&'static str]) -> impl Fn(usize) -> Result<Vec<ShardId>, WriteFault> {
    move |at| {
        Ok(to[at]
            .split("")
            .filter(|name| !name.is_empty())
            .map(shard)
            .collect())
    }
}

/// The next round, if it is one of parts.
fn parts_of(
    bulk: &mut BulkWrite<u32>,
    target: impl Fn(usize) -> Result<Vec<ShardId>, WriteFault>,
) -> Vec<Part> {
    match bulk.next_round(|at| target(at).map(Goes::To)) {
        Round::Parts(parts) => parts,
        Round::Over => Vec::new(),
        Round::Alone(at) => panic!("{at} goes alone"),
    }
}

fn shown(parts: &[Part]) -> String {
    let parts = parts
        .iter()
        .map(|part| format!("{}{:?}", part.shard, part.statements));
    parts.collect::<Vec<_>>().join(" ")
}

fn done() -> Effect<u32> {
    Effect::Done {
        matched: 1,
        modified: 1,
        upserted: None,
    }
}

fn failed(code: i32) -> Effect<u32> {
    Effect::Failed(WriteFault::new(code, format!("fault {code}")))
}

fn batch(ordered: bool, statements: usize) -> BulkWrite<u32> {
    BulkWrite::new(ordered, ROOMY, vec![10; statements])
}

#[test]
fn unordered_goes_out_at_once() {
    let to = routed(&["A", "B", "A", "AB"]);
    let mut bulk = batch(false, 4);
    assert_eq!(shown(&parts_of(&mut bulk, &to)), "A[0, 2, 3] B[1, 3]");
    bulk.answered(&shard("B"), vec![failed(11000), done()]);
    bulk.answered(&shard("A"), vec![done(), done(), done()]);
    assert_eq!(shown(&parts_of(&mut bulk, &to)), "");
    let summary = bulk.summary();
    assert_eq!((summary.n, summary.modified), (4, 4));
    assert_eq!(summary.errors.len(), 1);
    assert_eq!(summary.errors[0].0, 1);
}

#[test]
fn ordered_goes_out_in_runs() {
    let to = routed(&["A", "A", "B", "AB", "A"]);
    let mut bulk = batch(true, 5);
    for expected in ["A[0, 1]", "B[2]", "A[3] B[3]", "A[4]", ""] {
        let parts = parts_of(&mut bulk, &to);
        assert_eq!(shown(&parts), expected);
        for part in parts {
            bulk.answered(&part.shard, vec![done(); part.statements.len()]);
        }
    }
    assert_eq!(bulk.summary().n, 6);
}

#[test]
fn ordered_ends_with_the_first_failure() {
    let to = routed(&["A", "A", "A", "B"]);
    let mut bulk = batch(true, 4);
    parts_of(&mut bulk, &to);
    bulk.answered(&shard("A"), vec![done(), failed(11000), Effect::NotDone]);
    assert_eq!(shown(&parts_of(&mut bulk, &to)), "");
    let summary = bulk.summary();
    assert_eq!(summary.n, 1);
    assert_eq!(summary.errors[0].0, 1);
}

/// ⚑ A shard that has carried a statement out must not be sent it again, whatever
/// others say.
#[test]
fn a_stale_answer_of_one_shard_does_not_repeat_another() {
    let mut bulk = batch(false, 1);
    parts_of(&mut bulk, routed(&["AB"]));
    bulk.answered(&shard("A"), vec![done()]);
    bulk.answered(&shard("B"), vec![Effect::NotDone]);
    // Meanwhile the range of B went to C.
    assert_eq!(shown(&parts_of(&mut bulk, routed(&["AC"]))), "C[0]");
    bulk.answered(&shard("C"), vec![done()]);
    assert_eq!(shown(&parts_of(&mut bulk, routed(&["AC"]))), "");
    assert_eq!(bulk.summary().n, 2);
}

#[test]
fn a_batch_that_gets_nowhere_ends() {
    for ordered in [true, false] {
        let mut bulk = batch(ordered, 2);
        let mut rounds = 0;
        loop {
            let parts = parts_of(&mut bulk, routed(&["A", "A"]));
            if parts.is_empty() {
                break;
            }
            rounds += 1;
            bulk.answered(&shard("A"), vec![Effect::NotDone; 2]);
        }
        assert_eq!(rounds, STALE_ROUNDS_MAX);
        let errors = bulk.summary().errors;
        assert_eq!(errors.len(), if ordered { 1 } else { 2 });
        assert_eq!(errors[0].1.code, WriteFault::NO_PROGRESS);
    }
}

#[test]
fn what_cannot_be_routed_fails_in_its_turn() {
    let unroutable = |at: usize| match at {
        1 => Err(WriteFault::new(61, "no shard key")),
        _ => Ok(vec![shard("A")]),
    };
    let mut bulk = batch(true, 3);
    assert_eq!(shown(&parts_of(&mut bulk, unroutable)), "A[0]");
    bulk.answered(&shard("A"), vec![done()]);
    assert_eq!(shown(&parts_of(&mut bulk, unroutable)), "");
    assert_eq!(bulk.summary().errors[0].0, 1);

    let mut bulk = batch(false, 3);
    assert_eq!(shown(&parts_of(&mut bulk, unroutable)), "A[0, 2]");
}

/// In its turn, or behind all others.
#[test]
fn what_goes_alone_waits_for_parts() {
    let goes = |at: usize| match at {
        1 | 3 => Ok(Goes::Alone),
        _ => Ok(Goes::To(vec![shard("A")])),
    };
    let check = |ordered: bool, expected: &[&str]| {
        let mut bulk = batch(ordered, 4);
        let mut rounds = Vec::new();
        loop {
            match bulk.next_round(goes) {
                Round::Parts(parts) => {
                    rounds.push(shown(&parts));
                    bulk.answered(&shard("A"), vec![done(); parts[0].statements.len()]);
                }
                Round::Alone(at) => {
                    rounds.push(format!("{at}"));
                    bulk.alone_ended(Some(Totals {
                        matched: 5,
                        modified: 3,
                        faults: Vec::new(),
                    }));
                }
                Round::Over => break,
            }
        }
        assert_eq!(rounds, expected);
        let summary = bulk.summary();
        assert_eq!((summary.n, summary.modified), (12, 8));
    };
    check(true, &["A[0]", "1", "A[2]", "3"]);
    check(false, &["A[0, 2]", "1", "3"]);

    let mut bulk = batch(true, 4);
    parts_of(&mut bulk, routed(&["A", "A", "A", "A"]));
    bulk.answered(&shard("A"), vec![done(), Effect::NotDone, done(), done()]);
    assert_eq!(bulk.next_round(goes), Round::Alone(1));
    bulk.alone_ended(Some(Totals {
        faults: vec![WriteFault::new(11000, "taken")],
        ..Totals::default()
    }));
    assert_eq!(bulk.next_round(goes), Round::Over);
}

#[test]
fn parts_stay_within_limits() {
    let limits = Limits {
        statements: 2,
        bytes: 100,
    };
    let mut bulk: BulkWrite<u32> = BulkWrite::new(false, limits, [60, 60, 10, 10, 900]);
    let mut rounds = Vec::new();
    loop {
        let parts = parts_of(&mut bulk, routed(&["A"; 5]));
        if parts.is_empty() {
            break;
        }
        rounds.push(shown(&parts));
        bulk.answered(&shard("A"), vec![done(); parts[0].statements.len()]);
    }
    assert_eq!(rounds, ["A[0, 2]", "A[1, 3]", "A[4]"]);
}

#[test]
fn several_faults_of_one_statement_become_one() {
    let check = |a: i32, b: i32, expected: i32| {
        let mut bulk = batch(false, 1);
        parts_of(&mut bulk, routed(&["AB"]));
        bulk.answered(&shard("A"), vec![failed(a)]);
        bulk.answered(&shard("B"), vec![failed(b)]);
        assert_eq!(bulk.summary().errors[0].1.code, expected);
    };
    check(7, 7, 7);
    check(7, 8, WriteFault::SEVERAL);
}

#[test]
fn upserts_keep_their_place() {
    let mut bulk = batch(false, 3);
    parts_of(&mut bulk, routed(&["A", "B", "B"]));
    bulk.answered(&shard("A"), vec![done()]);
    let upserted = Effect::Done {
        matched: 0,
        modified: 0,
        upserted: Some(77),
    };
    bulk.answered(&shard("B"), vec![done(), upserted]);
    let summary = bulk.summary();
    assert_eq!(summary.n, 3);
    assert_eq!(summary.upserted, [(2, 77)]);
}

const NAMES: [&str; 3] = ["A", "B", "C"];

proptest! {
    /// Every statement is carried out once on each of its shards, whoever refuses it
    /// how often; an ordered batch keeps its order on every shard.
    #[test]
    fn each_statement_once_on_each_shard(
        ordered in any::<bool>(),
        targets in prop::collection::vec(prop::collection::btree_set(0..NAMES.len(), 1..3), 1..30),
        part_max in 1usize..5,
        // Fewer than would end a batch that gets nowhere.
        refusals in prop::collection::vec(0u8..4, 0..STALE_ROUNDS_MAX as usize),
    ) {
        let limits = Limits { statements: part_max, bytes: 1 << 20 };
        let mut bulk: BulkWrite<u32> = BulkWrite::new(ordered, limits, vec![1; targets.len()]);
        let mut refusals = refusals.into_iter();
        let mut carried_out: Vec<(usize, ShardId)> = Vec::new();
        loop {
            let parts = parts_of(&mut bulk, |at| {
                Ok(targets[at].iter().map(|name| shard(NAMES[*name])).collect())
            });
            if parts.is_empty() {
                break;
            }
            for part in parts {
                // A shard refuses from some statement on, as a stale version does.
                let refused_from = match refusals.next() {
                    Some(0) => 0,
                    Some(1) => part.statements.len() / 2,
                    _ => part.statements.len(),
                };
                let mut effects = Vec::new();
                for (at, statement) in part.statements.iter().enumerate() {
                    if at < refused_from {
                        carried_out.push((*statement, part.shard.clone()));
                        effects.push(done());
                    } else {
                        effects.push(Effect::NotDone);
                    }
                }
                bulk.answered(&part.shard, effects);
            }
        }
        let expected: usize = targets.iter().map(|shards| shards.len()).sum();
        let summary = bulk.summary();
        prop_assert!(summary.errors.is_empty());
        prop_assert_eq!(summary.n as usize, expected);
        if ordered {
            let order: Vec<usize> = carried_out.iter().map(|(at, _)| *at).collect();
            prop_assert!(order.is_sorted(), "{:?}", order);
        }
        let mut once = carried_out.clone();
        once.sort();
        once.dedup();
        prop_assert_eq!(once.len(), carried_out.len());
        prop_assert_eq!(once.len(), expected);
    }
}
