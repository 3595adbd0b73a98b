//! A range moves to and fro while others write to it as fast as they can.

use super::world::{Loses, PATIENCE, Tamper, World, outcome};
use crate::Shard;
use differential::value::{Value, get};
use model::bson::DocWriter;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use storage::entry::Entry;

/// Sends a write to whoever owns the document; which shard it was. Clients that talk to shards
/// themselves find nothing to update where a document is not owned, and are refused an insert.
async fn write(world: &World, first: usize, command: &str) -> usize {
    let deadline = Instant::now() + PATIENCE;
    let mut shard = first;
    loop {
        let reply = world.on(shard).run("test", command).await;
        let error = get(&reply, "writeErrors")
            .and_then(Value::as_array)
            .and_then(<[Value]>::first);
        match error.and_then(|error| error.get("code")) {
            None => {
                assert_eq!(get(&reply, "ok"), Some(&Value::Double(1.0)), "{reply:?}");
                match get(&reply, "n") {
                    Some(Value::Int32(1)) => return shard,
                    _ => shard = 1 - shard,
                }
            }
            Some(Value::Int32(13388)) => shard = 1 - shard,
            Some(_) => panic!("{command}: {reply:?}"),
        }
        assert!(Instant::now() < deadline, "{command} is never taken");
        tokio::task::yield_now().await;
    }
}

/// ⚑ Nothing that was acknowledged is lost, and nothing is done twice.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_and_nothing_doubled_while_a_range_moves() {
    const WRITERS: i32 = 3;
    let world = World::new("{x: 1}").await;
    world
        .create("{key: {x: 1}, name: 'x_1'}, {key: {n: 1}, name: 'n_1'}")
        .await;
    let documents: Vec<String> = (0..600)
        .map(|x| format!("{{_id: {x}, x: {x}, n: 0}}"))
        .collect();
    world.on(0).insert(&documents).await;
    let done = AtomicBool::new(false);
    let writer = |number: i32| {
        let (world, done) = (&world, &done);
        async move {
            let mut counts: BTreeMap<i32, i32> = BTreeMap::new();
            let (mut owner, mut round) = (0, 0);
            while !done.load(Ordering::SeqCst) {
                round += 1;
                // Each writer has documents of its own, so that it knows what they must be.
                let x = number + WRITERS * (fastrand::i32(0..200));
                let command = match round % 5 {
                    0 => format!(
                        "{{insert: 'c', documents: [{{_id: {}, x: {x}, n: 1}}]}}",
                        10_000 * (number + 1) + round
                    ),
                    _ => format!(
                        "{{update: 'c', updates: [{{q: {{_id: {x}, x: {x}}}, u: {{$inc: {{n: 1}}}}}}]}}"
                    ),
                };
                owner = write(world, owner, &command).await;
                match round % 5 {
                    0 => counts.insert(10_000 * (number + 1) + round, 1),
                    _ => {
                        let count = counts.get(&x).copied().unwrap_or(0) + 1;
                        counts.insert(x, count)
                    }
                };
            }
            counts
        }
    };
    let mover = async {
        for turn in 0..6 {
            let (from, to) = (turn % 2, 1 - turn % 2);
            let deadline = Instant::now() + PATIENCE;
            loop {
                let reply = world.moves(from, to, "{x: 100}", "{x: 500}").await;
                if get(&reply, "outcome").is_some() && outcome(&reply) == "committed" {
                    break;
                }
                assert!(Instant::now() < deadline, "{reply:?}");
            }
        }
        done.store(true, Ordering::SeqCst);
    };
    let (first, second, third, ()) = tokio::join!(writer(0), writer(1), writer(2), mover);
    let mut expected: BTreeMap<i32, i32> = (0..600).map(|x| (x, 0)).collect();
    for counts in [first, second, third] {
        expected.extend(counts);
    }
    let mut found = BTreeMap::new();
    for number in 0..2 {
        for document in world.shown(number).await {
            let (Some(Value::Int32(id)), Some(Value::Int32(n))) =
                (document.get("_id"), document.get("n"))
            else {
                panic!("{document:?}");
            };
            assert!(found.insert(*id, *n).is_none(), "{id} is there twice");
        }
        world.on(number).check_valid("c").await;
    }
    let differ: Vec<_> = expected
        .iter()
        .map(|(id, n)| (id, Some(n), found.get(id)))
        .filter(|(_, wanted, found)| wanted != found)
        .collect();
    assert!(differ.is_empty(), "{differ:?}");
    assert_eq!(found.len(), expected.len());
    world.close().await;
}

/// ⚑ Where the donor has clients, from the first entry on: how much they feel of large ones would only be known
/// afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_brought_beside_clients_comes_in_short_entries() {
    const DOCUMENT_BYTES: usize = 4096;
    const DOCUMENTS: usize = 200;
    for has_clients in [true, false] {
        let world = World::new("{x: 1}").await;
        world.create("{key: {x: 1}, name: 'x_1'}").await;
        let text = "t".repeat(DOCUMENT_BYTES);
        let documents: Vec<String> = (0..DOCUMENTS)
            .map(|x| format!("{{_id: {x}, x: {x}, text: '{text}'}}"))
            .collect();
        world.on(0).insert(&documents).await;
        if has_clients {
            world.on(0).shard.latency.feels(1.0);
        }
        let log = &world.on(1).shard.log;
        let before = log.last_applied();
        let reply = world.moves(0, 1, "{x: 0}", "{x: 1000}").await;
        assert_eq!(outcome(&reply), "committed");
        let entries = log.read(before, 64 << 20).expect("is read");
        let lengths = entries.iter().filter_map(|entry| {
            let header = Entry::decode(&entry.payload).expect("sound").header;
            header.origin.map(|_| entry.payload.len())
        });
        let longest = lengths.max().expect("something was brought");
        let is_short = longest <= 128 << 10;
        assert_eq!(is_short, has_clients, "an entry has {longest} bytes");
        world.close().await;
    }
}

/// ⚑ What clients feel slows the copy down, and what they write must be followed all the same: their log grows for as
/// long as they write.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_leaves_a_donor_whose_clients_write_without_a_pause() {
    const DOCUMENT_BYTES: usize = 1 << 20;
    // Where processors are scarce, so many write faster than anybody could follow.
    const WRITERS: i32 = 3;
    let world = World::new("{x: 1}").await;
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    let text = "t".repeat(DOCUMENT_BYTES);
    let documents: Vec<String> = (0..WRITERS)
        .map(|x| format!("{{_id: {x}, x: {x}, n: 0, text: '{text}'}}"))
        .collect();
    world.on(0).insert(&documents).await;
    world.on(0).shard.latency.feels(100.0);
    let done = AtomicBool::new(false);
    let writer = |x: i32| {
        let (world, done) = (&world, &done);
        async move {
            let command = format!(
                "{{update: 'c', updates: [{{q: {{_id: {x}, x: {x}}}, u: {{$inc: {{n: 1}}}}}}]}}"
            );
            let mut owner = 0;
            while !done.load(Ordering::SeqCst) {
                owner = write(world, owner, &command).await;
            }
        }
    };
    let mover = async {
        let moved = world.moves(0, 1, "{x: 0}", "{x: 1000}");
        let moved = tokio::time::timeout(PATIENCE, moved).await;
        done.store(true, Ordering::SeqCst);
        moved.map(|reply| outcome(&reply).to_owned())
    };
    let (moved, (), (), ()) = tokio::join!(mover, writer(0), writer(1), writer(2));
    assert_eq!(moved.as_deref(), Ok("committed"));
    world.close().await;
}

/// More entries than are ever borne.
const ENTRIES: usize = 300;
const UPDATE: &str =
    "{update: 'c', updates: [{q: {_id: 0, x: 0}, u: {$inc: {n: 1}}}], writeConcern: {w: 1}}";

/// A donor with so many entries of one document.
async fn with_entries() -> World {
    let world = World::new("{x: 1}").await;
    world.create("{key: {x: 1}, name: 'x_1'}").await;
    world
        .on(0)
        .insert(&["{_id: 0, x: 0, n: 0}".to_owned()])
        .await;
    for _ in 0..ENTRIES {
        write(&world, 0, UPDATE).await;
    }
    world
}

/// A recipient that has nothing of the log, by its reports.
fn never_follows() -> Tamper {
    Box::new(|command, report| {
        if command != "_terndbReceive" {
            return report;
        }
        let mut writer = DocWriter::new();
        for element in report.iter() {
            match element.key() {
                "copied" => writer.append("copied", 0_i64),
                _ => writer.append_element(&element),
            };
        }
        writer.finish()
    })
}

/// The same, until somebody makes way for it.
fn follows_who_makes_way(donor: &Arc<Shard>) -> Tamper {
    let (donor, never_follows) = (Arc::downgrade(donor), never_follows());
    Box::new(move |command, report| {
        let outruns = |donor: &Arc<Shard>| donor.migrations.making_way.held() == 0;
        match donor.upgrade().as_ref().is_some_and(outruns) {
            true => never_follows(command, report),
            false => report,
        }
    })
}

/// ⚑ Writers whom nobody could follow make way, and the range leaves.
#[tokio::test(flavor = "multi_thread")]
async fn writers_make_way_for_a_move_that_cannot_follow_them() {
    let world = with_entries().await;
    *world.network.tamper.lock() = Some(follows_who_makes_way(&world.on(0).shard));
    let done = AtomicBool::new(false);
    let writer = async {
        let (mut owner, mut written) = (0, ENTRIES as i32);
        while !done.load(Ordering::SeqCst) {
            owner = write(&world, owner, UPDATE).await;
            written += 1;
        }
        written
    };
    let mover = async {
        let moved = world.moves(0, 1, "{x: 0}", "{x: 100}");
        let moved = tokio::time::timeout(PATIENCE, moved).await;
        done.store(true, Ordering::SeqCst);
        moved.map(|reply| outcome(&reply).to_owned())
    };
    let (moved, written) = tokio::join!(mover, writer);
    assert_eq!(moved.as_deref(), Ok("committed"));
    let shown = world.shown(1).await;
    let counts: Vec<_> = shown.iter().map(|document| document.get("n")).collect();
    assert_eq!(counts, [Some(&Value::Int32(written))]);
    let held = world.on(0).shard.migrations.making_way.held();
    assert!(held > 0, "nobody made way");
    world.close().await;
}

/// ⚑ Nobody makes way for a recipient that does not answer.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_held_for_a_silent_recipient() {
    let world = with_entries().await;
    *world.network.tamper.lock() = Some(never_follows());
    let done = AtomicBool::new(false);
    let making_way = &world.on(0).shard.migrations.making_way;
    let is_asked = async |expected: bool, limit: Duration| {
        let deadline = Instant::now() + limit;
        while making_way.is_asked() != expected {
            assert!(Instant::now() < deadline, "expected {expected}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let writer = async {
        while !done.load(Ordering::SeqCst) {
            write(&world, 0, UPDATE).await;
        }
    };
    let check = async {
        is_asked(true, PATIENCE).await;
        let is_report: Loses = Box::new(|body| body.get("_terndbReceive").is_some());
        *world.network.silences.lock() = Some(is_report);
        // Less than it takes until an answer is given up.
        is_asked(false, Duration::from_secs(10)).await;
        done.store(true, Ordering::SeqCst);
    };
    let moves = world.moves(0, 1, "{x: 0}", "{x: 100}");
    tokio::select! {
        reply = moves => panic!("it ended: {reply:?}"),
        _ = async { tokio::join!(check, writer) } => {}
    }
    world.close().await;
}
