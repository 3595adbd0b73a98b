//! The recipient's options and indexes become those of the donor.
//!
//! ```text
//!   what the donor's collection is like, of version v
//!     ─► does v still stand? ─► [ddl] nobody had the lock since? ─► options, definitions, what is dropped: one entry
//!                                                               ─► what is missing: entered, built while the log is followed
//!     ─► and again, until nothing is missing
//! ```
//!
//! An operation on indexes goes to the shards that own a collection. The recipient of a move may own nothing
//! of it, and be told nothing; or it owns some, and is told by both, in any order. ⚑ So it changes nothing
//! before it has heard from the config server that the version it was told of still stands, and holds the
//! lock of catalog changes, which nobody has had since it asked: then no operation has begun since whose
//! effects here it could undo, and one that begins later waits for the lock. The lock is not held while the
//! config server is asked: it may be away. Only where others have taken it [`OVERTAKEN_MAX`] times in a row it is
//! asked once more with the lock held, for [`ANSWER_WAIT`] at most. An answer from a member of the config server that was deposed does no
//! harm: if an operation had come here, this shard would not believe a member that knows less
//! (`sharding/config_time.rs`).
//!
//! ⚑ The donor looks its collection up after it has heard that the version stands: so what it tells is of that
//! version, or a later one stands by now and nothing is changed.
//!
//! ⚑ Nothing is dropped that documents of this shard are found by: who owns a part of the collection is told of every
//! `dropIndexes` itself, and what it has beside the donor's indexes was made on this shard alone. It stays, is said in
//! the log, and `checkMetadataConsistency` goes on telling of it. One that takes the name or the keys of an index that
//! is to come ends the move.
//!
//! Keys that a unique index would refuse are no obstacle: what is received is not owned, and the donor's index
//! has refused what must be refused (`index_build.rs`).
//!
//! Crash windows: each change is an entry of this shard's log. A build that is not finished is removed by the
//! next primary, and the donor tells again.

use super::Asking;
use super::plan::{Fields, Plan, wrong};
use crate::Shard;
use crate::catalog::{Collection, Index};
use crate::command::indexes::choose;
use crate::ddl::{drop_indexes, put_collection};
use crate::operation::Operation;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::ids::CollectionId;
use model::{Code, Error};
use query::index::{IndexDefinition, parse_specification};
use std::sync::Arc;
use std::time::Duration;

/// How long the config server may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
/// How often others may change the catalog between an answer and the lock, before they wait for the answer.
const OVERTAKEN_MAX: u32 = 10;
/// How long to wait for another's build before looking whether to go on.
const BUILD_WAIT: Duration = Duration::from_secs(1);

/// What the donor's collection is like, in a version that stood when it was looked up.
pub(super) struct Description {
    pub(super) catalog: u64,
    pub(super) options: DocBuf,
    pub(super) indexes: Vec<IndexDefinition>,
}

impl Description {
    /// As `_terndbReceive` has it; `None` if the donor does not know of which version it is.
    pub(super) fn from_receive(request: Doc<'_>) -> Result<Option<Self>, Error> {
        let fields = Fields(request);
        if request.get("describes").is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            catalog: fields.count("describes")?,
            options: fields.doc("options")?.to_owned(),
            indexes: listed_indexes(request)?,
        }))
    }
}

pub(super) fn listed_indexes(request: Doc<'_>) -> Result<Vec<IndexDefinition>, Error> {
    let mut indexes: Vec<IndexDefinition> = Vec::new();
    let listed = request
        .get_array("indexes")
        .ok_or_else(|| wrong("indexes"))?;
    for index in listed.iter() {
        let ValueRef::Document(index) = index else {
            return Err(wrong("indexes"));
        };
        indexes.push(parse_specification(index, false)?);
    }
    Ok(indexes)
}

/// Makes a collection what the donor says it is; false if that is not known to hold any more.
pub(super) async fn align(
    shard: &Shard,
    plan: &Plan,
    collection: CollectionId,
    description: &Description,
    operation: &Operation,
) -> Result<bool, Error> {
    let mut overtaken = 0;
    loop {
        operation.check()?;
        let catalog_change = shard.catalog.changed();
        let place = shard.ddl.place();
        match super::standing_catalog(shard, plan, Asking::ToAlign, ANSWER_WAIT).await {
            Ok(Some(standing)) if standing == description.catalog => {}
            Ok(_) | Err(_) => return Ok(false),
        }
        let ddl = shard.ddl.lock().await;
        if !shard.ddl.is_next(place) {
            overtaken += 1;
            if overtaken < OVERTAKEN_MAX {
                continue;
            }
            // ⚑ Whoever changes the catalog without a pause would keep the move from its turn for ever.
            overtaken = 0;
            match super::standing_catalog(shard, plan, Asking::ToAlign, ANSWER_WAIT).await {
                Ok(Some(standing)) if standing == description.catalog => {}
                Ok(_) | Err(_) => return Ok(false),
            }
        }
        let known = look_up(shard, collection)?;
        let difference = Difference::between(&known, description)?;
        if difference.is_being_built {
            drop(ddl);
            // Looks again now and then: the move may have ended.
            let _ = tokio::time::timeout(BUILD_WAIT, catalog_change).await;
            continue;
        }
        if let Some(changed) = difference.changed {
            let _gate = known.gate.write().await;
            let put = shard.propose_catalog(|encoder| {
                put_collection(encoder, &changed);
                drop_indexes(encoder, &difference.dropped);
            });
            put.await?;
        }
        if difference.missing.is_empty() {
            for kept in &difference.kept {
                tracing::warn!(
                    "{}: the index {kept} is on this shard, and not on the donor of a range that comes",
                    known.namespace
                );
            }
            return Ok(true);
        }
        let known = look_up(shard, collection)?;
        let build = shard.begin_indexes(&known, difference.missing).await?;
        drop(ddl);
        let Some(build) = build else { continue };
        match shard.build_indexes(&build, operation).await {
            Ok(()) => {}
            // Somebody dropped what was being built: it is looked at anew.
            Err(error) if error.code == Code::INDEX_BUILD_ABORTED => {}
            Err(error) => return Err(error),
        }
    }
}

fn look_up(shard: &Shard, collection: CollectionId) -> Result<Arc<Collection>, Error> {
    shard.catalog.by_id(collection).ok_or_else(|| {
        Error::new(
            Code::NAMESPACE_NOT_FOUND,
            "the collection was dropped on the recipient",
        )
    })
}

/// What a collection lacks, or has too much, to be what was described.
struct Difference {
    /// The collection with its options, without what is dropped, if that is another.
    changed: Option<Collection>,
    dropped: Vec<Arc<Index>>,
    /// The names of those that the donor does not have, and that documents of this shard are found by.
    kept: Vec<String>,
    missing: Vec<IndexDefinition>,
    /// Somebody else builds one that is wanted.
    is_being_built: bool,
}

impl Difference {
    fn between(known: &Collection, wanted: &Description) -> Result<Self, Error> {
        let owned = known.sharded_ownership();
        let owns_some = owned.is_some_and(|ownership| !ownership.owned.is_empty());
        let mut changed = known.copy();
        let mut is_changed = changed.options != wanted.options;
        changed.options = wanted.options.clone();
        let (mut dropped, mut kept) = (Vec::new(), Vec::new());
        let mut is_being_built = false;
        changed.indexes.retain_mut(|index| {
            if index.definition.is_id() || index.id.is_none() {
                return true;
            }
            let meant = |wanted: &&IndexDefinition| is_same(wanted, &index.definition);
            let Some(wanted) = wanted.indexes.iter().find(meant) else {
                match owns_some {
                    true => kept.push(index.definition.name.to_string()),
                    false => dropped.push(index.clone()),
                }
                return owns_some;
            };
            is_being_built |= !index.is_ready();
            if wanted.spec != index.definition.spec {
                is_changed = true;
                *index = Arc::new(Index {
                    definition: wanted.clone(),
                    ..index.with_state(index.state)
                });
            }
            true
        });
        let there = &changed.indexes;
        let is_missing = |wanted: &&IndexDefinition| {
            let mut there = there.iter();
            !wanted.is_id() && !there.any(|index| is_same(wanted, &index.definition))
        };
        let missing: Vec<_> = wanted.indexes.iter().filter(is_missing).cloned().collect();
        let chosen = choose(Some(&changed), &known.namespace, &missing)?;
        is_being_built |= chosen.wait;
        is_changed |= !dropped.is_empty();
        Ok(Self {
            changed: is_changed.then_some(changed),
            dropped,
            kept,
            missing: chosen.new,
            is_being_built,
        })
    }
}

/// Whether two definitions are of one index: they differ at most in what can be modified.
fn is_same(one: &IndexDefinition, other: &IndexDefinition) -> bool {
    one.name == other.name && unmodified(one) == unmodified(other)
}

fn unmodified(definition: &IndexDefinition) -> DocBuf {
    let mut writer = DocWriter::new();
    for element in definition.spec.iter() {
        if !matches!(element.key(), "hidden" | "expireAfterSeconds") {
            writer.append_element(&element);
        }
    }
    writer.finish()
}
