//! A limit to the bytes that are read in a second, over all workers.
//!
//! Whoever has read something asks how long to wait before reading on. Bytes are paid for one after
//! the other: the account is the moment up to which everything read so far is paid. Idle time is
//! not saved up.

use std::sync::Mutex;
use std::time::{Duration, Instant};

pub struct Pace {
    bytes_per_second_max: Option<u64>,
    paid_until: Mutex<Instant>,
}

impl Pace {
    pub fn new(bytes_per_second_max: Option<u64>, now: Instant) -> Pace {
        Pace {
            bytes_per_second_max,
            paid_until: Mutex::new(now),
        }
    }

    /// How long whoever read these bytes has to wait.
    pub fn charge(&self, bytes: u64, now: Instant) -> Duration {
        let Some(rate) = self.bytes_per_second_max else {
            return Duration::ZERO;
        };
        let price = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        // A panic elsewhere leaves nothing half done here.
        let mut paid_until = self
            .paid_until
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        *paid_until = (*paid_until).max(now) + price;
        *paid_until - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_add_up_and_idle_time_is_not_saved() {
        let start = Instant::now();
        let pace = Pace::new(Some(100), start);
        assert_eq!(pace.charge(50, start), Duration::from_millis(500));
        assert_eq!(pace.charge(50, start), Duration::from_millis(1000));
        let later = start + Duration::from_secs(60);
        assert_eq!(pace.charge(100, later), Duration::from_secs(1));
        assert_eq!(
            Pace::new(None, start).charge(u64::MAX, start),
            Duration::ZERO
        );
    }
}
