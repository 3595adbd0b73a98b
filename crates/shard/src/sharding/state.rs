//! Who this shard is in its cluster, and of which databases it is the primary.
//!
//! ```text
//!   meta key  "sharding/identity"
//!   value     { shard: string, clusterId: ObjectId }
//!   meta key  "sharding/database/" + name
//!   value     { version: {uuid, timestamp, lastMod}, primary: bool,
//!               moving: { operation: UUID, reads: bool } }        while its primary is about to move
//!   meta key  "sharding/configTime"
//!   value     { time: Timestamp }, see `config_time.rs`
//! ```
//!
//! ⚑ *Moving* is data like blocks of ranges: a new primary closes what its predecessor closed. At first
//! collections are neither made nor changed nor dropped; with `reads`, whatever was routed by the
//! database's version waits, also for collections that are not there.
//!
//! A server that is part of no cluster has none of this, and takes requests as they come.

use super::config_time::{CONFIG_TIME_KEY, ConfigTime};
use crate::Store;
use arc_swap::ArcSwap;
use model::bson::{Doc, DocBuf, DocWriter, ObjectId, ValueRef};
use model::ids::Uuid;
use model::version::DatabaseVersion;
use model::{Code, Error};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

const DATABASE_PREFIX: &str = "sharding/database/";

/// The keys of these documents in the meta space.
pub(crate) struct StateKey;

impl StateKey {
    pub(crate) const IDENTITY: &'static [u8] = b"sharding/identity";
    pub(crate) const DATABASES: &'static [u8] = DATABASE_PREFIX.as_bytes();

    pub(crate) fn database(name: &str) -> Vec<u8> {
        format!("{DATABASE_PREFIX}{name}").into_bytes()
    }

    /// The database that a meta key stands for.
    pub(crate) fn parse_database(key: &[u8]) -> Option<&str> {
        std::str::from_utf8(key.strip_prefix(Self::DATABASES)?).ok()
    }
}

/// Set once a cluster has taken the shard in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) shard: String,
    pub(crate) cluster: ObjectId,
}

impl Identity {
    pub(crate) fn to_document(&self) -> DocBuf {
        DocWriter::new()
            .with("shard", self.shard.as_str())
            .with("clusterId", self.cluster)
            .finish()
    }

    fn from_document(doc: Doc<'_>) -> Result<Self, Error> {
        match (doc.get_str("shard"), doc.get("clusterId")) {
            (Some(shard), Some(ValueRef::ObjectId(cluster))) => Ok(Self {
                shard: shard.to_owned(),
                cluster,
            }),
            _ => Err(damaged("identity")),
        }
    }
}

/// What the shard knows about one database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KnownDatabase {
    pub(crate) version: DatabaseVersion,
    /// Whether its unsharded collections are here.
    pub(crate) primary: bool,
    /// Its primary is about to be another one.
    pub(crate) moving: Option<MovingDatabase>,
}

/// A database whose primary is being decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MovingDatabase {
    pub(crate) operation: Uuid,
    /// Not only changes of its collections wait.
    pub(crate) reads: bool,
}

impl KnownDatabase {
    pub(crate) fn to_document(self) -> DocBuf {
        let mut writer = DocWriter::new();
        writer.begin_document("version");
        self.version.append_to(&mut writer);
        writer.end().append("primary", self.primary);
        if let Some(moving) = self.moving {
            let operation = ValueRef::Binary {
                subtype: 4,
                bytes: &moving.operation.0,
            };
            writer
                .begin_document("moving")
                .append("operation", operation)
                .append("reads", moving.reads)
                .end();
        }
        writer.finish()
    }

    fn from_document(doc: Doc<'_>) -> Result<Self, Error> {
        match (doc.get_doc("version"), doc.get("primary")) {
            (Some(version), Some(ValueRef::Boolean(primary))) => Ok(Self {
                version: DatabaseVersion::from_document(version)?,
                primary,
                moving: doc.get_doc("moving").map(moving).transpose()?,
            }),
            _ => Err(damaged("database")),
        }
    }

    /// Whether requests that were routed by its version have to wait.
    pub(crate) fn keeps_away(&self) -> bool {
        self.moving.is_some_and(|moving| moving.reads)
    }
}

fn moving(doc: Doc<'_>) -> Result<MovingDatabase, Error> {
    match (doc.get("operation"), doc.get("reads")) {
        (Some(ValueRef::Binary { bytes, .. }), Some(ValueRef::Boolean(reads))) => {
            let operation = bytes.try_into().map(Uuid);
            Ok(MovingDatabase {
                operation: operation.map_err(|_| damaged("database"))?,
                reads,
            })
        }
        _ => Err(damaged("database")),
    }
}

/// All of it at one moment.
#[derive(Clone, Default, Debug)]
pub(crate) struct Known {
    pub(crate) identity: Option<Identity>,
    pub(crate) databases: BTreeMap<String, KnownDatabase>,
}

pub(crate) struct ShardingState {
    known: ArcSwap<Known>,
    changed: Notify,
    pub(crate) config_time: ConfigTime,
}

impl ShardingState {
    pub(crate) fn load(store: &Store) -> Result<Self, Error> {
        let state = Self {
            known: ArcSwap::from_pointee(read(store)?),
            changed: Notify::new(),
            config_time: ConfigTime::default(),
        };
        state.config_time.load(store)?;
        Ok(state)
    }

    /// Completes at the first change after this call.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// What is known of a database.
    pub(crate) fn database(&self, name: &str) -> Option<KnownDatabase> {
        self.known.load().databases.get(name).copied()
    }

    pub(crate) fn known(&self) -> arc_swap::Guard<Arc<Known>> {
        self.known.load()
    }

    /// Whether this server is a shard of a cluster.
    pub(crate) fn is_shard(&self) -> bool {
        self.known.load().identity.is_some()
    }

    /// The shard's name, empty if it has none.
    pub(crate) fn shard_name(&self) -> String {
        let known = self.known.load();
        let identity = known.identity.as_ref();
        identity.map_or_else(String::new, |identity| identity.shard.clone())
    }

    /// Takes over a document of an applied entry; false if it is none of these. Called by
    /// the log's loop only.
    pub(crate) fn applied(&self, key: &[u8], value: Option<&[u8]>) -> Result<bool, Error> {
        if let (CONFIG_TIME_KEY, Some(value)) = (key, value) {
            self.config_time.stored(document(value)?);
            return Ok(true);
        }
        let database = StateKey::parse_database(key);
        if key != StateKey::IDENTITY && database.is_none() {
            return Ok(false);
        }
        let document = value.map(document).transpose()?;
        let mut known = Known::clone(&self.known.load());
        match (database, document) {
            (None, document) => {
                known.identity = document.map(Identity::from_document).transpose()?;
            }
            (Some(name), Some(document)) => {
                let database = KnownDatabase::from_document(document)?;
                known.databases.insert(name.to_owned(), database);
            }
            (Some(name), None) => {
                known.databases.remove(name);
            }
        }
        self.known.store(Arc::new(known));
        self.changed.notify_waiters();
        Ok(true)
    }

    /// Reads everything anew: the state was installed from another member.
    pub(crate) fn reload(&self, store: &Store) -> Result<(), Error> {
        self.known.store(Arc::new(read(store)?));
        self.changed.notify_waiters();
        self.config_time.load(store)
    }
}

fn read(store: &Store) -> Result<Known, Error> {
    let snapshot = store.snapshot();
    let mut known = Known::default();
    let identity = snapshot
        .get_meta(StateKey::IDENTITY)
        .map_err(crate::error::from_storage)?;
    if let Some(bytes) = identity {
        known.identity = Some(Identity::from_document(document(&bytes)?)?);
    }
    for pair in snapshot.scan_meta(StateKey::DATABASES) {
        let (key, value) = pair.map_err(crate::error::from_storage)?;
        let name = StateKey::parse_database(&key).ok_or_else(|| damaged("name"))?;
        let database = KnownDatabase::from_document(document(&value)?)?;
        known.databases.insert(name.to_owned(), database);
    }
    Ok(known)
}

pub(super) fn document(bytes: &[u8]) -> Result<Doc<'_>, Error> {
    Doc::from_bytes(bytes).map_err(|fault| Error::new(Code::INVALID_BSON, fault.to_string()))
}

fn damaged(what: &str) -> Error {
    Error::new(
        Code::INTERNAL_ERROR,
        format!("what the shard knows about its cluster is damaged: {what}"),
    )
}
