//! A shard that meets a newer version asks the config server, and takes over what changes
//! nothing of its ranges.

use crate::testing::TestShard;
use crate::tests::sharding::{LOW, UUID, WHOLE, placed, sharded, version};
use differential::notation::parse;
use differential::value::{Value, encode};
use model::bson::DocBuf;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use wire::{BoxFuture, CallError, Endpoint, Reply, Request};

/// Answers every question in the same way, the n-th with the n-th answer.
struct Config {
    answers: Vec<String>,
    asked: AtomicUsize,
    /// `$configTime` of the last question.
    told: Mutex<Option<String>>,
}

impl Config {
    fn new(answers: &[&str]) -> Arc<Self> {
        Arc::new(Self {
            answers: answers.iter().map(|text| (*text).to_owned()).collect(),
            asked: AtomicUsize::new(0),
            told: Mutex::new(None),
        })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Endpoint for Config {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>> {
        let at = self.asked.fetch_add(1, Ordering::SeqCst);
        let time = request.body().get("$configTime");
        *self.told.lock() = time.map(|time| format!("{time:?}"));
        let answer = self.answers.get(at.min(self.answers.len() - 1));
        Box::pin(async move {
            let Some(answer) = answer else {
                return Err(CallError::NotSent("away".to_owned()));
            };
            let Ok(Value::Document(fields)) = parse(answer) else {
                panic!("{answer} is not a document");
            };
            let bytes = encode(&fields);
            let document = DocBuf::from_bytes(bytes).expect("an answer is BSON");
            let mut writer = Reply::writer();
            for element in document.iter() {
                writer.append_element(&element);
            }
            Ok(Reply::from_writer(writer))
        })
    }
}

fn routing(version_of_all: (u32, u32), chunks: &str, more: bool) -> String {
    let version = version(version_of_all.0, version_of_all.1);
    format!(
        "{{sharded: true, uuid: {UUID}, key: {{x: 1}}, unique: false, version: {version}, chunks: [{chunks}], more: {more}, ok: 1.0}}"
    )
}

async fn joined(owned: &str, answers: &[&str]) -> (TestShard, Arc<Config>) {
    let shard = sharded(owned).await;
    let config = join(&shard, answers);
    (shard, config)
}

fn join(shard: &TestShard, answers: &[&str]) -> Arc<Config> {
    let config = Config::new(answers);
    let nobody = config.clone();
    let connect: crate::Connect = Arc::new(move |_: &str, _: &str| nobody.clone());
    shard.shard.join_cluster(config.clone(), connect);
    config
}

/// ⚑ What was done because of the config server is stored with how far it had come then: whoever
/// is primary next believes no member of it that has come less far.
#[tokio::test(flavor = "multi_thread")]
async fn the_config_time_of_what_was_done_outlives_the_primary() {
    let database = "{uuid: UUID(\"00000000-0000-4000-8000-0000000000dd\"), timestamp: Timestamp(7, 0), lastMod: 1}";
    let away = "{ok: 0.0, code: 91, errmsg: 'away'}";
    let (shard, config) = joined(LOW, &[away]).await;
    let ask = format!("{{find: 'c', shardVersion: {}}} => 13388", version(9, 0));
    let set = |time: &str, name: &str| {
        format!(
            "admin {{_terndbSetDatabase: 1, db: '{name}', version: {database}, primary: true, $configTime: {time}}} => {{}}"
        )
    };
    let ownership = placed("_terndbSetPlacement", (1, 1), (1, 3), LOW)
        .replace("key: {x: 1}", "key: {x: 1}, $configTime: Timestamp(90, 1)");
    let ownership = format!("admin {ownership} => {{}}");
    shard.check(&set("Timestamp(70, 3)", "seven")).await;
    // Seen, and nothing done.
    shard.check(&set("Timestamp(80, 1)", "seven")).await;
    // Nobody's clock is as far ahead.
    shard.check(&set("Timestamp(4294967295, 1)", "seven")).await;
    // Only the config server is believed.
    shard
        .check("{find: 'c', $configTime: Timestamp(99, 1)} => {}")
        .await;
    shard.check(&ask).await;
    let seen = |seconds, increment| {
        let time = model::bson::Timestamp { seconds, increment };
        Some(format!("{:?}", model::bson::ValueRef::Timestamp(time)))
    };
    assert_eq!(*config.told.lock(), seen(80, 1));

    let shard = shard.reopen().await;
    let config = join(&shard, &[away]);
    shard.check(&ask).await;
    assert_eq!(*config.told.lock(), seen(70, 3));

    // A change of what is owned stores it too.
    shard.check(&ownership).await;
    let shard = shard.reopen().await;
    let config = join(&shard, &[away]);
    shard.check(&ask).await;
    assert_eq!(*config.told.lock(), seen(90, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_split_that_was_not_told_is_found_out() {
    let first = routing(
        (2, 2),
        "{min: {x: MinKey}, max: {x: 5}, shard: 'shard0', lastmod: Timestamp(2, 1)}",
        true,
    );
    let second = routing(
        (2, 2),
        "{min: {x: 5}, max: {x: 10}, shard: 'shard0', lastmod: Timestamp(2, 2)}",
        false,
    );
    let (shard, config) = joined(LOW, &[&first, &second]).await;
    shard
        .check(&format!(
            "{{find: 'c', shardVersion: {}}} => {{}}
             # An older version is for the router to refresh.
             {{find: 'c', shardVersion: {}}} => 13388
             admin {{getShardVersion: 'test.c', fullMetadata: true}} => {{global: Timestamp(2, 2), metadata: {{collVersion: Timestamp(2, 2), ranges: 1, mayHoldOrphans: false}}}}",
            version(2, 1),
            version(1, 0),
        ))
        .await;
    assert_eq!(config.asked(), 2, "one question of two pages");
    let shard = shard.reopen().await;
    shard
        .check("admin {getShardVersion: 'test.c'} => {global: Timestamp(2, 2)}")
        .await;
}

/// ⚑ Ranges are not gained or lost by looking at the routing table.
#[tokio::test(flavor = "multi_thread")]
async fn other_ranges_are_not_adopted() {
    let lost = routing(
        (3, 0),
        "{min: {x: MinKey}, max: {x: 10}, shard: 'shard1', lastmod: Timestamp(3, 0)}",
        false,
    );
    let gained = routing(
        (3, 0),
        "{min: {x: 10}, max: {x: MaxKey}, shard: 'shard0', lastmod: Timestamp(3, 0)}",
        false,
    );
    for told in [lost, gained] {
        let (shard, config) = joined(LOW, &[&told]).await;
        shard
            .check(&format!(
                "{{find: 'c', shardVersion: {}}} => 13388
                 {{insert: 'c', documents: [{{_id: 1, x: 5}}]}} => {{n: 1}}
                 {{insert: 'c', documents: [{{_id: 2, x: 15}}]}} => 13388
                 admin {{getShardVersion: 'test.c'}} => {{global: Timestamp(1, 0)}}",
                version(3, 0)
            ))
            .await;
        assert_eq!(config.asked(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refined_key_keeps_the_ranges() {
    let other =
        "{e: ObjectId(\"00000000000000000000000c\"), t: Timestamp(9, 0), v: Timestamp(1, 1)}";
    let told = format!(
        "{{sharded: true, uuid: {UUID}, key: {{x: 1, y: 1}}, unique: false, version: {other}, more: false, ok: 1.0,
           chunks: [{{min: {{x: MinKey, y: MinKey}}, max: {{x: 10, y: MinKey}}, shard: 'shard0', lastmod: Timestamp(1, 0)}},
                    {{min: {{x: 10, y: MinKey}}, max: {{x: MaxKey, y: MaxKey}}, shard: 'shard1', lastmod: Timestamp(1, 1)}}]}}"
    );
    let (shard, _) = joined(LOW, &[&told]).await;
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 1, x: 5}}]}} => {{n: 1}}
             {{find: 'c', shardVersion: {other}}} => {{cursor: {{firstBatch: [{{_id: 1}}]}}}}
             admin {{getShardVersion: 'test.c', fullMetadata: true}} => {{global: Timestamp(1, 0), metadata: {{keyPattern: {{x: 1, y: 1}}, mayHoldOrphans: false}}}}
             {{insert: 'c', documents: [{{_id: 2, x: 10}}]}} => 13388"
        ))
        .await;
}

/// The key {x: 1} with another field, as the config server tells of it.
fn refined() -> (&'static str, String) {
    let other =
        "{e: ObjectId(\"00000000000000000000000c\"), t: Timestamp(9, 0), v: Timestamp(1, 1)}";
    let told = format!(
        "{{sharded: true, uuid: {UUID}, key: {{x: 1, y: 1}}, unique: false, version: {other}, more: false, ok: 1.0,
           chunks: [{{min: {{x: MinKey, y: MinKey}}, max: {{x: 10, y: MinKey}}, shard: 'shard0', lastmod: Timestamp(1, 0)}},
                    {{min: {{x: 10, y: MinKey}}, max: {{x: MaxKey, y: MaxKey}}, shard: 'shard1', lastmod: Timestamp(1, 1)}}]}}"
    );
    (other, told)
}

/// ⚑ Bounds of a longer key mean nothing to a shard that has the shorter one: the document with x = 5 would lie before
/// (5, MinKey). It asks first. Bounds of the shorter one are refused from then on.
#[tokio::test(flavor = "multi_thread")]
async fn ranges_are_taken_in_the_words_of_one_key() {
    let (other, told) = refined();
    let (shard, config) = joined(LOW, &[&told]).await;
    let part = |bounds: [&str; 2], version: &str| {
        let [min, max] = bounds.map(|bound| format!("Binary(0, \"{bound}\")"));
        format!("_terndbScan: {{ranges: [{min}, {max}], uuid: {UUID}, version: {version}}}")
    };
    // From 5 to 10.
    let brief = part(["210a", "2114"], &version(1, 0));
    let long = part(["210a04", "211404"], other);
    let found = "{cursor: {firstBatch: [{_id: 1}, {_id: 2}], scan: {notOwned: []}}}";
    shard
        .check(&format!(
            "{{insert: 'c', documents: [{{_id: 0, x: 4}}, {{_id: 1, x: 5}}, {{_id: 2, x: 9, y: 3}}]}} => {{n: 3}}
             {{find: 'c', {brief}}} => {found}"
        ))
        .await;
    assert_eq!(config.asked(), 0);
    shard
        .check(&format!("{{find: 'c', {long}}} => {found}"))
        .await;
    assert_eq!(config.asked(), 1);
    shard
        .check(&format!(
            "{{find: 'c', {brief}}} => 13388
             {{count: 'c', query: {{x: {{$gt: 0}}}}, {brief}}} => 13388
             {{distinct: 'c', key: 'x', {brief}}} => 13388
             {{aggregate: 'c', pipeline: [], cursor: {{}}, {brief}}} => 13388
             {{count: 'c', {long}}} => {{n: 2}}
             {{distinct: 'c', key: 'x', {long}}} => {{values: [5, 9]}}
             {{aggregate: 'c', pipeline: [], cursor: {{}}, {long}}} => {found}"
        ))
        .await;
}

/// ⚑ What had an array in a field that the key was refined by later is shown at a time before.
#[tokio::test(flavor = "multi_thread")]
async fn a_refined_key_hides_nothing_of_the_past() {
    let (other, told) = refined();
    let (shard, _) = joined(LOW, &[&told]).await;
    shard
        .check("{insert: 'c', documents: [{_id: 1, x: 5, y: [1, 2]}, {_id: 2, x: 5}]} => {n: 2}")
        .await;
    let time = shard.shard.store.applied_time();
    let at = format!(
        "readConcern: {{level: 'snapshot', atClusterTime: Timestamp({}, {})}}",
        time.seconds(),
        time.increment()
    );
    shard
        .check(&format!(
            "{{update: 'c', updates: [{{q: {{_id: 1, x: 5}}, u: {{$set: {{y: 3}}}}}}]}} => {{n: 1}}
             {{find: 'c', shardVersion: {other}}} => {{cursor: {{firstBatch: [{{_id: 1, y: 3}}, {{_id: 2}}]}}}}
             {{find: 'c', {at}}} => {{cursor: {{firstBatch: [{{_id: 1, y: [1, 2]}}, {{_id: 2}}]}}}}"
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_server_that_is_away_leaves_things_as_they_are() {
    let refused = "{ok: 0.0, code: 91, errmsg: 'away'}";
    let (shard, _) = joined(WHOLE, &[refused]).await;
    shard
        .check(&format!(
            "{{find: 'c', shardVersion: {}}} => 13388
             {{find: 'c', shardVersion: {}}} => {{}}",
            version(2, 0),
            version(1, 0)
        ))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_database_is_found_out() {
    let version = |last: u32| {
        format!(
            "{{uuid: UUID(\"00000000-0000-4000-8000-0000000000dc\"), timestamp: Timestamp(7, 0), lastMod: {last}}}"
        )
    };
    let told = format!("{{primary: 'shard0', version: {}, ok: 1.0}}", version(1));
    let moved = format!("{{primary: 'shard1', version: {}, ok: 1.0}}", version(2));
    let back = format!("{{primary: 'shard0', version: {}, ok: 1.0}}", version(3));
    let (shard, _) = joined(WHOLE, &[&told, &moved, &back]).await;
    shard
        .check(&format!(
            "new {{insert: 'u', documents: [{{_id: 1}}], databaseVersion: {}}} => {{n: 1}}
             new {{find: 'u', databaseVersion: {}}} => 249
             # It is decided when its collections are ready, and none is on its way.
             new {{find: 'u', databaseVersion: {}}} => {{}}",
            version(1),
            version(2),
            version(3),
        ))
        .await;
}
