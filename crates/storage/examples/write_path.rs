//! What the store costs per operation: CPU of the whole process (the engine's
//! flushes and compactions included) and wall time, which says little on a busy
//! machine. Run with
//! `cargo run --release -p storage --example write_path [documents]`.

use std::hint::black_box;
use std::time::Instant;

use model::ids::{CollectionId, IndexId};
use model::time::ClusterTime;
use storage::entry::{Description, Encoder, IndexAction, IndexChange};
use storage::{
    Before, Committed, Direction, FjallEngine, FjallOptions, KeyRange, Store, StoreOptions,
};

const COLLECTION: CollectionId = CollectionId(5);
const DOCUMENT_BYTES: usize = 400;

/// Something like an encoded ObjectId: 13 bytes, scattered.
fn key(number: u64) -> [u8; 13] {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut key = [7; 13];
    key[1..9].copy_from_slice(&mixed.to_be_bytes());
    key
}

struct Run {
    store: Store<FjallEngine>,
    position: u64,
    payload: Vec<u8>,
}

impl Run {
    fn put(&mut self, number: u64, before: Before, indexes: u32) {
        self.position += 1;
        let time = ClusterTime::new(
            1_000 + (self.position / 8_000) as u32,
            (self.position % 8_000) as u32,
        );
        let mut document = [0x55u8; DOCUMENT_BYTES];
        document[..8].copy_from_slice(&self.position.to_le_bytes());
        let fields = key(self.position);
        let changes: Vec<IndexChange<'_>> = (0..indexes)
            .map(|index| IndexChange {
                index: IndexId(index),
                fields: &fields[..9],
                action: IndexAction::Add { type_bits: &[] },
            })
            .collect();
        self.payload.clear();
        let mut encoder = Encoder::new(&mut self.payload);
        encoder.put_record(
            COLLECTION,
            &key(number),
            &document,
            Description::Insert,
            &changes,
        );
        self.store
            .apply(&[Committed {
                position: self.position,
                time,
                payload: &self.payload,
                before: &[before],
                after: &[],
            }])
            .expect("applied");
    }
}

/// User and system time of this process in seconds, where Linux tells it.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may hold spaces: fields are counted behind it.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks: f64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum();
    ticks / 100.0
}

fn measure(what: &str, count: u64, mut operation: impl FnMut(u64)) {
    let cpu = cpu_seconds();
    let started = Instant::now();
    for number in 0..count {
        operation(number);
    }
    let each = started.elapsed().as_secs_f64() * 1e6 / count as f64;
    let cpu = (cpu_seconds() - cpu) * 1e6 / count as f64;
    println!("{what:<36} {cpu:>8.2} µs CPU {each:>8.2} µs wall");
}

fn main() {
    let count: u64 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(200_000);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = FjallEngine::open(dir.path(), &FjallOptions::default()).expect("opened");
    let options = StoreOptions {
        record_cache_bytes: 256 << 20,
        ..StoreOptions::default()
    };
    let store = Store::open(engine, options).expect("opened");
    let mut run = Run {
        store,
        position: 0,
        payload: Vec::new(),
    };
    measure("insert", count, |number| run.put(number, Before::Absent, 0));
    measure("insert with two index entries", count, |number| {
        run.put(count + number, Before::Absent, 2);
    });
    measure("update, old version in the cache", count, |number| {
        run.put(number * 7 % count, Before::Unknown, 0);
    });
    measure("get, in the cache", count, |number| {
        black_box(run.store.get(COLLECTION, &key(number * 7 % count))).expect("read");
    });
    let snapshot = run.store.snapshot();
    measure("get from a snapshot", count, |number| {
        black_box(snapshot.get(COLLECTION, &key(number * 7 % count))).expect("read");
    });
    measure("take a snapshot", count, |_| {
        black_box(run.store.snapshot());
    });
    let started = Instant::now();
    let scanned = snapshot
        .scan_records(COLLECTION, KeyRange::ALL, Direction::Forward)
        .map(|record| record.expect("sound").document().len())
        .sum::<usize>();
    let per_second = scanned as f64 / 1e6 / started.elapsed().as_secs_f64();
    println!("{:<36} {per_second:>8.0} MB/s", "full scan");
    println!(
        "{} documents, {} MB on disk",
        run.store.collection_counter(COLLECTION).items,
        run.store.storage_bytes() / 1_000_000
    );
}
