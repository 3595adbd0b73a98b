//! The bytes of a segment file: its header and its entries.
//!
//! A log is a row of segment files, each of a fixed size (larger if a single entry
//! needs it). Their names say where they begin: `log-<first position, 16 hex
//! digits>.seg`. All numbers are little-endian.
//!
//! ```text
//!  segment   0            512                                          file size
//!            ├── header ──┼─ entry ─┼─ entry ─┼─ … ─┼── zeros or stale bytes ──┤
//!
//!  header    0    8  magic "TERNLOG\0"
//!            8    4  format version, 2
//!           12    4  zero
//!           16   16  group id
//!           32    8  sequence: greater than that of every segment made before it
//!           40    8  first position: of the first entry in this segment
//!           48    8  previous position: of the last entry before this segment;
//!                    first position - 1, or less: then what lies between is a gap
//!           56    8  previous time: no earlier entry has a later time, no entry of
//!                    this segment an earlier or equal one
//!           64    8  previous term: the term of the last entry before this segment
//!           72    8  wall clock when the segment was begun, ms since 1970
//!           80    8  previous sequence: that of the segment before it, zero for none
//!           88  420  zeros
//!          508    4  CRC-32C of bytes 0..508
//!
//!  entry     0    4  length L of the entry from byte 0 to the end of its payload
//!                    (48 + payload); zero where nothing has been written
//!            4    4  CRC-32C of: group id, sequence (as in the header), bytes 0..4,
//!                    bytes 8..L
//!            8    8  position
//!           16    7  term
//!           23    1  kind: 0 data, 1 no-op, 2 change of members
//!           24    8  time: seconds in the high half, increment in the low half
//!           32    8  wall clock when it was proposed, ms since 1970
//!           40    8  synced mark: when this entry was written, every entry up to
//!                    this position had been synced
//!           48  L-48 payload, or the change of members (see `member.rs`)
//!            L  0-7  zeros, so that the next entry begins at a multiple of 8
//! ```
//!
//! **Recycling.** A segment that left the log is renamed to a spare and later gets a
//! new header; its old entries stay behind as stale bytes. They are never taken for
//! entries, because the checksum covers the sequence, and a sequence is used for one
//! file only: it grows by one with each segment, and no entry is written before the
//! segment's header and name are stable. (A segment that is still empty when an entry
//! needs a larger one is replaced under its name and sequence; it held no entry.)
//!
//! **Behind the end.** A write may put zeros behind its last entry (`append.rs`), over
//! which the next one is written. A walk finds nothing there, as where nothing was written.
//!
//! **Cutting off.** Entries at the end that another leader has replaced are not
//! overwritten: a new segment begins at the first of them, and the segment before it
//! holds only what comes before its successor. See `truncate.rs`.
//!
//! **Torn or damaged.** Segments before the last one were synced before their
//! successor was made: any entry that does not check there is damage. In the last
//! one, entries after the first that does not check (at position P) are searched for.
//! If one has a synced mark at or after P, then P had been synced, and this is
//! damage: an error, and nothing is changed. If not, P belonged to a group whose sync
//! had not finished when the power went: the tail is cut at P, which means that zeros
//! are written from there on. (Leaving the torn bytes would not do: a later entry written
//! over them, torn in its turn, could complete them.) What this cannot tell
//! apart is damage to the very last synced groups, after which nothing more was
//! written: it looks like a torn tail and is cut.
//!
//! **Assumed of the disk.** Appending rewrites the block that holds the end of the
//! entry before. A cut during that write may leave old or new bytes in it, not others.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use model::time::ClusterTime;
use parking_lot::Mutex;

use crate::disk::DiskFile;
use crate::entry::{Entry, EntryKind, LogPosition, Term};
use crate::error::Error;
use crate::member::ConfigurationChange;

pub(crate) const HEADER_BYTES: u64 = 512;
pub(crate) const ENTRY_HEADER_BYTES: usize = 48;
const MAGIC: [u8; 8] = *b"TERNLOG\0";
const FORMAT_VERSION: u32 = 2;
const KIND_AT: usize = 23;
const KIND_DATA: u8 = 0;
const KIND_NOOP: u8 = 1;
const KIND_CONFIGURATION: u8 = 2;
const TERM_MAX: u64 = (1 << 56) - 1;
const ALIGNMENT: usize = 8;

/// How much of a file is read at once while walking along its entries.
const READ_STEP_BYTES: usize = 256 << 10;
/// How far apart the remembered entry offsets of a segment are.
const INDEX_STEP_BYTES: u64 = 64 << 10;

/// Which log a segment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupId(pub u128);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub group: GroupId,
    pub sequence: u64,
    pub first: LogPosition,
    pub previous: LogPosition,
    pub previous_time: ClusterTime,
    pub previous_term: Term,
    pub wall_ms: i64,
    pub previous_sequence: u64,
}

impl SegmentHeader {
    pub fn name(&self) -> String {
        format!("log-{:016x}.seg", self.first.get())
    }

    pub fn encode(&self) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = [0u8; HEADER_BYTES as usize];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.group.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.first.get().to_le_bytes());
        bytes[48..56].copy_from_slice(&self.previous.get().to_le_bytes());
        bytes[56..64].copy_from_slice(&self.previous_time.to_u64().to_le_bytes());
        bytes[64..72].copy_from_slice(&self.previous_term.get().to_le_bytes());
        bytes[72..80].copy_from_slice(&self.wall_ms.to_le_bytes());
        bytes[80..88].copy_from_slice(&self.previous_sequence.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..508]);
        bytes[508..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a header. A name is given only to segments whose header was synced, so
    /// that a bad one is damage, never an unfinished creation.
    pub fn decode(file: &str, bytes: &[u8; HEADER_BYTES as usize]) -> Result<Self, Error> {
        let corrupt = |detail: &str| Error::Corrupt {
            file: file.to_owned(),
            detail: detail.to_owned(),
        };
        if bytes[0..8] != MAGIC {
            return Err(corrupt("the header does not begin with the magic bytes"));
        }
        // The version comes before the checksum, whose place it might change.
        let version = u32_at(bytes, 8);
        if version != FORMAT_VERSION {
            return Err(Error::FormatVersion {
                file: file.to_owned(),
                found: version,
                supported: FORMAT_VERSION,
            });
        }
        if u32_at(bytes, 508) != crc32c::crc32c(&bytes[..508]) {
            return Err(corrupt("the checksum of the header is wrong"));
        }
        let mut group = [0u8; 16];
        group.copy_from_slice(&bytes[16..32]);
        let header = Self {
            group: GroupId(u128::from_le_bytes(group)),
            sequence: u64_at(bytes, 32),
            first: LogPosition::new(u64_at(bytes, 40)),
            previous: LogPosition::new(u64_at(bytes, 48)),
            previous_time: ClusterTime::from_u64(u64_at(bytes, 56)),
            previous_term: Term::new(u64_at(bytes, 64)),
            wall_ms: u64_at(bytes, 72) as i64,
            previous_sequence: u64_at(bytes, 80),
        };
        if header.name() != file {
            return Err(corrupt("the header is for a file of another name"));
        }
        if header.previous >= header.first {
            return Err(corrupt(
                "the segment begins before the one that precedes it",
            ));
        }
        Ok(header)
    }

    fn checksum_seed(&self) -> u32 {
        let group = crc32c::crc32c(&self.group.0.to_le_bytes());
        crc32c::crc32c_append(group, &self.sequence.to_le_bytes())
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0u8; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0u8; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// The room an entry takes in its segment.
pub(crate) fn stored_bytes(entry: &Entry) -> u64 {
    let body = match &entry.kind {
        EntryKind::Data => entry.payload.len(),
        EntryKind::Noop => 0,
        EntryKind::Configuration(change) => change.encode().len(),
    };
    (ENTRY_HEADER_BYTES + body).next_multiple_of(ALIGNMENT) as u64
}

/// Kind and payload of an entry, from its kind byte and what follows its header.
fn decode_body(kind: u8, body: &[u8]) -> Option<(EntryKind, Bytes)> {
    match kind {
        KIND_DATA => Some((EntryKind::Data, Bytes::copy_from_slice(body))),
        KIND_NOOP if body.is_empty() => Some((EntryKind::Noop, Bytes::new())),
        KIND_CONFIGURATION => {
            let change = ConfigurationChange::decode(body).ok()?;
            Some((EntryKind::Configuration(change), Bytes::new()))
        }
        _ => None,
    }
}

/// One entry as it was found in a segment.
#[derive(Debug)]
pub(crate) struct StoredEntry {
    pub entry: Entry,
    pub synced: LogPosition,
    /// Where it begins and ends, padding included.
    pub offset: u64,
    pub end: u64,
}

/// What is at one place of a segment.
#[derive(Debug)]
pub(crate) enum Found {
    Entry(StoredEntry),
    /// Nothing was written here.
    Nothing,
    /// Bytes that are not an entry of this segment: torn, damaged or stale.
    NotAnEntry(&'static str),
}

/// An open segment, shared between the writer and the readers.
pub(crate) struct Segment {
    pub header: SegmentHeader,
    pub name: String,
    pub file: Arc<dyn DiskFile>,
    pub bytes: u64,
    checksum_seed: u32,
    /// Some positions with their offsets, ascending; the first entry is always there.
    index: Mutex<Vec<(LogPosition, u64)>>,
}

impl Segment {
    pub fn new(header: SegmentHeader, file: Arc<dyn DiskFile>, bytes: u64) -> Self {
        Self {
            name: header.name(),
            checksum_seed: header.checksum_seed(),
            index: Mutex::new(vec![(header.first, HEADER_BYTES)]),
            header,
            file,
            bytes,
        }
    }

    /// Opens a segment and checks its header.
    pub fn open(name: &str, file: Arc<dyn DiskFile>, group: GroupId) -> Result<Self, Error> {
        let bytes = file
            .bytes()
            .map_err(Error::disk(format!("size of {name}")))?;
        if bytes < HEADER_BYTES {
            return Err(Error::Corrupt {
                file: name.to_owned(),
                detail: format!("{bytes} bytes cannot hold a header"),
            });
        }
        let mut header = [0u8; HEADER_BYTES as usize];
        file.read_at(0, &mut header)
            .map_err(Error::disk(format!("reading {name}")))?;
        let header = SegmentHeader::decode(name, &header)?;
        if header.group != group {
            return Err(Error::ForeignGroup {
                file: name.to_owned(),
            });
        }
        Ok(Self::new(header, file, bytes))
    }

    /// Appends the bytes of one entry to `buffer`.
    pub fn encode(&self, entry: &Entry, synced: LogPosition, buffer: &mut Vec<u8>) {
        let change;
        let (kind, body): (u8, &[u8]) = match &entry.kind {
            EntryKind::Data => (KIND_DATA, &entry.payload),
            EntryKind::Noop => (KIND_NOOP, &[]),
            EntryKind::Configuration(steps) => {
                change = steps.encode();
                (KIND_CONFIGURATION, &change)
            }
        };
        assert!(entry.term.get() <= TERM_MAX, "a term has seven bytes");
        let length = (ENTRY_HEADER_BYTES + body.len()) as u32;
        let start = buffer.len();
        buffer.extend_from_slice(&length.to_le_bytes());
        buffer.extend_from_slice(&[0; 4]);
        buffer.extend_from_slice(&entry.position.get().to_le_bytes());
        buffer.extend_from_slice(&entry.term.get().to_le_bytes());
        buffer.extend_from_slice(&entry.time.to_u64().to_le_bytes());
        buffer.extend_from_slice(&entry.wall_ms.to_le_bytes());
        buffer.extend_from_slice(&synced.get().to_le_bytes());
        buffer[start + KIND_AT] = kind;
        buffer.extend_from_slice(body);
        let checksum = self.checksum(&buffer[start..]);
        buffer[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
        let padded = (buffer.len() - start).next_multiple_of(ALIGNMENT);
        buffer.resize(start + padded, 0);
    }

    /// Of an entry's bytes, without the padding.
    fn checksum(&self, bytes: &[u8]) -> u32 {
        let length = crc32c::crc32c_append(self.checksum_seed, &bytes[0..4]);
        crc32c::crc32c_append(length, &bytes[8..])
    }

    /// The offset of the nearest remembered entry at or before `position`.
    fn nearest(&self, position: LogPosition) -> (LogPosition, u64) {
        let index = self.index.lock();
        let after = index.partition_point(|(known, _)| *known <= position);
        index[after.saturating_sub(1)]
    }

    /// Remembers where an entry is, if it is far enough from what is known.
    pub fn remember(&self, position: LogPosition, offset: u64) {
        let mut index = self.index.lock();
        if index
            .last()
            .is_none_or(|(last, at)| position > *last && offset >= at + INDEX_STEP_BYTES)
        {
            index.push((position, offset));
        }
    }

    /// Walks along the entries from the one at `position`, which must be in this
    /// segment, or where the next one would be.
    pub fn walk(&self, position: LogPosition) -> Walk<'_> {
        let (known, offset) = self.nearest(position);
        Walk {
            segment: self,
            next: known,
            skip_before: position,
            offset,
            window: Vec::new(),
            window_offset: 0,
        }
    }

    /// Checks whether `bytes`, which were read at `offset`, begin with an entry. They
    /// must be at least as many as the length in front of them says.
    fn check(&self, bytes: &[u8], offset: u64) -> Found {
        let length = u32_at(bytes, 0) as usize;
        if u32_at(bytes, 4) != self.checksum(&bytes[..length]) {
            return Found::NotAnEntry("the checksum is wrong");
        }
        let Some((kind, payload)) = decode_body(bytes[KIND_AT], &bytes[ENTRY_HEADER_BYTES..length])
        else {
            return Found::NotAnEntry("the kind of entry is unknown");
        };
        Found::Entry(StoredEntry {
            entry: Entry {
                position: LogPosition::new(u64_at(bytes, 8)),
                term: Term::new(u64_at(bytes, 16) & TERM_MAX),
                time: ClusterTime::from_u64(u64_at(bytes, 24)),
                wall_ms: u64_at(bytes, 32) as i64,
                kind,
                payload,
            },
            synced: LogPosition::new(u64_at(bytes, 40)),
            offset,
            end: offset + length.next_multiple_of(ALIGNMENT) as u64,
        })
    }

    /// Looks for entries of this segment at and after `position` anywhere behind
    /// `offset`, where walking ended because the entry at `position` did not check.
    pub fn search_after(&self, position: LogPosition, offset: u64) -> io::Result<Stragglers> {
        let mut rest = vec![0u8; self.bytes.saturating_sub(offset) as usize];
        self.file.read_at(offset, &mut rest)?;
        let used = used_bytes(&rest);
        let mut stragglers = Stragglers {
            synced_max: LogPosition::BEFORE_FIRST,
            used_end: offset + used as u64,
        };
        let highest = position.get() + self.bytes / ENTRY_HEADER_BYTES as u64;
        let mut at = 0;
        while at < used && at + ENTRY_HEADER_BYTES <= rest.len() {
            let length = u32_at(&rest, at) as usize;
            let fits = (ENTRY_HEADER_BYTES..=rest.len() - at).contains(&length);
            // Positions of stale entries are lower, so that few checksums are computed.
            if fits
                && (position.get()..=highest).contains(&u64_at(&rest, at + 8))
                && let Found::Entry(found) = self.check(&rest[at..], offset + at as u64)
            {
                stragglers.synced_max = stragglers.synced_max.max(found.synced);
                at = (found.end - offset) as usize;
            } else {
                at += ALIGNMENT;
            }
        }
        Ok(stragglers)
    }
}

/// How many bytes are left when zeros at the end are taken away, block by block.
fn used_bytes(bytes: &[u8]) -> usize {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut used = bytes.len();
    while used > 0 {
        let start = used.saturating_sub(ZEROS.len());
        if bytes[start..used] != ZEROS[..used - start] {
            break;
        }
        used = start;
    }
    used
}

/// What lies behind the end of the log in its last segment.
#[derive(Debug)]
pub(crate) struct Stragglers {
    /// The greatest synced mark among the entries there that are whole.
    pub synced_max: LogPosition,
    /// From here on there are only zeros.
    pub used_end: u64,
}

/// A walk along the entries of one segment.
pub(crate) struct Walk<'a> {
    segment: &'a Segment,
    /// The position that the entry at `offset` must have.
    next: LogPosition,
    /// Entries before this one are passed over.
    skip_before: LogPosition,
    offset: u64,
    /// A stretch of the file, beginning at `window_offset`.
    window: Vec<u8>,
    window_offset: u64,
}

impl Walk<'_> {
    /// Where the walk stands: the end of the last entry found.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The entry at the current place. The walk moves on only behind a good entry.
    pub fn step(&mut self) -> io::Result<Found> {
        loop {
            let found = self.look()?;
            if let Found::Entry(found) = &found {
                if found.entry.position != self.next {
                    return Ok(Found::NotAnEntry("the position is not the next one"));
                }
                self.segment.remember(self.next, found.offset);
                self.next = self.next.next();
                self.offset = found.end;
                if found.entry.position < self.skip_before {
                    continue;
                }
            }
            return Ok(found);
        }
    }

    fn look(&mut self) -> io::Result<Found> {
        let rest = self.segment.bytes.saturating_sub(self.offset);
        if rest < ENTRY_HEADER_BYTES as u64 {
            return Ok(Found::Nothing);
        }
        let length = u32_at(self.bytes(ENTRY_HEADER_BYTES)?, 0) as usize;
        if length == 0 {
            return Ok(Found::Nothing);
        }
        if length < ENTRY_HEADER_BYTES || length as u64 > rest {
            return Ok(Found::NotAnEntry("the length is impossible"));
        }
        let offset = self.offset;
        let segment = self.segment;
        Ok(segment.check(self.bytes(length)?, offset))
    }

    /// At least `count` bytes from the current place on, which the file must have.
    fn bytes(&mut self, count: usize) -> io::Result<&[u8]> {
        let window_end = self.window_offset + self.window.len() as u64;
        let covered = self.offset >= self.window_offset
            && self.offset.saturating_add(count as u64) <= window_end;
        if !covered {
            let rest = self.segment.bytes - self.offset;
            let step = (count.max(READ_STEP_BYTES) as u64).min(rest) as usize;
            self.window.resize(step, 0);
            // Until the read succeeds the window must not pass for file content.
            self.window_offset = u64::MAX;
            self.segment.file.read_at(self.offset, &mut self.window)?;
            self.window_offset = self.offset;
        }
        Ok(&self.window[(self.offset - self.window_offset) as usize..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, Fill};
    use crate::simulated_disk::SimulatedDisk;

    fn header(sequence: u64) -> SegmentHeader {
        SegmentHeader {
            group: GroupId(77),
            sequence,
            first: LogPosition::new(9),
            previous: LogPosition::new(8),
            previous_time: ClusterTime::new(5, 6),
            previous_term: Term::new(3),
            wall_ms: -12,
            previous_sequence: sequence - 1,
        }
    }

    fn entry(payload_bytes: usize) -> Entry {
        Entry {
            position: LogPosition::new(9),
            term: Term::new(4),
            time: ClusterTime::new(7, 1),
            wall_ms: 1_700_000_000_123,
            kind: EntryKind::Data,
            payload: Bytes::from(vec![0xab; payload_bytes]),
        }
    }

    #[test]
    fn a_header_is_read_back() {
        let header = header(2);
        let decoded = SegmentHeader::decode("log-0000000000000009.seg", &header.encode());
        assert_eq!(decoded.expect("decodes"), header);
    }

    #[test]
    fn every_kind_of_entry_is_read_back() -> io::Result<()> {
        let change = ConfigurationChange {
            steps: vec![crate::member::MemberStep::Voter(
                crate::member::MemberId::new(7),
            )],
        };
        for kind in [EntryKind::Noop, EntryKind::Configuration(change)] {
            let disk = SimulatedDisk::new();
            let segment = Segment::new(header(2), disk.create("file", 4096, Fill::Zeroed)?, 4096);
            let written = Entry { kind, ..entry(0) };
            let mut bytes = Vec::new();
            segment.encode(&written, LogPosition::new(8), &mut bytes);
            assert_eq!(bytes.len() as u64, stored_bytes(&written));
            segment.file.write_at(HEADER_BYTES, &bytes)?;
            match segment.walk(LogPosition::new(9)).step()? {
                Found::Entry(found) => assert_eq!(found.entry, written),
                other => panic!("{other:?}"),
            }
        }
        Ok(())
    }

    /// The bytes that the drawing at the top of this file promises.
    #[test]
    fn an_entry_is_laid_out_as_drawn() -> io::Result<()> {
        let disk = SimulatedDisk::new();
        let segment = Segment::new(header(2), disk.create("file", 4096, Fill::Zeroed)?, 4096);
        let mut bytes = Vec::new();
        segment.encode(&entry(3), LogPosition::new(8), &mut bytes);
        assert_eq!(bytes.len(), 56);
        assert_eq!(u32_at(&bytes, 0), 51);
        assert_eq!(u64_at(&bytes, 8), 9);
        assert_eq!(u64_at(&bytes, 16), 4);
        assert_eq!(u64_at(&bytes, 24), (7 << 32) | 1);
        assert_eq!(u64_at(&bytes, 32), 1_700_000_000_123);
        assert_eq!(u64_at(&bytes, 40), 8);
        assert_eq!(bytes[48..], [0xab, 0xab, 0xab, 0, 0, 0, 0, 0]);
        let mut covered = 77u128.to_le_bytes().to_vec();
        covered.extend(2u64.to_le_bytes());
        covered.extend(&bytes[0..4]);
        covered.extend(&bytes[8..51]);
        assert_eq!(u32_at(&bytes, 4), crc32c::crc32c(&covered));
        Ok(())
    }

    /// Even with the very position that is expected, an entry of the file's earlier
    /// life is not one of its later life.
    #[test]
    fn an_entry_is_valid_under_its_own_sequence_only() -> io::Result<()> {
        let check = |sequence: u64, valid: bool| -> io::Result<()> {
            let disk = SimulatedDisk::new();
            let file = disk.create("file", 4096, Fill::Zeroed)?;
            let mut bytes = Vec::new();
            let written = Segment::new(header(2), file.clone(), 4096);
            written.encode(&entry(100), LogPosition::new(8), &mut bytes);
            file.write_at(HEADER_BYTES, &bytes)?;
            let read = Segment::new(header(sequence), file, 4096);
            let found = read.walk(LogPosition::new(9)).step()?;
            assert_eq!(matches!(found, Found::Entry(_)), valid, "{found:?}");
            Ok(())
        };
        check(2, true)?;
        check(1, false)?;
        check(3, false)
    }
}
