//! All agents of a caller in one answer: each caller sees what it may, and an agent that hangs delays nobody beyond the deadline.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{future::ready, path::Path, time::Duration};

use access::{
    kill_switch::file,
    token::{self, Holder, TokenHash},
};
use agentk_core::Services;
use http::{Method, Request, Response, StatusCode};
use kas_gitlab::ApiRateLimit;
use kas_testing::{
    gitlab::client,
    internal_api,
    world::{RunningAgent, World, endless, parse, text},
};
use secrecy::SecretString;
use serde_json::{Value, json};
use testing::gitlab::{Agent, AgentAccess, Job, Membership, StandIn, User};
use tokio::time::Instant;
use tunnel::Body;

use crate::audit::{audit, lines};

const FLEET: &str = "/agents/fleet";
const PATHS: [&str; 3] = ["shop/web", "shop/eu/api", "bank/core"];

/// A kas with the agents 7, 8 and 9 of GitLab in three projects, and the agent `edge` of the identity file.
pub(crate) struct Setup {
    pub(crate) gitlab: StandIn,
    pub(crate) world: World,
    agents: Vec<RunningAgent>,
    edge: SecretString,
}

impl Setup {
    pub(crate) async fn new() -> Self {
        let gitlab = StandIn::start().await;
        for (id, path) in (7..).zip(PATHS) {
            let mut agent = Agent::new(id, "prod", &format!("glagent-{id}"));
            path.clone_into(&mut agent.project.path);
            gitlab.state().add_agent(agent);
        }
        let both = Job::new(3, 30).with_agent(7, json!({"access_as": {"ci_job": {}}}));
        let both = both.with_agent(9, json!({"access_as": {"ci_job": {}}}));
        gitlab.state().add_job("job", both);
        let without = Job::new(4, 30).with_agent(
            7,
            json!({"access_as": {"ci_job": {}}, "services": [{"service": "graph", "verbs": []}]}),
        );
        gitlab.state().add_job("narrow", without);
        let roles = vec![Membership { id: 30, roles: vec!["developer".into()] }];
        let access = AgentAccess::User { projects: roles, groups: Vec::new() };
        let alice = User::new(5, "alice").with_token("glpat-a").with_access(8, access);
        gitlab.state().users.push(alice);
        let world = World::with_gitlab(client(&gitlab, &ApiRateLimit::default()), "glagent-7", |_| {});
        let edge = token::new(Holder::Agent);
        Self { gitlab, world, agents: Vec::new(), edge }
    }

    /// Starts the agents, each with three nodes.
    async fn started() -> Self {
        let mut setup = Self::new().await;
        for agent in ["glagent-7", "glagent-8", "glagent-9"] {
            setup.start(agent, "", services(3)).await;
        }
        setup
    }

    /// Starts an agent with this token in a cluster with this UID.
    pub(crate) async fn start(&mut self, token: impl Into<SecretString>, cluster: &str, services: Services) {
        let world = self.world.with_agent_token(token.into());
        let agent = match cluster {
            "" => world.start_agent(services),
            cluster => world.start_agent_in(cluster, services),
        };
        self.agents.push(agent);
        self.world.tunnels(2 * i64::try_from(self.agents.len()).unwrap()).await;
    }

    /// Replaces the identity file by one with `edge` and with a caller that has these keys. Returns the token of the caller.
    pub(crate) fn caller(&self, keys: &str) -> String {
        let caller = "caller-token";
        let text = format!(
            "agents: [{{id: 1, name: edge, tokens: ['{}']}}]\ncallers: [{{name: me, tokens: ['{}'], {keys}}}]",
            TokenHash::of(&self.edge),
            TokenHash::of(&SecretString::from(caller)),
        );
        self.world.kas.identities.replace(parse(&text));
        caller.to_owned()
    }

    pub(crate) async fn get(&self, path: &str, token: &str) -> (StatusCode, Value) {
        let request =
            Request::get(path).header("host", "kas").header("authorization", format!("Bearer {token}"));
        let response = self.world.send(request.body(Body::empty()).unwrap()).await;
        let status = response.status();
        (status, serde_json::from_str(&text(response).await).unwrap())
    }

    pub(crate) async fn fleet(&self, path: &str, token: &str) -> Value {
        let (status, body) = self.get(path, token).await;
        assert_eq!(status, 200, "{body}");
        body
    }

    /// Returns the clusters of a fleet by the names of their agents, each with its nodes or the reason why it has none.
    async fn clusters(&self, path: &str, token: &str) -> Vec<(String, String)> {
        let fleet = self.fleet(path, token).await;
        let clusters = fleet["clusters"].as_array().unwrap().iter();
        let describe = |cluster: &Value| match &cluster["capacity"]["nodes"]["all"] {
            Value::Null => cluster["missing"].as_str().unwrap().to_owned(),
            nodes => nodes.to_string(),
        };
        clusters.map(|cluster| (cluster["name"].as_str().unwrap().to_owned(), describe(cluster))).collect()
    }
}

/// A cluster with some nodes, whose requests have the identity of their caller.
fn services(nodes: u64) -> Services {
    Services::new().with_fn("graph", move |request: Request<Body>| {
        assert_eq!(request.uri(), "/v1/capacity");
        let amounts = |cpu: u64| json!({"cpu_millicores": cpu, "memory_bytes": cpu});
        let user = request.headers().get("impersonate-user").map(|user| user.to_str().unwrap().to_owned());
        let counts = json!({"all": nodes, "ready": nodes, "unschedulable": 0});
        let partial = user.into_iter().collect::<Vec<_>>();
        let answer = json!({"nodes": counts, "allocatable": amounts(nodes * 4000), "requested": amounts(nodes * 1000), "partial": partial});
        ready(Response::new(Body::from(answer.to_string())))
    })
}

fn answering(answer: fn() -> Response<Body>) -> Services {
    Services::new().with_fn("graph", move |_: Request<Body>| ready(answer()))
}

fn names(clusters: &[(String, String)]) -> Vec<&str> {
    clusters.iter().map(|(name, _)| &**name).collect()
}

#[tokio::test(start_paused = true)]
async fn each_caller_sees_the_clusters_that_it_may_read() {
    let mut setup = Setup::started().await;
    let caller = setup.caller("agents: [edge, 'gitlab:shop/**'], services: [graph]");
    let edge = setup.edge.clone();
    setup.start(edge, "", services(1)).await;
    for (path, token, expected) in [
        (FLEET, &*caller, &["edge", "7", "8"][..]),
        ("/agents/fleet?group=shop", &caller, &["7", "8"]),
        ("/agents/fleet?group=shop/eu", &caller, &["8"]),
        ("/agents/fleet?project=shop/web", &caller, &["7"]),
        ("/agents/fleet?group=bank", &caller, &[]),
        ("/agents/fleet?name=edge&id=1", &caller, &["edge"]),
        (FLEET, "ci:7:job", &["7", "9"]),
        (FLEET, "ci:9:job", &["7", "9"]),
        ("/agents/fleet?group=shop", "ci:9:job", &["7"]),
        (FLEET, "pat:8:glpat-a", &["8"]),
    ] {
        let clusters = setup.clusters(path, token).await;
        assert_eq!(names(&clusters), expected, "{path} {token}");
        assert!(
            clusters.iter().all(|(name, nodes)| nodes == if name == "edge" { "1" } else { "3" }),
            "{clusters:?}"
        );
    }
    // The request to each cluster is one of the job itself.
    let fleet = setup.fleet(FLEET, "ci:7:job").await;
    for cluster in fleet["clusters"].as_array().unwrap() {
        assert_eq!(cluster["capacity"]["partial"], json!(["gitlab:ci_job:3"]));
    }
    let narrow = setup.clusters(FLEET, "ci:7:narrow").await;
    assert_eq!(
        narrow,
        [("7".to_owned(), "the caller may not read the service graph of this agent".to_owned())]
    );
    setup.gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn list_of_agents_has_what_kas_knows_without_asking_a_cluster() {
    let mut setup = Setup::started().await;
    setup.agents.remove(2).stop().await;
    let caller =
        setup.caller("agents: ['*', 'gitlab:**'], services: [graph, {service: gitops, verbs: [read]}]");
    let (status, list) = setup.get("/agents", &caller).await;
    assert_eq!(status, 200, "{list}");
    let line = |agent: &Value| {
        let text = |key: &str| agent[key].as_str().unwrap_or("-").to_owned();
        format!("{} {} {} {}", text("name"), text("title"), text("project"), text("state"))
    };
    let agents = list["agents"].as_array().unwrap();
    let expected =
        ["edge - - never", "7 shop/web:prod shop/web connected", "8 shop/eu/api:prod shop/eu/api connected"];
    assert_eq!(agents.iter().map(line).collect::<Vec<_>>(), expected);
    assert_eq!(agents[1]["rights"], json!({"gitops": ["read"], "graph": ["read"]}));
    assert_eq!(
        (&agents[1]["tunnels"], &agents[1]["agentk_versions"]),
        (&json!(2), &json!([env!("CARGO_PKG_VERSION")]))
    );
    assert_eq!(list["continue"], Value::Null);

    let (_, page) = setup.get("/agents?limit=1&group=shop", &caller).await;
    assert_eq!((&page["agents"][0]["id"], &page["continue"]), (&json!(7), &json!("7")));
    let (_, page) = setup.get("/agents?limit=1&group=shop&continue=7", &caller).await;
    assert_eq!((&page["agents"][0]["id"], &page["continue"]), (&json!(8), &Value::Null));
    let (_, of_job) = setup.get("/agents", "ci:9:job").await;
    let ids: Vec<&Value> = of_job["agents"].as_array().unwrap().iter().map(|agent| &agent["id"]).collect();
    assert_eq!(ids, [7, 9], "9 is away, and the job may use it");
    assert_eq!(of_job["agents"][0]["rights"]["graph"], json!(["read"]));
}

#[tokio::test(start_paused = true)]
async fn request_that_is_not_allowed_is_refused_with_its_reason() {
    let setup = Setup::started().await;
    let caller =
        setup.caller("agents: ['gitlab:**'], services: [graph], allowed_networks: [198.51.100.0/24]");
    for (path, token, status, expected) in [
        (FLEET, "unknown", 401, "unknown or was revoked"),
        (FLEET, "ci:7:other", 401, "CI job token"),
        (FLEET, "pat:7:glpat-a", 403, "user_access"),
        (FLEET, &*caller, 403, "requests from"),
        ("/agents", &caller, 403, "requests from"),
        ("/agents/fleet?groups=shop", "ci:7:job", 400, "\"groups\" is not a parameter"),
        ("/agents/fleet?project=7", "ci:7:job", 400, "project: write the path"),
        ("/agents?limit=501", "ci:7:job", 400, "limit"),
        ("/agents/other", "ci:7:job", 404, "there is nothing at this path"),
    ] {
        let (actual, body) = setup.get(path, token).await;
        assert_eq!(actual, status, "{path} {token}: {body}");
        assert!(body["message"].as_str().unwrap().contains(expected), "{body}");
    }
    let post = Request::builder().method(Method::POST).uri(FLEET).header("host", "kas");
    let post = post.header("authorization", "Bearer ci:7:job").body(Body::empty()).unwrap();
    assert_eq!(setup.world.send(post).await.status(), 405);

    let rules = "rules: [{agent: 'shop/web:prod', reason: incident 7}]";
    setup.world.kas.callers.kill_switch.set_file(file::parse(Path::new("disabled.yaml"), rules).unwrap());
    let clusters = setup.clusters(FLEET, "ci:7:job").await;
    assert!(clusters[0].1.contains("incident 7") && clusters[1].1 == "3", "{clusters:?}");
    let rules = "rules: [{all: true, reason: incident 8}]";
    setup.world.kas.callers.kill_switch.set_file(file::parse(Path::new("disabled.yaml"), rules).unwrap());
    assert_eq!(setup.get("/agents", "ci:7:job").await.0, 503);
}

#[tokio::test(start_paused = true)]
async fn list_of_a_job_with_too_many_agents_says_so() {
    let setup = Setup::new().await;
    let with_agent = |job: Job, id| job.with_agent(id, json!({"access_as": {"ci_job": {}}}));
    let job = (1000..2001).fold(Job::new(6, 30), with_agent);
    setup.gitlab.state().add_job("many", job);
    let (status, list) = setup.get("/agents?limit=1", "ci:1000:many").await;
    assert_eq!(status, 200, "{list}");
    let missing = list["missing"].as_str().unwrap();
    assert!(missing.contains("at most 1000 agents of a job, and it may use 1 more"), "{missing}");
    // It is no error of Redis, and another attempt has the same limit.
    for path in ["/agents?name=none", "/agents/fleet?name=none"] {
        let (status, list) = setup.get(path, "ci:1000:many").await;
        assert_eq!(status, 200, "{path}: {list}");
        assert!(list["missing"].as_str().unwrap().contains("at most 1000 agents of a job"), "{path}: {list}");
    }
}

#[tokio::test(start_paused = true)]
async fn list_of_agents_is_in_the_audit_log_with_its_caller() {
    let setup = Setup::started().await;
    let caller = setup.caller("agents: ['gitlab:**'], services: [graph]");
    let sink = audit(&setup.world);
    assert_eq!(setup.get("/agents", &caller).await.0, 200);
    let listed = lines(&setup.world, &sink).await;
    assert_eq!(listed.len(), 1, "{listed:?}");
    let facts = |line: &Value| {
        ["caller", "path", "decision", "status"].map(|key| line[key].to_string().replace('"', ""))
    };
    assert_eq!(listed[0]["events"], json!(["agent-list"]));
    assert_eq!(facts(&listed[0]), ["me", "/agents", "allow", "200"]);

    assert_eq!(setup.get("/agents?limit=501", &caller).await.0, 400);
    assert_eq!(setup.get("/agents/fleet?groups=shop", &caller).await.0, 400);
    let wrong = lines(&setup.world, &sink).await;
    let expected = [["me", "/agents", "allow", "400"], ["me", "/agents/fleet", "allow", "400"]];
    assert_eq!(wrong.iter().map(facts).collect::<Vec<_>>(), expected);
    assert!(wrong.iter().all(|line| line["events"] == json!(["agent-list"])), "{wrong:?}");

    let rules = "rules: [{caller: me, reason: incident 9}]";
    setup.world.kas.callers.kill_switch.set_file(file::parse(Path::new("disabled.yaml"), rules).unwrap());
    assert_eq!(setup.get("/agents", &caller).await.0, 503);
    let refused = lines(&setup.world, &sink).await;
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(refused[0]["events"], json!(["refusal"]));
    assert_eq!(facts(&refused[0]), ["me", "/agents", "deny", "503"]);
}

#[tokio::test(start_paused = true)]
async fn agent_that_misbehaves_is_missing_and_delays_nobody_beyond_the_deadline() {
    type Answer = fn() -> Response<Body>;
    let cases: [(Answer, &str); 4] = [
        (|| Response::new(endless("{")), "did not respond within 12 s"),
        (|| Response::new(Body::from("x".repeat(200 << 10))), "ended early"),
        (|| Response::new(Body::from("[]")), "is not a capacity"),
        (|| Response::builder().status(500).body(Body::from("no")).unwrap(), "500"),
    ];
    for (answer, expected) in cases {
        let mut setup = Setup::new().await;
        setup.start("glagent-7", "", answering(answer)).await;
        setup.start("glagent-9", "", services(3)).await;
        let start = Instant::now();
        let clusters = setup.clusters(FLEET, "ci:7:job").await;
        assert!(start.elapsed() <= Duration::from_secs(13), "{:?}", start.elapsed());
        assert!(clusters[0].1.contains(expected), "{expected}: {clusters:?}");
        assert_eq!(clusters[1].1, "3", "the other one has answered");
    }
    let mut setup = Setup::new().await;
    setup
        .start("glagent-7", "", Services::new().with_fn("kubernetes", async |_| Response::new(Body::empty())))
        .await;
    let clusters = setup.clusters(FLEET, "ci:7:job").await;
    assert!(clusters[0].1.contains("graph"), "an agent without the service: {clusters:?}");
    assert_eq!(clusters[1].1, "the agent is not connected");
}

#[tokio::test(start_paused = true)]
async fn caller_has_one_answer_at_a_time() {
    let mut setup = Setup::new().await;
    setup.start("glagent-7", "", answering(|| Response::new(endless("{")))).await;
    let sink = audit(&setup.world);
    let (first, second) = tokio::join!(setup.get(FLEET, "ci:7:job"), setup.get(FLEET, "ci:7:job"));
    let mut statuses = [first.0.as_u16(), second.0.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 429]);
    let mut audited = lines(&setup.world, &sink).await;
    audited.retain(|line| line["events"].as_array().unwrap().contains(&json!("agent-list")));
    let mut audited: Vec<_> = audited.iter().map(|line| line["status"].as_u64().unwrap()).collect();
    audited.sort_unstable();
    assert_eq!(audited, [200, 429], "both requests are in the audit log");
    assert_eq!(setup.get(FLEET, "ci:7:job").await.0, 200, "the other one has ended");
}

#[tokio::test(start_paused = true)]
async fn program_sees_all_clusters_and_two_agents_of_one_count_once() {
    let mut setup = Setup::new().await;
    setup.start("glagent-7", "uid-a", services(3)).await;
    setup.start("glagent-8", "uid-a", services(3)).await;
    setup.start("glagent-9", "uid-b", services(2)).await;
    let get = async |path: &str| -> Value {
        serde_json::from_str(&text(internal_api::get(&setup.world, path).await).await).unwrap()
    };
    let fleet = get("/api/v1/fleet").await;
    assert_eq!(fleet["agents"], json!({"all": 4, "connected": 3, "answered": 3}));
    let nodes = json!({"all": 5, "ready": 5, "unschedulable": 0});
    assert_eq!((&fleet["total"]["clusters"], &fleet["total"]["nodes"]), (&json!(2), &nodes));
    assert_eq!(fleet["total"]["allocatable"]["cpu_millicores"], 20_000);
    assert_eq!(fleet["clusters"][1]["title"], "shop/web:prod");
    let ids = |fleet: &Value| -> Vec<u64> {
        fleet["clusters"].as_array().unwrap().iter().map(|cluster| cluster["id"].as_u64().unwrap()).collect()
    };
    assert_eq!(ids(&get("/api/v1/fleet?group=shop").await), [7, 8]);
    assert_eq!(ids(&get("/api/v1/fleet?project=bank/core").await), [9]);
    assert!(
        get("/api/v1/fleet?limit=1").await["message"]
            .as_str()
            .unwrap()
            .contains("\"limit\" is not a parameter")
    );
    let agents = get("/api/v1/agents?group=shop").await;
    let paths: Vec<&Value> =
        agents["agents"].as_array().unwrap().iter().map(|agent| &agent["project"]).collect();
    assert_eq!(paths, ["shop/web", "shop/eu/api"]);
}
