//! What could pass for equal, or for different, and is not.

use crate::{Servers, insert, on_runtime};
use anyhow::{Context, Result, ensure};
use bson::{Document, doc};
use differential::server::{start_mongod, start_mongod_with_users};
use mongodb::Client;
use std::time::Duration;
use verifier::namespace::Pattern;
use verifier::settings::Partitioning;
use verifier::{Outcome, Place, Settings, verify};

#[test]
fn on_two_real_servers() -> Result<()> {
    on_runtime(async {
        let servers = Servers::two_mongods().await?;
        fields_like_record_ids(&servers)
            .await
            .context("fields like record ids")?;
        indexes_of_time_series(&servers)
            .await
            .context("indexes of time series")?;
        definitions_without_a_number(&servers)
            .await
            .context("definitions with NaN")
    })
}

/// A user who may not see what both sides have does not learn that they are equal, nor that they differ.
#[test]
fn what_a_user_may_not_see_is_not_different() -> Result<()> {
    on_runtime(async {
        let (with_users, open) = (start_mongod_with_users()?, start_mongod()?);
        let uri = |name: &str| format!("mongodb://{name}:secret@{}/", with_users.address);
        let root = Client::with_uri_str(format!("{}?authSource=admin", uri("root"))).await?;
        let from = format!("mongodb://{}", open.address);
        let source = Client::with_uri_str(&from).await?;
        for client in [&root, &source] {
            insert(client, "shop", "c", &[doc! {"_id": 1}]).await?;
        }
        let admin = root.database("admin");
        for (name, roles) in [
            ("nobody", Vec::new()),
            ("reader", vec![doc! {"role": "read", "db": "shop"}]),
        ] {
            let command = doc! {"createUser": name, "pwd": "secret", "roles": roles};
            admin.run_command(command).await?;
        }
        let settings = |user: &str, database: &str| {
            let mut settings = Settings::new(&from, uri(user));
            settings.selection.include = vec![Pattern::parse(database).expect("a database's name")];
            settings.connect_timeout = Duration::from_secs(60);
            settings
        };
        let Err(error) = verify(settings("nobody", "shop")).await else {
            anyhow::bail!("nobody may see it");
        };
        let shown = error.to_string();
        ensure!(
            shown.contains("may not list the collections of shop"),
            "{shown}"
        );
        ensure!(shown.contains("grant it the role"), "{shown}");
        let folder = tempfile::tempdir()?;
        let mut settings = settings("reader", "shop");
        settings.place = Place::Directory(folder.path().join("state"));
        let report = verify(settings.clone()).await?;
        ensure!(report.outcome == Outcome::Equal, "{report}");
        // Nothing tells what changed on a single server: what was compared is compared again.
        insert(&root, "shop", "c", &[doc! {"_id": 2}]).await?;
        let report = verify(settings).await?;
        ensure!(report.totals.extra == 1 && !report.resumed, "{report}");
        Ok(())
    })
}

/// Documents whose fields have the names that a server gives to record ids.
async fn fields_like_record_ids(servers: &Servers) -> Result<()> {
    let fields = [
        doc! {"$recordId": 5_i64},
        doc! {"$recordId": 5_i64, "b": 1},
        doc! {"d": {"_id": 1}, "r": 5_i64},
    ];
    let with_id = |(id, fields): (usize, &Document)| {
        let mut document = doc! {"_id": id as i64};
        document.extend(fields.clone());
        document
    };
    let documents: Vec<Document> = fields.iter().enumerate().map(with_id).collect();
    let without: Vec<Document> = (0..3).map(|id: i64| doc! {"_id": id}).collect();
    insert(&servers.source, "records", "c", &documents).await?;
    insert(&servers.destination, "records", "c", &without).await?;
    servers.insert_both("records", "same", &documents).await?;
    let mut settings = servers.settings("records");
    settings.partitioning = Partitioning::Natural;
    let report = verify(settings).await?;
    ensure!(
        report.totals.content == 3 && report.totals.equal == 3 && report.unverified.is_empty(),
        "{report}"
    );
    Ok(())
}

async fn indexes_of_time_series(servers: &Servers) -> Result<()> {
    for client in servers.clients() {
        let create = doc! {"create": "c", "timeseries": {"timeField": "t", "metaField": "m"}};
        client.database("measured").run_command(create).await?;
    }
    let report = verify(servers.settings("measured")).await?;
    ensure!(report.outcome == Outcome::Equal, "{report}");
    let index = doc! {"createIndexes": "c", "indexes": [{"key": {"m": 1, "t": 1}, "name": "zz"}]};
    let database = servers.source.database("measured");
    database.run_command(index).await?;
    let report = verify(servers.settings("measured")).await?;
    let what: Vec<&str> = report
        .metadata_mismatches
        .iter()
        .map(|one| one.what.as_str())
        .collect();
    ensure!(what == ["index zz"], "{report}");
    Ok(())
}

async fn definitions_without_a_number(servers: &Servers) -> Result<()> {
    let nan = f64::NAN;
    for client in servers.clients() {
        for command in [
            doc! {"create": "ruled", "validator": {"a": {"$ne": nan}}},
            doc! {"create": "view", "viewOn": "ruled", "pipeline": [{"$match": {"a": nan}}]},
            doc! {"createIndexes": "ruled", "indexes": [
                {"key": {"a": 1}, "name": "a", "partialFilterExpression": {"a": nan}},
            ]},
        ] {
            client.database("nan").run_command(command).await?;
        }
    }
    let report = verify(servers.settings("nan")).await?;
    ensure!(report.outcome == Outcome::Equal, "{report}");
    Ok(())
}
