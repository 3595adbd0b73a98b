//! Long work that clients do not wait for, on threads that leave the cores to the others (`storage::background`).
//!
//! A move scans, hashes and encodes all that it copies: on a worker of the runtime each batch would be in front of
//! whatever request comes next, and would share the core with those on the others. What is short, or what
//! clients wait for (the log's last entries while writes are blocked), stays on the workers, and so does whatever
//! holds a lock that writers need: a thread that is put aside with a lock in its hand would stop them too.
//!
//! The threads are those of the process, start when they are needed, and end when they have had nothing to do for a
//! while. Work that has begun is finished even if nobody waits for it any more.

use std::sync::LazyLock;
use tokio::runtime::{Builder, Runtime};

/// Each move has one piece of work at a time, or two where it digests beside copying; more of them wait in a queue,
/// which is as long as there are moves.
const THREADS_MAX: usize = 4;

/// Only its threads for blocking work are used: nothing ever runs in the runtime itself. It is never dropped, which
/// no async code may do.
static THREADS: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    let threads = Builder::new_current_thread()
        .thread_name("aside")
        .max_blocking_threads(THREADS_MAX)
        .on_thread_start(storage::background::lower_priority)
        .build();
    threads
        .inspect_err(|error| tracing::warn!("nothing is done aside: {error}"))
        .ok()
});

/// Does something aside, and waits for it.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let Some(threads) = &*THREADS else {
        return tokio::task::block_in_place(work);
    };
    match threads.spawn_blocking(work).await {
        Ok(done) => done,
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Linux calls nice 19, whatever was asked for.
    #[cfg(target_os = "linux")]
    const LEAST_PRIORITY: i32 = 19;

    /// ⚑ Where it counts: the worker that asks keeps its priority.
    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn work_aside_has_a_lower_priority() {
        use rustix::process::getpriority_process;
        let own = getpriority_process(None).expect("a priority");
        let there = aside(|| getpriority_process(None)).await;
        // There is none below the least.
        let lower = (own + storage::background::NICENESS).min(LEAST_PRIORITY);
        assert_eq!(there, Ok(lower));
        assert_eq!(getpriority_process(None), Ok(own));
    }

    #[tokio::test]
    async fn a_panic_is_the_panic_of_who_asked() {
        let asking = tokio::spawn(aside(|| -> u8 { panic!("as it should") }));
        assert!(asking.await.is_err_and(|failed| failed.is_panic()));
    }
}
