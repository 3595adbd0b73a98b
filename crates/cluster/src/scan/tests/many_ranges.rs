//! Placements of very many ranges that do not touch: neither requests nor tokens grow with them.

use super::*;

/// So many ranges does each of two shards have.
const RANGES: usize = 30_000;
/// As if a request could hold half of them.
const LIMITS: Limits = Limits {
    bytes_max: 800_000,
    ..Limits::OF_REQUESTS
};

/// A's and B's in turn.
fn table() -> RoutingTable {
    let world = World::new(&["A", "B"].repeat(RANGES));
    world.table()
}

fn shard(name: &str) -> ShardId {
    ShardId::new(name)
}

fn moved(table: &RoutingTable, slot: usize, to: &str, time: u32) -> RoutingTable {
    let range = slot_range(slot, 2 * RANGES);
    let changes = table.moving(&range, &shard(to), ClusterTime::new(time, 0));
    table.with_changes(changes.unwrap()).unwrap()
}

/// The question to A, and how it is asked when `now` is what is known.
fn asked_of_a(scan: &mut Scan<u32>, now: &RoutingTable) -> (Question, RangeSet, Naming) {
    let questions = scan.questions();
    let mut of_a = None;
    for question in questions {
        match question.shard == shard("A") && of_a.is_none() {
            true => of_a = Some(question),
            false => scan.unanswered(question.stream),
        }
    }
    let question = of_a.expect("A is asked");
    let Asked::These(ranges) = &question.asked else {
        panic!("ranges are named");
    };
    let naming = naming(ranges, &question.shard, now, Limits::OF_REQUESTS);
    (question.clone(), ranges.clone(), naming)
}

/// What goes away from A, comes to it, and is divided among others changes requests and tokens by just that.
#[test]
fn requests_and_tokens_hold_what_changed() {
    let base = table();
    let mut scan = Scan::<u32>::begin(Arc::new(base.clone()), everything(), Order::Unsorted);
    let questions = scan.questions();
    assert_eq!(questions[0].asked, Asked::AsInBase);
    let now = moved(&moved(&base, 2, "B", 50), 5, "A", 60);
    for question in questions {
        scan.name_ranges(question.stream);
    }
    // What went is known without a question.
    let (question, ranges, naming) = asked_of_a(&mut scan, &now);
    assert_eq!(ranges.iter().len(), RANGES);
    let gone = RangeSet::of([slot_range(2, 2 * RANGES)]);
    assert_eq!(naming, Naming::Gone(gone.clone()));
    let told = Batch {
        entries: Vec::new(),
        reached: None,
        ended: false,
        moved: gone
            .iter()
            .map(|range| (range.clone(), shard("B")))
            .collect(),
    };
    scan.answered(question.stream, told).unwrap();
    // What came is what A does not answer for.
    let came = RangeSet::of([slot_range(5, 2 * RANGES)]);
    let by_version = Naming::ByVersion {
        version: now.shard_version(&shard("A")),
        without: came,
    };
    let (question, ranges, naming) = asked_of_a(&mut scan, &now);
    assert_eq!(naming, by_version);
    scan.unanswered(question.stream);
    // So it is for whoever goes on from a token, and from the token that is got there.
    for _ in 0..3 {
        let token = scan.token(ClusterTime::ZERO).unwrap();
        let bytes = token.encode().len();
        assert!(bytes < 300, "{bytes} bytes");
        scan = Scan::resume(token, Arc::new(now.clone()), everything()).unwrap();
        let (question, again, naming) = asked_of_a(&mut scan, &now);
        assert_eq!(again, ranges);
        assert_eq!(naming, by_version);
        scan.unanswered(question.stream);
    }
}

/// A shard that is drained while a scan runs leaves very many ranges, which nobody has said in a word. Who has little
/// else is asked by version, who has as many others in several parts.
#[test]
fn a_drained_shard_of_very_many_ranges() {
    let base = table();
    let mut scan = Scan::<u32>::begin(Arc::new(base.clone()), everything(), Order::Unsorted);
    for question in scan.questions() {
        scan.name_ranges(question.stream);
    }
    let owners = |others: &'static str| {
        let mut owners = [others, "B"].repeat(RANGES);
        owners[0] = "C";
        World::new(&owners).table()
    };
    for (to, named) in [("C", 1), ("B", 2)] {
        let (mut scan, now) = (scan.clone(), owners(to));
        let (question, ranges, naming) = asked_of_a(&mut scan, &now);
        assert_eq!(naming, Naming::Gone(ranges.clone()));
        let told = Batch {
            entries: Vec::new(),
            reached: Some(vec![1]),
            ended: false,
            moved: ranges
                .iter()
                .zip([shard("C")].into_iter().chain(std::iter::repeat(shard(to))))
                .map(|(range, to)| (range.clone(), to))
                .collect(),
        };
        scan.answered(question.stream, told).unwrap();
        let mut parts = 0;
        let mut covered = RangeSet::new();
        loop {
            let next = scan.streams.iter().position(|stream| {
                matches!(stream.part, Part::These(_)) && stream.reached == Reached::Beginning
            });
            let Some(at) = next else { break };
            let question = scan.question(at);
            let Asked::These(ranges) = &question.asked else {
                panic!("ranges are named");
            };
            match super::naming(ranges, &question.shard, &now, LIMITS) {
                Naming::TooLong => {
                    scan.divide(question.stream);
                    continue;
                }
                Naming::Gone(_) => panic!("it is there"),
                Naming::ByName | Naming::ByVersion { .. } => {}
            }
            parts += usize::from(question.shard == shard(to));
            covered = covered.union(ranges);
            let ended = Batch {
                entries: Vec::new(),
                reached: None,
                ended: true,
                moved: Vec::new(),
            };
            scan.answered(question.stream, ended).unwrap();
        }
        assert_eq!(parts, named, "{to}");
        assert_eq!(covered, base.ranges_of(&shard("A")), "every range once");
    }
}
