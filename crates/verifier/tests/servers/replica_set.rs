//! Two real replica sets of one member each, which have change streams.

use anyhow::{Result, bail};
use bson::{Document, doc};
use differential::server::find_mongod;
use mongodb::Client;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use verifier::namespace::Pattern;
use verifier::{Settings, Writes};

/// A server process of ours; it ends with this value.
pub struct ReplicaSet {
    child: Child,
    pub uri: String,
    pub client: Client,
    _data: tempfile::TempDir,
}

impl Drop for ReplicaSet {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ReplicaSet {
    pub async fn start() -> Result<ReplicaSet> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let data = tempfile::tempdir()?;
        let child = Command::new(find_mongod()?)
            .arg("--dbpath")
            .arg(data.path())
            .args(["--port", &port.to_string(), "--bind_ip", "127.0.0.1"])
            .args(["--replSet", "rs", "--oplogSize", "200", "--nounixsocket"])
            .args(["--wiredTigerCacheSizeGB", "0.25", "--quiet"])
            .args(["--setParameter", "diagnosticDataCollectionEnabled=false"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let uri = format!("mongodb://127.0.0.1:{port}/?directConnection=true");
        let mut set = ReplicaSet {
            client: Client::with_uri_str(&uri).await?,
            child,
            uri,
            _data: data,
        };
        set.initiate(port).await?;
        Ok(set)
    }

    async fn initiate(&mut self, port: u16) -> Result<()> {
        let admin = self.client.database("admin");
        let members = vec![doc! {"_id": 0, "host": format!("127.0.0.1:{port}")}];
        let command = doc! {"replSetInitiate": {"_id": "rs", "members": members}};
        let deadline = Instant::now() + Duration::from_secs(60);
        while admin.run_command(command.clone()).await.is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("mongod ended with {status}");
            }
            anyhow::ensure!(Instant::now() < deadline, "mongod does not answer");
        }
        loop {
            let hello: Document = admin.run_command(doc! {"hello": 1}).await?;
            if hello.get_bool("isWritablePrimary").unwrap_or(false) {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "no primary");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A source and a destination.
pub struct Sets {
    pub source: ReplicaSet,
    pub destination: ReplicaSet,
}

impl Sets {
    pub async fn start() -> Result<Sets> {
        let (source, destination) = tokio::try_join!(ReplicaSet::start(), ReplicaSet::start())?;
        Ok(Sets {
            source,
            destination,
        })
    }

    /// Settings to verify one database while it is written.
    pub fn settings(&self, database: &str) -> Settings {
        let mut settings = Settings::new(&self.source.uri, &self.destination.uri);
        settings.selection.include = vec![Pattern::parse(database).expect("a database's name")];
        settings.writes = Writes::On;
        settings.generation_pause = Duration::from_millis(50);
        settings
    }

    pub async fn insert_both(
        &self,
        database: &str,
        collection: &str,
        documents: &[Document],
    ) -> Result<()> {
        for set in [&self.source, &self.destination] {
            crate::insert(&set.client, database, collection, documents).await?;
        }
        Ok(())
    }
}
