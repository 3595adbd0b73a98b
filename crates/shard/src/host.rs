//! The machine and process this runs in, looked up once.

use crate::Shard;
use wire::ConnectionInfo;

pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) system: String,
    pub(crate) kernel: String,
    pub(crate) memory_mb: i64,
    pub(crate) cores: i32,
    pub(crate) arguments: Vec<String>,
}

impl Host {
    pub(crate) fn look_up() -> Self {
        let names = rustix::system::uname();
        let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        let info = rustix::system::sysinfo();
        let memory_bytes = info.totalram as u64 * u64::from(info.mem_unit);
        Self {
            name: text(names.nodename()),
            system: text(names.sysname()),
            kernel: text(names.release()),
            memory_mb: (memory_bytes / (1024 * 1024)) as i64,
            cores: std::thread::available_parallelism().map_or(1, |n| n.get() as i32),
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
