//! The `terndb` binary: arguments, configuration, start and stop of roles.
//!
//! Each role is a subcommand. `terndb up` runs all of them in one process; for
//! now that is one shard and, in front of it, the router that speaks to clients.

mod configuration;
mod up;
mod verify;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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

    /// Prove that two clusters hold the same documents
    Verify(Box<verify::VerifyOptions>),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended: Result<()> = match arguments.role {
        Role::Up(options) => up::run(options),
        // Its exit codes say more than success or failure.
        Role::Verify(options) => return verify::run(*options),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("terndb: {error:#}");
            ExitCode::FAILURE
        }
    }
}
