//! kas dials agents that accept connections and open none. The connections are TCP on this machine, in real time.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use access::token::{self, Holder, TokenHash};
use agentk_core::{
    AgentToken, ListenConfig, ListenKey, ListeningAgent, Observability, ServeConfig, Services,
};
use bytes::Bytes;
use cores::Cores;
use gateway::config::Config;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kas_testing::{
    fleet::TestFleet,
    handshake::hello,
    server::{listen, read_head, read_until},
    world::{World, endless, parse, text, uppercase_upgrade},
};
use proto::{
    ReplicaId, TunnelId, TunnelLimits, Welcome,
    header::{HELLO, WELCOME},
};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tunnel::Body;

const PATH: &str = "/agents/prod/kubernetes/api";
const KEY: &str = "0123456789abcdef0123456789abcdef";
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A connection to an end of a tunnel.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An agentk that listens on this machine.
pub(crate) struct Agentk {
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
    observability: Observability,
}

/// The files of a test.
struct Files {
    directory: tempfile::TempDir,
}

impl Agentk {
    fn start(token: &SecretString, services: Services) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), token, None, services)
    }

    fn start_at(address: SocketAddr, token: &SecretString, key: Option<PathBuf>, services: Services) -> Self {
        let key = key.map(|path| ListenKey::read(path).unwrap());
        Self::start_with(ListenConfig { address, tls: None, key, public_key: None }, token, services)
    }

    pub(crate) fn start_with(config: ListenConfig, token: &SecretString, services: Services) -> Self {
        let (observability, stop) = (Observability::default(), CancellationToken::new());
        let serve = ServeConfig::new(AgentToken::value(token.clone()));
        let agent = ListeningAgent::new(config, serve, services, observability.clone());
        let socket = agent.bind().unwrap();
        let address = socket.local_addr().unwrap();
        let task = AbortOnDropHandle::new(tokio::spawn(agent.run(socket, stop.clone())));
        Self { address, stop, task, observability }
    }

    fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

impl Files {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

pub(crate) fn allow_loopback(config: &mut Config) {
    config.agent.receptive.allowed_networks = vec!["127.0.0.0/8".parse().unwrap()];
}

/// Returns a kas that may dial this machine.
fn world() -> World {
    World::with(allow_loopback)
}

/// Starts to dial the agent at the URL, with additional keys of its entry.
fn dial(world: &World, url: &str, keys: &str) -> AbortOnDropHandle<()> {
    let url = format!("url: '{url}'");
    set_target(world, &if keys.is_empty() { url } else { format!("{url}, {keys}") });
    AbortOnDropHandle::new(tokio::spawn(world.kas.receptive_agents(Cores::default(), None).run()))
}

/// Replaces the identity file by one with these keys of the agent.
fn set_target(world: &World, keys: &str) {
    let file = world.identity_file("services: ['*']").replace("name: prod,", &format!("name: prod, {keys},"));
    world.kas.identities.replace(parse(&file));
}

pub(crate) fn cluster(name: &'static str) -> Services {
    Services::new().with_fn("kubernetes", move |request: Request<Body>| async move {
        match request.uri().path() {
            "/watch" => Response::new(endless("watching")),
            _ => Response::new(Body::from(name)),
        }
    })
}

/// Waits until the condition is true.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let reached = async {
        while !condition() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(PATIENCE, reached).await.is_ok(), "{what}");
}

pub(crate) fn tunnels(world: &World) -> i64 {
    world.kas.agents.metrics.tunnels.get()
}

pub(crate) fn dials(world: &World, result: &str) -> f64 {
    world.metric(&format!("kas_dials_total{{result=\"{result}\"}}"))
}

/// Waits until a dial has this result, and returns the message to a caller.
async fn failure(world: &World, result: &str) -> String {
    until(result, || dials(world, result) > 0.0).await;
    let response = world.get(PATH).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["kas-error"], "agent-not-connected");
    text(response).await
}

/// Returns the error with which kas last failed to dial the agent, as its operator reads it.
pub(crate) async fn dial_error(world: &World) -> String {
    let agents = world.kas.admin.agent_lister.list().await.agents;
    agents.into_iter().find_map(|agent| agent.dial_error).unwrap()
}

#[tokio::test]
async fn request_and_upgrade_reach_an_agent_that_kas_dials() {
    let (world, files) = (world(), Files::new());
    let key = files.write("key", KEY);
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        if !request.headers().contains_key("upgrade") {
            return Response::new(Body::from("here"));
        }
        uppercase_upgrade("")
    });
    let loopback = "127.0.0.1:0".parse().unwrap();
    let agentk = Agentk::start_at(loopback, &world.agent_token, Some(key.clone()), services);
    let health = &agentk.observability.health;
    until("it is ready without a tunnel", || !health.problems().iter().any(|it| it.contains("tunnel"))).await;
    let _dialling = dial(&world, &agentk.url(), &format!("key_file: {}", key.display()));
    world.tunnels(2).await;
    assert_eq!(text(world.get(PATH).await).await, "here");
    assert_eq!(dials(&world, "connected"), 2.0);
    assert_eq!(world.metric("kas_handshakes_total{reason=\"accepted\"}"), 0.0);

    let mut caller = world.connect();
    let head = format!(
        "POST {PATH}/v1/namespaces/a/pods/b/exec HTTP/1.1\r\nHost: kas\r\n{}\r\nConnection: Upgrade\r\n\
         Upgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n",
        world.authorization()
    );
    caller.write_all(head.as_bytes()).await.unwrap();
    let response = read_until(&mut caller, "\r\n\r\n").await;
    assert!(response.starts_with("http/1.1 101"), "{response}");
    caller.write_all(b"input").await.unwrap();
    caller.shutdown().await.unwrap();
    let mut output = String::new();
    caller.read_to_string(&mut output).await.unwrap();
    assert_eq!(output, "INPUT");
}

/// Either direction carries more than the limit of frames without effect (8 MiB): what is useful does not count.
#[tokio::test]
async fn large_bodies_in_both_directions_do_not_end_the_tunnel() {
    const SIZE: usize = 12 << 20;
    let world = world();
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        let sent = request.into_body().collect().await.unwrap().to_bytes();
        Response::new(Body::from(if sent.is_empty() { Bytes::from(vec![b'x'; SIZE]) } else { sent }))
    });
    let agentk = Agentk::start(&world.agent_token, services);
    let _dialling = dial(&world, &agentk.url(), "tunnels: 1");
    world.tunnels(1).await;
    for sent in [0, 0, SIZE, SIZE] {
        let request = world.request(PATH).map(|_| Body::from(Bytes::from(vec![b'x'; sent])));
        let response = world.send(request).await;
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), SIZE);
    }
    assert_eq!(dials(&world, "connected"), 1.0, "it is the same tunnel");
}

/// Go removes a header `Connection` with `close`, so that its clients and reverse proxies see no upgrade.
#[tokio::test]
async fn upgrade_is_the_only_option_of_the_connection() {
    let world = world();
    let welcome = Welcome {
        replica: ReplicaId::random(),
        replicas: 1,
        tunnel: TunnelId::random(),
        limits: TunnelLimits { max_concurrent_streams: 100, max_header_bytes: 65_536 },
    };
    let agentk = Agentk::start(&world.agent_token, cluster("here"));
    let (kas, far) = tokio::io::duplex(64 << 10);
    let agents = Arc::clone(&world.kas.agents);
    tokio::spawn(async move { agents.serve(far, kas_testing::world::CALLER, Arc::default()).await });
    let hello = hello(env!("CARGO_PKG_VERSION"));
    let hello = format!(
        "{HELLO}: {}\r\nAuthorization: Bearer {}",
        hello.encode().unwrap().to_str().unwrap(),
        world.agent_token.expose_secret(),
    );
    let welcome = format!("{WELCOME}: {}", welcome.encode().unwrap().to_str().unwrap());
    let tcp = tokio::net::TcpStream::connect(agentk.address).await.unwrap();
    let upgrade_of = async |mut stream: Box<dyn Stream>, headers: String| {
        let upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: kas-tunnel.v1";
        let request = format!("GET / HTTP/1.1\r\nHost: kas\r\n{upgrade}\r\n{headers}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        assert!(head.starts_with("http/1.1 101"), "{head}");
        head.lines().filter(|line| line.starts_with("connection:")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(upgrade_of(Box::new(kas), hello).await, "connection: upgrade");
    assert_eq!(upgrade_of(Box::new(tcp), welcome).await, "connection: upgrade");

    let mut refused = tokio::net::TcpStream::connect(agentk.address).await.unwrap();
    refused.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut response = String::new();
    timeout(PATIENCE, refused.read_to_string(&mut response)).await.unwrap().unwrap();
    assert!(
        response.contains("\r\nconnection: close\r\n"),
        "it is the last one of its connection: {response}"
    );
}

#[tokio::test]
async fn tunnels_are_spread_and_another_replica_takes_over_without_a_failed_request() {
    let fleet = TestFleet::with(2, allow_loopback);
    let [one, two] = &fleet.replicas[..] else { unreachable!() };
    let agentk = Agentk::start(&one.agent_token, cluster("here"));
    let _dialling = [one, two].map(|replica| dial(replica, &agentk.url(), ""));
    until("one tunnel to each", || tunnels(one) == 1 && tunnels(two) == 1).await;
    fleet.wait_until_announced(0).await;

    one.kas.agents.connections.drain();
    let end = Instant::now() + PATIENCE;
    while tunnels(one) > 0 || tunnels(two) < 2 {
        assert!(Instant::now() < end, "{} and {} tunnels", tunnels(one), tunnels(two));
        for replica in [one, two] {
            let response = replica.get(PATH).await;
            assert_eq!(response.status(), StatusCode::OK, "{}", text(response).await);
        }
    }
}

#[tokio::test]
async fn single_tunnel_moves_without_a_failed_request() {
    let fleet = TestFleet::with(2, allow_loopback);
    let [one, two] = &fleet.replicas[..] else { unreachable!() };
    let agentk = Agentk::start(&one.agent_token, cluster("here"));
    let _first = dial(one, &agentk.url(), "tunnels: 1");
    until("the first replica dials", || tunnels(one) == 1).await;
    let _second = dial(two, &agentk.url(), "tunnels: 1");
    fleet.wait_until_announced(0).await;
    sleep(Duration::from_secs(4)).await;
    assert_eq!(tunnels(two), 0, "one replica at a time");

    one.kas.agents.connections.drain();
    let end = Instant::now() + PATIENCE;
    while tunnels(one) > 0 || tunnels(two) < 1 {
        assert!(Instant::now() < end, "{} and {} tunnels", tunnels(one), tunnels(two));
        let response = two.get(PATH).await;
        assert_eq!(response.status(), StatusCode::OK, "{}", text(response).await);
    }
    assert_eq!(fleet.owners().await, [fleet.id(1)]);
}

#[tokio::test]
async fn dead_replica_loses_its_lease() {
    let fleet = TestFleet::with(2, allow_loopback);
    let [one, two] = &fleet.replicas[..] else { unreachable!() };
    let agentk = Agentk::start(&one.agent_token, cluster("here"));
    let first = dial(one, &agentk.url(), "tunnels: 1");
    until("the first replica dials", || tunnels(one) == 1).await;
    let _second = dial(two, &agentk.url(), "tunnels: 1");
    drop(first);
    one.kas.agents.connections.cut.cancel();
    until("the second replica dials", || tunnels(two) == 1).await;
}

#[tokio::test]
async fn wrong_key_is_refused_with_the_reason() {
    let (world, files) = (world(), Files::new());
    let key = files.write("key", KEY);
    let loopback = "127.0.0.1:0".parse().unwrap();
    let agentk = Agentk::start_at(loopback, &world.agent_token, Some(key), cluster("here"));
    let wrong = files.write("wrong", "another key of thirty-two characters".replace(' ', "-").as_str());
    let _dialling = dial(&world, &agentk.url(), &format!("key_file: {}", wrong.display()));
    let message = failure(&world, "key-refused").await;
    assert!(message.contains("kas cannot dial it (key-refused)"), "{message}");
    assert!(!message.contains("another-key"), "{message}");
    let error = dial_error(&world).await;
    assert!(error.starts_with("agentk refuses the key"), "{error}");

    files.write("wrong", KEY);
    world.tunnels(2).await;
    assert!(world.kas.admin.agent_lister.list().await.agents[0].dial_error.is_none());
}

#[tokio::test]
async fn token_is_checked_like_that_of_an_agent_that_connects() {
    let world = world();
    let unknown = token::new(Holder::Agent);
    let agentk = Agentk::start(&unknown, cluster("here"));
    let _dialling = dial(&world, &agentk.url(), "");
    failure(&world, "unauthorized").await;
    let error = dial_error(&world).await;
    assert!(error.contains("the agent token is unknown or was revoked"), "{error}");
    assert_eq!(tunnels(&world), 0);

    // The token is that of another agent now.
    let [prod, other] = [&world.agent_token, &unknown].map(TokenHash::of);
    let agents = format!(
        "agents: [{{id: 1, name: prod, tokens: ['{prod}'], url: '{}'}}, {{id: 2, name: other, tokens: ['{other}']}}]",
        agentk.url()
    );
    let file = world.identity_file("services: ['*']");
    let (_, callers) = file.split_once('\n').unwrap();
    world.kas.identities.replace(parse(&format!("{agents}\n{callers}")));
    let message = failure(&world, "wrong-agent").await;
    assert!(!message.contains("other"), "a caller is not told of another agent: {message}");
    let error = dial_error(&world).await;
    assert!(error.contains("has the token of agent other"), "{error}");
    assert_eq!(tunnels(&world), 0);
}

#[tokio::test]
async fn revoked_token_cuts_and_removed_url_ends_the_tunnels() {
    let world = world();
    let agentk = Agentk::start(&world.agent_token, cluster("here"));
    let _dialling = dial(&world, &agentk.url(), "");
    world.tunnels(2).await;
    let identity = world.identity_file("services: ['*']");
    let hash = TokenHash::of(&world.agent_token).to_string();
    let revoked = identity
        .replace(&format!("'{hash}'"), "")
        .replace("name: prod,", &format!("name: prod, url: '{}',", agentk.url()));
    world.kas.identities.replace(parse(&revoked));
    world.tunnels(0).await;
    failure(&world, "unauthorized").await;

    set_target(&world, &format!("url: '{}'", agentk.url()));
    world.tunnels(2).await;
    set_target(&world, "project_id: 1");
    world.tunnels(0).await;
    sleep(Duration::from_secs(4)).await;
    assert_eq!(tunnels(&world), 0);
}

#[tokio::test]
async fn changed_url_moves_the_tunnels_without_a_failed_request() {
    let world = world();
    let old = Agentk::start(&world.agent_token, cluster("old"));
    let new = Agentk::start(&world.agent_token, cluster("new"));
    let _dialling = dial(&world, &old.url(), "tunnels: 1");
    world.tunnels(1).await;
    assert_eq!(text(world.get(PATH).await).await, "old");
    set_target(&world, &format!("url: '{}', tunnels: 1", new.url()));
    let end = Instant::now() + PATIENCE;
    loop {
        let response = world.get(PATH).await;
        assert_eq!(response.status(), StatusCode::OK);
        if text(response).await == "new" && tunnels(&world) == 1 {
            break;
        }
        assert!(Instant::now() < end);
    }
}

#[tokio::test]
async fn tunnel_with_the_maximum_age_is_replaced_first() {
    let world = World::with(|config| {
        allow_loopback(config);
        // More than the age below which a tunnel that leaves is a failure.
        config.agent.listen.max_connection_age = Duration::from_millis(1500).into();
    });
    let agentk = Agentk::start(&world.agent_token, cluster("here"));
    let _dialling = dial(&world, &agentk.url(), "tunnels: 1");
    world.tunnels(1).await;
    let end = Instant::now() + Duration::from_secs(7);
    while Instant::now() < end {
        assert!(tunnels(&world) >= 1, "the next tunnel is open before this one ends");
        assert_eq!(world.get(PATH).await.status(), StatusCode::OK);
        sleep(Duration::from_millis(5)).await;
    }
    assert!(dials(&world, "connected") >= 4.0, "{}", dials(&world, "connected"));
    let graceful = world.metric("kas_tunnel_lifetime_seconds_count{reason=\"graceful\"}");
    assert!(graceful >= 3.0, "{graceful}");
}

#[tokio::test]
async fn tunnel_that_drains_counts_until_its_end() {
    let world = World::with(|config| {
        allow_loopback(config);
        config.agent.listen.max_connection_age = Duration::from_millis(1500).into();
    });
    let agentk = Agentk::start(&world.agent_token, cluster("here"));
    let _dialling = dial(&world, &agentk.url(), "tunnels: 1");
    world.tunnels(1).await;
    let mut watch = world.get("/agents/prod/kubernetes/watch?watch=1").await.into_body();
    assert_eq!(watch.frame().await.unwrap().unwrap().into_data().unwrap(), "watching");

    // The third tunnel opens while the first serves the watch, and the second has not begun to drain.
    let end = Instant::now() + PATIENCE;
    loop {
        let list = world.kas.admin.agent_lister.list().await;
        let indexes: Vec<u16> = list.agents[0].tunnels.iter().map(|tunnel| tunnel.index).collect();
        assert!(indexes.is_sorted_by(|a, b| a < b), "agentk counts a tunnel twice: {indexes:?}");
        if indexes.contains(&2) {
            break;
        }
        assert!(Instant::now() < end, "{indexes:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn single_replica_that_stops_waits_for_no_other_one() {
    let world = world();
    let agentk = Agentk::start(&world.agent_token, cluster("here"));
    let _dialling = dial(&world, &agentk.url(), "");
    world.tunnels(2).await;
    let started = Instant::now();
    world.kas.agents.connections.drain();
    world.tunnels(0).await;
    // Another replica would have 4.5 s.
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    let graceful = world.metric("kas_tunnel_lifetime_seconds_count{reason=\"graceful\"}");
    assert_eq!(graceful, 2.0);
}

#[tokio::test]
async fn agent_that_restarts_is_dialled_again_while_its_streams_end() {
    let world = world();
    let agentk = Agentk::start(&world.agent_token, cluster("old"));
    let (address, url) = (agentk.address, agentk.url());
    let _dialling = dial(&world, &url, "tunnels: 1");
    world.tunnels(1).await;
    let mut watch = world.get("/agents/prod/kubernetes/watch?watch=1").await.into_body();
    assert_eq!(watch.frame().await.unwrap().unwrap().into_data().unwrap(), "watching");

    let stopping = tokio::spawn(agentk.stop());
    until("the port is free", || std::net::TcpStream::connect(address).is_err()).await;
    let _new = Agentk::start_at(address, &world.agent_token, None, cluster("new"));
    let started = Instant::now();
    assert_eq!(text(world.get(PATH).await).await, "new");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert!(!stopping.is_finished(), "the old agentk still serves the watch");
    drop(watch);
    timeout(PATIENCE, stopping).await.unwrap().unwrap();
}

#[tokio::test]
async fn redirect_and_foreign_servers_are_refused() {
    let (world, files) = (world(), Files::new());
    let key = files.write("key", KEY);
    let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let (target, _target) = listen({
        let seen = Arc::clone(&seen);
        move |mut stream| {
            let seen = Arc::clone(&seen);
            async move {
                let head = read_head(&mut stream).await;
                seen.lock().push(head);
            }
        }
    })
    .await;
    let (redirecting, _redirecting) = listen(move |mut stream| {
        let target = target.clone();
        async move {
            read_head(&mut stream).await;
            let head =
                format!("HTTP/1.1 302 Found\r\nLocation: http://{target}/\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
        }
    })
    .await;
    let address = redirecting.trim_start_matches("http://").to_owned();
    let _dialling = dial(&world, &format!("ws://{address}"), &format!("key_file: {}", key.display()));
    failure(&world, "redirect").await;
    let error = dial_error(&world).await;
    assert!(error.contains("which kas does not follow"), "{error}");
    assert!(seen.lock().is_empty());

    let (other, _other) = listen(async |mut stream: tokio::net::TcpStream| {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\nnothing").await.unwrap();
    })
    .await;
    set_target(&world, &format!("url: 'ws://{}'", other.trim_start_matches("http://")));
    let message = failure(&world, "refused").await;
    assert!(!message.contains("nothing"), "a caller is not told what a server answers: {message}");
    let error = dial_error(&world).await;
    assert!(error.contains("404 Not Found (message: nothing)"), "{error}");
}

#[tokio::test]
async fn special_addresses_are_not_dialled() {
    let world = World::with(|_| {});
    let agentk = Agentk::start(&world.agent_token, cluster("here"));
    let _dialling = dial(&world, &agentk.url(), "");
    failure(&world, "address-not-allowed").await;
    let error = dial_error(&world).await;
    assert!(error.contains("127.0.0.1 is a loopback address"), "{error}");
    let named = agentk.url().replace("127.0.0.1", "localhost");
    for (url, expected) in [
        ("ws://169.254.169.254/latest/meta-data", "169.254.169.254 is a link-local address"),
        ("wss://[fd00:ec2::254]", "fd00:ec2::254 is the address of a metadata service"),
        (&*named, "localhost has no address that kas may dial"),
    ] {
        set_target(&world, &format!("url: '{url}'"));
        let refused = async {
            loop {
                let list = world.kas.admin.agent_lister.list().await;
                if list.agents[0].dial_error.as_ref().is_some_and(|error| error.contains(expected)) {
                    return;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, refused).await.expect(url);
    }
    assert_eq!(*agentk.observability.health.tunnels().borrow(), 0);
}

#[tokio::test]
async fn strangers_do_not_keep_kas_out() {
    let (world, files) = (world(), Files::new());
    let key = files.write("key", KEY);
    let loopback = "127.0.0.1:0".parse().unwrap();
    let agentk = Agentk::start_at(loopback, &world.agent_token, Some(key.clone()), cluster("here"));
    let mut strangers = Vec::new();
    for _ in 0..200 {
        strangers.push(tokio::net::TcpStream::connect(agentk.address).await.unwrap());
    }
    let mut stranger = tokio::net::TcpStream::connect(agentk.address).await.unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let response = read_until(&mut stranger, "\r\n\r\n").await;
    assert!(response.starts_with("http/1.1 401"), "{response}");
    assert!(!response.contains("kas-authorization"), "{response}");
    let _dialling = dial(&world, &agentk.url(), &format!("key_file: {}", key.display()));
    world.tunnels(2).await;
    let mut byte = [0];
    let first = timeout(PATIENCE, strangers[0].read(&mut byte)).await.unwrap();
    assert!(matches!(first, Ok(0) | Err(_)), "the oldest strangers were closed");
}
