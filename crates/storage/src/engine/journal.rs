//! Cuts the torn end off the engine's journal before the engine reads it.
//!
//! Batches are handed to the operating system without a sync (the log is what makes
//! them durable), so a power cut may leave any sectors of the newest journal file in
//! any of their earlier states. fjall copes with a tail that is missing or of zeros,
//! but takes a batch whose end marker is there and whose middle is not for damage, and
//! refuses to open. Such a batch was never synced: it and what follows are cut off, and
//! the log gives them to the engine again.
//!
//! ```text
//!  batch   1  count u32  sequence number u64
//!          … count items:
//!          2  kind u8  compression u8  keyspace u64  key length u16
//!             value length u32  stored length u32  key  stored value
//!          4  keyspace u64
//!          3  xxh3 of the items u64  "FJL" 3
//! ```
//!
//! Only the newest file can be torn: an older one was synced before its successor was
//! made. Cutting can not hide the loss of a batch that had been synced: the log then
//! begins behind what the engine holds, or replays it.
//!
//! This knows the journal of fjall 3; a test holds it against what fjall writes.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const TRAILER: [u8; 4] = [b'F', b'J', b'L', 3];
const READ_STEP_BYTES: usize = 64 << 10;

/// Removes what follows the last whole batch of the newest journal, if there is
/// more than zeros could explain. Returns the length that is left in that case.
pub fn cut_torn_end(engine: &Path) -> io::Result<Option<u64>> {
    let Some(path) = newest(engine)? else {
        return Ok(None);
    };
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut walk = Walk {
        left: file.metadata()?.len(),
        reader: BufReader::with_capacity(READ_STEP_BYTES, &file),
    };
    let mut whole = 0;
    loop {
        match walk.batch()? {
            Found::Batch(bytes) => whole += bytes,
            Found::Nothing => return Ok(None),
            Found::Torn => break,
        }
    }
    file.set_len(whole)?;
    file.sync_all()?;
    Ok(Some(whole))
}

fn newest(engine: &Path) -> io::Result<Option<PathBuf>> {
    let entries = match std::fs::read_dir(engine) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut newest: Option<(u64, PathBuf)> = None;
    for entry in entries {
        let path = entry?.path();
        let number = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_suffix(".jnl"))
            .and_then(|number| number.parse::<u64>().ok());
        if let Some(number) = number
            && newest.as_ref().is_none_or(|(highest, _)| number > *highest)
        {
            newest = Some((number, path));
        }
    }
    Ok(newest.map(|(_, path)| path))
}

enum Found {
    /// A whole batch of so many bytes.
    Batch(u64),
    /// The end of the file, or zeros where a batch would begin.
    Nothing,
    Torn,
}

struct Walk<'a> {
    reader: BufReader<&'a File>,
    /// Bytes to the end of the file: no length read from it is believed beyond that.
    left: u64,
}

impl Walk<'_> {
    fn batch(&mut self) -> io::Result<Found> {
        let before = self.left;
        let mut start = [0; 13];
        if self.left == 0 {
            return Ok(Found::Nothing);
        }
        if !self.take(&mut start[..1])? || start[0] == 0 {
            return Ok(Found::Nothing);
        }
        if start[0] != START || !self.take(&mut start[1..])? {
            return Ok(Found::Torn);
        }
        let mut checksum = Xxh3::new();
        for _ in 0..u32::from_le_bytes([start[1], start[2], start[3], start[4]]) {
            if !self.item(&mut checksum)? {
                return Ok(Found::Torn);
            }
        }
        let mut end = [0; 13];
        if !self.take(&mut end)? || end[0] != END || end[9..] != TRAILER {
            return Ok(Found::Torn);
        }
        if end[1..9] != checksum.digest().to_le_bytes() {
            return Ok(Found::Torn);
        }
        Ok(Found::Batch(before - self.left))
    }

    /// Adds one item to the checksum. False if there is none.
    fn item(&mut self, checksum: &mut Xxh3) -> io::Result<bool> {
        let mut tag = [0; 1];
        if !self.take(&mut tag)? {
            return Ok(false);
        }
        checksum.update(&tag);
        match tag[0] {
            ITEM => {
                let mut header = [0; 20];
                if !self.take(&mut header)? {
                    return Ok(false);
                }
                checksum.update(&header);
                let key = u16::from_le_bytes([header[10], header[11]]);
                let value = u32::from_le_bytes([header[16], header[17], header[18], header[19]]);
                self.pass(u64::from(key) + u64::from(value), checksum)
            }
            CLEAR => self.pass(8, checksum),
            _ => Ok(false),
        }
    }

    /// Fills the buffer. False if the file ends before.
    fn take(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let wanted = buffer.len() as u64;
        if wanted > self.left {
            return Ok(false);
        }
        self.reader.read_exact(buffer)?;
        self.left -= wanted;
        Ok(true)
    }

    fn pass(&mut self, mut bytes: u64, checksum: &mut Xxh3) -> io::Result<bool> {
        if bytes > self.left {
            return Ok(false);
        }
        let mut buffer = [0; 4096];
        while bytes > 0 {
            let step = bytes.min(buffer.len() as u64) as usize;
            if !self.take(&mut buffer[..step])? {
                return Ok(false);
            }
            checksum.update(&buffer[..step]);
            bytes -= step as u64;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, WriteBatch};
    use crate::{FjallEngine, FjallOptions};

    const BATCHES: u8 = 5;
    const VALUE_BYTES: usize = 2000;

    /// A store of a few batches, changed by `damage`, opened again: how many are there.
    fn check(damage: impl Fn(&mut Vec<u8>), expect: Option<u8>) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let engine = FjallEngine::open(directory.path(), &FjallOptions::default()).expect("opens");
        for number in 0..BATCHES {
            let mut batch = WriteBatch::default();
            batch.put([b'k', number].into(), [number; VALUE_BYTES].into());
            batch.put([b'l', number].into(), [].into());
            engine.write(batch).expect("written");
        }
        drop(engine);
        let journal = newest(&directory.path().join("engine"))
            .expect("readable")
            .expect("a journal");
        let mut bytes = std::fs::read(&journal).expect("readable");
        damage(&mut bytes);
        std::fs::write(&journal, &bytes).expect("writable");
        let opened = FjallEngine::open(directory.path(), &FjallOptions::default());
        let found = opened.map(|engine| {
            let there = |number: &u8| engine.get(&[b'l', *number]).expect("readable").is_some();
            (0..BATCHES).filter(there).count() as u8
        });
        assert_eq!(found.ok(), expect);
    }

    /// Where the value of a batch begins.
    fn value(bytes: &[u8], number: u8) -> usize {
        let run = [number; VALUE_BYTES];
        bytes[..32 << 10]
            .windows(VALUE_BYTES)
            .position(|window| window == run)
            .expect("the value is in the journal")
    }

    #[test]
    fn torn_end_is_cut_at_the_last_whole_batch() {
        check(|_| {}, Some(5));
        // A hole in the middle of a batch whose end is there.
        check(
            |bytes| {
                let at = value(bytes, 3);
                bytes[at + 100..at + 612].fill(0)
            },
            Some(3),
        );
        check(
            |bytes| {
                let at = value(bytes, 4);
                bytes[at + 100..at + 612].fill(0)
            },
            Some(4),
        );
        // A hole that takes an item's header and the next batch's beginning.
        check(
            |bytes| {
                let at = value(bytes, 2) + VALUE_BYTES;
                bytes[at - 10..at + 60].fill(0)
            },
            Some(2),
        );
        // A missing end.
        check(
            |bytes| {
                let at = value(bytes, 4);
                bytes.truncate(at + 700)
            },
            Some(4),
        );
        check(
            |bytes| {
                let at = value(bytes, 4);
                bytes[at + 700..].fill(0)
            },
            Some(4),
        );
        check(|bytes| bytes.clear(), Some(0));
        // A length that the file does not have.
        check(
            |bytes| {
                let at = value(bytes, 4);
                bytes[at - 3] = 0xFF
            },
            Some(4),
        );
    }
}
