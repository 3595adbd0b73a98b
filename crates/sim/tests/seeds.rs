//! A thousand worlds in which everything must hold. A seed that fails is printed;
//! `TERNDB_SEED=<seed> cargo test -p sim --test seeds` runs it alone.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sim::{Report, Settings, run};

fn check(seed: u64) -> Report {
    let outcome = catch_unwind(AssertUnwindSafe(|| run(seed, Settings::from_seed(seed))));
    match outcome {
        Ok(Ok(report)) => report,
        Ok(Err(wrong)) => panic!("seed {seed}: {wrong}"),
        Err(panic) => {
            eprintln!("seed {seed}: a member panicked");
            std::panic::resume_unwind(panic)
        }
    }
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("TERNDB_SEED").map(|seed| seed.parse::<u64>()) {
        Ok(Ok(seed)) => seed..seed + 1,
        _ => 0..1000,
    }
}

#[test]
fn a_thousand_worlds() {
    let mut reports = Vec::new();
    for seed in seeds() {
        reports.push(check(seed));
    }
    if reports.len() < 1000 {
        println!("{reports:#?}");
        return;
    }
    // The worlds are worth something only if things happen in them.
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    println!(
        "{} installed, {} resumed, {} kept, {} of others",
        sum(|report| report.installs),
        sum(|report| report.resumed),
        sum(|report| report.kept),
        sum(|report| report.kept_of_others),
    );
    assert!(sum(|report| report.acknowledged as u64) > 50_000);
    assert!(sum(|report| report.terms as u64) > 3_000);
    assert!(sum(|report| report.crashes) > 2_000);
    assert!(sum(|report| report.reads) > 3_000);
    assert!(sum(|report| report.installs) > 200);
    assert!(sum(|report| report.resumed) > 10);
    assert!(sum(|report| report.kept) > 50);
    assert!(sum(|report| report.kept_of_others) > 30);
    assert!(sum(|report| report.statements as u64) > 5_000);
    assert!(sum(|report| report.tailed) > 50_000);
}

#[test]
fn a_seed_means_the_same_every_time() {
    for seed in [3, 77, 500] {
        assert_eq!(check(seed), check(seed), "seed {seed}");
    }
}
