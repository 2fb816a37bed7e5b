//! The time of each step of a request, measured alone on one thread of this process.
//!
//! The functions are those of kas and agentk. The request is as from kubectl through an ingress, and the response as from
//! an API server. No step waits for I/O, and all data is in the CPU cache, so the sum of the steps is less than the cost of
//! a request.

use std::{
    hint::black_box,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use access::{
    AccessAs, AccessControl, CallerAuthorizer, FileCallers, Identities, Identity, Target, UnknownCredentials,
    UrlPathPrefix,
};
use agentk_core::policy::PolicyEnforcer;
use anyhow::Context as _;
use futures_util::FutureExt as _;
use gateway::test_support::{
    self, Destination, ForwardedFor, PeerAddress, ProxyHeaders, RequestTiming, RequestTrace, ResponsePolicy,
    request_types,
};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Version, header::AUTHORIZATION};
use kas_core::metrics::Metrics;
use kas_gitlab::GitLabSessions;
use loadtest::{
    installation::stack::{AGENT, IDENTITY, POLICY, hash, new_token, write_file},
    load::{
        median,
        report::{Table, number},
    },
};
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use proto::{AgentId, AgentName, ServiceName, TunnelId};
use router::{LocalTunnels, RequestClass, TunnelChoice};
use serde::Serialize;

use crate::gitlab::{CALLER, CachedJob};

/// The time in nanoseconds above which a step needs a reason.
const LIMIT: f64 = 1000.0;
/// The number of calls that are timed together: so few that their requests stay in the CPU cache, as right after a read.
const CALLS: usize = 64;
const BATCHES: usize = 501;

/// The time of one step.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Step {
    program: &'static str,
    name: &'static str,
    nanoseconds: f64,
    /// The reason for more than a microsecond.
    reason: Option<&'static str>,
}

/// The request, the response and the state that the steps use.
struct StepFixture {
    access: AccessControl,
    metrics: Metrics,
    tunnels: Arc<LocalTunnels<()>>,
    request: Request<()>,
    /// The request between kas and agentk, and between agentk and the cluster.
    passed: Request<()>,
    /// The response between the cluster and agentk, and between agentk and kas.
    answer: HeaderMap,
    passed_answer: HeaderMap,
    to: Destination,
    id: HeaderValue,
    policy: PolicyEnforcer,
    job: CachedJob,
}

/// Times every step, which takes about a second. Writes files to `directory`.
pub(super) fn measure(directory: &Path) -> anyhow::Result<Vec<Step>> {
    let fixture = StepFixture::new(directory)?;
    let mut steps = fixture.kas_steps()?;
    steps.extend(fixture.agentk_steps());
    Ok(steps)
}

impl StepFixture {
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
        write_file(directory, "policy.yaml", POLICY)?;
        let policy = PolicyEnforcer::load(
            directory.join("policy.yaml"),
            Vec::new(),
            agentk_core::AgentMetrics::default(),
        )?;
        let to = Destination {
            agent: AgentId(1),
            name: Some(AGENT.parse()?),
            project_path: None,
            service: ServiceName::KUBERNETES.parse()?,
            class: RequestClass::Short,
        };
        let metrics = Metrics::register(&mut Registry::default(), &request_types());
        let unknown = Arc::new(UnknownCredentials::new(60, Counter::default()));
        Ok(Self {
            access: AccessControl::new(
                [Arc::new(FileCallers::new(Identities::new(identity), None)) as Arc<dyn CallerAuthorizer>],
                Arc::new(GitLabSessions),
                unknown,
            ),
            metrics,
            tunnels: Arc::new(LocalTunnels::new(1000)),
            request,
            passed,
            answer: fields(&ANSWER),
            passed_answer: fields(&[&ANSWER[..], &ADDED[..]].concat()),
            to,
            id: HeaderValue::from_static("0123456789abcdef"),
            policy,
            job: CachedJob::new(directory, PATH)?,
        })
    }

    fn kas_steps(&self) -> anyhow::Result<Vec<Step>> {
        let path = self.request.uri().path_and_query().context("it has a path")?;
        let (types, prefix) = (request_types(), UrlPathPrefix::default());
        let target = Target::parse(path, &prefix)?;
        // The default number of tunnels of agentk.
        let registered = [(); 2].map(|()| {
            let services = vec![self.to.service.clone()];
            self.tunnels.register(self.to.agent, TunnelId::random(), services, (), None)
        });
        let peer = PeerAddress::new(CALLER);
        let forwarded = ForwardedFor::new(self.request.headers(), &peer, &[]);
        let proxy_headers = ProxyHeaders {
            service: &self.to.service,
            access_as: &AccessAs::Agent,
            request_id: &self.id,
            upgrade: false,
            version: Version::HTTP_11,
            forwarded: &forwarded,
        };
        let now = tokio::time::Instant::now();
        let stages = || RequestTiming::new(now, now, now + Duration::from_millis(2), &self.passed_answer);
        let told = stages();
        let counted = self.metrics.service(&self.to.service);
        let request = self.request.headers();

        let step = |name, nanoseconds| Step { program: "kas", name, nanoseconds, reason: None };
        let steps = vec![
            step("client address", time(request, |headers| ForwardedFor::new(headers, &peer, &[]))),
            step(
                "tracing (disabled)",
                time(&(), |()| {
                    let mut trace = RequestTrace::start(None, &self.request, &self.id);
                    trace.set_destination(&self.to, self.request.method());
                    trace.record_response(StatusCode::OK, &told);
                    trace
                }),
            ),
            step(
                "target: agent, service, kind of load",
                time(&(), |()| Target::parse(path, &prefix).map(|target| types.class(&target, false))),
            ),
            Step {
                reason: Some("the SHA-256 of the token: kas stores only hashes"),
                ..step(
                    "authentication and authorization",
                    time(&(), |()| authorized(&self.access, request, &target)),
                )
            },
            Step {
                reason: Some("two SHA-256 of the token: the identity file and GitLab have different keys"),
                program: "kas, CI job",
                ..step("target, authentication and authorization", time(&(), |()| self.job.authorize()))
            },
            step(
                "headers to the agent",
                time(request, |headers| test_support::to_agent(headers, proxy_headers)),
            ),
            step("choice and release of a tunnel", time(&(), |()| self.request_permit())),
            step("Server-Timing header", time(&self.passed_answer, |headers| stages().write(headers))),
            step(
                "metrics",
                time(&(), |()| {
                    counted.in_flight.inc();
                    counted.observe_head(StatusCode::OK, &told);
                    counted.observe_end(Duration::from_millis(2));
                    counted.in_flight.dec();
                }),
            ),
            step(
                "headers to the caller",
                time(&self.passed_answer, |headers| {
                    test_support::to_caller(headers, ResponsePolicy::default(), &self.id)
                }),
            ),
            step("log line (disabled)", time(&(), |()| self.log(&told))),
        ];
        drop(registered);
        Ok(steps)
    }

    fn agentk_steps(&self) -> Vec<Step> {
        let step = |name, nanoseconds| Step { program: "agentk", name, nanoseconds, reason: None };
        let passed = self.passed.headers();
        vec![
            step(
                "policy of 3 rules",
                time(&(), |()| self.policy.check(self.to.service.as_str(), &self.passed)),
            ),
            step("headers to the cluster", time(passed, agentk_core::services::headers::to_upstream)),
            step(
                "headers from the cluster",
                time(&self.answer, agentk_core::services::headers::from_upstream),
            ),
        ]
    }

    fn request_permit(&self) -> TunnelChoice<()> {
        self.tunnels.choose(self.to.agent, &self.to.service, self.to.class, &[], None)
    }

    /// Writes a log line like that of kas, with as many fields.
    fn log(&self, stages: &RequestTiming) {
        tracing::debug!(
            request.id = ?self.id,
            agent.name = self.to.name.as_ref().map(AgentName::as_str),
            service = %self.to.service,
            method = %Method::GET,
            path = self.passed.uri().path(),
            status = StatusCode::OK.as_u16(),
            queue = ?stages.queue,
            tunnel = ?stages.tunnel,
            upstream = ?stages.upstream,
            "request answered"
        );
    }
}

fn authorized(access: &AccessControl, headers: &HeaderMap, target: &Target<'_>) -> Option<AgentId> {
    access.authorize(headers, target, CALLER).now_or_never()?.ok().map(|caller| caller.agent)
}

/// Returns the median time of one call in nanoseconds. Each call gets its own clone of the input.
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
    /// Returns the reason, or an empty text below the limit.
    fn reason(&self) -> &'static str {
        if self.nanoseconds < LIMIT { "" } else { self.reason.unwrap_or("unknown") }
    }
}

/// Returns a table with a sum for each program.
pub(super) fn table(steps: &[Step]) -> Table {
    let mut table = Table::new(["step", "of", "ns", "reason for more than 1 µs"]);
    for step in steps {
        let ns = number(step.nanoseconds);
        table.row([step.name.to_owned(), step.program.to_owned(), ns, step.reason().to_owned()]);
    }
    for program in ["kas", "agentk"] {
        let mine = steps.iter().filter(|step| step.program == program);
        let sum: f64 = mine.map(|step| step.nanoseconds).sum();
        table.row(["total".to_owned(), program.to_owned(), number(sum), String::new()]);
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

/// The request headers, without the token.
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

/// The response headers of the API server.
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

/// The response headers that agentk adds.
const ADDED: [(&str, &str); 2] = [("via", "1.1 agentk"), ("kas-upstream-time", "1500")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timed_steps_handle_the_request() {
        let directory = tempfile::tempdir().unwrap();
        let fixture = StepFixture::new(directory.path()).unwrap();
        assert_eq!(fixture.request.headers().len(), 10);
        let path = fixture.request.uri().path_and_query().unwrap();
        let target = Target::parse(path, &UrlPathPrefix::default()).unwrap();
        assert_eq!(target.path, PATH);
        assert!(authorized(&fixture.access, fixture.request.headers(), &target).is_some());
        assert_eq!(fixture.job.authorize(), Some(AgentId(7)), "the answer is in the cache");
        assert!(fixture.policy.check("kubernetes", &fixture.passed).is_ok());
        assert!(matches!(fixture.request_permit(), TunnelChoice::NoTunnel));
        let steps = measure(directory.path()).unwrap();
        assert!(steps.iter().all(|step| step.nanoseconds > 0.0), "{steps:?}");
    }

    #[test]
    fn slow_step_needs_a_reason() {
        let step = |nanoseconds, reason| Step { program: "kas", name: "x", nanoseconds, reason };
        assert_eq!(step(999.0, Some("it hashes")).reason(), "");
        assert_eq!(step(1001.0, Some("it hashes")).reason(), "it hashes");
        assert_eq!(step(1001.0, None).reason(), "unknown");
        let table = table(&[step(400.0, None), step(300.0, None)]).to_string();
        assert!(table.lines().any(|line| line.contains("total") && line.contains("700")), "{table}");
    }
}
