//! The shard's state on its way to another member, and from one.
//!
//! A copy is all of the store, so the catalog and the replica set's configuration come
//! with it: what memory holds of them is read anew when it is installed. Plans and
//! cursors find out by themselves that their collections have changed.

use replication::{BoxError, CopyId, StateInstall, StateParts};
use std::any::Any;
use storage::{EngineSnapshot, StagedState, StateCopy};

pub(super) struct Parts<S: EngineSnapshot>(pub(super) StateCopy<S>);

impl<S: EngineSnapshot> StateParts for Parts<S>
where
    StateCopy<S>: Send,
{
    fn next_part(&mut self, bytes_max: usize) -> Result<Option<Vec<u8>>, BoxError> {
        Ok(self.0.next_part(bytes_max)?)
    }

    fn skip_held(&mut self, held: &[u8], bytes_max: usize) -> Result<bool, BoxError> {
        Ok(self.0.skip_held(held, bytes_max)?)
    }
}

/// What tells the parts of one copy from those of another.
pub(super) fn copy_name(copy: CopyId) -> Vec<u8> {
    let CopyId {
        from,
        leader_term,
        position,
    } = copy;
    let numbers = [from.get(), leader_term.get(), position.get()];
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

pub(super) struct Staged(pub(super) StagedState);

impl StateInstall for Staged {
    fn add(&mut self, part: &[u8]) -> Result<(), BoxError> {
        Ok(self.0.add(part)?)
    }

    fn held(&mut self) -> Result<Option<Vec<u8>>, BoxError> {
        Ok(self.0.held())
    }

    fn keep(&mut self, held: &[u8]) -> Result<(), BoxError> {
        Ok(self.0.keep(held)?)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
