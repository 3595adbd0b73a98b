//! What the kernel knows about a process: CPU time, memory, and the size of a directory.
//!
//! CPU time is the sum over threads of the nanoseconds in `/proc/PID/task/*/schedstat`. A thread that
//! ends takes its sum with it; when one did between two readings, the process's own total from
//! `/proc/PID/stat` is used instead, which keeps ended threads but counts in ticks of 10 ms.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// `/proc` reports times in hundredths of a second on every Linux that we run on.
const TICK: Duration = Duration::from_millis(10);

/// The CPU time of a process so far.
#[derive(Debug)]
pub struct CpuReading {
    nanos_by_thread: HashMap<String, u64>,
    total_ticks: u64,
}

impl CpuReading {
    pub fn of(pid: u32) -> Result<CpuReading> {
        let mut nanos_by_thread = HashMap::new();
        let tasks = fs::read_dir(format!("/proc/{pid}/task"))
            .with_context(|| format!("process {pid} is gone"))?;
        for task in tasks {
            let task = task?;
            // A thread may end while the directory is being read.
            let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else {
                continue;
            };
            let nanos = text.split_whitespace().next().unwrap_or("0").parse()?;
            nanos_by_thread.insert(task.file_name().to_string_lossy().into_owned(), nanos);
        }
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Ok(CpuReading {
            nanos_by_thread,
            total_ticks: ticks_of_stat(&stat)?,
        })
    }

    /// The CPU time spent since an earlier reading of the same process.
    pub fn since(&self, earlier: &CpuReading) -> Duration {
        let mut nanos = 0;
        for (thread, before) in &earlier.nanos_by_thread {
            let Some(after) = self.nanos_by_thread.get(thread) else {
                let ticks = self.total_ticks.saturating_sub(earlier.total_ticks);
                return TICK * u32::try_from(ticks).unwrap_or(u32::MAX);
            };
            nanos += after.saturating_sub(*before);
        }
        for (thread, after) in &self.nanos_by_thread {
            if !earlier.nanos_by_thread.contains_key(thread) {
                nanos += after;
            }
        }
        Duration::from_nanos(nanos)
    }
}

/// The CPU time of several processes so far.
pub fn cpu_of(pids: impl Iterator<Item = u32>) -> Result<Vec<CpuReading>> {
    pids.map(CpuReading::of).collect()
}

/// The fields behind the name, which may itself hold spaces and brackets: the first is field 3.
fn fields_of_stat(stat: &str) -> Result<Vec<&str>> {
    let (_, after_name) = stat.rsplit_once(')').context("an odd /proc/PID/stat")?;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    ensure!(fields.len() > 12, "a short /proc/PID/stat");
    Ok(fields)
}

/// User and system time, fields 14 and 15.
fn ticks_of_stat(stat: &str) -> Result<u64> {
    let fields = fields_of_stat(stat)?;
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}

/// The whole CPU time of a process.
#[derive(Debug, Clone, Copy)]
pub struct TotalCpu {
    pub user: Duration,
    pub system: Duration,
}

impl TotalCpu {
    /// With what threads took that have ended, in ticks of 10 ms.
    pub fn of(pid: u32) -> Result<TotalCpu> {
        let (_, total) = state_and_cpu(pid)?;
        Ok(total)
    }

    pub fn sum(self) -> Duration {
        self.user + self.system
    }
}

/// What a child of ours took, if it has ended and was not waited for yet.
pub fn cpu_if_ended(pid: u32) -> Result<Option<TotalCpu>> {
    let (state, total) = state_and_cpu(pid)?;
    Ok((state == "Z").then_some(total))
}

fn state_and_cpu(pid: u32) -> Result<(String, TotalCpu)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("process {pid} is gone"))?;
    let fields = fields_of_stat(&stat)?;
    let time = |field: &str| Ok::<Duration, anyhow::Error>(TICK * field.parse::<u32>()?);
    let total = TotalCpu {
        user: time(fields[11])?,
        system: time(fields[12])?,
    };
    Ok((fields[0].to_owned(), total))
}

/// The most memory that was resident so far, in bytes.
pub fn peak_bytes(pid: u32) -> Result<u64> {
    status_bytes(pid, "VmHWM:")
}

/// Resident memory in bytes.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    status_bytes(pid, "VmRSS:")
}

fn status_bytes(pid: u32, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} is gone"))?;
    let kilobytes = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next())
        .with_context(|| format!("no {name} in /proc/PID/status"))?;
    Ok(kilobytes.parse::<u64>()? * 1024)
}

/// Space taken on disk by a directory: allocated blocks, as `du` counts.
pub fn disk_bytes(directory: &Path) -> Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // Files come and go in a running server's directory.
        let Ok(metadata) = fs::symlink_metadata(entry.path()) else {
            continue;
        };
        if metadata.is_dir() {
            total += disk_bytes(&entry.path()).unwrap_or(0);
        } else {
            total += metadata.blocks() * 512;
        }
    }
    Ok(total)
}

/// The size of each entry of a directory, largest first.
pub fn disk_bytes_by_entry(directory: &Path) -> Result<Vec<(String, u64)>> {
    let mut sizes = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let Ok(metadata) = fs::symlink_metadata(entry.path()) else {
            continue;
        };
        let size = if metadata.is_dir() {
            disk_bytes(&entry.path()).unwrap_or(0)
        } else {
            metadata.blocks() * 512
        };
        sizes.push((entry.file_name().to_string_lossy().into_owned(), size));
    }
    sizes.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(threads: &[(&str, u64)], total_ticks: u64) -> CpuReading {
        CpuReading {
            nanos_by_thread: threads
                .iter()
                .map(|(thread, nanos)| ((*thread).to_owned(), *nanos))
                .collect(),
            total_ticks,
        }
    }

    #[test]
    fn time_between_readings() {
        let table = [
            // The same threads; a new one; one that ended, where only ticks know.
            (vec![("1", 500), ("2", 90)], 480),
            (vec![("1", 500), ("2", 90), ("3", 7)], 487),
            (vec![("1", 500)], 30_000_000),
        ];
        let before = reading(&[("1", 100), ("2", 10)], 5);
        for (threads, expected) in table {
            let after = reading(&threads, 8);
            assert_eq!(
                after.since(&before),
                Duration::from_nanos(expected),
                "{threads:?}"
            );
        }
    }

    #[test]
    fn ticks_come_after_any_name() {
        let stat = "42 (a (b) c) S 1 42 42 0 -1 4194304 100 0 0 0 17 25 0 0 20 0 1 0 5 6 7";
        assert_eq!(ticks_of_stat(stat).expect("ticks"), 42);
        assert!(ticks_of_stat("42 (x) S 1").is_err());
        assert!(ticks_of_stat("").is_err());
    }

    #[test]
    fn this_process_has_cpu_time_and_memory() {
        let pid = std::process::id();
        assert!(CpuReading::of(pid).expect("a reading").total_ticks < u64::MAX);
        assert!(resident_bytes(pid).expect("memory") > 100_000);
    }
}
