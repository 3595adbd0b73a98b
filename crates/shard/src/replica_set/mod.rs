//! The replica set that this shard is, as its clients see it.
//!
//! Everything a client can notice about the set is one value, a [`Topology`], behind a watch channel: the
//! configuration, and which part this member plays. Each change of it raises the version by one, and that
//! is what a `hello` that waits is waiting for.
//!
//! | file | part |
//! | --- | --- |
//! | `configuration.rs` | the document that names the members |
//! | `start.rs` | the first configuration, and a new address of the only member |
//! | `cluster_time.rs` | `$clusterTime` and `operationTime`, in and out |
//!
//! The configuration changes through the log: the applier publishes it here.

pub(crate) mod cluster_time;
pub(crate) mod configuration;
mod start;

use crate::command::default_concerns::ConcernDefaults;
use configuration::Configuration;
use model::bson::ObjectId;
use parking_lot::RwLock;
use replication::Term;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;

/// How a shard takes part in its replica set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSetOptions {
    pub name: String,
    /// As clients and other members reach this one: host and port.
    pub host: String,
}

/// What clients can notice about the set.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    /// Counts the changes since the process began.
    pub(crate) version: i64,
    pub(crate) configuration: Option<Arc<Configuration>>,
}

pub(crate) struct ReplicaSet {
    /// Set when the shard starts to serve.
    host: OnceLock<String>,
    topology: watch::Sender<Topology>,
    /// Concerns of commands that name none, where they are not the built-in ones.
    defaults: RwLock<Option<Arc<ConcernDefaults>>>,
    /// When the last applied entry was made, by the clock of the member that made it.
    applied_wall_ms: AtomicI64,
}

impl ReplicaSet {
    pub(crate) fn new(
        configuration: Option<Configuration>,
        defaults: Option<ConcernDefaults>,
    ) -> Self {
        Self {
            host: OnceLock::new(),
            topology: watch::Sender::new(Topology {
                version: 0,
                configuration: configuration.map(Arc::new),
            }),
            defaults: RwLock::new(defaults.map(Arc::new)),
            applied_wall_ms: AtomicI64::new(0),
        }
    }

    pub(crate) fn host(&self) -> &str {
        self.host.get().map_or("", String::as_str)
    }

    pub(crate) fn topology(&self) -> Topology {
        self.topology.borrow().clone()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Topology> {
        self.topology.subscribe()
    }

    pub(crate) fn configuration(&self) -> Option<Arc<Configuration>> {
        self.topology.borrow().configuration.clone()
    }

    pub(crate) fn defaults(&self) -> Option<Arc<ConcernDefaults>> {
        self.defaults.read().clone()
    }

    /// The log has applied other defaults.
    pub(crate) fn defaulted(&self, defaults: ConcernDefaults) {
        *self.defaults.write() = Some(Arc::new(defaults));
    }

    pub(crate) fn applied_wall_ms(&self) -> i64 {
        self.applied_wall_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn applied_at(&self, wall_ms: i64) {
        self.applied_wall_ms.store(wall_ms, Ordering::Relaxed);
    }

    /// The state was installed from another member, and this was read from it.
    pub(crate) fn take_over(&self, loaded: &ReplicaSet) {
        *self.defaults.write() = loaded.defaults.read().clone();
        let configuration = loaded.topology.borrow().configuration.clone();
        self.topology.send_modify(|topology| {
            topology.version += 1;
            topology.configuration = configuration;
        });
    }

    /// The log has applied another configuration.
    pub(crate) fn configured(&self, configuration: Configuration) {
        self.topology.send_modify(|topology| {
            topology.version += 1;
            topology.configuration = Some(Arc::new(configuration));
        });
    }
}

/// What drivers tell two primaries apart by: the later term has the greater id.
pub(crate) fn election_id(term: Term) -> ObjectId {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&[0x7F, 0xFF, 0xFF, 0xFF]);
    bytes[4..].copy_from_slice(&term.get().to_be_bytes());
    ObjectId(bytes)
}
