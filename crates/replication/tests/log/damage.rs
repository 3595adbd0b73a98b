//! Bytes that changed by themselves: told apart from a torn tail where that is possible.

use replication::disk::Disk;
use replication::{Driver, Durability::Synced, Error, Group, GroupId, ReadError};

use crate::world::{Ledger, World, at, propose};

const FIRST_SEGMENT: &str = "log-0000000000000001.seg";

fn write(group: &Group<Ledger>, driver: &mut Driver<Ledger>, count: u64) {
    for _ in 0..count {
        // 256 bytes in the file, header included.
        drop(propose(group, Synced, &[5; 208]));
        driver.step();
    }
}

/// The offset of a proposal's entry in the first segment, after those of the log itself.
fn offset(number: u64) -> u64 {
    512 + 64 + 48 + (number - 1) * 256
}

#[test]
fn damage_in_the_last_segment_is_an_error_unless_it_is_at_the_very_end() {
    let check = |position: u64, byte: u64, cut: bool| {
        let world = World::new();
        let (group, mut driver) = world.open_stepped().expect("opens");
        write(&group, &mut driver, 10);
        driver.close().expect("closes");
        let before = world.disk.contents(FIRST_SEGMENT).expect("is there");
        let at_byte = offset(position) + byte;
        let damaged = [before[at_byte as usize] ^ 0x40];
        world
            .disk
            .damage(FIRST_SEGMENT, at_byte, &damaged)
            .expect("damages");
        let damaged = world.disk.contents(FIRST_SEGMENT).expect("is there");
        // A state that has nothing: everything must come from the log.
        world.ledger.power_cut(0);
        let opened = world.open_stepped();
        if cut {
            let (group, _driver) = opened.expect("a torn tail is cut");
            // In its place there is the first of the new term.
            assert_eq!(group.last_applied(), at(position));
            assert_eq!(group.last_applied().get(), world.ledger.applied());
            return;
        }
        let error = opened.err().expect("damage is not cut");
        assert!(
            matches!(error, Error::Corrupt { .. }),
            "{position} {byte}: {error}"
        );
        assert_eq!(
            world.disk.contents(FIRST_SEGMENT).expect("is there"),
            damaged,
            "unchanged"
        );
    };
    for byte in [0, 2, 4, 8, 16, 24, 32, 40, 48, 255 - 8] {
        check(1, byte, false);
        check(5, byte, false);
        check(9, byte, false);
        check(10, byte, true);
    }
}

#[test]
fn damage_in_an_earlier_segment_is_found_when_it_is_read() {
    let world = World::new();
    let (group, mut driver) = world.open_stepped().expect("opens");
    write(&group, &mut driver, 40);
    driver.close().expect("closes");
    world
        .disk
        .damage(FIRST_SEGMENT, offset(3) + 60, b"!")
        .expect("damages");
    let (group, driver) = world.open_stepped().expect("opens");
    assert_eq!(
        group.read(at(3), 1).map(|entries| entries.len()),
        Err(corrupt(3))
    );
    assert_eq!(group.read(at(14), 1).map(|entries| entries.len()), Ok(1));
    drop(driver);
    world.disk.restart(None);
    // A state that needs it cannot be brought up to date.
    world.ledger.power_cut(0);
    let error = world.open_stepped().err().expect("it does not open");
    assert!(matches!(error, Error::Stopped { .. }), "{error}");
    assert!(error.to_string().contains("checksum"), "{error}");
}

fn corrupt(position: u64) -> ReadError {
    ReadError::Corrupt {
        file: FIRST_SEGMENT.to_owned(),
        detail: format!("at byte {}: the checksum is wrong", offset(position)),
    }
}

#[test]
fn a_log_that_is_not_ours_or_not_whole_is_refused() {
    let check = |name: &str, change: &dyn Fn(&mut World), expected: &str| {
        let mut world = World::new();
        let (group, mut driver) = world.open_stepped().expect("opens");
        write(&group, &mut driver, 40);
        driver.close().expect("closes");
        change(&mut world);
        let error = world.open_stepped().err().expect(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
    };
    let segment = |world: &World, number: usize| {
        let mut names = world.disk.list().expect("lists");
        names.retain(|name| name.starts_with("log-"));
        names[number].clone()
    };
    let damage = |world: &World, at: u64, data: &[u8]| {
        world.disk.damage(FIRST_SEGMENT, at, data).expect("damages");
    };
    check("the magic bytes", &|world| damage(world, 0, b"X"), "magic");
    check(
        "another version",
        &|world| damage(world, 8, &[9]),
        "format version 9",
    );
    check(
        "a header field",
        &|world| damage(world, 50, &[1]),
        "checksum of the header",
    );
    check(
        "another group",
        &|world| world.options.group = GroupId(2),
        "another log group",
    );
    check(
        "a segment is missing",
        &|world| world.disk.remove(&segment(world, 1)).expect("removes"),
        "the log is damaged",
    );
    check(
        "a segment has the wrong name",
        &|world| {
            let (from, to) = (segment(world, 1), "log-0000000000000014.seg");
            world.disk.rename(&from, to).expect("renames");
        },
        "another name",
    );
    check(
        "all segments are missing",
        &|world| {
            for name in world.disk.list().expect("lists") {
                world.disk.remove(&name).expect("removes");
            }
        },
        "there is no log",
    );
    check(
        "the state is older than the log",
        &|world| {
            world.disk.remove(FIRST_SEGMENT).expect("removes");
            world.ledger.power_cut(0);
        },
        "needs the log after 0",
    );
}

/// A torn entry that stayed where it was could become whole, when the entry written over
/// it is torn in its turn and the two have blocks in common.
#[test]
fn a_torn_entry_is_cleared_so_that_a_later_write_cannot_complete_it() {
    let check = |torn: std::ops::Range<u64>| {
        let world = World::new();
        let (group, mut driver) = world.open_stepped().expect("opens");
        write(&group, &mut driver, 1);
        drop(propose(&group, Synced, &[7; 1500]));
        driver.step();
        driver.close().expect("closes");
        world.ledger.power_cut(3);
        let before = world.disk.contents(FIRST_SEGMENT).expect("is there");
        for at_byte in torn.clone() {
            world
                .disk
                .damage(FIRST_SEGMENT, at_byte, &[0])
                .expect("damages");
        }
        let (group, _driver) = world.open_stepped().expect("opens");
        assert_eq!(group.last_applied(), at(2), "{torn:?}");
        let after = world.disk.contents(FIRST_SEGMENT).expect("is there");
        let end = offset(2) as usize;
        assert_eq!(after[..end], before[..end], "{torn:?}");
        // Behind it there is the first of the new term, and nothing else.
        let rest = &after[end + 48..];
        assert!(rest.iter().all(|byte| *byte == 0), "{torn:?}");
    };
    check(880..1024);
    check(1024..1536);
    check(1536..2048);
    check(2048..2428);
}
