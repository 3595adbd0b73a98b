//! What memory takes: an allocator has blocks of some sizes only, and a cache that counts what it asked for
//! holds a tenth to a fifth more than it says.
//!
//! Sizes are those of mimalloc, and of jemalloc: multiples of 16 for little blocks, then four between one power
//! of two and the next, at last whole pieces of 64 KiB.
//!
//! Left out: blocks that are free within the allocator's own pages, which nobody can count from here.

const SMALL_STEP_BYTES: usize = 16;
const LARGE_STEP_BYTES: usize = 64 << 10;
/// What a view keeps in itself.
const VIEW_BYTES: usize = 20;
/// What stands in front of the bytes of a view that are elsewhere.
const VIEW_HEADER_BYTES: usize = 8;

/// What a block for so many bytes takes.
pub(super) fn block_bytes(bytes: usize) -> u64 {
    let step_bytes = bytes.next_power_of_two() / 8;
    let step_bytes = step_bytes.clamp(SMALL_STEP_BYTES, LARGE_STEP_BYTES);
    bytes.next_multiple_of(step_bytes) as u64
}

/// What the bytes of an engine's slice take beside the slice itself.
pub(super) fn view_bytes(length: usize) -> u64 {
    match length {
        0..=VIEW_BYTES => 0,
        _ => block_bytes(VIEW_HEADER_BYTES + length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_in_four_sizes_between_powers_of_two() {
        let table = [
            (0, 0),
            (1, 16),
            (16, 16),
            (17, 32),
            (128, 128),
            (129, 160),
            (1_024, 1_024),
            (1_150, 1_280),
            (16_384, 16_384),
            (16_385, 20_480),
            (65_536, 65_536),
            (66_000, 81_920),
            (280_000, 327_680),
            (524_289, 589_824),
            (5_000_000, 5_046_272),
        ];
        for (asked, taken) in table {
            assert_eq!(block_bytes(asked), taken, "{asked}");
        }
    }

    #[test]
    fn short_views_take_nothing() {
        for (length, taken) in [(0, 0), (20, 0), (21, 32), (1_016, 1_024), (1_017, 1_280)] {
            assert_eq!(view_bytes(length), taken, "{length}");
        }
    }
}
