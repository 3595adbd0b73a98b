//! Writes over several shards that change each document once: the shell around
//! [`cluster::broadcast`].
//!
//! ```text
//!   questions ─► asked all at once ─┬─ counts, and what was left ─► who owns it now? ─► more questions
//!                                   ├─ another version: the ranges are named, very many by what has changed
//!                                   ├─ no reply, or one of a member that leads no longer: the same question again
//!                                   └─ forgotten: a new question, if it was asked only once
//! ```
//!
//! ⚑ A member that is deposed while it walks says so, and has carried out what its entries say: that is no less
//! unknown than a reply that got lost. Whoever has heard of that asks the same again, and never begins anew under
//! another plan.
//!
//! Updates and deletes of many documents of a sharded collection go this way, however many shards they
//! concern, and those of one document that its `_id` alone names. What one shard answers for is one
//! statement; the other fields of the command go with it as the client sent them.
//!
//! A retryable statement about one document is told by each shard whether it was carried out before. The
//! history of a session moves with ranges, so that several may say so of one and the same document: it
//! counts once, and only if no shard has carried it out now.
//!
//! Every wait has a deadline: [`PATIENCE`] since anything was carried out, or the client's time limit.
//! What becomes of requests that nobody answered by then is not known; the client is told so.

use crate::Router;
use crate::bulk::{Gathered, Kind, elements, fault, fault_of};
use crate::failure::{Failure, Stale};
use crate::operation;
use crate::request::fields_without;
use crate::scan::{PATIENCE, append_ranges, code_of, is_passing, owners, ranges_of, version};
use cluster::broadcast::{
    Answer, Broadcast, Difference, Left, PartNaming, Question, Totals, part_naming,
};
use cluster::bulk::WriteFault;
use cluster::cache::Placement;
use cluster::routing::{RoutingTable, ShardId};
use cluster::scan::{Asked, Limits};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::{Code, Error};
use model::ids::Uuid;
use model::namespace::Namespace;
use model::number::Number;
use model::range::RangeSet;
use model::version::PlacementVersion;
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use wire::{Request, Sequence};

const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Names of operations that can be used again: each by one at a time, with growing numbers, so that
/// shards keep little.
#[derive(Default)]
pub(crate) struct Slots(Mutex<Vec<Slot>>);

#[derive(Clone, Copy, Debug)]
struct Slot {
    id: Uuid,
    number: u64,
}

/// A slot in use. One whose operation did not come to its end is not used again: a shard may still be
/// at work on it.
struct Taken<'a> {
    slots: &'a Slots,
    slot: Slot,
    has_ended: bool,
}

impl Slots {
    fn take(&self) -> Taken<'_> {
        let free = self.0.lock().pop();
        let new = || Slot {
            id: Uuid(fastrand::u128(..).to_be_bytes()),
            number: 0,
        };
        let mut slot = free.unwrap_or_else(new);
        slot.number += 1;
        Taken {
            slots: self,
            slot,
            has_ended: false,
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            self.slots.0.lock().push(self.slot);
        }
    }
}

/// One statement over several shards.
pub(crate) struct Statement<'a> {
    pub(crate) router: &'a Router,
    pub(crate) request: &'a Request,
    pub(crate) kind: Kind,
    pub(crate) namespace: &'a Namespace,
    /// As it goes to shards.
    pub(crate) statement: Doc<'a>,
    /// Of a retryable write.
    pub(crate) id: Option<i32>,
    /// The time that all shards go by.
    pub(crate) now_ms: i64,
    /// Nothing of the client's command has been carried out: what is wrong with it is told as it is.
    pub(crate) is_first: bool,
}

/// What one shard's reply came to.
enum Taking {
    /// Something was carried out, or is known not to be there.
    Done,
    /// Nothing is known yet, and why.
    Wait(Failure),
    /// The collection is another than it was routed by, or was given another shard key; the same
    /// as `Wait` if any shard has answered.
    Anew(Failure),
    /// The command is refused.
    Refused(Failure),
}

struct Run<'a> {
    statement: &'a Statement<'a>,
    operation: Broadcast,
    slot: Taken<'a>,
    /// What a shard says it did at an earlier attempt of the client.
    retried: Option<(u64, u64)>,
    /// The latest placement that a shard spoke of.
    told: Option<PlacementVersion>,
}

impl Statement<'_> {
    /// Carries it out; `None` if it has to be routed anew, and nothing was done.
    pub(crate) async fn run(
        &self,
        table: RoutingTable,
        wanted: RangeSet,
        shards: Vec<ShardId>,
        gathered: &mut Gathered,
    ) -> Result<Option<Totals>, Failure> {
        let run = Run {
            statement: self,
            operation: Broadcast::begin(std::sync::Arc::new(table), wanted, shards),
            slot: self.router.slots.take(),
            retried: None,
            told: None,
        };
        run.carry_out(gathered).await
    }

    /// The client's own limit, or ours.
    fn patience(&self) -> Duration {
        let limit = self.request.body().get("maxTimeMS").and_then(Number::of);
        match limit.map(|limit| limit.to_f64()) {
            Some(limit_ms) if limit_ms >= 1.0 => {
                PATIENCE.min(Duration::from_millis(limit_ms as u64))
            }
            _ => PATIENCE,
        }
    }
}

impl Run<'_> {
    async fn carry_out(mut self, gathered: &mut Gathered) -> Result<Option<Totals>, Failure> {
        let patience = self.statement.patience();
        let mut deadline = Instant::now() + patience;
        let mut pause = PAUSE_MIN;
        let mut is_first = self.statement.is_first;
        while !self.operation.has_ended() {
            operation::check()?;
            let questions = self.operation.questions(self.statement.router.clock.now());
            let answers = self.ask(&questions).await?;
            let (mut must_wait, mut refused) = (None, Vec::new());
            let mut anew = false;
            for (question, answer) in questions.iter().zip(answers) {
                match self.take(question, answer, gathered) {
                    Taking::Done => {
                        deadline = Instant::now() + patience;
                        pause = PAUSE_MIN;
                    }
                    Taking::Wait(reason) => must_wait = Some(reason),
                    Taking::Anew(reason) => {
                        anew = true;
                        must_wait = Some(reason);
                    }
                    Taking::Refused(failure) => refused.push((question.stream, failure)),
                }
            }
            // ⚑ Only when all answers are known: another shard may have carried its part out.
            if anew && refused.is_empty() && !self.operation.has_begun() {
                return Ok(None);
            }
            // Refused by all that were asked, before anything was carried out: the command itself
            // is wrong.
            if is_first
                && refused.len() == questions.len()
                && let Some((_, failure)) = refused.pop()
            {
                return Err(failure);
            }
            is_first = false;
            for (stream, failure) in refused {
                self.fail(stream, failure);
            }
            if let Some(reason) = self.settle().await? {
                must_wait.get_or_insert(reason);
            }
            match must_wait {
                None => {}
                Some(_) if Instant::now() + pause < deadline => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                // Nobody knows what became of it: the driver asks again, and is recognised.
                Some(reason) if self.statement.id.is_some() => return Err(reason),
                Some(reason) => {
                    let mut totals = self.operation.totals().clone();
                    totals.faults.push(fault_of_failure(reason));
                    return Ok(Some(totals));
                }
            }
        }
        self.slot.has_ended = true;
        let mut totals = self.operation.totals().clone();
        if let (Some((matched, modified)), 0, Some(id)) =
            (self.retried, totals.matched, self.statement.id)
        {
            (totals.matched, totals.modified) = (matched, modified);
            gathered.retried.push(id);
        }
        Ok(Some(totals))
    }

    async fn ask(
        &self,
        questions: &[Question],
    ) -> Result<Vec<Result<crate::scatter::Answered, Failure>>, Failure> {
        let router = self.statement.router;
        let mut answers = Vec::with_capacity(questions.len());
        let mut requests = Vec::with_capacity(questions.len());
        // One that was removed must not stand in the way of the others.
        for question in questions {
            answers.push(match router.shard(&question.shard).await {
                Ok(_) => match self.difference(question).await {
                    Ok(difference) => {
                        let request = self.request(question, difference.as_ref())?;
                        requests.push((question.shard.clone(), request));
                        None
                    }
                    Err(failure) => Some(Err(failure)),
                },
                Err(error) => Some(Err(error.into())),
            });
        }
        let mut answered = router.ask_all(requests).await?.into_iter();
        let missing = || Error::new(Code::INTERNAL_ERROR, "an answer got lost");
        let all = answers.into_iter().map(|known| {
            let known = known.or_else(|| answered.next());
            known.unwrap_or_else(|| Err(missing().into()))
        });
        Ok(all.collect())
    }

    /// How ranges that are too many to be named are said to a shard.
    async fn difference(&self, question: &Question) -> Result<Option<Difference>, Failure> {
        let limits = Limits::OF_REQUESTS;
        let ranges = match &question.asked {
            Asked::These(ranges) if !limits.are_few(ranges) => ranges,
            Asked::These(_) | Asked::AsInBase => return Ok(None),
        };
        let namespace = self.statement.namespace;
        let (routing, shard) = (&self.statement.router.routing, &question.shard);
        // ⚑ Nothing that the shard has said to be old.
        let placement = routing.placement(namespace, Some(std::slice::from_ref(shard)));
        let now = match placement.await? {
            Placement::Sharded(now) if now.incarnation == self.operation.base().incarnation => now,
            // It is another collection.
            Placement::Sharded(now) => {
                return Err(Failure::Stale(Stale::Collection {
                    shard: shard.clone(),
                    wanted: Some(now.version()),
                }));
            }
            Placement::Unsharded => return Err(Failure::Stale(Stale::Database)),
        };
        match part_naming(ranges, shard, &now, limits) {
            PartNaming::ByName => Ok(None),
            PartNaming::ByVersion(difference) => Ok(Some(difference)),
            PartNaming::TooLong => Err(Failure::Error(Error::new(
                Code::BSON_OBJECT_TOO_LARGE,
                format!("too many ranges of {namespace} have moved during the write"),
            ))),
        }
    }

    /// The command for one shard.
    fn request(
        &self,
        question: &Question,
        difference: Option<&Difference>,
    ) -> Result<Request, Error> {
        let Statement {
            router,
            request,
            kind,
            statement,
            id,
            now_ms,
            ..
        } = self.statement;
        let field = kind.statements_field();
        let dropped = [
            field,
            "stmtIds",
            "stmtId",
            "_terndbBroadcast",
            "runtimeConstants",
        ];
        let mut writer = fields_without(request.body(), &dropped);
        writer
            .begin_document("runtimeConstants")
            .append("localNow", ValueRef::DateTime(*now_ms))
            .append("clusterTime", router.clock.now())
            .end();
        if let Some(id) = id {
            writer.begin_array("stmtIds").push(*id).end();
        }
        let base = self.operation.base();
        let version = match (difference, &question.asked) {
            (Some(difference), _) => Some(difference.version),
            (None, Asked::AsInBase) => Some(base.shard_version(&question.shard)),
            (None, Asked::These(_)) => None,
        };
        if let Some(version) = version {
            writer.begin_document("shardVersion");
            version.append_to(&mut writer);
            writer.end();
        }
        let uuid = |bytes| ValueRef::Binary { subtype: 4, bytes };
        let number = i64::try_from(self.slot.slot.number).unwrap_or(i64::MAX);
        writer
            .begin_document("_terndbBroadcast")
            .append("slot", uuid(&self.slot.slot.id.0))
            .append("number", number)
            .append("stream", i32::try_from(question.stream).unwrap_or(i32::MAX))
            .append("sent", question.sent);
        if question.again {
            writer.append("again", true);
        }
        let named = match (difference, &question.asked) {
            (Some(difference), _) => {
                append_ranges(&mut writer, "without", &difference.without);
                Some(&difference.besides)
            }
            (None, Asked::These(ranges)) => Some(ranges),
            (None, Asked::AsInBase) => None,
        };
        if let Some(ranges) = named {
            append_ranges(&mut writer, "ranges", ranges);
            writer.append("uuid", uuid(&base.uuid.0));
        }
        if let Some(bytes) = &question.after {
            writer.append("after", ValueRef::Binary { subtype: 0, bytes });
        }
        writer.end();
        router.clock.append_to(&mut writer);
        let sequence = Sequence::new(field, std::iter::once(*statement));
        Request::from_parts(writer.finish(), vec![sequence])
    }

    /// Takes an answer.
    fn take(
        &mut self,
        question: &Question,
        answer: Result<crate::scatter::Answered, Failure>,
        gathered: &mut Gathered,
    ) -> Taking {
        let stream = question.stream;
        let failure = match answer {
            Ok(answered) => {
                let reply = answered.reply.document();
                let error = elements(reply, "writeErrors").next();
                let is_forgotten = error.is_some_and(|error| {
                    error.get("code") == Some(ValueRef::Int32(Code::TRANSACTION_TOO_OLD.0))
                });
                if is_forgotten && self.operation.forgotten(stream) {
                    return Taking::Wait(self.did_not_arrive(&question.shard));
                }
                match error.and_then(|error| Stale::of(error, &question.shard)) {
                    Some(stale) => Failure::Stale(stale),
                    None => return self.answered(question, reply, gathered),
                }
            }
            Err(failure) => failure,
        };
        match failure {
            Failure::Stale(stale) => {
                let router = self.statement.router;
                router.routing.note(self.statement.namespace, &stale);
                let is_of_this = match &stale {
                    Stale::Collection {
                        wanted: Some(wanted),
                        ..
                    } => wanted.incarnation == self.operation.base().incarnation,
                    Stale::Collection { wanted: None, .. } | Stale::Database => false,
                };
                self.operation.name_ranges(stream);
                let reason = self.did_not_arrive(&question.shard);
                match is_of_this {
                    true => Taking::Wait(reason),
                    false => Taking::Anew(reason),
                }
            }
            // ⚑ It was removed, and did something that nobody can ask it about any more.
            Failure::Error(error) if error.code == Code::SHARD_NOT_FOUND && question.again => {
                let message = format!(
                    "shard {} was removed before it told how far it came",
                    question.shard
                );
                Taking::Refused(Failure::Error(Error::new(Code::HOST_UNREACHABLE, message)))
            }
            // It was drained and removed: nothing of what it had is there.
            Failure::Error(error) if error.code == Code::SHARD_NOT_FOUND => {
                match &question.asked {
                    Asked::AsInBase => self.operation.name_ranges(stream),
                    Asked::These(ranges) => {
                        let left = Left {
                            ranges: ranges.clone(),
                            after: question.after.clone(),
                        };
                        let answer = Answer {
                            left: vec![left],
                            ..Answer::default()
                        };
                        self.operation.answered(stream, answer);
                    }
                }
                Taking::Wait(Failure::Error(error))
            }
            // Who was not reached may have heard it all the same.
            Failure::Error(error) if is_passing(error.code) => {
                self.operation.unanswered(stream, true);
                Taking::Wait(Failure::Error(error))
            }
            // ⚑ Who leads no longer, or stops, may have carried out a part of it before.
            Failure::Reply(reply) if is_passing(code_of(&reply)) => {
                self.operation.unanswered(stream, true);
                Taking::Wait(Failure::Reply(reply))
            }
            failure @ (Failure::Reply(_) | Failure::Error(_)) => Taking::Refused(failure),
        }
    }

    fn answered(&mut self, question: &Question, reply: Doc<'_>, gathered: &mut Gathered) -> Taking {
        let number = |name: &str| {
            let number = reply.get(name).and_then(Number::of);
            number.map_or(0, |number| number.to_f64() as u64)
        };
        if let Some(error) = reply.get_doc("writeConcernError") {
            let told = (question.shard.clone(), error.to_owned());
            gathered.concern_errors.push(told);
        }
        let broadcast = reply.get_doc("broadcast").unwrap_or(Doc::EMPTY);
        let left: Vec<Left> = elements(broadcast, "left")
            .map(|left| Left {
                ranges: ranges_of(left, "ranges"),
                after: match left.get("after") {
                    Some(ValueRef::Binary { bytes, .. }) => Some(bytes.to_vec()),
                    _ => None,
                },
            })
            .collect();
        let told = version(broadcast);
        self.told = match (self.told, told) {
            (Some(known), Some(told)) if known.chunk >= told.chunk => Some(known),
            (known, told) => told.or(known),
        };
        let (mut matched, mut modified) = (number("n"), number("nModified"));
        let is_retried = reply
            .get_array("retriedStmtIds")
            .is_some_and(|ids| ids.iter().next().is_some());
        if is_retried {
            self.retried.get_or_insert((matched, modified));
            (matched, modified) = (0, 0);
        }
        let goes_nowhere = matched == 0
            && left.iter().any(|left| match &question.asked {
                Asked::These(asked) => left.ranges == *asked,
                Asked::AsInBase => false,
            });
        let fault = elements(reply, "writeErrors").next().map(fault_of);
        let answer = Answer {
            matched,
            modified,
            fault,
            left,
        };
        self.operation.answered(question.stream, answer);
        match goes_nowhere {
            true => Taking::Wait(self.did_not_arrive(&question.shard)),
            false => Taking::Done,
        }
    }

    fn fail(&mut self, stream: u32, failure: Failure) {
        let answer = Answer {
            fault: Some(fault_of_failure(failure)),
            ..Answer::default()
        };
        self.operation.answered(stream, answer);
    }

    /// Opens streams for what was left. If the routing table says that it is where it was left, that
    /// is asked again after a while, and why.
    async fn settle(&mut self) -> Result<Option<Failure>, Failure> {
        let mut must_wait = None;
        while let Some(homeless) = self.operation.homeless().first() {
            let ranges = homeless.left.ranges.clone();
            let from = homeless.from.clone();
            let known = self.table(false).await?;
            let is_older = self
                .told
                .is_none_or(|told| known.version().chunk < told.chunk);
            let mut moved = owners(&known, &ranges);
            if is_older || moved.iter().any(|(_, owner)| *owner == from) {
                moved = owners(&self.table(true).await?, &ranges);
            }
            if moved.iter().any(|(_, owner)| *owner == from) {
                must_wait = Some(self.did_not_arrive(&from));
            }
            self.operation.settle(moved);
        }
        Ok(must_wait)
    }

    /// The placement of the collection that the operation began with.
    async fn table(&self, anew: bool) -> Result<RoutingTable, Failure> {
        let namespace = self.statement.namespace;
        let routing = &self.statement.router.routing;
        if anew {
            routing.mark_stale(namespace);
        }
        match routing.placement(namespace, None).await? {
            Placement::Sharded(table) if table.incarnation == self.operation.base().incarnation => {
                Ok(table)
            }
            Placement::Sharded(_) | Placement::Unsharded if anew => {
                Err(Failure::Error(Error::new(
                    Code::QUERY_PLAN_KILLED,
                    format!(
                        "collection {namespace} was dropped, renamed or resharded during the write"
                    ),
                )))
            }
            Placement::Sharded(_) | Placement::Unsharded => Box::pin(self.table(true)).await,
        }
    }

    fn did_not_arrive(&self, shard: &ShardId) -> Failure {
        Failure::Error(Error::new(
            Code::EXCEEDED_TIME_LIMIT,
            format!(
                "a range of {} did not arrive at shard {shard} in time",
                self.statement.namespace
            ),
        ))
    }
}

fn fault_of_failure(failure: Failure) -> WriteFault {
    match failure {
        Failure::Error(error) => fault(error),
        Failure::Reply(reply) => fault(crate::config::error_of(reply.document())),
        Failure::Stale(stale) => fault(stale.error()),
    }
}

/// An update without its `upsert`: what is there is changed first.
pub(crate) fn without_upsert(statement: Doc<'_>) -> DocBuf {
    let mut writer = DocWriter::new();
    for element in statement.iter().filter(|element| element.key() != "upsert") {
        writer.append_element(&element);
    }
    writer.finish()
}
