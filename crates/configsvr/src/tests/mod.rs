//! The config server with real document servers, one topic in each file.

mod balancing;
mod damage;
mod ddl;
mod lost_primaries;
mod moves;
mod registry;
mod rules;
mod tickets;
