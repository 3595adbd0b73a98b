//! Long work lets others have the core, a piece at a time.
//!
//! Linux lets a thread that has just woken up run until its slice is over, up to a tick of four milliseconds. Whoever
//! wakes up on the same core meanwhile waits for it, whatever the priorities are (decision 30). A thread that offers
//! the core itself, every [`PIECE`], is waited for no longer than that.
//!
//! ```text
//!   nobody waits     work ─┤ work ─┤ work ─┤ work      an offer costs half a microsecond
//!   a request        work ─┤▒ work ─┤ work ─┤ work     ▒ somebody else
//!   a busy machine   work ─┤▒▒▒▒▒▒▒▒ work ─ work ─ work ─┤▒▒▒▒▒▒▒▒
//! ```
//!
//! ⚑ Whoever takes an offer may keep the core for as long as he likes. So the next one is made after as much work as
//! the last one took, at the earliest: half of the time is not given away, and what others wait for in the end (a
//! flush, an entry of the log) comes to its end on a machine that is never idle. A thread remembers that from one
//! piece of work to the next.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The work between two offers. A read takes about five times as long, from client to client.
pub const PIECE: Duration = Duration::from_micros(30);

/// The clock is asked at every so many looks: asking takes a thousandth of a piece.
const LOOKS_PER_CLOCK: u32 = 4;

/// What a thread remembers of its last offer.
#[derive(Clone, Copy, Default)]
struct Offers {
    looks: u32,
    /// When it had the core back, and how much work it does before it offers it again.
    working: Option<(Instant, Duration)>,
}

thread_local! {
    static OFFERS: Cell<Offers> = const {
        Cell::new(Offers { looks: 0, working: None })
    };
}

/// Offers this thread's core if it is time to. Asked after every microsecond or two of work.
pub fn look() {
    OFFERS.set(OFFERS.get().after_look());
}

impl Offers {
    fn after_look(mut self) -> Self {
        self.looks += 1;
        if self.looks < LOOKS_PER_CLOCK {
            return self;
        }
        self.looks = 0;
        let now = Instant::now();
        // What was done before the first look nobody knows: it may have been a piece.
        let is_working = |(since, work)| now.saturating_duration_since(since) < work;
        if !self.working.is_some_and(is_working) {
            std::thread::yield_now();
            let back = Instant::now();
            self.working = Some((back, work_after(back.saturating_duration_since(now))));
        }
        self
    }
}

/// How much work follows an offer that took so long.
fn work_after(given: Duration) -> Duration {
    given.max(PIECE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_given_away_than_was_worked() {
        let check = |given: Duration, work| assert_eq!(work_after(given), work);
        check(Duration::ZERO, PIECE);
        check(PIECE / 2, PIECE);
        check(PIECE * 2, PIECE * 2);
        check(PIECE * 100, PIECE * 100);
    }

    /// When the thread had its core back, after as many looks as make it look at the clock.
    fn had_back() -> Instant {
        (0..LOOKS_PER_CLOCK).for_each(|_| look());
        OFFERS.get().working.expect("it has offered").0
    }

    #[test]
    fn an_offer_follows_a_piece_of_work() {
        let first = had_back();
        // ⚑ It remembers, whatever it works on next.
        let owed = Duration::from_secs(3600);
        OFFERS.set(Offers {
            looks: 0,
            working: Some((first, owed)),
        });
        assert_eq!(had_back(), first);
        OFFERS.set(Offers {
            looks: 0,
            working: Some((first, PIECE)),
        });
        while first.elapsed() < PIECE {
            std::hint::spin_loop();
        }
        assert!(had_back() >= first + PIECE);
    }
}
