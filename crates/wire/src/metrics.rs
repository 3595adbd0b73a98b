//! Counters of the server's connections and traffic, as `serverStatus` reports them.
//!
//! What changes with every request is kept in several cells, each on cache lines of its own, and
//! a connection always uses the same cell: so cores do not fight over one line. A snapshot adds
//! the cells up; it is not a consistent cut, and need not be.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use crate::compression::Compressor;

const CELLS: usize = 16;

#[derive(Default)]
pub(crate) struct Metrics {
    cells: [Cell; CELLS],
    pub connections_current: AtomicU64,
    pub connections_created: AtomicU64,
    pub connections_rejected: AtomicU64,
    pub exhaust_streams: AtomicU64,
    compression: [CompressionCell; 3],
}

/// Counters of the traffic of some connections.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Cell {
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    /// Bytes saved by compression, to be subtracted; zero for those who use none.
    saved_in: AtomicI64,
    saved_out: AtomicI64,
    requests: AtomicU64,
    active: AtomicI64,
}

#[derive(Default)]
struct CompressionCell {
    compressed_from: AtomicU64,
    compressed_to: AtomicU64,
    decompressed_from: AtomicU64,
    decompressed_to: AtomicU64,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MetricsSnapshot {
    pub connections_current: u64,
    pub connections_available: u64,
    pub connections_created: u64,
    /// Connections turned away because there were too many.
    pub connections_rejected: u64,
    /// Connections that are executing a command.
    pub connections_active: u64,
    /// Connections that are streaming replies to one request.
    pub exhaust_streams: u64,
    pub requests: u64,
    /// Bytes of messages before compression and after decompression.
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Bytes on the wire.
    pub physical_bytes_in: u64,
    pub physical_bytes_out: u64,
    /// In the order of [`Compressor::ALL`].
    pub compression: [CompressionSnapshot; 3],
}

/// Traffic of one compressor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompressionSnapshot {
    pub compressor_bytes_in: u64,
    pub compressor_bytes_out: u64,
    pub decompressor_bytes_in: u64,
    pub decompressor_bytes_out: u64,
}

impl Metrics {
    pub fn cell(&self, connection_id: i64) -> &Cell {
        &self.cells[connection_id.unsigned_abs() as usize % CELLS]
    }

    pub fn decompressed(&self, compressor: Compressor, from_bytes: usize, to_bytes: usize) {
        let cell = &self.compression[slot(compressor)];
        cell.decompressed_from.fetch_add(from_bytes as u64, Relaxed);
        cell.decompressed_to.fetch_add(to_bytes as u64, Relaxed);
    }

    pub fn compressed(&self, compressor: Compressor, from_bytes: usize, to_bytes: usize) {
        let cell = &self.compression[slot(compressor)];
        cell.compressed_from.fetch_add(from_bytes as u64, Relaxed);
        cell.compressed_to.fetch_add(to_bytes as u64, Relaxed);
    }

    pub fn snapshot(&self, connections_max: usize) -> MetricsSnapshot {
        let current = self.connections_current.load(Relaxed);
        let mut sum = MetricsSnapshot {
            connections_current: current,
            connections_available: (connections_max as u64).saturating_sub(current),
            connections_created: self.connections_created.load(Relaxed),
            connections_rejected: self.connections_rejected.load(Relaxed),
            exhaust_streams: self.exhaust_streams.load(Relaxed),
            ..MetricsSnapshot::default()
        };
        let mut active = 0;
        for cell in &self.cells {
            let (bytes_in, bytes_out) = (cell.bytes_in.load(Relaxed), cell.bytes_out.load(Relaxed));
            sum.bytes_in += bytes_in;
            sum.bytes_out += bytes_out;
            sum.physical_bytes_in += bytes_in.saturating_add_signed(-cell.saved_in.load(Relaxed));
            sum.physical_bytes_out +=
                bytes_out.saturating_add_signed(-cell.saved_out.load(Relaxed));
            sum.requests += cell.requests.load(Relaxed);
            active += cell.active.load(Relaxed);
        }
        sum.connections_active = u64::try_from(active).unwrap_or(0);
        for (snapshot, cell) in sum.compression.iter_mut().zip(&self.compression) {
            *snapshot = CompressionSnapshot {
                compressor_bytes_in: cell.compressed_from.load(Relaxed),
                compressor_bytes_out: cell.compressed_to.load(Relaxed),
                decompressor_bytes_in: cell.decompressed_from.load(Relaxed),
                decompressor_bytes_out: cell.decompressed_to.load(Relaxed),
            };
        }
        sum
    }
}

impl Cell {
    pub fn received(&self, logical_bytes: usize, physical_bytes: usize) {
        self.bytes_in.fetch_add(logical_bytes as u64, Relaxed);
        self.requests.fetch_add(1, Relaxed);
        if logical_bytes != physical_bytes {
            self.saved_in
                .fetch_add(logical_bytes as i64 - physical_bytes as i64, Relaxed);
        }
    }

    pub fn sent(&self, logical_bytes: usize, physical_bytes: usize) {
        self.bytes_out.fetch_add(logical_bytes as u64, Relaxed);
        if logical_bytes != physical_bytes {
            self.saved_out
                .fetch_add(logical_bytes as i64 - physical_bytes as i64, Relaxed);
        }
    }

    /// Counts a running command until the guard goes, however that happens.
    pub fn running(&self) -> Running<'_> {
        self.active.fetch_add(1, Relaxed);
        Running(self)
    }
}

pub(crate) struct Running<'a>(&'a Cell);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Relaxed);
    }
}

/// A compressor's place in [`Compressor::ALL`].
fn slot(compressor: Compressor) -> usize {
    match compressor {
        Compressor::Snappy => 0,
        Compressor::Zstd => 1,
        Compressor::Zlib => 2,
    }
}
