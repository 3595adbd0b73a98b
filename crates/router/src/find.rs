//! `find`: one shard answers for itself, several are merged.
//!
//! ```text
//!   to each shard   filter, sort, limit + skip, hint, …; the projection, unless documents must be
//!                   ordered by what it would remove
//!   here            merge, skip, limit, and then the projection
//! ```
//!
//! A stale answer of one shard: the cursors of the others are closed, everything is routed again.

use crate::at_home::{find_at_home, may_go_on};
use crate::cursor::{Cursor, Source};
use crate::failure::{Failure, is_absent};
use crate::merge::{Batch, Shared, Stream, Streams};
use crate::request::{Clock, fields_without, snapshot_time};
use crate::routing::Route;
use crate::scan::{ElasticScan, ScanCommand, TokenFields, gone, has_token, query_of};
use crate::scatter::Answered;
use crate::targeting::{Asked, context_of, namespace_of};
use crate::{Router, STALE_RETRIES_MAX};
use cluster::cache::Placement;
use cluster::routing::ShardId;
use model::bson::{Doc, DocBuf, DocWriter, Kind, ValueRef};
use model::error::{Code, Error};
use model::namespace::Namespace;
use model::number::Number;
use model::time::ClusterTime;
use query::projection::Projection;
use query::sort::{SortPattern, natural_direction};
use std::collections::BTreeSet;
use std::sync::Arc;
use wire::{Reply, Request};

/// Documents of a first batch where the client names no number.
pub(crate) const FIRST_BATCH_DOCUMENTS: u64 = 101;

pub(crate) async fn find(router: &Arc<Router>, request: &Request) -> Result<Reply, Failure> {
    let body = request.body();
    let namespace = namespace_of(body, request.database())?;
    let filter = Asked::new(body, "filter");
    let may_leave_out = may_leave_out(body);
    for _ in 0..STALE_RETRIES_MAX {
        let target = |route: &Route| filter.targets(route, &router.clock);
        let Some((route, shards)) = router.route_to(&namespace, false, target).await? else {
            filter.filter(&router.clock)?;
            return match has_token(body) {
                true => Err(gone()),
                false => Ok(router.empty_cursor(&namespace)),
            };
        };
        let found = match (shards.as_slice(), route.table()) {
            (_, None) if has_token(body) => Err(gone()),
            (_, Some(_)) => Box::pin(find_elastic(router, request, &route, &shards, &filter)).await,
            ([only], _) if !may_leave_out && may_go_on(body) => {
                Box::pin(find_at_home(router, request, &route, only)).await
            }
            ([only], _) if !may_leave_out || is_tailable(body) => {
                router.pass_cursor(request, &route, only).await
            }
            _ => Box::pin(find_on_several(router, request, &route, &shards)).await,
        };
        match found {
            Err(Failure::Stale(stale)) => router.routing.note(&namespace, &stale),
            other => return other,
        }
    }
    Err(no_progress())
}

/// Its batches may be empty, which only its shard can wait for.
fn is_tailable(body: Doc<'_>) -> bool {
    body.get("tailable") == Some(ValueRef::Boolean(true))
}

/// Whether the client goes on without shards that nobody answers for.
fn may_leave_out(body: Doc<'_>) -> bool {
    body.get("allowPartialResults") == Some(ValueRef::Boolean(true))
}

pub(crate) fn no_progress() -> Failure {
    let message = format!("routed by an old version {STALE_RETRIES_MAX} times");
    Failure::Error(Error::new(Code::STALE_CONFIG, message))
}

impl Router {
    /// The answer about a collection whose database does not exist.
    pub(crate) fn empty_cursor(&self, namespace: &Namespace) -> Reply {
        let mut writer = Reply::writer();
        writer
            .begin_document("cursor")
            .begin_array("firstBatch")
            .end()
            .append("id", 0i64)
            .append("ns", namespace.as_str())
            .end()
            .append("ok", 1.0);
        Reply::from_writer(writer)
    }

    /// What one shard says about a malformed request. It must not be an answer: that would be
    /// the answer of one shard for all.
    pub(crate) async fn refusal(
        &self,
        request: &Request,
        route: &Route,
        shard: &ShardId,
    ) -> Failure {
        let routed = match route.request(request, shard, &self.clock) {
            Ok(routed) => routed,
            Err(error) => return error.into(),
        };
        match self.ask(shard, routed).await {
            Err(failure) => failure,
            Ok(_) => Failure::Error(Error::bad_value(format!(
                "the arguments of {} are malformed",
                request.name()
            ))),
        }
    }

    /// Lets one shard answer, and remembers where its cursor is.
    pub(crate) async fn pass_cursor(
        &self,
        request: &Request,
        route: &Route,
        shard: &ShardId,
    ) -> Result<Reply, Failure> {
        let routed = route.request(request, shard, &self.clock)?;
        let answered = self.ask(shard, routed).await?;
        Ok(self.keep_passed(request, answered))
    }

    /// Remembers where the cursor of an answer is continued.
    pub(crate) fn keep_passed(&self, request: &Request, answered: Answered) -> Reply {
        let reply = answered.reply;
        let Some(cursor) = reply.document().get_doc("cursor") else {
            return reply;
        };
        let id = match cursor.get("id") {
            Some(ValueRef::Int64(id)) if id != 0 => id,
            _ => return reply,
        };
        let body = request.body();
        let kept = Cursor::new(
            cursor.get_str("ns").unwrap_or_default(),
            body.get_doc("lsid").map(Doc::to_owned),
            body.get("noCursorTimeout") == Some(ValueRef::Boolean(true)),
            Source::Passed {
                member: answered.member,
                id,
            },
        );
        match self.cursors.keep_as(id, kept) {
            Ok(()) => reply,
            // Another shard gave the same number.
            Err(kept) => {
                let id = self.cursors.keep(kept);
                with_cursor_id(reply.document(), id)
            }
        }
    }

    /// Fills the first batch of a merged cursor and keeps the rest.
    pub(crate) async fn first_batch(
        &self,
        namespace: &str,
        mut merge: Box<dyn crate::merge::Merge>,
        options: CursorOptions,
    ) -> Result<Reply, Failure> {
        let mut writer = Reply::writer_with_capacity(16 * 1024);
        writer.begin_document("cursor");
        let size = options.batch_size.unwrap_or(FIRST_BATCH_DOCUMENTS);
        let mut batch = Batch::begin(writer, "firstBatch", Some(size));
        let over = match merge.fill(&mut batch).await {
            Ok(over) => over,
            Err(failure) => {
                merge.close().await;
                return Err(failure);
            }
        };
        let mut writer = batch.end();
        merge.append_state(&mut writer);
        let at = options.at;
        let id = if over || options.single_batch {
            merge.close().await;
            0
        } else {
            merge.is_kept();
            self.cursors.keep(Cursor::new(
                namespace,
                options.session,
                options.no_timeout,
                Source::Merged(merge),
            ))
        };
        writer.append("id", id).append("ns", namespace);
        if let Some(at) = at {
            writer.append("atClusterTime", at);
        }
        writer.end().append("ok", 1.0);
        Ok(Reply::from_writer(writer))
    }
}

/// What a client says about the cursor it wants.
#[derive(Default)]
pub(crate) struct CursorOptions {
    pub(crate) batch_size: Option<u64>,
    pub(crate) single_batch: bool,
    pub(crate) no_timeout: bool,
    pub(crate) session: Option<DocBuf>,
    /// The one time that is read at.
    pub(crate) at: Option<ClusterTime>,
}

/// A shard's reply with another cursor id.
pub(crate) fn with_cursor_id(reply: Doc<'_>, id: i64) -> Reply {
    let mut writer = Reply::writer_with_capacity(reply.len());
    for element in reply.iter() {
        match (element.key(), element.value()) {
            ("cursor", ValueRef::Document(cursor)) => {
                writer.begin_document("cursor");
                for field in cursor.iter() {
                    match field.key() {
                        "id" => {
                            writer.append("id", id);
                        }
                        // Between the router and its shards.
                        "scan" => {}
                        _ => {
                            writer.append_element(&field);
                        }
                    }
                }
                writer.end();
            }
            _ => {
                writer.append_element(&element);
            }
        }
    }
    Reply::from_writer(writer)
}

/// A number that counts something; `None` for whatever a shard would refuse.
pub(crate) fn whole(value: Option<ValueRef<'_>>) -> Option<u64> {
    match value {
        None => Some(0),
        Some(value) if value.is_nullish() => Some(0),
        Some(value) => {
            let number = Number::of(value)?;
            // Fractions are cut off and what is too great is as good as all, as on a shard.
            let whole = match number.to_i64_exact() {
                Some(exact) => exact,
                None => number.to_f64() as i64,
            };
            u64::try_from(whole).ok()
        }
    }
}

/// Asks one shard the client's own command, so that what is left of it can be scanned.
pub(crate) async fn ask_one(
    router: &Router,
    request: &Request,
    route: &Route,
    shard: &ShardId,
) -> Result<Answered, Failure> {
    let mut writer = fields_without(request.body(), &[]);
    route.stamp(&mut writer, shard);
    writer.begin_document("_terndbScan").end();
    router.clock.append_to(&mut writer);
    let routed = Request::from_parts(writer.finish(), request.sequences().to_vec())?;
    router.ask(shard, routed).await
}

/// A `find` over a sharded collection. One shard answers the client's own command, and what is left
/// of it is scanned; several are scanned from the beginning. Of a moment of the past `shards` are those
/// who owned documents then, which does not change any more.
async fn find_elastic(
    router: &Arc<Router>,
    request: &Request,
    route: &Route,
    shards: &[ShardId],
    filter: &Asked<'_>,
) -> Result<Reply, Failure> {
    let body = request.body();
    let counts = (
        whole(body.get("skip")),
        whole(body.get("limit")),
        whole(body.get("batchSize")),
    );
    let (Some(skip), Some(limit), Some(size)) = counts else {
        return Err(router.refusal(request, route, &shards[0]).await);
    };
    // No shard of a scan would see these.
    let single = body.get("singleBatch");
    let is_flag = single.is_none_or(|flag| flag.kind() == Kind::Boolean);
    let Some(tokens) = TokenFields::read(body).filter(|_| is_flag) else {
        return Err(router.refusal(request, route, &shards[0]).await);
    };
    let Some(table) = route.table() else {
        return Err(no_progress());
    };
    let batch_size = body.get("batchSize").map(|_| size);
    let limit = Some(limit).filter(|limit| *limit > 0);
    let order = order_of(body.get_doc("sort"))?;
    let projection = Late::new(body, order.as_ref(), &router.clock)?;
    let is = |name: &str| body.get(name) == Some(ValueRef::Boolean(true));
    let first_batch = batch_size.unwrap_or(FIRST_BATCH_DOCUMENTS);
    let fits = is("singleBatch") || limit.is_some_and(|limit| limit <= first_batch);
    let resumes = tokens.after;
    let at = snapshot_time(body);
    let places = tokens.requested && at.is_none();
    // What is cached may be older than any history: tokens name what they began with.
    let recent = match places && resumes.is_none() {
        true => Some(router.routing.recent_placement(&route.namespace).await?),
        false => None,
    };
    let table = match &recent {
        Some(Placement::Sharded(recent)) => recent,
        // Whoever is asked first says what became of it.
        Some(_) | None => table,
    };
    let one_asks = shards.len() == 1
        && first_batch > 0
        && (fits || projection.is_none())
        && resumes.is_none()
        && !places
        && !may_leave_out(body);
    if order.is_some() && is("returnKey") && !one_asks {
        let message = "returnKey with a sort over several shards is not supported yet";
        return Err(Error::new(Code::COMMAND_NOT_SUPPORTED, message).into());
    }
    let answered = match one_asks {
        true => match ask_one(router, request, route, &shards[0]).await {
            Err(failure) if at.is_some() => {
                let routed_by = table.version();
                let refused = router.refused_past(&route.namespace, routed_by, failure);
                return Err(refused.await);
            }
            answered => Some(answered?),
        },
        false => None,
    };
    let answered = match answered {
        Some(whole) if first_batch_of(whole.reply.document()).0 == 0 => return Ok(whole.reply),
        answered => answered,
    };
    let wanted = filter.ranges(table, &router.clock)?;
    let mut dropped = vec![
        "skip",
        "limit",
        "batchSize",
        "singleBatch",
        "$_requestResumeToken",
        "$_resumeAfter",
        "$_startAt",
    ];
    if projection.is_some() {
        dropped.push("projection");
    }
    let mut sent = fields_without(body, &dropped);
    if let Some(Late {
        sent: Some(fields), ..
    }) = &projection
    {
        sent.append("projection", fields);
    }
    let session = body.get_doc("lsid").map(Doc::to_owned);
    let command = ScanCommand {
        namespace: route.namespace.clone(),
        body: sent.finish(),
        passes: order.is_none() && projection.is_none() && !places && (skip, limit) == (0, None),
        order,
        whole: false,
        places,
        is_past: at.is_some(),
        is_at_home: false,
        session: session.clone(),
    };
    if let Some(answered) = answered {
        let (_, returned) = first_batch_of(answered.reply.document());
        let left = limit.map(|limit| limit.saturating_sub(returned));
        // Where documents are not ordered by what they have, others are asked for from now on.
        let is_alike = projection.is_none();
        let mut scan = match at {
            None => ElasticScan::new(router, command, table.clone(), wanted),
            Some(_) => ElasticScan::of_past(router, command, table.clone(), shards),
        };
        scan = scan
            .with_window(0, left)
            .with_projection(projection.map(|late| late.projection));
        scan.take_over(&answered, is_alike).await?;
        let id = router.cursors.keep(Cursor::new(
            route.namespace.as_str(),
            session,
            is("noCursorTimeout"),
            Source::Merged(Box::new(scan)),
        ));
        return Ok(with_cursor_id(answered.reply.document(), id));
    }
    let query = match places || resumes.is_some() {
        true => query_of(body),
        false => 0,
    };
    let scan = match resumes {
        None if at.is_some() => ElasticScan::of_past(router, command, table.clone(), shards),
        None => ElasticScan::new(router, command, table.clone(), wanted).with_query(query),
        Some(_) if at.is_some() => {
            let message = "a resume token does not go on at a time of its own";
            return Err(Error::new(Code::COMMAND_NOT_SUPPORTED, message).into());
        }
        Some(token) => ElasticScan::resume(router, command, token, query, wanted).await?,
    };
    // Of a token, what is left of the window is the token's; who resumes it may want less than that.
    let scan = match resumes {
        None => scan.with_window(skip, limit),
        Some(_) => scan.limited_to(limit),
    };
    let mut scan = scan
        .with_projection(projection.map(|late| late.projection))
        .with_batch_size(batch_size)
        // A token would not tell what was left out.
        .leaving_out(may_leave_out(body) && !places);
    if let Err(failure) = scan.ask().await {
        crate::merge::Merge::close(Box::new(scan)).await;
        return Err(failure);
    }
    let options = CursorOptions {
        batch_size,
        single_batch: is("singleBatch"),
        no_timeout: is("noCursorTimeout"),
        session,
        at,
    };
    let namespace = route.namespace.as_str();
    router.first_batch(namespace, Box::new(scan), options).await
}

/// The cursor of a shard's answer, and how many documents came with it.
pub(crate) fn first_batch_of(reply: Doc<'_>) -> (i64, u64) {
    let cursor = reply.get_doc("cursor").unwrap_or(Doc::EMPTY);
    let id = match cursor.get("id") {
        Some(ValueRef::Int64(id)) => id,
        _ => 0,
    };
    (id, crate::registry::batch_of(cursor).count() as u64)
}

async fn find_on_several(
    router: &Router,
    request: &Request,
    route: &Route,
    shards: &[ShardId],
) -> Result<Reply, Failure> {
    let body = request.body();
    let counts = (
        whole(body.get("skip")),
        whole(body.get("limit")),
        whole(body.get("batchSize")),
    );
    let (Some(skip), Some(limit), Some(_)) = counts else {
        return Err(router.refusal(request, route, &shards[0]).await);
    };
    let limit = Some(limit).filter(|limit| *limit > 0);
    let order = order_of(body.get_doc("sort"))?;
    if order.is_some() && body.get("returnKey") == Some(ValueRef::Boolean(true)) {
        let message = "returnKey with a sort over several shards is not supported yet";
        return Err(Error::new(Code::COMMAND_NOT_SUPPORTED, message).into());
    }
    let projection = Late::new(body, order.as_ref(), &router.clock)?;
    let fetched = limit.map(|limit| limit.saturating_add(skip));
    let requests = shards.iter().map(|shard| {
        let mut dropped = vec!["skip", "limit"];
        if projection.is_some() {
            dropped.push("projection");
        }
        let mut writer = fields_without(body, &dropped);
        if let Some(fetched) = fetched {
            writer.append("limit", i64::try_from(fetched).unwrap_or(i64::MAX));
        }
        if let Some(Late {
            sent: Some(sent), ..
        }) = &projection
        {
            writer.append("projection", sent);
        }
        route.stamp(&mut writer, shard);
        router.clock.append_to(&mut writer);
        let request = Request::from_parts(writer.finish(), request.sequences().to_vec())?;
        Ok((shard.clone(), request.hurried(may_leave_out(body))))
    });
    let requests = requests.collect::<Result<Vec<_>, Error>>()?;
    let session = body.get_doc("lsid").map(Doc::to_owned);
    let shared = Shared {
        order,
        session: session.clone(),
        clock: router.clock.clone(),
        batch_size: body.get("batchSize").and_then(|size| whole(Some(size))),
        may_leave_out: may_leave_out(body),
    };
    let streams = open_streams(router, requests, shared).await?;
    let merge = Streams {
        skip,
        limit,
        projection: projection.map(|late| late.projection),
        ..streams
    };
    let is = |name: &str| body.get(name) == Some(ValueRef::Boolean(true));
    let options = CursorOptions {
        batch_size: merge.shared.batch_size,
        single_batch: is("singleBatch"),
        no_timeout: is("noCursorTimeout"),
        session,
        at: snapshot_time(body),
    };
    let namespace = route.namespace.as_str();
    router
        .first_batch(namespace, Box::new(merge), options)
        .await
}

/// Opens a cursor on each shard. All of them open, or none stays open.
pub(crate) async fn open_streams(
    router: &Router,
    requests: Vec<(ShardId, Request)>,
    shared: Shared,
) -> Result<Streams, Failure> {
    let answers = router.ask_all(requests).await?;
    let mut streams = Streams {
        streams: Vec::with_capacity(answers.len()),
        shared,
        skip: 0,
        limit: None,
        projection: None,
        held: None,
        left_out: false,
    };
    let mut failure = None;
    for answered in answers {
        let opened =
            answered.and_then(|answered| Ok(Stream::new(answered, streams.shared.order.as_ref())?));
        match opened {
            Ok(stream) => streams.streams.push(stream),
            Err(absent) if streams.shared.may_leave_out && is_absent(&absent) => {
                streams.left_out = true;
            }
            // Of several the first is told, unless another says that all is to be routed again.
            Err(stale @ Failure::Stale(_)) => failure = Some(stale),
            Err(other) => failure = failure.or(Some(other)),
        }
    }
    match failure {
        None => Ok(streams),
        Some(failure) => {
            streams.kill().await;
            Err(failure)
        }
    }
}

/// The order that streams are merged in; natural order is none.
pub(crate) fn order_of(sort: Option<Doc<'_>>) -> Result<Option<SortPattern>, Error> {
    let Some(sort) = sort.filter(|sort| !sort.is_empty()) else {
        return Ok(None);
    };
    if natural_direction(sort)?.is_some() {
        return Ok(None);
    }
    Ok(Some(SortPattern::parse(sort)?))
}

/// A projection that is applied behind the merge.
struct Late {
    projection: Projection,
    /// What shards are asked for instead: the fields that are needed here.
    sent: Option<DocBuf>,
}

impl Late {
    fn new(
        body: Doc<'_>,
        order: Option<&SortPattern>,
        clock: &Clock,
    ) -> Result<Option<Late>, Error> {
        let spec = body.get_doc("projection").filter(|spec| !spec.is_empty());
        let (Some(spec), Some(order)) = (spec, order) else {
            return Ok(None);
        };
        let context = context_of(body, clock)?;
        let projection = Projection::parse(spec, body.get_doc("filter"), &context)?;
        let sent = projection.needed_fields().map(|needed| {
            let sorted = order.paths().iter().map(|path| path.as_str().to_owned());
            let tops: BTreeSet<String> = needed
                .into_iter()
                .chain(sorted)
                .map(|path| path.split('.').next().unwrap_or_default().to_owned())
                .collect();
            let mut sent = DocWriter::new();
            if !tops.contains("_id") {
                sent.append("_id", false);
            }
            for top in &tops {
                sent.append(top, true);
            }
            sent.finish()
        });
        Ok(Some(Late { projection, sent }))
    }
}
