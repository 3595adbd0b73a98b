//! The compressors of OP_COMPRESSED: snappy, zlib and zstd.
//!
//! A compressed message claims how large it becomes. The claim is untrusted: it is held against
//! the message limit before anything else, and memory then follows what decompression really
//! yields. A claim that does not match the outcome exactly is an error.
//!
//! Left out: the "noop" compressor (id 0), which the real server refuses as well.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::io::{self, Read, Write};

use crate::protocol::{HEADER_SIZE, MESSAGE_BYTES_MAX};

/// Uncompressed payloads up to this size are allocated on the strength of the claim alone.
const TRUSTED_BYTES_MAX: usize = 1024 * 1024;

/// No snappy element yields more than 64 bytes from 3, so a larger claim is a lie.
const SNAPPY_RATIO_MAX: usize = 22;

/// The largest window that a zstd frame within the message limit can make use of.
const ZSTD_WINDOW_LOG_MAX: u32 = 26;

/// A way to compress messages that client and server may agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compressor {
    Snappy,
    Zlib,
    Zstd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CompressionFault {
    #[error("a payload of {0} uncompressed bytes is out of bounds")]
    Size(i32),
    #[error("the compressed bytes are corrupt")]
    Corrupt,
    #[error("the uncompressed size is not the one announced")]
    SizeMismatch,
    /// Sound, but less than announced: zlib alone cannot tell while it decompresses.
    #[error("{actual} uncompressed bytes were there, {claimed} were announced")]
    Short { actual: usize, claimed: usize },
}

impl Compressor {
    /// All of them, in the order in which the real server prefers them.
    pub const ALL: [Compressor; 3] = [Compressor::Snappy, Compressor::Zstd, Compressor::Zlib];

    pub fn from_id(id: u8) -> Option<Compressor> {
        match id {
            1 => Some(Compressor::Snappy),
            2 => Some(Compressor::Zlib),
            3 => Some(Compressor::Zstd),
            _ => None,
        }
    }

    pub fn id(self) -> u8 {
        match self {
            Compressor::Snappy => 1,
            Compressor::Zlib => 2,
            Compressor::Zstd => 3,
        }
    }

    pub fn from_name(name: &str) -> Option<Compressor> {
        Compressor::ALL
            .into_iter()
            .find(|compressor| compressor.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Compressor::Snappy => "snappy",
            Compressor::Zlib => "zlib",
            Compressor::Zstd => "zstd",
        }
    }

    /// What a client's list and ours have in common, in the client's order.
    pub fn negotiate<'a>(offered: impl IntoIterator<Item = &'a str>) -> Vec<Compressor> {
        offered
            .into_iter()
            .filter_map(Compressor::from_name)
            .collect()
    }

    /// Appends the compressed form of `payload` to `out`.
    pub fn compress(self, payload: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Compressor::Snappy => {
                let start = out.len();
                out.resize(start + snap::raw::max_compress_len(payload.len()), 0);
                let written = snap::raw::Encoder::new()
                    .compress(payload, &mut out[start..])
                    .map_err(io::Error::other)?;
                out.truncate(start + written);
                Ok(())
            }
            Compressor::Zlib => {
                let mut encoder = flate2::write::ZlibEncoder::new(out, Default::default());
                encoder.write_all(payload)?;
                encoder.finish()?;
                Ok(())
            }
            Compressor::Zstd => {
                let compressed = ZSTD_COMPRESSOR.with_borrow_mut(|slot| match slot {
                    Some(compressor) => compressor.compress(payload),
                    None => {
                        let level = zstd::DEFAULT_COMPRESSION_LEVEL;
                        let compressor = slot.insert(zstd::bulk::Compressor::new(level)?);
                        compressor.compress(payload)
                    }
                })?;
                out.extend_from_slice(&compressed);
                Ok(())
            }
        }
    }

    /// Decompresses into a buffer that begins with `prefix` and continues with exactly
    /// `claimed_size` bytes.
    pub fn decompress(
        self,
        prefix: &[u8],
        compressed: &[u8],
        claimed_size: i32,
    ) -> Result<Vec<u8>, CompressionFault> {
        let size = usize::try_from(claimed_size)
            .ok()
            .filter(|size| *size > 0 && *size <= MESSAGE_BYTES_MAX - HEADER_SIZE)
            .ok_or(CompressionFault::Size(claimed_size))?;
        let mut out = Vec::with_capacity(prefix.len() + size.min(TRUSTED_BYTES_MAX));
        out.extend_from_slice(prefix);
        match self {
            Compressor::Snappy => decompress_snappy(&mut out, compressed, size)?,
            Compressor::Zlib => {
                read_exactly(
                    &mut out,
                    flate2::bufread::ZlibDecoder::new(compressed),
                    size,
                )?;
            }
            Compressor::Zstd if size <= TRUSTED_BYTES_MAX => {
                decompress_small_zstd(&mut out, compressed, size)?;
            }
            Compressor::Zstd => {
                let corrupt = |_| CompressionFault::Corrupt;
                let mut decoder =
                    zstd::stream::read::Decoder::with_buffer(compressed).map_err(corrupt)?;
                decoder
                    .window_log_max(ZSTD_WINDOW_LOG_MAX)
                    .map_err(corrupt)?;
                read_exactly(&mut out, decoder, size).map_err(|fault| match fault {
                    CompressionFault::Short { .. } => CompressionFault::SizeMismatch,
                    other => other,
                })?;
            }
        }
        Ok(out)
    }
}

thread_local! {
    // A zstd context is some hundred kilobytes: one per worker thread, not one per message.
    static ZSTD_COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> =
        const { RefCell::new(None) };
    static ZSTD_DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> =
        const { RefCell::new(None) };
}

fn decompress_snappy(
    out: &mut Vec<u8>,
    compressed: &[u8],
    size: usize,
) -> Result<(), CompressionFault> {
    let stated = snap::raw::decompress_len(compressed).map_err(|_| CompressionFault::Corrupt)?;
    if stated != size {
        return Err(CompressionFault::SizeMismatch);
    }
    if size > compressed.len().saturating_mul(SNAPPY_RATIO_MAX) {
        return Err(CompressionFault::Corrupt);
    }
    let start = out.len();
    out.resize(start + size, 0);
    match snap::raw::Decoder::new().decompress(compressed, &mut out[start..]) {
        Ok(written) if written == size => Ok(()),
        Ok(_) => Err(CompressionFault::SizeMismatch),
        Err(_) => Err(CompressionFault::Corrupt),
    }
}

fn decompress_small_zstd(
    out: &mut Vec<u8>,
    compressed: &[u8],
    size: usize,
) -> Result<(), CompressionFault> {
    let start = out.len();
    out.resize(start + size, 0);
    let written = ZSTD_DECOMPRESSOR
        .with_borrow_mut(|slot| match slot {
            Some(decompressor) => decompressor.decompress_to_buffer(compressed, &mut out[start..]),
            None => slot
                .insert(zstd::bulk::Decompressor::new()?)
                .decompress_to_buffer(compressed, &mut out[start..]),
        })
        .map_err(|_| CompressionFault::Corrupt)?;
    if written == size {
        Ok(())
    } else {
        Err(CompressionFault::SizeMismatch)
    }
}

/// Appends everything `decoder` yields, which must be `size` bytes; growth follows the bytes.
fn read_exactly(
    out: &mut Vec<u8>,
    decoder: impl Read,
    size: usize,
) -> Result<(), CompressionFault> {
    let read = decoder
        .take(size as u64 + 1)
        .read_to_end(out)
        .map_err(|_| CompressionFault::Corrupt)?;
    match read.cmp(&size) {
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(CompressionFault::SizeMismatch),
        Ordering::Less => Err(CompressionFault::Short {
            actual: read,
            claimed: size,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(compressor: Compressor, payload: &[u8]) {
        let mut compressed = vec![];
        compressor.compress(payload, &mut compressed).unwrap();
        let size = payload.len() as i32;
        let back = compressor.decompress(b"prefix", &compressed, size).unwrap();
        assert_eq!(&back[..6], b"prefix");
        assert_eq!(&back[6..], payload);
        for wrong in [size - 1, size + 1, size * 2, 1_500_000, 40_000_000] {
            if wrong != size && wrong > 0 {
                let result = compressor.decompress(b"", &compressed, wrong);
                assert!(result.is_err(), "{compressor:?} took {wrong} for {size}");
            }
        }
        for out_of_bounds in [0, -1, i32::MIN, i32::MAX, 48_000_000, 48_000_000 - 15] {
            assert_eq!(
                compressor.decompress(b"", &compressed, out_of_bounds),
                Err(CompressionFault::Size(out_of_bounds))
            );
        }
        compressed.truncate(compressed.len() / 2);
        assert!(compressor.decompress(b"", &compressed, size).is_err());
        assert!(
            compressor
                .decompress(b"", b"\xff\xff\xff\xff\xff", size)
                .is_err()
        );
        assert!(compressor.decompress(b"", b"", size).is_err());
    }

    #[test]
    fn every_compressor_restores_what_it_compressed_and_nothing_else() {
        let text: Vec<u8> = (0..100_000u32).flat_map(|n| n.to_le_bytes()).collect();
        for compressor in Compressor::ALL {
            check(compressor, b"x");
            check(compressor, &text[..1000]);
            check(compressor, &text);
            check(compressor, &vec![0; 3_000_000]);
        }
    }

    #[test]
    fn ids_and_names_lead_back() {
        for compressor in Compressor::ALL {
            assert_eq!(Compressor::from_id(compressor.id()), Some(compressor));
            assert_eq!(Compressor::from_name(compressor.name()), Some(compressor));
        }
        assert_eq!(Compressor::from_id(0), None);
        assert_eq!(
            Compressor::negotiate(["lz4", "zstd", "zlib"]),
            [Compressor::Zstd, Compressor::Zlib]
        );
    }
}
