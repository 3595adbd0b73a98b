//! Each row of the versioning table, and the table against a naive model.

use super::refresh::ChunkWithEnd;
use super::*;
use model::bson::{DocWriter, ObjectId, ValueRef};
use model::ids::Uuid;
use model::range::{KeyBound, KeyRange, RangeSet};
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::{Age, ChunkVersion, Incarnation, PlacementVersion};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

fn pattern(fields: &[&str]) -> Arc<ShardKeyPattern> {
    let mut writer = DocWriter::new();
    for field in fields {
        writer.append(field, 1);
    }
    Arc::new(ShardKeyPattern::parse(writer.finish().as_doc()).unwrap())
}

fn incarnation(epoch: u8) -> Incarnation {
    Incarnation {
        epoch: ObjectId([epoch; 12]),
        began: ClusterTime::new(epoch.into(), 0),
    }
}

fn at(key: i64) -> KeyBound {
    let doc = DocWriter::new().with("k", key).finish();
    KeyBound::new(&pattern(&["k"]).key_of_bound(doc.as_doc()).unwrap())
}

fn range(min: i64, max: i64) -> KeyRange {
    KeyRange::new(at(min), at(max))
}

fn shard(name: &str) -> ShardId {
    ShardId::new(name)
}

fn time(seconds: u32) -> ClusterTime {
    ClusterTime::new(seconds, 0)
}

/// Chunks cut at the given keys, owned by the given shards in turn.
fn table(bounds: &[i64], owners: &[&str]) -> RoutingTable {
    let bounds: Vec<KeyBound> = bounds.iter().map(|key| at(*key)).collect();
    let owners: Vec<ShardId> = owners.iter().map(|name| shard(name)).collect();
    let pattern = pattern(&["k"]);
    let chunks = initial_chunks(&pattern, &bounds, &owners, time(1));
    RoutingTable::full(Uuid([1; 16]), incarnation(1), pattern, chunks).unwrap()
}

/// One line per chunk: shard and version.
fn shape(table: &RoutingTable) -> String {
    let chunks = table
        .chunks()
        .map(|view| format!("{} {}", view.chunk.shard, view.chunk.version));
    chunks.collect::<Vec<_>>().join(", ")
}

fn after(table: &RoutingTable, changes: Result<Vec<ChunkWithEnd>, ChangeError>) -> RoutingTable {
    table.with_changes(changes.unwrap()).unwrap()
}

#[test]
fn first_chunks_begin_at_one() {
    assert_eq!(shape(&table(&[], &["A"])), "A 1|0");
    assert_eq!(shape(&table(&[0, 9], &["A", "B"])), "A 1|0, B 1|1, A 1|2");
}

#[test]
fn a_move_advances_what_moves_and_one_that_stays() {
    let before = table(&[0, 10], &["A"]);
    let moved = after(&before, before.moving(&range(0, 10), &shard("B"), time(5)));
    assert_eq!(shape(&moved), "A 2|1, B 2|0, A 1|2");
    assert_eq!(moved.version().chunk, ChunkVersion::new(2, 1));
    for name in ["A", "B"] {
        let (old, new) = (
            before.shard_version(&shard(name)),
            moved.shard_version(&shard(name)),
        );
        assert_eq!(
            old.age(new),
            Age::Older,
            "the version of {name} must change"
        );
    }
}

/// Whether a donor refuses who knows only the table from before a move, and whether it agrees with who knows the one
/// behind it, although all that it was told itself is the version that the move led to.
fn tells(before: &RoutingTable, changes: Vec<ChunkWithEnd>, donor: &ShardId) -> [bool; 2] {
    let moved = before.with_changes(changes).unwrap();
    let (earlier, now) = (
        before.shard_version(donor).chunk,
        moved.shard_version(donor).chunk,
    );
    let told = match now {
        ChunkVersion::ZERO => ChunkVersion::ZERO,
        _ => moved.version().chunk,
    };
    [earlier.major != now.major, told == now]
}

/// ⚑ Every chunk of every table of four chunks and two owners moves, with the chunk that stays, and without.
#[test]
fn a_move_tells_of_itself_by_the_version_of_a_chunk_that_stays() {
    let mut missed = [0; 2];
    for owners in 0..16u8 {
        let owner = |chunk: usize| ["A", "B"][usize::from(owners >> chunk & 1)];
        let before = table(&[0, 10, 20], &std::array::from_fn::<_, 4, _>(owner));
        for view in before.chunks() {
            let (range, to, donor) = (view.range(), shard("C"), &view.chunk.shard);
            let moves = before.moving(&range, &to, time(5)).unwrap();
            assert_eq!(
                tells(&before, moves, donor),
                [true; 2],
                "{range:?} of {}",
                shape(&before)
            );
            let without = before.giving(&range, &to, time(5), History::default());
            for (missed, told) in missed
                .iter_mut()
                .zip(tells(&before, without.unwrap(), donor))
            {
                *missed += u32::from(!told);
            }
        }
    }
    assert!(
        missed.iter().all(|missed| *missed > 0),
        "nobody misses it: {missed:?}"
    );
}

#[test]
fn the_last_chunk_that_leaves_a_shard_leaves_it_at_zero() {
    let before = table(&[0], &["A", "B"]);
    let whole = KeyRange::new(before.whole().min, at(0));
    let moved = after(&before, before.moving(&whole, &shard("B"), time(5)));
    assert_eq!(shape(&moved), "B 2|0, B 1|1");
    assert_eq!(moved.shard_version(&shard("A")).chunk, ChunkVersion::ZERO);
    assert_eq!(moved.shards().len(), 1);
}

#[test]
fn a_part_of_a_chunk_moves_out_of_it() {
    let before = table(&[0, 10], &["A"]);
    let moved = after(&before, before.moving(&range(3, 5), &shard("B"), time(5)));
    assert_eq!(shape(&moved), "A 1|0, A 2|1, B 2|0, A 2|2, A 1|2");
    assert_eq!(moved.find(at(3).as_bytes()).chunk.shard, shard("B"));
    assert_eq!(moved.find(at(5).as_bytes()).chunk.shard, shard("A"));
}

#[test]
fn a_split_advances_the_major_version_only_on_the_newest_shard() {
    let before = table(&[0, 10], &["A", "B"]);
    // A has the chunk with the collection's version.
    let of_a = after(&before, before.splitting(&[at(20)]));
    assert_eq!(shape(&of_a), "A 1|0, B 1|1, A 2|1, A 2|2");
    let of_b = after(&before, before.splitting(&[at(3), at(6)]));
    assert_eq!(shape(&of_b), "A 1|0, B 1|3, B 1|4, B 1|5, A 1|2");
}

#[test]
fn a_merge_begins_a_major_version() {
    let before = table(&[0, 10, 20], &["A"]);
    let merged = after(&before, before.merging(&range(0, 20), time(2)));
    assert_eq!(shape(&merged), "A 1|0, A 2|0, A 1|3");
}

#[test]
fn refining_keeps_versions_in_a_new_incarnation() {
    let before = table(&[0], &["A", "B"]);
    let longer = pattern(&["k", "l"]);
    let chunks = before.refined(longer.clone(), incarnation(2)).unwrap();
    let after = RoutingTable::full(before.uuid, incarnation(2), longer, chunks).unwrap();
    assert_eq!(shape(&after), shape(&before));
    assert_eq!(before.version().age(after.version()), Age::Older);
    // All keys that begin with a bound are behind it, even with the least rest.
    let key = |rest: ValueRef<'_>| {
        let doc = DocWriter::new().with("k", 0).with("l", rest).finish();
        after.pattern.key_of_bound(doc.as_doc()).unwrap()
    };
    for rest in [ValueRef::MinKey, ValueRef::Int32(1), ValueRef::MaxKey] {
        assert_eq!(after.find(&key(rest)).chunk.shard, shard("B"));
    }
}

#[test]
fn changes_that_cannot_be_made() {
    let table = table(&[0, 10, 20], &["A", "A", "B"]);
    let check = |result: Result<Vec<ChunkWithEnd>, ChangeError>, expected: ChangeError| {
        assert_eq!(result.unwrap_err(), expected);
    };
    let across = range(5, 15);
    check(
        table.moving(&across, &shard("C"), time(2)),
        ChangeError::NotOneChunk(across.clone()),
    );
    check(
        table.moving(&range(0, 10), &shard("A"), time(2)),
        ChangeError::AlreadyThere(shard("A")),
    );
    check(
        table.splitting(&[at(10)]),
        ChangeError::BadSplitPoint(at(10)),
    );
    check(
        table.splitting(&[at(13), at(12)]),
        ChangeError::BadSplitPoint(at(12)),
    );
    check(
        table.splitting(&[at(13), at(23)]),
        ChangeError::BadSplitPoint(at(23)),
    );
    check(
        table.merging(&across, time(2)),
        ChangeError::NotAtBounds(across.clone()),
    );
    check(
        table.merging(&range(0, 10), time(2)),
        ChangeError::NothingToMerge(range(0, 10)),
    );
    check(
        table.merging(&range(0, 20), time(2)),
        ChangeError::SeveralShards(range(0, 20)),
    );
    check(
        table.refined(pattern(&["l", "k"]), incarnation(2)),
        ChangeError::NotAnExtension,
    );
}

#[test]
fn earlier_owners_are_remembered() {
    let mut table = table(&[0], &["A"]);
    for (to, when) in [("B", 10), ("C", 20), ("A", 30)] {
        let whole = KeyRange::new(at(0), table.whole().max);
        table = after(&table, table.moving(&whole, &shard(to), time(when)));
    }
    let check = |when: u32, expected: Option<&str>| {
        let owner = table.owner_at(at(5).as_bytes(), time(when));
        let expected = expected.map(shard);
        assert_eq!(
            owner,
            expected.as_ref().map_or(Owner::Forgotten, Owner::Shard),
            "at {when}"
        );
    };
    check(0, None);
    check(1, Some("A"));
    check(9, Some("A"));
    check(10, Some("B"));
    check(25, Some("C"));
    check(99, Some("A"));
}

/// ⚑ A merged chunk remembers who owned which part of it, whatever becomes of it.
#[test]
fn merging_keeps_what_differed() {
    let before = table(&[0, 10], &["A", "B", "B"]);
    let moved = after(&before, before.moving(&range(0, 10), &shard("A"), time(7)));
    let head = KeyRange::new(moved.whole().min, at(10));
    let merged = after(&moved, moved.merging(&head, time(8)));
    assert_eq!(shape(&merged), "A 3|0, B 2|1");
    let check = |table: &RoutingTable, key: i64, when: u32, expected: &str| {
        let (key, expected) = (at(key), shard(expected));
        let owner = table.owner_at(key.as_bytes(), time(when));
        assert_eq!(owner, Owner::Shard(&expected), "{key:?} at {when}");
    };
    for (key, when, owner) in [(-5, 6, "A"), (5, 6, "B"), (5, 7, "A"), (15, 6, "B")] {
        check(&merged, key, when, owner);
    }
    let split = after(&merged, merged.splitting(&[at(5)]));
    let wide = KeyRange::new(split.whole().min, at(5));
    let gone = after(&split, split.moving(&wide, &shard("C"), time(9)));
    for (key, when, owner) in [
        (-5, 6, "A"),
        (3, 6, "B"),
        (3, 8, "A"),
        (3, 9, "C"),
        (7, 6, "B"),
        (7, 9, "A"),
    ] {
        check(&gone, key, when, owner);
    }
    let asked = range(-3, 12);
    let parts: Vec<(KeyRange, Owner<'_>)> = gone.owners_at(&asked, time(6)).collect();
    let (a, b) = (shard("A"), shard("B"));
    let expected = [
        (range(-3, 0), Owner::Shard(&a)),
        (range(0, 5), Owner::Shard(&b)),
        (range(5, 10), Owner::Shard(&b)),
        (range(10, 12), Owner::Shard(&b)),
    ];
    assert_eq!(parts, expected);
}

/// What nobody may ask for any more is forgotten when chunks change: parts with the same owners become one.
#[test]
fn merging_forgets_what_is_too_old() {
    let before = table(&[0, 10], &["A", "B", "B"]);
    let moved = after(&before, before.moving(&range(0, 10), &shard("A"), time(7)));
    let head = KeyRange::new(moved.whole().min, at(10));
    let parts = |when: u32| {
        let merged = after(&moved, moved.merging(&head, time(when)));
        merged.find(at(5).as_bytes()).chunk.parts().len()
    };
    assert_eq!((parts(606), parts(607)), (2, 0));
}

/// The same for moves, with a history of any length: who owned the range when it begins is known too.
#[test]
fn a_history_has_its_length() {
    let check = |window: u32, when: u32, expected: Option<&str>| {
        let mut table = table(&[0], &["A"]);
        for (to, moved_at) in [("B", 100), ("C", 200), ("A", 300)] {
            let whole = KeyRange::new(at(0), table.whole().max);
            let history = History::of_window(window);
            let changes = table.moving_with(&whole, &shard(to), time(moved_at), history);
            table = after(&table, changes);
        }
        let owner = table.owner_at(at(5).as_bytes(), time(when));
        let expected = expected.map(shard);
        let expected = expected.as_ref().map_or(Owner::Forgotten, Owner::Shard);
        assert_eq!(owner, expected, "at {when} with a window of {window}");
    };
    check(0, 300, Some("A"));
    check(0, 299, None);
    check(25, 250, Some("C"));
    check(25, 199, None);
    check(75, 150, Some("B"));
    check(75, 99, None);
    check(150, 99, Some("A"));
    check(u32::MAX, 99, Some("A"));
}

/// ⚑ A hole in the table would be a document that nobody is asked for.
#[test]
fn answers_with_holes_or_overlaps_are_refused() {
    let table = table(&[0, 10, 20], &["A"]);
    let chunk = |min: i64| {
        Chunk::new(
            at(min),
            shard("B"),
            ChunkVersion::new(9, 0),
            ClusterTime::ZERO,
        )
    };
    let check = |changes: Vec<ChunkWithEnd>, expected: RefreshError| {
        assert_eq!(table.with_changes(changes).unwrap_err(), expected);
    };
    check(
        vec![(chunk(0), at(5))],
        RefreshError::Gap {
            from: at(5),
            to: at(10),
        },
    );
    check(
        vec![(chunk(0), at(12)), (chunk(10), at(20))],
        RefreshError::Overlap {
            from: at(10),
            to: at(12),
        },
    );
    check(
        vec![(chunk(10), at(10))],
        RefreshError::EmptyChunk { min: at(10) },
    );
    let full = RoutingTable::full(table.uuid, table.incarnation, pattern(&["k"]), Vec::new());
    assert_eq!(full.unwrap_err(), RefreshError::Empty);
}

#[test]
fn a_change_copies_only_what_it_touches() {
    let bounds: Vec<i64> = (0..20_000).collect();
    let before = table(&bounds, &["A", "B"]);
    let changed = after(
        &before,
        before.moving(&range(7_000, 7_001), &shard("C"), time(5)),
    );
    let kept = changed
        .blocks
        .iter()
        .filter(|block| before.blocks.iter().any(|other| Arc::ptr_eq(block, other)))
        .count();
    // The block of what moved, and that of the chunk that stays and advances.
    assert_eq!(before.blocks.len() - kept, 2);
    assert_eq!(changed.chunk_count(), before.chunk_count());
}

#[test]
fn the_greatest_key_belongs_to_the_last_chunk() {
    let table = table(&[0], &["A", "B"]);
    let greatest = table.pattern.greatest();
    assert_eq!(table.find(&greatest).chunk.shard, shard("B"));
    let least = table.pattern.least();
    assert_eq!(table.find(&least).chunk.shard, shard("A"));
}

/// What a table says, kept as a plain list.
#[derive(Clone)]
struct Naive {
    chunks: Vec<ChunkWithEnd>,
}

impl Naive {
    fn of(table: &RoutingTable) -> Self {
        let chunks = table
            .chunks()
            .map(|view| (view.chunk.clone(), view.max.clone()));
        Self {
            chunks: chunks.collect(),
        }
    }

    fn with(&self, changes: &[ChunkWithEnd]) -> Self {
        let mut chunks: Vec<ChunkWithEnd> = self
            .chunks
            .iter()
            .filter(|(old, old_max)| {
                let covered = |(new, max): &ChunkWithEnd| new.min < *old_max && old.min < *max;
                !changes.iter().any(covered)
            })
            .cloned()
            .collect();
        chunks.extend_from_slice(changes);
        chunks.sort_by(|a, b| a.0.min.cmp(&b.0.min));
        Self { chunks }
    }

    fn version_of(&self, shard: &ShardId) -> ChunkVersion {
        let versions = self
            .chunks
            .iter()
            .filter(|(chunk, _)| chunk.shard == *shard)
            .map(|(chunk, _)| chunk.version);
        versions.max().unwrap_or(ChunkVersion::ZERO)
    }

    fn ranges_of(&self, shard: &ShardId) -> RangeSet {
        let owned = self
            .chunks
            .iter()
            .filter(|(chunk, _)| chunk.shard == *shard);
        owned
            .map(|(chunk, max)| KeyRange::new(chunk.min.clone(), max.clone()))
            .collect()
    }
}

const SHARDS: [&str; 3] = ["A", "B", "C"];

#[derive(Clone, Debug)]
enum Step {
    Move { from: i64, width: i64, to: usize },
    Split { from: i64, pieces: i64 },
    Merge { from: i64, width: i64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let keys = -5i64..1_200;
    let step = prop_oneof![
        (keys.clone(), 1i64..40, 0..SHARDS.len()).prop_map(|(from, width, to)| Step::Move {
            from,
            width,
            to
        }),
        (keys.clone(), 1i64..9).prop_map(|(from, pieces)| Step::Split { from, pieces }),
        (keys, 1i64..60).prop_map(|(from, width)| Step::Merge { from, width }),
    ];
    prop::collection::vec(step, 1..40)
}

fn changes_of(table: &RoutingTable, step: &Step, when: u32) -> Option<Vec<ChunkWithEnd>> {
    match *step {
        Step::Move { from, width, to } => {
            // Within the chunk that the key falls into.
            let view = table.find(at(from).as_bytes()).range();
            let max = at(from + width).min(view.max);
            let wanted = KeyRange::new(at(from).max(view.min), max);
            table.moving(&wanted, &shard(SHARDS[to]), time(when)).ok()
        }
        Step::Split { from, pieces } => {
            let points: Vec<KeyBound> = (0..pieces).map(|piece| at(from + piece)).collect();
            table.splitting(&points).ok()
        }
        Step::Merge { from, width } => {
            let min = table.find(at(from).as_bytes()).chunk.min.clone();
            let max = table.find(at(from + width).as_bytes()).max.clone();
            table.merging(&KeyRange::new(min, max), time(when)).ok()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn tables_equal_a_naive_model(size in 1i64..1_100, owners in 1..=SHARDS.len(), steps in steps()) {
        let bounds: Vec<i64> = (0..size).collect();
        let mut table = table(&bounds, &SHARDS[..owners]);
        let mut naive = Naive::of(&table);
        // Who owned each key from when on.
        let mut owners: BTreeMap<i64, Vec<(u32, ShardId)>> = BTreeMap::new();
        let note = |owners: &mut BTreeMap<i64, Vec<(u32, ShardId)>>, table: &RoutingTable, when| {
            for key in (-2..size + 2).step_by(3) {
                let owner = table.find(at(key).as_bytes()).chunk.shard.clone();
                let known = owners.entry(key).or_default();
                if known.last().is_none_or(|(_, last)| *last != owner) {
                    known.push((when, owner));
                }
            }
        };
        note(&mut owners, &table, 1);
        // A router that refreshes now and then, by version.
        let mut behind = table.clone();
        for (when, step) in steps.iter().enumerate() {
            let Some(changes) = changes_of(&table, step, when as u32 + 2) else {
                continue;
            };
            let before = table.version();
            naive = naive.with(&changes);
            table = table.with_changes(changes).unwrap();
            note(&mut owners, &table, when as u32 + 2);
            prop_assert_eq!(before.age(table.version()), Age::Older);
            prop_assert_eq!(&Naive::of(&table).chunks, &naive.chunks);
            let asked = RangeSet::of([range(-9, 3), range(7, size / 2), range(size - 5, size + 9)]);
            for name in SHARDS.map(shard) {
                let owned = table.owned_within(&name, asked.as_slice()).collect::<RangeSet>();
                let joined: RangeSet = table.ranges_of(&name).intersection(&asked);
                prop_assert_eq!(owned, joined);
            }
            for name in SHARDS {
                let expected = naive.version_of(&shard(name));
                prop_assert_eq!(table.shard_version(&shard(name)).chunk, expected);
                prop_assert_eq!(table.ranges_of(&shard(name)), naive.ranges_of(&shard(name)));
            }
            if when % 3 == 0 {
                let known = behind.version().chunk;
                let newer: Vec<ChunkWithEnd> = naive
                    .chunks
                    .iter()
                    .filter(|(chunk, _)| chunk.version >= known)
                    .cloned()
                    .collect();
                behind = behind.with_changes(newer).unwrap();
                prop_assert_eq!(&Naive::of(&behind).chunks, &naive.chunks);
            }
        }
        for key in -2..size + 2 {
            let key = at(key);
            let holds = |(chunk, max): &&ChunkWithEnd| chunk.min <= key && key < *max;
            let expected = naive.chunks.iter().find(holds).unwrap();
            prop_assert_eq!(table.find(key.as_bytes()).chunk, &expected.0);
        }
        for (key, known) in owners {
            for when in 1..steps.len() as u32 + 2 {
                let (_, owner) = known.iter().rfind(|(since, _)| *since <= when).unwrap();
                prop_assert_eq!(table.owner_at(at(key).as_bytes(), time(when)), Owner::Shard(owner));
            }
        }
    }

    #[test]
    fn targets_are_the_owners_of_overlapping_chunks(
        bounds in prop::collection::btree_set(0i64..200, 0..40),
        wanted in prop::collection::vec((-5i64..205, 0i64..30), 0..5),
    ) {
        let bounds: Vec<i64> = bounds.into_iter().collect();
        let table = table(&bounds, &SHARDS);
        let ranges: Vec<KeyRange> = wanted
            .iter()
            .map(|(min, width)| range(*min, min + width))
            .collect();
        let mut expected: Vec<ShardId> = table
            .chunks()
            .filter(|view| {
                let overlaps = |range: &KeyRange| {
                    !range.is_empty() && view.chunk.min < range.max && range.min < *view.max
                };
                ranges.iter().any(overlaps)
            })
            .map(|view| view.chunk.shard.clone())
            .collect();
        expected.sort();
        expected.dedup();
        prop_assert_eq!(table.targets(&ranges), expected);
    }
}

#[test]
fn an_unsharded_collection_has_no_age() {
    let table = table(&[], &["A"]);
    assert_eq!(
        table.version().age(PlacementVersion::UNSHARDED),
        Age::Unknown
    );
}
