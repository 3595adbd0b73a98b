//! What the config server tells a shard.
//!
//! ```text
//!   _terndbBecomeShard     {shard, clusterId}
//!   _terndbSetDatabase     {db, version, primary}
//!   _terndbCreateSharded   {ns, uuid, options, indexes, key, unique, placement,
//!                           collectionVersion, owned: [{min, max}], mustBeEmpty, indexesAreAll}
//!   _terndbSetPlacement    {ns, uuid, key, unique, placement, collectionVersion, owned}
//!   _terndbForgetPlacement {ns, uuid, quietly}
//!   _terndbForgetDatabase  {db, quietly, unlessOwned}
//!   _terndbRename          {from, ns, uuid, quietly, placeholder} and, if it is sharded, the fields of a placement
//! ```
//!
//! Each is one entry of the log, applied when it is answered, and may be sent again: what is
//! known already, or older than what is known, is answered with success and changes nothing.
//! Which of two is newer is told by the version of the collection, which grows with every
//! change anywhere; the version of the shard may be zero.
//!
//! What all shards do, one of them tells to change streams: the others are told to do it `quietly`.
//!
//! With `mustBeEmpty`, a collection that is not sharded yet and holds documents by now stays what it
//! is, and the answer is 117: its shard would give some of them up, and nobody else has them. ⚑ So it is
//! with `indexesAreAll` if it has others than `indexes` by now, which the other owners would lack.
//!
//! A filled collection gets its first ownership only if none of its documents has an array in the key
//! (`next_key.rs`); what comes afterwards is checked as it is written. ⚑
//!
//! A `placeholder` has kept the new name free on the database's primary, as a collection of which nobody owns
//! anything: it goes without a word.
//!
//! With `unlessOwned`, a database of which anything is this shard's own stays, and the answer is 117. ⚑
//!
//! A collection that exists and gets new indexes with its placement has them built first, so
//! that crash windows are those of an index build; the placement comes behind them.

use super::next_key::check_no_arrays;
use super::ownership::Ownership;
use super::state::{Identity, KnownDatabase, StateKey};
use crate::Shard;
use crate::catalog::{Clustering, Collection, Index};
use crate::command::arguments::{Argument, arguments, fields, missing};
use crate::command::indexes::{BUILD_WAIT, choose};
use crate::command::{Answer, Invocation, finish};
use crate::ddl::{New, Order, Telling};
use model::bson::{Doc, DocBuf, ValueRef};
use model::ids::Uuid;
use model::range::RangeSet;
use model::shard_key::ShardKeyPattern;
use model::version::{Age, DatabaseVersion, PlacementVersion};
use model::{Code, Error, Namespace};
use query::index::{IndexDefinition, parse_specification};
use std::sync::Arc;
use wire::Reply;

fn ok() -> Answer {
    finish(Reply::writer())
}

fn conflict(message: String) -> Error {
    Error::new(Code::CONFLICTING_OPERATION_IN_PROGRESS, message)
}

pub(crate) async fn become_shard(invocation: &Invocation<'_>) -> Answer {
    const NAME: &str = "_terndbBecomeShard";
    invocation.admin_only()?;
    let (mut shard_name, mut cluster) = (None, None);
    for argument in arguments(NAME, invocation.request.body()) {
        match (argument.name(), argument.value()) {
            ("shard", _) => shard_name = Some(argument.string()?.to_owned()),
            ("clusterId", ValueRef::ObjectId(id)) => cluster = Some(id),
            ("clusterId", _) => return Err(argument.wrong_type("objectId")),
            _ => return Err(argument.unknown()),
        }
    }
    let identity = Identity {
        shard: shard_name.ok_or_else(|| missing(NAME, "shard"))?,
        cluster: cluster.ok_or_else(|| missing(NAME, "clusterId"))?,
    };
    let shard = invocation.shard;
    take_identity(shard, &identity).await?;
    // Whoever began to write sessions of a set of its own has ended when this is answered.
    let writing = shard.session_home.of_its_own.lock();
    drop(invocation.operation.wait_for(writing).await?);
    ok()
}

async fn take_identity(shard: &Shard, identity: &Identity) -> Result<(), Error> {
    let _ddl = shard.ddl.lock().await;
    if let Some(known) = &shard.sharding.known().identity {
        if known == identity {
            return Ok(());
        }
        return Err(Error::new(
            Code::ALREADY_INITIALIZED,
            format!(
                "this server is shard {} of cluster {:?} already",
                known.shard, known.cluster
            ),
        ));
    }
    shard
        .propose_catalog(|encoder| {
            encoder.put_meta(StateKey::IDENTITY, identity.to_document().as_bytes());
        })
        .await
}

pub(crate) async fn set_database(invocation: &Invocation<'_>) -> Answer {
    const NAME: &str = "_terndbSetDatabase";
    invocation.admin_only()?;
    let (mut name, mut version, mut primary) = (None, None, None);
    for argument in arguments(NAME, invocation.request.body()) {
        match argument.name() {
            "db" => name = Some(argument.string()?),
            "version" => version = Some(DatabaseVersion::from_document(argument.doc()?)?),
            "primary" => primary = Some(argument.boolean()?),
            _ => return Err(argument.unknown()),
        }
    }
    let name = name.ok_or_else(|| missing(NAME, "db"))?;
    let database = KnownDatabase {
        version: version.ok_or_else(|| missing(NAME, "version"))?,
        primary: primary.ok_or_else(|| missing(NAME, "primary"))?,
        moving: None,
    };
    invocation.shard.set_database(name, database).await?;
    ok()
}

impl Shard {
    pub(crate) async fn set_database(
        &self,
        name: &str,
        database: KnownDatabase,
    ) -> Result<(), Error> {
        let _ddl = self.ddl.lock().await;
        // ⚑ It has its collections, or it is not their home.
        if database.primary && self.is_arriving(name) {
            return Err(Error::new(
                Code::LOCK_TIMEOUT,
                format!("collections of {name} are still to come"),
            ));
        }
        if let Some(known) = self.sharding.known().databases.get(name) {
            let news = match database.version.age(known.version) {
                Age::Older => false,
                // It was given up or dropped; a message from before does not bring it back.
                Age::Same => known.primary && !database.primary,
                Age::Newer => true,
                Age::Unknown => {
                    return Err(conflict(format!(
                        "two versions of database {name} began at the same time"
                    )));
                }
            };
            if !news {
                return Ok(());
            }
        }
        self.propose_catalog(|encoder| {
            encoder.put_meta(&StateKey::database(name), database.to_document().as_bytes());
        })
        .await
    }
}

/// The fields of a command about a placement.
#[derive(Default)]
struct Fields<'a> {
    namespace: Option<Namespace>,
    uuid: Option<Uuid>,
    options: Option<Doc<'a>>,
    indexes: Vec<IndexDefinition>,
    key: Option<Doc<'a>>,
    unique: Option<bool>,
    placement: Option<PlacementVersion>,
    collection_version: Option<PlacementVersion>,
    owned: Option<Argument<'a>>,
    must_be_empty: bool,
    indexes_are_all: bool,
    quietly: bool,
    from: Option<Namespace>,
    placeholder: Option<Uuid>,
}

impl<'a> Fields<'a> {
    fn read(name: &'a str, body: Doc<'a>) -> Result<Self, Error> {
        let mut read = Self::default();
        for argument in arguments(name, body) {
            match (argument.name(), argument.value()) {
                ("ns", _) => read.namespace = Some(Namespace::parse(argument.string()?)?),
                (name @ ("uuid" | "placeholder"), ValueRef::Binary { subtype: 4, bytes }) => {
                    let bytes = bytes.try_into();
                    let uuid = Uuid(bytes.map_err(|_| argument.wrong_type("UUID"))?);
                    match name {
                        "uuid" => read.uuid = Some(uuid),
                        _ => read.placeholder = Some(uuid),
                    }
                }
                ("uuid" | "placeholder", _) => return Err(argument.wrong_type("UUID")),
                ("options", _) => read.options = Some(argument.doc()?),
                ("indexes", _) => {
                    for spec in argument.array()?.iter() {
                        let ValueRef::Document(spec) = spec else {
                            return Err(argument.wrong_type("array of objects"));
                        };
                        read.indexes.push(parse_specification(spec, false)?);
                    }
                }
                ("key", _) => read.key = Some(argument.doc()?),
                ("unique", _) => read.unique = Some(argument.boolean()?),
                ("placement", _) => {
                    read.placement = Some(PlacementVersion::from_document(argument.doc()?)?);
                }
                ("collectionVersion", _) => {
                    let version = PlacementVersion::from_document(argument.doc()?)?;
                    read.collection_version = Some(version);
                }
                ("owned", _) => read.owned = Some(argument),
                ("mustBeEmpty", _) => read.must_be_empty = argument.boolean()?,
                ("indexesAreAll", _) => read.indexes_are_all = argument.boolean()?,
                ("quietly", _) => read.quietly = argument.boolean()?,
                ("from", _) => read.from = Some(Namespace::parse(argument.string()?)?),
                _ => return Err(argument.unknown()),
            }
        }
        Ok(read)
    }

    fn telling(&self) -> Telling {
        match self.quietly {
            true => Telling::Quietly,
            false => Telling::Aloud,
        }
    }

    fn identity(&self, command: &str) -> Result<(Namespace, Uuid), Error> {
        Ok((
            self.namespace
                .clone()
                .ok_or_else(|| missing(command, "ns"))?,
            self.uuid.ok_or_else(|| missing(command, "uuid"))?,
        ))
    }

    /// The ownership that the fields describe, `unique` as known before where it is absent.
    fn ownership(&self, command: &str, known: Option<&Ownership>) -> Result<Ownership, Error> {
        let key = self.key.ok_or_else(|| missing(command, "key"))?;
        let pattern = ShardKeyPattern::parse(key)?;
        let placement = self.placement;
        let collection_version = self.collection_version;
        let listed = self.owned.ok_or_else(|| missing(command, "owned"))?;
        let owned = Arc::new(ranges_of(&pattern, &listed)?);
        Ok(Ownership {
            key: key.to_owned(),
            pattern,
            unique: self
                .unique
                .or(known.map(|known| known.unique))
                .unwrap_or(false),
            placement: placement.ok_or_else(|| missing(command, "placement"))?,
            collection_version: collection_version
                .ok_or_else(|| missing(command, "collectionVersion"))?,
            orphans: false,
            owned,
            moving: known.map_or_else(Arc::default, |known| known.moving.clone()),
            unsharded: false,
            next_key: None,
        })
    }
}

fn ranges_of(pattern: &ShardKeyPattern, listed: &Argument<'_>) -> Result<RangeSet, Error> {
    const PATH: &str = "owned";
    let mut ranges = Vec::new();
    for range in listed.array()?.iter() {
        let ValueRef::Document(range) = range else {
            return Err(listed.wrong_type("array of objects"));
        };
        let (mut min, mut max) = (None, None);
        for bound in fields(PATH, range) {
            match bound.name() {
                "min" => min = Some(bound.doc()?),
                "max" => max = Some(bound.doc()?),
                _ => return Err(bound.unknown()),
            }
        }
        let min = min.ok_or_else(|| missing(PATH, "min"))?;
        let max = max.ok_or_else(|| missing(PATH, "max"))?;
        ranges.push(pattern.range_of(min, max)?);
    }
    Ok(RangeSet::of(ranges))
}

pub(crate) async fn create_sharded(invocation: &Invocation<'_>) -> Answer {
    const NAME: &str = "_terndbCreateSharded";
    invocation.admin_only()?;
    let fields = Fields::read(NAME, invocation.request.body())?;
    let (namespace, uuid) = fields.identity(NAME)?;
    let shard = invocation.shard;
    shard.require_identity()?;
    loop {
        let catalog_change = shard.catalog.changed();
        let ddl = shard.ddl.lock().await;
        let Some(collection) = shard.catalog.get(&namespace) else {
            let indexes = choose(None, &namespace, &fields.indexes)?.new;
            let options = fields
                .options
                .map_or_else(DocBuf::new, |doc| doc.to_owned());
            let new = New {
                uuid,
                options,
                indexes,
                ownership: Some(fields.ownership(NAME, None)?),
                replaces: None,
                order: Order::ByShardKey,
                telling: fields.telling(),
                term: None,
            };
            shard.create_new(&namespace, new).await?;
            return ok();
        };
        check_uuid(&collection, uuid)?;
        let chosen = choose(Some(&collection), &namespace, &fields.indexes)?;
        let is_first = collection.ownership.is_none();
        let is_being_built = |index: &Arc<Index>| !index.is_ready();
        if chosen.wait || is_first && collection.indexes.iter().any(is_being_built) {
            drop(ddl);
            // Looks again now and then: whoever asks may be gone.
            let _ = tokio::time::timeout(BUILD_WAIT, catalog_change).await;
            invocation.operation.check()?;
            continue;
        }
        if fields.indexes_are_all && is_first {
            let given = |name: &str| fields.indexes.iter().any(|index| index.name == name);
            let mut indexes = collection.secondary_indexes();
            if let Some((_, other)) = indexes.find(|(_, index)| !given(&index.definition.name)) {
                return Err(conflict(format!(
                    "{namespace} has the index {} by now",
                    other.definition.name
                )));
            }
        }
        if chosen.new.is_empty() {
            let known = collection.ownership.as_deref();
            let ownership = fields.ownership(NAME, known)?;
            let must_be_empty = fields.must_be_empty;
            let placed = shard.place_or_order(&collection, ownership, must_be_empty);
            placed.await?;
            return ok();
        }
        let build = shard.begin_indexes(&collection, chosen.new).await?;
        drop(ddl);
        if let Some(build) = build {
            shard.build_indexes(&build, invocation.operation).await?;
        }
    }
}

pub(crate) async fn set_placement(invocation: &Invocation<'_>) -> Answer {
    const NAME: &str = "_terndbSetPlacement";
    invocation.admin_only()?;
    let fields = Fields::read(NAME, invocation.request.body())?;
    let (namespace, uuid) = fields.identity(NAME)?;
    let shard = invocation.shard;
    shard.require_identity()?;
    let _ddl = shard.ddl.lock().await;
    let Some(collection) = shard.catalog.get(&namespace) else {
        return Err(Error::new(
            Code::NAMESPACE_NOT_FOUND,
            format!("ns does not exist: {namespace}"),
        ));
    };
    check_uuid(&collection, uuid)?;
    let ownership = fields.ownership(NAME, collection.ownership.as_deref())?;
    shard.place(&collection, ownership, false).await?;
    ok()
}

pub(crate) async fn forget_placement(invocation: &Invocation<'_>) -> Answer {
    const NAME: &str = "_terndbForgetPlacement";
    invocation.admin_only()?;
    let fields = Fields::read(NAME, invocation.request.body())?;
    let (namespace, uuid) = fields.identity(NAME)?;
    let is_meant = |collection: &Collection| collection.uuid == uuid;
    let shard = invocation.shard;
    shard
        .drop_collection_if(&namespace, fields.telling(), is_meant)
        .await?;
    ok()
}

/// Waits until the orphans of a collection that wait for their removal are gone.
pub(crate) async fn cleanup_orphaned(invocation: &Invocation<'_>) -> Answer {
    invocation.admin_only()?;
    let first = invocation.request.body().first();
    let Some(ValueRef::String(name)) = first.map(|first| first.value()) else {
        return Err(missing("cleanupOrphaned", "cleanupOrphaned"));
    };
    for argument in arguments("cleanupOrphaned", invocation.request.body()) {
        match argument.name() {
            // From a time when orphans were removed range by range.
            "startingFromKey" | "secondaryThrottle" => {}
            _ => return Err(argument.unknown()),
        }
    }
    let namespace = Namespace::parse(name)?;
    let shard = invocation.shard;
    shard.require_identity()?;
    if let Some(collection) = shard.catalog.get(&namespace) {
        let deleted = shard.await_range_deletions(collection.uuid, None, invocation.operation);
        deleted.await?;
    }
    ok()
}

/// Whatever there is of a database that the config server has dropped.
pub(crate) async fn forget_database(invocation: &Invocation<'_>) -> Answer {
    const NAME: &str = "_terndbForgetDatabase";
    invocation.admin_only()?;
    let (mut name, mut telling, mut unless_owned) = (None, Telling::Aloud, false);
    for argument in arguments(NAME, invocation.request.body()) {
        match argument.name() {
            "db" => name = Some(argument.string()?),
            "quietly" if argument.boolean()? => telling = Telling::Quietly,
            "quietly" => {}
            "unlessOwned" => unless_owned = argument.boolean()?,
            _ => return Err(argument.unknown()),
        }
    }
    let name = name.ok_or_else(|| missing(NAME, "db"))?;
    let shard = invocation.shard;
    // ⚑ Ranges begin to come without the lock, but not while the gates are held.
    let permits = || match unless_owned {
        true => shard.check_nothing_is_owned(name),
        false => Ok(()),
    };
    shard.drop_database_if(name, telling, permits).await?;
    ok()
}

pub(crate) async fn rename(invocation: &Invocation<'_>) -> Answer {
    const NAME: &str = "_terndbRename";
    invocation.admin_only()?;
    let fields = Fields::read(NAME, invocation.request.body())?;
    let (to, uuid) = fields.identity(NAME)?;
    let from = fields.from.clone().ok_or_else(|| missing(NAME, "from"))?;
    let ownership = match fields.key {
        None => None,
        Some(_) => Some(fields.ownership(NAME, None)?),
    };
    let (telling, placeholder) = (fields.telling(), fields.placeholder);
    let renamed =
        (invocation.shard).rename_decided(&from, &to, uuid, ownership, telling, placeholder);
    renamed.await?;
    ok()
}

impl Shard {
    /// Refuses if a database or anything in it is this shard's own. What it does not own by then nobody but
    /// the config server can give it.
    fn check_nothing_is_owned(&self, database: &str) -> Result<(), Error> {
        let known = self.sharding.known();
        let is_home = known.databases.get(database).is_some_and(|it| it.primary);
        let is_owned = |collection: &Arc<Collection>| match &collection.ownership {
            Some(ownership) => {
                let moving = &ownership.moving;
                !ownership.owned.is_empty()
                    || !moving.received().is_empty()
                    || !moving.undecided().is_empty()
            }
            None => true,
        };
        match is_home || self.catalog.current().database(database).any(is_owned) {
            true => Err(conflict(format!("{database} holds what is owned here"))),
            false => Ok(()),
        }
    }
}

fn check_uuid(collection: &Collection, uuid: Uuid) -> Result<(), Error> {
    if collection.uuid == uuid {
        return Ok(());
    }
    Err(Error::new(
        Code::INVALID_UUID,
        format!(
            "the collection {} has the UUID {} here, not {uuid}",
            collection.namespace, collection.uuid
        ),
    ))
}

impl Shard {
    /// Gives a collection its first ownership. One that is empty is put into the order of its
    /// shard key: it gets other ids, and is the same to everybody else.
    async fn place_or_order(
        &self,
        collection: &Arc<Collection>,
        new: Ownership,
        must_be_empty: bool,
    ) -> Result<(), Error> {
        let by_key = Clustering::by(new.key.as_doc())?.is_some();
        if collection.ownership.is_some() || !by_key {
            return self.place(collection, new, must_be_empty).await;
        }
        let gate = collection.gate.write().await;
        self.wait_for_proposed().await?;
        if self.store.collection_counter(collection.id).items > 0 {
            drop(gate);
            return self.place(collection, new, must_be_empty).await;
        }
        let indexes = collection.secondary_indexes();
        let ordered = New {
            uuid: collection.uuid,
            options: collection.options.clone(),
            indexes: indexes.map(|(_, index)| index.definition.clone()).collect(),
            ownership: Some(new),
            replaces: Some(collection.clone()),
            order: Order::ByShardKey,
            telling: Telling::Aloud,
            term: None,
        };
        self.create_new(&collection.namespace, ordered).await?;
        Ok(())
    }

    fn require_identity(&self) -> Result<(), Error> {
        if self.sharding.is_shard() {
            return Ok(());
        }
        Err(Error::new(
            Code::SHARDING_STATE_NOT_INITIALIZED,
            "this server is not a shard of a cluster",
        ))
    }

    /// Gives a collection another ownership, unless what is known is as new; the caller
    /// holds `ddl` and has just looked `collection` up.
    pub(crate) async fn place(
        &self,
        collection: &Arc<Collection>,
        mut new: Ownership,
        must_be_empty: bool,
    ) -> Result<(), Error> {
        let _gate = collection.gate.write().await;
        self.wait_for_proposed().await?;
        // A move may have changed it: moves hold the gate and not `ddl`.
        let Some(collection) = &self.catalog.by_id(collection.id) else {
            return Ok(());
        };
        let known = collection.ownership.as_deref();
        if let Some(known) = known {
            let age = new.collection_version.age(known.collection_version);
            match age {
                Age::Older | Age::Same => return Ok(()),
                Age::Newer => {}
                Age::Unknown => {
                    return Err(conflict(format!(
                        "two lives of {} began at the same time",
                        collection.namespace
                    )));
                }
            }
        }
        let is_empty = self.store.collection_counter(collection.id).items == 0;
        if must_be_empty && known.is_none() && !is_empty {
            return Err(conflict(format!(
                "{} holds documents by now",
                collection.namespace
            )));
        }
        if known.is_none() && !is_empty {
            check_no_arrays(collection, &new.pattern)?;
        }
        if let Some(known) = known
            && known.pattern == new.pattern
        {
            new.moving = known.moving.clone();
            new.next_key = known.next_key_of(&new.pattern);
            // ⚑ Whose owner is being decided changes hands by its move alone.
            let undecided = known.moving.undecided();
            let held = |owned: &RangeSet| owned.intersection(&undecided);
            if held(&known.owned) != held(&new.owned) {
                return Err(conflict(format!(
                    "a range of {} is being moved",
                    collection.namespace
                )));
            }
        }
        self.put_ownership(collection, new, is_empty).await
    }
}
