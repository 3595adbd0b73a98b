//! `_configsvrGetRouting`: which shard owns what of a collection, to routers and shards.
//!
//! ```text
//!   {_configsvrGetRouting: "db.c", since: {e, t, v}, at: {e, t, v}, from: 40000}
//!   => {sharded: false}
//!   => {sharded: true, uuid, key, unique, version: {e, t, v}, incremental, from, more,
//!       chunks: [{min, max, shard, lastmod, onCurrentShardSince, history, parts}, ..]}
//! ```
//!
//! With `since`, a version of the incarnation that still is, only chunks that changed at or after it are
//! answered (`incremental: true`); else all of them. Chunks come in the order of their versions.
//!
//! A long answer comes in pages. Who wants the next one says of which version (`at`) and how many chunks it
//! has (`from`). If the collection has another version by then the answer begins anew: its `from` is 0, and
//! what was collected before counts for nothing. So an answer is never put together of two tables. ⚑
//!
//! Who asks while an operation is about to change the collection's routing waits for that, with a limit.

use crate::documents::{self, CollectionEntry, as_time, uuid_value};
use crate::error::Fault;
use crate::server::text;
use crate::tenure::Tenure;
use cluster::routing::{ChunkView, RoutingTable};
use model::bson::{Doc, DocBuf, DocWriter};
use model::number::Number;
use model::version::{ChunkVersion, PlacementVersion};
use model::{Code, Namespace};
use std::time::Duration;

/// Chunks in one answer: well below what a message may hold.
const PAGE: usize = 40_000;
/// Tables of more chunks are looked through beside the threads that answer requests.
const AT_ONCE: usize = 1_000;
/// How long a question waits for an operation under way.
const WAIT: Duration = Duration::from_secs(5);

pub(crate) async fn answer(tenure: &Tenure, body: Doc<'_>) -> Result<DocBuf, Fault> {
    let name = Namespace::parse(text(body, "_configsvrGetRouting")?)?;
    let version = |field: &str| {
        let given = body.get_doc(field);
        given.map(PlacementVersion::from_document).transpose()
    };
    let question = Question {
        since: version("since")?,
        at: version("at")?,
        from: body.get("from").and_then(Number::of).map_or(0, |from| {
            // A negative one, or none at all, is the beginning.
            from.to_f64() as usize
        }),
    };
    let names = [name.as_str(), name.database()];
    // The answer is right for this moment in any case; waiting saves another round.
    let _ = tokio::time::timeout(WAIT, tenure.queue.settled(&names)).await;
    let known = {
        let state = tenure.state().await?;
        let sharded = state.lookup(&name)?;
        sharded.map(|(entry, table)| (entry.clone(), table.clone()))
    };
    match known {
        Some((entry, table)) if table.chunk_count() > AT_ONCE => {
            let page = move || page(&entry, &table, question, PAGE);
            let page = tokio::task::spawn_blocking(page).await;
            page.map_err(|_| Fault::new(Code::INTERNAL_ERROR, "a page of routing was not made"))?
        }
        Some((entry, table)) => page(&entry, &table, question, PAGE),
        None => {
            let reply = DocWriter::new().with("sharded", false).with("ok", 1.0);
            Ok(reply.finish())
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Question {
    since: Option<PlacementVersion>,
    at: Option<PlacementVersion>,
    from: usize,
}

fn page(
    entry: &CollectionEntry,
    table: &RoutingTable,
    question: Question,
    length: usize,
) -> Result<DocBuf, Fault> {
    let same_life = |since: &PlacementVersion| since.incarnation == table.incarnation;
    let since = question.since.filter(same_life);
    let from = match question.at {
        Some(at) if at == table.version() => question.from,
        Some(_) | None => 0,
    };
    let mut writer = DocWriter::new()
        .with("sharded", true)
        .with("uuid", uuid_value(&table.uuid))
        .with("key", &entry.key)
        .with("unique", entry.unique);
    writer.begin_document("version");
    table.version().append_to(&mut writer);
    writer
        .end()
        .append("incremental", since.is_some())
        .append("from", from as i64)
        .begin_array("chunks");
    let changed = since.map_or(ChunkVersion::ZERO, |since| since.chunk);
    let mut views: Vec<ChunkView<'_>> = table.changed_since(changed).collect();
    let (page, more) = cut_page(&mut views, from, length);
    for view in page {
        append(&mut writer, table, *view)?;
    }
    writer.end();
    Ok(writer.with("more", more).with("ok", 1.0).finish())
}

/// A page in the order of versions, without sorting all the others; whether more follow.
fn cut_page<'a, 'b>(
    views: &'a mut [ChunkView<'b>],
    from: usize,
    length: usize,
) -> (&'a [ChunkView<'b>], bool) {
    let version = |view: &ChunkView<'_>| view.chunk.version;
    let views = match from {
        0 => views,
        _ if from >= views.len() => &mut [],
        _ => {
            views.select_nth_unstable_by_key(from, version);
            &mut views[from..]
        }
    };
    let more = views.len() > length;
    let page = match more {
        true => {
            views.select_nth_unstable_by_key(length, version);
            &mut views[..length]
        }
        false => views,
    };
    page.sort_unstable_by_key(version);
    (page, more)
}

fn append(writer: &mut DocWriter, table: &RoutingTable, view: ChunkView<'_>) -> Result<(), Fault> {
    let min = documents::bound(&table.pattern, view.chunk.min.as_bytes())?;
    let max = documents::bound(&table.pattern, view.max.as_bytes())?;
    writer
        .push_document()
        .append("min", &min)
        .append("max", &max)
        .append("shard", view.chunk.shard.as_str())
        .append("lastmod", as_time(view.chunk.version));
    documents::owners(writer, &table.pattern, view.chunk)?;
    writer.end();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::routing::{ShardId, initial_chunks};
    use model::bson::{ObjectId, ValueRef};
    use model::ids::Uuid;
    use model::range::KeyBound;
    use model::time::ClusterTime;
    use model::version::Incarnation;

    fn entry(chunks: i32) -> (CollectionEntry, RoutingTable) {
        let name = Namespace::parse("fleet.birds").unwrap();
        let incarnation = Incarnation {
            epoch: ObjectId([1; 12]),
            began: ClusterTime::new(5, 0),
        };
        let key = DocWriter::new().with("k", 1).finish();
        let entry =
            CollectionEntry::new(name, Uuid([7; 16]), incarnation, key.as_doc(), false).unwrap();
        let at = |key: i32| {
            let bound = DocWriter::new().with("k", key).finish();
            entry.pattern.bound(bound.as_doc()).unwrap()
        };
        let bounds: Vec<KeyBound> = (1..chunks).map(at).collect();
        let owners = [ShardId::new("A"), ShardId::new("B")];
        let chunks = initial_chunks(&entry.pattern, &bounds, &owners, ClusterTime::ZERO);
        let pattern = entry.pattern.clone();
        let table = RoutingTable::full(entry.uuid, incarnation, pattern, chunks).unwrap();
        (entry, table)
    }

    fn versions(page: &DocBuf) -> Vec<u32> {
        let chunks = page.as_doc().get_array("chunks").unwrap();
        let versions = chunks.iter().map(|chunk| match chunk {
            ValueRef::Document(chunk) => match chunk.get("lastmod") {
                Some(ValueRef::Timestamp(version)) => version.increment,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        });
        versions.collect()
    }

    #[test]
    fn pages_follow_each_other() {
        let (entry, table) = entry(7);
        let at = |minor: u32| {
            Some(PlacementVersion {
                incarnation: table.incarnation,
                chunk: ChunkVersion::new(1, minor),
            })
        };
        let check = |question: Question, from: i64, expected: &[u32], more: bool| {
            let page = page(&entry, &table, question, 3).unwrap();
            assert_eq!(versions(&page), expected);
            assert_eq!(page.get("more"), Some(ValueRef::Boolean(more)));
            assert_eq!(page.get("from"), Some(ValueRef::Int64(from)));
        };
        let page_of = |minor: u32, from: usize| Question {
            since: None,
            at: at(minor),
            from,
        };
        check(Question::default(), 0, &[0, 1, 2], true);
        check(page_of(6, 3), 3, &[3, 4, 5], true);
        check(page_of(6, 6), 6, &[6], false);
        // Another version by now: from the beginning.
        check(page_of(5, 3), 0, &[0, 1, 2], true);
        let changes = Question {
            since: at(4),
            ..Question::default()
        };
        check(changes, 0, &[4, 5, 6], false);
        // Of another life: everything.
        let other = PlacementVersion {
            incarnation: Incarnation {
                epoch: ObjectId([9; 12]),
                began: ClusterTime::new(1, 0),
            },
            chunk: ChunkVersion::new(1, 6),
        };
        let changes = Question {
            since: Some(other),
            ..Question::default()
        };
        check(changes, 0, &[0, 1, 2], true);
    }
}
