//! How somebody ends one move: `killOp`.
//!
//! ```text
//!   killOp of the donor's operation ────────────┐
//!   killOp of `_terndbMoveRange`, which waits ──┴─► wish: killed ─► the donor's driver, at its next step
//!   killOp of the recipient's operation ─► its receiver fails ─► the donor hears that it has given up
//! ```
//!
//! Each side has an operation for as long as it is driven; `$currentOp` shows the move under its id
//! (`report.rs`). ⚑ To kill it is a wish, never a decision: before reads are blocked the donor may abort on its own, then
//! the config server is asked what was decided by the move's id, which is final in either case. A recipient
//! that has said that it has everything does not end by itself. So whoever waits for the move is told how it ended:
//! 11601 (`Interrupted`) if it was aborted for this, and that it moved if that was decided before.
//!
//! An operation that ends with its process is no wish: the next primary goes on.

use super::donor::DonorHandle;
use crate::operation::Operation;
use model::Code;
use std::sync::Arc;

/// What others want of a move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    GoOn,
    /// Its collection changes, or may not be moved any more: because of what.
    End(Arc<str>),
    Killed,
}

impl DonorHandle {
    /// Wants the move to end; the first wish counts.
    pub(super) fn wish(&self, wish: Wish) {
        self.wish.send_if_modified(|known| {
            let is_first = *known == Wish::GoOn;
            if is_first {
                *known = wish;
            }
            is_first
        });
    }
}

/// Whether somebody killed an operation.
pub(super) fn is_killed(operation: &Operation) -> bool {
    matches!(operation.check(), Err(error) if error.code == Code::INTERRUPTED)
}

/// Lets a donor know when its operation is killed. Never completes.
pub(super) async fn obey(operation: &Operation, handle: &DonorHandle) {
    operation.interrupted().await;
    if is_killed(operation) {
        handle.wish(Wish::Killed);
    }
    std::future::pending().await
}
