//! MongoDB's query language as pure functions over BSON bytes: filters,
//! projections, updates, pipelines, sorts, and the choice of a plan.
//!
//! Nothing here knows of a runtime, a disk or a socket. What a stage needs from
//! outside (another collection, say) comes in through a trait.

pub mod accumulator;
pub mod context;
pub mod costly;
pub mod difference;
pub mod expression;
pub mod filter;
pub mod index;
pub mod index_keys;
pub mod path;
pub mod pipeline;
pub mod plan;
pub mod projection;
pub mod regex;
pub mod sort;
pub mod update;
