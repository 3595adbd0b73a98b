//! What a shard of a cluster knows: who it is, which ranges of sharded collections it
//! owns, and of which databases it is the primary.
//!
//! ```text
//!  config server ── _terndb… ──► [ddl, gate] one entry ──► applied: engine, then memory
//!                                                               │
//!  request ─► its versions: who must refresh?   (version_check) ◄┤
//!          ─► its documents: owned here?        (ownership)     ◄┘
//! ```
//!
//! All of it is data: documents in the engine's meta space, changed only by entries of
//! the log, so that every member and every copy of the state has it. In memory the
//! ownership of a collection hangs on its catalog entry, decoded once and shared.
//!
//! Invariants:
//! - Who changes the ownership of a collection holds its gate exclusively until the change
//!   is applied, so an entry is evaluated with the ownership of its place in the log.
//! - An entry that changes what memory holds ends its batch (`write/append.rs`). So between
//!   the moments at which two ownerships become visible in memory, the engine holds nothing
//!   that came behind the second: who sees the same ownership before and after it took a
//!   snapshot reads that snapshot with it.
//! - Versions only say who must refresh. What may be read and written is decided by ranges,
//!   whether a request carries a version or not.
//!
//! | file | part |
//! | --- | --- |
//! | `ownership.rs` | the ranges of one collection, as values and as stored |
//! | `moving.rs` | what moves add to it: blocks, what is received, what is dead, earlier ownerships |
//! | `received.rs` | documents that a move brings |
//! | `range_deletion.rs` | what is left of ranges that are not owned, and when it goes |
//! | `removal.rs` | how it goes |
//! | `transition.rs` | one entry that changes ownership and state documents |
//! | `state.rs` | identity and databases, as values and as stored |
//! | `config_time.rs` | how far the config server must have come, to be believed |
//! | `waiting.rs` | waiting for ranges whose owner is being decided |
//! | `version_check.rs` | what travels with a routed request, and its errors |
//! | `next_key.rs` | whether a shard key fits what is stored, and keeping it so until it is the key |
//! | `shard_key_update.rs` | what an update may do to a shard key |
//! | `commands.rs` | the config server's commands to a shard |
//! | `refresh.rs` | asking the config server |
//! | `report.rs` | what a shard tells about all this |
//!
//! Left out: the protocol of moves itself, which gains and loses ranges by transitions.

mod commands;
mod config_time;
mod forgetting;
mod moving;
mod next_key;
mod ownership;
pub(crate) mod range_deletion;
mod received;
mod refresh;
mod removal;
mod report;
mod shard_key_update;
mod state;
mod transition;
mod version_check;
mod waiting;

pub(crate) use commands::{
    become_shard, cleanup_orphaned, create_sharded, forget_database, forget_placement, rename,
    set_database, set_placement,
};
pub(crate) use config_time::CONFIG_TIME_KEY;
#[cfg(test)]
pub(crate) use moving::Moving;
pub(crate) use moving::{BlockLevel, time_of_change};
pub(crate) use next_key::set_next_key;
pub(crate) use ownership::{Ownership, OwnershipKey, OwnershipPart, OwnershipUpdate, whole};
pub(crate) use range_deletion::RangeDeleter;
pub(crate) use received::ReceivedChange;
pub(crate) use refresh::Refresh;
pub(crate) use report::{get_database_version, get_shard_version, sharding_state};
pub(crate) use shard_key_update::{UpdateStatement, would_leave};
pub(crate) use state::{KnownDatabase, MovingDatabase, ShardingState, StateKey};
#[cfg(test)]
pub(crate) use transition::Expectation;
pub(crate) use transition::{
    Applied, OwnershipChange, StateChange, StateWrite, TimePlace, Transition,
};
pub(crate) use version_check::{CheckedRoute, Routed, not_owned, stale_config};
pub(crate) use waiting::{is_to_be_read_again, read_again};
