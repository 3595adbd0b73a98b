//! The `terndb` binary: arguments, configuration, start and stop of roles.
//!
//! Each role is a subcommand. `terndb up` runs all of them in one process; for
//! now that is one shard with one or several members and, in front of each, the
//! router that speaks to clients. `terndb shard` runs one member.

mod configuration;
mod member;
mod shard_role;
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

    /// Run one member of a replica set
    Shard(configuration::UpOptions),

    /// Prove that two clusters hold the same documents
    Verify(Box<verify::VerifyOptions>),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended: Result<()> = match arguments.role {
        Role::Up(options) => up::run(options),
        Role::Shard(options) => shard_role::run(options),
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
