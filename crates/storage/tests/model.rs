//! The store equals a naive model under random operations, scans, reads at
//! earlier times, drops, maintenance, restarts and power cuts, on both engines.
//!
//! The model keeps a full copy of its state after every entry, so that a read at
//! an earlier time is a look into an older copy, and a power cut a step back to
//! the copy at the position that the store says it still holds.

mod support;

use proptest::prelude::*;
use support::{Action, Bed, Disk, Memory, actions, run};

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        max_shrink_iters: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

fn check<B: Bed>(bed: B, actions: &[Action]) -> Result<(), TestCaseError> {
    run(bed, actions).map_err(|error| TestCaseError::fail(error.to_string()))
}

proptest! {
    #![proptest_config(config(40))]
    #[test]
    fn memory_engine_equals_model(actions in actions(60)) {
        check(Memory::new(), &actions)?;
    }
}

proptest! {
    #![proptest_config(config(12))]
    #[test]
    fn disk_engine_equals_model(actions in actions(60)) {
        check(Disk::new(), &actions)?;
    }
}
