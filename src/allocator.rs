//! How long freed memory is kept before the system gets it back.
//!
//! By default mimalloc returns what was free for a second. A load fills a memtable and
//! frees it a moment later, a scan does so with its replies: each page of it would be
//! given back, and faulted in and cleared again. On virtual machines, where the host may
//! have taken the page too, that was up to a quarter of a load's CPU.
//!
//! mimalloc reads its settings before `main` and only from the environment, so that a
//! program without unsafe code can set them in one way: by starting itself anew. The
//! process stays the same, and who has set the variable already is left alone.

use std::os::unix::process::CommandExt;
use std::process::Command;

const VARIABLE: &str = "MIMALLOC_PURGE_DELAY";
const DELAY_MS: &str = "10000";

/// Returns in the program that has the setting; in the other one only if it cannot be
/// started anew, and then all works as well, at a higher price.
pub(crate) fn keep_freed_memory() {
    if std::env::var_os(VARIABLE).is_some() {
        return;
    }
    let mut arguments = std::env::args_os();
    let (Ok(program), Some(name)) = (std::env::current_exe(), arguments.next()) else {
        return;
    };
    let _ = Command::new(program)
        .arg0(name)
        .args(arguments)
        .env(VARIABLE, DELAY_MS)
        .exec();
}
