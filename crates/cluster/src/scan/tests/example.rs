//! The specification's worked example: two shards of six partitions each, a third one
//! added, and four partitions that move to it while an index is scanned from keys above
//! 15 on.
//!
//! Same entries, same shards, same moves between the same batches; a batch has four
//! results at most. What differs, and why:
//! - Partition 2 moves *during* batch 1. There the batch is repeated, because it would
//!   have skipped an entry in the middle. Here a batch reads one snapshot: it returns
//!   what partition 2 had, and the move is found at the next batch.
//! - A stream continues from the position its source had reached, so partition 2 goes
//!   on behind (58, 14), and not from the beginning.

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

#[test]
fn the_worked_example() {
    let mut owners = vec!["S1"; 6];
    owners.extend(["S2"; 6]);
    let mut world = World::new(&owners);
    for (key, primary_key, partition) in S1.iter().chain(S2) {
        let document = Document {
            slot: partition - 1,
            positions: vec![position(*key, *primary_key)],
        };
        // The query looks for keys above 15.
        if *key > 15 {
            world.documents.insert(*primary_key, document);
        }
    }
    let base = world.table();
    let mut scan = begin(&world, Order::Unsorted);
    let mut log = Vec::new();
    let moves: &[(usize, &[usize])] = &[(1, &[2]), (2, &[3]), (3, &[7]), (4, &[8])];
    let mut found = Vec::new();
    for batch in 1.. {
        // One shard at a time, as there: what is asked ahead is left for later.
        let mut questions = scan.questions();
        if questions.is_empty() {
            break;
        }
        let question = questions.remove(0);
        for ahead in questions {
            scan.unanswered(ahead.stream);
        }
        scan.answered(question.stream, world.serve(&question, &base, 4))
            .unwrap();
        let results: Vec<u32> = std::iter::from_fn(|| scan.deliver())
            .map(|entry| entry.value)
            .collect();
        log.push(format!("{} {results:?}", question.shard));
        found.extend(results);
        for (_, partitions) in moves.iter().filter(|(after, _)| *after == batch) {
            for partition in *partitions {
                world.owners[partition - 1] = "S3";
            }
        }
    }
    let expected = [
        // P2 moves.
        "S1 [11, 12, 13, 14]",
        // P2 is found to have moved, at (58, 14). P3 moves.
        "S1 [15, 16, 19, 20]",
        // P3 is found to have moved, at (75, 20). P7 moves.
        "S1 [22]",
        // P7 is found to have moved, at the beginning. P8 moves.
        "S2 [42, 43, 45, 47]",
        // P8 is found to have moved, at (66, 47).
        "S2 [51]",
        // P2 on S3, behind (58, 14).
        "S3 [18, 21]",
        // P3 on S3, behind (75, 20): nothing.
        "S3 []",
        // P7 on S3.
        "S3 [44, 46, 48, 50]",
        // P8 on S3, behind (66, 47).
        "S3 [49]",
    ];
    assert_eq!(log, expected);
    found.sort_unstable();
    let all: Vec<u32> = world.documents.keys().copied().collect();
    assert_eq!(found, all, "all of them, each once");
}
