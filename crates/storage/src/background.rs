//! Work that clients do not wait for leaves the cores to the work that they do wait for.
//!
//! Copies of ranges that move take all the time that they can get. Where cores are few, a request that has just come
//! would wait for a time slice of theirs. So their threads have a lower priority: the scheduler prefers whoever else
//! wants the core, and gives it back when nobody does.
//!
//! ⚑ Lower, not least. At [`NICENESS`] such a thread still gets a part of a core that others want all the time
//! (on Linux about a third of a thread's share): a copy that is begun ends however busy the server is.
//!
//! The engine's threads keep their priority: writers wait for flushes, and readers for whoever holds the engine's
//! locks.
//!
//! A thread cannot have its old priority back (that is a privilege), so only threads that do nothing else are
//! lowered. Elsewhere than on Linux, where a priority belongs to a thread, nothing is done.

/// How much lower the priority is than the one that the server was started with.
pub const NICENESS: i32 = 5;

/// The thread that calls it works behind others from now on, and so do the threads that it starts.
pub fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpriority_process, setpriority_process};
        // No process is named, which on Linux means this thread.
        let lowered = getpriority_process(None)
            .and_then(|priority| setpriority_process(None, priority + NICENESS));
        if let Err(error) = lowered {
            tracing::debug!(%error, "a thread keeps its priority");
        }
    }
}
