//! Cursors as `$currentOp` shows them, with the streams of their scans: short, however much there is to show.

use super::operations::begin;
use super::scans::{batch, by_rank, full_world, more, range, token};
use super::world::World;
use super::{find, run};
use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use std::sync::Arc;

/// What `$currentOp` tells of this router.
async fn shown(world: &World) -> Vec<DocBuf> {
    let mut ask = DocWriter::new().with("aggregate", 1);
    ask.begin_array("pipeline").push_document();
    ask.begin_document("$currentOp").append("localOps", true);
    ask.append("idleCursors", true).end().end().end();
    ask.begin_document("cursor").end().append("$db", "admin");
    let reply = world.run(ask.finish()).await;
    let cursor = reply.as_doc().get_doc("cursor").expect("a cursor");
    let all = crate::registry::batch_of(cursor).map(Doc::to_owned);
    all.collect()
}

/// The scan of the only cursor that nobody uses.
async fn scan(world: &World) -> DocBuf {
    let all = shown(world).await;
    let mut idle = all.iter().filter_map(|one| one.as_doc().get_doc("cursor"));
    let scan = idle.next().and_then(|cursor| cursor.get_doc("elasticScan"));
    assert!(idle.next().is_none(), "{all:?}");
    scan.unwrap_or_else(|| panic!("no scan in {all:?}"))
        .to_owned()
}

/// The streams of a scan: which they are, how far they are, how many ranges they have and the first of these.
fn streams(scan: &DocBuf) -> Vec<String> {
    let listed = scan.as_doc().get_array("streams").expect("streams");
    let line = |stream: ValueRef<'_>| {
        let ValueRef::Document(stream) = stream else {
            panic!("{stream:?}");
        };
        let is_virtual = stream.get("virtual") == Some(ValueRef::Boolean(true));
        let ranges = stream.get_doc("ranges").map(|ranges| {
            let number = ranges.get("count");
            let first = ranges.get_array("first").expect("the first ones");
            let first = first.iter().map(|range| match range {
                ValueRef::Document(range) => {
                    let key = |name| range.get_doc(name).and_then(|bound| bound.get("k"));
                    let show = |name| key(name).map_or("?".to_owned(), |key| format!("{key:?}"));
                    format!(" {}..{}", show("min"), show("max"))
                }
                other => panic!("{other:?}"),
            });
            format!("{:?}:{}", number, first.collect::<String>())
        });
        format!(
            "{}{} {}, {}",
            stream.get_str("shard").expect("a shard"),
            if is_virtual { " virtual" } else { "" },
            stream.get_str("state").expect("a state"),
            ranges.as_deref().unwrap_or("of then")
        )
        .replace("Some(Long(", "")
        .replace("))", "")
    };
    listed.iter().map(line).collect()
}

fn number(scan: &DocBuf, stream: usize, name: &str) -> i64 {
    let streams = scan.as_doc().get_array("streams").expect("streams");
    let Some(ValueRef::Document(stream)) = streams.get(stream) else {
        panic!("{scan:?}");
    };
    match stream.get(name) {
        Some(ValueRef::Int64(number)) => number,
        other => panic!("{name} is {other:?} in {stream:?}"),
    }
}

#[test]
fn streams_are_shown_with_their_ranges_and_how_far_they_are() {
    run(async {
        let world = full_world().await;
        let first = find().with("batchSize", 3).with("sort", &by_rank());
        let (_, id) = batch(&world.run(first.finish()).await);
        let before = scan(&world).await;
        assert_eq!(
            streams(&before),
            [
                "a under way, 1: MinKey..10",
                "b under way, 1: 10..20",
                "c under way, 1: 20..MaxKey",
            ]
        );
        assert_eq!(before.as_doc().get_str("order"), Some("sorted"));
        for at in 0..3 {
            assert_eq!(number(&before, at, "batches"), 1);
            assert_eq!(number(&before, at, "results"), 3);
            assert_ne!(number(&before, at, "shardCursor"), 0);
        }
        world.move_b("b", "c", 9);
        // All of c's, in order, and what comes behind is the moved range.
        for _ in 0..4 {
            batch(&world.run(more(id)).await);
        }
        let after = scan(&world).await;
        assert_eq!(
            streams(&after),
            [
                "a under way, 1: MinKey..10",
                "b ended, 0:",
                "c ended, 1: 20..MaxKey",
                "c virtual under way, 1: 10..20",
            ]
        );
        assert!(number(&after, 1, "repeats") > 0, "{after:?}");
        assert_eq!(number(&after, 3, "hops"), 1);
        let count = |name| after.get(name).map(|count| format!("{count:?}"));
        assert_eq!(count("streamsOpened"), Some("Long(4)".to_owned()));
        assert_eq!(count("streamsEnded"), Some("Long(2)".to_owned()));
    });
}

#[test]
fn ranges_are_those_that_the_query_wants() {
    run(async {
        let world = full_world().await;
        let filter = DocWriter::new().with("k", &range(5, 15)).finish();
        let first = find().with("batchSize", 3).with("filter", &filter);
        let first = first.with("$_requestResumeToken", true).finish();
        let told = world.run(first).await;
        let expected = ["a under way, 1: 5..10", "b under way, 1: 10..15"];
        let begun = scan(&world).await;
        assert_eq!(streams(&begun), expected);
        assert_eq!(begun.get("resumed"), None);
        let (_, id) = batch(&told);
        let mut kill = DocWriter::new().with("killCursors", "birds");
        kill.begin_array("cursors").push(id).end();
        world.run(kill.with("$db", "test").finish()).await;
        let again = find().with("batchSize", 3).with("filter", &filter);
        let again = again.with("$_requestResumeToken", true);
        let again = again.with("$_resumeAfter", &token(&told)).finish();
        world.run(again).await;
        let resumed = scan(&world).await;
        assert_eq!(resumed.get("resumed"), Some(ValueRef::Boolean(true)));
        assert_eq!(streams(&resumed).len(), 2);
    });
}

/// Each shard has hundreds of ranges, and a scan very many streams.
#[test]
fn what_is_shown_is_short() {
    run(async {
        let world = World::striped(1200);
        let (_, mut id) = batch(&world.run(find().with("batchSize", 3).finish()).await);
        let begun = scan(&world).await;
        assert_eq!(
            streams(&begun),
            [
                "a under way, 600: MinKey..1 2..3 4..5",
                "b under way, 600: 1..2 3..4 5..6",
            ]
        );
        for round in 0..60 {
            world.move_stripe(1100 - 2 * round, "c", 10 + round as u32);
            (_, id) = batch(&world.run(more(id)).await);
        }
        let moved = scan(&world).await;
        let Some(ValueRef::Int64(opened)) = moved.get("streamsOpened") else {
            panic!("{moved:?}");
        };
        assert!(opened > 32, "{opened} streams");
        let listed = streams(&moved);
        assert_eq!(listed.len(), 32);
        assert!(listed[0].starts_with("a under way, 5"), "{}", listed[0]);
        let bytes = moved.as_doc().len();
        assert!(bytes < 20_000, "{bytes} bytes");
    });
}

#[test]
fn a_cursor_in_use_is_shown_with_who_uses_it() {
    run(async {
        let world = Arc::new(full_world().await);
        let (_, id) = batch(&world.run(find().with("batchSize", 3).finish()).await);
        // What has come is delivered first.
        let (_, id) = batch(&world.run(more(id)).await);
        let (_, id) = batch(&world.run(more(id)).await);
        let (_, id) = batch(&world.run(more(id)).await);
        let begun = begin(&world, "b", more(id)).await;
        let all = shown(&world).await;
        let uses = |one: &&DocBuf| {
            let command = one.as_doc().get_doc("command");
            command.is_some_and(|command| command.get("getMore").is_some())
        };
        let operation = all.iter().find(uses);
        let operation = operation.unwrap_or_else(|| panic!("{all:?}"));
        let cursor = operation.as_doc().get_doc("cursor").expect("its cursor");
        assert_eq!(cursor.get("cursorId"), Some(ValueRef::Int64(id)));
        let opened_by = cursor.get_doc("originatingCommand");
        let opened_by = opened_by.and_then(|command| command.get_str("find"));
        assert_eq!(opened_by, Some("birds"));
        begun.abort();
    });
}
