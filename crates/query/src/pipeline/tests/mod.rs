//! Pipelines against what the real server answered.
//!
//! `pipelines.txt` begins with the documents of some collections, lines
//! `@collection document`. The other lines are `collection ;; pipeline ;;
//! outcome`: an array of documents, or `error N`. Where nothing defines an order,
//! documents are compared as a set.

use super::*;
use crate::expression::tests::{parse_json, print_json};
use crate::filter::Filter;
use crate::pipeline::source::Counted;
use crate::sort::{Run, RunWriter, Sorter, Spill, SpilledRecord};
use model::Namespace;
use model::bson::{DocWriter, Value, ValueRef};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

mod unwound;

/// Collections in memory.
#[derive(Default)]
pub(super) struct World {
    pub(super) collections: HashMap<String, Vec<DocBuf>>,
    pub(super) may_spill: bool,
    pub(super) memory_bytes_max: usize,
    /// Documents that scans have given.
    pub(super) given: Arc<AtomicU64>,
}

struct MemorySpill;

#[derive(Default)]
struct MemoryRun(std::collections::VecDeque<SpilledRecord>);

impl Spill for MemorySpill {
    fn begin_run(&mut self) -> Result<Box<dyn RunWriter>, Error> {
        Ok(Box::<MemoryRun>::default())
    }
}

impl RunWriter for MemoryRun {
    fn append(&mut self, key: &[u8], payload: &[u8]) -> Result<(), Error> {
        self.0.push_back(SpilledRecord {
            key: key.to_vec(),
            payload: payload.to_vec(),
        });
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn Run>, Error> {
        Ok(self)
    }
}

impl Run for MemoryRun {
    fn next(&mut self) -> Result<Option<SpilledRecord>, Error> {
        Ok(self.0.pop_front())
    }
}

impl Environment for World {
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    fn scan(&self, request: ScanRequest) -> Result<Box<dyn Source>, Error> {
        let stored = self.collections.get(request.namespace.collection());
        let mut found = Vec::new();
        for document in stored.into_iter().flatten() {
            if request.filter.matches(document.as_doc())? {
                found.push(document.clone());
            }
        }
        if let Some(pattern) = request.sort {
            let mut sorter = Sorter::new(pattern, None);
            for document in found.drain(..) {
                sorter.push(document)?;
            }
            found = sorter.finish()?.collect::<Result<_, Error>>()?;
        }
        let limit = request.limit.map_or(usize::MAX, |limit| limit as usize);
        let window = found.into_iter().skip(request.skip as usize).take(limit);
        Ok(Box::new(Counted {
            input: Box::new(Documents::new(window.collect())),
            given: self.given.clone(),
        }))
    }

    fn spill(&self) -> Option<Box<dyn Spill>> {
        self.may_spill.then(|| {
            let spill: Box<dyn Spill> = Box::new(MemorySpill);
            spill
        })
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

    fn random_below(&self, bound: u64) -> u64 {
        fastrand::u64(..bound)
    }
}

pub(super) fn run(
    world: &Arc<World>,
    collection: &str,
    stages: Array<'_>,
) -> Result<Vec<DocBuf>, Error> {
    let context = QueryContext::new(0);
    let namespace = Namespace::new("db", collection)?;
    let scope = Scope {
        database: "db",
        collection: Some(&namespace),
        context: &context,
        place: Place::Command,
        depth: 0,
    };
    let steps = parse(stages, &scope)?;
    let environment: Arc<dyn Environment> = world.clone();
    let mut source = start(steps, Some(namespace), None, &environment)?;
    let mut documents = Vec::new();
    while source.advance()? == Advance::Document {
        documents.push(source.take());
    }
    Ok(documents)
}

fn printed(documents: &[Value], ordered: bool) -> String {
    let mut lines: Vec<String> = documents
        .iter()
        .map(|doc| print_json(doc.as_ref()))
        .collect();
    if !ordered {
        lines.sort();
    }
    lines.join("\n")
}

/// Whether the last stage that decides about the order leaves it open.
fn is_ordered(pipeline: &str) -> bool {
    let unordered = pipeline
        .rfind("\"$group\"")
        .max(pipeline.rfind("\"$sortByCount\""));
    let ordered = pipeline.rfind("\"$sort\"");
    unordered <= ordered
}

/// Runs a pipeline over a collection.
pub(super) type Runner = dyn Fn(&Arc<World>, &str, Array<'_>) -> Result<Vec<DocBuf>, Error>;

/// What the real server answered to many pipelines, see the header.
pub(super) fn check_answers(run: &Runner) {
    check(include_str!("pipelines.txt"), run);
}

/// Checks every line of a table and reports all that differ.
fn check(table: &str, run: &Runner) {
    let mut world = World {
        memory_bytes_max: usize::MAX,
        ..World::default()
    };
    let mut rows = Vec::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        match line.strip_prefix('@').and_then(|line| line.split_once(' ')) {
            Some((collection, document)) => {
                let Value::Document(document) = parse_json(document) else {
                    panic!("{line} holds no document");
                };
                let collection = world.collections.entry(collection.to_owned());
                collection.or_default().push(document);
            }
            None => rows.push(line),
        }
    }
    let world = Arc::new(world);
    let mut wrong = Vec::new();
    for row in &rows {
        let parts: Vec<&str> = row.split(" ;; ").collect();
        let [collection, pipeline, expected] = parts[..] else {
            panic!("{row} is not collection ;; pipeline ;; outcome");
        };
        let Value::Array(stages) = parse_json(pipeline) else {
            panic!("{row} holds no pipeline");
        };
        let ordered = is_ordered(pipeline);
        let found = match run(&world, collection, stages.as_array()) {
            Ok(documents) => {
                let documents: Vec<Value> = documents.into_iter().map(Value::Document).collect();
                printed(&documents, ordered)
            }
            Err(error) => format!("error {}", error.code.0),
        };
        let expected = match expected.strip_prefix("error ") {
            Some(_) => expected.to_owned(),
            None => {
                let Value::Array(documents) = parse_json(expected) else {
                    panic!("{row} holds no outcome");
                };
                let documents: Vec<Value> = documents
                    .iter()
                    .map(|document| document.to_owned())
                    .collect();
                printed(&documents, ordered)
            }
        };
        if found != expected {
            wrong.push(format!(
                "{collection}: {pipeline}\n  expected {expected}\n  found    {found}"
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} rows differ\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
}

#[test]
fn answers_as_the_server_does() {
    check_answers(&run);
}

/// Many large groups: with and without a disk.
#[test]
fn groups_spill_and_come_back_whole() {
    let text = "x".repeat(100);
    let documents: Vec<DocBuf> = (0..6000)
        .map(|at| {
            DocWriter::new()
                .with("_id", at)
                .with("k", format!("{}{text}", at % 2900).as_str())
                .with("n", at)
                .finish()
        })
        .collect();
    let Value::Array(stages) =
        parse_json(r#"[{"$group": {"_id": "$k", "n": {"$sum": 1}, "first": {"$first": "$n"}}}]"#)
    else {
        panic!("an array");
    };
    for may_spill in [true, false] {
        let world = Arc::new(World {
            collections: HashMap::from([("c".to_owned(), documents.clone())]),
            may_spill,
            memory_bytes_max: 100_000,
            ..World::default()
        });
        let outcome = run(&world, "c", stages.as_array());
        if !may_spill {
            assert_eq!(outcome.unwrap_err().code.0, 292);
            continue;
        }
        let groups = outcome.unwrap();
        assert_eq!(groups.len(), 2900);
        let mut total = 0;
        for group in &groups {
            let Some(ValueRef::Int32(count)) = group.get("n") else {
                panic!("{group:?}");
            };
            let Some(ValueRef::Int32(first)) = group.get("first") else {
                panic!("{group:?}");
            };
            total += count;
            assert!(first < 2900, "the first of each group came first");
        }
        assert_eq!(total, 6000);
    }
}

/// What reaches the scan, as `filter, sort, skip, limit, stages left`.
#[test]
fn leading_stages_reach_the_scan() {
    for (pipeline, expected) in [
        (r#"[{"$match": {"a": 1}}]"#, "filtered,-,0,-,"),
        (
            r#"[{"$sort": {"a": 1}}, {"$match": {"a": 1}}, {"$skip": 2}, {"$limit": 3}]"#,
            "filtered,sorted,2,3,",
        ),
        (r#"[{"$limit": 5}, {"$match": {"a": 1}}]"#, "-,-,0,5,$match"),
        (
            r#"[{"$project": {"a": 1}}, {"$match": {"a": 1}}]"#,
            "filtered,-,0,-,$project",
        ),
        (
            r#"[{"$addFields": {"a": 1}}, {"$match": {"a": 1, "b": 1}}]"#,
            "filtered,-,0,-,$addFields $match",
        ),
        (
            r#"[{"$unwind": "$a"}, {"$match": {"a": 1}}, {"$match": {"b": 1}}]"#,
            "filtered,-,0,-,$unwind $match",
        ),
        (
            r#"[{"$limit": 7}, {"$skip": 2}, {"$limit": 9}]"#,
            "-,-,2,5,",
        ),
        (
            r#"[{"$group": {"_id": "$a"}}, {"$sort": {"_id": 1}}, {"$limit": 2}]"#,
            "-,-,0,-,$group $sort $limit",
        ),
    ] {
        let Value::Array(stages) = parse_json(pipeline) else {
            panic!("an array");
        };
        let context = QueryContext::new(0);
        let namespace = Namespace::new("db", "c").unwrap();
        let scope = Scope {
            database: "db",
            collection: Some(&namespace),
            context: &context,
            place: Place::Command,
            depth: 0,
        };
        let steps = optimize::optimize(parse(stages.as_array(), &scope).unwrap());
        let mut request = ScanRequest::all(namespace.clone());
        let rest = optimize::push_down(steps, &mut request);
        let names: Vec<&str> = rest.iter().map(Step::name).collect();
        let is_filtered = !Filter::is_everything(&request.filter);
        let found = format!(
            "{},{},{},{},{}",
            if is_filtered { "filtered" } else { "-" },
            if request.sort.is_some() {
                "sorted"
            } else {
                "-"
            },
            request.skip,
            request
                .limit
                .map_or("-".to_owned(), |limit| limit.to_string()),
            names.join(" ")
        );
        assert_eq!(found, expected, "{pipeline}");
    }
}

#[test]
fn redact_says_what_else_it_was_given() {
    let world = Arc::new(World {
        collections: HashMap::from([("c".to_owned(), vec![DocBuf::new()])]),
        ..World::default()
    });
    for (expression, shown) in [(r#""x""#, "\"x\""), (r#""$a""#, "MISSING")] {
        let Value::Array(stages) = parse_json(&format!(r#"[{{"$redact": {expression}}}]"#)) else {
            panic!("an array");
        };
        let error = run(&world, "c", stages.as_array()).expect_err("no decision");
        let end = format!("but returned {shown}");
        assert!(error.message.ends_with(&end), "{}", error.message);
    }
}
