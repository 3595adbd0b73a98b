//! The bytes of a group on their way into a segment, in a form that can be written past the
//! system's memory.
//!
//! A direct write (`O_DIRECT`) takes whole blocks, from memory that begins at a multiple of a
//! block. A group begins in the middle of one, so the buffer keeps the part of it that was
//! written before:
//!
//! ```text
//!   segment   … ├────────────┼────────────┼────────────┤
//!                └ begin   └ written          └ end   └ filled with zeros
//!   buffer       kept        to be written
//! ```
//!
//! `begin` is a multiple of a block as soon as one was filled: where a segment begins, or the
//! log was opened, the bytes in front of the first group are not known. That costs an ordinary
//! write, and nothing else. So does a buffer that is not where it should be in memory.

/// The largest page or block that is expected. Where they are larger, what is filled does not
/// reach their end: that costs reads, and nothing else.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// A buffer that one large entry has blown up is given back to the system.
const BYTES_KEPT: usize = 4 << 20;

/// What a group had better be written in: a buffer that grew with it would be given back and taken anew with each
/// group of a load, and be memory that is new to the process each time.
pub(crate) const PIECE_BYTES: u64 = BYTES_KEPT as u64 / 2;

pub(crate) struct GroupBuffer {
    /// What is in front of `start` only moves the rest to a multiple of a block.
    bytes: Vec<u8>,
    start: usize,
    /// Where in the segment the buffer begins.
    begin: u64,
}

impl GroupBuffer {
    pub fn new(begin: u64) -> Self {
        Self {
            bytes: Vec::new(),
            start: 0,
            begin,
        }
    }

    /// Begins anew, at a place of another segment.
    pub fn restart(&mut self, begin: u64) {
        self.bytes.truncate(self.start);
        self.begin = begin;
    }

    /// Where in the segment the known bytes begin.
    pub fn begin(&self) -> u64 {
        self.begin
    }

    /// Where in the segment the next entry goes.
    pub fn end(&self) -> u64 {
        self.begin + (self.bytes.len() - self.start) as u64
    }

    /// What the next entry is added to, with room for so many bytes.
    pub fn with_room(&mut self, bytes: usize) -> &mut Vec<u8> {
        if self.bytes.capacity() - self.bytes.len() < bytes {
            self.grow(bytes);
        }
        &mut self.bytes
    }

    /// The bytes between two places of the segment, the second one not before the end: what
    /// is missing is filled with zeros until [`GroupBuffer::written`].
    pub fn filled(&mut self, from: u64, to: u64) -> &[u8] {
        let end = self.end();
        assert!(
            self.begin <= from && from <= end && end <= to,
            "only what was added is written"
        );
        let missing = (to - end) as usize;
        let bytes = self.with_room(missing);
        bytes.resize(bytes.len() + missing, 0);
        &self.bytes[self.start + (from - self.begin) as usize..]
    }

    /// Everything before `end` is in the segment: only its last block is kept.
    pub fn written(&mut self, end: u64) {
        let block = end - end % BLOCK_BYTES;
        let kept_from = block.max(self.begin);
        let from = self.start + (kept_from - self.begin) as usize;
        let to = self.start + (end - self.begin) as usize;
        self.bytes.copy_within(from..to, self.start);
        self.bytes.truncate(self.start + (to - from));
        self.begin = kept_from;
        if self.bytes.capacity() > BYTES_KEPT + BLOCK_BYTES as usize {
            self.move_to(BYTES_KEPT);
        }
    }

    fn grow(&mut self, bytes: usize) {
        let used = self.bytes.len() - self.start;
        self.move_to((used + bytes).max(2 * used));
    }

    /// Into memory of its own for so many bytes, at a multiple of a block.
    fn move_to(&mut self, bytes: usize) {
        let mut moved: Vec<u8> = Vec::with_capacity(bytes + BLOCK_BYTES as usize);
        let aligned = moved.as_ptr().align_offset(BLOCK_BYTES as usize);
        let start = if aligned < BLOCK_BYTES as usize {
            aligned
        } else {
            0
        };
        moved.resize(start, 0);
        moved.extend_from_slice(&self.bytes[self.start..]);
        self.bytes = moved;
        self.start = start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(buffer: &mut GroupBuffer, byte: u8, count: usize) {
        let bytes = buffer.with_room(count);
        bytes.resize(bytes.len() + count, byte);
    }

    /// Which bytes, and how many of each.
    fn runs(bytes: &[u8]) -> Vec<(u8, usize)> {
        let equal = bytes.chunk_by(|one, other| one == other);
        equal.map(|run| (run[0], run.len())).collect()
    }

    #[test]
    fn the_last_block_is_kept() {
        let mut buffer = GroupBuffer::new(512);
        add(&mut buffer, 1, 88);
        assert_eq!(runs(buffer.filled(512, 600)), [(1, 88)]);
        buffer.written(600);
        // The block's beginning is not known.
        assert_eq!((buffer.begin(), buffer.end()), (512, 600));
        add(&mut buffer, 2, 4_400);
        assert_eq!(runs(buffer.filled(600, 8_192)), [(2, 4_400), (0, 3_192)]);
        buffer.written(5_000);
        assert_eq!((buffer.begin(), buffer.end()), (4_096, 5_000));
        add(&mut buffer, 3, 100);
        let written = [(2, 904), (3, 100), (0, 3_092)];
        assert_eq!(runs(buffer.filled(4_096, 8_192)), written);
        assert_eq!(runs(buffer.filled(5_000, 8_192)), written[1..]);
        buffer.written(5_100);
        add(&mut buffer, 4, 3_092);
        buffer.written(8_192);
        assert_eq!((buffer.begin(), buffer.end()), (8_192, 8_192));
    }

    #[test]
    fn it_stays_where_direct_writes_need_it() {
        let mut buffer = GroupBuffer::new(4_096);
        for (count, kept) in [(10, 10), (100_000, 1_706), (9 << 20, 1_706), (7, 1_713)] {
            add(&mut buffer, 5, count);
            let (begin, end) = (buffer.begin(), buffer.end());
            let filled = buffer.filled(begin, end.next_multiple_of(BLOCK_BYTES));
            assert_eq!(filled.len() % BLOCK_BYTES as usize, 0);
            assert_eq!(filled.as_ptr().align_offset(BLOCK_BYTES as usize), 0);
            buffer.written(end);
            assert_eq!(buffer.end() - buffer.begin(), kept);
            assert!(buffer.bytes.capacity() <= BYTES_KEPT + BLOCK_BYTES as usize);
        }
    }
}
