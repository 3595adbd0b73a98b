//! Changing the members of a group that works.

use parking_lot::Mutex;
use replication::{Beginning, ChangeError};
use std::sync::Arc;

use crate::switchboard::{
    Stop, Switchboard, begin, block_on, ids, is_leader, leader, wait_for, write,
};

#[test]
fn one_member_becomes_three_and_another_one() {
    let board = Switchboard::default();
    let mut members = begin(&board, 1, |_| {});
    assert!(is_leader(&members[0]), "a sole voter leads at once");
    for number in 0..30u8 {
        write(&members[0], &[number]).wait().expect("applied");
    }
    for id in [2, 3] {
        members.push(board.add(id, Beginning::Joining, |_| {}));
    }
    let first = &members[0];
    block_on(first.group.change_members(&ids(&[1]), &ids(&[2, 3]))).expect("learners");
    wait_for("the learners to catch up", || {
        let seen = first.group.members();
        let last = Some(first.group.last_applied());
        seen.progress
            .iter()
            .all(|member| member.matched >= last)
            .then_some(())
    });
    assert_eq!(members[2].journal.payloads().len(), 30);
    block_on(first.group.change_members(&ids(&[1, 2, 3]), &[])).expect("voters");
    let seen = first.group.members();
    assert_eq!(seen.configuration.voters, ids(&[1, 2, 3]));
    assert!(!seen.configuration.is_joint());
    write(first, b"by three").wait().expect("applied");

    // The leader leaves: another one takes over.
    block_on(first.group.change_members(&ids(&[2, 3]), &[])).expect("without it");
    let second = leader(&members[1..]);
    write(second, b"by two").wait().expect("applied");
    assert!(!is_leader(first));
    assert_eq!(second.journal.payloads().len(), 32);
    let invalid = block_on(second.group.change_members(&[], &ids(&[2])));
    assert!(matches!(invalid, Err(ChangeError::Invalid { .. })));
    let nothing = block_on(second.group.change_members(&ids(&[2, 3]), &[]));
    assert_eq!(nothing, Ok(()));
    board.close();
}

/// ⚑ What is committed is not kept. A member that dies with two changes of members in its log, and has carried out
/// neither, still knows that the first one holds: otherwise it could be elected by members that do not count any
/// more.
#[test]
fn a_change_that_another_one_followed_holds_after_a_crash() {
    let board = Switchboard::default();
    let members = begin(&board, 3, |_| {});
    let first = leader(&members);
    write(first, b"before").wait().expect("applied");
    let others: Vec<_> = members
        .iter()
        .filter(|other| other.id != first.id)
        .collect();
    let [other, leaving] = others[..] else {
        panic!("there are three");
    };
    let applied = |payloads: usize| {
        wait_for("the other one to apply it", || {
            (other.journal.payloads().len() == payloads).then_some(())
        });
    };
    applied(1);
    let file = other.disk.contents("member.state").expect("it is there");
    let journal = other.journal.copy();
    let mut voters = vec![first.id, other.id];
    voters.sort_unstable();
    for learners in [vec![], vec![leaving.id]] {
        block_on(first.group.change_members(&voters, &learners)).expect("they are the members");
    }
    write(first, b"after").wait().expect("applied");
    applied(2);
    board.close();

    // As if it had died before it carried out the first one.
    other
        .disk
        .damage("member.state", 0, &file)
        .expect("written");
    let alone = Switchboard::default();
    let again = alone.open(
        other.id.get(),
        other.disk.clone(),
        journal,
        Beginning::Joining,
        |_| {},
    );
    wait_for("it knows who is a member", || {
        let known = again.group.members();
        (known.configuration.voters == voters).then_some(())
    });
    alone.close();
}

/// Members that come too late for the log get a copy of the state.
#[test]
fn a_member_that_the_log_does_not_reach_back_for_gets_the_state() {
    let board = Switchboard::default();
    let mut members = begin(&board, 1, |options| options.window_bytes = 0);
    for number in 0..60u8 {
        write(&members[0], &[number; 200]).wait().expect("applied");
    }
    members[0].group.maintain();
    assert!(
        members[0].group.first_position().get() > 30,
        "it was trimmed"
    );
    members.push(board.add(2, Beginning::Joining, |_| {}));
    let (first, second) = (&members[0], &members[1]);
    block_on(first.group.change_members(&ids(&[1]), &ids(&[2]))).expect("a learner");
    for number in 60..70u8 {
        write(first, &[number; 200]).wait().expect("applied");
    }
    wait_for("the learner to catch up", || {
        (second.journal.payloads() == first.journal.payloads()).then_some(())
    });
    assert_eq!(second.journal.installs(), 1);
    assert!(second.group.first_position().get() > 30);
    assert_eq!(second.journal.payloads().len(), 70);
    block_on(first.group.change_members(&ids(&[1, 2]), &[])).expect("a voter");
    write(first, b"by two").wait().expect("applied");
    board.close();
}

/// ⚑ A member that was restarted looks what it has of a copy, which may be all of a large state: the log's loop
/// does not wait for that, and whoever sends the copy does not give it up.
#[test]
fn a_member_answers_while_it_looks_what_it_has_of_a_copy() {
    let board = Switchboard::default();
    let mut members = begin(&board, 1, |options| options.window_bytes = 0);
    for number in 0..60u8 {
        write(&members[0], &[number; 200]).wait().expect("applied");
    }
    members[0].group.maintain();
    let held = Arc::new(Mutex::new(()));
    let no_further = held.lock();
    let stop = Stop {
        left: 50,
        held: held.clone(),
    };
    members[0].journal.stop_reading(stop);
    let second = board.add(2, Beginning::Joining, |_| {});
    let first = members.remove(0);
    block_on(first.group.change_members(&ids(&[1]), &ids(&[2]))).expect("a learner");
    wait_for("ten parts", || {
        (second.journal.gathered() == (1, 10)).then_some(())
    });
    let looks = second.journal.looks();
    let looking = looks.lock();
    let second = board.restart(second, |_| {});
    drop(no_further);
    let is_asked = || Arc::strong_count(&looks) > 2;
    wait_for("the member to look", || is_asked().then_some(()));
    // Its loop goes on: it says that it does not lead.
    assert!(block_on(second.group.read_barrier()).is_err());
    drop(looking);
    wait_for("the learner to catch up", || {
        (second.journal.payloads() == first.journal.payloads()).then_some(())
    });
    assert_eq!(second.journal.gathered().0, 1, "it was begun once");
    board.close();
}
