//! What is explained is targeted and refused as what is carried out, and nothing of it is run.

use super::world::World;
use super::{int, plain, run};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::Code;

/// The pipeline `[first, last]` of one field each, with documents as values.
fn pipeline(first: (&str, Doc<'_>), last: (&str, Doc<'_>)) -> model::bson::ArrayBuf {
    let mut stages = model::bson::ArrayWriter::new();
    for (name, value) in [first, last] {
        stages.push(&DocWriter::new().with(name, value).finish());
    }
    stages.finish()
}

/// Who asks how a write would be run is told where it would go, or that it would be refused.
#[test]
fn explained_writes_are_refused_like_writes() {
    run(async {
        let world = World::new();
        world.insert(&(0..30).collect::<Vec<_>>(), plain).await;
        let update = |filter: &DocBuf| {
            let mut command = DocWriter::new().with("update", "birds");
            command
                .begin_array("updates")
                .push_document()
                .append("q", filter)
                .begin_document("u")
                .begin_document("$set")
                .append("seen", true)
                .end()
                .end()
                .end()
                .end();
            command.finish()
        };
        let delete = |filter: &DocBuf| {
            let mut command = DocWriter::new().with("delete", "birds");
            command
                .begin_array("deletes")
                .push_document()
                .append("q", filter)
                .append("limit", 1)
                .end()
                .end();
            command.finish()
        };
        let find_and_modify = |filter: &DocBuf| {
            DocWriter::new()
                .with("findAndModify", "birds")
                .with("query", filter)
                .with("remove", true)
                .finish()
        };
        let (anywhere, one) = (
            DocWriter::new().with("name", "tern").finish(),
            DocWriter::new().with("k", 15).finish(),
        );
        type Command<'a> = &'a dyn Fn(&DocBuf) -> DocBuf;
        let commands: [(Command<'_>, i32); 3] =
            [(&update, 72), (&delete, 61), (&find_and_modify, 61)];
        for (command, code) in commands {
            for shard in ["a", "b", "c"] {
                world.asked(shard);
            }
            let explained = |filter: &DocBuf| {
                DocWriter::new()
                    .with("explain", &command(filter))
                    .with("verbosity", "queryPlanner")
                    .with("$db", "test")
                    .finish()
            };
            let reply = world.run(explained(&anywhere)).await;
            assert_eq!(reply.get("code"), Some(ValueRef::Int32(code)), "{reply:?}");
            let reply = world.run(explained(&one)).await;
            assert_eq!(reply.get("ok"), Some(ValueRef::Double(1.0)), "{reply:?}");
            let asked = ["a", "b", "c"].map(|shard| world.asked(shard).len());
            assert_eq!(asked.iter().sum::<usize>(), 1, "{asked:?}");
        }
    });
}

/// ⚑ Who asks how a pipeline would be run gets no pipeline run, and nothing written.
#[test]
fn an_explained_pipeline_of_two_halves_is_not_run() {
    run(async {
        let world = World::new();
        world.insert(&(0..30).collect::<Vec<_>>(), plain).await;
        for shard in ["a", "b", "c"] {
            world.asked(shard);
        }
        let group = DocWriter::new().with("_id", "$name").finish();
        let one = DocWriter::new().with("k", 15).finish();
        let into = DocWriter::new().with("into", "kinds").finish();
        let out = DocWriter::new().with("db", "other").with("coll", "kinds");
        let out = out.finish();
        let halves = [
            (("$group", group.as_doc()), ("$merge", into.as_doc())),
            (("$group", group.as_doc()), ("$out", out.as_doc())),
            // One shard, whose cursor would read on.
            (("$match", one.as_doc()), ("$merge", into.as_doc())),
        ];
        for (first, last) in halves {
            let stages = pipeline(first, last);
            let command = || {
                DocWriter::new()
                    .with("aggregate", "birds")
                    .with("pipeline", &stages)
            };
            let question = command().with("explain", true).with("$db", "test");
            let reply = world.run(question.finish()).await;
            let mut asked = Vec::new();
            for shard in ["a", "b", "c"] {
                asked.extend(world.asked(shard));
            }
            assert!(asked.iter().all(|name| name == "explain"), "{asked:?}");
            assert!(!asked.is_empty());
            // The same is said to who asks with `explain`.
            let mut explain = DocWriter::new();
            explain.begin_document("explain");
            for element in command().finish().as_doc().iter() {
                explain.append_element(&element);
            }
            explain.begin_document("cursor").end().end();
            let explain = explain
                .with("verbosity", "queryPlanner")
                .with("$db", "test");
            let expected = world.run(explain.finish()).await;
            assert!(reply.get("splitPipeline").is_some(), "{reply:?}");
            let names = |doc: &DocBuf| -> Vec<String> {
                let names = doc.as_doc().iter().map(|element| element.key().to_owned());
                names.collect()
            };
            assert_eq!(names(&reply), names(&expected));
            for name in ["splitPipeline", "shards"] {
                assert_eq!(reply.get(name), expected.get(name));
            }
            for shard in ["a", "b", "c"] {
                world.asked(shard);
            }
        }
        let wrong = DocWriter::new()
            .with("aggregate", "birds")
            .with("pipeline", &pipeline(halves[0].0, halves[0].1))
            .with("explain", 1)
            .with("$db", "test");
        let reply = world.run(wrong.finish()).await;
        assert_eq!(int(&reply, "code"), Code::TYPE_MISMATCH.0);
    });
}

/// What one shard sorts or groups is shown as it is run: in halves. What only passes through is not.
#[test]
fn halves_of_one_shard_are_shown() {
    run(async {
        let one = DocWriter::new().with("k", 15).finish();
        let group = DocWriter::new().with("_id", "$name").finish();
        let sort = DocWriter::new().with("rank", 1).finish();
        let last = [("$group", &group, true), ("$sort", &sort, true)];
        let last = last.into_iter().chain([("$project", &sort, false)]);
        for (name, value, is_split) in last {
            let world = World::new();
            world.insert(&(0..30).collect::<Vec<_>>(), plain).await;
            for (first, unsharded) in [(one.as_doc(), false), (Doc::EMPTY, true)] {
                if unsharded {
                    world.drop_collection();
                    let flush = DocWriter::new().with("flushRouterConfig", 1);
                    world.run(flush.with("$db", "admin").finish()).await;
                }
                let stages = pipeline(("$match", first), (name, value.as_doc()));
                let mut explain = DocWriter::new();
                explain
                    .begin_document("explain")
                    .append("aggregate", "birds")
                    .append("pipeline", &stages)
                    .begin_document("cursor")
                    .end()
                    .end()
                    .append("verbosity", "queryPlanner")
                    .append("$db", "test");
                let reply = world.run(explain.finish()).await;
                let parts = reply.as_doc().get_doc("splitPipeline");
                assert_eq!(parts.is_some(), is_split, "{name}: {reply:?}");
                if let Some(parts) = parts {
                    let here = parts.get_array("mergerPart").expect("what is done here");
                    assert!(here.count() > 0, "{reply:?}");
                }
                assert_eq!(
                    reply
                        .as_doc()
                        .get_doc("shards")
                        .expect("shards")
                        .iter()
                        .count(),
                    1
                );
            }
        }
    });
}
