//! What a router tells of itself, and how it ends.

use super::world::World;
use super::{find, int, plain, run};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::error::Code;
use std::sync::Arc;
use std::time::Duration;

fn admin(command: &str) -> DocWriter {
    DocWriter::new().with(command, 1).with("$db", "admin")
}

fn number(doc: Option<Doc<'_>>, name: &str) -> Option<i64> {
    match doc?.get(name)? {
        ValueRef::Int64(number) => Some(number),
        ValueRef::Int32(number) => Some(i64::from(number)),
        _ => None,
    }
}

/// The counters are this router's: the config server is not asked (it would refuse).
#[test]
fn the_status_of_a_router_is_its_own() {
    run(async {
        let world = World::new();
        world.insert(&[1, 11, 21], plain).await;
        world.run(find().finish()).await;
        world.move_b_to_c();
        let one = DocWriter::new().with("k", 15).finish();
        world.run(find().with("filter", &one).finish()).await;
        let status = world.run(admin("serverStatus").finish()).await;
        let status = status.as_doc();
        assert_eq!(status.get_str("process"), Some("mongos"));
        let counted = status.get_doc("opcounters");
        for (name, expected) in [("insert", 3), ("query", 2), ("update", 0), ("command", 1)] {
            assert_eq!(number(counted, name), Some(expected), "{name}");
        }
        let sharding = status.get_doc("shardingStatistics");
        let cache = sharding.and_then(|it| it.get_doc("catalogCache"));
        assert_eq!(number(cache, "countStaleConfigErrors"), Some(1));
        assert_eq!(number(cache, "numDatabaseEntries"), Some(1));
        assert!(status.get("repl").is_none());
        let short = world.run(admin("serverStatus").with("opcounters", 0).finish());
        let short = short.await;
        assert!(short.get("opcounters").is_none() && short.get("network").is_some());
        let pools = world.run(admin("connPoolStats").finish()).await;
        // Within a process there are no connections.
        assert_eq!(int(&pools, "totalCreated"), 0);
        let sets = pools.as_doc().get_doc("replicaSets");
        assert!(sets.is_some_and(|sets| sets.get_doc("a").is_some()));
    });
}

/// Clients hear that a router is about to stop, and what it does for them till then.
#[test]
fn a_router_that_is_about_to_stop_says_so() {
    run(async {
        let world = Arc::new(World::new());
        world.insert(&(0..30).collect::<Vec<_>>(), plain).await;
        let opened = world.run(find().with("batchSize", 2).finish()).await;
        let cursor = opened
            .as_doc()
            .get_doc("cursor")
            .and_then(|it| it.get("id"));
        let Some(ValueRef::Int64(cursor)) = cursor else {
            panic!("{opened:?} has no cursor");
        };
        let hello = world.run(admin("hello").finish()).await;
        let known = hello.as_doc().get_doc("topologyVersion").map(Doc::to_owned);
        let known = known.expect("a router tells its version");
        // One who waits for news.
        let waiting = tokio::spawn({
            let world = world.clone();
            let awaited = admin("hello")
                .with("topologyVersion", &known)
                .with("maxAwaitTimeMS", 3_600_000i64);
            async move { world.run(awaited.finish()).await }
        });
        tokio::task::yield_now().await;
        let limit = Duration::from_secs(100);
        world.handler.0.quiesce(limit, Duration::ZERO).await;
        let heard = tokio::time::timeout(Duration::from_secs(60), waiting).await;
        let heard = heard.expect("it is told at once").expect("it ends");
        let code = |reply: &DocBuf| int(reply, "code");
        assert_eq!(code(&heard), Code::SHUTDOWN_IN_PROGRESS.0);
        let left = number(Some(heard.as_doc()), "remainingQuiesceTimeMillis");
        assert!(
            left.is_some_and(|left| (1..=100_000).contains(&left)),
            "{heard:?}"
        );
        let version = heard.as_doc().get_doc("topologyVersion");
        assert!(number(version, "counter") > number(Some(known.as_doc()), "counter"));

        let drop = DocWriter::new().with("drop", "birds").with("$db", "test");
        for refused in [find(), drop, admin("hello"), admin("isMaster")] {
            let reply = world.run(refused.finish()).await;
            assert_eq!(code(&reply), Code::SHUTDOWN_IN_PROGRESS.0, "{reply:?}");
        }
        // A write may have been about to follow it.
        let greeted = world.run(admin("hello").finish()).await;
        assert!(greeted.get("errorLabels").is_some(), "{greeted:?}");
        for retryable in [false, true] {
            let numbered = |body: DocWriter| match retryable {
                true => body.with("txnNumber", 1i64),
                false => body,
            };
            let refused = world.insert(&[99], numbered).await;
            assert_eq!(code(&refused), Code::SHUTDOWN_IN_PROGRESS.0);
            // A driver sends a write again only where it is told that it may.
            assert_eq!(refused.get("errorLabels").is_some(), retryable);
        }
        // What was begun goes on.
        let mut more = DocWriter::new().with("getMore", cursor);
        more.append("collection", "birds");
        let more = world.run(more.with("$db", "test").finish()).await;
        let batch = more.as_doc().get_doc("cursor");
        let batch = batch.and_then(|cursor| cursor.get_array("nextBatch"));
        assert_eq!(batch.map(|batch| batch.iter().count()), Some(28));
        assert_eq!(
            world.run(admin("ping").finish()).await.get("ok"),
            Some(ValueRef::Double(1.0))
        );
    });
}
