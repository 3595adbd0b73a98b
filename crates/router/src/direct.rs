//! Statements about one document whose shard key can be read off them: the way of almost all traffic.
//!
//! ```text
//!   one statement ─► key read off (query::plan::plain_shard_key) ─► its owner, by the table there is ─► one request,
//!                    no filter is parsed                             nothing is asked or waited for     one reply
//! ```
//!
//! The statement's bytes and the shard's reply pass through as they are. Whatever is less plain (several
//! statements, a filter with operators, a table that is not known or stale, a document that has to be
//! completed) goes the general way (`bulk.rs`), and so does a statement that the shard says it did not carry out.

use crate::Router;
use crate::bulk::{Kind, mentioned_stale};
use crate::completion::is_complete;
use crate::failure::Failure;
use crate::operation;
use crate::request::request_by;
use cluster::cache::Placement;
use cluster::routing::RoutingTable;
use model::bson::Doc;
use model::namespace::Namespace;
use model::number::is_truthy;
use query::plan::plain_shard_key;
use wire::{Reply, Request};

/// The shard key that a statement about one document names.
fn key_of(table: &RoutingTable, statement: Doc<'_>, kind: Kind) -> Option<Vec<u8>> {
    let is = |name: &str| statement.get(name).is_some_and(is_truthy);
    let is_about_one = match kind {
        Kind::Insert => {
            let is_complete = is_complete(table, statement);
            return is_complete.then(|| table.pattern.key_of(statement).ok())?;
        }
        Kind::Update => !is("multi"),
        Kind::Delete => is("limit"),
    };
    match is_about_one {
        true => plain_shard_key(statement.get_doc("q")?, &table.pattern),
        false => None,
    }
}

/// Carries out a statement that is all of its command; `None` if it has to go the general way.
pub(crate) async fn write(
    router: &Router,
    request: &Request,
    namespace: &Namespace,
    statement: Doc<'_>,
    kind: Kind,
) -> Option<Result<Reply, Failure>> {
    let Placement::Sharded(table) = router.routing.known(namespace)? else {
        return None;
    };
    let key = key_of(&table, statement, kind)?;
    let shard = &table.find(&key).chunk.shard;
    if let Err(interrupted) = operation::check() {
        return Some(Err(interrupted.into()));
    }
    let routed = match request_by(&table, request, shard, &router.clock) {
        Ok(routed) => routed,
        Err(error) => return Some(Err(error.into())),
    };
    match router.ask(shard, routed).await {
        Ok(answered) => match mentioned_stale(&answered) {
            None => Some(Ok(answered.reply)),
            Some(stale) => {
                router.routing.note(namespace, &stale);
                None
            }
        },
        Err(Failure::Stale(stale)) => {
            router.routing.note(namespace, &stale);
            None
        }
        Err(failure) => Some(Err(failure)),
    }
}
