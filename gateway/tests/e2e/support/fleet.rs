//! Several replicas of kas, with agents connected to chosen replicas.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use secrecy::ExposeSecret as _;
use serde_json::Value;
use tempfile::TempDir;

use super::{
    AGENT, Agent, AgentOptions, HttpResponse, Kas, KasOptions, Kubectl, Membership, Tokens,
    agent::has_gitlab_protocol, eventually, installation::unreachable_cluster, kas::bearer, kubeconfig, run,
};

/// The options that all replicas share. The test owns the replicas, and may kill them.
pub(crate) struct Fleet {
    /// The options of replicas that are started next.
    pub(crate) options: KasOptions,
    /// The tokens of the agent and of the callers.
    pub(crate) tokens: Tokens,
    /// The options of agents, each of which has one tunnel.
    pub(crate) agent_options: AgentOptions,
    directory: TempDir,
    started: AtomicUsize,
}

impl Fleet {
    /// Creates a fleet without replicas, from the configuration section `redis` and the kubeconfig of the agents.
    pub(crate) fn new(redis: Value, kubeconfig: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::generate();
        let membership = Membership {
            redis,
            secret: write_secret(directory.path(), "secret"),
            private: "127.0.0.1".into(),
            private_grace: None,
        };
        let options =
            KasOptions { shutdown_grace: 30, membership: Some(membership), ..KasOptions::default() };
        let agent_options = AgentOptions {
            kas: String::new(),
            kas_authority: None,
            token: tokens.agent.expose_secret().to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            prometheus: None,
            hubble: None,
            policy: None,
            namespaces: None,
            require_scope: false,
            pod_namespace: None,
            collector: None,
            tunnels: 1,
            grace: 25,
            network: None,
            gitlab_protocol: has_gitlab_protocol(),
            environment: Vec::new(),
        };
        Self { options, tokens, agent_options, directory, started: AtomicUsize::new(0) }
    }

    /// Creates a fleet whose agents respond with `cluster-unreachable`.
    pub(crate) fn without_cluster(redis: Value) -> Self {
        let mut fleet = Self::new(redis, Path::new(""));
        fleet.agent_options.kubeconfig = unreachable_cluster(fleet.directory());
        fleet
    }

    /// Returns the membership of replicas that are started next.
    pub(crate) fn membership(&mut self) -> &mut Membership {
        self.options.membership.as_mut().unwrap()
    }

    /// Starts a replica.
    pub(crate) fn start_replica(&self) -> Kas {
        let directory = self.subdirectory("kas");
        self.tokens.write_identity(&directory, false);
        Kas::start(&directory, &self.options)
    }

    /// Starts replicas, and waits until each has registered in Redis.
    pub(crate) fn start_replicas<const COUNT: usize>(&self) -> [Kas; COUNT] {
        let all = [(); COUNT].map(|()| self.start_replica());
        for replica in &all {
            eventually("Redis is in use", || replica.readiness().text() == "ready\n");
        }
        all
    }

    /// Starts an agentk with one tunnel to this replica, in the network of the replica, and waits for the tunnel.
    pub(crate) fn start_agent_at(&self, replica: &Kas) -> Agent {
        let before = replica.metric("kas_tunnels");
        let (kas, network) = (replica.agent_url(&self.options), replica.network.clone());
        let options = AgentOptions { kas, network, ..self.agent_options.clone() };
        let agent = self.start_agent(&options);
        eventually("the tunnel is open", || replica.metric("kas_tunnels") > before);
        agent
    }

    /// Starts an agentk.
    pub(crate) fn start_agent(&self, options: &AgentOptions) -> Agent {
        Agent::start(&self.subdirectory("agent"), options)
    }

    /// Requests the version of the agent's cluster from a replica.
    pub(crate) fn get_version(&self, replica: &Kas) -> HttpResponse {
        self.get(replica, &format!("/agents/{AGENT}/kubernetes/version"))
    }

    /// Requests a path from a replica.
    pub(crate) fn get(&self, replica: &Kas, path: &str) -> HttpResponse {
        replica.curl(&["--header", &self.authorization(), &replica.url(path)])
    }

    /// Returns the line of the header field `Authorization` of a caller with the rights of the agent.
    pub(crate) fn authorization(&self) -> String {
        bearer(&self.tokens.ops)
    }

    /// Runs a command of kas with the configuration of the replicas, and returns what it printed.
    pub(crate) fn run_kas(&self, command: &str, arguments: &[&str]) -> String {
        let file = self.subdirectory("operator").join("kas.yaml");
        fs::write(&file, self.options.config().to_string()).unwrap();
        let output = run(Kas::command().args([command, "--config"]).arg(file).args(arguments), b"");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns kubectl with the rights of the agent, at the address of a replica or of a load balancer.
    pub(crate) fn kubectl(&self, server: SocketAddr) -> Kubectl {
        let (path, directory) = (format!("/agents/{AGENT}/kubernetes"), self.subdirectory("kubectl"));
        let authority = &self.options.public_tls.as_ref().expect("kubectl requires TLS").authority;
        let token = self.tokens.ops.expose_secret();
        let url = format!("https://{server}{path}");
        let file = kubeconfig::write(directory.join("kubeconfig"), &url, Some(authority), token);
        Kubectl::new("fleet", &path, file, &directory)
    }

    /// Returns the directory of the files.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Creates a directory for the files of a program.
    pub(crate) fn subdirectory(&self, name: &str) -> PathBuf {
        let number = self.started.fetch_add(1, Relaxed);
        let directory = self.directory().join(format!("{name}-{number}"));
        fs::create_dir(&directory).unwrap();
        directory
    }
}

/// Writes a file with a new secret of replicas.
pub(crate) fn write_secret(directory: &Path, name: &str) -> PathBuf {
    let file = directory.join(name);
    fs::write(&file, BASE64_STANDARD.encode(rand::random::<[u8; 32]>())).unwrap();
    file
}

/// Sends requests from four callers until `scenario` returns, and returns all responses.
///
/// The argument of `scenario` waits until twenty more requests have been answered.
pub(crate) fn run_under_load(
    request: impl Fn() -> HttpResponse + Sync,
    scenario: impl FnOnce(&dyn Fn()),
) -> Vec<HttpResponse> {
    /// Stops the callers even if `scenario` panics.
    struct StopGuard<'a>(&'a AtomicBool);
    impl Drop for StopGuard<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }

    let (done, completed) = (AtomicBool::new(false), AtomicUsize::new(0));
    let send_requests = || {
        let mut responses = Vec::new();
        while !done.load(Relaxed) {
            responses.push(request());
            completed.fetch_add(1, Relaxed);
        }
        responses
    };
    let wait_for_more = || {
        let before = completed.load(Relaxed);
        eventually("requests are answered", || completed.load(Relaxed) >= before + 20);
    };
    thread::scope(|scope| {
        let callers = [(); 4].map(|()| scope.spawn(send_requests));
        let end = StopGuard(&done);
        wait_for_more();
        scenario(&wait_for_more);
        drop(end);
        callers.map(|caller| caller.join().unwrap()).concat()
    })
}
