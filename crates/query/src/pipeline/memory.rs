//! What a blocking stage may take, and the errors when it wants more.

use model::{Code, Error};

/// MongoDB's limit for each stage that has to collect its input.
pub const MEMORY_BYTES_MAX: usize = 100 * 1024 * 1024;

/// The stage may not use the disk.
pub fn exceeded(stage: &str) -> Error {
    Error::new(
        Code::QUERY_EXCEEDED_MEMORY_LIMIT_NO_DISK_USE_ALLOWED,
        format!(
            "Exceeded memory limit for {stage}, but didn't allow external sort. Pass \
             allowDiskUse:true to opt in."
        ),
    )
}

/// The stage cannot use the disk.
pub(super) fn too_large(code: i32, stage: &str) -> Error {
    Error::new(
        Code(code),
        format!("{stage} used more than {MEMORY_BYTES_MAX} bytes"),
    )
}
