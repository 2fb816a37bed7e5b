//! `agentk check`: tries the connections to kas, to the cluster, to Prometheus and to Hubble step by step, and prints a remedy for the step
//! that fails.

mod alerts;
mod gitlab;
mod gitops;
mod listen;

use std::{
    collections::BTreeMap,
    fmt::Display,
    io::{self, Write},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use gitops_engine::KubeCluster;
use http::Request;
use parking_lot::Mutex;
use proto::{Hello, InstanceId, SUBPROTOCOL, ScopeSummary, ServiceName};
use secrecy::SecretString;
use tunnel::{Body, CloseReason, TunnelConfig};

use self::alerts::check_hubble;
use crate::{
    AgentMetrics, AgentToken, DialError, KasAddress, ListenTls, ServiceError,
    app::{KasConnection, agent_token, check_scope, prometheus_services, tracer_config},
    audit_webhook::audit_listener,
    cli::RunOptions,
    cluster::{Cluster, KubeconfigOptions},
    connect::{self, KasHeader, KasTarget, PendingConnection, ProtocolChoice},
    features::{alert_sources, policy_services},
    policy::{PolicyEnforcer, PolicyMode},
    services::{
        KubernetesService, PrometheusService,
        alerts::AlertSources,
        gitops::{GitopsMetrics, cluster_client},
        kube_client::Restrictions,
        prometheus::discovery::Discovery,
    },
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

/// The subjects of a check. It has no connection yet.
pub struct CheckCommand {
    kas: KasConnection,
    protocol: ProtocolChoice,
    token: AgentToken,
    headers: Vec<KasHeader>,
    kubernetes: KubernetesService,
    prometheus: BTreeMap<ServiceName, PrometheusService>,
    discovery: Option<Discovery>,
    /// The cluster for GitOps and the namespace of agentk, unless agentk applies no manifests.
    gitops: Option<(KubeCluster, String)>,
    /// The address and the certificates for the audit events of the API server.
    audit: Option<(SocketAddr, ListenTls)>,
    alerts: Option<AlertSources>,
    policy: Option<PolicyEnforcer>,
    scope: ScopeSummary,
    require_scope: bool,
}

/// The error of one step, and a remedy.
struct StepError {
    step: &'static str,
    error: String,
    hint: &'static str,
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
        let alerts = alert_sources(&options)?;
        let audit = audit_listener(&options.audit)?;
        let kubeconfig =
            KubeconfigOptions { file: options.kubeconfig.clone(), context: options.context.clone() };
        let cluster = Cluster::load(&kubeconfig)?;
        let served = policy_services(&options, &prometheus);
        let policy =
            options.policy_file.map(|file| PolicyEnforcer::load(file, served, AgentMetrics::default()));

        let kubernetes = KubernetesService::new(Arc::new(cluster));
        let namespaces = options.prometheus_discovery;
        let namespace = options.pod_namespace.filter(|name| !name.is_empty());
        let gitops = (!options.no_gitops).then(|| {
            let metrics = GitopsMetrics::default();
            let cluster = cluster_client(kubernetes.clone(), &Restrictions::default(), metrics);
            (cluster, namespace.unwrap_or_else(|| "default".to_owned()))
        });
        Ok(Self {
            kas,
            protocol: options.protocol,
            token,
            headers: options.kas_headers,
            discovery: namespaces.map(|namespaces| Discovery::new(kubernetes.clone(), namespaces)),
            kubernetes,
            gitops,
            prometheus,
            audit,
            alerts,
            policy: policy.transpose()?,
            scope: ScopeSummary::new(options.namespaces.as_ref()),
            require_scope: options.require_scope,
        })
    }

    /// Writes a line for each step. Returns true if none failed.
    pub async fn run(&self, out: &mut impl Write) -> io::Result<bool> {
        let mut report = CheckReport {
            out,
            subject: "kas".to_owned(),
            ok: true,
            missing_roles: String::new(),
            written: Ok(()),
        };
        let result = self.check_kas(&mut report).await;
        report.end(result);
        report.subject = "cluster".to_owned();
        let result = self.check_cluster(&mut report).await;
        let answers = result.is_ok();
        report.end(result);
        if let Some((cluster, namespace)) = self.gitops.as_ref().filter(|_| answers) {
            report.subject = "gitops".to_owned();
            let result = check_gitops(cluster, namespace, &mut report).await;
            report.end(result);
        }
        for (service, prometheus) in &self.prometheus {
            report.subject = service.to_string();
            let result = query(prometheus, CONFIGURED_HINT, &mut report).await;
            report.end(result);
        }
        if let Some(discovery) = &self.discovery {
            report.subject = ServiceName::PROMETHEUS.to_owned();
            let result = discover(discovery, &mut report).await;
            report.end(result);
        }
        if let Some((address, tls)) = &self.audit {
            report.subject = "audit".to_owned();
            let files: Vec<_> = tls.files().iter().map(|file| file.display().to_string()).collect();
            let what = format!(
                "the API server posts events to {address}, path /audit, with a client certificate of the authority; the certificate \
                 matches its key; read {}",
                files.join(", ")
            );
            report.ok("--audit-listen", what);
        }
        if let Some(sources) = &self.alerts {
            report.subject = ServiceName::ALERTS.to_owned();
            let result = self.check_events(sources, answers, &mut report).await;
            report.end(result);
            let result = check_hubble(sources, &mut report).await;
            report.end(result);
        }

        if let Some(policy) = &self.policy {
            report.subject = "policy".to_owned();
            let (file, (mode, rules)) = (policy.file().display(), policy.summary());
            let effect = match mode {
                PolicyMode::Enforce => "enforced",
                PolicyMode::DryRun => "dry-run, refuses nothing",
            };
            report.ok("file", format!("{file} is valid; {effect}; {rules} rules"));
            for warning in policy.warnings() {
                report.line("rules", "warning", warning);
            }
        }

        if self.require_scope {
            report.subject = "scope".to_owned();
            let effect = "agentk refuses requests until kas has sent a scope; this check receives none, /readiness shows it";
            report.ok("--require-scope", effect);
        }

        report.roles();
        report.written.map(|()| report.ok)
    }

    async fn check_kas(&self, report: &mut CheckReport<impl Write>) -> Result<(), StepError> {
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
            Ok(PendingConnection::GitLab(stream)) => return self.check_gitlab(kas, stream, report).await,
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

    async fn check_cluster(&self, report: &mut CheckReport<impl Write>) -> Result<(), StepError> {
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

const REVIEW_HINT: &str = "agentk's user needs the role system:basic-user, which all users have by default";

async fn discover(discovery: &Discovery, report: &mut CheckReport<impl Write>) -> Result<(), StepError> {
    let hint = "docs/prometheus.md describes the rights that --prometheus-discovery needs, and the Service that it selects";
    let found = discovery.check().await.map_err(failed("discovery", hint))?;
    report.ok("discovery", found);
    query(&discovery.service(), DISCOVERED_HINT, report).await
}

/// Looks at the rights for the projects that were synced before. Others are not known without kas.
async fn check_gitops(
    cluster: &KubeCluster,
    namespace: &str,
    report: &mut CheckReport<impl Write>,
) -> Result<(), StepError> {
    let own = gitops::own_rights(cluster, namespace).await.map_err(failed("rights", REVIEW_HINT))?;
    if !own.is_empty() {
        let what = format!(
            "agentk may not {}, so that it applies no manifests from Git: set gitops.enabled of the chart, or start agentk with --no-gitops",
            own.describe()
        );
        report.line("rights", "warning", what);
        return Ok(());
    }
    report.ok("rights", format!("agentk may write its inventories and its Lease in {namespace}"));
    let hint = "the inventories of projects are ConfigMaps in the namespace of agentk";
    let projects = gitops::stored_projects(cluster, namespace).await.map_err(failed("projects", hint))?;
    for project in projects {
        let missing = project.rights(cluster).await.map_err(failed("projects", RUN_AS_HINT))?;
        if missing.is_empty() {
            report.ok(&project.id, project.describe());
            continue;
        }
        report.ok = false;
        let what = format!("{} may not {}", project.user(), missing.describe());
        report.line(&project.id, "FAILED", what);
        report.missing_roles += &missing.roles();
    }
    Ok(())
}

const RUN_AS_HINT: &str =
    "agentk needs the right to impersonate the service accounts of run_as: see docs/gitops.md";

const CONFIGURED_HINT: &str =
    "check --prometheus-url, its path included, and that agentk can reach Prometheus";
const DISCOVERED_HINT: &str = "agentk must run in the cluster, and network policies must allow the connection; otherwise, name \
                               the server with --prometheus-url";

async fn query(
    prometheus: &PrometheusService,
    hint: &'static str,
    report: &mut CheckReport<impl Write>,
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

/// Returns a function that turns an error into that of a step.
fn failed<E: Display>(step: &'static str, hint: &'static str) -> impl FnOnce(E) -> StepError {
    move |error| StepError { step, error: error.to_string(), hint }
}

/// The lines that are written.
struct CheckReport<W> {
    out: W,
    /// The subject of the next steps: kas, the cluster, a service, or the policy.
    subject: String,
    /// True until a step fails.
    ok: bool,
    /// Roles that are printed at the end.
    missing_roles: String,
    written: io::Result<()>,
}

impl<W: Write> CheckReport<W> {
    fn ok(&mut self, step: &str, what: impl Display) {
        self.line(step, "ok", what);
    }

    /// Ends the steps of a subject, whose first error is its last step.
    fn end(&mut self, result: Result<(), StepError>) {
        if let Err(StepError { step, error, hint }) = result {
            self.ok = false;
            self.line(step, "FAILED", format_args!("{error}: {hint}"));
        }
    }

    /// Writes the Roles that are missing.
    fn roles(&mut self) {
        if self.missing_roles.is_empty() {
            return;
        }
        let head = "\nThese roles are missing. Bind them to the service account that is named above:";
        let written = writeln!(self.out, "{head}\n{}", self.missing_roles);
        if self.written.is_ok() {
            self.written = written;
        }
    }

    fn line(&mut self, step: &str, result: &str, what: impl Display) {
        let name = format!("{}: {step}", self.subject);
        let written = writeln!(self.out, "{name:<24} {result:<7} {what}").and_then(|()| self.out.flush());
        if self.written.is_ok() {
            self.written = written;
        }
    }
}
