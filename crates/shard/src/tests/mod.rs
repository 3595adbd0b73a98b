//! Tests that ask a whole shard, command by command.

mod administration;
mod apart;
mod catalog;
mod change_streams;
mod commit;
mod copying;
mod cursors;
mod emitted_once;
mod expiry;
mod index_build;
mod leadership;
mod long_keys;
mod oplog;
mod oplog_note;
mod owned;
mod past;
mod races;
mod refresh;
mod replica_set;
mod retryable;
mod sessions;
mod shard_half;
mod sharding;
mod spilling;
mod time_limits;
mod validation;
