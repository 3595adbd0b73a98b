//! Buffers of long replies, kept for the next ones.
//!
//! A batch of documents takes a megabyte. Memory of that size goes back to the system soon after
//! it is freed, and what comes from there has to be cleared first: in scans that was a fifth of a
//! shard's CPU.
//!
//! Each thread keeps at most [`KEPT_MAX`] buffers of at most [`BYTES_MAX`]: little beside what
//! the replies under way may take. Small ones are left to the allocator, which is good at them.

use std::cell::RefCell;

const BYTES_MIN: usize = 64 * 1024;
const BYTES_MAX: usize = 4 * 1024 * 1024;
const KEPT_MAX: usize = 2;
/// Whoever asks for less writes a short reply, most likely.
const ASKED_MIN: usize = 8 * 1024;

thread_local! {
    static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer for about so many bytes: a kept one, which may have room for more or for less,
/// or a new one.
pub(crate) fn take(bytes: usize) -> Vec<u8> {
    if bytes >= ASKED_MIN
        && let Some(kept) = kept()
    {
        return kept;
    }
    Vec::with_capacity(bytes)
}

/// A buffer that is kept, if there is one.
pub(crate) fn kept() -> Option<Vec<u8>> {
    // A thread that ends has none any more.
    KEPT.try_with(|kept| kept.borrow_mut().pop()).ok().flatten()
}

/// Keeps a buffer that is not needed any more, if it is worth it.
pub(crate) fn give(mut buffer: Vec<u8>) {
    if !(BYTES_MIN..=BYTES_MAX).contains(&buffer.capacity()) {
        return;
    }
    buffer.clear();
    // A thread that ends keeps nothing.
    let _ended = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        if kept.len() < KEPT_MAX {
            kept.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::{BYTES_MAX, BYTES_MIN, KEPT_MAX, give, kept, take};

    #[test]
    fn long_buffers_are_used_again_and_short_ones_are_not() {
        give(Vec::with_capacity(BYTES_MIN - 1));
        give(Vec::with_capacity(BYTES_MAX + 1));
        assert_eq!(kept(), None);

        let mut long = Vec::with_capacity(BYTES_MIN);
        long.extend_from_slice(b"an earlier reply");
        give(long);
        assert!(take(100).capacity() < BYTES_MIN, "a short reply");
        let again = take(BYTES_MIN / 2);
        assert_eq!((again.len(), again.capacity()), (0, BYTES_MIN));
        assert_eq!(kept(), None, "each is given out once");
    }

    #[test]
    fn a_thread_keeps_few() {
        for _ in 0..KEPT_MAX + 3 {
            give(Vec::with_capacity(BYTES_MIN));
        }
        let count = std::iter::from_fn(kept).count();
        assert_eq!(count, KEPT_MAX);
    }
}
