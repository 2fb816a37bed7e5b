//! What the steps of a request cost, each timed alone, in this process and on one thread.
//!
//! The functions are those of kas and of agentk, with a request as kubectl sends it through an ingress and an answer as
//! an API server gives it. Nothing waits for anything, and everything is in the cache: what the steps cost together is
//! less than what a request costs.

use std::{
    hint::black_box,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use agent::policy::Guard;
use anyhow::Context as _;
use gateway::{
    access::authorize,
    forward::Destination,
    headers::{self, ForwardedFor, Peer, ProxyHeaders},
    identity::{AccessAs, Identities, Identity},
    metrics::Metrics,
    target::Target,
    timing::Stages,
    traces::RequestTrace,
};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Version, header::AUTHORIZATION};
use prometheus_client::registry::Registry;
use proto::{AgentId, ServiceName, TunnelId};
use router::{Choice, Class, LocalTunnels};
use serde::Serialize;

use super::summary::median;
use crate::{
    load::table::{Table, number},
    stack::{AGENT, IDENTITY, POLICY, hash, new_token, put},
};

/// What is above this needs a reason.
const LIMIT: f64 = 1000.0;
/// A batch is timed as a whole, and so small that its requests are in the cache, as they are when they were just read.
const CALLS: usize = 64;
const BATCHES: usize = 501;

/// One of them.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Step {
    program: &'static str,
    name: &'static str,
    nanoseconds: f64,
    /// Why it may cost more than a microsecond.
    reason: Option<&'static str>,
}

/// What all steps are about.
struct Scene {
    identities: Identities,
    metrics: Metrics,
    tunnels: Arc<LocalTunnels<()>>,
    request: Request<()>,
    /// The request between kas and agentk, and between agentk and the cluster.
    passed: Request<()>,
    /// The answer between the cluster and agentk, and between agentk and kas.
    answer: HeaderMap,
    passed_answer: HeaderMap,
    to: Destination,
    id: HeaderValue,
    policy: Guard,
}

/// Times every step; it computes for a second. Files are written to `directory`.
pub(super) fn measure(directory: &Path) -> anyhow::Result<Vec<Step>> {
    let scene = Scene::new(directory)?;
    let mut steps = scene.kas()?;
    steps.extend(scene.agentk());
    Ok(steps)
}

impl Scene {
    fn new(directory: &Path) -> anyhow::Result<Self> {
        let (agent, caller) = (new_token("agent"), new_token("caller"));
        let identity = IDENTITY.replace("AGENT_HASH", &hash(&agent)).replace("CALLER_HASH", &hash(&caller));
        let identity = Identity::parse(Path::new("identity.yaml"), &identity)?;

        let mut request = Request::get(format!("/agents/{AGENT}/kubernetes{PATH}")).body(())?;
        request.headers_mut().extend(fields(&REQUEST));
        request.headers_mut().insert(AUTHORIZATION, HeaderValue::try_from(format!("Bearer {caller}"))?);
        let mut passed = Request::get(PATH).body(())?;
        passed.headers_mut().extend(fields(&REQUEST));

        std::fs::create_dir_all(directory)?;
        put(directory, "policy.yaml", POLICY)?;
        let policy = Guard::read(directory.join("policy.yaml"), agent::metrics::Metrics::default())?;
        let to = Destination {
            agent: AgentId(1),
            name: AGENT.parse()?,
            service: ServiceName::KUBERNETES.parse()?,
            class: Class::Short,
        };
        Ok(Self {
            identities: Identities::new(identity),
            metrics: Metrics::register(&mut Registry::default()),
            tunnels: Arc::new(LocalTunnels::new(1000)),
            request,
            passed,
            answer: fields(&ANSWER),
            passed_answer: fields(&[&ANSWER[..], &ADDED[..]].concat()),
            to,
            id: HeaderValue::from_static("0123456789abcdef"),
            policy,
        })
    }

    fn kas(&self) -> anyhow::Result<Vec<Step>> {
        let path = self.request.uri().path_and_query().context("it has a path")?;
        let target = Target::parse(path).map_err(|failure| anyhow::anyhow!("{}", failure.message))?;
        // As many as agentk has.
        let registered = [(); 2].map(|()| {
            let services = vec![self.to.service.clone()];
            self.tunnels.register(self.to.agent, TunnelId::random(), services, (), None)
        });
        let peer = Peer::new([192, 0, 2, 1].into());
        let forwarded = ForwardedFor::of(self.request.headers(), &peer, &[]);
        let proxy_headers = ProxyHeaders {
            service: &self.to.service,
            access_as: &AccessAs::Agent,
            request_id: &self.id,
            version: Version::HTTP_11,
            forwarded: &forwarded,
        };
        let now = tokio::time::Instant::now();
        let stages = || Stages::of(now, now, now + Duration::from_millis(2), &self.passed_answer);
        let told = stages();
        let counted = self.metrics.of(&self.to.service);
        let request = self.request.headers();

        let step = |name, nanoseconds| Step { program: "kas", name, nanoseconds, reason: None };
        let steps = vec![
            step("client address", time(request, |headers| ForwardedFor::of(headers, &peer, &[]))),
            step(
                "tracing, which is off",
                time(&(), |()| {
                    let mut trace = RequestTrace::begin(None, &self.request, &self.id);
                    trace.authorized(&self.to, self.request.method());
                    trace.answered(StatusCode::OK, &told);
                    trace
                }),
            ),
            step(
                "target: agent, service, kind of load",
                time(&(), |()| Target::parse(path).map(|target| target.class(false))),
            ),
            Step {
                reason: Some("the SHA-256 of the token: kas knows no tokens, only hashes"),
                ..step(
                    "authentication and authorization",
                    time(&(), |()| authorize(&self.identities.load(), request, &target)),
                )
            },
            step("headers to the agent", time(request, |headers| headers::to_agent(headers, proxy_headers))),
            step("choice of a tunnel, and giving it back", time(&(), |()| self.lease())),
            step(
                "time by stage, told to the caller",
                time(&self.passed_answer, |headers| stages().write(headers)),
            ),
            step(
                "metrics",
                time(&(), |()| {
                    counted.in_flight.inc();
                    counted.answered(StatusCode::OK, &told);
                    counted.ended(Duration::from_millis(2));
                    counted.in_flight.dec();
                }),
            ),
            step(
                "headers to the caller",
                time(&self.passed_answer, |headers| headers::to_caller(headers, false, &[], &self.id)),
            ),
            step("a line in the log, which is off", time(&(), |()| self.log(&told))),
        ];
        drop(registered);
        Ok(steps)
    }

    fn agentk(&self) -> Vec<Step> {
        let step = |name, nanoseconds| Step { program: "agentk", name, nanoseconds, reason: None };
        let passed = self.passed.headers();
        vec![
            step(
                "policy of 3 rules",
                time(&(), |()| self.policy.check(self.to.service.as_str(), &self.passed)),
            ),
            step("headers to the cluster", time(passed, agent::headers::to_upstream)),
            step("headers from the cluster", time(&self.answer, agent::headers::from_upstream)),
        ]
    }

    fn lease(&self) -> Choice<()> {
        self.tunnels.choose(self.to.agent, &self.to.service, self.to.class, &[], None)
    }

    /// Like that of kas, with as many fields.
    fn log(&self, stages: &Stages) {
        tracing::debug!(
            request.id = ?self.id,
            agent.name = %self.to.name,
            service = %self.to.service,
            method = %Method::GET,
            path = self.passed.uri().path(),
            status = StatusCode::OK.as_u16(),
            queue = ?stages.queue,
            tunnel = ?stages.tunnel,
            upstream = ?stages.upstream,
            "a request was answered"
        );
    }
}

/// Nanoseconds of one call, the median of the batches. Each call has an input of its own, which it may change.
fn time<T: Clone, R>(input: &T, mut step: impl FnMut(&mut T) -> R) -> f64 {
    let batch = || {
        let mut inputs = vec![input.clone(); CALLS];
        let begin = Instant::now();
        for input in &mut inputs {
            black_box(step(black_box(input)));
        }
        begin.elapsed().as_secs_f64() * 1e9 / CALLS as f64
    };
    median(std::iter::repeat_with(batch).take(BATCHES))
}

impl Step {
    /// Empty below the limit.
    fn reason(&self) -> &'static str {
        if self.nanoseconds < LIMIT { "" } else { self.reason.unwrap_or("none is known") }
    }
}

/// Row by row, with a sum for each program.
pub(super) fn table(steps: &[Step]) -> Table {
    let mut table = Table::new(["step", "of", "ns", "why more than 1 µs"]);
    for step in steps {
        let ns = number(step.nanoseconds);
        table.row([step.name.to_owned(), step.program.to_owned(), ns, step.reason().to_owned()]);
    }
    for program in ["kas", "agentk"] {
        let mine = steps.iter().filter(|step| step.program == program);
        let sum: f64 = mine.map(|step| step.nanoseconds).sum();
        table.row(["together".to_owned(), program.to_owned(), number(sum), String::new()]);
    }
    table
}

fn fields(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    let fields = fields
        .iter()
        .map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)));
    fields.collect()
}

const PATH: &str = "/api/v1/namespaces/default/pods?limit=500";

/// Besides the token.
const REQUEST: [(&str, &str); 9] = [
    ("host", "kas.example.com"),
    ("user-agent", "kubectl/v1.34.1 (linux/amd64) kubernetes/93248f9"),
    (
        "accept",
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
    ),
    ("accept-encoding", "gzip"),
    ("kubectl-command", "kubectl get"),
    ("kubectl-session", "4b0ffb0e-5cd1-4a29-8b60-7c1e8f1c9a10"),
    ("x-forwarded-for", "203.0.113.7"),
    ("x-forwarded-host", "kas.example.com"),
    ("x-forwarded-proto", "https"),
];

/// Of the API server.
const ANSWER: [(&str, &str); 8] = [
    ("audit-id", "8f2ae1a5-51a3-4be8-9b0e-2a4f6a1c0f5e"),
    ("cache-control", "no-cache, private"),
    ("content-encoding", "gzip"),
    ("content-length", "3815"),
    ("content-type", "application/json"),
    ("date", "Thu, 06 Nov 2025 12:00:00 GMT"),
    ("x-kubernetes-pf-flowschema-uid", "2d5c8e8f-6d0a-4f0c-9b39-70f8a3fd8a4e"),
    ("x-kubernetes-pf-prioritylevel-uid", "6c0a9d07-8d1e-4b5a-a9ff-13a1d3f3a1c2"),
];

/// Of agentk.
const ADDED: [(&str, &str); 2] = [("via", "1.1 agentk"), ("kas-upstream-time", "1500")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_timed_is_a_request_that_is_answered() {
        let directory = tempfile::tempdir().unwrap();
        let scene = Scene::new(directory.path()).unwrap();
        assert_eq!(scene.request.headers().len(), 10);
        let path = scene.request.uri().path_and_query().unwrap();
        let target = Target::parse(path).unwrap();
        assert_eq!(target.path, PATH);
        assert!(authorize(&scene.identities.load(), scene.request.headers(), &target).is_ok());
        assert!(scene.policy.check("kubernetes", &scene.passed).is_ok());
        assert!(matches!(scene.lease(), Choice::NoTunnel));
        let steps = measure(directory.path()).unwrap();
        assert!(steps.iter().all(|step| step.nanoseconds > 0.0), "{steps:?}");
    }

    #[test]
    fn only_what_is_slow_needs_a_reason() {
        let step = |nanoseconds, reason| Step { program: "kas", name: "x", nanoseconds, reason };
        assert_eq!(step(999.0, Some("it hashes")).reason(), "");
        assert_eq!(step(1001.0, Some("it hashes")).reason(), "it hashes");
        assert_eq!(step(1001.0, None).reason(), "none is known");
        let table = table(&[step(400.0, None), step(300.0, None)]).to_string();
        assert!(table.lines().any(|line| line.contains("together") && line.contains("700")), "{table}");
    }
}
