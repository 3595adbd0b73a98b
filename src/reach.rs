//! How the roles of a cluster reach each other: in this process where they are in it, over the network
//! elsewhere.

use parking_lot::RwLock;
use router::{Router, RouterOptions};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use tokio::task::JoinHandle;
use wire::{
    Answer, BoxFuture, CallError, Dial, Endpoint, Host, HostOptions, PoolStatistics, ReplicaSet,
    ReplicaSetTimes, Reply, Request,
};

/// How a shard is reached: by its name and its connection string.
pub type Connect = Arc<dyn Fn(&str, &str) -> Arc<dyn Endpoint> + Send + Sync>;

/// Servers of this process, by host and port.
#[derive(Clone, Default)]
pub struct Reach {
    here: Arc<RwLock<HashMap<String, Arc<dyn Endpoint>>>>,
    /// Others' hosts, and by which address they are reached where it is another one.
    detours: Arc<BTreeMap<String, String>>,
}

impl Reach {
    pub fn with_detours(detours: &BTreeMap<String, String>) -> Self {
        Self {
            detours: Arc::new(detours.clone()),
            ..Self::default()
        }
    }

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

    /// A router of a role's own, for what it keeps in the cluster. Shards come, go and move: it keeps
    /// looking where they are, like those that clients know.
    pub fn routed(&self, config: Arc<dyn Endpoint>, host: &str) -> Arc<dyn Endpoint> {
        self.routed_with(config, RouterOptions::new(host))
    }

    fn routed_with(&self, config: Arc<dyn Endpoint>, options: RouterOptions) -> Arc<dyn Endpoint> {
        let router = Router::new(config, self.connect(), options);
        Arc::new(Routed {
            endpoint: router.endpoint(),
            looking: router.spawn_looking(),
        })
    }

    pub fn connect(&self) -> Connect {
        let reach = self.clone();
        Arc::new(move |_shard: &str, connection: &str| reach.set(connection))
    }

    fn dial(&self) -> Dial {
        let reach = self.clone();
        Arc::new(move |host: &str| match reach.here.read().get(host) {
            Some(endpoint) => endpoint.clone(),
            None => {
                let by = reach.detours.get(host).map_or(host, String::as_str);
                Arc::new(Host::new(by, HostOptions::default()))
            }
        })
    }
}

/// A router of this process, which looks for shards as long as somebody holds it.
struct Routed {
    endpoint: Arc<dyn Endpoint>,
    looking: JoinHandle<()>,
}

impl Endpoint for Routed {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        self.endpoint.call(request)
    }

    fn open(&self, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        self.endpoint.open(request)
    }

    fn pools(&self) -> Vec<PoolStatistics> {
        self.endpoint.pools()
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        self.looking.abort();
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

    fn look_again(&self) -> BoxFuture<'_, ()> {
        self.found().look_again()
    }

    fn pools(&self) -> Vec<PoolStatistics> {
        self.found().pools()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::bson::DocWriter;
    use parking_lot::Mutex;
    use std::time::Duration;

    /// A config server that knows one shard, wherever it is now.
    struct OneShard(Mutex<&'static str>);

    impl Endpoint for OneShard {
        fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
            if request.name() != "find" {
                return Box::pin(async { Ok(Reply::ok()) });
            }
            let host = *self.0.lock();
            let mut writer = Reply::writer();
            writer.begin_document("cursor").begin_array("firstBatch");
            writer
                .push_document()
                .append("_id", "shard0")
                .append("host", host)
                .end();
            writer
                .end()
                .append("id", 0i64)
                .append("ns", "config.shards");
            writer.end().append("ok", 1.0);
            Box::pin(async move { Ok(Reply::from_writer(writer)) })
        }
    }

    /// A shard that says by its answers which one it is.
    struct At(&'static str);

    impl Endpoint for At {
        fn call(&self, _request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
            let mut writer = Reply::writer();
            writer.begin_array("databases").push_document();
            writer.append("name", self.0).append("sizeOnDisk", 1i64);
            writer.append("empty", false).end().end();
            writer.append("ok", 1.0);
            Box::pin(async move { Ok(Reply::from_writer(writer)) })
        }
    }

    /// ⚑ A member's own router finds a shard that is registered under another address later.
    #[tokio::test]
    async fn a_role_follows_its_shards() {
        let reach = Reach::default();
        for host in ["one:1", "two:2"] {
            reach.add(host, Arc::new(At(host)));
        }
        let config = Arc::new(OneShard(Mutex::new("shard0/one:1")));
        let mut options = RouterOptions::new("member:1");
        options.shards_refresh = Duration::from_millis(5);
        let routed = reach.routed_with(config.clone(), options);
        let is_asked = async |host: &str| {
            let command = DocWriter::new()
                .with("listDatabases", 1)
                .with("$db", "admin");
            let request = Request::from_parts(command.finish(), Vec::new()).expect("a command");
            let reply = routed.call(request).await.expect("an answer");
            format!("{:?}", reply.document()).contains(host)
        };
        assert!(is_asked("one:1").await);
        *config.0.lock() = "shard0/two:2";
        let follows = async {
            while !is_asked("two:2").await {
                tokio::task::yield_now().await;
            }
        };
        let followed = tokio::time::timeout(Duration::from_secs(60), follows).await;
        followed.expect("the shard is found where it is now");
    }
}
