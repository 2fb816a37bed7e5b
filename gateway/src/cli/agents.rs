//! The command `kas agents`, which lists the agents of the running kas.

mod details;
mod manifest;
mod tables;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    process::ExitCode,
    time::Duration,
};

use clap::ValueEnum;
use cli::{AgentListCommand, CliError, CommandResult, RegisterCommand, print, warn};
use http::{
    Request, StatusCode,
    header::{CONNECTION, HOST},
};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};
use tokio_util::task::AbortOnDropHandle;

use self::{
    details::details,
    tables::{summary, wide},
};
use super::ConfigFile;
use crate::config::Config;
use kas_core::agent_list::AgentList;

/// List the agents of a running kas, and their tunnels
///
/// The list comes from the kas that runs with this configuration, at its observability.listen.address. It has the agents of
/// all replicas. Of tunnels to other replicas it has only the number.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct Agents {
    #[command(subcommand)]
    command: Option<AgentsCommand>,
    #[command(flatten)]
    config: Option<ConfigFile>,
    /// The format of the list
    #[arg(long, short, value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    output: Format,
}

#[derive(Debug, clap::Subcommand)]
enum AgentsCommand {
    List(AgentListCommand),
    Show(Show),
    Manifest(manifest::Manifest),
    Register(Box<RegisterCommand>),
}

/// Show one agent: its state, its tunnels and its configuration
///
/// The configuration is that of the queried kas, and known if the agent has a tunnel to it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  kas agents show prod --config kas.yaml")]
struct Show {
    /// The name or the id of the agent
    #[arg(value_name = "AGENT")]
    agent: String,
    #[command(flatten)]
    config: ConfigFile,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// One line per agent
    Table,
    /// All fields, as described in docs/agents.md
    Json,
    /// One line per tunnel
    Wide,
}

const EXAMPLES: &str = "\
Examples:
  kas agents --config kas.yaml
  kas agents --config kas.yaml --output wide
  kas agents show prod --config kas.yaml
  kas agents list --group shop --server https://kas.example.com:8154 \\
    --token-file ./token
  kas agents manifest prod --kas-address wss://kas.example.com:8150 \\
    < ./token | kubectl apply -f -
  kas agents register prod --gitlab https://gitlab.example.com \\
    --project group/shop --token-file ./pat --install
  kas agents --config kas.yaml --output json |
    jq -r '.agents[] | select(.state != \"connected\").name'

Columns:
  STATE       connected, away,
              elsewhere (connected to other replicas only),
              never (since kas started),
              unknown (Redis is unavailable),
              draining (with --output wide: the tunnel will be replaced);
              with ,disabled if the kill switch stops all its requests,
              ,several-clusters if its token is used in more than one,
              ,refused if this replica has refused a tunnel of it in the
              last five minutes (`kas agents show NAME` has the reason)
  AWAY        time since the last tunnel ended
  REPLICAS    owners of the agent, the queried one first
  TOKEN       with --output wide: the beginning of the hash of the
              token of the tunnel, as the identity file has it
  IN-FLIGHT   requests in flight on the queried replica: 2/3 is 2 short
              ones and 3 watches, logs, exec or port-forward
  ROUND-TRIP  the slowest last measurement of those tunnels
  AGENTK      version; outdated: the next minor version of kas
              does not serve it
  SCOPE       cluster, or the namespaces of agentk --namespaces

Exit codes:
  0   listed
  64  the configuration is invalid
  69  no kas responds";

/// The time that kas may take for the response.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a response, which is enough for a hundred thousand tunnels.
const MAX_RESPONSE: usize = 128 << 20;

impl Agents {
    /// Requests the list and prints it, or one agent of it.
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        let done = |()| ExitCode::SUCCESS;
        match self.command {
            Some(AgentsCommand::List(list)) => list.run(),
            Some(AgentsCommand::Show(show)) => show.run().map(done),
            Some(AgentsCommand::Manifest(manifest)) => manifest.run().map(done),
            Some(AgentsCommand::Register(register)) => register.run().map(done),
            None => self.list_all().map(done),
        }
    }

    /// Lists the agents of the kas that runs with a configuration.
    fn list_all(self) -> CommandResult {
        let config = self
            .config
            .ok_or_else(|| CliError::usage("--config is needed: the configuration file of kas"))?;
        let body = config.request_agents()?;
        let listing = parse(&body)?;
        match self.output {
            Format::Table => print(&summary(&listing)),
            Format::Json => print(&String::from_utf8_lossy(&body)),
            Format::Wide => print(&wide(&listing)),
        }
    }
}

impl Show {
    fn run(self) -> CommandResult {
        let mut listing = parse(&self.config.request_agents()?)?;
        listing
            .agents
            .retain(|agent| agent.name.as_str() == self.agent || agent.id.to_string() == self.agent);
        if let (true, Some(missing)) = (listing.agents.is_empty(), &listing.missing) {
            return Err(CliError::unavailable(format!(
                "kas does not know the agents of its other replicas: {missing}; try again when kas reaches Redis, as its /readiness says"
            )));
        }
        if listing.agents.is_empty() {
            return Err(CliError::usage(format!("the identity file of kas has no agent {:?}", self.agent)));
        }
        print(&details(&listing))
    }
}

fn parse(body: &[u8]) -> Result<AgentList, CliError> {
    let listing: AgentList = serde_json::from_slice(body).map_err(|error| {
        CliError::unavailable(format!("the server is not a kas of this version: {error}"))
    })?;
    if let Some(missing) = &listing.missing {
        warn(&format!("agents of other replicas are not listed: {missing}"));
    }
    for rule in &listing.disabled {
        warn(&format!("disabled: {rule}"));
    }
    Ok(listing)
}

impl ConfigFile {
    /// Requests the list from the kas that runs with this configuration.
    fn request_agents(&self) -> Result<Bytes, CliError> {
        let listen = Config::read(&self.path)?.observability.listen.address;
        let address = reachable(listen);
        let named = format!("{address} (observability.listen.address of {})", self.path.display());
        if listen.port() == 0 {
            return Err(CliError::usage(format!(
                "{named} is a port that the system chooses: give kas a fixed one"
            )));
        }

        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("the operating system lets a runtime start");
        let response = runtime.block_on(async { timeout(TIMEOUT, request_list(address)).await });
        response
            .unwrap_or_else(|_| Err(format!("no response within {} s", TIMEOUT.as_secs())))
            .map_err(|what| CliError::unavailable(format!("no kas responds at {named}: {what}")))
    }
}

/// Returns the address at which a program on this machine connects to a listener. `[::]` accepts IPv4, too, and a container may
/// have no `::1`.
pub(super) fn reachable(listen: SocketAddr) -> SocketAddr {
    let address = if listen.ip().is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { listen.ip() };
    SocketAddr::new(address, listen.port())
}

async fn request_list(address: SocketAddr) -> Result<Bytes, String> {
    let connection = TcpStream::connect(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => "no process listens there; is kas running?".to_owned(),
        _ => error.to_string(),
    })?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(connection)).await.map_err(|error| error.to_string())?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let request = Request::get("/agents")
        .header(HOST, address.to_string())
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .expect("valid request");
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    if response.status() != StatusCode::OK {
        return Err(format!(
            "{} for /agents; is it another program, or another version of kas?",
            response.status()
        ));
    }

    let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
    Ok(body.map_err(|error| error.to_string())?.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unspecified_address_becomes_loopback() {
        for (listen, expected) in [
            ("0.0.0.0:8151", "127.0.0.1:8151"),
            ("[::]:8151", "127.0.0.1:8151"),
            ("10.0.0.7:8151", "10.0.0.7:8151"),
        ] {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), expected);
        }
    }
}
