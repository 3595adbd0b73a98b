//! A shard has left the cluster, and the router's tables still name it: whatever is asked for first finds where its
//! ranges are now.

use super::scans::{batch, full_world};
use super::world::World;
use super::{find, int, run};
use model::bson::{DocBuf, DocWriter};

/// A world whose router knows the table of before, and one command that is the first behind it.
fn check(command: impl Fn() -> DocBuf, holds: impl Fn(&DocBuf, &World) -> bool) {
    run(async {
        let world = full_world().await;
        let first = find().with("filter", &key(25)).finish();
        assert_eq!(batch(&world.run(first).await).0, [25]);
        world.remove_c().await;
        let reply = world.run(command()).await;
        assert!(holds(&reply, &world), "{reply:?}");
    });
}

fn key(key: i32) -> DocBuf {
    DocWriter::new().with("k", key).finish()
}

fn one_statement(command: &str, list: &str, rest: impl Fn(&mut DocWriter)) -> DocBuf {
    let mut writer = DocWriter::new().with(command, "birds").with("$db", "test");
    writer.begin_array(list).push_document();
    writer.append("q", &key(25));
    rest(&mut writer);
    writer.end().end();
    writer.finish()
}

#[test]
fn who_reads_one_document_finds_it_elsewhere() {
    check(
        || find().with("filter", &key(25)).finish(),
        |reply, _| batch(reply).0 == [25],
    );
}

#[test]
fn who_writes_one_document_finds_its_new_owner() {
    let update = || {
        one_statement("update", "updates", |statement| {
            statement.begin_document("u");
            statement
                .begin_document("$set")
                .append("name", "other")
                .end()
                .end();
        })
    };
    let delete = || {
        one_statement("delete", "deletes", |statement| {
            statement.append("limit", 1);
        })
    };
    let is_done =
        |reply: &DocBuf, _: &World| int(reply, "n") > 0 && reply.get("writeErrors").is_none();
    check(update, is_done);
    check(delete, is_done);
}

#[test]
fn who_inserts_does_so_elsewhere() {
    run(async {
        let world = full_world().await;
        assert_eq!(
            batch(&world.run(find().with("filter", &key(25)).finish()).await).0,
            [25]
        );
        world.remove_c().await;
        let reply = world.insert(&[100], |writer| writer).await;
        assert_eq!(int(&reply, "n"), 1, "{reply:?}");
        assert!(world.keys_on("b").contains(&100));
        assert!(!world.keys_on("c").contains(&100));
    });
}
