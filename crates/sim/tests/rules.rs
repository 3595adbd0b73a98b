//! Each rule of the log that can be broken is broken, and the invariants must notice.
//! (A rule that nobody misses is not tested, or not a rule.)

use std::panic::{AssertUnwindSafe, catch_unwind};

use replication::Faults;
use sim::{Settings, run};

/// Three members, all wanted alike, and nobody who is not needed.
fn plain(settings: &mut Settings) {
    settings.voters = 3;
    settings.joining = 0;
    settings.priorities = false;
    settings.sessions = 0;
}

/// Runs worlds with a fault until something is found to be wrong, and returns what.
fn first_wrong(faults: Faults, adjust: impl Fn(&mut Settings)) -> Option<(u64, String)> {
    (0..400).find_map(|seed| {
        let mut settings = Settings::from_seed(seed);
        plain(&mut settings);
        settings.faults = faults;
        adjust(&mut settings);
        match catch_unwind(AssertUnwindSafe(|| run(seed, settings))) {
            Ok(Ok(_)) => None,
            Ok(Err(wrong)) => Some((seed, wrong)),
            Err(_) => Some((seed, "a member panicked".to_owned())),
        }
    })
}

fn check(faults: Faults, adjust: impl Fn(&mut Settings), expected: &[&str]) {
    let Some((seed, wrong)) = first_wrong(faults, &adjust) else {
        panic!("nobody misses the rule: {faults:?}");
    };
    println!("{faults:?}: seed {seed}: {wrong}");
    assert!(
        expected.iter().any(|text| wrong.contains(text)),
        "{faults:?}: seed {seed}: {wrong}"
    );
    // It was the fault, not the world.
    let mut settings = Settings::from_seed(seed);
    plain(&mut settings);
    adjust(&mut settings);
    assert!(run(seed, settings).is_ok(), "seed {seed}");
}

fn stormy(settings: &mut Settings) {
    settings.crashes = 40;
    settings.partitions = 40;
    settings.transfers = 10;
}

#[test]
fn an_entry_is_synced_before_it_is_acknowledged() {
    let faults = Faults {
        acknowledge_unsynced: true,
        ..Faults::default()
    };
    let expected = [
        "acknowledged",
        "another member",
        "once reached",
        "does not start",
        "panicked",
    ];
    check(faults, stormy, &expected);
}

#[test]
fn a_hint_names_what_was_committed() {
    let faults = Faults {
        hint_appended: true,
        ..Faults::default()
    };
    check(faults, stormy, &["another member", "panicked"]);
}

#[test]
fn a_vote_is_remembered() {
    let faults = Faults {
        forget_votes: true,
        ..Faults::default()
    };
    // Two members must ask for votes in the same term, and a third must be restarted
    // between the two.
    let adjust = |settings: &mut Settings| {
        stormy(settings);
        settings.trims = 0;
        settings.crashes = 150;
        settings.partitions = 100;
        settings.weather.loss = 100;
        settings.weather.delay_rounds_max = 3;
    };
    check(faults, adjust, &["both lead", "panicked", "another member"]);
}

#[test]
fn a_leader_serves_after_an_entry_of_its_own_term() {
    let faults = Faults {
        lead_at_once: true,
        ..Faults::default()
    };
    check(faults, stormy, &["was acknowledged"]);
}

#[test]
fn a_barrier_asks_a_majority() {
    let faults = Faults {
        barrier_without_quorum: true,
        ..Faults::default()
    };
    check(faults, stormy, &["let a read pass"]);
}

#[test]
fn times_increase_whatever_the_clocks_say() {
    let faults = Faults {
        time_from_wall: true,
        ..Faults::default()
    };
    let adjust = |settings: &mut Settings| {
        stormy(settings);
        settings.clock_jumps = 50;
    };
    check(
        faults,
        adjust,
        &["is not later", "had been acknowledged before"],
    );
}

#[test]
fn an_entry_leaves_the_log_when_the_state_was_synced_past_it() {
    let faults = Faults {
        trim_unsynced: true,
        ..Faults::default()
    };
    let adjust = |settings: &mut Settings| {
        stormy(settings);
        settings.trims = 300;
    };
    check(
        faults,
        adjust,
        &["does not start", "stopped by itself", "panicked"],
    );
}

#[test]
fn a_read_before_the_start_of_the_log_is_an_error() {
    let faults = Faults {
        read_over_gaps: true,
        ..Faults::default()
    };
    let adjust = |settings: &mut Settings| {
        stormy(settings);
        settings.trims = 300;
    };
    check(faults, adjust, &["a hole"]);
}

/// What a session was found to have done holds only while its member leads without a break.
#[test]
fn a_statement_is_proposed_in_the_term_of_its_check_out() {
    let adjust = |settings: &mut Settings| {
        settings.crashes = 5;
        settings.partitions = 40;
        settings.transfers = 100;
        settings.sessions = 20;
        settings.heed_terms = false;
    };
    let Some((seed, wrong)) = first_wrong(Faults::default(), adjust) else {
        panic!("nobody misses the rule");
    };
    println!("seed {seed}: {wrong}");
    assert!(wrong.contains("took effect twice"), "seed {seed}: {wrong}");
    let heeds = |settings: &mut Settings| {
        adjust(settings);
        settings.heed_terms = true;
    };
    let mut settings = Settings::from_seed(seed);
    plain(&mut settings);
    heeds(&mut settings);
    assert!(run(seed, settings).is_ok(), "seed {seed}");
}
