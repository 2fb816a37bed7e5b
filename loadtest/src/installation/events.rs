//! `loadtest events`: one event of a Git project for many agents.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD, prelude::BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures_util::stream;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use parking_lot::Mutex;
use proto::notify::{SUBSCRIPTION_PERIOD, Subscription};
use serde::Serialize;
use serde_json::json;
use sha2::Sha256;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::Command,
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tunnel::Body;

use crate::{
    installation::{
        agent_fleet::AgentFleetConfig,
        stack::{KasProcess, StackConfig, prepare_directory, process::resident, write_file},
    },
    load::{
        self,
        options::write_json,
        report::{Table, number},
    },
};

const PROJECT: &str = "group/shop";
/// The time for all agents to connect, and for an event to reach all of them.
const LIMIT: Duration = Duration::from_secs(120);
/// The time for subscriptions after the last agent has connected.
const SETTLE: Duration = Duration::from_secs(5);

/// Measure how fast an event of a project reaches many agents, and what it costs kas
///
/// Starts kas on this machine, and the agents in this process. Each has one tunnel, and wants the events of one project.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  loadtest events\n  loadtest events --agents 5000 --events 20")]
pub struct Events {
    /// Number of agents
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    agents: u32,
    /// Number of events, one after the other
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    events: u32,
    /// Keep the logs of all programs in this directory
    #[arg(long, value_name = "DIRECTORY")]
    logs: Option<PathBuf>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The result; its JSON is this struct.
#[derive(Debug, Default, Serialize)]
struct EventsReport {
    agents: u32,
    events: u32,
    /// The time from the report of an event until an agent has it, in milliseconds: the median, the 99th percentile and the longest.
    latency_ms: (f64, f64, f64),
    /// The growth of kas' memory from the first to the last event.
    growth_mib: f64,
}

/// The times at which agents have received events.
type Arrivals = Arc<Mutex<Vec<Instant>>>;

impl Events {
    /// Runs to the end, or until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let temporary = tempfile::tempdir()?;
        let directory = prepare_directory(self.logs.as_deref().unwrap_or_else(|| temporary.path()))?;
        match stop.run_until_cancelled(self.measure(&directory, &stop)).await {
            Some(report) => self.print(&report?),
            None => Ok(load::print(&"stopped early")?),
        }
    }

    async fn measure(&self, directory: &Path, stop: &CancellationToken) -> anyhow::Result<EventsReport> {
        let repository = directory.join("repository");
        self.write_configurations(&repository).await?;
        let secret = rand::random::<[u8; 32]>();
        write_file(directory, "api-secret", &BASE64_STANDARD.encode(secret))?;
        let setup = StackConfig {
            extra_agents: self.agents,
            configuration: Some(json!({"poll_period": "1h", "repository": {"url": repository}})),
            sections: "api:\n  listen: {address: \"127.0.0.1:0\", authentication_secret_file: api-secret}\n"
                .to_owned(),
            ..StackConfig::default()
        };
        let kas = KasProcess::start(directory, &setup).await?;
        let api = kas.api.context("kas did not log the address of its internal API")?;
        let arrivals = Arrivals::default();
        let mut config = AgentFleetConfig::new(std::slice::from_ref(&kas), self.agents, 1, 500.0)?;
        config.services = Arc::new({
            let arrivals = Arc::clone(&arrivals);
            move |services| {
                let arrivals = Arc::clone(&arrivals);
                services
                    .with_fn("configuration", async |_: Request<Body>| Response::new(Body::empty()))
                    .with_fn("notify", move |request| std::future::ready(respond(&request, &arrivals)))
            }
        });
        let fleet = config.start()?;
        fleet.wait_until_all_connected(LIMIT, stop).await?;
        sleep(SETTLE).await;
        let before = resident(kas.pid())?;
        let mut times = Vec::new();
        for number in 0..self.events {
            arrivals.lock().clear();
            let sent = Instant::now();
            report_event(api, &secret, number).await?;
            while arrivals.lock().len() < self.agents as usize {
                let arrived = arrivals.lock().len();
                ensure!(sent.elapsed() < LIMIT, "{arrived} of {} agents have received an event", self.agents);
                sleep(Duration::from_millis(5)).await;
            }
            times.extend(arrivals.lock().iter().map(|at| at.duration_since(sent).as_secs_f64() * 1000.0));
        }
        let after = resident(kas.pid())?;
        fleet.stop().await;
        kas.stop().await?;
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        Ok(EventsReport {
            agents: self.agents,
            events: self.events,
            latency_ms: (at(0.5), at(0.99), at(1.0)),
            growth_mib: (after as f64 - before as f64) / 1024.0,
        })
    }

    /// Writes a repository with a configuration for each agent.
    async fn write_configurations(&self, repository: &Path) -> anyhow::Result<()> {
        for number in 2..=self.agents + 1 {
            let folder = repository.join(format!(".gitlab/agents/load-{number}"));
            fs::create_dir_all(&folder)?;
            fs::write(folder.join("config.yaml"), format!("notify: {{projects: [{{id: {PROJECT}}}]}}\n"))?;
        }
        let author = ["-c", "user.name=loadtest", "-c", "user.email=loadtest@example.com"];
        let commit = [&author[..], &["commit", "--quiet", "--message", "Add the configurations"]].concat();
        for arguments in [&["init", "--quiet", "--initial-branch=main"][..], &["add", "--all"], &commit] {
            let status = Command::new("git").arg("-C").arg(repository).args(arguments).status().await;
            let status = status.context("git cannot be started")?;
            ensure!(status.success(), "git {} failed", arguments.join(" "));
        }
        Ok(())
    }

    fn print(&self, report: &EventsReport) -> anyhow::Result<()> {
        let mut table = Table::new(["case", "measured"]);
        let (median, slow, longest) = report.latency_ms;
        table.row([
            format!("event until an agent has it, {} agents", report.agents),
            format!("p50 {} ms, p99 {} ms, longest {} ms", number(median), number(slow), number(longest)),
        ]);
        let growth = format!("{} MiB", number(report.growth_mib));
        table.row([format!("growth of kas with {} events", report.events), growth]);
        load::print(&table)?;
        if let Some(file) = &self.json {
            write_json(file, report)?;
        }
        Ok(())
    }
}

/// Answers as a pod of agentk that leads.
fn respond(request: &Request<Body>, arrivals: &Arrivals) -> Response<Body> {
    if *request.method() == Method::POST {
        arrivals.lock().push(Instant::now());
        return Response::new(Body::empty());
    }
    let lines = stream::unfold(true, async |first| {
        if !first {
            sleep(SUBSCRIPTION_PERIOD).await;
        }
        let subscription = Subscription { projects: vec![PROJECT.to_owned()], generation: 0 };
        let line = serde_json::to_string(&subscription).expect("it has keys that are text") + "\n";
        Some((Ok::<_, std::io::Error>(Frame::data(Bytes::from(line))), false))
    });
    Response::new(Body::new(StreamBody::new(Box::pin(lines))))
}

/// Sends an event to the internal API.
async fn report_event(api: std::net::SocketAddr, secret: &[u8], number: u32) -> anyhow::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let part = |value: serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!(
        "{}.{}",
        part(json!({"alg": "HS256", "typ": "JWT"})),
        part(json!({"aud": "gitlab-kas", "exp": now + 60}))
    );
    let mac = Hmac::<Sha256>::new_from_slice(secret)?.chain_update(&message).finalize().into_bytes();
    let token = format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(mac));
    let body =
        json!({"project": PROJECT, "ref": "refs/heads/main", "after": format!("{number:040x}")}).to_string();
    let request = format!(
        "POST /api/v1/events HTTP/1.1\r\nHost: kas\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut connection = TcpStream::connect(api).await?;
    connection.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    connection.read_to_string(&mut response).await?;
    ensure!(response.starts_with("HTTP/1.1 201"), "kas did not keep the event: {response}");
    Ok(())
}
