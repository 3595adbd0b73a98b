//! How far a member knows the log to be committed, for when it starts and nobody is there to tell it.
//!
//! What is committed is known to a member that hears it from a leader, and afterwards only by what its state
//! contains. The state is made stable now and then, so a member that starts alone, while its set's other members
//! are away, would show what it showed some time ago, although its log holds the rest. A small file says more:
//!
//! ```text
//!   0    8  magic "TERNCMT\0"
//!   8    4  format version, 1
//!  12    4  zero
//!  16   16  group id
//!  32    8  member id
//!  40    8  position of an entry that was committed
//!  48    8  its term
//!  56    8  its time
//!  64    4  CRC-32C of all before it
//! ```
//!
//! It is written with each tick, if something was applied since, and not synced; at an orderly end it is synced. A
//! sole member needs none: what is in its log is committed.
//!
//! Why it may be believed, whenever it was written:
//! - ⚑ It names what was applied, and that was committed: a majority has it, and no log can ever have
//!   another entry there.
//! - Two logs of a group that have an entry of the same term at the same position have the same entries up to there.
//!   So if the log has the entry that the hint names, everything up to it is what was committed, however old
//!   hint and log are, and whichever of them was restored from another day. If it has another one, or
//!   ends before it, the hint is about another log, and is ignored.
//! - What is torn, of another format, group or member, or cannot be read, is ignored: all is as without it. The time
//!   tells groups apart that have the same id, should files of two sets be mixed up.
//!
//! Crash windows. A hint on the disk may be older than what was applied: the rest is applied when a leader says so, as
//! without it. It cannot be newer than the log on the disk: an entry is synced before it is applied (where it is
//! not, there is a sole member and no hint). What was committed is never cut off, so no hint outlives its entry.
//!
//! What it leaves out: a hint that cannot be written is given up until the next start; nothing depends on it.

use std::sync::Arc;

use model::time::ClusterTime;

use crate::disk::{Disk, DiskFile, Fill};
use crate::entry::{LogPosition, Term};
use crate::log_state::LogState;
use crate::member::MemberId;
use crate::segment::GroupId;

pub(crate) const HINT_FILE: &str = "commit.hint";
const FILE_BYTES: u64 = 512;
const MAGIC: [u8; 8] = *b"TERNCMT\0";
const FORMAT_VERSION: u32 = 1;
const CHECKED_BYTES: usize = 64;
const HINT_BYTES: usize = CHECKED_BYTES + 4;

/// An entry that was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommittedEntry {
    pub position: LogPosition,
    pub term: Term,
    pub time: ClusterTime,
}

/// What the file is to this process.
enum HintFile {
    Missing,
    Open(Arc<dyn DiskFile>),
    /// It could not be written.
    GivenUp,
}

/// The file, and what it says.
pub(crate) struct CommitHint {
    group: GroupId,
    member: MemberId,
    file: HintFile,
    said: Option<CommittedEntry>,
}

impl CommitHint {
    /// Reads what there is. Whether it holds for this log is asked with [`CommitHint::believed`].
    pub fn open(log: &LogState) -> Self {
        let mut hint = Self {
            group: log.options.group,
            member: log.options.member,
            file: HintFile::Missing,
            said: None,
        };
        let names = log.disk.list().unwrap_or_default();
        if !names.iter().any(|name| name == HINT_FILE) {
            return hint;
        }
        let read = log.disk.open(HINT_FILE).and_then(|file| {
            let mut bytes = [0; HINT_BYTES];
            if file.bytes()? >= FILE_BYTES {
                file.read_at(0, &mut bytes)?;
            }
            Ok((file, bytes))
        });
        match read {
            Ok((file, bytes)) => {
                hint.file = HintFile::Open(file);
                hint.said = decode(&bytes, hint.group, hint.member);
            }
            Err(error) => {
                tracing::warn!(%error, "{HINT_FILE} cannot be read, and is not used");
                hint.file = HintFile::GivenUp;
            }
        }
        hint
    }

    /// How far the log is committed by what the file says, if it says it of this log.
    pub fn believed(&self, log: &LogState) -> Option<LogPosition> {
        let said = self.said?;
        if said.position < log.unbroken_first() || said.position > log.appended() {
            return None;
        }
        let found = log.read_until(said.position.previous(), said.position, 0);
        let found = found.ok()?;
        let entry = found.first()?;
        let is_same =
            (entry.position, entry.term, entry.time) == (said.position, said.term, said.time);
        is_same.then_some(said.position)
    }

    /// Says that an entry is committed. It need not be stable when this returns.
    pub fn say(&mut self, disk: &dyn Disk, committed: CommittedEntry) {
        if self.said == Some(committed) {
            return;
        }
        self.said = Some(committed);
        let written = match &self.file {
            HintFile::GivenUp => return,
            HintFile::Open(file) => Ok(file.clone()),
            HintFile::Missing => disk.create(HINT_FILE, FILE_BYTES, Fill::Zeroed),
        };
        let bytes = encode(committed, self.group, self.member);
        let written = written.and_then(|file| {
            file.write_at(0, &bytes)?;
            Ok(file)
        });
        self.file = match written {
            Ok(file) => HintFile::Open(file),
            Err(error) => {
                tracing::warn!(%error, "{HINT_FILE} cannot be written, and is given up");
                HintFile::GivenUp
            }
        };
    }

    /// Makes what was said stable.
    pub fn sync(&self, disk: &dyn Disk) {
        let HintFile::Open(file) = &self.file else {
            return;
        };
        if let Err(error) = file.sync().and_then(|()| disk.sync_directory()) {
            tracing::warn!(%error, "{HINT_FILE} is not known to be stable");
        }
    }
}

fn encode(committed: CommittedEntry, group: GroupId, member: MemberId) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&group.0.to_le_bytes());
    for number in [
        member.get(),
        committed.position.get(),
        committed.term.get(),
        committed.time.to_u64(),
    ] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; HINT_BYTES], group: GroupId, member: MemberId) -> Option<CommittedEntry> {
    let number = |at: usize| {
        let taken = bytes[at..].first_chunk::<8>();
        taken.map(|taken| u64::from_le_bytes(*taken))
    };
    let committed = CommittedEntry {
        position: LogPosition::new(number(40)?),
        term: Term::new(number(48)?),
        time: ClusterTime::from_u64(number(56)?),
    };
    // Magic, version, group, member and checksum are right if all bytes are.
    (encode(committed, group, member) == bytes).then_some(committed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::options::Options;
    use crate::simulated_disk::SimulatedDisk;

    fn committed(position: u64, term: u64) -> CommittedEntry {
        CommittedEntry {
            position: LogPosition::new(position),
            term: Term::new(term),
            time: ClusterTime::new(7, position as u32),
        }
    }

    fn open(disk: &SimulatedDisk, group: u128, member: u64) -> CommitHint {
        let mut options = Options::new(GroupId(group));
        options.member = MemberId::new(member);
        let log = LogState::new(options, Arc::new(disk.clone()), Arc::new(SystemClock));
        CommitHint::open(&log)
    }

    /// After every cut it says what was said last, something said before, or nothing.
    #[test]
    fn a_power_cut_leaves_an_old_hint_or_none() {
        let mut found = [0; 3];
        for operations in 0..8 {
            for seed in 0..8 {
                let disk = SimulatedDisk::new();
                let mut hint = open(&disk, 9, 2);
                hint.say(&disk, committed(3, 1));
                hint.sync(&disk);
                disk.cut_power_after(operations);
                for position in 4..8 {
                    hint.say(&disk, committed(position, 1));
                }
                disk.restart(Some(seed));
                match open(&disk, 9, 2).said {
                    None => found[0] += 1,
                    Some(said) if said == committed(3, 1) => found[1] += 1,
                    Some(said) => {
                        found[2] += 1;
                        assert!((4..8).any(|position| said == committed(position, 1)));
                    }
                }
            }
        }
        assert!(found[1] > 0 && found[2] > 0, "{found:?}");
    }

    #[test]
    fn what_was_synced_stays() {
        let disk = SimulatedDisk::new();
        let mut hint = open(&disk, 9, 2);
        assert_eq!(hint.said, None);
        hint.say(&disk, committed(5, 2));
        hint.sync(&disk);
        disk.restart(Some(1));
        assert_eq!(open(&disk, 9, 2).said, Some(committed(5, 2)));
    }

    #[test]
    fn what_is_damaged_or_of_somebody_else_says_nothing() {
        let disk = SimulatedDisk::new();
        let mut hint = open(&disk, 9, 2);
        hint.say(&disk, committed(5, 2));
        assert_eq!(open(&disk, 9, 2).said, Some(committed(5, 2)));
        assert_eq!(open(&disk, 8, 2).said, None);
        assert_eq!(open(&disk, 9, 3).said, None);
        for at in 0..HINT_BYTES as u64 {
            let mut byte = [0];
            let file = disk.open(HINT_FILE).expect("it is there");
            file.read_at(at, &mut byte).expect("it is read");
            disk.damage(HINT_FILE, at, &[byte[0] ^ 1]).expect("damages");
            assert_eq!(open(&disk, 9, 2).said, None, "byte {at}");
            disk.damage(HINT_FILE, at, &byte).expect("repairs");
        }
        assert_eq!(open(&disk, 9, 2).said, Some(committed(5, 2)));
    }
}
