//! The `terndb` binary: arguments, configuration, start and stop of roles.
//!
//! Each role is a subcommand. `terndb up` runs all of them in one process: one
//! replica set, or with `--shards` a cluster. `terndb shard` and `terndb config`
//! run one member of a shard or of the config server, `terndb router` a router.

mod allocator;
mod cluster;
mod configuration;
mod member;
mod reach;
mod router_role;
mod shard_role;
mod status;
mod status_moves;
mod up;
mod verify;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "terndb", version, about, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Run a whole database in this process
    Up(configuration::UpOptions),

    /// Run one member of a replica set, alone or as a shard of a cluster
    Shard(configuration::UpOptions),

    /// Run one member of a cluster's config server
    Config(configuration::UpOptions),

    /// Run a router of a cluster
    Router(configuration::UpOptions),

    /// Print a cluster as a table
    Status(status::StatusOptions),

    /// Prove that two clusters hold the same documents
    Verify(Box<verify::VerifyOptions>),
}

fn main() -> ExitCode {
    allocator::take_small_pages();
    allocator::keep_freed_memory();
    let arguments = Arguments::parse();
    let ended: Result<()> = match arguments.role {
        Role::Up(options) => up::run(options),
        Role::Shard(options) => shard_role::run(options, shard_role::Part::Shard),
        Role::Config(options) => shard_role::run(options, shard_role::Part::Config),
        Role::Router(options) => router_role::run(options),
        Role::Status(options) => status::run(&options),
        // Its exit codes say more than success or failure.
        Role::Verify(options) => return verify::run(*options),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("terndb: {}", sentence(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, each said once: some errors quote their cause.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
    }
    text
}
