//! What a router does is listed, and ends when somebody says so.

use super::world::{Fault, World};
use super::{find, int, plain, run};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::Code;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::task::JoinHandle;

fn admin(command: &str) -> DocWriter {
    DocWriter::new().with(command, 1).with("$db", "admin")
}

/// A session of which only its number is of interest.
fn session(number: u8) -> DocBuf {
    let id = ValueRef::Binary {
        subtype: 4,
        bytes: &[number; 16],
    };
    DocWriter::new().with("id", id).finish()
}

/// Nothing runs between the threads of a test: another one may have its turn.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    let limit = std::time::Duration::from_secs(50);
    (tokio::time::timeout(limit, waiting).await).unwrap_or_else(|_| panic!("{what}"));
}

/// The operations of a command, as `$currentOp` tells them.
async fn listed(world: &World, kind: &str) -> Vec<DocBuf> {
    let mut ask = DocWriter::new().with("aggregate", 1);
    ask.begin_array("pipeline")
        .push_document()
        .begin_document("$currentOp")
        .append("localOps", true)
        .end()
        .end()
        .end()
        .begin_document("cursor")
        .end()
        .append("$db", "admin");
    let reply = world.run(ask.finish()).await;
    let cursor = reply.as_doc().get_doc("cursor");
    let cursor = cursor.unwrap_or_else(|| panic!("no cursor in {reply:?}"));
    let all = crate::registry::batch_of(cursor).map(Doc::to_owned);
    let is_meant = |operation: &DocBuf| {
        let command = operation.as_doc().get_doc("command");
        command.and_then(|command| command.first().map(|first| first.key() == kind)) == Some(true)
    };
    all.filter(is_meant).collect()
}

/// A command that waits for a shard that says nothing, once it does.
pub(super) async fn begin(world: &Arc<World>, silent: &str, command: DocBuf) -> JoinHandle<DocBuf> {
    (world.shards[silent].faults.lock()).push_back(Fault::Silence);
    let begun = tokio::spawn({
        let world = world.clone();
        async move { world.run(command).await }
    });
    until("the shard is asked", || {
        world.shards[silent].faults.lock().is_empty()
    })
    .await;
    begun
}

/// Everything that was opened is closed, and nobody waits any more.
async fn nothing_is_left(world: &World) {
    until("all cursors of shards are closed", || {
        (world.shards.values()).all(|shard| shard.cursors.lock().is_empty())
    })
    .await;
    // The task that asked may end after the reply has left.
    until("who asked gives up", || {
        world.shards["b"].given_up.load(Ordering::SeqCst) == 1
    })
    .await;
    assert_eq!(world.handler.0.cursors.open(), 0);
}

#[test]
fn a_scan_that_waits_for_a_shard_is_listed_and_killed() {
    run(async {
        let world = Arc::new(World::new());
        world.insert(&(0..30).collect::<Vec<_>>(), plain).await;
        let command = find().with("lsid", &session(1)).finish();
        let begun = begin(&world, "b", command).await;
        let all = listed(&world, "find").await;
        let [operation] = all.as_slice() else {
            panic!("{all:?}");
        };
        let shown = operation.as_doc();
        assert_eq!(shown.get_str("op"), Some("query"));
        assert_eq!(shown.get_str("ns"), Some("test.birds"));
        assert_eq!(shown.get_str("host"), Some("router:1"));
        assert!(shown.get_doc("lsid").is_some(), "{operation:?}");
        let killed = admin("killOp").with("op", int(operation, "opid")).finish();
        let killed = world.run(killed).await;
        assert_eq!(
            killed.as_doc().get_str("info"),
            Some("attempting to kill op")
        );
        let reply = begun.await.expect("it ends");
        assert_eq!(int(&reply, "code"), Code::INTERRUPTED.0, "{reply:?}");
        nothing_is_left(&world).await;
        assert!(listed(&world, "find").await.is_empty());
    });
}

#[test]
fn operations_end_with_their_session_and_their_client() {
    run(async {
        for (ends_with, code) in [
            ("session", Code::INTERRUPTED),
            ("client", Code::CLIENT_DISCONNECT),
        ] {
            let world = Arc::new(World::new());
            world.insert(&(0..30).collect::<Vec<_>>(), plain).await;
            let command = find().with("lsid", &session(1)).finish();
            let begun = begin(&world, "b", command).await;
            if ends_with == "session" {
                // Another one's does not matter.
                for number in [2, 1] {
                    assert!(!begun.is_finished());
                    let mut kill = DocWriter::new();
                    kill.begin_array("killSessions")
                        .push(&session(number))
                        .end();
                    let killed = world.run(kill.with("$db", "admin").finish()).await;
                    assert_eq!(killed.get("ok"), Some(ValueRef::Double(1.0)), "{killed:?}");
                }
            } else {
                world.connection.mark_closed();
            }
            let reply = begun.await.expect("it ends");
            assert_eq!(int(&reply, "code"), code.0, "{ends_with}: {reply:?}");
            nothing_is_left(&world).await;
        }
    });
}

/// A cursor that is killed while a getMore uses it ends that getMore.
#[test]
fn a_get_more_ends_with_its_cursor() {
    run(async {
        let world = Arc::new(World::new());
        // On one shard only.
        world.insert(&(10..20).collect::<Vec<_>>(), plain).await;
        let opened = world.run(find().with("batchSize", 2).finish()).await;
        let cursor = opened.as_doc().get_doc("cursor");
        let Some(ValueRef::Int64(id)) = cursor.and_then(|cursor| cursor.get("id")) else {
            panic!("{opened:?}");
        };
        let more = DocWriter::new()
            .with("getMore", id)
            .with("collection", "birds")
            .with("$db", "test");
        let begun = begin(&world, "b", more.finish()).await;
        let mut kill = DocWriter::new().with("killCursors", "birds");
        kill.begin_array("cursors").push(id).end();
        world.run(kill.with("$db", "test").finish()).await;
        let reply = begun.await.expect("it ends");
        assert_eq!(int(&reply, "code"), Code::CURSOR_KILLED.0, "{reply:?}");
        nothing_is_left(&world).await;
    });
}

/// What a router computes by itself: nobody else could end it.
#[test]
fn a_merging_half_is_listed_and_killed() {
    run(async {
        let world = Arc::new(World::new());
        let mut command = DocWriter::new().with("aggregate", 1);
        command.begin_array("pipeline");
        let range = |stages: &mut DocWriter, stage: &str, field: &str| {
            stages
                .push_document()
                .begin_document(stage)
                .begin_document(field)
                .begin_array("$range")
                .push(0)
                .push(1_000_000)
                .end()
                .end()
                .end()
                .end();
            let path = format!("${field}");
            stages
                .push_document()
                .append("$unwind", path.as_str())
                .end();
        };
        command.push_document().begin_array("$documents");
        command.push_document().append("x", 1).end().end().end();
        range(&mut command, "$set", "a");
        range(&mut command, "$set", "b");
        command.push_document().append("$count", "n").end();
        command.end().begin_document("cursor").end();
        let command = command.with("$db", "test").finish();
        let begun = tokio::spawn({
            let world = world.clone();
            async move { world.run(command).await }
        });
        let meant = async || {
            let all = listed(&world, "aggregate").await;
            let is_meant = |operation: &DocBuf| {
                operation.as_doc().get_str("ns") == Some("test.$cmd.aggregate")
            };
            all.iter()
                .find(|operation| is_meant(operation))
                .map(|it| int(it, "opid"))
        };
        let id = loop {
            if let Some(id) = meant().await {
                break id;
            }
            tokio::task::yield_now().await;
        };
        world.run(admin("killOp").with("op", id).finish()).await;
        let reply = begun.await.expect("it ends");
        assert_eq!(int(&reply, "code"), Code::INTERRUPTED.0, "{reply:?}");
    });
}

#[test]
fn operations_of_shards_are_named_by_their_shard() {
    run(async {
        let world = World::new();
        let killed = world.run(admin("killOp").with("op", "c:12").finish()).await;
        assert_eq!(killed.as_doc().get_str("shard"), Some("c"));
        assert_eq!(int(&killed, "shardid"), 12);
        let asked = world.shards["c"].asked.lock().clone();
        assert!(
            format!("{asked:?}").contains("killOp: 1, op: 12"),
            "{asked:?}"
        );
        for (op, code) in [
            ("12", Code(28625)),
            (":12", Code(28625)),
            ("c:", Code(28625)),
            ("c:x", Code::FAILED_TO_PARSE),
            ("d:12", Code::SHARD_NOT_FOUND),
        ] {
            let refused = world.run(admin("killOp").with("op", op).finish()).await;
            assert_eq!(int(&refused, "code"), code.0, "{op}: {refused:?}");
        }
        let wrong = admin("killOp").with("op", true).finish();
        assert_eq!(int(&world.run(wrong).await, "code"), Code::TYPE_MISMATCH.0);
        for name in ["currentOp", "killOp", "getShardMap", "flushRouterConfig"] {
            let elsewhere = DocWriter::new().with(name, 1).with("$db", "test");
            let refused = world.run(elsewhere.finish()).await;
            assert_eq!(int(&refused, "code"), Code::UNAUTHORIZED.0, "{name}");
        }
    });
}
