//! `terndb status`: the cluster as a table, asked of a router like any client would.
//!
//! The config server, shards and their members, databases, sharded collections with their chunks on each shard,
//! sizes, and operations that run; moves of ranges have bars (`status_moves.rs`). A server that is no router shows the
//! members of its replica set.
//!
//! Whoever does not answer is named, and costs [`LIMIT`] once: members are asked side by side, and so are the sizes of
//! collections, with one limit for all of them.

use crate::status_moves;
use anyhow::{Context, Result, bail};
use clap::Args;
use futures_util::StreamExt;
use futures_util::future::join_all;
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::number::Number;
use model::text::document_quoted;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;
use wire::{Endpoint, Host, HostOptions, Request};

/// How long one server may take to answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Rows of one table at most; that there are more is said.
const ROWS_MAX: usize = 10_000;

/// Collections whose sizes are asked for at a time.
const SIZES_AT_ONCE: usize = 32;

/// Between two looks with `--watch`.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Args)]
pub struct StatusOptions {
    /// A router, or a server: host and port, or the line to connect with
    #[arg(default_value = "127.0.0.1:27017", value_name = "HOST:PORT")]
    pub host: String,

    /// Show it again every second, until interrupted
    #[arg(long)]
    pub watch: bool,
}

pub fn run(options: &StatusOptions) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let host = host_of(&options.host);
    if !options.watch {
        let report = runtime.block_on(report(host))?;
        print!("{}", report.text);
        return match report.silent {
            Some(why) => bail!(why),
            None => Ok(()),
        };
    }
    runtime.block_on(async {
        loop {
            let text = match report(host).await {
                Ok(Report { text, silent }) => match silent {
                    Some(why) => format!("{text}{why}\n"),
                    None => text,
                },
                Err(error) => format!("{error:#}\n"),
            };
            // From the top of an empty screen.
            print!("\x1b[2J\x1b[H{text}");
            std::io::stdout().flush().context("cannot print")?;
            tokio::time::sleep(EVERY).await;
        }
    })
}

/// The first host of a connection string.
fn host_of(given: &str) -> &str {
    let hosts = given.strip_prefix("mongodb://").unwrap_or(given);
    let hosts = hosts.split(['/', '?']).next().unwrap_or_default();
    let hosts = hosts.rsplit('@').next().unwrap_or_default();
    hosts.split(',').next().unwrap_or_default()
}

/// What is known of a cluster or a set, as text.
#[derive(Default)]
struct Report {
    text: String,
    /// Who should have answered and did not.
    silent: Option<String>,
}

async fn report(host: &str) -> Result<Report> {
    let server = Host::new(host, HostOptions::default());
    let hello = ask(&server, "admin", DocWriter::new().with("hello", 1)).await?;
    match hello.as_doc().get_str("msg") {
        Some("isdbgrid") => Ok(cluster(&server, host).await),
        _ => Ok(Report {
            text: members(host).await,
            silent: None,
        }),
    }
}

/// What a router says of its cluster, as far as it can.
async fn cluster(router: &Host, host: &str) -> Report {
    let mut report = Report::default();
    if let Err(why) = ask_cluster(router, host, &mut report.text).await {
        report.silent = Some(format!(
            "router {host} answers, but cannot read what its config server has: {why:#}; is the config server up?"
        ));
    }
    report
}

async fn ask_cluster(router: &Host, host: &str, text: &mut String) -> Result<()> {
    let version = find(router, "version").await?;
    let id = version.first().map(|doc| show(doc.get("clusterId")));
    let shards = find(router, "shards").await?;
    text.push_str(&format!(
        "cluster {} by router {host}\n\n",
        id.unwrap_or_default()
    ));
    let names: Vec<String> = shards.iter().map(|shard| show(shard.get("_id"))).collect();
    let mut groups: Vec<(String, String)> = Vec::new();
    for (shard, name) in shards.iter().zip(&names) {
        groups.push((name.clone(), show(shard.get("host"))));
    }
    let map = ask(router, "admin", DocWriter::new().with("getShardMap", 1)).await?;
    let map = map.as_doc().get_doc("map").unwrap_or(Doc::EMPTY);
    groups.push(("config".to_owned(), show(map.get("config"))));
    let asked = groups.iter().map(|(_, connection)| {
        let hosts = connection.split_once('/').map_or("", |(_, hosts)| hosts);
        roles(hosts)
    });
    let mut table = Table::new(&["SHARD", "MEMBERS"]);
    for ((name, _), roles) in groups.iter().zip(join_all(asked).await) {
        table.row(vec![name.clone(), roles]);
    }
    text.push_str(&table.render());

    let mut table = Table::new(&["DATABASE", "PRIMARY"]);
    for database in find(router, "databases").await? {
        table.row(vec![
            show(database.get("_id")),
            show(database.get("primary")),
        ]);
    }
    text.push_str(&table.render());
    text.push_str(&collections(router, &names).await?);
    text.push_str(&operations(router).await?);
    Ok(())
}

/// Sharded collections, with their chunks on each shard.
async fn collections(router: &Host, shards: &[String]) -> Result<String> {
    let mut titles = vec!["COLLECTION", "KEY", "CHUNKS"];
    titles.extend(shards.iter().map(String::as_str));
    titles.extend(["DOCUMENTS", "SIZE"]);
    let mut table = Table::new(&titles);
    let placed = chunks(router).await?;
    let collections = find(router, "collections").await?;
    let name = |collection: &DocBuf| show(collection.get("_id"));
    let names: Vec<String> = collections.iter().take(ROWS_MAX).map(name).collect();
    let sizes = sizes_of(router, &names).await;
    for (at, collection) in collections.iter().enumerate() {
        let key = collection.as_doc().get_doc("key").unwrap_or(Doc::EMPTY);
        let here = placed.get(&show(collection.get("uuid")));
        let count = |shard: &String| here.and_then(|here| here.get(shard)).copied().unwrap_or(0);
        let mut row = vec![name(collection), document_quoted(key).to_string()];
        row.push(shards.iter().map(count).sum::<i64>().to_string());
        row.extend(shards.iter().map(|shard| count(shard).to_string()));
        let size = sizes.get(at).cloned().flatten();
        row.extend(size.unwrap_or_else(|| ["-".to_owned(), "-".to_owned()]));
        table.row(row);
    }
    let mut text = table.render();
    let unknown: Vec<&str> = names
        .iter()
        .zip(&sizes)
        .filter(|(_, size)| size.is_none())
        .map(|(name, _)| name.as_str())
        .collect();
    if !unknown.is_empty() {
        text.push_str(&format!(
            "no sizes within {} s, because a shard of theirs does not answer: {}\n\n",
            LIMIT.as_secs(),
            unknown.join(", ")
        ));
    }
    Ok(text)
}

/// Moves, and whatever else runs.
async fn operations(router: &Host) -> Result<String> {
    let mut text = String::new();
    let operations = find(router, "terndb_operations").await?;
    let mut table = Table::new(&["MOVING", "RANGE", "WHERE", "PROGRESS"]);
    let is_move = |one: &DocBuf| one.as_doc().get_str("kind") == Some("moveRange");
    if operations.iter().any(is_move) {
        let donors = status_moves::donors(router).await.unwrap_or_default();
        for row in status_moves::rows(&operations, &donors) {
            table.row(row);
        }
    }
    text.push_str(&table.render());

    let mut table = Table::new(&["RUNNING", "ON", "PHASE"]);
    for operation in operations {
        if is_move(&operation) || operation.as_doc().get_str("kind") == Some("outcome") {
            continue;
        }
        let on = ["ns", "db", "shard"]
            .into_iter()
            .find_map(|name| operation.get(name));
        let row = vec![
            show(operation.get("kind")),
            show(on),
            show(operation.get("phase")),
        ];
        table.row(row);
    }
    text.push_str(&table.render());
    Ok(text)
}

/// The members of a replica set that is not part of what a router answers for.
async fn members(host: &str) -> String {
    let mut table = Table::new(&["SERVER"]);
    table.row(vec![roles(host).await]);
    table.render()
}

/// Each host and what it says it is; that nobody leads, if so.
async fn roles(hosts: &str) -> String {
    let asked = hosts.split(',').map(async |host| {
        let server = Host::new(host, HostOptions::default());
        let hello = ask(&server, "admin", DocWriter::new().with("hello", 1)).await;
        let role = match hello {
            Err(_) => "unreachable",
            Ok(hello) if hello.get("isWritablePrimary") == Some(ValueRef::Boolean(true)) => {
                "primary"
            }
            Ok(hello) if hello.get("secondary") == Some(ValueRef::Boolean(true)) => "secondary",
            Ok(_) => "no member yet",
        };
        format!("{host} {role}")
    });
    let mut shown = join_all(asked).await;
    if !shown.iter().any(|member| member.ends_with(" primary")) {
        shown.push("no primary".to_owned());
    }
    shown.join(", ")
}

/// How many chunks of each collection each shard has, by UUID.
async fn chunks(router: &Host) -> Result<BTreeMap<String, BTreeMap<String, i64>>> {
    let mut command = DocWriter::new().with("aggregate", "chunks");
    command.begin_array("pipeline").push_document();
    command.begin_document("$group").begin_document("_id");
    command
        .append("uuid", "$uuid")
        .append("shard", "$shard")
        .end();
    command.begin_document("n").append("$sum", 1).end();
    command.end().end().end();
    command
        .begin_document("cursor")
        .append("batchSize", 100_000)
        .end();
    let reply = ask(router, "config", command).await?;
    let mut placed: BTreeMap<String, BTreeMap<String, i64>> = BTreeMap::new();
    for group in batch(&reply) {
        let id = group.as_doc().get_doc("_id").unwrap_or(Doc::EMPTY);
        let count = group.get("n").and_then(Number::of);
        let count = count.map_or(0, |count| count.to_f64() as i64);
        let shards = placed.entry(show(id.get("uuid"))).or_default();
        shards.insert(show(id.get("shard")), count);
    }
    Ok(placed)
}

/// Documents and bytes of each collection, as far as they are told within one limit for all.
async fn sizes_of(router: &Host, namespaces: &[String]) -> Vec<Option<[String; 2]>> {
    let mut sizes = vec![None; namespaces.len()];
    let asked = namespaces
        .iter()
        .enumerate()
        .map(async |(at, name)| (at, size_of(router, name).await));
    let mut answers = futures_util::stream::iter(asked).buffer_unordered(SIZES_AT_ONCE);
    let all = async {
        while let Some((at, size)) = answers.next().await {
            sizes[at] = size;
        }
    };
    // Who has not answered by then is named.
    let _ = tokio::time::timeout(LIMIT, all).await;
    sizes
}

async fn size_of(router: &Host, namespace: &str) -> Option<[String; 2]> {
    let (database, collection) = namespace.split_once('.')?;
    let command = DocWriter::new().with("collStats", collection);
    let stats = ask(router, database, command).await.ok()?;
    let number = |name: &str| stats.get(name).and_then(Number::of);
    let number = |name: &str| number(name).map_or(0.0, |number| number.to_f64());
    let orphans = number("numOrphanDocs");
    let documents = number("count") - orphans;
    let bytes = number("size") - orphans * number("avgObjSize");
    Some([format!("{documents:.0}"), in_units(bytes)])
}

pub(crate) fn in_units(bytes: f64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut size = bytes;
    let mut unit = 0;
    while size >= 1000.0 && unit + 1 < units.len() {
        size /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{size:.0} {}", units[unit]),
        _ => format!("{size:.1} {}", units[unit]),
    }
}

async fn find(router: &Host, collection: &str) -> Result<Vec<DocBuf>> {
    let mut command = DocWriter::new().with("find", collection);
    command.begin_document("sort").append("_id", 1).end();
    // One more than is shown tells that there are more.
    let limit = ROWS_MAX as i32 + 1;
    let command = command.with("batchSize", limit).with("limit", limit);
    let command = command.with("singleBatch", true);
    Ok(batch(&ask(router, "config", command).await?))
}

pub(crate) fn batch(reply: &DocBuf) -> Vec<DocBuf> {
    let cursor = reply.as_doc().get_doc("cursor");
    let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch"));
    let documents = batch.into_iter().flat_map(|batch| batch.iter());
    documents
        .filter_map(|value| match value {
            ValueRef::Document(doc) => Some(doc.to_owned()),
            _ => None,
        })
        .collect()
}

pub(crate) async fn ask(server: &Host, database: &str, command: DocWriter) -> Result<DocBuf> {
    let request = Request::from_parts(command.with("$db", database).finish(), Vec::new())?;
    let call = server.call(request);
    let address = server.address();
    let reply = match tokio::time::timeout(LIMIT, call).await {
        // The error names the host.
        Ok(reply) => reply?,
        Err(_) => bail!("no answer from {address} within {} s", LIMIT.as_secs()),
    };
    let reply = reply.into_document();
    if reply.get("ok") != Some(ValueRef::Double(1.0)) {
        let why = reply.as_doc().get_str("errmsg").unwrap_or_default();
        bail!("{address} answers: {why}");
    }
    Ok(reply)
}

/// A value as people read it.
pub(crate) fn show(value: Option<ValueRef<'_>>) -> String {
    match value {
        Some(ValueRef::String(text)) => text.to_owned(),
        Some(ValueRef::ObjectId(id)) => id.to_string(),
        Some(ValueRef::Binary { bytes, .. }) => {
            bytes.iter().map(|byte| format!("{byte:02x}")).collect()
        }
        Some(ValueRef::Boolean(flag)) => flag.to_string(),
        Some(_) | None => String::new(),
    }
}

/// Columns as wide as they need to be; nothing at all without rows.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(titles: &[&str]) -> Self {
        let titles = titles.iter().map(|&title| title.to_owned());
        Self {
            rows: vec![titles.collect()],
        }
    }

    fn row(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    fn render(&self) -> String {
        if self.rows.len() == 1 {
            return String::new();
        }
        let columns = self.rows[0].len();
        let width = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(at));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        let is_cut = self.rows.len() > ROWS_MAX + 1;
        for row in self.rows.iter().take(ROWS_MAX + 1) {
            let cells = row.iter().zip(&widths);
            let cells: Vec<String> = cells
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        if is_cut {
            text.push_str(&format!("… the first {ROWS_MAX}: there are more\n"));
        }
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_as_wide_as_needed() {
        let mut table = Table::new(&["A", "LONG"]);
        assert_eq!(table.render(), "");
        table.row(vec!["abc".to_owned(), "x".to_owned()]);
        assert_eq!(table.render(), "A    LONG\nabc  x\n\n");
        // Not everything is shown, and that is said.
        for _ in 0..ROWS_MAX {
            table.row(vec!["d".to_owned(), "y".to_owned()]);
        }
        let text = table.render();
        assert_eq!(
            text.lines().filter(|line| line.ends_with('y')).count(),
            ROWS_MAX - 1
        );
        assert!(
            text.ends_with("… the first 10000: there are more\n\n"),
            "{text}"
        );
    }

    #[test]
    fn the_first_host_of_what_was_given_is_asked() {
        for (given, host) in [
            ("tern1:27017", "tern1:27017"),
            ("mongodb://tern1:27017", "tern1:27017"),
            (
                "mongodb://me:secret@tern1:1,tern2:2/db?replicaSet=s",
                "tern1:1",
            ),
            ("mongodb://tern1:1?retryWrites=true", "tern1:1"),
        ] {
            assert_eq!(host_of(given), host, "{given}");
        }
    }

    #[test]
    fn sizes_have_units() {
        for (bytes, shown) in [(12.0, "12 B"), (1500.0, "1.5 kB"), (2.0e9, "2.0 GB")] {
            assert_eq!(in_units(bytes), shown);
        }
    }
}
