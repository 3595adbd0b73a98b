//! What `terndb up`, `shard`, `config` and `router` are told: flags, then a TOML file, then defaults.
//!
//! Every flag has the same name in the file, with `_` or `-`. A flag wins over
//! the file. A name the file should not have is an error, not ignored.

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use serde::Deserialize;
use shard::LogWindow;
use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

/// The settings of `terndb up`, each absent until given.
#[derive(Args, Deserialize, Default, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct UpOptions {
    /// Port to listen on; 0 lets the system choose one [default: 27017]
    #[arg(long)]
    pub port: Option<u16>,

    /// Address or host name to listen on [default: 127.0.0.1]
    #[arg(long)]
    pub bind: Option<String>,

    /// Directory for the data, created if it is not there [default: ./terndb-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// Directory in which a router puts what does not fit into memory, while a command needs it [default: the
    /// system's for temporary files; with --shards, one in the data directory]
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,

    /// Name of the replica set that the server is [default: terndb]
    #[arg(long, value_name = "NAME")]
    #[serde(alias = "replica-set")]
    pub replica_set: Option<String>,

    /// How many members the replica set has, on ports that follow each other [default: 1]
    #[arg(long, value_name = "COUNT")]
    pub members: Option<u16>,

    /// How many shards the database has; with several, a config server and a router run as well [default: 1]
    #[arg(long, value_name = "COUNT")]
    pub shards: Option<u16>,

    /// Where the config server of the cluster is, for `terndb shard` and `terndb router`
    #[arg(long, value_name = "SET/HOST:PORT,..")]
    #[serde(alias = "config-servers")]
    pub config_servers: Option<String>,

    /// Host and port by which clients and other members reach the server [default: where it listens]
    #[arg(long, value_name = "HOST:PORT")]
    pub host: Option<String>,

    /// Memory for caching data, in MiB [default: a quarter of the memory]
    #[arg(long, value_name = "MIB")]
    #[serde(alias = "cache-mb")]
    pub cache_mb: Option<u64>,

    /// How much of its log each member keeps, for change streams and members that were away, in MiB
    /// [default: 1024]
    #[arg(long, value_name = "MIB")]
    #[serde(alias = "oplog-mb")]
    pub oplog_mb: Option<u64>,

    /// For how many hours the log is kept at least, however large it grows [default: 0]
    #[arg(long, value_name = "HOURS")]
    #[serde(alias = "oplog-hours")]
    pub oplog_hours: Option<u32>,

    /// What to write to standard error: error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "LEVEL")]
    #[serde(alias = "log-level")]
    pub log_level: Option<String>,

    /// A server parameter, as NAME=VALUE; may be given several times
    #[arg(long, value_name = "NAME=VALUE")]
    #[serde(alias = "set-parameter")]
    pub set_parameter: Option<Vec<String>>,

    /// Hosts of other members and of other roles, and by which address this one reaches them where it is another one
    #[arg(skip)]
    pub detours: Option<BTreeMap<String, String>>,

    /// TOML file with any of these settings
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
}

/// The settings in force.
#[derive(Debug, PartialEq)]
pub struct UpSettings {
    pub port: u16,
    pub bind: IpAddr,
    pub data: PathBuf,
    pub scratch: Option<PathBuf>,
    pub replica_set: String,
    pub members: u16,
    pub shards: u16,
    pub config_servers: Option<String>,
    pub host: Option<String>,
    pub cache_bytes: u64,
    pub log_window: LogWindow,
    pub parameters: Vec<(String, String)>,
    pub log_level: tracing::level_filters::LevelFilter,
    pub detours: BTreeMap<String, String>,
}

const DEFAULT_PORT: u16 = 27017;
const MIN_CACHE_MB: u64 = 16;
/// 16 TiB: more than any machine has.
const MAX_CACHE_MB: u64 = 16 * 1024 * 1024;
/// More would only share the same disk and cores.
const SHARDS_MAX: u16 = 64;
const MEBIBYTE: u64 = 1024 * 1024;
const MIN_OPLOG_MB: u64 = 8;
const HOUR_MS: i64 = 3600 * 1000;

impl UpOptions {
    pub fn settle(self) -> Result<UpSettings> {
        let file = match &self.config {
            Some(path) => read_file(path)?,
            None => UpOptions::default(),
        };
        let level = self.log_level.or(file.log_level);
        let level = level.as_deref().unwrap_or("info");
        let cache_mb = match self.cache_mb.or(file.cache_mb) {
            Some(given) if given < MIN_CACHE_MB => {
                bail!("cache-mb is {given}, but at least {MIN_CACHE_MB} is needed")
            }
            Some(given) if given > MAX_CACHE_MB => {
                bail!("cache-mb is {given}, but at most {MAX_CACHE_MB} is possible")
            }
            Some(given) => given,
            None => default_cache_mb(),
        };
        let mut log_window = match self.oplog_mb.or(file.oplog_mb) {
            Some(given) if !(MIN_OPLOG_MB..=MAX_CACHE_MB).contains(&given) => {
                bail!("oplog-mb is {given}, but {MIN_OPLOG_MB} to {MAX_CACHE_MB} is possible")
            }
            Some(given) => LogWindow::of_bytes(given * MEBIBYTE),
            None => LogWindow::default(),
        };
        if let Some(hours) = self.oplog_hours.or(file.oplog_hours) {
            log_window.age_ms = i64::from(hours) * HOUR_MS;
        }
        let members = self.members.or(file.members).unwrap_or(1);
        if !(1..=7).contains(&members) {
            bail!("members is {members}, but a replica set has 1 to 7")
        }
        let shards = self.shards.or(file.shards).unwrap_or(1);
        if !(1..=SHARDS_MAX).contains(&shards) {
            bail!("shards is {shards}, but one process runs 1 to {SHARDS_MAX}")
        }
        let replica_set = self.replica_set.or(file.replica_set);
        // ⚑ The log would refuse it, and every start after that.
        if replica_set.as_deref() == Some("") {
            bail!("replica-set is empty, but a replica set has a name")
        }
        Ok(UpSettings {
            port: self.port.or(file.port).unwrap_or(DEFAULT_PORT),
            bind: address(self.bind.or(file.bind).as_deref().unwrap_or("127.0.0.1"))?,
            data: self
                .data
                .or(file.data)
                .unwrap_or_else(|| "terndb-data".into()),
            scratch: self.scratch.or(file.scratch),
            replica_set: replica_set.unwrap_or_else(|| "terndb".into()),
            members,
            shards,
            config_servers: connection(self.config_servers.or(file.config_servers))?,
            host: self.host.or(file.host),
            cache_bytes: cache_mb * MEBIBYTE,
            log_window,
            detours: self.detours.or(file.detours).unwrap_or_default(),
            parameters: parameters(self.set_parameter.or(file.set_parameter))?,
            log_level: level.parse().ok().with_context(|| {
                format!("log-level {level:?} is not error, warn, info, debug or trace")
            })?,
        })
    }
}

/// `set/host,host`, checked as far as it can be without asking anybody.
fn connection(given: Option<String>) -> Result<Option<String>> {
    if let Some(given) = &given {
        let parts = given.split_once('/');
        let usable = parts.is_some_and(|(set, hosts)| {
            !set.is_empty() && hosts.split(',').all(|host| host.contains(':'))
        });
        if !usable {
            bail!("config-servers {given:?} is not SET/HOST:PORT,HOST:PORT")
        }
    }
    Ok(given)
}

fn parameters(given: Option<Vec<String>>) -> Result<Vec<(String, String)>> {
    let mut parameters = Vec::new();
    for assignment in given.unwrap_or_default() {
        let Some((name, value)) = assignment.split_once('=') else {
            bail!("set-parameter {assignment:?} is not NAME=VALUE")
        };
        parameters.push((name.trim().to_owned(), value.trim().to_owned()));
    }
    Ok(parameters)
}

fn read_file(path: &Path) -> Result<UpOptions> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the configuration file {}", path.display()))?;
    toml::from_str(&text).map_err(|error: toml::de::Error| {
        // Its own form draws the line, over several lines.
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map_or(1, |before| before.matches('\n').count() + 1);
        let what = error.message().lines().collect::<Vec<_>>().join(", ");
        // The message often leaves out which setting it is about.
        let shown = text.lines().nth(line - 1).unwrap_or_default().trim();
        anyhow!(
            "the configuration file {} is not valid in line {line} ({shown}): {what}",
            path.display()
        )
    })
}

/// An address as it is, or what a host name stands for.
fn address(bind: &str) -> Result<IpAddr> {
    if let Ok(address) = bind.parse() {
        return Ok(address);
    }
    if bind == "*" || bind.contains(',') {
        bail!(
            "bind {bind:?}: one address or host name is expected; 0.0.0.0 stands for all IPv4 addresses of this \
             machine, and :: for all of both kinds"
        );
    }
    let found: Vec<_> = (bind, 0)
        .to_socket_addrs()
        .with_context(|| format!("bind {bind:?} is no address, and no such host was found"))?
        .map(|found| found.ip())
        .collect();
    // Clients that are told a name try both kinds; most are told an IPv4 address.
    let chosen = found.iter().find(|ip| ip.is_ipv4()).or(found.first());
    chosen
        .copied()
        .with_context(|| format!("the host {bind:?} has no address"))
}

/// A quarter of the machine's memory, leaving the rest to the system's own
/// cache and to queries.
fn default_cache_mb() -> u64 {
    let info = rustix::system::sysinfo();
    let total_bytes = info.totalram as u64 * u64::from(info.mem_unit);
    (total_bytes / MEBIBYTE / 4).clamp(64, 64 * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_file(text: &str, flags: UpOptions) -> Result<UpSettings> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("terndb.toml");
        std::fs::write(&path, text)?;
        UpOptions {
            config: Some(path),
            ..flags
        }
        .settle()
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let flags = UpOptions {
            port: Some(1),
            ..UpOptions::default()
        };
        let settings = with_file("port = 2\ncache_mb = 64\nlog_level = 'warn'", flags).unwrap();
        assert_eq!(settings.port, 1);
        assert_eq!(settings.cache_bytes, 64 * MEBIBYTE);
        assert_eq!(settings.log_window, LogWindow::default());
        assert_eq!(settings.bind, IpAddr::from([127, 0, 0, 1]));
        assert_eq!(settings.data, Path::new("terndb-data"));
    }

    #[test]
    fn a_host_name_is_an_address() {
        let settings = with_file("bind = 'localhost'", UpOptions::default()).unwrap();
        assert!(settings.bind.is_loopback());
    }

    #[test]
    fn names_may_have_hyphens_as_flags_do() {
        let text = "cache-mb = 64\nlog-level = 'warn'\nreplica-set = 'rs'\noplog-hours = 1\nset-parameter = ['a=1']";
        let hyphens = with_file(text, UpOptions::default()).unwrap();
        let underlines = text.replace('-', "_");
        assert_eq!(
            hyphens,
            with_file(&underlines, UpOptions::default()).unwrap()
        );
        assert_eq!(hyphens.cache_bytes, 64 * MEBIBYTE);
    }

    #[test]
    fn mistakes_are_named() {
        let mistakes = [
            ("prot = 1", "prot"),
            ("port = 'x'", "port"),
            ("cache_mb = 1", "at least 16"),
            ("cache_mb = 99999999999999", "at most"),
            ("oplog_mb = 1", "8 to"),
            ("bind = 'no host'", "no such host"),
            ("bind = '127.0.0.1,::1'", "one address or host name"),
            ("bind = '*'", "0.0.0.0 stands for all"),
            ("cache-mb = 64\ncache_mb = 64", "duplicate field"),
            ("port = 1\nport = [", "line 2"),
            ("log_level = 'loud'", "loud"),
            ("set_parameter = ['a']", "NAME=VALUE"),
            ("shards = 0", "1 to 64"),
            ("replica_set = ''", "has a name"),
            ("config_servers = 'a:1'", "SET/HOST:PORT"),
        ];
        for (text, expected) in mistakes {
            let error = with_file(text, UpOptions::default()).unwrap_err();
            let shown = format!("{error:#}");
            assert!(shown.contains(expected), "{text}: {shown}");
            assert!(!shown.trim_end().contains('\n'), "{text}: {shown}");
        }
    }
}
