//! Readers beside a state that is being replaced by another member's.
//!
//! A member that is too far behind takes over a copy of another one's state (`storage/src/store/copy.rs`): everything
//! is removed, everything is written, then catalog and ownership are read anew. Whoever reads meanwhile would see an
//! empty or half-filled store, or new documents by an old catalog. They are not kept waiting (it may take hours), nor is
//! anything locked: whoever has read is told that it was for nothing.
//!
//! ```text
//!   count    even ── about to be replaced ──► odd ── replaced, catalog and all ──► even
//!   reader   even? ─► reads ─► still the same? ─► answers           else: NotPrimaryOrSecondary
//! ```
//!
//! ⚑ A command is answered only if the state was neither being replaced when it began to read, nor since. That holds
//! for the whole command, so for all that a pipeline opens on its way. A cursor that has moved on meanwhile is killed:
//! its place counts documents that nobody was shown.
//!
//! What it leaves out: what a primary does, which installs nothing; reads of the log, which knows by itself what it has
//! lost. They are refused all the same.

use crate::Shard;
use crate::command::placement::{no_member, reads_state};
use model::Error;
use model::bson::ValueRef;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::{Reply, Request};

/// How often the state began and ceased to be replaced.
#[derive(Default)]
pub(crate) struct Installs(AtomicU64);

/// The state as it was when somebody began to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unbroken(u64);

impl Installs {
    /// Nobody may read from here on.
    pub(crate) fn begin(&self) {
        let before = self.0.fetch_add(1, Ordering::SeqCst);
        assert!(before.is_multiple_of(2), "one state is installed at a time");
    }

    /// All of the state is there, and what is known of it.
    pub(crate) fn end(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn look(&self) -> Option<Unbroken> {
        let count = self.0.load(Ordering::SeqCst);
        count.is_multiple_of(2).then_some(Unbroken(count))
    }
}

impl Shard {
    /// To be asked before a command reads the state, if it does, and to be shown again behind it.
    pub(crate) fn state_for(&self, request: &Request) -> Result<Option<Unbroken>, Error> {
        match reads_state(request.name()) {
            false => Ok(None),
            true => self
                .replica_set
                .installs
                .look()
                .map(Some)
                .ok_or_else(no_member),
        }
    }

    /// Whether the state is still the one that somebody began to read.
    pub(crate) fn is_unbroken(&self, state: Option<Unbroken>) -> bool {
        state.is_none() || state == self.replica_set.installs.look()
    }

    /// The answer of a command, unless the state was replaced under it.
    pub(crate) fn if_unbroken(
        &self,
        state: Option<Unbroken>,
        request: &Request,
        answer: Result<Reply, Error>,
    ) -> Result<Reply, Error> {
        if self.is_unbroken(state) {
            return answer;
        }
        let opened = answer.as_ref().ok().and_then(|reply| {
            let cursor = reply.document().get_doc("cursor")?;
            cursor.get("id")
        });
        for cursor in [request.body().get("getMore"), opened] {
            if let Some(ValueRef::Int64(id)) = cursor {
                self.cursors.kill(&[id]);
            }
        }
        Err(no_member())
    }
}
