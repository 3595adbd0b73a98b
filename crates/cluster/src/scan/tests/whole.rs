//! Scans whose results count as a whole, in the worlds of `worlds.rs`.
//!
//! ```text
//!   question ─► all that a shard has, in one snapshot ─► comes in parts ─► answered, with the last of them
//!                                                          └─ lost: the stream begins anew, elsewhere perhaps
//! ```
//!
//! A partial result stands for the documents it is made of, each of which is to count once. As long as nothing was
//! delivered, whoever scans may begin anew with the placement of now, which is what going on from a token is for other
//! scans. States: 300 to 3,100 with one event, 20,000 to 133,000 with two, 33,000 with three moves.

use super::search::{LAYOUTS, Layout, all_of, search};
use super::worlds::{Answers, Broken, Run, Served};
use super::*;

/// What a shard has made of all its documents: in no order, and with no place to go on from.
pub(super) fn partial_results(mut batch: Batch<u32>) -> Batch<u32> {
    batch.reached = None;
    for entry in &mut batch.entries {
        (entry.sort, entry.place) = (Vec::new(), None);
    }
    batch
}

impl Run {
    /// One part of an answer that comes, or all that is delivered.
    pub(super) fn step_of_whole(&mut self, chosen: usize) -> bool {
        let questions = self.scan.questions();
        let asked = questions.len();
        let choices = asked + self.late.len();
        let chosen = chosen % choices.max(1);
        for (place, question) in questions.into_iter().enumerate() {
            if self.answers == Answers::Late || place == chosen {
                let answer = self.serve(&question);
                self.late.push((question.stream, answer));
            } else {
                self.scan.unanswered(question.stream);
            }
        }
        let place = match self.answers {
            Answers::Late => chosen,
            Answers::AtOnce | Answers::Ahead if chosen < asked => self.late.len() - 1,
            Answers::AtOnce | Answers::Ahead => chosen - asked,
        };
        if place < self.late.len() {
            self.gather(place);
        }
        while let Some(entry) = self.scan.deliver() {
            self.found.push((entry.sort, entry.value));
        }
        !self.scan.has_ended()
    }

    /// The next part of an answer arrives; with the last one the question is answered.
    fn gather(&mut self, place: usize) {
        let (stream, answer) = &self.late[place];
        let stream = *stream;
        if let Served::Batch(batch) = answer {
            let gathered = self.gathered.entry(stream).or_default();
            if *gathered + self.batch_max < batch.entries.len() {
                *gathered += self.batch_max;
                return;
            }
        }
        let (_, mut answer) = self.late.remove(place);
        self.gathered.remove(&stream);
        if let Served::Batch(batch) = &mut answer {
            let kept = self.kept.remove(&stream).unwrap_or_default();
            batch.entries.splice(..0, kept);
        }
        self.take(stream, answer);
    }

    /// What is on its way is lost. ⚑ What has come of it counts for nothing.
    pub(super) fn lose_partials(&mut self) {
        for (stream, gathered) in std::mem::take(&mut self.gathered) {
            let late = self.late.iter().find(|(other, _)| *other == stream);
            if let (Some(Broken::KeptPartials), Some((_, Served::Batch(batch)))) =
                (self.broken, late)
            {
                let kept = self.kept.entry(stream).or_default();
                kept.extend_from_slice(&batch.entries[..gathered]);
            }
        }
    }

    /// ⚑ Only as long as nothing was delivered.
    pub(super) fn may_begin_anew(&self) -> bool {
        self.found.is_empty() || self.broken == Some(Broken::EarlyPartials)
    }

    pub(super) fn begin_anew(&mut self) {
        if !self.may_begin_anew() {
            return;
        }
        let base = Arc::new(self.table.clone());
        self.scan = Scan::begin(base, everything(), self.order_of_scan());
        self.changed.clear();
        self.late.clear();
        self.gathered.clear();
        self.kept.clear();
    }

    /// Without the rule, results come stream by stream.
    fn order_of_scan(&self) -> Order {
        match self.broken {
            Some(Broken::EarlyPartials) => Order::Unsorted,
            _ => self.order,
        }
    }

    /// Switches a rule off.
    pub(super) fn without(mut self, rule: Broken) -> Self {
        self.broken = Some(rule);
        self.scan = begin(&self.world, self.order_of_scan());
        self
    }
}

const ANSWERS: [Answers; 2] = [Answers::AtOnce, Answers::Late];

fn run(layout: Layout, answers: Answers, batch_max: usize) -> Run {
    Run::new(layout.world(), Order::Whole, batch_max).answering(answers)
}

/// Whatever happens, each document counts once.
#[test]
fn one_event_at_any_time() {
    for layout in LAYOUTS {
        for answers in ANSWERS {
            for batch_max in [1, 2] {
                for is_terse in [false, true] {
                    let mut run = run(layout, answers, batch_max);
                    if is_terse {
                        run = run.terse();
                    }
                    let what = format!("{layout:?} {answers:?} {batch_max} {is_terse}");
                    all_of(&run, &layout.all(), 1, 100, &what);
                }
            }
        }
    }
}

#[test]
fn two_events_at_any_time() {
    for (layout, answers) in [
        (Layout::Turns, Answers::AtOnce),
        (Layout::Turns, Answers::Late),
        (Layout::Halves, Answers::Late),
        (Layout::OneShard, Answers::AtOnce),
        (Layout::OneShard, Answers::Late),
    ] {
        let what = format!("{layout:?} {answers:?}");
        all_of(&run(layout, answers, 2), &layout.all(), 2, 20_000, &what);
    }
}

/// Ranges that move again, come back, and are drained.
#[test]
fn three_moves_at_any_time() {
    for answers in ANSWERS {
        let layout = Layout::OneShard;
        let what = format!("{layout:?} {answers:?}");
        all_of(&run(layout, answers, 2), &layout.moves(), 3, 20_000, &what);
    }
}

/// What the search finds without a rule.
fn check_repeated(rule: Broken) {
    let run = run(Layout::Turns, Answers::AtOnce, 1).without(rule);
    let found = search(&run, &Layout::Turns.all(), 1);
    let error = found.expect_err("nothing goes wrong without the rule");
    assert!(error.contains("came 2 times"), "{error}");
}

#[test]
fn partial_results_count_when_their_stream_has_ended() {
    check_repeated(Broken::KeptPartials);
}

#[test]
fn partial_results_are_delivered_when_all_streams_have_ended() {
    check_repeated(Broken::EarlyPartials);
}
