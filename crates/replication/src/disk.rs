//! The tiny port through which the log reaches a directory of files.
//!
//! Everything the log promises rests on these few operations, so that a second
//! implementation ([`crate::simulated_disk`]) can take the power away between any
//! two of them. What the log may rely on:
//!
//! - bytes written are readable at once, and stable after [`DiskFile::sync`];
//! - [`DiskFile::write_at_synced`] makes its own bytes stable, and says nothing about those
//!   that were written before;
//! - created, renamed and removed names are stable after [`Disk::sync_directory`];
//! - a rename replaces the target, and happens wholly or not at all;
//! - writing bytes equal to those already there harms nothing, even when cut off;
//! - a file that was removed stays readable through handles opened before.
//!
//! After a failed sync the state of unsynced bytes is unknown, for good: the
//! kernel may have dropped them and call them clean. Nobody syncs again over it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Advice, FallocateFlags, SeekFrom, fadvise, fallocate, seek};
use rustix::io::Errno;

use crate::group_buffer::BLOCK_BYTES;

/// How the bytes of a new file come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Written with zeros and synced: slow to make, quick to sync later, because
    /// overwriting written blocks changes no metadata.
    Zeroed,
    /// Only reserved: made at once, and every first write costs metadata.
    Reserved,
}

/// One directory, flat.
pub trait Disk: Send + Sync + 'static {
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes a file of `bytes` zeros. The name must not exist yet.
    fn create(&self, name: &str, bytes: u64, fill: Fill) -> io::Result<Arc<dyn DiskFile>>;
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    fn sync_directory(&self) -> io::Result<()>;
}

/// An open file. Its size is fixed when it is created.
pub trait DiskFile: Send + Sync {
    fn bytes(&self) -> io::Result<u64>;
    /// Fills all of `buffer` or fails.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Returns when these bytes are stable, which costs less than a write and a sync. It is
    /// no sync: other bytes that were written before may still be lost.
    fn write_at_synced(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Returns when all bytes written so far are stable.
    fn sync(&self) -> io::Result<()>;
    /// Says that its bytes, which are stable, will hardly be read again. A log that goes
    /// through a gigabyte of files would otherwise take as much of the system's memory,
    /// and pay for each page of it that is new. What only the writer needs goes as well: a
    /// log may have hundreds of files.
    fn release_memory(&self) {}
    /// From here on its bytes were reserved and not written since. Its size, if there are none, or if the file
    /// system does not say.
    fn reserved_from(&self) -> io::Result<u64>;
}

/// A directory of the file system, locked against other processes while it is open.
pub struct FileDisk {
    path: PathBuf,
    /// Holds the lock, and is what a directory sync is done on.
    directory: File,
}

impl FileDisk {
    /// Opens the directory, and makes it (with its parents) if it is not there.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref().to_path_buf();
        // The names of new directories must survive too, or the log goes with them.
        let missing: Vec<_> = path.ancestors().take_while(|p| !p.exists()).collect();
        std::fs::create_dir_all(&path)?;
        for made in missing {
            match made.parent() {
                Some(parent) if parent != Path::new("") => File::open(parent)?.sync_all()?,
                Some(_) | None => File::open(".")?.sync_all()?,
            }
        }
        let directory = File::open(&path)?;
        directory.try_lock().map_err(|refused| match refused {
            TryLockError::WouldBlock => io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("{} is in use by another process", path.display()),
            ),
            TryLockError::Error(error) => error,
        })?;
        Ok(Self { path, directory })
    }

    fn open_file(&self, options: &mut OpenOptions, name: &str) -> io::Result<OpenFile> {
        let path = self.path.join(name);
        let file = options.read(true).write(true).open(&path)?;
        // The directory is locked: under this name there is no other file a moment later.
        let mut through = OpenOptions::new();
        through.write(true).custom_flags(libc::O_DSYNC);
        let through = match through.open(&path) {
            Ok(through) => Some(through),
            Err(error) if is_unsupported(&error) => None,
            Err(error) => return Err(error),
        };
        Ok(OpenFile {
            file,
            through,
            direct: Mutex::new(open_direct(&path, libc::O_DSYNC)),
        })
    }
}

/// The same file once more, for writes past the system's memory. `None` where there is no such
/// handle, for whatever reason: everything can be done without it.
fn open_direct(path: &Path, flags: i32) -> Option<File> {
    let mut direct = OpenOptions::new();
    direct.write(true).custom_flags(libc::O_DIRECT | flags);
    direct.open(path).ok()
}

/// False if the bytes must be written otherwise.
fn write_directly(direct: Option<&File>, offset: u64, data: &[u8]) -> io::Result<bool> {
    let Some(direct) = direct.filter(|_| is_whole(offset, data)) else {
        return Ok(false);
    };
    match direct.write_all_at(data, offset) {
        Ok(()) => Ok(true),
        // Its blocks may be larger than ours.
        Err(error) if is_unsupported(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether bytes can be written directly at a place.
fn is_whole(offset: u64, data: &[u8]) -> bool {
    let block = BLOCK_BYTES as usize;
    offset.is_multiple_of(BLOCK_BYTES)
        && data.len().is_multiple_of(block)
        && data.as_ptr().align_offset(block) == 0
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::INVAL | Errno::OPNOTSUPP)
    )
}

/// Written and synced in pieces, so that a group commit that happens meanwhile
/// waits for a few megabytes at most.
const ZERO_FILL_STEP_BYTES: usize = 1 << 20;
const ZERO_FILL_STEPS_PER_SYNC: u64 = 4;

fn zero_fill(file: &File, path: &Path, bytes: u64) -> io::Result<()> {
    // Not synced by each write: that would be a commit of the file system's journal for each of them.
    let direct = open_direct(path, 0);
    let zeros = vec![0u8; ZERO_FILL_STEP_BYTES + BLOCK_BYTES as usize];
    let aligned = zeros.as_ptr().align_offset(BLOCK_BYTES as usize);
    let zeros = zeros.get(aligned..).unwrap_or(&zeros);
    let mut offset = 0;
    let mut steps = 0;
    while offset < bytes {
        let step = (bytes - offset).min(ZERO_FILL_STEP_BYTES as u64);
        let zeros = &zeros[..step as usize];
        if !write_directly(direct.as_ref(), offset, zeros)? {
            file.write_all_at(zeros, offset)?;
        }
        offset += step;
        steps += 1;
        if steps % ZERO_FILL_STEPS_PER_SYNC == 0 {
            file.sync_data()?;
            release_memory(file, offset);
        }
    }
    file.sync_all()
}

/// How much memory is given back at once: a fraction of a millisecond.
const RELEASE_STEP: NonZeroU64 = NonZeroU64::new(1 << 20).unwrap();

/// Only advice: if it is not taken, all is as before. Who waits for the processor comes first after each step.
fn release_memory(file: &File, bytes: u64) {
    for offset in (0..bytes).step_by(RELEASE_STEP.get() as usize) {
        let _ = fadvise(file, offset, Some(RELEASE_STEP), Advice::DontNeed);
        std::thread::yield_now();
    }
}

impl Disk for FileDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            // A name that is not UTF-8 is not one of ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str, bytes: u64, fill: Fill) -> io::Result<Arc<dyn DiskFile>> {
        let opened = self.open_file(OpenOptions::new().create_new(true), name)?;
        let file = &opened.file;
        match fill {
            Fill::Zeroed => zero_fill(file, &self.path.join(name), bytes)?,
            Fill::Reserved => match fallocate(file, FallocateFlags::empty(), 0, bytes) {
                Ok(()) => file.sync_all()?,
                // Some file systems cannot reserve; a file of the right size is enough.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    file.set_len(bytes)?;
                    file.sync_all()?;
                }
                Err(error) => return Err(error.into()),
            },
        }
        Ok(Arc::new(opened))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(self.open_file(&mut OpenOptions::new(), name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.directory.sync_all()
    }
}

struct OpenFile {
    file: File,
    /// The same file once more, opened so that a write returns when its bytes are stable.
    /// A handle, and not a flag of the write (`RWF_DSYNC`), so that it is an ordinary write
    /// of the C library: the tests that cut the power see those only. `None` where the file
    /// system knows no such handles.
    through: Option<File>,
    /// And once more, for writes past the system's memory: its pages would be new to the
    /// system, and hardly anybody reads them. A read through `file` never sees older bytes once
    /// the write has returned: the kernel throws out what it has of them in memory, before and
    /// after. `None` where there is none, or the file is full.
    direct: Mutex<Option<File>>,
}

impl DiskFile for OpenFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn write_at_synced(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if write_directly(self.direct.lock().as_ref(), offset, data)? {
            return Ok(());
        }
        match &self.through {
            Some(through) => through.write_all_at(data, offset),
            None => {
                self.file.write_all_at(data, offset)?;
                self.file.sync_data()
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn release_memory(&self) {
        release_memory(&self.file, self.bytes().unwrap_or(0));
        *self.direct.lock() = None;
    }

    fn reserved_from(&self) -> io::Result<u64> {
        // What is reserved is a hole to those who ask for data, unless it was read and is in memory. Nobody reads or
        // writes at the handle's own place.
        release_memory(&self.file, self.bytes()?);
        match seek(&self.file, SeekFrom::Hole(0)) {
            Ok(hole) => Ok(hole),
            Err(_) => self.bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group_buffer::GroupBuffer;

    /// With the handle for it, and on a file system that knows none.
    #[test]
    fn what_is_written_through_is_seen_by_all_handles() -> io::Result<()> {
        for is_supported in [true, false] {
            let folder = tempfile::tempdir()?;
            let disk = FileDisk::open(folder.path())?;
            drop(disk.create("file", 4096, Fill::Zeroed)?);
            let mut file = disk.open_file(&mut OpenOptions::new(), "file")?;
            assert!(file.through.is_some());
            if !is_supported {
                file.through = None;
            }
            file.write_at(0, b"before")?;
            file.write_at_synced(4, b"through")?;
            file.write_at(8, b"after")?;
            disk.rename("file", "renamed")?;
            file.write_at_synced(13, b"!")?;
            for reader in [disk.open("renamed")?, Arc::new(file)] {
                let mut bytes = [0; 15];
                reader.read_at(0, &mut bytes)?;
                assert_eq!(&bytes, b"befothroafter!\0", "{is_supported}");
                assert_eq!(reader.bytes()?, 4096);
            }
        }
        Ok(())
    }

    /// Where the file system says it: it may also know nothing of holes, or write zeros instead of reserving.
    #[test]
    fn what_is_reserved_is_known_until_it_is_written() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let disk = FileDisk::open(folder.path())?;
        let bytes = 1 << 20;
        let zeroed = disk.create("zeroed", bytes, Fill::Zeroed)?;
        // A file system may also keep no zeros.
        if zeroed.reserved_from()? != bytes {
            return Ok(());
        }
        let file = disk.create("reserved", bytes, Fill::Reserved)?;
        let is_told = file.reserved_from()? == 0;
        file.write_at(0, &[1; 4096])?;
        file.sync()?;
        file.read_at(0, &mut vec![0; bytes as usize])?;
        let from = file.reserved_from()?;
        assert!(from == bytes || is_told && from == 4096, "{from}");
        file.write_at(4096, &vec![1; bytes as usize - 4096])?;
        file.sync()?;
        assert_eq!(file.reserved_from()?, bytes);
        Ok(())
    }

    /// Past the system's memory, and on a file system that cannot; beside writes and reads that go
    /// through it.
    #[test]
    fn what_is_written_directly_is_seen_by_all_handles() -> io::Result<()> {
        const BYTES: usize = 256 << 10;
        for is_supported in [true, false] {
            let folder = tempfile::tempdir()?;
            let disk = FileDisk::open(folder.path())?;
            drop(disk.create("file", BYTES as u64, Fill::Zeroed)?);
            let file = disk.open_file(&mut OpenOptions::new(), "file")?;
            if !is_supported {
                file.release_memory();
            }
            let reader = disk.open("file")?;
            let mut expected = vec![0u8; BYTES];
            let mut seen = vec![1u8; BYTES];
            let mut buffer = GroupBuffer::new(0);
            let whole = BYTES as u64 / 2;
            for (number, offset) in [0, BLOCK_BYTES, 3 * BLOCK_BYTES].into_iter().enumerate() {
                // All of it is in memory, and a part of it is not on the disk yet.
                reader.read_at(0, &mut seen)?;
                assert_eq!(seen, expected, "{is_supported}");
                file.write_at(offset + 10, b"before")?;
                buffer.restart(offset);
                buffer.with_room(whole as usize).push(number as u8 + 1);
                let bytes = buffer.filled(offset, offset + whole);
                let direct = file.direct.lock();
                let is_direct = write_directly(direct.as_ref(), offset, bytes)?;
                assert_eq!(is_direct, direct.is_some());
                drop(direct);
                file.write_at_synced(offset, bytes)?;
                let place = offset as usize;
                expected[place..place + bytes.len()].copy_from_slice(bytes);
                reader.read_at(0, &mut seen)?;
                assert_eq!(seen, expected, "{is_supported}");
                file.write_at(offset + whole - 7, b"after")?;
                let place = (offset + whole - 7) as usize;
                expected[place..place + 5].copy_from_slice(b"after");
            }
            reader.read_at(0, &mut seen)?;
            assert_eq!(seen, expected, "{is_supported}");
        }
        Ok(())
    }

    #[test]
    fn only_whole_blocks_are_written_directly() {
        let mut buffer = GroupBuffer::new(0);
        buffer.with_room(1);
        let bytes = buffer.filled(0, 4 * BLOCK_BYTES);
        assert!(is_whole(0, bytes));
        assert!(is_whole(BLOCK_BYTES, &bytes[BLOCK_BYTES as usize..]));
        assert!(!is_whole(512, bytes), "in the middle of a block");
        assert!(!is_whole(0, &bytes[..512]), "to the middle of a block");
        assert!(!is_whole(0, &bytes[512..]), "wherever it lies in memory");
        let moved = &bytes[512..512 + BLOCK_BYTES as usize];
        assert!(!is_whole(0, moved), "wherever it lies in memory");
    }

    #[test]
    fn only_a_flag_that_is_not_known_is_done_without() {
        let check = |errno: Errno, unsupported: bool| {
            assert_eq!(is_unsupported(&errno.into()), unsupported, "{errno}");
        };
        check(Errno::INVAL, true);
        check(Errno::OPNOTSUPP, true);
        check(Errno::IO, false);
        check(Errno::MFILE, false);
    }
}
