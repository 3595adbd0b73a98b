//! The machine and process this runs in, looked up once.

use crate::Shard;
use std::collections::BTreeSet;
use wire::ConnectionInfo;

pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) system: String,
    pub(crate) kernel: String,
    /// The kernel's own words about itself; nothing where it says none.
    pub(crate) kernel_version: String,
    pub(crate) memory_mb: i64,
    pub(crate) page_bytes: i32,
    pub(crate) pages: i32,
    pub(crate) cores: i32,
    pub(crate) processors: Processors,
    pub(crate) numa_nodes: i32,
    pub(crate) files_max: i32,
    pub(crate) arguments: Vec<String>,
}

/// What the kernel tells of the processors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Processors {
    pub(crate) sockets: i32,
    pub(crate) physical_cores: i32,
    pub(crate) megahertz: String,
    pub(crate) features: String,
}

impl Processors {
    /// Reads `/proc/cpuinfo`: a paragraph for each core that the system schedules on. Machines that do not say
    /// which core lies on which chip have one chip.
    fn parse(text: &str) -> Self {
        let mut found = Processors::default();
        let (mut sockets, mut cores) = (BTreeSet::new(), BTreeSet::new());
        let paragraphs = text.split("\n\n").filter(|one| !one.trim().is_empty());
        for (number, paragraph) in paragraphs.enumerate() {
            let field = |name: &str| {
                let lines = paragraph.lines().filter_map(|line| line.split_once(':'));
                let mut named = lines.filter(|(key, _)| key.trim() == name);
                named.next().map(|(_, value)| value.trim().to_owned())
            };
            let socket = field("physical id").unwrap_or_default();
            let core = field("core id").unwrap_or_else(|| number.to_string());
            sockets.insert(socket.clone());
            cores.insert((socket, core));
            if number == 0 {
                found.megahertz = field("cpu MHz").unwrap_or_default();
                found.features = field("flags").or(field("Features")).unwrap_or_default();
            }
        }
        found.sockets = sockets.len().max(1) as i32;
        found.physical_cores = cores.len().max(1) as i32;
        found
    }
}

/// The system's name for people, of `/etc/os-release`.
fn pretty_name(text: &str) -> Option<String> {
    let mut names = text
        .lines()
        .filter_map(|line| line.strip_prefix("PRETTY_NAME="));
    names.next().map(|name| name.trim_matches('"').to_owned())
}

fn numa_nodes() -> i32 {
    let entries = std::fs::read_dir("/sys/devices/system/node");
    let names = entries.into_iter().flatten().flatten();
    let nodes = names.filter(|entry| {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node"));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    });
    nodes.count().max(1) as i32
}

impl Host {
    pub(crate) fn look_up() -> Self {
        let names = rustix::system::uname();
        let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        // What is not there is not told.
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let info = rustix::system::sysinfo();
        let memory_bytes = info.totalram as u64 * u64::from(info.mem_unit);
        let page_bytes = rustix::param::page_size();
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let whole = |number: u64| i32::try_from(number).unwrap_or(i32::MAX);
        Self {
            name: text(names.nodename()),
            system: pretty_name(&read("/etc/os-release")).unwrap_or_else(|| text(names.sysname())),
            kernel: text(names.release()),
            kernel_version: read("/proc/version").trim().to_owned(),
            memory_mb: (memory_bytes / (1024 * 1024)) as i64,
            page_bytes: page_bytes as i32,
            pages: whole(memory_bytes / page_bytes as u64),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get() as i32),
            processors: Processors::parse(&read("/proc/cpuinfo")),
            numa_nodes: numa_nodes(),
            files_max: whole(files.current.unwrap_or(u64::MAX)),
            arguments: std::env::args().collect(),
        }
    }
}

impl Shard {
    /// The port by which a client has reached this server; within a process, the one by which others do.
    pub(crate) fn port_of(&self, connection: &ConnectionInfo) -> u16 {
        let known = || {
            let (_, port) = self.replica_set.host().rsplit_once(':')?;
            port.parse().ok()
        };
        let local = connection.local().map(|local| local.port());
        local.or_else(known).unwrap_or(0)
    }

    /// This server's name and port, as statistics show it.
    pub(crate) fn host_of(&self, connection: &ConnectionInfo) -> String {
        format!("{}:{}", self.host.name, self.port_of(connection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        let core = |processor: u32, socket: u32, core: u32| {
            format!(
                "processor\t: {processor}\ncpu MHz\t\t: 2596.120\nphysical id\t: {socket}\n\
                 core id\t\t: {core}\nflags\t\t: fpu vme\n\n"
            )
        };
        let text = [core(0, 0, 0), core(1, 0, 0), core(2, 0, 1), core(3, 1, 0)].concat();
        let found = Processors::parse(&text);
        assert_eq!((found.sockets, found.physical_cores), (2, 3));
        assert_eq!(
            (found.megahertz.as_str(), found.features.as_str()),
            ("2596.120", "fpu vme")
        );
        // As on ARM.
        let text = "processor\t: 0\nFeatures\t: fp asimd\n\nprocessor\t: 1\n\n";
        let found = Processors::parse(text);
        assert_eq!((found.sockets, found.physical_cores), (1, 2));
        assert_eq!(found.features, "fp asimd");
        let nothing = Processors::parse("");
        assert_eq!((nothing.sockets, nothing.physical_cores), (1, 1));
    }

    #[test]
    fn systems_have_names() {
        let text = "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n";
        assert_eq!(pretty_name(text).as_deref(), Some("Debian GNU/Linux 12"));
        assert_eq!(pretty_name("NAME=x"), None);
    }
}
