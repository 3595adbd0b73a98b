//! What removing a range costs the engine, in CPU of the whole process per document: records of
//! 1 kB in the order of their keys, each with two index entries that lie anywhere, beside as many
//! of the same collection that stay. Run with
//! `cargo run --release -p storage --example forget -- 200000 delete|forget|range|sweep|nothing|back|back-deleted`.
//!
//! `delete` copies each version into history, `forget` does not and looks nothing up, `range`
//! forgets all at once and releases whole tables, `sweep` also removes what is left, key by key.
//! `back` forgets all at once while it can still be read, and stores it anew; `back-deleted` deletes it first.
//! Reading what is to be removed counts; what flushes and merges take afterwards counts too.

use std::time::{Duration, Instant};

use model::ids::{CollectionId, IndexId};
use model::time::ClusterTime;
use storage::entry::{Description, Encoder, ForgottenIndex, Header, IndexAction, IndexChange};
use storage::{Before, Committed, FjallEngine, FjallOptions, KeyRange, Store, StoreOptions};

const DOCUMENT_BYTES: usize = 1000;
const ENTRY_DOCUMENTS: usize = 1000;
const COLLECTION: u32 = 5;

type Disk = Store<FjallEngine>;

/// User and system time of this process in seconds, where Linux tells it.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may hold spaces: fields are counted behind it.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}

fn index(collection: u32, number: u32) -> IndexId {
    IndexId(collection * 10 + number)
}

/// The fields of a document in an index: scattered.
fn fields(document: &[u8], number: u32) -> [u8; 9] {
    let mut state = u64::from(number) + 1;
    for byte in &document[..16] {
        state = (state ^ u64::from(*byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    let mut fields = [0x28; 9];
    fields[1..].copy_from_slice(&state.to_be_bytes());
    fields
}

fn document(number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(6_364_136_223_846_793_005) | 1;
    let mut document = Vec::with_capacity(DOCUMENT_BYTES + 8);
    while document.len() < DOCUMENT_BYTES {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(7);
        document.extend(format!("{:08x}", state >> 32).into_bytes());
    }
    document.truncate(DOCUMENT_BYTES);
    document
}

fn apply(store: &Disk, payload: &[u8], before: &[Before]) {
    let time = store.applied_time().next();
    let entry = Committed {
        position: store.applied() + 1,
        time: time.max(ClusterTime::new(1000, 1)),
        payload,
        before,
        after: &[],
    };
    store.apply(&[entry]).expect("applied");
}

fn load(store: &Disk, collection: u32, numbers: std::ops::Range<u64>) {
    let numbers: Vec<u64> = numbers.collect();
    for numbers in numbers.chunks(ENTRY_DOCUMENTS) {
        let mut payload = Vec::new();
        let mut encoder = Encoder::new(&mut payload);
        for number in numbers {
            let document = document(*number);
            let keys = [0, 1].map(|index| fields(&document, index));
            let changes = [0, 1].map(|number| IndexChange {
                index: index(collection, number),
                fields: &keys[number as usize],
                action: IndexAction::Add { type_bits: &[] },
            });
            let (id, key) = (CollectionId(collection), number.to_be_bytes());
            encoder.put_record(id, &key, &document, Description::Insert, &changes);
        }
        apply(store, &payload, &vec![Before::Absent; numbers.len()]);
    }
}

fn remove(store: &Disk, documents: u64, forgets: bool) {
    let id = CollectionId(COLLECTION);
    let first = documents.to_be_bytes();
    let mut after: Option<Vec<u8>> = None;
    loop {
        let header = Header {
            unseen_since: Some(ClusterTime::ZERO),
            ..Header::default()
        };
        let (mut payload, mut before, mut last) = (Vec::new(), Vec::new(), None);
        let mut encoder = Encoder::with_header(&mut payload, header);
        let low = match &after {
            Some(after) => std::ops::Bound::Excluded(&after[..]),
            None => std::ops::Bound::Included(&first[..]),
        };
        let range = KeyRange::new(low, std::ops::Bound::Unbounded);
        let snapshot = store.snapshot();
        for record in snapshot.scan_records_once(id, range).take(ENTRY_DOCUMENTS) {
            let record = record.expect("sound");
            let keys = [0, 1].map(|index| fields(record.document(), index));
            let changes = [0, 1].map(|number| IndexChange {
                index: index(COLLECTION, number),
                fields: &keys[number as usize],
                action: IndexAction::Remove,
            });
            if forgets {
                let bytes = record.document().len() as u64;
                encoder.forget_record(id, record.key(), bytes, &changes);
            } else {
                encoder.delete_record(id, record.key(), &[], &changes);
                let latest = store.latest(id, record.key()).expect("sound");
                before.push(Before::Present(latest.expect("is there")));
            }
            last = Some(record.key().to_vec());
        }
        drop(snapshot);
        let Some(last) = last else { return };
        apply(store, &payload, &before);
        after = Some(last);
    }
}

/// All at once. Nobody sees it since a time.
fn forget_range(store: &Disk, documents: u64, since: ClusterTime) {
    let id = CollectionId(COLLECTION);
    let (low, high) = (documents.to_be_bytes(), [0xFF; 9]);
    let range = KeyRange::new(
        std::ops::Bound::Included(&low[..]),
        std::ops::Bound::Excluded(&high[..]),
    );
    let (mut counted, mut bytes) = (0, 0);
    for record in store.snapshot().scan_records_once(id, range) {
        counted += 1;
        bytes += record.expect("sound").document().len() as u64;
    }
    println!("counted by {:.2} s of CPU", cpu_seconds());
    let header = Header {
        unseen_since: Some(since),
        ..Header::default()
    };
    let mut payload = Vec::new();
    let mut encoder = Encoder::with_header(&mut payload, header);
    let indexes = [0, 1].map(|number| ForgottenIndex {
        index: index(COLLECTION, number),
        entries: counted,
        bytes: 0,
    });
    encoder.forget_range(id, (&low, &high), (counted, bytes), &indexes);
    apply(store, &payload, &[]);
    println!("applied by {:.2} s of CPU", cpu_seconds());
}

fn maintain(store: &Disk, sweeps: bool) {
    let now = ClusterTime::new(if sweeps { 100_000 } else { 1001 }, 0);
    while store.maintain(now, 20_000).expect("maintained").has_more {}
}

/// Waits until the engine has nothing to do any more.
fn settle() {
    let mut before = cpu_seconds();
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let now = cpu_seconds();
        if now - before < 0.02 {
            return;
        }
        before = now;
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let documents = arguments.next().and_then(|text| text.parse().ok());
    let documents: u64 = documents.unwrap_or(200_000);
    let how = arguments.next().unwrap_or_else(|| "forget".to_owned());
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = FjallEngine::open(dir.path(), &FjallOptions::default()).expect("opened");
    let store = Store::open(engine, StoreOptions::default()).expect("opened");
    load(&store, COLLECTION, 0..documents * 2);
    store.sync().expect("synced");
    settle();
    let loaded = store.storage_bytes() / 1_000_000;
    let (cpu, started) = (cpu_seconds(), Instant::now());
    println!("loaded by {cpu:.2} s of CPU");
    match &how[..] {
        // What the next flush brings about, whatever is in it.
        "nothing" => {
            let mut payload = Vec::new();
            Encoder::new(&mut payload).noop();
            apply(&store, &payload, &[]);
            store.sync().expect("synced");
        }
        how @ ("range" | "sweep") => {
            forget_range(&store, documents, ClusterTime::ZERO);
            maintain(&store, how == "sweep");
        }
        how @ ("back" | "back-deleted") => {
            match how == "back" {
                true => forget_range(&store, documents, store.applied_time()),
                false => remove(&store, documents, false),
            }
            println!("gone after {:.1?}", started.elapsed());
            load(&store, COLLECTION, documents..documents * 2);
        }
        how => remove(&store, documents, how == "forget"),
    }
    let each = |seconds: f64| seconds * 1e6 / documents as f64;
    let (at_once, took) = (each(cpu_seconds() - cpu), started.elapsed());
    settle();
    println!(
        "{how}: {documents} documents in {took:.1?}, {at_once:.2} µs of CPU each, {:.2} until it was quiet; {loaded} MB, then {}",
        each(cpu_seconds() - cpu),
        store.storage_bytes() / 1_000_000
    );
}
