//! Two moves of one collection at the same time.

use super::world::{PATIENCE, World, document, outcome, version};
use model::bson::ValueRef;
use std::time::{Duration, Instant};

async fn filled() -> World {
    let world = World::new("{x: 1}").await;
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    let documents: Vec<String> = (0..300).map(|x| format!("{{_id: {x}, x: {x}}}")).collect();
    world.on(0).insert(&documents).await;
    world
}

/// ⚑ A shard that has heard of a commit, but not of an earlier one by which it owns another range, does not call the
/// newer version its own: routers name versions, and would find nothing.
#[tokio::test(flavor = "multi_thread")]
async fn commits_are_learned_in_their_order() {
    // The later one comes here too, or leaves.
    for leaves in [false, true] {
        let world = filled().await;
        if leaves {
            let reply = world.moves(0, 1, "{x: 200}", "{x: 300}").await;
            assert_eq!(outcome(&reply), "committed", "{reply:?}");
        }
        let decided = world.authority.is_decided();
        let first = world.command(0, 1, "{x: 0}", "{x: 100}");
        // Nobody tells the recipient what was decided.
        let asked = document(&first);
        let id = asked.get("id").map(|id: ValueRef<'_>| id.to_owned());
        *world.network.loses.lock() = Some(Box::new(move |request| {
            let is_release = request.get("_terndbReceiveRelease").is_some();
            is_release && request.get("id").map(|id: ValueRef<'_>| id.to_owned()) == id
        }));
        let earlier = world.on(0).run("admin", &first);
        let later = async {
            let deadline = Instant::now() + PATIENCE;
            while world.authority.is_decided() == decided {
                assert!(Instant::now() < deadline, "it is never decided");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let (from, to) = if leaves { (1, 0) } else { (0, 1) };
            let reply = world.moves(from, to, "{x: 200}", "{x: 300}").await;
            assert_eq!(outcome(&reply), "committed", "{reply:?}");
            let major = if leaves { 4 } else { 3 };
            let wanted = if leaves { 100 } else { 200 };
            let command = format!("{{count: 'c', shardVersion: {}}}", version(major, 0));
            let counted = world.on(1).run("test", &command).await;
            let n = differential::value::get(&counted, "n");
            assert_eq!(
                n,
                Some(&differential::value::Value::Int32(wanted)),
                "leaves: {leaves}, {counted:?}"
            );
        };
        let (reply, ()) = tokio::join!(earlier, later);
        assert_eq!(outcome(&reply), "committed", "{reply:?}");
        *world.network.loses.lock() = None;
        world.close().await;
    }
}

/// Ranges come and go, two at once, between two shards.
#[tokio::test(flavor = "multi_thread")]
async fn ranges_move_beside_each_other_and_against_each_other() {
    let world = filled().await;
    for (first, second) in [
        ((0, 1), (0, 1)),
        ((1, 0), (1, 0)),
        ((0, 1), (0, 1)),
        ((1, 0), (1, 0)),
    ] {
        let one = world.moves(first.0, first.1, "{x: 0}", "{x: 100}");
        let other = world.moves(second.0, second.1, "{x: 100}", "{x: 200}");
        let (one, other) = tokio::join!(one, other);
        assert_eq!(outcome(&one), "committed", "{one:?}");
        assert_eq!(outcome(&other), "committed", "{other:?}");
        let shown = [world.shown(0).await.len(), world.shown(1).await.len()];
        assert_eq!(shown, if first.1 == 1 { [100, 200] } else { [300, 0] });
    }
    // One there, then both against each other.
    let reply = world.moves(0, 1, "{x: 0}", "{x: 100}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    let one = world.moves(1, 0, "{x: 0}", "{x: 100}");
    let other = world.moves(0, 1, "{x: 100}", "{x: 200}");
    let (one, other) = tokio::join!(one, other);
    assert_eq!(outcome(&one), "committed", "{one:?}");
    assert_eq!(outcome(&other), "committed", "{other:?}");
    assert_eq!(world.shown(0).await.len(), 200);
    assert_eq!(world.shown(1).await.len(), 100);
    world.check_owners(&[0, 50, 99, 100, 150, 199, 200]);
    for number in 0..2 {
        world.on(number).check_valid("c").await;
    }
    world.close().await;
}
