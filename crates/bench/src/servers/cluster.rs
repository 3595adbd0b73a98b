//! A sharded cluster as one server: commands go to its router, CPU is that of all its processes together.
//!
//! Either everything in one process (`terndb up --shards`), or a config server, shards and a router as a
//! process each. The latter are never paused: roles that wake up after a long sleep hold elections.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use bson::{Bson, Document, doc};

use super::several::{ask, free_ports};
use super::{Binaries, CACHE_MB, Product, Server, start_terndb};

/// How a cluster runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub shards: usize,
    /// Each role is a process of its own.
    pub apart: bool,
}

impl Server {
    /// Starts a cluster in new directories and waits until it takes writes.
    pub fn start_cluster(
        label: &str,
        binaries: &Binaries,
        parent: &Path,
        shape: Shape,
    ) -> Result<Server> {
        let binary = binaries.of(Product::Terndb)?;
        let directory = parent.join(label);
        if directory.exists() {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("emptying {}", directory.display()))?;
        }
        fs::create_dir_all(&directory)?;
        if !shape.apart {
            let count = shape.shards.to_string();
            let mut server = start_terndb(&binary, directory, &["--shards", &count])?;
            server.sharded = true;
            server.shard_ports = shard_ports(&server, shape.shards)?;
            return Ok(server);
        }
        start_apart(&binary, directory, shape.shards)
    }
}

/// Where the shards of a cluster in one process listen, in their order.
fn shard_ports(server: &Server, shards: usize) -> Result<Vec<u16>> {
    let list = doc! { "listShards": 1, "$db": "admin" };
    let listed = server.connect()?.run(&list)?;
    let ports = (1..=shards).map(|at| {
        let of_this = |shard: &&Document| shard.get_str("_id").is_ok_and(|id| id == name(at));
        let mut all = (listed.get_array("shards")?.iter()).filter_map(Bson::as_document);
        let host = all.find(of_this).context("a shard")?.get_str("host")?;
        let (_, port) = host.rsplit_once(':').context("a port")?;
        Ok(port.parse()?)
    });
    ports.collect()
}

fn start_apart(binary: &Path, directory: std::path::PathBuf, shards: usize) -> Result<Server> {
    let ports = free_ports(shards + 2)?;
    let (router, groups) = ports.split_first().context("there are ports")?;
    let connection = |at: usize| format!("{}/127.0.0.1:{}", name(at), groups[at]);
    let config = connection(0);
    let mut others = Vec::new();
    for (at, port) in groups.iter().enumerate() {
        let config = (at > 0).then_some(config.as_str());
        others.push(start_role(binary, &directory, &name(at), *port, config)?);
    }
    let mut server = Server {
        product: Product::Terndb,
        port: *router,
        child: start_role(binary, &directory, "router", *router, Some(&config))?,
        directory,
        others,
        paused: false,
        sharded: true,
        shard_ports: groups[1..].to_vec(),
    };
    for (at, port) in groups.iter().enumerate() {
        let member = doc! { "_id": 0, "host": format!("127.0.0.1:{port}") };
        let initiate =
            doc! { "replSetInitiate": { "_id": name(at), "members": [member] }, "$db": "admin" };
        server.wait_until("being initiated", |_| ask(*port, &initiate).is_ok())?;
    }
    for at in 1..groups.len() {
        let add = doc! { "addShard": connection(at), "$db": "admin" };
        server.wait_until("taking a shard in", |_| ask(*router, &add).is_ok())?;
    }
    Ok(server)
}

/// The config server, then shards.
fn name(at: usize) -> String {
    match at {
        0 => "config".to_owned(),
        at => format!("shard{}", at - 1),
    }
}

fn start_role(
    binary: &Path,
    directory: &Path,
    name: &str,
    port: u16,
    config: Option<&str>,
) -> Result<Child> {
    let home = directory.join(name);
    fs::create_dir_all(home.join("data"))?;
    let log = File::create(home.join("output.log"))?;
    let mut command = Command::new(binary);
    match name {
        "router" => command.arg("router"),
        "config" => command.arg("config"),
        _ => command.arg("shard"),
    };
    command.args(["--port", &port.to_string(), "--log-level", "warn"]);
    if name != "router" {
        command
            .args(["--replica-set", name, "--cache-mb", &CACHE_MB.to_string()])
            .arg("--data")
            .arg(home.join("data"));
    }
    if let Some(config) = config {
        command.args(["--config-servers", config]);
    }
    let started = command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn();
    started.with_context(|| format!("starting {}", binary.display()))
}
