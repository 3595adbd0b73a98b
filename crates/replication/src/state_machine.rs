//! The port to what the log is applied to: the store of a shard.

use model::time::ClusterTime;

use crate::entry::{Committed, LogPosition};
use crate::error::BoxError;
use crate::member::Role;

/// Makes everything applied so far durable and returns the position up to which that
/// holds (at least what was applied when the call began).
pub type Syncer = Box<dyn FnMut() -> Result<LogPosition, BoxError> + Send>;

/// Holds the state that the log leads to. It lives on the log's thread.
///
/// What it must guarantee: after a crash of the process it holds exactly what was
/// applied; after a power cut it holds a prefix of it that reaches at least to what
/// its syncer last returned; [`StateMachine::applied`] tells which.
pub trait StateMachine: Send + 'static {
    /// What a proposer hands over in memory besides the payload (decoded operations,
    /// pre-images). It is never stored.
    type Companion: Send + 'static;

    /// The last position that the state contains. Asked once, when the group is opened.
    fn applied(&self) -> LogPosition;

    /// The time of the entry at [`StateMachine::applied`], if it is known. Only needed
    /// when the state is ahead of the log after a power cut: without it, times could
    /// be given again that a lost entry had.
    fn applied_time(&self) -> Option<ClusterTime> {
        None
    }

    /// Applies entries in order, all in one batch, together with the position of the
    /// last. No sync is needed. An error stops the group for good.
    ///
    /// Not all of them were proposed: those that the log makes for itself (see
    /// [`crate::EntryKind`]) have an empty payload and only move the position and the
    /// time. Entries that came from another member have no companion.
    fn apply(&mut self, entries: &mut [Committed<Self::Companion>]) -> Result<(), BoxError>;

    /// Called when leadership is won, before proposals are accepted, and when it is lost,
    /// after the last proposal was accepted and before anybody hears of it. What was
    /// proposed and is not applied when leadership is lost may never be: whatever was
    /// published about it must be forgotten here. If it is applied after all, it comes
    /// without its companion.
    fn role_changed(&mut self, _role: Role) {}

    /// A second way to the state that can sync it from another thread, so that
    /// committing goes on meanwhile. Asked once, when the group is opened.
    fn syncer(&self) -> Syncer;
}
