//! Where sorted runs go: files under the shard's scratch directory.
//!
//! A run's file is unlinked as soon as it is open, so that a crash leaves nothing behind; the scratch
//! directory is emptied at the start anyway.

use query::sort::{Spill, StreamSpill};
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT_RUN: AtomicU64 = AtomicU64::new(0);

/// Runs as files of a directory.
pub(crate) fn spill_into(directory: PathBuf) -> Box<dyn Spill> {
    Box::new(StreamSpill::new(move || {
        let number = NEXT_RUN.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("run-{number}"));
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        // Open files outlive their names.
        std::fs::remove_file(&path)?;
        Ok(file)
    }))
}
