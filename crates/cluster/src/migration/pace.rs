//! How fast a range is copied: as fast as it goes where nobody is, slowly beside clients, and slower still if they wait
//! longer because of it.
//!
//! ```text
//!   every interval:  strain = how long clients wait ÷ how long they wait without copies, the worse of both shards
//!
//!   strain     none     ≤ 1.2      ≤ 1.5     > 1.5     > 3
//!   share      × 2      × 1.25      same      ÷ 2       ÷ 4         within [1/16, 1/8], without clients 1
//! ```
//!
//! The share is the part of its time that a copy works: behind each batch comes a pause. Where clients are, batches
//! are small however fast the copy goes, and one is applied before the next is appended: what a client waits for is
//! what is in front of it, in the log and on a core, and that is one batch at most. Where nobody is they are
//! large, and several are under way.
//!
//! ⚑ What a shard measures begins when a request is read. That it waited for a core before, behind a copy, nobody
//! sees there, and it is most of what clients feel: a thread that has just woken up is not interrupted for one that
//! wakes up behind it, on Linux for as long as a slice of some milliseconds, whatever their priorities are. So
//! beside clients work comes in pieces of a quarter of a millisecond, with its thread asleep in between, and most of
//! the time there is none, however little the measured latencies say
//! (docs/decisions/0030-copies-come-in-short-pieces.md). A copy that begins where clients are, or were a moment
//! ago, begins slowly, and one that clients come to goes on as slowly: what they feel of it is only known after an
//! interval.
//!
//! ⚑ A copy never stops: whatever clients feel, a batch of [`BATCH_BYTES_BESIDE_CLIENTS`] comes after each
//! [`PAUSE_MAX`] at most, because a range that cannot leave an overloaded shard is what keeps it overloaded.
//!
//! Left out: what a copy costs others that is not latency of clients: disks, networks, secondaries.

use std::time::Duration;

/// What a batch weighs where nobody is.
pub const BATCH_BYTES_MAX: u64 = 2 << 20;
/// And where clients are: a quarter of a millisecond on each core that it meets.
pub const BATCH_BYTES_BESIDE_CLIENTS: u64 = 64 << 10;
/// How long work that can stop anywhere goes on at a time; where clients are, about as long as a batch takes.
const MOMENT_MAX: Duration = Duration::from_millis(10);
const MOMENT_BESIDE_CLIENTS: Duration = Duration::from_micros(200);
/// What counts as work at most there: a batch that took longer waited for a disk, for members, or for clients.
const WORKED_MAX_BESIDE_CLIENTS: Duration = Duration::from_millis(2);
/// The longest pause behind a batch.
pub const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Entries that are appended and not applied, at full pace.
const IN_FLIGHT_MAX: usize = 4;

const SHARE_MIN: f64 = 1.0 / 16.0;
/// Where clients are, whatever is measured of them; a copy that does not know yet what they feel begins with it.
const SHARE_MAX_BESIDE_CLIENTS: f64 = 1.0 / 8.0;
/// What clients may feel.
const STRAIN_MAX: f64 = 1.5;
const STRAIN_EASY: f64 = 1.2;
const STRAIN_HARD: f64 = 3.0;

/// The pace of one copy.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pace {
    share: f64,
    beside_clients: bool,
}

impl Pace {
    /// Nobody is in the way.
    pub const FULL: Pace = Pace {
        share: 1.0,
        beside_clients: false,
    };

    /// Of a copy that begins where clients are.
    pub const FIRST: Pace = Pace {
        share: SHARE_MAX_BESIDE_CLIENTS,
        beside_clients: true,
    };

    /// The pace behind an interval in which clients felt this; `None` if there were none.
    pub fn after(self, strain: Option<f64>) -> Pace {
        let factor = match strain {
            None => 2.0,
            Some(strain) if strain <= STRAIN_EASY => 1.25,
            Some(strain) if strain <= STRAIN_MAX => 1.0,
            Some(strain) if strain <= STRAIN_HARD => 0.5,
            Some(_) => 0.25,
        };
        let most = match strain {
            Some(_) => SHARE_MAX_BESIDE_CLIENTS,
            None => 1.0,
        };
        Pace {
            share: (self.share.min(most) * factor).clamp(SHARE_MIN, most),
            beside_clients: strain.is_some(),
        }
    }

    /// The part of its time that a copy works.
    pub fn share(self) -> f64 {
        self.share
    }

    /// Whether clients who feel this should not wait for the end of an interval: it is too much, or they have come.
    pub fn is_too_fast(self, strain: f64) -> bool {
        !self.beside_clients || strain > STRAIN_MAX
    }

    /// Whether it cannot be slower.
    pub fn is_least(self) -> bool {
        self.share <= SHARE_MIN
    }

    pub fn batch_bytes(self) -> u64 {
        if self.beside_clients {
            return BATCH_BYTES_BESIDE_CLIENTS;
        }
        let bytes = (BATCH_BYTES_MAX as f64 * self.share) as u64;
        bytes.max(BATCH_BYTES_BESIDE_CLIENTS)
    }

    /// How long work may go on that can stop anywhere, before its pause.
    pub fn moment(self) -> Duration {
        match self.beside_clients {
            true => MOMENT_BESIDE_CLIENTS,
            false => MOMENT_MAX,
        }
    }

    /// The pause behind work that took so long.
    pub fn pause_after(self, worked: Duration) -> Duration {
        let worked = match self.beside_clients {
            true => worked.min(WORKED_MAX_BESIDE_CLIENTS),
            false => worked,
        };
        worked.mul_f64(1.0 / self.share - 1.0).min(PAUSE_MAX)
    }

    /// How many batches may be under way; with none, each is applied before the next.
    pub fn in_flight(self) -> usize {
        match self == Pace::FULL {
            true => IN_FLIGHT_MAX,
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where it begins, what clients feel, and the shares that follow.
    type Row<'a> = (Pace, &'a [Option<f64>], &'a [f64]);

    /// The shares behind intervals with these strains.
    fn shares(from: Pace, strains: &[Option<f64>]) -> Vec<f64> {
        let mut pace = from;
        let step = |strain: &Option<f64>| {
            pace = pace.after(*strain);
            pace.share()
        };
        strains.iter().map(step).collect()
    }

    #[test]
    fn clients_slow_a_copy_down_and_their_absence_speeds_it_up() {
        let table: [Row<'_>; 6] = [
            (
                Pace::FIRST,
                &[Some(1.0), Some(1.4), Some(1.5)],
                &[0.125, 0.125, 0.125],
            ),
            (
                Pace::FIRST,
                &[Some(1.6), Some(1.3), Some(1.0), Some(0.7), Some(2.9)],
                &[0.0625, 0.0625, 0.078125, 0.09765625, 0.0625],
            ),
            (Pace::FIRST, &[Some(9.0), Some(9.0)], &[0.0625, 0.0625]),
            // Clients come.
            (Pace::FULL, &[Some(1.3), Some(1.0)], &[0.125, 0.125]),
            (Pace::FULL, &[Some(2.0)], &[0.0625]),
            // They go, and come again.
            (
                Pace::FIRST,
                &[None, None, None, None, Some(1.0)],
                &[0.25, 0.5, 1.0, 1.0, 0.125],
            ),
        ];
        for (from, strains, expected) in table {
            assert_eq!(shares(from, strains), expected, "{strains:?}");
        }
    }

    #[test]
    fn who_comes_or_feels_it_is_not_kept_waiting() {
        let table = [
            (Pace::FULL, 1.0, true),
            (Pace::FIRST, 1.0, false),
            (Pace::FIRST, 1.6, true),
        ];
        for (pace, strain, expected) in table {
            assert_eq!(pace.is_too_fast(strain), expected, "{pace:?} {strain}");
        }
    }

    /// ⚑ Whatever clients feel, it goes on.
    #[test]
    fn a_copy_never_stops() {
        let mut pace = Pace::FULL;
        for _ in 0..1000 {
            pace = pace.after(Some(f64::INFINITY));
            assert!(pace.batch_bytes() >= BATCH_BYTES_BESIDE_CLIENTS);
            assert!(pace.pause_after(Duration::from_secs(60)) <= PAUSE_MAX);
        }
        assert!(pace.is_least());
        // What is no number of anything does not stop it either.
        assert!(pace.after(Some(f64::NAN)).share() >= SHARE_MIN);
    }

    #[test]
    fn pauses_and_batches_follow_the_share() {
        let work = Duration::from_millis(10);
        assert_eq!(Pace::FULL.pause_after(work), Duration::ZERO);
        assert_eq!(Pace::FULL.batch_bytes(), BATCH_BYTES_MAX);
        assert_eq!(Pace::FULL.in_flight(), 4);
        assert_eq!(Pace::FIRST.pause_after(work / 10), Duration::from_millis(7));
        // ⚑ Waiting is no work: a set whose members answer late is left all the same.
        assert_eq!(Pace::FIRST.pause_after(work), Duration::from_millis(14));
        assert_eq!(Pace::FIRST.batch_bytes(), BATCH_BYTES_BESIDE_CLIENTS);
        assert_eq!(Pace::FIRST.in_flight(), 0);
        // ⚑ However little clients feel: what is in front of them stays small.
        let mut pace = Pace::FULL;
        for _ in 0..10 {
            pace = pace.after(Some(1.0));
        }
        assert_eq!(pace.share(), SHARE_MAX_BESIDE_CLIENTS);
        assert_eq!(pace.batch_bytes(), BATCH_BYTES_BESIDE_CLIENTS);
        assert_eq!(pace.in_flight(), 0);
        // They are gone.
        let gone = pace.after(None).after(None).after(None);
        assert_eq!(gone, Pace::FULL);
    }
}
