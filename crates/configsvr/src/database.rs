//! Databases: which shard is the primary of each, and how that comes about.
//!
//! `_configsvrGetDatabase` and `_configsvrCreateDatabase` answer `{primary, version}`; the latter makes
//! the database if it is not there, on the shard that is named or has the least data. Making one is a
//! single entry, so it needs no state document: who lost the answer asks again. The shard is told
//! afterwards; one that could not be reached asks by itself when the first request comes.

use crate::commit::{Commit, by};
use crate::documents::{self, DATABASES};
use crate::error::Fault;
use crate::queue::{Claim, Patience};
use crate::state::Effect;
use crate::tenure::{Plan, Tenure};
use crate::ticket::Ticket;
use cluster::authority::DatabasePlacement;
use cluster::routing::ShardId;
use model::Code;
use model::bson::{DocBuf, DocWriter};
use model::namespace::check_database;
use model::number::Number;
use model::version::DatabaseVersion;
use std::sync::Arc;
use std::time::Duration;

/// How long shards may take to say how much they have.
const SIZES_LIMIT: Duration = Duration::from_secs(2);

pub(crate) fn reply(placement: &DatabasePlacement) -> DocBuf {
    let mut writer = DocWriter::new().with("primary", placement.primary.as_str());
    documents::database_version(&mut writer, "version", placement.version);
    writer.with("ok", 1.0).finish()
}

/// `config` and `admin` are on the config server, and never move.
pub(crate) fn fixed(name: &str) -> Option<DatabasePlacement> {
    matches!(name, "config" | "admin").then(|| DatabasePlacement {
        primary: ShardId::new("config"),
        version: DatabaseVersion::fixed(),
    })
}

pub(crate) fn not_found(name: &str) -> Fault {
    Fault::new(
        Code::NAMESPACE_NOT_FOUND,
        format!("database {name} not found"),
    )
}

/// A database that is there, or is made now.
pub(crate) async fn create(
    tenure: &Arc<Tenure>,
    name: &str,
    on: Option<&str>,
    patience: Patience,
    ticket: Option<Ticket>,
) -> Result<DatabasePlacement, Fault> {
    if let Some(fixed) = fixed(name) {
        return Ok(fixed);
    }
    check_database(name)?;
    let there = tenure.state().await?.database(name)?.cloned();
    match (there, on) {
        (Some(placement), None) => return Ok(placement),
        (Some(placement), Some(wanted)) if placement.primary.as_str() == wanted => {
            return Ok(placement);
        }
        (Some(_) | None, _) => {}
    }
    let (here, name) = (tenure.clone(), name.to_owned());
    let on = on.map(ShardId::new);
    tenure
        .complete(async move {
            let claim = Claim::Database(name.clone());
            let _turn = here.queue.enter_within(&claim, patience).await?;
            create_in_turn(&here, &name, on.as_ref(), ticket).await
        })
        .await
}

/// The same for who has the database for itself, or shares it with none that makes one.
pub(crate) async fn create_in_turn(
    tenure: &Tenure,
    name: &str,
    on: Option<&ShardId>,
    ticket: Option<Ticket>,
) -> Result<DatabasePlacement, Fault> {
    let there = tenure.state().await?.database(name)?.cloned();
    let called = |wanted: &ShardId| tenure.with_state(|state| state.shard_called(wanted.as_str()));
    let wanted = on.map(called).transpose()?;
    let on = wanted.as_ref();
    if let Some(placement) = there {
        return match on {
            Some(wanted) if *wanted != placement.primary => Err(Fault::new(
                Code::NAMESPACE_EXISTS,
                format!(
                    "database {name} is already created on {}, which is not {wanted}",
                    placement.primary
                ),
            )),
            Some(_) | None => Ok(placement),
        };
    }
    let primary = match on {
        Some(wanted) => wanted.clone(),
        None => least_loaded(tenure).await?,
    };
    let now = tenure.store.next_time();
    let placement = tenure
        .decide(|state| {
            // Names that differ in case only would be one file on some systems.
            let similar = state
                .authority
                .databases()
                .find(|(other, _)| other.eq_ignore_ascii_case(name));
            if let Some((other, placement)) = similar {
                if other == name {
                    return Ok(Plan {
                        commit: Commit::default(),
                        effects: Vec::new(),
                        answer: placement.clone(),
                    });
                }
                return Err(Fault::new(
                    Code::DATABASE_DIFFER_CASE,
                    format!("can't have 2 databases that just differ on case  have: {other} want to create: {name}"),
                ));
            }
            let placement =
                state
                    .authority
                    .new_database(&primary, documents::new_uuid(), now)?;
            let mut commit = Commit::default();
            commit.expect_none(DATABASES, by("_id", name).as_doc());
            commit.insert(DATABASES, documents::database(name, &placement).as_doc());
            let plan = Plan {
                commit,
                effects: vec![Effect::Database(name.to_owned(), Some(placement.clone()))],
                answer: placement,
            };
            // `enableSharding`: others are told where it is, and ask for it as often as they like.
            Ok(plan.answering(state, ticket, &Ok(crate::server::ok())))
        })
        .await?;
    tell(tenure, name).await;
    Ok(placement)
}

/// Tells a database's primary that it is. If that does not work it will ask.
pub(crate) async fn tell(tenure: &Tenure, name: &str) {
    let placement = tenure.with_state(|state| state.authority.database(name).cloned());
    let Some(placement) = placement else {
        return;
    };
    let command = set_database(name, placement.version, true);
    let told = tenure
        .ask(&placement.primary, "admin", command.as_doc())
        .await;
    if let Err(fault) = told {
        tracing::debug!("{} was not told of {name}: {fault}", placement.primary);
    }
}

pub(crate) fn set_database(name: &str, version: DatabaseVersion, primary: bool) -> DocBuf {
    let mut command = DocWriter::new()
        .with("_terndbSetDatabase", 1)
        .with("db", name);
    documents::database_version(&mut command, "version", version);
    command.with("primary", primary).finish()
}

/// The shard with the least data; of several, the one with the fewest databases.
async fn least_loaded(tenure: &Tenure) -> Result<ShardId, Fault> {
    let (shards, homes) = tenure.with_state(|state| {
        let usable = state.authority.shards().filter(|(_, usable)| *usable);
        let shards: Vec<ShardId> = usable.map(|(shard, _)| shard.clone()).collect();
        let homes: Vec<ShardId> = state
            .authority
            .databases()
            .map(|(_, placement)| placement.primary.clone())
            .collect();
        (shards, homes)
    });
    let mut best: Option<(f64, usize, ShardId)> = None;
    for shard in shards {
        let size = match tokio::time::timeout(SIZES_LIMIT, data_size(tenure, &shard)).await {
            Ok(Ok(size)) => size,
            // One that does not answer is no place for new data.
            Ok(Err(_)) | Err(_) => f64::MAX,
        };
        let count = homes.iter().filter(|home| **home == shard).count();
        let better = best
            .as_ref()
            .is_none_or(|(least, fewest, _)| (size, count) < (*least, *fewest));
        if better {
            best = Some((size, count, shard));
        }
    }
    best.map(|(_, _, shard)| shard)
        .ok_or_else(|| Fault::new(Code::SHARD_NOT_FOUND, "No shards found"))
}

/// What a shard has, to the byte: what it takes on disk is known only once its engine has written it out.
async fn data_size(tenure: &Tenure, shard: &ShardId) -> Result<f64, Fault> {
    let question = by("_terndbDataSize", 1);
    let told = tenure.ask(shard, "admin", question.as_doc()).await?;
    let bytes = told.get("bytes").and_then(Number::of);
    bytes.map(|bytes| bytes.to_f64()).ok_or_else(|| {
        Fault::new(
            Code::INTERNAL_ERROR,
            format!("{shard} does not say how much data it has"),
        )
    })
}
