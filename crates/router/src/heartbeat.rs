//! What a router does without being asked: it reads which shards there are and writes down where
//! their members went, and says in `config.mongos` that it lives.

use crate::Router;
use crate::hello::now_ms;
use model::bson::{DocWriter, ValueRef};
use model::error::Error;
use std::sync::Arc;
use tokio::time::{MissedTickBehavior, interval};

/// The version of MongoDB whose behaviour a router follows.
pub(crate) const COMPATIBLE_VERSION: &str = "6.0.5";

pub(crate) async fn run(router: Arc<Router>) {
    let mut ticks = interval(router.options.shards_refresh);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        look(&router).await;
        if let Err(error) = say_alive(&router).await {
            tracing::debug!(%error, "config.mongos cannot be written");
        }
        router.registry.look_again().await;
        for (shard, now) in router.registry.changed() {
            if let Err(error) = persist(&router, shard.as_str(), &now).await {
                tracing::debug!(%error, %shard, "config.shards cannot be written");
            }
        }
    }
}

/// Only reads which shards there are: all that a router has to do by itself which is nobody's but its
/// owner's. The first use reads them too, so it does not begin at once.
pub(crate) async fn keep_looking(router: Arc<Router>) {
    loop {
        tokio::time::sleep(router.options.shards_refresh).await;
        look(&router).await;
    }
}

async fn look(router: &Router) {
    match router.registry.reload(&router.config).await {
        Ok(gone) => gone.iter().for_each(|id| router.routing.left(id)),
        Err(error) => tracing::warn!(%error, "the shards of the cluster cannot be read"),
    }
}

/// Writes where a shard's members are now.
async fn persist(router: &Router, shard: &str, connection_string: &str) -> Result<(), Error> {
    let mut command = DocWriter::new().with("update", "shards");
    command.begin_array("updates").push_document();
    command.begin_document("q").append("_id", shard).end();
    command
        .begin_document("u")
        .begin_document("$set")
        .append("host", connection_string)
        .end()
        .end();
    command.end().end();
    command.append("$db", "config");
    router.config.run(command).await.map(|_| ())
}

/// Writes this router's document in `config.mongos`.
async fn say_alive(router: &Router) -> Result<(), Error> {
    let mut command = DocWriter::new().with("update", "mongos");
    command.begin_array("updates").push_document();
    command
        .begin_document("q")
        .append("_id", router.options.host.as_str())
        .end();
    let uptime = i64::try_from(router.started.elapsed().as_secs()).unwrap_or(i64::MAX);
    command
        .begin_document("u")
        .begin_document("$set")
        .append("_id", router.options.host.as_str())
        .append("ping", ValueRef::DateTime(now_ms()))
        .append("up", uptime)
        .append("waiting", true)
        .append("mongoVersion", COMPATIBLE_VERSION)
        .begin_array("advisoryHostFQDNs")
        .end()
        .end()
        .end();
    command.append("upsert", true).end().end();
    command.append("$db", "config");
    router.config.run(command).await.map(|_| ())
}
