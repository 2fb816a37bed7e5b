//! `agentk check`: tries the connections to kas, to the cluster, to Prometheus and those of features step by step, and prints a remedy for
//! the step that fails.

mod listen;

use std::{
    collections::BTreeMap,
    io::{self, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use agentk_core::{
    AgentMetrics, AgentToken, DialError, KasAddress, ServiceError,
    check_report::{CheckReport, REVIEW_HINT, StepError, failed},
    cluster::{Cluster, KubeconfigOptions},
    connect::{self, KasHeader, KasTarget, PendingConnection, ProtocolChoice},
    feature::{CheckContext, FeatureCheck},
    policy::PolicyEnforcer,
    services::{KubernetesService, PrometheusService, prometheus::discovery::Discovery},
};
use agentk_policy::PolicyMode;
use http::Request;
use parking_lot::Mutex;
use proto::{Hello, InstanceId, SUBPROTOCOL, ScopeSummary, ServiceName};
use secrecy::SecretString;
use tunnel::{Body, CloseReason, TunnelConfig};

use crate::{
    app::{KasConnection, agent_token, check_scope, policy_services, prometheus_services, tracer_config},
    cli::RunOptions,
    features::feature_checks,
};

/// The time limit of steps that take one round trip: to drain the tunnel, and a query.
const ROUND_TRIP_TIMEOUT: Duration = Duration::from_secs(10);

const TOKEN_HINT: &str =
    "create a token with `kas token new agent`, and put its hash into the identity file of kas";

/// The permissions that callers usually need: a verb, an API group, a resource.
const USUAL_PERMISSIONS: [(&str, &str, &str); 10] = [
    ("list", "", "pods"),
    ("watch", "", "pods"),
    ("get", "", "pods/log"),
    ("create", "", "pods/exec"),
    ("create", "", "pods/portforward"),
    ("delete", "", "pods"),
    ("list", "apps", "deployments"),
    ("patch", "apps", "deployments"),
    ("list", "", "secrets"),
    ("list", "", "nodes"),
];
/// The key stands for those of jobs and users of GitLab. RBAC needs each by its name.
const IMPERSONATION: [(&str, &str, &str); 3] = [
    ("impersonate", "", "users"),
    ("impersonate", "", "groups"),
    ("impersonate", "authentication.k8s.io", "userextras/agent.gitlab.com/id"),
];

const LABELS_HINT: &str = "rules with a namespaceSelector allow nothing, and deny whatever they may; grant list of namespaces \
                           (rbac.namespaceLabels of the chart)";

/// The subjects of a check. It has no connection yet.
pub struct CheckCommand {
    kas: KasConnection,
    protocol: ProtocolChoice,
    token: AgentToken,
    headers: Vec<KasHeader>,
    kubernetes: KubernetesService,
    prometheus: BTreeMap<ServiceName, PrometheusService>,
    discovery: Option<Discovery>,
    features: Vec<Box<dyn FeatureCheck>>,
    policy: Option<PolicyEnforcer>,
    scope: ScopeSummary,
    require_scope: bool,
}

impl CheckCommand {
    /// Builds a check of these options. It reads every file that is named, which blocks. The errors are those of running
    /// agentk.
    pub fn build(options: RunOptions, token: Option<SecretString>) -> anyhow::Result<Self> {
        check_scope(&options)?;
        let token = agent_token(&options, token)?;
        let kas = KasConnection::new(&options)?;
        let prometheus = prometheus_services(&options)?;
        tracer_config(&options, &|name| std::env::var_os(name))?;
        let kubeconfig =
            KubeconfigOptions { file: options.kubeconfig.clone(), context: options.context.clone() };
        let cluster = Cluster::load(&kubeconfig)?;
        let served = policy_services(&options, &prometheus);
        let kubernetes = KubernetesService::new(Arc::new(cluster));
        let namespace = options.pod_namespace.clone().filter(|name| !name.is_empty());
        let context = CheckContext {
            kubernetes: kubernetes.clone(),
            namespace: namespace.unwrap_or_else(|| "default".to_owned()),
            scope: options.namespaces.as_ref().map(|scope| scope.namespaces.clone()),
        };
        // In this order, so that the first error is that of running agentk.
        let policy = options.policy_file.clone();
        let policy =
            policy.map(|file| PolicyEnforcer::load(file, served, AgentMetrics::default())).transpose()?;
        let features = feature_checks(&options.feature_options(), &context)?;
        let namespaces = options.prometheus_discovery;
        Ok(Self {
            kas,
            protocol: options.protocol,
            token,
            headers: options.kas_headers,
            discovery: namespaces.map(|namespaces| Discovery::new(kubernetes.clone(), namespaces)),
            kubernetes,
            features,
            prometheus,
            policy,
            scope: ScopeSummary::new(options.namespaces.as_ref()),
            require_scope: options.require_scope,
        })
    }

    /// Writes a line for each step. Returns true if none failed.
    pub async fn run(&self, out: &mut impl Write) -> io::Result<bool> {
        let mut report = CheckReport::new(out);
        report.set_subject("kas");
        let result = self.check_kas(&mut report).await;
        report.end(result);
        report.set_subject("cluster");
        let result = self.check_cluster(&mut report).await;
        let answers = result.is_ok();
        report.end(result);
        for (service, prometheus) in &self.prometheus {
            report.set_subject(service.as_str());
            let result = query(prometheus, CONFIGURED_HINT, &mut report).await;
            report.end(result);
        }
        if let Some(discovery) = &self.discovery {
            report.set_subject(ServiceName::PROMETHEUS);
            let result = discover(discovery, &mut report).await;
            report.end(result);
        }
        for feature in &self.features {
            feature.run(answers, &mut report).await;
        }

        if let Some(policy) = &self.policy {
            report.set_subject("policy");
            let (file, (mode, rules)) = (policy.file().display(), policy.summary());
            let effect = match mode {
                PolicyMode::Enforce => "enforced",
                PolicyMode::DryRun => "dry-run, refuses nothing",
            };
            report.ok("file", format!("{file} is valid; {effect}; {rules} rules"));
            for warning in policy.warnings() {
                report.warning("rules", warning);
            }
            if answers && policy.needs_labels() {
                let result = self.check_labels(&mut report).await;
                report.end(result);
            }
        }

        if self.require_scope {
            report.set_subject("scope");
            let effect = "agentk refuses requests until kas has sent a scope; this check receives none, /readiness shows it";
            report.ok("--require-scope", effect);
        }

        report.finish()
    }

    /// Checks the right without which no rule with a `namespaceSelector` allows anything.
    async fn check_labels(&self, report: &mut CheckReport<'_>) -> Result<(), StepError> {
        const STEP: &str = "namespaceSelector";
        if self.kubernetes.may("list", "", "namespaces").await.map_err(failed(STEP, REVIEW_HINT))? {
            report.ok(STEP, "agentk may read the labels of namespaces");
            return Ok(());
        }
        Err(failed(STEP, LABELS_HINT)("agentk may not list namespaces, so that their labels are not known"))
    }

    async fn check_kas(&self, report: &mut CheckReport<'_>) -> Result<(), StepError> {
        let (kas, tcp_dialer) = match &self.kas {
            KasConnection::Dials(kas, dialer) => (kas, dialer),
            KasConnection::Listens(config) => return self.check_listener(config, report).await,
        };
        let addresses = tcp_dialer.resolve().await.map_err(failed(
            "DNS",
            "check the host of --kas-address (or of the proxy), and that this machine or pod can reach its DNS server",
        ))?;
        let addresses: Vec<_> = addresses.iter().map(|address| address.ip().to_string()).collect();
        report.ok("DNS", format!("{} is {}", tcp_dialer.first_hop().host(), addresses.join(", ")));

        let hint = match tcp_dialer.proxy() {
            Some(_) => {
                "check the URL of the proxy and that it lets agentk connect to kas, or exempt kas with NO_PROXY"
            }
            None => {
                "check the port of --kas-address, and that firewalls and NetworkPolicies allow the connection; if only a \
                 proxy may connect, set HTTPS_PROXY"
            }
        };
        let tcp = tcp_dialer.tcp().await.map_err(failed("TCP", hint))?;
        let peer = tcp.peer_addr().map_or_else(|error| error.to_string(), |address| address.to_string());
        match tcp_dialer.proxy() {
            Some(proxy) => {
                report.ok("TCP", format!("connected to {peer}, and through the proxy {proxy} to kas"))
            }
            None => report.ok("TCP", format!("connected to {peer}")),
        }

        let stream = tcp_dialer.handshake(tcp).await.map_err(failed(
            "TLS",
            "name kas's certificate authority with --kas-ca-cert-file, or the name in its certificate with \
             --kas-tls-server-name",
        ))?;
        let plain = if kas.is_grpc() { "not used (grpc://)" } else { "not used (ws://)" };
        report.ok("TLS", if kas.is_secure() { "the certificate is trusted" } else { plain });

        let hello = Hello {
            instance: InstanceId::random(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pod_name: None,
            pod_namespace: None,
            kubernetes_version: None,
            cluster: self.kubernetes.cluster_uid().await,
            scope: Some(self.scope.clone()),
            // None, so that kas sends no request of a caller.
            services: Vec::new(),
            tunnel_index: 0,
        };
        let stream = Mutex::new(Some(stream));
        let dialer = move || {
            let stream = stream.lock().take();
            async { Ok(stream.expect("opened once")) }
        };
        let opened = match connect::open(&dialer, self.target(kas), &hello).await {
            Ok(PendingConnection::Tunnel(opened)) => opened,
            Ok(PendingConnection::GitLab(stream)) => {
                return agentk_gitlab::check(self.target(kas), stream, report).await;
            }
            Err(error @ (DialError::Unauthorized { .. } | DialError::Token(_))) => {
                report.ok("upgrade", "a server answers, and requires an agent token");
                return Err(failed("authentication", TOKEN_HINT)(error));
            }
            Err(error @ DialError::GitLabKas { .. }) => {
                return Err(failed(
                    "upgrade",
                    "the option chooses a protocol that GitLab's kas does not have",
                )(error));
            }
            Err(error) => {
                let hint = "--kas-address must be kas's address for agents, and proxies in front of it must allow \
                            WebSocket upgrades";
                return Err(failed("upgrade", hint)(error));
            }
        };
        report.ok("upgrade", format!("kas accepts WebSockets here; the protocol is {SUBPROTOCOL}"));
        report.ok(
            "authentication",
            format!("{} is accepted by replica {}", self.token, opened.welcome.replica),
        );

        let started = Instant::now();
        let hint = "a proxy between agentk and kas does not forward bytes after a WebSocket upgrade";
        let (session, drain, _) = opened.accept(&TunnelConfig::default());
        drain.drain(ROUND_TRIP_TIMEOUT);
        match session.run(drop).await {
            CloseReason::Graceful => {
                report.ok("tunnel", format!("opened and drained in {} ms", started.elapsed().as_millis()));
                Ok(())
            }
            ended => Err(failed("tunnel", hint)(ended)),
        }
    }

    fn target<'a>(&'a self, kas: &'a KasAddress) -> KasTarget<'a> {
        KasTarget { kas, protocol: self.protocol, token: &self.token, headers: &self.headers }
    }

    async fn check_cluster(&self, report: &mut CheckReport<'_>) -> Result<(), StepError> {
        let hint = "check --kubeconfig and --context, or this pod's service account, and that agentk can reach the API \
                    server";
        let version = self.kubernetes.version().await.map_err(failed("API server", hint))?;
        let version = version.unwrap_or_else(|| "an unknown version".to_owned());
        report.ok("API server", format!("{version} at {}", self.kubernetes.describe()));

        let usual = self.may(&USUAL_PERMISSIONS).await.map_err(failed("permissions", REVIEW_HINT))?;
        report.ok("permissions", usual);
        let impersonate = self.may(&IMPERSONATION).await.map_err(failed("impersonation", REVIEW_HINT))?;
        report.ok("impersonation", impersonate);
        Ok(())
    }

    /// Returns a description of the permissions that agentk has and lacks. Neither is an error, since it depends on the callers.
    async fn may(&self, wanted: &[(&str, &str, &str)]) -> Result<String, ServiceError> {
        let (mut may, mut may_not) = (Vec::new(), Vec::new());
        for (verb, group, resource) in wanted {
            let allowed = self.kubernetes.may(verb, group, resource).await?;
            let list = if allowed { &mut may } else { &mut may_not };
            list.push(format!("{verb} {resource}"));
        }
        let listed = [("agentk may", may), ("agentk may not", may_not)];
        let listed = listed.into_iter().filter(|(_, list)| !list.is_empty());
        let listed: Vec<_> = listed.map(|(what, list)| format!("{what} {}", list.join(", "))).collect();

        Ok(format!("in all namespaces, {}", listed.join("; ")))
    }
}

async fn discover(discovery: &Discovery, report: &mut CheckReport<'_>) -> Result<(), StepError> {
    let hint = "docs/prometheus.md describes the rights that --prometheus-discovery needs, and the Service that it selects";
    let found = discovery.check().await.map_err(failed("discovery", hint))?;
    report.ok("discovery", found);
    query(&discovery.service(), DISCOVERED_HINT, report).await
}

const CONFIGURED_HINT: &str =
    "check --prometheus-url, its path included, and that agentk can reach Prometheus";
const DISCOVERED_HINT: &str = "agentk must run in the cluster, and network policies must allow the connection; otherwise, name \
                               the server with --prometheus-url";

async fn query(
    prometheus: &PrometheusService,
    hint: &'static str,
    report: &mut CheckReport<'_>,
) -> Result<(), StepError> {
    let request = Request::get("/api/v1/query?query=1").body(Body::empty()).expect("constants");
    let answered = tokio::time::timeout(ROUND_TRIP_TIMEOUT, prometheus.send(request)).await;
    let response = answered
        .map_err(|_| failed("query", hint)(format!("no answer within {ROUND_TRIP_TIMEOUT:?}")))?
        .map_err(failed("query", hint))?;
    match response.status() {
        status if status.is_success() => {
            report.ok("query", "Prometheus answers");
            Ok(())
        }
        status => Err(failed("query", hint)(format!("Prometheus answered {status}"))),
    }
}
