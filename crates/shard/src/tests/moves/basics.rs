//! What a move brings, and what it leaves.

use super::world::{World, outcome};
use crate::tests::removal::pass_window;
use crate::tests::transitions::collection;
use differential::value::{Value, get};

fn documents(from: i32, to: i32) -> Vec<String> {
    (from..to)
        .map(|x| {
            format!(
                "{{_id: {x}, x: {x}, name: 'document {x}', tags: [{x}, {}]}}",
                x + 1
            )
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_moves_with_its_indexes() {
    let world = World::new("{x: 1}").await;
    world
        .create("{key: {x: 1}, name: 'x_1'}, {key: {tags: 1}, name: 'tags_1'}")
        .await;
    world.on(0).insert(&documents(0, 3000)).await;
    let reply = world.moves(0, 1, "{x: 1000}", "{x: MaxKey}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    assert_eq!(world.shown(0).await.len(), 1000);
    assert_eq!(world.shown(1).await.len(), 2000);
    world
        .on(1)
        .check("{find: 'c', filter: {tags: 2000}, hint: 'tags_1'} => {cursor: {firstBatch: [{_id: 1999}, {_id: 2000}]}}")
        .await;
    world.on(1).check_valid("c").await;
    world
        .on(0)
        .check("{insert: 'c', documents: [{_id: 'new', x: 2000}]} => 13388")
        .await;
    world
        .on(1)
        .check("{insert: 'c', documents: [{_id: 'new', x: 2000}]} => {n: 1}")
        .await;
    let stats = get(&reply, "stats").expect("statistics");
    assert_eq!(stats.get("clonedDocs"), Some(&Value::Int64(2000)));
    world.close().await;
}

/// A range comes back to a shard where only dead records are left of the collection: it has begun
/// anew there when the first document arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_comes_back_to_a_collection_that_begins_anew() {
    let world = World::new("{x: 1}").await;
    world
        .create("{key: {x: 1}, name: 'x_1'}, {key: {tags: 1}, name: 'tags_1'}")
        .await;
    world.on(0).insert(&documents(0, 200)).await;
    let before = collection(world.on(0)).id;
    for (from, to) in [(0, 1), (1, 0)] {
        if to == 0 {
            pass_window(world.on(0));
        }
        let reply = world.moves(from, to, "{x: MinKey}", "{x: MaxKey}").await;
        assert_eq!(outcome(&reply), "committed", "{reply:?}");
    }
    assert_ne!(collection(world.on(0)).id, before);
    assert_eq!(world.shown(0).await.len(), 200);
    assert_eq!(world.shown(1).await.len(), 0);
    world
        .on(0)
        .check("{find: 'c', filter: {tags: 100}, hint: 'tags_1'} => {cursor: {firstBatch: [{_id: 99}, {_id: 100}]}}")
        .await;
    world.on(0).check_valid("c").await;
    world.close().await;
}
