//! What a member must remember besides its log: its term, whom it voted for in it, the
//! configuration it has applied, and the copy of the state it is about to take over.
//!
//! One small file, `member.state`, with two slots that are written in turn:
//!
//! ```text
//!  slot      0    8  magic "TERNMEM\0"
//!            8    4  format version, 1
//!           12    4  length L of the body
//!           16    L  body
//!         16+L    4  CRC-32C of all before it
//!
//!  body      0   16  group id
//!           16    8  member id
//!           24    8  generation: one more than that of the other slot
//!           32    8  term
//!           40    8  vote: a member id, or zero
//!           48    8  position of the entry that made the configuration
//!           56    8  position of the state that is or was last installed, or zero
//!           64    8  term of the entry at that position
//!           72    .  voters, learners, outgoing voters, learners next:
//!                    each a count (2 bytes) and so many member ids (8 bytes each)
//! ```
//!
//! Crash windows. A slot is written and synced before anything that depends on it leaves
//! the member: a vote, an entry of a new term, the effect of a new configuration. A slot
//! that is torn was never relied upon, and the other slot holds what was. The commit
//! position is not kept: it is at least what the state has applied, and `commit_hint.rs` may know more.
//!
//! What it cannot tell: a disk that loses the newer slot after having synced it. The
//! member would then believe the older one.

use std::io;
use std::sync::Arc;

use crate::disk::{Disk, DiskFile, Fill};
use crate::entry::{LogPosition, Term};
use crate::error::Error;
use crate::member::{Configuration, MEMBERS_MAX, MemberId};
use crate::segment::GroupId;

pub(crate) const MEMBER_FILE: &str = "member.state";
const MEMBER_FILE_NEW: &str = "member.state.new";
const SLOT_BYTES: usize = 4096;
const MAGIC: [u8; 8] = *b"TERNMEM\0";
const FORMAT_VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberState {
    pub term: Term,
    pub vote: Option<MemberId>,
    pub configuration: Configuration,
    pub configuration_position: LogPosition,
    /// Position and term of the state that was last installed, or is about to be.
    pub installed: Option<(LogPosition, Term)>,
}

pub(crate) struct MemberFile {
    file: Arc<dyn DiskFile>,
    group: GroupId,
    member: MemberId,
    generation: u64,
    pub state: MemberState,
}

impl MemberFile {
    /// Opens the file; `None` if there is none yet.
    pub fn open(disk: &dyn Disk, group: GroupId, member: MemberId) -> Result<Option<Self>, Error> {
        let names = disk.list().map_err(Error::disk("listing the log"))?;
        if !names.iter().any(|name| name == MEMBER_FILE) {
            return Ok(None);
        }
        let reading = || Error::disk(format!("reading {MEMBER_FILE}"));
        let file = disk.open(MEMBER_FILE).map_err(reading())?;
        let mut newest: Option<(u64, MemberState)> = None;
        let mut why = "it is too short";
        if file.bytes().map_err(reading())? >= 2 * SLOT_BYTES as u64 {
            for slot in 0..2 {
                let mut bytes = vec![0; SLOT_BYTES];
                file.read_at(slot * SLOT_BYTES as u64, &mut bytes)
                    .map_err(reading())?;
                match decode(&bytes, group, member)? {
                    Ok((generation, state)) => {
                        if newest.as_ref().is_none_or(|(other, _)| generation > *other) {
                            newest = Some((generation, state));
                        }
                    }
                    Err(reason) => why = reason,
                }
            }
        }
        let Some((generation, state)) = newest else {
            return Err(corrupt(why));
        };
        let mut found = Self {
            file,
            group,
            member,
            generation,
            state,
        };
        // What was read may not be stable: the process may have died before its sync.
        found.write().map_err(reading())?;
        Ok(Some(found))
    }

    /// Makes the file under its name, stable when this returns.
    pub fn create(
        disk: &dyn Disk,
        group: GroupId,
        member: MemberId,
        state: MemberState,
    ) -> Result<Self, Error> {
        let failed = || Error::disk(format!("creating {MEMBER_FILE}"));
        let names = disk.list().map_err(failed())?;
        if names.iter().any(|name| name == MEMBER_FILE_NEW) {
            disk.remove(MEMBER_FILE_NEW).map_err(failed())?;
        }
        let file = disk
            .create(MEMBER_FILE_NEW, 2 * SLOT_BYTES as u64, Fill::Zeroed)
            .map_err(failed())?;
        let mut created = Self {
            file,
            group,
            member,
            generation: 0,
            state,
        };
        created.write().map_err(failed())?;
        disk.rename(MEMBER_FILE_NEW, MEMBER_FILE)
            .map_err(failed())?;
        disk.sync_directory().map_err(failed())?;
        Ok(created)
    }

    /// Changes what is remembered; it is stable when this returns. After an error the
    /// group must stop.
    pub fn save(&mut self, change: impl FnOnce(&mut MemberState)) -> io::Result<()> {
        change(&mut self.state);
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        self.generation += 1;
        let bytes = encode(&self.state, self.group, self.member, self.generation);
        let slot = self.generation % 2 * SLOT_BYTES as u64;
        self.file.write_at(slot, &bytes)?;
        self.file.sync()
    }
}

fn corrupt(detail: &str) -> Error {
    Error::Corrupt {
        file: MEMBER_FILE.to_owned(),
        detail: detail.to_owned(),
    }
}

fn encode(state: &MemberState, group: GroupId, member: MemberId, generation: u64) -> Vec<u8> {
    let mut body = group.0.to_le_bytes().to_vec();
    let (installed, installed_term) = match state.installed {
        None => (0, 0),
        Some((position, term)) => (position.get(), term.get()),
    };
    for number in [
        member.get(),
        generation,
        state.term.get(),
        state.vote.map_or(0, MemberId::get),
        state.configuration_position.get(),
        installed,
        installed_term,
    ] {
        body.extend_from_slice(&number.to_le_bytes());
    }
    let configuration = &state.configuration;
    for members in [
        &configuration.voters,
        &configuration.learners,
        &configuration.outgoing,
        &configuration.learners_next,
    ] {
        body.extend_from_slice(&(members.len() as u16).to_le_bytes());
        for member in members {
            body.extend_from_slice(&member.get().to_le_bytes());
        }
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&body);
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    assert!(
        bytes.len() <= SLOT_BYTES,
        "a slot holds every configuration"
    );
    bytes
}

/// Takes numbers from the front of a slot.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take()?))
    }

    fn members(&mut self) -> Option<Vec<MemberId>> {
        let count = usize::from(u16::from_le_bytes(self.take()?));
        if count > MEMBERS_MAX {
            return None;
        }
        (0..count)
            .map(|_| MemberId::checked(self.number()?))
            .collect()
    }
}

type Slot = Result<(u64, MemberState), &'static str>;

/// The outer error is for a slot that is whole and yet not ours.
fn decode(bytes: &[u8], group: GroupId, member: MemberId) -> Result<Slot, Error> {
    let mut reader = Reader(bytes);
    if reader.take() != Some(MAGIC) {
        return Ok(Err("it does not begin with the magic bytes"));
    }
    let version = reader.take().map_or(0, u32::from_le_bytes);
    let length = reader.take().map_or(0, u32::from_le_bytes) as usize;
    let Some(body) = reader.0.get(..length) else {
        return Ok(Err("the length is impossible"));
    };
    let checksum = reader.0[length..].first_chunk::<4>().copied();
    if checksum.map(u32::from_le_bytes) != Some(crc32c::crc32c(&bytes[..16 + length])) {
        return Ok(Err("the checksum is wrong"));
    }
    if version != FORMAT_VERSION {
        return Err(Error::FormatVersion {
            file: MEMBER_FILE.to_owned(),
            found: version,
            supported: FORMAT_VERSION,
        });
    }
    let mut reader = Reader(body);
    let Some((found_group, found_member, slot)) = decode_body(&mut reader) else {
        return Ok(Err("the body does not decode"));
    };
    if found_group != group {
        return Err(Error::ForeignGroup {
            file: MEMBER_FILE.to_owned(),
        });
    }
    if found_member != member.get() {
        return Err(corrupt(&format!(
            "it belongs to member {found_member}, not to {member}"
        )));
    }
    Ok(Ok(slot))
}

fn decode_body(reader: &mut Reader<'_>) -> Option<(GroupId, u64, (u64, MemberState))> {
    let group = GroupId(u128::from_le_bytes(reader.take()?));
    let member = reader.number()?;
    let generation = reader.number()?;
    let term = Term::new(reader.number()?);
    let vote = MemberId::checked(reader.number()?);
    let configuration_position = LogPosition::new(reader.number()?);
    let (installed, installed_term) = (reader.number()?, reader.number()?);
    let state = MemberState {
        term,
        vote,
        configuration_position,
        installed: (installed > 0)
            .then(|| (LogPosition::new(installed), Term::new(installed_term))),
        configuration: Configuration {
            voters: reader.members()?,
            learners: reader.members()?,
            outgoing: reader.members()?,
            learners_next: reader.members()?,
        },
    };
    Some((group, member, (generation, state)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated_disk::SimulatedDisk;

    const GROUP: GroupId = GroupId(9);
    const ME: MemberId = MemberId::new(2);

    fn state(term: u64) -> MemberState {
        MemberState {
            term: Term::new(term),
            vote: MemberId::checked(term % 3),
            configuration: Configuration {
                voters: vec![MemberId::new(1), ME],
                learners: vec![MemberId::new(5)],
                outgoing: vec![ME],
                learners_next: vec![],
            },
            configuration_position: LogPosition::new(17),
            installed: (term > 1).then(|| (LogPosition::new(9), Term::new(1))),
        }
    }

    fn read(disk: &SimulatedDisk) -> MemberState {
        let found = MemberFile::open(disk, GROUP, ME).expect("opens");
        found.expect("is there").state
    }

    /// After every cut there is the last state that was saved, or the one being saved.
    #[test]
    fn a_power_cut_leaves_the_old_state_or_the_new_one() {
        for operations in 0..40 {
            for seed in 0..8 {
                let disk = SimulatedDisk::new();
                let mut file = MemberFile::create(&disk, GROUP, ME, state(1)).expect("creates");
                disk.cut_power_after(operations);
                let mut saved = 1;
                while file.save(|to| *to = state(saved + 1)).is_ok() {
                    saved += 1;
                }
                disk.restart(Some(seed));
                let found = read(&disk);
                assert!(
                    found == state(saved) || found == state(saved + 1),
                    "{found:?} after {saved}"
                );
                assert_eq!(read(&disk), found, "and it stays");
            }
        }
    }

    #[test]
    fn a_file_of_another_member_or_group_is_refused() {
        let disk = SimulatedDisk::new();
        MemberFile::create(&disk, GROUP, ME, state(1)).expect("creates");
        assert!(MemberFile::open(&disk, GROUP, MemberId::new(3)).is_err());
        assert!(MemberFile::open(&disk, GroupId(8), ME).is_err());
        disk.damage(MEMBER_FILE, SLOT_BYTES as u64 + 40, &[0xff])
            .expect("damages");
        assert!(matches!(
            MemberFile::open(&disk, GROUP, ME),
            Err(Error::Corrupt { .. })
        ));
    }
}
