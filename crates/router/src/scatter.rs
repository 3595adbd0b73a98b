//! Asking shards: one, or several at once.

use crate::Router;
use crate::failure::{Failure, Stale, checked, is_one, unreachable};
use crate::merge::kill_cursor;
use crate::operation;
use crate::registry::Shard;
use crate::request::time_in;
use cluster::routing::ShardId;
use model::bson::{Doc, ValueRef};
use model::error::{Code, Error};
use model::time::ClusterTime;
use std::sync::Arc;
use tokio::task::JoinSet;
use wire::operation::only_reads;
use wire::{Answer, Endpoint, Reply, Request};

/// A shard's good answer.
pub(crate) struct Answered {
    pub(crate) shard: ShardId,
    pub(crate) reply: Reply,
    /// Where a cursor of this answer is continued.
    pub(crate) member: Arc<dyn Endpoint>,
    pub(crate) look: Look,
}

/// What a router wants to know of every reply, found in one walk over it.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    is_ok: bool,
    told: Option<ClusterTime>,
    /// Whether statements of a write failed.
    pub(crate) has_write_errors: bool,
}

impl Look {
    pub(crate) fn at(reply: Doc<'_>) -> Look {
        let mut look = Look {
            is_ok: false,
            told: None,
            has_write_errors: false,
        };
        for element in reply.iter() {
            match element.key_bytes() {
                b"ok" => look.is_ok = is_one(element.value()),
                b"writeErrors" => look.has_write_errors = true,
                b"$clusterTime" => {
                    if let ValueRef::Document(gossip) = element.value() {
                        look.told = time_in(gossip);
                    }
                }
                _ => {}
            }
        }
        look
    }
}

impl Router {
    pub(crate) async fn shard(&self, id: &ShardId) -> Result<Shard, Error> {
        let found = self.registry.shard(id, &self.config).await;
        if matches!(&found, Err(error) if error.code == Code::SHARD_NOT_FOUND) {
            self.routing.left(id);
        }
        found
    }

    /// Sends a request to one shard. ⚑ One that has left the cluster was named by an old table, and nobody else would
    /// say so: it is as if it had told.
    pub(crate) async fn ask(&self, id: &ShardId, request: Request) -> Result<Answered, Failure> {
        let asked = self.ask_as_named(id, request).await;
        asked.map_err(|failure| as_told(id, failure))
    }

    /// The same, where it matters which: one that is not there any more is `ShardNotFound`.
    pub(crate) async fn ask_as_named(
        &self,
        id: &ShardId,
        request: Request,
    ) -> Result<Answered, Failure> {
        let shard = self.shard(id).await?;
        let answered = match only_reads(request.name()) {
            true => operation::waiting(ask(shard, request)).await?,
            false => ask(shard, request).await,
        };
        self.observe(&answered);
        answered
    }

    /// Sends requests to several shards at once and waits for all of them. Answers are in the
    /// order of the requests. Cursors that are open when it ends early are closed.
    pub(crate) async fn ask_all(
        &self,
        requests: Vec<(ShardId, Request)>,
    ) -> Result<Vec<Result<Answered, Failure>>, Error> {
        let mut asking = JoinSet::new();
        let may_end = requests.iter().all(|(_, it)| only_reads(it.name()));
        let count = requests.len();
        let mut answers: Vec<Option<Result<Answered, Failure>>> = Vec::new();
        answers.resize_with(count, || None);
        let mut shards = Vec::with_capacity(count);
        for (at, (id, _)) in requests.iter().enumerate() {
            match self.shard(id).await {
                Ok(shard) => shards.push(Some(shard)),
                Err(error) if error.code == Code::SHARD_NOT_FOUND => {
                    answers[at] = Some(Err(as_told(id, error.into())));
                    shards.push(None);
                }
                Err(error) => return Err(error),
            }
        }
        for (at, (shard, (_, request))) in shards.into_iter().zip(requests).enumerate() {
            let Some(shard) = shard else { continue };
            let asked = async move {
                let answered = match may_end {
                    true => operation::waiting(ask(shard, request)).await,
                    false => Ok(ask(shard, request).await),
                };
                (
                    at,
                    answered.unwrap_or_else(|interrupted| Err(interrupted.into())),
                )
            };
            asking.spawn(operation::inherited(asked));
        }
        loop {
            let next = match may_end {
                true => operation::waiting(asking.join_next()).await,
                false => Ok(asking.join_next().await),
            };
            let next = match next {
                Ok(next) => next,
                Err(interrupted) => {
                    close_all(answers.into_iter().flatten().flatten());
                    return Err(interrupted);
                }
            };
            let Some(ended) = next else {
                break;
            };
            let (at, answered) = ended.map_err(|error| {
                Error::new(Code::INTERNAL_ERROR, format!("a call did not end: {error}"))
            })?;
            self.observe(&answered);
            answers[at] = Some(answered);
        }
        Ok(answers.into_iter().flatten().collect())
    }

    fn observe(&self, answered: &Result<Answered, Failure>) {
        match answered {
            Ok(answered) => {
                if let Some(told) = answered.look.told {
                    self.clock.raise(told);
                }
            }
            Err(Failure::Reply(reply)) => self.clock.observe(reply.document()),
            Err(Failure::Stale(_) | Failure::Error(_)) => {}
        }
    }
}

/// Closes the cursors of answers that nobody takes over.
fn close_all(answers: impl Iterator<Item = Answered>) {
    for answered in answers {
        let cursor = answered.reply.document().get_doc("cursor");
        let named = cursor.and_then(|cursor| Some((cursor.get("id")?, cursor.get_str("ns")?)));
        if let Some((ValueRef::Int64(id), namespace)) = named
            && id != 0
        {
            let (member, namespace) = (answered.member.clone(), namespace.to_owned());
            tokio::spawn(async move { kill_cursor(&*member, &namespace, id).await });
        }
    }
}

/// ⚑ Who asks for a shard that has left the cluster has an old table.
fn as_told(id: &ShardId, failure: Failure) -> Failure {
    match failure {
        Failure::Error(error) if error.code == Code::SHARD_NOT_FOUND => {
            Failure::Stale(Stale::Collection {
                shard: id.clone(),
                wanted: None,
            })
        }
        other => other,
    }
}

async fn ask(shard: Shard, request: Request) -> Result<Answered, Failure> {
    let retryable = request.get("txnNumber").is_some();
    let Answer { reply, member } = (shard.endpoint.open(request).await)
        .map_err(|error| unreachable(&shard.id, &error, retryable))?;
    let look = Look::at(reply.document());
    let reply = match look.is_ok {
        true => reply,
        false => checked(reply, &shard.id)?,
    };
    Ok(Answered {
        reply,
        shard: shard.id,
        member: member.unwrap_or(shard.endpoint),
        look,
    })
}
