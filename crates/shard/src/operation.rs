//! One command under way on a shard: what [`wire::operation`] knows of it, and more.
//!
//! What a command has parsed may outlive it in a cursor, and its expressions
//! still ask the operation they were parsed for. So a cursor's getMore takes
//! that operation's place ([`Operation::continue_as`]).

use crate::migration::WayRequest;
use crate::read::Planned;
use model::Error;
use parking_lot::Mutex;
use std::borrow::Borrow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use wire::operation::Progress;

/// All operations of this shard.
pub(crate) type Operations = wire::operation::Operations<Operation>;

pub(crate) struct Operation {
    core: wire::operation::Operation,
    /// Whether it was found to be costly: see `command/apart.rs`.
    runs_apart: AtomicBool,
    /// Whether it goes on with a change stream, whose driver resumes it after some errors.
    is_of_stream: AtomicBool,
    /// Whether it waits until something happens: how long says nothing of the server.
    waits_for_news: AtomicBool,
    /// The getMore that goes on with what this one began. A lock and not an `ArcSwap`, which costs more to
    /// drop than a command without a cursor has to spend: it looks at every thread.
    successor: Mutex<Option<Arc<Operation>>>,
    /// Whether anything was written for it.
    has_written: AtomicBool,
    /// The plan of its first search, for `currentOp`.
    plan: OnceLock<Arc<Planned>>,
    /// How far it is, if it is one that says so.
    progress: OnceLock<Box<Progress>>,
    /// The move that it makes way for, when it has written.
    way: OnceLock<Arc<WayRequest>>,
}

impl From<wire::operation::Operation> for Operation {
    fn from(core: wire::operation::Operation) -> Operation {
        Operation {
            core,
            runs_apart: AtomicBool::new(false),
            is_of_stream: AtomicBool::new(false),
            waits_for_news: AtomicBool::new(false),
            successor: Mutex::new(None),
            has_written: AtomicBool::new(false),
            plan: OnceLock::new(),
            progress: OnceLock::new(),
            way: OnceLock::new(),
        }
    }
}

impl Borrow<wire::operation::Operation> for Operation {
    fn borrow(&self) -> &wire::operation::Operation {
        &self.core
    }
}

impl std::ops::Deref for Operation {
    type Target = wire::operation::Operation;
    fn deref(&self) -> &wire::operation::Operation {
        &self.core
    }
}

impl query::context::Interrupt for Operation {
    fn check(&self) -> Result<(), Error> {
        match &*self.successor.lock() {
            Some(successor) => successor.core.check(),
            None => self.core.check(),
        }
    }
}

impl Operation {
    /// From now on another operation runs what was parsed for this one.
    pub(crate) fn continue_as(&self, successor: &Arc<Operation>) {
        *self.successor.lock() = Some(successor.clone());
    }

    /// Says that something was written for it, whatever becomes of the rest.
    pub(crate) fn note_write(&self) {
        self.has_written.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_written(&self) -> bool {
        self.has_written.load(Ordering::Relaxed)
    }

    /// Says that its answer is to come later, so that a move can follow what it has written.
    pub(crate) fn makes_way(&self, request: Arc<WayRequest>) {
        let _ = self.way.set(request);
    }

    pub(crate) fn way(&self) -> Option<&Arc<WayRequest>> {
        self.way.get()
    }

    /// Tells with which plan it searches. Searches within the first one are not told.
    pub(crate) fn show_plan(&self, plan: &Arc<Planned>) {
        if self.plan.get().is_none() {
            let _ = self.plan.set(plan.clone());
        }
    }

    /// Begins to tell how far it is. What comes behind its first long step is not told.
    pub(crate) fn begin_progress(&self, message: &'static str, total: u64) -> &Progress {
        self.progress
            .get_or_init(|| Box::new(Progress::new(message, total)))
    }

    pub(crate) fn progress(&self) -> Option<&Progress> {
        self.progress.get().map(|progress| &**progress)
    }

    pub(crate) fn plan(&self) -> Option<&Arc<Planned>> {
        self.plan.get()
    }

    /// Says that no step of it is known to be short.
    pub(crate) fn set_apart(&self) {
        self.runs_apart.store(true, Ordering::Relaxed);
    }

    pub(crate) fn runs_apart(&self) -> bool {
        self.runs_apart.load(Ordering::Relaxed)
    }

    pub(crate) fn set_waits_for_news(&self) {
        self.waits_for_news.store(true, Ordering::Relaxed);
    }

    pub(crate) fn waits_for_news(&self) -> bool {
        self.waits_for_news.load(Ordering::Relaxed)
    }

    pub(crate) fn set_of_stream(&self) {
        self.is_of_stream.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_of_stream(&self) -> bool {
        self.is_of_stream.load(Ordering::Relaxed)
    }
}
