//! Sorted runs on disk, under the shard's scratch directory.
//!
//! ```text
//!   run file   ( key length u32 | payload length u32 | key | payload )*    little endian
//! ```
//!
//! A run's file is unlinked as soon as it is open for reading, so that a crash
//! leaves nothing behind; the scratch directory is emptied at the start anyway.

use model::{Code, Error};
use query::sort::{Run, Spill, SpilledRecord};
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT_RUN: AtomicU64 = AtomicU64::new(0);

/// What one document or one group may take on disk. A group that collects more
/// could not be read back within the memory that a stage has.
const PART_BYTES_MAX: u32 = 64 << 20;

pub(crate) struct FileSpill {
    directory: PathBuf,
}

impl FileSpill {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }
}

fn failed(error: std::io::Error) -> Error {
    let code = match error.kind() {
        ErrorKind::StorageFull => Code::OUT_OF_DISK_SPACE,
        _ => Code::INTERNAL_ERROR,
    };
    Error::new(code, format!("a sort could not use the disk: {error}"))
}

impl Spill for FileSpill {
    fn write_run(
        &mut self,
        records: &mut dyn Iterator<Item = (&[u8], &[u8])>,
    ) -> Result<Box<dyn Run>, Error> {
        let number = NEXT_RUN.fetch_add(1, Ordering::Relaxed);
        let path = self.directory.join(format!("run-{number}"));
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(failed)?;
        // Open files outlive their names.
        std::fs::remove_file(&path).map_err(failed)?;
        let mut out = BufWriter::with_capacity(1 << 16, file);
        for (key, payload) in records {
            for length in [key.len(), payload.len()] {
                let length = u32::try_from(length)
                    .ok()
                    .filter(|length| *length <= PART_BYTES_MAX)
                    .ok_or_else(too_large)?;
                out.write_all(&length.to_le_bytes()).map_err(failed)?;
            }
            out.write_all(key).map_err(failed)?;
            out.write_all(payload).map_err(failed)?;
        }
        let mut file = out
            .into_inner()
            .map_err(|error| failed(error.into_error()))?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        Ok(Box::new(FileRun(BufReader::with_capacity(1 << 16, file))))
    }
}

fn too_large() -> Error {
    Error::new(
        Code::EXCEEDED_MEMORY_LIMIT,
        format!("one group or document takes more than {PART_BYTES_MAX} bytes"),
    )
}

struct FileRun(BufReader<File>);

impl Run for FileRun {
    fn next(&mut self) -> Result<Option<SpilledRecord>, Error> {
        let mut lengths = [0; 8];
        match self.0.read_exact(&mut lengths) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        let [a, b, c, d, e, f, g, h] = lengths;
        let key = self.part(u32::from_le_bytes([a, b, c, d]))?;
        let payload = self.part(u32::from_le_bytes([e, f, g, h]))?;
        Ok(Some(SpilledRecord { key, payload }))
    }
}

impl FileRun {
    fn part(&mut self, length: u32) -> Result<Vec<u8>, Error> {
        if length > PART_BYTES_MAX {
            return Err(Error::new(
                Code::INTERNAL_ERROR,
                "a sorted run on disk is damaged",
            ));
        }
        let mut bytes = vec![0; length as usize];
        self.0.read_exact(&mut bytes).map_err(failed)?;
        Ok(bytes)
    }
}
