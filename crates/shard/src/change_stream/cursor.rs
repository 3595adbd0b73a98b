//! A change stream as a cursor: its batches, and the token behind each.
//!
//! ```text
//!   the batch is full          the token of its last event
//!   the log is read to its end the token of the last event, or a high-water mark behind
//!                              entries that made none
//! ```

use super::source::{StreamState, not_resumable, token_not_found};
use super::token::ResumeToken;
use super::watchers::Interest;
use crate::aggregate::{ShardEnvironment, while_running};
use crate::cursor::{Batch, BatchSource, Filled};
use crate::operation::Operation;
use crate::read::Budget;
use model::bson::{DocBuf, DocWriter, ValueRef};
use model::{Code, Error};
use parking_lot::Mutex;
use query::pipeline::{Advance, Source};
use std::sync::Arc;

pub(crate) struct StreamCursor {
    source: Box<dyn Source>,
    environment: Arc<ShardEnvironment>,
    state: Arc<Mutex<StreamState>>,
    /// Behind what was delivered.
    token: ResumeToken,
    /// The current event did not fit into the last batch.
    left_over: bool,
    /// The last batch read the log to its end: what has come since is in memory.
    caught_up: bool,
    ended: bool,
    /// Whether a router merges it with the streams of other shards, for which the place
    /// that it has come to is news.
    merged: bool,
}

impl StreamCursor {
    pub(crate) fn new(
        source: Box<dyn Source>,
        environment: Arc<ShardEnvironment>,
        state: Arc<Mutex<StreamState>>,
        merged: bool,
    ) -> Self {
        let token = state.lock().reached();
        Self {
            source,
            environment,
            state,
            token,
            left_over: false,
            caught_up: false,
            ended: false,
            merged,
        }
    }

    /// The token of the event that the pipeline is at.
    fn current(&self) -> Option<ResumeToken> {
        self.state.lock().last.clone()
    }

    /// Refuses an event that no longer names its place.
    fn check_id(&self, token: &DocBuf) -> Result<(), Error> {
        let found = self.source.current().get("_id");
        if found == Some(ValueRef::Document(token.as_doc())) {
            return Ok(());
        }
        let found = match found {
            Some(found) => format!("{{ _id: {found:?} }}"),
            None => "{}".to_owned(),
        };
        Err(not_resumable(
            Code::CHANGE_STREAM_FATAL_ERROR,
            format!(
                "Encountered an event whose _id field, which contains the resume token, was \
                 modified by the pipeline. Modifying the _id field of an event makes it \
                 impossible to resume the stream from that point. Only transformations that \
                 retain the unmodified _id field are allowed. Expected: {{ _id: {token:?} }} but \
                 found: {found}"
            ),
        ))
    }
}

impl BatchSource for StreamCursor {
    fn fill(
        &mut self,
        operation: &Arc<Operation>,
        batch: &mut Batch,
        budget: &mut Budget,
    ) -> Result<Filled, Error> {
        // The log may have to be read from disk: then the runtime is told. Streams
        // that keep up are woken by every write of theirs, so for them it is not.
        if budget.steps != u64::MAX && !self.caught_up {
            return Ok(Filled::Paused);
        }
        self.caught_up = false;
        self.environment.run_for(operation);
        loop {
            if batch.is_full() {
                return Ok(Filled::Full);
            }
            if !self.left_over {
                match self.source.advance().map_err(while_running)? {
                    Advance::Document => {}
                    Advance::Paused => {
                        self.caught_up = true;
                        self.token = self.state.lock().reached();
                        return Ok(Filled::Dry);
                    }
                    Advance::End => {
                        self.token = self.state.lock().reached();
                        self.ended = true;
                        return Ok(Filled::Ended);
                    }
                }
            }
            if let Some(lost) = &self.state.lock().lost {
                return Err(while_running(token_not_found(lost)));
            }
            let Some(token) = self.current() else {
                return Err(Error::new(
                    Code::INTERNAL_ERROR,
                    "a change stream has an event without a token",
                ));
            };
            self.check_id(&token.to_document()).map_err(while_running)?;
            self.left_over = !batch.offer(self.source.current());
            if self.left_over {
                return Ok(Filled::Full);
            }
            self.token = token;
        }
    }

    fn suspend(&mut self) {
        self.environment.suspend();
        // Nobody knows how much there is when it is asked for again.
        self.caught_up = false;
    }

    fn awaits_data(&self) -> bool {
        true
    }

    fn is_change_stream(&self) -> bool {
        true
    }

    fn tells_any_news(&self) -> bool {
        self.merged
    }

    fn interest(&self) -> Interest {
        Interest::from(&self.state.lock().target)
    }

    fn append_state(&self, writer: &mut DocWriter) {
        writer.append("postBatchResumeToken", &self.token.to_document());
        if self.ended {
            writer.append("invalidated", true);
        }
    }
}
