//! Cursors over collections and indexes that go away.

use crate::testing::TestShard;
use differential::value::{Value, get};

async fn opened(server: &TestShard) -> [i64; 2] {
    server
        .check(
            r#"
            {insert: "c", documents: [{_id: 1, x: 1}, {_id: 2, x: 2}, {_id: 3, x: 3}]} => {n: 3}
            {createIndexes: "c", indexes: [{key: {x: 1}, name: "x"}]} => {}
            "#,
        )
        .await;
    let mut ids = [0; 2];
    for (id, find) in ids.iter_mut().zip([
        "{find: 'c', batchSize: 1}",
        "{find: 'c', filter: {x: {$gte: 0}}, hint: 'x', batchSize: 1}",
    ]) {
        let reply = server.run("test", find).await;
        let Some(Value::Int64(found)) = get(&reply, "cursor").and_then(|c| c.get("id")) else {
            panic!("no cursor: {reply:?}");
        };
        *id = *found;
    }
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_ends_with_what_it_reads() {
    for (change, scan, index) in [
        ("{drop: 'c'}", 175, 175),
        ("{dropDatabase: 1}", 175, 175),
        ("{dropIndexes: 'c', index: 'x'}", 0, 175),
    ] {
        let server = TestShard::open().await;
        let ids = opened(&server).await;
        server.check(&format!("{change} => {{}}")).await;
        for (id, code) in ids.into_iter().zip([scan, index]) {
            let expected = match code {
                0 => "{cursor: {}}".to_owned(),
                code => code.to_string(),
            };
            let more = format!("{{getMore: {id}L, collection: 'c'}} => {expected}");
            server.check(&more).await;
        }
    }
}
