//! A beat that those who wait for a member share, instead of a timer for each call.
//!
//! Almost every call is answered long before anybody wonders about its member; setting a timer and taking it back is
//! then most of what watching costs. Calls wait for the beat of their set instead, and look at the clock when it comes.
//! It beats while anybody waits, and some times within the limit that is waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Beats within one limit: a call waits for as much longer at most.
const BEATS: u32 = 4;

#[derive(Default)]
pub(super) struct Pulse {
    beat: Notify,
    waiting: AtomicUsize,
    is_beating: AtomicBool,
}

/// Somebody waits, while this lives.
struct Waits<'a>(&'a Arc<Pulse>);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Pulse {
    /// Waits for something, for a limit and a beat at most; `None` if it is over.
    pub(super) async fn within<T>(
        self: &Arc<Self>,
        limit: Duration,
        mut awaited: impl Future<Output = T> + Unpin,
    ) -> Option<T> {
        let begun = Instant::now();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waits = Waits(self);
        loop {
            tokio::select! {
                biased;
                done = &mut awaited => return Some(done),
                () = self.next_beat(limit) => {}
            }
            if begun.elapsed() >= limit {
                return None;
            }
        }
    }

    /// Polled only once somebody has to wait.
    async fn next_beat(self: &Arc<Self>, limit: Duration) {
        let beat = self.beat.notified();
        if !self.is_beating.swap(true, Ordering::SeqCst) {
            tokio::spawn(self.clone().run(limit / BEATS));
        }
        beat.await;
    }

    async fn run(self: Arc<Self>, interval: Duration) {
        loop {
            tokio::time::sleep(interval).await;
            if self.waiting.load(Ordering::SeqCst) == 0 {
                self.is_beating.store(false, Ordering::SeqCst);
                // ⚑ Somebody may have come between the two, and seen that it beats.
                let is_needed = self.waiting.load(Ordering::SeqCst) > 0;
                if !is_needed || self.is_beating.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
            self.beat.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    #[tokio::test]
    async fn who_waits_is_told_that_the_limit_is_over() {
        let pulse: Arc<Pulse> = Arc::default();
        let limit = Duration::from_millis(20);
        for _ in 0..3 {
            let begun = Instant::now();
            assert_eq!(pulse.within(limit, Box::pin(ready(7))).await, Some(7));
            assert!(!pulse.is_beating.load(Ordering::SeqCst));
            let waits = || pulse.within(limit, Box::pin(pending::<()>()));
            assert_eq!(tokio::join!(waits(), waits()), (None, None));
            assert!(begun.elapsed() >= limit);
            // Nobody waits: it rests, until somebody does.
            while pulse.is_beating.load(Ordering::SeqCst) {
                tokio::task::yield_now().await;
            }
        }
    }
}
