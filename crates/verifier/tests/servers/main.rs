//! The verifier against real servers: two `mongod`, and TernDB on either side.
//!
//! Scenarios that need the same servers share them, each with a database of its own, because
//! starting a server takes longer than most of them.

mod api;
mod as_written;
mod come_and_gone;
mod cut_connections;
mod ids;
mod lease;
mod live;
mod mistakes;
mod mixed_clusters;
mod pitfalls;
mod planted;
mod range_queries;
mod resume;
mod scenarios;
mod secondaries;
mod sharded;
mod went_back;

use anyhow::{Context, Result};
use bson::{Bson, Document};
use differential::server::{Server, start_members, start_mongod, start_terndb, start_terndb_with};
use mongodb::Client;
use mongodb::options::SelectionCriteria;
use std::collections::BTreeSet;
use std::time::Duration;
use verifier::namespace::Pattern;
use verifier::settings::Changes;
use verifier::{Report, Settings, Writes};

/// Runs a test that needs the network.
fn on_runtime(test: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(test)
}

/// Which server stands on a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    MongoDb,
    TernDb,
    /// Three members of a replica set.
    TernDbMembers,
    /// A router over so many shards.
    TernDbSharded(&'static str),
}

impl Kind {
    fn start(self) -> Result<Server> {
        match self {
            Kind::MongoDb => start_mongod(),
            Kind::TernDb => start_terndb(),
            Kind::TernDbMembers => start_members(),
            Kind::TernDbSharded(shards) => start_terndb_with(&["--shards", shards]),
        }
    }
}

/// Two servers with a client each.
struct Servers {
    source: Client,
    destination: Client,
    from: String,
    to: String,
    /// How runs that are written meanwhile follow both sides.
    changes: Changes,
    /// Where runs read, if not from the primaries.
    reads_from: Option<SelectionCriteria>,
    /// Held for their destructors too: the processes end with them.
    running: [Server; 2],
}

impl Servers {
    async fn start(source: Kind, destination: Kind) -> Result<Servers> {
        let (source, destination) = (source.start()?, destination.start()?);
        let from = format!("mongodb://{}", source.address);
        let to = format!("mongodb://{}", destination.address);
        Ok(Servers {
            source: Client::with_uri_str(&from).await?,
            destination: Client::with_uri_str(&to).await?,
            from,
            to,
            changes: Changes::Stream,
            reads_from: None,
            running: [source, destination],
        })
    }

    async fn two_mongods() -> Result<Servers> {
        Servers::start(Kind::MongoDb, Kind::MongoDb).await
    }

    fn clients(&self) -> [&Client; 2] {
        [&self.source, &self.destination]
    }

    /// Settings to verify one database.
    fn settings(&self, database: &str) -> Settings {
        let mut settings = Settings::new(&self.from, &self.to);
        settings.selection.include = vec![Pattern::parse(database).expect("a database's name")];
        settings.read_preference = self.reads_from.clone();
        // A machine that is busy with other tests may take its time.
        settings.connect_timeout = Duration::from_secs(60);
        settings
    }

    /// Settings to verify one database while it is written.
    fn live_settings(&self, database: &str) -> Settings {
        let mut settings = self.settings(database);
        settings.writes = Writes::On;
        settings.changes = self.changes;
        settings.generation_pause = Duration::from_millis(50);
        settings
    }

    /// Drops every database, so that scenarios can be played again.
    async fn clear(&self) -> Result<()> {
        for client in self.clients() {
            for name in client.list_database_names().await? {
                if !matches!(name.as_str(), "admin" | "config" | "local") {
                    client.database(&name).drop().await?;
                }
            }
        }
        Ok(())
    }

    /// The same documents on both sides.
    async fn insert_both(
        &self,
        database: &str,
        collection: &str,
        documents: &[Document],
    ) -> Result<()> {
        insert(&self.source, database, collection, documents).await?;
        insert(&self.destination, database, collection, documents).await
    }
}

async fn insert(
    client: &Client,
    database: &str,
    collection: &str,
    documents: &[Document],
) -> Result<()> {
    let database = client.database(database);
    if documents.is_empty() {
        // The collection is to be there nevertheless.
        let command = bson::doc! {"create": collection};
        database.run_command(command).await?;
        return Ok(());
    }
    // By command: the driver's own insert has opinions about documents.
    for chunk in documents.chunks(10_000) {
        let command =
            bson::doc! {"insert": collection, "documents": chunk.to_vec(), "ordered": false};
        let reply = database.run_command(command).await?;
        anyhow::ensure!(!reply.contains_key("writeErrors"), "{reply}");
    }
    Ok(())
}

/// The mismatches as lines of text, in no order: `content planted0 int {"$numberInt":"1"}`.
fn found(report: &Report) -> BTreeSet<String> {
    let lines = report.mismatches.iter().map(|one| {
        format!(
            "{} {} {} {}",
            one.kind, one.namespace, one.id.kind, one.id.value
        )
    });
    lines.collect()
}

/// How a report names an `_id`.
fn shown_id(id: &Bson) -> Result<String> {
    let bytes = bson::doc! {"_id": id}.to_vec()?;
    let value = verifier::element::field(&bytes, "_id")?.context("there is one")?;
    let shown = verifier::difference::show(value);
    Ok(format!("{} {}", shown.kind, shown.value))
}
