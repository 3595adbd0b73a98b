//! Readers beside the writer: what a thread has seen never goes back, whichever
//! way it reads, and a group of entries is seen whole.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use model::ids::CollectionId;
use model::time::ClusterTime;
use storage::entry::{Description, Encoder};
use storage::{
    Before, Committed, Direction, Engine, FjallEngine, FjallOptions, KeyRange, MemoryEngine,
    Record, Store, StoreOptions,
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
        encoder.put_record(
            COLLECTION,
            key,
            &round.to_be_bytes(),
            Description::Insert,
            &[],
        );
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
        let last = snapshot.last_time().expect("read");
        assert_eq!(last, time(both[0]), "not the time of what is shown");
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

/// What the record holds after a round of [`coming_and_going`].
fn after_round(round: u64) -> Option<u64> {
    (!round.is_multiple_of(3)).then_some(round)
}

fn time(round: u64) -> ClusterTime {
    ClusterTime::new(1, round as u32)
}

/// Inserts, replaces and removes one record, and tells the store what it knows, as an
/// evaluator does. What is inserted does not go into the cache, so that readers and
/// later rounds do all that can be done around it.
fn come_and_go<E: Engine>(store: &Store<E>, round: u64) {
    let version = |round: u64| {
        let document = after_round(round)?.to_be_bytes();
        Some(Record::draft(&document).committed_at(time(round)))
    };
    let before = match version(round - 1) {
        Some(record) => Before::Present(record),
        None => Before::Absent,
    };
    let after = version(round);
    let mut payload = Vec::new();
    let mut encoder = Encoder::new(&mut payload);
    match &after {
        Some(record) => encoder.put_record(
            COLLECTION,
            KEYS[0],
            record.document(),
            Description::Insert,
            &[],
        ),
        None => encoder.delete_record(COLLECTION, KEYS[0], b"", &[]),
    }
    let entry = Committed {
        position: round,
        time: time(round),
        payload: &payload,
        before: &[before],
        after: after.as_slice(),
    };
    store.apply(&[entry]).expect("applied");
    let latest = store.latest(COLLECTION, KEYS[0]).expect("read");
    assert_eq!(latest, after, "the writer sees what it wrote");
}

fn coming_and_going<E: Engine>(engine: E, rounds: u64) {
    let store = Store::open(engine, StoreOptions::default()).expect("opened");
    let begun = AtomicU64::new(0);
    let is_done = AtomicBool::new(false);
    let check = |applied: u64, got: Option<Record>| {
        let got = got.map(|record| number(Some(record)));
        let possible = applied..=begun.load(Ordering::Acquire);
        assert!(
            possible.clone().any(|round| after_round(round) == got),
            "{got:?} was read between rounds {possible:?}"
        );
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    let applied = store.applied();
                    check(applied, store.get(COLLECTION, KEYS[0]).expect("read"));
                    let applied = store.applied();
                    let snapshot = store.snapshot();
                    check(applied, snapshot.get(COLLECTION, KEYS[0]).expect("read"));
                }
            });
        }
        for round in 1..rounds {
            begun.store(round, Ordering::Release);
            come_and_go(&store, round);
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_record_that_comes_and_goes_is_never_stale_in_memory() {
    coming_and_going(MemoryEngine::new(), 6_000);
}

#[test]
fn a_record_that_comes_and_goes_is_never_stale_on_disk() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = FjallEngine::open(dir.path(), &FjallOptions::default()).expect("opened");
    coming_and_going(engine, 6_000);
}

/// Enough for several stretches.
const MANY: u32 = 3_000;

fn many_key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Puts the number of the round at two places far from each other, or takes both away.
fn change_two<E: Engine>(store: &Store<E>, round: u64) {
    let mut payload = Vec::new();
    let mut encoder = Encoder::new(&mut payload);
    let document = [&round.to_be_bytes()[..], &[0; 100]].concat();
    for key in [MANY / 5, MANY - MANY / 7].map(many_key) {
        match after_round(round) {
            Some(_) => encoder.put_record(COLLECTION, &key, &document, Description::Insert, &[]),
            None => encoder.delete_record(COLLECTION, &key, &[], &[]),
        }
    }
    let entry = Committed {
        position: round,
        time: time(round),
        payload: &payload,
        before: &[],
        after: &[],
    };
    store.apply(&[entry]).expect("applied");
}

/// What a scan finds: how many records, and the rounds at the two places.
fn scan_many<E: Engine>(store: &Store<E>) -> (u32, Vec<u64>) {
    let snapshot = store.snapshot();
    let mut found = 0;
    let mut rounds = Vec::new();
    for record in snapshot.scan_records(COLLECTION, KeyRange::ALL, Direction::Forward) {
        let record = record.expect("read");
        let round = record.document().first_chunk().expect("eight bytes");
        let round = u64::from_be_bytes(*round);
        found += 1;
        rounds.extend((round > 1).then_some(round));
    }
    (found, rounds)
}

/// Long scans leave stretches, which other scans walk over while a writer changes what
/// they say. A snapshot that is kept meanwhile must not see what came after it.
fn long_scans<E: Engine>(engine: E, rounds: u64) {
    let store = Store::open(engine, StoreOptions::default()).expect("opened");
    let mut payload = Vec::new();
    let mut encoder = Encoder::new(&mut payload);
    for number in 0..MANY {
        let document = [&1u64.to_be_bytes()[..], &[0; 100]].concat();
        encoder.put_record(
            COLLECTION,
            &many_key(number),
            &document,
            Description::Insert,
            &[],
        );
    }
    let entry = Committed {
        position: 1,
        time: time(1),
        payload: &payload,
        before: &[],
        after: &[],
    };
    store.apply(&[entry]).expect("applied");
    assert_eq!(scan_many(&store), (MANY, vec![]));
    assert!(store.stretch_bytes() > 0, "scans leave stretches");
    assert_eq!(scan_many(&store), (MANY, vec![]), "and walk over them");
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut seen = 0;
                while !is_done.load(Ordering::Relaxed) {
                    let applied = store.applied();
                    let (found, rounds) = scan_many(&store);
                    match rounds[..] {
                        [] if found == MANY => assert!(applied < 2, "a stale stretch"),
                        [] => assert_eq!(found, MANY - 2),
                        [first, second] => {
                            assert_eq!(first, second, "a group was seen in part");
                            assert!(first >= seen, "went back from {seen} to {first}");
                            assert!(first + 1 >= applied, "missed an applied entry");
                            assert_eq!(found, MANY);
                            seen = first;
                        }
                        _ => panic!("a group was seen in part: {rounds:?}"),
                    }
                }
            });
        }
        for round in 2..rounds {
            change_two(&store, round);
            if round % 8 == 0 {
                thread::yield_now();
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn long_scans_never_see_stretches_of_another_time_in_memory() {
    long_scans(MemoryEngine::new(), 3_000);
}

#[test]
fn long_scans_never_see_stretches_of_another_time_on_disk() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = FjallEngine::open(dir.path(), &FjallOptions::default()).expect("opened");
    long_scans(engine, 3_000);
}
