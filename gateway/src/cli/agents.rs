//! `kas agents`: asks the running kas who is connected.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, SystemTime},
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

use super::{
    ConfigFile,
    outcome::{Outcome, Refusal, say},
    table::{Table, age, milliseconds},
};
use crate::{
    config::Config,
    roster::{Agent, Listing, Presence, Service, Tunnel},
};

/// List the agents of a running kas, and their tunnels
///
/// Asks the kas that runs with this configuration, at its observability.listen.address. A replica knows its own tunnels:
/// where there are several, ask each.
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
              unknown (the route store does not answer)
  AWAY        for how long
  IN-FLIGHT   requests whose answer has not ended, ordinary ones first:
              2/3 is 2 of them and 3 watches, logs, exec or port-forward
  ROUND-TRIP  the slowest tunnel's, as measured last

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

/// A line for each agent.
fn summary(listing: &Listing) -> String {
    let mut table = Table::new(&[
        "ID",
        "NAME",
        "STATE",
        "AWAY",
        "TUNNELS",
        "IN-FLIGHT",
        "ROUND-TRIP",
        "AGENTK",
        "KUBERNETES",
        "SERVICES",
    ]);
    for agent in &listing.agents {
        let tunnels = &agent.tunnels;
        let services = || tunnels.iter().flat_map(|tunnel| &tunnel.services);
        let slowest = tunnels.iter().filter_map(|tunnel| tunnel.round_trip_ms).reduce(f64::max);
        let some = |text: String| if tunnels.is_empty() { String::new() } else { text };
        table.row([
            agent.id.to_string(),
            agent.name.to_string(),
            state(&agent.presence).to_owned(),
            away(agent, listing.time),
            some(tunnels.len().to_string()),
            some(in_flight(services())),
            slowest.map(milliseconds).unwrap_or_default(),
            distinct(tunnels.iter().map(|tunnel| &*tunnel.version)),
            distinct(tunnels.iter().filter_map(|tunnel| tunnel.kubernetes_version.as_deref())),
            distinct(services().map(|service| service.name.as_str())),
        ]);
    }
    table.to_string()
}

/// A line for each tunnel, and one for each agent without.
fn wide(listing: &Listing) -> String {
    let mut table = Table::new(&[
        "ID",
        "NAME",
        "STATE",
        "AWAY",
        "TUNNEL",
        "OPEN",
        "PEER",
        "INSTANCE",
        "POD",
        "AGENTK",
        "KUBERNETES",
        "ROUND-TRIP",
        "IN-FLIGHT",
    ]);
    for agent in &listing.agents {
        let (id, name) = (agent.id.to_string(), agent.name.to_string());
        for tunnel in &agent.tunnels {
            let state = if tunnel.draining { "leaving" } else { state(&agent.presence) };
            table.row([
                id.clone(),
                name.clone(),
                state.to_owned(),
                String::new(),
                short(&tunnel.id.to_string()),
                since(tunnel.since, listing.time),
                tunnel.peer.clone(),
                format!("{}#{}", short(&tunnel.instance.to_string()), tunnel.index),
                pod(tunnel),
                tunnel.version.clone(),
                tunnel.kubernetes_version.clone().unwrap_or_default(),
                tunnel.round_trip_ms.map(milliseconds).unwrap_or_default(),
                by_service(tunnel),
            ]);
        }
        if agent.tunnels.is_empty() {
            let mut cells = [const { String::new() }; 13];
            cells[..4].clone_from_slice(&[
                id,
                name,
                state(&agent.presence).to_owned(),
                away(agent, listing.time),
            ]);
            table.row(cells);
        }
    }
    table.to_string()
}

fn state(presence: &Presence) -> &'static str {
    match presence {
        Presence::Connected => "connected",
        Presence::Elsewhere { .. } => "elsewhere",
        Presence::Away { .. } => "away",
        Presence::Never => "never",
        Presence::Unknown => "unknown",
    }
}

fn away(agent: &Agent, now: SystemTime) -> String {
    match agent.presence {
        Presence::Away { since: then } => since(then, now),
        _ => String::new(),
    }
}

fn since(then: SystemTime, now: SystemTime) -> String {
    age(now.duration_since(then).unwrap_or_default())
}

fn in_flight<'a>(services: impl Iterator<Item = &'a Service>) -> String {
    let (short, long) = services.fold((0u64, 0u64), |(short, long), service| {
        (short + u64::from(service.short), long + u64::from(service.long))
    });
    format!("{short}/{long}")
}

fn by_service(tunnel: &Tunnel) -> String {
    let each = tunnel.services.iter().map(|Service { name, short, long }| format!("{name}={short}/{long}"));
    each.collect::<Vec<_>>().join(",")
}

fn distinct<'a>(values: impl Iterator<Item = &'a str>) -> String {
    let values: std::collections::BTreeSet<_> = values.collect();
    values.into_iter().collect::<Vec<_>>().join(",")
}

fn pod(tunnel: &Tunnel) -> String {
    let parts = [tunnel.pod_namespace.as_deref(), tunnel.pod_name.as_deref()];
    parts.into_iter().flatten().collect::<Vec<_>>().join("/")
}

/// As much of an id as tells it apart, and finds it in the logs.
fn short(id: &str) -> String {
    id.chars().take(8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the shape that docs/operations.md promises.
    const LISTING: &str = r#"{
      "replica": "0123456789abcdef0123456789abcdef", "version": "0.1.0", "time": "2026-11-20T13:00:00Z",
      "agents": [
        {"id": 1, "name": "production", "state": "connected", "tunnels": [
          {"id": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "peer": "192.0.2.7:40312", "since": "2026-11-20T11:48:00Z",
           "draining": true, "instance": "cccccccccccccccccccccccccccccccc", "index": 0, "version": "0.1.0",
           "pod_namespace": "agentk", "pod_name": "agentk-7d9c", "kubernetes_version": "v1.34.1", "round_trip_ms": 12.3,
           "services": [{"name": "kubernetes", "short": 1, "long": 2}, {"name": "prometheus", "short": 3, "long": 0}]},
          {"id": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "peer": "192.0.2.7:40313", "since": "2026-11-20T12:59:30Z",
           "draining": false, "instance": "cccccccccccccccccccccccccccccccc", "index": 1, "version": "0.2.0",
           "pod_namespace": null, "pod_name": null, "kubernetes_version": null, "round_trip_ms": null,
           "services": [{"name": "kubernetes", "short": 1, "long": 0}]}]},
        {"id": 2, "name": "staging", "state": "away", "since": "2026-11-20T12:20:00Z", "tunnels": []},
        {"id": 3, "name": "new", "state": "never", "tunnels": []},
        {"id": 4, "name": "other", "state": "elsewhere", "replicas": ["0123456789abcdef0123456789abcdef"],
         "tunnels": []}
      ]}"#;

    fn listing() -> Listing {
        serde_json::from_str(LISTING).unwrap()
    }

    #[test]
    fn a_line_for_each_agent() {
        let expected = "\
ID  NAME        STATE      AWAY   TUNNELS  IN-FLIGHT  ROUND-TRIP  AGENTK       KUBERNETES  SERVICES
1   production  connected  -      2        5/2        12ms        0.1.0,0.2.0  v1.34.1     kubernetes,prometheus
2   staging     away       40m0s  -        -          -           -            -           -
3   new         never      -      -        -          -           -            -           -
4   other       elsewhere  -      -        -          -           -            -           -
";
        assert_eq!(summary(&listing()), expected);
    }

    #[test]
    fn a_line_for_each_tunnel() {
        let table = wide(&listing());
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(lines.iter().all(|line| line.len() == 13), "{table}");
        assert_eq!(
            lines[1].join(" "),
            "1 production leaving - aaaaaaaa 1h12m 192.0.2.7:40312 cccccccc#0 agentk/agentk-7d9c 0.1.0 v1.34.1 12ms \
             kubernetes=1/2,prometheus=3/0"
        );
        assert_eq!(
            lines[2].join(" "),
            "1 production connected - bbbbbbbb 30s 192.0.2.7:40313 cccccccc#1 - 0.2.0 - - kubernetes=1/0"
        );
        assert_eq!(lines[3].join(" "), "2 staging away 40m0s - - - - - - - - -");
    }

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
