//! A store as a stream of parts, and a store that is replaced by such a stream.
//!
//! ```text
//!  part     [key length u32][value length u32][key][value] over and over, little-endian
//!
//!  staged   <data>/incoming/state.part       parts as they come:
//!           [length u32][CRC-32C u32][part] …
//!           <data>/incoming/name             of which copy: whoever is sent more of it goes on
//!           <data>/incoming/state.earlier    what there is of a copy before that was not finished
//!           <data>/incoming/state.complete   the same as state.part, ended by [0 u32][CRC-32C of nothing]
//! ```
//!
//! Pairs come in the order of their keys. So whoever gathers a copy and has pieces of an earlier one can
//! say what it holds behind the last key it was sent, up to the end of such a piece; whoever sends
//! compares that with its own pairs up to the same key, and need not send them if they are the same:
//!
//! ```text
//!  held     [XXH3-128 of the pairs, as in a part][the last key]
//! ```
//!
//! What is kept is written again, behind what was gathered: while a copy goes on with an earlier one,
//! both take their room on the disk.
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

use std::collections::VecDeque;
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
const EARLIER: &str = "state.earlier";
const COMPLETE: &str = "state.complete";
/// Of which copy the parts are.
const NAME: &str = "name";
const PART_HEAD_BYTES: u64 = 8;
const PAIR_HEAD_BYTES: usize = 8;
const DIGEST_BYTES: usize = 16;
/// Pieces of an earlier copy that are looked at for what comes behind a key. Where many lie before it, because
/// what is copied now is less, the search goes on behind the next part.
const LOOKS_MAX: usize = 16;
/// A piece that is held was one part. Where the sender has so many times as much in its place, it differs.
const HELD_PARTS_MAX: usize = 4;
/// Parts that nobody has gone on with for so long are not kept any more.
const KEPT: Duration = Duration::from_secs(3600);
/// How much is written to the engine in one batch.
const BATCH_BYTES: usize = 1 << 20;
/// No part can be longer: a document has at most 16 MiB.
const PART_BYTES_MAX: u32 = 256 << 20;

/// Every key and value of a store at one moment, part by part.
pub struct StateCopy<S: EngineSnapshot> {
    scan: S::Scan,
    /// What was read and not sent yet.
    left: VecDeque<Pair>,
}

impl<S: EngineSnapshot> StateCopy<S> {
    /// About so many bytes of it, at least one pair; `None` at the end.
    pub fn next_part(&mut self, bytes_max: usize) -> Result<Option<Vec<u8>>> {
        let mut part = Vec::new();
        loop {
            let Some((key, value)) = self.next_pair()? else {
                break;
            };
            let bytes = PAIR_HEAD_BYTES + key.len() + value.len();
            if !part.is_empty() && part.len() + bytes > bytes_max {
                self.left.push_front((key, value));
                break;
            }
            put_pair(&mut part, &key, &value);
        }
        Ok((!part.is_empty()).then_some(part))
    }

    fn next_pair(&mut self) -> Result<Option<Pair>> {
        match self.left.pop_front() {
            Some(pair) => Ok(Some(pair)),
            None => self.scan.next().transpose(),
        }
    }

    /// Skips what comes next if the receiver holds the same; whether it does. More than a few parts are
    /// not compared.
    pub fn skip_held(&mut self, held: &[u8], bytes_max: usize) -> Result<bool> {
        let Some((digest, last)) = held.split_first_chunk::<DIGEST_BYTES>() else {
            return Ok(false);
        };
        let (mut part, mut read) = (Vec::new(), Vec::new());
        let mut has_last = false;
        while !has_last
            && part.len() <= HELD_PARTS_MAX * bytes_max
            && let Some((key, value)) = self.next_pair()?
        {
            let is_behind = *key > *last;
            has_last = *key == *last;
            put_pair(&mut part, &key, &value);
            read.push((key, value));
            if is_behind {
                break;
            }
        }
        if has_last && digest_of(&part) == *digest {
            return Ok(true);
        }
        for pair in read.into_iter().rev() {
            self.left.push_front(pair);
        }
        Ok(false)
    }
}

fn put_pair(part: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    part.extend_from_slice(&(key.len() as u32).to_le_bytes());
    part.extend_from_slice(&(value.len() as u32).to_le_bytes());
    part.extend_from_slice(key);
    part.extend_from_slice(value);
}

fn digest_of(part: &[u8]) -> [u8; DIGEST_BYTES] {
    xxhash_rust::xxh3::xxh3_128(part).to_le_bytes()
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
    /// The last key that was gathered.
    last: Vec<u8>,
    earlier: Option<Earlier>,
}

/// What an earlier copy has left.
#[derive(Debug)]
struct Earlier {
    path: PathBuf,
    file: BufReader<File>,
    /// A piece of it that lies behind what was gathered, and its last key.
    held: Option<(Vec<u8>, Vec<u8>)>,
    /// It was looked at for as long as it may be, until something is gathered.
    rests: bool,
}

impl Earlier {
    fn open(directory: &Path) -> Option<Self> {
        let path = directory.join(EARLIER);
        let file = BufReader::new(File::open(&path).ok()?);
        Some(Self {
            path,
            file,
            held: None,
            rests: false,
        })
    }

    /// The next piece that has something behind a key, and only that of it. What cannot be read is the end.
    fn piece_behind(&mut self, last: &[u8], looks_max: usize) -> Option<&(Vec<u8>, Vec<u8>)> {
        if self.rests {
            return None;
        }
        for _ in 0..looks_max {
            let piece = match self.held.take() {
                Some((piece, _)) => piece,
                None => read_part(&mut self.file, &self.path).ok()?,
            };
            let (mut rest, mut end) = (Vec::new(), Vec::new());
            if piece.is_empty() {
                return None;
            }
            for pair in pairs(&piece) {
                let (key, value) = pair.ok()?;
                if key > last {
                    put_pair(&mut rest, key, value);
                    end = key.to_vec();
                }
            }
            if !rest.is_empty() {
                return Some(self.held.insert((rest, end)));
            }
        }
        self.rests = true;
        None
    }
}

impl StagedState {
    /// Begins anew; what was gathered before and not finished is there for [`StagedState::held`]. The
    /// name is for [`StagedState::resume`].
    pub fn create(data: &Path, name: &[u8]) -> Result<Self> {
        let directory = data.join(INCOMING);
        fs::create_dir_all(&directory).map_err(|e| Error::io(&directory, e))?;
        let path = directory.join(UNFINISHED);
        let earlier = directory.join(EARLIER);
        // Of two copies that were not finished the longer one is of more use.
        let length = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
        if length(&path) > length(&earlier) {
            fs::rename(&path, &earlier).map_err(|e| Error::io(&earlier, e))?;
        }
        let file = File::create(&path).map_err(|e| Error::io(&path, e))?;
        // Last, and after a sync: whatever the power does, a name says that the file beside it was begun
        // for it.
        let begun = file.sync_all().and_then(|()| sync_directory(&directory));
        begun.map_err(|e| Error::io(&path, e))?;
        let named = directory.join(NAME);
        fs::write(&named, name).map_err(|e| Error::io(&named, e))?;
        let earlier = Earlier::open(&directory);
        Ok(Self {
            directory,
            file,
            last: Vec::new(),
            earlier,
        })
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
        let (mut parts, mut end, mut last) = (0, 0, Vec::new());
        // An empty part is the end that `finish` writes, before it renames the file.
        while let Ok(part) = read_part(&mut reader, &path)
            && !part.is_empty()
        {
            parts += 1;
            end += PART_HEAD_BYTES + part.len() as u64;
            last = last_key(&part)?.unwrap_or(last);
        }
        file.set_len(end).map_err(failed)?;
        file.seek(SeekFrom::Start(end)).map_err(failed)?;
        let mut earlier = Earlier::open(&directory);
        if let Some(earlier) = &mut earlier {
            // All that lies before it, at once: nobody waits for this.
            earlier.piece_behind(&last, usize::MAX);
        }
        let resumed = Self {
            directory,
            file,
            last,
            earlier,
        };
        Ok(Some((resumed, parts)))
    }

    pub fn add(&mut self, part: &[u8]) -> Result<()> {
        let last = last_key(part)?;
        self.put(part)?;
        if let Some(last) = last {
            self.last = last;
        }
        if let Some(earlier) = &mut self.earlier {
            earlier.rests = false;
        }
        Ok(())
    }

    /// Describes what an earlier copy has left of what comes next.
    pub fn held(&mut self) -> Option<Vec<u8>> {
        let (piece, last) = self.earlier.as_mut()?.piece_behind(&self.last, LOOKS_MAX)?;
        let mut held = digest_of(piece).to_vec();
        held.extend_from_slice(last);
        Some(held)
    }

    /// Takes over what was described.
    pub fn keep(&mut self, held: &[u8]) -> Result<()> {
        let piece = match self.held() {
            Some(described) if described == held => self
                .earlier
                .as_mut()
                .and_then(|earlier| earlier.held.take()),
            Some(_) | None => None,
        };
        let Some((piece, _)) = piece else {
            return Err(Error::Damaged {
                what: "state that was gathered earlier",
            });
        };
        self.add(&piece)
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

/// Removes what was gathered of copies that were not finished.
pub fn discard_staged(data: &Path) -> Result<()> {
    let directory = data.join(INCOMING);
    // The name first: it says that the file beside it is of use.
    for name in [NAME, UNFINISHED, EARLIER] {
        let path = directory.join(name);
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io(&path, error)),
        }
    }
    Ok(())
}

/// The last key of a part, all of which can be read.
fn last_key(part: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut last = None;
    for pair in pairs(part) {
        last = Some(pair?.0.to_vec());
    }
    Ok(last)
}

fn sync_directory(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

/// Completes a replacement that a crash cut off. To be called before the store is opened.
pub fn finish_install(engine: &impl Engine, data: &Path) -> Result<()> {
    let directory = data.join(INCOMING);
    let is_old = |written: SystemTime| written.elapsed().is_ok_and(|age| age > KEPT);
    for unfinished in [directory.join(UNFINISHED), directory.join(EARLIER)] {
        let written = fs::metadata(&unfinished).and_then(|file| file.modified());
        if written.is_ok_and(is_old) {
            fs::remove_file(&unfinished).map_err(|e| Error::io(&unfinished, e))?;
        }
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
    // It has been of use, or is of none any more.
    let earlier = staged.with_file_name(EARLIER);
    if earlier.exists() {
        fs::remove_file(&earlier).map_err(|e| Error::io(&earlier, e))?;
    }
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
            left: VecDeque::new(),
        }
    }

    /// Replaces everything by what was staged. After an error the store must not be used
    /// any more; opening it again completes the replacement if it had begun.
    pub fn install(&self, staged: StagedState) -> Result<()> {
        // In this order, as sweeps do.
        let mut removals = self.removals.lock();
        let _writer = self.writer.lock();
        let complete = staged.finish()?;
        let number = self.shared.commits_begun.fetch_add(1, Ordering::AcqRel) + 1;
        self.shared.stretches.clear(number);
        self.shared.cache.forget(&[]);
        // ⚑ First: what comes may have been stored where a range was forgotten here, and swept there.
        self.tell_nothing(&mut removals);
        load(&self.engine, &complete)?;
        self.shared.cache.forget(&[]);
        let Loaded {
            position,
            time,
            counters,
            history_start,
            dropped,
            forgotten,
        } = Loaded::from(&self.engine.snapshot())?;
        *self.counters.write() = counters;
        self.shared.change_dropped(|all| *all = dropped);
        self.shared.change_forgotten(|_| forgotten);
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

    /// ⚑ Another leader's copy goes on with what there is of the first one: only what differs is sent,
    /// wherever parts end.
    #[test]
    fn pieces_of_an_earlier_copy_are_kept_where_they_are_the_same() {
        for (first_bytes, second_bytes) in [(100, 100), (100, 333), (333, 100)] {
            let data = tempfile::tempdir().expect("a directory");
            let (first, second) = (filled("new", 60), filled("new", 60));
            for position in [3u64, 40, 61] {
                let mut payload = Vec::new();
                Encoder::new(&mut payload).put_meta(&position.to_be_bytes(), b"another");
                let entry = Committed {
                    position: second.applied() + 1,
                    time: ClusterTime::new(99, second.applied() as u32),
                    payload: &payload,
                    before: &[],
                    after: &[],
                };
                second.apply(&[entry]).expect("applies");
            }
            let mut copy = first.copy();
            let mut staged = StagedState::create(data.path(), b"first").expect("creates");
            let mut parts = 0;
            while let Some(part) = copy.next_part(first_bytes).expect("reads") {
                staged.add(&part).expect("stages");
                parts += 1;
            }
            drop(staged);
            let mut copy = second.copy();
            let mut staged = StagedState::create(data.path(), b"second").expect("creates");
            let (mut kept, mut sent) = (0, 0);
            loop {
                // Restarted in the middle, it goes on all the same.
                if kept + sent == 5 {
                    drop(staged);
                    let resumed = StagedState::resume(data.path(), b"second").expect("resumes");
                    let (again, there) = resumed.expect("it is there");
                    assert_eq!(there, kept + sent);
                    staged = again;
                }
                let held = staged.held();
                assert_eq!(held, staged.held(), "it says the same again");
                if let Some(held) = held
                    && copy.skip_held(&held, second_bytes).expect("compares")
                {
                    staged.keep(&held).expect("keeps");
                    kept += 1;
                    continue;
                }
                let Some(part) = copy.next_part(second_bytes).expect("reads") else {
                    break;
                };
                staged.add(&part).expect("stages");
                sent += 1;
            }
            // Three documents, and what is counted: few parts of many.
            assert!(
                sent <= 12 && kept * 2 > parts,
                "{sent} sent, {kept} of {parts} kept"
            );
            let to = filled("old", 7);
            to.install(staged).expect("installs");
            assert_eq!(contents(&to), contents(&second));
            assert!(!data.path().join(INCOMING).join(EARLIER).exists());
        }
    }

    #[test]
    fn what_is_not_held_is_not_kept() {
        let data = tempfile::tempdir().expect("a directory");
        drop(stage(&filled("new", 9), data.path(), 100));
        let mut staged = StagedState::create(data.path(), b"second").expect("creates");
        let held = staged.held().expect("something is held");
        assert!(staged.keep(&held[1..]).is_err());
        staged.keep(&held).expect("keeps");
        assert!(staged.keep(&held).is_err());
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
