//! The verifier against real servers: two `mongod`, and TernDB on either side.
//!
//! Scenarios that need the same servers share them, each with a database of its own, because
//! starting a server takes longer than most of them.

mod api;
mod cut_connections;
mod ids;
mod live;
mod mixed_clusters;
mod planted;
mod range_queries;
mod replica_set;
mod resume;
mod scenarios;

use anyhow::{Context, Result};
use bson::{Bson, Document};
use differential::server::Server;
use mongodb::Client;
use std::collections::BTreeSet;
use verifier::namespace::Pattern;
use verifier::{Report, Settings};

/// Runs a test that needs the network.
fn on_runtime(test: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(test)
}

/// Two servers with a client each.
struct Servers {
    source: Client,
    destination: Client,
    from: String,
    to: String,
    /// Held for their destructors: the processes end with them.
    _running: [Server; 2],
}

impl Servers {
    async fn new(source: Server, destination: Server) -> Result<Servers> {
        let from = format!("mongodb://{}", source.address);
        let to = format!("mongodb://{}", destination.address);
        Ok(Servers {
            source: Client::with_uri_str(&from).await?,
            destination: Client::with_uri_str(&to).await?,
            from,
            to,
            _running: [source, destination],
        })
    }

    /// Settings to verify one database.
    fn settings(&self, database: &str) -> Settings {
        let mut settings = Settings::new(&self.from, &self.to);
        settings.selection.include = vec![Pattern::parse(database).expect("a database's name")];
        settings
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
