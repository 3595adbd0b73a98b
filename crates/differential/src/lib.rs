//! Differential tests: the same commands to a real `mongod` and to TernDB, and every reply compared.
//!
//! What correct means is written in `tables/*.table`, row by row, and checked against the oracle
//! each time, so that no expected value is ever copied down. Beyond the tables, random cases are
//! generated from a seed; one that differs is shrunk and printed as a row.
//!
//! ```text
//! table ──► row ──► session (oracle) ─┐
//!               └─► session (target) ─┴─► normalize ──► difference ──► report
//! ```
//!
//! Compared are documents, their order where it is defined, BSON types, counts, error codes and
//! code names. Error texts are shown, not compared.

pub mod difference;
pub mod generate;
pub mod normalize;
pub mod notation;
pub mod report;
pub mod row;
pub mod run;
pub mod server;
pub mod session;
pub mod sharding;
pub mod table;
pub mod value;
