//! What one group may take, in memory and when its partials come back from disk.

use super::*;
use crate::context::QueryContext;
use crate::expression::tests::{parse_json, print_json};
use crate::pipeline::collection_stats::CollectionStats;
use crate::pipeline::environment::ScanRequest;
use crate::pipeline::list_sessions::SessionsOf;
use crate::pipeline::source::Documents;
use crate::sort::{Run, RunWriter, Spill, SpilledRecord};
use model::bson::Value;
use model::{Code, Namespace};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A disk that knows how much was read from it, and an operation that may be ended.
#[derive(Default)]
struct World {
    memory_bytes_max: usize,
    read_bytes: Arc<AtomicUsize>,
    interrupted: AtomicBool,
}

struct Disk(Arc<AtomicUsize>);

struct Kept {
    records: VecDeque<SpilledRecord>,
    read_bytes: Arc<AtomicUsize>,
}

impl Spill for Disk {
    fn begin_run(&mut self) -> Result<Box<dyn RunWriter>, Error> {
        Ok(Box::new(Kept {
            records: VecDeque::new(),
            read_bytes: self.0.clone(),
        }))
    }
}

impl RunWriter for Kept {
    fn append(&mut self, key: &[u8], payload: &[u8]) -> Result<(), Error> {
        self.records.push_back(SpilledRecord {
            key: key.to_vec(),
            payload: payload.to_vec(),
        });
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn Run>, Error> {
        Ok(self)
    }
}

impl Run for Kept {
    fn next(&mut self) -> Result<Option<SpilledRecord>, Error> {
        let record = self.records.pop_front();
        let bytes = record.as_ref().map_or(0, |record| record.payload.len());
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(record)
    }
}

impl Environment for World {
    fn check(&self) -> Result<(), Error> {
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err(Error::new(Code::INTERRUPTED, "enough")),
            false => Ok(()),
        }
    }

    fn scan(&self, _: ScanRequest) -> Result<Box<dyn Source>, Error> {
        Ok(Box::new(Documents::new(Vec::new())))
    }

    fn spill(&self) -> Option<Box<dyn Spill>> {
        Some(Box::new(Disk(self.read_bytes.clone())))
    }

    fn memory_bytes_max(&self) -> usize {
        self.memory_bytes_max
    }

    fn collection_stats(&self, _: &Namespace, _: &CollectionStats) -> Result<DocBuf, Error> {
        Ok(DocBuf::new())
    }

    fn index_stats(&self, _: &Namespace) -> Result<Vec<DocBuf>, Error> {
        Ok(Vec::new())
    }

    fn current_operations(&self, _: Doc<'_>) -> Result<Vec<DocBuf>, Error> {
        Ok(Vec::new())
    }

    fn local_sessions(&self, _: SessionsOf) -> Result<Vec<DocBuf>, Error> {
        Ok(Vec::new())
    }

    fn random_below(&self, _: u64) -> u64 {
        0
    }
}

const IN_MEMORY: usize = usize::MAX;
const ON_DISK: usize = 10_000;

/// `{g: 0 to 3, s: 1000 letters, o: {a field of its own}, same: {x: 1000 letters}}`
fn documents(count: i32) -> Vec<DocBuf> {
    let document = |at: i32| {
        let text = format!("{at:05}{}", "x".repeat(995));
        let own = DocWriter::new()
            .with(&format!("k{at}"), text.as_str())
            .finish();
        let same = DocWriter::new().with("x", text.as_str()).finish();
        DocWriter::new()
            .with("g", at % 4)
            .with("s", text.as_str())
            .with("o", &own)
            .with("same", &same)
            .finish()
    };
    (0..count).map(document).collect()
}

fn grouping(world: &Arc<World>, spec: &str, half: Half, input: Vec<DocBuf>) -> Grouping {
    let mut group =
        Group::parse(parse_json(spec).as_ref(), &QueryContext::new(0)).expect("a group");
    group.half = half;
    let environment: Arc<dyn Environment> = world.clone();
    let mut grouping = Grouping::new(Box::new(Documents::new(input)), group, &environment);
    grouping.state_limit = StateLimit::new(60_000, 30_000);
    grouping
}

fn drain(mut grouping: Grouping) -> Result<Vec<DocBuf>, Error> {
    let mut groups = Vec::new();
    while grouping.advance()? == Advance::Document {
        groups.push(grouping.take());
    }
    Ok(groups)
}

/// Four groups, each of as many documents of about 1000 bytes: how many there are, or the
/// error. Alike in memory, from disk, and from another's partials.
fn check(accumulator: &str, each: i32, expected: Result<usize, i32>) {
    let spec = format!(r#"{{"_id": "$g", "r": {accumulator}}}"#);
    for memory_bytes_max in [IN_MEMORY, ON_DISK] {
        let world = Arc::new(World {
            memory_bytes_max,
            ..World::default()
        });
        let outcome = drain(grouping(&world, &spec, Half::Whole, documents(each * 4)));
        let outcome = outcome
            .map(|groups| groups.len())
            .map_err(|error| error.code.0);
        assert_eq!(outcome, expected, "{accumulator} {each} {memory_bytes_max}");

        // A partial for every eighth of the documents.
        let mut partials = Vec::new();
        for part in documents(each * 4).chunks((each as usize * 4).div_ceil(8)) {
            let part = grouping(&world, &spec, Half::Shard, part.to_vec());
            partials.extend(drain(part).expect("a part fits"));
        }
        let outcome = drain(grouping(&world, &spec, Half::Merge, partials));
        let outcome = outcome
            .map(|groups| groups.len())
            .map_err(|error| error.code.0);
        assert_eq!(
            outcome, expected,
            "merged: {accumulator} {each} {memory_bytes_max}"
        );
    }
}

/// ⚑ No group takes more than its limit, wherever it is put together.
#[test]
fn one_group_is_bounded() {
    for accumulator in [
        r#"{"$push": "$s"}"#,
        r#"{"$push": "$o"}"#,
        r#"{"$addToSet": "$s"}"#,
        r#"{"$firstN": {"n": 100, "input": "$s"}}"#,
        r#"{"$lastN": {"n": 100, "input": "$s"}}"#,
        r#"{"$minN": {"n": 100, "input": "$s"}}"#,
        r#"{"$maxN": {"n": 100, "input": "$s"}}"#,
        r#"{"$topN": {"n": 100, "sortBy": {"s": 1}, "output": "$s"}}"#,
        r#"{"$bottomN": {"n": 100, "sortBy": {"g": 1}, "output": "$s"}}"#,
    ] {
        check(accumulator, 20, Ok(4));
        check(accumulator, 80, Err(Code::EXCEEDED_MEMORY_LIMIT.0));
    }
    for bounded in [
        r#"{"$sum": 1}"#,
        r#"{"$first": "$s"}"#,
        r#"{"$max": "$s"}"#,
        r#"{"$addToSet": "$g"}"#,
        r#"{"$firstN": {"n": 10, "input": "$s"}}"#,
        r#"{"$lastN": {"n": 10, "input": "$s"}}"#,
        r#"{"$topN": {"n": 10, "sortBy": {"s": 1}, "output": "$s"}}"#,
    ] {
        check(bounded, 200, Ok(4));
    }
}

/// A document is as large as the fields that it has, however often they were replaced.
#[test]
fn merged_documents_are_bounded_by_what_they_hold() {
    check(r#"{"$mergeObjects": "$o"}"#, 20, Ok(4));
    check(r#"{"$mergeObjects": "$o"}"#, 80, Err(13548));
    check(r#"{"$mergeObjects": "$same"}"#, 400, Ok(4));

    let world = Arc::new(World {
        memory_bytes_max: IN_MEMORY,
        ..World::default()
    });
    let spec = r#"{"_id": null, "r": {"$mergeObjects": "$same"}}"#;
    let groups = drain(grouping(&world, spec, Half::Whole, documents(400))).expect("a group");
    let merged = print_json(groups[0].get("r").expect("the result"));
    assert!(
        merged.starts_with(r#"{"x":"00399x"#) || merged.starts_with(r#"{"x": "00399x"#),
        "{merged}"
    );
}

#[test]
fn the_error_names_the_accumulator_and_the_limit() {
    let world = Arc::new(World {
        memory_bytes_max: IN_MEMORY,
        ..World::default()
    });
    let spec = r#"{"_id": null, "all": {"$push": "$s"}}"#;
    let outcome = drain(grouping(&world, spec, Half::Whole, documents(100)));
    assert_eq!(
        outcome.expect_err("it is too large").message,
        "$push used too much memory and cannot spill to disk. Memory limit: 60000 bytes"
    );
    let mut unlimited = grouping(&world, spec, Half::Whole, documents(100));
    unlimited.state_limit = StateLimit::default();
    assert_eq!(drain(unlimited).expect("100 MB are not reached").len(), 1);
}

/// Reads the input, and raises the word to end only then.
struct ThenInterrupted(Documents, Arc<World>);

impl Source for ThenInterrupted {
    fn advance(&mut self) -> Result<Advance, Error> {
        let advance = self.0.advance()?;
        if advance == Advance::End {
            self.1.interrupted.store(true, Ordering::Relaxed);
        }
        Ok(advance)
    }

    fn current(&self) -> Doc<'_> {
        self.0.current()
    }
}

/// ⚑ The partials of one group are not merged to the end when nobody waits any more:
/// many small ones, and few large ones.
#[test]
fn the_merge_of_a_group_is_interrupted() {
    for (count, memory_bytes_max) in [(3000, 10_000), (1000, 200_000)] {
        let world = Arc::new(World {
            memory_bytes_max,
            ..World::default()
        });
        let spec = r#"{"_id": null, "all": {"$push": "$s"}}"#;
        let mut grouping = grouping(&world, spec, Half::Whole, Vec::new());
        grouping.state_limit = StateLimit::default();
        grouping.input = Box::new(ThenInterrupted(
            Documents::new(documents(count)),
            world.clone(),
        ));
        let outcome = drain(grouping).map(|groups| groups.len());
        assert_eq!(
            outcome.map_err(|error| error.code),
            Err(Code::INTERRUPTED),
            "{count} {memory_bytes_max}"
        );
    }
}

/// ⚑ Runs of large partials do not come back to memory all at once.
#[test]
fn large_partials_are_read_when_it_is_their_turn() {
    let world = Arc::new(World {
        memory_bytes_max: 4_000_000,
        ..World::default()
    });
    let spec = r#"{"_id": "$g", "all": {"$push": "$s"}}"#;
    let mut grouping = grouping(&world, spec, Half::Whole, documents(8000));
    grouping.state_limit = StateLimit::default();
    let read_mb = || world.read_bytes.load(Ordering::Relaxed) as f64 / 1e6;
    for group in 0..4 {
        assert_eq!(grouping.advance().expect("a group"), Advance::Document);
        let document = grouping.take();
        let Some(Value::Array(all)) = document.get("all").map(|all| all.to_owned()) else {
            panic!("{document:?} has no list");
        };
        assert_eq!(all.as_array().iter().count(), 2000);
        let in_order = all.as_array().iter().zip(0..).all(|(text, at)| {
            matches!(text, ValueRef::String(text)
                if text.starts_with(&format!("{:05}", at * 4 + group)))
        });
        assert!(in_order, "documents keep their order");
        // A group of 2 MB at a time, one partial of 1 MB and a piece of each run ahead.
        let expected = f64::from(group + 1) * 2.0;
        assert!(read_mb() < expected + 1.8, "{group}: {} MB", read_mb());
    }
    assert_eq!(grouping.advance().expect("an end"), Advance::End);
}

/// ⚑ A partial may be larger than a document may be: its pieces come back as it was.
#[test]
fn partials_larger_than_a_document_come_back() {
    let world = Arc::new(World {
        memory_bytes_max: 19_000_000,
        ..World::default()
    });
    let spec = r#"{"_id": {"$concat": ["x", {"$toString": "$n"}]}, "all": {"$push": "$s"}}"#;
    let text = "x".repeat(1_000_000);
    let input: Vec<DocBuf> = (0..45)
        .map(|at| {
            let text = format!("{at:05}{text}");
            DocWriter::new().with("s", text.as_str()).finish()
        })
        .collect();
    let mut grouping = grouping(&world, spec, Half::Whole, input);
    grouping.state_limit = StateLimit::default();
    let groups = drain(grouping).expect("it spills");
    let [group] = &groups[..] else {
        panic!("{} groups", groups.len());
    };
    let all = group.as_doc().get_array("all").expect("a list");
    assert_eq!(all.count(), 45);
    for (at, text) in all.iter().enumerate() {
        let ValueRef::String(text) = text else {
            panic!("no text");
        };
        assert!(text.starts_with(&format!("{at:05}")), "{at}");
    }
}
