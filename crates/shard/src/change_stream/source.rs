//! The first stage of a change stream: events, from a place in the log on.
//!
//! It never waits. At the end of the log it pauses, and can be asked again later;
//! after an `invalidate` it ends.

use super::event::{Moment, What, events};
use super::images::{images, looks_up, own_images};
use super::token::{At, ResumeToken};
use crate::Shard;
use model::bson::{Doc, DocBuf, DocWriter};
use model::time::ClusterTime;
use model::{Code, Error};
use parking_lot::Mutex;
use query::pipeline::{
    Advance, ChangeStream, Environment, Source, Start, Step, Target, lets_through,
};
use replication::{Entry, LogPosition, ReadError};
use std::collections::VecDeque;
use std::sync::Arc;

/// What is read from the log at once.
const READ_BYTES: usize = 256 * 1024;
/// Entries between two looks whether the operation is to end.
const ENTRIES_PER_CHECK: u32 = 128;

/// How far a stream has come, for the cursor around the pipeline.
#[derive(Clone, Debug)]
pub(crate) struct StreamState {
    /// The last event that was handed to the pipeline.
    pub(super) last: Option<ResumeToken>,
    /// Where the stream stands if it has handed out everything.
    mark: ResumeToken,
    pub(super) invalidated: bool,
    pub(super) target: Target,
    /// The event to go on behind is none of this stream's.
    pub(super) lost: Option<ResumeToken>,
}

impl StreamState {
    /// The token behind everything that was read.
    pub(super) fn reached(&self) -> ResumeToken {
        match &self.last {
            // A token of the same entry says it more closely.
            Some(last) if last.time.next() == self.mark.time => last.clone(),
            _ => self.mark.clone(),
        }
    }
}

pub(crate) struct EventSource {
    shard: Arc<Shard>,
    environment: Arc<dyn Environment>,
    stream: ChangeStream,
    state: Arc<Mutex<StreamState>>,
    /// The last entry that was taken apart.
    position: LogPosition,
    /// Entries before it are none of the stream.
    not_before: ClusterTime,
    /// Events of this entry up to this one were seen before.
    resumed: Option<ResumeToken>,
    /// What follows in the pipeline, until the entry of that event was looked at. A member that is
    /// behind has it later: until then nobody knows whether the event is one of this stream's.
    behind: Option<Vec<Step>>,
    entries: VecDeque<Entry>,
    ready: VecDeque<Ready>,
    current: DocBuf,
    steps: u32,
}

/// An event on its way.
struct Ready {
    token: ResumeToken,
    document: DocBuf,
    is_last: bool,
}

impl EventSource {
    /// Finds the place where a stream begins.
    pub(crate) fn open(
        shard: &Arc<Shard>,
        environment: Arc<dyn Environment>,
        stream: &ChangeStream,
        behind: &[Step],
    ) -> Result<(Self, Arc<Mutex<StreamState>>), Error> {
        let (position, start, resumed) = match &stream.start {
            Start::Now => {
                let progress = *shard.log.watch().borrow();
                let next = progress.time.next();
                (progress.applied, ResumeToken::high_water_mark(next), None)
            }
            Start::AtTime(time) => {
                let position = position_at(shard, *time)?;
                (position, ResumeToken::high_water_mark(*time), None)
            }
            Start::ResumeAfter(token) => resume(shard, token.as_doc(), false)?,
            Start::StartAfter(token) => resume(shard, token.as_doc(), true)?,
        };
        let mark = match &resumed {
            Some(resumed) => ResumeToken::high_water_mark(resumed.time.next()),
            None => start.clone(),
        };
        let state = Arc::new(Mutex::new(StreamState {
            last: resumed.clone(),
            mark,
            invalidated: false,
            target: stream.target.clone(),
            lost: None,
        }));
        let source = Self {
            shard: shard.clone(),
            environment,
            stream: stream.clone(),
            state: state.clone(),
            position,
            not_before: start.time,
            behind: resumed.as_ref().map(|_| behind.to_vec()),
            resumed,
            entries: VecDeque::new(),
            ready: VecDeque::new(),
            current: DocBuf::new(),
            steps: 0,
        };
        Ok((source, state))
    }

    /// Takes the next entry apart; false at the end of the log.
    fn read_entry(&mut self) -> Result<bool, Error> {
        if self.entries.is_empty() {
            let entries = self.shard.log.read(self.position, READ_BYTES);
            self.entries = entries.map_err(lost)?.into();
        }
        let Some(entry) = self.entries.pop_front() else {
            return Ok(false);
        };
        self.position = entry.position;
        if entry.time < self.not_before {
            return Ok(true);
        }
        self.look_for_resumed(&entry)?;
        self.state.lock().mark = ResumeToken::high_water_mark(entry.time.next());
        self.make_events(&entry)?;
        Ok(true)
    }

    /// Whether the first entry that is read tells the event to go on behind.
    fn look_for_resumed(&mut self, entry: &Entry) -> Result<(), Error> {
        let (Some(token), Some(behind)) = (&self.resumed, self.behind.take()) else {
            return Ok(());
        };
        if !is_told(entry, &self.environment, &self.stream, &behind, token)? {
            self.state.lock().lost = Some(token.clone());
        }
        Ok(())
    }

    fn make_events(&mut self, entry: &Entry) -> Result<(), Error> {
        let decoded = decode(entry)?;
        let moment = Moment {
            time: entry.time,
            wall_ms: entry.wall_ms,
        };
        let expanded = self.stream.show_expanded_events;
        for event in events(&decoded, moment, &self.stream.target, expanded)? {
            if self.was_seen(&event.token) {
                continue;
            }
            let images = images(&self.shard, &self.stream, &event)?;
            self.ready.push_back(Ready {
                document: event.render(expanded, &images),
                is_last: matches!(event.what, What::Invalidate),
                token: event.token,
            });
        }
        Ok(())
    }

    /// Whether the event stands at or before the place where the stream was resumed.
    fn was_seen(&self, token: &ResumeToken) -> bool {
        let place = |token: &ResumeToken| match token.at {
            At::HighWaterMark => None,
            At::Event {
                operation,
                invalidates,
                ..
            } => Some((token.time, operation, invalidates)),
        };
        self.resumed
            .as_ref()
            .is_some_and(|resumed| place(token) <= place(resumed))
    }

    fn check(&mut self) -> Result<(), Error> {
        self.steps += 1;
        match self.steps.is_multiple_of(ENTRIES_PER_CHECK) {
            true => self.environment.check(),
            false => Ok(()),
        }
    }
}

impl Source for EventSource {
    fn advance(&mut self) -> Result<Advance, Error> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                let mut state = self.state.lock();
                state.last = Some(ready.token);
                state.invalidated = ready.is_last;
                self.current = ready.document;
                return Ok(Advance::Document);
            }
            if self.state.lock().invalidated {
                return Ok(Advance::End);
            }
            self.check()?;
            if !self.read_entry()? {
                return Ok(Advance::Paused);
            }
        }
    }

    fn current(&self) -> Doc<'_> {
        self.current.as_doc()
    }

    fn take(&mut self) -> DocBuf {
        std::mem::take(&mut self.current)
    }
}

/// The position after which to read, the mark to begin with, and the event to go on
/// behind.
type Place = (LogPosition, ResumeToken, Option<ResumeToken>);

fn resume(shard: &Shard, token: Doc<'_>, from_invalidate: bool) -> Result<Place, Error> {
    let token = ResumeToken::parse(token)?;
    let position = position_at(shard, token.time)?;
    let At::Event { invalidates, .. } = &token.at else {
        return Ok((position, token, None));
    };
    if *invalidates && !from_invalidate {
        return Err(Error::new(
            Code::INVALID_RESUME_TOKEN,
            "Attempting to resume a change stream using 'resumeAfter' is not allowed from an \
             invalidate notification",
        ));
    }
    let mark = ResumeToken::high_water_mark(token.time);
    Ok((position, mark, Some(token)))
}

/// Whether a stream tells the event of a token by this entry, as far as that is the same whenever it
/// is told.
fn is_told(
    entry: &Entry,
    environment: &Arc<dyn Environment>,
    stream: &ChangeStream,
    behind: &[Step],
    token: &ResumeToken,
) -> Result<bool, Error> {
    if entry.time != token.time {
        return Ok(false);
    }
    let decoded = decode(entry)?;
    let moment = Moment {
        time: entry.time,
        wall_ms: entry.wall_ms,
    };
    let expanded = stream.show_expanded_events;
    let told = events(&decoded, moment, &stream.target, expanded)?;
    let Some(event) = told.iter().find(|event| event.token == *token) else {
        return Ok(false);
    };
    // Behind the end of a stream goes on who likes, whatever is held back.
    if let What::Invalidate = event.what {
        return Ok(true);
    }
    let document = event.render(expanded, &own_images(&event.what));
    let lasting = ChangeStream::lasting(behind, looks_up(stream, &event.what));
    lets_through(lasting, document, environment)
}

/// What a client is told whose token names no event of its stream.
pub(super) fn token_not_found(token: &ResumeToken) -> Error {
    let shown = token.to_document();
    let shown = shown.as_doc().get_str("_data").unwrap_or_default();
    not_resumable(
        Code::CHANGE_STREAM_FATAL_ERROR,
        format!("cannot resume stream; the resume token was not found. {{_data: \"{shown}\"}}"),
    )
}

fn position_at(shard: &Shard, time: ClusterTime) -> Result<LogPosition, Error> {
    shard.log.position_at_time(time).map_err(lost)
}

fn decode(entry: &Entry) -> Result<storage::entry::Entry<'_>, Error> {
    storage::entry::Entry::decode(&entry.payload).map_err(|what| {
        Error::new(
            Code::INTERNAL_ERROR,
            format!("a log entry cannot be read: {what}"),
        )
    })
}

/// What a client is told when the log does not hold what follows.
fn lost(error: ReadError) -> Error {
    match error {
        ReadError::TooOld { .. } | ReadError::TimeTooOld { .. } | ReadError::Gap { .. } => {
            not_resumable(
                Code::CHANGE_STREAM_HISTORY_LOST,
                format!(
                    "Resume of change stream was not possible, as the resume point may no longer \
                     be in the oplog. {error}"
                ),
            )
        }
        ReadError::Corrupt { .. } | ReadError::Disk { .. } => {
            Error::new(Code::INTERNAL_ERROR, error.to_string())
        }
        ReadError::Stopped { .. } => Error::new(Code::INTERRUPTED_AT_SHUTDOWN, error.to_string()),
    }
}

/// An error after which a driver does not try to resume.
pub(super) fn not_resumable(code: Code, message: String) -> Error {
    let mut labels = DocWriter::new();
    labels
        .begin_array("errorLabels")
        .push("NonResumableChangeStreamError")
        .end();
    Error::new(code, message).with_details(labels.finish())
}
