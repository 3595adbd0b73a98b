//! Short scans and scans through an index leave what they read in memory. Whoever walks
//! over that beside a writer sees each batch whole or not at all, never goes back, and
//! misses nothing that was applied before.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use model::ids::{CollectionId, IndexId};
use model::time::ClusterTime;
use storage::entry::{Description, Encoder, IndexAction, IndexChange};
use storage::store::Verdict;
use storage::{
    Committed, Direction, Engine, FjallEngine, FjallOptions, KeyRange, MemoryEngine, ScanMemory,
    Store, StoreOptions,
};

const COLLECTION: CollectionId = CollectionId(1);
const INDEX: IndexId = IndexId(2);
const RECORDS: u16 = 400;
/// Two records near each other, which the writer changes together.
const CHANGED: [u16; 2] = [200, 210];
const ROUNDS: u64 = 4_000;

fn key(number: u16) -> [u8; 2] {
    number.to_be_bytes()
}

fn document(round: u64) -> Vec<u8> {
    [&round.to_be_bytes()[..], &[0; 300]].concat()
}

fn round_of(document: &[u8]) -> u64 {
    u64::from_be_bytes(*document.first_chunk().expect("eight bytes"))
}

fn apply<E: Engine>(store: &Store<E>, round: u64, write: impl FnOnce(&mut Encoder<'_>)) {
    let mut payload = Vec::new();
    write(&mut Encoder::new(&mut payload));
    let entry = Committed {
        position: round,
        time: ClusterTime::new(1, round as u32),
        payload: &payload,
        before: &[],
        after: &[],
    };
    store.apply(&[entry]).expect("applied");
}

/// All records with an index entry each; the fields go the other way.
fn fill<E: Engine>(store: &Store<E>) {
    apply(store, 1, |encoder| {
        for number in 0..RECORDS {
            let change = IndexChange {
                index: INDEX,
                fields: &key(RECORDS - number),
                action: IndexAction::Add { type_bits: &[] },
            };
            let description = Description::Insert;
            encoder.put_record(
                COLLECTION,
                &key(number),
                &document(1),
                description,
                &[change],
            );
        }
    });
}

/// Changes two documents, but no index entry.
fn change<E: Engine>(store: &Store<E>, round: u64) {
    apply(store, round, |encoder| {
        for number in CHANGED {
            let description = Description::Insert;
            encoder.put_record(COLLECTION, &key(number), &document(round), description, &[]);
        }
    });
}

/// The rounds of the changed documents, if a scan of a few dozen records meets both.
fn short_scan<E: Engine>(store: &Store<E>, from: u16) -> Option<(u64, u64)> {
    let low = key(from);
    let range = KeyRange::new(Bound::Included(&low[..]), Bound::Unbounded);
    let snapshot = store.snapshot();
    let scan = snapshot.scan_records(COLLECTION, range, Direction::Forward);
    let rounds: Vec<u64> = scan
        .take(40)
        .map(|record| record.expect("read"))
        .filter(|record| CHANGED.map(key).iter().any(|key| record.key() == key))
        .map(|record| round_of(record.document()))
        .collect();
    <[u64; 2]>::try_from(rounds).ok().map(|[a, b]| (a, b))
}

/// The same through the index, of all documents.
fn scan_through_index<E: Engine>(store: &Store<E>) -> (u64, u64) {
    let snapshot = store.snapshot();
    let mut scan = snapshot.scan_index(INDEX, KeyRange::ALL, Direction::Forward);
    let mut rounds = Vec::new();
    let mut seen = 0;
    loop {
        let found = scan.find_record(&snapshot, COLLECTION, |document| {
            seen += 1;
            match round_of(document) {
                1 => Verdict::Pass,
                _ => Verdict::Take,
            }
        });
        match found.expect("read") {
            Some((_, entry, record)) => {
                let number = u16::from_be_bytes(*entry.record_key().first_chunk().expect("two"));
                assert_eq!(
                    entry.fields(),
                    key(RECORDS - number),
                    "the entry of the record"
                );
                rounds.push(round_of(record.document()));
            }
            None => break,
        }
    }
    assert_eq!(seen, RECORDS);
    match rounds[..] {
        [] => (1, 1),
        [second, first] => (first, second),
        _ => panic!("two documents change: {rounds:?}"),
    }
}

fn beside_a_writer<E: Engine>(engine: E) {
    let store = Store::open(engine, StoreOptions::default()).expect("opened");
    fill(&store);
    let empty = store.stretch_bytes();
    for from in (0..RECORDS).step_by(20) {
        short_scan(&store, from);
    }
    assert!(store.stretch_bytes() > empty, "short scans leave stretches");
    for _ in 0..4 {
        scan_through_index(&store);
    }
    let documents = u64::from(RECORDS) * 300;
    assert!(store.stretch_bytes() > 2 * documents, "and so do lookups");
    let is_done = AtomicBool::new(false);
    let store = &store;
    thread::scope(|scope| {
        for reader in 0..2 {
            let is_done = &is_done;
            scope.spawn(move || {
                let (mut seen, mut turn) = (1, 0u16);
                while !is_done.load(Ordering::Relaxed) {
                    turn = turn.wrapping_add(1);
                    let applied = store.applied();
                    let found = match (turn + reader) % 4 {
                        0 => Some(scan_through_index(store)),
                        _ => short_scan(store, 175 + turn % 30),
                    };
                    let Some((first, second)) = found else {
                        continue;
                    };
                    assert_eq!(first, second, "a batch was seen in part");
                    assert!(first >= seen, "went back from {seen} to {first}");
                    assert!(first >= applied, "missed an applied entry");
                    seen = first;
                }
            });
        }
        for round in 2..ROUNDS {
            change(store, round);
            // Now and then there is time for all kinds of things to be kept.
            if round % 64 == 0 {
                for _ in 0..8 {
                    assert_eq!(scan_through_index(store), (round, round));
                    assert_eq!(short_scan(store, 190), Some((round, round)));
                }
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn nothing_stale_is_seen_in_memory() {
    beside_a_writer(MemoryEngine::new());
}

#[test]
fn nothing_stale_is_seen_on_disk() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = FjallEngine::open(dir.path(), &FjallOptions::default()).expect("opened");
    beside_a_writer(engine);
}

/// A large working set takes turns; it never takes more than it may.
#[test]
fn what_is_kept_is_bounded() {
    let options = StoreOptions {
        // Nothing is lent.
        record_cache_bytes: 0,
        scan_memory: ScanMemory::of(100_000),
        ..StoreOptions::default()
    };
    let store = Store::open(MemoryEngine::new(), options).expect("opened");
    fill(&store);
    for turn in 0..20 {
        for from in (0..RECORDS).step_by(20) {
            short_scan(&store, from);
        }
        scan_through_index(&store);
        let bytes = store.stretch_bytes();
        assert!(bytes > 0 && bytes <= 100_000, "{bytes} in turn {turn}");
    }
}

fn store_within(memory: &ScanMemory, record_cache_bytes: u64) -> Store<MemoryEngine> {
    let options = StoreOptions {
        record_cache_bytes,
        scan_memory: memory.clone(),
        ..StoreOptions::default()
    };
    let store = Store::open(MemoryEngine::new(), options).expect("opened");
    fill(&store);
    store
}

fn scan_all<E: Engine>(store: &Store<E>) -> u64 {
    for from in (0..RECORDS).step_by(20) {
        short_scan(store, from);
    }
    store.stretch_bytes()
}

/// What one store does not use another one has, and as much of it as it has itself it gives back.
#[test]
fn stores_share_what_scans_keep() {
    let memory = ScanMemory::of(100_000);
    let (one, other) = (store_within(&memory, 0), store_within(&memory, 0));
    let alone = scan_all(&one);
    assert!((90_000..=100_000).contains(&alone), "{alone}");
    for _ in 0..20 {
        scan_all(&other);
        let both = [one.stretch_bytes(), other.stretch_bytes()];
        assert!(both.iter().sum::<u64>() <= 100_000, "{both:?}");
    }
    assert!(other.stretch_bytes() > 30_000, "{}", other.stretch_bytes());
    assert!(one.stretch_bytes() > 30_000, "{}", one.stretch_bytes());
    drop(one);
    let alone = scan_all(&other);
    assert!((90_000..=100_000).contains(&alone), "{alone}");
}

/// Records that are read one by one get back what was lent to scans.
#[test]
fn scans_borrow_from_records() {
    let memory = ScanMemory::of(20_000);
    let store = store_within(&memory, 4 << 20);
    let scanned = scan_all(&store);
    assert!(scanned > 100_000, "all of it, not {scanned}");
    for round in 2..10 {
        apply(&store, round, |encoder| {
            for number in 1_000..4_000u16 {
                let number = number + round as u16 * 3_000;
                let description = Description::Insert;
                encoder.put_record(COLLECTION, &key(number), &document(round), description, &[]);
            }
        });
        for number in 1_000..4_000u16 {
            let number = number + round as u16 * 3_000;
            store.get(COLLECTION, &key(number)).expect("read");
        }
    }
    let (records, scanned) = (store.record_cache_bytes(), store.stretch_bytes());
    assert!(records > 3 << 20, "{records}");
    assert!(
        scanned <= 20_000 + (4 << 20) - records,
        "{scanned} beside {records}"
    );
}
