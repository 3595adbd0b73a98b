//! Costly commands leave the workers to the other connections: with more of them
//! than workers, others are still answered, and they can be killed.

use crate::testing::TestShard;
use differential::notation::print_fields;
use differential::value::{Value, get};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Takes hours; depends on the document, so it is not folded.
const ENDLESS: &str = "{$reduce: {input: {$range: ['$k', 1000000]}, initialValue: 0, in: {$add: \
    ['$$value', {$reduce: {input: {$range: ['$k', 1000000]}, initialValue: 0, in: '$$this'}}]}}}";

/// Longer than any answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the commands side by side, and something cheap once they all run.
fn check_others_are_answered(commands: &[String], cheap: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    // On a worker, as in the server; this thread only waits.
    let opened = runtime.spawn(async {
        let server = TestShard::open().await;
        server
            .check("{insert: 'c', documents: [{_id: 1, k: 1}, {_id: 2, k: 1}]} => {n: 2}")
            .await;
        server
    });
    let server = Arc::new(runtime.block_on(opened).expect("opening does not panic"));
    let running: Vec<_> = (commands.iter())
        .map(|command| {
            let (server, command) = (server.clone(), command.clone());
            runtime.spawn(async move { server.run("test", &command).await })
        })
        .collect();
    let deadline = std::time::Instant::now() + PATIENCE;
    let begun = || server.shard.operations.all();
    while begun().len() < commands.len() && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    let begun = begun();
    let (answered, answer) = mpsc::channel();
    let (asking, cheap) = (server.clone(), cheap.to_owned());
    runtime.spawn(async move {
        asking.check(&cheap).await;
        let _ = answered.send(());
    });
    let answer = answer.recv_timeout(PATIENCE);
    // Killed in any case: a worker that computes cannot end.
    begun.iter().for_each(|operation| operation.kill());
    for running in running {
        let reply = runtime.block_on(running).expect("a command does not panic");
        let code = get(&reply, "code");
        assert_eq!(code, Some(&Value::Int32(11601)), "{}", print_fields(&reply));
    }
    assert_eq!(begun.len(), commands.len(), "all costly commands began");
    assert_eq!(answer, Ok(()), "the cheap command was not answered");
}

#[test]
fn three_finds() {
    let find = format!("{{find: 'c', filter: {{$expr: {{$gt: [{ENDLESS}, 5]}}}}}}");
    check_others_are_answered(&vec![find; 3], "{find: 'c', filter: {_id: 2}} => {}");
}

#[test]
fn three_projections_and_a_count() {
    let find = format!("{{find: 'c', projection: {{x: {ENDLESS}}}}}");
    let count = format!("{{count: 'c', query: {{$expr: {ENDLESS}}}}}");
    let commands = [find.clone(), find.clone(), find, count];
    check_others_are_answered(&commands, "{ping: 1} => {}");
}

/// The first holds the document's latch, the others wait for it.
#[test]
fn three_updates_of_one_document() {
    let update =
        format!("{{update: 'c', updates: [{{q: {{_id: 1}}, u: [{{$set: {{x: {ENDLESS}}}}}]}}]}}");
    let other = "{update: 'c', updates: [{q: {_id: 2}, u: {$set: {x: 1}}}]} => {nModified: 1}";
    check_others_are_answered(&vec![update; 3], other);
}
