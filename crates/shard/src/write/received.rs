//! Records that a move brings, and takes away again.
//!
//! ```text
//!  gate (shared) ─► latest versions ─► index entries ─► append, marked with the move ─► gate open
//! ```
//!
//! Nobody else writes to a range that is being received: it is not owned here, and no range
//! deletion may touch it. So no latches are needed, and one task appends all changes of a
//! move, in order. Unlike an evaluator this one does not ask who owns a document, which is
//! the point, and it checks no unique index: who receives a range does, when it is appended,
//! see `migration/receive.rs`.
//!
//! ⚑ Entries are of the term in which the receiver began. What it appends follows from what it has appended
//! before; another primary may have gone on with the move, or ended it, and this one been elected again.
//!
//! Entries carry index entries and both images in memory like any other, so that applying
//! them looks nothing up, and say in their header which move they are of: change streams and
//! the view of the log leave them out. ⚑

use super::append::{Companion, NotAppended, encode, not_appended, payload_bytes, publish};
use super::evaluator::{Change, Description, Version, index_stripe, key_changes, keys_of};
use crate::Shard;
use crate::catalog::Collection;
use crate::catalog::multikey::MultikeyFound;
use model::Error;
use model::bson::Doc;
use model::ids::IndexId;
use model::key::RecordKey;
use replication::{Durability, Term};
use storage::Record;
use storage::entry::{Encoder, Header};
use storage::giving_way;
use storage::layout::check_user_key;

/// One record as it is and as it is to be.
pub(crate) struct Received {
    pub(crate) key: RecordKey,
    pub(crate) before: Option<Record>,
    /// A draft; `None`: removed.
    pub(crate) after: Option<Record>,
}

/// An entry that is ready to be appended.
pub(crate) struct ReceivedEntry {
    changes: Vec<Change>,
    multikey: MultikeyFound,
    payload: Vec<u8>,
}

impl ReceivedEntry {
    /// Changes of records of one collection, each key once, by the collection's indexes as they are.
    pub(crate) fn new(
        collection: &Collection,
        origin: &[u8],
        received: Vec<Received>,
    ) -> Result<Self, Error> {
        let mut multikey = MultikeyFound::default();
        let mut changes = Vec::with_capacity(received.len());
        for record in received {
            giving_way::look();
            changes.push(change_of(collection, record, &mut multikey)?);
        }
        let mut payload = Vec::with_capacity(payload_bytes(&changes));
        let header = Header {
            origin: Some(origin),
            names: Some(collection.name()),
            ..Header::default()
        };
        encode(
            &changes,
            collection.name(),
            &multikey,
            &mut Encoder::with_header(&mut payload, header),
        );
        // From here on only the overlay asks for index entries; whoever applies them reads the payload.
        for change in &mut changes {
            change.entries.retain(|entry| entry.unique);
        }
        Ok(Self {
            changes,
            multikey,
            payload,
        })
    }
}

impl Shard {
    /// The latest version of a record that no other writer changes.
    pub(crate) fn latest_received(
        &self,
        collection: &Collection,
        key: &RecordKey,
    ) -> Result<Option<Record>, Error> {
        if let Some(pending) = self.overlay.record(collection.id, key) {
            return Ok(pending.record);
        }
        self.store
            .latest(collection.id, key.as_bytes())
            .map_err(crate::error::from_storage)
    }

    /// Waits for those who are evaluating a change of a unique key: what they do is appended.
    pub(crate) fn await_evaluations(&self, index: IndexId, fields: &[u8]) -> Result<(), Error> {
        let stripe = index_stripe(&self.latches, index, fields);
        self.latches.hold(vec![stripe], || Ok(())).map(drop)
    }

    /// Appends an entry. The caller has held the collection's gate since before it looked up the collection
    /// by which the entry was made, and begins again if the answer is `None`: the log's queue is full, and
    /// nothing happened.
    pub(crate) fn append_received(
        &self,
        term: Term,
        entry: ReceivedEntry,
    ) -> Result<Option<replication::Pending>, Error> {
        let ReceivedEntry {
            mut changes,
            multikey,
            payload,
        } = entry;
        // Synced, and so written past the system's memory, for a tenth of the CPU, unless something before it is only
        // buffered. Behind an entry that is, a client's majority write would have to sync the whole file. A write that
        // need not be synced waits a little longer behind this one.
        let synced = Durability::Synced;
        let proposed = self
            .log
            .propose_in(term, synced, payload, |_, position, time| {
                multikey.publish();
                publish(&self.overlay, &mut changes, position, time);
                Companion { changes }
            });
        match proposed.map_err(not_appended) {
            Ok(pending) => Ok(Some(pending)),
            Err(NotAppended::Busy | NotAppended::Blocked) => Ok(None),
            Err(NotAppended::Error(error)) => Err(error),
        }
    }
}

fn change_of(
    collection: &Collection,
    received: Received,
    multikey: &mut MultikeyFound,
) -> Result<Change, Error> {
    let too_long = crate::error::from_storage;
    let Received { key, before, after } = received;
    check_user_key(key.as_bytes().len()).map_err(too_long)?;
    let mut entries = Vec::new();
    for (id, index) in collection.secondary_indexes() {
        let keys = |record: &Option<Record>| match record {
            Some(record) => keys_of(index, Doc::from_validated(record.document())),
            None => Ok(None),
        };
        let (old, new) = (keys(&before)?, keys(&after)?);
        if let Some(new) = &new {
            multikey.add(index, &new.multikey);
        }
        let first_new = entries.len();
        key_changes(id, index.is_unique(), old, new, &mut entries);
        for entry in &entries[first_new..] {
            let bytes = entry.key.fields.len() + key.as_bytes().len();
            check_user_key(bytes).map_err(too_long)?;
        }
    }
    let description = match (&before, &after) {
        (_, None) => Description::Delete,
        (None, Some(_)) => Description::Insert,
        (Some(_), Some(_)) => Description::Replace,
    };
    Ok(Change {
        collection: collection.id,
        key,
        before: before.map(Version::Stored),
        after,
        description,
        entries,
    })
}
