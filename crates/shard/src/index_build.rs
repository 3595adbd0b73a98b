//! Building indexes while writes go on.
//!
//! ```text
//!   [ddl, gate] catalog: building ─► every write maintains the index from here on
//!   [gate] batch of records in key order ─► their entries ─► … ─► last record
//!   [ddl, gate] catalog: ready ─► queries may use it
//! ```
//!
//! A batch holds the collection's gate exclusively for its few milliseconds:
//! what was appended before is applied when it reads, and no write is evaluated
//! until its entries are applied. So no race between the two exists: a write sees
//! every entry of the records before the build's position, and the build reads
//! every record as it is.
//!
//! A unique key that two records share is noted by whichever of the two comes second, and
//! looked at again at the end: `duplicate_keys.rs`. No write is refused for the sake of an
//! index that may never exist, and the build fails only if two documents have a key when all
//! records are read.
//!
//! A build ends early when its operation is killed, when the client's time is up,
//! or when somebody drops the collection or one of the indexes: it notices at its
//! next batch, and takes what is left of it out of the catalog.
//!
//! Crash windows: until the catalog says *ready* the client has no answer. A
//! build that is found unfinished when the shard opens is removed.

mod duplicate_keys;

pub(crate) use duplicate_keys::DuplicateKeys;

use crate::catalog::multikey::MultikeyFound;
use crate::catalog::{Collection, Index, IndexState};
use crate::ddl::{drop_indexes, put_collection, put_next_ids};
use crate::operation::Operation;
use crate::oplog::Commands;
use crate::write::{Companion, unique_violation};
use crate::{Shard, Store};
use duplicate_keys::Following;
use model::bson::Doc;
use model::ids::{CollectionId, IndexId};
use model::{Code, Error};
use query::index::{EncodedKey, IndexDefinition};
use replication::{Durability, ProposeError};
use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use storage::entry::{Encoder, IndexAction, IndexChange};
use storage::{Direction, KeyRange};

/// Records that one exclusive batch covers at most.
const BATCH_RECORDS: usize = 500;
/// A batch ends when its entry is this long.
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Noted keys that take more are looked at again before the end, so that memory is bounded.
const NOTED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What `currentOp` says of a build, in MongoDB's words.
const SCANNING: &str = "Index Build: scanning collection";

/// Indexes that are being built together.
pub(crate) struct Build {
    collection: CollectionId,
    indexes: Vec<IndexId>,
    noted: Following,
}

impl Shard {
    /// Enters new indexes into the catalog; the caller holds `ddl`. On an empty
    /// collection they are ready at once and there is nothing to build.
    pub(crate) async fn begin_indexes(
        &self,
        collection: &Arc<Collection>,
        definitions: Vec<IndexDefinition>,
    ) -> Result<Option<Build>, Error> {
        let mut ids = self.next_ids()?;
        let _gate = collection.gate.write().await;
        self.wait_for_proposed().await?;
        let empty = self.store.collection_counter(collection.id).items == 0;
        let state = if empty {
            IndexState::Ready
        } else {
            IndexState::Building
        };
        let mut changed = collection.copy();
        let mut new = Vec::new();
        for definition in definitions {
            let id = IndexId(ids.index);
            ids.index += 1;
            new.push(id);
            let index = Index::new(Some(id), definition, state, self.clock.now_ms());
            changed.indexes.push(Arc::new(index));
        }
        // Before a writer sees one of them.
        let noted = self.duplicate_keys.follow(new.clone());
        let put = |encoder: &mut Encoder<'_>| {
            put_next_ids(encoder, ids);
            put_collection(encoder, &changed);
        };
        if empty {
            let first_new = changed.indexes.len() - new.len();
            let created = &changed.indexes[first_new..];
            let command = Commands::new().create_indexes(&changed, created);
            self.propose_command(command, put).await?;
        } else {
            // Clients hear of it when it is built.
            self.propose_catalog(put).await?;
        }
        Ok((!empty).then_some(Build {
            collection: collection.id,
            indexes: new,
            noted,
        }))
    }

    /// Builds what [`Shard::begin_indexes`] entered. If it fails, the indexes
    /// are gone from the catalog.
    pub(crate) async fn build_indexes(
        &self,
        build: &Build,
        operation: &Operation,
    ) -> Result<(), Error> {
        let built = match self.backfill(build, operation).await {
            Ok(()) => self.look_again(build, operation).await,
            Err(error) => Err(error),
        };
        self.end_build(build, built).await
    }

    /// Makes indexes ready whose entries are all there, or takes those that could not be built out of the
    /// catalog.
    pub(crate) async fn end_build(
        &self,
        build: &Build,
        built: Result<(), Error>,
    ) -> Result<(), Error> {
        let _ddl = self.ddl.lock().await;
        let Some(collection) = self.catalog.by_id(build.collection) else {
            return Err(aborted("the collection was dropped"));
        };
        let _gate = collection.gate.write().await;
        let mut changed = collection.copy();
        let (mine, others): (Vec<_>, Vec<_>) = std::mem::take(&mut changed.indexes)
            .into_iter()
            .partition(|index| index.id.is_some_and(|id| build.indexes.contains(&id)));
        // One may have been dropped behind the last batch.
        let built = match built {
            Ok(()) if mine.len() < build.indexes.len() => Err(aborted("the index was dropped")),
            // The last ones: nobody adds a key until the index is ready and refuses it.
            Ok(()) => self.check_keys(&collection, &build.noted.take()).await,
            Err(error) => Err(error),
        };
        changed.indexes = others;
        if let Err(error) = built {
            self.propose_catalog(|encoder| {
                put_collection(encoder, &changed);
                drop_indexes(encoder, &mine);
            })
            .await?;
            return Err(error);
        }
        let ready = mine.iter().map(|index| index.with_state(IndexState::Ready));
        let ready: Vec<Arc<Index>> = ready.map(Arc::new).collect();
        let command = Commands::new().commit_index_build(&changed, &self.new_uuid(), &ready);
        changed.indexes.extend(ready);
        self.propose_command(command, |encoder| put_collection(encoder, &changed))
            .await
    }

    /// Adds the entries of all records.
    pub(crate) async fn backfill(&self, build: &Build, operation: &Operation) -> Result<(), Error> {
        let mut after: Option<Vec<u8>> = None;
        let documents = self.store.collection_counter(build.collection).items;
        let progress = operation.begin_progress(SCANNING, documents);
        loop {
            operation.check()?;
            if build.noted.bytes() > NOTED_BYTES_MAX {
                self.look_again(build, operation).await?;
            }
            let known = self.collection_of(build)?;
            let _gate = known.gate.write().await;
            let collection = self.collection_of(build)?;
            let indexes: Vec<(IndexId, &Arc<Index>)> = collection
                .secondary_indexes()
                .filter(|(id, _)| build.indexes.contains(id))
                .collect();
            if indexes.len() != build.indexes.len() {
                return Err(aborted("the index was dropped"));
            }
            self.wait_for_proposed().await?;
            let batch = tokio::task::block_in_place(|| {
                let noted = &self.duplicate_keys;
                Batch::read(&self.store, &collection, &indexes, after.as_deref(), noted)
            })?;
            let Some(last) = batch.last else {
                return Ok(());
            };
            self.append_batch(batch.payload, &batch.multikey).await?;
            let counter = &self.counters.indexed_records;
            counter.fetch_add(batch.records, Ordering::Relaxed);
            progress.add(batch.records);
            after = Some(last);
        }
    }

    fn collection_of(&self, build: &Build) -> Result<Arc<Collection>, Error> {
        let collection = self.catalog.by_id(build.collection);
        collection.ok_or_else(|| aborted("the collection was dropped"))
    }

    /// Looks at the noted keys again, a portion at a time: fails if two documents have one, and forgets the
    /// others. Who adds one of those later notes it anew.
    async fn look_again(&self, build: &Build, operation: &Operation) -> Result<(), Error> {
        for portion in build.noted.take().chunks(BATCH_RECORDS) {
            operation.check()?;
            let known = self.collection_of(build)?;
            let _gate = known.gate.write().await;
            let collection = self.collection_of(build)?;
            self.check_keys(&collection, portion).await?;
        }
        Ok(())
    }

    /// Fails if two documents have one of these keys of unique indexes. The caller has the collection's gate
    /// for himself.
    async fn check_keys(
        &self,
        collection: &Collection,
        keys: &[(IndexId, EncodedKey)],
    ) -> Result<(), Error> {
        if keys.is_empty() {
            return Ok(());
        }
        self.wait_for_proposed().await?;
        tokio::task::block_in_place(|| {
            let snapshot = self.store.snapshot();
            for (id, key) in keys {
                let mut indexes = collection.secondary_indexes();
                let Some((_, index)) = indexes.find(|(other, _)| other == id) else {
                    return Err(aborted("the index was dropped"));
                };
                let shared = have_documents(&snapshot, collection, *id, key);
                if shared.map_err(crate::error::from_storage)? {
                    return Err(unique_violation(collection, index, key));
                }
            }
            Ok(())
        })
    }

    async fn append_batch(&self, payload: Vec<u8>, multikey: &MultikeyFound) -> Result<(), Error> {
        let pending = loop {
            let proposed = self
                .log
                .propose(Durability::Buffered, payload.clone(), |_, _, _| {
                    multikey.publish();
                    Companion::empty()
                });
            match proposed {
                Ok(pending) => break pending,
                Err(ProposeError::Busy) => {
                    self.log.ready().await.map_err(crate::error::from_log)?;
                }
                Err(error) => return Err(crate::error::from_log(error)),
            }
        };
        pending.await.map_err(crate::error::from_log)?;
        Ok(())
    }

    /// Waits until everything proposed so far is applied.
    pub(crate) async fn wait_for_proposed(&self) -> Result<(), Error> {
        self.log
            .wait_proposed()
            .await
            .map_err(crate::error::from_log)
    }

    /// Removes builds that a crash or an earlier primary left unfinished. Called before serving.
    pub async fn discard_unfinished_builds(&self) -> Result<(), Error> {
        let _ddl = self.ddl.lock().await;
        let unfinished: Vec<Arc<Collection>> = self
            .catalog
            .current()
            .collections()
            .filter(|collection| collection.indexes.iter().any(|index| !index.is_ready()))
            .cloned()
            .collect();
        for collection in unfinished {
            let mut changed = collection.copy();
            let (ready, building): (Vec<_>, Vec<_>) = changed
                .indexes
                .drain(..)
                .partition(|index| index.is_ready());
            changed.indexes = ready;
            for index in &building {
                tracing::warn!(
                    "the unfinished build of index {} on {} is discarded",
                    index.definition.name,
                    collection.namespace
                );
            }
            self.propose_catalog(|encoder| {
                put_collection(encoder, &changed);
                drop_indexes(encoder, &building);
            })
            .await?;
        }
        Ok(())
    }
}

fn aborted(why: &str) -> Error {
    Error::new(
        Code::INDEX_BUILD_ABORTED,
        format!("the index build was aborted: {why}"),
    )
}

/// The entries of some records in the indexes being built.
struct Batch {
    payload: Vec<u8>,
    multikey: MultikeyFound,
    records: u64,
    /// The last record covered; `None` at the end of the collection.
    last: Option<Vec<u8>>,
}

impl Batch {
    fn read(
        store: &Store,
        collection: &Collection,
        indexes: &[(IndexId, &Arc<Index>)],
        after: Option<&[u8]>,
        noted: &DuplicateKeys,
    ) -> Result<Batch, Error> {
        let fault = crate::error::from_storage;
        let mut batch = Batch {
            payload: Vec::new(),
            multikey: MultikeyFound::default(),
            records: 0,
            last: None,
        };
        let mut length = 0;
        let mut encoder = Encoder::new(&mut batch.payload);
        let snapshot = store.snapshot();
        let range = KeyRange::new(
            after.map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        );
        // Keys of unique indexes that this batch itself adds.
        let mut added: HashMap<(IndexId, Vec<u8>), Vec<u8>> = HashMap::new();
        let records = snapshot.scan_records(collection.id, range, Direction::Forward);
        for record in records.take(BATCH_RECORDS) {
            let record = record.map_err(fault)?;
            let doc = Doc::from_validated(record.document());
            let mut keys: Vec<(IndexId, EncodedKey)> = Vec::new();
            for (id, index) in indexes {
                let found = index.definition.keys(doc)?;
                batch.multikey.add(index, &found.multikey);
                for key in found.keys {
                    let bytes = key.fields.len() + record.key().len();
                    storage::layout::check_user_key(bytes).map_err(fault)?;
                    length += bytes + key.type_bits.len();
                    if index.definition.unique {
                        let other = added
                            .insert((*id, key.fields.clone()), record.key().to_vec())
                            .is_some_and(|other| other != record.key());
                        if other || has_other(&snapshot, *id, &key, record.key()).map_err(fault)? {
                            noted.note(*id, &key);
                        }
                    }
                    keys.push((*id, key));
                }
            }
            let changes: Vec<IndexChange<'_>> = keys
                .iter()
                .map(|(index, key)| IndexChange {
                    index: *index,
                    fields: &key.fields,
                    action: IndexAction::Add {
                        type_bits: &key.type_bits,
                    },
                })
                .collect();
            encoder.index_entries(collection.id, record.key(), &changes);
            batch.records += 1;
            batch.last = Some(record.key().to_vec());
            if length >= BATCH_BYTES {
                break;
            }
        }
        batch.multikey.encode(&mut encoder);
        Ok(batch)
    }
}

/// The entries that a key of an index has.
fn entries_of(
    snapshot: &crate::Snapshot,
    index: IndexId,
    key: &EncodedKey,
) -> impl Iterator<Item = Result<storage::IndexEntry, storage::Error>> + use<> {
    let end = model::key::prefix_end(&key.fields);
    let range = KeyRange::new(
        Bound::Included(&key.fields[..]),
        end.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
    );
    snapshot.scan_index(index, range, Direction::Forward)
}

/// Whether another record has this key, seen or not.
fn has_other(
    snapshot: &crate::Snapshot,
    index: IndexId,
    key: &EncodedKey,
    record_key: &[u8],
) -> Result<bool, storage::Error> {
    for entry in entries_of(snapshot, index, key) {
        if entry?.record_key() != record_key {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether two documents have this key. ⚑ What belongs to other shards is indexed, and in nobody's way, but
/// for what is just being received: it comes to be seen beside what is seen already.
fn have_documents(
    snapshot: &crate::Snapshot,
    collection: &Collection,
    index: IndexId,
    key: &EncodedKey,
) -> Result<bool, storage::Error> {
    let ownership = collection.ownership.as_ref();
    let ownership = ownership.filter(|ownership| ownership.orphans);
    let (mut counted, mut any_seen) = (0, false);
    for entry in entries_of(snapshot, index, key) {
        let entry = entry?;
        let is_seen = match ownership {
            None => true,
            Some(ownership) => {
                let Some(record) = snapshot.get(collection.id, entry.record_key())? else {
                    continue;
                };
                let document = Doc::from_validated(record.document());
                let is_seen = !ownership.hides(document);
                if !is_seen && !ownership.is_received_except(None, document) {
                    continue;
                }
                is_seen
            }
        };
        any_seen |= is_seen;
        counted += 1;
        if any_seen && counted > 1 {
            return Ok(true);
        }
    }
    Ok(false)
}
