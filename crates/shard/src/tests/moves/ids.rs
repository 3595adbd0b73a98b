//! ⚑ An `_id` that is inserted on the recipient while a document with it comes is there once: either the insert is
//! refused, or the move ends.

use super::world::{World, outcome};
use differential::value::{Value, get};
use std::sync::Arc;
use tokio::sync::watch;

const ROUNDS: i32 = 12;
const DOCUMENTS: i32 = 20;

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_comes_twice_is_taken_once() {
    let world = World::new("{x: 1}").await;
    world.create("").await;
    let count = ROUNDS * DOCUMENTS;
    let documents: Vec<String> = (0..count)
        .map(|x| format!("{{_id: {x}, x: {x}}}"))
        .collect();
    world.on(0).insert(&documents).await;
    let reply = world.moves(0, 1, "{x: 10000}", "{x: MaxKey}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    let copies = Arc::new(watch::Sender::new(()));
    let told = copies.clone();
    *world.network.tamper.lock() = Some(Box::new(move |command, reply| {
        if command == "_terndbMoveCopy" {
            told.send_replace(());
        }
        reply
    }));
    let mut committed = 0;
    for round in 0..ROUNDS {
        let first = round * DOCUMENTS;
        let (min, max) = (
            format!("{{x: {first}}}"),
            format!("{{x: {}}}", first + DOCUMENTS),
        );
        let moves = world.moves(0, 1, &min, &max);
        let inserts = async |from: i32| {
            // When the documents are on their way, or when some of them may have come.
            let mut copies = copies.subscribe();
            let _ = copies.changed().await;
            for _ in 0..round % 4 * 20 {
                tokio::task::yield_now().await;
            }
            let mut inserted = 0;
            for id in (first + from..first + DOCUMENTS).step_by(4) {
                let command = format!(
                    "{{insert: 'c', documents: [{{_id: {id}, x: {}}}]}}",
                    10_000 + id
                );
                let reply = world.on(1).run("test", &command).await;
                inserted += u32::from(get(&reply, "n") == Some(&Value::Int32(1)));
            }
            inserted
        };
        let (a, b, c, d, moved) =
            tokio::join!(inserts(0), inserts(1), inserts(2), inserts(3), moves);
        let inserted = a + b + c + d;
        let has_moved = outcome(&moved) == "committed";
        assert!(
            !has_moved || inserted == 0,
            "round {round}: {inserted} of {DOCUMENTS} twice"
        );
        committed += u32::from(has_moved);
    }
    let mut ids: Vec<String> = Vec::new();
    for document in world.shown(1).await {
        ids.push(format!("{:?}", document.get("_id")));
    }
    let shown = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), shown, "{committed} moves were committed");
    world.close().await;
}
