//! Configurations of agents: from a repository through kas to agentk.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use access::{
    AgentIdentity, ConfigurationSource, FileKey, ReadError, Reading, RepositoryPlace, read_repository,
};
use agentk_core::{AgentMetrics, Services, policy::ScopeEnforcer, services::ConfigurationService};
use futures_util::future::BoxFuture;
use git::{AGENTS_DIRECTORY, Commit, CommitId, FileSelection, Repository, RepositoryError, SelectedFiles};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kas_testing::{
    gitaly::{TestFile, TestGitaly},
    internal_api,
    world::{World, endless, text},
};
use parking_lot::Mutex;
use proto::{AgentId, AgentName};
use secrecy::ExposeSecret as _;
use store::GitPush;
use testing::gitlab::{Agent, Fault, Gitaly, Project, StandIn};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tunnel::Body;

use crate::gitlab_client::{TOKEN, client, standin};

const PATH: &str = ".gitlab/agents/prod/config.yaml";
const PERIOD: Duration = Duration::from_secs(300);

/// A repository in memory.
#[derive(Debug, Default)]
struct MemoryRepository {
    state: Mutex<State>,
    resolved: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    commits: u32,
    files: HashMap<&'static str, String>,
    outage: Option<Outage>,
}

#[derive(Clone, Copy, Debug)]
enum Outage {
    Fails,
    Hangs,
}

impl MemoryRepository {
    fn commit(&self, text: &str) {
        self.commit_as(PATH, text);
    }

    fn commit_as(&self, path: &'static str, text: &str) {
        let mut state = self.state.lock();
        state.commits += 1;
        state.files.insert(path, text.to_owned());
    }

    fn set_outage(&self, outage: Option<Outage>) {
        self.state.lock().outage = outage;
    }

    fn resolved(&self) -> usize {
        self.resolved.load(Relaxed)
    }
}

fn id(commit: u32) -> CommitId {
    format!("{commit:040x}").parse().unwrap()
}

impl Repository for MemoryRepository {
    fn resolve(&self) -> BoxFuture<'_, Result<Option<Commit>, RepositoryError>> {
        self.resolved.fetch_add(1, Relaxed);
        let (commits, outage) = {
            let state = self.state.lock();
            (state.commits, state.outage)
        };
        Box::pin(async move {
            match outage {
                Some(Outage::Fails) => Err(RepositoryError::Unavailable("connection refused".to_owned())),
                Some(Outage::Hangs) => std::future::pending().await,
                None => Ok((commits > 0).then(|| Commit { id: id(commits), branch: "main".to_owned() })),
            }
        })
    }

    fn read_file<'a>(
        &'a self,
        commit: &'a CommitId,
        path: &'a str,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, RepositoryError>> {
        let state = self.state.lock();
        assert_eq!(*commit, id(state.commits));
        let file = state.files.get(path).cloned();
        let result = match file {
            Some(text) if text.len() > max_bytes => {
                Err(RepositoryError::TooLarge { path: path.to_owned(), max_bytes })
            }
            file => Ok(file.map(String::into_bytes)),
        };
        Box::pin(async { result })
    }

    fn read_files<'a>(
        &'a self,
        _: &'a CommitId,
        _: &'a Arc<FileSelection>,
    ) -> BoxFuture<'a, Result<SelectedFiles, RepositoryError>> {
        unreachable!("configurations are single files")
    }

    fn list_agents<'a>(&'a self, _: &'a CommitId) -> BoxFuture<'a, Result<Vec<AgentName>, RepositoryError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

#[derive(Debug)]
struct MemorySource(Arc<MemoryRepository>);

impl ConfigurationSource for MemorySource {
    fn read<'a>(
        &'a self,
        agent: &'a AgentIdentity,
        known: Option<&'a FileKey>,
    ) -> BoxFuture<'a, Result<Option<Reading>, ReadError>> {
        let place =
            RepositoryPlace { name: "memory", directory: AGENTS_DIRECTORY, project: Some("group/agents") };
        Box::pin(
            async move { read_repository(&*self.0, place, &agent.name, known, 128 << 10).await.map(Some) },
        )
    }
}

struct Fixture {
    world: World,
    repository: Arc<MemoryRepository>,
    _agent: kas_testing::world::RunningAgent,
}

impl Fixture {
    /// Starts an agent whose configuration has this text.
    async fn new(text: &str) -> Self {
        let repository = Arc::new(MemoryRepository::default());
        repository.commit(text);
        Self::with(repository, services()).await
    }

    async fn with(repository: Arc<MemoryRepository>, services: Services) -> Self {
        let world = World::new();
        world.kas.agents.configuration.add_source(Arc::new(MemorySource(Arc::clone(&repository))));
        let agent = world.agent(services).await;
        sleep(Duration::from_secs(1)).await;
        Self { world, repository, _agent: agent }
    }

    async fn status(&self, namespace: &str) -> u16 {
        let path = format!("/agents/prod/kubernetes/api/v1/namespaces/{namespace}/pods");
        self.world.get(&path).await.status().as_u16()
    }

    /// Returns the statuses of requests for the namespaces a and b.
    async fn statuses(&self) -> (u16, u16) {
        (self.status("a").await, self.status("b").await)
    }

    fn error(&self) -> Option<String> {
        self.world.kas.agents.configuration.status(AgentId(1)).unwrap().error
    }
}

fn services() -> Services {
    services_with(ScopeEnforcer::new(None, AgentMetrics::default()))
}

fn services_with(scope: ScopeEnforcer) -> Services {
    let scope = Arc::new(scope);
    let configuration = ConfigurationService::new(Arc::clone(&scope), None, AgentMetrics::default());
    cluster().with_scope(&scope).with_handler("configuration", configuration)
}

fn cluster() -> Services {
    Services::new().with_fn("kubernetes", async |request: Request<Body>| match request.uri().query() {
        Some(query) if query.contains("watch") => Response::new(endless("watching")),
        _ => Response::new(Body::from("pods")),
    })
}

const ONLY_A: &str = "scope: {namespaces: [a]}";
const ONLY_B: &str = "scope: {namespaces: [b]}";

#[tokio::test(start_paused = true)]
async fn scope_of_the_repository_is_enforced_by_agentk() {
    let fixture = Fixture::new(ONLY_A).await;
    assert_eq!(fixture.statuses().await, (200, 403));
    let refused = fixture.world.get("/agents/prod/kubernetes/api/v1/nodes").await;
    assert_eq!(refused.headers()["kas-error"], "refused-by-policy");
    let message = text(refused).await;
    assert!(message.contains("the scope is the namespace a, without cluster-scoped objects"), "{message}");
    assert_eq!(fixture.world.get("/agents/prod/kubernetes/apis").await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn next_version_is_read_after_the_poll_period_and_streams_out_of_scope_end() {
    let fixture = Fixture::new("").await;
    let watch = "/agents/prod/kubernetes/api/v1/namespaces/a/pods?watch=true";
    let mut watch = fixture.world.get(watch).await.into_body();
    watch.frame().await.unwrap().unwrap();
    fixture.repository.commit(ONLY_B);
    sleep(PERIOD / 2).await;
    assert_eq!(fixture.statuses().await, (200, 200));
    sleep(PERIOD).await;
    assert_eq!(fixture.statuses().await, (403, 200));
    let end = timeout(Duration::from_secs(5), watch.frame()).await.unwrap();
    assert!(end.is_none_or(|frame| frame.is_err()), "the watch has ended");
}

#[tokio::test(start_paused = true)]
async fn one_poller_serves_all_tunnels_and_unchanged_commits_are_not_read_again() {
    let fixture = Fixture::new(ONLY_A).await;
    assert_eq!(fixture.repository.resolved(), 1, "two tunnels share one reading");
    assert_eq!(fixture.world.metric(r#"kas_agent_configuration_pushes_total{result="ok"}"#), 2.0);
    sleep(PERIOD * 3 / 2).await;
    assert_eq!(fixture.repository.resolved(), 2);
    assert_eq!(fixture.world.metric(r#"kas_agent_configuration_reads_total{result="unchanged"}"#), 1.0);
    assert_eq!(fixture.world.metric(r#"kas_agent_configuration_pushes_total{result="ok"}"#), 2.0);
}

#[tokio::test(start_paused = true)]
async fn push_event_of_the_project_wakes_the_poller() {
    let fixture = Fixture::new(ONLY_A).await;
    fixture.repository.commit(ONLY_B);
    fixture.world.kas.agents.configuration.wake("group/other");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.statuses().await, (200, 403));
    fixture.world.kas.agents.configuration.wake("group/agents");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.statuses().await, (403, 200));
}

#[tokio::test(start_paused = true)]
async fn invalid_file_keeps_the_last_good_one_and_is_shown() {
    let fixture = Fixture::new(ONLY_A).await;
    let version = || fixture.world.kas.agents.configuration.status(AgentId(1)).unwrap().version.unwrap();
    for (bad, expected) in [
        ("scope: {namespace: [b]}", ".gitlab/agents/prod/config.yaml:1:9: scope.namespace: unknown field"),
        (&*"#".repeat(200 << 10), "is larger than 131072 bytes"),
    ] {
        fixture.repository.commit(bad);
        fixture.world.kas.agents.configuration.wake("group/agents");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(fixture.statuses().await, (200, 403));
        let error = fixture.error().unwrap();
        assert!(error.contains(expected), "{error}");
        assert!(version().ends_with('1'));
        assert_eq!(fixture.world.metric("kas_agent_configuration_errors"), 1.0);
    }
    let shown: serde_json::Value =
        serde_json::from_str(&text(internal_api::get(&fixture.world, "/api/v1/agents/prod").await).await)
            .unwrap();
    assert_eq!(shown["configuration"]["error"], fixture.error().unwrap());

    fixture.repository.commit(ONLY_B);
    sleep(PERIOD * 3 / 2).await;
    assert_eq!(fixture.statuses().await, (403, 200));
    assert_eq!((fixture.error(), version().ends_with('4')), (None, true));
    assert_eq!(fixture.world.metric("kas_agent_configuration_errors"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn agentk_keeps_its_configuration_when_it_reconnects_during_an_outage() {
    let fixture = Fixture::new(ONLY_A).await;
    fixture.repository.set_outage(Some(Outage::Fails));
    fixture.world.cut_tunnels();
    fixture.world.tunnels(0).await;
    fixture.world.tunnels(2).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.statuses().await, (200, 403));
    assert!(fixture.error().unwrap().contains("cannot be read: connection refused"));

    fixture.repository.commit(ONLY_B);
    fixture.repository.set_outage(None);
    // Retries after an outage are faster than the poll period.
    sleep(Duration::from_secs(30)).await;
    assert_eq!((fixture.statuses().await, fixture.error()), ((403, 200), None));
}

#[tokio::test(start_paused = true)]
async fn new_tunnel_receives_the_configuration_before_the_first_request() {
    let fixture = Fixture::new(ONLY_A).await;
    // A second process of the agent has no configuration yet.
    let start = Instant::now();
    let _second = fixture.world.agent_with_tunnels(services(), 4).await;
    assert!(start.elapsed() < Duration::from_secs(1));
    for _ in 0..8 {
        assert_eq!(fixture.status("b").await, 403);
    }
}

#[tokio::test(start_paused = true)]
async fn repository_that_hangs_delays_no_request() {
    let repository = Arc::new(MemoryRepository::default());
    repository.set_outage(Some(Outage::Hangs));
    let start = Instant::now();
    let fixture = Fixture::with(Arc::clone(&repository), services()).await;
    assert_eq!(fixture.statuses().await, (200, 200));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    sleep(Duration::from_secs(120)).await;
    assert!(fixture.error().unwrap().contains("no response within 90 s"));
}

/// `agentk --require-scope` while its kas cannot read the configuration: an agent without the flag would serve all namespaces.
#[tokio::test(start_paused = true)]
async fn required_scope_refuses_requests_until_kas_has_sent_it() {
    let repository = Arc::new(MemoryRepository::default());
    repository.set_outage(Some(Outage::Fails));
    let required = ScopeEnforcer::new(None, AgentMetrics::default()).requiring_configured();
    let fixture = Fixture::with(Arc::clone(&repository), services_with(required)).await;
    assert!(fixture.error().unwrap().contains("connection refused"));
    assert_eq!(fixture.statuses().await, (503, 503));
    assert_eq!(fixture.world.get("/agents/prod/kubernetes/apis").await.status(), 200);
    let refused = fixture.world.get("/agents/prod/kubernetes/api/v1/namespaces/a/pods").await;
    assert_eq!(refused.headers()["kas-error"], "scope-awaited");
    assert_eq!(refused.headers()["retry-after"], "5");
    assert!(text(refused).await.contains("--require-scope requires its scope"));

    repository.set_outage(None);
    repository.commit(ONLY_A);
    sleep(PERIOD).await;
    assert_eq!(fixture.statuses().await, (200, 403));
    repository.set_outage(Some(Outage::Fails));
    sleep(PERIOD * 2).await;
    assert_eq!(fixture.statuses().await, (200, 403), "an outage changes nothing any more");
}

#[tokio::test(start_paused = true)]
async fn required_scope_that_is_removed_ends_streams() {
    let repository = Arc::new(MemoryRepository::default());
    repository.commit(ONLY_A);
    let required = ScopeEnforcer::new(None, AgentMetrics::default()).requiring_configured();
    let fixture = Fixture::with(Arc::clone(&repository), services_with(required)).await;
    assert_eq!(fixture.statuses().await, (200, 403));
    let watch = "/agents/prod/kubernetes/api/v1/namespaces/a/pods?watch=true";
    let mut watch = fixture.world.get(watch).await.into_body();
    watch.frame().await.unwrap().unwrap();
    fixture.repository.commit("observability: {logging: {level: info}}");
    sleep(PERIOD * 3 / 2).await;
    let refused = fixture.world.get("/agents/prod/kubernetes/api/v1/namespaces/a/pods").await;
    assert_eq!(refused.headers()["kas-error"], "refused-by-policy");
    assert!(text(refused).await.contains("the configuration of this agent has no scope.namespaces"));
    let end = timeout(Duration::from_secs(5), watch.frame()).await.unwrap();
    assert!(end.is_none_or(|frame| frame.is_err()), "the watch has ended");
}

#[tokio::test(start_paused = true)]
async fn observers_receive_each_configuration_of_an_agent_that_accepts_none() {
    let (repository, world) = (Arc::new(MemoryRepository::default()), World::new());
    let received = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&received);
    world.kas.agents.configuration.add_source(Arc::new(MemorySource(Arc::clone(&repository))));
    world.kas.agents.configuration.add_observer(Arc::new(move |agent, configuration| {
        list.lock().push(format!("{} {configuration}", agent.id));
    }));
    repository.commit(ONLY_A);
    let _agent = world.agent(cluster()).await;
    sleep(Duration::from_secs(1)).await;
    repository.commit(&format!("# the same\n{ONLY_A}"));
    sleep(PERIOD * 3 / 2).await;
    repository.commit(ONLY_B);
    sleep(PERIOD * 3 / 2).await;
    let expected = [r#"1 {"scope":{"namespaces":["a"]}}"#, r#"1 {"scope":{"namespaces":["b"]}}"#];
    assert_eq!(*received.lock(), expected);
    assert_eq!(world.get("/agents/prod/kubernetes/api/v1/namespaces/b/pods").await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn caller_cannot_send_a_configuration() {
    let fixture = Fixture::new(ONLY_A).await;
    for path in ["/agents/prod/configuration/v1/configuration", "/agents/1/configuration"] {
        let mut request = fixture.world.request(path);
        *request.method_mut() = http::Method::PUT;
        *request.body_mut() = Body::from(r#"{"observed":99999999999999,"configuration":{}}"#);
        let response = fixture.world.send(request).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        assert_eq!(response.headers()["kas-error"], "unknown-path");
    }
    assert_eq!(fixture.statuses().await, (200, 403));
}

#[tokio::test(start_paused = true)]
async fn agent_without_a_file_is_no_news_for_observers() {
    let world = World::new();
    let received = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&received);
    world.kas.agents.configuration.add_observer(Arc::new(move |_, _| {
        count.fetch_add(1, Relaxed);
    }));
    let _agent = world.agent(services()).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.metric(r#"kas_agent_configuration_reads_total{result="none"}"#), 1.0);
    assert_eq!(received.load(Relaxed), 0);
}

/// GitLab evaluates `ci_access`, which it receives in this way.
#[tokio::test(start_paused = true)]
async fn configuration_of_an_agent_of_gitlab_is_sent_to_gitlab_until_it_accepts() {
    let gitlab = standin().await;
    let world = World::with_gitlab(client(&gitlab), TOKEN, |_| {});
    let repository = Arc::new(MemoryRepository::default());
    world.kas.agents.configuration.add_source(Arc::new(MemorySource(Arc::clone(&repository))));
    let commit = |group: &str| {
        let text = format!("ci_access: {{groups: [{{id: {group}}}]}}");
        repository.commit_as(".gitlab/agents/production/config.yaml", &text);
    };
    let posted = |group: &str| (42, serde_json::json!({"ci_access": {"groups": [{"id": group}]}}));
    commit("a");
    let _agent = world.agent(cluster()).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(gitlab.state().configurations, [posted("a")]);

    gitlab.set_fault(Fault::Down);
    commit("b");
    world.kas.agents.configuration.wake("group/agents");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(gitlab.state().configurations, [posted("a")]);
    gitlab.set_fault(None);
    sleep(Duration::from_secs(400)).await;
    assert_eq!(gitlab.state().configurations, [posted("a"), posted("b")]);
    gitlab.assert_no_violations();
}

/// In real time, because Gitaly listens on loopback.
#[tokio::test]
async fn configuration_of_an_agent_of_gitlab_comes_from_gitaly_and_a_push_wakes_its_reader() {
    let gitaly = TestGitaly::new();
    let commit = |text: &str| {
        let path = ".gitlab/agents/production/config.yaml";
        gitaly.repository.commit("main", &[(path, TestFile::Content(text.as_bytes()))]);
    };
    commit(ONLY_A);
    let server = gitaly.listen().await;
    let gitlab = StandIn::start().await;
    let mut agent = Agent::new(42, "production", TOKEN);
    agent.project = Project::new(7, "group/project");
    agent.project.relative_path = gitaly.location().relative_path;
    let token = server.token.expose_secret().to_owned();
    let features = server.features.into_iter().collect();
    agent.project.gitaly = Gitaly { address: server.address, token, features };
    gitlab.state().add_agent(agent);

    let world = World::with_gitlab(client(&gitlab), TOKEN, |_| {});
    let (configuration, pushes) = (world.kas.agents.configuration.clone(), world.kas.agents.store.pushes());
    let _follower =
        AbortOnDropHandle::new(tokio::spawn(async move { configuration.follow_pushes(pushes).await }));
    let _agent = world.agent(services()).await;
    let version = || world.kas.agents.configuration.status(AgentId(42)).and_then(|status| status.version);
    let becomes = async |different_from: Option<String>| {
        let changed = async {
            while version() == different_from {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(30), changed).await.unwrap();
        version()
    };
    let first = becomes(None).await;
    commit(ONLY_B);
    world.kas.agents.store.send_push(GitPush::new(7, "group/project").unwrap());
    assert_ne!(becomes(first.clone()).await, first);

    let posted = gitlab.state().configurations.first().cloned();
    assert_eq!(posted, Some((42, serde_json::json!({"scope": {"namespaces": ["a"]}}))));
    gitlab.assert_no_violations();
}
