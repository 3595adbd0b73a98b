//! Ranges move between shards in this process, decided by a config server that is as small as
//! it can be.

mod basics;
mod busy;
mod earlier_versions;
mod ids;
mod indexes;
mod killed;
mod large;
mod late;
mod lost_primaries;
mod pair;
mod primaries;
mod rules;
mod sessions;
mod switched_off;
mod switched_off_in_pairs;
mod times;
mod two_at_once;
mod waiting;
mod warm;
mod world;
