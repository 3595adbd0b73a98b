//! The command line of the differential tests: see README.md beside this crate's manifest.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand, ValueEnum};
use differential::generate::{Kind, Plan, as_tables, run_generated};
use differential::notation::print_fields;
use differential::report::report;
use differential::run::{Pair, run_tables};
use differential::server::{
    Server, find_mongod, start_cluster, start_members, start_mongod, start_mongod_members,
    start_terndb,
};
use differential::session::{Session, selected};
use differential::table::{Table, parse_table, read_folder};

#[derive(Parser)]
#[command(about = "Compares TernDB's replies with those of a real mongod")]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Runs the tables.
    Run(RunArguments),
    /// Prints the oracle's replies to a row, or to every row that `--only` names.
    Ask(RunArguments),
    /// Prints random cases as a table, without running them.
    Generate(RunArguments),
    /// Finds the oracle's binary, fetching it if need be, and prints its path.
    Fetch,
}

#[derive(Clone, Copy, ValueEnum)]
enum Target {
    Terndb,
    /// The primary of a replica set of three members.
    Members,
    /// A router over three shards; collections are sharded.
    Cluster,
    /// The oracle's own kind: checks the tables, not TernDB.
    Mongod,
}

#[derive(Args)]
struct RunArguments {
    /// Only cases whose name (table/group:line) contains this.
    #[arg(long)]
    only: Option<String>,
    /// A row to run alone, over `--docs`, instead of the tables.
    #[arg(long)]
    row: Option<String>,
    /// Documents for `--row`.
    #[arg(long, default_value = "{_id: 1}")]
    docs: String,
    #[arg(long, value_enum, default_value = "terndb")]
    target: Target,
    /// A running target, as HOST:PORT; none is started.
    #[arg(long)]
    target_uri: Option<String>,
    /// A running oracle, as HOST:PORT; none is started.
    #[arg(long)]
    oracle_uri: Option<String>,
    /// How many random cases to run after the tables.
    #[arg(long, default_value_t = 0)]
    cases: usize,
    /// How long random cases may take.
    #[arg(long, default_value_t = 60)]
    budget: u64,
    /// Where random cases begin.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only random cases of these kinds: filter, projection, update, pipeline, expression.
    #[arg(long, value_delimiter = ',')]
    kinds: Vec<String>,
    /// Random cases end after so many differences.
    #[arg(long, default_value_t = 20)]
    differences: usize,
    /// No tables, only random cases.
    #[arg(long)]
    random_only: bool,
    /// One line for each difference.
    #[arg(long)]
    brief: bool,
    /// How many groups run at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// The folder with the tables.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/tables"))]
    tables: PathBuf,
}

fn main() -> anyhow::Result<ExitCode> {
    match Arguments::parse().action {
        Action::Fetch => {
            println!("{}", find_mongod()?.display());
            Ok(ExitCode::SUCCESS)
        }
        Action::Run(arguments) => run(&arguments),
        Action::Ask(arguments) => ask(&arguments),
        Action::Generate(arguments) => {
            print!("{}", as_tables(&plan(&arguments)?));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn tables(arguments: &RunArguments) -> anyhow::Result<Vec<Table>> {
    Ok(match &arguments.row {
        Some(row) => vec![parse_table(
            "row",
            &format!("== given\ndocs: {}\n{row}\n", arguments.docs),
        )?],
        None => read_folder(&arguments.tables)?,
    })
}

fn ask(arguments: &RunArguments) -> anyhow::Result<ExitCode> {
    let (oracle, address) = started(arguments.oracle_uri.as_deref(), start_mongod)?;
    let mut session = Session::new(&address, &format!("ask{}", std::process::id()));
    for group in tables(arguments)?.iter().flat_map(|table| &table.groups) {
        let rows = selected(group, arguments.only.as_deref());
        for (row, outcome) in rows.iter().zip(session.run_group(&group.setup, &rows)) {
            println!("{}\n    {}", group.case_name(row), row.text);
            match outcome {
                Ok(replies) => replies
                    .iter()
                    .for_each(|reply| println!("        {}", print_fields(reply))),
                Err(reason) => println!("        {reason}"),
            }
        }
    }
    drop((session, oracle));
    Ok(ExitCode::SUCCESS)
}

fn run(arguments: &RunArguments) -> anyhow::Result<ExitCode> {
    let tables = tables(arguments)?;
    let of_members = matches!(arguments.target, Target::Members);
    let start_oracle: fn() -> anyhow::Result<Server> = match of_members {
        true => start_mongod_members,
        false => start_mongod,
    };
    let (oracle, oracle_address) = started(arguments.oracle_uri.as_deref(), start_oracle)?;
    let (target, target_address) = match arguments.target {
        Target::Terndb => started(arguments.target_uri.as_deref(), start_terndb)?,
        Target::Members => started(arguments.target_uri.as_deref(), start_members)?,
        Target::Cluster => started(arguments.target_uri.as_deref(), start_cluster)?,
        Target::Mongod => started(arguments.target_uri.as_deref(), start_mongod)?,
    };
    let pair = Pair {
        oracle: oracle_address,
        target: target_address,
        self_check: matches!(arguments.target, Target::Mongod),
        cluster: matches!(arguments.target, Target::Cluster),
        members: of_members,
    };
    let mut judged = if arguments.random_only {
        Vec::new()
    } else {
        run_tables(&pair, &tables, arguments.only.as_deref(), arguments.jobs)
    };
    if arguments.cases > 0 {
        judged.extend(run_generated(&pair, &plan(arguments)?));
    }
    anyhow::ensure!(!judged.is_empty(), "no case matches");
    print!("{}", report(&judged, arguments.brief));
    drop((oracle, target));
    let failed = judged.iter().any(|case| case.verdict.is_failure());
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn plan(arguments: &RunArguments) -> anyhow::Result<Plan> {
    let kind = |name: &String| {
        Kind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .with_context(|| format!("no kind is named {name}"))
    };
    let kinds: Vec<Kind> = arguments
        .kinds
        .iter()
        .map(kind)
        .collect::<anyhow::Result<_>>()?;
    Ok(Plan {
        seed: arguments.seed,
        cases: arguments.cases,
        budget: Duration::from_secs(arguments.budget),
        kinds: if kinds.is_empty() {
            Kind::ALL.to_vec()
        } else {
            kinds
        },
        differences_max: arguments.differences,
    })
}

/// The address given, or that of a server started now.
fn started(
    given: Option<&str>,
    start: impl FnOnce() -> anyhow::Result<Server>,
) -> anyhow::Result<(Option<Server>, String)> {
    match given {
        Some(address) => {
            let address = address
                .trim_start_matches("mongodb://")
                .trim_end_matches('/');
            Ok((None, address.to_owned()))
        }
        None => {
            let server = start()?;
            let address = server.address.clone();
            Ok((Some(server), address))
        }
    }
}
