//! What dropping a large collection costs: time of the drop itself, of each
//! maintenance step, disk before and after, and whether an open snapshot still
//! sees everything. Run with
//! `cargo run --release -p storage --example drop_large [documents]`.

use std::time::Instant;

use model::ids::CollectionId;
use storage::entry::{Description, Encoder};
use storage::{
    Before, Committed, Direction, Engine, FjallEngine, FjallOptions, KeyRange, Snapshot, Store,
    StoreOptions,
};

const DROPPED: CollectionId = CollectionId(5);
const KEPT: CollectionId = CollectionId(6);

fn apply<E: Engine>(store: &Store<E>, payload: &[u8], before: &[Before]) {
    store
        .apply(&[Committed {
            position: store.applied() + 1,
            time: store.applied_time().next(),
            payload,
            before,
            after: &[],
        }])
        .expect("applied");
}

fn count<E: Engine>(snapshot: &Snapshot<E::Snapshot>, collection: CollectionId) -> usize {
    snapshot
        .scan_records(collection, KeyRange::ALL, Direction::Forward)
        .filter(|record| record.is_ok())
        .count()
}

fn main() {
    let documents: u64 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(400_000);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = FjallEngine::open(dir.path(), &FjallOptions::default()).expect("opened");
    let store = Store::open(engine, StoreOptions::default()).expect("opened");
    let mut seed = 1u64;
    let mut payload = Vec::new();
    for number in 0..documents {
        // Bytes that do not compress, so that there are several large files.
        let mut document = [0u8; 400];
        for word in document.chunks_exact_mut(8) {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.copy_from_slice(&(seed ^ (seed >> 29)).to_le_bytes());
        }
        payload.clear();
        let mut encoder = Encoder::new(&mut payload);
        encoder.put_record(
            DROPPED,
            &number.to_be_bytes(),
            &document,
            Description::Insert,
            &[],
        );
        if number % 10 == 0 {
            encoder.put_record(
                KEPT,
                &number.to_be_bytes(),
                &document,
                Description::Insert,
                &[],
            );
        }
        apply(&store, &payload, &[Before::Absent, Before::Absent]);
    }
    store.compact().expect("compacted");
    println!("loaded: {} MB", store.storage_bytes() / 1_000_000);
    let old = store.snapshot();
    payload.clear();
    Encoder::new(&mut payload).drop_collection(DROPPED);
    let started = Instant::now();
    apply(&store, &payload, &[]);
    println!("drop: {:?}", started.elapsed());
    let mut steps = 0;
    let mut longest = std::time::Duration::ZERO;
    let mut removed = 0;
    loop {
        let started = Instant::now();
        let step = store
            .maintain(store.applied_time(), 1_000)
            .expect("maintained");
        longest = longest.max(started.elapsed());
        steps += 1;
        removed += step.removed_keys;
        if !step.has_more {
            break;
        }
    }
    println!("{steps} steps removed {removed} keys one by one, longest {longest:?}");
    println!("after removal: {} MB", store.storage_bytes() / 1_000_000);
    println!(
        "old snapshot: {} of {documents}",
        count::<FjallEngine>(&old, DROPPED)
    );
    drop(old);
    store.compact().expect("compacted");
    println!("after compaction: {} MB", store.storage_bytes() / 1_000_000);
    println!("kept: {}", count::<FjallEngine>(&store.snapshot(), KEPT));
}
