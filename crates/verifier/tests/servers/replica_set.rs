//! Two real replica sets of one member each, which have change streams.

use anyhow::Result;
use bson::Document;
use differential::server::{Server, start_mongod};
use mongodb::Client;
use std::time::Duration;
use verifier::namespace::Pattern;
use verifier::{Settings, Writes};

/// A server process of ours; it ends with this value.
pub struct ReplicaSet {
    pub uri: String,
    pub client: Client,
    _running: Server,
}

impl ReplicaSet {
    async fn start() -> Result<ReplicaSet> {
        let running = start_mongod()?;
        let uri = format!("mongodb://{}", running.address);
        Ok(ReplicaSet {
            client: Client::with_uri_str(&uri).await?,
            uri,
            _running: running,
        })
    }
}

/// A source and a destination.
pub struct Sets {
    pub source: ReplicaSet,
    pub destination: ReplicaSet,
}

impl Sets {
    pub async fn start() -> Result<Sets> {
        Ok(Sets {
            source: ReplicaSet::start().await?,
            destination: ReplicaSet::start().await?,
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
