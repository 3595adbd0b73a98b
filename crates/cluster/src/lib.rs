//! Every distributed protocol as a value: no runtime, no disk, no socket.
//!
//! What is decided here is decided by pure functions over plain data, so that a
//! golden script or a simulator can step through it. The shells (`router`,
//! `configsvr`, `shard`) carry out what comes of it.
//!
//! - [`migration`]: moving a range while it is in use, donor and recipient.
//! - [`scan`]: queries over all shards that lose and repeat nothing while ranges move.
//! - [`routing`]: which shard owns which range of a sharded collection, now and at
//!   earlier times, and how the table changes.
//! - [`authority`]: the one place where placement is decided, once and for all.
//! - [`broadcast`]: a write over several shards that changes each document once.
//! - [`bulk`]: a batch of writes that goes to several shards.
//! - [`events`]: change streams of several shards as one.
//! - [`balance`]: which ranges should move, and where to.
//! - [`sessions`]: the collection of sessions in use.
//! - [`cache`]: what a router or shard knows of it, and when it asks again.
//!
//! Not here yet: resharding, two-phase commit.

pub mod authority;
pub mod balance;
pub mod broadcast;
pub mod bulk;
pub mod cache;
pub mod events;
pub mod migration;
pub mod routing;
pub mod scan;
pub mod sessions;
