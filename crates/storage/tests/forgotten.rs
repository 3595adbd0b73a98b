//! Ranges that are forgotten at once: whole tables go, what came back stays, and readers never see both.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use model::ids::{CollectionId, IndexId};
use model::time::ClusterTime;
use storage::engine::{GarbageRule, WriteBatch};
use storage::entry::{Description, Encoder, ForgottenIndex, Header, IndexAction, IndexChange};
use storage::{
    Before, Committed, Direction, Engine, EngineSnapshot, FjallEngine, FjallOptions, KeyRange,
    MemoryEngine, Result, Slice, Snapshot, Store, StoreOptions,
};

const COLLECTION: CollectionId = CollectionId(1);
const INDEX: IndexId = IndexId(1);
/// Keys of one byte `b'a'..=b'c'` and a number; the range in the middle is forgotten.
const RANGE: (&[u8], &[u8]) = (b"b", b"c");
const KEYS: u32 = 200;

fn options() -> StoreOptions {
    StoreOptions {
        history_window_seconds: 1,
        sweep_after_seconds: 1000,
        long_scan_pairs: 16,
        ..StoreOptions::default()
    }
}

/// So small that a range has tables of its own.
fn disk(directory: &tempfile::TempDir) -> Store<FjallEngine> {
    let small = FjallOptions {
        memtable_bytes: 16 << 10,
        level_zero_tables: 2,
        table_bytes: 16 << 10,
        ..FjallOptions::default()
    };
    let engine = FjallEngine::open(directory.path(), &small).expect("opens");
    Store::open(engine, options()).expect("opens")
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn key(part: u8, number: u32) -> Vec<u8> {
    [&[part][..], &number.to_be_bytes()].concat()
}

/// One entry a second later than the last.
fn apply<E: Engine>(store: &Store<E>, header: Header<'_>, write: impl FnOnce(&mut Encoder<'_>)) {
    let mut payload = Vec::new();
    write(&mut Encoder::with_header(&mut payload, header));
    // What is put was not there: that is what an evaluator says of an insert.
    let before = vec![Before::Absent; KEYS as usize];
    let entry = Committed {
        position: store.applied() + 1,
        time: ClusterTime::new(store.applied_time().seconds().max(1000) + 1, 1),
        payload: &payload,
        before: &before,
        after: &[],
    };
    store.apply(&[entry]).expect("a sound entry");
}

/// Documents of a part, all of the same generation, each with an index entry.
fn fill<E: Engine>(store: &Store<E>, part: u8, generation: u32) {
    apply(store, Header::default(), |encoder| {
        for number in 0..KEYS {
            let key = key(part, number);
            // Scattered, and other ones in each generation.
            let fields = (number ^ generation)
                .wrapping_mul(0x9E37_79B1)
                .to_be_bytes();
            let mut document = generation.to_be_bytes().to_vec();
            document.resize(300, part);
            let change = IndexChange {
                index: INDEX,
                fields: &fields,
                action: IndexAction::Add { type_bits: &[] },
            };
            let description = Description::Insert;
            encoder.put_record(COLLECTION, &key, &document, description, &[change]);
        }
    });
}

fn forget<E: Engine>(store: &Store<E>) {
    let header = Header {
        unseen_since: Some(ClusterTime::ZERO),
        ..Header::default()
    };
    let index = ForgottenIndex {
        index: INDEX,
        entries: u64::from(KEYS),
        bytes: 0,
    };
    apply(store, header, |encoder| {
        let counted = (u64::from(KEYS), 300 * u64::from(KEYS));
        encoder.forget_range(COLLECTION, RANGE, counted, &[index]);
    });
}

/// The generations of a part's records, and how many its index entries are; both must fit.
fn seen<S: EngineSnapshot>(snapshot: &Snapshot<S>, part: u8) -> Vec<u32> {
    let end = [part + 1];
    let range = KeyRange::new(
        Bound::Included(std::slice::from_ref(&part)),
        Bound::Excluded(&end),
    );
    let generation = |document: &[u8]| u32::from_be_bytes(document[..4].try_into().expect("four"));
    let records: Vec<_> = snapshot
        .scan_records(COLLECTION, range, Direction::Forward)
        .map(|record| record.expect("sound"))
        .collect();
    let entries: Vec<_> = snapshot
        .scan_index(INDEX, KeyRange::ALL, Direction::Forward)
        .map(|entry| entry.expect("sound"))
        .filter(|entry| entry.record_key()[0] == part)
        .collect();
    assert_eq!(entries.len(), records.len(), "entries and records");
    for entry in entries {
        let record = snapshot.get(COLLECTION, entry.record_key()).expect("sound");
        let record = record.expect("an entry leads to a record");
        let number = u32::from_be_bytes(entry.record_key()[1..].try_into().expect("four"));
        let fields = (number ^ generation(record.document())).wrapping_mul(0x9E37_79B1);
        assert_eq!(entry.fields(), fields.to_be_bytes(), "an entry of before");
    }
    let mut generations: Vec<u32> = { records.iter() }
        .map(|record| generation(record.document()))
        .collect();
    let count = generations.len();
    generations.dedup();
    assert!(
        count == 0 || (count == KEYS as usize && generations.len() == 1),
        "{generations:?}"
    );
    generations
}

fn check<E: Engine>(store: &Store<E>, middle: &[u32]) {
    let snapshot = store.snapshot();
    assert_eq!(seen(&snapshot, b'a'), [1]);
    assert_eq!(seen(&snapshot, b'b'), middle);
    assert_eq!(seen(&snapshot, b'c'), [1]);
    let get = |number| store.get(COLLECTION, &key(b'b', number)).expect("sound");
    let latest = |number| store.latest(COLLECTION, &key(b'b', number)).expect("sound");
    for number in 0..KEYS {
        let expected = middle
            .first()
            .map(|generation| generation.to_be_bytes().to_vec());
        let found = |record: Option<storage::Record>| record.map(|it| it.document()[..4].to_vec());
        assert_eq!(found(get(number)), expected);
        assert_eq!(found(latest(number)), expected);
    }
    let counter = store.collection_counter(COLLECTION);
    let expected = KEYS as usize * (2 + middle.len());
    assert_eq!(counter.items, expected as u64);
    assert_eq!(counter.bytes, 300 * expected as u64);
}

/// Records of the middle part that are stored, gone or not.
fn stored<E: Engine>(store: &Store<E>) -> usize {
    let [low, high] =
        [RANGE.0, RANGE.1].map(|key| storage::layout::record(COLLECTION, key).to_vec());
    let range = KeyRange::new(Bound::Included(&low), Bound::Excluded(&high));
    store
        .engine()
        .snapshot()
        .scan(range, Direction::Forward)
        .count()
}

fn loaded() -> (tempfile::TempDir, Store<FjallEngine>) {
    let directory = directory();
    let store = disk(&directory);
    for part in [b'a', b'b', b'c'] {
        fill(&store, part, 1);
        store.sync().expect("synced");
    }
    check(&store, &[1]);
    (directory, store)
}

fn maintain<E: Engine>(store: &Store<E>, later: u32) {
    let now = ClusterTime::new(store.applied_time().seconds() + later, 0);
    while store.maintain(now, 50).expect("maintained").has_more {}
}

/// ⚑ What comes back right behind the end of a sweep has no mark that would tell it from what was forgotten.
#[test]
fn what_comes_back_behind_a_sweep_outlives_compactions() {
    fn come_back<E: Engine>(store: &Store<E>) {
        for part in [b'a', b'b', b'c'] {
            fill(store, part, 1);
        }
        forget(store);
        maintain(store, 2000);
        assert_eq!(stored(store), 0, "the sweep is over");
        fill(store, b'b', 2);
        store.sync().expect("synced");
        store.compact().expect("compacted");
        check(store, &[2]);
    }
    let (directory, memory) = (directory(), MemoryEngine::default());
    come_back(&disk(&directory));
    come_back(&Store::open(memory, options()).expect("opens"));
}

#[test]
fn whole_tables_go_and_the_rest_later() {
    let (directory, store) = loaded();
    let mut generation = 1;
    loop {
        forget(&store);
        maintain(&store, 10);
        if stored(&store) < KEYS as usize / 2 {
            break;
        }
        // Not merged into tables of its own yet: more of it makes that necessary.
        assert!(generation < 10_000, "no table goes");
        generation += 1;
        fill(&store, b'b', generation);
        maintain(&store, 2000);
    }
    check(&store, &[]);
    assert!(
        store.forgotten_ranges(COLLECTION) > 0,
        "nothing is swept yet"
    );
    drop(store);
    let store = disk(&directory);
    check(&store, &[]);
    maintain(&store, 2000);
    check(&store, &[]);
    assert_eq!((stored(&store), store.forgotten_ranges(COLLECTION)), (0, 0));
    // Everything but what was stored of the middle part, and its mark.
    let keys = { store.engine().snapshot() }.scan(KeyRange::ALL, Direction::Forward);
    let kept = keys.filter(|pair| {
        let (key, _) = pair.as_ref().expect("sound");
        storage::layout::is_scanned(key)
    });
    assert_eq!(kept.count(), 4 * KEYS as usize);
    fill(&store, b'b', 1000);
    check(&store, &[1000]);
}

/// ⚑ Tables are not released once something new may lie in them, and a sweep leaves that alone: after a restart too.
#[test]
fn what_comes_back_stays() {
    for reopens in [false, true] {
        let (directory, mut store) = loaded();
        forget(&store);
        fill(&store, b'b', 2);
        store.sync().expect("synced");
        check(&store, &[2]);
        if reopens {
            drop(store);
            store = disk(&directory);
        }
        maintain(&store, 10);
        check(&store, &[2]);
        store.compact().expect("compacted");
        check(&store, &[2]);
        maintain(&store, 2000);
        assert_eq!(store.forgotten_ranges(COLLECTION), 0);
        check(&store, &[2]);
        // And goes once more.
        forget(&store);
        check(&store, &[]);
        fill(&store, b'b', 3);
        maintain(&store, 2000);
        check(&store, &[3]);
        drop(store);
        check(&disk(&directory), &[3]);
    }
}

/// ⚑ A batch that stores something in a range waits until tables were released there.
#[test]
fn a_range_that_comes_back_at_once_is_not_released_under_its_records() {
    let (_directory, store) = loaded();
    for generation in 2..12 {
        forget(&store);
        thread::scope(|scope| {
            scope.spawn(|| {
                fill(&store, b'b', generation);
                store.sync().expect("synced");
            });
            maintain(&store, 10);
        });
        maintain(&store, 10);
        check(&store, &[generation]);
        maintain(&store, 2000);
        check(&store, &[generation]);
    }
}

/// Says that it is over, however it ends.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// ⚑ Whatever a reader meets while ranges go and come back and are swept: one generation, whole, with its
/// own index entries, and never an older one than before.
fn generations<E: Engine>(store: Store<E>) {
    for part in [b'a', b'b', b'c'] {
        fill(&store, part, 1);
    }
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut latest = 0;
                while !is_done.load(Ordering::Acquire) {
                    let snapshot = store.snapshot();
                    if let Some(&generation) = seen(&snapshot, b'b').first() {
                        assert!(generation >= latest, "{generation} after {latest}");
                        latest = generation;
                    }
                    let one = store.get(COLLECTION, &key(b'b', latest % KEYS));
                    if let Some(one) = one.expect("sound") {
                        let found = one.document()[..4].try_into().expect("four");
                        assert!(u32::from_be_bytes(found) >= latest, "an older one");
                    }
                }
            });
        }
        scope.spawn(|| {
            let _done = Done(&is_done);
            for generation in 2..24 {
                forget(&store);
                if generation % 3 == 0 {
                    maintain(&store, 10);
                }
                fill(&store, b'b', generation);
                if generation % 4 == 0 {
                    store.compact().expect("compacted");
                }
                maintain(&store, 2000);
            }
        });
    });
    check(&store, &[23]);
}

#[test]
fn readers_see_one_generation_in_memory() {
    generations(Store::open(MemoryEngine::new(), options()).expect("opens"));
}

#[test]
fn readers_see_one_generation_on_disk() {
    generations(disk(&directory()));
}

/// A member gets the state of another one.
fn install<E: Engine, F: Engine>(
    from: &Store<E>,
    target: &Store<F>,
    directory: &tempfile::TempDir,
) {
    let mut copy = from.copy();
    let mut staged = storage::StagedState::create(directory.path(), b"copy").expect("created");
    while let Some(part) = copy.next_part(4096).expect("sound") {
        staged.add(&part).expect("added");
    }
    target.install(staged).expect("installed");
}

/// ⚑ A member goes by no mark of its own when it gets what another one has swept and stored anew.
#[test]
fn a_copy_outlives_what_its_receiver_forgot() {
    let [swept, target] =
        [0, 1].map(|_| Store::open(MemoryEngine::new(), options()).expect("opens"));
    for store in [&swept, &target] {
        for part in [b'a', b'b', b'c'] {
            fill(store, part, 1);
        }
        forget(store);
    }
    maintain(&target, 10);
    maintain(&swept, 2000);
    fill(&swept, b'b', 2);
    install(&swept, &target, &directory());
    target.compact().expect("compacted");
    check(&target, &[2]);
}

/// ⚑ A copy of the state has the marks, and what they cover.
#[test]
fn a_copy_shows_the_same() {
    let (directory, store) = loaded();
    forget(&store);
    fill(&store, b'b', 2);
    forget(&store);
    let target = Store::open(MemoryEngine::new(), options()).expect("opens");
    install(&store, &target, &directory);
    check(&target, &[]);
    fill(&target, b'b', 5);
    check(&target, &[5]);
    maintain(&target, 5000);
    assert_eq!(target.forgotten_ranges(COLLECTION), 0);
    check(&target, &[5]);
}

type Hook = Box<dyn FnOnce() + Send>;

/// What is done around the next snapshot.
#[derive(Clone, Default)]
struct Hooks {
    before: Arc<Mutex<Option<Hook>>>,
    after: Arc<Mutex<Option<Hook>>>,
}

fn set(hook: &Mutex<Option<Hook>>, act: impl FnOnce() + Send + 'static) {
    *hook.lock().expect("nothing fails") = Some(Box::new(act));
}

fn run(hook: &Mutex<Option<Hook>>) {
    let hook = hook.lock().expect("nothing fails").take();
    if let Some(hook) = hook {
        hook();
    }
}

/// Removes nothing by itself.
struct Hooked {
    engine: MemoryEngine,
    hooks: Hooks,
}

impl Engine for Hooked {
    type Snapshot = <MemoryEngine as Engine>::Snapshot;

    fn get(&self, key: &[u8]) -> Result<Option<Slice>> {
        self.engine.get(key)
    }

    fn snapshot(&self) -> Self::Snapshot {
        run(&self.hooks.before);
        let snapshot = self.engine.snapshot();
        run(&self.hooks.after);
        snapshot
    }

    fn write(&self, batch: WriteBatch) -> Result<()> {
        self.engine.write(batch)
    }

    fn sync(&self) -> Result<()> {
        self.engine.sync()
    }

    fn approximate_size_bytes(&self) -> u64 {
        self.engine.approximate_size_bytes()
    }

    fn set_garbage(&self, _rule: GarbageRule) {}

    fn collect_garbage(&self, _budget: usize) -> Result<()> {
        Ok(())
    }

    fn release_stretch(&self, _low: &[u8], _high: &[u8]) -> Result<()> {
        Ok(())
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }
}

fn hooked() -> (Hooks, Arc<Store<Hooked>>) {
    let hooks = Hooks::default();
    let engine = Hooked {
        engine: MemoryEngine::new(),
        hooks: hooks.clone(),
    };
    let store = Arc::new(Store::open(engine, options()).expect("opens"));
    for part in [b'a', b'b', b'c'] {
        fill(&*store, part, 1);
    }
    (hooks, store)
}

/// ⚑ What is stored between a sweep's look and its removal stays.
#[test]
fn a_sweep_looks_again_before_it_removes() {
    let (hooks, store) = hooked();
    forget(&*store);
    let refills = Arc::clone(&store);
    set(&hooks.after, move || fill(&*refills, b'b', 2));
    let now = ClusterTime::new(store.applied_time().seconds() + 2000, 0);
    while store.maintain(now, 50).expect("maintained").has_more {}
    let is_done = hooks.after.lock().expect("nothing fails").is_none();
    assert!(is_done, "it was swept");
    assert_eq!(store.forgotten_ranges(COLLECTION), 0);
    check(&*store, &[2]);
}

/// ⚑ A snapshot heeds marks that come right before it is taken, and those that go right after.
#[test]
fn marks_that_come_or_go_around_a_snapshot_are_heeded() {
    let (hooks, store) = hooked();
    let other = Arc::clone(&store);
    set(&hooks.before, move || {
        forget(&*other);
        fill(&*other, b'b', 2);
    });
    assert_eq!(seen(&store.snapshot(), b'b'), [2]);
    forget(&*store);
    let other = Arc::clone(&store);
    set(&hooks.after, move || maintain(&*other, 2000));
    let snapshot = store.snapshot();
    assert_eq!(store.forgotten_ranges(COLLECTION), 0);
    assert!(seen(&snapshot, b'b').is_empty());
}

/// ⚑ A mark that comes right after a snapshot was taken says nothing about it: the range may have been owned.
#[test]
fn marks_that_come_after_a_snapshot_are_not_heeded() {
    let (hooks, store) = hooked();
    for generation in 1..4 {
        let other = Arc::clone(&store);
        set(&hooks.after, move || {
            forget(&*other);
            fill(&*other, b'b', generation + 1);
        });
        assert_eq!(seen(&store.snapshot(), b'b'), [generation]);
        assert_eq!(seen(&store.snapshot(), b'b'), [generation + 1]);
    }
    let other = Arc::clone(&store);
    set(&hooks.after, move || forget(&*other));
    let found = store.get(COLLECTION, &key(b'b', 1)).expect("sound");
    assert!(found.is_some(), "it was there when the state was taken");
    assert_eq!(store.get(COLLECTION, &key(b'b', 1)).expect("sound"), None);
}

/// ⚑ What scans have left of the range goes with it; the rest stays, and so does what they leave while another range
/// is filled.
#[test]
fn what_is_kept_of_other_ranges_stays() {
    let store = Store::open(MemoryEngine::new(), options()).expect("opens");
    for part in *b"abc" {
        fill(&store, part, 1);
    }
    let kept = |part: u8| {
        let end = [part + 1];
        let part = [part];
        let range = KeyRange::new(Bound::Included(&part), Bound::Excluded(&end));
        let snapshot = store.snapshot();
        let mut records = snapshot.scan_records_once(COLLECTION, range);
        let mut kept = 0;
        while let Some(record) = records.next() {
            record.expect("sound");
            kept += u32::from(records.is_kept());
        }
        kept
    };
    let keep = |snapshot: &Snapshot<_>, part: u8| {
        let end = [part + 1];
        let part = [part];
        let range = KeyRange::new(Bound::Included(&part[..]), Bound::Excluded(&end[..]));
        let kept = snapshot.keep_in_memory(COLLECTION, range, || true);
        assert!(kept.expect("sound").is_none(), "nobody stopped it");
    };
    let snapshot = store.snapshot();
    for part in *b"abc" {
        keep(&snapshot, part);
    }
    drop(snapshot);
    assert_eq!([kept(b'a'), kept(b'b'), kept(b'c')], [KEYS, KEYS, KEYS]);
    let before = store.snapshot();
    forget(&store);
    assert_eq!([kept(b'a'), kept(b'b'), kept(b'c')], [KEYS, 0, KEYS]);
    // ⚑ Who has read it before must not leave it any more.
    keep(&before, b'b');
    assert_eq!(seen(&before, b'b'), [1]);
    assert_eq!(seen(&store.snapshot(), b'b'), [0; 0]);
    // A large batch somewhere else.
    let before = store.snapshot();
    fill(&store, b'b', 2);
    fill(&store, b'd', 1);
    keep(&before, b'b');
    assert_eq!(kept(b'b'), 0);
    assert_eq!(seen(&store.snapshot(), b'b'), [2]);
    let before = store.snapshot();
    fill(&store, b'e', 1);
    keep(&before, b'd');
    assert_eq!(
        kept(b'd'),
        KEYS,
        "left by a snapshot of before a batch elsewhere"
    );
}
