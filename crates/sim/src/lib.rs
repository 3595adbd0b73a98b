//! A replicated log in a simulated world: one thread, one seed, no clock.
//!
//! The members are the real ones: `replication`'s loop, stepped, over its simulated
//! disks. Around them are a network that loses, doubles, delays and reorders packets and
//! falls apart, machines that lose their power in the middle of a write, clocks that
//! jump, and clients that write, read and change the members.
//!
//! ```text
//!   world    rounds: time passes, packets arrive, members work, clients ask, things break
//!     │      at the end everything is mended, and the members must agree
//!     ├─ network   packets on their way, who can reach whom
//!     ├─ machine   one member: disk, state machine, wall clock, what is running
//!     ├─ client    what was asked and not answered yet
//!     ├─ session   statements that are sent again until they are answered
//!     └─ invariant one file each: what must hold after every round
//! ```
//!
//! Everything that is decided is decided by the seed, so that a seed that fails once
//! fails always: [`Report::fingerprint`] is a hash of all that happened.
//!
//! What it leaves out: state machines that fail half-way through an installation, and disks
//! that lie about their syncs.

pub mod client;
pub mod invariant;
pub mod machine;
pub mod network;
mod random;
pub mod session;
pub mod world;

pub use random::Random;
pub use world::{Report, Settings, run};
