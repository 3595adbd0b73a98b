//! How large and how fast a routing table of a million chunks is, in CPU time: on a machine that
//! does other things as well, the clock on the wall says nothing.
//!
//! `cargo run --release -p cluster --example million_chunks`

use cluster::routing::{RoutingTable, ShardId, initial_chunks};
use model::bson::{DocWriter, ObjectId};
use model::ids::Uuid;
use model::range::{KeyBound, KeyRange};
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::Incarnation;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

const CHUNKS: i64 = 1_000_000;
const KEYS_PER_CHUNK: i64 = 1_000;
const SHARDS: usize = 10;
const CHANGES: u32 = 100;
const LOOKUPS: i64 = 100_000;

fn main() {
    let pattern = DocWriter::new().with("k", 1).finish();
    let pattern = Arc::new(ShardKeyPattern::parse(pattern.as_doc()).expect("a plain key"));
    let at = |key: i64| {
        let bound = DocWriter::new().with("k", key).finish();
        let key = pattern.key_of_bound(bound.as_doc());
        KeyBound::new(&key.expect("the bound fits the key"))
    };
    let empty = resident_bytes();
    let bounds: Vec<KeyBound> = (1..CHUNKS)
        .map(|chunk| at(chunk * KEYS_PER_CHUNK))
        .collect();
    let owners: Vec<ShardId> = (0..SHARDS)
        .map(|shard| ShardId::new(&format!("shard{shard}")))
        .collect();
    let chunks = initial_chunks(&pattern, &bounds, &owners, ClusterTime::ZERO);
    drop(bounds);

    let began = spent();
    let incarnation = Incarnation {
        epoch: ObjectId([1; 12]),
        began: ClusterTime::new(1, 0),
    };
    let table = RoutingTable::full(Uuid([1; 16]), incarnation, pattern.clone(), chunks)
        .expect("the chunks cover all keys");
    println!("full refresh             {:>10.1?}", spent() - began);
    println!(
        "resident, bytes a chunk  {:>10}",
        resident_bytes().saturating_sub(empty) / CHUNKS as usize
    );

    let range = KeyRange::new(at(5_000 * KEYS_PER_CHUNK), at(5_001 * KEYS_PER_CHUNK));
    let changes = table
        .moving(&range, &ShardId::new("another"), ClusterTime::new(2, 0))
        .expect("the range is one chunk");
    let began = spent();
    for _ in 0..CHANGES {
        black_box(table.with_changes(changes.clone())).expect("the changes fit");
    }
    println!(
        "refresh after one move   {:>10.1?}",
        (spent() - began) / CHANGES
    );

    let keys: Vec<KeyBound> = (0..LOOKUPS)
        .map(|lookup| at(lookup * 7_919 % CHUNKS * KEYS_PER_CHUNK + 3))
        .collect();
    let began = spent();
    for key in &keys {
        black_box(table.find(key.as_bytes()).chunk.shard.as_str());
    }
    println!(
        "one key to its shard     {:>10.1?}",
        (spent() - began) / LOOKUPS as u32
    );

    // As the router asks for an equality: the key, and what comes right behind it.
    let after = |key: &KeyBound| KeyBound::new(&[key.as_bytes(), &[0]].concat());
    let ranges: Vec<KeyRange> = keys
        .iter()
        .map(|key| KeyRange::new(key.clone(), after(key)))
        .collect();
    let began = spent();
    for range in &ranges {
        black_box(table.targets(std::slice::from_ref(range)));
    }
    println!(
        "one equality to shards   {:>10.1?}",
        (spent() - began) / LOOKUPS as u32
    );
}

/// CPU time of this process, which has one thread, where Linux tells it.
fn spent() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let resident = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    resident.unwrap_or(0usize) * 4096
}
