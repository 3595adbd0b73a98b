//! Whatever the cut: what was acknowledged as synced is there, what is there is what was
//! appended, opening again changes nothing, and recycled files revive nothing.
//!
//! A case is a few lives of one log. Each life proposes, commits, syncs, trims, and ends
//! in the middle of some operation of the disk: by a power cut, by the death of the
//! process, or by a failed sync. Then log and state are compared with a plain map of
//! everything that was ever proposed and not provably lost.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use crate::world::{Ledger, OWN_ENTRY, World};
use proptest::prelude::*;
use replication::{Driver, Durability, EntryKind, Error, Faults, Group, Pending, ReadError};

#[derive(Clone, Debug)]
enum Step {
    Propose { synced: bool, payload_bytes: usize },
    Commit,
    Sync,
    Maintain,
    Pass { ms: i64 },
}

#[derive(Clone, Debug)]
enum End {
    PowerCut {
        seed: u64,
        state_kept: usize,
    },
    ProcessDies,
    SyncFails {
        after: u64,
        then_power_cut: Option<u64>,
    },
}

#[derive(Clone, Debug)]
struct Life {
    steps: Vec<Step>,
    /// How many changes of the disk pass before it ends.
    operations: u64,
    end: End,
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (prop::bool::weighted(0.6), prop_oneof![8 => 0..300usize, 1 => 1000..6000usize])
            .prop_map(|(synced, payload_bytes)| Step::Propose { synced, payload_bytes }),
        4 => Just(Step::Commit),
        1 => Just(Step::Sync),
        1 => Just(Step::Maintain),
        1 => (0..3000i64).prop_map(|ms| Step::Pass { ms }),
    ]
}

fn a_life() -> impl Strategy<Value = Life> {
    let end = prop_oneof![
        4 => (any::<u64>(), any::<u16>())
            .prop_map(|(seed, kept)| End::PowerCut { seed, state_kept: kept.into() }),
        1 => Just(End::ProcessDies),
        1 => (0..20u64, prop::option::of(any::<u64>()))
            .prop_map(|(after, then_power_cut)| End::SyncFails { after, then_power_cut }),
    ];
    (prop::collection::vec(a_step(), 1..80), 0..120u64, end).prop_map(|(steps, operations, end)| {
        Life {
            steps,
            operations,
            end,
        }
    })
}

/// What must and what may be in the log.
#[derive(Default)]
struct Model {
    payloads: BTreeMap<u64, Vec<u8>>,
    /// Up to here, entries were acknowledged as synced.
    acknowledged: u64,
    /// Positions of entries that the log made for itself.
    own: std::collections::BTreeSet<u64>,
    /// Positions that a power cut took from the log and not from the state.
    lost: std::collections::BTreeSet<u64>,
    number: u32,
}

impl Model {
    fn propose(
        &mut self,
        group: &Group<Ledger>,
        synced: bool,
        payload_bytes: usize,
    ) -> Option<(bool, Pending)> {
        // Each payload is used once, so that an old one that comes back is seen.
        self.number += 1;
        let mut payload = self.number.to_le_bytes().to_vec();
        payload.resize(4 + payload_bytes, 0xee);
        let durability = if synced {
            Durability::Synced
        } else {
            Durability::Buffered
        };
        let pending = group
            .propose(durability, payload.clone(), |_, position, _| position.get())
            .ok()?;
        self.payloads
            .insert(pending.given().position.get(), payload);
        Some((synced, pending))
    }

    fn note_answers(&mut self, pending: &mut Vec<(bool, Pending)>) {
        pending.retain_mut(|(synced, pending)| match pending.poll_now() {
            None => true,
            Some(Ok(applied)) => {
                if *synced {
                    self.acknowledged = self.acknowledged.max(applied.position.get());
                }
                false
            }
            Some(Err(_)) => false,
        });
    }

    /// Compares a log that was just opened, and forgets what is provably gone.
    fn compare(&mut self, group: &Group<Ledger>, ledger: &Ledger) {
        let applied = group.last_applied().get();
        assert_eq!(applied, ledger.applied(), "log and state end together");
        assert!(
            applied >= self.acknowledged,
            "what was acknowledged as synced is there"
        );
        let pages = ledger.pages.lock();
        for (index, payload) in pages.payloads.iter().enumerate() {
            let position = index as u64 + 1;
            if payload == OWN_ENTRY {
                assert!(
                    self.own.contains(&position) || position > self.acknowledged,
                    "the log put its own in place of what was acknowledged at {position}"
                );
                self.own.insert(position);
                self.payloads.remove(&position);
                continue;
            }
            assert_eq!(
                self.payloads.get(&position),
                Some(payload),
                "state at {position}"
            );
        }
        let first = group.first_position();
        assert!(
            pages.durable as u64 >= first.previous().get(),
            "trimmed only what is synced"
        );
        drop(pages);

        let mut reached = first.previous();
        while reached < group.last_applied() {
            match group.read(reached, 700) {
                Ok(entries) => {
                    for entry in entries {
                        assert_eq!(entry.position, reached.next(), "no holes");
                        reached = entry.position;
                        if entry.kind != EntryKind::Data {
                            assert!(self.own.contains(&entry.position.get()));
                            continue;
                        }
                        assert_eq!(
                            self.payloads.get(&entry.position.get()).map(Vec::as_slice),
                            Some(entry.payload.as_ref()),
                            "log at {}",
                            entry.position
                        );
                    }
                }
                Err(ReadError::Gap { after, next }) => {
                    assert_eq!(after, reached);
                    for position in after.next().get()..next.get() {
                        assert!(
                            position > self.acknowledged || self.lost.contains(&position),
                            "{position} was acknowledged and fell into a gap"
                        );
                        self.lost.insert(position);
                    }
                    reached = next.previous();
                }
                Err(error) => panic!("reading after {reached}: {error}"),
            }
        }
        self.payloads.retain(|position, _| *position <= applied);
        self.own.retain(|position| *position <= applied);
    }
}

/// All that can be read, for comparing one opening with the next.
fn everything(group: &Group<Ledger>) -> Vec<Result<u64, ReadError>> {
    let mut seen = Vec::new();
    let mut reached = group.first_position().previous();
    while reached < group.last_applied() {
        match group.read(reached, 700) {
            Ok(entries) => {
                for entry in entries {
                    reached = entry.position;
                    seen.push(Ok(reached.get()));
                }
            }
            Err(ReadError::Gap { after, next }) => {
                reached = next.previous();
                seen.push(Err(ReadError::Gap { after, next }));
            }
            Err(error) => panic!("{error}"),
        }
    }
    seen
}

fn live(world: &World, model: &mut Model, life: &Life) {
    let Some((group, mut driver)) = open_unless_cut(world) else {
        return;
    };
    model.compare(&group, &world.ledger);
    let mut pending = Vec::new();
    for step in &life.steps {
        match step {
            Step::Propose {
                synced,
                payload_bytes,
            } => {
                pending.extend(model.propose(&group, *synced, *payload_bytes));
            }
            Step::Commit => {
                driver.step();
            }
            Step::Sync => {
                driver.sync();
                if group.stopped().is_none() {
                    let applied = group.last_applied().get();
                    model.acknowledged = model.acknowledged.max(applied);
                }
            }
            Step::Maintain => group.maintain(),
            Step::Pass { ms } => {
                world.wall_ms.fetch_add(*ms, Ordering::Relaxed);
            }
        }
        model.note_answers(&mut pending);
    }
}

fn open_unless_cut(world: &World) -> Option<(Group<Ledger>, Driver<Ledger>)> {
    match world.open_stepped() {
        Ok(opened) => Some(opened),
        Err(Error::Disk { .. } | Error::StateMachine(_) | Error::Stopped { .. })
            if world.disk.power_is_off() =>
        {
            None
        }
        // An injected failure of a sync is not a cut, and is told by its text only.
        Err(error) if error.to_string().contains("sync failed") => None,
        Err(error) => panic!("opening failed: {error}"),
    }
}

/// How large segments are, of one page and of several; from how many bytes on a synced group is
/// written in whole blocks; how much of a group is written at a time; and how many syncs say that a segment is left
/// early.
const SIZES: [(u64, u64, u64, u64); 5] = [
    (4096, u64::MAX, u64::MAX, 256),
    (3 * 4096 + 512, u64::MAX, u64::MAX, 256),
    (4 * 4096, 2000, u64::MAX, 256),
    (4 * 4096, 2000, 300, 256),
    (4 * 4096, 0, u64::MAX, 1),
];

fn check(lives: &[Life]) {
    for (segment_bytes, direct_bytes_min, piece_bytes, syncs_looked_at) in SIZES {
        let mut world = World::new();
        world.options.segment_bytes = segment_bytes;
        world.options.direct_bytes_min = direct_bytes_min;
        world.options.piece_bytes = piece_bytes;
        world.options.syncs_looked_at = syncs_looked_at;
        check_in(world, lives);
    }
}

fn check_in(mut world: World, lives: &[Life]) {
    world.options.window_bytes = 3 * world.options.segment_bytes;
    let mut model = Model::default();
    for life in lives {
        match life.end {
            End::PowerCut { .. } | End::ProcessDies => world.disk.cut_power_after(life.operations),
            End::SyncFails { after, .. } => world.disk.fail_sync_after(after),
        }
        live(&world, &mut model, life);
        match life.end {
            End::PowerCut { seed, state_kept } => {
                world.disk.restart(Some(seed));
                world.ledger.power_cut(state_kept);
            }
            End::ProcessDies => world.disk.restart(None),
            End::SyncFails { then_power_cut, .. } => {
                world.disk.restart(None);
                if let Some(seed) = then_power_cut {
                    // The machine goes on for a while after the process was restarted.
                    let (group, _driver) = world.open_stepped().expect("it opens again");
                    model.compare(&group, &world.ledger);
                    model.acknowledged = group.last_applied().get();
                    world.disk.restart(Some(seed));
                    world.ledger.power_cut(seed as usize);
                }
            }
        }
        let (group, driver) = world.open_stepped().expect("it opens again");
        model.compare(&group, &world.ledger);
        let before = everything(&group);
        drop(driver);
        world.disk.restart(None);
        let (group, _driver) = world.open_stepped().expect("it opens a second time");
        assert_eq!(
            everything(&group)
                .split_last()
                .map(|(_, rest)| rest.to_vec()),
            Some(before),
            "opening again adds the first of a term and changes nothing"
        );
        model.compare(&group, &world.ledger);
        // What was found has been written again and synced before it was applied.
        model.acknowledged = group.last_applied().get();
        world.disk.restart(None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_was_synced_is_lost_and_nothing_lost_comes_back(
        lives in prop::collection::vec(a_life(), 1..6)
    ) {
        check(&lives);
    }
}

/// A process that died after renaming a segment and before syncing the directory left a
/// name that was seen and not stable. The next one filled that segment and acknowledged
/// what was in it; then a power cut took the name.
#[test]
fn a_name_that_a_dying_process_gave_is_made_stable_before_it_is_used() {
    let propose = |synced, payload_bytes| Step::Propose {
        synced,
        payload_bytes,
    };
    for after in 0..12 {
        for seed in 0..8 {
            let first = Life {
                steps: vec![propose(false, 3149), propose(false, 400), Step::Commit],
                operations: 0,
                end: End::SyncFails {
                    after,
                    then_power_cut: None,
                },
            };
            let second = Life {
                steps: vec![propose(true, 0), Step::Commit],
                operations: 100,
                end: End::PowerCut {
                    seed,
                    state_kept: 0,
                },
            };
            check(&[first, second]);
        }
    }
}

/// A write that is synced by itself says nothing about what was buffered before it.
#[test]
fn a_group_is_synced_by_its_own_write_only_where_nothing_before_it_is_unsynced() {
    let propose = |synced, payload_bytes| Step::Propose {
        synced,
        payload_bytes,
    };
    let lose = |faults: Faults| {
        (0..40).find_map(|seed| {
            let life = Life {
                steps: vec![
                    propose(true, 100),
                    Step::Commit,
                    propose(false, 700),
                    Step::Commit,
                    propose(true, 100),
                    Step::Commit,
                ],
                operations: 100,
                end: End::PowerCut {
                    seed,
                    state_kept: 0,
                },
            };
            let mut world = World::new();
            world.options.faults = faults;
            let outcome = catch_unwind(AssertUnwindSafe(|| check_in(world, &[life])));
            let wrong = outcome.err()?;
            let text = wrong.downcast_ref::<String>().map(String::as_str);
            text.or(wrong.downcast_ref::<&str>().copied())
                .map(str::to_owned)
        })
    };
    assert_eq!(lose(Faults::default()), None);
    let faults = Faults {
        sync_over_unsynced: true,
        ..Faults::default()
    };
    let wrong = lose(faults).expect("nobody misses the rule");
    assert!(wrong.contains("acknowledged as synced"), "{wrong}");
}
