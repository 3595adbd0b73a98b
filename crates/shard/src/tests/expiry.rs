//! Documents that expire by an index.

use crate::testing::TestShard;

#[tokio::test(flavor = "multi_thread")]
async fn what_expires_and_what_stays() {
    let server = TestShard::open().await;
    server
        .check(
            r#"
            {createIndexes: "c", indexes: [{key: {t: 1}, name: "t", expireAfterSeconds: 3600}]} => {}
            {createIndexes: "d", indexes: [{key: {t: -1}, name: "t", expireAfterSeconds: 0, partialFilterExpression: {old: true}}]} => {}
            # Old, very old, an array whose first date is old.
            {insert: "c", documents: [{_id: 1, t: Date(1000)}, {_id: 2, t: Date(-5000)}, {_id: 3, t: [Date(1000), Date(99999999999999)]}]} => {n: 3}
            # The future, no date, nothing, an array without dates.
            {insert: "c", documents: [{_id: 4, t: Date(99999999999999)}, {_id: 5, t: 5}, {_id: 6}, {_id: 7, t: ["x"]}, {_id: 8, t: Timestamp(5, 1)}]} => {n: 5}
            {insert: "d", documents: [{_id: 1, t: Date(1000), old: true}, {_id: 2, t: Date(1000)}, {_id: 3, t: null, old: true}]} => {n: 3}
            "#,
        )
        .await;
    server.shard.expire_documents().await;
    server
        .check(
            r#"
            {find: "c", projection: {_id: 1}} => {cursor: {firstBatch: [{_id: 4}, {_id: 5}, {_id: 6}, {_id: 7}, {_id: 8}]}}
            {find: "d", projection: {_id: 1}} => {cursor: {firstBatch: [{_id: 2}, {_id: 3}]}}
            admin {serverStatus: 1} => {metrics: {ttl: {deletedDocuments: 4L, passes: 1L}}}
            "#,
        )
        .await;
    server.check_valid("c").await;
}

/// The task wakes up when a parameter changes, so nobody waits for a minute.
#[tokio::test(flavor = "multi_thread")]
async fn the_task_follows_its_parameters() {
    let server = TestShard::open().await;
    let background = server.shard.spawn_background();
    server
        .check(
            r#"
            {createIndexes: "c", indexes: [{key: {t: 1}, name: "t", expireAfterSeconds: 0}]} => {}
            {insert: "c", documents: [{_id: 1, t: Date(1000)}]} => {n: 1}
            admin {setParameter: 1, ttlMonitorSleepSecs: 1} => {was: 60}
            "#,
        )
        .await;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let passes = || {
        server
            .shard
            .counters
            .ttl_deleted
            .load(std::sync::atomic::Ordering::Relaxed)
    };
    while passes() == 0 {
        assert!(std::time::Instant::now() < deadline, "nothing expires");
        tokio::task::yield_now().await;
    }
    server.check("{count: 'c'} => {n: 0}").await;
    server.shard.begin_shutdown();
    background.await.expect("the task ends with the shutdown");
}
