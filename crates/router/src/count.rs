//! `count` and `distinct` over several shards.

use crate::failure::Failure;
use crate::find::{no_progress, whole};
use crate::request::{Clock, fields_without, snapshot_time};
use crate::routing::Route;
use crate::scan::{ElasticScan, Piece, ScanCommand};
use crate::scatter::Answered;
use crate::targeting::{context_of, namespace_of_check, parse_filter};
use crate::{Router, STALE_RETRIES_MAX};
use cluster::routing::ShardId;
use model::bson::{Doc, DocWriter, Value, ValueRef};
use model::error::Error;
use model::namespace::Namespace;
use model::number::Number;
use model::order::compare;
use query::filter::Filter;
use query::plan::shard_key_ranges;
use std::sync::Arc;
use wire::{Reply, Request};

/// The filter of a command, where it may be targeted by it.
fn filter_of(body: Doc<'_>, name: &str, clock: &Clock) -> Result<Filter, Error> {
    let context = context_of(body, clock)?;
    let filter = body.get_doc(name).unwrap_or(Doc::EMPTY);
    parse_filter(filter, &context)
}

impl Router {
    /// Asks every shard that a filter concerns, again while versions are stale. One shard gets
    /// the request as it is; several get the fields that `fields` leaves. `None` if there is no
    /// such database.
    pub(crate) async fn gather(
        &self,
        request: &Request,
        namespace: &model::namespace::Namespace,
        target: impl Fn(&Route) -> Result<Vec<ShardId>, Error>,
        dropped: &[&str],
        append: impl Fn(&mut model::bson::DocWriter),
    ) -> Result<Option<Gathered>, Failure> {
        for _ in 0..STALE_RETRIES_MAX {
            let routed = self.route_to(namespace, false, &target).await?;
            let Some((route, shards)) = routed else {
                return Ok(None);
            };
            let mut requests = Vec::with_capacity(shards.len());
            for shard in &shards {
                if shards.len() == 1 {
                    let request = route.request(request, shard, &self.clock)?;
                    requests.push((shard.clone(), request));
                    continue;
                }
                let mut writer = fields_without(request.body(), dropped);
                append(&mut writer);
                route.stamp(&mut writer, shard);
                self.clock.append_to(&mut writer);
                let request = Request::from_parts(writer.finish(), Vec::new())?;
                requests.push((shard.clone(), request));
            }
            let mut answers = Vec::with_capacity(requests.len());
            let mut failure = None;
            let asked = self.ask_all(requests).await;
            for answered in asked.unwrap_or_else(|error| vec![Err(error.into())]) {
                match answered {
                    Ok(answered) => answers.push(answered),
                    Err(stale @ Failure::Stale(_)) => failure = Some(stale),
                    Err(other) => failure = failure.or(Some(other)),
                }
            }
            if snapshot_time(request.body()).is_some()
                && let Some(refused) = failure.take()
            {
                let routed_by = route.placement.version();
                failure = Some(self.refused_past(namespace, routed_by, refused).await);
            }
            match failure {
                None => return Ok(Some(Gathered { route, answers })),
                Some(Failure::Stale(stale)) => self.routing.note(namespace, &stale),
                Some(other) => return Err(other),
            }
        }
        Err(no_progress())
    }
}

impl Router {
    /// Asks every shard that a filter concerns for what counts per range or not at all: of ranges that
    /// move meanwhile whoever has them then. `None` if one shard, or none, is concerned, or the past.
    async fn gather_elastic(
        self: &Arc<Router>,
        request: &Request,
        namespace: &Namespace,
        filter: &Filter,
        dropped: &[&str],
        append: impl Fn(&mut DocWriter),
    ) -> Result<Option<Vec<Piece>>, Failure> {
        let body = request.body();
        if snapshot_time(body).is_some() {
            return Ok(None);
        }
        for _ in 0..STALE_RETRIES_MAX {
            let target = |route: &Route| Ok(route.read_targets(filter));
            let routed = self.route_to(namespace, false, target).await?;
            let Some((route, shards)) = routed else {
                return Ok(None);
            };
            let (Some(table), true) = (route.table(), shards.len() > 1) else {
                return Ok(None);
            };
            let mut writer = fields_without(body, dropped);
            append(&mut writer);
            let command = ScanCommand {
                namespace: namespace.clone(),
                body: writer.finish(),
                order: None,
                whole: true,
                passes: false,
                places: false,
                is_past: false,
                is_at_home: false,
                session: None,
            };
            let wanted = shard_key_ranges(filter, &table.pattern);
            let mut scan = ElasticScan::new(self, command, table.clone(), wanted);
            let mut answers = Vec::new();
            let failure = loop {
                match scan.next().await {
                    Ok(Some(answer)) => answers.push(answer),
                    Ok(None) => return Ok(Some(answers)),
                    Err(failure) => break failure,
                }
            };
            match failure {
                Failure::Stale(stale) => self.routing.note(namespace, &stale),
                other => return Err(other),
            }
        }
        Err(no_progress())
    }
}

/// The answers of all shards that were asked.
pub(crate) struct Gathered {
    pub(crate) route: Route,
    pub(crate) answers: Vec<Answered>,
}

impl Gathered {
    /// The one answer, if one shard was asked.
    pub(crate) fn take_only(&mut self) -> Option<Reply> {
        match self.answers.len() {
            1 => self.answers.pop().map(|answered| answered.reply),
            _ => None,
        }
    }
}

pub(crate) async fn count(router: &Arc<Router>, request: &Request) -> Result<Reply, Failure> {
    let body = request.body();
    let namespace = namespace_of_check(body, request.database())?;
    let filter = filter_of(body, "query", &router.clock)?;
    let skip = whole(body.get("skip"));
    let limit = body.get("limit").map_or(Some(0), |limit| {
        let limit = Number::of(limit)?.to_i64_exact()?;
        Some(limit.unsigned_abs())
    });
    let malformed = skip.is_none() || limit.is_none();
    let (skip, limit) = (skip.unwrap_or(0), limit.unwrap_or(0));
    let target = |route: &Route| match malformed {
        // One shard says what is wrong.
        true => Ok(route.all().into_iter().take(1).collect()),
        false => Ok(route.read_targets(&filter)),
    };
    let dropped = ["skip", "limit"];
    let append = |writer: &mut DocWriter| {
        if limit > 0 {
            let fetched = limit.saturating_add(skip);
            writer.append("limit", i64::try_from(fetched).unwrap_or(i64::MAX));
        }
    };
    if !malformed {
        let answers = router.gather_elastic(request, &namespace, &filter, &dropped, append);
        if let Some(answers) = answers.await? {
            let counts = answers.iter().map(Piece::document);
            return Ok(count_reply(counts, skip, limit));
        }
    }
    let gathered = router
        .gather(request, &namespace, target, &dropped, append)
        .await?;
    let Some(mut gathered) = gathered else {
        return Ok(Reply::from_writer(
            Reply::writer().with("n", 0).with("ok", 1.0),
        ));
    };
    if malformed {
        // Nobody refused it; but one shard's count is not the answer.
        return Err(Error::bad_value("the arguments of count are malformed").into());
    }
    if let Some(only) = gathered.take_only() {
        return Ok(only);
    }
    let answers = gathered.answers.iter();
    let counts = answers.map(|answered| answered.reply.document());
    Ok(count_reply(counts, skip, limit))
}

/// What shards have counted, together.
fn count_reply<'a>(answers: impl Iterator<Item = Doc<'a>>, skip: u64, limit: u64) -> Reply {
    let counted: u64 = answers
        .map(|answer| whole(answer.get("n")).unwrap_or(0))
        .sum();
    let mut counted = counted.saturating_sub(skip);
    if limit > 0 {
        counted = counted.min(limit);
    }
    let mut writer = Reply::writer();
    match i32::try_from(counted) {
        Ok(small) => writer.append("n", small),
        Err(_) => writer.append("n", counted as i64),
    };
    writer.append("ok", 1.0);
    Reply::from_writer(writer)
}

pub(crate) async fn distinct(router: &Arc<Router>, request: &Request) -> Result<Reply, Failure> {
    let body = request.body();
    let namespace = namespace_of_check(body, request.database())?;
    let filter = filter_of(body, "query", &router.clock)?;
    let elastic = router.gather_elastic(request, &namespace, &filter, &[], |_| {});
    if let Some(answers) = elastic.await? {
        return Ok(distinct_reply(answers.iter().map(Piece::document), body));
    }
    let target = |route: &Route| route.targets_of(&filter, body);
    let gathered = router
        .gather(request, &namespace, target, &[], |_| {})
        .await?;
    let Some(mut gathered) = gathered else {
        let mut writer = Reply::writer();
        writer.begin_array("values").end().append("ok", 1.0);
        return Ok(Reply::from_writer(writer));
    };
    if let Some(only) = gathered.take_only() {
        return Ok(only);
    }
    let answers = gathered.answers.iter();
    let answers = answers.map(|answered| answered.reply.document());
    Ok(distinct_reply(answers, body))
}

/// The values that shards have found, each once.
fn distinct_reply<'a>(answers: impl Iterator<Item = Doc<'a>>, body: Doc<'_>) -> Reply {
    let mut values: Vec<Value> = Vec::new();
    for answer in answers {
        let listed = answer.get_array("values");
        values.extend(
            listed
                .iter()
                .flat_map(|values| values.iter())
                .map(|value: ValueRef<'_>| value.to_owned()),
        );
    }
    values.sort_by(|a, b| compare(a.as_ref(), b.as_ref()));
    values.dedup_by(|a, b| compare(a.as_ref(), b.as_ref()).is_eq());
    let mut writer = Reply::writer();
    writer.begin_array("values");
    for value in &values {
        writer.push(value);
    }
    writer.end();
    if let Some(at) = snapshot_time(body) {
        writer.append("atClusterTime", at);
    }
    writer.append("ok", 1.0);
    Reply::from_writer(writer)
}
