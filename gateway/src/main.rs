//! kas, the server.

use std::process::ExitCode;

/// Measured against the system's: see docs/performance.md.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    gateway::cli::Cli::main()
}
