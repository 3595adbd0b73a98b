//! `find` of a collection that is not sharded. Its shard answers the client's own command; where more is left, the
//! rest is a scan (`scan/at_home.rs`), which goes on at another member, or where the database has moved to.

use crate::Router;
use crate::cursor::{Cursor, Source};
use crate::failure::Failure;
use crate::find::{FIRST_BATCH_DOCUMENTS, ask_one, first_batch_of, whole, with_cursor_id};
use crate::request::{fields_without, snapshot_time};
use crate::routing::Route;
use crate::scan::{ElasticScan, ScanCommand};
use cluster::routing::ShardId;
use model::bson::{Doc, ValueRef};
use std::sync::Arc;
use wire::{Reply, Request};

/// Whether what a `find` leaves open can be gone on with by its place. Tailable cursors stand at the end, which is none;
/// a client that asks for places itself gets those of the shard; what is malformed the shard refuses.
pub(crate) fn may_go_on(body: Doc<'_>) -> bool {
    let special = [
        "tailable",
        "awaitData",
        "$_requestResumeToken",
        "$_resumeAfter",
        "$_startAt",
    ];
    let counts = ["skip", "limit", "batchSize"];
    special.iter().all(|name| body.get(name).is_none())
        && counts.iter().all(|name| whole(body.get(name)).is_some())
}

pub(crate) async fn find_at_home(
    router: &Arc<Router>,
    request: &Request,
    route: &Route,
    shard: &ShardId,
) -> Result<Reply, Failure> {
    let body = request.body();
    let number = |name: &str| whole(body.get(name)).unwrap_or(0);
    let (skip, limit) = (
        number("skip"),
        Some(number("limit")).filter(|limit| *limit > 0),
    );
    let batch_size = body.get("batchSize").map(|_| number("batchSize"));
    let first_batch = batch_size.unwrap_or(FIRST_BATCH_DOCUMENTS);
    let is = |name: &str| body.get(name) == Some(ValueRef::Boolean(true));
    // More than one document may be too much for a batch, whatever the client expects.
    if is("singleBatch") || (limit == Some(1) && first_batch > 0) {
        return router.pass_cursor(request, route, shard).await;
    }
    let session = body.get_doc("lsid").map(Doc::to_owned);
    let dropped = ["skip", "limit", "batchSize", "singleBatch"];
    let at = snapshot_time(body);
    let command = ScanCommand {
        namespace: route.namespace.clone(),
        body: fields_without(body, &dropped).finish(),
        order: None,
        whole: false,
        passes: (skip, limit) == (0, None),
        places: false,
        is_past: at.is_some(),
        is_at_home: true,
        session: session.clone(),
    };
    let answered = ask_one(router, request, route, shard).await?;
    let (cursor, returned) = first_batch_of(answered.reply.document());
    if cursor == 0 {
        return Ok(answered.reply);
    }
    // Where nothing was returned nothing is skipped yet: the scan does it, and so the shard's cursor must not.
    let has_skipped = first_batch > 0 || skip == 0;
    let window = match has_skipped {
        true => (0, limit.map(|limit| limit.saturating_sub(returned))),
        false => (skip, limit),
    };
    let scan = ElasticScan::at_home(router, command, shard)?;
    let mut scan = scan.with_window(window.0, window.1);
    scan.take_over(&answered, has_skipped).await?;
    let id = router.cursors.keep(Cursor::new(
        route.namespace.as_str(),
        session,
        is("noCursorTimeout"),
        Source::Merged(Box::new(scan)),
    ));
    Ok(with_cursor_id(answered.reply.document(), id))
}
