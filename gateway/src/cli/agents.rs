//! `kas agents`: asks the running kas who is connected.

mod tables;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use clap::ValueEnum;
use http::{
    Request, StatusCode,
    header::{CONNECTION, HOST},
};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};
use tokio_util::task::AbortOnDropHandle;

use self::tables::{summary, wide};
use super::{
    ConfigFile,
    outcome::{Outcome, Refusal, say, warn},
};
use crate::{config::Config, roster::Listing};

/// List the agents of a running kas, and their tunnels
///
/// Asks the kas that runs with this configuration, at its observability.listen.address. It lists the agents of all
/// replicas; of tunnels that end on others it knows no more than their number.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Agents {
    #[command(flatten)]
    config: ConfigFile,
    /// How to show them
    #[arg(long, short, value_enum, value_name = "FORM", default_value_t = Form::Table)]
    output: Form,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// A line for each agent
    Table,
    /// Everything, as docs/operations.md describes it
    Json,
    /// A line for each tunnel
    Wide,
}

const EXAMPLES: &str = "\
Examples:
  kas agents --config kas.yaml
  kas agents --config kas.yaml --output wide
  kas agents --config kas.yaml --output json |
    jq -r '.agents[] | select(.state != \"connected\").name'

Columns:
  STATE       connected, leaving (a tunnel about to be replaced), away,
              elsewhere (connected to other replicas only),
              never (since kas started),
              unknown (other replicas' agents are not known now)
  AWAY        for how long
  REPLICAS    who holds it, the one that was asked first
  IN-FLIGHT   requests whose answer has not ended, ordinary ones first:
              2/3 is 2 of them and 3 watches, logs, exec or port-forward;
              in tunnels to the replica that was asked
  ROUND-TRIP  the slowest of those tunnels', as measured last

Exit codes:
  0   listed
  64  the configuration cannot be used
  69  no kas answers";

/// How long kas may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of an answer: a hundred thousand tunnels.
const MAX_ANSWER: usize = 128 << 20;

impl Agents {
    /// Asks, and prints the answer.
    pub(super) fn run(self) -> Outcome {
        let listen = Config::read(&self.config.path)?.observability.listen.address;
        let address = reachable(listen);
        let named = format!("{address} (observability.listen.address of {})", self.config.path.display());
        if listen.port() == 0 {
            return Err(Refusal::usage(format!(
                "{named} is a port that the system chooses: give kas a fixed one"
            )));
        }

        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("the operating system lets a runtime start");
        let answer = runtime.block_on(async { timeout(TIMEOUT, ask(address)).await });
        let body = answer
            .unwrap_or_else(|_| Err(format!("no answer within {} s", TIMEOUT.as_secs())))
            .map_err(|what| Refusal::unavailable(format!("no kas answers at {named}: {what}")))?;
        let listing: Listing = serde_json::from_slice(&body).map_err(|error| {
            Refusal::unavailable(format!("what answers at {named} is no kas of this version: {error}"))
        })?;
        if let Some(missing) = &listing.missing {
            warn(&format!("agents of other replicas are not listed: {missing}"));
        }
        match self.output {
            Form::Table => say(&summary(&listing)),
            Form::Json => say(&String::from_utf8_lossy(&body)),
            Form::Wide => say(&wide(&listing)),
        }
    }
}

/// Where a program of this machine reaches a listener.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let address = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    };
    SocketAddr::new(address, listen.port())
}

async fn ask(address: SocketAddr) -> Result<Bytes, String> {
    let connection = TcpStream::connect(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => "nothing listens there; is kas running?".to_owned(),
        _ => error.to_string(),
    })?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(connection)).await.map_err(|error| error.to_string())?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let request = Request::get("/agents")
        .header(HOST, address.to_string())
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .expect("it is a valid request");
    let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
    if answer.status() != StatusCode::OK {
        return Err(format!("{} for /agents; another program, or another version of kas?", answer.status()));
    }

    let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
    Ok(body.map_err(|error| error.to_string())?.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_reached_from_this_machine() {
        for (listen, expected) in [
            ("0.0.0.0:8151", "127.0.0.1:8151"),
            ("[::]:8151", "[::1]:8151"),
            ("10.0.0.7:8151", "10.0.0.7:8151"),
        ] {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), expected);
        }
    }
}
