//! The `loadtest` command line.

use std::io::Write;
use std::net::SocketAddr;

use anyhow::Context;
use clap::{Parser, Subcommand};
use loadtest::simulator::Simulator;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Parser)]
#[command(name = "loadtest", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a simulated Kubernetes cluster (plain HTTP, in memory) until interrupted.
    Simulator {
        /// Address to listen on; port 0 picks a free one.
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
        listen: SocketAddr,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    match Arguments::parse().command {
        Command::Simulator { listen } => simulator(listen).await,
    }
}

async fn simulator(listen: SocketAddr) -> anyhow::Result<()> {
    // Before the address is printed: whoever reads it may send a signal at once.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let simulator = Simulator::start(listen).with_context(|| format!("cannot listen on {listen}"))?;
    announce(&simulator)?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    simulator.shutdown().await;
    Ok(())
}

fn announce(simulator: &Simulator) -> std::io::Result<()> {
    let address = simulator.address();
    let prometheus = simulator.prometheus_url();
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "A simulated cluster, not a real one, listens on http://{address}")?;
    writeln!(stdout, "  kubectl --server http://{address} get pods -A")?;
    writeln!(stdout, "  promtool query instant {prometheus} up")?;
    stdout.flush()
}
