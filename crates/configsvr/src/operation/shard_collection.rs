//! `shardCollection`: a collection begins its life as a sharded one.
//!
//! ```text
//!   prepare   options, the collection's own, its indexes; where the first chunks will be
//!   index     the index on the key, on the primary shard, where it may be made
//!   others    shards that will own chunks, but the primary: they make the collection, empty
//!   primary   the primary shard becomes one owner among others ── it is not as it was? ──► undo, plan anew
//!   decide    config.collections and config.chunks, one entry
//! ```
//!
//! ⚑ Nobody sends anything to the others before the decision, so whatever they made can be taken back. The
//! primary is the last to be told and refuses if its collection is not the one that was planned for, or holds
//! a document with an array in the key: until then clients write to it, create it, and give it indexes. What the others made is taken back, and all is
//! worked out again, as if the command had come after those changes. From the primary's consent on the
//! operation only goes forward, and who asks for routing waits until it is decided.
//!
//! The cluster's sessions collection is sharded in the same way (`sessions.rs`).
//!
//! An empty collection begins as its zones say; without zones, one with a hashed key gets two chunks on each
//! shard, or `numInitialChunks`. Every other one begins with one chunk on the primary shard of its database.

use super::first_chunks::{self, FirstChunks, ZoneOnShards, hashed_bounds};
use super::{Context, Operation, Step};
use crate::collection::{self, Facts};
use crate::commit::{Commit, by};
use crate::documents::{self, CHUNKS, COLLECTIONS, CollectionEntry, Fields, uuid_value};
use crate::error::{Fault, Retry};
use crate::placement;
use crate::queue::Claim;
use crate::tenure::{Plan, Tenure};
use cluster::authority::Request;
use cluster::routing::{RoutingTable, ShardId, initial_chunks};
use model::bson::{Doc, DocBuf, DocWriter, ObjectId, ValueRef};
use model::ids::Uuid;
use model::number::Number;
use model::range::KeyBound;
use model::shard_key::ShardKeyPattern;
use model::text::document_quoted;
use model::time::ClusterTime;
use model::version::Incarnation;
use model::{Code, Error, Namespace};
use wire::BoxFuture;

pub(crate) const KIND: &str = "shardCollection";

/// More than this many chunks are written before the decision, in batches.
const CHUNKS_IN_ONE_ENTRY: usize = 5_000;
const BATCH: usize = 1_000;
const CHUNKS_PER_SHARD_MAX: u64 = 8_192;
const CHUNKS_MAX: u64 = 1_000_000;

/// What a primary shard answers whose collection is not the one that was planned for.
const OVERTAKEN: [Code; 2] = [Code::CONFLICTING_OPERATION_IN_PROGRESS, Code::INVALID_UUID];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Index,
    Others,
    Primary,
    Undo,
    Decide,
    Decided,
}

const PHASES: [(Phase, &str); 6] = [
    (Phase::Index, "index"),
    (Phase::Others, "others"),
    (Phase::Primary, "primary"),
    (Phase::Undo, "undo"),
    (Phase::Decide, "decide"),
    (Phase::Decided, "decided"),
];

pub(crate) struct ShardCollection {
    namespace: Namespace,
    key: DocBuf,
    pattern: ShardKeyPattern,
    unique: bool,
    initial_chunks: Option<u64>,
    presplits_zones: bool,
    has_simple_collation: bool,
    plan: Placing,
    phase: Phase,
}

/// What `prepare` works out.
struct Placing {
    uuid: Uuid,
    epoch: ObjectId,
    began: ClusterTime,
    primary: ShardId,
    options: DocBuf,
    /// Whether there are no documents yet.
    is_empty: bool,
    /// Indexes that every owner has.
    indexes: Vec<DocBuf>,
    /// One of them that the primary lacks.
    create: Option<DocBuf>,
    /// Of each chunk, in order.
    owners: Vec<ShardId>,
    /// Between chunks that lie as zones want it.
    bounds: Option<Vec<KeyBound>>,
}

impl Placing {
    /// Of a collection that nobody knows yet.
    fn new() -> Self {
        Self {
            uuid: documents::new_uuid(),
            epoch: documents::new_object_id(),
            began: ClusterTime::ZERO,
            primary: ShardId::new(""),
            options: DocBuf::new(),
            is_empty: true,
            indexes: Vec::new(),
            create: None,
            owners: Vec::new(),
            bounds: None,
        }
    }
}

fn invalid(message: impl Into<String>) -> Fault {
    Fault::new(Code::INVALID_OPTIONS, message)
}

impl ShardCollection {
    /// Reads the command of a client.
    pub(crate) fn parse(command: Doc<'_>) -> Result<Self, Fault> {
        let namespace = Namespace::parse(crate::server::text(command, "shardCollection")?)?;
        let (mut key, mut unique, mut initial_chunks, mut has_simple_collation) =
            (None, false, None, false);
        let mut presplits_zones = false;
        for element in command.iter().skip(1) {
            let value = element.value();
            match (element.key(), value) {
                ("key", ValueRef::Document(given)) => key = Some(given),
                ("unique", ValueRef::Boolean(given)) => unique = given,
                ("numInitialChunks", _) => {
                    let number = Number::of(value).map(|number| number.to_f64());
                    let number = number.ok_or_else(|| wrong_type("numInitialChunks", value))?;
                    if number < 0.0 {
                        return Err(invalid("numInitialChunks must not be negative"));
                    }
                    initial_chunks = Some(number as u64).filter(|number| *number > 0);
                }
                ("collation", ValueRef::Document(given)) => {
                    if !given.is_empty() && given.get_str("locale") != Some("simple") {
                        return Err(Fault::new(
                            Code::BAD_VALUE,
                            format!(
                                "The collation for shardCollection must be {{locale: 'simple'}}, but found: {}",
                                document_quoted(given)
                            ),
                        ));
                    }
                    has_simple_collation = !given.is_empty();
                }
                ("presplitHashedZones", ValueRef::Boolean(given)) => presplits_zones = given,
                ("timeseries", _) => {
                    return Err(Fault::new(
                        Code::COMMAND_NOT_SUPPORTED,
                        format!(
                            "shardCollection with {} is not supported yet",
                            element.key()
                        ),
                    ));
                }
                ("key" | "unique" | "collation" | "presplitHashedZones", _) => {
                    return Err(wrong_type(element.key(), value));
                }
                _ => {}
            }
        }
        let key = key.ok_or_else(|| {
            Fault::Refused(Error::location(
                40414,
                "BSON field 'shardCollection.key' is missing but a required field",
            ))
        })?;
        let pattern = ShardKeyPattern::parse(key)?;
        let hashed = pattern.fields().iter().any(|field| field.hashed);
        if hashed && unique {
            return Err(invalid(
                "Hashed shard keys cannot be declared unique. It's possible to ensure uniqueness on \
                 the hashed field by declaring an additional (non-hashed) unique index on the field.",
            ));
        }
        if initial_chunks.is_some() && !hashed {
            return Err(invalid(
                "numInitialChunks is not supported when the shard key is not hashed.",
            ));
        }
        let name = namespace.collection();
        if name.contains('$') {
            return Err(Fault::new(
                Code::INVALID_NAMESPACE,
                format!("Invalid namespace specified '{namespace}': the collection name has a '$'"),
            ));
        }
        if matches!(namespace.database(), "admin" | "local" | "config")
            || name.starts_with("system.")
        {
            return Err(Fault::new(
                Code::ILLEGAL_OPERATION,
                format!("can't shard system namespaces: {namespace}"),
            ));
        }
        Ok(Self {
            unique,
            initial_chunks,
            presplits_zones,
            has_simple_collation,
            ..Self::new(namespace, key.to_owned(), pattern)
        })
    }

    /// The cluster's sessions collection, which no client asks for.
    pub(crate) fn of_sessions(namespace: &Namespace, lifetime_seconds: i64) -> Result<Self, Fault> {
        let key = by("_id", 1);
        let pattern = ShardKeyPattern::parse(key.as_doc())?;
        let mut operation = Self::new(namespace.clone(), key, pattern);
        operation.plan.indexes = vec![cluster::sessions::index(lifetime_seconds)];
        Ok(operation)
    }

    fn new(namespace: Namespace, key: DocBuf, pattern: ShardKeyPattern) -> Self {
        Self {
            namespace,
            key,
            pattern,
            unique: false,
            initial_chunks: None,
            presplits_zones: false,
            has_simple_collation: true,
            plan: Placing::new(),
            phase: Phase::Index,
        }
    }

    pub(crate) fn restore(fields: &Fields<'_>) -> Result<Self, Fault> {
        let key = fields.doc("key")?;
        let list = |name: &str| {
            fields
                .doc
                .get_array(name)
                .into_iter()
                .flat_map(|all| all.iter())
        };
        let mut owners = Vec::new();
        for part in list("owners") {
            let ValueRef::Document(part) = part else {
                continue;
            };
            let part = Fields::of(documents::OPERATIONS, part);
            let shard = ShardId::new(part.text("shard")?);
            owners.extend(std::iter::repeat_n(shard, part.number("chunks")? as usize));
        }
        let phase = fields.text("phase")?;
        let phase = PHASES.iter().find(|(_, name)| *name == phase);
        Ok(Self {
            namespace: Namespace::parse(fields.text("ns")?)?,
            key: key.to_owned(),
            pattern: ShardKeyPattern::parse(key)?,
            unique: fields.flag("unique"),
            initial_chunks: match fields.doc.get("numInitialChunks") {
                Some(_) => Some(fields.number("numInitialChunks")?),
                None => None,
            },
            presplits_zones: fields.flag("presplitHashedZones"),
            // Operations that an earlier version began do not say it, nor whether it is empty.
            has_simple_collation: fields.flag("simpleCollation")
                || fields.doc.get("simpleCollation").is_none(),
            plan: Placing {
                uuid: fields.uuid("uuid")?,
                epoch: fields.object_id("epoch")?,
                began: fields.time("began")?,
                primary: ShardId::new(fields.text("primary")?),
                options: fields.doc("options")?.to_owned(),
                is_empty: match fields.doc.get("isEmpty") {
                    Some(_) => fields.flag("isEmpty"),
                    None => owners.len() > 1,
                },
                indexes: list("indexes")
                    .filter_map(|index| match index {
                        ValueRef::Document(index) => Some(index.to_owned()),
                        _ => None,
                    })
                    .collect(),
                create: fields.doc.get_doc("create").map(Doc::to_owned),
                owners,
                bounds: fields.doc.get_array("bounds").map(|bounds| {
                    let bounds = bounds.iter().filter_map(|bound| match bound {
                        ValueRef::Binary { bytes, .. } => Some(KeyBound::new(bytes)),
                        _ => None,
                    });
                    bounds.collect()
                }),
            },
            // A phase that is not known can only be read again from the beginning.
            phase: phase.map_or(Phase::Index, |(phase, _)| *phase),
        })
    }

    fn reply(&self) -> DocBuf {
        DocWriter::new()
            .with("collectionsharded", self.namespace.as_str())
            .with("ok", 1.0)
            .finish()
    }

    fn entry(&self) -> Result<CollectionEntry, Fault> {
        let incarnation = Incarnation {
            epoch: self.plan.epoch,
            began: self.plan.began,
        };
        CollectionEntry::new(
            self.namespace.clone(),
            self.plan.uuid,
            incarnation,
            self.key.as_doc(),
            self.unique,
        )
    }

    fn table(&self, entry: &CollectionEntry) -> Result<RoutingTable, Fault> {
        let count = self.plan.owners.len();
        let bounds = match &self.plan.bounds {
            Some(bounds) => bounds.clone(),
            None if self.is_of_sessions() => crate::sessions::bounds(&entry.pattern, count)?,
            None => hashed_bounds(&entry.pattern, count)?,
        };
        let chunks = initial_chunks(&entry.pattern, &bounds, &self.plan.owners, self.plan.began);
        let pattern = entry.pattern.clone();
        Ok(RoutingTable::full(
            entry.uuid,
            entry.incarnation,
            pattern,
            chunks,
        )?)
    }

    /// Owners without the primary, each once.
    fn others(&self) -> Vec<ShardId> {
        let mut others = self.plan.owners.clone();
        others.sort();
        others.dedup();
        others.retain(|shard| *shard != self.plan.primary);
        others
    }

    async fn check(&mut self, tenure: &Tenure) -> Result<Option<DocBuf>, Fault> {
        {
            let state = tenure.state().await?;
            if let Some((entry, _)) = state.lookup(&self.namespace)? {
                let same = collection::same_key(entry.key.as_doc(), self.key.as_doc())
                    && entry.unique == self.unique;
                return match same {
                    true => Ok(Some(self.reply())),
                    false => Err(Fault::new(
                        Code::ALREADY_INITIALIZED,
                        format!("sharding already enabled for collection {}", self.namespace),
                    )),
                };
            }
        }
        if self.is_of_sessions() {
            self.place_sessions(tenure).await?;
            return Ok(None);
        }
        let database =
            crate::database::create_in_turn(tenure, self.namespace.database(), None, None).await?;
        self.plan.primary = database.primary.clone();
        crate::zones::check_fit(tenure, &self.namespace, self.key.as_doc()).await?;
        self.place(tenure).await?;
        Ok(None)
    }

    /// Works out from what is on the primary shard how the collection begins.
    async fn place(&mut self, tenure: &Tenure) -> Result<(), Fault> {
        let facts = Facts::ask(tenure, &self.plan.primary, &self.namespace).await?;
        let is_empty = facts.as_ref().is_none_or(|facts| facts.is_empty);
        let exists = facts.is_some();
        if let Some(facts) = facts {
            self.check_collection(&facts)?;
            self.plan.uuid = facts.uuid;
            self.plan.options = facts.options;
            self.plan.indexes = facts.indexes;
        }
        self.plan.is_empty = is_empty;
        self.choose_index(exists, is_empty)?;
        match self.chunks_by_zones(tenure, is_empty).await? {
            Some(FirstChunks { bounds, owners }) => {
                self.plan.owners = owners;
                self.plan.bounds = Some(bounds);
            }
            None => self.plan.owners = self.first_owners(tenure, is_empty)?,
        }
        self.plan.began = tenure.store.next_time();
        Ok(())
    }

    fn is_of_sessions(&self) -> bool {
        self.namespace.as_str() == cluster::sessions::NAMESPACE
    }

    /// Its database is the config server's, but no part of it is there: all shards are alike.
    async fn place_sessions(&mut self, tenure: &Tenure) -> Result<(), Fault> {
        let shards = usable_shards(tenure);
        let Some(first) = shards.first() else {
            return Err(Fault::new(Code::SHARD_NOT_FOUND, "No shards found"));
        };
        self.plan.primary = first.clone();
        for shard in &shards {
            collection::drop_sessions(tenure, shard).await?;
        }
        let (count, chunks) = (shards.len() as u64, crate::sessions::CHUNKS);
        let owner = |chunk: u64| shards[(chunk * count / chunks) as usize].clone();
        self.plan.owners = (0..chunks).map(owner).collect();
        self.plan.began = tenure.store.next_time();
        Ok(())
    }

    fn check_collection(&self, facts: &Facts) -> Result<(), Fault> {
        if facts.is_view {
            return Err(Fault::new(
                Code::COMMAND_NOT_SUPPORTED_ON_VIEW,
                format!(
                    "Namespace {} is a view, which cannot be sharded",
                    self.namespace
                ),
            ));
        }
        if facts.options.get("capped") == Some(ValueRef::Boolean(true)) {
            return Err(invalid("can't shard a capped collection"));
        }
        if facts.options.get("collation").is_some() && !self.has_simple_collation {
            return Err(Fault::new(
                Code::BAD_VALUE,
                "Collection has default collation that is not simple. Must specify collation: \
                 {locale: 'simple'}",
            ));
        }
        for index in facts
            .indexes
            .iter()
            .filter(|index| collection::is_unique(index))
        {
            if !collection::keeps_unique(index, &self.pattern) {
                return Err(invalid(format!(
                    "can't shard collection '{}' with unique index on {} and proposed shard key {}. \
                     Uniqueness can't be maintained unless shard key is a prefix",
                    self.namespace,
                    document_quoted(index.as_doc().get_doc("key").unwrap_or(Doc::EMPTY)),
                    document_quoted(self.key.as_doc()),
                )));
            }
        }
        if self.initial_chunks.is_some() && !facts.is_empty {
            return Err(invalid(
                "numInitialChunks is only supported when the collection is empty, and has a hashed \
                 field in the shard key pattern",
            ));
        }
        Ok(())
    }

    /// MongoDB's rules: an index that begins with the key is needed; for an empty collection it is made.
    fn choose_index(&mut self, exists: bool, is_empty: bool) -> Result<(), Fault> {
        let key = self.key.as_doc();
        let on_id = by("key", by("_id", 1).as_doc());
        if !self.unique && collection::supports(&on_id, key) {
            return Ok(());
        }
        if collection::same_key(key, by("_id", 1).as_doc()) {
            return Ok(());
        }
        let mut useful = self
            .plan
            .indexes
            .iter()
            .filter(|index| collection::supports(index, key))
            .peekable();
        if useful.peek().is_some() {
            let exact = |index: &&DocBuf| {
                collection::is_unique(index)
                    && collection::same_key(
                        index.as_doc().get_doc("key").unwrap_or(Doc::EMPTY),
                        key,
                    )
            };
            if self.unique && useful.find(exact).is_none() {
                return Err(invalid(format!(
                    "can't shard collection {} with unique shard key: the index on it is not unique",
                    self.namespace
                )));
            }
            return Ok(());
        }
        if !is_empty {
            return Err(invalid(
                "Please create an index that starts with the proposed shard key before sharding the \
                 collection",
            ));
        }
        let index = collection::index_on(key, self.unique);
        if exists {
            self.plan.create = Some(index.clone());
        }
        self.plan.indexes.push(index);
        Ok(())
    }

    /// Where zones want the first chunks, if there are zones and it matters.
    async fn chunks_by_zones(
        &self,
        tenure: &Tenure,
        is_empty: bool,
    ) -> Result<Option<FirstChunks>, Fault> {
        let zones = crate::zones::of_collection(tenure, &self.namespace, &self.pattern).await?;
        if self.presplits_zones {
            let why = match () {
                () if !is_empty => "the collection is not empty",
                () if zones.is_empty() => "the collection has no zones that fit its shard key",
                () => "",
            };
            if !why.is_empty() {
                return Err(invalid(format!("presplitHashedZones: {why}")));
            }
        }
        if !is_empty || zones.is_empty() {
            return Ok(None);
        }
        let usable = usable_shards(tenure);
        let mut on_shards = Vec::with_capacity(zones.len());
        for zone in zones {
            let mut shards = crate::zones::tagged(tenure, &zone.name).await?;
            shards.retain(|shard| usable.contains(shard));
            if shards.is_empty() {
                return Err(Fault::Refused(Error::location(
                    50973,
                    format!(
                        "Cannot shard collection {} because zone {} is not associated with any shard",
                        self.namespace, zone.name
                    ),
                )));
            }
            let cuts = match self.presplits_zones {
                true => {
                    let wanted = self.chunks_wanted(usable.len() as u64)?;
                    let each = wanted.div_ceil(usable.len() as u64) as usize;
                    first_chunks::zone_cuts(&self.pattern, &zone, each * shards.len())?
                }
                false => Vec::new(),
            };
            on_shards.push(ZoneOnShards { zone, shards, cuts });
        }
        let chunks = first_chunks::by_zones(&self.pattern, &on_shards, &usable);
        Ok(Some(chunks))
    }

    fn first_owners(&self, tenure: &Tenure, is_empty: bool) -> Result<Vec<ShardId>, Fault> {
        let first_hashed = self.pattern.fields()[0].hashed;
        if !is_empty || !first_hashed {
            return Ok(vec![self.plan.primary.clone()]);
        }
        let shards = usable_shards(tenure);
        let count = shards.len() as u64;
        let chunks = self.chunks_wanted(count)?;
        let together = (chunks / count).max(1);
        let owner = |chunk: u64| shards[(chunk / together % count) as usize].clone();
        Ok((0..chunks).map(owner).collect())
    }

    /// How many chunks so many shards begin with.
    fn chunks_wanted(&self, shards: u64) -> Result<u64, Fault> {
        let limit = (shards * CHUNKS_PER_SHARD_MAX).min(CHUNKS_MAX);
        let chunks = self.initial_chunks.unwrap_or(2 * shards);
        match chunks > limit {
            false => Ok(chunks),
            true => Err(invalid(format!(
                "numInitialChunks cannot be more than either: {}, {CHUNKS_PER_SHARD_MAX} * number of \
                 shards; or {CHUNKS_MAX}",
                shards * CHUNKS_PER_SHARD_MAX
            ))),
        }
    }

    async fn make_index(&mut self, tenure: &Tenure) -> Result<Step, Fault> {
        if let Some(index) = &self.plan.create {
            let mut command = DocWriter::new().with("createIndexes", self.namespace.collection());
            command.begin_array("indexes").push(index).end();
            let command = command.finish();
            let database = self.namespace.database();
            let made = tenure
                .insist(&self.plan.primary, database, command.as_doc())
                .await;
            match made {
                Ok(_) => {}
                Err(fault @ Fault::Refused(_)) => return Ok(Step::Failed(fault)),
                Err(fault) => return Err(fault),
            }
        }
        self.phase = Phase::Others;
        Ok(Step::Next)
    }

    fn create_sharded(
        &self,
        entry: &CollectionEntry,
        table: &RoutingTable,
        shard: &ShardId,
    ) -> Result<DocBuf, Fault> {
        let mut command = DocWriter::new()
            .with("_terndbCreateSharded", 1)
            .with("options", &self.plan.options);
        command.begin_array("indexes");
        for index in &self.plan.indexes {
            command.push(index);
        }
        command.end();
        command.append("indexesAreAll", true);
        // What was empty was not looked at for documents without a place among the chunks.
        if self.plan.is_empty {
            command.append("mustBeEmpty", true);
        }
        placement::tell(command, entry, table, shard)
    }

    async fn tell_others(&mut self, tenure: &Tenure) -> Result<Step, Fault> {
        let entry = self.entry()?;
        let table = self.table(&entry)?;
        for shard in self.others() {
            let command = self.create_sharded(&entry, &table, &shard)?;
            match tenure.insist(&shard, "admin", command.as_doc()).await {
                Ok(_) => {}
                Err(fault @ Fault::Refused(_)) => {
                    self.take_back(tenure).await?;
                    return Ok(Step::Failed(fault));
                }
                Err(fault) => return Err(fault),
            }
        }
        self.phase = Phase::Primary;
        Ok(Step::Next)
    }

    async fn tell_primary(&mut self, tenure: &Tenure) -> Result<Step, Fault> {
        let entry = self.entry()?;
        let table = self.table(&entry)?;
        let command = self.create_sharded(&entry, &table, &self.plan.primary)?;
        match tenure
            .insist(&self.plan.primary, "admin", command.as_doc())
            .await
        {
            Ok(_) => self.phase = Phase::Decide,
            // It is another collection by now, or not empty any more, or has other indexes.
            Err(Fault::Refused(error)) if OVERTAKEN.contains(&error.code) => {
                self.phase = Phase::Undo;
            }
            Err(fault @ Fault::Refused(_)) => {
                self.take_back(tenure).await?;
                return Ok(Step::Failed(fault));
            }
            Err(fault) => return Err(fault),
        }
        Ok(Step::Next)
    }

    /// The others forget what they made: nobody has used it.
    async fn take_back(&self, tenure: &Tenure) -> Result<(), Fault> {
        let command = placement::forget(self.namespace.as_str(), &self.plan.uuid, true);
        for shard in self.others() {
            tenure.insist(&shard, "admin", command.as_doc()).await?;
        }
        Ok(())
    }

    /// As if the command had come only now.
    async fn begin_anew(&mut self, tenure: &Tenure) -> Result<Step, Fault> {
        self.take_back(tenure).await?;
        // Another life: the others may hear of the first one late.
        let before = std::mem::replace(&mut self.plan, Placing::new());
        let placed = match self.is_of_sessions() {
            true => {
                self.plan.indexes = before.indexes;
                self.place_sessions(tenure).await
            }
            false => {
                self.plan.primary = before.primary;
                self.place(tenure).await
            }
        };
        match placed {
            Ok(()) => {}
            Err(fault @ Fault::Refused(_)) if fault.retry() == Retry::Never => {
                return Ok(Step::Failed(fault));
            }
            Err(fault) => return Err(fault),
        }
        self.phase = Phase::Index;
        Ok(Step::Next)
    }

    async fn decide(&mut self, context: Context<'_>) -> Result<Step, Fault> {
        let entry = self.entry()?;
        let table = self.table(&entry)?;
        let at_once = table.chunk_count() <= CHUNKS_IN_ONE_ENTRY;
        if !at_once {
            write_ahead(context.tenure, &table).await?;
        }
        self.phase = Phase::Decided;
        let here = &*self;
        context
            .tenure
            .decide(|state| {
                let request = Request::Shard {
                    table: table.clone(),
                };
                let now = here.plan.began;
                let answer = state
                    .authority
                    .decide(context.id, &here.namespace, request, now)?;
                let mut commit = Commit::default();
                let id = by("_id", here.namespace.as_str());
                commit.expect_none(COLLECTIONS, id.as_doc());
                commit.insert(COLLECTIONS, entry.document.as_doc());
                if at_once {
                    placement::insert_chunks(&mut commit, &table)?;
                }
                context.write_state(here, &mut commit);
                Ok(Plan {
                    commit,
                    effects: vec![placement::keeps(placement::decision(answer)?, entry)],
                    answer: (),
                })
            })
            .await?;
        Ok(Step::Written)
    }
}

fn usable_shards(tenure: &Tenure) -> Vec<ShardId> {
    tenure.with_state(|state| {
        let usable = state.authority.shards().filter(|(_, usable)| *usable);
        usable.map(|(shard, _)| shard.clone()).collect()
    })
}

/// Writes chunks that nobody looks at before the collection's own document is there.
async fn write_ahead(tenure: &Tenure, table: &RoutingTable) -> Result<(), Fault> {
    let mut delete = DocWriter::new().with("delete", CHUNKS);
    delete.begin_array("deletes").push_document();
    delete.append("q", by("uuid", uuid_value(&table.uuid)).as_doc());
    delete.append("limit", 0).end().end();
    tenure.store.run(delete).await?;
    for batch in placement::chunk_documents(table)?.chunks(BATCH) {
        let mut insert = DocWriter::new().with("insert", CHUNKS);
        insert.begin_array("documents");
        for document in batch {
            insert.push(document);
        }
        insert.end();
        tenure.store.run(insert).await?;
    }
    Ok(())
}

fn wrong_type(name: &str, value: ValueRef<'_>) -> Fault {
    Fault::new(
        Code::TYPE_MISMATCH,
        format!(
            "BSON field 'shardCollection.{name}' is the wrong type '{}'",
            value.kind().name()
        ),
    )
}

impl Operation for ShardCollection {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn claim(&self) -> Claim {
        Claim::one(&self.namespace)
    }

    fn changes(&self) -> Vec<String> {
        vec![self.namespace.to_string()]
    }

    fn halts_moves(&self) -> bool {
        false
    }

    fn append_state(&self, writer: &mut DocWriter) {
        let phase = PHASES.iter().find(|(phase, _)| *phase == self.phase);
        writer
            .append("ns", self.namespace.as_str())
            .append("phase", phase.map_or("", |(_, name)| name))
            .append("key", &self.key)
            .append("unique", self.unique)
            .append("presplitHashedZones", self.presplits_zones)
            .append("simpleCollation", self.has_simple_collation)
            .append("uuid", uuid_value(&self.plan.uuid))
            .append("epoch", self.plan.epoch)
            .append("began", self.plan.began)
            .append("primary", self.plan.primary.as_str())
            .append("options", &self.plan.options)
            .append("isEmpty", self.plan.is_empty)
            .begin_array("indexes");
        for index in &self.plan.indexes {
            writer.push(index);
        }
        writer.end();
        if let Some(index) = &self.plan.create {
            writer.append("create", index);
        }
        if let Some(chunks) = self.initial_chunks {
            writer.append("numInitialChunks", chunks as i64);
        }
        writer.begin_array("owners");
        for run in self.plan.owners.chunk_by(|a, b| a == b) {
            writer
                .push_document()
                .append("shard", run[0].as_str())
                .append("chunks", run.len() as i64)
                .end();
        }
        writer.end();
        if let Some(bounds) = &self.plan.bounds {
            writer.begin_array("bounds");
            for bound in bounds {
                let bytes = bound.as_bytes();
                writer.push(ValueRef::Binary { subtype: 0, bytes });
            }
            writer.end();
        }
    }

    fn prepare<'a>(
        &'a mut self,
        tenure: &'a Tenure,
    ) -> BoxFuture<'a, Result<Option<DocBuf>, Fault>> {
        Box::pin(self.check(tenure))
    }

    fn step<'a>(&'a mut self, context: Context<'a>) -> BoxFuture<'a, Result<Step, Fault>> {
        let tenure = context.tenure;
        match self.phase {
            Phase::Index => Box::pin(self.make_index(tenure)),
            Phase::Others => Box::pin(self.tell_others(tenure)),
            Phase::Primary => Box::pin(self.tell_primary(tenure)),
            Phase::Undo => Box::pin(self.begin_anew(tenure)),
            Phase::Decide => Box::pin(self.decide(context)),
            Phase::Decided => Box::pin(async { Ok(Step::Done(self.reply())) }),
        }
    }
}
