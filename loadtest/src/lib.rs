//! Commands that measure an installation of kas and agentk, and the demo.
//!
//! `load` is the load engine that the commands share. The commands in `installation` start kas, agentk and Redis as processes of
//! this machine.

pub mod agents;
pub mod demo;
pub mod hol;
pub mod http;
pub mod installation;
pub mod load;
pub mod soak;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Starts the log on standard error, at the levels of `RUST_LOG`, and raises the limit of open files.
///
/// # Panics
///
/// If a log was started before.
pub fn init_process() {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    // Each tunnel and connection needs a file descriptor. If the limit cannot be raised, opening them fails with an error.
    process::descriptors::raise_limit();
}

/// Returns a token that SIGTERM or Ctrl-C cancels.
pub fn stop_signal() -> std::io::Result<CancellationToken> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        stopping.cancel();
    });
    Ok(stop)
}
