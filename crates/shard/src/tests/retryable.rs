//! Retryable writes: a statement that is sent again is answered, not run again.

use crate::testing::TestShard;
use differential::notation::print_fields;

const SESSION: &str = "lsid: {id: UUID(\"00112233-4455-6677-8899-aabbccddeeff\")}";

/// Runs a script in which `@n` stands for the session and transaction number n.
async fn check(shard: &TestShard, script: &str) {
    let mut expanded = String::new();
    for (at, part) in script.split('@').enumerate() {
        if at == 0 {
            expanded.push_str(part);
            continue;
        }
        let end = part
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(part.len());
        let (number, rest) = part.split_at(end);
        expanded.push_str(&format!("{SESSION}, txnNumber: {number}L{rest}"));
    }
    shard.check(&expanded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_inserted_once() {
    let shard = TestShard::open().await;
    check(
        &shard,
        r#"
        {insert: "c", documents: [{_id: 1}, {_id: 2}], @1} => {n: 2}
        {insert: "c", documents: [{_id: 1}, {_id: 2}], @1} => {n: 2, retriedStmtIds: [0, 1]}
        # A batch of which a part ran.
        {insert: "c", documents: [{_id: 1}, {_id: 2}, {_id: 3}], @1} => {n: 3, retriedStmtIds: [0, 1]}
        {insert: "c", documents: [{_id: 9}, {_id: 9}, {_id: 9}, {_id: 1}], @1} => {n: 3, retriedStmtIds: [0, 1, 2], writeErrors: [{index: 3, code: 11000}]}
        {count: "c"} => {n: 3}
        # Without a number nothing is remembered.
        {insert: "c", documents: [{_id: 1}]} => 11000
        # A failed statement is evaluated anew.
        {insert: "c", documents: [{_id: 1}], @2} => 11000
        {delete: "c", deletes: [{q: {_id: 1}, limit: 1}]} => {n: 1}
        {insert: "c", documents: [{_id: 1}], @2} => {n: 1}
        {insert: "c", documents: [{_id: 1}], @2} => {n: 1, retriedStmtIds: [0]}
        {insert: "c", documents: [{_id: 1}], @1} => 225
        {insert: "c", documents: [{_id: 4}], @0} => 225
        # An unordered batch remembers what succeeded.
        {insert: "c", documents: [{_id: 5}, {_id: 1}, {_id: 6}], ordered: false, @3} => {n: 2, writeErrors: [{index: 1}]}
        {insert: "c", documents: [{_id: 5}, {_id: 1}, {_id: 6}], ordered: false, @3} => {n: 2, writeErrors: [{index: 1}], retriedStmtIds: [0, 2]}
        "#,
    )
    .await;
    check(&shard.reopen().await, r#"
        {insert: "c", documents: [{_id: 5}, {_id: 1}, {_id: 6}], ordered: false, @3} => {n: 2, writeErrors: [{index: 1}], retriedStmtIds: [0, 2]}
        {insert: "c", documents: [{_id: 5}], @2} => 225
        {count: "c"} => {n: 5}
    "#).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_and_deletes_happen_once() {
    let shard = TestShard::open().await;
    let first = r#"
        {insert: "c", documents: [{_id: 1, a: 0}, {_id: 3, a: 0}, {_id: 4}]} => {n: 3}
        {update: "c", updates: [{q: {_id: 100}, u: {$inc: {a: 1}}, upsert: true}, {q: {_id: 1}, u: {$inc: {a: 1}}}, {q: {k: 5}, u: {$set: {a: 1}}, upsert: true}, {q: {_id: 3}, u: {$set: {a: 0}}}, {q: {_id: "none"}, u: {$set: {a: 0}}}], @1} => {n: 4, nModified: 1, upserted: [{index: 0, _id: 100}, {index: 2}]}
    "#;
    let again = r#"
        {update: "c", updates: [{q: {_id: 100}, u: {$inc: {a: 1}}, upsert: true}, {q: {_id: 1}, u: {$inc: {a: 1}}}, {q: {k: 5}, u: {$set: {a: 1}}, upsert: true}, {q: {_id: 3}, u: {$set: {a: 0}}}, {q: {_id: "none"}, u: {$set: {a: 0}}}], @1} => {n: 4, nModified: 1, retriedStmtIds: [0, 1, 2], upserted: [{index: 0, _id: 100}, {index: 2}]}
        admin {serverStatus: 1} => {transactions: {retriedCommandsCount: 1L, retriedStatementsCount: 3L}}
        {find: "c", filter: {_id: {$in: [1, 100]}}} => {cursor: {firstBatch: [{_id: 1, a: 1}, {_id: 100, a: 1}]}}
    "#;
    check(&shard, first).await;
    check(&shard, again).await;
    let shard = shard.reopen().await;
    check(&shard, again).await;
    check(
        &shard,
        r#"
        # What changed nothing is evaluated anew, and remembered once it changes something.
        {update: "c", updates: [{q: {_id: 3}, u: {$set: {a: 0}}}], @2} => {n: 1, nModified: 0}
        {update: "c", updates: [{q: {_id: 3}, u: {$set: {a: 9}}}]} => {n: 1, nModified: 1}
        {update: "c", updates: [{q: {_id: 3}, u: {$set: {a: 0}}}], @2} => {n: 1, nModified: 1}
        {update: "c", updates: [{q: {_id: 3}, u: {$set: {a: 0}}}], @2} => {n: 1, nModified: 1, retriedStmtIds: [0]}
        {delete: "c", deletes: [{q: {_id: 4}, limit: 1}, {q: {_id: 44}, limit: 1}], @3} => {n: 1}
        {insert: "c", documents: [{_id: 4}]} => {n: 1}
        {delete: "c", deletes: [{q: {_id: 4}, limit: 1}, {q: {_id: 44}, limit: 1}], @3} => {n: 1, retriedStmtIds: [0]}
        {count: "c", query: {_id: 4}} => {n: 1}
        # Many documents at once cannot be retried.
        {update: "c", updates: [{q: {}, u: {$inc: {a: 1}}, multi: true}], @4} => 72
        {delete: "c", deletes: [{q: {}, limit: 0}], @4} => 72
        {update: "c", updates: [{q: {_id: 1}, u: {$inc: {a: 1}}}, {q: {}, u: {$inc: {a: 1}}, multi: true}, {q: {_id: 3}, u: {$inc: {a: 1}}}], ordered: false, @5} => {n: 2, nModified: 2, writeErrors: [{index: 1, code: 72}]}
        {update: "c", updates: [{q: {_id: 1}, u: {$inc: {a: 1}}}, {q: {}, u: {$inc: {a: 1}}, multi: true}, {q: {_id: 3}, u: {$inc: {a: 1}}}], ordered: false, @5} => {n: 2, nModified: 2, retriedStmtIds: [0, 2], writeErrors: [{index: 1, code: 72}]}
        "#,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn find_and_modify_returns_the_same_again() {
    let shard = TestShard::open().await;
    let before = r#"{findAndModify: "c", query: {_id: 7}, update: {$inc: {a: 1}}, @1}"#;
    let after = r#"{findAndModify: "c", query: {_id: 7}, update: {$inc: {a: 1}}, new: true, fields: {a: 1}, @2}"#;
    let upsert = r#"{findAndModify: "c", query: {_id: 8}, update: {$set: {a: 1}}, upsert: true, new: true, @3}"#;
    let silent =
        r#"{findAndModify: "c", query: {_id: 9}, update: {$set: {a: 1}}, upsert: true, @4}"#;
    let remove = r#"{findAndModify: "c", query: {_id: 7}, remove: true, @5}"#;
    let script = [
        (
            before,
            "{lastErrorObject: {n: 1, updatedExisting: true}, value: {_id: 7, a: 0}",
            r#"{update: "c", updates: [{q: {_id: 7}, u: {$inc: {a: 100}}}]} => {n: 1}"#,
        ),
        (
            after,
            "{lastErrorObject: {n: 1, updatedExisting: true}, value: {_id: 7, a: 102}",
            r#"{update: "c", updates: [{q: {_id: 7}, u: {$inc: {a: 100}}}]} => {n: 1}"#,
        ),
        (
            upsert,
            "{lastErrorObject: {n: 1, updatedExisting: false, upserted: 8}, value: {_id: 8, a: 1}",
            r#"{update: "c", updates: [{q: {_id: 8}, u: {$inc: {a: 100}}}]} => {n: 1}"#,
        ),
        (
            silent,
            "{lastErrorObject: {n: 1, updatedExisting: false, upserted: 9}, value: null",
            r#"{update: "c", updates: [{q: {_id: 9}, u: {$inc: {a: 100}}}]} => {n: 1}"#,
        ),
        (
            remove,
            "{lastErrorObject: {n: 1}, value: {_id: 7, a: 202}",
            r#"{insert: "c", documents: [{_id: 7}]} => {n: 1}"#,
        ),
    ];
    check(
        &shard,
        r#"{insert: "c", documents: [{_id: 7, a: 0}]} => {n: 1}"#,
    )
    .await;
    let mut shard = shard;
    for (command, answer, meanwhile) in script {
        check(&shard, &format!("{command} => {answer}}}")).await;
        check(&shard, meanwhile).await;
        check(
            &shard,
            &format!("{command} => {answer}, retriedStmtId: 0}}"),
        )
        .await;
        shard = shard.reopen().await;
        check(
            &shard,
            &format!("{command} => {answer}, retriedStmtId: 0}}"),
        )
        .await;
    }
    check(&shard, r#"
        # Another command than the first time.
        {findAndModify: "c", query: {_id: 7}, update: {$inc: {a: 1}}, @5} => 40606
        {update: "c", updates: [{q: {_id: 7}, u: {$inc: {a: 1}}}], @5} => 40638
        {delete: "c", deletes: [{q: {_id: 7}, limit: 1}], @5} => {n: 1, retriedStmtIds: [0]}
        {delete: "c", deletes: [{q: {_id: 7}, limit: 1}], @6} => {n: 1}
        {findAndModify: "c", query: {_id: 7}, remove: true, @6} => 40607
        {update: "c", updates: [{q: {_id: 8}, u: {$inc: {a: 1}}}], @7} => {n: 1}
        {findAndModify: "c", query: {_id: 8}, update: {$inc: {a: 1}}, @7} => 40612
        {findAndModify: "c", query: {_id: 8}, update: {$inc: {a: 1}}, new: true, @7} => 40611
        {insert: "c", documents: [{_id: 10}], @8} => {n: 1}
        {findAndModify: "c", query: {_id: 8}, update: {$inc: {a: 1}}, new: true, @8} => 40608
        # One image is kept for a session: that of the latest statement.
        {findAndModify: "c", query: {_id: 8}, update: {$inc: {a: 1}}, stmtId: 5, @9} => {value: {a: 102}}
        {findAndModify: "c", query: {_id: 8}, update: {$inc: {a: 1}}, stmtId: 6, @9} => {value: {a: 103}}
        {findAndModify: "c", query: {_id: 8}, update: {$inc: {a: 1}}, stmtId: 6, @9} => {value: {a: 103}, retriedStmtId: 6}
        {findAndModify: "c", query: {_id: 8}, update: {$inc: {a: 1}}, stmtId: 5, @9} => 5637602
        {findAndModify: "c", query: {_id: 8}, update: {$inc: {a: 1}}, stmtIds: [5], @9} => 40415
    "#).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_and_statement_ids_are_checked() {
    let shard = TestShard::open().await;
    let command = r#"insert: "c", documents: [{_id: 1}, {_id: 2}]"#;
    let script = format!(
        r#"
        {{{command}, {SESSION}, txnNumber: 1}} => 14
        {{{command}, {SESSION}, txnNumber: "a"}} => 14
        {{{command}, {SESSION}, txnNumber: -1L}} => 72
        {{{command}, txnNumber: 1L}} => 72
        {{{command}, {SESSION}, txnNumber: 1L, stmtIds: [7]}} => 16
        {{{command}, {SESSION}, txnNumber: 1L, stmtIds: [7, 8], stmtId: 1}} => 72
        {{{command}, {SESSION}, txnNumber: 1L, stmtIds: [7, "a"]}} => 14
        {{{command}, {SESSION}, txnNumber: 1L, stmtId: 1.5}} => 14
        {{{command}, {SESSION}, txnNumber: 1L, autocommit: true}} => 72
        {{{command}, {SESSION}, txnNumber: 1L, autocommit: false}} => 115
        {{{command}, {SESSION}, txnNumber: 1L, autocommit: false, startTransaction: true}} => 115
        {{{command}, {SESSION}, txnNumber: 1L, startTransaction: true}} => 72
        {{{command}, {SESSION}, autocommit: false}} => 72
        {{find: "c", {SESSION}, txnNumber: 1L}} => 50768
        {{find: "c", stmtIds: [1]}} => 40415
        {{find: "c", stmtId: 1}} => {{}}
        {{ping: 1, {SESSION}, txnNumber: 1L}} => 50889
        {{{command}, lsid: {{id: 1}}}} => 14
        {{{command}, lsid: {{}}}} => 40414
        {{{command}, {SESSION}, txnNumber: 1L, stmtIds: [7, -3]}} => {{n: 2}}
        {{{command}, {SESSION}, txnNumber: 1L, stmtIds: [-3, 7]}} => {{n: 2, retriedStmtIds: [-3, 7]}}
        {{{command}, {SESSION}, txnNumber: 1L, stmtId: 7}} => {{n: 1, retriedStmtIds: [7], writeErrors: [{{index: 1, code: 11000}}]}}
        "#
    );
    shard.check(&script).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_history_lies_in_overflow_documents() {
    const STATEMENTS: usize = 400;
    let shard = TestShard::open().await;
    let updates: Vec<String> = (0..STATEMENTS)
        .map(|at| format!("{{q: {{_id: 'number {at}'}}, u: {{$set: {{a: 1}}}}, upsert: true}}"))
        .collect();
    let command = format!("{{update: 'c', updates: [{}], @1}}", updates.join(", "));
    let all: Vec<String> = (0..STATEMENTS).map(|at| at.to_string()).collect();
    let retried = format!(
        "{command} => {{n: {STATEMENTS}, retriedStmtIds: [{}]}}",
        all.join(", ")
    );
    check(&shard, &format!("{command} => {{n: {STATEMENTS}}}")).await;
    check(&shard, &retried).await;
    assert!(overflows(&shard) > 2, "the history is long");
    let shard = shard.reopen().await;
    check(&shard, &retried).await;
    // A later number needs them no more.
    check(
        &shard,
        r#"{insert: "c", documents: [{_id: 1}], @2} => {n: 1}"#,
    )
    .await;
    assert_eq!(overflows(&shard), 0);
}

fn overflows(shard: &TestShard) -> usize {
    let snapshot = shard.shard.store.snapshot();
    snapshot.scan_meta(&[2]).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_overflow_document_is_an_incomplete_history() {
    let shard = TestShard::open().await;
    let updates: Vec<String> = (0..200)
        .map(|at| format!("{{q: {{_id: 'number {at}'}}, u: {{$set: {{a: 1}}}}, upsert: true}}"))
        .collect();
    let command = format!("{{update: 'c', updates: [{}], @1}}", updates.join(", "));
    check(&shard, &format!("{command} => {{n: 200}}")).await;
    let keys: Vec<Vec<u8>> = shard
        .shard
        .store
        .snapshot()
        .scan_meta(&[2])
        .map(|pair| pair.expect("the engine reads").0.to_vec())
        .collect();
    shard
        .shard
        .propose_catalog(|encoder| encoder.delete_meta(&keys[0]))
        .await
        .expect("it is deleted");
    let shard = shard.reopen().await;
    check(&shard, &format!("{command} => 217")).await;
    check(
        &shard,
        r#"{insert: "c", documents: [{_id: 1}], @2} => {n: 1}"#,
    )
    .await;
}

/// ⚑ Who gave up waiting may have written all the same: the next attempt finds out
/// before it answers, and never runs the statement a second time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_write_is_settled_by_its_retry() {
    let shard = std::sync::Arc::new(TestShard::open().await);
    shard
        .check("{insert: 'c', documents: [{_id: 1, a: 0}]} => {n: 1}")
        .await;
    for number in 1..100 {
        let command = format!(
            "{{update: 'c', updates: [{{q: {{_id: 1}}, u: {{$inc: {{a: 1}}}}}}], {SESSION}, txnNumber: {number}L}}"
        );
        let abandoned = tokio::spawn({
            let (shard, command) = (shard.clone(), command.clone());
            async move { shard.run("test", &command).await }
        });
        for _ in 0..number % 7 {
            tokio::task::yield_now().await;
        }
        abandoned.abort();
        shard
            .check(&format!(
                "{command} => {{n: 1, nModified: 1}}\n{{find: 'c'}} => {{cursor: {{firstBatch: [{{a: {number}}}]}}}}"
            ))
            .await;
        let _ = abandoned.await;
    }
}

/// The same statement from many connections at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn operations_of_one_session_run_one_after_the_other() {
    let shard = std::sync::Arc::new(TestShard::open().await);
    for number in 1..20 {
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let shard = shard.clone();
            tasks.push(tokio::spawn(async move {
                let command = format!(
                    "{{update: 'c', updates: [{{q: {{_id: 1}}, u: {{$inc: {{a: 1}}}}, upsert: true}}], \
                     {SESSION}, txnNumber: {number}L}}"
                );
                let reply = shard.run("test", &command).await;
                print_fields(&reply)
            }));
        }
        let mut first = 0;
        for task in tasks {
            let reply = task.await.expect("the task ends");
            assert!(reply.contains("n: 1,"), "{reply}");
            first += usize::from(!reply.contains("retriedStmtIds"));
        }
        assert_eq!(first, 1);
        shard
            .check(&format!(
                "{{find: 'c'}} => {{cursor: {{firstBatch: [{{_id: 1, a: {number}}}]}}}}"
            ))
            .await;
    }
}
