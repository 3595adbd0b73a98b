//! Parameters of a router: it obeys what it keeps, and refuses what it would not obey.

use super::scans::{batch, by_rank, full_world, more, read};
use super::world::World;
use super::{find, int, run};
use crate::Parameters;
use crate::cursor::close_expired;
use model::bson::{DocBuf, DocWriter, ValueRef};
use model::error::Code;

/// One command about parameters: its reply as text, without times.
async fn told(world: &World, command: &str, name: &str, value: impl Into<ValueRef<'_>>) -> String {
    let command = DocWriter::new().with(command, 1).with(name, value.into());
    let reply = world.run(command.with("$db", "admin").finish()).await;
    let mut shown = DocWriter::new();
    let times = ["$clusterTime", "operationTime"];
    for element in reply.iter().filter(|one| !times.contains(&one.key())) {
        shown.append_element(&element);
    }
    format!("{:?}", shown.finish())
}

fn open_on_shards(world: &World) -> usize {
    let shards = world.shards.values();
    shards.map(|shard| shard.cursors.lock().len()).sum()
}

#[test]
fn idle_cursors_end_when_the_router_says_so() {
    run(async {
        let world = full_world().await;
        let router = &world.handler.0;
        let open = |first: DocWriter| {
            let first = first.with("batchSize", 3).finish();
            async { batch(&world.run(first).await).1 }
        };
        let kept = open(find().with("noCursorTimeout", true)).await;
        let open_for_it = open_on_shards(&world);
        let others = [open(find()).await, open(find()).await];
        close_expired(router).await;
        assert_eq!(router.cursors.open(), 3, "ten minutes are not over");
        assert_eq!(
            told(&world, "setParameter", "cursorTimeoutMillis", 0i64).await,
            "{was: Long(600000), ok: 1.0}"
        );
        assert_eq!(
            told(&world, "getParameter", "cursorTimeoutMillis", 1).await,
            "{cursorTimeoutMillis: Long(0), ok: 1.0}"
        );
        close_expired(router).await;
        assert_eq!(open_on_shards(&world), open_for_it);
        assert_eq!(router.cursors.timed_out(), 2);
        for id in others {
            let reply = world.run(more(id)).await;
            assert_eq!(int(&reply, "code"), Code::CURSOR_NOT_FOUND.0);
        }
        batch(&world.run(more(kept)).await);
    });
}

/// ⚑ Shards have a timeout of their own, and may be set to a shorter one.
#[test]
fn a_scan_outlives_the_cursors_of_its_shards() {
    run(async {
        for sort in [None, Some(by_rank())] {
            let world = full_world().await;
            let mut first = find().with("batchSize", 3);
            if let Some(sort) = &sort {
                first.append("sort", sort);
            }
            let found = read(&world, first.finish(), |_| {
                for shard in world.shards.values() {
                    shard.cursors.lock().clear();
                }
            });
            let mut found = found.await;
            if sort.is_none() {
                found.sort_unstable_by(|one, other| other.cmp(one));
            }
            assert_eq!(found, (0..30).rev().collect::<Vec<_>>());
        }
    });
}

#[test]
fn what_a_router_would_not_obey_is_refused_by_name() {
    run(async {
        let world = full_world().await;
        let cases = [
            ("orphanCleanupDelaySecs", "of shards and config servers"),
            ("birds", "unrecognized parameter [birds]"),
            ("logicalSessionRefreshMillis", "not allowed to change"),
            ("localLogicalSessionTimeoutMinutes", "not allowed to change"),
        ];
        for (name, why) in cases {
            let reply = told(&world, "setParameter", name, 1).await;
            assert!(reply.contains("ok: 0.0"), "{reply}");
            assert!(reply.contains(why) && reply.contains(name), "{reply}");
        }
        let reply = told(&world, "getParameter", "orphanCleanupDelaySecs", 1).await;
        assert!(reply.contains("of shards and config servers"), "{reply}");
        let reply = told(&world, "getParameter", "birds", 1).await;
        assert!(reply.contains("no option found to get"), "{reply}");
        let timeout = "localLogicalSessionTimeoutMinutes";
        let reply = told(&world, "getParameter", timeout, 1).await;
        assert_eq!(reply, "{localLogicalSessionTimeoutMinutes: 30, ok: 1.0}");
        let elsewhere = DocWriter::new().with("setParameter", 1).with("quiet", true);
        let reply = world.run(elsewhere.with("$db", "test").finish()).await;
        assert_eq!(int(&reply, "code"), Code::UNAUTHORIZED.0);
    });
}

/// Sets two parameters, the second of which may not have its value.
fn two(first: i64, second: ValueRef<'_>) -> DocBuf {
    DocWriter::new()
        .with("setParameter", 1)
        .with("cursorTimeoutMillis", first)
        .with("internalDocumentSourceGroupMaxMemoryBytes", second)
        .with("$db", "admin")
        .finish()
}

#[test]
fn all_are_set_or_none() {
    run(async {
        let world = full_world().await;
        let before = world.handler.0.parameters();
        for refused in [ValueRef::Int32(0), ValueRef::String("much")] {
            let reply = world.run(two(5, refused)).await;
            assert_eq!(int(&reply, "code"), Code::BAD_VALUE.0, "{reply:?}");
            assert_eq!(world.handler.0.parameters(), before);
        }
        world.run(two(5, ValueRef::Double(7.0))).await;
        let now = world.handler.0.parameters();
        assert_eq!((now.cursor_timeout_ms, now.group_memory_bytes), (5, 7));
        let whole = DocWriter::new()
            .with("getParameter", "*")
            .with("$db", "admin");
        let shown = format!("{:?}", world.run(whole.finish()).await);
        for name in ["mongosShutdownTimeoutMillisForSignaledShutdown", "quiet"] {
            assert!(shown.contains(name), "{shown}");
        }
    });
}

#[test]
fn a_router_is_started_with_parameters() {
    let check = |given: &[(&str, &str)]| Parameters::at_startup(given.iter().copied());
    let started = check(&[
        ("cursorTimeoutMillis", "1500"),
        ("disableLogicalSessionCacheRefresh", "true"),
        ("allowDiskUseByDefault", "false"),
    ]);
    let started = started.expect("they are a router's");
    assert_eq!(started.cursor_timeout_ms, 1500);
    assert_eq!(started.session_refresh(), None);
    assert!(!started.disk_use);
    for (name, value) in [
        ("cursorTimeoutMillis", "soon"),
        ("logicalSessionRefreshMillis", "0"),
        ("orphanCleanupDelaySecs", "1"),
        ("localLogicalSessionTimeoutMinutes", "1"),
    ] {
        let refused = check(&[(name, value)]).expect_err("it is refused");
        assert!(refused.message.contains(name), "{refused:?}");
    }
}
