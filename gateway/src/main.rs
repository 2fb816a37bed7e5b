//! kas, the server.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    gateway::cli::Cli::parse().run()
}
