//! A directory in memory whose power can be cut at any operation.
//!
//! Each file has the bytes that readers see and the bytes that are stable; writes are
//! remembered until a sync makes them stable. A write that is synced by itself makes its own
//! bytes stable and no others; it counts as two operations, so that the power can go when it is
//! half done. The directory is the same: names as seen, names as stable, and the changes in
//! between.
//!
//! - [`SimulatedDisk::cut_power_after`] lets a number of changing operations pass; all
//!   that follow fail, as if the machine were gone.
//! - [`SimulatedDisk::restart`] then decides, by a seed and file by file, what of the
//!   unsynced bytes reached the platter: nothing, everything, or any choice of 512-byte
//!   blocks, some of them torn in the middle. Changes of the directory survive
//!   independently of each other, in order.
//! - [`SimulatedDisk::fail_sync_after`] makes one sync fail and drops what it should
//!   have made stable, as kernels do, while readers still see the bytes.
//!
//! It is part of the crate, not of its tests, so that a simulated cluster can use it.
//! What it leaves out: latency, a full disk, bytes that rot on their own (a test can
//! write those with [`SimulatedDisk::damage`]).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::disk::{Disk, DiskFile, Fill};

const BLOCK_BYTES: usize = 512;

/// Cloning gives another handle to the same disk.
#[derive(Clone, Default)]
pub struct SimulatedDisk {
    world: Arc<Mutex<World>>,
}

#[derive(Default)]
struct World {
    files: Vec<FileState>,
    names: BTreeMap<String, usize>,
    stable_names: BTreeMap<String, usize>,
    unsynced_changes: Vec<NameChange>,
    /// Changing operations left before the power goes; `None` is endless.
    operations_left: Option<u64>,
    syncs_until_failure: Option<u64>,
    operations: u64,
    syncs: u64,
    keeps_no_zeros: bool,
    /// Handles from before a restart are dead.
    era: u64,
}

#[derive(Default)]
struct FileState {
    seen: Vec<u8>,
    stable: Vec<u8>,
    unsynced: Vec<(u64, Vec<u8>)>,
    reserved_from: u64,
}

#[derive(Clone)]
enum NameChange {
    Bind(String, usize),
    Rename(String, String),
    Remove(String),
}

fn apply(names: &mut BTreeMap<String, usize>, change: &NameChange) {
    match change {
        NameChange::Bind(name, file) => {
            names.insert(name.clone(), *file);
        }
        NameChange::Rename(from, to) => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
        NameChange::Remove(name) => {
            names.remove(name);
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the power is off")
}

fn missing(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no file {name}"))
}

impl World {
    /// Counts one changing operation, or says that the power is off.
    fn spend(&mut self) -> io::Result<()> {
        if let Some(left) = &mut self.operations_left {
            *left = left.checked_sub(1).ok_or_else(gone)?;
        }
        self.operations += 1;
        Ok(())
    }

    /// Counts one sync and tells whether it works.
    fn sync_works(&mut self) -> bool {
        self.syncs += 1;
        match &mut self.syncs_until_failure {
            None => true,
            Some(0) => {
                self.syncs_until_failure = None;
                false
            }
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}

impl SimulatedDisk {
    pub fn new() -> Self {
        Self::default()
    }

    /// How many changing operations there were so far.
    pub fn operations(&self) -> u64 {
        self.world.lock().operations
    }

    /// How many syncs of files or of the directory there were so far.
    pub fn syncs(&self) -> u64 {
        self.world.lock().syncs
    }

    pub fn cut_power_after(&self, operations: u64) {
        self.world.lock().operations_left = Some(operations);
    }

    pub fn power_is_off(&self) -> bool {
        self.world.lock().operations_left == Some(0)
    }

    /// Files seem to be reserved from their first byte on, as where a file system stores zeros as holes.
    pub fn keep_no_zeros(&self) {
        self.world.lock().keeps_no_zeros = true;
    }

    /// Lets `syncs` syncs pass and fails the one after.
    pub fn fail_sync_after(&self, syncs: u64) {
        self.world.lock().syncs_until_failure = Some(syncs);
    }

    /// The power comes back. What was not synced is kept or lost as the seed says;
    /// without a seed the machine kept its power and only the process died.
    pub fn restart(&self, power_cut_seed: Option<u64>) {
        let mut world = self.world.lock();
        world.era += 1;
        world.operations_left = None;
        world.syncs_until_failure = None;
        let Some(seed) = power_cut_seed else { return };
        let mut random = Random(seed);
        for file in &mut world.files {
            file.lose_unsynced(&mut random);
        }
        let mut names = std::mem::take(&mut world.stable_names);
        for change in std::mem::take(&mut world.unsynced_changes) {
            if random.below(2) == 0 {
                apply(&mut names, &change);
            }
        }
        world.stable_names = names.clone();
        world.names = names;
    }

    /// Overwrites stable bytes, as a broken disk would.
    pub fn damage(&self, name: &str, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut world = self.world.lock();
        let file = *world.names.get(name).ok_or_else(|| missing(name))?;
        let file = &mut world.files[file];
        overwrite(&mut file.seen, offset, data)?;
        overwrite(&mut file.stable, offset, data)
    }

    /// What readers see of a file.
    pub fn contents(&self, name: &str) -> io::Result<Vec<u8>> {
        let world = self.world.lock();
        let file = *world.names.get(name).ok_or_else(|| missing(name))?;
        Ok(world.files[file].seen.clone())
    }

    fn handle(&self, world: &World, file: usize) -> Arc<dyn DiskFile> {
        Arc::new(SimulatedFile {
            disk: self.clone(),
            file,
            era: world.era,
        })
    }
}

fn overwrite(bytes: &mut [u8], offset: u64, data: &[u8]) -> io::Result<()> {
    let start = usize::try_from(offset).map_err(io::Error::other)?;
    bytes
        .get_mut(start..start + data.len())
        .ok_or_else(|| io::Error::other("a write behind the end of the file"))?
        .copy_from_slice(data);
    Ok(())
}

impl FileState {
    fn lose_unsynced(&mut self, random: &mut Random) {
        let fate = random.below(4);
        for (offset, data) in std::mem::take(&mut self.unsynced) {
            match fate {
                0 => {}
                1 => self.keep(offset, &data),
                _ => self.keep_some_blocks(offset, &data, random),
            }
        }
        self.seen = self.stable.clone();
    }

    /// What was written before to a stretch of bytes will not come to the platter any more:
    /// later bytes did, or were lost.
    fn forget_unsynced(&mut self, offset: u64, count: usize) {
        let end = offset + count as u64;
        for (at, data) in std::mem::take(&mut self.unsynced) {
            // How many of its bytes lie before the stretch, and how many before its end.
            let before = (offset.saturating_sub(at) as usize).min(data.len());
            let passed = (end.saturating_sub(at) as usize).min(data.len());
            if before > 0 {
                self.unsynced.push((at, data[..before].to_vec()));
            }
            if passed < data.len() {
                self.unsynced
                    .push((at + passed as u64, data[passed..].to_vec()));
            }
        }
    }

    fn keep(&mut self, offset: u64, data: &[u8]) {
        let start = offset as usize;
        self.stable[start..start + data.len()].copy_from_slice(data);
    }

    fn keep_some_blocks(&mut self, offset: u64, data: &[u8], random: &mut Random) {
        let mut at = 0;
        while at < data.len() {
            let place = offset as usize + at;
            let block = (BLOCK_BYTES - place % BLOCK_BYTES).min(data.len() - at);
            let kept = match random.below(8) {
                0..=3 => block,
                4 => random.below(block as u64 + 1) as usize,
                _ => 0,
            };
            self.keep(place as u64, &data[at..at + kept]);
            at += block;
        }
    }
}

impl Disk for SimulatedDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.world.lock().names.keys().cloned().collect())
    }

    /// The size and the zeros of a new file are stable at once, as the real
    /// implementation syncs them; its name is not.
    fn create(&self, name: &str, bytes: u64, fill: Fill) -> io::Result<Arc<dyn DiskFile>> {
        let mut world = self.world.lock();
        world.spend()?;
        if world.names.contains_key(name) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, name));
        }
        let file = world.files.len();
        let zeros = vec![0u8; usize::try_from(bytes).map_err(io::Error::other)?];
        world.files.push(FileState {
            seen: zeros.clone(),
            stable: zeros,
            unsynced: Vec::new(),
            reserved_from: match fill {
                Fill::Zeroed => bytes,
                Fill::Reserved => 0,
            },
        });
        let change = NameChange::Bind(name.to_owned(), file);
        apply(&mut world.names, &change);
        world.unsynced_changes.push(change);
        Ok(self.handle(&world, file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let world = self.world.lock();
        let file = *world.names.get(name).ok_or_else(|| missing(name))?;
        Ok(self.handle(&world, file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut world = self.world.lock();
        world.spend()?;
        if !world.names.contains_key(from) {
            return Err(missing(from));
        }
        let change = NameChange::Rename(from.to_owned(), to.to_owned());
        apply(&mut world.names, &change);
        world.unsynced_changes.push(change);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut world = self.world.lock();
        world.spend()?;
        if !world.names.contains_key(name) {
            return Err(missing(name));
        }
        let change = NameChange::Remove(name.to_owned());
        apply(&mut world.names, &change);
        world.unsynced_changes.push(change);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut world = self.world.lock();
        world.spend()?;
        if !world.sync_works() {
            return Err(io::Error::other("the directory sync failed"));
        }
        world.stable_names = world.names.clone();
        world.unsynced_changes.clear();
        Ok(())
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    file: usize,
    era: u64,
}

impl SimulatedFile {
    fn with<T>(&self, act: impl FnOnce(&mut World, usize) -> io::Result<T>) -> io::Result<T> {
        let mut world = self.disk.world.lock();
        if world.era != self.era {
            return Err(gone());
        }
        act(&mut world, self.file)
    }
}

impl DiskFile for SimulatedFile {
    fn bytes(&self) -> io::Result<u64> {
        self.with(|world, file| Ok(world.files[file].seen.len() as u64))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.with(|world, file| {
            let start = usize::try_from(offset).map_err(io::Error::other)?;
            let bytes = world.files[file].seen.get(start..start + buffer.len());
            buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|world, file| {
            world.spend()?;
            let file = &mut world.files[file];
            overwrite(&mut file.seen, offset, data)?;
            file.unsynced.push((offset, data.to_vec()));
            file.reserved_from = file.reserved_from.max(offset + data.len() as u64);
            Ok(())
        })
    }

    fn write_at_synced(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_at(offset, data)?;
        self.with(|world, file| {
            // The power may go here: then it is a write that was not synced.
            world.spend()?;
            let works = world.sync_works();
            let file = &mut world.files[file];
            file.forget_unsynced(offset, data.len());
            if !works {
                return Err(io::Error::other("the sync failed"));
            }
            file.keep(offset, data);
            Ok(())
        })
    }

    fn reserved_from(&self) -> io::Result<u64> {
        self.with(|world, file| match world.keeps_no_zeros {
            true => Ok(0),
            false => Ok(world.files[file].reserved_from),
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|world, file| {
            world.spend()?;
            let works = world.sync_works();
            let file = &mut world.files[file];
            let unsynced = std::mem::take(&mut file.unsynced);
            if !works {
                return Err(io::Error::other("the sync failed"));
            }
            for (offset, data) in unsynced {
                file.keep(offset, &data);
            }
            Ok(())
        })
    }
}

/// A small generator (SplitMix64), so that a seed means the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What a power cut may leave of a file of 8 bytes, to which `write` has written.
    fn left(write: impl Fn(&SimulatedDisk, &dyn DiskFile)) -> BTreeSet<String> {
        let cut = |seed| {
            let disk = SimulatedDisk::new();
            let file = disk.create("file", 8, Fill::Zeroed).expect("creates");
            file.write_at(0, b"........").expect("writes");
            file.sync().expect("syncs");
            disk.sync_directory().expect("syncs");
            write(&disk, &*file);
            disk.restart(Some(seed));
            let bytes = disk.contents("file").expect("it is there");
            String::from_utf8(bytes).expect("letters")
        };
        (0..200).map(cut).collect()
    }

    #[test]
    fn a_synced_write_makes_its_own_bytes_stable() {
        let found = left(|_, file| file.write_at_synced(2, b"bb").expect("writes"));
        assert_eq!(found, ["..bb....".to_owned()].into());
    }

    #[test]
    fn what_was_written_before_a_synced_write_can_be_lost() {
        let found = left(|_, file| {
            file.write_at(0, b"aaaaaa").expect("writes");
            file.write_at_synced(2, b"bb").expect("writes");
            file.write_at(3, b"c").expect("writes");
        });
        for kept in ["..bb....", "aabb....", "aabbaa..", "..bbaa..", "aabcaa.."] {
            assert!(found.contains(kept), "{kept}: {found:?}");
        }
        for left in &found {
            assert_eq!(&left[2..3], "b", "{found:?}");
            assert!(["b", "c"].contains(&&left[3..4]), "{found:?}");
        }
    }

    #[test]
    fn a_synced_write_can_be_cut_off_in_the_middle() {
        let found = left(|disk, file| {
            disk.cut_power_after(1);
            file.write_at_synced(2, b"bb")
                .expect_err("the power is off");
        });
        let expected = ["........", "..b.....", "..bb...."];
        assert_eq!(found, expected.map(str::to_owned).into());
    }

    #[test]
    fn a_synced_write_that_fails_is_seen_and_lost() {
        let found = left(|disk, file| {
            file.write_at(0, b"aa").expect("writes");
            disk.fail_sync_after(0);
            file.write_at_synced(2, b"bb").expect_err("the sync fails");
            let seen = disk.contents("file").expect("it is there");
            assert_eq!(seen, b"aabb....");
            file.sync().expect("it fails once");
        });
        assert_eq!(found, ["aa......".to_owned()].into());
    }
}
