//! Scenarios of the store that are worth a name: dropping, forgetting, refusing.

use std::path::Path;

use model::ids::{CollectionId, IndexId};
use model::time::ClusterTime;
use storage::entry::{Description, Encoder, Header, IndexAction, IndexChange};
use storage::layout::MAX_USER_KEY_BYTES;
use storage::{
    Committed, Direction, Disposition, Engine, Error, FjallEngine, FjallOptions, KeyRange,
    MemoryEngine, Store, StoreOptions,
};

const COLLECTION: CollectionId = CollectionId(1);
const INDEX: IndexId = IndexId(1);

fn options(history_window_seconds: u32) -> StoreOptions {
    StoreOptions {
        history_window_seconds,
        ..StoreOptions::default()
    }
}

fn at(seconds: u32) -> ClusterTime {
    ClusterTime::new(seconds, 1)
}

/// Applies one entry at the next position.
fn apply<E: Engine>(store: &Store<E>, time: ClusterTime, write: impl FnOnce(&mut Encoder<'_>)) {
    try_apply(store, time, write).expect("a sound entry");
}

fn try_apply<E: Engine>(
    store: &Store<E>,
    time: ClusterTime,
    write: impl FnOnce(&mut Encoder<'_>),
) -> storage::Result<()> {
    let mut payload = Vec::new();
    write(&mut Encoder::new(&mut payload));
    store.apply(&[Committed {
        position: store.applied() + 1,
        time,
        payload: &payload,
        before: &[],
        after: &[],
    }])
}

fn put(key: &[u8], document: &[u8]) -> impl FnOnce(&mut Encoder<'_>) {
    move |encoder| {
        let change = IndexChange {
            index: INDEX,
            fields: document,
            action: IndexAction::Add { type_bits: &[] },
        };
        encoder.put_record(COLLECTION, key, document, Description::Insert, &[change]);
    }
}

fn raw_keys<E: Engine>(store: &Store<E>) -> usize {
    use storage::EngineSnapshot;
    store
        .engine()
        .snapshot()
        .scan(KeyRange::ALL, Direction::Forward)
        .count()
}

fn documents<E: Engine>(store: &Store<E>, time: Option<ClusterTime>) -> Vec<String> {
    let snapshot = store.snapshot();
    let text = |record: storage::Result<storage::StoredRecord>| {
        String::from_utf8_lossy(record.expect("sound").document()).into_owned()
    };
    match time {
        None => snapshot
            .scan_records(COLLECTION, KeyRange::ALL, Direction::Forward)
            .map(text)
            .collect(),
        Some(time) => snapshot
            .at(time)
            .expect("within the window")
            .scan_records(COLLECTION, KeyRange::ALL, Direction::Forward)
            .map(text)
            .collect(),
    }
}

fn open_disk(path: &Path) -> Store<FjallEngine> {
    let engine = FjallEngine::open(path, &FjallOptions::default()).expect("a free directory");
    Store::open(engine, options(10)).expect("sound")
}

/// Dropped data is unreachable at once and physically gone after bounded steps,
/// also when a restart comes between.
fn drop_and_remove<E: Engine>(open: impl Fn() -> Store<E>) {
    let store = open();
    for key in 0..50u8 {
        let time = ClusterTime::new(1, u32::from(key));
        apply(&store, time, put(&[key], b"a"));
    }
    for key in 0..50u8 {
        let time = ClusterTime::new(2, u32::from(key));
        apply(&store, time, put(&[key], b"b"));
    }
    // What is in memory only would not have to be removed: the engine leaves it out.
    store.engine().sync().expect("synced");
    let old = store.snapshot();
    apply(&store, at(3), |encoder| {
        encoder.drop_collection(COLLECTION);
        encoder.drop_index(INDEX);
    });
    assert_eq!(documents(&store, None), Vec::<String>::new());
    assert!(store.get(COLLECTION, &[1]).expect("sound").is_none());
    assert_eq!(store.collection_counter(COLLECTION).items, 0);
    let seen = old
        .scan_records(COLLECTION, KeyRange::ALL, Direction::Forward)
        .count();
    assert_eq!(seen, 50, "an open snapshot keeps what it has");
    let first = store.maintain(at(3), 30).expect("sound");
    assert_eq!((first.removed_keys, first.has_more), (30, true));
    drop(old);
    store.close().expect("synced");
    let store = open();
    assert_eq!(documents(&store, None), Vec::<String>::new());
    let mut removed = 30;
    for _ in 0..100 {
        let step = store.maintain(at(3), 30).expect("sound");
        assert!(step.removed_keys <= 30);
        removed += step.removed_keys;
        if !step.has_more {
            break;
        }
    }
    // 50 records, 50 versions in history, 100 index entries; some may have been
    // collected as garbage before their turn came, and the first 30 may have come back
    // when their stretch was released.
    assert!(removed <= 230);
    assert_eq!(raw_keys(&store), 1, "only the applied position is left");
    assert!(store.get(COLLECTION, &[1]).expect("sound").is_none());
}

#[test]
fn dropped_data_is_removed_in_steps_from_memory() {
    let engine = MemoryEngine::new();
    drop_and_remove(|| Store::open(engine.clone(), options(10)).expect("sound"));
}

#[test]
fn dropped_data_is_removed_in_steps_from_disk() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    drop_and_remove(|| open_disk(dir.path()));
}

fn history_window<E: Engine>(open: impl Fn() -> Store<E>) {
    let store = open();
    apply(&store, at(100), put(b"k", b"v100"));
    apply(&store, at(105), put(b"k", b"v105"));
    apply(&store, at(120), put(b"k", b"v120"));
    store.maintain(at(112), 100).expect("sound");
    assert_eq!(store.history_start(), ClusterTime::new(102, 0));
    assert_eq!(documents(&store, Some(at(103))), ["v100"]);
    assert_eq!(documents(&store, Some(at(110))), ["v105"]);

    let pin = store.pin_history(at(110)).expect("within the window");
    store.maintain(at(200), 100).expect("sound");
    assert_eq!(store.history_start(), at(110), "held by the pin");
    assert_eq!(documents(&store, Some(at(110))), ["v105"]);
    drop(pin);
    store.maintain(at(200), 100).expect("sound");
    assert_eq!(
        store.history_start(),
        at(120),
        "never past what was applied"
    );
    store.compact().expect("sound");
    // One record, three index entries, the applied position, history's start.
    assert_eq!(raw_keys(&store), 6);
    drop(store);

    let store = open();
    let asked = store.snapshot().at(at(110)).map(drop);
    assert!(matches!(asked, Err(Error::SnapshotTooOld { .. })));
    assert!(matches!(
        store.pin_history(at(110)).map(drop),
        Err(Error::SnapshotTooOld { .. })
    ));
    let asked = store.snapshot().at(at(121)).map(drop).expect_err("future");
    assert_eq!(asked.disposition(), Disposition::Refused);
    assert_eq!(documents(&store, Some(at(120))), ["v120"]);
}

#[test]
fn history_is_kept_for_its_window_in_memory() {
    let engine = MemoryEngine::new();
    history_window(|| Store::open(engine.clone(), options(10)).expect("sound"));
}

#[test]
fn history_is_kept_for_its_window_on_disk() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    history_window(|| open_disk(dir.path()));
}

/// An entry that forgets a record which nobody has read since a time.
fn forget<E: Engine>(store: &Store<E>, time: ClusterTime, key: &[u8], since: ClusterTime) {
    let document = store.get(COLLECTION, key).expect("sound");
    let document = document.expect("is there").document().to_vec();
    let mut payload = Vec::new();
    let header = Header {
        unseen_since: Some(since),
        ..Header::default()
    };
    let removed = IndexChange {
        index: INDEX,
        fields: &document,
        action: IndexAction::Remove,
    };
    let length = document.len() as u64;
    Encoder::with_header(&mut payload, header).forget_record(COLLECTION, key, length, &[removed]);
    let entry = Committed {
        position: store.applied() + 1,
        time,
        payload: &payload,
        before: &[],
        after: &[],
    };
    store.apply(&[entry]).expect("a sound entry");
}

/// ⚑ What is forgotten goes into history on members where a read could still ask for it, and
/// nowhere else.
fn forgotten_records<E: Engine>(open: impl Fn() -> Store<E>) {
    let store = open();
    for key in [b"a", b"b", b"c"] {
        let time = ClusterTime::new(100, u32::from(key[0]));
        apply(&store, time, put(key, &[b'v', key[0]]));
    }
    apply(&store, at(120), |encoder| encoder.noop());
    store.maintain(at(120), 100).expect("sound");
    assert_eq!(store.history_start(), ClusterTime::new(110, 0));
    let history = || raw_keys(&store);
    let before = history();
    // Read up to a time that can still be asked for.
    forget(&store, at(121), b"a", at(115));
    assert_eq!(
        history(),
        before - 1,
        "an index entry less; the record is in history"
    );
    assert_eq!(documents(&store, Some(at(114))), ["va", "vb", "vc"]);
    // At the start of history and before nobody asks.
    forget(&store, at(122), b"b", ClusterTime::new(110, 0));
    assert_eq!(history(), before - 3);
    assert_eq!(documents(&store, None), ["vc"]);
    assert!(store.get(COLLECTION, b"b").expect("sound").is_none());
    let counted = store.collection_counter(COLLECTION);
    assert_eq!((counted.items, counted.bytes), (1, 2));
    assert_eq!(store.index_counter(INDEX).items, 1);
    // The key is free for another.
    apply(&store, at(123), put(b"b", b"new"));
    assert_eq!(documents(&store, None), ["new", "vc"]);
    assert_eq!(documents(&store, Some(at(122))), ["vc"]);
    store.close().expect("synced");
    let store = open();
    assert_eq!(documents(&store, None), ["new", "vc"]);
    assert_eq!(store.collection_counter(COLLECTION).items, 2);
}

#[test]
fn forgotten_records_in_memory() {
    let engine = MemoryEngine::new();
    forgotten_records(|| Store::open(engine.clone(), options(10)).expect("sound"));
}

#[test]
fn forgotten_records_on_disk() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    forgotten_records(|| open_disk(dir.path()));
}

/// Where nothing is written any more, history begins at the last entry in the end.
#[test]
fn history_ends_where_nothing_is_written() {
    let store = Store::open(MemoryEngine::new(), options(160)).expect("sound");
    apply(&store, at(1000), put(b"a", b"1"));
    store.maintain(at(1160), 100).expect("sound");
    assert_eq!(store.history_start(), ClusterTime::new(1000, 0));
    apply(&store, at(1005), put(b"a", b"2"));
    for (now, start) in [
        (at(1166), ClusterTime::new(1000, 0)),
        (at(1174), ClusterTime::new(1000, 0)),
        (at(1175), at(1005)),
        (at(9999), at(1005)),
    ] {
        store.maintain(now, 100).expect("sound");
        assert_eq!(store.history_start(), start, "at {now:?}");
    }
}

/// ⚑ A batch without history is never found without the start of history that allows it.
#[test]
fn the_start_of_history_is_there_before_what_relies_on_it() {
    let engine = MemoryEngine::with_power_cuts();
    let store = Store::open(engine.clone(), options(10)).expect("sound");
    apply(&store, at(100), put(b"a", b"va"));
    apply(&store, at(120), |encoder| encoder.noop());
    store.set_history_window(0);
    store.maintain(at(120), 100).expect("sound");
    assert_eq!(store.history_start(), ClusterTime::new(120, 0));
    forget(&store, at(121), b"a", at(110));
    store.sync().expect("synced");
    let after = Store::open(engine.power_cut(), options(10)).expect("sound");
    assert_eq!(after.applied(), 3);
    assert!(after.history_start() >= at(110));
}

#[test]
fn forgetting_is_never_ahead_of_what_a_power_cut_keeps() {
    let engine = MemoryEngine::with_power_cuts();
    let store = Store::open(engine.clone(), options(10)).expect("sound");
    apply(&store, at(100), put(b"k", b"v100"));
    apply(&store, at(105), put(b"k", b"v105"));
    apply(&store, at(200), |encoder| encoder.noop());
    store.maintain(at(200), 100).expect("sound");
    apply(&store, at(201), |encoder| {
        encoder.drop_collection(COLLECTION)
    });
    // Told about the drop only after a sync: the cut keeps both or neither.
    store.maintain(at(201), 1).expect("sound");
    let after = Store::open(engine.power_cut(), options(10)).expect("sound");
    assert_eq!(after.applied(), 4);
    assert_eq!(documents(&after, None), Vec::<String>::new());
    assert!(after.history_start() >= ClusterTime::new(190, 0));
}

#[test]
fn directory_in_use_or_of_another_format_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let open = || FjallEngine::open(dir.path(), &FjallOptions::default()).map(drop);
    let store = open_disk(dir.path());
    let snapshot = store.snapshot();
    assert!(matches!(open(), Err(Error::InUse { .. })));
    drop(store);
    assert!(
        matches!(open(), Err(Error::InUse { .. })),
        "still being read"
    );
    drop(snapshot);
    open().expect("free again");
    std::fs::write(dir.path().join("FORMAT"), "something else").expect("writable");
    let error = open().expect_err("another format");
    assert_eq!(error.disposition(), Disposition::CannotOpen);
}

#[test]
fn bad_entries_change_nothing() {
    let store = Store::open(MemoryEngine::new(), options(10)).expect("sound");
    apply(&store, at(5), put(b"k", b"v"));
    let long = vec![1; MAX_USER_KEY_BYTES + 1];
    let outcomes = [
        try_apply(&store, at(6), |encoder| {
            encoder.put_record(COLLECTION, b"other", b"x", Description::Insert, &[]);
            encoder.put_record(COLLECTION, &long, b"x", Description::Insert, &[]);
        }),
        try_apply(&store, at(6), |encoder| {
            let change = IndexChange {
                index: INDEX,
                fields: &long,
                action: IndexAction::Remove,
            };
            encoder.delete_record(COLLECTION, b"k", b"", &[change]);
        }),
        try_apply(&store, at(4), |encoder| encoder.noop()),
        store.apply(&[
            Committed {
                position: 2,
                time: at(6),
                payload: &[2, 0, 8],
                before: &[],
                after: &[],
            },
            Committed {
                position: 3,
                time: at(7),
                payload: &[2, 0, 99],
                before: &[],
                after: &[],
            },
        ]),
    ];
    let text: Vec<String> = outcomes
        .iter()
        .map(|outcome| outcome.as_ref().expect_err("refused").to_string())
        .collect();
    assert_eq!(
        text,
        [
            "a stored key of 65522 bytes is over the limit of 65521",
            "a stored key of 65523 bytes is over the limit of 65521",
            "log entry at position 2 has time Timestamp(4, 1), not after Timestamp(5, 1)",
            "damaged log entry at position 3: unknown operation",
        ]
    );
    assert_eq!(store.applied(), 1);
    assert_eq!(documents(&store, None), ["v"]);
    assert_eq!(store.collection_counter(COLLECTION).items, 1);
}

#[test]
fn longest_keys_fit_on_disk() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open_disk(dir.path());
    let long = vec![1; MAX_USER_KEY_BYTES];
    for seconds in [1, 2] {
        let time = ClusterTime::new(seconds, u32::MAX);
        apply(&store, time, |encoder| {
            encoder.put_record(
                CollectionId(u32::MAX),
                &long,
                b"x",
                Description::Insert,
                &[],
            );
        });
    }
    let found = store.get(CollectionId(u32::MAX), &long).expect("sound");
    assert_eq!(found.expect("stored").document(), b"x");
}

#[test]
fn counters_of_many_collections_survive_restarts() {
    let engine = MemoryEngine::new();
    let open = || Store::open(engine.clone(), options(10)).expect("sound");
    let mut store = open();
    for round in 0..3u8 {
        for collection in 0..40 {
            let time = ClusterTime::new(u32::from(round), collection + 1);
            apply(&store, time, |encoder| {
                encoder.put_record(
                    CollectionId(collection),
                    &[round],
                    b"abc",
                    Description::Insert,
                    &[],
                );
            });
            if collection % 7 == 0 {
                store = open();
            }
        }
    }
    for collection in 0..40 {
        let counter = store.collection_counter(CollectionId(collection));
        assert_eq!((counter.items, counter.bytes), (3, 9));
    }
}
