//! A thread that works when it is asked to, and ends with whoever has started it.
//!
//! ```text
//!   ask ─┐         ask ─ ask ─┐            drop ─┐ waits
//!        └─ work ─────────────└─ work ───────────└─ end
//! ```
//!
//! Nobody depends on it: where no thread can be started, asking does nothing.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct Wanted {
    work: bool,
    end: bool,
}

/// What was asked of the thread, as it sees it.
#[derive(Default)]
pub(super) struct Asked {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

impl Asked {
    /// Waits for somebody who asks; false if that is over.
    pub(super) fn wait(&self) -> bool {
        let mut wanted = self.wanted.lock();
        while !wanted.work && !wanted.end {
            self.changed.wait(&mut wanted);
        }
        wanted.work = false;
        !wanted.end
    }

    /// Waits for a moment; whether somebody has asked by then. `None` if that is over.
    pub(super) fn wait_for(&self, moment: Duration) -> Option<bool> {
        let mut wanted = self.wanted.lock();
        if !wanted.work && !wanted.end {
            self.changed.wait_for(&mut wanted, moment);
        }
        (!wanted.end).then(|| std::mem::take(&mut wanted.work))
    }
}

/// Ends its thread when it is dropped.
pub(super) struct AskedThread {
    asked: Arc<Asked>,
    thread: Option<JoinHandle<()>>,
}

impl AskedThread {
    /// `run` returns when [`Asked`] says that it is over; `without` says what it means if there is no thread.
    pub(super) fn start(
        name: &str,
        without: &'static str,
        run: impl FnOnce(&Asked) + Send + 'static,
    ) -> Self {
        let asked = Arc::new(Asked::default());
        let of_thread = Arc::clone(&asked);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&of_thread))
            .inspect_err(|error| tracing::warn!(%error, "{without}"))
            .ok();
        Self { asked, thread }
    }

    /// Asks for work; once is enough until it has begun.
    pub(super) fn ask(&self) {
        let asked_before = std::mem::replace(&mut self.asked.wanted.lock().work, true);
        if !asked_before {
            self.asked.changed.notify_one();
        }
    }
}

impl Drop for AskedThread {
    fn drop(&mut self) {
        self.asked.wanted.lock().end = true;
        self.asked.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn it_works_when_it_is_asked_and_ends_when_it_is_dropped() {
        let (working, begun) = mpsc::channel();
        let (done, finish) = mpsc::channel();
        let thread = AskedThread::start("test", "there is no test", move |asked| {
            while asked.wait() {
                working.send(()).expect("the test listens");
                finish.recv().expect("the test answers");
            }
        });
        thread.ask();
        begun.recv().expect("it begins");
        // Meanwhile: both are one piece of work.
        thread.ask();
        thread.ask();
        done.send(()).expect("it listens");
        begun.recv().expect("it begins again");
        done.send(()).expect("it listens");
        drop(thread);
        assert!(begun.recv().is_err(), "its thread has ended");
    }

    #[test]
    fn a_moment_ends_with_who_asks_and_at_the_end() {
        let (heard, hears) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel();
        let thread = AskedThread::start("test", "there is no test", move |asked| {
            for moment in [Duration::ZERO, Duration::MAX, Duration::MAX] {
                heard
                    .send(asked.wait_for(moment))
                    .expect("the test listens");
                goes_on.recv().expect("the test answers");
            }
        });
        assert_eq!(hears.recv(), Ok(Some(false)));
        thread.ask();
        go_on.send(()).expect("it listens");
        assert_eq!(hears.recv(), Ok(Some(true)));
        go_on.send(()).expect("it listens");
        // It would wait for ever in its last moment.
        go_on.send(()).expect("it listens");
        drop(thread);
        assert_eq!(hears.recv(), Ok(None));
    }
}
