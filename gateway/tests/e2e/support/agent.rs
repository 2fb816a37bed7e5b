//! Starts agentk as a process.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::{HttpResponse, Kas, Process, curl::get, kas::command_in_network};

/// The options of agentk that tests set.
#[derive(Clone)]
pub(crate) struct AgentOptions {
    /// The address of kas, a `ws://` or `wss://` URL.
    pub(crate) kas: String,
    /// The file with the certificate authority of kas.
    pub(crate) kas_authority: Option<PathBuf>,
    /// The agent token.
    pub(crate) token: String,
    /// The kubeconfig of its cluster.
    pub(crate) kubeconfig: PathBuf,
    /// The URL of its Prometheus.
    pub(crate) prometheus: Option<String>,
    /// The URL of Hubble Relay.
    pub(crate) hubble: Option<String>,
    /// The policy file.
    pub(crate) policy: Option<PathBuf>,
    /// `--namespaces`.
    pub(crate) namespaces: Option<String>,
    /// `--require-scope`.
    pub(crate) require_scope: bool,
    /// The URL of the OTLP collector.
    pub(crate) collector: Option<String>,
    /// The namespace of agentk, where the inventories of GitOps are.
    pub(crate) pod_namespace: Option<String>,
    /// The number of tunnels.
    pub(crate) tunnels: usize,
    /// The shutdown grace period in seconds.
    pub(crate) grace: u32,
    /// The network namespace, or `None` for that of the machine.
    pub(crate) network: Option<String>,
    /// agentk speaks GitLab's protocol.
    pub(crate) gitlab_protocol: bool,
    /// Further variables of the environment.
    pub(crate) environment: Vec<(&'static str, String)>,
}

/// Returns whether kas and agentk speak GitLab's protocol in this run: `make e2e-gitlab`.
pub(super) fn has_gitlab_protocol() -> bool {
    std::env::var_os("E2E_PROTOCOL").is_some_and(|protocol| protocol == "gitlab")
}

/// Returns the tunnels that an agentk opens by default.
pub(crate) fn default_tunnels() -> f64 {
    if has_gitlab_protocol() { 1.0 } else { 2.0 }
}

/// A running agentk.
pub(crate) struct Agent {
    /// The process, for signals and logs.
    pub(crate) process: Process,
}

impl Agent {
    /// Starts agentk, with its token in a file in the directory.
    pub(crate) fn start(directory: &Path, options: &AgentOptions) -> Self {
        Self { process: Process::start("agentk", &mut Self::command(directory, options, &[])) }
    }

    /// Runs `agentk check` with the same options, to its end.
    pub(crate) fn check(directory: &Path, options: &AgentOptions) -> Output {
        Self::command(directory, options, &["check"]).output().unwrap()
    }

    fn command(directory: &Path, options: &AgentOptions, subcommand: &[&str]) -> Command {
        // That of this build, or of the version in `E2E_AGENTK`.
        let program = std::env::var_os("E2E_AGENTK").map(PathBuf::from);
        let program = program.unwrap_or_else(|| Kas::program().with_file_name("agentk"));
        assert!(
            program.is_file(),
            "there is no {}: run `cargo build --workspace --bins` first",
            program.display()
        );
        let token = directory.join("agent-token");
        fs::write(&token, &options.token).unwrap();
        let mut command = command_in_network(options.network.as_deref(), &program);
        command.args(subcommand);
        command.args(["--kas-address", &options.kas, "--tunnels", &options.tunnels.to_string()]);
        command.arg("--token-file").arg(token).arg("--kubeconfig").arg(&options.kubeconfig);
        command.args(["--observability-listen-address", "127.0.0.1:0", "--log-format", "text"]);
        command.args([
            "--log-level",
            "info,agent=debug,agentk_core=debug,agentk_gitlab=debug,agentk_gitops=debug,tunnel=debug",
        ]);
        if options.gitlab_protocol {
            command.args(["--protocol", "gitlab"]);
        }
        if let Some(authority) = &options.kas_authority {
            command.arg("--kas-ca-cert-file").arg(authority);
        }
        if let Some(prometheus) = &options.prometheus {
            command.args(["--prometheus-url", prometheus]);
        }
        if let Some(hubble) = &options.hubble {
            command.args(["--hubble-address", hubble]);
        }
        if let Some(policy) = &options.policy {
            command.arg("--policy-file").arg(policy);
        }
        if let Some(namespaces) = &options.namespaces {
            command.args(["--namespaces", namespaces]);
        }
        if let Some(namespace) = &options.pod_namespace {
            command.env("POD_NAMESPACE", namespace);
        }
        if options.require_scope {
            command.arg("--require-scope");
        }
        if let Some(collector) = &options.collector {
            command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector);
            command.arg("--otlp-token-file").arg(directory.join("collector-token"));
        }
        command.args(["--shutdown-grace-period", &format!("{}s", options.grace)]).env_remove("KUBECONFIG");
        command.envs(options.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Returns the response of `/readiness`.
    pub(crate) fn readiness(&self) -> HttpResponse {
        self.get("/readiness")
    }

    /// Requests a path of the observability listener.
    pub(crate) fn get(&self, path: &str) -> HttpResponse {
        let line = self.process.line("its address", |line| line.contains("serving /liveness"));
        let address = line.rsplit("address=").next().unwrap();
        get(address, path)
    }
}
