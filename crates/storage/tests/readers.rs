//! Readers beside the writer: what a thread has seen never goes back, whichever
//! way it reads, and a group of entries is seen whole.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use model::ids::CollectionId;
use model::time::ClusterTime;
use storage::entry::Encoder;
use storage::{
    Committed, Engine, FjallEngine, FjallOptions, MemoryEngine, Record, Store, StoreOptions,
};

const COLLECTION: CollectionId = CollectionId(1);
const KEYS: [&[u8]; 2] = [b"a", b"b"];

fn number(record: Option<Record>) -> u64 {
    let record = record.expect("never deleted");
    let bytes = record.document().try_into().expect("eight bytes");
    u64::from_be_bytes(bytes)
}

fn write<E: Engine>(store: &Store<E>, round: u64) {
    let mut payload = Vec::new();
    let mut encoder = Encoder::new(&mut payload);
    for key in KEYS {
        encoder.put_record(COLLECTION, key, &round.to_be_bytes(), &[]);
    }
    let entry = Committed {
        position: round,
        time: ClusterTime::new(1, round as u32),
        payload: &payload,
        before: &[],
        after: &[],
    };
    store.apply(&[entry]).expect("applied");
}

/// Alternates between the cache and snapshots.
fn read<E: Engine>(store: &Store<E>, is_done: &AtomicBool) {
    let mut seen = [0; 2];
    while !is_done.load(Ordering::Relaxed) {
        for (key, seen) in KEYS.iter().zip(&mut seen) {
            let applied = store.applied();
            let got = number(store.get(COLLECTION, key).expect("read"));
            assert!(got >= *seen, "get went back from {seen} to {got}");
            assert!(got >= applied, "get missed an applied entry");
            *seen = got;
        }
        let snapshot = store.snapshot();
        let both = KEYS.map(|key| number(snapshot.get(COLLECTION, key).expect("read")));
        assert_eq!(both[0], both[1], "a group was seen in part");
        for (both, seen) in both.iter().zip(&mut seen) {
            assert!(both >= seen, "snapshot is behind {seen}: {both}");
            *seen = *both;
        }
    }
}

fn check<E: Engine>(engine: E, rounds: u64) {
    let store = Store::open(engine, StoreOptions::default()).expect("opened");
    write(&store, 1);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| read(&store, &is_done));
        }
        for round in 2..rounds {
            write(&store, round);
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn readers_never_go_back_in_memory() {
    check(MemoryEngine::new(), 5_000);
}

#[test]
fn readers_never_go_back_on_disk() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = FjallEngine::open(dir.path(), &FjallOptions::default()).expect("opened");
    check(engine, 5_000);
}
