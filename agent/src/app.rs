//! The process: what the command line comes to, and in which order it starts and stops.

mod prometheus;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use cores::Cores;
use prometheus_client::registry::Registry;
use proto::{InstanceId, ServiceName};
use rustls::pki_types::ServerName;
use secrecy::SecretString;
use telemetry::{Exporter, Program};
use tokio::{
    net::TcpListener,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Agent, Options, Pod, Services, TcpDial, Telemetry, Token,
    admin::Admin,
    cli::{Run, TOKEN_VARIABLE},
    cluster::{Cluster, ClusterOptions},
    connect::Proxy,
    handlers::{kubernetes::Kubernetes, prometheus::discovery::Discovery},
    metrics::Metrics,
    policy::Guard,
    probe,
    session::AFTERMATH,
    traces,
    upstream::{Pem, TlsOptions},
};

pub(crate) use self::prometheus::servers as prometheus_servers;

/// How long the first tunnel waits for the cluster's version, which the hello names.
const VERSION_PATIENCE: Duration = Duration::from_secs(2);

/// An agentk that has what it needs. Nothing was dialled and nothing is bound yet.
pub struct App {
    agent: Agent<TcpDial>,
    kubernetes: Kubernetes,
    discovery: Option<Discovery>,
    telemetry: Telemetry,
    registry: Registry,
    guard: Option<Arc<Guard>>,
    exporter: Option<Exporter>,
    listen: SocketAddr,
    grace: Duration,
}

impl App {
    /// Reads every file that is named; it blocks. An error is one line that names the flag or the file.
    pub fn build(run: Run, token: Option<SecretString>, cores: Cores) -> anyhow::Result<Self> {
        let token = token_source(&run, token)?;
        let dial = dial(&run)?;
        let servers = prometheus_servers(&run)?;
        let traces = traces::settings(&run, &|name| std::env::var_os(name))?;
        let cluster = Cluster::load(&ClusterOptions { kubeconfig: run.kubeconfig, context: run.context })?;
        tracing::info!(%cluster, kas = %run.kas_address, "starting agentk {}", env!("CARGO_PKG_VERSION"));
        let kubernetes = Kubernetes::new(Arc::new(cluster));
        let mut services = Services::new().with(ServiceName::KUBERNETES, kubernetes.clone());
        for (service, prometheus) in servers {
            services = services.with(service.as_str(), prometheus);
        }
        let namespaces = run.prometheus_discovery;
        let discovery = namespaces.map(|namespaces| Discovery::new(kubernetes.clone(), namespaces));
        if let Some(discovery) = &discovery {
            services = services.with(ServiceName::PROMETHEUS, discovery.prometheus());
        }

        let mut registry = Registry::default();
        let telemetry = Telemetry { metrics: Metrics::register(&mut registry), ..Telemetry::default() };
        let guard = run.policy_file.map(|file| Guard::read(file, telemetry.metrics.clone())).transpose()?;
        let guard = guard.map(Arc::new);
        if let Some(guard) = &guard {
            services = services.guarded(guard);
        }

        let instance = InstanceId::random();
        let program =
            Program { name: "agentk", version: env!("CARGO_PKG_VERSION"), instance: instance.to_string() };
        let (tracer, exporter) = traces.map(|settings| settings.build(&program)).unzip();
        if let Some(exporter) = &exporter {
            exporter.metrics().register(&mut registry, "agentk");
        }

        // A variable that is empty is one that a manifest left out.
        let set = |text: &String| !text.is_empty();
        let stalls = telemetry.metrics.stalls.clone();
        let options = Options {
            tunnel: tunnel::Settings { stalls, ..tunnel::Settings::default() },
            instance,
            tracer,
            headers: run.kas_headers,
            tunnels: run.tunnels,
            cores,
            grace: run.shutdown_grace_period,
            pod: Pod { name: run.pod_name.filter(set), namespace: run.pod_namespace.filter(set) },
            ..Options::new(run.kas_address, token)
        };
        let agent = Agent::new(options, dial, services, telemetry.clone());
        let (listen, grace) = (run.observability_listen_address, run.shutdown_grace_period);

        Ok(Self { agent, kubernetes, discovery, telemetry, registry, guard, exporter, listen, grace })
    }

    /// Runs until `shutdown`, and then until what is in flight is finished or cut: at most the grace period and a second.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let listener = TcpListener::bind(self.listen).await;
        let listener = listener
            .with_context(|| format!("cannot listen on {} (--observability-listen-address)", self.listen))?;
        tracing::info!(address = %listener.local_addr()?, "serving /liveness, /readiness and /metrics");
        let health = Arc::clone(&self.telemetry.health);
        let admin = tokio::spawn(Admin::new(Arc::clone(&health), self.registry).run(listener));
        let probe = tokio::spawn(probe::run(self.kubernetes, self.telemetry));
        let discovery = self.discovery.map(|discovery| tokio::spawn(discovery.run()));
        let served = CancellationToken::new();
        let exporter = self.exporter.map(|exporter| tokio::spawn(exporter.run(served.clone())));
        let policy = self.guard.map(|guard| tokio::spawn(guard.follow()));

        // Late is no reason to wait: the version is for people's eyes.
        let _ = timeout(VERSION_PATIENCE, shutdown.run_until_cancelled(health.cluster_known())).await;
        let ((), end) = tokio::join!(self.agent.run(shutdown.clone()), async {
            shutdown.cancelled().await;
            health.stop();
            Instant::now() + self.grace + 2 * AFTERMATH
        });

        served.cancel();
        if let Some(exporter) = exporter
            && timeout_at(end, exporter).await.is_err()
        {
            tracing::warn!("the last spans were not sent: the time to stop is over");
        }
        if let Some(policy) = policy {
            policy.abort();
        }
        if let Some(discovery) = discovery {
            discovery.abort();
        }
        probe.abort();
        admin.abort();
        Ok(())
    }
}

pub(crate) fn token_source(run: &Run, variable: Option<SecretString>) -> anyhow::Result<Token> {
    let token = match (run.token_file.clone(), variable) {
        (Some(file), None) => Token::File(file),
        (None, Some(token)) => Token::Value(token),
        (Some(_), Some(_)) => anyhow::bail!(
            "there are two agent tokens, from --token-file and from {TOKEN_VARIABLE}: remove one of them"
        ),
        (None, None) => anyhow::bail!(
            "there is no agent token: name its file with --token-file, or put it into the environment variable \
             {TOKEN_VARIABLE}"
        ),
    };
    token.check()?;

    Ok(token)
}

pub(crate) fn dial(run: &Run) -> anyhow::Result<TcpDial> {
    let name = run.kas_tls_server_name.clone();
    let server_name = name.map(ServerName::try_from).transpose();
    let server_name = server_name.context("--kas-tls-server-name is neither a DNS name nor an IP address")?;
    let tls =
        TlsOptions { ca: run.kas_ca_cert_file.clone().map(Pem::File), server_name, ..TlsOptions::default() };

    let proxy = Proxy::of(&run.kas_address, &|name| std::env::var_os(name))?;
    if let Some(proxy) = &proxy {
        tracing::info!(%proxy, "kas is reached through a proxy");
    }
    let dial = TcpDial::new(run.kas_address.clone(), tls).context("--kas-ca-cert-file")?;

    Ok(dial.through(proxy))
}
