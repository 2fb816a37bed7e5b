//! `agentk check`: walks the way to kas and into the cluster, step by step, until something fails, and says what to do.

use std::{
    collections::BTreeMap,
    fmt::Display,
    io::{self, Write},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use http::Request;
use parking_lot::Mutex;
use proto::{Hello, InstanceId, ServiceName};
use secrecy::SecretString;
use tunnel::{Body, Ended, Settings};

use crate::{
    Address, DialError, Failure, TcpDial, Token,
    app::{dial, prometheus_servers, token_source},
    cli::Run,
    cluster::{Cluster, ClusterOptions},
    connect::{self, ExtraHeader},
    handlers::{
        kubernetes::Kubernetes,
        prometheus::{Prometheus, discovery::Discovery},
    },
    metrics::Metrics,
    policy::{Guard, Mode},
    traces,
};

/// For the tunnel to be left in good order, which takes a round trip.
const ROUND_TRIP: Duration = Duration::from_secs(10);

/// What callers usually need: a verb, an API group, a resource.
const USUAL: [(&str, &str, &str); 10] = [
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
const IMPERSONATE: [(&str, &str, &str); 2] = [("impersonate", "", "users"), ("impersonate", "", "groups")];

/// Everything that is checked. Nothing was dialled yet.
pub struct Check {
    kas: Address,
    token: Token,
    headers: Vec<ExtraHeader>,
    dial: TcpDial,
    kubernetes: Kubernetes,
    prometheus: BTreeMap<ServiceName, Prometheus>,
    discovery: Option<Discovery>,
    /// Its file, its mode and how many rules it has.
    policy: Option<(PathBuf, Mode, usize)>,
}

/// One step that failed, and what to do.
struct Failed {
    step: &'static str,
    what: String,
    hint: &'static str,
}

impl Check {
    /// Reads every file that is named, as running does; it blocks.
    pub fn build(run: Run, token: Option<SecretString>) -> anyhow::Result<Self> {
        let token = token_source(&run, token)?;
        let dial = dial(&run)?;
        let prometheus = prometheus_servers(&run)?;
        traces::settings(&run, &|name| std::env::var_os(name))?;
        let cluster = Cluster::load(&ClusterOptions { kubeconfig: run.kubeconfig, context: run.context })?;
        let policy = run.policy_file.map(|file| {
            let (mode, rules) = Guard::read(file.clone(), Metrics::default())?.summary();
            anyhow::Ok((file, mode, rules))
        });

        let kubernetes = Kubernetes::new(Arc::new(cluster));
        let namespaces = run.prometheus_discovery;
        Ok(Self {
            kas: run.kas_address,
            token,
            headers: run.kas_headers,
            dial,
            discovery: namespaces.map(|namespaces| Discovery::new(kubernetes.clone(), namespaces)),
            kubernetes,
            prometheus,
            policy: policy.transpose()?,
        })
    }

    /// Writes a line for each step. True if none failed.
    pub async fn run(&self, out: &mut impl Write) -> io::Result<bool> {
        let mut report = Report { out, chain: "kas".to_owned(), ok: true, written: Ok(()) };
        let walked = self.kas(&mut report).await;
        report.end(walked);
        report.chain = "cluster".to_owned();
        let walked = self.cluster(&mut report).await;
        report.end(walked);
        for (service, prometheus) in &self.prometheus {
            report.chain = service.to_string();
            let walked = query(prometheus, NAMED, &mut report).await;
            report.end(walked);
        }
        if let Some(discovery) = &self.discovery {
            report.chain = ServiceName::PROMETHEUS.to_owned();
            let walked = discover(discovery, &mut report).await;
            report.end(walked);
        }

        if let Some((file, mode, rules)) = &self.policy {
            report.chain = "policy".to_owned();
            let effect = match mode {
                Mode::Enforce => "enforced",
                Mode::DryRun => "dry-run, refuses nothing",
            };
            report.ok("file", format!("{} is valid; {effect}; {rules} rules", file.display()));
        }

        report.written.map(|()| report.ok)
    }

    async fn kas(&self, report: &mut Report<impl Write>) -> Result<(), Failed> {
        let addresses = self.dial.resolve().await.map_err(failed(
            "DNS",
            "check the host of --kas-address (or of the proxy), and that this machine or pod reaches its DNS server",
        ))?;
        let addresses: Vec<_> = addresses.iter().map(|address| address.ip().to_string()).collect();
        report.ok("DNS", format!("{} is {}", self.dial.first().host(), addresses.join(", ")));

        let tcp = self.dial.tcp().await.map_err(failed(
            "TCP",
            "check the port of --kas-address, and that firewalls and NetworkPolicies let agentk out; where only a \
             proxy is, set HTTPS_PROXY",
        ))?;
        let peer = tcp.peer_addr().map_or_else(|error| error.to_string(), |address| address.to_string());
        match self.dial.proxy() {
            Some(proxy) => {
                report.ok("TCP", format!("connected to {peer}, and through the proxy {proxy} to kas"))
            }
            None => report.ok("TCP", format!("connected to {peer}")),
        }

        let stream = self.dial.secure(tcp).await.map_err(failed(
            "TLS",
            "name kas's certificate authority with --kas-ca-cert-file, or the name in its certificate with \
             --kas-tls-server-name",
        ))?;
        report
            .ok("TLS", if self.kas.is_secure() { "the certificate is trusted" } else { "not used (ws://)" });

        let hello = Hello {
            instance: InstanceId::random(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pod_name: None,
            pod_namespace: None,
            kubernetes_version: None,
            // None: kas shall send no caller's request here.
            services: Vec::new(),
            tunnel_index: 0,
        };
        let stream = Mutex::new(Some(stream));
        let dial = move || {
            let stream = stream.lock().take();
            async { Ok(stream.expect("opened once")) }
        };
        let opened = match connect::open(&dial, &self.kas, &self.token, &self.headers, &hello).await {
            Ok(opened) => opened,
            Err(error @ (DialError::Unauthorized { .. } | DialError::Token(_))) => {
                report.ok("upgrade", "somebody answers who asks for an agent token");
                let hint = "`kas token new agent` makes a token, whose hash belongs into kas's identity file";
                return Err(failed("authentication", hint)(error));
            }
            Err(error) => {
                let hint = "--kas-address must be kas's address for agents, and what stands before it must let \
                            WebSocket upgrades through";
                return Err(failed("upgrade", hint)(error));
            }
        };
        report.ok("upgrade", "kas takes WebSockets here");
        report.ok(
            "authentication",
            format!("{} is accepted by replica {}", self.token, opened.welcome.replica),
        );

        let since = Instant::now();
        let hint = "something between agentk and kas does not pass on what follows a WebSocket upgrade";
        let (session, leave) = opened.accept(&Settings::default());
        leave.within(ROUND_TRIP);
        match session.run(drop).await {
            Ended::Gracefully => {
                report.ok("tunnel", format!("opened and left again in {} ms", since.elapsed().as_millis()));
                Ok(())
            }
            ended => Err(failed("tunnel", hint)(ended)),
        }
    }

    async fn cluster(&self, report: &mut Report<impl Write>) -> Result<(), Failed> {
        let hint = "check --kubeconfig and --context, or this pod's service account, and that agentk reaches the API \
                    server";
        let version = self.kubernetes.version().await.map_err(failed("API server", hint))?;
        let version = version.unwrap_or_else(|| "an unknown version".to_owned());
        report.ok("API server", format!("{version} at {}", self.kubernetes.describe()));

        let usual = self.may(&USUAL).await.map_err(failed("permissions", REVIEW))?;
        report.ok("permissions", usual);
        let impersonate = self.may(&IMPERSONATE).await.map_err(failed("impersonation", REVIEW))?;
        report.ok("impersonation", impersonate);
        Ok(())
    }

    /// What agentk itself may and may not do, in words. Neither is a failure: it depends on what callers need.
    async fn may(&self, wanted: &[(&str, &str, &str)]) -> Result<String, Failure> {
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

const REVIEW: &str =
    "agentk's user needs the role system:basic-user, which everybody has unless it was taken away";

async fn discover(discovery: &Discovery, report: &mut Report<impl Write>) -> Result<(), Failed> {
    let hint = "docs/prometheus.md says what --prometheus-discovery needs, and which Service it takes";
    let found = discovery.check().await.map_err(failed("discovery", hint))?;
    report.ok("discovery", found);
    query(&discovery.prometheus(), DISCOVERED, report).await
}

const NAMED: &str = "check --prometheus-url, its path included, and that agentk reaches Prometheus";
const DISCOVERED: &str = "agentk must run in the cluster and its network policies let it there; otherwise, name the \
                          server with --prometheus-url";

async fn query(
    prometheus: &Prometheus,
    hint: &'static str,
    report: &mut Report<impl Write>,
) -> Result<(), Failed> {
    let request = Request::get("/api/v1/query?query=1").body(Body::empty()).expect("constants");
    let answered = tokio::time::timeout(ROUND_TRIP, prometheus.send(request)).await;
    let response = answered
        .map_err(|_| failed("query", hint)(format!("no answer within {ROUND_TRIP:?}")))?
        .map_err(failed("query", hint))?;
    match response.status() {
        status if status.is_success() => {
            report.ok("query", "Prometheus answers");
            Ok(())
        }
        status => Err(failed("query", hint)(format!("Prometheus answered {status}"))),
    }
}

fn failed<E: Display>(step: &'static str, hint: &'static str) -> impl FnOnce(E) -> Failed {
    move |error| Failed { step, what: error.to_string(), hint }
}

/// The lines, as the steps go by.
struct Report<W> {
    out: W,
    chain: String,
    /// Whether none failed.
    ok: bool,
    written: io::Result<()>,
}

impl<W: Write> Report<W> {
    fn ok(&mut self, step: &str, what: impl Display) {
        self.line(step, "ok", what);
    }

    /// The end of a chain, which is its first step that fails.
    fn end(&mut self, walked: Result<(), Failed>) {
        if let Err(Failed { step, what, hint }) = walked {
            self.ok = false;
            self.line(step, "FAILED", format_args!("{what}: {hint}"));
        }
    }

    fn line(&mut self, step: &str, result: &str, what: impl Display) {
        let name = format!("{}: {step}", self.chain);
        let written = writeln!(self.out, "{name:<24} {result:<7} {what}").and_then(|()| self.out.flush());
        if self.written.is_ok() {
            self.written = written;
        }
    }
}
