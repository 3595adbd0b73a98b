//! Where the sorted runs of merging halves go: files of the system's temporary directory.
//!
//! A router keeps nothing. A run's file is unlinked as soon as it is open, so that not even a crash leaves
//! one behind.

use query::sort::{Spill, StreamSpill};
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT_RUN: AtomicU64 = AtomicU64::new(0);

pub(crate) fn spill() -> Box<dyn Spill> {
    Box::new(StreamSpill::new(|| {
        let number = NEXT_RUN.fetch_add(1, Ordering::Relaxed);
        let name = format!(
            "terndb-router-{}-{}-{number}",
            std::process::id(),
            crate::hello::object_id()
        );
        let path = std::env::temp_dir().join(name);
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
