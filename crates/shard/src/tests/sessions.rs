//! Logical sessions: in use, refreshed, ended, expired, killed, reaped.

use crate::ShardHandler;
use crate::testing::TestShard;
use differential::notation::print_fields;
use differential::value::{Value, get};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use wire::{BoxFuture, CallError, Endpoint, InProcess, Reply, Request};

const FIRST: &str = r#"lsid: {id: UUID("00000000-0000-4000-8000-000000000001")}"#;
const SECOND: &str = r#"lsid: {id: UUID("00000000-0000-4000-8000-000000000002")}"#;

/// Where a cluster keeps its sessions, as a config server tells it.
struct Config {
    exists: AtomicBool,
}

impl Endpoint for Config {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        assert_eq!(request.name(), "_configsvrSessionsCollection");
        // Only the config server's primary says so.
        assert_eq!(request.body().get("setUp"), None);
        let reply = Reply::writer()
            .with("exists", self.exists.load(Ordering::SeqCst))
            .with("timeoutMinutes", 60)
            .with("ok", 1.0);
        Box::pin(async move { Ok(Reply::from_writer(reply)) })
    }
}

/// A shard of a cluster whose sessions are in a collection elsewhere: the shard, and elsewhere.
async fn shard_of_a_cluster() -> (TestShard, TestShard, Arc<Config>) {
    let (shard, elsewhere) = (TestShard::open().await, TestShard::open().await);
    shard
        .check("admin {_terndbBecomeShard: 1, shard: 'shard0', clusterId: ObjectId('0102030405060708090a0b0c')} => {}")
        .await;
    let config = Arc::new(Config {
        exists: AtomicBool::new(false),
    });
    let door = ShardHandler(elsewhere.shard.clone());
    let routed = Arc::new(InProcess::new(Arc::new(door)));
    let told = config.clone();
    shard.shard.keep_sessions_in_cluster(told, routed, false);
    (shard, elsewhere, config)
}

/// ⚑ A refresh that began when the set was no shard does not make a collection of sessions that is dropped
/// by who adds it: it has ended when the set is a shard, or it notices.
#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_does_not_overlap_becoming_a_shard() {
    let shard = TestShard::open().await;
    let config = Arc::new(Config {
        exists: AtomicBool::new(true),
    });
    let door = ShardHandler(shard.shard.clone());
    let routed = Arc::new(InProcess::new(Arc::new(door)));
    shard.shard.keep_sessions_in_cluster(config, routed, false);
    let used = format!("config {{find: 'transactions', {FIRST}}} => {{}}");
    shard.check(&used).await;
    // Somebody writes sessions.
    let writing = shard.shard.session_home.of_its_own.lock().await;
    let has_become = AtomicBool::new(false);
    let becomes = async {
        shard
            .check("admin {_terndbBecomeShard: 1, shard: 'shard0', clusterId: ObjectId('0102030405060708090a0b0c')} => {}")
            .await;
        has_become.store(true, Ordering::SeqCst);
    };
    let refreshes = shard.check("admin {refreshLogicalSessionCacheNow: 1} => 118");
    let ends = async {
        while !shard.shard.sharding.is_shard() {
            tokio::task::yield_now().await;
        }
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        assert!(
            !has_become.load(Ordering::SeqCst),
            "sessions are still written"
        );
        drop(writing);
    };
    tokio::join!(refreshes, becomes, ends);
    shard
        .check("config {listCollections: 1, filter: {name: 'system.sessions'}} => {cursor: {firstBatch: []}}")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_keeps_its_sessions_in_the_cluster() {
    let (shard, elsewhere, config) = shard_of_a_cluster().await;
    shard
        .check(&format!(
            "config {{find: 'transactions', {FIRST}}} => {{}}\nconfig {{find: 'transactions', {SECOND}}} => {{}}"
        ))
        .await;
    // ⚑ Nobody but the config server makes the collection, and without it nobody is gone.
    shard
        .check("admin {refreshLogicalSessionCacheNow: 1} => 118")
        .await;
    assert_eq!((local(&shard).await, stored(&shard).await), (2, 0));
    config.exists.store(true, Ordering::SeqCst);
    refresh(&shard).await;
    assert_eq!((local(&shard).await, stored(&elsewhere).await), (2, 2));
    assert_eq!(stored(&shard).await, 0);
    // The lifetime is the config server's.
    shard
        .check("admin {hello: 1} => {logicalSessionTimeoutMinutes: 60}")
        .await;
    // One is ended here, the other expires there.
    shard
        .check(&format!("admin {{endSessions: {}}} => {{}}", listed(FIRST)))
        .await;
    shard.clock.advance_minutes(1);
    refresh(&shard).await;
    assert_eq!((local(&shard).await, stored(&elsewhere).await), (1, 1));
    elsewhere
        .check("config {delete: 'system.sessions', deletes: [{q: {}, limit: 0}]} => {n: 1}")
        .await;
    refresh(&shard).await;
    assert_eq!(local(&shard).await, 0);
}

/// ⚑ What a session wrote last is kept as long as the cluster's collection has it, or cannot be asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_reaps_what_the_cluster_has_forgotten() {
    let (shard, elsewhere, config) = shard_of_a_cluster().await;
    config.exists.store(true, Ordering::SeqCst);
    shard
        .check(&format!(
            "admin {{_terndbSetDatabase: 1, db: 'test', version: {{uuid: UUID('00000000-0000-4000-8000-0000000000dd'), timestamp: Timestamp(1, 1), lastMod: 1}}, primary: true}} => {{}}\n\
             {{insert: 'c', documents: [{{_id: 1}}], {FIRST}, txnNumber: 5L}} => {{n: 1}}"
        ))
        .await;
    // What is used in the millisecond of a refresh is written by the next one, too.
    shard.clock.advance_minutes(1);
    refresh(&shard).await;
    for minutes in [59, 2] {
        shard.clock.advance_minutes(minutes);
        reap(&shard).await;
        assert_eq!((documents(&shard), stored(&elsewhere).await), (1, 1));
    }
    elsewhere
        .check("config {delete: 'system.sessions', deletes: [{q: {}, limit: 0}]} => {n: 1}")
        .await;
    // The member that knows it still believes in it.
    reap(&shard).await;
    assert_eq!(documents(&shard), 1);
    refresh(&shard).await;
    config.exists.store(false, Ordering::SeqCst);
    shard
        .check("admin {reapLogicalSessionCacheNow: 1} => 118")
        .await;
    assert_eq!(documents(&shard), 1);
    config.exists.store(true, Ordering::SeqCst);
    reap(&shard).await;
    assert_eq!(documents(&shard), 0);
}

/// The list form of one of these.
fn listed(session: &str) -> String {
    format!("[{}]", session.trim_start_matches("lsid: "))
}

async fn stored(shard: &TestShard) -> usize {
    let find = "{find: 'system.sessions', batchSize: 1000}";
    let reply = shard.run("config", find).await;
    let batch = get(&reply, "cursor").and_then(|cursor| cursor.get("firstBatch"));
    batch.and_then(Value::as_array).map_or(0, <[Value]>::len)
}

async fn local(shard: &TestShard) -> usize {
    let list = "{aggregate: 1, pipeline: [{$listLocalSessions: {}}], cursor: {}}";
    let (_, sessions) = shard.batch(list).await;
    sessions.len()
}

async fn job(shard: &TestShard, name: &str) {
    shard.check(&format!("admin {{{name}: 1}} => {{}}")).await;
}

async fn refresh(shard: &TestShard) {
    job(shard, "refreshLogicalSessionCacheNow").await;
}

async fn reap(shard: &TestShard) {
    job(shard, "reapLogicalSessionCacheNow").await;
}

fn documents(shard: &TestShard) -> usize {
    let snapshot = shard.shard.store.snapshot();
    let kinds = [&[1][..], &[2], &[3]];
    kinds
        .iter()
        .map(|kind| snapshot.scan_meta(kind).count())
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn used_sessions_are_stored_and_expire() {
    let shard = TestShard::open().await;
    shard
        .check(&format!(
            r#"
            {{insert: "c", documents: [{{_id: 1}}, {{_id: 2}}, {{_id: 3}}], {FIRST}}} => {{n: 3}}
            {{count: "c", {SECOND}}} => {{n: 3}}
            # A command that says nothing about data is in no session.
            {{ping: 1, lsid: {{id: UUID("00000000-0000-4000-8000-000000000009")}}}} => {{}}
            "#
        ))
        .await;
    assert_eq!((local(&shard).await, stored(&shard).await), (2, 0));
    refresh(&shard).await;
    assert_eq!((local(&shard).await, stored(&shard).await), (2, 2));
    shard
        .check(
            r#"
            config {listIndexes: "system.sessions"} => {cursor: {firstBatch: [{name: "_id_"}, {name: "lsidTTLIndex", key: {lastUse: 1}, expireAfterSeconds: 1800}]}}
            config {aggregate: "system.sessions", pipeline: [{$listSessions: {}}, {$count: "n"}], cursor: {}} => {cursor: {firstBatch: [{n: 2}]}}
            config {aggregate: "system.sessions", pipeline: [{$listSessions: {allUsers: true}}, {$count: "n"}], cursor: {}} => {cursor: {firstBatch: [{n: 2}]}}
            config {aggregate: "system.sessions", pipeline: [{$listSessions: {users: [{user: "a", db: "b"}]}}], cursor: {}} => {cursor: {firstBatch: []}}
            {aggregate: 1, pipeline: [{$listLocalSessions: {users: [{user: "a", db: "b"}]}}], cursor: {}} => {cursor: {firstBatch: []}}
            "#,
        )
        .await;
    // One of them goes on, the other is not heard of for longer than it lives.
    let (cursor, _) = shard
        .batch(&format!("{{find: 'c', batchSize: 1, {SECOND}}}"))
        .await;
    refresh(&shard).await;
    for _ in 0..8 {
        shard.clock.advance_minutes(5);
        shard
            .check(&format!("{{count: 'c', {FIRST}}} => {{n: 3}}"))
            .await;
        refresh(&shard).await;
        shard.shard.expire_documents().await;
    }
    refresh(&shard).await;
    assert_eq!((local(&shard).await, stored(&shard).await), (1, 1));
    // Its cursor went with it.
    shard
        .check(&format!(
            "{{getMore: {cursor}L, collection: 'c', {SECOND}}} => 43"
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_sessions_go_with_the_next_refresh() {
    let shard = TestShard::open().await;
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1}}, {{_id: 2}}], {FIRST}}} => {{n: 2}}"
        ))
        .await;
    let (cursor, _) = shard
        .batch(&format!("{{find: 'c', batchSize: 1, {FIRST}}}"))
        .await;
    refresh(&shard).await;
    assert_eq!(stored(&shard).await, 1);
    shard
        .check(&format!("admin {{endSessions: {}}} => {{}}", listed(FIRST)))
        .await;
    assert_eq!(stored(&shard).await, 1);
    refresh(&shard).await;
    assert_eq!((local(&shard).await, stored(&shard).await), (0, 0));
    shard
        .check(&format!(
            "{{getMore: {cursor}L, collection: 'c', {FIRST}}} => 43"
        ))
        .await;
    shard
        .check(
            r#"
            admin {endSessions: 1} => 14
            admin {endSessions: [1]} => 14
            admin {endSessions: [{}]} => 40414
            admin {endSessions: []} => {}
            admin {refreshSessions: [{id: UUID("00000000-0000-4000-8000-000000000003")}]} => {}
            admin {startSession: 1} => {timeoutMinutes: 30}
            admin {serverStatus: 1} => {logicalSessionRecordCache: {activeSessionsCount: 3, sessionsCollectionJobCount: 2}}
            "#,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_sessions_lose_their_cursors_at_once() {
    let shard = TestShard::open().await;
    shard
        .check("{insert: 'c', documents: [{_id: 1}, {_id: 2}]} => {n: 2}")
        .await;
    let one = listed(FIRST);
    let kills = [
        format!("{{killSessions: {one}}}"),
        "{killSessions: []}".to_owned(),
        "{killAllSessions: []}".to_owned(),
        "{killAllSessionsByPattern: []}".to_owned(),
        "{killAllSessionsByPattern: [{users: []}]}".to_owned(),
    ];
    for kill in kills {
        let open = format!("{{find: 'c', batchSize: 1, {FIRST}}}");
        let (cursor, _) = shard.batch(&open).await;
        shard.check(&format!("admin {kill} => {{}}")).await;
        let more = format!("{{getMore: {cursor}L, collection: 'c', {FIRST}}} => 43");
        shard.check(&more).await;
    }
    let (cursor, _) = shard
        .batch(&format!("{{find: 'c', batchSize: 1, {SECOND}}}"))
        .await;
    shard
        .check(&format!(
            r#"
            admin {{killSessions: {one}}} => {{}}
            admin {{killAllSessions: [{{user: "a", db: "b"}}]}} => 11
            admin {{killAllSessions: [{{}}]}} => 40414
            admin {{killAllSessionsByPattern: [{{x: 1}}]}} => 40415
            admin {{killAllSessionsByPattern: [{{{FIRST}}}]}} => 40414
            {{getMore: {cursor}L, collection: "c", {SECOND}}} => {{cursor: {{nextBatch: [{{_id: 2}}]}}}}
            "#
        ))
        .await;
}

/// An operation that waits for its session is killed with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_session_ends_what_waits_for_it() {
    let shard = Arc::new(TestShard::open().await);
    let held = shard
        .shard
        .sessions
        .try_check_out(session_id(), 0)
        .expect("nobody has it");
    let waiting = tokio::spawn({
        let shard = shard.clone();
        async move {
            let insert =
                format!("{{insert: 'c', documents: [{{_id: 1}}], {FIRST}, txnNumber: 1L}}");
            shard.run("test", &insert).await
        }
    });
    // Until it is known to the server as an operation of the session.
    while !shard.shard.operations.all().iter().any(|o| o.is_numbered()) {
        tokio::task::yield_now().await;
    }
    shard
        .check(&format!(
            "admin {{killSessions: {}}} => {{}}",
            listed(FIRST)
        ))
        .await;
    let reply = waiting.await.expect("it ends");
    assert_eq!(
        get(&reply, "code"),
        Some(&Value::Int32(11601)),
        "{}",
        print_fields(&reply)
    );
    drop(held);
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1}}], {FIRST}, txnNumber: 1L}} => {{n: 1}}"
        ))
        .await;
}

fn session_id() -> crate::session::SessionId {
    let mut id = [0; 16];
    id[6] = 0x40;
    id[8] = 0x80;
    id[15] = 1;
    crate::session::SessionId::new(id)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_for_retries_is_reaped_with_its_session() {
    let shard = TestShard::open().await;
    let first = format!(
        "{{findAndModify: 'c', query: {{_id: 1}}, update: {{$inc: {{a: 1}}}}, upsert: true, new: true, {FIRST}, txnNumber: 5L}}"
    );
    let second = format!("{{insert: 'c', documents: [{{_id: 2}}], {SECOND}, txnNumber: 5L}}");
    shard
        .check(&format!(
            "{first} => {{value: {{a: 1}}}}\n{second} => {{n: 1}}"
        ))
        .await;
    assert_eq!(documents(&shard), 3);
    // Both are in use, then both are written an hour ago but one is still stored.
    reap(&shard).await;
    refresh(&shard).await;
    for _ in 0..13 {
        shard.clock.advance_minutes(5);
        shard
            .check(&format!("{{count: 'c', {SECOND}}} => {{n: 2}}"))
            .await;
        shard.shard.expire_documents().await;
        refresh(&shard).await;
    }
    reap(&shard).await;
    assert_eq!(documents(&shard), 1);
    shard
        .check(&format!(
            "{second} => {{n: 1, retriedStmtIds: [0]}}\n{first} => {{value: {{a: 2}}}}"
        ))
        .await;
    let status = shard.run("admin", "{serverStatus: 1}").await;
    let cache = get(&status, "logicalSessionRecordCache").expect("it is shown");
    assert_eq!(
        cache.get("lastTransactionReaperJobEntriesCleanedUp"),
        Some(&Value::Int32(1))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_transactions_table_forgets_everything() {
    let shard = TestShard::open().await;
    let insert = format!("{{insert: 'c', documents: [{{_id: 1}}], {FIRST}, txnNumber: 5L}}");
    let earlier = format!("{{insert: 'c', documents: [{{_id: 2}}], {FIRST}, txnNumber: 1L}}");
    shard
        .check(&format!(
            r#"
            {insert} => {{n: 1}}
            {insert} => {{n: 1, retriedStmtIds: [0]}}
            {earlier} => 225
            config {{drop: "transactions"}} => {{ns: "config.transactions"}}
            {insert} => 11000
            config {{drop: "transactions"}} => {{}}
            config {{drop: "image_collection"}} => 115
            config {{delete: "transactions", deletes: [{{q: {{}}, limit: 0}}]}} => 115
            "#
        ))
        .await;
    assert_eq!(documents(&shard), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_is_shown_as_collections() {
    let shard = TestShard::open().await;
    for number in 0..150 {
        let session = format!("lsid: {{id: UUID(\"00000000-0000-4000-8000-{number:012}\")}}");
        shard
            .check(&format!(
                "{{insert: 'c', documents: [{{_id: {number}}}], {session}, txnNumber: {number}L}} => {{n: 1}}"
            ))
            .await;
    }
    shard
        .check(&format!(
            r#"
            config {{count: "transactions"}} => {{n: 150}}
            config {{find: "transactions", filter: {{txnNum: {{$gt: 147}}}}, projection: {{txnNum: 1, _id: 0}}}} => {{cursor: {{firstBatch: [{{txnNum: 148L}}, {{txnNum: 149L}}]}}}}
            config {{find: "transactions", sort: {{$natural: -1}}, limit: 1, projection: {{txnNum: 1, _id: 0}}}} => {{cursor: {{firstBatch: [{{txnNum: 149L}}]}}}}
            config {{aggregate: "transactions", pipeline: [{{$group: {{_id: {{$type: "$lastWriteOpTime.ts"}}, n: {{$sum: "$txnNum"}}}}}}], cursor: {{}}}} => {{cursor: {{firstBatch: [{{_id: "timestamp", n: 11175L}}]}}}}
            config {{find: "image_collection"}} => {{cursor: {{firstBatch: []}}}}
            {{findAndModify: "c", query: {{_id: 1}}, update: {{$set: {{a: 1}}}}, {FIRST}, txnNumber: 500L}} => {{value: {{_id: 1}}}}
            config {{find: "image_collection"}} => {{cursor: {{firstBatch: [{{txnNum: 500L, imageKind: "preImage", image: {{_id: 1}}, invalidated: false}}]}}}}
            {{findAndModify: "c", query: {{_id: 1}}, update: {{$set: {{a: 2}}}}, new: true, {FIRST}, txnNumber: 501L}} => {{value: {{a: 2}}}}
            config {{find: "image_collection"}} => {{cursor: {{firstBatch: [{{txnNum: 501L, imageKind: "postImage", image: {{a: 2}}}}]}}}}
            # The log tells the same.
            local {{find: "oplog.rs", filter: {{txnNumber: 501}}, projection: {{op: 1, txnNumber: 1, stmtId: 1, o2: 1, _id: 0}}}} => {{cursor: {{firstBatch: [{{op: "u", txnNumber: 501L, stmtId: 0, o2: {{_id: 1}}}}]}}}}
            "#
        ))
        .await;
}

/// What the loss of leadership does: everything is read from the store again.
#[tokio::test(flavor = "multi_thread")]
async fn forgotten_histories_are_loaded_again() {
    let shard = TestShard::open().await;
    let insert = format!("{{insert: 'c', documents: [{{_id: 1}}], {FIRST}, txnNumber: 5L}}");
    shard.check(&format!("{insert} => {{n: 1}}")).await;
    assert!(shard.shard.forget_sessions().is_empty(), "nobody holds one");
    assert_eq!(shard.shard.sessions.len(), 0);
    shard
        .check(&format!("{insert} => {{n: 1, retriedStmtIds: [0]}}"))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_are_known_and_fixed() {
    let shard = TestShard::open().await;
    shard
        .check(
            r#"
            admin {getParameter: 1, logicalSessionRefreshMillis: 1, localLogicalSessionTimeoutMinutes: 1, disableLogicalSessionCacheRefresh: 1} => {logicalSessionRefreshMillis: 300000, localLogicalSessionTimeoutMinutes: 30, disableLogicalSessionCacheRefresh: false}
            admin {setParameter: 1, logicalSessionRefreshMillis: 5} => {ok: 0.0}
            admin {getParameter: 1, logicalSessionRefreshMillis: 1} => {logicalSessionRefreshMillis: 300000}
            {aggregate: "c", pipeline: [{$listLocalSessions: {}}], cursor: {}} => 73
            {aggregate: 1, pipeline: [{$listLocalSessions: 1}], cursor: {}} => 14
            {aggregate: 1, pipeline: [{$listLocalSessions: {x: 1}}], cursor: {}} => 40415
            {aggregate: 1, pipeline: [{$listLocalSessions: {allUsers: true, users: [{user: "a", db: "b"}]}}], cursor: {}} => 12
            {aggregate: 1, pipeline: [{$listSessions: {}}], cursor: {}} => 73
            config {aggregate: "system.sessions", pipeline: [{$match: {}}, {$listSessions: {}}], cursor: {}} => 40602
            "#,
        )
        .await;
}

/// Sessions are written as often as the server was told, by itself.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_refreshed_as_often_as_the_parameter_says() {
    let shard = TestShard::open_with(&[("logicalSessionRefreshMillis", "10")]).await;
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1}}], {FIRST}}} => {{n: 1}}"
        ))
        .await;
    let background = shard.shard.spawn_background();
    let written = async {
        while stored(&shard).await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let written = tokio::time::timeout(Duration::from_secs(60), written).await;
    written.expect("the session is written long before five minutes have passed");
    shard.shard.begin_shutdown();
    background.await.expect("it ends in order");
}

/// With the refresh switched off nothing is written by itself; who asks for it is served.
#[tokio::test(flavor = "multi_thread")]
async fn the_refresh_of_sessions_can_be_switched_off() {
    let parameters = [
        ("disableLogicalSessionCacheRefresh", "true"),
        ("logicalSessionRefreshMillis", "1"),
    ];
    let shard = TestShard::open_with(&parameters).await;
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1}}], {FIRST}}} => {{n: 1}}"
        ))
        .await;
    let ended = tokio::time::timeout(
        Duration::from_secs(60),
        crate::session::refresh::run(&shard.shard),
    );
    ended.await.expect("there is nothing to do for it");
    assert_eq!((local(&shard).await, stored(&shard).await), (1, 0));
    refresh(&shard).await;
    assert_eq!(stored(&shard).await, 1);
}

/// How long sessions live: told to drivers, and what their documents and what is kept for retries go by.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_live_as_long_as_the_parameter_says() {
    for (minutes, is_left) in [("4", false), ("6", true)] {
        let shard = TestShard::open_with(&[("localLogicalSessionTimeoutMinutes", minutes)]).await;
        let seconds = minutes.parse::<i32>().expect("a number") * 60;
        shard
            .check(&format!(
                r#"
                admin {{hello: 1}} => {{logicalSessionTimeoutMinutes: {minutes}}}
                {{insert: "c", documents: [{{_id: 1}}], {FIRST}, txnNumber: 1L}} => {{n: 1}}
                "#
            ))
            .await;
        // What is used in the millisecond of a refresh is written by the next one, too.
        shard.clock.advance_minutes(1);
        shard
            .check(&format!(
                r#"
                admin {{refreshLogicalSessionCacheNow: 1}} => {{}}
                config {{listIndexes: "system.sessions"}} => {{cursor: {{firstBatch: [{{name: "_id_"}}, {{expireAfterSeconds: {seconds}}}]}}}}
                "#
            ))
            .await;
        shard.clock.advance_minutes(4);
        shard.shard.expire_documents().await;
        refresh(&shard).await;
        reap(&shard).await;
        let left = usize::from(is_left);
        assert_eq!(
            (local(&shard).await, stored(&shard).await, documents(&shard)),
            (left, left, left),
            "of {minutes} minutes"
        );
    }
}
