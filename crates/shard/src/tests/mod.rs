//! Tests that ask a whole shard, command by command.

mod administration;
mod catalog;
mod cursors;
mod expiry;
mod index_build;
mod validation;
