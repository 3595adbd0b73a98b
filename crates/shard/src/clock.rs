//! Time, through one door, so that a simulation can decide it.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since 1970. Somebody may set it, ahead or back.
    fn now_ms(&self) -> i64;

    /// Milliseconds since some moment, by a clock that nobody sets: for how long something has been so.
    fn elapsed_ms(&self) -> i64;
}

/// The machine's clock.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_millis() as i64,
            Err(before) => -(before.duration().as_millis() as i64),
        }
    }

    fn elapsed_ms(&self) -> i64 {
        static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
        BEGAN.elapsed().as_millis() as i64
    }
}
