//! Worlds in which members fall behind for good, and leaders change while they are sent the state: every
//! copy ends in the same state, and what another leader has sent is not sent again.

use sim::network::Weather;
use sim::{Settings, run};

#[test]
fn leaders_change_in_the_middle_of_copies() {
    let (mut installs, mut kept, mut kept_of_others) = (0, 0, 0);
    for seed in 0..50 {
        let settings = Settings {
            voters: 4,
            joining: 0,
            rounds: 500,
            crashes: 2,
            partitions: 40,
            transfers: 60,
            trims: 400,
            rumours: 0,
            priorities: false,
            weather: Weather {
                loss: 20,
                doubling: 20,
                delay_rounds_max: 1,
            },
            ..Settings::from_seed(seed)
        };
        let report = run(seed, settings).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        installs += report.installs;
        kept += report.kept;
        kept_of_others += report.kept_of_others;
    }
    println!("{installs} copies, {kept} parts kept, {kept_of_others} of them of other leaders");
    assert!(installs > 10, "{installs} copies");
    assert!(
        kept_of_others > 50,
        "{kept_of_others} parts of other leaders"
    );
}
