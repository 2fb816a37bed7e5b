//! Callers that may see only series with certain labels.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{path::Path, sync::Arc};

use access::{Identity, token::TokenHash};
use agentk_core::Services;
use http::{Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::BodyExt as _;
use kas_gitlab::ApiRateLimit;
use kas_testing::{
    gitlab::{AGENT, AGENT_TOKEN, client},
    world::{RunningAgent, World, endless, text},
};
use parking_lot::Mutex;
use secrecy::ExposeSecret as _;
use serde_json::json;
use testing::gitlab::{Agent, AgentAccess, Job, Membership, StandIn, User};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tunnel::Body;

use crate::set_configuration::Configuration;

/// A request that reached the agent: method, path, `Content-Length` and form.
type Received = Arc<Mutex<Vec<String>>>;

/// The list of a job or of users of GitLab: they may see `ns="a"`, as the caller of the identity file.
const SERVICES: &str = r#"[
    {"service": "prometheus", "labels": {"ns": ["a"]}},
    {"service": "prometheus.thanos", "labels": {"ns": ["a"]}},
    {"service": "prometheus-like"}
]"#;

/// A caller that may see `ns="a"`, in every Prometheus of the agent `prod`.
struct Tenant {
    kind: &'static str,
    world: World,
    token: String,
    received: Received,
    _agent: RunningAgent,
    _gitlab: Option<StandIn>,
}

impl Tenant {
    /// Returns the callers of all kinds, each at a kas of its own.
    async fn all() -> Vec<Self> {
        let mut all = vec![Self::of_file().await];
        for (kind, token, access_as) in [
            ("job", "ci:7:job", json!({"ci_job": {}})),
            ("job as agentk", "ci:7:job", json!({"agent": {}})),
            ("user", "pat:7:glpat-alice", json!({})),
        ] {
            all.push(Self::of_gitlab(kind, token, &access_as).await);
        }
        all
    }

    async fn of_file() -> Self {
        let world = World::new();
        world.kas.identities.replace(identity(&world, "prometheus: {labels: {ns: [a]}}"));
        let token = world.caller_token.expose_secret().to_owned();
        Self::new("caller of the identity file", world, token, None).await
    }

    async fn of_gitlab(kind: &'static str, token: &str, access_as: &serde_json::Value) -> Self {
        let services: serde_json::Value = serde_json::from_str(SERVICES).unwrap();
        let gitlab = StandIn::start().await;
        gitlab.state().add_agent(Agent::new(AGENT, "prod", AGENT_TOKEN));
        let configuration = json!({"access_as": access_as, "services": services});
        gitlab.state().add_job("job", Job::new(3, 30).with_agent(AGENT, configuration));
        let projects = vec![Membership { id: 30, roles: vec!["developer".to_owned()] }];
        let access = AgentAccess::User { projects, groups: Vec::new() };
        let alice = User::new(5, "alice").with_token("glpat-alice").with_access(AGENT, access);
        gitlab.state().users.push(alice);
        let client = client(&gitlab, &ApiRateLimit::default());
        let world = World::with_gitlab(client, AGENT_TOKEN.to_owned(), |_| {});
        let configuration = Configuration::default();
        configuration
            .set(&json!({"user_access": {"access_as": {"user": {}}, "services": services}}).to_string());
        world.kas.agents.configuration.add_source(Arc::new(configuration));
        Self::new(kind, world, token.to_owned(), Some(gitlab)).await
    }

    async fn new(kind: &'static str, world: World, token: String, gitlab: Option<StandIn>) -> Self {
        let received = Received::default();
        let agent = world.agent(services(&received)).await;
        Self { kind, world, token, received, _agent: agent, _gitlab: gitlab }
    }

    fn authorization(&self) -> String {
        format!("Bearer {}", self.token)
    }

    fn request(&self, path: &str) -> Request<Body> {
        let request = Request::get(path).header("host", "kas").header("authorization", self.authorization());
        request.body(Body::empty()).unwrap()
    }

    fn post(&self, path: &str, form: impl Into<Body>) -> Request<Body> {
        let mut request = self.request(path).map(|_| form.into());
        *request.method_mut() = http::Method::POST;
        let form = http::HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(CONTENT_TYPE, form);
        request
    }

    async fn get(&self, path: &str) -> StatusCode {
        self.world.send(self.request(path)).await.status()
    }
}

/// Returns services that note and answer each request.
fn services(received: &Received) -> Services {
    let names = ["prometheus", "prometheus.thanos", "prometheus-like", "kubernetes"];
    names.into_iter().fold(Services::new(), |services, service| {
        let received = Arc::clone(received);
        services.with_fn(service, move |request: Request<Body>| {
            let received = Arc::clone(&received);
            async move {
                let (head, body) = request.into_parts();
                let form = body.collect().await.unwrap().to_bytes();
                let length =
                    head.headers.get("content-length").map_or("-", |length| length.to_str().unwrap());
                let form = str::from_utf8(&form).unwrap();
                received.lock().push(format!("{} {} {length} {form}", head.method, head.uri));
                Response::new(Body::from("answered"))
            }
        })
    })
}

fn identity(world: &World, key: &str) -> Identity {
    let (agent, caller) = (TokenHash::of(&world.agent_token), TokenHash::of(&world.caller_token));
    let text = format!(
        "agents: [{{id: 1, name: prod, tokens: ['{agent}']}}]\n\
         callers: [{{name: me, tokens: ['{caller}'], agents: [prod], services: ['*'], {key}}}]",
    );
    Identity::parse(Path::new("identity.yaml"), &text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn agent_receives_only_rewritten_queries() {
    for tenant in Tenant::all().await {
        let Tenant { kind, world, received, .. } = &tenant;
        for service in ["prometheus", "prometheus.thanos"] {
            let path = |rest: &str| format!("/agents/prod/{service}/api/v1/{rest}");
            for request in [
                tenant.request(&path("query?query=up&time=1")),
                tenant.request(&path("labels")),
                tenant.post(&path("query_range?query=up"), "query=sum(up)&step=1"),
                tenant.post(&path("series"), "match[]=up"),
            ] {
                let answer = world.send(request).await;
                assert_eq!((answer.status(), &*text(answer).await), (StatusCode::OK, "answered"), "{kind}");
            }
            let ours = "up%7Bns%3D%22a%22%7D";
            assert_eq!(
                *received.lock(),
                [
                    format!("GET /api/v1/query?query={ours}&time=1 - "),
                    "GET /api/v1/labels?match%5B%5D=%7Bns%3D%22a%22%7D - ".to_owned(),
                    format!("POST /api/v1/query_range?query={ours} 42 query=sum%28{ours}%29&step=1"),
                    format!("POST /api/v1/series 32 match%5B%5D={ours}"),
                ],
                "{kind}"
            );
            received.lock().clear();
        }
    }
}

/// The paths of the table in docs/tenants.md. `metric` has series of others, too.
#[tokio::test(start_paused = true)]
async fn each_endpoint_is_enforced_or_refused() {
    for tenant in Tenant::all().await {
        let Tenant { kind, received, .. } = &tenant;
        for (path, sent) in [
            ("api/v1/query?query=metric", "query=metric%7Bns%3D%22a%22%7D"),
            ("api/v1/query_range?query=metric", "query=metric%7Bns%3D%22a%22%7D"),
            ("api/v1/query_exemplars?query=metric", "query=metric%7Bns%3D%22a%22%7D"),
            ("api/v1/series?match[]=metric", "match%5B%5D=metric%7Bns%3D%22a%22%7D"),
            ("api/v1/labels", "match%5B%5D=%7Bns%3D%22a%22%7D"),
            ("api/v1/label/job/values", "match%5B%5D=%7Bns%3D%22a%22%7D"),
            ("federate?match[]=metric", "match%5B%5D=metric%7Bns%3D%22a%22%7D"),
            ("api/v1/format_query?query=metric", "query=metric"),
            ("api/v1/status/buildinfo", "buildinfo"),
        ] {
            let status = tenant.get(&format!("/agents/prod/prometheus/{path}")).await;
            assert_eq!(status, StatusCode::OK, "{kind} {path}");
            let received = std::mem::take(&mut *received.lock());
            assert!(received[0].trim_end_matches(" - ").ends_with(sent), "{kind} {path}: {received:?}");
        }
        for path in [
            "api/v1/metadata",
            "api/v1/targets",
            "api/v1/rules",
            "api/v1/alerts",
            "api/v1/status/config",
            "api/v1/status/tsdb",
            "api/v1/read",
            "api/v1/admin/tsdb/snapshot",
            "api/v1/notifications/live",
            "api/v1/label/%6Aob/values",
            "",
            "graph",
        ] {
            let status = tenant.get(&format!("/agents/prod/prometheus/{path}")).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{kind} {path}");
        }
        assert!(received.lock().is_empty(), "{kind}: {received:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn unenforceable_query_is_a_prometheus_error() {
    for tenant in Tenant::all().await {
        let Tenant { kind, world, received, .. } = &tenant;
        let long = format!("query=up&x={}", "y".repeat(1 << 20));
        let prometheus = |rest: &str| format!("/agents/prod/prometheus{rest}");
        for (request, status, reason, error_type) in [
            (tenant.request(&prometheus("/api/v1/targets")), 403, "not-enforceable", "forbidden"),
            (
                tenant.request(&prometheus("/api/v1/query?query=info(up)")),
                403,
                "not-enforceable",
                "forbidden",
            ),
            (tenant.request(&prometheus("/api/v1/query?query=up%7B")), 400, "bad-request", "bad_data"),
            (tenant.request(&prometheus("/api/v1/query?query=up;x")), 400, "bad-request", "bad_data"),
            (tenant.post(&prometheus("/api/v1/query"), long), 413, "body-too-large", "bad_data"),
        ] {
            let uri = request.uri().clone();
            let answer = world.send(request).await;
            assert_eq!(
                (answer.status().as_u16(), answer.headers()["kas-error"].to_str().unwrap()),
                (status, reason),
                "{kind} {uri}"
            );
            let envelope: serde_json::Value = serde_json::from_str(&text(answer).await).unwrap();
            assert_eq!(
                (&envelope["status"], &envelope["errorType"]),
                (&"error".into(), &error_type.into()),
                "{kind} {uri}"
            );
        }
        assert!(received.lock().is_empty(), "{kind}: nothing was sent: {received:?}");
        assert_eq!(world.limit_count("form"), 1.0);
    }
}

#[tokio::test(start_paused = true)]
async fn slow_form_times_out() {
    let tenant = Tenant::of_file().await;
    let form = tenant.post("/agents/prod/prometheus/api/v1/query", endless("query=up"));
    let answer = tenant.world.send(form).await;
    assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
    assert_eq!(answer.headers()["kas-error"], "body-timeout");
    assert!(tenant.received.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn other_services_and_callers_are_not_rewritten() {
    for tenant in Tenant::all().await {
        for service in ["kubernetes", "prometheus-like"] {
            let status = tenant.get(&format!("/agents/prod/{service}/api/v1/query?query=up;x")).await;
            assert_eq!(status, StatusCode::OK, "{} {service}", tenant.kind);
        }
        assert_eq!(*tenant.received.lock(), vec!["GET /api/v1/query?query=up;x - "; 2], "{}", tenant.kind);
    }
    let tenant = Tenant::of_file().await;
    tenant.world.kas.identities.replace(identity(&tenant.world, "access_as: {agent: {}}"));
    let status = tenant.get("/agents/prod/prometheus/api/v1/query?query=up;x").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(*tenant.received.lock(), ["GET /api/v1/query?query=up;x - "]);
}

#[tokio::test(start_paused = true)]
async fn form_of_a_query_with_an_upgrade_is_enforced_and_arrives() {
    for tenant in Tenant::all().await {
        let mut caller = tenant.world.connect();
        let head = format!(
            "POST /agents/prod/prometheus/api/v1/query HTTP/1.1\r\nHost: kas\r\nAuthorization: {}\r\nConnection: Upgrade, close\r\n\
             Upgrade: foo/1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 8\r\n\r\nquery=up",
            tenant.authorization()
        );
        caller.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        caller.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{}: {answer}", tenant.kind);
        assert_eq!(tenant.received.lock()[0], "POST /api/v1/query 26 query=up%7Bns%3D%22a%22%7D");
    }
}
