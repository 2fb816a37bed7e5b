//! The vocabulary of the scenarios.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use agent::{Agent, Dial, DialError, Options, Services, Telemetry, Token};
use bytes::Bytes;
use gateway::{
    app::App,
    config::Config,
    identity::Identity,
    peers::Fleet,
    token::{self, Holder, TokenHash},
    traces::Traces,
};
use http::{Request, Response, header::AUTHORIZATION};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use proto::ReplicaId;
use router::MemoryStore;
use secrecy::{ExposeSecret as _, SecretString};
use telemetry::Tracer;
use tokio::io::DuplexStream;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tunnel::Body;

/// Where callers come from.
pub(crate) const CALLER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 40_000);

/// One kas, one agent's credential, one caller's.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) kas: Arc<App>,
    pub(crate) agent_token: SecretString,
    pub(crate) caller_token: SecretString,
    /// What `App::run` would keep running.
    _background: Arc<AbortOnDropHandle<()>>,
    /// Of agents that are started.
    tracer: Option<Tracer>,
    /// Each cuts one connection of the agent.
    pipes: Arc<Mutex<Vec<CancellationToken>>>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(edit: impl FnOnce(&mut Config)) -> Self {
        Self::assemble(edit, None, None)
    }

    /// With traces of kas, and with `agentk` making the spans of its agents.
    pub(crate) fn traced(kas: Traces, agentk: Tracer) -> Self {
        Self::assemble(|_| {}, Some(kas), Some(agentk))
    }

    fn assemble(edit: impl FnOnce(&mut Config), traces: Option<Traces>, tracer: Option<Tracer>) -> Self {
        let mut config = configuration();
        edit(&mut config);
        let store = Arc::new(MemoryStore::default());
        let fleet = Fleet::alone(ReplicaId::random(), store, &config);
        let tokens = (token::new(Holder::Agent), token::new(Holder::Caller));
        Self::replica(fleet, config, tokens, traces, tracer)
    }

    /// One of several, that knows these tokens: an agent's and a caller's.
    pub(crate) fn replica(
        fleet: Fleet,
        config: Config,
        (agent_token, caller_token): (SecretString, SecretString),
        traces: Option<Traces>,
        tracer: Option<Tracer>,
    ) -> Self {
        let identity = identity(&[&agent_token], &caller_token);
        let kas = Arc::new(App::of_replica(fleet, config, identity, traces, None, None));
        let callers = Arc::clone(&kas.callers);
        let keeping = async move { callers.budget.keep(&callers.forwarder.metrics).await };
        let background = Arc::new(AbortOnDropHandle::new(tokio::spawn(keeping)));
        Self { kas, agent_token, caller_token, _background: background, tracer, pipes: Arc::default() }
    }

    /// Starts an agent and waits until its tunnels are open.
    pub(crate) async fn agent(&self, services: Services) -> RunningAgent {
        let agent = self.start_agent(services);
        self.tunnels(2).await;
        agent
    }

    /// Starts an agent.
    pub(crate) fn start_agent(&self, services: Services) -> RunningAgent {
        self.start_agent_through(self.clone(), services)
    }

    /// Starts an agent that finds its way to a kas by itself.
    pub(crate) fn start_agent_through(&self, dial: impl Dial, services: Services) -> RunningAgent {
        let stop = CancellationToken::new();
        let kas = "ws://kas".parse().unwrap();
        let token = Token::Value(self.agent_token.clone());
        let options = Options { tracer: self.tracer.clone(), ..Options::new(kas, token) };
        let agent = Agent::new(options, dial, services, Telemetry::default());
        let task = AbortOnDropHandle::new(tokio::spawn(agent.run(stop.clone())));
        RunningAgent { stop, task }
    }

    /// Waits until kas has this many tunnels.
    pub(crate) async fn tunnels(&self, count: i64) {
        let reached = async {
            while self.kas.agents.metrics.tunnels.get() != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let reached = tokio::time::timeout(Duration::from_secs(60), reached).await;
        assert!(reached.is_ok(), "{} tunnels instead of {count}", self.kas.agents.metrics.tunnels.get());
    }

    /// Cuts every tunnel as a dying kas would: without a word.
    pub(crate) fn cut_tunnels(&self) {
        self.pipes.lock().drain(..).for_each(|cut| cut.cancel());
    }

    /// A caller's request with its credential.
    pub(crate) fn request(&self, path: &str) -> Request<Body> {
        Request::get(path)
            .header(AUTHORIZATION, self.bearer())
            .header("host", "kas")
            .body(Body::empty())
            .unwrap()
    }

    /// The same, as a line of a request's head.
    pub(crate) fn authorization(&self) -> String {
        format!("Authorization: {}", self.bearer())
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.caller_token.expose_secret())
    }

    /// A caller's connection.
    pub(crate) fn connect(&self) -> DuplexStream {
        let (near, far) = tokio::io::duplex(64 << 10);
        let callers = Arc::clone(&self.kas.callers);
        tokio::spawn(async move { callers.serve(far, CALLER).await });
        near
    }

    /// Requests to the cluster whose answers have not ended.
    pub(crate) fn in_flight(&self) -> i64 {
        self.kas.callers.forwarder.metrics.of(&"kubernetes".parse().unwrap()).in_flight.get()
    }

    /// The value of a metric, as Prometheus would read it: `name{label="value"}`.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = gateway::metrics::render(&self.kas.admin.registry);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in:\n{text}")).parse().unwrap()
    }

    /// How often a limit was met.
    pub(crate) fn limit_met(&self, limit: &str) -> f64 {
        self.metric(&format!("kas_limits_total{{limit=\"{limit}\"}}"))
    }

    /// Sends a request on a connection of its own.
    pub(crate) async fn send(&self, request: Request<Body>) -> Response<Incoming> {
        let near = self.connect();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        sender.send_request(request).await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Response<Incoming> {
        self.send(self.request(path)).await
    }

    /// The identity file without the agent's token.
    pub(crate) fn revoke(&self) {
        self.kas.identities.replace(identity(&[], &self.caller_token));
    }

    /// The identity file with these rights of the caller's, which are `services` and `access_as`.
    pub(crate) fn identify(&self, rights: &str) {
        self.kas.identities.replace(parse(&self.identity_file(rights)));
    }

    /// The text of such a file.
    pub(crate) fn identity_file(&self, rights: &str) -> String {
        let (agent, caller) = (TokenHash::of(&self.agent_token), TokenHash::of(&self.caller_token));
        format!(
            "agents: [{{id: 1, name: prod, tokens: ['{agent}']}}]\n\
             callers: [{{name: me, tokens: ['{caller}'], agents: [prod], {rights}}}]\n"
        )
    }

    /// The identity file with another token for the caller.
    pub(crate) fn dismiss_caller(&self) {
        let other = token::new(Holder::Caller);
        self.kas.identities.replace(identity(&[&self.agent_token], &other));
    }
}

/// The agent's way to kas.
impl Dial for World {
    type Io = DuplexStream;

    async fn dial(&self) -> Result<DuplexStream, DialError> {
        let (near, mut left) = tokio::io::duplex(64 << 10);
        let (mut right, far) = tokio::io::duplex(64 << 10);
        let cut = CancellationToken::new();
        self.pipes.lock().push(cut.clone());
        tokio::spawn(async move {
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut left, &mut right) => {}
                () = cut.cancelled() => {}
            }
        });
        let agents = Arc::clone(&self.kas.agents);
        tokio::spawn(async move { agents.serve(far, "agent").await });
        Ok(near)
    }
}

/// An agentk process.
pub(crate) struct RunningAgent {
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl RunningAgent {
    /// As SIGTERM does.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }

    /// As SIGKILL does.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

pub(crate) async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A body that says its first words and then nothing, for ever.
pub(crate) fn endless(first: &'static str) -> Body {
    use futures_util::stream::{self, StreamExt as _};
    let frames = stream::once(async move {
        Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::from_static(first.as_bytes())))
    })
    .chain(stream::pending());
    Body::new(http_body_util::StreamBody::new(frames))
}

/// The defaults.
pub(crate) fn configuration() -> Config {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kas.yaml");
    std::fs::write(&file, "identity: {file: identity.yaml}").unwrap();
    Config::read(&file).unwrap()
}

fn identity(agent: &[&SecretString], caller: &SecretString) -> Identity {
    let agent: Vec<String> = agent.iter().map(|token| format!("'{}'", TokenHash::of(token))).collect();
    let text = format!(
        "agents: [{{id: 1, name: prod, tokens: [{}]}}]\n\
         callers: [{{name: me, tokens: ['{}'], agents: [prod], services: ['*']}}]",
        agent.join(", "),
        TokenHash::of(caller),
    );
    parse(&text)
}

pub(crate) fn parse(identity: &str) -> Identity {
    Identity::parse(Path::new("identity.yaml"), identity).unwrap()
}
