//! A store as a stream of parts, and a store that is replaced by such a stream.
//!
//! ```text
//!  part     [key length u32][value length u32][key][value] over and over, little-endian
//!
//!  staged   <data>/incoming/state.part       parts as they come:
//!           [length u32][CRC-32C u32][part] …
//!           <data>/incoming/name             of which copy: whoever is sent more of it goes on
//!           <data>/incoming/state.complete   the same, ended by [0 u32][CRC-32C of nothing]
//! ```
//!
//! A copy is every key of one engine snapshot, the applied position among them. Taking
//! it pins what the engine has in memory for as long as it is read.
//!
//! Replacing is made atomic by doing it again:
//!
//! ```text
//!   parts are staged ─► synced, renamed to state.complete ─► every key removed, every staged
//!   key written ─► the engine synced ─► state.complete removed
//! ```
//!
//! The rename is the moment: before it the old state is untouched, after it whoever opens
//! the store begins with the third step. In between, readers in the same process see
//! neither state; the caller keeps them away.

use std::fs::{self, File};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::{Loaded, Store};
use crate::engine::{Direction, Engine, EngineSnapshot, KeyRange, Pair, Slice, WriteBatch};
use crate::error::{Error, Result};

const INCOMING: &str = "incoming";
const UNFINISHED: &str = "state.part";
const COMPLETE: &str = "state.complete";
/// Of which copy the parts are.
const NAME: &str = "name";
const PART_HEAD_BYTES: u64 = 8;
/// Parts that nobody has gone on with for so long are not kept any more.
const KEPT: Duration = Duration::from_secs(3600);
/// How much is written to the engine in one batch.
const BATCH_BYTES: usize = 1 << 20;
/// No part can be longer: a document has at most 16 MiB.
const PART_BYTES_MAX: u32 = 256 << 20;

/// Every key and value of a store at one moment, part by part.
pub struct StateCopy<S: EngineSnapshot> {
    scan: S::Scan,
    /// What did not fit into the part before.
    left: Option<Pair>,
}

impl<S: EngineSnapshot> StateCopy<S> {
    /// About so many bytes of it, at least one pair; `None` at the end.
    pub fn next_part(&mut self, bytes_max: usize) -> Result<Option<Vec<u8>>> {
        let mut part = Vec::new();
        loop {
            let Some((key, value)) = self
                .left
                .take()
                .map(Ok)
                .or_else(|| self.scan.next())
                .transpose()?
            else {
                break;
            };
            let bytes = 8 + key.len() + value.len();
            if !part.is_empty() && part.len() + bytes > bytes_max {
                self.left = Some((key, value));
                break;
            }
            part.extend_from_slice(&(key.len() as u32).to_le_bytes());
            part.extend_from_slice(&(value.len() as u32).to_le_bytes());
            part.extend_from_slice(&key);
            part.extend_from_slice(&value);
        }
        Ok((!part.is_empty()).then_some(part))
    }
}

/// The pairs of a part.
fn pairs(mut part: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8])>> {
    std::iter::from_fn(move || {
        if part.is_empty() {
            return None;
        }
        let taken = (|| {
            let (lengths, rest) = part.split_first_chunk::<8>()?;
            let number = |at: usize| {
                let bytes = lengths[at..at + 4].try_into().ok()?;
                usize::try_from(u32::from_le_bytes(bytes)).ok()
            };
            let (key, rest) = rest.split_at_checked(number(0)?)?;
            let (value, rest) = rest.split_at_checked(number(4)?)?;
            part = rest;
            Some((key, value))
        })();
        if taken.is_none() {
            part = &[];
        }
        Some(taken.ok_or(Error::Damaged {
            what: "part of a copied state",
        }))
    })
}

/// A state that is gathered to replace a store's.
#[derive(Debug)]
pub struct StagedState {
    directory: PathBuf,
    file: File,
}

impl StagedState {
    /// Begins anew; what was gathered before and not finished is lost. The name is for
    /// [`StagedState::resume`].
    pub fn create(data: &Path, name: &[u8]) -> Result<Self> {
        let directory = data.join(INCOMING);
        fs::create_dir_all(&directory).map_err(|e| Error::io(&directory, e))?;
        let path = directory.join(UNFINISHED);
        let file = File::create(&path).map_err(|e| Error::io(&path, e))?;
        // Last: a name says that the file beside it was begun for it.
        let named = directory.join(NAME);
        fs::write(&named, name).map_err(|e| Error::io(&named, e))?;
        Ok(Self { directory, file })
    }

    /// Goes on with what was gathered under a name, and how many parts are there. What is torn at
    /// the end, by a crash in the middle of a part, is cut off.
    pub fn resume(data: &Path, name: &[u8]) -> Result<Option<(Self, u64)>> {
        let directory = data.join(INCOMING);
        let path = directory.join(UNFINISHED);
        if fs::read(directory.join(NAME)).ok().as_deref() != Some(name) || !path.exists() {
            return Ok(None);
        }
        let failed = |e| Error::io(&path, e);
        let opened = File::options().read(true).write(true).open(&path);
        let mut file = opened.map_err(failed)?;
        let mut reader = BufReader::new(&file);
        let (mut parts, mut end) = (0, 0);
        // An empty part is the end that `finish` writes, before it renames the file.
        while let Ok(part) = read_part(&mut reader, &path)
            && !part.is_empty()
        {
            parts += 1;
            end += PART_HEAD_BYTES + part.len() as u64;
        }
        file.set_len(end).map_err(failed)?;
        file.seek(SeekFrom::Start(end)).map_err(failed)?;
        Ok(Some((Self { directory, file }, parts)))
    }

    pub fn add(&mut self, part: &[u8]) -> Result<()> {
        for pair in pairs(part) {
            pair?;
        }
        self.put(part)
    }

    fn put(&mut self, part: &[u8]) -> Result<()> {
        let mut head = (part.len() as u32).to_le_bytes().to_vec();
        head.extend_from_slice(&crc32c::crc32c(part).to_le_bytes());
        let written = self
            .file
            .write_all(&head)
            .and_then(|()| self.file.write_all(part));
        written.map_err(|e| Error::io(&self.directory, e))
    }

    /// Everything is there: from here on the old state is as good as gone.
    fn finish(mut self) -> Result<PathBuf> {
        self.put(&[])?;
        let complete = self.directory.join(COMPLETE);
        let renamed = self
            .file
            .sync_all()
            .and_then(|()| fs::rename(self.directory.join(UNFINISHED), &complete))
            .and_then(|()| sync_directory(&self.directory))
            .and_then(|()| match self.directory.parent() {
                Some(data) => sync_directory(data),
                None => Ok(()),
            });
        renamed.map_err(|e| Error::io(&complete, e))?;
        Ok(complete)
    }
}

fn sync_directory(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

/// Completes a replacement that a crash cut off. To be called before the store is opened.
pub fn finish_install(engine: &impl Engine, data: &Path) -> Result<()> {
    let directory = data.join(INCOMING);
    let unfinished = directory.join(UNFINISHED);
    let is_old = |written: SystemTime| written.elapsed().is_ok_and(|age| age > KEPT);
    let written = fs::metadata(&unfinished).and_then(|file| file.modified());
    if written.is_ok_and(is_old) {
        fs::remove_file(&unfinished).map_err(|e| Error::io(&unfinished, e))?;
    }
    let complete = directory.join(COMPLETE);
    if complete.exists() {
        load(engine, &complete)?;
    }
    Ok(())
}

/// Makes the engine hold what is staged and nothing else.
fn load(engine: &impl Engine, staged: &Path) -> Result<()> {
    remove_everything(engine)?;
    let file = File::open(staged).map_err(|e| Error::io(staged, e))?;
    let mut file = BufReader::new(file);
    loop {
        let part = read_part(&mut file, staged)?;
        if part.is_empty() {
            break;
        }
        let mut batch = WriteBatch::default();
        for pair in pairs(&part) {
            let (key, value) = pair?;
            batch.put(Slice::new(key), Slice::new(value));
        }
        engine.write(batch)?;
    }
    engine.sync()?;
    fs::remove_file(staged).map_err(|e| Error::io(staged, e))
}

fn read_part(file: &mut impl Read, path: &Path) -> Result<Vec<u8>> {
    let mut head = [0u8; 8];
    file.read_exact(&mut head).map_err(|e| Error::io(path, e))?;
    let [a, b, c, d, checksum @ ..] = head;
    let length = u32::from_le_bytes([a, b, c, d]);
    let damaged = Error::Damaged {
        what: "staged state",
    };
    if length > PART_BYTES_MAX {
        return Err(damaged);
    }
    let mut part = vec![0; length as usize];
    file.read_exact(&mut part).map_err(|e| Error::io(path, e))?;
    if crc32c::crc32c(&part) != u32::from_le_bytes(checksum) {
        return Err(damaged);
    }
    Ok(part)
}

fn remove_everything(engine: &impl Engine) -> Result<()> {
    let state = engine.snapshot();
    let mut batch = WriteBatch::default();
    let mut bytes = 0;
    let range = KeyRange::new(Bound::Unbounded, Bound::Unbounded);
    for pair in state.scan(range, Direction::Forward) {
        let (key, _) = pair?;
        bytes += key.len();
        batch.remove(Slice::new(&key));
        if bytes >= BATCH_BYTES {
            engine.write(std::mem::take(&mut batch))?;
            bytes = 0;
        }
    }
    if !batch.is_empty() {
        engine.write(batch)?;
    }
    Ok(())
}

impl<E: Engine> Store<E> {
    /// Everything that is applied now. Nothing may be applied meanwhile.
    pub fn copy(&self) -> StateCopy<E::Snapshot> {
        let _writer = self.writer.lock();
        StateCopy {
            scan: self
                .engine
                .snapshot()
                .scan(KeyRange::ALL, Direction::Forward),
            left: None,
        }
    }

    /// Replaces everything by what was staged. After an error the store must not be used
    /// any more; opening it again completes the replacement if it had begun.
    pub fn install(&self, staged: StagedState) -> Result<()> {
        let _writer = self.writer.lock();
        let mut removals = self.removals.lock();
        let complete = staged.finish()?;
        let number = self.shared.commits_begun.fetch_add(1, Ordering::AcqRel) + 1;
        self.shared.stretches.clear(number);
        self.shared.cache.forget(&[]);
        load(&self.engine, &complete)?;
        self.shared.cache.forget(&[]);
        *removals = Default::default();
        let Loaded {
            position,
            time,
            counters,
            history_start,
            dropped,
        } = Loaded::from(&self.engine.snapshot())?;
        *self.counters.write() = counters;
        self.shared.change_dropped(|all| *all = dropped);
        self.shared
            .history_start
            .store(history_start.to_u64(), Ordering::Release);
        self.shared.commits_finished.fetch_add(1, Ordering::AcqRel);
        self.shared.time.store(time.to_u64(), Ordering::Release);
        self.shared.position.store(position, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Encoder;
    use crate::store::{Committed, StoreOptions};
    use crate::{MemoryEngine, Store};
    use model::ids::CollectionId;
    use model::time::ClusterTime;

    const COLLECTION: CollectionId = CollectionId(3);

    fn filled(name: &str, documents: u64) -> Store<MemoryEngine> {
        let store = Store::open(MemoryEngine::new(), StoreOptions::default()).expect("opens");
        for position in 1..=documents {
            let mut payload = Vec::new();
            let document = format!("{name} {position}");
            Encoder::new(&mut payload).put_meta(&position.to_be_bytes(), document.as_bytes());
            let entry = Committed {
                position,
                time: ClusterTime::new(position as u32, 1),
                payload: &payload,
                before: &[],
                after: &[],
            };
            store.apply(&[entry]).expect("applies");
        }
        store
    }

    fn contents(store: &Store<MemoryEngine>) -> Vec<(Vec<u8>, Vec<u8>)> {
        let scan = store
            .engine
            .snapshot()
            .scan(KeyRange::ALL, Direction::Forward);
        scan.map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())))
            .collect::<Result<_>>()
            .expect("scans")
    }

    fn stage(from: &Store<MemoryEngine>, data: &Path, bytes_max: usize) -> StagedState {
        let mut copy = from.copy();
        let mut staged = StagedState::create(data, b"it").expect("creates");
        while let Some(part) = copy.next_part(bytes_max).expect("reads") {
            staged.add(&part).expect("stages");
        }
        staged
    }

    #[test]
    fn a_copy_replaces_everything() {
        for bytes_max in [1, 100, 1 << 20] {
            let data = tempfile::tempdir().expect("a directory");
            let (from, to) = (filled("new", 40), filled("old", 7));
            let staged = stage(&from, data.path(), bytes_max);
            assert_eq!(to.applied(), 7, "nothing has changed yet");
            to.install(staged).expect("installs");
            assert_eq!(to.applied(), 40);
            assert_eq!(to.applied_time(), from.applied_time());
            assert_eq!(contents(&to), contents(&from));
            let counted = |store: &Store<MemoryEngine>| store.collection_counter(COLLECTION);
            assert_eq!(counted(&to), counted(&from));
        }
    }

    /// A crash before the rename keeps the old state, one after it leads to the new one.
    #[test]
    fn a_replacement_that_was_cut_off_is_completed_or_never_began() {
        let data = tempfile::tempdir().expect("a directory");
        let (from, to) = (filled("new", 40), filled("old", 7));
        drop(stage(&from, data.path(), 100));
        finish_install(&to.engine, data.path()).expect("finishes");
        assert_eq!(contents(&to), contents(&filled("old", 7)));
        stage(&from, data.path(), 100).finish().expect("finishes");
        // It may have come as far as this.
        remove_everything(&to.engine).expect("removes");
        finish_install(&to.engine, data.path()).expect("finishes");
        assert_eq!(contents(&to), contents(&from));
        assert!(!data.path().join(INCOMING).join(COMPLETE).exists());
    }

    /// Whoever was restarted goes on with the parts that are there, whole and of the same copy.
    #[test]
    fn a_copy_goes_on_after_a_restart() {
        for torn in [0, 1, 9] {
            let data = tempfile::tempdir().expect("a directory");
            let (from, to) = (filled("new", 40), filled("old", 7));
            let mut copy = from.copy();
            let mut staged = StagedState::create(data.path(), b"it").expect("creates");
            for _ in 0..3 {
                let part = copy.next_part(100).expect("reads").expect("there is more");
                staged.add(&part).expect("stages");
            }
            staged.file.write_all(&vec![7; torn]).expect("writes");
            drop(staged);
            finish_install(&to.engine, data.path()).expect("nothing to finish");
            let other = StagedState::resume(data.path(), b"another").expect("looks");
            assert!(other.is_none());
            let resumed = StagedState::resume(data.path(), b"it").expect("resumes");
            let (mut staged, parts) = resumed.expect("it is there");
            assert_eq!(parts, 3, "{torn}");
            while let Some(part) = copy.next_part(100).expect("reads") {
                staged.add(&part).expect("stages");
            }
            to.install(staged).expect("installs");
            assert_eq!(contents(&to), contents(&from));
            let gone = StagedState::resume(data.path(), b"it").expect("looks");
            assert!(gone.is_none(), "it was installed");
        }
    }

    #[test]
    fn a_part_that_does_not_decode_is_refused() {
        let data = tempfile::tempdir().expect("a directory");
        let mut staged = StagedState::create(data.path(), b"it").expect("creates");
        for part in [&[0u8; 7][..], &[9, 0, 0, 0, 0, 0, 0, 0, 1]] {
            assert!(staged.add(part).is_err());
        }
    }
}
