//! What must hold, one rule per file. Each is told what happened and says what is wrong.

pub mod acknowledged;
pub mod leaders;
pub mod once;
pub mod prefixes;
pub mod reads;
pub mod tails;
pub mod times;
