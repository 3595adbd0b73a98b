//! `checkMetadataConsistency`: whether what the config server has stored fits together, and fits what the
//! shards know.
//!
//! Each finding is a document `{type, description, details}`, as MongoDB's are. A healthy cluster has none,
//! after any fault: operations that were interrupted go on before this is answered, because their names are
//! waited for. A collection that is not sharded lies where its database has its primary: whoever else has
//! one that is not a part of a sharded collection has it where nobody looks (*misplaced*). Moves of ranges are not waited for: what was found while one was decided is looked at again.

use crate::collection::Facts;
use crate::commit::by;
use crate::documents::{self, CHUNKS, COLLECTIONS, CollectionEntry, Damage, LOCKS, OPERATIONS};
use crate::error::Fault;
use crate::queue::{Claim, Patience};
use crate::tenure::Tenure;
use cluster::routing::{RoutingTable, ShardId};
use model::Namespace;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How often a collection is looked at again because a range of it went to another shard meanwhile.
const LOOKS_MAX: usize = 20;

struct Findings(Vec<DocBuf>);

impl Findings {
    fn add(&mut self, kind: &str, description: String, details: Doc<'_>) {
        let finding = DocWriter::new()
            .with("type", kind)
            .with("description", description.as_str())
            .with("details", details);
        self.0.push(finding.finish());
    }

    /// Documents of a collection or a database that cannot be understood.
    fn add_damage(&mut self, name: &str, damage: &Damage) {
        let field = match name.contains('.') {
            true => "namespace",
            false => "database",
        };
        let description = format!("{name}: {}", damage.why);
        self.add(damage.kind, description, by(field, name).as_doc());
    }
}

/// Of the whole cluster, of a database, or of a collection.
pub(crate) async fn check(
    tenure: &Arc<Tenure>,
    database: &str,
    command: Doc<'_>,
) -> Result<DocBuf, Fault> {
    let collection = match command.first().map(|first| first.value()) {
        Some(ValueRef::String(name)) => Some(Namespace::new(database, name)?),
        _ => None,
    };
    let concerns = |name: &Namespace| match &collection {
        Some(one) => name == one,
        None => database == "admin" || name.database() == database,
    };
    let patience = Patience::of(command)?;
    let mut findings = Findings(Vec::new());
    let names: Vec<Namespace> = {
        let state = tenure.state().await?;
        for (name, damaged) in &state.damaged {
            let of = name.split('.').next().unwrap_or_default();
            let is_meant = match &collection {
                Some(one) => name == one.as_str(),
                None => database == "admin" || of == database,
            };
            if is_meant {
                findings.add_damage(name, &damaged.damage);
            }
        }
        let all = state.collections.keys();
        all.filter(|name| concerns(name)).cloned().collect()
    };
    for name in names {
        // Nobody but moves changes it meanwhile.
        let claim = Claim::one(&name);
        let _turn = tenure.queue.enter_within(&claim, patience).await?;
        check_collection(tenure, &name, &mut findings).await?;
    }
    if collection.is_none() {
        check_leftovers(tenure, &mut findings).await?;
        check_databases(tenure, database, &mut findings).await?;
        check_places(tenure, database, patience, &mut findings).await?;
    }
    let namespace = format!("{database}.$cmd.aggregate");
    let mut reply = DocWriter::new();
    reply.begin_document("cursor").begin_array("firstBatch");
    for finding in &findings.0 {
        reply.push(finding);
    }
    reply
        .end()
        .append("id", 0i64)
        .append("ns", namespace.as_str())
        .end();
    Ok(reply.with("ok", 1.0).finish())
}

async fn check_collection(
    tenure: &Tenure,
    name: &Namespace,
    findings: &mut Findings,
) -> Result<(), Fault> {
    let mut found = Findings(Vec::new());
    for _ in 0..LOOKS_MAX {
        found.0.clear();
        let Some((entry, table)) = known(tenure, name).await? else {
            return Ok(());
        };
        check_stored(tenure, &entry, &table, &mut found).await?;
        check_shards(tenure, &entry, &table, &mut found).await?;
        let now = known(tenure, name).await?;
        let still = now.is_some_and(|(_, now)| now.version() == table.version());
        if found.0.is_empty() || still {
            break;
        }
    }
    findings.0.append(&mut found.0);
    Ok(())
}

async fn known(
    tenure: &Tenure,
    name: &Namespace,
) -> Result<Option<(CollectionEntry, RoutingTable)>, Fault> {
    let state = tenure.state().await?;
    let sharded = state.sharded(name).ok();
    Ok(sharded.map(|(entry, table)| (entry.clone(), table.clone())))
}

/// What is in memory is what is stored.
async fn check_stored(
    tenure: &Tenure,
    entry: &CollectionEntry,
    table: &RoutingTable,
    findings: &mut Findings,
) -> Result<(), Fault> {
    let name = entry.namespace.as_str();
    let details = by("namespace", name);
    let id = by("_id", name);
    let stored = tenure.store.find_one(COLLECTIONS, id.as_doc()).await?;
    if stored.as_ref() != Some(&entry.document) {
        findings.add(
            "CollectionMetadataMismatch",
            format!("config.collections has another document for {name} than was decided"),
            details.as_doc(),
        );
    }
    let filter = by("uuid", documents::uuid_value(&entry.uuid));
    let chunks = tenure
        .store
        .find(CHUNKS, filter.as_doc(), by("min", 1).as_doc())
        .await?;
    match documents::read_table(entry, &chunks) {
        Ok(read) => {
            let same = read.chunk_count() == table.chunk_count()
                && read
                    .chunks()
                    .zip(table.chunks())
                    .all(|(a, b)| a.chunk == b.chunk);
            if !same {
                findings.add(
                    "RoutingTableMismatch",
                    format!("config.chunks has other chunks of {name} than were decided"),
                    details.as_doc(),
                );
            }
        }
        Err(damage) => findings.add_damage(name, &damage),
    }
    Ok(())
}

/// Owners know the collection under the same identity and have the same indexes, and nobody has a newer version
/// than was decided.
async fn check_shards(
    tenure: &Tenure,
    entry: &CollectionEntry,
    table: &RoutingTable,
    findings: &mut Findings,
) -> Result<(), Fault> {
    let name = &entry.namespace;
    let (shards, known) =
        tenure.with_state(|state| (state.participants(name), state.shard_names()));
    let owners: BTreeSet<&ShardId> = table.shards().iter().map(|part| &part.shard).collect();
    let mut first: Option<(ShardId, Facts)> = None;
    for shard in shards {
        let details = DocWriter::new()
            .with("namespace", name.as_str())
            .with("shard", shard.as_str())
            .finish();
        if !known.contains(&shard) {
            findings.add(
                "UnknownShard",
                format!("{shard} should have {name} and is no shard of the cluster"),
                details.as_doc(),
            );
            continue;
        }
        match Facts::ask(tenure, &shard, name).await? {
            None => findings.add(
                "MissingLocalCollection",
                format!("{shard} should have {name} and does not"),
                details.as_doc(),
            ),
            Some(facts) if facts.uuid != entry.uuid => findings.add(
                "CollectionUUIDMismatch",
                format!("{shard} has {name} with another UUID"),
                details.as_doc(),
            ),
            Some(facts) => {
                check_version(tenure, entry, table, &shard, findings).await?;
                if !owners.contains(&shard) {
                    continue;
                }
                match &first {
                    None => first = Some((shard, facts)),
                    Some((other, wanted)) => {
                        compare_indexes(name, (other, wanted), (&shard, &facts), findings);
                    }
                }
            }
        }
    }
    Ok(())
}

/// ⚑ Every owner has every index, in whatever order they were made.
fn compare_indexes(
    name: &Namespace,
    (one, wanted): (&ShardId, &Facts),
    (other, found): (&ShardId, &Facts),
    findings: &mut Findings,
) {
    let pairs = [(one, wanted, other, found), (other, found, one, wanted)];
    for (has, indexes, misses, others) in pairs {
        for index in &indexes.indexes {
            if others.indexes.contains(index) {
                continue;
            }
            let details = DocWriter::new()
                .with("namespace", name.as_str())
                .with("shard", misses.as_str())
                .with("index", index)
                .finish();
            findings.add(
                "InconsistentIndex",
                format!("{has} has an index of {name} that {misses} does not have"),
                details.as_doc(),
            );
        }
    }
}

async fn check_version(
    tenure: &Tenure,
    entry: &CollectionEntry,
    table: &RoutingTable,
    shard: &ShardId,
    findings: &mut Findings,
) -> Result<(), Fault> {
    let ask = DocWriter::new()
        .with("getShardVersion", entry.namespace.as_str())
        .with("fullMetadata", true)
        .finish();
    let told = tenure.ask(shard, "admin", ask.as_doc()).await?;
    let decided = table.shard_version(shard);
    let metadata = told.as_doc().get_doc("metadata").unwrap_or(Doc::EMPTY);
    let epoch = metadata.get("shardVersionEpoch");
    let version = match metadata.get("shardVersion") {
        Some(ValueRef::Timestamp(version)) => Some((version.seconds, version.increment)),
        _ => None,
    };
    let wanted = (decided.chunk.major, decided.chunk.minor);
    // One that has not heard of a split yet is not wrong: it owns the same.
    let fits = epoch == Some(ValueRef::ObjectId(decided.incarnation.epoch))
        && version.is_some_and(|version| version <= wanted);
    if !fits {
        let details = DocWriter::new()
            .with("namespace", entry.namespace.as_str())
            .with("shard", shard.as_str())
            .with("told", &told)
            .finish();
        findings.add(
            "ShardVersionMismatch",
            format!(
                "{shard} knows another life or a later version of {} than {}",
                entry.namespace, decided.chunk
            ),
            details.as_doc(),
        );
    }
    Ok(())
}

/// Chunks without a collection, locks without an operation.
async fn check_leftovers(tenure: &Tenure, findings: &mut Findings) -> Result<(), Fault> {
    let uuids: BTreeSet<_> = tenure.with_state(|state| {
        let damaged = state.damaged.values().filter_map(|one| one.entry.as_ref());
        let entries = state.collections.values().chain(damaged);
        entries.map(|entry| entry.uuid.0).collect()
    });
    let distinct = DocWriter::new()
        .with("distinct", CHUNKS)
        .with("key", "uuid");
    let stored = tenure.store.run(distinct).await?;
    for uuid in stored
        .as_doc()
        .get_array("values")
        .into_iter()
        .flat_map(|all| all.iter())
    {
        let known = match uuid {
            ValueRef::Binary { bytes, .. } => {
                <[u8; 16]>::try_from(bytes).is_ok_and(|uuid| uuids.contains(&uuid))
            }
            _ => false,
        };
        if !known {
            findings.add(
                "MissingRoutingTable",
                "config.chunks has chunks of a collection that is not there".to_owned(),
                by("uuid", uuid).as_doc(),
            );
        }
    }
    let running = tenure
        .store
        .find(OPERATIONS, Doc::EMPTY, Doc::EMPTY)
        .await?;
    for lock in tenure.store.find(LOCKS, Doc::EMPTY, Doc::EMPTY).await? {
        let owned = running.iter().any(|one| one.get("_id") == lock.get("ts"));
        if !owned {
            findings.add(
                "LockWithoutOperation",
                "config.locks has a lock whose operation is not there".to_owned(),
                lock.as_doc(),
            );
        }
    }
    Ok(())
}

/// Every database has a primary that is there, and knows that it is.
async fn check_databases(
    tenure: &Tenure,
    database: &str,
    findings: &mut Findings,
) -> Result<(), Fault> {
    let (databases, shards) = tenure.with_state(|state| {
        let all = state.authority.databases();
        let concerned = all.filter(|(name, _)| database == "admin" || *name == database);
        let databases: Vec<_> = concerned
            .map(|(name, placement)| (name.to_owned(), placement.clone()))
            .collect();
        (databases, state.shard_names())
    });
    for (name, placement) in databases {
        if !shards.contains(&placement.primary) {
            findings.add(
                "MissingPrimary",
                format!(
                    "the primary {} of database {name} is no shard",
                    placement.primary
                ),
                by("database", &name).as_doc(),
            );
        }
    }
    Ok(())
}

/// Collections that are not sharded are on the primary shards of their databases, and nowhere else.
async fn check_places(
    tenure: &Tenure,
    database: &str,
    patience: Patience,
    findings: &mut Findings,
) -> Result<(), Fault> {
    let databases: Vec<(String, ShardId)> = tenure.with_state(|state| {
        let all = state.authority.databases();
        let concerned = all.filter(|(name, _)| database == "admin" || *name == database);
        concerned
            .map(|(name, placement)| (name.to_owned(), placement.primary.clone()))
            .collect()
    });
    for (name, primary) in databases {
        // Nobody changes its primary, or drops it, meanwhile.
        let claim = Claim::Database(name.clone());
        let _turn = tenure.queue.enter_within(&claim, patience).await?;
        let still = tenure.with_state(|state| {
            let now = state.authority.database(&name);
            now.is_some_and(|now| now.primary == primary)
        });
        let shards = tenure.with_state(|state| state.shard_names());
        for shard in shards.iter().filter(|shard| still && **shard != primary) {
            check_place(tenure, &name, (&primary, shard), findings).await?;
        }
    }
    Ok(())
}

/// What a shard has of a database that has its primary elsewhere.
async fn check_place(
    tenure: &Tenure,
    database: &str,
    (primary, shard): (&ShardId, &ShardId),
    findings: &mut Findings,
) -> Result<(), Fault> {
    let list = DocWriter::new().with("listCollections", 1).finish();
    for listed in crate::collection::ask_all(tenure, shard, database, list).await? {
        let Some(name) = listed.as_doc().get_str("name") else {
            continue;
        };
        let name = Namespace::new(database, name)?;
        let is_sharded = tenure.with_state(|state| {
            state.sharded(&name).is_ok() || state.damaged.contains_key(name.as_str())
        });
        if is_sharded || is_part(tenure, &name, shard).await? {
            continue;
        }
        let details = DocWriter::new()
            .with("namespace", name.as_str())
            .with("shard", shard.as_str())
            .with("primary", primary.as_str())
            .finish();
        findings.add(
            "MisplacedCollection",
            format!(
                "{shard} has {name}, which is not sharded; the primary of its database is {primary}"
            ),
            details.as_doc(),
        );
    }
    Ok(())
}

/// Whether a shard knows a collection as a part of a sharded one: what is left of it, if it is sharded no more.
async fn is_part(tenure: &Tenure, name: &Namespace, shard: &ShardId) -> Result<bool, Fault> {
    let ask = DocWriter::new()
        .with("getShardVersion", name.as_str())
        .with("fullMetadata", true)
        .finish();
    let told = tenure.ask(shard, "admin", ask.as_doc()).await?;
    let metadata = told.as_doc().get_doc("metadata");
    Ok(metadata.is_some_and(|metadata| !metadata.is_empty()))
}
