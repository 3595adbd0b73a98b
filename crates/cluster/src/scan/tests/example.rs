//! The specification's worked example: two shards of six partitions each, a third one
//! added, and four partitions that move to it while an index is scanned.
//!
//! Same entries, same shards, same moves, same limits of what one request returns. The text looks for
//! keys above 15, but its batches return 12 and 15 as well; so do these.
//!
//! Partition 2 moves *during* batch 1. There the batch has skipped an entry in its middle, so that it is
//! repeated from the position it had. Here a batch reads one snapshot, which a move does not disturb:
//! - If its answer is lost all the same (the member died), it is repeated as there, and every batch is
//!   the one of the text ([`as_in_the_text`]).
//! - If not, it returns what partition 2 had, and the move is found at the next batch: a virtual
//!   stream goes on from where its source was, (58, 14), and not from the beginning
//!   ([`batch_1_is_not_repeated`]).
//!
//! Partition 8 moves when its shard has been scanned: nobody asks for it at S3, there as here.

use super::*;

const S1: &[(u32, u32, usize)] = &[
    (23, 11, 1),
    (47, 12, 2),
    (55, 13, 2),
    (58, 14, 3),
    (60, 15, 6),
    (60, 16, 3),
    (62, 18, 2),
    (75, 19, 1),
    (75, 20, 5),
    (75, 21, 2),
    (80, 22, 4),
];

const S2: &[(u32, u32, usize)] = &[
    (12, 40, 8),
    (15, 41, 7),
    (23, 42, 12),
    (23, 43, 8),
    (34, 44, 7),
    (47, 45, 10),
    (48, 46, 7),
    (66, 47, 9),
    (70, 48, 7),
    (70, 49, 8),
    (70, 50, 7),
    (80, 51, 11),
];

fn position(key: u32, primary_key: u32) -> Position {
    [key.to_be_bytes(), primary_key.to_be_bytes()].concat()
}

/// One request to a shard.
struct Step {
    /// How many entries it may return.
    limit: usize,
    /// The partition that moves to S3 while, or right after, it is answered.
    moves: Option<usize>,
    /// What is asked, and what comes.
    expected: &'static str,
}

fn step(limit: usize, moves: Option<usize>, expected: &'static str) -> Step {
    Step {
        limit,
        moves,
        expected,
    }
}

/// Enough for all that is left.
const ALL: usize = 100;

/// The world of the text, and a scan of it that runs by a script.
struct Example {
    world: World,
    base: RoutingTable,
    scan: Scan<u32>,
    found: Vec<u32>,
}

impl Example {
    fn begin() -> Example {
        let mut owners = vec!["S1"; 6];
        owners.extend(["S2"; 6]);
        let mut world = World::new(&owners);
        for (key, primary_key, partition) in S1.iter().chain(S2) {
            let document = Document {
                slot: partition - 1,
                positions: vec![position(*key, *primary_key)],
            };
            world.documents.insert(*primary_key, document);
        }
        Example {
            base: world.table(),
            scan: begin(&world, Order::Unsorted),
            world,
            found: Vec::new(),
        }
    }

    /// The next question. One shard at a time, as there: the others' first batches are left for later.
    fn ask(&mut self) -> Option<Question> {
        let mut questions = self.scan.questions();
        for ahead in questions.split_off(questions.len().min(1)) {
            self.scan.unanswered(ahead.stream);
        }
        questions.pop()
    }

    fn relocate(&mut self, partition: usize) {
        self.world.owners[partition - 1] = "S3";
    }

    /// Runs a script to its end.
    fn run(&mut self, script: &[Step]) {
        for Step {
            limit,
            moves,
            expected,
        } in script
        {
            let question = self
                .ask()
                .unwrap_or_else(|| panic!("over before {expected}"));
            let batch = self.world.serve(&question, &self.base, *limit);
            if let Some(partition) = moves {
                self.relocate(*partition);
            }
            self.scan.answered(question.stream, batch).unwrap();
            let delivered = std::iter::from_fn(|| self.scan.deliver());
            let results: Vec<u32> = delivered.map(|entry| entry.value).collect();
            let from = match &question.after {
                None => "the beginning".to_owned(),
                Some(place) => {
                    let (key, primary_key) = place.split_at(4);
                    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
                    format!("({}, {})", number(key), number(primary_key))
                }
            };
            let told = format!("{} from {from}: {results:?}", question.shard);
            assert_eq!(told, *expected);
            self.found.extend(results);
        }
        assert_eq!(self.ask(), None, "there is more");
        self.found.sort_unstable();
        let all: Vec<u32> = self.world.documents.keys().copied().collect();
        assert_eq!(self.found, all, "all of them, each once");
    }
}

/// Every batch is the one of the text.
#[test]
fn as_in_the_text() {
    let mut example = Example::begin();
    // Batch 1: P2 moves meanwhile, and the client gets nothing.
    let question = example.ask().unwrap();
    assert_eq!(question.shard, ShardId::new("S1"));
    example.relocate(2);
    example.scan.unanswered(question.stream);
    example.run(&[
        // Batch 2: P2 is found to have moved, at the beginning. P3 moves.
        step(4, Some(3), "S1 from the beginning: [11, 14, 15, 16]"),
        // Batch 3: P3 is found to have moved, at (60, 16). S1 is finished; S2 has room for two. P7 moves.
        step(ALL, None, "S1 from (60, 16): [19, 20, 22]"),
        step(2, Some(7), "S2 from the beginning: [40, 41]"),
        // Batch 4: P7 is found to have moved, at (15, 41). S2 is finished, and P8 moves. P2 on S3.
        step(ALL, Some(8), "S2 from (15, 41): [42, 43, 45, 47, 49, 51]"),
        step(1, None, "S3 from the beginning: [12]"),
        // Batch 5: the rest of P2; P3, of which nothing is left; P7.
        step(ALL, None, "S3 from (47, 12): [13, 18, 21]"),
        step(ALL, None, "S3 from (60, 16): []"),
        step(2, None, "S3 from (15, 41): [44, 46]"),
        // Batch 6: the rest of P7.
        step(ALL, None, "S3 from (48, 46): [48, 50]"),
    ]);
    let views = example.scan.streams().filter(|stream| stream.is_virtual);
    assert_eq!(views.count(), 3, "P2, P3 and P7, not P8");
}

/// The same without a lost answer.
#[test]
fn batch_1_is_not_repeated() {
    Example::begin().run(&[
        // Batch 1: P2 moves, and does not disturb the snapshot.
        step(4, Some(2), "S1 from the beginning: [11, 12, 13, 14]"),
        // Batch 2: P2 is found to have moved, at (58, 14). P3 moves.
        step(4, Some(3), "S1 from (58, 14): [15, 16, 19, 20]"),
        // Batch 3: P3 is found to have moved, at (75, 20). P7 moves.
        step(ALL, None, "S1 from (75, 20): [22]"),
        step(2, Some(7), "S2 from the beginning: [40, 41]"),
        // Batch 4: as in the text, but that P2 goes on from where S1 was.
        step(ALL, Some(8), "S2 from (15, 41): [42, 43, 45, 47, 49, 51]"),
        step(1, None, "S3 from (58, 14): [18]"),
        // Batch 5.
        step(ALL, None, "S3 from (62, 18): [21]"),
        step(ALL, None, "S3 from (75, 20): []"),
        step(2, None, "S3 from (15, 41): [44, 46]"),
        // Batch 6.
        step(ALL, None, "S3 from (48, 46): [48, 50]"),
    ]);
}
