//! What the system says of this process: memory, time on cores, reads and writes of disks.
//!
//! From `/proc`. What cannot be read is zero.

use model::bson::DocWriter;
use std::fs::read_to_string;

/// The unit in which block input and output is counted.
const BLOCK_BYTES: u64 = 512;

#[derive(Default)]
pub(crate) struct Process {
    status: String,
    /// The fields of `/proc/self/stat` behind the name, which may have blanks.
    stat: Vec<u64>,
    io: String,
}

impl Process {
    pub(crate) fn now() -> Process {
        let read = |name: &str| read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let stat = read("stat");
        let behind_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let fields = behind_name.split_ascii_whitespace();
        Process {
            stat: fields.map(|field| field.parse().unwrap_or(0)).collect(),
            status: read("status"),
            io: read("io"),
        }
    }

    /// Resident memory in MiB.
    pub(crate) fn resident_mb(&self) -> i32 {
        (line_of(&self.status, "VmRSS:") / 1024) as i32
    }

    /// Address space in MiB.
    pub(crate) fn virtual_mb(&self) -> i32 {
        (line_of(&self.status, "VmSize:") / 1024) as i32
    }

    /// A field of `/proc/self/stat` by its number in the manual; the state is number 3.
    fn field(&self, number: usize) -> i64 {
        let field = self.stat.get(number - 3).copied().unwrap_or(0);
        i64::try_from(field).unwrap_or(i64::MAX)
    }

    /// The section `extra_info`.
    pub(crate) fn append_extra_info(&self, writer: &mut DocWriter) {
        let ticks_per_second = rustix::param::clock_ticks_per_second().max(1) as i64;
        let micros = |ticks: i64| ticks.saturating_mul(1_000_000) / ticks_per_second;
        let blocks = |name: &str| (line_of(&self.io, name) / BLOCK_BYTES) as i64;
        writer
            .begin_document("extra_info")
            .append("note", "fields vary by platform")
            .append("user_time_us", micros(self.field(14)))
            .append("system_time_us", micros(self.field(15)))
            .append(
                "maximum_resident_set_kb",
                line_of(&self.status, "VmHWM:") as i64,
            )
            .append("input_blocks", blocks("read_bytes:"))
            .append("output_blocks", blocks("write_bytes:"))
            .append("page_reclaims", self.field(10))
            .append("page_faults", self.field(12))
            .end();
    }
}

/// The number in the line that begins with a name.
fn line_of(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_ascii_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::bson::ValueRef;

    #[test]
    fn the_system_tells_of_this_process() {
        let process = Process::now();
        assert!(process.resident_mb() > 0 && process.virtual_mb() >= process.resident_mb());
        let mut writer = DocWriter::new();
        process.append_extra_info(&mut writer);
        let written = writer.finish();
        let info = written.as_doc().get_doc("extra_info").expect("a section");
        let number = |name: &str| match info.get(name) {
            Some(ValueRef::Int64(number)) => number,
            other => panic!("{name}: {other:?}"),
        };
        assert!(number("maximum_resident_set_kb") >= i64::from(process.resident_mb()) * 1024);
        assert!(number("page_reclaims") > 0);
        assert!(number("user_time_us") >= 0 && number("system_time_us") >= 0);
    }
}
