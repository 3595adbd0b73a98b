//! The payload codec: every operation round trips, no bytes make it panic.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Owned {
    Put(u32, Vec<u8>, Vec<u8>, Described, Vec<Change>),
    Delete(u32, Vec<u8>, Vec<u8>, Vec<Change>),
    Index(u32, Vec<u8>, Vec<Change>),
    PutMeta(Vec<u8>, Vec<u8>),
    DeleteMeta(Vec<u8>),
    DropCollection(u32),
    DropIndex(u32),
    Noop,
    Forget(u32, Vec<u8>, u64, Vec<Change>),
    ForgetRange(u32, [Vec<u8>; 2], (u64, u64), Vec<(u32, u64, u64)>),
}

#[derive(Clone, Debug)]
enum Described {
    Insert,
    Replace,
    Update(Vec<u8>),
}

impl Described {
    fn borrowed(&self) -> Description<'_> {
        match self {
            Described::Insert => Description::Insert,
            Described::Replace => Description::Replace,
            Described::Update(difference) => Description::Update { difference },
        }
    }
}

type Change = (u32, Vec<u8>, Option<Vec<u8>>);

fn borrowed(changes: &[Change]) -> Vec<IndexChange<'_>> {
    changes
        .iter()
        .map(|(index, fields, type_bits)| IndexChange {
            index: IndexId(*index),
            fields,
            action: match type_bits {
                Some(type_bits) => IndexAction::Add { type_bits },
                None => IndexAction::Remove,
            },
        })
        .collect()
}

fn encode(operations: &[Owned], header: Header<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = Encoder::with_header(&mut out, header);
    for operation in operations {
        match operation {
            Owned::Put(id, key, document, described, changes) => {
                let (id, changes) = (CollectionId(*id), borrowed(changes));
                encoder.put_record(id, key, document, described.borrowed(), &changes);
            }
            Owned::Delete(id, key, document_key, changes) => {
                encoder.delete_record(CollectionId(*id), key, document_key, &borrowed(changes));
            }
            Owned::Index(id, key, changes) => {
                encoder.index_entries(CollectionId(*id), key, &borrowed(changes));
            }
            Owned::PutMeta(key, value) => encoder.put_meta(key, value),
            Owned::DeleteMeta(key) => encoder.delete_meta(key),
            Owned::DropCollection(id) => encoder.drop_collection(CollectionId(*id)),
            Owned::DropIndex(id) => encoder.drop_index(IndexId(*id)),
            Owned::Noop => encoder.noop(),
            Owned::Forget(id, key, bytes, changes) => {
                encoder.forget_record(CollectionId(*id), key, *bytes, &borrowed(changes));
            }
            Owned::ForgetRange(id, [low, high], counted, indexes) => {
                let indexes = indexes
                    .iter()
                    .map(|&(index, entries, bytes)| ForgottenIndex {
                        index: IndexId(index),
                        entries,
                        bytes,
                    });
                let indexes: Vec<ForgottenIndex> = indexes.collect();
                encoder.forget_range(CollectionId(*id), (low, high), *counted, &indexes);
            }
        }
    }
    out
}

fn owned(operation: Operation<'_>) -> Owned {
    let changes = |changes: IndexChanges<'_>| {
        changes
            .map(|change| {
                let type_bits = match change.action {
                    IndexAction::Add { type_bits } => Some(type_bits.to_vec()),
                    IndexAction::Remove => None,
                };
                (change.index.0, change.fields.to_vec(), type_bits)
            })
            .collect()
    };
    match operation {
        Operation::PutRecord {
            collection,
            key,
            document,
            description,
            index,
        } => {
            let described = match description {
                Description::Insert => Described::Insert,
                Description::Replace => Described::Replace,
                Description::Update { difference } => Described::Update(difference.into()),
            };
            let (key, document) = (key.into(), document.into());
            Owned::Put(collection.0, key, document, described, changes(index))
        }
        Operation::DeleteRecord {
            collection,
            key,
            document_key,
            index,
        } => Owned::Delete(
            collection.0,
            key.into(),
            document_key.into(),
            changes(index),
        ),
        Operation::IndexEntries {
            collection,
            key,
            index,
        } => Owned::Index(collection.0, key.into(), changes(index)),
        Operation::PutMeta { key, value } => Owned::PutMeta(key.into(), value.into()),
        Operation::DeleteMeta { key } => Owned::DeleteMeta(key.into()),
        Operation::DropCollection { collection } => Owned::DropCollection(collection.0),
        Operation::DropIndex { index } => Owned::DropIndex(index.0),
        Operation::Noop => Owned::Noop,
        Operation::ForgetRecord {
            collection,
            key,
            document_bytes,
            index,
        } => Owned::Forget(collection.0, key.into(), document_bytes, changes(index)),
        Operation::ForgetRange {
            collection,
            low,
            high,
            documents,
            bytes,
            indexes,
        } => {
            let indexes = indexes.map(|it| (it.index.0, it.entries, it.bytes));
            let range = [low.into(), high.into()];
            Owned::ForgetRange(collection.0, range, (documents, bytes), indexes.collect())
        }
    }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec((any::<u32>(), bytes(), prop::option::of(bytes())), 0..4)
}

fn described() -> impl Strategy<Value = Described> {
    prop_oneof![
        Just(Described::Insert),
        Just(Described::Replace),
        bytes().prop_map(Described::Update),
    ]
}

fn operation() -> impl Strategy<Value = Owned> {
    prop_oneof![
        (any::<u32>(), bytes(), bytes(), described(), changes()).prop_map(
            |(id, key, document, described, index)| {
                Owned::Put(id, key, document, described, index)
            }
        ),
        (any::<u32>(), bytes(), bytes(), changes())
            .prop_map(|(id, key, name, index)| Owned::Delete(id, key, name, index)),
        (any::<u32>(), bytes(), changes())
            .prop_map(|(id, key, index)| Owned::Index(id, key, index)),
        (bytes(), bytes()).prop_map(|(key, value)| Owned::PutMeta(key, value)),
        bytes().prop_map(Owned::DeleteMeta),
        any::<u32>().prop_map(Owned::DropCollection),
        any::<u32>().prop_map(Owned::DropIndex),
        Just(Owned::Noop),
        (any::<u32>(), bytes(), any::<u64>(), changes())
            .prop_map(|(id, key, bytes, index)| Owned::Forget(id, key, bytes, index)),
        (
            any::<u32>(),
            [bytes(), bytes()],
            any::<(u64, u64)>(),
            prop::collection::vec(any::<(u32, u64, u64)>(), 0..3)
        )
            .prop_map(|(id, range, counted, indexes)| {
                Owned::ForgetRange(id, range, counted, indexes)
            }),
    ]
}

/// Decodes everything that can be decoded; panics are what this looks for.
fn walk(payload: &[u8]) -> Result<Vec<Owned>, Malformed> {
    Entry::decode(payload)?
        .operations()
        .map(|operation| operation.map(owned))
        .collect()
}

proptest! {
    #[test]
    fn round_trip(
        operations in prop::collection::vec(operation(), 0..6),
        session in prop::option::of(bytes()),
        origin in prop::option::of(bytes()),
        command in prop::option::of(bytes()),
        names in prop::option::of(bytes()),
        unseen_since in prop::option::of(any::<u64>()),
        times in prop::option::of(any::<u32>()),
    ) {
        let header = Header {
            session: session.as_deref(),
            origin: origin.as_deref(),
            command: command.as_deref(),
            names: names.as_deref().map(Names::new),
            unseen_since: unseen_since.map(ClusterTime::from_u64),
            times,
        };
        let payload = encode(&operations, header);
        prop_assert_eq!(Entry::decode(&payload).unwrap().header, header);
        prop_assert_eq!(format!("{:?}", walk(&payload).unwrap()), format!("{operations:?}"));
    }

    #[test]
    fn damaged_payloads_never_panic(
        operations in prop::collection::vec(operation(), 1..4),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut payload = encode(&operations, Header::default());
        let _ = walk(&payload[..cut.index(payload.len())]);
        let at = at.index(payload.len());
        payload[at] = byte;
        let _ = walk(&payload);
    }

    #[test]
    fn random_bytes_never_panic(payload in bytes()) {
        let _ = walk(&payload);
        let mut known_version = vec![VERSION, HEADER_END];
        known_version.extend_from_slice(&payload);
        let _ = walk(&known_version);
    }
}

#[test]
fn refusals_are_named() {
    fn check(payload: &[u8], expect: &str) {
        let found = walk(payload).map(|operations| format!("{operations:?}"));
        assert_eq!(found, Err(expect), "{payload:?}");
    }
    check(&[9], "unknown payload version");
    check(&[VERSION], "unfinished header");
    check(&[VERSION, 7, 0, 0], "unknown header field");
    check(&[VERSION, 6, 0, 0], "times");
    check(&[VERSION, 6, 2, 3, 0, 0], "times");
    check(&[VERSION, 5, 1, 7, 0], "unseen since");
    check(&[VERSION, 0, FORGET_RECORD, 1, 0], "document length");
    check(&[1, 0, NOOP], "unknown payload version");
    check(&[VERSION, 2, 0, 1, 0, 0], "header fields out of order");
    check(&[VERSION, 0, 99], "unknown operation");
    check(&[VERSION, 0, PUT_RECORD, 1, 200], "record key");
    check(
        &[VERSION, 0, DELETE_RECORD, 1, 0, 0, 255, 255, 255, 127],
        "index change",
    );
    check(
        &[VERSION, 0, PUT_RECORD, 1, 0, 0, 7, 0],
        "unknown description",
    );
    check(
        &[VERSION, 0, DROP_INDEX, 255, 255, 255, 255, 127],
        "index id",
    );
}

#[test]
fn collections_are_named() {
    let terns = Name {
        collection: CollectionId(300),
        uuid: [7; 16],
        keeps_images: false,
        namespace: "sea.terns",
        shard_key: Some(b"by wing"),
    };
    let gulls = Name {
        collection: CollectionId(1),
        uuid: [8; 16],
        keeps_images: true,
        namespace: "sea.gulls",
        shard_key: None,
    };
    let mut bytes = Vec::new();
    terns.encode(&mut bytes);
    gulls.encode(&mut bytes);
    let names = Names::new(&bytes);
    assert_eq!(names.get(terns.collection), Ok(Some(terns)));
    assert_eq!(names.get(gulls.collection), Ok(Some(gulls)));
    assert_eq!(names.get(CollectionId(2)), Ok(None));
    for cut in 1..bytes.len() {
        // Whatever is left names the first collection rightly, or is refused.
        match Names::new(&bytes[..cut]).get(terns.collection) {
            Ok(found) => assert_eq!(found, Some(terns)),
            Err(what) => assert_eq!(what, "collection name"),
        }
    }
}
