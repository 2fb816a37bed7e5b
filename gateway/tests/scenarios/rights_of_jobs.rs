//! The sync of a GitOps project by the jobs of the project of GitLab in which its manifests are.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{path::Path, sync::Arc, time::Duration};

use access::ConfigurationSource;
use agentk_core::Services;
use http::{Request, Response};
use kas_gitlab::ApiRateLimit;
use kas_gitops::GitopsConfig;
use kas_testing::{
    fleet::TestFleet,
    gitlab::{AGENT, AGENT_TOKEN, client},
    world::{RunningAgent, World, text},
};
use parking_lot::Mutex;
use proto::AgentId;
use serde_json::{Value, json};
use store::RouteStore as _;
use testing::gitlab::{Agent, Endpoint, Fault, Job, Project, StandIn};
use tokio::time::{Instant, sleep};
use tunnel::Body;

use crate::set_configuration::Configuration;

/// The GitOps projects of the agent. The first one is in the project with the configuration, which is `group/agents`.
const PROJECTS: &str = "gitops: {manifest_projects: [{}, {id: shop/web}, {name: web-eu, id: Shop/WEB}, {name: web-old, id: old/web}, \
                        {id: shop/api}, {name: web, id: shop/api}, {id: shop/private}, {id: operators}]}";
/// The ids of projects of GitLab: that with the configuration, `shop/web` and `shop/api`.
const OWN: u64 = AGENT + 100;
const WEB: u64 = 30;
const API: u64 = 31;
/// The time after which kas asks GitLab again about a project or a job.
const TTL: Duration = Duration::from_secs(61);

struct Fixture {
    gitlab: StandIn,
    fleet: TestFleet,
    agent: Option<RunningAgent>,
    received: Received,
}

/// The requests to the service `gitops` that reached the agent, each with its method and path.
type Received = Arc<Mutex<Vec<String>>>;

impl Fixture {
    /// Starts two replicas, of which the first one has all tunnels of the agent.
    async fn new() -> Self {
        let gitlab = StandIn::start().await;
        let mut agent = Agent::new(AGENT, "prod", AGENT_TOKEN);
        // The test brings the configuration in place of Gitaly.
        agent.project.gitaly.address.clear();
        gitlab.state().add_agent(agent);
        let mut web = project(WEB, "shop/web");
        web.former_paths.push("old/web".to_owned());
        gitlab.state().projects = vec![web, project(API, "shop/api")];
        for (token, project) in [("own", OWN), ("web", WEB), ("api", API)] {
            add_job(&gitlab, token, project, json!({"access_as": {"ci_job": {}}}));
        }
        let limit = ApiRateLimit::default();
        let gitops = repositories();
        let fleet = TestFleet::with_gitlab_and(
            2,
            || client(&gitlab, &limit),
            AGENT_TOKEN,
            |config| config.agent.gitops = gitops.clone(),
        );
        let configuration = Configuration::default();
        configuration.set(PROJECTS);
        for world in &fleet.replicas {
            let source = Arc::new(configuration.clone()) as Arc<dyn ConfigurationSource>;
            world.kas.agents.configuration.add_source(source);
        }
        let received = Received::default();
        let agent = fleet.replicas[0].agent(services(&received)).await;
        while fleet.store.lookup(AgentId(AGENT)).await.unwrap().routes.is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(Duration::from_secs(1)).await;
        Self { gitlab, fleet, agent: Some(agent), received }
    }

    /// Returns the status and the text of a command about a GitOps project, by the job with this token. Both replicas answer the same, and
    /// the agent receives the command only if the answer is 200.
    async fn command(&self, token: &str, name: &str, command: &str) -> (u16, String) {
        let path = format!("/agents/{AGENT}/gitops/v1/projects/{name}/{command}");
        let [first, second] = &self.fleet.replicas[..] else { panic!("there are two replicas") };
        self.received.lock().clear();
        let (of_first, of_second) = (post(first, token, &path).await, post(second, token, &path).await);
        assert_eq!(of_first.0, of_second.0, "{token} {path}: {of_first:?} and {of_second:?}");
        let mut received = self.received.lock().clone();
        received.retain(|request| request.starts_with("POST "));
        let expected = if of_second.0 == 200 { 2 } else { 0 };
        assert_eq!(received.len(), expected, "{token} {path}: {received:?}");
        of_second
    }

    async fn sync(&self, token: &str, name: &str) -> u16 {
        self.command(token, name, "sync").await.0
    }
}

fn project(id: u64, path: &str) -> Project {
    let mut project = Project::new(id, path);
    project.gitaly.address = "unix:/nonexistent".to_owned();
    project
}

fn add_job(gitlab: &StandIn, token: &str, project: u64, configuration: Value) {
    gitlab.state().add_job(token, Job::new(project, project).with_agent(AGENT, configuration));
}

/// A repository of the operator, which is that of no project of GitLab.
fn repositories() -> GitopsConfig {
    let file = Path::new("kas.yaml");
    let text =
        format!("repositories: [{{id: operators, agents: [{AGENT}], repository: {{url: /srv/o.git}}}}]");
    let mut config: GitopsConfig = settings::parse(file, &text).unwrap();
    config.validate(file).unwrap();
    config
}

fn services(received: &Received) -> Services {
    let received = Arc::clone(received);
    let gitops = move |request: Request<Body>| {
        received.lock().push(format!("{} {}", request.method(), request.uri()));
        async { Response::new(Body::from("answered")) }
    };
    let manifests = |_: Request<Body>| async { Response::new(Body::from("answered")) };
    Services::new().with_fn("gitops", gitops).with_fn("manifests", manifests)
}

async fn post(world: &World, token: &str, path: &str) -> (u16, String) {
    let request = Request::post(path).header("host", "kas");
    let request = request.header("authorization", format!("Bearer ci:{AGENT}:{token}"));
    let response = world.send(request.body(Body::empty()).unwrap()).await;
    (response.status().as_u16(), text(response).await)
}

#[tokio::test(start_paused = true)]
async fn job_syncs_what_comes_from_its_own_project_and_nothing_else() {
    let fixture = Fixture::new().await;
    for (token, allowed) in
        [("web", &["shop%2Fweb", "web-eu", "web-old"][..]), ("api", &["shop%2Fapi", "web"])]
    {
        for name in [
            "shop%2Fweb",
            "web-eu",
            "web-old",
            "shop%2Fapi",
            "web",
            // GitLab does not show it to the agent, and kas reads the next one from a repository of the operator.
            "shop%2Fprivate",
            "operators",
            // The agent syncs nothing under these names: they are compared byte by byte.
            "Shop%2FWEB",
            "shop%252Fweb",
            "shop%2Fweb%2F",
            "30",
            "",
            &"a".repeat(300),
        ] {
            let (status, body) = fixture.command(token, name, "sync").await;
            if allowed.contains(&name) {
                assert_eq!(status, 200, "{token} {name}: {body}");
            } else {
                assert_eq!(status, 403, "{token} {name}: {body}");
                assert!(body.contains("may not sync"), "{body}");
                assert!(body.contains("from the job's own project, and nothing else"), "{body}");
            }
        }
        for command in ["suspend", "resume", "approve", "prune", "sync/", "s%79nc", "diff/sync"] {
            assert_eq!(fixture.command(token, "shop%2Fweb", command).await.0, 403, "{token} {command}");
        }
    }
    fixture.gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn job_of_the_project_with_the_configuration_syncs_the_manifests_there() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.sync("own", "group%2Fagents").await, 503, "GitLab has not said where it is");
    // From now on GitLab says where it is, which kas learns when it asks again about the agent.
    let agent = |state: &mut testing::gitlab::State| {
        let agent = state.agents.get_mut(&AGENT).unwrap();
        agent.project.gitaly.address = "unix:/nonexistent".to_owned();
    };
    agent(&mut fixture.gitlab.state());
    sleep(Duration::from_secs(330)).await;
    assert_eq!(fixture.sync("own", "group%2Fagents").await, 200);
    assert_eq!(fixture.sync("web", "group%2Fagents").await, 403);
    assert_eq!(fixture.sync("own", "shop%2Fweb").await, 403);
}

/// The path of a project can become that of another one.
#[tokio::test(start_paused = true)]
async fn job_loses_the_sync_when_the_path_becomes_that_of_another_project() {
    let fixture = Fixture::new().await;
    assert_eq!(
        [fixture.sync("web", "shop%2Fweb").await, fixture.sync("api", "shop%2Fweb").await],
        [200, 403]
    );
    fixture.gitlab.state().projects = vec![project(WEB, "shop/moved"), project(API, "shop/web")];
    sleep(TTL).await;
    assert_eq!(
        [fixture.sync("web", "shop%2Fweb").await, fixture.sync("api", "shop%2Fweb").await],
        [403, 200]
    );
}

#[tokio::test(start_paused = true)]
async fn element_for_gitops_replaces_the_sync_of_the_own_project() {
    let fixture = Fixture::new().await;
    for (services, own, other) in [
        (json!([{"service": "gitops", "verbs": ["read"]}]), 403, 403),
        (json!([{"service": "gitops", "verbs": []}]), 403, 403),
        (json!([{"service": "gitops", "verbs": ["read", "sync"]}]), 200, 200),
        (json!(["graph"]), 200, 403),
        (json!([]), 200, 403),
    ] {
        add_job(&fixture.gitlab, "job", WEB, json!({"services": services}));
        sleep(TTL).await;
        let statuses = [fixture.sync("job", "shop%2Fweb").await, fixture.sync("job", "shop%2Fapi").await];
        assert_eq!(statuses, [own, other], "{services}");
    }
}

/// A command goes to two replicas, and each of them waits for 5 s.
#[tokio::test(start_paused = true)]
async fn sync_without_an_answer_or_without_gitops_is_refused_within_five_seconds() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.sync("web", "shop%2Fapi").await, 403);
    // GitLab confirms the job. Then it hangs before the question about the project.
    sleep(TTL).await;
    assert_eq!(fixture.command("web", "shop%2Fapi", "suspend").await.0, 403);
    fixture.gitlab.set_fault(Fault::Slow(Duration::from_secs(600)));
    let start = Instant::now();
    let (status, body) = fixture.command("web", "shop%2Fweb", "sync").await;
    assert_eq!(status, 503, "{body}");
    assert!(
        body.contains("kas does not know whether the manifests are in the project of this job"),
        "{body}"
    );
    assert!(start.elapsed() < Duration::from_secs(11), "{:?}", start.elapsed());
    fixture.gitlab.set_fault(None);
    sleep(TTL).await;
    assert_eq!(fixture.sync("web", "shop%2Fweb").await, 200);

    // Without the agent, kas does not know its GitOps projects.
    fixture.agent.take().unwrap().stop().await;
    fixture.fleet.replicas[0].tunnels(0).await;
    let start = Instant::now();
    let (status, body) = fixture.command("web", "shop%2Fweb", "sync").await;
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("the agent is not connected"), "{body}");
    assert!(start.elapsed() < Duration::from_secs(11), "{:?}", start.elapsed());

    // An agentk without GitOps has no projects, and says so at both replicas.
    let without =
        Services::new().with_fn("kubernetes", |_: Request<Body>| async { Response::new(Body::empty()) });
    fixture.agent = Some(fixture.fleet.replicas[0].agent(without).await);
    while fixture.fleet.store.lookup(AgentId(AGENT)).await.unwrap().routes.is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    let (status, body) = fixture.command("web", "shop%2Fweb", "sync").await;
    assert_eq!(status, 404, "{body}");
    assert!(body.contains("runs without GitOps"), "{body}");
    assert!(body.contains("or use the agentk of kas in place of GitLab's"), "{body}");
}

#[tokio::test(start_paused = true)]
async fn syncs_of_a_project_share_one_question() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.sync("web", "shop%2Fapi").await, 403);
    // GitLab confirms the job, and kas does not know the project any more.
    sleep(TTL).await;
    assert_eq!(fixture.command("web", "shop%2Fapi", "suspend").await.0, 403);
    let questions = || fixture.gitlab.requests(Endpoint::ProjectInfo);
    fixture.gitlab.set_fault(Fault::Slow(Duration::from_secs(2)));
    let path = format!("/agents/{AGENT}/gitops/v1/projects/shop%2Fweb/sync");
    let before = questions();
    let many = (0..24).map(|number| post(&fixture.fleet.replicas[number % 2], "web", &path));
    let answers = futures_util::future::join_all(many).await;
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    // The looks of the agent have questions of their own.
    assert!(questions() - before < 12, "{}", questions() - before);
}
