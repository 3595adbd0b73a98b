//! What travels with a routed request, and whether it agrees with what is known here.
//!
//! ```text
//!   shardVersion     {e, t, v}             of the collection on this shard, as the router knows it
//!                    {e, t, v, known}      the same; all that moved until `known` is known, which counts for a read of the past
//!   databaseVersion  {uuid, timestamp, lastMod}      for collections that are not sharded
//!   routedBy         [{min, max}, ..]      the ranges the request is for; absent: all of that version
//! ```
//!
//! A shard version agrees if its incarnation and its major number are the known ones: splits
//! and merges change the minor number alone and move nothing. The answer to one that does not
//! agree says what was received and what is known, so that whoever is older refreshes. Where
//! nothing is known, `vWanted` is absent.
//!
//! A read at a time of the past (`T`) is not concerned by what has moved since:
//!
//! ```text
//!   known            T
//!   ──┼──────────────┼─────────────► time           an older version agrees, if nothing of this shard's
//!     └── came, went?┘  whatever                    came or went in between
//! ```
//!
//! ⚑ Moves are decided one after the other, each at a later time, so who knows one knows all before it. A *newer*
//! version than the one that is known here is waited for as ever: what it tells of may be from before `T`.
//!
//! A request is checked before it runs. Between that and its end ownership may change: writes
//! look again where they are evaluated, reads when they are done ([`CheckedRoute`]).

use super::state::KnownDatabase;
use super::{Ownership, ShardingState};
use crate::Shard;
use crate::catalog::Collection;
use crate::rules::Rule;
use model::bson::{Array, Doc, DocWriter, ValueRef};
use model::range::{KeyBound, KeyRange, RangeSet};
use model::time::ClusterTime;
use model::version::{Age, DatabaseVersion, PlacementVersion};
use model::{Code, Error, Namespace};
use std::sync::Arc;
use wire::Request;

/// The versions that came with a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routed {
    shard: Option<PlacementVersion>,
    database: Option<DatabaseVersion>,
    ranges: Option<RangeSet>,
    /// Changes until this time are known to whoever asks.
    known: Option<ClusterTime>,
    past: Option<Past>,
}

/// A time that is read at, by whom who owned what is known until another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Past {
    at: ClusterTime,
    known: ClusterTime,
}

/// What a request was found to agree with.
#[derive(Debug)]
pub(crate) enum CheckedRoute {
    /// With the ranges of a sharded collection.
    Ranges {
        namespace: Namespace,
        received: PlacementVersion,
        owned: Arc<RangeSet>,
        past: Option<Past>,
    },
    /// With the version of a database whose unsharded collections are here.
    Database(DatabaseVersion),
}

impl Routed {
    /// Takes a field of a request; false if it is none of these.
    pub(crate) fn read(&mut self, name: &str, value: ValueRef<'_>) -> Result<bool, Error> {
        match (name, value) {
            ("shardVersion", ValueRef::Document(doc)) => {
                self.shard = Some(PlacementVersion::from_document(doc)?);
                if let Some(ValueRef::Timestamp(known)) = doc.get("known") {
                    self.known = Some(ClusterTime::new(known.seconds, known.increment));
                }
            }
            ("databaseVersion", ValueRef::Document(doc)) => {
                self.database = Some(DatabaseVersion::from_document(doc)?);
            }
            ("routedBy", ValueRef::Array(ranges)) => self.ranges = Some(ranges_of(ranges)?),
            ("shardVersion" | "databaseVersion" | "routedBy", value) => {
                let expected = match name {
                    "routedBy" => "array",
                    _ => "object",
                };
                return Err(Error::new(
                    Code::TYPE_MISMATCH,
                    format!(
                        "BSON field '{name}' is the wrong type '{}', expected type '{expected}'",
                        value.kind().name()
                    ),
                ));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Routed {
    /// By this version of a sharded collection.
    pub(crate) fn by(version: PlacementVersion) -> Routed {
        Routed {
            shard: Some(version),
            ..Routed::default()
        }
    }

    /// The request reads at a time of the past.
    pub(crate) fn reads_at(&mut self, at: ClusterTime) {
        self.past = self.known.map(|known| Past { at, known });
    }

    pub(super) fn shard(&self) -> Option<PlacementVersion> {
        self.shard
    }

    pub(super) fn database(&self) -> Option<DatabaseVersion> {
        self.database
    }
}

fn ranges_of(listed: Array<'_>) -> Result<RangeSet, Error> {
    let bound = |range: Doc<'_>, name| match range.get(name) {
        Some(ValueRef::Binary { bytes, .. }) => Ok(KeyBound::new(bytes)),
        _ => Err(Error::bad_value(format!(
            "a range of routedBy has no binary '{name}'"
        ))),
    };
    let ranges = listed.iter().map(|range| match range {
        ValueRef::Document(range) => Ok(KeyRange::new(bound(range, "min")?, bound(range, "max")?)),
        _ => Err(Error::bad_value("a range of routedBy is not an object")),
    });
    ranges.collect::<Result<RangeSet, Error>>()
}

/// The collection that a command is about, if it is about one.
pub(crate) fn namespace_of(request: &Request) -> Option<Namespace> {
    let first = request.body().first()?;
    let named = match first.value() {
        ValueRef::Document(explained) if first.key() == "explain" => explained.first()?.value(),
        value => value,
    };
    match named {
        ValueRef::String(collection) => Namespace::new(request.database(), collection).ok(),
        _ => None,
    }
}

impl Shard {
    /// Compares what came with a request with what is known here.
    pub(crate) fn check_routed(
        &self,
        request: &Request,
        routed: &Routed,
    ) -> Result<Option<CheckedRoute>, Error> {
        let speaks_of_shards = routed
            .shard
            .is_some_and(|version| !version.is_ignored() && !version.is_unsharded())
            || routed.database.is_some_and(|version| !version.is_fixed());
        if speaks_of_shards && !self.sharding.is_shard() {
            return Err(not_a_shard());
        }
        if let Some(received) = routed.database {
            self.check_database(request.database(), received)?;
        }
        let by_database = routed.database.filter(|version| !version.is_fixed());
        let by_database = by_database.map(CheckedRoute::Database);
        let (Some(received), Some(namespace)) = (routed.shard, namespace_of(request)) else {
            return Ok(by_database);
        };
        let collection = self.catalog.get(&namespace);
        let ownership = collection.and_then(|known| known.sharded_ownership().cloned());
        let Some(ownership) = ownership else {
            if received.is_ignored() || received.is_unsharded() {
                return Ok(by_database);
            }
            return Err(stale_config(&self.sharding, &namespace, received, None));
        };
        let stale = || {
            let wanted = Some(ownership.placement);
            Err(stale_config(&self.sharding, &namespace, received, wanted))
        };
        let agrees = received.is_ignored()
            || agrees(received, ownership.placement)
            || (routed.past).is_some_and(|past| {
                past.agrees(received, &ownership) || !self.rules.hold(Rule::KnownPast)
            });
        let covered = routed
            .ranges
            .as_ref()
            .is_none_or(|ranges| ranges.difference(&ownership.owned).is_empty());
        if !agrees || !covered {
            return stale();
        }
        if received.is_ignored() && routed.ranges.is_none() {
            return Ok(None);
        }
        Ok(Some(CheckedRoute::Ranges {
            namespace,
            received,
            owned: ownership.owned.clone(),
            past: routed.past,
        }))
    }

    fn check_database(&self, name: &str, received: DatabaseVersion) -> Result<(), Error> {
        if received.is_fixed() {
            return Ok(());
        }
        let known = self.sharding.known();
        match known.databases.get(name) {
            // Who waits is let in again when it is decided.
            Some(database) if database.version == received && database.keeps_away() => {
                Err(stale_database(name, Some(received), Some(database.version)))
            }
            Some(database) if database.version == received && database.primary => Ok(()),
            Some(database) if database.version != received => {
                Err(stale_database(name, Some(received), Some(database.version)))
            }
            _ => Err(stale_database(name, Some(received), None)),
        }
    }

    /// Refuses a new unsharded collection, or another name of one, where its database does not live.
    pub(crate) fn check_home(&self, namespace: &Namespace) -> Result<(), Error> {
        self.check_lives_here(namespace.database())
    }

    pub(super) fn check_lives_here(&self, name: &str) -> Result<(), Error> {
        if matches!(name, "admin" | "config" | "local") {
            return Ok(());
        }
        let known = self.sharding.known();
        if known.identity.is_none() {
            return Ok(());
        }
        match known.databases.get(name) {
            Some(database) if database.primary => Ok(()),
            Some(database) => Err(stale_database(name, None, Some(database.version))),
            None => Err(stale_database(name, None, None)),
        }
    }
}

impl CheckedRoute {
    /// Whether what the request was checked against still holds for this catalog entry.
    ///
    /// ⚑ A database that has gone is known to have gone before its collections are given up: whoever finds
    /// nothing of them, and the same version afterwards, has looked in time.
    pub(crate) fn check(
        &self,
        sharding: &ShardingState,
        database: &str,
        collection: Option<&Collection>,
    ) -> Result<(), Error> {
        let (namespace, received, owned, past) = match self {
            CheckedRoute::Database(received) => return still_here(sharding, database, *received),
            CheckedRoute::Ranges {
                namespace,
                received,
                owned,
                past,
            } => (namespace, *received, owned, past),
        };
        let ownership = collection.and_then(|known| known.ownership.as_ref());
        match ownership {
            Some(now) if Arc::ptr_eq(&now.owned, owned) => Ok(()),
            Some(now) if past.is_some_and(|past| past.agrees(received, now)) => Ok(()),
            now => {
                let wanted = now.map(|ownership| ownership.placement);
                Err(stale_config(sharding, namespace, received, wanted))
            }
        }
    }

    /// The sharded collection that it is about.
    pub(crate) fn namespace(&self) -> Option<&Namespace> {
        match self {
            CheckedRoute::Ranges { namespace, .. } => Some(namespace),
            CheckedRoute::Database(_) => None,
        }
    }

    /// What is owned by the version that came with the request, if that was of a sharded collection.
    pub(crate) fn owned(&self) -> Option<&Arc<RangeSet>> {
        match self {
            CheckedRoute::Ranges { owned, .. } => Some(owned),
            CheckedRoute::Database(_) => None,
        }
    }
}

fn still_here(
    sharding: &ShardingState,
    name: &str,
    received: DatabaseVersion,
) -> Result<(), Error> {
    let known = sharding.database(name);
    let is_here =
        |known: &KnownDatabase| known.version == received && known.primary && !known.keeps_away();
    match known {
        Some(known) if is_here(&known) => Ok(()),
        known => {
            let wanted = known.map(|known| known.version);
            Err(stale_database(name, Some(received), wanted))
        }
    }
}

impl Past {
    /// Whether a version that is older than what is known here tells who owned what at the time that is read.
    fn agrees(self, received: PlacementVersion, now: &Ownership) -> bool {
        received.incarnation == now.placement.incarnation
            && received.age(now.placement) == Age::Older
            && !now.moving.changes_between(self.known, self.at)
    }
}

fn agrees(received: PlacementVersion, known: PlacementVersion) -> bool {
    received.incarnation == known.incarnation && received.chunk.major == known.chunk.major
}

fn not_a_shard() -> Error {
    Error::new(
        Code::SHARDING_STATE_NOT_INITIALIZED,
        "Cannot accept sharding commands if sharding state has not been initialized with a \
         shardIdentity document",
    )
}

/// The error for a document that another shard has to take.
pub(crate) fn not_owned(
    sharding: &ShardingState,
    namespace: &Namespace,
    ownership: &Ownership,
) -> Error {
    if ownership.unsharded {
        let name = namespace.database();
        let known = sharding.database(name).map(|known| known.version);
        return stale_database(name, None, known);
    }
    let received = PlacementVersion::IGNORED;
    stale_config(sharding, namespace, received, Some(ownership.placement))
}

/// The error for a request that was routed by another version than the one that is known here.
pub(crate) fn stale_config(
    sharding: &ShardingState,
    namespace: &Namespace,
    received: PlacementVersion,
    wanted: Option<PlacementVersion>,
) -> Error {
    let message = match wanted {
        None => format!(
            "sharding status of collection {namespace} is not currently available for filtering \
             and needs to be recovered from the config server"
        ),
        Some(wanted) if wanted.incarnation == received.incarnation => {
            format!("version mismatch detected for {namespace}")
        }
        Some(_) if received.is_ignored() => {
            format!("a document of {namespace} does not belong to this shard")
        }
        Some(_) => format!("epoch mismatch detected for {namespace}"),
    };
    let mut details = DocWriter::new();
    details
        .append("ns", namespace.as_str())
        .begin_document("vReceived");
    received.append_to(&mut details);
    details.end();
    if let Some(wanted) = wanted {
        details.begin_document("vWanted");
        wanted.append_to(&mut details);
        details.end();
    }
    details.append("shardId", sharding.shard_name().as_str());
    Error::new(Code::STALE_CONFIG, message).with_details(details.finish())
}

fn stale_database(
    name: &str,
    received: Option<DatabaseVersion>,
    wanted: Option<DatabaseVersion>,
) -> Error {
    let message = match wanted {
        None => format!("sharding state of database {name} is not known to be here"),
        Some(_) => format!("version mismatch for database {name}"),
    };
    let mut details = DocWriter::new();
    details.append("db", name);
    for (field, version) in [("vReceived", received), ("vWanted", wanted)] {
        if let Some(version) = version {
            details.begin_document(field);
            version.append_to(&mut details);
            details.end();
        }
    }
    Error::new(Code::STALE_DB_VERSION, message).with_details(details.finish())
}
