//! Options and indexes change while a range moves: the recipient gets them too.

use super::world::{World, outcome};
use std::sync::atomic::Ordering;

const COMMIT: &str = "_configsvrCommitMove";
const VERSION: &str = "_configsvrCatalogVersion";

/// The first shard has fifty documents, and the indexes `x_1` and `y_1`.
async fn filled() -> World {
    let world = World::new("{x: 1}").await;
    world
        .create(
            "{key: {x: 1}, name: 'x_1'}, {key: {y: 1}, name: 'y_1', expireAfterSeconds: 900000}",
        )
        .await;
    let documents: Vec<String> = (0..50)
        .map(|x| format!("{{_id: {x}, x: {x}, y: [{x}, 'a'], z: {x}}}"))
        .collect();
    world.on(0).insert(&documents).await;
    world
}

/// Moves ten to forty, and checks that both shards have the same indexes, so many of them.
async fn moves_with_indexes(world: &World, documents: usize, indexes: usize) {
    let reply = world.moves(0, 1, "{x: 10}", "{x: 40}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    assert_eq!(world.shown(1).await.len(), documents);
    let (given, received) = (world.indexes(0).await, world.indexes(1).await);
    assert_eq!(given, received);
    assert_eq!(received.len(), indexes, "{received:?}");
    world.on(0).check_valid("c").await;
    world.on(1).check_valid("c").await;
}

const CREATE: &str = "{createIndexes: 'c', indexes: [{key: {z: 1}, name: 'z_1'}]}";
const CREATE_UNIQUE: &str =
    "{createIndexes: 'c', indexes: [{key: {x: 1, z: 1}, name: 'xz', unique: true}]}";
const DROP: &str = "{dropIndexes: 'c', index: 'y_1'}";
const HIDE: &str = "{collMod: 'c', index: {name: 'y_1', hidden: true}}";
const EXPIRE: &str = "{collMod: 'c', index: {name: 'y_1', expireAfterSeconds: 800000}}";
const IMAGES: &str = "{collMod: 'c', changeStreamPreAndPostImages: {enabled: true}}";

/// ⚑ Before writes are blocked, and when the move is to be committed.
#[tokio::test(flavor = "multi_thread")]
async fn indexes_that_change_meanwhile_are_on_the_recipient() {
    for (question, change, indexes) in [
        (VERSION, CREATE, 4),
        (VERSION, HIDE, 3),
        (COMMIT, CREATE_UNIQUE, 4),
        (COMMIT, DROP, 2),
        (COMMIT, EXPIRE, 3),
        (COMMIT, IMAGES, 3),
    ] {
        let world = filled().await;
        let changed = world.changes_indexes(change);
        world.authority.before(question, changed);
        moves_with_indexes(&world, 30, indexes).await;
        let put_off = world.authority.put_off.load(Ordering::SeqCst);
        assert_eq!(put_off > 0, question == COMMIT, "{change}");
        let options = [world.on(0), world.on(1)].map(|shard| {
            let name = model::Namespace::new("test", "c").expect("a name");
            let collection = shard.shard.catalog.get(&name).expect("it is there");
            collection.options.clone()
        });
        assert_eq!(options[0], options[1], "{change}");
        world.close().await;
    }
}

/// ⚑ A move that is put off does not keep writes away, and what they write is not lost: to be ready once says
/// nothing about the next time.
#[tokio::test(flavor = "multi_thread")]
async fn writes_go_on_while_a_move_catches_up() {
    let world = filled().await;
    world
        .authority
        .before(COMMIT, world.changes_indexes(CREATE));
    let insert = "{insert: 'c', documents: [{_id: 'new', x: 20, z: 7}]}";
    world.authority.before(VERSION, world.later(0, insert));
    let update = "{update: 'c', updates: [{q: {x: 21}, u: {$set: {z: 'other'}}}]}";
    world.authority.before(VERSION, world.later(0, update));
    world.authority.before(COMMIT, world.changes_indexes(DROP));
    let delete = "{delete: 'c', deletes: [{q: {x: 22}, limit: 1}]}";
    world.authority.before(VERSION, world.later(0, delete));
    moves_with_indexes(&world, 30, 3).await;
    assert_eq!(world.authority.put_off.load(Ordering::SeqCst), 2);
    world
        .on(1)
        .check(
            "
            {count: 'c', query: {_id: 'new', z: 7}} => {n: 1}
            {find: 'c', filter: {z: 'other'}, hint: 'z_1'} => {cursor: {firstBatch: [{_id: 21}]}}
            {count: 'c', query: {x: 22}} => {n: 0}
            ",
        )
        .await;
    world.close().await;
}

/// A recipient that has the collection already, with other indexes: those of earlier days.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_comes_back_to_a_shard_that_missed_an_index() {
    let world = filled().await;
    let reply = world.moves(0, 1, "{x: 10}", "{x: 40}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    // The first shard gives away the rest, and hears of no index any more.
    for (min, max) in [("MinKey", "10"), ("40", "MaxKey")] {
        let (min, max) = (format!("{{x: {min}}}"), format!("{{x: {max}}}"));
        let reply = world.moves(0, 1, &min, &max).await;
        assert_eq!(outcome(&reply), "committed", "{reply:?}");
    }
    for change in [CREATE, DROP] {
        world.on(1).check(&format!("{change} => {{}}")).await;
        world.authority.catalog.fetch_add(2, Ordering::SeqCst);
    }
    let reply = world.moves(1, 0, "{x: 10}", "{x: 40}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    assert_eq!(world.indexes(0).await, world.indexes(1).await);
    assert_eq!(world.authority.put_off.load(Ordering::SeqCst), 0);
    world.on(0).check_valid("c").await;
    world.close().await;
}

/// ⚑ Who owns a part of the collection keeps the indexes that its documents are found by, whatever the donor lacks.
/// Both were changed on one shard alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_recipient_that_owns_some_loses_no_index() {
    let world = filled().await;
    let reply = world.moves(0, 1, "{x: 10}", "{x: 40}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    world.on(1).check(&format!("{CREATE} => {{}}")).await;
    world.on(0).check(&format!("{DROP} => {{}}")).await;
    let before = world.indexes(1).await;
    let reply = world.moves(0, 1, "{x: 40}", "{x: 45}").await;
    assert_eq!(outcome(&reply), "committed", "{reply:?}");
    assert_eq!(world.indexes(1).await, before);
    assert_eq!(before.len(), 4);
    world
        .on(1)
        .check("{count: 'c', query: {z: {$gte: 38}}, hint: 'z_1'} => {n: 7}")
        .await;
    world.on(1).check_valid("c").await;
    // What takes the name of one that is to come cannot stay beside it.
    let other = "{createIndexes: 'c', indexes: [{key: {z: -1}, name: 'taken'}]}";
    world.on(1).check(&format!("{other} => {{}}")).await;
    let taken = "{createIndexes: 'c', indexes: [{key: {y: -1}, name: 'taken'}]}";
    world.on(0).check(&format!("{taken} => {{}}")).await;
    let reply = world.moves(0, 1, "{x: 45}", "{x: 47}").await;
    assert_eq!(outcome(&reply), "aborted", "{reply:?}");
    let why = differential::notation::print_fields(&reply);
    assert!(why.contains("taken"), "{why}");
    assert_eq!(world.shown(0).await.len(), 15);
    world.close().await;
}

/// Indexes that change whenever the move is to be committed: it ends, and nothing is blocked.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_is_not_put_off_for_ever() {
    let world = filled().await;
    for _ in 0..20 {
        world.authority.before(COMMIT, world.changes_indexes(HIDE));
    }
    let reply = world.moves(0, 1, "{x: 10}", "{x: 40}").await;
    assert_eq!(outcome(&reply), "aborted", "{reply:?}");
    assert_eq!(world.shown(0).await.len(), 50);
    let write = "{update: 'c', updates: [{q: {x: 20}, u: {$set: {z: 1}}}]}";
    world.on(0).check(&format!("{write} => {{n: 1}}")).await;
    world.close().await;
}
