//! The specification's tables about versions, row by row, as one script: each line is what is done, and the
//! versions after it.
//!
//! What follows `=>` shows chunks from left to right with shard and version, then the collection's version and its
//! life (an epoch is shown by its first byte); or a database's life and `lastMod`.

use cluster::authority::{Answer, Authority, Expected, Request};
use cluster::cache::Placement;
use cluster::routing::{History, RoutingTable, ShardId, initial_chunks};
use model::bson::{DocWriter, ObjectId};
use model::ids::Uuid;
use model::range::{KeyBound, KeyRange};
use model::shard_key::ShardKeyPattern;
use model::time::ClusterTime;
use model::version::{DatabaseVersion, Incarnation, PlacementVersion};
use std::sync::Arc;

const SCRIPT: &str = "
# First chunk for sharded collection: 1|0. Those beside it count on.
shard A                 => A 1|0 : 1|0 of 1
split 10                => A 2|1, A 2|2 : 2|2 of 1
# Moving a chunk: its major version; one that stays gets the next minor one.
move 10 end B           => A 3|1, B 3|0 : 3|1 of 1
# Splitting, where the shard has the collection's version: the major one too.
split 5                 => A 4|1, A 4|2, B 3|0 : 4|2 of 1
# Splitting, where another shard has it: the minor one, of the collection's version.
split 20                => A 4|1, A 4|2, B 4|3, B 4|4 : 4|4 of 1
# Merging: the collection's major version plus one, minor zero, whoever has the collection's version.
merge start 10          => A 5|0, B 4|3, B 4|4 : 5|0 of 1
merge 10 end            => A 5|0, B 6|0 : 6|0 of 1
# Moving the last chunk of a shard: nothing stays that could count on.
move 10 end A           => A 5|0, A 7|0 : 7|0 of 1
# Refining: another epoch, the same numbers.
refine 2                => A 5|0, A 7|0 : 7|0 of 2
# Dropping, and what was never sharded: 0|0 without an epoch.
drop                    => unsharded : 0|0 of 0
# Sharded again: another life begins at 1|0.
shard B                 => B 1|0 : 1|0 of 3

# New database: lastMod 1. Changing its primary: one more.
database                => 1 lastMod 1
movePrimary B           => 1 lastMod 2
movePrimary A           => 1 lastMod 3
# Dropping a database: what is made then has another UUID, and begins at 1.
dropDatabase            => none
database                => 2 lastMod 1
";

struct World {
    authority: Authority<&'static str>,
    /// Lives of collections, and of databases.
    lives: (u8, u8),
    operations: u8,
}

fn pattern(fields: &[&str]) -> Arc<ShardKeyPattern> {
    let mut writer = DocWriter::new();
    for field in fields {
        writer.append(field, 1);
    }
    Arc::new(ShardKeyPattern::parse(writer.finish().as_doc()).expect("a pattern"))
}

fn incarnation(life: u8) -> Incarnation {
    Incarnation {
        epoch: ObjectId([life; 12]),
        began: ClusterTime::new(life.into(), 0),
    }
}

impl World {
    fn bound(&self, word: &str) -> KeyBound {
        let pattern = pattern(&["k"]);
        match word {
            "start" => KeyBound::new(&pattern.least()),
            "end" => KeyBound::after_all(),
            key => {
                let key: i32 = key.parse().expect("a key");
                let bound = DocWriter::new().with("k", key).finish();
                KeyBound::new(&pattern.key_of_bound(bound.as_doc()).expect("a bound"))
            }
        }
    }

    fn next_operation(&mut self) -> Uuid {
        self.operations += 1;
        Uuid([self.operations; 16])
    }

    fn decide(&mut self, request: Request) {
        let (operation, now) = (self.next_operation(), ClusterTime::new(100, 0));
        let answer = self
            .authority
            .decide(operation, &"test.birds", request, now);
        match answer.expect("it is decided") {
            Answer::Write(decision) => self.authority.apply(decision).expect("it fits"),
            Answer::Decided(outcome) => panic!("decided before: {outcome:?}"),
        }
    }

    fn run(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let expected = Expected {
            incarnation: incarnation(self.lives.0),
            catalog: None,
        };
        let now = ClusterTime::new(100, 0);
        match words.as_slice() {
            ["shard", on] => {
                self.lives.0 += 1;
                let pattern = pattern(&["k"]);
                let chunks = initial_chunks(&pattern, &[], &[ShardId::new(on)], now);
                let table =
                    RoutingTable::full(Uuid([9; 16]), incarnation(self.lives.0), pattern, chunks);
                let table = table.expect("a table");
                self.decide(Request::Shard { table });
            }
            ["split", at] => {
                let points = vec![self.bound(at)];
                self.decide(Request::Split { expected, points });
            }
            ["move", min, max, to] => {
                let range = KeyRange::new(self.bound(min), self.bound(max));
                let table = self.authority.table(&"test.birds").expect("it is sharded");
                let from = table.find(range.min.as_bytes()).chunk.shard.clone();
                let to = ShardId::new(to);
                self.decide(Request::Move {
                    expected,
                    range,
                    from,
                    to,
                    history: History::default(),
                });
            }
            ["merge", min, max] => {
                let range = KeyRange::new(self.bound(min), self.bound(max));
                self.decide(Request::Merge {
                    expected,
                    range,
                    history: History::default(),
                });
            }
            ["refine", life] => {
                self.lives.0 = life.parse().expect("a life");
                self.decide(Request::Refine {
                    expected,
                    pattern: pattern(&["k", "l"]),
                    incarnation: incarnation(self.lives.0),
                });
            }
            ["drop"] => self.decide(Request::Drop { expected }),
            ["database"] => {
                self.lives.1 += 1;
                let (uuid, on) = (Uuid([self.lives.1; 16]), ShardId::new("A"));
                let made = self.authority.new_database(&on, uuid, now);
                let made = made.expect("the shard is there");
                self.authority.set_database("test", Some(made));
                return self.database();
            }
            ["movePrimary", to] => {
                let before = self.authority.database("test").expect("it is there");
                let (before, to) = (before.clone(), ShardId::new(to));
                let operation = self.next_operation();
                let moved = self
                    .authority
                    .decide_primary(operation, "test", &before, &to, now);
                let (_, after) = moved.expect("it is decided");
                self.authority.set_database("test", Some(after));
                return self.database();
            }
            ["dropDatabase"] => {
                self.authority.set_database("test", None);
                return self.database();
            }
            other => panic!("{other:?} is nothing that can be done"),
        }
        self.collection()
    }

    fn collection(&self) -> String {
        let table = self.authority.table(&"test.birds");
        let (shown, version) = match table {
            Some(table) => {
                let chunks = table
                    .chunks()
                    .map(|view| format!("{} {}", view.chunk.shard, view.chunk.version));
                (chunks.collect::<Vec<_>>().join(", "), table.version())
            }
            None => ("unsharded".to_owned(), Placement::Unsharded.version()),
        };
        let life = version.incarnation.epoch.0[0];
        format!("{shown} : {} of {life}", version.chunk)
    }

    fn database(&self) -> String {
        match self.authority.database("test") {
            Some(placement) => {
                let DatabaseVersion { uuid, .. } = placement.version;
                format!("{} lastMod {}", uuid.0[0], placement.version.last_modified)
            }
            None => "none".to_owned(),
        }
    }
}

#[test]
fn each_row_of_the_tables() {
    let mut world = World {
        authority: Authority::default(),
        lives: (0, 0),
        operations: 0,
    };
    for name in ["A", "B"] {
        world.authority.set_shard(ShardId::new(name), true);
    }
    for line in SCRIPT.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (done, expected) = line.split_once("=>").expect("a line with versions");
        assert_eq!(world.run(done), expected.trim(), "{line}");
    }
}

/// Values that no collection and no database has: as they travel in requests.
#[test]
fn special_values() {
    let shown = |version: PlacementVersion| {
        let mut writer = DocWriter::new();
        version.append_to(&mut writer);
        format!("{:?}", writer.finish())
    };
    let unsharded = shown(PlacementVersion::UNSHARDED);
    let ignored = shown(PlacementVersion::IGNORED);
    assert_eq!(
        unsharded,
        "{e: ObjectId(\"000000000000000000000000\"), t: Timestamp(0, 0), v: Timestamp(0, 0)}"
    );
    assert_eq!(
        ignored,
        "{e: ObjectId(\"ffffffffffffffffffffffff\"), t: Timestamp(4294967295, 4294967295), v: \
         Timestamp(0, 0)}"
    );
    // The databases config and admin: no UUID, lastMod 0.
    let fixed = DatabaseVersion::fixed();
    assert_eq!((fixed.uuid.0, fixed.last_modified), ([0; 16], 0));
}
