//! Turns of the loop on proposers' threads: who takes them, and that no work is left lying.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;

use replication::disk::Disk;
use replication::{
    Applied,
    Durability::{self, Buffered, Synced},
    Error, Group, Pending, ProposeError,
};

use crate::world::{Ledger, World, at, propose};

/// A ledger that proposers may apply to, and its log with threads.
fn open(world: &World) -> Group<Ledger> {
    world.ledger.pages.lock().at_once = true;
    let group = world.open().expect("opens");
    world.ledger.pages.lock().threads.clear();
    group
}

fn propose_awaited(group: &Group<Ledger>, durability: Durability, payload: &[u8]) -> Pending {
    let payload = payload.to_vec();
    group
        .propose_awaited(None, durability, 1, payload, |_, position, _| {
            position.get()
        })
        .expect("there is room")
}

fn poll(pending: &mut Pending) -> Poll<Result<Applied, ProposeError>> {
    pin!(pending).poll(&mut Context::from_waker(Waker::noop()))
}

fn segment_count(world: &World) -> usize {
    let names = world.disk.list().expect("the disk is there");
    let is_segment = |name: &&String| !name.starts_with("spare") && name.ends_with(".seg");
    names.iter().filter(is_segment).count()
}

/// Whether each call of apply was made on this thread.
fn here(world: &World) -> Vec<bool> {
    let me = thread::current().id();
    let threads = std::mem::take(&mut world.ledger.pages.lock().threads);
    threads.into_iter().map(|thread| thread == me).collect()
}

#[test]
fn a_proposer_takes_the_turn_where_nothing_is_waited_for() {
    let check = |name: &str, durability, payload: &[u8], change: &dyn Fn(&World), expected| {
        let mut world = World::new();
        world.options.segment_bytes = 1 << 20;
        let group = open(&world);
        change(&world);
        let pending = propose_awaited(&group, durability, payload);
        let given = pending.given();
        assert_eq!(pending.wait(), Ok(given), "{name}");
        assert_eq!(here(&world), [expected], "{name}");
        group.close().expect("closes");
    };
    let nothing = |_: &World| {};
    check("buffered", Buffered, b"x", &nothing, true);
    check("synced", Synced, b"x", &nothing, false);
    check("large", Buffered, &[0; 20_000], &nothing, false);
    let busy = |world: &World| world.ledger.pages.lock().at_once = false;
    check("a state that may wait", Buffered, b"x", &busy, false);
}

#[test]
fn a_first_poll_answers() {
    let world = World::new();
    let group = open(&world);
    let mut pending = propose_awaited(&group, Buffered, b"x");
    let given = pending.given();
    assert_eq!(poll(&mut pending), Poll::Ready(Ok(given)));
    group.close().expect("closes");
}

/// A segment that is full is synced before the next one begins: not on a proposer's thread.
#[test]
fn segments_are_begun_by_the_logs_thread() {
    let world = World::new();
    let group = open(&world);
    let segments = || segment_count(&world);
    let mut begun = 0;
    for _ in 0..100 {
        let before = segments();
        let pending = propose_awaited(&group, Buffered, &[7; 500]);
        pending.wait().expect("applied");
        begun += segments() - before;
        let is_here = here(&world);
        assert!(is_here == [false] || segments() == before, "{is_here:?}");
    }
    assert!(begun > 5);
    assert_eq!(world.ledger.applied(), at(100).get());
    group.close().expect("closes");
}

/// ⚑ The log's thread sleeps without a deadline until the first of it is written.
#[test]
fn what_a_proposer_buffered_is_synced_in_time() {
    let mut world = World::new();
    world.options.sync_delay_ms = 1;
    let group = open(&world);
    let mut last = at(0);
    for _ in 0..20 {
        let applied = propose_awaited(&group, Buffered, b"x").wait();
        last = applied.expect("applied").position;
        while group.last_synced() < last {
            thread::yield_now();
        }
    }
    assert_eq!(last, at(20));
    group.close().expect("closes");
}

#[test]
fn a_promise_that_is_not_kept_is_given_to_the_logs_thread() {
    let world = World::new();
    let group = open(&world);
    // Dropped before it was polled.
    let given = propose_awaited(&group, Buffered, b"x").given();
    while group.last_applied() < given.position {
        thread::yield_now();
    }
    assert_eq!(here(&world), [false]);
    // Others need not wait for it.
    let mut promised = propose_awaited(&group, Buffered, b"y");
    let behind = propose(&group, Synced, b"z");
    behind.wait().expect("applied");
    let given = promised.given();
    assert_eq!(poll(&mut promised), Poll::Ready(Ok(given)));
    // Nor does closing.
    let promised = propose_awaited(&group, Buffered, b"y");
    group.close().expect("closes");
    let given = promised.given();
    assert_eq!(promised.wait(), Ok(given));
}

#[test]
fn a_proposer_does_what_others_have_promised() {
    let world = World::new();
    let group = open(&world);
    let mut first = propose_awaited(&group, Buffered, b"x");
    let mut second = propose_awaited(&group, Buffered, b"y");
    let (one, two) = (first.given(), second.given());
    assert_eq!(poll(&mut second), Poll::Ready(Ok(two)));
    assert_eq!(here(&world), [true], "both in one turn");
    assert_eq!(poll(&mut first), Poll::Ready(Ok(one)));
    assert_eq!(here(&world), [], "nothing was left to do");
    group.close().expect("closes");
}

#[test]
fn a_turn_that_panics_stops_the_group() {
    let world = World::new();
    let group = open(&world);
    world.ledger.pages.lock().panic_apply = true;
    let proposer = {
        let group = group.clone();
        thread::spawn(move || propose_awaited(&group, Buffered, b"x").wait())
    };
    assert!(proposer.join().is_err(), "the panic is the proposer's");
    while group.stopped().is_none() {
        thread::yield_now();
    }
    let refused = group.propose(Synced, Vec::new(), |_, position, _| position.get());
    assert!(matches!(refused.err(), Some(ProposeError::Stopped { .. })));
    assert!(matches!(group.close(), Err(Error::Stopped { .. })));
}

/// All of it is applied, in order (the ledger looks), whoever takes the turns.
#[test]
fn proposers_and_the_logs_thread_take_turns() {
    let mut world = World::new();
    world.options.sync_delay_ms = 1;
    world.options.segment_bytes = 1 << 16;
    let group = open(&world);
    let (proposers, each) = (4u64, 3_000u64);
    thread::scope(|scope| {
        for proposer in 0..proposers {
            let group = &group;
            scope.spawn(move || {
                for number in 0..each {
                    let payload = [proposer as u8; 30];
                    match (number + proposer) % 7 {
                        0 => drop(propose_awaited(group, Buffered, &payload)),
                        1 => {
                            let pending = propose(group, Synced, &payload);
                            pending.wait().expect("applied");
                        }
                        2 => drop(propose(group, Buffered, &payload)),
                        _ => {
                            let pending = propose_awaited(group, Buffered, &payload);
                            let given = pending.given();
                            assert_eq!(pending.wait(), Ok(given));
                            assert!(group.last_applied() >= given.position);
                        }
                    }
                }
            });
        }
    });
    group.close().expect("closes");
    assert_eq!(world.ledger.applied(), at(proposers * each).get());
    let threads = std::mem::take(&mut world.ledger.pages.lock().threads);
    assert!(threads.iter().any(|thread| *thread != threads[0]));
}
