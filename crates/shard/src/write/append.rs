//! From an evaluated entry to the log, and back when it is applied.
//!
//! The overlay learns an entry's versions inside `propose`, before the log's
//! loop can see the entry, and forgets them after the engine has them; so there
//! is no moment at which an evaluator finds neither.

use super::copying::{Parts, Staged, copy_name};
use super::evaluator::{Change, Description, EntryChange, Evaluator, Refusal, Version};
use super::latches::{Held, Stripe};
use super::overlay::{Overlay, Pending};
use super::writer::Writer;
use crate::catalog::multikey::{self, MultikeyFound};
use crate::catalog::{Catalog, CatalogKey, Collection};
use crate::change_stream::Watchers;
use crate::command::default_concerns::{ConcernDefaults, DEFAULTS_KEY};
use crate::command::envelope::WriteConcern;
use crate::operation::{Operation, Operations};
use crate::oplog::document_key;
use crate::replica_set::ReplicaSet;
use crate::replica_set::configuration::{CONFIGURATION_KEY, Configuration};
use crate::rules::Rule;
use crate::session::{Retryable, SessionCatalog};
use crate::sharding::{OwnershipKey, OwnershipPart, OwnershipUpdate, ShardingState};
use crate::{Shard, Store};
use model::Error;
use model::bson::{Doc, DocBuf};
use model::ids::CollectionId;
use model::key::RecordKey;
use model::time::ClusterTime;
use replication::{
    BoxError, Committed, CopyId, Durability, LogPosition, MemberId, ProposeError, Resume, Resumed,
    Role, StateInstall, StateMachine, StateParts, Syncer, Term,
};
use std::path::PathBuf;
use std::sync::Arc;
use storage::entry::{self, Encoder, Entry, Header, IndexAction, IndexChange, Names};
use storage::{Before, Record, StagedState};

/// What travels with an entry in memory.
pub(crate) struct Companion {
    /// None for an entry whose operations are read from its payload.
    pub(super) changes: Vec<Change>,
}

impl Companion {
    /// For entries that change no records.
    pub(crate) fn empty() -> Self {
        Self {
            changes: Vec::new(),
        }
    }
}

impl WriteConcern {
    pub(crate) fn durability(self) -> Durability {
        match self {
            WriteConcern::Majority => Durability::Synced,
            WriteConcern::Applied => Durability::Buffered,
        }
    }
}

impl Shard {
    pub(crate) fn record_stripe(&self, collection: &Collection, key: &RecordKey) -> Stripe {
        super::evaluator::record_stripe(&self.latches, collection.id.0, key)
    }

    /// Evaluates changes of one collection and waits until they are applied.
    /// The body may run several times; only its last run counts. `None` if the
    /// collection is gone.
    pub(crate) async fn write<R>(
        &self,
        collection: CollectionId,
        concern: WriteConcern,
        keys: &[RecordKey],
        body: impl FnMut(&mut Evaluator<'_>) -> Result<R, Refusal>,
    ) -> Result<Option<R>, Error> {
        self.write_statements(collection, concern, None, None, keys, body)
            .await
    }

    /// The same for statements of a session, which the body notes in the
    /// evaluator: the entry then also carries the session's documents. Waits for
    /// its turn, and for ranges that are blocked, as long as the operation may.
    pub(crate) async fn write_statements<R>(
        &self,
        collection: CollectionId,
        concern: WriteConcern,
        session: Option<&Retryable>,
        operation: Option<&Operation>,
        keys: &[RecordKey],
        body: impl FnMut(&mut Evaluator<'_>) -> Result<R, Refusal>,
    ) -> Result<Option<R>, Error> {
        let writer = Writer {
            concern,
            session,
            operation,
            term: None,
            together: None,
        };
        self.write_as(writer, collection, keys, body).await
    }

    /// The same on behalf of whoever it is.
    pub(crate) async fn write_as<R>(
        &self,
        writer: Writer<'_>,
        collection: CollectionId,
        keys: &[RecordKey],
        mut body: impl FnMut(&mut Evaluator<'_>) -> Result<R, Refusal>,
    ) -> Result<Option<R>, Error> {
        let Writer {
            session, operation, ..
        } = writer;
        let began = std::time::Instant::now();
        let began = session.map_or(began, |session| began - session.waited());
        let is_awaited = writer.together.is_none();
        let (result, pending) = loop {
            let Some(known) = self.catalog.by_id(collection) else {
                return Ok(None);
            };
            let gate = match known.gate.try_read() {
                Ok(gate) => gate,
                Err(_) => writer.wait_for(known.gate.read()).await?,
            };
            // The catalog that holds now holds until the gate is let go.
            let Some(current) = self.catalog.by_id(collection) else {
                return Ok(None);
            };
            let stripes = keys.iter().map(|key| self.record_stripe(&current, key));
            let stripes = stripes.collect();
            let collections = std::slice::from_ref(&current);
            let evaluated = self.evaluate_for(collections, writer, is_awaited, stripes, &mut body);
            drop(gate);
            match evaluated {
                Ok(evaluated) => break evaluated,
                Err(NotAppended::Busy) => {
                    let ready = writer.wait_for(self.log.ready()).await?;
                    ready.map_err(crate::error::from_log)?;
                }
                Err(NotAppended::Blocked) => {
                    let lifted = self.await_other_ownership(collection, &current, operation, began);
                    let Some(operation) = operation else {
                        Box::pin(lifted).await?;
                        continue;
                    };
                    let together = writer.together;
                    let lifted = self.wait_without_session(session, together, operation, lifted);
                    Box::pin(lifted).await?;
                }
                Err(NotAppended::Error(error)) => return Err(error),
            }
        };
        if let Some(pending) = pending {
            if let Some(operation) = operation {
                operation.note_write();
                let making_way = &self.migrations.making_way;
                if making_way.is_asked()
                    && let Some(request) = making_way.request_for(collection, keys)
                {
                    operation.makes_way(request);
                }
            }
            if let Some(together) = writer.together {
                together.add(pending);
                return Ok(Some(result));
            }
            pending.await.map_err(crate::error::from_log)?;
            if let Some(session) = session {
                session.applied();
            }
        }
        Ok(Some(result))
    }

    /// For a write that changed nothing, and so waited for no entry of its own: what
    /// it found may come from writes whose sync is still to come.
    pub(crate) async fn sync_what_was_found(&self, concern: WriteConcern) -> Result<(), Error> {
        match concern {
            WriteConcern::Majority if self.log.last_synced() < self.log.last_applied() => {
                self.propose_catalog(|encoder| encoder.noop()).await
            }
            WriteConcern::Majority | WriteConcern::Applied => Ok(()),
        }
    }

    /// Evaluates an entry for nobody in particular: see [`Shard::evaluate_for`].
    pub(crate) fn evaluate<R>(
        &self,
        collections: &[Arc<Collection>],
        concern: WriteConcern,
        session: Option<&Retryable>,
        wanted: Vec<Stripe>,
        body: &mut impl FnMut(&mut Evaluator<'_>) -> Result<R, Refusal>,
    ) -> Result<(R, Option<replication::Pending>), NotAppended> {
        let writer = Writer {
            concern,
            session,
            operation: None,
            term: None,
            together: None,
        };
        self.evaluate_for(collections, writer, false, wanted, body)
    }

    /// Evaluates an entry and appends it. The caller holds the gates of all the
    /// collections, and begins again after [`NotAppended::Busy`]. With `is_awaited` it
    /// lets go of them and awaits the entry at once.
    pub(crate) fn evaluate_for<R>(
        &self,
        collections: &[Arc<Collection>],
        writer: Writer<'_>,
        is_awaited: bool,
        mut wanted: Vec<Stripe>,
        body: &mut impl FnMut(&mut Evaluator<'_>) -> Result<R, Refusal>,
    ) -> Result<(R, Option<replication::Pending>), NotAppended> {
        // What is evaluated from here on holds only while this member leads; what a
        // session remembers, since it was checked out.
        let term = match (writer.session, writer.term) {
            (Some(session), _) if self.rules.hold(Rule::SessionsOfOneTerm) => session.term(),
            (None, Some(term)) => term,
            _ => self.log.leading().map_err(not_appended)?,
        };
        let unowned = self.passes_unchecked(writer).then(|| unowned(collections));
        let collections = unowned.as_deref().unwrap_or(collections);
        loop {
            let held = match self.rules.hold(Rule::HoldLatches) {
                true => self.latches.hold(wanted, || writer.check())?,
                false => Held::in_name_only(wanted),
            };
            let mut evaluator = Evaluator::new(
                &self.store,
                &self.overlay,
                &self.latches,
                &self.duplicate_keys,
                &self.sharding,
                collections,
                held,
            );
            let evaluated = body(&mut evaluator);
            if !evaluator.missing.is_empty() {
                wanted = evaluator.held_stripes().to_vec();
                wanted.append(&mut evaluator.missing);
                if let Err(Refusal::Latch(more)) = evaluated {
                    wanted.extend(more);
                }
                continue;
            }
            match evaluated {
                Ok(result) => {
                    let pending = self.append(evaluator, term, writer, is_awaited)?;
                    return Ok((result, pending));
                }
                Err(Refusal::Latch(more)) => {
                    wanted = evaluator.held_stripes().to_vec();
                    wanted.extend(more);
                }
                Err(Refusal::Blocked) => return Err(NotAppended::Blocked),
                Err(Refusal::Error(error)) => return Err(NotAppended::Error(error)),
            }
        }
    }

    /// Whether a client's write is not asked what it writes: never, while the rule holds.
    fn passes_unchecked(&self, writer: Writer<'_>) -> bool {
        !self.rules.hold(Rule::CheckUnversionedWrites)
            && writer.operation.is_some_and(|operation| {
                let command = Doc::from_validated(&operation.command);
                command.get("shardVersion").is_none()
            })
    }

    /// Appends what was evaluated, latches held.
    fn append(
        &self,
        evaluator: Evaluator<'_>,
        term: Term,
        writer: Writer<'_>,
        is_awaited: bool,
    ) -> Result<Option<replication::Pending>, NotAppended> {
        let concern = writer.concern;
        let remembered = |_: &&Retryable| self.rules.hold(Rule::StoreStatements);
        let session = writer.session.filter(remembered);
        let Evaluator {
            collections,
            mut changes,
            multikey,
            executed,
            image,
            ownership,
            origin,
            progress,
            ..
        } = evaluator;
        if changes.is_empty() && ownership.is_none() && progress.is_none() {
            return Ok(None);
        }
        let mut payload = Vec::with_capacity(payload_bytes(&changes));
        let described = session.map(|session| session.header(&executed));
        let together;
        let names = match collections {
            [only] => only.name(),
            several => {
                together = several
                    .iter()
                    .flat_map(|collection| collection.name().as_bytes())
                    .copied()
                    .collect::<Vec<u8>>();
                Names::new(&together)
            }
        };
        // Documents that one command changes have times of their own, so that the oplog can show
        // them one by one. What is changed in several collections at once is one thing.
        let times = match collections {
            [_] => u32::try_from(changes.len()).unwrap_or(1),
            _ => 1,
        };
        let header = Header {
            session: described.as_ref().map(|header| header.as_bytes()),
            origin: origin.as_deref(),
            names: Some(names),
            times: (times > 1).then_some(times),
            ..Header::default()
        };
        let mut encoder = Encoder::with_header(&mut payload, header);
        let time_place = ownership.map(|change| change.encode(&mut encoder));
        encode(&changes, names, &multikey, &mut encoder);
        if let Some((key, document)) = &progress {
            encoder.put_meta(key, document.as_bytes());
        }
        let written =
            session.map(|session| session.encode(self, &executed, image.as_ref(), &mut encoder));
        let durability = concern.durability();
        let build = |payload: &mut [u8], position, time| {
            if let Some(written) = &written {
                written.set_time(payload, time);
            }
            if let Some(place) = &time_place {
                place.fill_in(payload, time);
            }
            // Before the entry can be applied: see `catalog/multikey.rs`.
            multikey.publish();
            publish(&self.overlay, &mut changes, position, time);
            Companion { changes }
        };
        let (log, term) = (&self.log, Some(term));
        let proposed = match is_awaited {
            true => log.propose_awaited(term, durability, times, payload, build),
            false => log.propose_several(term, durability, times, payload, build),
        };
        match proposed {
            Ok(pending) => {
                if let (Some(session), Some(written)) = (session, &written) {
                    session.appended(executed, written, concern);
                }
                Ok(Some(pending))
            }
            Err(error) => Err(not_appended(error)),
        }
    }
}

/// Collections as if they were not sharded.
fn unowned(collections: &[Arc<Collection>]) -> Vec<Arc<Collection>> {
    let unowned = collections.iter().map(|collection| {
        let mut unowned = collection.copy();
        unowned.ownership = None;
        Arc::new(unowned)
    });
    unowned.collect()
}

pub(super) fn not_appended(error: ProposeError) -> NotAppended {
    match error {
        ProposeError::Busy => NotAppended::Busy,
        error => NotAppended::Error(crate::error::from_log(error)),
    }
}

pub(crate) enum NotAppended {
    /// The log's queue is full: wait, and evaluate again.
    Busy,
    /// A move keeps the entry away: wait for another ownership, and evaluate again.
    Blocked,
    Error(Error),
}

impl From<Error> for NotAppended {
    fn from(error: Error) -> Self {
        NotAppended::Error(error)
    }
}

/// About as many bytes as the entry will have: a long one that grows is copied.
pub(super) fn payload_bytes(changes: &[Change]) -> usize {
    let of_change = |change: &Change| {
        let document = change
            .after
            .as_ref()
            .map_or(0, |after| after.document().len());
        let difference = match &change.description {
            Description::Update(difference) => difference.as_bytes().len(),
            Description::Delete | Description::Relocate => 32,
            Description::Insert | Description::Replace => 0,
        };
        let of_entry = |entry: &EntryChange| {
            // Action, index, two lengths.
            8 + entry.key.fields.len() + entry.key.type_bits.len()
        };
        let entries = change.entries.iter().map(of_entry).sum::<usize>();
        // Kind, collection, four lengths.
        20 + change.key.as_bytes().len() + document + difference + entries
    };
    // The collection's name among it.
    96 + changes.iter().map(of_change).sum::<usize>()
}

pub(super) fn encode(
    changes: &[Change],
    names: Names<'_>,
    multikey: &MultikeyFound,
    encoder: &mut Encoder<'_>,
) {
    multikey.encode(encoder);
    let mut entries: Vec<IndexChange<'_>> = Vec::new();
    for change in changes {
        entries.clear();
        entries.extend(change.entries.iter().map(|entry| IndexChange {
            index: entry.index,
            fields: &entry.key.fields,
            action: if entry.present {
                IndexAction::Add {
                    type_bits: &entry.key.type_bits,
                }
            } else {
                IndexAction::Remove
            },
        }));
        let (collection, key) = (change.collection, change.key.as_bytes());
        let description = match &change.description {
            Description::Insert | Description::Delete | Description::Relocate => {
                entry::Description::Insert
            }
            Description::Replace => entry::Description::Replace,
            Description::Update(difference) => entry::Description::Update {
                difference: difference.as_bytes(),
            },
        };
        match &change.after {
            Some(draft) => {
                encoder.put_record(collection, key, draft.document(), description, &entries);
            }
            None => {
                let named = match change.description {
                    Description::Relocate => None,
                    _ => change.before.as_ref(),
                };
                let document_key = removed_key(named, names, collection);
                encoder.delete_record(collection, key, document_key.as_bytes(), &entries);
            }
        }
    }
}

/// What names a removed document to clients; nothing where it only moves.
fn removed_key(removed: Option<&Version>, names: Names<'_>, collection: CollectionId) -> DocBuf {
    match (removed, names.get(collection)) {
        (Some(version), Ok(Some(name))) => document_key(version.doc(), &name),
        _ => DocBuf::new(),
    }
}

pub(super) fn publish(
    overlay: &Overlay,
    changes: &mut [Change],
    position: LogPosition,
    time: ClusterTime,
) {
    for change in changes {
        // From here on overlay, engine and history share the same bytes.
        change.after = change.after.take().map(|draft| draft.committed_at(time));
        let pending = Pending {
            position: position.get(),
            record: change.after.clone(),
        };
        overlay.put_record(change.collection, change.key.clone(), pending);
        for entry in change.entries.iter().filter(|entry| entry.unique) {
            overlay.put_index_key(
                entry.index,
                &entry.key.fields,
                change.key.as_bytes(),
                entry.present,
                position.get(),
            );
        }
    }
}

/// The shard's state as the log sees it: store, catalog, overlay.
pub(crate) struct Applier {
    pub(crate) store: Arc<Store>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) overlay: Arc<Overlay>,
    pub(crate) replica_set: Arc<ReplicaSet>,
    pub(crate) sessions: Arc<SessionCatalog>,
    pub(crate) sharding: Arc<ShardingState>,
    pub(crate) operations: Arc<Operations>,
    pub(crate) watchers: Arc<Watchers>,
    pub(crate) clock: Arc<dyn crate::Clock>,
    /// Where a state from another member is gathered.
    pub(crate) data: PathBuf,
}

impl Applier {
    /// Applies entries of which only the last may change what memory holds.
    fn apply_batch(&self, entries: &mut [Committed<Companion>]) -> Result<(), BoxError> {
        let known: Vec<(Vec<Before>, Vec<Record>)> = entries
            .iter()
            .map(|committed| match &committed.companion {
                Some(companion) => {
                    let changes = companion.changes.iter();
                    let after = changes.clone().filter_map(|change| change.after.clone());
                    (changes.map(known_before).collect(), after.collect())
                }
                None => (Vec::new(), Vec::new()),
            })
            .collect();
        let batch: Vec<storage::Committed<'_>> = entries
            .iter()
            .zip(&known)
            .map(|(committed, (before, after))| storage::Committed {
                position: committed.entry.position.get(),
                time: committed.entry.time,
                payload: &committed.entry.payload,
                before,
                after,
            })
            .collect();
        self.store.apply(&batch)?;
        if let Some(last) = entries.last() {
            self.replica_set.applied_at(last.entry.wall_ms);
        }
        for committed in entries.iter() {
            let position = committed.entry.position.get();
            let changes = match &committed.companion {
                Some(Companion { changes }) => &changes[..],
                None => &[],
            };
            forget(&self.overlay, changes, position);
            if changes.is_empty() || changes_memory(&committed.entry.payload) {
                self.publish_catalog(&committed.entry.payload, committed.entry.time)?;
            }
        }
        Ok(())
    }

    /// Publishes the catalog documents of an applied entry. Entries with records that came
    /// from this member carry their changes and have none, unless ownership changes with them.
    fn publish_catalog(&self, payload: &[u8], time: ClusterTime) -> Result<(), BoxError> {
        let entry = Entry::decode(payload)?;
        let mut changes = Vec::new();
        let mut ownerships: Vec<(CollectionId, OwnershipUpdate)> = Vec::new();
        for operation in entry.operations() {
            let (key, value) = match operation? {
                entry::Operation::PutMeta { key, value } => (key, Some(value)),
                entry::Operation::DeleteMeta { key } => (key, None),
                entry::Operation::PutRecord { .. }
                | entry::Operation::DeleteRecord { .. }
                | entry::Operation::IndexEntries { .. }
                | entry::Operation::DropCollection { .. }
                | entry::Operation::DropIndex { .. }
                | entry::Operation::Noop
                | entry::Operation::ForgetRecord { .. }
                | entry::Operation::ForgetRange { .. } => continue,
            };
            if let Some((index, stored)) = multikey::parse(key, value.unwrap_or(&[])) {
                if value.is_some() {
                    self.catalog
                        .add_multikey(index, |fields| stored.paths(fields));
                }
                continue;
            }
            if let (CONFIGURATION_KEY, Some(value)) = (key, value) {
                let doc = Doc::from_bytes(value)?;
                let configuration = Configuration::from_stored(doc)?;
                self.replica_set.configured(configuration);
                continue;
            }
            if let (DEFAULTS_KEY, Some(value)) = (key, value) {
                let defaults = ConcernDefaults::from_document(Doc::from_bytes(value)?)?;
                self.replica_set.defaulted(defaults);
                continue;
            }
            if self.sharding.applied(key, value)? {
                continue;
            }
            if note_ownership(key, value, &mut ownerships)? {
                continue;
            }
            let Some(id) = CatalogKey::parse(key) else {
                continue;
            };
            let collection = match value {
                Some(value) => {
                    let doc = Doc::from_bytes(value)?;
                    Some(Collection::from_document(id, doc, self.clock.now_ms())?)
                }
                None => None,
            };
            changes.push((id, collection));
        }
        self.catalog.applied(changes, ownerships, time)?;
        Ok(())
    }
}

/// Takes note of a change of what the shard owns; false if the document is another.
fn note_ownership(
    key: &[u8],
    value: Option<&[u8]>,
    noted: &mut Vec<(CollectionId, OwnershipUpdate)>,
) -> Result<bool, BoxError> {
    let Some((id, part)) = OwnershipKey::parse(key) else {
        return Ok(false);
    };
    let document = match value {
        Some(value) => Some(Doc::from_bytes(value)?.to_owned()),
        None => None,
    };
    let place = noted.iter().position(|(other, _)| *other == id);
    let place = place.unwrap_or_else(|| {
        noted.push((id, OwnershipUpdate::default()));
        noted.len() - 1
    });
    let update = &mut noted[place].1;
    match part {
        OwnershipPart::Head => update.head = document,
        OwnershipPart::Ranges => update.ranges = document,
        OwnershipPart::Moving => update.moving = document,
    }
    Ok(true)
}

/// Whether an entry may change what memory holds beside the overlay: see `sharding/mod.rs`.
fn changes_memory(payload: &[u8]) -> bool {
    match Entry::decode(payload) {
        Ok(_) if payload.is_empty() => false,
        Ok(entry) if entry.header.names.is_none() => true,
        // Beside records only ownership changes, and it comes first.
        Ok(entry) => match entry.operations().next() {
            Some(Ok(
                entry::Operation::PutMeta { key, .. } | entry::Operation::DeleteMeta { key },
            )) => OwnershipKey::parse(key).is_some(),
            _ => false,
        },
        // Whoever applies it says what is wrong with it.
        Err(_) => false,
    }
}

impl StateMachine for Applier {
    type Companion = Companion;

    fn applied(&self) -> LogPosition {
        LogPosition::new(self.store.applied())
    }

    fn applied_time(&self) -> Option<ClusterTime> {
        (self.store.applied() > 0).then(|| self.store.applied_time())
    }

    fn apply(&mut self, entries: &mut [Committed<Companion>]) -> Result<(), BoxError> {
        let last_of_batch =
            |committed: &Committed<Companion>| changes_memory(&committed.entry.payload);
        for batch in entries.split_inclusive_mut(last_of_batch) {
            self.apply_batch(batch)?;
        }
        Ok(())
    }

    fn applies_at_once(&self) -> bool {
        !self.store.lets_writers_wait()
    }

    fn published(&mut self, entries: &[Committed<Companion>]) {
        self.watchers.published(entries);
    }

    fn role_changed(&mut self, role: Role) {
        if !role.is_leader() {
            self.overlay.clear();
            // Others may go on with the sessions: all of it is read again if this one leads again.
            self.sessions.invalidate();
            self.operations.interrupt_numbered();
        }
    }

    fn priority(&self, member: MemberId) -> u64 {
        self.replica_set.rank(member)
    }

    fn can_be_copied(&self) -> bool {
        true
    }

    fn open_copy(&mut self) -> Result<Box<dyn StateParts>, BoxError> {
        Ok(Box::new(Parts(self.store.copy())))
    }

    fn begin_install(&mut self, copy: CopyId) -> Result<Box<dyn StateInstall>, BoxError> {
        let staged = StagedState::create(&self.data, &copy_name(copy))?;
        Ok(Box::new(Staged(staged)))
    }

    fn resume_install(&mut self, copy: CopyId) -> Resume {
        let (data, name) = (self.data.clone(), copy_name(copy));
        Box::new(move || {
            let resumed = StagedState::resume(&data, &name)?;
            Ok(resumed.map(|(staged, parts)| -> Resumed { (Box::new(Staged(staged)), parts) }))
        })
    }

    fn discard_installs(&mut self) {
        if let Err(error) = storage::discard_staged(&self.data) {
            tracing::warn!("what was gathered of another member's state is not removed: {error}");
        }
    }

    fn install(
        &mut self,
        install: Box<dyn StateInstall>,
        position: LogPosition,
        time: ClusterTime,
    ) -> Result<(), BoxError> {
        let Ok(staged) = install.into_any().downcast::<Staged>() else {
            return Err("a state that was gathered elsewhere".into());
        };
        self.replica_set.installs.begin();
        self.store.install(staged.0)?;
        if self.store.applied() != position.get() || self.store.applied_time() != time {
            return Err(format!("the copy is of {}", self.store.applied()).into());
        }
        crate::shard::reload(self)?;
        self.replica_set.installs.end();
        self.watchers.wake_all();
        Ok(())
    }

    fn syncer(&self) -> Syncer {
        let store = self.store.clone();
        Box::new(move || Ok(LogPosition::new(store.sync()?)))
    }
}

fn known_before(change: &Change) -> Before {
    match &change.before {
        None => Before::Absent,
        Some(Version::Stored(record)) => Before::Present(record.clone()),
        Some(Version::Unit(_)) => {
            unreachable!("the version before an entry is not one of its own")
        }
    }
}

fn forget(overlay: &Overlay, changes: &[Change], position: u64) {
    for change in changes {
        overlay.record_applied(change.collection, &change.key, position);
        for entry in change.entries.iter().filter(|entry| entry.unique) {
            overlay.index_key_applied(
                entry.index,
                &entry.key.fields,
                change.key.as_bytes(),
                position,
            );
        }
    }
}
