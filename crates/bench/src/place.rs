//! Where measurements happen: the servers' directory, and a description of the machine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::options::ServerOptions;

/// How the kernel marks a file system that lives in memory.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// One runnable process besides us is already half of a two-core machine.
const BUSY_LOAD: f64 = 0.7;

/// The parent directory of all servers' data: removed at the end of a run that succeeded, left for
/// whoever wants to know why in any other case.
#[derive(Debug)]
pub struct Place {
    directory: PathBuf,
    keep: bool,
    cleared: bool,
}

impl Place {
    pub fn new(options: &ServerOptions) -> Result<Place> {
        let parent = match &options.data {
            Some(directory) => directory.clone(),
            None => beside_the_build()?,
        };
        // Two runs at a time would measure each other, but must not remove each other's data.
        let directory = parent.join(format!("run-{}", std::process::id()));
        fs::create_dir_all(&directory)
            .with_context(|| format!("creating {}", directory.display()))?;
        if rustix::fs::statfs(&directory)?.f_type == TMPFS_MAGIC {
            eprintln!(
                "warning: {} is in memory, where syncing costs nothing; choose a disk with --data",
                directory.display()
            );
        }
        Ok(Place {
            directory,
            keep: options.keep,
            cleared: false,
        })
    }

    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// To be called when all went well and all servers have stopped.
    pub fn clear(mut self) -> Result<()> {
        if !self.keep {
            fs::remove_dir_all(&self.directory)
                .with_context(|| format!("removing {}", self.directory.display()))?;
            self.cleared = true;
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.cleared {
            eprintln!("data and output are in {}", self.directory.display());
        }
    }
}

/// `target/bench-data` for a program in `target/release`.
fn beside_the_build() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let build = program.parent().and_then(Path::parent);
    Ok(build
        .context("this program is in no directory")?
        .join("bench-data"))
}

/// Says so when something else already uses the machine.
pub fn warn_if_busy() {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let recent: f64 = load
        .split_whitespace()
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0.0);
    if recent > BUSY_LOAD {
        eprintln!(
            "warning: the machine is busy (load {recent}); trust CPU per operation more than the rest"
        );
    }
}

/// Processor, cores, memory and kernel in one line.
pub fn machine() -> String {
    let field = |path: &str, name: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_once(':'));
        value.map(|(_, value)| value.trim().to_owned())
    };
    let processor =
        field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".into());
    let memory_kb: u64 = field("/proc/meminfo", "MemTotal")
        .and_then(|value| value.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{processor}, {cores} cores, {:.0} GiB, Linux {}",
        memory_kb as f64 / (1024.0 * 1024.0),
        kernel.trim()
    )
}

/// Raises the number of open files as far as allowed, for us and for the servers that inherit it.
pub fn raise_open_files() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    }
}
