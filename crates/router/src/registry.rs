//! The shards of the cluster and how they are reached: a mirror of `config.shards`.
//!
//! It is read at the start, every thirty seconds, when a shard is asked for that is not there, and
//! when somebody says so (`flushRouterConfig`, `addShard`). Readings run one at a time; who comes
//! meanwhile waits for the one that is under way.

use crate::Connect;
use crate::config::ConfigServer;
use cluster::routing::ShardId;
use model::bson::{Array, Doc, DocBuf, DocWriter};
use model::error::{Code, Error};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::task::JoinSet;
use wire::Endpoint;

/// One shard.
#[derive(Clone)]
pub(crate) struct Shard {
    pub(crate) id: ShardId,
    /// `set/host,host`.
    pub(crate) connection_string: Arc<str>,
    /// As the config server has it.
    pub(crate) document: Arc<DocBuf>,
    pub(crate) endpoint: Arc<dyn Endpoint>,
}

impl Shard {
    fn set_name(&self) -> Option<&str> {
        Some(self.connection_string.split_once('/')?.0)
    }

    fn hosts(&self) -> impl Iterator<Item = &str> {
        let hosts = match self.connection_string.split_once('/') {
            Some((_, hosts)) => hosts,
            None => &self.connection_string,
        };
        hosts.split(',')
    }
}

pub(crate) struct Registry {
    connect: Connect,
    shards: RwLock<BTreeMap<ShardId, Shard>>,
    reading: tokio::sync::Mutex<()>,
    readings: AtomicU64,
}

impl Registry {
    pub(crate) fn new(connect: Connect) -> Registry {
        Registry {
            connect,
            shards: RwLock::default(),
            reading: tokio::sync::Mutex::default(),
            readings: AtomicU64::new(0),
        }
    }

    /// Reads `config.shards`, unless somebody did since `seen` readings; who is not there any more.
    pub(crate) async fn reload(&self, config: &ConfigServer) -> Result<Vec<ShardId>, Error> {
        let seen = self.readings.load(Ordering::Acquire);
        let _one_at_a_time = self.reading.lock().await;
        if self.readings.load(Ordering::Acquire) != seen {
            return Ok(Vec::new());
        }
        let command = DocWriter::new()
            .with("find", "shards")
            .with("$db", "config");
        let documents = config.find_all(command).await?;
        let gone = self.take_over(&documents);
        self.readings.fetch_add(1, Ordering::AcqRel);
        Ok(gone)
    }

    fn take_over(&self, documents: &[DocBuf]) -> Vec<ShardId> {
        let mut shards = self.shards.write();
        let mut now = BTreeMap::new();
        for document in documents {
            let doc = document.as_doc();
            let (Some(id), Some(host)) = (doc.get_str("_id"), doc.get_str("host")) else {
                continue;
            };
            let key = ShardId::new(id);
            let shard = match shards.remove(&key) {
                // Connections stay where nothing changed.
                Some(mut known) if &*known.connection_string == host => {
                    known.document = Arc::new(document.clone());
                    known
                }
                _ => Shard {
                    id: key.clone(),
                    connection_string: host.into(),
                    document: Arc::new(document.clone()),
                    endpoint: (self.connect)(id, host),
                },
            };
            now.insert(key, shard);
        }
        // One with another connection string was taken out as well.
        let left = std::mem::replace(&mut *shards, now);
        let gone = left.into_keys().filter(|id| !shards.contains_key(id));
        gone.collect()
    }

    /// The shard of an id, after one more look at `config.shards` if need be.
    pub(crate) async fn shard(&self, id: &ShardId, config: &ConfigServer) -> Result<Shard, Error> {
        if let Some(shard) = self.shards.read().get(id) {
            return Ok(shard.clone());
        }
        self.reload(config).await?;
        self.find(id.as_str()).ok_or_else(|| not_found(id.as_str()))
    }

    /// Asks all shards at once who their members are now.
    pub(crate) async fn look_again(&self) {
        let endpoints: Vec<Arc<dyn Endpoint>> = {
            let shards = self.shards.read();
            shards
                .values()
                .map(|shard| shard.endpoint.clone())
                .collect()
        };
        let mut looking = JoinSet::new();
        for endpoint in endpoints {
            looking.spawn(async move { endpoint.look_again().await });
        }
        looking.join_all().await;
    }

    /// Shards whose members are others than `config.shards` says, with what is true now.
    pub(crate) fn changed(&self) -> Vec<(ShardId, String)> {
        let shards = self.shards.read();
        let hosts = |text: &str| -> Vec<String> {
            let hosts = text.split_once('/').map_or(text, |(_, hosts)| hosts);
            let mut hosts: Vec<String> = hosts.split(',').map(str::to_owned).collect();
            hosts.sort();
            hosts
        };
        let changed = shards.values().filter_map(|shard| {
            let now = shard.endpoint.connection_string()?;
            let differs = hosts(&now) != hosts(&shard.connection_string);
            differs.then(|| (shard.id.clone(), now))
        });
        changed.collect()
    }

    /// A shard by its id, the name of its replica set, one of its hosts, or its connection string.
    pub(crate) fn find(&self, name: &str) -> Option<Shard> {
        let shards = self.shards.read();
        let named = |shard: &&Shard| {
            shard.id.as_str() == name
                || shard.set_name() == Some(name)
                || &*shard.connection_string == name
                || shard.hosts().any(|host| host == name)
        };
        shards.values().find(named).cloned()
    }

    /// All of them, by id; reads `config.shards` if none is known.
    pub(crate) async fn all(&self, config: &ConfigServer) -> Result<Vec<Shard>, Error> {
        if self.shards.read().is_empty() {
            self.reload(config).await?;
        }
        let all: Vec<Shard> = self.shards.read().values().cloned().collect();
        if all.is_empty() {
            return Err(not_found("any"));
        }
        Ok(all)
    }

    /// Those that are known, without asking.
    pub(crate) fn known(&self) -> Vec<Shard> {
        self.shards.read().values().cloned().collect()
    }

    /// `{shard: connection string}`.
    pub(crate) fn connection_strings(&self) -> Vec<(String, String)> {
        let shards = self.shards.read();
        shards
            .values()
            .map(|shard| {
                let id = shard.id.as_str().to_owned();
                (id, shard.connection_string.to_string())
            })
            .collect()
    }
}

fn not_found(name: &str) -> Error {
    Error::new(
        Code::SHARD_NOT_FOUND,
        format!("Could not find shard {name}"),
    )
}

/// A batch, `firstBatch` or `nextBatch`.
pub(crate) fn array_of(cursor: Doc<'_>) -> Option<Array<'_>> {
    let first = cursor.get_array("firstBatch");
    first.or_else(|| cursor.get_array("nextBatch"))
}

/// The documents of a batch.
pub(crate) fn batch_of<'a>(cursor: Doc<'a>) -> impl Iterator<Item = Doc<'a>> {
    array_of(cursor).into_iter().flat_map(|batch| {
        batch.iter().filter_map(|value| match value {
            model::bson::ValueRef::Document(doc) => Some(doc),
            _ => None,
        })
    })
}
