//! x
pub mod compare;
pub mod difference;
pub mod element;
pub mod merge;
pub mod order;
pub mod partition;
pub mod range_query;
