//! `findAndModify`: on the one shard that the whole shard key names.

use crate::failure::Failure;
use crate::find::no_progress;
use crate::routing::Route;
use crate::targeting::{context_of, namespace_of, parse_filter};
use crate::{Router, STALE_RETRIES_MAX};
use model::bson::Doc;
use model::error::{Code, Error};
use wire::{Reply, Request};

pub(crate) async fn find_and_modify(router: &Router, request: &Request) -> Result<Reply, Failure> {
    let body = request.body();
    let namespace = namespace_of(body, request.database())?;
    let context = context_of(body, &router.clock)?;
    let filter = body.get_doc("query").unwrap_or(Doc::EMPTY);
    let filter = parse_filter(filter, &context)?;
    for _ in 0..STALE_RETRIES_MAX {
        let target = |route: &Route| route.find_and_modify_target(&filter);
        let routed = router.route_to(&namespace, true, target).await?;
        let Some((route, shards)) = routed else {
            return Err(Error::new(Code::NAMESPACE_NOT_FOUND, "the database is gone").into());
        };
        let shard = &shards[0];
        let sent = route.request(request, shard, &router.clock)?;
        match router.ask(shard, sent).await {
            Ok(answered) => return Ok(answered.reply),
            Err(Failure::Stale(stale)) => router.routing.note(&namespace, &stale),
            Err(failure) => return Err(failure),
        }
    }
    Err(no_progress())
}
