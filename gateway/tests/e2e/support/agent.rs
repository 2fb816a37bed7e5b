//! agentk, as its users start it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{Kas, Process, curl, kas::in_network};

/// What differs between the tests.
#[derive(Clone)]
pub(crate) struct AgentOptions {
    /// `ws://` or `wss://`.
    pub(crate) kas: String,
    /// Whom to believe that it is kas.
    pub(crate) kas_authority: Option<PathBuf>,
    /// How it proves who it is.
    pub(crate) token: String,
    /// Its cluster.
    pub(crate) kubeconfig: PathBuf,
    /// Its Prometheus.
    pub(crate) prometheus: Option<String>,
    /// What its cluster's owner lets through, in a file.
    pub(crate) policy: Option<PathBuf>,
    /// Where traces go.
    pub(crate) collector: Option<String>,
    /// How many at a time.
    pub(crate) tunnels: usize,
    /// How long requests in flight may take after SIGTERM, in seconds.
    pub(crate) grace: u32,
    /// The namespace of its network, if not the machine's.
    pub(crate) network: Option<String>,
}

/// A running agentk.
pub(crate) struct Agent {
    /// For signals and logs.
    pub(crate) process: Process,
}

impl Agent {
    /// Starts one; its token is kept in a file in the directory.
    pub(crate) fn start(directory: &Path, options: &AgentOptions) -> Self {
        let program = Kas::program().with_file_name("agentk");
        assert!(
            program.is_file(),
            "there is no {}: run `cargo build --workspace --bins` first",
            program.display()
        );
        let token = directory.join("agent-token");
        fs::write(&token, &options.token).unwrap();
        let mut command = in_network(options.network.as_deref(), &program);
        command.args(["--kas-address", &options.kas, "--tunnels", &options.tunnels.to_string()]);
        command.arg("--token-file").arg(token).arg("--kubeconfig").arg(&options.kubeconfig);
        command.args(["--observability-listen-address", "127.0.0.1:0", "--log-format", "text"]);
        command.args(["--log-level", "info,agent=debug,tunnel=debug"]);
        if let Some(authority) = &options.kas_authority {
            command.arg("--kas-ca-cert-file").arg(authority);
        }
        if let Some(prometheus) = &options.prometheus {
            command.args(["--prometheus-url", prometheus]);
        }
        if let Some(policy) = &options.policy {
            command.arg("--policy-file").arg(policy);
        }
        if let Some(collector) = &options.collector {
            command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector);
            command.arg("--otlp-token-file").arg(directory.join("collector-token"));
        }
        command.args(["--shutdown-grace-period", &format!("{}s", options.grace)]).env_remove("KUBECONFIG");
        Self { process: Process::start("agentk", &mut command) }
    }

    /// What `/readiness` says.
    pub(crate) fn readiness(&self) -> u16 {
        let line = self.process.line("its address", |line| line.contains("serving /liveness"));
        let address = line.rsplit("address=").next().unwrap();
        curl(&[&format!("http://{address}/readiness")]).status
    }
}
