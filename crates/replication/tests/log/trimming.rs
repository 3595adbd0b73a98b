//! What leaves the log, what keeps it there, and where its files go.

use std::sync::atomic::{AtomicBool, Ordering};

use model::time::ClusterTime;
use replication::disk::Disk;
use replication::{Driver, Durability::Synced, Group, LogPosition, ReadError};

use crate::world::{Ledger, OWN, World, at, positions, propose};

/// Entries of 200 bytes in segments of fourteen: they begin at 1, 15, 29, … (the first
/// segment holds the log's own two entries besides).
fn write(world: &World, group: &Group<Ledger>, driver: &mut Driver<Ledger>, count: u64) {
    for _ in 0..count {
        drop(propose(group, Synced, &[5; 200]));
        driver.step();
        world.wall_ms.fetch_add(1000, Ordering::Relaxed);
    }
}

fn files(world: &World, prefix: &str) -> usize {
    let names = world.disk.list().expect("lists");
    names.iter().filter(|name| name.starts_with(prefix)).count()
}

/// The files of the log and its spares, and how much of each is zeroed or written.
fn written(world: &World) -> Vec<(String, u64)> {
    let names = world.disk.list().expect("lists");
    let segments = names.into_iter().filter(|name| name.ends_with(".seg"));
    segments
        .map(|name| {
            let file = world.disk.open(&name).expect("opens");
            let until = file.reserved_from().expect("knows");
            (name, until)
        })
        .collect()
}

/// Behind a load, whose segment and spare are only reserved.
#[test]
fn small_syncs_go_on_in_a_zeroed_segment() {
    const SEGMENT_BYTES: u64 = 16 << 20;
    let check = |pause_ms: i64, leaves: bool| {
        let mut world = World::new();
        world.options.segment_bytes = SEGMENT_BYTES;
        world.options.syncs_looked_at = 4;
        let (group, mut driver) = world.open_stepped().expect("opens");
        for _ in 0..2 {
            // More than half of a segment each, so that the second one has a segment of its own.
            drop(propose(&group, Synced, &vec![5; 10 << 20]));
            driver.step();
            group.maintain();
        }
        let reserved = |world: &World| {
            let files = written(world).into_iter();
            files.filter(|(_, until)| *until < SEGMENT_BYTES).count()
        };
        assert_eq!(reserved(&world), 2, "{:?}", written(&world));
        for _ in 0..9 {
            drop(propose(&group, Synced, &[5; 200]));
            driver.step();
            world.wall_ms.fetch_add(pause_ms, Ordering::Relaxed);
        }
        assert_eq!(files(&world, "log-"), 2, "nobody has made a spare yet");
        group.maintain();
        drop(propose(&group, Synced, &[5; 200]));
        driver.step();
        assert_eq!(files(&world, "log-"), 2 + usize::from(leaves));
        assert_eq!(
            reserved(&world),
            2 - usize::from(leaves),
            "{:?}",
            written(&world)
        );
        // It stays there.
        for _ in 0..9 {
            drop(propose(&group, Synced, &[5; 200]));
            driver.step();
            group.maintain();
            world.wall_ms.fetch_add(pause_ms, Ordering::Relaxed);
        }
        assert_eq!(files(&world, "log-"), 2 + usize::from(leaves));
        let entries = group.read(at(0), usize::MAX).expect("reads");
        assert_eq!(positions(&entries), (1..=21).collect::<Vec<_>>());
    };
    check(10, true);
    check(1000, false);
}

/// There zeroed segments would seem to be reserved, one after the other.
#[test]
fn where_zeros_are_not_kept_segments_are_not_left() {
    let mut world = World::new();
    world.options.segment_bytes = 1 << 20;
    world.options.syncs_looked_at = 2;
    world.disk.keep_no_zeros();
    let (group, mut driver) = world.open_stepped().expect("opens");
    for _ in 0..20 {
        drop(propose(&group, Synced, &[5; 200]));
        driver.step();
        group.maintain();
    }
    assert_eq!(files(&world, "log-"), 1);
    assert_eq!(files(&world, "spare-"), 1, "it was tried once");
}

#[test]
fn entries_leave_when_the_window_by_size_and_by_time_is_exceeded() {
    let check = |window_segments: u64, window_ms: i64, first: u64| {
        let mut world = World::new();
        world.options.window_bytes = window_segments * 4096;
        world.options.window_ms = window_ms;
        let (group, mut driver) = world.open_stepped().expect("opens");
        write(&world, &group, &mut driver, 60);
        assert_eq!(
            group.first_position(),
            LogPosition::new(1),
            "only maintenance trims"
        );
        group.maintain();
        let expected = if first == 1 {
            LogPosition::new(1)
        } else {
            at(first)
        };
        assert_eq!(
            group.first_position(),
            expected,
            "{window_segments} {window_ms}"
        );
        assert_eq!(
            world.ledger.pages.lock().syncs,
            usize::from(first > 1),
            "synced if needed"
        );
        let entries = group.read(at(first - 1), usize::MAX).expect("reads");
        assert_eq!(positions(&entries), (first..=60).collect::<Vec<_>>());
        if first > 1 {
            let too_old = ReadError::TooOld {
                after: at(first - 2),
                first: at(first),
            };
            assert_eq!(group.read(at(first - 2), 1), Err(too_old));
            let time = ClusterTime::new(1_700_000_000 + first as u32 - 2, 1);
            let too_old = ReadError::TimeTooOld { first: at(first) };
            assert_eq!(group.position_at_time(time), Err(too_old));
            assert_eq!(group.position_at_time(time.next()), Ok(at(first - 1)));
        }
    };
    check(100, 0, 1);
    check(5, 0, 1);
    check(4, 0, 15);
    check(2, 0, 43);
    check(0, 0, 57);
    check(0, 100_000, 1);
    check(0, 20_000, 29);
}

#[test]
fn a_pin_keeps_what_follows_it() {
    let mut world = World::new();
    world.options.window_bytes = 0;
    let (group, mut driver) = world.open_stepped().expect("opens");
    write(&world, &group, &mut driver, 60);
    let mut pin = group.pin(at(20)).expect("it is there");
    let other = group.pin(at(44)).expect("it is there");
    let check = |first: u64| {
        group.maintain();
        assert_eq!(group.first_position(), at(first));
    };
    check(15);
    assert_eq!(positions(&group.read(at(20), 1).expect("reads")), [21]);
    pin.advance(at(28));
    check(29);
    pin.advance(at(27));
    assert_eq!(pin.after(), at(28), "a pin does not go back");
    pin.advance(at(50));
    check(43);
    drop(other);
    check(43);
    drop(pin);
    check(57);
    assert!(matches!(group.pin(at(20)), Err(ReadError::TooOld { .. })));
    assert!(group.pin(at(56)).is_ok());
}

#[test]
fn a_state_that_cannot_be_synced_keeps_the_log_and_stops_the_group() {
    let mut world = World::new();
    world.options.window_bytes = 0;
    let (group, mut driver) = world.open_stepped().expect("opens");
    write(&world, &group, &mut driver, 60);
    world.ledger.pages.lock().fail_sync = true;
    group.maintain();
    assert_eq!(group.first_position(), LogPosition::new(1));
    assert!(group.stopped().is_some());
}

#[test]
fn files_are_recycled_and_never_bring_back_old_entries() {
    let mut world = World::new();
    world.options.window_bytes = 2 * 4096;
    let (group, mut driver) = world.open_stepped().expect("opens");
    for round in 0..20 {
        write(&world, &group, &mut driver, 20);
        group.maintain();
        assert!(
            files(&world, "log-") + files(&world, "spare-") <= 6,
            "round {round}"
        );
    }
    let first = group.first_position();
    driver.close().expect("closes");
    for opened in 1..=2 {
        let (group, _driver) = world.open_stepped().expect("opens");
        assert_eq!(group.first_position(), first);
        assert_eq!(group.last_applied(), at(400 + opened));
        let entries = group.read(first.previous(), usize::MAX).expect("reads");
        let expected: Vec<_> = (first.get() - OWN..=400 + opened).collect();
        assert_eq!(positions(&entries), expected);
    }
}

#[test]
fn a_spare_is_ready_before_the_segment_is_full() {
    let world = World::new();
    let (group, mut driver) = world.open_stepped().expect("opens");
    group.maintain();
    assert_eq!(files(&world, "spare-"), 0);
    write(&world, &group, &mut driver, 8);
    group.maintain();
    group.maintain();
    assert_eq!(files(&world, "spare-"), 1);
    write(&world, &group, &mut driver, 8);
    assert_eq!((files(&world, "log-"), files(&world, "spare-")), (2, 0));
}

/// Readers that fall behind race with trimming and recycling: each gets entries without
/// holes, or is told that it is too late; never bytes of another time.
#[test]
fn readers_that_fall_behind_see_whole_entries_or_are_too_late() {
    let mut world = World::new();
    world.options.window_bytes = 2 * 4096;
    let group = world.open().expect("opens");
    let writing = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut reached = at(0);
                while writing.load(Ordering::Acquire) || reached < group.last_applied() {
                    match group.read(reached, 500) {
                        Ok(entries) => {
                            for entry in entries {
                                assert_eq!(entry.position, reached.next());
                                assert_eq!(
                                    entry.payload,
                                    entry.position.get().to_le_bytes().repeat(20)
                                );
                                reached = entry.position;
                            }
                        }
                        Err(ReadError::TooOld { first, .. }) => reached = first.previous(),
                        Err(error) => panic!("after {reached}: {error}"),
                    }
                }
            });
        }
        for _ in 0..1500 {
            let pending = group
                .propose(Synced, vec![0; 160], |payload, position, _| {
                    payload.copy_from_slice(&position.get().to_le_bytes().repeat(20));
                    position.get()
                })
                .expect("there is room");
            pending.wait().expect("applied");
        }
        writing.store(false, Ordering::Release);
    });
    group.maintain();
    assert!(group.first_position() > at(1), "it was trimmed");
    group.close().expect("closes");
}
