//! What a bulk load and a full scan cost, in CPU of the whole process per document,
//! for trying out the engine's settings:
//!
//! `cargo run --release -p storage --example load -- documents=300000 bytes=1000 memtable_mb=32`
//!
//! `indexes=2 ordered=1 entry_documents=2000 moved=1 only_load=1` is what a recipient of a range would
//! load if nothing but the engine took time: documents in the order of their keys, with index entries,
//! in large entries that say that they come from elsewhere.

use std::time::{Duration, Instant};

use model::ids::{CollectionId, IndexId};
use model::time::ClusterTime;
use storage::entry::{Description, Encoder, Header, IndexAction, IndexChange};
use storage::{
    Before, Committed, Direction, FjallEngine, FjallOptions, KeyRange, Record, Store, StoreOptions,
};

const COLLECTION: CollectionId = CollectionId(5);

fn mixed(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Something like an encoded "user00012345678901234567": scattered, or in order.
fn key(number: u64, ordered: bool) -> Vec<u8> {
    let shown = match ordered {
        true => number,
        false => mixed(number),
    };
    format!("user{shown:020}").into_bytes()
}

/// Letters and digits that hardly compress, as in the benchmark's documents.
fn texts() -> Vec<u8> {
    let mut state = 0x7e57_u64;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        b"abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
            [(state >> 33) as usize % 62]
    };
    std::iter::repeat_with(next).take(256 << 10).collect()
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

fn argument(name: &str, otherwise: u64) -> u64 {
    std::env::args()
        .find_map(|argument| argument.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        .unwrap_or(otherwise)
}

fn main() {
    let documents = argument("documents", 200_000);
    let bytes = argument("bytes", 1_000) as usize;
    let entry_documents = argument("entry_documents", 100).max(1);
    let indexes = argument("indexes", 0) as u32;
    let ordered = argument("ordered", 0) == 1;
    let header = Header {
        origin: (argument("moved", 0) == 1).then_some(&b"a move"[..]),
        ..Header::default()
    };
    let defaults = FjallOptions::default();
    let options = FjallOptions {
        cache_bytes: 512 << 20,
        memtable_bytes: argument("memtable_mb", defaults.memtable_bytes >> 20) << 20,
        level_zero_tables: argument("level_zero", defaults.level_zero_tables.into()) as u8,
        table_bytes: argument("table_mb", defaults.table_bytes >> 20) << 20,
        block_bytes: argument("block_kb", u64::from(defaults.block_bytes) >> 10) as u32 * 1024,
        workers: argument("workers", defaults.workers as u64) as usize,
    };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = FjallEngine::open(dir.path(), &options).expect("opened");
    let store = Store::open(
        engine,
        StoreOptions {
            record_cache_bytes: 512 << 20,
            ..StoreOptions::default()
        },
    )
    .expect("opened");
    let texts = texts();

    let (cpu, started) = (cpu_seconds(), Instant::now());
    let mut longest = Duration::ZERO;
    for entry in 0..documents.div_ceil(entry_documents) {
        let time = ClusterTime::new(1_000, 1 + entry as u32);
        let mut payload = Vec::new();
        let mut encoder = Encoder::with_header(&mut payload, header);
        let mut after = Vec::new();
        for number in entry * entry_documents..documents.min((entry + 1) * entry_documents) {
            let at = (number as usize * 7919) % (texts.len() - bytes);
            let record = Record::draft(&texts[at..at + bytes]).committed_at(time);
            let key = key(number, ordered);
            if !ordered {
                let found = store.latest(COLLECTION, &key).expect("read");
                assert!(found.is_none(), "keys are unique");
            }
            // Each index has an order of its own.
            let fields: Vec<[u8; 9]> = (0..indexes)
                .map(|index| {
                    let mut fields = [index as u8; 9];
                    fields[1..].copy_from_slice(&mixed(number + u64::from(index)).to_be_bytes());
                    fields
                })
                .collect();
            let changes: Vec<IndexChange<'_>> = fields
                .iter()
                .zip(0..indexes)
                .map(|(fields, index)| IndexChange {
                    index: IndexId(10 + index),
                    fields,
                    action: IndexAction::Add { type_bits: &[] },
                })
                .collect();
            encoder.put_record(
                COLLECTION,
                &key,
                record.document(),
                Description::Insert,
                &changes,
            );
            after.push(record);
        }
        let applying = Instant::now();
        let before = vec![Before::Absent; after.len()];
        let committed = Committed {
            position: entry + 1,
            time,
            payload: &payload,
            before: &before,
            after: &after,
        };
        store.apply(&[committed]).expect("applied");
        longest = longest.max(applying.elapsed());
    }
    let each = (cpu_seconds() - cpu) * 1e6 / documents as f64;
    let wall = started.elapsed().as_secs_f64();
    let spare = Instant::now();
    let mut before = cpu_seconds();
    // Compactions go on for a while: they belong to the load.
    while spare.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(300));
        let now = cpu_seconds();
        if now - before < 0.02 {
            break;
        }
        before = now;
    }
    let settled = (cpu_seconds() - cpu) * 1e6 / documents as f64;
    println!(
        "load      {each:6.2} µs CPU, settled {settled:6.2} µs, {wall:.1} s, {:.0} MB/s, longest apply {longest:?}, {} MB",
        (documents * bytes as u64) as f64 / 1e6 / wall,
        store.storage_bytes() / 1_000_000
    );
    if argument("only_load", 0) == 1 {
        return;
    }

    for round in ["cold", "warm", "warm"] {
        let cpu = cpu_seconds();
        let mut sum = 0;
        for _ in 0..4 {
            let snapshot = store.snapshot();
            sum += snapshot
                .scan_records(COLLECTION, KeyRange::ALL, Direction::Forward)
                .map(|record| record.expect("sound").document().len())
                .sum::<usize>();
        }
        let each = (cpu_seconds() - cpu) * 1e6 / (4 * documents) as f64;
        println!("scan {round} {each:6.3} µs CPU ({} MB)", sum / 4_000_000);
    }
    let cpu = cpu_seconds();
    for number in 0..documents {
        let key = key(number.wrapping_mul(7919) % documents, ordered);
        assert!(
            store.latest(COLLECTION, &key).expect("read").is_some(),
            "it was put"
        );
    }
    println!(
        "get       {:6.3} µs CPU",
        (cpu_seconds() - cpu) * 1e6 / documents as f64
    );
    let resident = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = resident
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .unwrap_or_default();
    println!("{resident}");
}
