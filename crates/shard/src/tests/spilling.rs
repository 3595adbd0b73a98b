//! Sorts and groups that leave memory answer as they do within it, and leave
//! nothing on the disk.

use crate::testing::TestShard;
use differential::notation::print;
use differential::value::{Value, get};

const DOCUMENTS: usize = 2000;

async fn filled() -> TestShard {
    let server = TestShard::open().await;
    let documents: Vec<String> = (0..DOCUMENTS)
        .map(|id| {
            let shuffled = id * 7919 % DOCUMENTS;
            let text = "x".repeat(100 + shuffled % 50);
            format!(
                "{{_id: {id}, n: {shuffled}, g: {}, text: '{text}'}}",
                shuffled % 700
            )
        })
        .collect();
    server.insert(&documents).await;
    server
}

async fn limit(server: &TestShard, bytes: usize) {
    server
        .check(&format!(
            r#"
            admin {{setParameter: 1, internalQueryMaxBlockingSortMemoryUsageBytes: {bytes}}} => {{}}
            admin {{setParameter: 1, internalDocumentSourceGroupMaxMemoryBytes: {bytes}}} => {{}}
            "#
        ))
        .await;
}

fn scratch_files(server: &TestShard) -> usize {
    std::fs::read_dir(&server.shard.scratch)
        .expect("a scratch directory")
        .count()
}

/// Files that this process holds open under the scratch directory, named or not.
fn open_scratch_files(server: &TestShard) -> usize {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else {
        return 0;
    };
    open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|path| path.starts_with(&server.shard.scratch))
        .count()
}

async fn all(server: &TestShard, command: &str) -> Vec<String> {
    let (id, mut documents) = server.batch(command).await;
    documents.extend(server.rest(id, 150).await);
    documents.iter().map(print).collect()
}

const COMMANDS: &[&str] = &[
    "{find: 'c', sort: {n: 1}",
    "{find: 'c', sort: {g: -1, n: 1}, skip: 5, limit: 1500",
    "{find: 'c', sort: {text: 1, _id: -1}, projection: {text: 0}",
    "{aggregate: 'c', cursor: {}, pipeline: [{$sort: {n: -1}}]",
    "{aggregate: 'c', cursor: {}, pipeline: [{$unwind: '$n'}, {$sort: {g: 1, n: 1}}]",
    "{aggregate: 'c', cursor: {}, pipeline: [{$group: {_id: '$g', sum: {$sum: '$n'}, texts: {$push: '$text'}}}, {$sort: {_id: 1}}]",
    "{aggregate: 'c', cursor: {}, pipeline: [{$group: {_id: '$n', first: {$first: '$text'}, all: {$addToSet: '$g'}}}, {$sort: {_id: 1}}]",
    "{aggregate: 'c', cursor: {}, pipeline: [{$bucketAuto: {groupBy: '$n', buckets: 7}}]",
    "{aggregate: 'c', cursor: {}, pipeline: [{$sample: {size: 1500}}, {$count: 'n'}]",
    "{aggregate: 'c', cursor: {}, pipeline: [{$sample: {size: 5000}}, {$group: {_id: null, n: {$sum: '$n'}}}]",
];

#[tokio::test(flavor = "multi_thread")]
async fn what_spills_answers_as_what_does_not() {
    let server = filled().await;
    for command in COMMANDS {
        limit(&server, 100 << 20).await;
        let within = all(&server, &format!("{command}, allowDiskUse: false}}")).await;
        assert!(!within.is_empty());
        limit(&server, 20_000).await;
        let spilled = all(&server, &format!("{command}, allowDiskUse: true}}")).await;
        assert_eq!(spilled, within, "{command}");
        server
            .check(&format!("{command}, allowDiskUse: false}} => 292"))
            .await;
        assert_eq!(scratch_files(&server), 0, "{command}");
        assert_eq!(open_scratch_files(&server), 0, "{command}");
    }
    let explain = "{explain: {find: 'c', sort: {n: 1}}, verbosity: 'executionStats'}";
    let reply = server.run("test", explain).await;
    let sort = get(&reply, "executionStats").and_then(|stats| stats.get("executionStages"));
    assert_eq!(
        sort.and_then(|sort| sort.get("usedDisk")),
        Some(&Value::Bool(true))
    );
    assert_eq!(
        sort.and_then(|sort| sort.get("memLimit")),
        Some(&Value::Int32(20_000))
    );
}

/// Where a command does not say whether it may use the disk, the parameter does.
#[tokio::test(flavor = "multi_thread")]
async fn the_default_can_be_changed() {
    let server = filled().await;
    limit(&server, 20_000).await;
    for (default, code) in [("true", None), ("false", Some(292))] {
        server
            .check(&format!(
                "admin {{setParameter: 1, allowDiskUseByDefault: {default}}} => {{}}
                 admin {{getParameter: 1, allowDiskUseByDefault: 1}} => {{allowDiskUseByDefault: {default}}}"
            ))
            .await;
        let expected = code.map_or("{}".to_owned(), |code: i32| code.to_string());
        for command in ["{find: 'c', sort: {n: 1}", COMMANDS[3], COMMANDS[6]] {
            server
                .check(&format!(
                    "{command}}} => {expected}
                     {command}, allowDiskUse: true}} => {{}}
                     {command}, allowDiskUse: false}} => 292"
                ))
                .await;
        }
    }
}

/// A cursor holds its runs while it lives, and gives them up however it ends.
#[tokio::test(flavor = "multi_thread")]
async fn ended_operations_leave_no_scratch_files() {
    let server = filled().await;
    limit(&server, 20_000).await;
    for end in ["killCursors", "drop", "maxTimeMS", "idle"] {
        for command in [
            "{find: 'c', sort: {n: 1}, batchSize: 2",
            "{aggregate: 'c', cursor: {batchSize: 2}, pipeline: [{$group: {_id: '$n', t: {$push: '$text'}}}]",
        ] {
            match end {
                "maxTimeMS" => {
                    // Too little for 2000 documents that spill; if it was enough after
                    // all, the cursor goes with the next line.
                    server
                        .run("test", &format!("{command}, maxTimeMS: 1}}"))
                        .await;
                    server.shard.cursors.close_idle(far_away());
                }
                "killCursors" => {
                    let (id, _) = server.batch(&format!("{command}}}")).await;
                    assert!(open_scratch_files(&server) > 0, "{command}");
                    let kill = format!(
                        "{{killCursors: 'c', cursors: [{id}L]}} => {{cursorsKilled: [{id}L]}}"
                    );
                    server.check(&kill).await;
                }
                "idle" => {
                    server.batch(&format!("{command}}}")).await;
                    server.shard.cursors.close_idle(far_away());
                }
                _ => {
                    let (id, _) = server.batch(&format!("{command}}}")).await;
                    server
                        .check("admin {renameCollection: 'test.c', to: 'test.d'} => {}")
                        .await;
                    server
                        .run("test", &format!("{{getMore: {id}L, collection: 'c'}}"))
                        .await;
                    server
                        .check("admin {renameCollection: 'test.d', to: 'test.c'} => {}")
                        .await;
                    server.shard.cursors.close_idle(far_away());
                }
            }
            assert_eq!(scratch_files(&server), 0, "{end} {command}");
            assert_eq!(open_scratch_files(&server), 0, "{end} {command}");
        }
    }
}

fn far_away() -> std::time::Instant {
    std::time::Instant::now() + std::time::Duration::from_secs(3600)
}

/// A sort keeps what is asked for behind it, so that less of it fits where all of it would not.
#[tokio::test(flavor = "multi_thread")]
async fn a_sort_keeps_only_what_is_projected() {
    let server = filled().await;
    limit(&server, 300_000).await;
    let whole = "{aggregate: 'c', pipeline: [{$sort: {n: 1}}], allowDiskUse: false, cursor: {}}";
    server.check(&format!("{whole} => 292")).await;
    for command in [
        "{aggregate: 'c', pipeline: [{$sort: {n: 1}}, {$project: {g: 1}}], allowDiskUse: false, cursor: {batchSize: 2}}",
        "{find: 'c', sort: {n: 1}, projection: {g: 1}, allowDiskUse: false, batchSize: 2}",
    ] {
        let (_, documents) = server.batch(command).await;
        let shown: Vec<String> = documents.iter().map(print).collect();
        // The documents with n 0 and n 1, found by what was left out.
        let second = (0..DOCUMENTS).find(|id| id * 7919 % DOCUMENTS == 1);
        let second = second.expect("7919 is a prime");
        assert_eq!(
            shown,
            [
                "{_id: 0, g: 0}".to_owned(),
                format!("{{_id: {second}, g: 1}}")
            ]
        );
    }
}
