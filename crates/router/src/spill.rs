//! Where that goes which a router cannot hold in memory: sorted runs of merging halves, and partial results of
//! shards. Files of one directory, the system's for temporary files unless another one is given.
//!
//! A router keeps nothing. A file is unlinked as soon as it is open, so that a crash leaves at most an empty one, in
//! the moment between; [`prepare_scratch`] removes it when the next router starts there. Several routers may share a
//! directory.

use query::sort::{Spill, StreamSpill};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What the names of all files begin with.
const PREFIX: &str = "terndb-router-";

static NEXT_RUN: AtomicU64 = AtomicU64::new(0);

pub(crate) fn spill(directory: PathBuf) -> Box<dyn Spill> {
    Box::new(StreamSpill::new(move || {
        let number = NEXT_RUN.fetch_add(1, Ordering::Relaxed);
        let name = format!(
            "{PREFIX}{}-{}-{number}",
            std::process::id(),
            crate::hello::object_id()
        );
        let path = directory.join(name);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        // Open files outlive their names.
        remove(&path)?;
        Ok(file)
    }))
}

/// Makes a directory for a router's files, if it is not there, and removes what a killed one has left in it.
pub fn prepare_scratch(directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_ours && entry.file_type()?.is_file() {
            match remove(&entry.path()) {
                // Another user's, in a directory for all.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
                other => other?,
            }
        }
    }
    Ok(())
}

/// Another router may do the same at the same time.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
