//! The tables and a bounded number of random cases, as continuous integration runs them.
//!
//! The tables run against one server, and through a router over three shards with their collections
//! sharded; those in which members play a part run on three of them, against three of the oracle's. `TERNDB_DIFFERENTIAL_TARGET` says what else is compared
//! with the oracle: `terndb` (the default), `members` (the primary of a set of three), `cluster`, or
//! `mongod`, which checks the tables themselves. `TERNDB_DIFFERENTIAL_CASES` is the number of random
//! cases. The `terndb` binary is the one beside the tests, or `TERNDB_BINARY`.

use std::path::Path;
use std::time::Duration;

use differential::generate::{Kind, Plan, run_generated};
use differential::report::report;
use differential::run::{Judged, Pair, run_tables};
use differential::server::{
    Server, start_cluster, start_members, start_mongod, start_mongod_members, start_terndb,
};
use differential::table::read_folder;

fn check(judged: &[Judged]) {
    let text = report(judged, false);
    assert!(
        !judged.iter().any(|case| case.verdict.is_failure()),
        "\n{text}"
    );
    println!("{text}");
}

fn chosen() -> String {
    std::env::var("TERNDB_DIFFERENTIAL_TARGET").unwrap_or_else(|_| "terndb".to_owned())
}

fn servers(target_kind: &str) -> (Server, Server, Pair) {
    let of_members = target_kind == "members";
    let oracle = match of_members {
        true => start_mongod_members(),
        false => start_mongod(),
    };
    let oracle = oracle.expect("the oracle starts");
    let (started, self_check) = match target_kind {
        "mongod" => (start_mongod(), true),
        "terndb" => (start_terndb(), false),
        "members" => (start_members(), false),
        "cluster" => (start_cluster(), false),
        other => {
            panic!("TERNDB_DIFFERENTIAL_TARGET is {other}: not terndb, members, cluster or mongod")
        }
    };
    let target = started.expect("the target starts");
    let pair = Pair {
        oracle: oracle.address.clone(),
        target: target.address.clone(),
        self_check,
        cluster: target_kind == "cluster",
        members: of_members,
    };
    (oracle, target, pair)
}

#[test]
fn every_table_row_agrees_with_the_oracle() {
    let tables = read_folder(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tables")))
        .expect("the tables parse");
    let (_oracle, _target, pair) = servers(&chosen());
    check(&run_tables(&pair, &tables, None, 2));
}

#[test]
fn every_table_row_agrees_through_a_router() {
    let tables = read_folder(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tables")))
        .expect("the tables parse");
    let (_oracle, _target, pair) = servers("cluster");
    check(&run_tables(&pair, &tables, None, 2));
}

/// Groups in which it matters that a set has several members. All tables agree, but take minutes.
const ABOUT_MEMBERS: [&str; 3] = ["concerns/", "sessions/", "commands/handshake and diagnosis"];

#[test]
fn rows_about_members_agree_with_three_of_the_oracle() {
    let mut tables = read_folder(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tables")))
        .expect("the tables parse");
    for table in &mut tables {
        table.groups.retain(|group| {
            let name = format!("{}/{}", group.table, group.title);
            ABOUT_MEMBERS.iter().any(|chosen| name.starts_with(chosen))
        });
    }
    tables.retain(|table| !table.groups.is_empty());
    assert_eq!(tables.len(), ABOUT_MEMBERS.len());
    let (_oracle, _target, pair) = servers("members");
    // One after the other: rows that kill all sessions would end the waits of others for a majority.
    check(&run_tables(&pair, &tables, None, 1));
}

#[test]
fn random_cases_agree_with_the_oracle() {
    let cases = std::env::var("TERNDB_DIFFERENTIAL_CASES")
        .ok()
        .and_then(|text| text.parse().ok());
    let plan = Plan {
        seed: 1,
        cases: cases.unwrap_or(6000),
        budget: Duration::from_secs(120),
        kinds: Kind::ALL.to_vec(),
        differences_max: 20,
    };
    let (_oracle, _target, pair) = servers(&chosen());
    check(&run_generated(&pair, &plan));
}
