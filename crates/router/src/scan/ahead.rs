//! Asking ahead: the next batch of a stream is on its way while the one before is delivered.
//!
//! ```text
//!   client  ── getMore ─►            ◄─ batch 2 ── getMore ─►  ◄─ batch 3
//!   router       │ getMore ─►  ◄─ batch 2 │ getMore ─►              ◄─ batch 3
//!   shard        └─────────── reads ──────┘└──────── reads ─────────┘
//! ```
//!
//! A question is asked ahead when a stream has answered one on its open cursor with a batch that weighs
//! something: whoever reads so much reads on, and small results stay as they are without. It is the
//! question that would be asked later, so its answer is as good; it shows a moment that is a little earlier,
//! as what is buffered here does in any case.
//!
//! Memory is bounded ⚑: one batch for each stream, and [`AHEAD_BYTES_MAX`] for all scans of a router. The shard is
//! told what the batch may weigh, twice as much as the one before, and so much room is taken; when it has come, its
//! real weight counts. (A first document that is larger than that comes all the same.) Where the room is used up
//! nothing is asked ahead.
//!
//! A scan that ends meanwhile kills the shard's cursor, which it knows, and leaves the answer to nobody.

use super::asking::{Ask, OpenCursor};
use super::{ElasticScan, ScanCounters};
use crate::Router;
use crate::failure::Failure;
use crate::operation;
use cluster::scan::{Question, StreamId};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use tokio::task::JoinHandle;

/// Behind a batch of less than this nothing is asked ahead.
const AHEAD_BYTES_MIN: usize = if cfg!(test) { 1 } else { 64 << 10 };
/// What one batch may weigh at least, and at most.
const BATCH_BYTES: std::ops::RangeInclusive<usize> = (256 << 10)..=(16 << 20);
/// What all scans of a router may expect.
const AHEAD_BYTES_MAX: usize = 128 << 20;

/// A question that was asked before its answer is needed.
pub(super) struct Ahead {
    task: JoinHandle<(Question, Result<Ask, Failure>)>,
    cursor: OpenCursor,
    _room: Arc<Room>,
}

/// A part of the memory for what is asked ahead, until this is dropped.
struct Room {
    router: Arc<Router>,
    bytes: AtomicUsize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.change_to(0);
    }
}

impl Room {
    fn take(router: &Arc<Router>, bytes: usize) -> Option<Arc<Room>> {
        let room = Room {
            router: router.clone(),
            bytes: AtomicUsize::new(bytes),
        };
        let ScanCounters { bytes_ahead, .. } = &router.scans;
        let before = bytes_ahead.fetch_add(bytes, Ordering::Relaxed);
        // What is too much is given back as it is dropped.
        (before + bytes <= AHEAD_BYTES_MAX).then(|| Arc::new(room))
    }

    /// Counts what is really there.
    fn change_to(&self, bytes: usize) {
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        let ScanCounters { bytes_ahead, .. } = &self.router.scans;
        bytes_ahead.fetch_add(bytes, Ordering::Relaxed);
        bytes_ahead.fetch_sub(before, Ordering::Relaxed);
    }
}

impl ElasticScan {
    /// Asks a stream for its next batch, if it is to be asked ahead; its last one weighed so much.
    pub(super) fn ask_ahead(&mut self, stream: StreamId, bytes: usize) {
        let at = stream.index();
        if bytes < AHEAD_BYTES_MIN {
            return;
        }
        let Some(cursor) = self.cursors.get(at).and_then(Option::as_ref).cloned() else {
            return;
        };
        let bytes_max = (2 * bytes).clamp(*BATCH_BYTES.start(), *BATCH_BYTES.end());
        let Some(room) = Room::take(&self.router, bytes_max) else {
            return;
        };
        let Some(question) = self.scan.ask_ahead(stream) else {
            return;
        };
        self.cursors[at] = None;
        let (asker, open) = (self.asker(Some(bytes_max)), cursor.clone());
        let taken = room.clone();
        let mut asking = Box::pin(async move {
            let answer = asker.ask(&question, Some(open)).await;
            taken.change_to(match &answer {
                Ok(Ask::Answered(answered)) => answered.bytes_on_cursor.unwrap_or(0),
                Ok(Ask::Lost | Ask::Stale(_) | Ask::Away(_) | Ask::TooLong) | Err(_) => 0,
            });
            (question, answer)
        });
        // ⚑ The question leaves now. A task that is only spawned runs when this worker has nothing else to
        // do: when the batch before has been written to the client. Where the shard is in this process, its
        // part of the work would come before that writing instead.
        let mut begun = Poll::Pending;
        if cursor.member.works_elsewhere() {
            let mut context = Context::from_waker(Waker::noop());
            begun = asking.as_mut().poll(&mut context);
        }
        let task = tokio::spawn(async move {
            match begun {
                Poll::Ready(answer) => answer,
                Poll::Pending => asking.await,
            }
        });
        if self.ahead.len() <= at {
            self.ahead.resize_with(at + 1, || None);
        }
        self.ahead[at] = Some(Ahead {
            task,
            cursor,
            _room: room,
        });
        let counter = &self.router.scans.asked_ahead;
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The answers that were asked for ahead and are needed by now.
    pub(super) async fn awaited(
        &mut self,
    ) -> Result<Vec<(Question, Result<Ask, Failure>)>, Failure> {
        let mut answers = Vec::new();
        for stream in self.scan.awaited() {
            let ahead = self.ahead.get_mut(stream.index()).and_then(Option::take);
            let answer = match ahead {
                Some(mut ahead) => match operation::waiting(&mut ahead.task).await {
                    Ok(ended) => ended.ok(),
                    Err(interrupted) => {
                        // Whoever closes the scan ends the cursor that it waited for.
                        self.ahead[stream.index()] = Some(ahead);
                        return Err(interrupted.into());
                    }
                },
                None => None,
            };
            match answer {
                Some(answer) => answers.push(answer),
                // It panicked, or nobody asked: it is asked again.
                None => self.scan.unanswered(stream),
            }
        }
        Ok(answers)
    }

    /// The cursors on which questions are under way.
    pub(super) fn take_ahead(&mut self) -> impl Iterator<Item = OpenCursor> {
        let ahead = self.ahead.drain(..).flatten();
        ahead.map(|ahead| ahead.cursor)
    }
}
