//! Each cell of the table in docs/access.md: which caller may do what with which service.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    collections::BTreeMap,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use access::{
    AgentIdentity, ConfigurationFile, ConfigurationSource, FileKey, ReadError, Reading, token::TokenHash,
};
use agentk_core::Services;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kas_gitlab::ApiRateLimit;
use kas_testing::{
    fleet::TestFleet,
    gitlab::{AGENT, AGENT_TOKEN, client},
    internal_api::jwt,
    issuer::now,
    world::{RunningAgent, World, endless, parse, text},
};
use parking_lot::Mutex;
use proto::{AgentId, ServiceName, Verb};
use serde_json::{Value, json};
use store::{ProjectAgent, RouteStore as _};
use testing::gitlab::{Agent, AgentAccess, Job, Membership, Project, StandIn, User};
use tokio::time::{Instant, sleep, timeout};
use tunnel::Body;

const PAGE: &str = include_str!("../../../docs/access.md");

/// The right to a verb of a service, as the first two columns of the table name it.
type Right = (&'static str, &'static str);

/// The requests that need a right.
fn requests(right: Right) -> &'static [(Method, &'static str)] {
    match right {
        ("kubernetes", "use") => &[
            (Method::GET, "kubernetes/api/v1/pods?watch=1"),
            (Method::DELETE, "kubernetes/api/v1/namespaces/shop/pods/web"),
        ],
        ("prometheus", "use") => &[(Method::GET, "prometheus/api/v1/query?query=up")],
        ("prometheus.<name>", "use") => &[(Method::GET, "prometheus.thanos/api/v1/query?query=up")],
        ("graph", "read") => &[(Method::GET, "graph/v1/objects"), (Method::GET, "graph/v1/watch")],
        ("gitops", "read") => &[
            (Method::GET, "gitops/v1/projects"),
            (Method::GET, "gitops/v1/projects/web"),
            (Method::GET, "gitops/v1/projects/web?/approve"),
            (Method::POST, "gitops/v1/projects/web/diff"),
        ],
        ("gitops", "sync") => &[(Method::POST, "gitops/v1/projects/shop%2Fweb/sync")],
        ("gitops", "suspend") => &[
            (Method::POST, "gitops/v1/projects/web/suspend?x=/diff"),
            (Method::POST, "gitops/v1/projects/web/resume"),
        ],
        ("gitops", "approve") => &[
            (Method::POST, "gitops/v1/projects/web/approve"),
            (Method::POST, "gitops/v1/projects/web/recover"),
            (Method::POST, "gitops/v1/projects/web/prune"),
            (Method::POST, "gitops/v1/projects/web/destroy"),
            (Method::POST, "gitops/v1/projects/web/dif%66"),
            (Method::POST, "gitops/v1/projects/web/diff/sync"),
        ],
        ("events", "read") => &[(Method::GET, "events/v1/events")],
        ("alerts", "read") => &[(Method::GET, "alerts/v1/alerts")],
        ("audit", "read") => &[(Method::GET, "audit/v1/events")],
        ("provision", "use") => &[(Method::DELETE, "provision/v1/environments/30/other")],
        other => panic!("the test has no request for {other:?}"),
    }
}

/// Returns the rows of the table, each with its cells by the names of the columns.
fn table() -> Vec<(Right, BTreeMap<&'static str, &'static str>)> {
    let rows = PAGE.lines().skip_while(|line| !line.starts_with("| service | verb |"));
    let mut rows = rows.take_while(|line| line.starts_with('|')).map(|line| {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`')).collect::<Vec<_>>()
    });
    let head = rows.next().unwrap();
    let rows = rows.skip(1).map(|cells| {
        assert_eq!(cells.len(), head.len(), "{cells:?}");
        let columns = head.iter().copied().zip(cells.iter().copied());
        ((cells[0], cells[1]), columns.collect())
    });
    rows.collect()
}

/// Returns whether a cell gives the right to a caller that acts as agentk, or with an identity of its own.
fn allows(cell: &str, as_agentk: bool) -> bool {
    match cell {
        // The requests are about a GitOps project whose manifests are in the project of the jobs.
        "its own project" => true,
        "yes" => true,
        "no" => false,
        "as agentk" => as_agentk,
        // The requests are about another environment.
        "that of the job" => false,
        other => panic!("{other:?} is no cell of the table"),
    }
}

/// The agent of GitLab, which counts its requests and answers all of them.
struct Fixture {
    gitlab: StandIn,
    world: World,
    received: Arc<AtomicUsize>,
    _agent: RunningAgent,
}

impl Fixture {
    async fn new() -> Self {
        let received = Arc::<AtomicUsize>::default();
        let names = ServiceName::OF_CALLERS.into_iter().chain(["prometheus.thanos"]);
        let services = names.fold(Services::new(), |services, name| {
            let received = Arc::clone(&received);
            services.with_fn(name, move |_: Request<Body>| {
                received.fetch_add(1, Relaxed);
                async { Response::new(Body::from("answered")) }
            })
        });
        // The requests of kas itself for manifests do not count.
        let services = services.with_fn("manifests", async |_: Request<Body>| Response::new(Body::empty()));
        let gitlab = StandIn::start().await;
        gitlab.state().add_agent(Agent::new(AGENT, "prod", AGENT_TOKEN));
        let mut project = Project::new(30, "shop/web");
        project.gitaly.address = "unix:/nonexistent".to_owned();
        gitlab.state().projects.push(project);
        let client = client(&gitlab, &ApiRateLimit::default());
        let world = World::with_gitlab(client, AGENT_TOKEN.to_owned(), |_| {});
        let configured = Configured(Mutex::new(Some("gitops: {manifest_projects: [{id: shop/web}]}")));
        world.kas.agents.configuration.add_source(Arc::new(configured));
        let agent = world.agent(services).await;
        Self { gitlab, world, received, _agent: agent }
    }

    /// Replaces the callers of the identity file, which has no agent.
    fn set_callers(&self, callers: &str) {
        self.world.kas.identities.replace(parse(&format!("callers: [{callers}]")));
    }

    /// Sends each request that needs the right, and checks that all are answered, or that all are refused and none has reached the agent.
    async fn check(&self, right: Right, credential: &[(&str, &str)], allowed: bool, what: &str) {
        for (method, path) in requests(right) {
            let before = self.received.load(Relaxed);
            let request = Request::builder()
                .method(method)
                .uri(format!("/agents/{AGENT}/{path}"))
                .header("host", "kas");
            let request =
                credential.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            let response = self.world.send(request.body(Body::empty()).unwrap()).await;
            let status = response.status().as_u16();
            if allowed {
                assert_eq!(status, 200, "{what}: {method} {path}: {}", text(response).await);
            } else {
                let body = text(response).await;
                assert_eq!(status, 403, "{what}: {method} {path}: {body}");
                assert!(body.contains("forbidden") || body.contains("Forbidden"), "{what}: {path}: {body}");
                assert_eq!(
                    self.received.load(Relaxed),
                    before,
                    "{what}: {method} {path} has reached the agent"
                );
            }
        }
    }
}

fn job(id: u64, configuration: Value) -> Job {
    Job::new(id, 30).with_agent(AGENT, configuration).with_environment("prod", "production")
}

fn user(id: u64, name: &str, roles: &[&str]) -> User {
    let roles = roles.iter().map(|&role| role.to_owned()).collect();
    let projects = vec![Membership { id: 30, roles }];
    User::new(id, name)
        .with_token(&format!("glpat-{name}"))
        .with_session(&format!("cookie-{name}"), "csrf")
        .with_access(AGENT, AgentAccess::User { projects, groups: Vec::new() })
}

#[tokio::test(start_paused = true)]
async fn callers_of_gitlab_have_the_rights_of_the_table_and_no_others() {
    let fixture = Fixture::new().await;
    {
        let mut state = fixture.gitlab.state();
        state.add_job("as-agentk", job(3, json!({"access_as": {"agent": {}}})));
        state.add_job("default", job(4, json!({})));
        state.add_job("as-itself", job(5, json!({"access_as": {"ci_job": {}}})));
        state.add_job("other", Job { project: 31, ..job(6, json!({"access_as": {"ci_job": {}}})) });
        state.users.extend([
            user(10, "dev", &["reporter", "developer"]),
            user(11, "main", &["developer", "maintainer"]),
            user(12, "owner", &["owner"]),
            user(13, "nobody", &[]),
            User::new(14, "agent").with_token("glpat-agent").with_access(AGENT, AgentAccess::Agent),
        ]);
    }
    let claims =
        json!({"iss": "gitlab.example.com", "aud": "gitlab-kas", "project_id": 30, "exp": now() + 60});
    let gitlab = jwt(&[1; 32], &json!({"alg": "HS256", "typ": "JWT"}), &claims);
    let callers = [
        ("job", "ci:7:as-agentk", true),
        ("job", "ci:7:default", true),
        ("job", "ci:7:as-itself", false),
        ("developer", "pat:7:glpat-dev", false),
        ("developer", "pat:7:glpat-agent", true),
        ("developer", "pat:7:glpat-nobody", false),
        ("maintainer, owner", "pat:7:glpat-main", false),
        ("maintainer, owner", "pat:7:glpat-owner", false),
        ("GitLab itself", &gitlab, true),
    ];
    let mut cells = 0;
    for (right, columns) in table() {
        for (column, token, as_agentk) in callers {
            let allowed = allows(columns[column], as_agentk);
            let bearer = format!("Bearer {token}");
            fixture.check(right, &[("authorization", &bearer)], allowed, &format!("{column} {token}")).await;
            cells += 1;
        }
        let of_another_project = allows(columns["job"], false) && columns["job"] != "its own project";
        fixture
            .check(
                right,
                &[("authorization", "Bearer ci:7:other")],
                of_another_project,
                "job of another project",
            )
            .await;
        for (column, name) in [("developer", "dev"), ("maintainer, owner", "main")] {
            let cookie = format!("_gitlab_kas=cookie-{name}");
            let session = [("cookie", cookie.as_str()), ("gitlab-agent-id", "7"), ("x-csrf-token", "csrf")];
            fixture
                .check(right, &session, allows(columns[column], false), &format!("session of {name}"))
                .await;
            cells += 1;
        }
    }
    assert!(cells >= 12 * 11, "{cells}");
    fixture.gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn caller_of_the_file_has_the_right_of_its_entry_and_no_other() {
    let fixture = Fixture::new().await;
    let table = table();
    for (given, _) in &table {
        let rights = match *given {
            ("audit", _) => "services: [], cluster_audit: true".to_owned(),
            ("prometheus.<name>", verb) => {
                format!("services: [{{service: prometheus.thanos, verbs: [{verb}]}}]")
            }
            (service, verb) => format!("services: [{{service: {service}, verbs: [{verb}]}}]"),
        };
        let token = TokenHash::of(&"secret".to_owned().into());
        fixture
            .set_callers(&format!("{{name: me, tokens: ['{token}'], agents: ['gitlab:{AGENT}'], {rights}}}"));
        for (right, _) in &table {
            let bearer = [("authorization", "Bearer secret")];
            fixture.check(*right, &bearer, right == given, &format!("caller with {rights}")).await;
        }
    }
    // Without the agent in its entry, no right matters.
    let token = TokenHash::of(&"secret".to_owned().into());
    for agents in ["['*']", "['gitlab:8']", "['gitlab:shop/**']", "[]"] {
        fixture.set_callers(&format!(
            "{{name: me, tokens: ['{token}'], agents: {agents}, services: ['*'], cluster_audit: false}}"
        ));
        for (right, _) in &table {
            for (method, path) in requests(*right) {
                let request = Request::builder().method(method).uri(format!("/agents/{AGENT}/{path}"));
                let request = request.header("host", "kas").header("authorization", "Bearer secret");
                let response = fixture.world.send(request.body(Body::empty()).unwrap()).await;
                assert_eq!(response.status(), 404, "{agents} {path}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn entry_of_ci_access_changes_the_rights_of_its_jobs() {
    let fixture = Fixture::new().await;
    let services = json!([
        {"service": "gitops", "verbs": ["read", "sync"]}, "events", {"service": "graph", "verbs": []}, "audit"
    ]);
    fixture.gitlab.state().add_job("job", job(3, json!({"access_as": {"ci_job": {}}, "services": services})));
    fixture
        .gitlab
        .state()
        .add_job("invalid", job(4, json!({"services": [{"service": "graph", "verbs": ["sync"]}]})));
    for (right, _) in table() {
        let allowed = matches!(right, ("kubernetes" | "events" | "audit", _) | ("gitops", "read" | "sync"));
        fixture.check(right, &[("authorization", "Bearer ci:7:job")], allowed, "services of ci_access").await;
    }
    // A list that kas cannot read is none of the defaults.
    let request =
        Request::get("/k8s-proxy/api").header("host", "kas").header("authorization", "Bearer ci:7:invalid");
    let response = fixture.world.send(request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 500);
    let body = text(response).await;
    assert!(body.contains("has an invalid list services"), "{body}");
    assert_eq!(fixture.received.load(Relaxed), requests_of_allowed());
}

/// The requests that the agent has received in `entry_of_ci_access_changes_the_rights_of_its_jobs`: kas answers those for events.
fn requests_of_allowed() -> usize {
    [("kubernetes", "use"), ("gitops", "read"), ("gitops", "sync"), ("audit", "read")]
        .into_iter()
        .map(|right| requests(right).len())
        .sum()
}

/// The configuration of each agent, which a test replaces.
#[derive(Debug, Default)]
pub(crate) struct Configured(pub(crate) Mutex<Option<&'static str>>);

impl ConfigurationSource for Configured {
    fn read<'a>(
        &'a self,
        _: &'a AgentIdentity,
        _: Option<&'a FileKey>,
    ) -> BoxFuture<'a, Result<Option<Reading>, ReadError>> {
        let text = *self.0.lock();
        Box::pin(ready(match text {
            None => Err(ReadError::Unavailable("Gitaly is away".to_owned())),
            Some(text) => Ok(Some(Reading::File(ConfigurationFile {
                key: FileKey(text.to_owned()),
                version: "1".to_owned(),
                path: "config.yaml".into(),
                content: Some(text.as_bytes().to_vec()),
                project: None,
                template: None,
            }))),
        }))
    }
}

/// A fleet of two replicas, of which the first one has all tunnels of the agent. Both read the configuration `configured`.
async fn fleet(configured: &Arc<Configured>) -> (StandIn, TestFleet, RunningAgent) {
    let gitlab = StandIn::start().await;
    let mut agent = Agent::new(AGENT, "prod", AGENT_TOKEN);
    // Only a project that has a Gitaly has a configuration, and the test brings it.
    agent.project.gitaly.address.clear();
    gitlab.state().add_agent(agent);
    gitlab.state().users.extend([user(10, "dev", &["developer"]), user(11, "main", &["maintainer"])]);
    let limit = ApiRateLimit::default();
    let fleet = TestFleet::with_gitlab(2, || client(&gitlab, &limit), AGENT_TOKEN);
    for world in &fleet.replicas {
        world.kas.agents.configuration.add_source(Arc::clone(configured) as Arc<dyn ConfigurationSource>);
    }
    let answer = |request: Request<Body>| async move {
        let is_watch = request.uri().path().ends_with("/watch");
        Response::new(if is_watch { endless("first") } else { Body::from("answered") })
    };
    let names = ["kubernetes", "gitops", "graph"];
    let services = names.into_iter().fold(Services::new(), |services, name| services.with_fn(name, answer));
    let agent = fleet.replicas[0].agent(services).await;
    while fleet.store.lookup(AgentId(AGENT)).await.unwrap().routes.is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    (gitlab, fleet, agent)
}

async fn status(world: &World, token: &str, path: &str) -> u16 {
    let request = Request::get(format!("/agents/{AGENT}/{path}")).header("host", "kas");
    let request = request.header("authorization", format!("Bearer {token}"));
    world.send(request.body(Body::empty()).unwrap()).await.status().as_u16()
}

/// Opens a stream, and reads its first part.
async fn open(world: &World, token: &str, path: &str) -> Incoming {
    let request = Request::get(format!("/agents/{AGENT}/{path}")).header("host", "kas");
    let request = request.header("authorization", format!("Bearer {token}")).body(Body::empty()).unwrap();
    let response = world.send(request).await;
    assert_eq!(response.status(), 200, "{path}");
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    body
}

/// Returns whether a stream ends within the time in which rights are checked again.
async fn ends(stream: &mut Incoming) -> bool {
    timeout(Duration::from_secs(150), stream.frame()).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn user_access_changes_the_rights_of_users_at_each_replica() {
    let configured = Arc::new(Configured::default());
    *configured.0.lock() = Some(
        "user_access: {projects: [{id: a/b}], services: [{service: gitops, verbs: [read, sync], minimum_role: developer}, \
         {service: gitops, verbs: [approve]}, {service: graph, minimum_role: owner}]}",
    );
    let (gitlab, fleet, _agent) = fleet(&configured).await;
    for world in &fleet.replicas {
        for (path, developer, maintainer) in [
            ("kubernetes/api", 200, 200),
            ("gitops/v1/projects", 200, 200),
            ("gitops/v1/projects/web/sync", 200, 200),
            ("gitops/v1/projects/web/approve", 403, 200),
            ("gitops/v1/projects/web/suspend", 403, 403),
            ("graph/v1/objects", 403, 403),
            ("events/v1/events", 200, 200),
        ] {
            let statuses =
                [status(world, "pat:7:glpat-dev", path).await, status(world, "pat:7:glpat-main", path).await];
            assert_eq!(statuses, [developer, maintainer], "{path}");
        }
    }

    // A narrower list applies a minute after kas has read it, and ends the streams of those who lose a right.
    *configured.0.lock() =
        Some("user_access: {projects: [{id: a/b}], services: [{service: gitops, verbs: []}]}");
    sleep(Duration::from_secs(360)).await;
    for world in &fleet.replicas {
        assert_eq!(status(world, "pat:7:glpat-main", "gitops/v1/projects").await, 403);
        assert_eq!(status(world, "pat:7:glpat-main", "graph/v1/objects").await, 200);
    }
    gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn caller_of_the_file_reaches_agents_of_a_group_at_each_replica() {
    let configured = Arc::new(Configured(Mutex::new(Some("{}"))));
    let (gitlab, fleet, _agent) = fleet(&configured).await;
    let path = gitlab.state().agents[&AGENT].project.path.clone();
    let (group, _) = path.split_once('/').unwrap();
    let token = TokenHash::of(&"secret".to_owned().into());
    for (agents, expected) in [
        (format!("gitlab:{path}:prod"), 200),
        (format!("gitlab:{group}/**"), 200),
        (format!("gitlab:{}/**", path.to_uppercase()), 200),
        ("gitlab:**".to_owned(), 200),
        (format!("gitlab:{path}:other"), 404),
        (format!("gitlab:{path}x/**"), 404),
    ] {
        for world in &fleet.replicas {
            let callers = format!(
                "callers: [{{name: me, tokens: ['{token}'], agents: ['{agents}'], services: [graph]}}]"
            );
            world.kas.identities.replace(parse(&callers));
            assert_eq!(status(world, "secret", "graph/v1/objects").await, expected, "{agents}");
            assert_eq!(
                status(world, "secret", "kubernetes/api").await,
                if expected == 200 { 403 } else { 404 }
            );
        }
    }
}

/// A program that can write to Redis can move an agent into another project there.
#[tokio::test(start_paused = true)]
async fn forged_record_of_a_project_gives_no_right_to_its_agent() {
    let configured = Arc::new(Configured(Mutex::new(Some("{}"))));
    let (_gitlab, fleet, _agent) = fleet(&configured).await;
    let forged = ProjectAgent {
        agent: AgentId(AGENT),
        name: "prod".parse().unwrap(),
        project: 1,
        project_path: Some("shop/web".into()),
    };
    fleet.store.set_project(forged, fleet.id(0));
    let world = &fleet.replicas[1];
    let token = TokenHash::of(&"secret".to_owned().into());
    for agents in ["gitlab:shop/**", "gitlab:shop/web:prod"] {
        let callers =
            format!("callers: [{{name: me, tokens: ['{token}'], agents: ['{agents}'], services: ['*']}}]");
        world.kas.identities.replace(parse(&callers));
        assert_eq!(status(world, "secret", "graph/v1/objects").await, 404, "{agents}");
    }
}

#[tokio::test(start_paused = true)]
async fn user_has_the_cluster_alone_until_kas_knows_the_configuration() {
    let configured = Arc::new(Configured::default());
    let (_gitlab, fleet, agent) = fleet(&configured).await;
    for world in &fleet.replicas {
        let start = Instant::now();
        assert_eq!(status(world, "pat:7:glpat-main", "kubernetes/api").await, 200);
        assert!(start.elapsed() < Duration::from_secs(1), "nobody waits for a file that cannot be read");
        let request = Request::get("/agents/7/graph/v1/objects").header("host", "kas");
        let request = request.header("authorization", "Bearer pat:7:glpat-main").body(Body::empty()).unwrap();
        let response = world.send(request).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["retry-after"]),
            (503, &"10".parse().unwrap())
        );
        let body = text(response).await;
        assert!(body.contains("kas does not know what user_access.services of the agent says"), "{body}");
    }
    let mut stream = open(&fleet.replicas[1], "pat:7:glpat-main", "kubernetes/watch").await;
    *configured.0.lock() = Some("user_access: {projects: [{id: a/b}]}");
    sleep(Duration::from_secs(360)).await;
    for world in &fleet.replicas {
        assert_eq!(status(world, "pat:7:glpat-main", "graph/v1/objects").await, 200);
    }
    assert!(!ends(&mut stream).await, "the rights have grown");
    // The known list applies while the agent is away.
    agent.stop().await;
    fleet.replicas[0].tunnels(0).await;
    sleep(Duration::from_secs(120)).await;
    for world in &fleet.replicas {
        assert_eq!(status(world, "pat:7:glpat-main", "events/v1/events").await, 200);
        assert_eq!(status(world, "pat:7:glpat-dev", "events/v1/events").await, 503, "not known before");
    }
}

/// The table has each verb of each service that callers can reach.
#[test]
fn table_is_complete() {
    let mut expected = Vec::new();
    for name in ServiceName::OF_CALLERS.into_iter().chain(["events", "prometheus.thanos"]) {
        let service: ServiceName = name.parse().unwrap();
        expected.extend(service.verbs().iter().map(|verb| format!("{service} {verb}")));
    }
    let mut found: Vec<_> = table()
        .into_iter()
        .map(|((service, verb), _)| format!("{} {verb}", service.replace("<name>", "thanos")))
        .collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    for (right, _) in table() {
        let service: ServiceName = right.0.replace("<name>", "thanos").parse().unwrap();
        for (_, path) in requests(right) {
            let path = path.split_once('/').map(|(_, path)| format!("/{path}")).unwrap();
            assert_eq!(Verb::of_request(&service, &path).as_str(), right.1, "{path}");
        }
    }
}
