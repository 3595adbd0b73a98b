//! Writing: from a command's intention to an applied entry of the log.
//!
//! ```text
//!  gate (shared) ─► latch keys ─► latest versions ─► evaluate ─► append ─► unlatch, gate open
//!                                 overlay, engine                  │
//!  reply ◄───────────────── applied, overlay cleared ◄─────────────┘ group commit
//! ```
//!
//! | file | part |
//! | --- | --- |
//! | `latches.rs` | who may evaluate a change of a key |
//! | `overlay.rs` | versions appended but not yet applied |
//! | `evaluator.rs` | one entry in the making: changes of records with their index entries |
//! | `append.rs` | from an evaluated entry to the log, and back when it is applied |
//! | `several.rs` | one entry over several collections |
//! | `received.rs` | records that a move brings, or takes away again |
//! | `writer.rs` | on whose behalf it is written |
//! | `document.rs` | what a document must be to be stored |

mod append;
mod copying;
mod document;
mod evaluator;
mod latches;
mod overlay;
mod received;
mod several;
mod writer;

pub(crate) use append::{Applier, Companion, NotAppended};
pub(crate) use document::{Prepared, Shape, check_stored, prepare, prepare_insert};
pub(crate) use evaluator::{Evaluator, Refusal, Version, unique_violation};
pub(crate) use latches::{Latches, Stripe};
pub(crate) use overlay::Overlay;
#[cfg(test)]
pub(crate) use overlay::Pending;
pub(crate) use received::{Received, ReceivedEntry};
pub(crate) use several::{Hold, Searched};
pub(crate) use writer::{Together, Writer};
