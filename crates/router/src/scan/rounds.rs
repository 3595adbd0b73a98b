//! Rounds of questions: everybody is asked who must answer before more can be delivered, until one of them has.
//!
//! ```text
//!   ask ──► what was asked ahead, and the rest ──► settle ──┬─ answered: taken
//!    ▲                                                      ├─ not now, not there yet: a pause, then again
//!    └──────────────────────────────────────────────────────┤
//!                                                           └─ another collection: the scan ends
//! ```
//!
//! Every wait has a deadline: [`PATIENCE`], unless the router has another, for a range to arrive where it is said to be, and for a
//! shard to have a primary again. ⚑ It counts from the moment on which nobody answers any more: what a
//! shard needs to sort or to group is not waiting for a range.

use super::ElasticScan;
use super::asking::{Ask, Asker, OpenCursor};
use super::piece::Piece;
use crate::failure::{Failure, Stale, is_absent};
use crate::merge::kill_cursor;
use crate::operation;
use cluster::routing::ShardId;
use cluster::scan::{self, Asked, Question, Scan, StreamId};
use model::error::{Code, Error};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How long a scan waits for a range, or for a shard, before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Since when nobody has answered, and how long that is borne.
struct Patience {
    since: Option<Instant>,
    limit: Duration,
}

impl Patience {
    fn new(limit: Duration) -> Self {
        Self { since: None, limit }
    }

    /// Whether it is over at a time; it begins with the first that is asked about.
    fn ends(&mut self, at: Instant) -> bool {
        at.duration_since(*self.since.get_or_insert(at)) >= self.limit
    }
}

impl ElasticScan {
    /// Asks every shard that must answer before anything more can be delivered.
    pub(crate) async fn ask(&mut self) -> Result<(), Failure> {
        let limit = self.router.options.scan_patience;
        let mut patience = Patience::new(limit);
        let mut pause = PAUSE_MIN;
        loop {
            let mut answers = self.awaited().await?;
            let questions = self.scan.questions();
            if questions.is_empty() && answers.is_empty() {
                return match self.scan.has_ended() {
                    true => Ok(()),
                    false => Err(Failure::Error(Error::new(
                        Code::INTERNAL_ERROR,
                        "a question of a scan got lost",
                    ))),
                };
            }
            answers.extend(self.ask_all(questions).await?);
            let (mut must_wait, mut failure) = (None, None);
            let mut answered = Vec::new();
            for (question, answer) in answers {
                let bytes = match &answer {
                    Ok(Ask::Answered(answer)) => answer.bytes_on_cursor,
                    Ok(Ask::Lost | Ask::Stale(_) | Ask::Away(_) | Ask::TooLong) | Err(_) => None,
                };
                let settled = match answer {
                    Ok(Ask::Away(reason)) | Err(reason)
                        if self.may_leave_out && is_absent(&reason) =>
                    {
                        self.leave_out(question.stream).map(|()| None)
                    }
                    Ok(answer) => self.settle(&question, answer).await,
                    Err(failure) => Err(failure),
                };
                match settled {
                    Ok(None) => answered.push((question.stream, bytes)),
                    Ok(Some(reason)) => must_wait = Some(reason),
                    Err(other) => {
                        self.scan.unanswered(question.stream);
                        // Of several the first is told, unless another says that all is to be
                        // routed again.
                        if failure.is_none() || matches!(other, Failure::Stale(_)) {
                            failure = Some(other);
                        }
                    }
                }
            }
            if let Some(failure) = failure {
                return Err(failure);
            }
            if !answered.is_empty() {
                patience = Patience::new(limit);
            }
            for (stream, bytes) in answered {
                if let Some(bytes) = bytes {
                    self.ask_ahead(stream, bytes);
                }
            }
            let Some(reason) = must_wait else {
                // ⚑ As long as nothing is delivered, all can still be routed anew: the next round is asked
                // before anybody takes the answers of this one.
                if self.command.whole && self.scan.peek().is_none() && !self.scan.has_ended() {
                    continue;
                }
                return Ok(());
            };
            // What is here can be delivered meanwhile.
            if self.scan.peek().is_some() {
                return Ok(());
            }
            if patience.ends(Instant::now() + pause) {
                return Err(reason);
            }
            operation::waiting(tokio::time::sleep(pause)).await?;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    pub(super) fn asker(&self, bytes_max: Option<usize>) -> Arc<Asker> {
        Arc::new(Asker {
            router: self.router.clone(),
            command: self.command.clone(),
            base: self.scan.base().clone(),
            batch_size: self.batch_size,
            limit: self.scan.wanted_results(),
            not_before: self.not_before,
            begun: self.begun,
            is_hurried: self.may_leave_out,
            bytes_max,
            room: self.room.clone(),
            collection: self.collection,
        })
    }

    /// Asks at once. ⚑ The cursors of questions that are not answered stay known, so that whoever closes the
    /// scan ends them.
    async fn ask_all(
        &mut self,
        questions: Vec<Question>,
    ) -> Result<Vec<(Question, Result<Ask, Failure>)>, Failure> {
        let names = |question: &Question| matches!(question.asked, Asked::These(_));
        if questions.iter().any(names) {
            self.not_before = self.not_before.max(self.scan.base_time());
        }
        let asker = self.asker(None);
        let with_cursor: Vec<(Question, Option<OpenCursor>)> = questions
            .into_iter()
            .map(|question| {
                let at = question.stream.index();
                let cursor = self.cursors.get_mut(at).and_then(Option::take);
                (question, cursor)
            })
            .collect();
        let open: Vec<(StreamId, OpenCursor)> = with_cursor
            .iter()
            .filter_map(|(question, cursor)| Some((question.stream, cursor.clone()?)))
            .collect();
        if with_cursor.len() == 1 {
            let mut answers = Vec::with_capacity(1);
            for (question, cursor) in with_cursor {
                let answer = asker.ask(&question, cursor).await;
                answers.push((question, answer));
            }
            self.keep_unanswered(open, &answers);
            return Ok(answers);
        }
        let mut asking = JoinSet::new();
        for (question, cursor) in with_cursor {
            let asker = asker.clone();
            asking.spawn(operation::inherited(async move {
                let answer = asker.ask(&question, cursor).await;
                (question, answer)
            }));
        }
        let mut answers: Vec<(Question, Result<Ask, Failure>)> = Vec::with_capacity(asking.len());
        loop {
            let next = match operation::waiting(asking.join_next()).await {
                Ok(next) => next,
                Err(interrupted) => {
                    self.keep_unanswered(open, &answers);
                    for (question, answer) in answers {
                        if let Ok(Ask::Answered(answered)) = answer {
                            self.keep_cursor(question.stream, answered.cursor);
                        }
                    }
                    return Err(interrupted.into());
                }
            };
            let Some(ended) = next else {
                break;
            };
            match ended {
                Ok(answer) => answers.push(answer),
                // It panicked, or the runtime ends: whoever asked is not answered.
                Err(error) => tracing::error!(%error, "a question to a shard did not end"),
            }
        }
        answers.sort_by_key(|(question, _)| question.stream);
        self.keep_unanswered(open, &answers);
        Ok(answers)
    }

    /// Keeps the cursors of which nobody has said what became of them.
    fn keep_unanswered(
        &mut self,
        open: Vec<(StreamId, OpenCursor)>,
        answers: &[(Question, Result<Ask, Failure>)],
    ) {
        for (stream, cursor) in open {
            let is_answer = |(question, answer): &(Question, Result<Ask, Failure>)| {
                question.stream == stream && answer.is_ok()
            };
            if !answers.iter().any(is_answer) {
                self.keep_cursor(stream, Some(cursor));
            }
        }
    }

    /// Takes an answer. If it says that there is nothing to take yet, why.
    async fn settle(&mut self, question: &Question, ask: Ask) -> Result<Option<Failure>, Failure> {
        let stream = question.stream;
        match ask {
            Ask::Answered(answered) => {
                let moved = match answered.not_owned.is_empty() {
                    true => Some(Vec::new()),
                    false => {
                        let (shard, version) = (&question.shard, answered.version);
                        self.locate(shard, &answered.not_owned, version).await?
                    }
                };
                let Some(moved) = moved else {
                    // It is said to be where it is not: the news are on their way, somewhere.
                    if let Some(cursor) = answered.cursor {
                        kill_cursor(&*cursor.member, self.command.namespace.as_str(), cursor.id)
                            .await;
                    }
                    self.scan.unanswered(stream);
                    self.count_repeat(stream);
                    return Ok(Some(self.did_not_arrive(&question.shard)));
                };
                self.collection = self.collection.or(answered.collection);
                for time in answered.times {
                    self.not_before = self.not_before.max(time);
                }
                self.keep_cursor(stream, answered.cursor);
                let results = answered.entries.iter().map(|entry| entry.value.documents());
                let results: u64 = results.sum();
                let counts = self.counts(stream);
                counts.batches += 1;
                counts.results += results;
                let batch = scan::Batch {
                    entries: answered.entries,
                    reached: answered.place,
                    ended: answered.ended,
                    moved,
                };
                self.take(stream, batch)?;
                self.take_run(answered.run)?;
                Ok(None)
            }
            Ask::Lost => {
                self.count_repeat(stream);
                self.scan.name_ranges(stream);
                Ok(Some(self.did_not_arrive(&question.shard)))
            }
            Ask::Stale(stale) if self.command.is_at_home => {
                self.count_repeat(stream);
                self.settle_home(question, stale).await.map(Some)
            }
            Ask::Stale(stale) => {
                let shard = &question.shard;
                let is_of_this = match &stale {
                    Stale::Collection {
                        wanted: Some(wanted),
                        ..
                    } => wanted.incarnation == self.scan.base().incarnation,
                    Stale::Collection { wanted: None, .. } => self.begun,
                    Stale::Database => false,
                };
                // ⚑ Who owned what in the past was told by a placement that is too old.
                if self.command.is_past {
                    self.settle_past(&stale).await?;
                }
                self.router.routing.note(&self.command.namespace, &stale);
                self.count_repeat(stream);
                if is_of_this {
                    // Some of its ranges went, or came: it is asked for those it had.
                    self.scan.name_ranges(stream);
                } else if matches!(stale, Stale::Collection { .. }) && self.begun {
                    self.follow_key(shard).await?;
                    self.scan.unanswered(stream);
                } else {
                    return Err(self.killed());
                }
                Ok(Some(self.did_not_arrive(shard)))
            }
            Ask::Away(reason) => {
                self.count_repeat(stream);
                self.scan.unanswered(stream);
                Ok(Some(reason))
            }
            Ask::TooLong => {
                self.scan.divide(stream);
                Ok(None)
            }
        }
    }

    /// Nobody answers for a stream: the scan goes on without what is left of it.
    fn leave_out(&mut self, stream: StreamId) -> Result<(), Failure> {
        self.left_out = true;
        self.keep_cursor(stream, None);
        let nothing = scan::Batch {
            entries: Vec::new(),
            reached: None,
            ended: true,
            moved: Vec::new(),
        };
        self.take(stream, nothing)
    }

    fn count_repeat(&mut self, stream: StreamId) {
        self.counts(stream).repeats += 1;
        let counters = &self.router.scans;
        counters.batches_repeated.fetch_add(1, Ordering::Relaxed);
    }

    /// Hands a batch to the core, and counts the streams that it opens.
    pub(super) fn take(
        &mut self,
        stream: StreamId,
        batch: scan::Batch<Piece>,
    ) -> Result<(), Failure> {
        let hops_of = |scan: &Scan<Piece>| {
            let streams = scan.streams().filter(|stream| stream.is_virtual);
            let hops = streams.map(|stream| u64::from(stream.hops));
            hops.fold((0, 0), |(count, sum), hops| (count + 1, sum + hops))
        };
        let moves = !batch.moved.is_empty();
        let before: (u64, u64) = if moves { hops_of(&self.scan) } else { (0, 0) };
        let taken = self.scan.answered(stream, batch);
        taken.map_err(|error| Error::new(Code::INTERNAL_ERROR, error.to_string()))?;
        if moves {
            let after = hops_of(&self.scan);
            let counters = &self.router.scans;
            let opened = after.0.saturating_sub(before.0);
            counters.virtual_opened.fetch_add(opened, Ordering::Relaxed);
            let hops = after.1.saturating_sub(before.1);
            counters.hops.fetch_add(hops, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn did_not_arrive(&self, shard: &ShardId) -> Failure {
        Failure::Error(Error::new(
            Code::EXCEEDED_TIME_LIMIT,
            format!(
                "a range of {} did not arrive at shard {shard} within {:?}",
                self.command.namespace, self.router.options.scan_patience
            ),
        ))
    }

    /// The error for a collection that is not the one whose scan this is any more. As long as
    /// nobody has seen anything of it, all is routed again instead.
    pub(super) fn killed(&self) -> Failure {
        if !self.begun {
            let base = self.scan.streams().next();
            return Failure::Stale(Stale::Collection {
                shard: base.map_or_else(|| ShardId::new(""), |stream| stream.shard.clone()),
                wanted: None,
            });
        }
        Failure::Error(Error::new(
            Code::QUERY_PLAN_KILLED,
            format!(
                "collection {} was dropped, renamed or resharded during the scan",
                self.command.namespace
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ⚑ A shard that sorts or groups for minutes beside one whose range has moved is no reason to give up.
    #[test]
    fn patience_begins_when_nobody_answers() {
        let mut patience = Patience::new(PATIENCE);
        // The others have answered after an hour, and one has to be asked again.
        let begins = Instant::now() + Duration::from_secs(3600);
        assert!(!patience.ends(begins));
        assert!(!patience.ends(begins + PATIENCE / 2));
        assert!(patience.ends(begins + PATIENCE));
    }
}
