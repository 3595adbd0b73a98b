//! Moving a range from one shard to another while it is read and written.
//!
//! ```text
//!  donor                         recipient                     authority
//!    Copying ───── receive ────────► Receiving
//!       │ ◄──────── progress ────────────┤  scan, then the log from `since` on
//!       ▼ almost caught up               │
//!    WritesBlocked                       │
//!       │ drained: finish(at, digest) ─► replays up to the blocking entry
//!       │ ◄───────── ready ───────────── Ready        same content, durably
//!       ▼                                │
//!    ReadsBlocked ──── commit ───────────┼─────────────────► decided, by operation id
//!       │ ◄────────── outcome ───────────┼───────────────────┘
//!       ▼                                │
//!    Committed ────── release ──────────► Owner       serves from now on
//!       │ ◄───────── released ───────────┘
//!       ▼
//!    forgotten, its copy is removed later
//! ```
//!
//! Each state is a document that is written through that shard's log before anything
//! follows from it: [`donor::Donor::step`] and [`recipient::Recipient::step`] take an
//! event and say what the document becomes and what to send *after that is durable*. A
//! new primary reads the document and goes on with [`donor::Event::Timer`] or
//! [`recipient::Event::Timer`], which send again what was sent in that state. Messages
//! may be lost, repeated, or arrive long after; every handler is written for that.
//!
//! What keeps it correct (each has a test that finds the fault without it):
//! - ⚑ Blocks are part of the document: a new primary blocks what its predecessor
//!   blocked, before it serves anything.
//! - ⚑ Reads are blocked, durably, before the decision is asked for; else the donor
//!   could serve a read after the recipient has accepted a write.
//! - ⚑ The recipient says *ready* only with everything up to the donor's blocking
//!   entry, compared by content, durably. From then on it never aborts on its own:
//!   the decision may have been made.
//! - ⚑ Once reads are blocked the donor does not abort on its own either: it asks the
//!   authority to settle. A lost answer is never taken for an abort.
//! - ⚑ A recipient refuses a range that it owns or has finished with: a message that is
//!   repeated long after must not begin a move whose clean-up would delete live data.
//! - ⚑ A commit makes an owner only if its version is newer than any that this shard has
//!   learned. All messages of a move may arrive again after the move was forgotten here
//!   and the range has gone elsewhere; the version is what tells that story is over.
//! - ⚑ A shard learns of commits in their order. It may take part in several moves of other ranges of the collection,
//!   and hear of what was decided in any order; routers name the version that they believe a shard to have, and not
//!   the ranges. So before it writes a commit it asks what became of the others that it is ready for.
//! - ⚑ Whoever receives a range begins with nothing: what an earlier move left behind is
//!   removed first.
//!
//! **Options and indexes may change meanwhile.** The collection's catalog has a version that only
//! grows, and the authority commits a move only with the version that stands:
//!
//! ```text
//!    Copying ──── "7 stands", receive(7) ──► builds and drops indexes, durably: aligned with 7
//!    ReadsBlocked ── commit(7) ─► "9 by now": never committed with 7, nothing decided
//!       │
//!       ▼ blocks are lifted, writes go on
//!    Copying ──── receive(9) ──────────────► Ready(7) becomes Receiving: the log goes on
//! ```
//!
//! So the version numbers the attempts of one move, and one operation id still has one outcome:
//! - ⚑ Commit and the readiness that leads to it name the version. *Ready* for an earlier attempt
//!   says nothing about writes that came when the blocks were lifted.
//! - ⚑ A recipient that is ready goes back only for a newer version: its donor says so when it
//!   knows that the older one will never be committed.
//! - ⚑ While the catalog changes no version stands: nothing is committed then, so the shards that
//!   an operation on indexes tells are all owners there are until it has ended.
//!
//! How fast copying may go is decided in `pace.rs`. Left to the shell: copying itself, the sums that
//! `digest` stands for, deadlines, and when "almost caught up" is; and the history of sessions, which comes
//! with the log, so that it is there before the recipient may say *ready*.
//!
//! **Stories.** What each phase and each failure leads to is told by the scripts in `migration/tests/scripts`, one
//! for each scenario. `scripts.rs` demands those that the state machines can take, one for each phase and event, but
//! not every way through one: a commit of unknown age, for example, is in none.
//!
//! **Rules of the design, and what finds out without them.** The rules of DESIGN.md, sections 5 and 6, that are
//! marked ⚑, and that of section 4 about reads at a time. Here: `migration/tests.rs`, or `migration/tests/times.rs`
//! where it is about times, searches everything with the rule switched off, by this name, and finds a fault.
//! Elsewhere: a test that fails without it. `switched_off.rs` and `switched_off_in_pairs.rs` are in `shard/src/tests/moves`.
//!
//! | rule | without it |
//! | --- | --- |
//! | clone batches are entries of the recipient's log | `copies_are_durable`; `shard/src/tests/moves/lost_primaries.rs` |
//! | ownership and blocks are data, in what every member has | `blocks_are_durable`; `StoreOwnership` in `switched_off.rs` and `switched_off_in_pairs.rs` |
//! | reads are blocked, durably, before the decision is asked for | `reads_are_blocked` |
//! | that entry is majority-committed by then | times: `blocks_are_committed_first`; `CommitBlock` in `switched_off_in_pairs.rs` |
//! | the recipient's ownership begins later than the block, and than all that it received | times: `ownership_follows_blocks`, `blocks_follow_copies`; whoever hears of it writes nothing earlier: `decisions_are_noted`; `DecideBehindBlock` in `configsvr/src/tests/rules.rs` |
//! | who has applied the block serves nothing at its time or later, secondaries neither | times: `blocks_hold_reads`; `BlockReads` in `switched_off.rs` and `switched_off_in_pairs.rs` |
//! | a read at a time needs an applied entry at that time or later | times: `reads_wait_for_their_time` |
//! | the recipient's OK: all up to the blocking entry, by content | `ready_means_all_of_it` |
//! | and the history of sessions | `history_comes_too`; `shard/src/tests/moves/sessions.rs` |
//! | and all of it by majority | `CommitReadiness` in `switched_off_in_pairs.rs` |
//! | deciding is one compare-and-set, outcomes are final | `outcomes_are_final` |
//! | an unknown outcome is settled, never guessed | `donor_settles` |
//! | after its OK the recipient never aborts alone | `ready_recipient_never_aborts` |
//! | the decision compares the catalog's version | `commits_compare_catalogs`, `changing_catalogs_stop_commits`, `readiness_is_of_one_attempt` |
//! | a late message begins nothing that has ended | `old_commits_are_told_by_version` |
//! | range deletions are refused for what is owned, when they are registered and when they are carried out | `owned_ranges_are_not_deleted`, with `owned_ranges_are_not_received`; `RegisterUnowned` and `RemoveUnowned` in `switched_off.rs` |
//! | what is dead stays while its time can be read | `AwaitWindow` in `switched_off.rs` |
//! | versions say who must refresh, with several moves at once | `commits_are_learned_in_order`; `shard/src/tests/moves/two_at_once.rs` |
//! | the donor's shard version always changes | `cluster/src/routing/tests.rs`, `a_move_tells_of_itself_by_the_version_of_a_chunk_that_stays` |
//! | what is not owned is neither shown nor written, with a version or without | `CheckUnversionedReads` and `CheckUnversionedWrites` in `switched_off.rs` |
//! | a read at a time goes to the owner of that time | times: `earlier_times_have_their_owner`; `OwnerAtTime` and `KnownPast` in `switched_off.rs` |
//! | a document with several entries comes at its first | `cluster/src/scan/tests/rules.rs`, `a_document_comes_at_its_first_entry_only`; `shard/src/tests/emitted_once.rs` |
//! | partial aggregates count when their stream has ended, and not before all have | `cluster/src/scan/tests/whole.rs`, `partial_results_count_when_their_stream_has_ended` and `partial_results_are_delivered_when_all_streams_have_ended` |
//! | a token holds what was delivered | `cluster/src/scan/tests/rules.rs`, `tokens_stand_behind_what_was_delivered` |
//! | and the remaining skip and limit | `cluster/src/scan/tests/rules.rs`, `tokens_hold_what_is_left_of_the_window` |
//! | and a time floor | `cluster/src/scan/tests/lagging.rs`, `tokens_hold_the_time_floor` |

pub mod donor;
pub mod pace;
pub mod recipient;

#[cfg(test)]
mod tests;

use crate::authority::{OperationId, Outcome};
use crate::routing::ShardId;
use model::range::KeyRange;

/// What is to be moved.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Move {
    pub id: OperationId,
    pub range: KeyRange,
    pub from: ShardId,
    pub to: ShardId,
    /// The version of options and indexes that it is to be committed with; it numbers attempts.
    pub catalog: CatalogVersion,
}

/// Of a collection's options and indexes. It only grows.
pub type CatalogVersion = u64;

/// A position of the donor's log.
pub type LogPosition = u64;

/// Count and sum of hashes of the documents of a range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Digest {
    pub documents: u64,
    pub sum: u128,
}

/// From donor to recipient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ToRecipient {
    /// Copy the range, then follow the donor's log from a position on.
    Receive {
        moved: Move,
        since: LogPosition,
    },
    /// Nothing is written to the range after this position; say when you have it all.
    Finish {
        id: OperationId,
        catalog: CatalogVersion,
        up_to: LogPosition,
        digest: Digest,
    },
    Release {
        id: OperationId,
        outcome: Outcome,
    },
}

/// From recipient to donor.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ToDonor {
    Progress {
        id: OperationId,
        copied: LogPosition,
    },
    Ready {
        id: OperationId,
        catalog: CatalogVersion,
    },
    /// It did not come to be ready, and never will.
    Cannot {
        id: OperationId,
    },
    Released {
        id: OperationId,
    },
}

/// To the authority; it answers with an outcome, or that it refused to commit, or that it will never
/// commit with this version of the catalog and has decided nothing.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ToAuthority {
    Commit { moved: Move },
    Settle { id: OperationId },
}

/// What to send once the new state is durable.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Send {
    Recipient(ToRecipient),
    Donor(ToDonor),
    Authority(ToAuthority),
}

/// What an event leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transition<S> {
    /// The document from now on; `None`: it is removed.
    pub next: Option<S>,
    pub send: Vec<Send>,
}

impl<S> Transition<S> {
    fn to(next: S, send: impl IntoIterator<Item = Send>) -> Self {
        Self {
            next: Some(next),
            send: send.into_iter().collect(),
        }
    }
}
