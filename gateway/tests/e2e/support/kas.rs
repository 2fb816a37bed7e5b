//! kas, as its users start it.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use gateway::token::{self, Holder, TokenHash};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};

use super::{AGENT, Certificates, Process, Reply, curl::curl_in, eventually};

/// What differs between the tests.
#[derive(Clone, Default)]
pub(crate) struct KasOptions {
    /// For both, or neither, of the listeners; kubectl sends no token without it.
    pub(crate) public_tls: Option<Certificates>,
    /// For agents.
    pub(crate) agent_tls: Option<Certificates>,
    /// The port that an earlier kas had, for agents to find this one.
    pub(crate) agent_port: u16,
    /// `max_connection_age` of tunnels, in seconds, if not the default.
    pub(crate) max_age: Option<u32>,
    /// `listen_grace_period`, in seconds.
    pub(crate) listen_grace: u32,
    /// `shutdown_grace_period`, in seconds.
    pub(crate) shutdown_grace: u32,
    /// Where traces go.
    pub(crate) collector: Option<String>,
    /// What makes it one of several.
    pub(crate) membership: Option<Membership>,
    /// Whole sections besides.
    pub(crate) sections: Vec<(&'static str, Value)>,
}

/// What replicas share, and how each reaches the others.
#[derive(Clone)]
pub(crate) struct Membership {
    /// Section `redis`.
    pub(crate) redis: Value,
    /// A file with what all of them know.
    pub(crate) secret: PathBuf,
    /// Where it listens for the others, without the port.
    pub(crate) private: String,
    /// `listen_grace_period` of that listener, in seconds; without it, that of the public one.
    pub(crate) private_grace: Option<u32>,
    /// The namespace of its network, if not the machine's.
    pub(crate) network: Option<String>,
}

/// The secrets of one test.
pub(crate) struct Tokens {
    /// Of the agent that the test starts.
    pub(crate) agent: SecretString,
    /// Of a caller who acts as the agent.
    pub(crate) ops: SecretString,
    /// Of a caller who is alice in the cluster.
    pub(crate) alice: SecretString,
}

/// A running kas.
pub(crate) struct Kas {
    /// For signals and logs.
    pub(crate) process: Process,
    /// Where agents connect.
    pub(crate) agents: SocketAddr,
    /// Where callers connect.
    pub(crate) public: SocketAddr,
    /// Probes and metrics.
    pub(crate) observability: SocketAddr,
    /// The name of this process among replicas.
    pub(crate) replica: String,
    tls: Option<Certificates>,
    /// The namespace of its network, if not the machine's.
    pub(super) network: Option<String>,
}

impl Tokens {
    /// New ones.
    pub(crate) fn make() -> Self {
        let [ops, alice] = [Holder::Caller, Holder::Caller].map(token::new);
        Self { agent: token::new(Holder::Agent), ops, alice }
    }

    /// The identity file; without the agent's token once it is `revoked`.
    pub(crate) fn write_identity(&self, directory: &Path, revoked: bool) {
        let hash = |token: &SecretString| TokenHash::of(token).to_string();
        let agent_tokens = if revoked { vec![] } else { vec![hash(&self.agent)] };
        let impersonate = json!({"impersonate": {"username": "alice"}});
        let identity = json!({
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
        // JSON is YAML. Replaced in one step, as operators should.
        fs::write(directory.join("identity.new"), identity.to_string()).unwrap();
        fs::rename(directory.join("identity.new"), directory.join("identity.yaml")).unwrap();
    }
}

impl Kas {
    /// Starts one in a directory that has its `identity.yaml`, and waits until it is ready.
    pub(crate) fn start(directory: &Path, options: &KasOptions) -> Self {
        let kas = Self::begin(directory, options);
        eventually("kas is ready", || kas.is_ready());
        kas
    }

    /// The same, and waits until it listens.
    pub(crate) fn begin(directory: &Path, options: &KasOptions) -> Self {
        let file = directory.join("kas.yaml");
        fs::write(&file, options.config().to_string()).unwrap();
        let network = options.membership.as_ref().and_then(|membership| membership.network.as_deref());
        let mut command = in_network(network, &Self::program());
        let process = Process::start("kas", command.args(["serve", "--config"]).arg(&file));
        let said = listening(&process);
        let address = |name| address(&said, name);
        Self {
            agents: address("agent"),
            public: address("public"),
            observability: address("observability"),
            replica: said["replica"].as_str().unwrap().to_owned(),
            tls: options.public_tls.clone(),
            network: network.map(str::to_owned),
            process,
        }
    }

    /// The program.
    pub(crate) fn command() -> Command {
        Command::new(Self::program())
    }

    /// Its file.
    pub(crate) fn program() -> PathBuf {
        env!("CARGO_BIN_EXE_kas").into()
    }

    /// What `/readiness` says.
    pub(crate) fn is_ready(&self) -> bool {
        self.readiness().status == 200
    }

    /// The same, in its own words.
    pub(crate) fn readiness(&self) -> Reply {
        self.curl(&[&format!("http://{}/readiness", self.observability)])
    }

    /// Where programs ask who is connected.
    pub(crate) fn api(&self) -> SocketAddr {
        address(&listening(&self.process), "api")
    }

    /// The value of one metric, summed over its labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        self.metric_with(name, "")
    }

    /// The same of those series only in whose labels this stands.
    pub(crate) fn metric_with(&self, name: &str, label: &str) -> f64 {
        let text = self.curl(&[&format!("http://{}/metrics", self.observability)]).text();
        let samples = text
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
            .filter(|line| line.contains(label));
        samples.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// curl, where this kas is.
    pub(crate) fn curl(&self, arguments: &[&str]) -> Reply {
        curl_in(self.network.as_deref(), arguments)
    }

    /// Where callers find a path.
    pub(crate) fn url(&self, path: &str) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.public)
    }

    /// Where agents dial to.
    pub(crate) fn agent_url(&self, options: &KasOptions) -> String {
        let scheme = if options.agent_tls.is_some() { "wss" } else { "ws" };
        format!("{scheme}://{}", self.agents)
    }

    /// The authority that vouches for the public listener.
    pub(crate) fn authority(&self) -> Option<&Path> {
        self.tls.as_ref().map(|tls| &*tls.authority)
    }
}

impl KasOptions {
    fn config(&self) -> Value {
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
        if let Some(collector) = &self.collector {
            let tracing = json!({"otlp_endpoint": collector, "otlp_token_secret_file": "collector-token"});
            config["observability"]["tracing"] = tracing;
        }
        if let Some(membership) = &self.membership {
            config["redis"] = membership.redis.clone();
            config["private_api"] = json!({"listen": {
                "address": format!("{}:0", membership.private),
                "authentication_secret_file": membership.secret,
                "listen_grace_period": format!("{}s", membership.private_grace.unwrap_or(self.listen_grace)),
            }});
        }
        for (name, section) in &self.sections {
            config[name] = section.clone();
        }
        config
    }
}

/// A program, in the network of this name or, without one, in that of the machine.
pub(super) fn in_network(name: Option<&str>, program: &Path) -> Command {
    let Some(name) = name else { return Command::new(program) };
    let mut command = Command::new("ip");
    command.args(["netns", "exec", name]).arg(program);
    command
}

/// What kas logs once it listens.
fn listening(kas: &Process) -> Value {
    let line = kas.line("kas is listening", |line| line.contains("\"kas is listening\""));
    serde_json::from_str(&line).unwrap()
}

fn address(said: &Value, listener: &str) -> SocketAddr {
    said[listener].as_str().unwrap().parse().unwrap()
}

/// `Authorization` for a caller.
pub(super) fn bearer(token: &SecretString) -> String {
    format!("Authorization: Bearer {}", token.expose_secret())
}
