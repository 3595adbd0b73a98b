//! How the roles of a cluster reach each other: in this process where they are in it, over the network
//! elsewhere.

use parking_lot::RwLock;
use router::{Router, RouterOptions};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use wire::{
    Answer, BoxFuture, CallError, Dial, Endpoint, Host, HostOptions, ReplicaSet, ReplicaSetTimes,
    Reply, Request,
};

/// How a shard is reached: by its name and its connection string.
pub type Connect = Arc<dyn Fn(&str, &str) -> Arc<dyn Endpoint> + Send + Sync>;

/// Servers of this process, by host and port.
#[derive(Clone, Default)]
pub struct Reach {
    here: Arc<RwLock<HashMap<String, Arc<dyn Endpoint>>>>,
}

impl Reach {
    /// Says that a server is in this process.
    pub fn add(&self, host: &str, endpoint: Arc<dyn Endpoint>) {
        self.here.write().insert(host.to_owned(), endpoint);
    }

    /// The members behind `set/host,host`.
    pub fn set(&self, connection: &str) -> Arc<dyn Endpoint> {
        let (name, hosts) = connection.split_once('/').unwrap_or(("", connection));
        let hosts: Vec<&str> = hosts.split(',').collect();
        // The only member of a set is its primary.
        if let [host] = hosts.as_slice()
            && let Some(endpoint) = self.here.read().get(*host)
        {
            return endpoint.clone();
        }
        let set = ReplicaSet::new(name, hosts, self.dial(), ReplicaSetTimes::default());
        Arc::new(set)
    }

    /// The same, looked for when the first call comes.
    pub fn later(&self, connection: &str) -> Arc<dyn Endpoint> {
        Arc::new(Later {
            reach: self.clone(),
            connection: connection.to_owned(),
            found: OnceLock::new(),
        })
    }

    /// The set that one of its members belongs to, whoever else does by then.
    pub fn of_member(&self, name: &str, host: &str) -> Arc<dyn Endpoint> {
        let times = ReplicaSetTimes::default();
        Arc::new(ReplicaSet::new(name, vec![host], self.dial(), times))
    }

    /// A router of a role's own, for what it keeps in the cluster.
    pub fn routed(&self, config: Arc<dyn Endpoint>, host: &str) -> Arc<dyn Endpoint> {
        let router = Router::new(config, self.connect(), RouterOptions::new(host));
        router.endpoint()
    }

    pub fn connect(&self) -> Connect {
        let reach = self.clone();
        Arc::new(move |_shard: &str, connection: &str| reach.set(connection))
    }

    fn dial(&self) -> Dial {
        let reach = self.clone();
        Arc::new(move |host: &str| match reach.here.read().get(host) {
            Some(endpoint) => endpoint.clone(),
            None => Arc::new(Host::new(host, HostOptions::default())),
        })
    }
}

/// A set whose members of this process may not have been started yet.
struct Later {
    reach: Reach,
    connection: String,
    found: OnceLock<Arc<dyn Endpoint>>,
}

impl Later {
    fn found(&self) -> &dyn Endpoint {
        &**self.found.get_or_init(|| self.reach.set(&self.connection))
    }
}

impl Endpoint for Later {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        self.found().call(request)
    }

    fn open(&self, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        self.found().open(request)
    }
}
