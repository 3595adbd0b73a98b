//! Groups of proposals: order, syncs, replay, failures, a full queue, closing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use model::time::ClusterTime;
use replication::disk::FileDisk;
use replication::{
    Durability::{self, Buffered, Synced},
    Error, Group, GroupId, NoTransport, Options, ProposeError, ReadError, SystemClock,
};

use crate::world::{Ledger, OWN, World, at, positions, propose};

#[test]
fn a_group_is_synced_once_and_only_if_one_of_it_asks() {
    let check = |durabilities: &[Durability], syncs: u64| {
        let world = World::new();
        let (group, mut driver) = world.open_stepped().expect("opens");
        let before = world.disk.syncs();
        world.ledger.take_calls();
        let pending: Vec<_> = durabilities
            .iter()
            .map(|durability| propose(&group, *durability, b"x"))
            .collect();
        assert_eq!(
            world.ledger.applied(),
            OWN,
            "nothing happens before the step"
        );
        assert!(driver.step());
        assert_eq!(world.disk.syncs() - before, syncs, "{durabilities:?}");
        let calls = world.ledger.take_calls();
        assert_eq!(calls.len(), 1, "one batch");
        for (index, pending) in pending.into_iter().enumerate() {
            let given = pending.given();
            assert_eq!(given.position, at(index as u64 + 1));
            assert_eq!(pending.wait(), Ok(given));
        }
        // The sync that was put off happens once, then there is nothing to sync.
        driver.sync();
        driver.sync();
        assert_eq!(world.disk.syncs() - before, 1, "{durabilities:?}");
    };
    check(&[Synced], 1);
    check(&[Synced, Synced, Synced], 1);
    check(&[Buffered, Synced, Buffered], 1);
    check(&[Buffered], 0);
    check(&[Buffered, Buffered], 0);
}

/// So that the buffer stays small. Each piece is stable when the next one is written.
#[test]
fn a_large_group_is_written_in_pieces_and_applied_as_one() {
    for (durability, syncs) in [(Synced, 3), (Buffered, 0)] {
        let mut world = World::new();
        // Two entries of 200 bytes are a piece.
        world.options.piece_bytes = 300;
        let (group, mut driver) = world.open_stepped().expect("opens");
        let before = world.disk.syncs();
        world.ledger.take_calls();
        let pending: Vec<_> = (0..5)
            .map(|_| propose(&group, durability, &[7; 200]))
            .collect();
        assert!(driver.step());
        assert_eq!(world.disk.syncs() - before, syncs, "{durability:?}");
        assert_eq!(world.ledger.take_calls().len(), 1, "one batch");
        for pending in pending {
            let given = pending.given();
            assert_eq!(pending.wait(), Ok(given));
        }
        driver.sync();
        assert_eq!(world.disk.syncs() - before, syncs.max(1), "{durability:?}");
        assert_eq!(world.ledger.applied(), OWN + 5);
    }
}

/// A page that is not in memory would be read from the disk before a part of it is written.
#[test]
fn a_page_is_written_to_its_end_when_it_is_first_written_to() {
    const SEGMENT: &str = "log-0000000000000001.seg";
    for durability in [Synced, Buffered] {
        let mut world = World::new();
        world.options.segment_bytes = 4 * 4096;
        let (group, mut driver) = world.open_stepped().expect("opens");
        // As in a file that was used before.
        let stale = [0xff; 3 * 4096];
        world.disk.damage(SEGMENT, 4096, &stale).expect("damages");
        let check = |bytes: &[u8], expected: &[(usize, u8)]| {
            for (at, byte) in expected {
                assert_eq!(bytes[*at], *byte, "{durability:?} at {at}");
            }
        };
        drop(propose(&group, durability, &[b'x'; 100]));
        driver.step();
        let bytes = world.disk.contents(SEGMENT).expect("it is there");
        check(&bytes, &[(4096, 0xff)]);
        drop(propose(&group, durability, &[b'x'; 5000]));
        driver.step();
        let bytes = world.disk.contents(SEGMENT).expect("it is there");
        check(&bytes, &[(4096, b'x'), (8191, 0), (8192, 0xff)]);
        drop(propose(&group, durability, &[b'x'; 100]));
        driver.step();
        let bytes = world.disk.contents(SEGMENT).expect("it is there");
        check(&bytes, &[(8191, 0), (8192, 0xff)]);
        driver.close().expect("closes");
        let (group, _driver) = world.open_stepped().expect("opens");
        assert_eq!(group.last_applied(), at(4), "and the first of its term");
    }
}

#[test]
fn a_sole_member_tells_how_far_it_is_synced() {
    let world = World::new();
    let (group, mut driver) = world.open_stepped().expect("opens");
    let own = |group: &Group<Ledger>| {
        let members = group.members();
        assert_eq!(members.leader, Some(members.me));
        let own = members.of(members.me).expect("it is a member");
        (own.matched, own.committed)
    };
    drop(propose(&group, Buffered, b"x"));
    driver.step();
    assert_eq!(own(&group), (Some(at(0)), Some(at(1))));
    driver.sync();
    assert_eq!(own(&group), (Some(at(1)), Some(at(1))));
}

#[test]
fn the_sync_of_buffered_writes_comes_with_the_group_after_its_delay() {
    let mut world = World::new();
    world.options.sync_delay_ms = 0;
    let (group, mut driver) = world.open_stepped().expect("opens");
    let before = world.disk.syncs();
    let pending = propose(&group, Buffered, b"x");
    driver.step();
    assert_eq!(world.disk.syncs() - before, 1);
    pending.wait().expect("applied");
}

#[test]
fn replay_applies_exactly_what_the_state_lacks() {
    let check = |state_kept: usize| {
        let world = World::new();
        let (group, mut driver) = world.open_stepped().expect("opens");
        for number in 0..40u8 {
            drop(propose(&group, Synced, &[number; 200]));
            driver.step();
        }
        driver.close().expect("closes");
        world.ledger.take_calls();
        world.ledger.power_cut(state_kept);
        let (group, _driver) = world.open_stepped().expect("opens");
        let replayed: Vec<_> = world.ledger.take_calls().concat();
        // The last one is the first of the new term.
        let expected: Vec<_> = (state_kept as u64 + 1..=43).map(|p| (p, false)).collect();
        assert_eq!(replayed, expected);
        assert_eq!(group.last_applied(), at(41));
    };
    check(0);
    check(1);
    check(17);
    check(41);
    check(42);
}

#[test]
fn positions_times_and_terms_go_on_after_opening_again() {
    let world = World::new();
    let (group, mut driver) = world.open_stepped().expect("opens");
    let first_term = group.term();
    group
        .observe(ClusterTime::new(1_700_000_500, 7))
        .expect("within the bound");
    let earlier = propose(&group, Synced, b"a");
    assert_eq!(earlier.given().time, ClusterTime::new(1_700_000_500, 8));
    driver.step();
    driver.close().expect("closes");
    // The wall clock has gone back meanwhile.
    world.wall_ms.fetch_sub(90_000, Ordering::Relaxed);
    let (group, _driver) = world.open_stepped().expect("opens");
    let later = propose(&group, Synced, b"b");
    assert_eq!(later.given().position, at(3), "after the first of its term");
    assert!(later.given().time > earlier.given().time);
    assert!(group.term() > first_term);
    assert!(group.observe(ClusterTime::MAX).is_err());
    assert_eq!(group.latest_time(), later.given().time);
}

#[test]
fn a_failure_stops_the_group_for_good() {
    let check = |name: &str, break_it: &dyn Fn(&World), written: bool| {
        let world = World::new();
        let (group, mut driver) = world.open_stepped().expect("opens");
        let good = propose(&group, Synced, b"good");
        driver.step();
        good.wait().expect("applied");
        break_it(&world);
        let under_way = propose(&group, Synced, b"under way");
        driver.step();
        let reason = group.stopped().expect(name);
        let outcome = under_way.wait();
        assert!(
            matches!(outcome, Err(ProposeError::OutcomeUnknown { .. })),
            "{name}: {outcome:?}"
        );
        let later = group.propose(Synced, Vec::new(), |_, position, _| position.get());
        assert_eq!(
            later.err(),
            Some(ProposeError::Stopped {
                reason: reason.clone()
            }),
            "{name}"
        );
        assert_eq!(world.ledger.applied(), OWN + 1, "{name}");
        assert_eq!(
            poll(group.ready()),
            Poll::Ready(Err(ProposeError::Stopped {
                reason: reason.clone()
            }))
        );
        assert_eq!(
            poll(group.wait_applied(at(2))),
            Poll::Ready(Err(ReadError::Stopped { reason }))
        );
        // No further sync is tried.
        let syncs = world.disk.syncs();
        driver.sync();
        assert!(
            matches!(driver.close(), Err(Error::Stopped { .. })),
            "{name}"
        );
        assert_eq!(world.disk.syncs(), syncs, "{name}");

        world.disk.restart(None);
        world.ledger.pages.lock().fail_apply = false;
        let (group, _driver) = world.open_stepped().expect("opens");
        assert_eq!(
            group.last_applied(),
            at(if written { 3 } else { 2 }),
            "{name}"
        );
    };
    check(
        "the sync fails",
        &|world| world.disk.fail_sync_after(0),
        true,
    );
    check(
        "the write fails",
        &|world| world.disk.cut_power_after(0),
        false,
    );
    check(
        "applying fails",
        &|world| world.ledger.pages.lock().fail_apply = true,
        true,
    );
}

#[test]
fn a_queue_that_is_full_refuses_and_tells_when_there_is_room() {
    let check = |entries_max: usize, bytes_max: usize, accepted: usize| {
        let mut world = World::new();
        world.options.queue_entries_max = entries_max;
        world.options.queue_bytes_max = bytes_max;
        let (group, mut driver) = world.open_stepped().expect("opens");
        for _ in 0..accepted {
            assert_eq!(poll(group.ready()), Poll::Ready(Ok(())));
            drop(propose(&group, Synced, &[0; 1000]));
        }
        let mut ran = false;
        let refused = group.propose(Synced, Vec::new(), |_, _, _| {
            ran = true;
            0
        });
        assert_eq!(refused.err(), Some(ProposeError::Busy));
        assert!(!ran, "the closure did not run");
        let mut ready = std::pin::pin!(group.ready());
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(ready.as_mut().poll(&mut context), Poll::Pending);
        driver.step();
        assert_eq!(ready.as_mut().poll(&mut context), Poll::Ready(Ok(())));
        assert_eq!(
            propose(&group, Synced, b"").given().position,
            at(accepted as u64 + 1)
        );
    };
    check(3, 1 << 20, 3);
    check(100, 2000, 2);
    check(100, 1, 1);
}

#[test]
fn an_entry_over_the_limit_is_refused_and_leaves_no_trace() {
    let mut world = World::new();
    world.options.payload_bytes_max = 10;
    let (group, mut driver) = world.open_stepped().expect("opens");
    let mut ran = false;
    let refused = group.propose(Synced, vec![0; 11], |_, _, _| {
        ran = true;
        0
    });
    assert!(!ran, "the closure did not run");
    assert_eq!(
        refused.err(),
        Some(ProposeError::TooLarge {
            bytes: 11,
            limit: 10
        })
    );
    assert_eq!(propose(&group, Synced, &[0; 10]).given().position, at(1));
    driver.step();
    assert_eq!(group.last_applied(), at(1));
}

#[test]
fn with_threads_on_a_real_disk_every_proposer_is_answered() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut options = Options::new(GroupId(1));
    options.segment_bytes = 64 << 10;
    options.window_bytes = 256 << 10;
    let ledger = Ledger::default();
    let open = || {
        let disk = FileDisk::open(directory.path().join("log")).expect("the lock is free");
        Group::open(
            options.clone(),
            Arc::new(disk),
            Arc::new(SystemClock),
            Arc::new(NoTransport),
            ledger.clone(),
        )
    };
    let group = open().expect("opens");
    assert!(
        FileDisk::open(directory.path().join("log")).is_err(),
        "it is in use"
    );
    std::thread::scope(|scope| {
        for worker in 0..8u8 {
            let group = group.clone();
            scope.spawn(move || {
                for number in 0..100usize {
                    let durability = if number % 5 == 0 { Synced } else { Buffered };
                    let payload = vec![worker; number * 31 % 1500];
                    let applied = propose(&group, durability, &payload)
                        .wait()
                        .expect("applied");
                    assert!(group.last_applied() >= applied.position);
                }
            });
        }
    });
    let last = propose(&group, Buffered, b"last");
    group.close().expect("closes");
    assert_eq!(
        last.wait().expect("finished before closing").position,
        at(801)
    );
    assert_eq!(ledger.applied(), OWN + 801);
    let refused = group.propose(Synced, Vec::new(), |_, _, _| 0);
    assert_eq!(refused.err(), Some(ProposeError::Closed));
    drop(group);

    let group = open().expect("opens again");
    assert_eq!(group.last_applied(), at(802));
    let newest = group.read(at(790), usize::MAX).expect("reads");
    assert_eq!(positions(&newest), (791..=802).collect::<Vec<_>>());
    group.maintain();
    let _ = propose(&group, Synced, &[7; 100_000])
        .wait()
        .expect("a large one");
    group.close().expect("closes");
}

#[test]
fn the_sync_of_a_buffered_write_comes_without_another_write() {
    let mut world = World::new();
    world.options.sync_delay_ms = 1;
    let group = world.open().expect("opens");
    let before = world.disk.syncs();
    propose(&group, Buffered, b"x").wait().expect("applied");
    let deadline = Instant::now() + Duration::from_secs(60);
    while world.disk.syncs() == before {
        assert!(Instant::now() < deadline, "no sync came");
        std::thread::yield_now();
    }
    group.close().expect("closes");
}

#[test]
fn a_state_machine_that_panics_leaves_nobody_waiting() {
    let world = World::new();
    let group = world.open().expect("opens");
    // The ledger insists that a companion is that of its own entry.
    let pending = group.propose(Synced, Vec::new(), |_, _, _| u64::MAX);
    let outcome = pending.expect("there is room").wait();
    assert!(matches!(outcome, Err(ProposeError::OutcomeUnknown { .. })));
    assert!(matches!(group.close(), Err(Error::Stopped { .. })));
    let later = group.propose(Synced, Vec::new(), |_, _, _| 0).err();
    assert!(matches!(later, Some(ProposeError::Stopped { .. })));
}

/// What a future says when it is looked at once.
fn poll<T>(future: impl Future<Output = T>) -> Poll<T> {
    std::pin::pin!(future)
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}
