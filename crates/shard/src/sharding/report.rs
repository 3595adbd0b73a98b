//! `getShardVersion`, `getDatabaseVersion`, `shardingState`: what a shard knows about its
//! place in the cluster.

use crate::command::arguments::arguments;
use crate::command::{Answer, Invocation, finish};
use model::bson::{Timestamp, ValueRef};
use model::version::ChunkVersion;
use model::{Code, Error, Namespace};
use wire::Reply;

fn timestamp(version: ChunkVersion) -> ValueRef<'static> {
    ValueRef::Timestamp(Timestamp {
        seconds: version.major,
        increment: version.minor,
    })
}

fn first_string<'a>(invocation: &'a Invocation<'_>) -> Result<&'a str, Error> {
    match invocation.request.body().first().map(|first| first.value()) {
        Some(ValueRef::String(name)) => Ok(name),
        _ => Err(Error::bad_value(format!(
            "{} takes a name",
            invocation.request.name()
        ))),
    }
}

pub(crate) fn get_shard_version(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let mut full = false;
    for argument in arguments("getShardVersion", invocation.request.body()) {
        match argument.name() {
            "fullMetadata" => full = argument.loose_boolean()?,
            _ => return Err(argument.unknown()),
        }
    }
    let namespace = Namespace::parse(first_string(invocation)?)?;
    let shard = invocation.shard;
    let collection = shard.catalog.get(&namespace);
    let moves = (collection.as_ref()).is_some_and(|it| it.ownership.is_some() && !it.is_sharded());
    let ownership = collection.and_then(|known| known.sharded_ownership().cloned());
    let mut writer = Reply::writer();
    writer
        .append("configServer", "")
        .append("inShardedMode", shard.sharding.is_shard())
        .append("mine", timestamp(ChunkVersion::ZERO));
    match &ownership {
        None => {
            writer.append("global", "UNSHARDED");
            if full && moves {
                // It comes or goes with its database.
                writer.begin_document("metadata");
                writer.append("movesWithDatabase", true).end();
            }
        }
        Some(ownership) => {
            let placement = ownership.placement;
            writer.append("global", timestamp(placement.chunk));
            if full {
                writer
                    .begin_document("metadata")
                    .append("shardVersion", timestamp(placement.chunk))
                    .append("shardVersionEpoch", placement.incarnation.epoch)
                    .append("shardVersionTimestamp", placement.incarnation.began)
                    .append("collVersion", timestamp(ownership.collection_version.chunk))
                    .append("keyPattern", &ownership.key)
                    .append(
                        "ranges",
                        i32::try_from(ownership.owned.iter().len()).unwrap_or(i32::MAX),
                    )
                    .append("mayHoldOrphans", ownership.orphans)
                    .end();
            }
        }
    }
    finish(writer)
}

pub(crate) fn get_database_version(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    if let Some(argument) = arguments("getDatabaseVersion", invocation.request.body()).next() {
        return Err(argument.unknown());
    }
    let sharding = &invocation.shard.sharding;
    if !sharding.is_shard() {
        return Err(Error::new(
            Code::ILLEGAL_OPERATION,
            "getDatabaseVersion can only be run on shard servers",
        ));
    }
    let known = sharding.known();
    let mut writer = Reply::writer();
    writer.begin_document("dbVersion");
    if let Some(database) = known.databases.get(first_string(invocation)?) {
        database.version.append_to(&mut writer);
    }
    writer.end();
    finish(writer)
}

pub(crate) fn sharding_state(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let shard = invocation.shard;
    let known = shard.sharding.known();
    let mut writer = Reply::writer();
    writer
        .append("enabled", known.identity.is_some())
        // Ours: without them it could be given data, and never give it away.
        .append("reachesOtherShards", shard.reaches_other_shards());
    if let Some(identity) = &known.identity {
        writer
            .append("configServer", "")
            .append("shardName", identity.shard.as_str())
            .append("clusterId", identity.cluster)
            .begin_document("versions");
        for collection in shard.catalog.current().collections() {
            if let Some(ownership) = collection.sharded_ownership() {
                writer.append(
                    collection.namespace.as_str(),
                    timestamp(ownership.placement.chunk),
                );
            }
        }
        writer.end();
    }
    finish(writer)
}
