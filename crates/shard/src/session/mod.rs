//! Logical sessions: which clients are there, and what they wrote last.
//!
//! | file | part |
//! | --- | --- |
//! | `catalog.rs` | check-out: one operation of a session at a time |
//! | `history.rs` | what the latest transaction number has executed |
//! | `document.rs` | the same as it is stored, written with the write itself |
//! | `header.rs` | what the log's entries say of their session |
//! | `cache.rs` | which sessions are in use |
//! | `home.rs` | where the sessions collection is: here, or sharded over a cluster |
//! | `refresh.rs` | their way to `config.system.sessions`, and their expiry |
//! | `reap.rs` | what is kept for retries goes when its session has gone |
//! | `arrival.rs` | history that comes with a range from another shard |
//! | `views.rs` | `config.transactions`, `config.image_collection` |
//! | `retry.rs` | a retryable write command under way |
//! | `given_back.rs` | how it waits for a move |

mod arrival;
mod cache;
mod catalog;
mod document;
mod given_back;
mod header;
mod history;
mod home;
mod reap;
pub(crate) mod refresh;
mod retry;
mod views;

pub(crate) use arrival::Arriving;
pub(crate) use cache::SessionCache;
pub(crate) use catalog::{Forgotten, SessionCatalog};
pub(crate) use document::{SessionKey, Stored};
pub(crate) use given_back::is_to_be_looked_up_again;
pub(crate) use header::statement_of;
pub(crate) use history::{Effect, Executed, Image, ImageKind, join};
pub(crate) use home::SessionHome;
pub(crate) use model::SessionId;
pub(crate) use refresh::{describe, run};
pub(crate) use retry::{Retryable, StatementIds, incompatible, refuse_multi};
pub(crate) use views::{Images, Transactions};
