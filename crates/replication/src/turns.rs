//! Whose thread a turn of the loop runs on: the log's own, or a proposer's.
//!
//! The log has a thread because writes wait for disks and for other members, and gather
//! meanwhile. A write that is only buffered, on a sole member, waits for neither: handing
//! it to another thread and being woken again costs more than the turn. So a proposer
//! that awaits its answer at once ([`Group::propose_awaited`](crate::Group::propose_awaited))
//! *promises* to see to it, and the log's thread is left asleep:
//!
//! ```text
//!   propose ─► promised ─► first poll ─► the driver is free, and all that waits is small
//!                 │            │          and buffered ──► takes the turn ─► answered
//!                 │            ├ somebody has the driver ─► looks again when he is done
//!                 │            └ anything else ──┐
//!                 └ dropped unpolled ────────────┴─► the log's thread is woken
//! ```
//!
//! ⚑ Work is never left lying. What waits is either promised, or the log's thread was
//! woken for it, or somebody has the driver: whoever gives the driver back looks once
//! more, *after* he gave it back, for what is not promised. Who finds the driver taken has
//! given up his promise before he tried.
//!
//! ⚑ Work is taken with the driver held, so that it reaches the log in its order.
//!
//! A proposer's thread does nothing that could wait: no sync, no new segment, no state
//! machine that lets its writers wait ([`StateMachine::applies_at_once`]). The sync of what
//! it has buffered is the log's thread's, which is told when the first of it is written.
//!
//! A turn that panics takes the driver with it, which stops the group.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::commit::Driver;
use crate::entry::LogPosition;
use crate::sequencer::{Shared, Wake};
use crate::state_machine::StateMachine;

/// What a turn on a proposer's thread may be about. More is worth a thread of its own.
const TURN_BYTES_MAX: usize = 16 << 10;
/// How many turns a proposer takes for others who came meanwhile.
const TURNS_MAX: usize = 4;

/// The driver of a group with threads, for whoever takes the next turn.
pub(crate) struct Turns<S: StateMachine> {
    shared: Arc<Shared<S::Companion>>,
    /// Gone when the loop has ended.
    driver: Mutex<Option<Box<Driver<S>>>>,
}

/// How the log's thread rests.
struct Rest {
    until: Option<Instant>,
    /// Proposals that a quorum has not confirmed get a little time when closing.
    under_way: bool,
    ticking: bool,
}

/// What a proposer needs of it.
pub(crate) trait TakesTurns: Send + Sync {
    /// Keeps the promise that was given for the proposal at a position.
    fn keep_promise(&self, position: LogPosition);

    /// Leaves it to the log's thread.
    fn give_up_promise(&self, position: LogPosition);
}

impl<S: StateMachine> Turns<S> {
    pub fn new(shared: Arc<Shared<S::Companion>>, mut driver: Driver<S>) -> Self {
        driver.reads_apart = true;
        Self {
            shared,
            driver: Mutex::new(Some(Box::new(driver))),
        }
    }

    /// The life of the log's thread.
    pub fn run(&self) {
        let mut next_tick = Instant::now() + self.shared.tick();
        let mut closing_ticks = 0;
        while let Some(rest) = self.rest(next_tick, closing_ticks) {
            let wake = self.shared.wait(rest.until, rest.under_way);
            if wake == Wake::Finished {
                break;
            }
            let mut slot = self.driver.lock();
            // Out of its place, so that a panic drops it.
            let Some(mut driver) = slot.take() else {
                break;
            };
            if wake == Wake::Work {
                driver.step();
            }
            let now = Instant::now();
            let tick = self.shared.tick();
            // Ticks may have become shorter since.
            next_tick = next_tick.min(now + tick);
            if rest.ticking && now >= next_tick {
                closing_ticks += usize::from(self.shared.is_closing());
                driver.tick();
                // A thread that was held up does not make up for the ticks it missed.
                next_tick = (next_tick + tick).max(now);
            } else if !rest.ticking {
                next_tick = now + tick;
            }
            if driver.sync_due().is_some_and(|due| due <= now) {
                driver.sync();
            }
            *slot = Some(driver);
        }
        let ended = self.driver.lock().take();
        if let Some(mut driver) = ended {
            // The reason is kept in the group, where `close` finds it.
            let _ = driver.finish();
        }
    }

    /// How the log's thread may rest. `None` if the driver is gone.
    fn rest(&self, next_tick: Instant, closing_ticks: usize) -> Option<Rest> {
        let slot = self.driver.lock();
        let driver = slot.as_ref()?;
        let ticking = driver.is_ticking();
        let tick_due = ticking.then_some(next_tick);
        Some(Rest {
            until: [driver.sync_due(), tick_due].into_iter().flatten().min(),
            under_way: ticking
                && !driver.in_flight.is_empty()
                && closing_ticks < self.shared.log.options.election_ticks,
            ticking,
        })
    }

    /// Takes a turn if it can be taken here and now.
    fn take_turn(slot: &mut Option<Box<Driver<S>>>) -> bool {
        // Out of its place, as above.
        let Some(mut driver) = slot.take() else {
            return false;
        };
        let taken = driver.step_at_once(TURN_BYTES_MAX);
        *slot = Some(driver);
        taken
    }
}

impl<S: StateMachine> TakesTurns for Turns<S> {
    fn keep_promise(&self, position: LogPosition) {
        if !self.shared.redeem(position) {
            return;
        }
        for _ in 0..TURNS_MAX {
            let Some(mut slot) = self.driver.try_lock() else {
                return;
            };
            let taken = Self::take_turn(&mut slot);
            drop(slot);
            if !self.shared.has_unpromised() {
                return;
            }
            if !taken {
                break;
            }
        }
        self.shared.wake();
    }

    fn give_up_promise(&self, position: LogPosition) {
        if self.shared.redeem(position) {
            self.shared.wake();
        }
    }
}
