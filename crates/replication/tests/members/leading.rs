//! Electing, losing, confirming and handing over leadership.

use replication::{Durability, LeaderError, ProposeError};

use crate::switchboard::{Switchboard, begin, block_on, is_leader, leader, wait_for, write};

#[test]
fn one_leads_the_others_follow_and_all_apply_the_same() {
    let board = Switchboard::default();
    let members = begin(&board, 3, |_| {});
    let first = leader(&members);
    for number in 0..50u8 {
        write(first, &[number]).wait().expect("applied");
    }
    let expected: Vec<_> = (0..50u8).map(|number| vec![number]).collect();
    for member in &members {
        wait_for("all to be applied", || {
            (member.journal.payloads() == expected).then_some(())
        });
        if member.id != first.id {
            let refused = member
                .group
                .propose(Durability::Synced, Vec::new(), |_, _, _| {
                    panic!("the closure does not run on a follower")
                });
            let leader = Some(first.id);
            assert_eq!(refused.err(), Some(ProposeError::NotLeader { leader }));
            let barrier = block_on(member.group.read_barrier());
            assert_eq!(barrier, Err(LeaderError::NotLeader { leader }));
        }
    }
    let members_seen = wait_for("all to be known as synced", || {
        let seen = first.group.members();
        let last = Some(first.group.last_applied());
        seen.progress
            .iter()
            .all(|member| member.matched >= last)
            .then_some(seen)
    });
    assert_eq!(members_seen.progress.len(), 3);
    assert_eq!(members_seen.leader, Some(first.id));
    board.close();
}

/// How soon is counted in ticks, by the scripts `a_leader_that_is_gone_is_replaced_at_once` and
/// `silence_is_noticed_after_an_election_timeout`.
#[test]
fn another_member_takes_over_and_confirms_the_next_write() {
    for is_told in [false, true] {
        let board = Switchboard::default();
        let members = begin(&board, 3, |_| {});
        let first = leader(&members);
        write(first, b"before").wait().expect("applied");
        board.cut(first.id);
        for member in members.iter().filter(|_| is_told) {
            member.group.gone(first.id);
        }
        let second = wait_for("another leader", || {
            members
                .iter()
                .find(|member| member.id != first.id && is_leader(member))
        });
        write(second, b"after").wait().expect("applied");
        let expected = [b"before".to_vec(), b"after".to_vec()];
        assert_eq!(second.journal.payloads(), expected);
        board.close();
    }
}

#[test]
fn a_leader_that_is_cut_off_acknowledges_nothing_and_takes_over_what_others_decided() {
    let board = Switchboard::default();
    let members = begin(&board, 3, |_| {});
    let old = leader(&members);
    let old_term = old.group.leading().expect("it leads");
    write(old, b"kept").wait().expect("applied");
    board.cut(old.id);
    // More than a segment holds, so that cutting it off removes files.
    let lost: Vec<_> = (0..40).map(|_| write(old, &[7; 300])).collect();
    let barrier = block_on(old.group.read_barrier());
    assert!(matches!(barrier, Err(LeaderError::NotLeader { .. })));
    for pending in lost {
        assert_eq!(pending.wait(), Err(ProposeError::LeadershipLost));
    }
    let new = wait_for("another leader", || {
        members
            .iter()
            .find(|member| member.id != old.id && is_leader(member))
    });
    write(new, b"instead").wait().expect("applied");
    board.mend();
    let expected = [b"kept".to_vec(), b"instead".to_vec()];
    wait_for("the old leader to take it over", || {
        (old.journal.payloads() == expected).then_some(())
    });
    let entries = old
        .group
        .read(replication::LogPosition::BEFORE_FIRST, usize::MAX);
    let entries = entries.expect("reads");
    assert_eq!(
        entries.last().map(|entry| &entry.payload[..]),
        Some(&b"instead"[..])
    );

    // ⚑ What was evaluated before the loss is refused, even if it leads again.
    block_on(new.group.transfer(Some(old.id))).expect("handed over");
    wait_for("the old leader to lead again", || {
        is_leader(old).then_some(())
    });
    let stale = old
        .group
        .propose_in(old_term, Durability::Synced, vec![1], |_, _, _| ());
    assert!(matches!(stale.err(), Some(ProposeError::NotLeader { .. })));
    let term = old.group.leading().expect("it leads");
    let fresh = old
        .group
        .propose_in(term, Durability::Synced, vec![2], |_, _, _| ());
    fresh.expect("accepted").wait().expect("applied");
    board.close();
}

#[test]
fn leadership_is_handed_over_while_writes_go_on() {
    let board = Switchboard::default();
    let members = begin(&board, 3, |_| {});
    let old = leader(&members);
    let mut acknowledged = Vec::new();
    let mut pending = Vec::new();
    for number in 0..20u8 {
        pending.push((number, write(old, &[number])));
    }
    block_on(old.group.transfer(None)).expect("handed over");
    for (number, pending) in pending {
        if pending.wait().is_ok() {
            acknowledged.push(vec![number]);
        }
    }
    let new = wait_for("another leader", || {
        members
            .iter()
            .find(|member| member.id != old.id && is_leader(member))
    });
    block_on(new.group.read_barrier()).expect("it leads");
    let applied = new.journal.payloads();
    for payload in acknowledged {
        assert!(applied.contains(&payload), "{payload:?}");
    }
    assert_eq!(
        block_on(old.group.transfer(None)),
        Err(LeaderError::NotLeader {
            leader: Some(new.id)
        })
    );
    board.close();
    let closed = block_on(new.group.read_barrier());
    assert!(
        matches!(closed, Err(LeaderError::Stopped { .. })),
        "{closed:?}"
    );
}
