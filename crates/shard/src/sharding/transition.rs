//! One entry that changes what a shard owns of a collection, together with the state documents
//! that say why.
//!
//! ```text
//!  gates (the collection's alone, the others' shared), by id ─► expectations ─► ownership and
//!    documents evaluated ─► one entry ─► applied: engine, memory ─► gates let go
//! ```
//!
//! The collection's gate is held until the entry is applied, so every entry of the log is
//! evaluated with the ownership of its place in the log. State documents are documents of the
//! shard's own `config` database, which is never routed; their collections are created when
//! they are first written to.
//!
//! What a change of ranges implies (dead ranges, earlier ownerships, whether there are orphans)
//! is worked out here: [`Ownership::following`]. A change that was decided elsewhere counts from a time that
//! was decided with it (`moving.rs`).

use super::config_time::CONFIG_TIME_KEY;
use super::moving::{fill_in_time, moment};
use super::ownership::{Ownership, OwnershipKey, OwnershipUpdate};
use super::range_deletion::check_registered;
use crate::Shard;
use crate::catalog::{CatalogKey, Collection};
use crate::command::envelope::WriteConcern;
use crate::rules::Rule;
use crate::write::{Evaluator, Hold, NotAppended, Refusal, Stripe, Version, Writer};
use model::bson::{Doc, DocBuf, Value};
use model::ids::CollectionId;
use model::key::RecordKey;
use model::time::ClusterTime;
use model::{Code, Error, Namespace};
use replication::{LogPosition, Term};
use std::collections::BTreeSet;
use std::sync::Arc;
use storage::entry::Encoder;

/// What becomes of a state document.
#[derive(Clone, Debug)]
pub(crate) enum StateChange {
    /// Put under its `_id`, whatever was there.
    Put(DocBuf),
    /// Removed by its `_id`; fine if it is not there.
    Delete(Value),
}

#[derive(Clone, Debug)]
pub(crate) struct StateWrite {
    pub(crate) namespace: Namespace,
    pub(crate) change: StateChange,
}

/// What must hold of a state document, or nothing is written.
pub(crate) struct Expectation<'a> {
    pub(crate) namespace: Namespace,
    pub(crate) id: Value,
    /// Asked with the document, or with nothing if there is none.
    pub(crate) holds: Box<Holds<'a>>,
}

pub(crate) type Holds<'a> = dyn Fn(Option<Doc<'_>>) -> bool + Send + Sync + 'a;

pub(crate) type ChangeOwnership<'a> =
    dyn Fn(&Ownership) -> Result<Ownership, Error> + Send + Sync + 'a;

#[derive(Default)]
pub(crate) struct Transition<'a> {
    /// The ownership that follows; `None`: it stays. May run several times.
    pub(crate) ownership: Option<Box<ChangeOwnership<'a>>>,
    /// The time from which on the change of ranges counts, if it is not that of the entry.
    pub(crate) counts_from: Option<ClusterTime>,
    /// What is changed where there is no ownership: of a collection that moves with its database.
    pub(crate) first: Option<Ownership>,
    /// There is none from then on. What `ownership` says does not count.
    pub(crate) forgets_ownership: bool,
    pub(crate) documents: Vec<StateWrite>,
    pub(crate) expect: Vec<Expectation<'a>>,
    /// ⚑ The term in which was read what this follows from. Refused if this member has not led without a
    /// break since. `None` if all that it follows from is looked at again here.
    pub(crate) term: Option<Term>,
}

/// An entry that was applied, and is known to a majority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Applied {
    pub(crate) position: LogPosition,
    pub(crate) time: ClusterTime,
}

/// A change of ownership on its way into an entry.
#[derive(Clone, Debug)]
pub(crate) struct OwnershipChange {
    collection: CollectionId,
    /// `None`: it is gone.
    head: Option<DocBuf>,
    ranges: Option<DocBuf>,
    moving: DocBuf,
    config_time: Option<DocBuf>,
    /// From then on the collection's name means it: it has come with its database.
    names: bool,
}

/// Where the time of the entry belongs in its payload.
pub(crate) struct TimePlace {
    at: usize,
    len: usize,
}

impl OwnershipChange {
    fn new(shard: &Shard, id: CollectionId, known: Option<&Ownership>, new: &Ownership) -> Self {
        let keeps_ranges = known.is_some_and(|known| *known.owned == *new.owned);
        Self {
            collection: id,
            head: Some(new.head_document()),
            ranges: (!keeps_ranges).then(|| new.ranges_document()),
            moving: new.moving.to_document(),
            config_time: shard.sharding.config_time.to_store(),
            names: false,
        }
    }

    /// From then on the collection has none.
    fn gone(shard: &Shard, id: CollectionId, known: &Ownership) -> Self {
        Self {
            collection: id,
            head: None,
            ranges: None,
            moving: DocBuf::new(),
            config_time: shard.sharding.config_time.to_store(),
            names: known.is_arrival(),
        }
    }

    /// Comes first in an entry: by its first operation an entry is known to change what
    /// memory holds (`write/append.rs`).
    pub(crate) fn encode(&self, encoder: &mut Encoder<'_>) -> TimePlace {
        let id = self.collection;
        let Some(head) = &self.head else {
            encoder.delete_meta(&OwnershipKey::moving(id));
            encoder.delete_meta(&OwnershipKey::head(id));
            encoder.delete_meta(&OwnershipKey::ranges(id));
            self.encode_config_time(encoder);
            return match self.names {
                true => TimePlace::of_name(encoder, id),
                false => TimePlace { at: 0, len: 0 },
            };
        };
        let place = TimePlace::put(encoder, &OwnershipKey::moving(id), &self.moving);
        encoder.put_meta(&OwnershipKey::head(id), head.as_bytes());
        if let Some(ranges) = &self.ranges {
            encoder.put_meta(&OwnershipKey::ranges(id), ranges.as_bytes());
        }
        self.encode_config_time(encoder);
        place
    }

    fn encode_config_time(&self, encoder: &mut Encoder<'_>) {
        if let Some(time) = &self.config_time {
            encoder.put_meta(CONFIG_TIME_KEY, time.as_bytes());
        }
    }
}

impl TimePlace {
    /// Puts a document that gets the time of its entry.
    fn put(encoder: &mut Encoder<'_>, key: &[u8], document: &DocBuf) -> TimePlace {
        encoder.put_meta(key, document.as_bytes());
        let len = document.as_bytes().len();
        let at = encoder.position() - len;
        TimePlace { at, len }
    }

    /// Puts since when a collection's name means it: since this entry.
    pub(crate) fn of_name(encoder: &mut Encoder<'_>, id: CollectionId) -> TimePlace {
        TimePlace::put(encoder, &CatalogKey::since(id), &moment())
    }

    pub(crate) fn fill_in(&self, payload: &mut [u8], time: ClusterTime) {
        if self.len > 0
            && let Some(document) = payload.get_mut(self.at..self.at + self.len)
        {
            fill_in_time(document, time);
        }
    }
}

impl Shard {
    /// Carries a transition out. Nothing is written, and 117 answered, if an expectation does
    /// not hold.
    pub(crate) async fn transition(
        &self,
        collection: CollectionId,
        transition: &Transition<'_>,
    ) -> Result<Applied, Error> {
        if let Some(time) = transition.counts_from {
            // ⚑ The entry is later: else documents could be gone before the time from which on
            // they are somebody else's.
            self.observe_time(time)?;
        }
        let written = transition.documents.iter().map(|write| &write.namespace);
        let expected = transition.expect.iter().map(|expect| &expect.namespace);
        let state: BTreeSet<Namespace> = written.chain(expected).cloned().collect();
        for namespace in &state {
            self.ensure_collection(namespace, None).await?;
        }
        loop {
            let known = self
                .catalog
                .by_id(collection)
                .ok_or_else(|| gone(collection))?;
            let mut namespaces = state.clone();
            namespaces.insert(known.namespace.clone());
            let hold = |held: &Collection| match held.id == collection {
                true => Hold::Alone,
                false => Hold::Shared,
            };
            let Some((_gates, collections)) = self.hold_gates(&namespaces, hold).await? else {
                continue;
            };
            // Renamed meanwhile, another collection may have the name.
            if !collections.iter().any(|held| held.id == collection) {
                continue;
            }
            let appended = self.append_transition(&collections, collection, transition);
            match appended.await? {
                Some(applied) => {
                    if !transition.documents.is_empty() {
                        self.wake_range_deleter();
                    }
                    return Ok(applied);
                }
                None => self.log.ready().await.map_err(crate::error::from_log)?,
            }
        }
    }

    /// Carries a transition out without waiting for it, as nobody does while the rules hold.
    pub(crate) fn begin_transition(
        self: &Arc<Self>,
        collection: CollectionId,
        transition: Transition<'static>,
    ) -> Applied {
        let shard = Arc::clone(self);
        tokio::spawn(async move { shard.transition(collection, &transition).await });
        Applied {
            position: self.log.last_appended(),
            time: self.log.latest_time(),
        }
    }

    /// The gates are held; `None` if the log is busy.
    async fn append_transition(
        &self,
        collections: &[Arc<Collection>],
        changed: CollectionId,
        transition: &Transition<'_>,
    ) -> Result<Option<Applied>, Error> {
        let mut keys = Vec::new();
        for write in &transition.documents {
            keys.push((write.namespace.clone(), write.change.record_key()?));
        }
        for expect in &transition.expect {
            let key = RecordKey::from_id(expect.id.as_ref());
            keys.push((expect.namespace.clone(), key));
        }
        let stripes = self.stripes(collections, &keys);
        let held = collections.iter().find(|held| held.id == changed);
        let held = held.ok_or_else(|| gone(changed))?;
        let known = held.ownership.as_deref().or(transition.first.as_ref());
        let following = match (&transition.ownership, known) {
            _ if transition.forgets_ownership => {
                let known = held.ownership.as_deref();
                known.map(|known| OwnershipChange::gone(self, changed, known))
            }
            (None, None) => None,
            (None, Some(known)) => {
                self.check_registered(&transition.documents, held, known)?;
                None
            }
            (Some(_), None) => return Err(not_sharded(held)),
            (Some(change), Some(known)) => {
                let start = self.history_start();
                let counts_from = transition.counts_from;
                let new = change(known)?.following(Some(known), false, start, counts_from);
                self.check_registered(&transition.documents, held, &new)?;
                let before = held.ownership.as_deref();
                (new != *known).then(|| OwnershipChange::new(self, changed, before, &new))
            }
        };
        let term = transition.term;
        let is_stored = self.rules.hold(Rule::StoreOwnership);
        let mut body = |evaluator: &mut Evaluator<'_>| {
            for expect in &transition.expect {
                evaluator.select(&expect.namespace)?;
                let found = evaluator.latest(&RecordKey::from_id(expect.id.as_ref()))?;
                if !(expect.holds)(found.as_ref().map(Version::doc)) {
                    return Err(Refusal::Error(unexpected(expect)));
                }
            }
            for write in &transition.documents {
                evaluator.select(&write.namespace)?;
                write.change.evaluate(evaluator)?;
            }
            if let Some(following) = following.as_ref().filter(|_| is_stored) {
                evaluator.change_ownership(following.clone());
            }
            Ok(())
        };
        let appended = self.append_held(term, collections, stripes, &mut body);
        let appended = appended.await?;
        if let (Some(applied), Some(following), false) = (appended, following, is_stored) {
            self.remember_only(following, applied.time)?;
        }
        Ok(appended)
    }

    /// What becomes of a change of ownership without the rule that it is stored.
    fn remember_only(&self, change: OwnershipChange, time: ClusterTime) -> Result<(), Error> {
        let update = OwnershipUpdate {
            head: change.head,
            ranges: change.ranges,
            moving: Some(change.moving),
        };
        let ownerships = vec![(change.collection, update)];
        self.catalog.applied(Vec::new(), ownerships, time)
    }

    fn check_registered(
        &self,
        documents: &[StateWrite],
        collection: &Collection,
        following: &Ownership,
    ) -> Result<(), Error> {
        match self.rules.hold(Rule::RegisterUnowned) {
            true => check_registered(documents, collection, following),
            false => Ok(()),
        }
    }

    /// Gives a collection whose gate is held another ownership, its first one perhaps.
    pub(super) async fn put_ownership(
        &self,
        collection: &Arc<Collection>,
        new: Ownership,
        is_empty: bool,
    ) -> Result<(), Error> {
        let known = collection.ownership.as_deref();
        let new = new.following(known, is_empty, self.history_start(), None);
        let change = OwnershipChange::new(self, collection.id, known, &new);
        let collections = std::slice::from_ref(collection);
        let mut body = |evaluator: &mut Evaluator<'_>| {
            evaluator.change_ownership(change.clone());
            Ok(())
        };
        loop {
            let appended = self.append_held(None, collections, Vec::new(), &mut body);
            match appended.await? {
                Some(_) => return Ok(()),
                None => self.log.ready().await.map_err(crate::error::from_log)?,
            }
        }
    }

    /// Evaluates an entry with gates that are held, appends it and waits until it is applied.
    /// `None` if the log is busy.
    pub(super) async fn append_held(
        &self,
        term: Option<Term>,
        collections: &[Arc<Collection>],
        stripes: Vec<Stripe>,
        body: &mut impl FnMut(&mut Evaluator<'_>) -> Result<(), Refusal>,
    ) -> Result<Option<Applied>, Error> {
        const CONCERN: WriteConcern = WriteConcern::Majority;
        let writer = Writer {
            concern: CONCERN,
            session: None,
            operation: None,
            term,
            together: None,
        };
        let pending = match self.evaluate_for(collections, writer, false, stripes, body) {
            Ok(((), pending)) => pending,
            Err(NotAppended::Busy | NotAppended::Blocked) => return Ok(None),
            Err(NotAppended::Error(error)) => return Err(error),
        };
        self.applied(pending, CONCERN).await.map(Some)
    }

    /// Waits for an entry; without one, all of it held already.
    pub(super) async fn applied(
        &self,
        pending: Option<replication::Pending>,
        concern: WriteConcern,
    ) -> Result<Applied, Error> {
        if let Some(pending) = pending {
            let applied = pending.await.map_err(crate::error::from_log)?;
            return Ok(Applied {
                position: applied.position,
                time: applied.time,
            });
        }
        self.sync_what_was_found(concern).await?;
        Ok(Applied {
            position: LogPosition::new(self.store.applied()),
            time: self.store.applied_time(),
        })
    }

    /// Times before this one are read by nobody.
    pub(super) fn history_start(&self) -> ClusterTime {
        self.store.history_start()
    }
}

impl StateChange {
    pub(super) fn record_key(&self) -> Result<RecordKey, Error> {
        match self {
            StateChange::Put(document) => match document.get("_id") {
                Some(id) => Ok(RecordKey::from_id(id)),
                None => Err(Error::bad_value("a state document has no _id")),
            },
            StateChange::Delete(id) => Ok(RecordKey::from_id(id.as_ref())),
        }
    }

    pub(super) fn evaluate(&self, evaluator: &mut Evaluator<'_>) -> Result<(), Refusal> {
        let key = self.record_key()?;
        let known = evaluator.latest(&key)?;
        match (self, known) {
            (StateChange::Put(document), None) => evaluator.insert(key, document.clone()),
            (StateChange::Put(document), Some(known)) if known.doc() == document.as_doc() => Ok(()),
            (StateChange::Put(document), Some(known)) => {
                evaluator.replace(key, &known, document.as_doc(), None)
            }
            (StateChange::Delete(_), Some(known)) => evaluator.remove(key, &known),
            (StateChange::Delete(_), None) => Ok(()),
        }
    }
}

fn gone(collection: CollectionId) -> Error {
    Error::new(
        Code::NAMESPACE_NOT_FOUND,
        format!("the collection {} is gone", collection.0),
    )
}

fn not_sharded(collection: &Collection) -> Error {
    Error::new(
        Code::NAMESPACE_NOT_SHARDED,
        format!("{} is not sharded", collection.namespace),
    )
}

fn unexpected(expect: &Expectation<'_>) -> Error {
    Error::new(
        Code::CONFLICTING_OPERATION_IN_PROGRESS,
        format!(
            "the document {} of {} is not what it was taken for",
            model::text::value_quoted(expect.id.as_ref()),
            expect.namespace
        ),
    )
}
