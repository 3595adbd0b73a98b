//! The policy on small tables.

use super::*;
use crate::routing::initial_chunks;
use model::bson::{DocWriter, ObjectId};
use model::ids::Uuid;
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::Incarnation;
use std::sync::Arc;

fn at(key: i32) -> KeyBound {
    let pattern = DocWriter::new().with("k", 1).finish();
    let pattern = ShardKeyPattern::parse(pattern.as_doc()).unwrap();
    let bound = DocWriter::new().with("k", key).finish();
    KeyBound::new(&pattern.key_of_bound(bound.as_doc()).unwrap())
}

/// Four chunks, cut at 0, 10 and 20; their owners in turn.
fn table(owners: &[&str]) -> RoutingTable {
    let pattern = DocWriter::new().with("k", 1).finish();
    let pattern = Arc::new(ShardKeyPattern::parse(pattern.as_doc()).unwrap());
    let owners: Vec<ShardId> = owners.iter().map(|name| ShardId::new(name)).collect();
    let bounds = [at(0), at(10), at(20)];
    let chunks = initial_chunks(&pattern, &bounds, &owners, ClusterTime::ZERO);
    let incarnation = Incarnation {
        epoch: ObjectId([1; 12]),
        began: ClusterTime::ZERO,
    };
    RoutingTable::full(Uuid([9; 16]), incarnation, pattern, chunks).unwrap()
}

fn load(shard: &str, bytes: u64) -> Load {
    Load {
        shard: ShardId::new(shard),
        bytes,
        draining: false,
        zones: Vec::new(),
    }
}

fn chosen(table: &RoutingTable, loads: &[Load], zones: &[Zone]) -> Vec<(String, Reason)> {
    chosen_without(table, loads, zones, &Refused::new())
}

fn chosen_without(
    table: &RoutingTable,
    loads: &[Load],
    zones: &[Zone],
    refused: &Refused,
) -> Vec<(String, Reason)> {
    let proposals = choose(table, loads, zones, 10, refused, &mut Busy::new(1));
    let shown = proposals.into_iter().map(|proposal| {
        assert_ne!(proposal.from, proposal.to);
        (
            format!("{} to {}", proposal.from, proposal.to),
            proposal.reason,
        )
    });
    shown.collect()
}

fn of(moved: &str, reason: Reason) -> Vec<(String, Reason)> {
    vec![(moved.to_owned(), reason)]
}

#[test]
fn what_is_even_stays() {
    let even = table(&["A", "B"]);
    assert_eq!(chosen(&even, &[load("A", 100), load("B", 75)], &[]), []);
    let uneven = [load("A", 100), load("B", 70)];
    assert_eq!(chosen(&even, &uneven, &[]), of("A to B", Reason::Imbalance));
    // Who has nothing but old data has nothing to give.
    let empty = table(&["B"]);
    assert_eq!(chosen(&empty, &uneven, &[]), []);
}

#[test]
fn shards_that_leave_give_first_and_get_nothing() {
    let both = table(&["A", "B"]);
    let mut loads = [load("A", 0), load("B", 500), load("C", 400)];
    loads[0].draining = true;
    assert_eq!(chosen(&both, &loads, &[]), of("A to C", Reason::Draining));
    loads[2].draining = true;
    assert_eq!(chosen(&both, &loads, &[]), of("A to B", Reason::Draining));
    loads[1].draining = true;
    assert_eq!(chosen(&both, &loads, &[]), [], "there is nobody to get it");
}

#[test]
fn zones_keep_what_is_theirs() {
    let zone = |min: i32, max: i32| Zone {
        range: KeyRange::new(at(min), at(max)),
        name: "north".to_owned(),
    };
    let all_on_a = table(&["A"]);
    let mut loads = [load("A", 0), load("B", 0)];
    loads[1].zones = vec!["north".to_owned()];
    // A part of a chunk.
    let (none, mut busy) = (Refused::new(), Busy::new(1));
    let proposals = choose(&all_on_a, &loads, &[zone(3, 7)], 10, &none, &mut busy);
    assert_eq!(proposals.len(), 1);
    assert_eq!(proposals[0].range, KeyRange::new(at(3), at(7)));
    assert_eq!(proposals[0].reason, Reason::ZoneViolation);
    // Nothing of a zone leaves it, however much its shard has.
    let all_on_b = table(&["B"]);
    loads[1].bytes = 1000;
    let whole = Zone {
        range: all_on_b.whole(),
        name: "north".to_owned(),
    };
    assert_eq!(chosen(&all_on_b, &loads, &[whole]), []);
    assert_eq!(
        violation(&all_on_b, &loads, &[], 10),
        Some(Reason::Imbalance)
    );
}

#[test]
fn what_nobody_takes_does_not_keep_others() {
    let all_on_a = table(&["A"]);
    let mut loads = [load("A", 0), load("B", 10), load("C", 20)];
    loads[0].draining = true;
    let first = all_on_a.whole().min;
    let mut refused = Refused::from([(first.clone(), ShardId::new("B"))]);
    let moved = |refused: &Refused| {
        let proposals = choose(&all_on_a, &loads, &[], 10, refused, &mut Busy::new(1));
        let moved = proposals.into_iter();
        moved
            .map(|proposal| (proposal.range.min, proposal.to.to_string()))
            .collect::<Vec<_>>()
    };
    assert_eq!(moved(&refused), [(first.clone(), "C".to_owned())]);
    refused.insert((first, ShardId::new("C")));
    assert_eq!(moved(&refused), [(at(0), "B".to_owned())]);
    // The same for what would only be better elsewhere.
    loads[0] = load("A", 100);
    assert_eq!(
        chosen_without(&all_on_a, &loads, &[], &refused),
        of("A to B", Reason::Imbalance)
    );
    for key in [0, 10, 20] {
        refused.insert((at(key), ShardId::new("B")));
    }
    assert_eq!(chosen_without(&all_on_a, &loads, &[], &refused), []);
}

/// Moves that shards have room for are proposed together, and as if those before were done.
#[test]
fn shards_take_part_in_as_many_moves_as_they_may() {
    let moved = |table: &RoutingTable, loads: &[Load], busy: &mut Busy| {
        let proposals = choose(table, loads, &[], 10, &Refused::new(), busy);
        let shown = proposals.into_iter();
        shown
            .map(|proposal| (proposal.range.min, proposal.to.to_string()))
            .collect::<Vec<_>>()
    };
    let all_on_a = table(&["A"]);
    let first = all_on_a.whole().min;
    let to_b = |min: KeyBound| (min, "B".to_owned());
    let uneven = [load("A", 100), load("B", 0)];
    assert_eq!(
        moved(&all_on_a, &uneven, &mut Busy::new(1)),
        [to_b(first.clone())]
    );
    let two = [to_b(first.clone()), to_b(at(0))];
    assert_eq!(moved(&all_on_a, &uneven, &mut Busy::new(2)), two);
    // One moves already.
    let mut busy = Busy::new(2);
    busy.take(&ShardId::new("B"), &ShardId::new("C"));
    assert_eq!(moved(&all_on_a, &uneven, &mut busy), [to_b(first.clone())]);
    assert_eq!(moved(&all_on_a, &uneven, &mut busy), []);
    // Not more than makes them even.
    let nearly = [load("A", 40), load("B", 0)];
    assert_eq!(
        moved(&all_on_a, &nearly, &mut Busy::new(2)),
        [to_b(first.clone())]
    );
    // What leaves goes to where there is least by then.
    let mut leaving = [load("A", 0), load("B", 5), load("C", 9)];
    leaving[0].draining = true;
    let to_both = [to_b(first), (at(0), "C".to_owned())];
    assert_eq!(moved(&all_on_a, &leaving, &mut Busy::new(2)), to_both);
}
