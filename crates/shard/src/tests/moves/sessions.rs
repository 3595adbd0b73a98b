//! ⚑ Who sends a write again after its range has moved gets the first answer, not a second write.

use super::world::{World, outcome};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};

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

/// A page of sessions without the first of the documents into which a long history is sealed.
fn without_an_overflow(page: Doc<'_>) -> DocBuf {
    let mut writer = DocWriter::new();
    for field in page.iter() {
        let ("sessions", ValueRef::Array(sessions)) = (field.key(), field.value()) else {
            writer.append_element(&field);
            continue;
        };
        writer.begin_array("sessions");
        for session in sessions.iter() {
            let ValueRef::Document(session) = session else {
                panic!("{session:?} is no session");
            };
            writer.push_document();
            for part in session.iter() {
                match (part.key(), part.value()) {
                    ("o", ValueRef::Array(sealed)) => {
                        writer.begin_array("o");
                        for one in sealed.iter().skip(1) {
                            writer.push(one);
                        }
                        writer.end();
                    }
                    _ => {
                        writer.append_element(&part);
                    }
                }
            }
            writer.end();
        }
        writer.end();
    }
    writer.finish()
}

/// ⚑ Of a history that arrived in part it is not known what is missing: what is not found in it may have been
/// executed, and is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_history_that_arrives_in_part_answers_for_nothing_else() {
    let world = World::new("{x: 1}").await;
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    let updates: Vec<String> = (0..200)
        .map(|at| {
            format!("{{q: {{_id: 'number {at}', x: {at}}}, u: {{$inc: {{n: 1}}}}, upsert: true}}")
        })
        .collect();
    let command = format!(
        "{{update: 'c', updates: [{}], {LSID}, txnNumber: 1L}}",
        updates.join(", ")
    );
    world.on(0).check(&format!("{command} => {{n: 200}}")).await;
    *world.network.tamper.lock() = Some(Box::new(|command, reply| match command {
        "_terndbMoveSessions" => without_an_overflow(reply.as_doc()),
        _ => reply,
    }));
    let reply = world.moves(0, 1, "{x: MinKey}", "{x: MaxKey}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    *world.network.tamper.lock() = None;
    world
        .on(1)
        .check(&format!(
            "{command} => 217
             {{count: 'c', query: {{n: 1}}}} => {{n: 200}}
             {{insert: 'c', documents: [{{_id: 'new', x: 1}}], {LSID}, txnNumber: 2L}} => {{n: 1}}"
        ))
        .await;
    world.close().await;
}
