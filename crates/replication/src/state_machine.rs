//! The port to what the log is applied to: the store of a shard.

use model::time::ClusterTime;

use crate::entry::{Committed, LogPosition, Term};
use crate::error::BoxError;
use crate::member::{MemberId, Role};

/// Makes everything applied so far durable and returns the position up to which that
/// holds (at least what was applied when the call began).
pub type Syncer = Box<dyn FnMut() -> Result<LogPosition, BoxError> + Send>;

/// A state that is read part by part, to be sent to another member.
pub trait StateParts: Send {
    /// The next part, of about so many bytes; `None` at the end.
    fn next_part(&mut self, bytes_max: usize) -> Result<Option<Vec<u8>>, BoxError>;

    /// Skips what comes next if it is what the receiver holds already, by its description
    /// ([`StateInstall::held`]); whether it was.
    fn skip_held(&mut self, _held: &[u8], _bytes_max: usize) -> Result<bool, BoxError> {
        Ok(false)
    }
}

/// Which copy of a state it is: the one that a leader has opened at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyId {
    pub from: MemberId,
    pub leader_term: Term,
    pub position: LogPosition,
}

/// A state that is gathered part by part, in order. Dropping it gives it up.
pub trait StateInstall: Send {
    fn add(&mut self, part: &[u8]) -> Result<(), BoxError>;

    /// Describes what an earlier copy, perhaps of another leader, has left of what comes next; so
    /// exactly that whoever has the same may leave it out. The same until something is added or kept.
    fn held(&mut self) -> Result<Option<Vec<u8>>, BoxError> {
        Ok(None)
    }

    /// Takes over what was described. An error if it is not what is held now.
    fn keep(&mut self, _held: &[u8]) -> Result<(), BoxError> {
        Err("nothing is held".into())
    }

    /// For [`StateMachine::install`], which knows what it made.
    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any>;
}

/// A state that was begun to be gathered, and how many of its parts are there.
pub type Resumed = (Box<dyn StateInstall>, u64);

/// Looks for a state that was begun to be gathered. It may read all that is there of it, so that it is called
/// on a thread of its own.
pub type Resume = Box<dyn FnOnce() -> Result<Option<Resumed>, BoxError> + Send>;

/// Holds the state that the log leads to. One thread uses it at a time, the log's own most of
/// the time.
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

    /// Whether a small batch would be applied now without waiting for anything: a disk,
    /// another thread. Then it may be applied on a proposer's thread.
    fn applies_at_once(&self) -> bool {
        false
    }

    /// Called when entries that were applied can be read from the log.
    fn published(&mut self, _entries: &[Committed<Self::Companion>]) {}

    /// Called when leadership is won, before proposals are accepted, and when it is lost,
    /// after the last proposal was accepted and before anybody hears of it. What was
    /// proposed and is not applied when leadership is lost may never be: whatever was
    /// published about it must be forgotten here. If it is applied after all, it comes
    /// without its companion.
    fn role_changed(&mut self, _role: Role) {}

    /// How much a member is wanted as leader. With zero it never asks for votes and is handed
    /// nothing. Asked often.
    fn priority(&self, _member: MemberId) -> u64 {
        1
    }

    /// Whether the state can be copied to another member; the three that follow are for
    /// that. If not, a member that the log does not reach back for waits.
    fn can_be_copied(&self) -> bool {
        false
    }

    /// Opens the state as it is now, to be read while it changes. Should be quick.
    fn open_copy(&mut self) -> Result<Box<dyn StateParts>, BoxError> {
        Err("this state cannot be copied".into())
    }

    /// Begins to gather a state that will replace this one. Nothing changes yet. One that
    /// was begun before is given up; what is there of it may be of use ([`StateInstall::held`]).
    fn begin_install(&mut self, _copy: CopyId) -> Result<Box<dyn StateInstall>, BoxError> {
        Err("this state cannot be replaced".into())
    }

    /// How to go on to gather a state that was begun before, perhaps in an earlier life of the process;
    /// and how many of its parts are there. `None` if they are not, or are of another copy. None is begun
    /// before that is known.
    fn resume_install(&mut self, _copy: CopyId) -> Resume {
        Box::new(|| Ok(None))
    }

    /// What was gathered of states is of no use any more: the log has led further, or nobody has gone on with
    /// it for long.
    fn discard_installs(&mut self) {}

    /// Replaces the state by one that was gathered completely; it is that of `position`.
    /// Whenever the machine fails, the old state or the new one is found afterwards; when
    /// this returns, the new one is durable.
    fn install(
        &mut self,
        _install: Box<dyn StateInstall>,
        _position: LogPosition,
        _time: ClusterTime,
    ) -> Result<(), BoxError> {
        Err("this state cannot be replaced".into())
    }

    /// A second way to the state that can sync it from another thread, so that
    /// committing goes on meanwhile. Asked once, when the group is opened.
    fn syncer(&self) -> Syncer;
}
