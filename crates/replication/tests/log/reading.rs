//! Reading by position and by time, from memory and from files.

use std::sync::atomic::Ordering;

use model::time::ClusterTime;
use replication::{
    Durability::{Buffered, Synced},
    EntryKind, Group, LogPosition, ReadError,
};

use crate::world::{Ledger, OWN, World, at, positions, propose};

/// Entries of 200 bytes, one per second, in segments of fourteen.
fn filled(world: &World, count: u64) -> (Group<Ledger>, replication::Driver<Ledger>) {
    let (group, mut driver) = world.open_stepped().expect("opens");
    for number in 0..count {
        drop(propose(&group, Synced, &[number as u8; 200]));
        driver.step();
        world.wall_ms.fetch_add(1000, Ordering::Relaxed);
    }
    (group, driver)
}

#[test]
fn a_read_begins_right_after_its_position_and_crosses_segments() {
    let world = World::new();
    let (group, driver) = filled(&world, 50);
    let check = |group: &Group<Ledger>, after: u64, bytes_max: usize, count: u64| {
        let mut entries = group.read(at(after), bytes_max).expect("reads");
        entries.retain(|entry| entry.kind == EntryKind::Data);
        assert_eq!(
            positions(&entries),
            (after + 1..=after + count).collect::<Vec<_>>(),
            "after {after}, {bytes_max} bytes"
        );
        for entry in entries {
            let expected = vec![(entry.position.get() - OWN) as u8 - 1; 200];
            assert_eq!(entry.payload, expected);
        }
    };
    let check_all = |group: &Group<Ledger>| {
        check(group, 0, usize::MAX, 50);
        check(group, 0, 0, 1);
        check(group, 13, 3000, 12);
        check(group, 14, 0, 1);
        check(group, 15, 0, 1);
        check(group, 30, usize::MAX, 20);
        check(group, 48, usize::MAX, 2);
        check(group, 49, 0, 1);
        check(group, 50, usize::MAX, 0);
        check(group, 99, usize::MAX, 0);
    };
    check_all(&group);
    driver.close().expect("closes");
    let (group, _driver) = world.open_stepped().expect("opens");
    check_all(&group);
}

#[test]
fn what_is_not_applied_is_not_read() {
    let world = World::new();
    let (group, mut driver) = world.open_stepped().expect("opens");
    drop(propose(&group, Synced, b"a"));
    assert_eq!(group.read(at(0), 100), Ok(Vec::new()));
    driver.step();
    assert_eq!(positions(&group.read(at(0), 100).expect("reads")), [1]);
    assert!(group.watch().borrow().running);
    assert_eq!(group.watch().borrow().applied, at(1));
}

#[test]
fn a_time_is_found_by_the_position_before_it() {
    let world = World::new();
    let (group, _driver) = filled(&world, 50);
    let check = |time: ClusterTime, expected: u64| {
        assert_eq!(group.position_at_time(time), Ok(at(expected)), "{time:?}");
    };
    let second = |offset: u32, increment| ClusterTime::new(1_700_000_000 + offset, increment);
    let before_all = group.position_at_time(ClusterTime::ZERO);
    assert_eq!(before_all, Ok(LogPosition::BEFORE_FIRST));
    check(ClusterTime::new(1, 0), 0);
    check(second(0, 1), 0);
    check(second(0, 2), 1);
    check(second(1, 1), 1);
    check(second(20, 0), 20);
    check(second(20, 1), 20);
    check(second(20, 2), 21);
    check(second(49, 1), 49);
    check(second(49, 2), 50);
    check(ClusterTime::MAX, 50);
}

#[test]
fn an_entry_larger_than_a_segment_gets_one_of_its_own() {
    let world = World::new();
    let (group, mut driver) = world.open_stepped().expect("opens");
    let sizes = [100_000usize, 1, 4000, 60_000, 5, 3536, 3537, 70_000];
    for size in sizes {
        drop(propose(&group, Synced, &vec![1; size]));
    }
    driver.step();
    assert_eq!(group.stopped(), None);
    let check = |group: &Group<Ledger>| {
        let mut entries = group.read(at(0), usize::MAX).expect("reads");
        entries.retain(|entry| entry.kind == EntryKind::Data);
        let found: Vec<_> = entries.iter().map(|entry| entry.payload.len()).collect();
        assert_eq!(found, sizes);
    };
    check(&group);
    driver.close().expect("closes");
    let (group, _driver) = world.open_stepped().expect("opens");
    check(&group);
}

#[test]
fn a_state_ahead_of_the_log_leaves_a_gap_that_readers_see() {
    // A seed with which the power cut takes the buffered entries from the log.
    let lost = (0..).find_map(|seed| {
        let world = World::new();
        let (group, mut driver) = filled(&world, 3);
        for _ in 0..2 {
            drop(propose(&group, Buffered, &[9; 200]));
        }
        driver.step();
        drop(driver);
        world.disk.restart(Some(seed));
        let opened = world.open_stepped().expect("opens");
        opened.0.read(at(3), 1).is_err().then_some((world, opened))
    });
    let (world, (group, mut driver)) = lost.expect("some seed does");
    assert_eq!(
        world.ledger.pages.lock().durable as u64,
        OWN + 5,
        "the state was synced first"
    );
    let given = propose(&group, Synced, b"later").given();
    assert_eq!(
        given.position,
        at(7),
        "the log continues past what was applied, with the first of its term"
    );
    driver.step();
    driver.close().expect("closes");

    let (group, _driver) = world.open_stepped().expect("opens again");
    let check = |after: u64, expected: Result<Vec<u64>, ReadError>| {
        let entries = group.read(at(after), usize::MAX);
        assert_eq!(
            entries.map(|entries| positions(&entries)),
            expected,
            "after {after}"
        );
    };
    let gap = |after: u64| {
        Err(ReadError::Gap {
            after: at(after),
            next: at(6),
        })
    };
    check(0, Ok(vec![1, 2, 3]));
    check(2, Ok(vec![3]));
    check(3, gap(3));
    check(4, gap(4));
    check(5, Ok(vec![6, 7, 8]));
    check(8, Ok(vec![]));
}
