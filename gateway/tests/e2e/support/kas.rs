//! Starts kas as a process.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use access::token::{self, Holder, TokenHash};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};

use super::{
    AGENT, Certificates, HttpResponse, Process,
    curl::{curl_in, get},
    eventually,
};

/// The options of kas that tests set.
#[derive(Clone, Default)]
pub(crate) struct KasOptions {
    /// TLS of the public listener. kubectl sends no token without TLS.
    pub(crate) public_tls: Option<Certificates>,
    /// TLS of the agent listener.
    pub(crate) agent_tls: Option<Certificates>,
    /// The port of the agent listener; 0 for a free one.
    pub(crate) agent_port: u16,
    /// `max_connection_age` of tunnels, in seconds, or `None` for the default.
    pub(crate) max_age: Option<u32>,
    /// `listen_grace_period`, in seconds.
    pub(crate) listen_grace: u32,
    /// `shutdown_grace_period`, in seconds.
    pub(crate) shutdown_grace: u32,
    /// The URL of the OTLP collector.
    pub(crate) collector: Option<String>,
    /// The membership in a fleet, or `None` for a single replica.
    pub(crate) membership: Option<Membership>,
    /// The section `agent.configuration`.
    pub(crate) configuration: Option<Value>,
    /// Additional keys of `agent.gitops`.
    pub(crate) gitops: Vec<(&'static str, Value)>,
    /// Additional keys of `agent.kubernetes_api`.
    pub(crate) kubernetes_api: Vec<(&'static str, Value)>,
    /// `agent.tunnel.reconnect_wait`, or `None` for the default.
    pub(crate) reconnect_wait: Option<&'static str>,
    /// The patterns of `agent.kubernetes_api.hosts`.
    pub(crate) hosts: Vec<String>,
    /// The Service of Prometheus in clusters of GitLab's agentk.
    pub(crate) prometheus_service: Option<String>,
    /// The section `agent.receptive`.
    pub(crate) receptive: Option<Value>,
    /// Additional sections of the configuration.
    pub(crate) sections: Vec<(&'static str, Value)>,
    /// The network namespace, or `None` for that of the machine.
    pub(crate) network: Option<String>,
}

/// The configuration of one of several replicas.
#[derive(Clone)]
pub(crate) struct Membership {
    /// The section `redis`.
    pub(crate) redis: Value,
    /// The file with the secret that replicas share.
    pub(crate) secret: PathBuf,
    /// The IP address of the private listener.
    pub(crate) private: String,
    /// `listen_grace_period` of the private listener, in seconds; `None` for that of the public listener.
    pub(crate) private_grace: Option<u32>,
}

/// The tokens of one test.
pub(crate) struct Tokens {
    /// The token of the agent that the test starts.
    pub(crate) agent: SecretString,
    /// The token of the caller `ops`, who has the rights of the agent.
    pub(crate) ops: SecretString,
    /// The token of the caller `alice`, whose requests impersonate the user alice.
    pub(crate) alice: SecretString,
}

/// A running kas.
pub(crate) struct Kas {
    /// The process, for signals and logs.
    pub(crate) process: Process,
    /// The address of the agent listener.
    pub(crate) agents: SocketAddr,
    /// The address of the public listener.
    pub(crate) public: SocketAddr,
    /// The address of the observability listener.
    pub(crate) observability: SocketAddr,
    /// The id of the replica.
    pub(crate) replica: String,
    tls: Option<Certificates>,
    /// The network namespace, or `None` for that of the machine.
    pub(super) network: Option<String>,
}

impl Tokens {
    /// Generates new tokens.
    pub(crate) fn generate() -> Self {
        let [ops, alice] = [Holder::Caller, Holder::Caller].map(token::new);
        Self { agent: token::new(Holder::Agent), ops, alice }
    }

    /// Writes the identity file, without the agent's token if it is `revoked`.
    pub(crate) fn write_identity(&self, directory: &Path, revoked: bool) {
        let hash = |token: &SecretString| TokenHash::of(token).to_string();
        let agent_tokens = if revoked { vec![] } else { vec![hash(&self.agent)] };
        let impersonate = json!({"impersonate": {"username": "alice"}});
        let mut identity = json!({
            "agents": [
                {"id": 7, "name": AGENT, "tokens": agent_tokens},
                {"id": 8, "name": "absent", "tokens": []},
            ],
            "callers": [
                {"name": "ops", "tokens": [hash(&self.ops)], "agents": ["*"], "services": ["*"]},
                {"name": "alice", "tokens": [hash(&self.alice)], "agents": [AGENT], "services": ["kubernetes"],
                 "access_as": impersonate},
            ],
        });
        if Kas::has_all_keys() {
            identity["callers"][0]["cluster_audit"] = json!(true);
            identity["callers"][1]["services"] = json!(["kubernetes", "gitops", "graph"]);
        }
        // JSON is valid YAML. Operators should replace the file atomically, too.
        fs::write(directory.join("identity.new"), identity.to_string()).unwrap();
        fs::rename(directory.join("identity.new"), directory.join("identity.yaml")).unwrap();
    }
}

impl Kas {
    /// Starts kas in a directory with its `identity.yaml`, and waits until it is ready.
    pub(crate) fn start(directory: &Path, options: &KasOptions) -> Self {
        Self::try_start(directory, options).unwrap_or_else(|output| panic!("kas has exited: {output}"))
    }

    /// Starts kas in a directory with its `identity.yaml`, and waits until it listens.
    pub(crate) fn spawn(directory: &Path, options: &KasOptions) -> Self {
        Self::listening(Self::process(directory, options), options)
    }

    /// The same, and waits until it is ready. The error is what it printed, if it has exited.
    pub(crate) fn try_start(directory: &Path, options: &KasOptions) -> Result<Self, String> {
        let mut process = Self::process(directory, options);
        eventually("kas listens or exits", || {
            process.printed().contains("\"kas is listening\"") || !process.runs()
        });
        if !process.printed().contains("\"kas is listening\"") {
            process.exit_code();
            return Err(process.printed());
        }
        let kas = Self::listening(process, options);
        eventually("kas is ready", || kas.is_ready());
        Ok(kas)
    }

    fn process(directory: &Path, options: &KasOptions) -> Process {
        let file = directory.join("kas.yaml");
        fs::write(&file, options.config().to_string()).unwrap();
        let mut command = command_in_network(options.network.as_deref(), &Self::program());
        Process::start("kas", command.args(["serve", "--config"]).arg(&file))
    }

    fn listening(process: Process, options: &KasOptions) -> Self {
        let event = listening_event(&process);
        let address = |name| address(&event, name);
        Self {
            agents: address("agent"),
            public: address("public"),
            observability: address("observability"),
            replica: event["replica"].as_str().unwrap().to_owned(),
            tls: options.public_tls.clone(),
            network: options.network.clone(),
            process,
        }
    }

    /// Returns a command that runs the binary.
    pub(crate) fn command() -> Command {
        Command::new(Self::program())
    }

    /// Returns the path of the binary: that of this build, or of the version in `E2E_KAS`.
    pub(crate) fn program() -> PathBuf {
        std::env::var_os("E2E_KAS").map_or_else(|| env!("CARGO_BIN_EXE_kas").into(), PathBuf::from)
    }

    /// Returns false for the version in `E2E_KAS`, which may refuse keys that it does not know.
    fn has_all_keys() -> bool {
        std::env::var_os("E2E_KAS").is_none()
    }

    /// Returns whether `/readiness` responds with 200.
    pub(crate) fn is_ready(&self) -> bool {
        self.readiness().status == 200
    }

    /// Returns the response of `/readiness`.
    pub(crate) fn readiness(&self) -> HttpResponse {
        self.get("/readiness")
    }

    /// Requests a path of the observability listener.
    pub(crate) fn get(&self, path: &str) -> HttpResponse {
        match &self.network {
            Some(_) => self.curl(&[&format!("http://{}{path}", self.observability)]),
            None => get(self.observability, path),
        }
    }

    /// Returns the address of the internal API.
    pub(crate) fn api(&self) -> SocketAddr {
        address(&listening_event(&self.process), "api")
    }

    /// Returns the address of the web page.
    pub(crate) fn web(&self) -> SocketAddr {
        address(&listening_event(&self.process), "web")
    }

    /// Returns the response of the internal API to a request with a valid token. Its secret has 32 bytes 1.
    pub(crate) fn get_api(&self, path: &str) -> Value {
        let token = format!("Authorization: Bearer {}", kas_testing::internal_api::valid_token());
        let response = self.curl(&["--header", &token, &format!("http://{}{path}", self.api())]);
        assert_eq!(response.status, 200, "{response:?}");
        response.json()
    }

    /// Returns the sum of a metric over all series.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        self.metric_with(name, "")
    }

    /// Returns the sum of a metric over the series whose labels contain a text.
    pub(crate) fn metric_with(&self, name: &str, label: &str) -> f64 {
        let text = self.get("/metrics").text();
        let samples = text
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
            .filter(|line| line.contains(label));
        samples.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// Runs curl in the network of this kas.
    pub(crate) fn curl(&self, arguments: &[&str]) -> HttpResponse {
        curl_in(self.network.as_deref(), arguments)
    }

    /// Returns the URL of a path of the public listener.
    pub(crate) fn url(&self, path: &str) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.public)
    }

    /// Returns the URL of the agent listener.
    pub(crate) fn agent_url(&self, options: &KasOptions) -> String {
        let scheme = if options.agent_tls.is_some() { "wss" } else { "ws" };
        format!("{scheme}://{}", self.agents)
    }

    /// Returns the certificate authority of the public listener.
    pub(crate) fn authority(&self) -> Option<&Path> {
        self.tls.as_ref().map(|tls| &*tls.authority)
    }
}

impl KasOptions {
    /// Returns the configuration of a replica.
    pub(super) fn config(&self) -> Value {
        let listen = |tls: &Option<Certificates>, port: u16| {
            let mut listen = json!({"address": format!("127.0.0.1:{port}")});
            if let Some(tls) = tls {
                listen["certificate_file"] = json!(tls.certificate);
                listen["key_file"] = json!(tls.key);
            }
            listen
        };
        let mut agents = listen(&self.agent_tls, self.agent_port);
        if let Some(max_age) = self.max_age {
            agents["max_connection_age"] = json!(format!("{max_age}s"));
        }
        let mut public = listen(&self.public_tls, 0);
        public["listen_grace_period"] = json!(format!("{}s", self.listen_grace));
        public["shutdown_grace_period"] = json!(format!("{}s", self.shutdown_grace));
        let mut config = json!({
            "agent": {
                "listen": agents,
                "kubernetes_api": {"listen": public},
            },
            "observability": {
                "listen": {"address": "127.0.0.1:0"},
                "logging": {"level": "debug", "format": "json"},
            },
            "identity": {"file": "identity.yaml"},
        });
        for (key, value) in &self.kubernetes_api {
            config["agent"]["kubernetes_api"][key] = value.clone();
        }
        if let Some(wait) = self.reconnect_wait {
            config["agent"]["tunnel"] = json!({"reconnect_wait": wait});
        }
        if !self.hosts.is_empty() {
            config["agent"]["kubernetes_api"]["hosts"] = json!(self.hosts);
        }
        if Kas::has_all_keys() {
            config["agent"]["gitops"] = self.gitops();
        }
        if let Some(receptive) = &self.receptive {
            config["agent"]["receptive"] = receptive.clone();
        }
        if let Some(service) = &self.prometheus_service {
            config["agent"]["gitlab_agentk"] = json!({"prometheus_service": service});
        }
        if let Some(configuration) = &self.configuration {
            config["agent"]["configuration"] = configuration.clone();
        }
        if let Some(collector) = &self.collector {
            let tracing = json!({"otlp_endpoint": collector, "otlp_token_secret_file": "collector-token"});
            config["observability"]["tracing"] = tracing;
        }
        if let Some(membership) = &self.membership {
            config["redis"] = membership.redis.clone();
            let listen = json!({
                "address": format!("{}:0", membership.private),
                "authentication_secret_file": membership.secret,
                "listen_grace_period": format!("{}s", membership.private_grace.unwrap_or(self.listen_grace)),
            });
            // The network between the replicas is one of this machine.
            config["private_api"] = json!({"allow_plaintext": true, "listen": listen});
        }
        for (name, section) in &self.sections {
            config[name] = section.clone();
        }
        config
    }

    fn gitops(&self) -> Value {
        // Tests do not wait long until kas reads a repository.
        let mut gitops = json!({"min_interval": "200ms", "render": {}});
        for tool in ["kustomize", "helm"] {
            if let Some(program) = testing::skip::program_path(tool) {
                gitops["render"][tool] = json!(program);
            }
        }
        for (key, value) in &self.gitops {
            gitops[key] = value.clone();
        }
        gitops
    }
}

/// Returns a command that runs a program in a network namespace, or in that of the machine without one.
pub(crate) fn command_in_network(name: Option<&str>, program: &Path) -> Command {
    let Some(name) = name else { return Command::new(program) };
    let mut command = Command::new("ip");
    command.args(["netns", "exec", name]).arg(program);
    command
}

/// Waits for the log line with the addresses of all listeners.
fn listening_event(kas: &Process) -> Value {
    let line = kas.line("kas is listening", |line| line.contains("\"kas is listening\""));
    serde_json::from_str(&line).unwrap()
}

/// Returns the address of a listener in that log line.
fn address(event: &Value, listener: &str) -> SocketAddr {
    event[listener].as_str().unwrap().parse().unwrap()
}

/// Returns the line of the header field `Authorization` with a token.
pub(super) fn bearer(token: &SecretString) -> String {
    format!("Authorization: Bearer {}", token.expose_secret())
}
