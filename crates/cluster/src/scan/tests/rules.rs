//! Rules switched off: the search finds a document that is lost, or comes twice. The list is in the header of the
//! module above.

use super::search::{Layout, search};
use super::worlds::{Broken, Event, Run, small_world, world};
use super::*;

/// What the search finds in small worlds, of whichever order.
fn found(broken: impl Fn(&mut Run)) -> String {
    for order in [Order::Unsorted, Order::Sorted] {
        for batch_max in [1, 2] {
            let mut run = Run::new(small_world(Emission::First), order, batch_max);
            broken(&mut run);
            if let Err(error) = search(&run, &Layout::Halves.all(), 1) {
                return error;
            }
        }
    }
    panic!("nothing goes wrong without the rule");
}

#[test]
fn a_document_comes_at_its_first_entry_only() {
    let error = found(|run| run.world.emission = Emission::FirstSeen);
    let repeated = ["came 2 times", "came 3 times"];
    assert!(repeated.iter().any(|text| error.contains(text)), "{error}");
}

#[test]
fn ownership_is_of_the_snapshot() {
    let error = found(|run| run.world.telling = Telling::OfBefore);
    assert!(error.contains("came 0 times"), "{error}");
}

#[test]
fn what_moved_goes_on_from_before_the_batch() {
    let error = found(|run| run.broken = Some(Broken::BehindTheBatch));
    assert!(error.contains("came 0 times"), "{error}");
}

#[test]
fn tokens_stand_behind_what_was_delivered() {
    // What is held back is fetched, and not delivered.
    let check = |broken| {
        let mut run = Run::new(small_world(Emission::First), Order::Unsorted, 3);
        run.broken = broken;
        run.step(0, 2);
        run.happen(Event::Resume);
        run.finish()
    };
    assert_eq!(check(None), Ok(()));
    let error = check(Some(Broken::Fetched)).unwrap_err();
    assert!(error.contains("came 0 times"), "{error}");
}

#[test]
fn merged_chunks_remember_their_owners() {
    let check = |broken| {
        let mut run = Run::new(small_world(Emission::First), Order::Unsorted, 1);
        run.broken = broken;
        run.step(0, 0);
        for slot in [2, 3] {
            run.happen(Event::Move { slot, to: 0 });
        }
        run.happen(Event::Merge { slot: 0 });
        run.happen(Event::Resume);
        run.finish()
    };
    assert_eq!(check(None), Ok(()));
    let error = check(Some(Broken::ForgetfulMerges)).unwrap_err();
    assert!(error.contains("not known any more"), "{error}");
}

#[test]
fn tokens_hold_what_is_left_of_the_window() {
    let check = |broken| {
        let documents: Vec<(usize, u8)> = (0..12).map(|id| (id % 4, id as u8)).collect();
        let mut run = Run::new(world(&[0, 1, 2, 0], &documents), Order::Sorted, 2);
        run = run.with_window(3, Some(6));
        run.broken = broken;
        for _ in 0..6 {
            run.step(0, 0);
        }
        run.happen(Event::Resume);
        while run.step(0, 0) {}
        run.found.iter().map(|(_, id)| *id).collect::<Vec<u32>>()
    };
    assert_eq!(check(None), [3, 4, 5, 6, 7, 8]);
    assert_ne!(check(Some(Broken::Window)), check(None));
}
