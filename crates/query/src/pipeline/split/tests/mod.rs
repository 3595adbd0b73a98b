//! Split pipelines against whole ones.
//!
//! `Cluster` is what a router and shards are, without anything in between: each shard
//! is a world of its own that gets the shard half as BSON, and its answer is a stream
//! that may pause at any document.

mod laws;
mod states;

use super::*;
use crate::context::QueryContext;
use crate::expression::tests::parse_json;
use crate::pipeline::tests::{World, check_answers, run};
use crate::pipeline::{Advance, Documents, Place, Scope, parse, start};
use model::bson::{Array, Doc, DocBuf, DocWriter, Value};
use std::collections::HashMap;

/// The stages in a JSON array.
fn stages(pipeline: &str) -> ArrayBuf {
    match parse_json(pipeline) {
        Value::Array(stages) => stages,
        other => panic!("{other:?} is no pipeline"),
    }
}

fn parsed(stages: Array<'_>, collection: &Namespace, place: Place) -> Result<Vec<Step>, Error> {
    let context = QueryContext::new(0);
    let scope = Scope {
        database: collection.database(),
        collection: Some(collection),
        context: &context,
        place,
        depth: 0,
    };
    parse(stages, &scope)
}

fn namespace(name: &str) -> Namespace {
    Namespace::new("db", name).expect("a valid name")
}

fn split(pipeline: &str, shard_key: Option<&str>) -> Split {
    let steps = parsed(stages(pipeline).as_array(), &namespace("c"), Place::Command);
    let key = shard_key.map(|key| {
        let Value::Document(key) = parse_json(key) else {
            panic!("{key} is no document");
        };
        ShardKeyPattern::parse(key.as_doc()).expect("a shard key")
    });
    prepare(steps.expect("a pipeline"), "db")
        .and_then(|prepared| prepared.for_shards(key.as_ref()))
        .expect("it can be split")
}

/// All documents that a source has, however often it pauses.
fn drain(mut source: Box<dyn Source>) -> Result<Vec<DocBuf>, Error> {
    let mut documents = Vec::new();
    loop {
        match source.advance()? {
            Advance::Document => documents.push(source.take()),
            Advance::Paused => {}
            Advance::End => return Ok(documents),
        }
    }
}

/// Says now and then that there is nothing yet.
struct Halting(Documents, u32);

impl Source for Halting {
    fn advance(&mut self) -> Result<Advance, Error> {
        self.1 = self.1.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match self.1 >> 30 {
            0 => Ok(Advance::Paused),
            _ => self.0.advance(),
        }
    }

    fn current(&self) -> Doc<'_> {
        self.0.current()
    }

    fn take(&mut self) -> DocBuf {
        self.0.take()
    }
}

/// Documents of one collection on several shards.
struct Cluster {
    shards: Vec<Arc<World>>,
    merging: Arc<World>,
    shard_key: Option<ShardKeyPattern>,
    /// What pauses are made from; none if streams never pause.
    halts: Option<u32>,
}

impl Cluster {
    fn new(documents: Vec<Vec<DocBuf>>, collection: &str, merging: &Arc<World>) -> Self {
        let shards = documents.into_iter().map(|documents| {
            Arc::new(World {
                collections: HashMap::from([(collection.to_owned(), documents)]),
                may_spill: merging.may_spill,
                memory_bytes_max: merging.memory_bytes_max,
                ..World::default()
            })
        });
        Self {
            shards: shards.collect(),
            merging: merging.clone(),
            shard_key: None,
            halts: None,
        }
    }

    fn run(&self, collection: &str, stages: Array<'_>) -> Result<Vec<DocBuf>, Error> {
        let collection = namespace(collection);
        let prepared = prepare(parsed(stages, &collection, Place::Command)?, "db")?;
        let environment: Arc<dyn Environment> = self.merging.clone();
        if prepared.origin() == Origin::Here {
            let (steps, _) = prepared.into_steps();
            return drain(start(steps, None, None, &environment)?);
        }
        let split = prepared.for_shards(self.shard_key.as_ref())?;
        let pipeline = split.shard_pipeline();
        let mut streams: Vec<Box<dyn Source>> = Vec::new();
        for (at, shard) in self.shards.iter().enumerate() {
            let steps = parsed(pipeline.as_array(), &collection, Place::ShardHalf)?;
            let environment: Arc<dyn Environment> = shard.clone();
            let answer = drain(start(steps, Some(collection.clone()), None, &environment)?)?;
            let answer = Documents::new(answer);
            streams.push(match self.halts {
                None => Box::new(answer),
                Some(seed) => Box::new(Halting(answer, seed ^ at as u32)),
            });
        }
        drain(split.merge(streams, &environment)?)
    }
}

/// ⚑ Equal numbers may have different hashes: their group is put together where shards merge.
#[test]
fn groups_by_a_hashed_shard_key_span_shards() {
    let world = Arc::new(World {
        memory_bytes_max: usize::MAX,
        ..World::default()
    });
    let document = |json: &str| match parse_json(json) {
        Value::Document(document) => document,
        other => panic!("{other:?} is no document"),
    };
    let parts = vec![
        vec![document(r#"{"k": 1.5}"#)],
        vec![document(r#"{"k": {"$numberDecimal": "1.5"}}"#)],
    ];
    let pattern = DocWriter::new().with("k", "hashed").finish();
    let mut cluster = Cluster::new(parts, "c", &world);
    cluster.shard_key = Some(ShardKeyPattern::parse(pattern.as_doc()).expect("a shard key"));
    let stages = stages(r#"[{"$group": {"_id": "$k", "n": {"$sum": 1}}}]"#);
    let groups = cluster.run("c", stages.as_array()).expect("groups");
    assert_eq!(groups.len(), 1, "{groups:?}");
}

/// Cuts a sequence into so many of about equal length, which may be none.
fn portions(documents: &[DocBuf], count: usize) -> Vec<Vec<DocBuf>> {
    (0..count)
        .map(|at| {
            let ends = [at, at + 1].map(|at| documents.len() * at / count);
            documents[ends[0]..ends[1]].to_vec()
        })
        .collect()
}

/// Shards that hold documents one after the other answer exactly as the real server
/// does, order and all: streams are read one after the other, and of equals the first
/// stays the first.
#[test]
fn shards_answer_as_one_server_does() {
    for count in 1..5 {
        check_answers(&move |world, collection, stages| {
            let documents = world.collections.get(collection);
            let documents = documents.map_or(&[][..], |documents| documents);
            Cluster::new(portions(documents, count), collection, world).run(collection, stages)
        });
    }
}

#[test]
fn one_shard_does_everything_that_it_can() {
    check_answers(&|world, collection, stages| {
        let collection = namespace(collection);
        let prepared = prepare(parsed(stages, &collection, Place::Command)?, "db")?;
        let environment: Arc<dyn Environment> = world.clone();
        if prepared.origin() == Origin::Here {
            return drain(start(prepared.into_steps().0, None, None, &environment)?);
        }
        let split = prepared.for_one_shard();
        let pipeline = split.shard_pipeline();
        let steps = parsed(pipeline.as_array(), &collection, Place::Command)?;
        // Foreign collections are not there.
        let mut alone = World {
            memory_bytes_max: usize::MAX,
            ..World::default()
        };
        if let Some(documents) = world.collections.get(collection.collection()) {
            let name = collection.collection().to_owned();
            alone.collections.insert(name, documents.clone());
        }
        let shard: Arc<dyn Environment> = Arc::new(alone);
        let stream = start(steps, Some(collection), None, &shard)?;
        drain(split.merge(vec![stream], &environment)?)
    });
}

/// `pipeline => shard half | order | merging half`.
#[test]
fn halves() {
    for (pipeline, expected) in [
        (r#"[]"#, " | Any | "),
        (
            r#"[{"$match": {"a": 1}}, {"$unwind": "$b"}, {"$project": {"b": 1}}]"#,
            "$match $unwind $project | Any | ",
        ),
        (
            r#"[{"$sort": {"a": -1}}, {"$skip": 2}, {"$limit": 3}, {"$project": {"b": 1}}]"#,
            r#"$sort {"$limit":5} $project | Sorted | $skip $limit $project"#,
        ),
        (
            r#"[{"$sort": {"a": -1}}, {"$match": {"a": {"$gt": 3}}}]"#,
            "$match $sort | Sorted | ",
        ),
        (r#"[{"$skip": 2}]"#, " | Any | $skip"),
        (
            r#"[{"$skip": 2}, {"$limit": 3}]"#,
            r#"{"$limit":5} | Any | $skip $limit"#,
        ),
        (
            r#"[{"$limit": 3}, {"$skip": 5}]"#,
            r#"{"$limit":5} | Any | $skip $limit"#,
        ),
        (
            r#"[{"$limit": 3}, {"$match": {"a": 1}}]"#,
            r#"{"$limit":3} | Any | $limit $match"#,
        ),
        (
            r#"[{"$group": {"_id": "$a"}}, {"$sort": {"_id": 1}}]"#,
            "$_terndbGroup | Any | $group $sort",
        ),
        (
            r#"[{"$sort": {"b": 1}}, {"$group": {"_id": "$a", "f": {"$first": "$b"}}}]"#,
            "$sort $project | Sorted | $group",
        ),
        // Documents of one group lie on one shard.
        (
            r#"[{"$match": {"b": 1}}, {"$group": {"_id": "$k"}}, {"$match": {"_id": 3}}, {"$count": "n"}]"#,
            "$match $group $match $count | Any | $group $project",
        ),
        (
            r#"[{"$group": {"_id": {"k": "$k", "a": "$a"}}}, {"$sort": {"_id": 1}}]"#,
            "$group $sort | Sorted | ",
        ),
        (
            r#"[{"$set": {"k": 1}}, {"$group": {"_id": "$k"}}]"#,
            "$set $_terndbGroup | Any | $group",
        ),
        (
            r#"[{"$group": {"_id": {"$add": ["$k", 1]}}}]"#,
            "$_terndbGroup | Any | $group",
        ),
        (
            r#"[{"$group": {"_id": "$k"}}, {"$group": {"_id": "$k"}}]"#,
            "$group $_terndbGroup | Any | $group",
        ),
        (r#"[{"$count": "n"}]"#, "$count | Any | $group $project"),
        (
            r#"[{"$sortByCount": "$a"}]"#,
            "$_terndbGroup | Any | $group $sort",
        ),
        (
            r#"[{"$bucket": {"groupBy": "$a", "boundaries": [1, 2]}}]"#,
            "$_terndbGroup | Any | $group $sort",
        ),
        (
            r#"[{"$match": {"a": 1}}, {"$bucketAuto": {"groupBy": "$a", "buckets": 2}}]"#,
            "$match $project | Any | $bucketAuto",
        ),
        (
            r#"[{"$sample": {"size": 3}}, {"$match": {"a": 1}}]"#,
            "$_terndbSample | Sorted | $limit $replaceWith $match",
        ),
        (
            r#"[{"$redact": "$$KEEP"}, {"$facet": {"f": [{"$count": "n"}]}}]"#,
            "$redact | Any | $facet",
        ),
        (
            r#"[{"$lookup": {"from": "f", "localField": "a", "foreignField": "b", "as": "x"}}, {"$match": {"a": 1}}]"#,
            "$match | Any | $lookup",
        ),
        (
            r#"[{"$replaceRoot": {"newRoot": "$a"}}, {"$unionWith": "f"}, {"$out": "o"}]"#,
            "$replaceRoot | Any | $unionWith + $out",
        ),
        (
            r#"[{"$indexStats": {}}, {"$sort": {"name": 1}}]"#,
            "$indexStats $sort | Sorted | ",
        ),
        (
            r#"[{"$changeStream": {}}, {"$match": {"a": 1}}]"#,
            "$changeStream $match | Events | ",
        ),
    ] {
        let split = split(pipeline, Some(r#"{"k": 1}"#));
        let names = |steps: &[Step]| -> String {
            let names = steps.iter().map(|step| match step.stage {
                Stage::Limit(limit) if !std::ptr::eq(steps, &split.merging[..]) => {
                    format!(r#"{{"$limit":{limit}}}"#)
                }
                _ => step.name().to_owned(),
            });
            names.collect::<Vec<_>>().join(" ")
        };
        let order = match split.order {
            Order::Any => "Any",
            Order::Sorted(_) => "Sorted",
            Order::Events => "Events",
        };
        let mut found = format!(
            "{} | {order} | {}",
            names(&split.shards),
            names(&split.merging)
        );
        if let Some(output) = &split.output {
            found = format!("{found} + {}", output.name());
        }
        assert_eq!(found, expected, "{pipeline}");
    }
}

/// `pipeline => what the shards leave of documents`.
#[test]
fn shards_send_what_is_needed() {
    for (pipeline, expected) in [
        (
            r#"[{"$sort": {"a.b": 1}}, {"$group": {"_id": "$c.d", "n": {"$sum": {"$add": ["$e", "$a"]}}}}]"#,
            Some(r#"{"_id": 0, "a": 1, "c": 1, "e": 1}"#),
        ),
        (
            r#"[{"$limit": 9}, {"$match": {"x": 1, "$expr": {"$gt": ["$y.z", "$$NOW"]}}}, {"$project": {"_id": 1, "b.c": 1}}]"#,
            Some(r#"{"_id": 1, "b": 1, "x": 1, "y": 1}"#),
        ),
        (
            r#"[{"$limit": 9}, {"$group": {"_id": null, "n": {"$count": {}}}}]"#,
            Some(r#"{"_id": 1}"#),
        ),
        (
            r#"[{"$bucketAuto": {"groupBy": "$a", "buckets": 2, "output": {"x": {"$push": "$b"}}}}]"#,
            Some(r#"{"_id": 0, "a": 1, "b": 1}"#),
        ),
        // Whole documents, names that are no paths, and what goes on as it is.
        (
            r#"[{"$limit": 9}, {"$group": {"_id": "$a", "x": {"$push": "$$ROOT"}}}]"#,
            None,
        ),
        (
            r#"[{"$limit": 9}, {"$group": {"_id": "$a", "x": {"$top": {"sortBy": {"b": 1}, "output": "$c"}}}}]"#,
            None,
        ),
        (
            r#"[{"$limit": 9}, {"$set": {"a": 1}}, {"$group": {"_id": "$a"}}]"#,
            None,
        ),
        (
            r#"[{"$limit": 9}, {"$group": {"_id": {"$literal": "$"}}}]"#,
            None,
        ),
        (r#"[{"$sort": {"a": 1}}, {"$limit": 9}]"#, None),
        (r#"[{"$sort": {"a": 1}}, {"$project": {"b": "$c"}}]"#, None),
        (r#"[{"$facet": {"x": [{"$group": {"_id": "$a"}}]}}]"#, None),
    ] {
        let split = split(pipeline, None);
        let last = split.shards.last().map(|step| step.spec.as_doc());
        let found = last.and_then(|last| last.get("$project").map(|spec| spec.to_owned()));
        assert_eq!(found, expected.map(parse_json), "{pipeline}");
    }
}

#[test]
fn other_collections_are_named_however_deep() {
    for (pipeline, expected) in [
        (r#"[{"$match": {"$lookup": 1}}]"#, ""),
        (
            r#"[{"$unionWith": "u"}, {"$unionWith": {"coll": "v", "pipeline": [{"$unionWith": "u"}]}}]"#,
            "db.u db.v",
        ),
        (
            r#"[{"$facet": {"a": [{"$lookup": {"from": "l", "pipeline": [{"$graphLookup": {"from": "g", "startWith": "$a", "connectFromField": "a", "connectToField": "b", "as": "x"}}], "as": "y"}}]}}]"#,
            "db.l db.g",
        ),
        (
            r#"[{"$lookup": {"pipeline": [{"$documents": []}], "as": "y"}}]"#,
            "",
        ),
    ] {
        // Asked before anything is parsed: what is not allowed is not the question.
        let mut found = Vec::new();
        for stage in stages(pipeline).iter() {
            let ValueRef::Document(stage) = stage else {
                panic!("{stage:?} is no stage");
            };
            foreign::collect(stage, "db", &mut found).expect("valid names");
        }
        let found: Vec<String> = found.iter().map(Namespace::to_string).collect();
        assert_eq!(found.join(" "), expected, "{pipeline}");
    }
}

#[test]
fn change_streams_begin_at_one_time_everywhere() {
    let split = split(
        r#"[{"$changeStream": {"resumeAfter": {"_data": "00"}, "fullDocument": "updateLookup"}}, {"$match": {"a": 1}}]"#,
        None,
    );
    assert!(split.change_stream().is_some());
    let found = split.shard_pipeline_from(ClusterTime::new(7, 1));
    let expected = stages(
        r#"[{"$changeStream": {"fullDocument": "updateLookup", "startAtOperationTime": {"$timestamp": [7, 1]}}}, {"$match": {"a": {"$eq": 1}}}]"#,
    );
    assert_eq!(found, expected);
}

/// ⚑ Clients do not know the stages that routers write, and shards know one version.
#[test]
fn internal_stages_are_for_shards_alone() {
    let collection = namespace("c");
    for stage in [
        r#"{"$sample": {"size": 1}}"#,
        r#"{"$group": {"_id": "$a"}}"#,
    ] {
        let half = split(&format!("[{stage}]"), None).shard_pipeline();
        assert!(parsed(half.as_array(), &collection, Place::ShardHalf).is_ok());
        let refused = parsed(half.as_array(), &collection, Place::Command).unwrap_err();
        assert_eq!(refused.code.0, 40324);
    }
    for unknown in [
        r#"[{"$_terndbGroup": {"version": 2, "group": {"_id": 1}}}]"#,
        r#"[{"$_terndbGroup": {"group": {"_id": 1}}}]"#,
        r#"[{"$_terndbGroup": {"version": 1}}]"#,
        r#"[{"$_terndbGroup": 1}]"#,
        r#"[{"$_terndbSample": {"version": 1, "group": {"size": 1}}}]"#,
        r#"[{"$facet": {"f": [{"$_terndbGroup": {"version": 1, "group": {"_id": 1}}}]}}]"#,
    ] {
        let stages = stages(unknown);
        assert!(
            parsed(stages.as_array(), &collection, Place::ShardHalf).is_err(),
            "{unknown}"
        );
    }
}

#[test]
fn explained() {
    let mut out = DocWriter::new();
    split(
        r#"[{"$match": {"a": 1}}, {"$group": {"_id": "$b", "n": {"$sum": 1}}}, {"$limit": 2}]"#,
        None,
    )
    .explain(&mut out);
    let expected = parse_json(
        r#"{"mergeType": "mongos", "splitPipeline": {
            "shardsPart": [{"$match": {"a": {"$eq": 1}}}, {"$group": {"_id": "$b", "n": {"$sum": 1}}}],
            "mergerPart": [{"$mergeCursors": {}}, {"$group": {"_id": "$b", "n": {"$sum": 1}, "$doingMerge": true}}, {"$limit": {"$numberLong": "2"}}]}}"#
            .replace('\n', " ").as_str(),
    );
    assert_eq!(Value::Document(out.finish()), expected);

    let mut out = DocWriter::new();
    split(r#"[{"$sort": {"a": -1}}]"#, None).explain(&mut out);
    let expected = parse_json(
        r#"{"mergeType": "mongos", "splitPipeline": {"shardsPart": [{"$sort": {"a": -1}}], "mergerPart": [{"$mergeCursors": {"sort": {"a": -1}}}]}}"#,
    );
    assert_eq!(Value::Document(out.finish()), expected);

    let mut out = DocWriter::new();
    split(r#"[{"$match": {"a": 1}}]"#, None).explain(&mut out);
    let expected = parse_json(r#"{"mergeType": "mongos", "splitPipeline": null}"#);
    assert_eq!(Value::Document(out.finish()), expected);
}
