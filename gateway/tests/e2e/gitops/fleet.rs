//! A hundred simulated agents at two replicas follow one repository of a real Git server.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use access::token::{self, Holder, TokenHash};
use agentk_core::{
    Agent, AgentToken, Dial as _, KasAddress, Observability, Services, SessionConfig, TcpDialer,
    upstream::ClientTlsConfig,
};
use agentk_gitlab::gitlab_protocol;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use parking_lot::Mutex;
use proto::gitops::{FrameLimits, SourceNotice, SyncDecoder, SyncFrame};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;
use tunnel::Body;

use super::*;
use crate::support::{Certificates, Fleet, GitServer, Kas, Redis};

const AGENTS: usize = 100;
/// The interval of the project. kas looks after 0.8 of it at the earliest.
const INTERVAL: Duration = Duration::from_secs(1);

/// The commit that each agent has received last.
type Received = Arc<Mutex<HashMap<usize, String>>>;

/// Agents in this process, each with one tunnel, which are all led by kas and apply nothing.
struct SimulatedAgents {
    received: Received,
    stop: CancellationToken,
    _runtime: Runtime,
}

impl SimulatedAgents {
    fn start(tokens: &[SecretString], replicas: &[&Kas], options: &KasOptions) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (received, stop) = (Received::default(), CancellationToken::new());
        let dialers: Vec<(KasAddress, Arc<TcpDialer>)> = replicas
            .iter()
            .map(|replica| {
                let address: KasAddress = replica.agent_url(options).parse().unwrap();
                (address.clone(), Arc::new(TcpDialer::new(address, ClientTlsConfig::default()).unwrap()))
            })
            .collect();
        for (number, token) in tokens.iter().enumerate() {
            let (address, dialer) = dialers[number % dialers.len()].clone();
            let config = SessionConfig {
                tunnels: 1,
                grace: Duration::ZERO,
                ..SessionConfig::new(address, AgentToken::value(token.expose_secret().to_owned()))
            };
            let dial = move || {
                let dialer = Arc::clone(&dialer);
                async move { dialer.dial().await }
            };
            let received = Arc::clone(&received);
            let manifests = move |request| serve(request, number, Arc::clone(&received));
            let agent = Agent::new(
                config,
                dial,
                Services::new().with_fn("manifests", manifests),
                Observability::default(),
                gitlab_protocol,
            );
            runtime.spawn(agent.run(stop.clone()));
        }
        Self { received, stop, _runtime: runtime }
    }

    /// Waits until all agents have received a commit.
    fn wait_for(&self, commit: &str) {
        eventually(&format!("all agents have {commit}"), || {
            let received = self.received.lock();
            received.len() == AGENTS && received.values().all(|received| received == commit)
        });
    }
}

impl Drop for SimulatedAgents {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Serves `manifests` as the agentk that leads does.
async fn serve(request: Request<Body>, number: usize, received: Received) -> Response<Body> {
    let respond = |status: StatusCode, body| Response::builder().status(status).body(body).unwrap();
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/v1/source") => {
            let mut line = serde_json::to_vec(&SourceNotice::Active).unwrap();
            line.push(b'\n');
            let active = stream::iter([Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(line)))]);
            respond(StatusCode::OK, Body::new(StreamBody::new(active.chain(stream::pending()))))
        }
        (&Method::POST, "/v1/sync") => {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut decoder = SyncDecoder::new(FrameLimits { files: 10, bytes: 1 << 20 });
            decoder.push(&body);
            let Ok(Some(SyncFrame::Head(head))) = decoder.next_frame() else { panic!("a head") };
            received.lock().insert(number, head.commit.id);
            respond(StatusCode::OK, Body::empty())
        }
        _ => respond(StatusCode::NO_CONTENT, Body::empty()),
    }
}

#[test]
fn hundred_agents_cost_one_look_per_interval_and_three_exchanges_per_replica_and_commit() {
    let Some(mut redis) = Redis::or_skip() else { return };
    let directory = TempDir::new().unwrap();
    let Some(repository) = GitRepository::or_skip(directory.path()) else { return };
    let certificates = Certificates::generate(directory.path());
    let Some(server) = GitServer::or_skip(directory.path(), &certificates, "secret") else { return };
    let write = |name: &str, text: &str| {
        let file = directory.path().join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let password = write("password", "secret\n");
    let interval = humantime::format_duration(INTERVAL);
    let configuration = write(
        "config.yaml",
        &format!(
            "gitops: {{manifest_projects: [{{id: app, paths: [{{glob: '/*.yaml'}}], interval: {interval}}}]}}\n"
        ),
    );
    let names: Vec<String> = (0..AGENTS).map(|number| format!("agent-{number}")).collect();
    let tokens: Vec<SecretString> = names.iter().map(|_| token::new(Holder::Agent)).collect();
    let agents: Vec<Value> = names
        .iter()
        .zip(&tokens)
        .enumerate()
        .map(|(number, (name, token))| {
            let hash = TokenHash::of(token).to_string();
            json!({"id": number + 1, "name": name, "tokens": [hash], "configuration": {"file": configuration}})
        })
        .collect();
    let mut fleet = Fleet::without_cluster(redis.section());
    fleet.options.gitops = vec![(
        "repositories",
        json!([{"id": "app", "agents": names, "repository": {
            "url": server.url, "username": "kas", "password_file": password,
            "ca_certificate_file": certificates.authority,
        }}]),
    )];
    let commit = |value: &str| {
        repository.commit_files(&[("app.yaml", Some(&config_map("a", value)))]);
        repository.push(&server);
        repository.commit_id("main")
    };
    let first = commit("one");

    let replicas = ["one", "two"].map(|name| {
        let home = directory.path().join(name);
        std::fs::create_dir(&home).unwrap();
        std::fs::write(home.join("identity.yaml"), json!({"agents": agents, "callers": []}).to_string())
            .unwrap();
        Kas::start(&home, &fleet.options)
    });
    for replica in &replicas {
        eventually("Redis is in use", || replica.readiness().text() == "ready\n");
    }
    let fleet_of_agents = SimulatedAgents::start(&tokens, &replicas.each_ref(), &fleet.options);
    fleet_of_agents.wait_for(&first);

    // Ten looks in a row, by whichever replica.
    let (before, began) = (server.commands("ls-refs"), Instant::now());
    eventually("ten looks", || server.commands("ls-refs") >= before + 10);
    let (looks, took) = (server.commands("ls-refs") - before, began.elapsed());
    let most = took.as_secs_f64() / (0.8 * INTERVAL.as_secs_f64()) + 1.0;
    assert!(looks as f64 <= most, "{looks} looks in {took:?}");
    let shared =
        || replicas.each_ref().map(|replica| replica.metric_with("kas_gitops_looks_total", "shared"));
    assert!(shared().iter().sum::<f64>() >= 8.0, "{:?}", shared());

    let fetches = server.commands("fetch");
    assert_eq!(fetches, 2 * replicas.len(), "trees and files for each replica");
    let second = commit("two");
    fleet_of_agents.wait_for(&second);
    assert_eq!(server.commands("fetch") - fetches, 2 * replicas.len());

    // Without Redis, each replica looks for itself.
    redis.server.kill();
    let third = commit("three");
    fleet_of_agents.wait_for(&third);
}
