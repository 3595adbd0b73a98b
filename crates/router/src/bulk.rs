//! `insert`, `update`, `delete`: a batch split over shards, its reply put together.
//!
//! [`BulkWrite`] decides what goes where and in which order; here parts are encoded, sent, and
//! their replies read. A batch that goes to one shard as a whole passes through as bytes, its
//! reply too.
//!
//! Statements about many documents of a sharded collection, or about one that only its `_id` names, go
//! alone: `broadcast.rs`. One that may insert is tried as it is without that first, and sent as a part
//! if it matched nothing.
//!
//! Retryable writes: a part of a batch names the statement ids of its statements (`stmtIds`), so
//! that a statement keeps its id whatever part it travels in, and a retry finds it.
//!
//! A part without a reply: of a retryable write the client is told so as a whole, because its
//! driver sends the batch again and the shards recognise what they have carried out. Otherwise each
//! of its statements fails, since nobody knows what became of it.

use crate::Router;
use crate::broadcast::{Statement, without_upsert};
use crate::completion::{RetriedAs, completed};
use crate::direct;
use crate::failure::{Failure, Stale};
use crate::operation;
use crate::request::fields_without;
use crate::routing::Route;
use crate::scatter::Answered;
use crate::targeting::{context_of, namespace_of, parse_filter, with_constants};
use cluster::broadcast::Totals;
use cluster::bulk::{BulkWrite, Effect, Goes, Limits, Part, Round, Summary, WriteFault};
use cluster::routing::ShardId;
use model::bson::{Doc, DocBuf, DocWriter, Value, ValueRef};
use model::error::{Code, Error};
use model::namespace::Namespace;
use model::number::Number;
use query::context::QueryContext;
use query::plan::shard_key_ranges;
use std::collections::BTreeSet;
use wire::protocol::WRITE_BATCH_COUNT_MAX;
use wire::{Reply, Request, Sequence};

/// A part leaves room in a message for the command itself.
const LIMITS: Limits = Limits {
    statements: WRITE_BATCH_COUNT_MAX,
    bytes: 40 * 1024 * 1024,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Insert,
    Update,
    Delete,
}

impl Kind {
    pub(crate) fn statements_field(self) -> &'static str {
        match self {
            Kind::Insert => "documents",
            Kind::Update => "updates",
            Kind::Delete => "deletes",
        }
    }
}

/// What is put together besides the effects.
#[derive(Default)]
pub(crate) struct Gathered {
    pub(crate) concern_errors: Vec<(ShardId, DocBuf)>,
    pub(crate) retried: Vec<i32>,
}

pub(crate) async fn write(
    router: &Router,
    request: &Request,
    kind: Kind,
) -> Result<Reply, Failure> {
    let body = request.body();
    let namespace = namespace_of(body, request.database())?;
    let statements = match statements_of(request, kind) {
        Some(statements)
            if (1..=WRITE_BATCH_COUNT_MAX).contains(&statements.len())
                && has_sound_ids(request, statements.len()) =>
        {
            statements
        }
        // Whoever checks the command finds the fault.
        Some(_) | None => return refused(router, request, &namespace).await,
    };
    match kind {
        Kind::Insert => router.counters.inserts(statements.len()),
        Kind::Update => router.counters.updates(statements.len()),
        Kind::Delete => router.counters.deletes(statements.len()),
    }
    if let [only] = statements.as_slice()
        && let Some(answered) = direct::write(router, request, &namespace, *only, kind).await
    {
        return answered;
    }
    let context = context_of(body, &router.clock)?;
    let ordered = body.get("ordered").is_none_or(|ordered| {
        // Anything but a boolean is refused by the shard.
        ordered != ValueRef::Boolean(false)
    });
    let batch = Batch {
        router,
        request,
        kind,
        context,
        statement_ids: statement_ids(body, statements.len()),
        statements,
    };
    batch.run(&namespace, ordered).await
}

/// Sends a command that is certain to be refused to somebody who says why.
async fn refused(
    router: &Router,
    request: &Request,
    namespace: &Namespace,
) -> Result<Reply, Failure> {
    let route = router.routing.route(namespace, true).await?;
    let route = route.ok_or_else(|| Error::new(Code::NAMESPACE_NOT_FOUND, "no such database"))?;
    let shard = route.all().swap_remove(0);
    let request = route.request(request, &shard, &router.clock)?;
    match router.ask(&shard, request).await {
        Ok(_) => Err(Error::new(Code::FAILED_TO_PARSE, "the batch is malformed").into()),
        Err(failure) => Err(failure),
    }
}

struct Batch<'a> {
    router: &'a Router,
    request: &'a Request,
    kind: Kind,
    context: QueryContext,
    statements: Vec<Doc<'a>>,
    /// In a retryable write.
    statement_ids: Option<Vec<i32>>,
}

/// Where the statements go by one version of the routing table.
struct Targets {
    route: Route,
    of: Vec<Target>,
    /// All shards that any of them goes to.
    union: Vec<ShardId>,
}

struct Target {
    shards: Result<Vec<ShardId>, WriteFault>,
    /// It goes by itself.
    is_alone: bool,
    /// The document with what it is routed by, if a server has to say that.
    document: Option<DocBuf>,
}

impl Target {
    fn goes(&self, upserts: bool) -> Result<Goes, WriteFault> {
        match &self.shards {
            Ok(_) if self.is_alone && !upserts => Ok(Goes::Alone),
            Ok(shards) => Ok(Goes::To(shards.clone())),
            Err(fault) => Err(fault.clone()),
        }
    }
}

impl Targets {
    fn new(batch: &Batch<'_>, route: Route) -> Targets {
        let target = |(at, statement): (usize, &Doc<'_>)| {
            let document = match (batch.kind, route.table()) {
                (Kind::Insert, Some(table)) => {
                    let retried_as = || {
                        let id = batch.statement_ids.as_ref().map(|ids| ids[at])?;
                        RetriedAs::of(batch.request.body(), id)
                    };
                    completed(table, *statement, retried_as, &batch.router.given_seconds)
                }
                (Kind::Insert, None) | (Kind::Update | Kind::Delete, _) => None,
            };
            let complete = document.as_ref().map_or(*statement, DocBuf::as_doc);
            let shards = match batch.kind {
                Kind::Insert => route.insert_target(complete),
                Kind::Update => route.update_targets(complete, &batch.context),
                Kind::Delete => route.delete_targets(complete, &batch.context),
            };
            let shards = shards.map_err(fault);
            let count = shards.as_ref().map_or(0, Vec::len);
            let is_alone = route.table().is_some() && batch.goes_alone(*statement, count);
            Target {
                shards,
                is_alone,
                document,
            }
        };
        let of: Vec<Target> = batch.statements.iter().enumerate().map(target).collect();
        let named = of.iter().filter_map(|target| target.shards.as_ref().ok());
        let union: BTreeSet<&ShardId> = named.flatten().collect();
        Targets {
            union: union.into_iter().cloned().collect(),
            route,
            of,
        }
    }
}

impl Batch<'_> {
    async fn run(&self, namespace: &Namespace, ordered: bool) -> Result<Reply, Failure> {
        let sizes = self.statements.iter().map(|statement| statement.len());
        let mut bulk: BulkWrite<Value> = BulkWrite::new(ordered, LIMITS, sizes);
        let mut gathered = Gathered::default();
        let mut first_round = true;
        let mut targets = self.targets(namespace, None).await?;
        // Statements of many documents that found none, and may insert one.
        let mut upserting = BTreeSet::new();
        loop {
            let round = bulk.next_round(|at| targets.of[at].goes(upserting.contains(&at)));
            let Targets { route, .. } = &targets;
            if !matches!(round, Round::Over) {
                operation::check()?;
            }
            let parts = match round {
                Round::Over => break,
                Round::Parts(parts) => parts,
                Round::Alone(at) => {
                    let totals = self.alone(&targets, at, first_round, &mut gathered).await?;
                    let is_upsert = self.kind == Kind::Update && is(self.statements[at], "upsert");
                    match totals {
                        Some(totals) if is_upsert && totals == Totals::default() => {
                            upserting.insert(at);
                            bulk.alone_ended(None);
                        }
                        totals => bulk.alone_ended(totals),
                    }
                    first_round = false;
                    targets = self.targets(namespace, Some(targets)).await?;
                    continue;
                }
            };
            let whole = parts.len() == 1
                && parts[0].statements.len() == self.statements.len()
                && targets.of.iter().all(|target| target.document.is_none());
            if whole && first_round {
                let part = &parts[0];
                let request = route.request(self.request, &part.shard, &self.router.clock)?;
                let answered = self.router.ask(&part.shard, request).await;
                match answered {
                    Ok(answered) if mentioned_stale(&answered).is_none() => {
                        return Ok(answered.reply);
                    }
                    // The client asked for it alone: it gets the error as it is.
                    Err(failure @ (Failure::Reply(_) | Failure::Error(_))) => return Err(failure),
                    answered => {
                        let answered = answered.map(|answered| answered.reply);
                        self.take(&mut bulk, &mut gathered, route, part, answered)?;
                    }
                }
            } else {
                let mut requests = Vec::with_capacity(parts.len());
                for part in &parts {
                    requests.push((part.shard.clone(), self.part(&targets, part)?));
                }
                let mut answers = self.router.ask_all(requests).await?;
                // Refused by all that were asked, before anything was carried out: the command
                // itself is wrong.
                let is_refused = |answered: &Result<Answered, Failure>| {
                    matches!(answered, Err(Failure::Reply(_)))
                };
                if first_round && answers.iter().all(is_refused) {
                    return Err(match answers.swap_remove(0) {
                        Err(failure) => failure,
                        Ok(answered) => Failure::Reply(answered.reply),
                    });
                }
                for (part, answered) in parts.iter().zip(answers) {
                    let answered = answered.map(|answered| answered.reply);
                    self.take(&mut bulk, &mut gathered, route, part, answered)?;
                }
            }
            first_round = false;
            targets = self.targets(namespace, Some(targets)).await?;
        }
        Ok(self.reply(bulk.summary(), gathered))
    }

    /// Whether a statement is one of `broadcast.rs`, given how many shards it concerns. One about
    /// many documents is refused in a retryable write, by whoever is asked.
    fn goes_alone(&self, statement: Doc<'_>, shards: usize) -> bool {
        let is_multi = match self.kind {
            Kind::Insert => return false,
            Kind::Update => is(statement, "multi"),
            Kind::Delete => !is(statement, "limit"),
        };
        match is_multi {
            true => self.statement_ids.is_none(),
            false => shards > 1,
        }
    }

    /// Carries out a statement over several shards; `None` if it has to be routed anew.
    async fn alone(
        &self,
        targets: &Targets,
        at: usize,
        is_first: bool,
        gathered: &mut Gathered,
    ) -> Result<Option<Totals>, Failure> {
        let given = self.statements[at];
        let (Some(table), Ok(shards)) = (targets.route.table(), &targets.of[at].shards) else {
            return Ok(None);
        };
        let query = given.get_doc("q").unwrap_or(Doc::EMPTY);
        let context = with_constants(given, &self.context);
        let filter = parse_filter(query, &context)?;
        let plain = is(given, "upsert").then(|| without_upsert(given));
        let statement = Statement {
            router: self.router,
            request: self.request,
            kind: self.kind,
            namespace: &targets.route.namespace,
            statement: plain.as_ref().map_or(given, DocBuf::as_doc),
            id: self.statement_ids.as_ref().map(|ids| ids[at]),
            now_ms: self.context.now_ms,
            is_first,
        };
        let wanted = shard_key_ranges(&filter, &table.pattern);
        let run = statement.run(table.clone(), wanted, shards.clone(), gathered);
        Box::pin(run).await
    }

    /// Where every statement goes, by a table that is not stale for any of these shards. What was
    /// worked out before still holds for the same version.
    async fn targets(
        &self,
        namespace: &Namespace,
        mut known: Option<Targets>,
    ) -> Result<Targets, Error> {
        loop {
            let targets = match known.take() {
                Some(known) => known,
                None => {
                    let route = self.router.routing.route(namespace, true).await?;
                    let gone = || Error::new(Code::NAMESPACE_NOT_FOUND, "the database is gone");
                    Targets::new(self, route.ok_or_else(gone)?)
                }
            };
            let routing = &self.router.routing;
            let now = routing.placement(namespace, Some(&targets.union)).await?;
            let database = routing.database(namespace.database(), true).await?;
            let same_version = now.version() == targets.route.placement.version();
            if same_version && database.as_ref() == Some(&targets.route.database) {
                return Ok(targets);
            }
        }
    }

    /// The command for one shard with its part of the statements.
    fn part(&self, targets: &Targets, part: &Part) -> Result<Request, Error> {
        let field = self.kind.statements_field();
        let mut writer = fields_without(self.request.body(), &[field, "stmtIds", "stmtId"]);
        if let Some(ids) = &self.statement_ids {
            writer.begin_array("stmtIds");
            for at in &part.statements {
                writer.push(ids[*at]);
            }
            writer.end();
        }
        targets.route.stamp(&mut writer, &part.shard);
        self.router.clock.append_to(&mut writer);
        let statements = part.statements.iter().map(|at| {
            let completed = targets.of[*at].document.as_ref();
            completed.map_or(self.statements[*at], DocBuf::as_doc)
        });
        let sequence = Sequence::new(field, statements);
        Request::from_parts(writer.finish(), vec![sequence])
    }

    /// Takes over what became of a part.
    fn take(
        &self,
        bulk: &mut BulkWrite<Value>,
        gathered: &mut Gathered,
        route: &Route,
        part: &Part,
        answered: Result<Reply, Failure>,
    ) -> Result<(), Failure> {
        let count = part.statements.len();
        let effects = match answered {
            Ok(reply) => self.effects(gathered, route, part, reply.document()),
            Err(Failure::Stale(stale)) => {
                self.router.routing.note(&route.namespace, &stale);
                vec![Effect::NotDone; count]
            }
            // Nobody knows what became of it: the driver asks again, and is recognised.
            Err(failure) if self.statement_ids.is_some() => return Err(failure),
            Err(Failure::Reply(reply)) => {
                let error = crate::config::error_of(reply.document());
                vec![failed(error); count]
            }
            Err(Failure::Error(error)) => vec![failed(error); count],
        };
        bulk.answered(&part.shard, effects);
        Ok(())
    }

    fn effects(
        &self,
        gathered: &mut Gathered,
        route: &Route,
        part: &Part,
        reply: Doc<'_>,
    ) -> Vec<Effect<Value>> {
        let number = |name: &str| {
            let number = reply.get(name).and_then(Number::of);
            number.map_or(0, |number| number.to_f64() as u64)
        };
        if let Some(error) = reply.get_doc("writeConcernError") {
            let told = (part.shard.clone(), error.to_owned());
            gathered.concern_errors.push(told);
        }
        for id in reply
            .get_array("retriedStmtIds")
            .iter()
            .flat_map(|ids| ids.iter())
        {
            if let ValueRef::Int32(id) = id {
                gathered.retried.push(id);
            }
        }
        let done = || Effect::Done {
            matched: 0,
            modified: 0,
            upserted: None,
        };
        let mut effects = vec![done(); part.statements.len()];
        let mut upserts = 0;
        for upserted in elements(reply, "upserted") {
            let (Some(at), Some(id)) = (index(upserted), upserted.get("_id")) else {
                continue;
            };
            upserts += 1;
            if let Some(Effect::Done { upserted, .. }) = effects.get_mut(at) {
                *upserted = Some(id.to_owned());
            }
        }
        let ordered = self.request.body().get("ordered") != Some(ValueRef::Boolean(false));
        for error in elements(reply, "writeErrors") {
            let Some(at) = index(error) else { continue };
            let effect = match Stale::of(error, &part.shard) {
                Some(stale) => {
                    self.router.routing.note(&route.namespace, &stale);
                    Effect::NotDone
                }
                None => Effect::Failed(fault_of(error)),
            };
            // An ordered part ends with its first error.
            if ordered {
                for later in effects.iter_mut().skip(at) {
                    *later = Effect::NotDone;
                }
            }
            if let Some(place) = effects.get_mut(at) {
                *place = effect;
            }
        }
        // A shard tells sums; which of its statements they belong to does not matter.
        let (n, all_modified) = (number("n").saturating_sub(upserts), number("nModified"));
        let first = effects.iter_mut().find_map(|effect| match effect {
            Effect::Done {
                matched, modified, ..
            } => Some((matched, modified)),
            Effect::Failed(_) | Effect::NotDone => None,
        });
        if let Some((matched, modified)) = first {
            (*matched, *modified) = (n, all_modified);
        }
        effects
    }

    fn reply(&self, summary: Summary<Value>, gathered: Gathered) -> Reply {
        let mut writer = Reply::writer();
        let count = |count: u64| i32::try_from(count).unwrap_or(i32::MAX);
        writer.append("n", count(summary.n));
        if !summary.errors.is_empty() {
            writer.begin_array("writeErrors");
            for (at, fault) in &summary.errors {
                writer
                    .push_document()
                    .append("index", *at as i32)
                    .append("code", fault.code)
                    .append("errmsg", fault.message.as_str());
                for element in fault.details.iter().flat_map(|details| details.iter()) {
                    writer.append_element(&element);
                }
                writer.end();
            }
            writer.end();
        }
        if !gathered.retried.is_empty() {
            let mut retried = gathered.retried;
            retried.sort_unstable();
            writer.begin_array("retriedStmtIds");
            for id in &retried {
                writer.push(*id);
            }
            writer.end();
        }
        if !summary.upserted.is_empty() {
            writer.begin_array("upserted");
            for (at, id) in &summary.upserted {
                writer
                    .push_document()
                    .append("index", *at as i32)
                    .append("_id", id)
                    .end();
            }
            writer.end();
        }
        if self.kind == Kind::Update {
            writer.append("nModified", count(summary.modified));
        }
        append_concern_errors(&mut writer, &gathered.concern_errors);
        writer.append("ok", 1.0);
        Reply::from_writer(writer)
    }
}

/// Several shards may fail to confirm; the client is told of all in one.
pub(crate) fn append_concern_errors(writer: &mut DocWriter, errors: &[(ShardId, DocBuf)]) {
    match errors {
        [] => {}
        [(_, only)] => {
            writer.append("writeConcernError", only);
        }
        several => {
            let texts: Vec<String> = several
                .iter()
                .map(|(shard, error)| {
                    let text = error.as_doc().get_str("errmsg").unwrap_or_default();
                    format!("{text} at {shard}")
                })
                .collect();
            writer
                .begin_document("writeConcernError")
                .append("code", Code::WRITE_CONCERN_FAILED.0)
                .append("codeName", Code::WRITE_CONCERN_FAILED.name().as_str())
                .append(
                    "errmsg",
                    format!("Multiple errors reported :: {}", texts.join(" :: and :: ")).as_str(),
                )
                .end();
        }
    }
}

fn statements_of(request: &Request, kind: Kind) -> Option<Vec<Doc<'_>>> {
    let field = kind.statements_field();
    if let Some(sequence) = request.sequence(field) {
        return Some(sequence.iter().collect());
    }
    let listed = request.body().get_array(field)?;
    // As everywhere in commands, null stands for nothing.
    let usable = |value: ValueRef<'_>| matches!(value, ValueRef::Document(_)) || value.is_nullish();
    if !listed.iter().all(usable) {
        return None;
    }
    Some(crate::targeting::documents(listed).collect())
}

/// Whether statement ids, if there are any, are such as a shard accepts.
fn has_sound_ids(request: &Request, count: usize) -> bool {
    let is_id = |id: ValueRef<'_>| matches!(id, ValueRef::Int32(_));
    match (request.get("stmtIds"), request.get("stmtId")) {
        (None, None) => true,
        (None, Some(first)) => is_id(first),
        (Some(ValueRef::Array(ids)), None) => ids.count() == count && ids.iter().all(is_id),
        (Some(_), _) => false,
    }
}

/// The ids of the statements of a retryable write.
fn statement_ids(body: Doc<'_>, count: usize) -> Option<Vec<i32>> {
    body.get("txnNumber")?;
    let counted = |first: i32| (first..).take(count).collect();
    match (body.get_array("stmtIds"), body.get("stmtId")) {
        (Some(listed), _) => {
            let ids: Vec<i32> = listed
                .iter()
                .filter_map(|id| match id {
                    ValueRef::Int32(id) => Some(id),
                    _ => None,
                })
                .collect();
            // A list of another length is refused by whoever is asked.
            Some(match ids.len() == count {
                true => ids,
                false => counted(0),
            })
        }
        (None, Some(ValueRef::Int32(first))) => Some(counted(first)),
        (None, _) => Some(counted(0)),
    }
}

pub(crate) fn elements<'a>(reply: Doc<'a>, name: &str) -> impl Iterator<Item = Doc<'a>> {
    reply
        .get_array(name)
        .into_iter()
        .flat_map(crate::targeting::documents)
}

fn is(statement: Doc<'_>, name: &str) -> bool {
    statement.get(name).is_some_and(model::number::is_truthy)
}

fn index(doc: Doc<'_>) -> Option<usize> {
    match doc.get("index") {
        Some(ValueRef::Int32(at)) => usize::try_from(at).ok(),
        _ => None,
    }
}

pub(crate) fn fault_of(error: Doc<'_>) -> WriteFault {
    let code = match error.get("code") {
        Some(ValueRef::Int32(code)) => code,
        _ => Code::UNKNOWN_ERROR.0,
    };
    let mut fault = WriteFault::new(code, error.get_str("errmsg").unwrap_or_default());
    let mut details = DocWriter::new();
    for element in error.iter() {
        if !matches!(element.key(), "index" | "code" | "errmsg") {
            details.append_element(&element);
        }
    }
    if !details.is_empty() {
        fault.details = Some(Box::new(details.finish()));
    }
    fault
}

pub(crate) fn fault(error: Error) -> WriteFault {
    let mut fault = WriteFault::new(error.code.0, error.message);
    fault.details = error.details;
    fault
}

fn failed(error: Error) -> Effect<Value> {
    Effect::Failed(fault(error))
}

pub(crate) fn mentioned_stale(answered: &Answered) -> Option<Stale> {
    if !answered.look.has_write_errors {
        return None;
    }
    let mut failed = elements(answered.reply.document(), "writeErrors");
    failed.find_map(|error| Stale::of(error, &answered.shard))
}
