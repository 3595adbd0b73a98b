//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::dataset::RECORDS_STEP;
use crate::driver::Pace;
use crate::servers::{Binaries, Product, Shape};
use crate::workload::{Durability, Workload};

#[derive(Debug, Parser)]
#[command(
    name = "bench",
    about = "Compares TernDB with mongod on this machine: throughput, latency, CPU per operation, memory, disk",
    after_help = "Examples:\n  \
        cargo run --release -p bench -- compare quick\n  \
        cargo run --release -p bench -- compare --workloads c,a,update --connections 8 --rounds 5\n  \
        cargo run --release -p bench -- compare full --markdown measured.md --json measured.json\n  \
        cargo run --release -p bench -- compare quick --same mongod      # how much is noise\n  \
        cargo run --release -p bench -- compare quick --shards 2 --apart # through a router\n  \
        cargo run --release -p bench -- profile --workload c --perf c.perf\n  \
        cargo run --release -p bench -- idle --connections 10000\n  \
        cargo run --release -p bench -- verify --records 1000000\n  \
        cargo run --release -p bench -- moves --megabytes 300\n  \
        cargo run --release -p bench -- scans\n  \
        cargo run --release -p bench -- chunks\n\n\
        mongod 6.0.5 is looked for at --mongod-binary, $TERNDB_MONGOD, ~/.cache/terndb/mongod;\n\
        terndb at --terndb-binary, else beside this program."
)]
pub struct Options {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure both servers side by side and print the figures with ratios
    Compare(CompareOptions),
    /// Run one workload against one server, for a profiler
    Profile(ProfileOptions),
    /// Open idle connections and say what memory they take
    Idle(IdleOptions),
    /// Compare two servers with `terndb verify` and say how fast, and on whose CPU
    Verify(VerifyOptions),
    /// Move ranges between shards: rate, what clients notice, how long writes wait, removal
    Moves(MovesOptions),
    /// Scan a sharded collection at rest and while its ranges move
    Scans(ScansOptions),
    /// Refresh the routing of a collection of very many chunks
    Chunks(ChunksOptions),
}

#[derive(Debug, Args)]
pub struct ServerOptions {
    /// The terndb program [default: beside this program]
    #[arg(long, value_name = "PATH")]
    pub terndb_binary: Option<PathBuf>,
    /// The mongod program [default: $TERNDB_MONGOD or ~/.cache/terndb/mongod]
    #[arg(long, value_name = "PATH")]
    pub mongod_binary: Option<PathBuf>,
    /// Where the servers keep their data [default: bench-data beside the build directory]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Leave the servers' data and output in place at the end
    #[arg(long)]
    pub keep: bool,
}

impl ServerOptions {
    pub fn binaries(&self) -> Binaries {
        Binaries {
            terndb: self.terndb_binary.clone(),
            mongod: self.mongod_binary.clone(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// A first impression in about three minutes
    Quick,
    /// All workloads, three rounds of three seconds: about a quarter of an hour
    Standard,
    /// All workloads, five rounds of ten seconds: more than an hour
    Full,
}

#[derive(Debug, Args)]
pub struct CompareOptions {
    /// What the options below start from
    #[arg(value_enum, default_value = "standard")]
    pub preset: Preset,
    /// Users and orders to load (a multiple of 1,000)
    #[arg(long, default_value_t = 100_000)]
    pub records: u64,
    /// Length of one measurement
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Measurements of each server in each case
    #[arg(long)]
    pub rounds: Option<usize>,
    /// Numbers of connections
    #[arg(long, value_delimiter = ',')]
    pub connections: Option<Vec<usize>>,
    /// Workloads to run
    #[arg(long, value_delimiter = ',', value_enum)]
    pub workloads: Option<Vec<Workload>>,
    /// Durability of writes
    #[arg(long, value_delimiter = ',', value_enum)]
    pub durability: Option<Vec<Durability>>,
    /// Measure only this server
    #[arg(long, value_enum, conflicts_with = "same")]
    pub only: Option<Product>,
    /// Measure this server against itself: the ratios that come out are noise
    #[arg(long, value_enum)]
    pub same: Option<Product>,
    /// Send a session id with every command, as drivers do
    #[arg(long)]
    pub sessions: bool,
    /// Members of each server's replica set, each a process of its own
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    pub members: usize,
    /// Run TernDB as a cluster of so many shards, collections sharded by the hash of `_id`; mongod stays
    /// one server
    #[arg(long, value_name = "COUNT", conflicts_with = "members")]
    pub shards: Option<usize>,
    /// Each role of the cluster is a process of its own
    #[arg(long, requires = "shards")]
    pub apart: bool,
    /// Leave the other server running while one is measured
    #[arg(long)]
    pub no_pause: bool,
    /// Write every figure of every round to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the tables as Markdown to this file
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    #[command(flatten)]
    pub servers: ServerOptions,
}

#[derive(Debug, Args)]
pub struct ProfileOptions {
    #[arg(long, value_enum)]
    pub workload: Workload,
    #[arg(long, value_enum, default_value = "terndb")]
    pub target: Product,
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    #[arg(long, default_value_t = 8)]
    pub connections: usize,
    #[arg(long, value_enum, default_value = "w1")]
    pub durability: Durability,
    #[arg(long, default_value_t = 100_000)]
    pub records: u64,
    #[arg(long)]
    pub sessions: bool,
    /// Record the server with `perf record -g` into this file while it is measured
    #[arg(long, value_name = "FILE")]
    pub perf: Option<PathBuf>,
    #[command(flatten)]
    pub servers: ServerOptions,
}

#[derive(Debug, Args)]
pub struct IdleOptions {
    #[arg(long, default_value_t = 10_000)]
    pub connections: usize,
    /// Only this server [default: both]
    #[arg(long, value_enum)]
    pub only: Option<Product>,
    #[command(flatten)]
    pub servers: ServerOptions,
}

#[derive(Debug, Args)]
pub struct VerifyOptions {
    /// Documents of 1 kB in each collection
    #[arg(long, default_value_t = 200_000)]
    pub records: u64,
    /// Verifications of each kind
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// What both servers are
    #[arg(long, value_enum, default_value = "mongod")]
    pub target: Product,
    #[command(flatten)]
    pub servers: ServerOptions,
}

/// What `bench moves` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MovesPart {
    /// The engine alone, `mongod` to `mongod`, shard to shard; removal of what was moved
    Rate,
    /// Clients beside a move, and without one
    Latency,
    /// Many small moves under updates of what they move
    Critical,
}

#[derive(Debug, Args)]
pub struct MovesOptions {
    /// How much a move is about
    #[arg(long, default_value_t = 1_000)]
    pub megabytes: u64,
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    #[arg(long, value_delimiter = ',', value_enum)]
    pub parts: Option<Vec<MovesPart>>,
    /// Documents at once from `mongod` to `mongod`: the best of these is taken
    #[arg(long, value_delimiter = ',', default_values_t = [500, 1_000, 4_000, 10_000])]
    pub batches: Vec<u64>,
    /// Reads, and as many updates, each second beside a move
    #[arg(long, default_value_t = 500)]
    pub rate: u64,
    /// Updates each second while writes are blocked
    #[arg(long, default_value_t = 5_000)]
    pub updates: u64,
    /// Connections on which those come: enough that one is seldom due before the last is answered
    #[arg(long, default_value_t = 64)]
    pub update_connections: usize,
    /// Connections of each kind of client
    #[arg(long, default_value_t = 8)]
    pub connections: usize,
    /// Moves of small ranges
    #[arg(long, default_value_t = 100)]
    pub small_moves: usize,
    /// The engine's bulk load, an example of the storage crate [default: beside this program]
    #[arg(long, value_name = "PATH")]
    pub engine: Option<PathBuf>,
    /// Leave `mongod` out
    #[arg(long)]
    pub alone: bool,
    #[command(flatten)]
    pub servers: ServerOptions,
}

#[derive(Debug, Args)]
pub struct ScansOptions {
    /// How much is scanned
    #[arg(long, default_value_t = 300)]
    pub megabytes: u64,
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    #[arg(long, default_value_t = 2)]
    pub shards: usize,
    /// Documents in each batch; 0 leaves it to the server
    #[arg(long, default_value_t = 1_000)]
    pub batch: u64,
    /// How the roles of the cluster run
    #[arg(long, value_enum, default_value_t = Processes::Both)]
    pub processes: Processes,
    /// Leave `mongod` out
    #[arg(long)]
    pub alone: bool,
    #[command(flatten)]
    pub servers: ServerOptions,
}

#[derive(Debug, Args)]
pub struct ChunksOptions {
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(i64).range(2..))]
    pub chunks: i64,
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    #[command(flatten)]
    pub servers: ServerOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Processes {
    /// Each role is a process of its own
    Apart,
    /// All roles are in one process (`terndb up --shards`)
    One,
    /// One cluster of either kind
    Both,
}

impl Processes {
    /// For each cluster, whether its roles are processes of their own.
    pub fn apart(self) -> &'static [bool] {
        match self {
            Processes::Apart => &[true],
            Processes::One => &[false],
            Processes::Both => &[true, false],
        }
    }
}

/// The options of a comparison, with the preset filled in and checked.
#[derive(Debug)]
pub struct ComparePlan {
    pub records: u64,
    pub pace: Pace,
    pub rounds: usize,
    pub connections: Vec<usize>,
    pub workloads: Vec<Workload>,
    pub durabilities: Vec<Durability>,
    pub sides: Vec<Product>,
    pub shape: Option<Shape>,
    pub members: usize,
}

impl CompareOptions {
    /// The cluster that TernDB runs as, if it does.
    pub fn shape(&self) -> Option<Shape> {
        let apart = self.apart;
        self.shards.map(|shards| Shape { shards, apart })
    }

    /// Whether the server that is not measured is stopped meanwhile.
    pub fn pauses(&self) -> bool {
        !self.no_pause && self.members == 1 && !self.apart
    }

    pub fn plan(&self) -> Result<ComparePlan> {
        let (seconds, rounds) = match self.preset {
            Preset::Quick => (1.0, 2),
            Preset::Standard => (3.0, 3),
            Preset::Full => (10.0, 5),
        };
        let workloads = match (&self.workloads, self.preset) {
            (Some(workloads), _) => workloads.clone(),
            (None, Preset::Standard | Preset::Full) => Workload::ALL.to_vec(),
            (None, Preset::Quick) => vec![
                Workload::Ping,
                Workload::Load,
                Workload::Update,
                Workload::C,
                Workload::A,
                Workload::E,
                Workload::Index,
                Workload::AggIndexed,
                Workload::Scan,
            ],
        };
        let sides = match (self.only, self.same) {
            (Some(only), _) => vec![only],
            (None, Some(same)) => vec![same, same],
            (None, None) => vec![Product::Mongod, Product::Terndb],
        };
        let plan = ComparePlan {
            records: checked_records(self.records)?,
            pace: pace(self.seconds.unwrap_or(seconds))?,
            rounds: self.rounds.unwrap_or(rounds),
            connections: self.connections.clone().unwrap_or_else(|| vec![8, 64]),
            workloads,
            durabilities: self
                .durability
                .clone()
                .unwrap_or_else(|| vec![Durability::W1, Durability::Majority]),
            sides,
            shape: self.shape(),
            members: self.members,
        };
        ensure!(plan.rounds > 0, "--rounds must be at least 1");
        ensure!(
            plan.connections.iter().all(|&count| count > 0),
            "--connections must be at least 1"
        );
        Ok(plan)
    }
}

pub fn checked_records(records: u64) -> Result<u64> {
    ensure!(
        records > 0 && records.is_multiple_of(RECORDS_STEP),
        "--records must be a multiple of {RECORDS_STEP}"
    );
    Ok(records)
}

/// Warm-up takes a fifth of the measurement, within bounds.
pub fn pace(seconds: f64) -> Result<Pace> {
    ensure!(
        (0.05..=86_400.0).contains(&seconds),
        "--seconds must lie between 0.05 and 86400"
    );
    let measure = Duration::from_secs_f64(seconds);
    let warm_up = (measure / 5).clamp(Duration::from_millis(200), Duration::from_secs(1));
    Ok(Pace { warm_up, measure })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    fn plan(arguments: &[&str]) -> Result<ComparePlan> {
        let all = ["bench", "compare"].iter().chain(arguments);
        match Options::try_parse_from(all)?.command {
            Command::Compare(options) => options.plan(),
            Command::Profile(_)
            | Command::Idle(_)
            | Command::Verify(_)
            | Command::Moves(_)
            | Command::Scans(_)
            | Command::Chunks(_) => {
                unreachable!("compare was asked for")
            }
        }
    }

    #[test]
    fn options_override_their_preset() {
        let quick = plan(&["quick"]).expect("a plan");
        assert_eq!((quick.rounds, quick.connections), (2, vec![8, 64]));
        let changed =
            plan(&["quick", "--rounds", "7", "--workloads", "agg-indexed,c"]).expect("a plan");
        assert_eq!(changed.rounds, 7);
        assert_eq!(changed.workloads, [Workload::AggIndexed, Workload::C]);
        assert_eq!(plan(&[]).expect("a plan").workloads, Workload::ALL);
    }

    #[test]
    fn impossible_options_are_refused() {
        for arguments in [
            &["--records", "1500"][..],
            &["--records", "0"],
            &["--rounds", "0"],
            &["--seconds", "0"],
            &["--connections", "0"],
            &["--only", "mongod", "--same", "mongod"],
            &["--workloads", "z"],
        ] {
            assert!(plan(arguments).is_err(), "{arguments:?}");
        }
    }
}
