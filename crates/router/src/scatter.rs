//! Asking shards: one, or several at once.

use crate::Router;
use crate::failure::{Failure, checked, unreachable};
use crate::registry::Shard;
use cluster::routing::ShardId;
use model::error::{Code, Error};
use std::sync::Arc;
use tokio::task::JoinSet;
use wire::{Answer, Endpoint, Reply, Request};

/// A shard's good answer.
pub(crate) struct Answered {
    pub(crate) shard: ShardId,
    pub(crate) reply: Reply,
    /// Where a cursor of this answer is continued.
    pub(crate) member: Arc<dyn Endpoint>,
}

impl Router {
    pub(crate) async fn shard(&self, id: &ShardId) -> Result<Shard, Error> {
        self.registry.shard(id, &self.config).await
    }

    /// Sends a request to one shard.
    pub(crate) async fn ask(&self, id: &ShardId, request: Request) -> Result<Answered, Failure> {
        let shard = self.shard(id).await?;
        let answered = ask(shard, request).await;
        self.observe(&answered);
        answered
    }

    /// Sends requests to several shards at once and waits for all of them. Answers are in the
    /// order of the requests.
    pub(crate) async fn ask_all(
        &self,
        requests: Vec<(ShardId, Request)>,
    ) -> Result<Vec<Result<Answered, Failure>>, Error> {
        let mut asking = JoinSet::new();
        let count = requests.len();
        let mut shards = Vec::with_capacity(count);
        for (id, _) in &requests {
            shards.push(self.shard(id).await?);
        }
        for (at, (shard, (_, request))) in shards.into_iter().zip(requests).enumerate() {
            asking.spawn(async move { (at, ask(shard, request).await) });
        }
        let mut answers: Vec<Option<Result<Answered, Failure>>> = Vec::new();
        answers.resize_with(count, || None);
        while let Some(ended) = asking.join_next().await {
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
            Ok(answered) => self.clock.observe(answered.reply.document()),
            Err(Failure::Reply(reply)) => self.clock.observe(reply.document()),
            Err(Failure::Stale(_) | Failure::Error(_)) => {}
        }
    }
}

async fn ask(shard: Shard, request: Request) -> Result<Answered, Failure> {
    let retryable = request.body().get("txnNumber").is_some();
    let Answer { reply, member } = (shard.endpoint.open(request).await)
        .map_err(|error| unreachable(&shard.id, &error, retryable))?;
    Ok(Answered {
        reply: checked(reply, &shard.id)?,
        shard: shard.id,
        member: member.unwrap_or(shard.endpoint),
    })
}
