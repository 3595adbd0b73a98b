//! The newest lines of the process's log, which `getLog` shows.
//!
//! The binary writes each line here besides standard error. All members of a process share
//! them, as they share the log.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io::Write;

/// As many as MongoDB keeps.
const LINES_MAX: usize = 1024;
/// A longer line is cut.
const LINE_BYTES_MAX: usize = 4096;

struct Lines {
    written: u64,
    kept: VecDeque<String>,
}

static LINES: Mutex<Lines> = Mutex::new(Lines {
    written: 0,
    kept: VecDeque::new(),
});

/// What is written here is kept: whole lines, one or several at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecentLog;

impl RecentLog {
    /// How many lines there were, and the newest of them.
    pub(crate) fn lines(self) -> (u64, Vec<String>) {
        let lines = LINES.lock();
        (lines.written, lines.kept.iter().cloned().collect())
    }
}

impl Write for RecentLog {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        let mut lines = LINES.lock();
        for line in String::from_utf8_lossy(text).lines() {
            let end = line.floor_char_boundary(LINE_BYTES_MAX.min(line.len()));
            if lines.kept.len() == LINES_MAX {
                lines.kept.pop_front();
            }
            lines.kept.push_back(line[..end].to_owned());
            lines.written += 1;
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_lines_are_kept() {
        let (before, _) = RecentLog.lines();
        for number in 0..LINES_MAX + 10 {
            let line = format!("line {number}\n");
            RecentLog
                .write_all(line.as_bytes())
                .expect("memory takes everything");
        }
        let (written, kept) = RecentLog.lines();
        assert!(written >= before + LINES_MAX as u64 + 10);
        assert_eq!(kept.len(), LINES_MAX);
        let last = format!("line {}", LINES_MAX + 9);
        assert!(kept.contains(&last));
        assert!(!kept.iter().any(|line| line == "line 1"));
    }
}
