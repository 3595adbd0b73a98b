//! Costly arguments leave the workers to the other connections, and can be killed.

use super::world::World;
use super::{find, int, plain};
use model::bson::{DocBuf, DocWriter, ValueRef};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than any answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes hours, and is folded when it is parsed.
fn endless() -> DocBuf {
    let mut range = DocWriter::new();
    range.begin_array("$range").push(0).push(1_000_000).end();
    let range = range.finish();
    let reduce = |inner: ValueRef<'_>| {
        let mut expression = DocWriter::new();
        expression
            .begin_document("$reduce")
            .append("input", &range)
            .append("initialValue", 0)
            .append("in", inner)
            .end();
        expression.finish()
    };
    let inner = reduce(ValueRef::String("$$this"));
    let outer = reduce(ValueRef::Document(inner.as_doc()));
    DocWriter::new().with("$expr", &outer).finish()
}

/// ⚑ With one worker, as a router on two processors has: others are answered while it computes.
#[test]
fn a_costly_constant_does_not_hold_others_up() {
    let mut pipeline = DocWriter::new().with("aggregate", "birds");
    pipeline.begin_array("pipeline").push_document();
    pipeline.append("$match", &endless()).end().end();
    pipeline.begin_document("cursor").end();
    let mut update = DocWriter::new().with("update", "birds");
    update.begin_array("updates").push_document();
    update.append("q", &endless()).begin_document("u");
    update
        .begin_document("$set")
        .append("n", 1)
        .end()
        .end()
        .end()
        .end();
    let commands = [
        find().with("filter", &endless()).finish(),
        pipeline.with("$db", "test").finish(),
        update.with("$db", "test").finish(),
    ];
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let world = runtime.spawn(async {
        let world = World::new();
        world.insert(&[5], plain).await;
        Arc::new(world)
    });
    let world = runtime.block_on(world).expect("a world");
    let run = |command: DocBuf| {
        let world = world.clone();
        runtime.spawn(async move { world.run(command).await })
    };
    for costly in commands {
        let running = run(costly.clone());
        let operations = &world.handler.0.operations;
        let deadline = Instant::now() + PATIENCE;
        while operations.all().is_empty() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let begun = operations.all();
        let one = DocWriter::new().with("k", 5).finish();
        let cheap = run(find().with("filter", &one).finish());
        // Timers are the worker's: this thread looks at the clock itself.
        while !cheap.is_finished() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let is_answered = cheap.is_finished();
        // Killed in any case: a worker that computes cannot end.
        begun.iter().for_each(|operation| operation.kill());
        let reply = runtime.block_on(running).expect("it does not panic");
        assert!(is_answered, "nobody else was answered: {costly:?}");
        let told = match reply
            .as_doc()
            .get_array("writeErrors")
            .and_then(|errors| errors.get(0))
        {
            Some(ValueRef::Document(error)) => error.to_owned(),
            _ => reply,
        };
        assert_eq!(int(&told, "code"), 11601, "{told:?}");
    }
}
