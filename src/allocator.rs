//! The allocator, and how long it keeps what is freed.
//!
//! Memory that is new to the process costs a fault and a cleared page, and on a virtual machine whose
//! host takes free memory back also a fault of the host: 2 to 8 µs for each page, where a document of a
//! kilobyte takes 6 µs from socket to memtable. Memtables come and go with tens of megabytes in every
//! second of a load, so what one of them leaves is kept until the next one wants it, for
//! [`KEPT`] instead of one second.
//!
//! It comes in pages of 4 KiB ([`take_small_pages`], [decision 28](../docs/decisions/0028-memory-comes-in-small-pages.md)).
//! The allocator asks the system for huge ones, where it may: then whoever touches a byte has 2 MiB cleared and
//! counted, of a block that begins there or of what was given back before.
//!
//! Rust says with every request how it is to be aligned, and the allocator's binding passes that on. The
//! allocator then serves only blocks of the sizes it has pages for already; for any other, and for all beyond a
//! kilobyte, it takes a larger block than was asked for and remembers that its address was moved, which makes
//! taking and giving back three times as long. Nearly every request is for an alignment that its blocks have
//! anyway ([`Natural`]).

use std::alloc::{GlobalAlloc, Layout};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Natural = Natural(mimalloc::MiMalloc);

/// The allocator, not asked for an alignment where each of its blocks has it: 16, or 8 of those of 8 bytes
/// (`MI_MAX_ALIGN_SIZE`).
struct Natural(mimalloc::MiMalloc);

const ALIGNMENT_MAX: usize = 16;

impl Natural {
    #[inline]
    fn is_natural(bytes: usize, alignment: usize) -> bool {
        alignment <= ALIGNMENT_MAX && alignment <= bytes
    }
}

// Safety: all of it is one allocator's, whose ways to take a block may be mixed; what it promises of
// alignments is checked by the test below.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Natural {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match Natural::is_natural(layout.size(), layout.align()) {
            true => unsafe { libmimalloc_sys::mi_malloc(layout.size()).cast() },
            false => unsafe { self.0.alloc(layout) },
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match Natural::is_natural(layout.size(), layout.align()) {
            true => unsafe { libmimalloc_sys::mi_zalloc(layout.size()).cast() },
            false => unsafe { self.0.alloc_zeroed(layout) },
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        unsafe { self.0.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        match Natural::is_natural(bytes, layout.align()) {
            true => unsafe { libmimalloc_sys::mi_realloc(block.cast(), bytes).cast() },
            false => unsafe { self.0.realloc(block, layout, bytes) },
        }
    }
}

const KEPT: Duration = Duration::from_secs(20);

/// `mi_option_purge_delay`, which the binding has no name for.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// To be called first of all, while there is one thread. Who has set `MIMALLOC_PURGE_DELAY` is obeyed.
pub fn keep_freed_memory() {
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
        set(PURGE_DELAY, KEPT.as_millis() as i64);
    }
}

/// To be called first of all: what is touched before may lie in a huge page. Who has set `MIMALLOC_ALLOW_THP` is
/// obeyed.
pub fn take_small_pages() {
    #[cfg(target_os = "linux")]
    if std::env::var_os("MIMALLOC_ALLOW_THP").is_none() {
        set_small_pages();
    }
}

// Not by rustix, whose part for it the build has off: with another set of its parts all crates that use it get
// other names, and the profile of decision 27 is not found for them.
//
// Safety: it sets a flag of the process and touches no memory.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn set_small_pages() {
    // A system that refuses it serves as well, with more memory.
    let _ = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
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

    /// Several at a time: the first block of a page is aligned to more than those behind it.
    #[test]
    #[allow(unsafe_code)]
    fn every_block_has_the_alignment_that_was_asked_for() {
        for bits in 0..8 {
            let alignment = 1 << bits;
            for bytes in (1..2_000).chain([4_096, 10_000, 100_000, 5_000_000]) {
                let layout = Layout::from_size_align(bytes, alignment).expect("a layout");
                let longer = Layout::from_size_align(bytes + 24, alignment).expect("a layout");
                // Safety: the layouts are not empty, and each block is given back by its own.
                unsafe {
                    let blocks = [(); 3].map(|()| ALLOCATOR.alloc(layout));
                    let blocks = blocks.map(|block| {
                        assert_eq!(block as usize % alignment, 0, "{layout:?}");
                        ALLOCATOR.realloc(block, layout, longer.size())
                    });
                    for block in blocks {
                        assert_eq!(block as usize % alignment, 0, "{layout:?}");
                        ALLOCATOR.dealloc(block, longer);
                    }
                }
            }
        }
    }

    /// What `storage/src/store/allocation.rs` counts with.
    #[test]
    #[allow(unsafe_code)]
    fn blocks_come_in_four_sizes_between_powers_of_two() {
        let table = [
            (9, 16),
            (17, 32),
            (129, 160),
            (1_150, 1_280),
            (16_384, 16_384),
            (16_385, 20_480),
            (66_000, 81_920),
            (280_000, 327_680),
        ];
        for (asked, taken) in table {
            // Safety: it only counts.
            let size = unsafe { libmimalloc_sys::mi_good_size(asked) };
            assert_eq!(size, taken, "{asked}");
        }
    }

    /// For the whole process, whoever asks.
    #[test]
    #[cfg(target_os = "linux")]
    fn no_huge_pages_are_taken() {
        take_small_pages();
        // Safety: it reads a flag of the process.
        #[allow(unsafe_code)]
        let is_set = || unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) };
        assert_eq!(is_set(), 1);
        assert_eq!(std::thread::spawn(is_set).join().expect("it ends"), 1);
    }

    /// The number of the option is the allocator's own: another version of it may mean another option.
    #[test]
    fn the_option_is_the_delay_of_a_second_that_the_allocator_has_by_itself() {
        assert_eq!(get(PURGE_DELAY), 1_000);
        keep_freed_memory();
        assert_eq!(get(PURGE_DELAY), 20_000);
    }
}
