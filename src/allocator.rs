//! The allocator, and how long it keeps what is freed.
//!
//! Memory that is new to the process costs a fault and a cleared page, and on a virtual machine whose
//! host takes free memory back also a fault of the host: 2 to 8 µs for each page, where a document of a
//! kilobyte takes 6 µs from socket to memtable. Memtables come and go with tens of megabytes in every
//! second of a load, so what one of them leaves is kept until the next one wants it, for
//! [`KEPT`] instead of one second.

use std::time::Duration;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEPT: Duration = Duration::from_secs(20);

/// `mi_option_purge_delay`, which the binding has no name for.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// To be called first of all, while there is one thread. Who has set `MIMALLOC_PURGE_DELAY` is obeyed.
pub fn keep_freed_memory() {
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
        set(PURGE_DELAY, KEPT.as_millis() as i64);
    }
}

// Safety: the options are a table of numbers within the allocator, and this is its public way to write
// one of them; an index that it does not know is ignored.
#[allow(unsafe_code)]
fn set(option: libmimalloc_sys::mi_option_t, value: i64) {
    unsafe { libmimalloc_sys::mi_option_set(option, value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Safety: reads what `set` writes.
    #[allow(unsafe_code)]
    fn get(option: libmimalloc_sys::mi_option_t) -> i64 {
        unsafe { libmimalloc_sys::mi_option_get(option) }
    }

    /// The number of the option is the allocator's own: another version of it may mean another option.
    #[test]
    fn the_option_is_the_delay_of_a_second_that_the_allocator_has_by_itself() {
        assert_eq!(get(PURGE_DELAY), 1_000);
        keep_freed_memory();
        assert_eq!(get(PURGE_DELAY), 20_000);
    }
}
