//! A replica set of several members, each a process of its own, as one server.
//!
//! Commands go to the primary; CPU is that of all members together. Members share the cache that one
//! server would have. They are never paused: members that wake up after a long sleep hold elections.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use bson::{Document, doc};

use super::{Binaries, CACHE_MB, Product, Server};
use crate::connection::Connection;

const SET: &str = "bench";

impl Server {
    /// Starts so many members in new directories and waits until one of them takes writes.
    pub fn start_members(
        product: Product,
        label: &str,
        binaries: &Binaries,
        parent: &Path,
        count: usize,
    ) -> Result<Server> {
        if count == 1 {
            return Server::start(product, label, binaries, parent);
        }
        let directory = parent.join(label);
        if directory.exists() {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("emptying {}", directory.display()))?;
        }
        let binary = binaries.of(product)?;
        let ports = free_ports(count)?;
        let mut children = Vec::new();
        for (number, port) in ports.iter().enumerate() {
            let home = directory.join(format!("member{number}"));
            fs::create_dir_all(home.join("data"))?;
            let child = start_member(product, &binary, &home, *port, count)
                .with_context(|| format!("starting {}", binary.display()))?;
            children.push(child);
        }
        let mut children = children.into_iter();
        let mut server = Server {
            product,
            port: ports[0],
            directory,
            child: children.next().context("a set has members")?,
            others: children.collect(),
            paused: false,
            sharded: false,
            shard_ports: Vec::new(),
        };
        for port in &ports {
            server.wait_until("accepting connections", |_| {
                ask(*port, &doc! { "ping": 1, "$db": "admin" }).is_ok()
            })?;
        }
        let members: Vec<Document> = ports
            .iter()
            .enumerate()
            .map(
                |(number, port)| doc! { "_id": number as i32, "host": format!("127.0.0.1:{port}") },
            )
            .collect();
        let initiate =
            doc! { "replSetInitiate": { "_id": SET, "members": members }, "$db": "admin" };
        server.wait_until("being initiated", |_| ask(ports[0], &initiate).is_ok())?;
        let primary = |port: &u16| {
            let hello = ask(*port, &doc! { "hello": 1, "$db": "admin" });
            hello.is_ok_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false))
        };
        server.wait_until("electing a primary", |_| ports.iter().any(primary))?;
        server.port = *ports
            .iter()
            .find(|port| primary(port))
            .context("a primary")?;
        // All of them must take part before anything is measured.
        let probe = doc! {
            "insert": "probe", "documents": [{}], "$db": "bench_probe",
            "writeConcern": { "w": count as i32, "wtimeout": 1000 },
        };
        let leader = server.port;
        server.wait_until("replicating", |_| {
            ask(leader, &probe).is_ok_and(|reply| !reply.contains_key("writeConcernError"))
        })?;
        Ok(server)
    }

    /// The processes of all members.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        let others = self.others.iter().map(Child::id);
        std::iter::once(self.pid()).chain(others)
    }
}

pub(super) fn ask(port: u16, command: &Document) -> Result<Document> {
    Connection::open(port)?.run(command)
}

/// Free now; another program could take one before the server does, which then ends with a message.
pub(super) fn free_ports(count: usize) -> Result<Vec<u16>> {
    let listeners: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<std::io::Result<_>>()?;
    let ports: Vec<u16> = listeners
        .iter()
        .map(|listener| Ok(listener.local_addr()?.port()))
        .collect::<std::io::Result<_>>()?;
    ensure!(ports.len() == count, "too few free ports");
    Ok(ports)
}

fn start_member(
    product: Product,
    binary: &Path,
    home: &Path,
    port: u16,
    count: usize,
) -> Result<Child> {
    let log = File::create(home.join("output.log"))?;
    let cache_mb = (CACHE_MB as usize / count).max(256);
    let mut command = Command::new(binary);
    match product {
        Product::Mongod => {
            command
                .arg("--dbpath")
                .arg(home.join("data"))
                .args(["--port", &port.to_string(), "--bind_ip", "127.0.0.1"])
                .args(["--replSet", SET, "--wiredTigerCacheSizeGB"])
                .arg(format!("{:.2}", cache_mb as f64 / 1024.0));
        }
        Product::Terndb => {
            command
                .args(["shard", "--replica-set", SET, "--port", &port.to_string()])
                .args(["--cache-mb", &cache_mb.to_string(), "--log-level", "warn"])
                .arg("--data")
                .arg(home.join("data"));
        }
    }
    Ok(command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?)
}
