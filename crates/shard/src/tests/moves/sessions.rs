//! ⚑ Who sends a write again after its range has moved gets the first answer, not a second write.

use super::world::{World, outcome};

const LSID: &str = "lsid: {id: UUID(\"00000000-0000-4000-8000-0000000000aa\")}";

#[tokio::test(flavor = "multi_thread")]
async fn the_recipient_answers_retries_like_the_donor() {
    let world = World::new("{x: 1}").await;
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    let script = format!(
        "{{insert: 'c', documents: [{{_id: 1, x: 1}}, {{_id: 2, x: 2}}], {LSID}, txnNumber: 1L}} => {{n: 2}}
         {{update: 'c', updates: [{{q: {{_id: 1, x: 1}}, u: {{$inc: {{n: 1}}}}}}], {LSID}, txnNumber: 2L}} => {{n: 1, nModified: 1}}"
    );
    world.on(0).check(&script).await;
    let reply = world.moves(0, 1, "{x: MinKey}", "{x: MaxKey}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    world
        .on(1)
        .check(&format!(
            "{{update: 'c', updates: [{{q: {{_id: 1, x: 1}}, u: {{$inc: {{n: 1}}}}}}], {LSID}, txnNumber: 2L}} => {{n: 1, nModified: 1, retriedStmtIds: [0]}}
             {{find: 'c', filter: {{_id: 1}}}} => {{cursor: {{firstBatch: [{{_id: 1, n: 1}}]}}}}
             # A number from before is too old there, as here.
             {{insert: 'c', documents: [{{_id: 1, x: 1}}], {LSID}, txnNumber: 1L}} => 225
             {{update: 'c', updates: [{{q: {{_id: 1, x: 1}}, u: {{$inc: {{n: 1}}}}}}], {LSID}, txnNumber: 3L}} => {{n: 1}}
             {{find: 'c', filter: {{_id: 1}}}} => {{cursor: {{firstBatch: [{{_id: 1, n: 2}}]}}}}"
        ))
        .await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn images_of_find_and_modify_come_with_the_range() {
    let world = World::new("{x: 1}").await;
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    let modify = format!(
        "{{findAndModify: 'c', query: {{_id: 1, x: 1}}, update: {{$inc: {{n: 1}}}}, {LSID}, txnNumber: 7L}}"
    );
    world
        .on(0)
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1, x: 1, n: 5}}]}} => {{n: 1}}
             {modify} => {{value: {{_id: 1, n: 5}}}}"
        ))
        .await;
    let reply = world.moves(0, 1, "{x: MinKey}", "{x: MaxKey}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    world
        .on(1)
        .check(&format!(
            "{modify} => {{value: {{_id: 1, n: 5}}}}
             {{find: 'c', filter: {{_id: 1}}}} => {{cursor: {{firstBatch: [{{_id: 1, n: 6}}]}}}}"
        ))
        .await;
    world.close().await;
}
