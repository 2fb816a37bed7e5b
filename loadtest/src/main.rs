//! The `loadtest` command line.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use loadtest::{
    agents::Agents,
    demo::Demo,
    hol::HeadOfLine,
    http::{Bulk, Http, Upgrade},
    installation::{
        directory::Directory, events::Events, failover::Failover, gitops::Gitops, graph::Graph,
        restarts::Restarts, storm::Storm,
    },
    soak::Soak,
    stop_signal,
};
use testing::simulator::Simulator;

#[derive(Parser)]
#[command(name = "loadtest", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a simulated Kubernetes cluster (plain HTTP, in memory) until interrupted
    Simulator {
        /// Address to listen on; port 0 chooses a free port
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
        listen: SocketAddr,
    },
    /// Run kas, agentk and a cluster on this machine, and send a first request through the tunnel
    Demo(Demo),
    Http(Http),
    Bulk(Bulk),
    Agents(Agents),
    Storm(Storm),
    Directory(Directory),
    Failover(Failover),
    Events(Events),
    Gitops(Gitops),
    Graph(Graph),
    Restarts(Restarts),
    Hol(HeadOfLine),
    Upgrade(Upgrade),
    Soak(Soak),
    /// Print a shell completion script
    Completion {
        /// Shell to print the script for
        shell: Shell,
    },
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

#[tokio::main]
async fn main() -> ExitCode {
    loadtest::init_process();
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Simulator { listen } => simulator(listen).await,
        Command::Demo(demo) => async { demo.run(stop_signal()?).await }.await,
        Command::Http(http) => async { http.run(stop_signal()?).await }.await,
        Command::Bulk(bulk) => async { bulk.run(stop_signal()?).await }.await,
        Command::Agents(agents) => async { agents.run(stop_signal()?).await }.await,
        Command::Storm(storm) => async { storm.run(stop_signal()?).await }.await,
        Command::Directory(directory) => async { directory.run(stop_signal()?).await }.await,
        Command::Events(events) => async { events.run(stop_signal()?).await }.await,
        Command::Gitops(gitops) => async { gitops.run(stop_signal()?).await }.await,
        Command::Graph(graph) => async { graph.run(stop_signal()?).await }.await,
        Command::Failover(failover) => async { failover.run(stop_signal()?).await }.await,
        Command::Restarts(restarts) => async { restarts.run(stop_signal()?).await }.await,
        Command::Hol(hol) => async { hol.run(stop_signal()?).await }.await,
        Command::Upgrade(upgrade) => async { upgrade.run(stop_signal()?).await }.await,
        Command::Soak(soak) => async { soak.run(stop_signal()?).await }.await,
        Command::Completion { shell } => completion(shell, &mut std::io::stdout()),
        Command::Man => manual(&mut std::io::stdout()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, only the exit code reports the failure.
            let _ = writeln!(std::io::stderr(), "loadtest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn simulator(listen: SocketAddr) -> anyhow::Result<()> {
    // Handle signals before the address is printed: its reader may send one at once.
    let stop = stop_signal()?;
    let simulator = Simulator::start(listen).with_context(|| format!("cannot listen on {listen}"))?;
    announce(&simulator)?;
    stop.cancelled().await;
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
    fn command_line_definition_is_valid() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn completion_and_manual_are_printed() {
        let (mut script, mut page) = (Vec::new(), Vec::new());
        completion(Shell::Bash, &mut script).unwrap();
        manual(&mut page).unwrap();
        assert!(String::from_utf8(script).unwrap().contains("--simulate"));
        assert!(String::from_utf8(page).unwrap().contains(".TH loadtest"));
    }
}
