//! Change streams: the log, told as events.
//!
//! ```text
//!   log ──read──► entry ──event.rs──► events ──images.rs──► documents ──pipeline──► batch
//!    ▲                                                                              │
//!    └── a getMore that finds nothing waits for the log to grow ◄───────────────────┘
//! ```
//!
//! | file | part |
//! | --- | --- |
//! | `token.rs` | resume tokens: the name of an event's place in the log |
//! | `event.rs` | which events an entry makes, and how they look: pure |
//! | `images.rs` | documents as they are now, were after and before a change |
//! | `source.rs` | reads the log from a place on; the first stage of the pipeline |
//! | `cursor.rs` | the pipeline as a cursor, and the token of each batch |
//!
//! Invariants:
//! - ⚑ No event is left out between two tokens. Where the log no longer holds what
//!   follows a token, the stream ends with `ChangeStreamHistoryLost`.
//! - ⚑ Entries made by moves and range deletions never appear.
//! - Who goes on behind an event must watch what tells it: a token of another stream's event, or
//!   of one that the pipeline holds back, is refused with the first event that comes.
//! - An event's token depends on its entry alone: it is the same on every member,
//!   and in every stream that shows the event.
//! - What is shown is applied, and so it is committed.
//!
//! Left out: `lsid` and `txnNumber` of events, which MongoDB shows for transactions
//! only. Images before a change are read from the store's history: they are
//! available for as long as it keeps them, and while the collection exists.

mod cursor;
mod event;
mod images;
mod source;
mod token;
mod watchers;

pub(crate) use cursor::StreamCursor;
pub(crate) use source::{EventSource, StreamState};
pub(crate) use watchers::{Interest, Watchers};
