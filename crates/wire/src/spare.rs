//! Buffers of long replies, kept for the next ones.
//!
//! A batch of documents takes a megabyte. Memory of that size goes back to the system soon after
//! it is freed, and what comes from there has to be cleared first: in scans that was a fifth of a
//! shard's CPU.
//!
//! All threads share them: a reply is often written by one thread and sent by another, and who keeps what
//! he has sent for himself is not the one who needs it. At most [`KEPT_MAX`] buffers of at most [`BYTES_MAX`]
//! are kept: little beside what the replies under way may take. Small ones are left to the allocator,
//! which is good at them.

use parking_lot::Mutex;

const BYTES_MIN: usize = 64 * 1024;
const BYTES_MAX: usize = 4 * 1024 * 1024;
const KEPT_MAX: usize = 8;
/// Whoever asks for less writes a short reply, most likely.
const ASKED_MIN: usize = 8 * 1024;

static SPARE: Spare = Spare(Mutex::new(Vec::new()));

/// An empty buffer for about so many bytes: a kept one, which may have room for more or for less,
/// or a new one.
pub(crate) fn take(bytes: usize) -> Vec<u8> {
    SPARE.take(bytes)
}

/// A buffer that is kept, if there is one; one with room for so many bytes, if there is one.
pub(crate) fn kept(bytes: usize) -> Option<Vec<u8>> {
    SPARE.kept(bytes)
}

/// Keeps a buffer that is not needed any more, if it is worth it.
pub(crate) fn give(buffer: Vec<u8>) {
    SPARE.give(buffer);
}

/// The last one that was given is the first to be used again: it is the one that caches still hold.
struct Spare(Mutex<Vec<Vec<u8>>>);

impl Spare {
    fn take(&self, bytes: usize) -> Vec<u8> {
        if bytes >= ASKED_MIN
            && let Some(kept) = self.kept(bytes)
        {
            return kept;
        }
        Vec::with_capacity(bytes)
    }

    fn kept(&self, bytes: usize) -> Option<Vec<u8>> {
        let mut kept = self.0.lock();
        let with_room = kept.iter().rposition(|buffer| buffer.capacity() >= bytes);
        match with_room {
            Some(at) => Some(kept.remove(at)),
            None => kept.pop(),
        }
    }

    fn give(&self, mut buffer: Vec<u8>) {
        if !(BYTES_MIN..=BYTES_MAX).contains(&buffer.capacity()) {
            return;
        }
        buffer.clear();
        let mut kept = self.0.lock();
        if kept.len() < KEPT_MAX {
            kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_buffers_are_used_again_and_short_ones_are_not() {
        let spare = Spare(Mutex::default());
        spare.give(Vec::with_capacity(BYTES_MIN - 1));
        spare.give(Vec::with_capacity(BYTES_MAX + 1));
        assert_eq!(spare.kept(0), None);

        let mut long = Vec::with_capacity(BYTES_MIN);
        long.extend_from_slice(b"an earlier reply");
        spare.give(long);
        assert!(spare.take(100).capacity() < BYTES_MIN, "a short reply");
        let again = spare.take(BYTES_MIN / 2);
        assert_eq!((again.len(), again.capacity()), (0, BYTES_MIN));
        assert_eq!(spare.kept(0), None, "each is given out once");
    }

    #[test]
    fn few_are_kept() {
        let spare = Spare(Mutex::default());
        for _ in 0..KEPT_MAX + 3 {
            spare.give(Vec::with_capacity(BYTES_MIN));
        }
        let count = std::iter::from_fn(|| spare.kept(0)).count();
        assert_eq!(count, KEPT_MAX);
    }

    #[test]
    fn one_with_room_is_preferred() {
        let spare = Spare(Mutex::default());
        spare.give(Vec::with_capacity(BYTES_MAX));
        spare.give(Vec::with_capacity(BYTES_MIN));
        assert_eq!(spare.take(BYTES_MIN + 1).capacity(), BYTES_MAX);
        assert_eq!(spare.take(BYTES_MIN + 1).capacity(), BYTES_MIN);
    }

    /// Whoever sends a reply is not who writes the next one.
    #[test]
    fn what_one_thread_gives_another_takes() {
        let spare = Spare(Mutex::default());
        std::thread::scope(|scope| {
            scope.spawn(|| spare.give(Vec::with_capacity(BYTES_MIN)));
        });
        assert_eq!(spare.take(ASKED_MIN).capacity(), BYTES_MIN);
    }
}
