//! A router over a scripted cluster: stale answers, lost replies, merges.

mod apart;
mod at_home;
mod change_streams;
mod ddl;
mod explain;
mod fake_config;
mod left;
mod left_out;
mod many_ranges;
mod operations;
mod parameters;
mod partials;
mod past;
mod process;
mod refined;
mod scans;
mod showing;
mod targeting;
mod world;

use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::Code;
use model::time::ClusterTime;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::Semaphore;
use wire::Sequence;
use world::{Fault, World, key};

fn int(doc: &DocBuf, name: &str) -> i32 {
    match doc.get(name) {
        Some(ValueRef::Int32(number)) => number,
        other => panic!("{name} is {other:?} in {doc:?}"),
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(async { tokio::time::timeout(Duration::from_secs(60), future).await })
        .expect("in time")
}

fn plain(writer: DocWriter) -> DocWriter {
    writer
}

fn find() -> DocWriter {
    DocWriter::new().with("find", "birds").with("$db", "test")
}

/// All documents of a find, batch by batch.
async fn all(world: &World, first: DocBuf) -> Vec<DocBuf> {
    let mut reply = world.run(first).await;
    let mut found = Vec::new();
    loop {
        let cursor = reply.as_doc().get_doc("cursor");
        let cursor = cursor.unwrap_or_else(|| panic!("no cursor in {reply:?}"));
        found.extend(crate::registry::batch_of(cursor).map(Doc::to_owned));
        let Some(ValueRef::Int64(id)) = cursor.get("id") else {
            panic!("no cursor id in {reply:?}");
        };
        if id == 0 {
            return found;
        }
        let more = DocWriter::new()
            .with("getMore", id)
            .with("collection", "birds")
            .with("batchSize", 3)
            .with("$db", "test");
        reply = world.run(more.finish()).await;
    }
}

#[test]
fn documents_go_to_their_owners_and_come_back_once() {
    run(async {
        let world = World::new();
        let keys: Vec<i32> = (0..30).collect();
        let reply = world.insert(&keys, plain).await;
        assert_eq!(int(&reply, "n"), 30);
        assert_eq!(world.keys_on("a"), (0..10).collect::<Vec<_>>());
        assert_eq!(world.keys_on("c"), (20..30).collect::<Vec<_>>());
        let mut found: Vec<i32> = all(&world, find().finish())
            .await
            .iter()
            .map(|d| key(d.as_doc()))
            .collect();
        found.sort_unstable();
        assert_eq!(found, keys);
        // One shard only is asked for one key.
        for shard in ["a", "b", "c"] {
            world.asked(shard);
        }
        let one = DocWriter::new().with("k", 15).finish();
        assert_eq!(
            all(&world, find().with("filter", &one).finish())
                .await
                .len(),
            1
        );
        assert_eq!(world.asked("a"), [""; 0]);
        assert_eq!(world.asked("b"), ["find"]);
    });
}

#[test]
fn sorted_streams_are_merged_with_skip_limit_and_projection() {
    run(async {
        let world = World::new();
        let keys: Vec<i32> = (0..30).rev().collect();
        world.insert(&keys, plain).await;
        let check = |sort: (&'static str, i32), skip: i32, limit: i32, expected: Vec<String>| {
            let world = &world;
            async move {
                let sort = DocWriter::new().with(sort.0, sort.1).finish();
                let names = DocWriter::new().with("_id", 0).with("name", 1).finish();
                let command = find()
                    .with("sort", &sort)
                    .with("skip", skip)
                    .with("limit", limit)
                    .with("batchSize", 4)
                    .with("projection", &names);
                let found = all(world, command.finish()).await;
                let shown: Vec<String> = found.iter().map(|doc| format!("{doc:?}")).collect();
                assert_eq!(shown, expected);
            }
        };
        let named = |keys: Vec<i32>| {
            let shown = |key: &i32| {
                let doc = DocWriter::new()
                    .with("name", format!("bird {key}").as_str())
                    .finish();
                format!("{doc:?}")
            };
            keys.iter().map(shown).collect::<Vec<_>>()
        };
        check(("k", 1), 0, 0, named((0..30).collect())).await;
        check(("k", -1), 0, 0, named((0..30).rev().collect())).await;
        check(("rank", 1), 5, 7, named((18..25).rev().collect())).await;
        check(("k", 1), 28, 10, named(vec![28, 29])).await;
        // Nothing is left open.
        for shard in world.shards.values() {
            assert!(shard.cursors.lock().is_empty(), "cursors of {}", shard.name);
        }
    });
}

#[test]
fn a_stale_router_asks_once_and_goes_on() {
    run(async {
        let world = World::new();
        world.insert(&(0..30).collect::<Vec<_>>(), plain).await;
        assert_eq!(world.config.questions.load(Ordering::SeqCst), 1);
        world.move_b_to_c();
        let one = DocWriter::new().with("k", 15).finish();
        let found = all(&world, find().with("filter", &one).finish()).await;
        assert_eq!(found.len(), 1);
        assert_eq!(world.config.questions.load(Ordering::SeqCst), 2);
        // The same for all documents: none twice, none missing.
        assert_eq!(all(&world, find().finish()).await.len(), 30);
        assert_eq!(world.config.questions.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn two_who_need_the_same_refresh_wait_for_one() {
    run(async {
        let world = Arc::new(World::new());
        let gate = Arc::new(Semaphore::new(0));
        *world.config.gate.lock() = Some(gate.clone());
        let asking: Vec<_> = (0..5)
            .map(|key| {
                let world = world.clone();
                tokio::spawn(async move { world.insert(&[key], plain).await })
            })
            .collect();
        while world.config.questions.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(100);
        for asked in asking {
            assert_eq!(int(&asked.await.expect("it ends"), "n"), 1);
        }
        assert_eq!(world.config.questions.load(Ordering::SeqCst), 1);
    });
}

/// Whoever is away cannot obey a limit: the router answers, and what reads ends by itself.
#[test]
fn limits_hold_while_nobody_answers() {
    run(async {
        let world = World::new();
        for key in 0..30 {
            world.insert(&[key], plain).await;
        }
        let flush = DocWriter::new().with("flushRouterConfig", 1);
        world.run(flush.with("$db", "admin").finish()).await;
        let gate = Arc::new(Semaphore::new(0));
        *world.config.gate.lock() = Some(gate.clone());
        let limited = find().with("batchSize", 2).with("maxTimeMS", 20);
        let reply = world.run(limited.finish()).await;
        assert_eq!(int(&reply, "code"), Code::MAX_TIME_MS_EXPIRED.0);
        gate.add_permits(100);
        while !world.handler.0.operations.all().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(world.handler.0.cursors.open(), 0);
        assert_eq!(all(&world, find().finish()).await.len(), 30);
    });
}

#[test]
fn a_failed_refresh_is_tried_twice_more() {
    run(async {
        let world = World::new();
        world.config.fails.store(2, Ordering::SeqCst);
        assert_eq!(int(&world.insert(&[1], plain).await, "n"), 1);
        assert_eq!(world.config.questions.load(Ordering::SeqCst), 3);
        let world = World::new();
        world.config.fails.store(3, Ordering::SeqCst);
        let reply = world.insert(&[1], plain).await;
        assert_eq!(int(&reply, "code"), Code::HOST_UNREACHABLE.0);
        assert_eq!(world.keys_on("a"), [0; 0]);
        assert_eq!(int(&world.insert(&[1], plain).await, "n"), 1);
    });
}

#[test]
fn only_what_was_not_carried_out_is_sent_again() {
    run(async {
        for ordered in [true, false] {
            let world = World::new();
            let keys = [1, 2, 3, 11, 12, 21, 4];
            world.insert(&[0], plain).await;
            world.asked("a");
            // a carries out two and then says that the version is stale.
            world.shards["a"]
                .faults
                .lock()
                .push_back(Fault::StaleFrom(2));
            let reply = world
                .insert(&keys, |writer| writer.with("ordered", ordered))
                .await;
            assert_eq!(int(&reply, "n"), 7, "{reply:?}");
            assert!(reply.get("writeErrors").is_none(), "{reply:?}");
            let mut on_a = world.keys_on("a");
            on_a.sort_unstable();
            assert_eq!(on_a, [0, 1, 2, 3, 4], "ordered: {ordered}");
            assert_eq!(world.keys_on("b"), [11, 12]);
        }
    });
}

#[test]
fn a_lost_reply_is_told_and_never_repeated() {
    run(async {
        let world = World::new();
        world.shards["b"].faults.lock().push_back(Fault::ReplyLost);
        let reply = world
            .insert(&[1, 11, 21], |writer| writer.with("ordered", false))
            .await;
        assert_eq!(int(&reply, "n"), 2);
        let errors = reply.as_doc().get_array("writeErrors").expect("errors");
        assert_eq!(errors.count(), 1);
        assert_eq!(world.asked("b"), ["insert"]);
        assert_eq!(world.keys_on("b"), [11]);

        // A retryable write fails as a whole: its driver sends it again.
        world.shards["b"].faults.lock().push_back(Fault::ReplyLost);
        let lsid = DocWriter::new().with("id", 1).finish();
        let retryable = |writer: DocWriter| {
            writer
                .with("ordered", false)
                .with("lsid", &lsid)
                .with("txnNumber", 3i64)
        };
        let reply = world.insert(&[2, 12, 22], retryable).await;
        assert_eq!(int(&reply, "code"), Code::HOST_UNREACHABLE.0);
        let labels = reply.as_doc().get_array("errorLabels").expect("labels");
        assert_eq!(labels.get(0), Some(ValueRef::String("RetryableWriteError")));
    });
}

#[test]
fn each_statement_keeps_its_id() {
    run(async {
        let world = World::new();
        let lsid = DocWriter::new().with("id", 1).finish();
        let reply = world
            .insert(&[11, 1, 12, 2], |writer| {
                writer
                    .with("ordered", false)
                    .with("lsid", &lsid)
                    .with("txnNumber", 1i64)
            })
            .await;
        assert_eq!(int(&reply, "n"), 4);
        let ids = |shard: &str| {
            let asked = world.shards[shard].asked.lock();
            format!("{:?}", asked[0].get("stmtIds").expect("ids"))
        };
        assert_eq!(ids("a"), "[1, 3]");
        assert_eq!(ids("b"), "[0, 2]");
    });
}

#[test]
fn never_half_an_answer() {
    run(async {
        let world = World::new();
        world.insert(&(0..30).collect::<Vec<_>>(), plain).await;
        for command in ["find", "count"] {
            world.shards["c"].faults.lock().push_back(Fault::NotSent);
            let command = DocWriter::new().with(command, "birds").with("$db", "test");
            let reply = world.run(command.finish()).await;
            assert_eq!(int(&reply, "code"), Code::HOST_UNREACHABLE.0, "{reply:?}");
        }
    });
}

#[test]
fn endless_staleness_ends() {
    run(async {
        let world = World::new();
        world.insert(&[1], plain).await;
        // A shard that wants what the config server does not know.
        *world.shards["a"].major.lock() = 9;
        let one = DocWriter::new().with("k", 1).finish();
        let reply = world.run(find().with("filter", &one).finish()).await;
        assert_eq!(int(&reply, "code"), Code::STALE_CONFIG.0);
        let reply = world.insert(&[2], plain).await;
        let errors = reply.as_doc().get_array("writeErrors").expect("errors");
        let Some(ValueRef::Document(error)) = errors.get(0) else {
            panic!("no error in {reply:?}");
        };
        assert_eq!(error.get("code"), Some(ValueRef::Int32(82)));
    });
}

#[test]
fn what_cannot_be_targeted_is_refused() {
    run(async {
        let world = World::new();
        let check = |name: &'static str, field: &'static str, statement: DocBuf, code: i32| {
            let world = &world;
            async move {
                let body = DocWriter::new()
                    .with(name, "birds")
                    .with("$db", "test")
                    .finish();
                let sequence = Sequence::new(field, [statement.as_doc()]);
                let reply = world.run_with(body, vec![sequence]).await;
                let errors = reply.as_doc().get_array("writeErrors").expect("errors");
                let Some(ValueRef::Document(error)) = errors.get(0) else {
                    panic!("no error in {reply:?}");
                };
                assert_eq!(
                    error.get("code"),
                    Some(ValueRef::Int32(code)),
                    "{statement:?}"
                );
            }
        };
        let by_name = DocWriter::new().with("name", "tern").finish();
        let by_key = DocWriter::new().with("k", 1).finish();
        let set = DocWriter::new().with("$set", &by_name).finish();
        let update = || DocWriter::new().with("q", &by_name).with("u", &set);
        check("update", "updates", update().finish(), 72).await;
        check(
            "update",
            "updates",
            update().with("upsert", true).finish(),
            61,
        )
        .await;
        let delete = DocWriter::new()
            .with("q", &by_name)
            .with("limit", 1)
            .finish();
        check("delete", "deletes", delete, 61).await;
        let modify = DocWriter::new()
            .with("findAndModify", "birds")
            .with("query", &by_name)
            .with("update", &by_key)
            .with("$db", "test");
        assert_eq!(int(&world.run(modify.finish()).await, "code"), 61);
        for shard in ["a", "b", "c"] {
            assert_eq!(world.asked(shard), [""; 0]);
        }
    });
}

#[test]
fn the_config_server_keeps_its_collections_and_writes_into_no_other() {
    run(async {
        // It is not even asked: the scripted one would panic.
        let world = World::new();
        let into = DocWriter::new()
            .with("db", "test")
            .with("coll", "copy")
            .finish();
        let merge = DocWriter::new().with("into", &into).finish();
        for stage in [
            DocWriter::new().with("$out", &into).finish(),
            DocWriter::new().with("$merge", &merge).finish(),
        ] {
            let mut command = DocWriter::new().with("aggregate", "chunks");
            command.begin_array("pipeline").push(&stage).end();
            let reply = world.run(command.with("$db", "config").finish()).await;
            assert_eq!(int(&reply, "code"), Code::COMMAND_NOT_SUPPORTED.0);
        }
        for database in ["config", "admin"] {
            let drop = DocWriter::new()
                .with("drop", "chunks")
                .with("$db", database);
            let reply = world.run(drop.finish()).await;
            assert_eq!(int(&reply, "code"), Code::ILLEGAL_OPERATION.0);
        }
    });
}

#[test]
fn hello_says_that_this_is_a_router() {
    run(async {
        let world = World::new();
        let hello = DocWriter::new().with("hello", 1).with("$db", "admin");
        let reply = world.run(hello.finish()).await;
        assert_eq!(reply.as_doc().get_str("msg"), Some("isdbgrid"));
        assert_eq!(
            reply.get("isWritablePrimary"),
            Some(ValueRef::Boolean(true))
        );
        assert!(reply.get("setName").is_none());
        assert_eq!(int(&reply, "maxWireVersion"), 17);
        let unknown = DocWriter::new().with("flyAway", 1).with("$db", "admin");
        let reply = world.run(unknown.finish()).await;
        assert_eq!(int(&reply, "code"), Code::COMMAND_NOT_FOUND.0);
    });
}

fn cluster_time(seconds: u32) -> DocBuf {
    let mut gossip = DocWriter::new().with("clusterTime", ClusterTime::new(seconds, 1));
    gossip
        .begin_document("signature")
        .append(
            "hash",
            ValueRef::Binary {
                subtype: 0,
                bytes: &[0; 20],
            },
        )
        .append("keyId", 0i64)
        .end();
    gossip.finish()
}

#[test]
fn a_client_cannot_push_the_time_far_ahead() {
    run(async {
        let world = World::new();
        let far = find().with("$clusterTime", &cluster_time(4_000_000_000));
        let reply = world.run(far.finish()).await;
        let code = Code::CLUSTER_TIME_FAILS_RATE_LIMITER.0;
        assert_eq!(int(&reply, "code"), code);
        all(&world, find().finish()).await;
        let asked = world.shards["a"].asked.lock();
        let told = asked[0].as_doc().get_doc("$clusterTime").expect("a time");
        // The latest change of the routing table, which is all that the router heard of.
        let known = ValueRef::from(ClusterTime::new(3, 0));
        assert_eq!(told.get("clusterTime"), Some(known));
    });
}

#[test]
fn a_snapshot_is_of_one_time_on_all_shards() {
    run(async {
        let world = World::new();
        let concern = DocWriter::new().with("level", "snapshot").finish();
        let read = find()
            .with("readConcern", &concern)
            .with("$clusterTime", &cluster_time(1_000));
        all(&world, read.finish()).await;
        for shard in world.shards.values() {
            let asked = shard.asked.lock();
            let concern = asked[0].as_doc().get_doc("readConcern").expect("a concern");
            let at = concern.get("atClusterTime");
            assert_eq!(at, Some(ValueRef::from(ClusterTime::new(1_000, 1))));
        }
    });
}

/// A router learns with a table from when on ranges are where they are.
#[test]
fn a_snapshot_is_not_from_before_the_ranges_came_to_their_owners() {
    run(async {
        let world = World::new();
        let concern = DocWriter::new().with("level", "snapshot").finish();
        let read = find()
            .with("readConcern", &concern)
            .with("$clusterTime", &cluster_time(1));
        all(&world, read.finish()).await;
        for shard in world.shards.values() {
            let asked = shard.asked.lock();
            let concern = asked[0].as_doc().get_doc("readConcern").expect("a concern");
            let at = concern.get("atClusterTime");
            assert_eq!(at, Some(ValueRef::from(ClusterTime::new(3, 0))));
        }
    });
}

#[test]
fn distinct_at_an_earlier_time_asks_those_who_owned_then() {
    run(async {
        let world = World::new();
        world.move_b_to_c();
        for (seconds, owner_is_asked) in [(3, true), (4, false)] {
            world.shards["b"].asked.lock().clear();
            let concern = DocWriter::new()
                .with("level", "snapshot")
                .with("atClusterTime", ClusterTime::new(seconds, 1))
                .finish();
            let read = DocWriter::new()
                .with("distinct", "birds")
                .with("key", "k")
                .with("readConcern", &concern)
                .with("$db", "test");
            let reply = world.run(read.finish()).await;
            assert!(reply.get("values").is_some(), "{reply:?}");
            let is_asked = !world.asked("b").is_empty();
            assert_eq!(is_asked, owner_is_asked, "at {seconds}");
        }
    });
}

/// ⚑ One shard is told of another shard key already, the others have carried out their part: that is not
/// done again.
#[test]
fn a_write_of_many_is_not_begun_anew_behind_an_answer() {
    run(async {
        for first in ["a", "b", "c"] {
            let world = World::new();
            let keys: Vec<i32> = (0..30).collect();
            world.insert(&keys, plain).await;
            for shard in ["a", "b", "c"] {
                world.asked(shard);
            }
            world.shards[first]
                .faults
                .lock()
                .push_back(Fault::AnotherLife);
            let mut command = DocWriter::new().with("update", "birds");
            command.begin_array("updates").push_document();
            command.begin_document("q").end();
            command.begin_document("u").begin_document("$inc");
            command.append("n", 1).end().end();
            command.append("multi", true).end().end();
            command.append("$db", "test");
            let reply = world.run(command.finish()).await;
            assert_eq!(int(&reply, "n"), 30, "{reply:?}");
            for shard in ["a", "b", "c"] {
                let expected = if shard == first { 2 } else { 1 };
                assert_eq!(world.asked(shard).len(), expected, "{first}: {shard}");
            }
        }
    });
}

/// By which name a shard was asked for a part: the slot, the number, and when it was first sent.
fn name_of_part(asked: &DocBuf) -> [model::bson::Value; 3] {
    let part = asked.as_doc().get_doc("_terndbBroadcast").expect("a part");
    ["slot", "number", "sent"].map(|field| part.get(field).expect(field).to_owned())
}

/// ⚑ A member that is deposed has carried out what it had written by then: the same part is asked for again, by
/// the same name, and nothing is begun anew when the collection has another shard key by then.
#[test]
fn a_deposed_member_is_asked_for_the_same_again() {
    run(async {
        for (then, times) in [(Fault::None, 2), (Fault::AnotherLife, 3)] {
            let world = World::new();
            world.insert(&[5], plain).await;
            world.asked("a");
            let faults = [Fault::Deposed, then];
            world.shards["a"].faults.lock().extend(faults);
            let below = DocWriter::new().with("$lt", 10).finish();
            let filter = DocWriter::new().with("k", &below).finish();
            world.run(mark(filter.as_doc())).await;
            let asked = world.shards["a"].asked.lock();
            assert_eq!(asked.len(), times, "{asked:?}");
            for other in &asked[1..] {
                assert_eq!(name_of_part(other), name_of_part(&asked[0]));
                let part = other.as_doc().get_doc("_terndbBroadcast").expect("a part");
                assert_eq!(part.get("again"), Some(ValueRef::Boolean(true)), "{part:?}");
            }
        }
    });
}

/// What a shard has forgotten is asked for as something new, later, unless an earlier question may have been
/// carried out: then the client is told that nobody knows.
#[test]
fn forgotten_parts_are_not_repeated() {
    run(async {
        let world = World::new();
        world.insert(&[5, 15, 25], plain).await;
        world.asked("a");
        world.shards["a"].faults.lock().push_back(Fault::Forgotten);
        let reply = world.run(mark_all()).await;
        assert_eq!(int(&reply, "n"), 3, "{reply:?}");
        let (first, then) = {
            let asked = world.shards["a"].asked.lock();
            assert_eq!(asked.len(), 2, "{asked:?}");
            (name_of_part(&asked[0]), name_of_part(&asked[1]))
        };
        assert_eq!(first[..2], then[..2]);
        assert_ne!(first[2], then[2]);
        world.asked("a");
        for lost in [Fault::Deposed, Fault::ReplyLost] {
            let faults = [lost, Fault::Forgotten];
            world.shards["a"].faults.lock().extend(faults);
            let reply = world.run(mark_all()).await;
            assert_eq!(world.asked("a").len(), 2);
            let errors = reply.as_doc().get_array("writeErrors").expect("errors");
            let Some(ValueRef::Document(error)) = errors.get(0) else {
                panic!("no error in {reply:?}");
            };
            let code = Code::TRANSACTION_TOO_OLD.0;
            assert_eq!(error.get("code"), Some(ValueRef::Int32(code)));
        }
    });
}

fn mark_all() -> DocBuf {
    mark(Doc::EMPTY)
}

/// The same for those that a filter selects.
fn mark(filter: Doc<'_>) -> DocBuf {
    let mut update = DocWriter::new().with("update", "birds");
    update.begin_array("updates").push_document();
    update.append("q", filter);
    update
        .begin_document("u")
        .begin_document("$inc")
        .append("n", 1)
        .end()
        .end();
    update.append("multi", true).end().end();
    update.with("$db", "test").finish()
}

/// ⚑ What a shard did that was removed before it told is not guessed, and not done again elsewhere.
#[test]
fn the_part_of_a_shard_that_left_without_an_answer_is_not_guessed() {
    run(async {
        let world = World::new();
        world.insert(&(0..30).collect::<Vec<_>>(), plain).await;
        let c = &world.shards["c"];
        c.faults.lock().extend(vec![Fault::ReplyLost; 1_000]);
        world.asked("c");
        let leaves = async {
            while c.asked.lock().is_empty() {
                tokio::task::yield_now().await;
            }
            world.forget_c().await;
        };
        let (reply, ()) = tokio::join!(world.run(mark_all()), leaves);
        let errors = reply.as_doc().get_array("writeErrors");
        let Some(ValueRef::Document(error)) = errors.and_then(|errors| errors.get(0)) else {
            panic!("no error in {reply:?}");
        };
        assert_eq!(
            error.get("code"),
            Some(ValueRef::Int32(Code::HOST_UNREACHABLE.0))
        );
        let why = error.get_str("errmsg").unwrap_or_default();
        assert!(why.contains("was removed before it told"), "{why}");
        for shard in ["a", "b"] {
            let updates = world.asked(shard);
            let updates = updates.iter().filter(|name| *name == "update");
            assert_eq!(updates.count(), 1, "{shard} does its own part");
        }
    });
}

/// What a shard had that was emptied and removed before it was asked is changed where it is now.
#[test]
fn the_part_of_a_shard_that_left_before_is_taken_over() {
    run(async {
        let world = World::new();
        world.insert(&(0..30).collect::<Vec<_>>(), plain).await;
        for shard in ["a", "b", "c"] {
            world.asked(shard);
        }
        // The router has the table of before, and no such shard.
        world.remove_c().await;
        let reply = world.run(mark_all()).await;
        assert!(reply.get("writeErrors").is_none(), "{reply:?}");
        assert_eq!(world.asked("c"), [""; 0]);
        let updates = world.asked("b");
        assert!(updates.iter().any(|name| name == "update"));
    });
}

/// A shard that is away hears later of sessions that were ended; the client need not wait for it.
#[test]
fn sessions_end_while_a_shard_is_away() {
    run(async {
        let world = World::new();
        world.insert(&[1, 11, 21], plain).await;
        for shard in ["a", "b", "c"] {
            world.asked(shard);
        }
        world.shards["b"].faults.lock().push_back(Fault::NotSent);
        let mut end = DocWriter::new();
        end.begin_array("endSessions").push(&session(5)).end();
        end.append("$db", "admin");
        let reply = world.run(end.finish()).await;
        assert_eq!(reply.get("ok"), Some(ValueRef::Double(1.0)), "{reply:?}");
        assert_eq!(world.ended_sessions(), 1);
        for shard in ["a", "c"] {
            assert_eq!(world.asked(shard), ["endSessions"]);
        }
    });
}

/// The session with these bytes, as a command names it.
fn session(byte: u8) -> DocBuf {
    let bytes = &[byte; 16];
    DocWriter::new()
        .with("id", ValueRef::Binary { subtype: 4, bytes })
        .finish()
}

/// ⚑ Cursors of sessions that are gone are closed, also if it could not be found out of others whether they
/// are.
#[test]
fn cursors_of_sessions_that_are_gone_are_closed_in_any_case() {
    run(async {
        let world = World::new();
        world.insert(&(0..30).collect::<Vec<_>>(), plain).await;
        let admin = |command: DocWriter| world.run(command.with("$db", "admin").finish());
        let refresh = || admin(DocWriter::new().with("refreshLogicalSessionCacheNow", 1));
        // Two sessions are stored, and not used any more.
        let opened = find().with("batchSize", 2).with("lsid", &session(1));
        let opened = world.run(opened.finish()).await;
        let cursor = opened.as_doc().get_doc("cursor");
        let Some(ValueRef::Int64(id)) = cursor.and_then(|cursor| cursor.get("id")) else {
            panic!("no cursor in {opened:?}");
        };
        assert_ne!(id, 0);
        world.run(find().with("lsid", &session(2)).finish()).await;
        let used_ms = crate::hello::now_ms();
        while crate::hello::now_ms() <= used_ms {
            tokio::task::yield_now().await;
        }
        let reply = refresh().await;
        assert_eq!(reply.get("ok"), Some(ValueRef::Double(1.0)), "{reply:?}");
        // One is ended; of the other it cannot be asked.
        let mut end = DocWriter::new();
        end.begin_array("endSessions").push(&session(1)).end();
        admin(end).await;
        {
            let mut faults = world.shards["a"].faults.lock();
            faults.push_back(Fault::None);
            faults.extend(vec![Fault::AnotherLife; 1_000]);
        }
        let reply = refresh().await;
        assert_eq!(reply.get("ok"), Some(ValueRef::Double(0.0)), "{reply:?}");
        let more = DocWriter::new()
            .with("getMore", id)
            .with("collection", "birds")
            .with("lsid", &session(1))
            .with("$db", "test");
        let reply = world.run(more.finish()).await;
        assert_eq!(int(&reply, "code"), Code::CURSOR_NOT_FOUND.0);
    });
}
