//! How long the operations of clients take: lately, and at rest.
//!
//! ```text
//!   operation ─► bucket of the window ── every half second, or sooner if there are many ─► what 19 of 20 took at most
//!                                                  ├─► lately
//!                                                  └─► at rest, if nothing is copied: a decaying mean
//! ```
//!
//! The quotient of the two is the strain that copies of ranges put on clients (`cluster::migration::pace`). It
//! is taken from the commands that are usually short ([`is_short`]), and by itself from the batches of scans,
//! which take longer; the worse of the two counts. A window with few operations says nothing: then there are no
//! clients to speak of.
//!
//! An operation costs one addition. Windows are closed by whoever comes first behind their end: a tenth of a second if
//! there were many operations by then, so that a short scan is felt while it lasts.
//!
//! What takes longer for another reason while ranges are copied (more clients, other queries) cannot be told
//! apart. While copies go as slowly as they can, what is measured counts a little as rest, so that a
//! lasting change does not slow them down for ever.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WINDOW_US: u64 = 500_000;
/// How often somebody looks whether there are enough operations to close a window.
const LOOK_US: u64 = 100_000;
/// Operations without which a window says nothing.
const OPERATIONS_MIN: u64 = 20;
/// With so many it says enough before its time.
const OPERATIONS_ENOUGH: u64 = 60;
/// Which of the slowest counts: one of twenty is slower.
const SLOWER_SHARE: u64 = 20;
/// How much of the figure at rest a whole window makes.
const WEIGHT: f64 = 0.2;
const WEIGHT_AT_LEAST_PACE: f64 = 0.05;
/// Four for each doubling, up to a minute.
const BUCKETS: usize = 4 * 27;

/// What clients feel.
#[derive(Default)]
pub(crate) struct Latency {
    /// Commands that are usually short.
    commands: Measured,
    /// Batches of cursors that wait for nothing.
    batches: Measured,
}

impl Latency {
    /// A command of a client has ended.
    pub(crate) fn note(&self, took: Duration) {
        self.commands.note(took);
    }

    /// A batch was read.
    pub(crate) fn note_batch(&self, took: Duration) {
        self.batches.note(took);
    }

    /// Of commands, and of batches.
    pub(crate) fn figures(&self) -> [Figures; 2] {
        [self.commands.figures(), self.batches.figures()]
    }

    /// How many times longer clients wait than at rest; `None` if there are none.
    pub(crate) fn strain(&self) -> Option<f64> {
        let strains = self.figures().into_iter().filter_map(Figures::strain);
        strains.reduce(f64::max)
    }

    /// Whether there were clients to speak of in the time before now.
    pub(crate) fn had_clients(&self, within: Duration) -> bool {
        [&self.commands, &self.batches]
            .into_iter()
            .any(|measured| measured.had_clients(within))
    }

    /// How many windows have told something.
    pub(crate) fn windows(&self) -> u64 {
        let windows = [&self.commands.windows, &self.batches.windows];
        windows
            .map(|count| count.load(Ordering::Relaxed))
            .iter()
            .sum()
    }

    /// From now on something is copied.
    pub(crate) fn copying(&self) -> [Copying<'_>; 2] {
        [self.commands.copying(), self.batches.copying()]
    }

    /// From now on clients feel this.
    #[cfg(test)]
    pub(crate) fn feels(&self, strain: f64) {
        let at_rest = 1000.0;
        self.commands.look_us.store(u64::MAX, Ordering::Relaxed);
        *self.commands.figures.lock() = Figures {
            at_rest: Some(at_rest),
            lately: Some(strain * at_rest),
        };
    }

    pub(crate) fn set_at_least_pace(&self, is_least: bool) {
        for measured in [&self.commands, &self.batches] {
            measured.at_least_pace.store(is_least, Ordering::Relaxed);
        }
    }
}

/// What operations of one kind take.
struct Measured {
    began: Instant,
    window: [AtomicU32; BUCKETS],
    /// When somebody looks whether the window ends, in microseconds after the beginning.
    look_us: AtomicU64,
    /// When it began. Changed with the lock over figures, as the rest.
    window_us: AtomicU64,
    /// Windows that had enough operations, and when the last of them ended.
    windows: AtomicU64,
    told_us: AtomicU64,
    figures: Mutex<Figures>,
    /// Copies that run here.
    copies: AtomicU32,
    /// They go as slowly as they can.
    at_least_pace: AtomicBool,
}

/// In microseconds.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(crate) struct Figures {
    pub(crate) at_rest: Option<f64>,
    /// Of the last window, if there were clients.
    pub(crate) lately: Option<f64>,
}

impl Figures {
    fn strain(self) -> Option<f64> {
        match (self.lately, self.at_rest) {
            (Some(lately), Some(at_rest)) if at_rest > 0.0 => Some(lately / at_rest),
            _ => None,
        }
    }
}

/// A copy that runs, until this is dropped.
pub(crate) struct Copying<'a>(&'a Measured);

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        self.0.copies.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Measured {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            window: std::array::from_fn(|_| AtomicU32::new(0)),
            look_us: AtomicU64::new(LOOK_US),
            window_us: AtomicU64::new(0),
            windows: AtomicU64::new(0),
            told_us: AtomicU64::new(0),
            figures: Mutex::default(),
            copies: AtomicU32::new(0),
            at_least_pace: AtomicBool::new(false),
        }
    }
}

fn bucket(us: u64) -> usize {
    let us = us.max(4);
    let doublings = u64::from(63 - us.leading_zeros());
    let quarter = (us >> (doublings - 2)) & 3;
    let at = (doublings - 2) * 4 + quarter;
    usize::try_from(at).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// The middle of a bucket.
fn middle_us(bucket: usize) -> f64 {
    let (doublings, quarter) = (bucket / 4, bucket % 4);
    let unit = (1_u64 << doublings) as f64;
    unit * (4.0 + quarter as f64 + 0.5)
}

/// Whether a command is one of those that clients wait for, time and again.
pub(crate) fn is_short(command: &str) -> bool {
    matches!(
        command,
        "find" | "insert" | "update" | "delete" | "findAndModify"
    )
}

impl Measured {
    /// An operation of a client has ended.
    fn note(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.window[bucket(us)].fetch_add(1, Ordering::Relaxed);
        self.close_window(self.now_us());
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn close_window(&self, now_us: u64) {
        let look_us = self.look_us.load(Ordering::Relaxed);
        if now_us < look_us {
            return;
        }
        let Some(mut figures) = self.figures.try_lock() else {
            return;
        };
        // Somebody else was first.
        if self.look_us.load(Ordering::Relaxed) != look_us {
            return;
        }
        self.look_us.store(now_us + LOOK_US, Ordering::Relaxed);
        let began_us = self.window_us.load(Ordering::Relaxed);
        let lasted_us = now_us.saturating_sub(began_us);
        let so_far = { self.window.iter() }.map(|count| u64::from(count.load(Ordering::Relaxed)));
        if lasted_us < WINDOW_US && so_far.sum::<u64>() < OPERATIONS_ENOUGH {
            return;
        }
        let mut counts = [0_u64; BUCKETS];
        for (count, bucket) in counts.iter_mut().zip(&self.window) {
            *count = u64::from(bucket.swap(0, Ordering::Relaxed));
        }
        self.window_us.store(now_us, Ordering::Relaxed);
        let told = slow_one_us(&counts);
        if told.is_some() {
            self.windows.fetch_add(1, Ordering::Relaxed);
            // Who comes behind that closes it: there was hardly anybody since.
            self.told_us.store(look_us, Ordering::Relaxed);
        }
        // What fell into a window that nobody closed for long says little about now.
        figures.lately = told.filter(|_| lasted_us < 2 * WINDOW_US);
        let Some(lately) = figures.lately else { return };
        let weight = match self.copies.load(Ordering::Relaxed) {
            0 => WEIGHT,
            _ if self.at_least_pace.load(Ordering::Relaxed) => WEIGHT_AT_LEAST_PACE,
            _ => 0.0,
        };
        let weight = weight * (lasted_us as f64 / WINDOW_US as f64).min(1.0);
        let at_rest = figures.at_rest.get_or_insert(lately);
        *at_rest += weight * (lately - *at_rest);
    }

    fn had_clients(&self, within: Duration) -> bool {
        let now_us = self.now_us();
        self.close_window(now_us);
        let within_us = u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
        self.windows.load(Ordering::Relaxed) > 0
            && now_us.saturating_sub(self.told_us.load(Ordering::Relaxed)) <= within_us
    }

    fn figures(&self) -> Figures {
        self.close_window(self.now_us());
        *self.figures.lock()
    }

    fn copying(&self) -> Copying<'_> {
        self.copies.fetch_add(1, Ordering::Relaxed);
        Copying(self)
    }
}

/// What all but one of twenty took at most.
fn slow_one_us(counts: &[u64; BUCKETS]) -> Option<f64> {
    let all: u64 = counts.iter().sum();
    if all < OPERATIONS_MIN {
        return None;
    }
    let mut slower = 0;
    for (at, count) in counts.iter().enumerate().rev() {
        slower += count;
        if slower > all / SLOWER_SHARE {
            return Some(middle_us(at));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations of one window, which is closed then.
    fn window(latency: &Measured, number: u64, operations: &[(u64, u64)]) {
        for (count, us) in operations {
            latency.window[bucket(*us)].fetch_add(*count as u32, Ordering::Relaxed);
        }
        let began_us = (number - 1) * WINDOW_US;
        latency.window_us.store(began_us, Ordering::Relaxed);
        latency.look_us.store(began_us, Ordering::Relaxed);
        latency.close_window(number * WINDOW_US);
    }

    fn strain(latency: &Measured) -> Option<f64> {
        latency.figures.lock().strain()
    }

    #[test]
    fn buckets_are_a_quarter_wide_at_most() {
        for us in [4, 5, 7, 8, 100, 1000, 12_345, 999_999, 60_000_000] {
            let middle = middle_us(bucket(us));
            let error = (middle / us as f64 - 1.0).abs();
            assert!(error <= 0.25, "{us} is taken for {middle}");
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn strain_is_what_copies_add() {
        let latency = Measured::default();
        assert_eq!(latency.figures().strain(), None);
        window(&latency, 1, &[(90, 100), (10, 1000)]);
        window(&latency, 2, &[(90, 100), (10, 1000)]);
        assert_eq!(strain(&latency), Some(1.0));
        let copying = latency.copying();
        window(&latency, 3, &[(90, 100), (10, 4000)]);
        assert_eq!(strain(&latency), Some(4.0));
        // One slow one is nobody's fault.
        window(&latency, 4, &[(99, 100), (1, 60_000_000)]);
        assert!(strain(&latency).is_some_and(|strain| strain < 1.0));
        // Too few to tell.
        window(&latency, 5, &[(19, 4000)]);
        assert_eq!(strain(&latency), None);
        let at_rest = latency.figures.lock().at_rest;
        // What lasts at the least pace becomes what is usual.
        latency.at_least_pace.store(true, Ordering::Relaxed);
        for number in 6..100 {
            window(&latency, number, &[(90, 100), (10, 4000)]);
        }
        assert!(strain(&latency).is_some_and(|strain| strain < 1.1));
        assert!(latency.figures.lock().at_rest > at_rest);
        drop(copying);
        for number in 100..130 {
            window(&latency, number, &[(90, 100), (10, 1000)]);
        }
        assert!(strain(&latency).is_some_and(|strain| strain > 0.9));
    }

    #[test]
    fn many_operations_end_a_window_early() {
        let latency = Measured::default();
        let note = |operations: u32| {
            latency.window[bucket(100)].fetch_add(operations, Ordering::Relaxed);
        };
        note(OPERATIONS_ENOUGH as u32 - 1);
        latency.close_window(LOOK_US);
        assert_eq!(latency.windows.load(Ordering::Relaxed), 0);
        note(1);
        latency.close_window(LOOK_US + 1);
        assert_eq!(latency.windows.load(Ordering::Relaxed), 0, "not looked yet");
        latency.close_window(2 * LOOK_US);
        assert_eq!(latency.windows.load(Ordering::Relaxed), 1);
        assert!(latency.figures.lock().lately.is_some());
        // Nobody any more: known at the end of the window.
        latency.close_window(3 * LOOK_US);
        assert!(latency.figures.lock().lately.is_some());
        latency.close_window(2 * LOOK_US + WINDOW_US);
        assert_eq!(latency.figures.lock().lately, None);
        assert_eq!(latency.told_us.load(Ordering::Relaxed), LOOK_US + LOOK_US);
        assert!(latency.had_clients(Duration::from_secs(60)));
        assert!(!Measured::default().had_clients(Duration::from_secs(60)));
    }

    /// Beside many short commands nobody would notice that scans take longer.
    #[test]
    fn the_worse_kind_counts() {
        let latency = Latency::default();
        for number in [1, 2] {
            window(&latency.commands, number, &[(1000, 100)]);
            window(&latency.batches, number, &[(30, 1000)]);
        }
        let copying = latency.copying();
        window(&latency.commands, 3, &[(1000, 100)]);
        window(&latency.batches, 3, &[(30, 4000)]);
        let strains = [&latency.commands, &latency.batches].map(strain);
        assert_eq!(strains, [Some(1.0), Some(4.0)]);
        drop(copying);
        // Both kinds are at rest again.
        for measured in [&latency.commands, &latency.batches] {
            assert_eq!(measured.copies.load(Ordering::Relaxed), 0);
        }
    }
}
