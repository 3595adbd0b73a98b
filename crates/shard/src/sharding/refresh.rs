//! A shard that meets a newer version than its own asks the config server.
//!
//! ```text
//!   request with a newer version ─► _configsvrGetRouting since what is known
//!     the same ranges under new versions (splits, merges, a refined key) ─► adopted, through the log
//!     other ranges ─► left alone: they are gained and lost by the protocol of moves only
//! ```
//!
//! The config server tells shards of every change; this is for messages that were lost or have
//! yet to come. One question at a time: who waited for another's looks again first. A shard
//! that is not primary, or knows no config server, asks nobody.

use super::ownership::Ownership;
use super::state::KnownDatabase;
use super::version_check::{Routed, namespace_of};
use crate::Shard;
use model::bson::{Doc, DocWriter, ValueRef};
use model::range::{KeyRange, RangeSet};
use model::shard_key::ShardKeyPattern;
use model::version::{Age, ChunkVersion, DatabaseVersion, PlacementVersion};
use model::{Code, Error, Namespace};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use wire::{Endpoint, Request};

/// How long an answer of the config server is waited for.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// The way to the config server.
#[derive(Default)]
pub(crate) struct Refresh {
    config: OnceLock<Arc<dyn Endpoint>>,
    one_at_a_time: tokio::sync::Mutex<()>,
}

impl Refresh {
    /// The first one counts.
    pub(crate) fn set_config(&self, config: Arc<dyn Endpoint>) {
        let _ = self.config.set(config);
    }

    pub(crate) fn config(&self) -> Option<&Arc<dyn Endpoint>> {
        self.config.get()
    }
}

impl Shard {
    /// Asks the config server about what a request knows better; false if there was nothing
    /// to ask. What cannot be found out stays as it is: the caller answers as before.
    pub(crate) async fn refresh_for(&self, request: &Request, routed: &Routed) -> bool {
        let Some(config) = self.refresh.config.get() else {
            return false;
        };
        if !self.replica_set.is_primary() || !self.sharding.is_shard() {
            return false;
        }
        let _one = self.refresh.one_at_a_time.lock().await;
        let mut asked = false;
        if let Some(received) = routed.database()
            && self.knows_less_of(request.database(), received)
        {
            asked = true;
            let _ = self.refresh_database(&**config, request.database()).await;
        }
        if let (Some(received), Some(namespace)) = (routed.shard(), namespace_of(request))
            && let Some(ownership) = self.ownership_of(&namespace)
            && matches!(received.age(ownership.placement), Age::Newer | Age::Unknown)
            && !received.is_ignored()
        {
            asked = true;
            let _ = self
                .refresh_placement(&**config, &namespace, &ownership)
                .await;
        }
        asked
    }

    fn ownership_of(&self, namespace: &Namespace) -> Option<Arc<Ownership>> {
        self.catalog.get(namespace)?.sharded_ownership().cloned()
    }

    fn knows_less_of(&self, database: &str, received: DatabaseVersion) -> bool {
        match self.sharding.known().databases.get(database) {
            Some(known) => matches!(received.age(known.version), Age::Newer | Age::Unknown),
            None => true,
        }
    }

    async fn refresh_database(&self, config: &dyn Endpoint, name: &str) -> Result<(), Error> {
        let question = DocWriter::new()
            .with("_configsvrGetDatabase", 1)
            .with("db", name);
        let reply = ask(self, config, question).await?;
        let reply = reply.as_doc();
        let version = reply
            .get_doc("version")
            .ok_or_else(|| malformed("version"))?;
        let version = DatabaseVersion::from_document(version)?;
        let here = reply.get_str("primary") == Some(self.sharding.shard_name().as_str());
        // ⚑ It was decided when all of its collections were ready here, so those that are left are on
        // their way, and if none is, all have come.
        if here && self.is_arriving(name) {
            return Ok(());
        }
        let database = KnownDatabase {
            version,
            primary: here,
            moving: None,
        };
        self.set_database(name, database).await
    }

    async fn refresh_placement(
        &self,
        config: &dyn Endpoint,
        namespace: &Namespace,
        known: &Ownership,
    ) -> Result<(), Error> {
        let told = Told::ask(self, config, namespace, known).await?;
        let Some(told) = told else {
            return Ok(());
        };
        let Some(new) = told.adopted(known) else {
            return Ok(());
        };
        let _ddl = self.ddl.lock().await;
        match self.catalog.get(namespace) {
            Some(collection) if collection.uuid.0 == told.uuid => {
                self.place(&collection, new, false).await
            }
            _ => Ok(()),
        }
    }
}

/// What the config server tells of a collection.
struct Told {
    uuid: [u8; 16],
    pattern: ShardKeyPattern,
    key: model::bson::DocBuf,
    unique: bool,
    version: PlacementVersion,
    /// This shard's chunks among those told, and the others'.
    own: Vec<KeyRange>,
    others: Vec<KeyRange>,
    /// The highest version of this shard's chunks.
    highest: ChunkVersion,
}

impl Told {
    /// All pages of the answer; none if the collection is not sharded.
    async fn ask(
        asking: &Shard,
        config: &dyn Endpoint,
        namespace: &Namespace,
        known: &Ownership,
    ) -> Result<Option<Told>, Error> {
        let shard = asking.sharding.shard_name();
        let mut since = known.collection_version;
        let mut told: Option<Told> = None;
        loop {
            let mut question = DocWriter::new()
                .with("_configsvrGetRouting", namespace.as_str())
                .with("ns", namespace.as_str());
            question.begin_document("since");
            since.append_to(&mut question);
            question.end();
            let reply = ask(asking, config, question).await?;
            let reply = reply.as_doc();
            if reply.get("sharded") != Some(ValueRef::Boolean(true)) {
                return Ok(None);
            }
            let mut page = Told::begin(reply)?;
            // Of another life than the pages before: begun anew.
            if let Some(before) = told.take()
                && before.version.incarnation == page.version.incarnation
            {
                page.own = before.own;
                page.others = before.others;
                page.highest = before.highest;
            }
            let last = page.take_chunks(reply, &shard)?;
            let more = reply.get("more") == Some(ValueRef::Boolean(true));
            let next = PlacementVersion {
                incarnation: page.version.incarnation,
                chunk: last,
            };
            told = Some(page);
            if !more || next == since {
                return Ok(told);
            }
            since = next;
        }
    }

    fn begin(reply: Doc<'_>) -> Result<Told, Error> {
        let key = reply.get_doc("key").ok_or_else(|| malformed("key"))?;
        let version = reply
            .get_doc("version")
            .ok_or_else(|| malformed("version"))?;
        let uuid = match reply.get("uuid") {
            Some(ValueRef::Binary { bytes, .. }) => bytes.try_into().ok(),
            _ => None,
        };
        Ok(Told {
            uuid: uuid.ok_or_else(|| malformed("uuid"))?,
            pattern: ShardKeyPattern::parse(key)?,
            key: key.to_owned(),
            unique: reply.get("unique") == Some(ValueRef::Boolean(true)),
            version: PlacementVersion::from_document(version)?,
            own: Vec::new(),
            others: Vec::new(),
            highest: ChunkVersion::ZERO,
        })
    }

    /// Takes the chunks of a page; the version of the last.
    fn take_chunks(&mut self, reply: Doc<'_>, shard: &str) -> Result<ChunkVersion, Error> {
        let listed = reply
            .get_array("chunks")
            .ok_or_else(|| malformed("chunks"))?;
        let mut last = ChunkVersion::ZERO;
        for chunk in listed.iter() {
            let ValueRef::Document(chunk) = chunk else {
                return Err(malformed("chunk"));
            };
            let bound = |name| chunk.get_doc(name).ok_or_else(|| malformed("bound"));
            let range = self.pattern.range_of(bound("min")?, bound("max")?)?;
            last = match chunk.get("lastmod") {
                Some(ValueRef::Timestamp(time)) => ChunkVersion::new(time.seconds, time.increment),
                _ => return Err(malformed("lastmod")),
            };
            if chunk.get_str("shard") == Some(shard) {
                self.highest = self.highest.max(last);
                self.own.push(range);
            } else {
                self.others.push(range);
            }
        }
        Ok(last)
    }

    /// The ownership that this means, if it is that of the same ranges.
    fn adopted(&self, known: &Ownership) -> Option<Ownership> {
        let own = RangeSet::of(self.own.iter().cloned());
        let others = RangeSet::of(self.others.iter().cloned());
        let same_life = self.version.incarnation == known.placement.incarnation;
        let before = match self.pattern.extends(&known.pattern) {
            true => known.owned_by(&self.pattern),
            false => return None,
        };
        let unchanged = match same_life {
            // Only what changed was told.
            true => own.difference(&before).is_empty() && others.intersection(&before).is_empty(),
            false => own == before,
        };
        let chunk = match same_life {
            true => self.highest.max(known.placement.chunk),
            false => self.highest,
        };
        unchanged.then(|| Ownership {
            pattern: self.pattern.clone(),
            key: self.key.clone(),
            unique: self.unique,
            placement: PlacementVersion {
                incarnation: self.version.incarnation,
                chunk,
            },
            collection_version: self.version,
            owned: Arc::new(before),
            orphans: known.orphans,
            moving: known.moving.clone(),
            unsharded: false,
            next_key: known.next_key_of(&self.pattern),
        })
    }
}

async fn ask(
    shard: &Shard,
    config: &dyn Endpoint,
    mut question: DocWriter,
) -> Result<model::bson::DocBuf, Error> {
    shard.sharding.config_time.append_to(&mut question);
    let unreachable = |why: String| Error::new(Code::HOST_UNREACHABLE, why);
    let question = question.with("$db", "admin").finish();
    let request = Request::from_parts(question, Vec::new())
        .map_err(|fault| Error::new(Code::INTERNAL_ERROR, format!("{fault:?}")))?;
    let reply = match tokio::time::timeout(ANSWER_WAIT, config.call(request)).await {
        Ok(answered) => answered.map_err(|error| unreachable(error.to_string()))?,
        Err(_) => return Err(unreachable("the config server does not answer".to_owned())),
    };
    let reply = reply.document().to_owned();
    match reply.get("ok") {
        Some(ValueRef::Double(1.0)) => {
            shard.hear_config_time(reply.as_doc());
            Ok(reply)
        }
        _ => Err(unreachable(
            "the config server refuses to answer".to_owned(),
        )),
    }
}

fn malformed(what: &str) -> Error {
    Error::new(
        Code::INTERNAL_ERROR,
        format!("an answer of the config server has no {what}"),
    )
}
