//! An entry that means nothing, and what it does for change streams.

use crate::testing::TestShard;

#[tokio::test(flavor = "multi_thread")]
async fn a_note_moves_the_time_of_the_log_on() {
    let shard = TestShard::open().await;
    let before = shard.shard.log.watch().borrow().time;
    shard
        .check(
            r#"
            admin {appendOplogNote: 1, data: {}} => {ok: 1.0}
            admin {appendOplogNote: 1} => 4
            admin {appendOplogNote: 1, data: 1} => 14
            admin {appendOplogNote: 1, data: {}, maxClusterTime: 1} => 14
            admin {appendOplogNote: 1, data: {}, maxClusterTime: Timestamp(1, 1)} => 209
            {appendOplogNote: 1, data: {}} => 13
            "#,
        )
        .await;
    let noted = shard.shard.log.watch().borrow().time;
    assert!(noted > before);
    // Only where it is needed.
    let seconds = noted.seconds() + 100_000;
    shard
        .check(&format!(
            "admin {{appendOplogNote: 1, data: {{}}, maxClusterTime: Timestamp({seconds}, 1)}} => {{ok: 1.0}}"
        ))
        .await;
    assert!(shard.shard.log.watch().borrow().time > noted);
}
