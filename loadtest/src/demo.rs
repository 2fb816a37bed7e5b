//! `loadtest demo`: kas, agentk and a cluster on this machine, and a first request through the tunnel.
//!
//! Runs the real programs with default limits. The cluster is the one of the current kubeconfig if it responds, or else
//! the [`testing::simulator`].

mod gitlab;
mod oidc;
mod repository;
mod smoke_test;

use std::{
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use agentk_core::{
    cluster::{Cluster, KubeconfigOptions},
    upstream::{Upstream, UpstreamConfig},
};
use anyhow::{Context as _, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use clap::ValueHint;
use http::{Request, header::AUTHORIZATION};
use serde_json::json;
use testing::simulator::Simulator;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tunnel::Body;

use self::{gitlab::DemoGitLab, oidc::DemoIssuer, smoke_test::SmokeTest};
use crate::{
    installation::stack::{
        AGENT, KasProcess, START, StackConfig, Tls, prepare_directory, process::ChildProcess, write_file,
    },
    load::target::read_token,
};

/// The flags of the demo.
#[derive(Clone, Debug, clap::Args)]
pub struct Demo {
    /// Check the responses and exit with the result instead of waiting for Ctrl-C
    #[arg(long)]
    smoke: bool,
    /// Use the simulated cluster even if the current kubeconfig names a real one
    #[arg(long)]
    simulate: bool,
    /// Prometheus server of the real cluster; the simulated cluster has its own
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    prometheus_url: Option<String>,
    /// Git repository with the configuration of the agent `demo`, a path or a URL; manifests of it need POD_NAMESPACE
    #[arg(long, value_name = "REPOSITORY", value_hint = ValueHint::DirPath)]
    configuration: Option<String>,
    /// Directory for the generated configuration, certificate and kubeconfig
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath, default_value = "target/demo")]
    directory: PathBuf,
}

/// The timeout after which a real cluster counts as absent.
const FIND_TIMEOUT: Duration = Duration::from_secs(5);

/// The programs of the demo, and their directory with the generated files.
struct RunningDemo {
    kas: KasProcess,
    agentk: ChildProcess,
    /// agentk with the token of an agent of GitLab.
    gitlab_agentk: ChildProcess,
    gitlab: DemoGitLab,
    /// The OpenID Provider, if it is built.
    issuer: Option<DemoIssuer>,
    directory: PathBuf,
    caller_token: String,
    /// True if agentk reaches a Prometheus server.
    prometheus: bool,
}

/// A real or a simulated cluster.
#[derive(Debug)]
enum DemoCluster {
    /// The cluster of the current kubeconfig, which agentk finds by the same rules.
    Real {
        what: String,
    },
    Simulated(Simulator),
}

impl Demo {
    /// Runs until `stop` is cancelled, or until the responses are checked.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let cluster =
            DemoCluster::find(self.simulate).await.context("the simulated cluster did not start")?;
        let result = tokio::select! {
            result = self.run_programs(&cluster, &stop) => result,
            () = stop.cancelled() => Ok(()),
        };
        cluster.stop().await;
        result
    }

    async fn run_programs(&self, cluster: &DemoCluster, stop: &CancellationToken) -> anyhow::Result<()> {
        let prometheus = self.prometheus_url.clone().or_else(|| cluster.prometheus_url());
        let configuration = self.configuration.as_deref();
        let demo = RunningDemo::start(&self.directory, cluster, prometheus.as_deref(), configuration).await?;
        let smoke_test = SmokeTest::new(&demo)?;
        let result = async {
            smoke_test.wait_for_agents(START).await?;
            if self.smoke {
                let failed = smoke_test.run().await;
                ensure!(failed == 0, "{failed} checks failed");
                return Ok(());
            }
            demo.print_next_steps(cluster, &smoke_test.first_answer().await?)?;
            stop.cancelled().await;
            Ok(())
        }
        .await;
        // agentk first, so that it can close its tunnels.
        let stopped = async {
            let agents = demo.agentk.stop().await.and(demo.gitlab_agentk.stop().await);
            agents.and(demo.kas.stop().await)
        }
        .await;
        result.and(stopped)
    }
}

impl RunningDemo {
    /// Writes new tokens and a new certificate, and starts kas and agentk.
    async fn start(
        directory: &Path,
        cluster: &DemoCluster,
        prometheus: Option<&str>,
        configuration: Option<&str>,
    ) -> anyhow::Result<Self> {
        let directory = prepare_directory(directory)?;
        let simulated = match (cluster, configuration) {
            (DemoCluster::Simulated(_), None) => Some(repository::create(&directory).await?),
            _ => None,
        };
        let simulated = simulated.as_deref().and_then(Path::to_str);
        let configuration = configuration.or(simulated);
        // kubectl sends no token over plain HTTP, so the demo needs TLS.
        let gitlab = DemoGitLab::start(&directory).await?;
        let issuer = DemoIssuer::start(&directory).await?;
        let setup = StackConfig {
            tls: Tls::Both,
            default_limits: true,
            sections: gitlab.section() + &issuer.as_ref().map(DemoIssuer::section).unwrap_or_default() + WEB,
            callers: issuer.as_ref().map(|_| DemoIssuer::caller()).unwrap_or_default(),
            configuration: configuration
                .map(|repository| json!({"poll_period": "1s", "repository": {"url": repository}})),
            audit: true,
            gitops: configuration.map(|_| json!({"min_interval": "1s", "poll_period": "1s"})),
            ..StackConfig::default()
        };
        let kas = KasProcess::start(&directory, &setup).await?;
        let caller_token = read_token(&directory.join("caller-token"))?;
        let certificate = std::fs::read_to_string(directory.join("kas.crt"))?;
        let kubeconfig = KUBECONFIG
            .replace("SERVER", &format!("https://{}/agents/{AGENT}/kubernetes", kas.public))
            .replace("AUTHORITY", &BASE64_STANDARD.encode(&certificate))
            .replace("TOKEN", &caller_token);
        write_file(&directory, "kubeconfig", &kubeconfig)?;
        gitlab.write_kubeconfig(&directory, &format!("https://{}/k8s-proxy/", kas.public), &certificate)?;
        if let Some(issuer) = &issuer {
            issuer.write_kubeconfig(&directory, &format!("https://{}", kas.public)).await?;
        }

        let mut arguments = vec!["--shutdown-grace-period", "2s"];
        arguments.extend(prometheus.into_iter().flat_map(|url| ["--prometheus-url", url]));
        arguments.extend(simulated.into_iter().flat_map(|_| ["--pod-namespace", repository::NAMESPACE]));
        let (token, kubeconfig) = (kas.agent_token(), cluster.kubeconfig());
        let agentk = kas.spawn_agentk("agentk", &setup, &token, kubeconfig.as_deref(), &arguments).await?;
        let token = &gitlab.agent_token;
        let gitlab_agentk =
            kas.spawn_agentk("agentk-gitlab", &setup, token, kubeconfig.as_deref(), &arguments).await?;
        let prometheus = prometheus.is_some();
        Ok(Self { kas, agentk, gitlab_agentk, gitlab, issuer, directory, caller_token, prometheus })
    }

    /// Prints the first response, and commands to try.
    fn print_next_steps(&self, cluster: &DemoCluster, first_answer: &str) -> std::io::Result<()> {
        let name = match cluster {
            DemoCluster::Real { what } => format!("your cluster ({what})"),
            DemoCluster::Simulated(_) => {
                "a SIMULATED cluster (there is no real one in your kubeconfig)".to_owned()
            }
        };
        let (public, token) = (self.kas.public, &self.caller_token);
        let directory = self.directory.join("");
        let directory = directory.display();
        let mut out = std::io::stdout().lock();
        write!(
            out,
            "\n\
             kas and agentk are running. agentk opened two tunnels to kas, and kas can now send requests\n\
             into {name}, which needs no inbound connection.\n\
             \n\
             The first request went through:\n  {first_answer}\n\
             \n\
             kubectl and helm:\n\
             \n  export KUBECONFIG={directory}kubeconfig\n  kubectl get pods -A\n",
        )?;
        if matches!(cluster, DemoCluster::Simulated(_)) {
            write!(
                out,
                "  kubectl -n demo logs -f deploy/web\n  kubectl -n demo exec -it deploy/web -- echo hello\n\
                 \x20 kubectl -n demo scale deploy/web --replicas=5 && kubectl -n demo get pods -w\n"
            )?;
        }
        if let Some(web) = self.kas.web {
            write!(
                out,
                "\n\
                 The web page; log in with the token {token}\n\
                 \n  http://localhost:{}\n",
                web.port()
            )?;
            if matches!(cluster, DemoCluster::Simulated(_)) {
                write!(
                    out,
                    "\n\
                     It shows a rollout every minute, a crash loop, a certificate that expires after 3 minutes, and under\n\
                     {AGENT}, Changes an object that differs from the repository {directory}agents.\n"
                )?;
            }
        }
        write!(
            out,
            "\n\
             curl:\n\
             \n  curl --cacert {directory}kas.crt -H 'Authorization: Bearer {token}' \\\n    \
             https://{public}/agents/{AGENT}/kubernetes/version\n"
        )?;
        if self.prometheus {
            write!(
                out,
                "  curl --cacert {directory}kas.crt -H 'Authorization: Bearer {token}' \\\n    \
                 'https://{public}/agents/{AGENT}/prometheus/api/v1/query?query=up'\n\
                 \n\
                 Grafana: add a Prometheus data source with\n\
                 \n  URL       https://{public}/agents/{AGENT}/prometheus\n  Basic auth, user 'you', password {token}\n  \
                 CA cert   {directory}kas.crt\n"
            )?;
        } else {
            write!(
                out,
                "\n\
                 PromQL: run again with `target/debug/loadtest demo --prometheus-url http://…` to reach a Prometheus server.\n"
            )?;
        }
        write!(
            out,
            "\n\
             A CI job of GitLab (a stand-in), with the kubeconfig that GitLab writes for it:\n\
             \n  kubectl --kubeconfig {directory}ci.kubeconfig --context {} get pods -A\n",
            gitlab::CONTEXT
        )?;
        match (&self.issuer, oidc::programs()) {
            (Some(_), Ok(programs)) => write!(
                out,
                "\n\
                 A person who logs in with OIDC (user {}, password {}); kubectl runs `kas login`:\n\
                 \n  PATH={}:$PATH kubectl --kubeconfig {directory}oidc.kubeconfig get pods -A\n",
                oidc::USER,
                oidc::PASSWORD,
                programs.display()
            )?,
            _ => writeln!(
                out,
                "\nOIDC login: skipped, since target/{} is not built (make tools).",
                oidc::PROGRAM
            )?,
        }
        write!(out, "\nConfiguration, identity and logs are in {directory}. Ctrl-C stops everything.\n")?;
        out.flush()
    }
}

impl DemoCluster {
    async fn find(simulate: bool) -> std::io::Result<Self> {
        if !simulate && let Some(what) = real().await {
            return Ok(Self::Real { what });
        }

        let simulator = Simulator::start(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        simulator.spawn_activity()?;
        Ok(Self::Simulated(simulator))
    }

    fn prometheus_url(&self) -> Option<String> {
        match self {
            Self::Real { .. } => None,
            Self::Simulated(simulator) => Some(simulator.prometheus_url()),
        }
    }

    /// Returns the kubeconfig for agentk, if it does not find the cluster itself.
    fn kubeconfig(&self) -> Option<String> {
        match self {
            Self::Real { .. } => None,
            Self::Simulated(simulator) => Some(simulator.kubeconfig()),
        }
    }

    async fn stop(self) {
        if let Self::Simulated(simulator) = self {
            simulator.shutdown().await;
        }
    }
}

/// Returns the description of the cluster of the current kubeconfig, if it responds.
async fn real() -> Option<String> {
    let cluster = Cluster::load(&KubeconfigOptions::default()).ok()?;
    let settings = UpstreamConfig { tls: cluster.tls(), ..UpstreamConfig::default() };
    let api = Upstream::new(cluster.url(), settings);
    let answered = timeout(FIND_TIMEOUT, async {
        let mut request = Request::get("/version").body(Body::empty()).ok()?;
        if let Some(value) = cluster.authorization().await.ok()? {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        api.send(request).await.ok().filter(|answer| answer.status().is_success())
    });
    answered.await.ok()??;
    Some(cluster.to_string())
}

/// The section of the configuration for the web page, which needs no TLS on loopback.
const WEB: &str = "web: {listen: {address: 127.0.0.1:0}}\n";

/// The kubeconfig for kubectl and helm.
const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
clusters: [{name: kas-demo, cluster: {server: \"SERVER\", certificate-authority-data: AUTHORITY}}]
users: [{name: you, user: {token: \"TOKEN\"}}]
contexts: [{name: kas-demo, context: {cluster: kas-demo, user: you}}]
current-context: kas-demo
";
