//! kas and agents in this process, connected by in-memory pipes.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use access::{
    ApiTokenVerifier, Identity,
    token::{self, Holder, TokenHash},
};
use agentk_core::{Agent, AgentToken, Dial, DialError, Observability, Services, SessionConfig};
use agentk_gitlab::gitlab_protocol;
use bytes::Bytes;
use gateway::{
    app::{App, ReplicaSources},
    config::Config,
    test_support::{TlsName, Traces},
};
use http::{Request, Response, StatusCode, header::AUTHORIZATION};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kas_core::{feature::KasFeature, peers::ReplicaContext};
use kas_gitlab::GitLabClient;
use oidc::{DocumentSource, Issuers};
use parking_lot::Mutex;
use proto::ReplicaId;
use secrecy::{ExposeSecret as _, SecretString};
use store::MemoryStore;
use telemetry::Tracer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tunnel::{Body, upgrade::UpgradedConnection};

use crate::{fleet::secret, issuer::TestIssuer};

/// The address of agents.
pub const AGENT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), 40_000);
/// The address of callers.
pub const CALLER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 40_000);

/// One kas with one agent token and one caller token.
#[derive(Clone)]
pub struct World {
    pub kas: Arc<App>,
    pub agent_token: SecretString,
    pub caller_token: SecretString,
    /// The background tasks that `App::run` would run.
    _background: Arc<AbortOnDropHandle<()>>,
    /// The tracer of agents.
    tracer: Option<Tracer>,
    /// The tokens that close the connections of agents.
    pipes: Arc<Mutex<Vec<CancellationToken>>>,
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    /// Creates a kas with the default configuration.
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// Creates a kas with an edited configuration.
    pub fn with(edit: impl FnOnce(&mut Config)) -> Self {
        Self::assemble(edit, None, None)
    }

    /// Creates a kas with one more feature.
    pub fn with_feature(feature: Box<dyn KasFeature>) -> Self {
        let config = configuration();
        let store = Arc::new(MemoryStore::default());
        let fleet = ReplicaContext::standalone(ReplicaId::random(), store, config.peer_settings());
        let (agent, caller) = new_tokens();
        let sources = ReplicaSources { features: vec![feature], ..identity(&[&agent], &caller).into() };
        Self::of_sources(fleet, config, sources, (agent, caller), None, None)
    }

    /// Creates a kas with traces, whose agents use the tracer `agentk`.
    pub fn traced(kas: Traces, agentk: Tracer) -> Self {
        Self::assemble(|_| {}, Some(kas), Some(agentk))
    }

    fn assemble(edit: impl FnOnce(&mut Config), traces: Option<Traces>, tracer: Option<Tracer>) -> Self {
        let mut config = configuration();
        edit(&mut config);
        let store = Arc::new(MemoryStore::default());
        let fleet = ReplicaContext::standalone(ReplicaId::random(), store, config.peer_settings());
        Self::build(fleet, config, new_tokens(), Issuers::default(), traces, tracer)
    }

    /// Creates a kas whose callers may have tokens of an OIDC issuer. `issuer` are additional keys of its entry in
    /// `oidc.issuers`.
    pub fn with_issuer(issuer: &TestIssuer, keys: &str) -> Self {
        Self::with_issuer_and(issuer, keys, |_| {})
    }

    /// Does the same with an edited configuration.
    pub fn with_issuer_and(issuer: &TestIssuer, keys: &str, edit: impl FnOnce(&mut Config)) -> Self {
        let (mut config, issuers) = with_issuer(issuer, keys);
        edit(&mut config);
        let store = Arc::new(MemoryStore::default());
        let fleet = ReplicaContext::standalone(ReplicaId::random(), store, config.peer_settings());
        Self::build(fleet, config, new_tokens(), issuers, None, None)
    }

    /// Creates one of several replicas whose callers may have tokens of an OIDC issuer.
    pub fn issuer_replica(
        fleet: ReplicaContext,
        issuer: &TestIssuer,
        tokens: (SecretString, SecretString),
    ) -> Self {
        let (config, issuers) = with_issuer(issuer, "");
        Self::build(fleet, config, tokens, issuers, None, None)
    }

    /// Creates one of several replicas, with the given agent token and caller token.
    pub fn replica(
        fleet: ReplicaContext,
        config: Config,
        tokens: (SecretString, SecretString),
        traces: Option<Traces>,
        tracer: Option<Tracer>,
    ) -> Self {
        Self::build(fleet, config, tokens, Issuers::default(), traces, tracer)
    }

    fn build(
        fleet: ReplicaContext,
        config: Config,
        (agent_token, caller_token): (SecretString, SecretString),
        issuers: Issuers,
        traces: Option<Traces>,
        tracer: Option<Tracer>,
    ) -> Self {
        let identity = identity(&[&agent_token], &caller_token);
        Self::of_sources(
            fleet,
            config,
            ReplicaSources { issuers, ..identity.into() },
            (agent_token, caller_token),
            traces,
            tracer,
        )
    }

    /// Creates a kas whose agents come from GitLab. Its agents use the token; the caller is that of the identity file.
    pub fn with_gitlab(
        gitlab: GitLabClient,
        agent_token: impl Into<SecretString>,
        edit: impl FnOnce(&mut Config),
    ) -> Self {
        let mut config = configuration();
        edit(&mut config);
        let fleet = ReplicaContext::standalone(
            ReplicaId::random(),
            Arc::new(MemoryStore::default()),
            config.peer_settings(),
        );
        Self::gitlab_replica(fleet, config, gitlab, agent_token)
    }

    /// Creates one of several replicas whose agents come from GitLab.
    pub fn gitlab_replica(
        fleet: ReplicaContext,
        config: Config,
        gitlab: GitLabClient,
        agent_token: impl Into<SecretString>,
    ) -> Self {
        let caller = token::new(Holder::Caller);
        let sources = of_gitlab(gitlab, &caller);
        Self::of_sources(fleet, config, sources, (agent_token.into(), caller), None, None)
    }

    /// Creates a kas whose agents come from GitLab, and whose callers may have tokens of an OIDC issuer, too.
    pub fn with_gitlab_and_issuer(
        gitlab: GitLabClient,
        agent_token: impl Into<SecretString>,
        issuer: &TestIssuer,
        edit: impl FnOnce(&mut Config),
    ) -> Self {
        let (mut config, issuers) = with_issuer(issuer, "");
        edit(&mut config);
        let store = Arc::new(MemoryStore::default());
        let fleet = ReplicaContext::standalone(ReplicaId::random(), store, config.peer_settings());
        let caller = token::new(Holder::Caller);
        let sources = ReplicaSources { issuers, ..of_gitlab(gitlab, &caller) };
        Self::of_sources(fleet, config, sources, (agent_token.into(), caller), None, None)
    }

    fn of_sources(
        fleet: ReplicaContext,
        config: Config,
        sources: ReplicaSources,
        (agent_token, caller_token): (SecretString, SecretString),
        traces: Option<Traces>,
        tracer: Option<Tracer>,
    ) -> Self {
        let kas = Arc::new(App::of_replica(fleet, config, sources, traces, None, None));
        let (callers, issuers) = (Arc::clone(&kas.callers), kas.issuers.clone());
        let (gitlab_callers, web) = (kas.gitlab_callers.clone(), kas.web.clone());
        let run = async move {
            let of_gitlab = async {
                match gitlab_callers {
                    Some(source) => source.run().await,
                    None => std::future::pending().await,
                }
            };
            let of_browsers = async {
                match web {
                    Some(web) => web.run().await,
                    None => std::future::pending().await,
                }
            };
            tokio::join!(
                of_browsers,
                callers.connections.budget.run(&callers.observers.metrics),
                callers.connections.idle.run(&callers.observers.metrics),
                issuers.run(),
                of_gitlab
            );
        };
        let background = Arc::new(AbortOnDropHandle::new(tokio::spawn(run)));
        Self { kas, agent_token, caller_token, _background: background, tracer, pipes: Arc::default() }
    }

    /// Starts an agent and waits until kas has two tunnels.
    pub async fn agent(&self, services: Services) -> RunningAgent {
        self.agent_with_tunnels(services, 2).await
    }

    /// Starts an agent and waits until kas has `count` tunnels.
    pub async fn agent_with_tunnels(&self, services: Services, count: i64) -> RunningAgent {
        let agent = self.start_agent(services);
        self.tunnels(count).await;
        agent
    }

    /// Starts an agent.
    pub fn start_agent(&self, services: Services) -> RunningAgent {
        self.start_agent_through(self.clone(), services)
    }

    /// Starts an agent in the cluster with this UID.
    pub fn start_agent_in(&self, cluster: &str, services: Services) -> RunningAgent {
        let observability = Observability::default();
        observability.set_cluster_uid(Some(cluster.to_owned()));
        self.start_agent_with(self.clone(), services, observability)
    }

    /// Starts an agent with the given dialer.
    pub fn start_agent_through(&self, dial: impl Dial, services: Services) -> RunningAgent {
        self.start_agent_with(dial, services, Observability::default())
    }

    fn start_agent_with(
        &self,
        dial: impl Dial,
        services: Services,
        observability: Observability,
    ) -> RunningAgent {
        let stop = CancellationToken::new();
        let kas = "ws://kas".parse().unwrap();
        let token = AgentToken::value(self.agent_token.clone());
        let options = SessionConfig { tracer: self.tracer.clone(), ..SessionConfig::new(kas, token) };
        let agent = Agent::new(options, dial, services, observability.clone(), gitlab_protocol);
        let task = AbortOnDropHandle::new(tokio::spawn(agent.run(stop.clone())));
        RunningAgent { stop, observability, task }
    }

    /// Waits until kas has `count` tunnels.
    pub async fn tunnels(&self, count: i64) {
        let reached = async {
            while self.kas.agents.metrics.tunnels.get() != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let reached = tokio::time::timeout(Duration::from_secs(60), reached).await;
        assert!(reached.is_ok(), "{} tunnels instead of {count}", self.kas.agents.metrics.tunnels.get());
    }

    /// Closes the connections of all tunnels, as SIGKILL does.
    pub fn cut_tunnels(&self) {
        self.pipes.lock().drain(..).for_each(|cut| cut.cancel());
    }

    /// Closes the connection of one tunnel, in the order in which they were opened.
    pub fn cut_tunnel(&self, index: usize) {
        self.pipes.lock().remove(index).cancel();
    }

    /// Returns a GET request with the caller's token.
    pub fn request(&self, path: &str) -> Request<Body> {
        Request::get(path)
            .header(AUTHORIZATION, self.bearer())
            .header("host", "kas")
            .body(Body::empty())
            .unwrap()
    }

    /// Returns the `Authorization` header of the caller as a line.
    pub fn authorization(&self) -> String {
        format!("Authorization: {}", self.bearer())
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.caller_token.expose_secret())
    }

    /// Connects a caller.
    pub fn connect(&self) -> DuplexStream {
        self.connect_with_name(TlsName::Irrelevant)
    }

    /// Connects a caller that has sent this name in its TLS handshake.
    pub fn connect_with_name(&self, name: TlsName) -> DuplexStream {
        let (near, far) = tokio::io::duplex(64 << 10);
        let callers = Arc::clone(&self.kas.callers);
        tokio::spawn(async move { callers.serve(far, CALLER, name, Arc::default()).await });
        near
    }

    /// Returns the number of requests to the cluster that are in flight.
    pub fn in_flight(&self) -> i64 {
        self.kas.callers.observers.metrics.service(&"kubernetes".parse().unwrap()).in_flight.get()
    }

    /// Returns the value of a metric, which is named as in the text format of Prometheus: `name{label="value"}`.
    pub fn metric(&self, name: &str) -> f64 {
        let text = telemetry::ExpositionFormat::OpenMetrics.render(&self.kas.admin.registry);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in:\n{text}")).parse().unwrap()
    }

    /// Returns whether a metric has a value.
    pub fn has_metric(&self, name: &str) -> bool {
        let text = telemetry::ExpositionFormat::OpenMetrics.render(&self.kas.admin.registry);
        text.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')))
    }

    /// Returns how often a limit was exceeded.
    pub fn limit_count(&self, limit: &str) -> f64 {
        self.metric(&format!("kas_limits_total{{limit=\"{limit}\"}}"))
    }

    /// Sends a request on a new connection.
    pub async fn send(&self, request: Request<Body>) -> Response<Incoming> {
        let near = self.connect();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        sender.send_request(request).await.unwrap()
    }

    /// Sends a GET request with the caller's token on a new connection.
    pub async fn get(&self, path: &str) -> Response<Incoming> {
        self.send(self.request(path)).await
    }

    /// Replaces the identity file by one without the agent's token.
    pub fn revoke(&self) {
        self.kas.identities.replace(identity(&[], &self.caller_token));
    }

    /// Replaces the identity file by one with additional keys of the caller, such as `services` and `access_as`.
    pub fn set_caller_rights(&self, rights: &str) {
        self.kas.identities.replace(parse(&self.identity_file(rights)));
    }

    /// Replaces the identity file by one whose callers are these: the items of a list, like `{name: a, …}, {…}`.
    pub fn set_callers(&self, callers: &str) {
        let agent = TokenHash::of(&self.agent_token);
        let text = format!("agents: [{{id: 1, name: prod, tokens: ['{agent}']}}]\ncallers: [{callers}]\n");
        self.kas.identities.replace(parse(&text));
    }

    /// Returns an identity file with additional keys of the caller.
    pub fn identity_file(&self, rights: &str) -> String {
        let (agent, caller) = (TokenHash::of(&self.agent_token), TokenHash::of(&self.caller_token));
        format!(
            "agents: [{{id: 1, name: prod, tokens: ['{agent}']}}]\n\
             callers: [{{name: me, tokens: ['{caller}'], agents: [prod], {rights}}}]\n"
        )
    }

    /// Replaces the identity file by one in which the agent has another name.
    pub fn rename_agent(&self, name: &str) {
        let text = self.identity_file("services: ['*']").replace("prod", name);
        self.kas.identities.replace(parse(&text));
    }

    /// Replaces the identity file by one with a second agent, `test`, which the caller may use, too. Returns its token.
    pub fn add_second_agent(&self) -> SecretString {
        let token = token::new(Holder::Agent);
        let second = format!("}}, {{id: 2, name: test, tokens: ['{}']}}]\n", TokenHash::of(&token));
        let text = self
            .identity_file("services: ['*']")
            .replace("agents: [prod]", "agents: [prod, test]")
            .replacen("}]\n", &second, 1);
        self.kas.identities.replace(parse(&text));
        token
    }

    /// Returns the same world with the token of another agent.
    #[must_use]
    pub fn with_agent_token(&self, agent_token: SecretString) -> Self {
        Self { agent_token, ..self.clone() }
    }

    /// Replaces the identity file by one with another token for the caller.
    pub fn revoke_caller(&self) {
        let other = token::new(Holder::Caller);
        self.kas.identities.replace(identity(&[&self.agent_token], &other));
    }
}

/// Agents dial kas through a pipe that the test can cut.
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
        tokio::spawn(async move { agents.serve(far, AGENT_ADDRESS, Arc::default()).await });
        Ok(near)
    }
}

/// A running agent.
pub struct RunningAgent {
    stop: CancellationToken,
    /// The health and the metrics of the agent.
    pub observability: Observability,
    task: AbortOnDropHandle<()>,
}

impl RunningAgent {
    /// Stops the agent, as SIGTERM does.
    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }

    /// Drops the agent, as SIGKILL does.
    pub fn kill(self) {
        drop(self);
    }
}

/// Reads a body to its end and returns it as text.
pub async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns a body that sends `first` and then stays open without data.
pub fn endless(first: &'static str) -> Body {
    use futures_util::stream::{self, StreamExt as _};
    let frames = stream::once(async move {
        Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::from_static(first.as_bytes())))
    })
    .chain(stream::pending());
    Body::new(http_body_util::StreamBody::new(frames))
}

/// Accepts an upgrade to SPDY. The connection sends `first`, reads to the end, and sends it back in upper case.
pub fn uppercase_upgrade(first: &'static str) -> Response<Body> {
    let (near, mut far) = tokio::io::duplex(1024);
    tokio::spawn(async move {
        far.write_all(first.as_bytes()).await.unwrap();
        let mut input = Vec::new();
        far.read_to_end(&mut input).await.unwrap();
        input.make_ascii_uppercase();
        far.write_all(&input).await.unwrap();
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert("upgrade", "SPDY/3.1".parse().unwrap());
    response.extensions_mut().insert(UpgradedConnection::new(near));
    response
}

/// Returns the default configuration.
pub fn configuration() -> Config {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kas.yaml");
    std::fs::write(&file, "identity: {file: identity.yaml}").unwrap();
    Config::read(&file).unwrap()
}

/// Returns the configuration of a kas whose callers may have tokens of an OIDC issuer. `keys` are additional keys of its entry.
fn with_issuer(issuer: &TestIssuer, keys: &str) -> (Config, Issuers) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kas.yaml");
    let url = TestIssuer::URL;
    let entry = format!("{{name: test, issuer: '{url}', audiences: [kas], {keys}}}");
    std::fs::write(&file, format!("identity: {{file: identity.yaml}}\noidc: {{issuers: [{entry}]}}\n"))
        .unwrap();
    let config = Config::read(&file).unwrap();
    let source: Arc<dyn DocumentSource> = Arc::new(issuer.clone());
    let issuers = Issuers::with_sources(&file, &config.oidc, |_, _| Ok(Arc::clone(&source))).unwrap();
    (config, issuers)
}

fn new_tokens() -> (SecretString, SecretString) {
    (token::new(Holder::Agent), token::new(Holder::Caller))
}

/// Returns the sources of a replica whose agents come from GitLab, with one caller in the identity file.
fn of_gitlab(gitlab: GitLabClient, caller: &SecretString) -> ReplicaSources {
    ReplicaSources {
        gitlab: Some(gitlab),
        gitlab_login: Some(crate::page_login::settings()),
        api_tokens: Some(ApiTokenVerifier::new(secret(1), None)),
        ..identity(&[], caller).into()
    }
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

/// Parses the text of an identity file.
pub fn parse(identity: &str) -> Identity {
    Identity::parse(Path::new("identity.yaml"), identity).unwrap()
}
