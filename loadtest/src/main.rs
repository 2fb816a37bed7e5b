//! The `loadtest` command line.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use loadtest::{
    agents::Agents, bench::Bench, bulk::Bulk, demo::Demo, directory::Directory, failover::Failover,
    hol::HeadOfLine, http::Http, simulator::Simulator, soak::Soak, storm::Storm, upgrade::Upgrade,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

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
    /// Run kas, agentk and a cluster on this machine, and send a first request through the tunnel.
    Demo(Demo),
    Http(Http),
    Bulk(Bulk),
    Agents(Agents),
    Storm(Storm),
    Directory(Directory),
    Failover(Failover),
    Hol(HeadOfLine),
    Upgrade(Upgrade),
    Soak(Soak),
    Bench(Bench),
    /// Print a shell completion script
    Completion {
        /// For which shell
        shell: Shell,
    },
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let arguments = Arguments::parse();
    // A tunnel or a connection is a file; where the limit stays as it is, the errors say so.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let result = match arguments.command {
        Command::Simulator { listen } => simulator(listen).await,
        Command::Demo(demo) => async { demo.run(stop_signal()?).await }.await,
        Command::Http(http) => async { http.run(stop_signal()?).await }.await,
        Command::Bulk(bulk) => async { bulk.run(stop_signal()?).await }.await,
        Command::Agents(agents) => async { agents.run(stop_signal()?).await }.await,
        Command::Storm(storm) => async { storm.run(stop_signal()?).await }.await,
        Command::Directory(directory) => async { directory.run(stop_signal()?).await }.await,
        Command::Failover(failover) => async { failover.run(stop_signal()?).await }.await,
        Command::Hol(hol) => async { hol.run(stop_signal()?).await }.await,
        Command::Upgrade(upgrade) => async { upgrade.run(stop_signal()?).await }.await,
        Command::Soak(soak) => async { soak.run(stop_signal()?).await }.await,
        Command::Bench(bench) => async { bench.run(stop_signal()?).await }.await,
        Command::Completion { shell } => completion(shell, &mut std::io::stdout()),
        Command::Man => manual(&mut std::io::stdout()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The exit code still tells if standard error is gone.
            let _ = writeln!(std::io::stderr(), "loadtest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn simulator(listen: SocketAddr) -> anyhow::Result<()> {
    // Before the address is printed: whoever reads it may send a signal at once.
    let stop = stop_signal()?;
    let simulator = Simulator::start(listen).with_context(|| format!("cannot listen on {listen}"))?;
    announce(&simulator)?;
    stop.cancelled().await;
    simulator.shutdown().await;
    Ok(())
}

/// Cancelled by SIGTERM or Ctrl-C.
fn stop_signal() -> std::io::Result<CancellationToken> {
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

fn announce(simulator: &Simulator) -> std::io::Result<()> {
    let address = simulator.address();
    let prometheus = simulator.prometheus_url();
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "A simulated cluster, not a real one, listens on http://{address}")?;
    writeln!(stdout, "  kubectl --server http://{address} get pods -A")?;
    writeln!(stdout, "  promtool query instant {prometheus} up")?;
    stdout.flush()
}

fn completion(shell: Shell, out: &mut impl Write) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "loadtest", &mut script);
    Ok(out.write_all(&script)?)
}

fn manual(out: &mut impl Write) -> anyhow::Result<()> {
    Ok(clap_mangen::Man::new(Arguments::command()).render(out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn it_says_of_itself_what_shells_and_man_want_to_know() {
        let (mut script, mut page) = (Vec::new(), Vec::new());
        completion(Shell::Bash, &mut script).unwrap();
        manual(&mut page).unwrap();
        assert!(String::from_utf8(script).unwrap().contains("--simulate"));
        assert!(String::from_utf8(page).unwrap().contains(".TH loadtest"));
    }
}
