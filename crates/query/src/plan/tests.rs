//! Plans against a model: random documents, filters, sorts and indexes; every
//! candidate must yield exactly what a look at every document yields, each
//! document once, in order where the plan promises one.

use super::*;
use crate::context::QueryContext;
use fastrand::Rng;
use model::bson::{ArrayWriter, DocBuf, DocWriter, ValueRef};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

struct World {
    documents: BTreeMap<Vec<u8>, DocBuf>,
    indexes: Vec<IndexDefinition>,
    /// Fields and record key of every entry.
    entries: Vec<BTreeSet<(Vec<u8>, Vec<u8>)>>,
    multikey: Vec<MultikeyPaths>,
}

impl World {
    /// Leaves out documents that some index cannot take.
    fn new(candidates: Vec<DocBuf>, indexes: Vec<IndexDefinition>) -> Self {
        let mut world = Self {
            documents: BTreeMap::new(),
            entries: vec![BTreeSet::new(); indexes.len()],
            multikey: vec![MultikeyPaths::default(); indexes.len()],
            indexes,
        };
        for document in candidates {
            let id = document
                .get("_id")
                .expect("generated documents have an _id");
            let key = RecordKey::from_id(id).as_bytes().to_vec();
            let keys: Result<Vec<_>, _> = world
                .indexes
                .iter()
                .map(|index| index.keys(document.as_doc()))
                .collect();
            let Ok(keys) = keys else { continue };
            for (at, keys) in keys.into_iter().enumerate() {
                world.multikey[at].add(&keys.multikey);
                for entry in keys.keys {
                    world.entries[at].insert((entry.fields, key.clone()));
                }
            }
            world.documents.insert(key, document);
        }
        world
    }

    fn views(&self) -> Vec<IndexView<'_>> {
        self.indexes
            .iter()
            .zip(&self.multikey)
            .map(|(definition, multikey)| IndexView {
                definition,
                multikey: multikey.clone(),
            })
            .collect()
    }

    fn run(&self, plan: &Plan) -> Vec<Vec<u8>> {
        match &plan.access {
            Access::Nothing => Vec::new(),
            Access::Id(key) => {
                let key = key.as_bytes().to_vec();
                self.documents
                    .contains_key(&key)
                    .then_some(key)
                    .into_iter()
                    .collect()
            }
            Access::Records { direction, filter } => {
                let mut keys: Vec<Vec<u8>> = self
                    .documents
                    .iter()
                    .filter(|(_, doc)| passes(filter.as_ref(), doc))
                    .map(|(key, _)| key.clone())
                    .collect();
                if *direction == ScanDirection::Backward {
                    keys.reverse();
                }
                keys
            }
            Access::Index(access) => self.scan(access, None),
            Access::Union(Union {
                branches,
                filter,
                merged: Some(merged),
                ..
            }) => {
                let mut lists: Vec<std::collections::VecDeque<Vec<u8>>> = branches
                    .iter()
                    .map(|branch| self.scan(branch, Some(filter)).into())
                    .collect();
                let mut found = Vec::new();
                let order = |list: &std::collections::VecDeque<Vec<u8>>| {
                    let doc = self.documents[list.front()?].as_doc();
                    Some(merged.sort.key(doc).expect("no parallel arrays"))
                };
                while let Some(at) = (0..lists.len())
                    .filter(|&at| !lists[at].is_empty())
                    .min_by_key(|&at| (order(&lists[at]), at))
                {
                    let key = lists[at].pop_front().expect("not empty");
                    let doc = &self.documents[&key];
                    let earlier = (0..at)
                        .filter(|&other| {
                            merged.groups[other] != merged.groups[at]
                                || !self.multikey[branches[other].index].is_empty()
                        })
                        .any(|other| {
                            let branch = &branches[other];
                            has_key_inside(&self.indexes[branch.index], branch, doc.as_doc())
                                .expect("stored documents have keys")
                        });
                    if !earlier {
                        found.push(key);
                    }
                }
                found
            }
            Access::Union(union) => {
                let mut found = Vec::new();
                for (at, branch) in union.branches.iter().enumerate() {
                    for key in self.scan(branch, Some(&union.filter)) {
                        let doc = &self.documents[&key];
                        let earlier = union.branches[..at].iter().any(|branch| {
                            let definition = &self.indexes[branch.index];
                            has_key_inside(definition, branch, doc.as_doc())
                                .expect("stored documents have keys")
                        });
                        if !earlier {
                            found.push(key);
                        }
                    }
                }
                found
            }
        }
    }

    /// Walks as a real scan does: by seeking, one key after the other.
    fn scan(&self, access: &IndexAccess, whole: Option<&Filter>) -> Vec<Vec<u8>> {
        let definition = &self.indexes[access.index];
        let joined: BTreeMap<Vec<u8>, (&Vec<u8>, &Vec<u8>)> = self.entries[access.index]
            .iter()
            .map(|(fields, key)| ([&fields[..], key].concat(), (fields, key)))
            .collect();
        let (low, high) = access.bounds.range();
        let mut low = low.map(<[u8]>::to_vec);
        let mut high = high.map(<[u8]>::to_vec);
        let mut found = Vec::new();
        while !is_crossed(&low, &high) {
            let mut range = joined.range((low.clone(), high.clone()));
            let next = match access.direction {
                ScanDirection::Forward => range.next(),
                ScanDirection::Backward => range.next_back(),
            };
            let Some((position, (fields, key))) = next else {
                break;
            };
            let check = access
                .bounds
                .check(fields, access.direction)
                .expect("keys decode");
            let (mut from, mut inclusive) = (position.clone(), false);
            match check {
                Check::Ended => break,
                Check::SeekTo(target) => {
                    from = target;
                    inclusive = true;
                }
                Check::Inside => {
                    assert!(access.bounds.contains(fields).expect("keys decode"));
                    let doc = &self.documents[*key];
                    if (passes(access.residual.as_ref(), doc)
                        || whole.is_some_and(|whole| passes(Some(whole), doc)))
                        && (access.is_one_key(&access.multikey)
                            || emits_at(definition, access, fields, doc.as_doc())
                                .expect("stored documents have keys"))
                    {
                        found.push((*key).clone());
                    }
                }
            }
            match access.direction {
                ScanDirection::Forward if inclusive => low = Bound::Included(from),
                ScanDirection::Forward => low = Bound::Excluded(from),
                ScanDirection::Backward => high = Bound::Excluded(from),
            }
        }
        found
    }
}

fn is_crossed(low: &Bound<Vec<u8>>, high: &Bound<Vec<u8>>) -> bool {
    match (low, high) {
        (Bound::Included(low) | Bound::Excluded(low), Bound::Excluded(high)) => low >= high,
        _ => false,
    }
}

fn passes(filter: Option<&Filter>, doc: &DocBuf) -> bool {
    filter.is_none_or(|filter| filter.matches(doc.as_doc()).expect("no expressions here"))
}

/// Few and small values, so that they meet.
fn scalar(rng: &mut Rng) -> Value {
    match rng.u8(0..16) {
        0..=4 => Value::Int32(rng.i32(0..4)),
        5 => Value::Double(f64::from(rng.i32(0..8)) / 2.0),
        6 => Value::Double(f64::NAN),
        7 => Value::Null,
        8 | 9 => Value::String(["", "a", "ab", "b"][rng.usize(0..4)].to_owned()),
        10 => Value::Boolean(rng.bool()),
        11 => Value::Document(DocWriter::new().with("x", rng.i32(0..2)).finish()),
        12 => Value::MinKey,
        13 => Value::MaxKey,
        14 => Value::Undefined,
        _ => Value::Int64(i64::from(rng.i32(0..4))),
    }
}

fn value(rng: &mut Rng, depth: u8) -> Value {
    match rng.u8(0..10) {
        0..=1 if depth > 0 => {
            let mut array = ArrayWriter::new();
            for _ in 0..rng.usize(0..3) {
                array.push(&value(rng, depth - 1));
            }
            Value::Array(array.finish())
        }
        2..=4 if depth > 0 => {
            let mut doc = DocWriter::new();
            for name in ["x", "y", "0"] {
                if rng.u8(0..3) > 0 {
                    doc.append(name, &value(rng, depth - 1));
                }
            }
            Value::Document(doc.finish())
        }
        _ => scalar(rng),
    }
}

fn document(rng: &mut Rng, id: i32, depth: u8) -> DocBuf {
    let mut doc = DocWriter::new();
    doc.append("_id", id);
    for name in ["a", "b", "c"] {
        if rng.u8(0..5) > 0 {
            doc.append(name, &value(rng, depth));
        }
    }
    doc.finish()
}

/// A comparison as expressions make it, alone or among others.
fn expression(rng: &mut Rng) -> DocBuf {
    let mut doc = DocWriter::new();
    if rng.u8(0..4) == 0 {
        doc.begin_array("$and");
        for _ in 0..rng.usize(1..4) {
            doc.push(&expression(rng));
        }
        doc.end();
        return doc.finish();
    }
    let name = ["$eq", "$lt", "$lte", "$gt", "$gte", "$ne"][rng.usize(0..6)];
    let path = format!("${}", PATHS[rng.usize(0..PATHS.len())]);
    let literal = DocWriter::new().with("$literal", &value(rng, 1)).finish();
    doc.begin_array(name);
    match rng.bool() {
        true => doc.push(path.as_str()).push(&literal),
        false => doc.push(&literal).push(path.as_str()),
    };
    doc.end();
    doc.finish()
}

const PATHS: [&str; 8] = ["a", "b", "c", "a.x", "a.y", "b.x", "a.0", "_id"];

fn operator(rng: &mut Rng) -> DocBuf {
    let mut doc = DocWriter::new();
    let operand = loop {
        let operand = if rng.u8(0..6) == 0 {
            value(rng, 1)
        } else {
            scalar(rng)
        };
        if !matches!(operand, Value::Undefined) {
            break operand;
        }
    };
    match rng.u8(0..16) {
        0..=3 => {
            let name = ["$gt", "$gte", "$lt", "$lte"][rng.usize(0..4)];
            doc.append(name, &operand);
            if rng.bool() {
                let name = ["$gt", "$gte", "$lt", "$lte"][rng.usize(0..4)];
                doc.append(name, rng.i32(0..4));
            }
        }
        4 => {
            doc.append("$ne", &operand);
        }
        5 | 6 => {
            let name = if rng.bool() { "$in" } else { "$nin" };
            doc.begin_array(name);
            for _ in 0..rng.usize(0..4) {
                let value = scalar(rng);
                if !matches!(value, Value::Undefined) {
                    doc.push(&value);
                }
            }
            doc.end();
        }
        7 => {
            doc.append("$exists", rng.bool());
        }
        8 => {
            let name = ["number", "string", "array", "null", "object", "bool"][rng.usize(0..6)];
            doc.append("$type", name);
        }
        9 => {
            let pattern = ["^a", "a", "^ab$", "^b.*"][rng.usize(0..4)];
            doc.append("$regex", pattern);
        }
        10 => {
            doc.append("$elemMatch", &operator(rng));
        }
        11 => {
            let mut inner = DocWriter::new();
            for name in ["x", "y"] {
                if rng.bool() {
                    inner.append(name, &condition(rng));
                }
            }
            doc.append("$elemMatch", &inner.finish());
        }
        12 => {
            doc.begin_array("$mod").push(2).push(1).end();
        }
        13 => {
            doc.append("$size", rng.i32(0..3));
        }
        14 => {
            doc.append("$not", &operator(rng));
        }
        _ => {
            doc.append("$eq", &operand);
        }
    }
    doc.finish()
}

fn condition(rng: &mut Rng) -> Value {
    match rng.u8(0..3) {
        0 => loop {
            let value = value(rng, 1);
            if !matches!(value, Value::Undefined) {
                break value;
            }
        },
        _ => Value::Document(operator(rng)),
    }
}

fn filter(rng: &mut Rng, depth: u8) -> DocBuf {
    let mut doc = DocWriter::new();
    for _ in 0..rng.usize(0..3) {
        let path = PATHS[rng.usize(0..PATHS.len())];
        doc.append(path, &condition(rng));
    }
    if rng.u8(0..4) == 0 {
        doc.append("$expr", &expression(rng));
    }
    if depth > 0 && rng.u8(0..3) == 0 {
        let name = ["$or", "$and", "$nor"][rng.usize(0..3)];
        doc.begin_array(name);
        for _ in 0..rng.usize(1..4) {
            doc.push(&filter(rng, depth - 1));
        }
        doc.end();
    }
    doc.finish()
}

fn index(rng: &mut Rng, at: usize) -> IndexDefinition {
    let mut key = DocWriter::new();
    let mut paths: Vec<&str> = PATHS[..7].to_vec();
    rng.shuffle(&mut paths);
    let width = rng.usize(1..4);
    let hashed = rng.u8(0..8) == 0;
    for (position, path) in paths[..width].iter().enumerate() {
        match (hashed && position == 0, rng.bool()) {
            (true, _) => key.append(path, "hashed"),
            (false, true) => key.append(path, 1),
            (false, false) => key.append(path, -1),
        };
    }
    let mut spec = DocWriter::new();
    spec.append("key", &key.finish())
        .append("name", format!("index{at}").as_str());
    if rng.u8(0..4) == 0 {
        spec.append("sparse", true);
    } else if rng.u8(0..4) == 0 {
        let bound = DocWriter::new().with("$gt", rng.i32(0..2)).finish();
        let partial = DocWriter::new().with("a", &bound).finish();
        spec.append("partialFilterExpression", &partial);
    }
    IndexDefinition::from_stored(spec.finish().as_doc()).expect("generated indexes are valid")
}

fn sort(rng: &mut Rng) -> Option<SortPattern> {
    if rng.bool() {
        return None;
    }
    let mut paths: Vec<&str> = PATHS.to_vec();
    rng.shuffle(&mut paths);
    let mut doc = DocWriter::new();
    for path in &paths[..rng.usize(1..3)] {
        doc.append(path, if rng.bool() { 1 } else { -1 });
    }
    SortPattern::parse(doc.finish().as_doc()).ok()
}

fn id_index() -> IndexDefinition {
    let key = DocWriter::new().with("_id", 1).finish();
    let spec = DocWriter::new()
        .with("key", &key)
        .with("name", "_id_")
        .finish();
    IndexDefinition::from_stored(spec.as_doc()).expect("the index on _id is valid")
}

fn check(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    // Without arrays half of the time: then more can be proven.
    let depth = [0, 2][rng.usize(0..2)];
    let documents = (0..rng.i32(1..12))
        .map(|id| document(&mut rng, id, depth))
        .collect();
    let mut indexes = vec![id_index()];
    for at in 0..rng.usize(1..4) {
        indexes.push(index(&mut rng, at));
    }
    let world = World::new(documents, indexes);
    for _ in 0..8 {
        let source = filter(&mut rng, 2);
        let Ok(parsed) = Filter::parse(source.as_doc(), &QueryContext::new(0)) else {
            continue;
        };
        let parsed = parsed.optimized();
        let expected: BTreeSet<Vec<u8>> = world
            .documents
            .iter()
            .filter(|(_, doc)| passes(Some(&parsed), doc))
            .map(|(key, _)| key.clone())
            .collect();
        let sort = sort(&mut rng);
        let views = world.views();
        let request = PlanRequest {
            sort: sort.as_ref(),
            ..PlanRequest::new(&parsed)
        };
        for plan in candidates(&request, &views).expect("no hint, no error") {
            let found = world.run(&plan);
            let distinct: BTreeSet<Vec<u8>> = found.iter().cloned().collect();
            let about = || {
                format!(
                    "seed {seed} filter {source:?} sort {sort:?}\nplan {plan:#?}\ndocuments {:#?}",
                    world.documents.values().collect::<Vec<_>>()
                )
            };
            assert_eq!(distinct.len(), found.len(), "a document twice: {}", about());
            assert_eq!(distinct, expected, "other documents: {}", about());
            if let (Some(sort), false) = (&sort, plan.needs_sort) {
                let keys: Result<Vec<_>, _> = found
                    .iter()
                    .map(|key| sort.key(world.documents[key].as_doc()))
                    .collect();
                if let Ok(keys) = keys {
                    assert!(keys.is_sorted(), "out of order: {}", about());
                }
            }
        }
    }
}

#[test]
fn every_candidate_finds_what_a_look_at_every_document_finds() {
    for seed in 0..3000 {
        check(seed);
    }
}

#[test]
fn bounds_print_as_mongodb_prints_them() {
    let interval = |low: Value, li, high: Value, hi| Interval::new(low, li, high, hi);
    for (interval, expected) in [
        (Interval::point(Value::Int32(1)), "[1, 1]"),
        (
            interval(Value::Int32(5), false, Value::Double(f64::INFINITY), true),
            "(5, inf.0]",
        ),
        (
            interval(Value::Double(f64::NAN), true, Value::Double(1.5), false),
            "[nan.0, 1.5)",
        ),
        (
            interval(
                Value::String("x".to_owned()),
                false,
                Value::Document(DocBuf::new()),
                false,
            ),
            "(\"x\", {})",
        ),
        (
            interval(Value::MinKey, true, Value::Undefined, false),
            "[MinKey, undefined)",
        ),
        (Interval::point(Value::Null), "[null, null]"),
        (
            Interval::point(ValueRef::Boolean(true).to_owned()),
            "[true, true]",
        ),
        (
            Interval::point(Value::DateTime(5)),
            "[new Date(5), new Date(5)]",
        ),
    ] {
        assert_eq!(interval_text(&interval, true), expected);
    }
}

/// A plan that skips documents must have in its keys what it sorts by.
#[test]
fn covered_plans_have_the_fields_that_sorting_needs() {
    let key = DocWriter::new().with("a", 1).with("b", 1).finish();
    let spec = DocWriter::new()
        .with("key", &key)
        .with("name", "ab")
        .finish();
    let definition = IndexDefinition::from_stored(spec.as_doc()).expect("a valid index");
    let filter = Filter::equal(Path::new("a"), Value::Int32(1));
    for (sort, arrays_at, covered) in [
        (None, None, true),
        (Some("b"), None, true),
        (Some("c"), None, false),
        (None, Some(0), false),
        (None, Some(1), true),
        (Some("b"), Some(1), true),
    ] {
        let mut multikey = MultikeyPaths::default();
        if let Some(field) = arrays_at {
            multikey.insert(field, 0);
        }
        let view = IndexView {
            definition: &definition,
            multikey,
        };
        let sort = sort.map(|path| {
            SortPattern::parse(DocWriter::new().with(path, -1).finish().as_doc())
                .expect("a valid sort")
        });
        let request = PlanRequest {
            sort: sort.as_ref(),
            needed: Some(&[Path::new("a")]),
            ..PlanRequest::new(&filter)
        };
        let plans = candidates(&request, &[view]).expect("no hint, no error");
        match &plans[0].access {
            Access::Index(access) => assert_eq!(access.covered, covered, "{sort:?}"),
            other => panic!("an index scan: {other:?}"),
        }
    }
}

/// The pattern of a random shard key over paths without array positions.
fn shard_key(rng: &mut Rng) -> model::shard_key::ShardKeyPattern {
    let mut paths = vec!["a", "b", "c", "a.x", "b.x", "_id"];
    rng.shuffle(&mut paths);
    let width = rng.usize(1..4);
    let hashed = rng.usize(0..6);
    let mut pattern = DocWriter::new();
    for (at, path) in paths[..width].iter().enumerate() {
        match at == hashed {
            true => pattern.append(path, "hashed"),
            false => pattern.append(path, 1),
        };
    }
    model::shard_key::ShardKeyPattern::parse(pattern.finish().as_doc())
        .expect("the pattern is a valid one")
}

/// ⚑ A request that is routed by ranges must reach every shard that has a match.
#[test]
fn shard_key_ranges_hold_every_match() {
    let mut narrowed = 0;
    for seed in 0..3_000 {
        let mut rng = Rng::with_seed(seed);
        let pattern = shard_key(&mut rng);
        let sent = filter(&mut rng, 2);
        let context = QueryContext::new(0);
        let Ok(filter) = Filter::parse(sent.as_doc(), &context) else {
            continue;
        };
        let filter = filter.optimized();
        let ranges = shard_key_ranges(&filter, &pattern);
        for id in 0..40 {
            let document = document(&mut rng, id, 2);
            let Ok(key) = pattern.key_of(document.as_doc()) else {
                continue;
            };
            let inside = ranges.contains(&key);
            narrowed += usize::from(!inside);
            assert!(
                inside || !passes(Some(&filter), &document),
                "seed {seed}: {sent:?} by {pattern:?} misses {document:?}"
            );
        }
    }
    assert!(
        narrowed > 10_000,
        "only {narrowed} documents were ruled out"
    );
}

/// ⚑ A key that is read off a filter is the one that parsing it leads to.
#[test]
fn a_plain_shard_key_is_the_one_that_the_filter_names() {
    let mut read_off = 0;
    for seed in 0..3_000 {
        let mut rng = Rng::with_seed(seed);
        let pattern = shard_key(&mut rng);
        let mut sent = DocWriter::new();
        for field in pattern.fields() {
            match rng.usize(0..12) {
                0 => sent.append(&field.path, ValueRef::Null),
                1 => sent.append(&field.path, "text"),
                2 => sent.append(
                    &field.path,
                    DocWriter::new().with("$gt", 1).finish().as_doc(),
                ),
                3 => sent.append("$or", 1),
                _ => sent.append(&field.path, rng.i32(0..4)),
            };
        }
        if rng.usize(0..8) == 0 {
            sent.append(&pattern.fields()[0].path, 1);
        }
        for element in filter(&mut rng, 1).as_doc().iter() {
            sent.append_element(&element);
        }
        let sent = sent.finish();
        let Some(key) = plain_shard_key(sent.as_doc(), &pattern) else {
            continue;
        };
        let context = QueryContext::new(0);
        let Ok(filter) = Filter::parse(sent.as_doc(), &context) else {
            continue;
        };
        let filter = filter.optimized();
        read_off += 1;
        let named = named_shard_key(&filter, &pattern);
        assert!(
            named.is_none_or(|named| named == key),
            "seed {seed}: {sent:?}"
        );
        let ranges = shard_key_ranges(&filter, &pattern);
        let of_key = range_of_key(&key);
        assert_eq!(
            ranges.intersection(&of_key),
            ranges,
            "seed {seed}: {sent:?}"
        );
        for id in 0..40 {
            let document = document(&mut rng, id, 2);
            if let Ok(own) = pattern.key_of(document.as_doc()) {
                let is_there = own == key;
                assert!(
                    is_there || !passes(Some(&filter), &document),
                    "seed {seed}: {sent:?} by {pattern:?} misses {document:?}"
                );
            }
        }
    }
    assert!(read_off > 300, "only {read_off} keys were read off");
}
