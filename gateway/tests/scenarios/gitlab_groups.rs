//! The environments of all projects of a group of GitLab in one answer, against the stand-in.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{sync::Arc, time::Duration};

use environments_wire::{EnvironmentSource, EnvironmentSources};
use http::StatusCode;
use kas_environments::EnvironmentFile;
use kas_gitlab::{CacheTtls, GitLabEnvironments};
use kas_testing::{
    internal_api::{self, connect_with, send_over, valid_request},
    world::{World, text},
};
use serde_json::Value;
use testing::gitlab::{Endpoint, Fault, Project, StandIn, User};
use tokio::time::{Instant, advance};

use crate::gitlab_client::client;

const TTLS: CacheTtls = CacheTtls { responses: Duration::from_secs(60), errors: Duration::from_secs(10) };
const SHOP: &str = "/api/v1/environments?group=shop";
const ALICE: Option<&str> = Some("glpat-a");
const BOB: Option<&str> = Some("glpat-b");

/// A kas with GitLab, where alice may read three projects of the group `shop`, and bob one of them and one of another group.
struct Setup {
    gitlab: StandIn,
    world: World,
    sources: EnvironmentSources,
}

impl Setup {
    async fn new() -> Self {
        let gitlab = StandIn::start().await;
        let projects = [
            Project::new(30, "shop/web")
                .with_environment(1, "production/us-1", "production", (7, "web"))
                .with_environment(2, "review/a", "development", (8, "review")),
            Project::new(31, "shop/eu/api").with_environment(3, "production/eu/a", "production", (7, "api")),
            Project::new(32, "shop/empty"),
            Project::new(33, "shopping/web").with_environment(4, "production/us-2", "production", (7, "x")),
        ];
        let alice = User::new(5, "alice").with_project("glpat-a", 30);
        let alice = alice.with_project("glpat-a", 31).with_project("glpat-a", 32);
        let bob = User::new(6, "bob").with_project("glpat-b", 31).with_project("glpat-b", 33);
        let mut state = gitlab.state();
        state.projects.extend(projects);
        state.users.extend([alice, bob.with_token("glpat-narrow")]);
        drop(state);
        let source: Arc<dyn EnvironmentSource> = Arc::new(GitLabEnvironments::new(client(&gitlab), TTLS));
        Self { gitlab, world: World::new(), sources: EnvironmentSources(vec![source]) }
    }

    async fn get(&self, path: &str, token: Option<&str>) -> (StatusCode, Value) {
        let mut request = valid_request(path);
        if let Some(token) = token {
            request.headers_mut().insert("private-token", token.parse().unwrap());
        }
        let response = send_over(connect_with(&self.world, self.sources.clone()), request).await;
        (response.status(), serde_json::from_str(&text(response).await).unwrap())
    }

    /// Returns the names of the environments, and the reasons why others are missing.
    async fn names(&self, path: &str, token: Option<&str>) -> (Vec<String>, Vec<String>) {
        let (status, body) = self.get(path, token).await;
        assert_eq!(status, 200, "{body}");
        let texts = |key: &str, field: &str| {
            let all = body[key].as_array().unwrap().iter();
            all.map(|entry| entry[field].as_str().unwrap().to_owned()).collect()
        };
        (texts("environments", "name"), texts("missing", "reason"))
    }
}

#[tokio::test(start_paused = true)]
async fn group_has_the_environments_of_its_projects_that_the_caller_may_see() {
    let setup = Setup::new().await;
    let all = vec!["production/us-1", "review/a", "production/eu/a"];
    for (path, token, expected) in [
        (SHOP, ALICE, all),
        (SHOP, BOB, vec!["production/eu/a"]),
        ("/api/v1/environments?group=shop/eu", ALICE, vec!["production/eu/a"]),
        ("/api/v1/environments?group=shopping", BOB, vec!["production/us-2"]),
        (
            "/api/v1/environments?group=shop&tier=production",
            ALICE,
            vec!["production/us-1", "production/eu/a"],
        ),
        ("/api/v1/environments?group=shop&name=production/*", ALICE, vec!["production/us-1"]),
        (
            "/api/v1/environments?group=shop&name=production/**",
            ALICE,
            vec!["production/us-1", "production/eu/a"],
        ),
        ("/api/v1/environments?group=shop&name=review/a", ALICE, vec!["review/a"]),
        ("/api/v1/environments?group=shop&agent=7&namespace=api", ALICE, vec!["production/eu/a"]),
        (
            "/api/v1/environments?group=shop&label=app.gitlab.com/project_id%3D31",
            ALICE,
            vec!["production/eu/a"],
        ),
    ] {
        let (names, missing) = setup.names(path, token).await;
        assert_eq!(
            (names, missing),
            (expected.iter().map(|name| (*name).to_owned()).collect(), vec![]),
            "{path}"
        );
    }
    setup.gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn part_that_cannot_be_read_is_missing_with_its_reason() {
    let setup = Setup::new().await;
    for (path, token, expected) in [
        (
            "/api/v1/environments?group=other",
            ALICE,
            "GitLab does not show the group to the holder of the token",
        ),
        (SHOP, Some("glpat-narrow"), "GitLab refuses the token for the projects of the group"),
        (SHOP, Some("unknown"), "GitLab refuses the token for the projects of the group"),
    ] {
        let (names, missing) = setup.names(path, token).await;
        assert!(names.is_empty() && missing.len() == 1 && missing[0].starts_with(expected), "{missing:?}");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("environments.yaml");
    let text =
        "environments: [{id: 1, project: shop/tool, slug: live, agents: [{agent: prod, namespace: a}]}]";
    std::fs::write(&path, text).unwrap();
    let mut setup = setup;
    setup.sources.0.insert(0, Arc::new(EnvironmentFile::read(&path).unwrap()));
    setup.gitlab.set_fault(Fault::Status(StatusCode::BAD_GATEWAY));
    let (names, missing) = setup.names(SHOP, BOB).await;
    assert_eq!((names, missing.len()), (vec!["live".to_owned()], 1), "the file is read without GitLab");
}

#[tokio::test(start_paused = true)]
async fn gitlab_that_hangs_delays_the_answer_for_20_seconds_at_most() {
    let setup = Setup::new().await;
    setup.names(SHOP, ALICE).await;
    // The projects are cached for longer than their environments are.
    advance(Duration::from_secs(61)).await;
    setup.gitlab.set_fault(Fault::Slow(Duration::from_secs(300)));
    let start = Instant::now();
    let (names, missing) = setup.names(SHOP, ALICE).await;
    assert!(names.is_empty(), "{names:?}");
    assert!(missing[0].contains("did not respond within"), "{missing:?}");
    assert!(start.elapsed() <= Duration::from_secs(21), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn cached_projects_of_a_group_need_no_gitlab() {
    let setup = Setup::new().await;
    setup.names("/api/v1/environments?project=shop/web", ALICE).await;
    setup.names("/api/v1/environments?group=shop/eu", ALICE).await;
    setup.names("/api/v1/environments?group=shop&slug=other", ALICE).await;
    setup.gitlab.set_fault(Fault::Status(StatusCode::BAD_GATEWAY));
    setup.gitlab.state().projects.retain(|project| project.id != 32);
    let (names, _) = setup.names(SHOP, ALICE).await;
    assert_eq!(names, ["production/us-1", "review/a", "production/eu/a"], "cached answers");
}

#[tokio::test(start_paused = true)]
async fn large_group_is_cut_and_says_so() {
    let setup = Setup::new().await;
    let mut user = User::new(9, "carol");
    for id in 100..230 {
        let path = format!("big/p{id}");
        let project = Project::new(id, &path).with_environment(id, "live", "production", (7, "live"));
        setup.gitlab.state().projects.push(project);
        user = user.with_project("glpat-c", id);
    }
    setup.gitlab.state().users.push(user);
    let (names, missing) = setup.names("/api/v1/environments?group=big", Some("glpat-c")).await;
    assert_eq!(names.len(), 100);
    assert!(missing[0].contains("100 projects of a group at once"), "{missing:?}");
    assert_eq!(setup.gitlab.requests(Endpoint::GroupProjects), 1);
    assert_eq!(setup.gitlab.requests(Endpoint::ProjectEnvironments), 100);

    let mut slugs = Vec::new();
    let mut next = Some(String::new());
    while let Some(after) = next {
        let path = format!("/api/v1/environments?group=big&limit=40&continue={after}");
        let (_, body) = setup.get(&path, Some("glpat-c")).await;
        let page = body["environments"].as_array().unwrap();
        slugs.extend(page.iter().map(|environment| environment["project"].as_str().unwrap().to_owned()));
        next = body["continue"].as_str().map(str::to_owned);
    }
    assert_eq!((slugs.len(), slugs.is_sorted()), (100, true));
    assert_eq!(setup.gitlab.requests(Endpoint::ProjectEnvironments), 100, "pages use cached answers");
    setup.gitlab.assert_no_violations();
}

/// A client of the internal API sees what kas sees. The listener without authentication gets nothing by the token of the operator.
#[tokio::test(start_paused = true)]
async fn token_of_the_operator_reads_for_clients_without_a_token() {
    let mut setup = Setup::new().await;
    assert_eq!(setup.names(SHOP, None).await, (vec![], vec![]), "there is no such token");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "glpat-a\n").unwrap();
    let client = client(&setup.gitlab).with_deployment_token_file(Some(file.path()));
    setup.sources = EnvironmentSources(vec![Arc::new(GitLabEnvironments::new(client, TTLS))]);
    assert_eq!(setup.names(SHOP, None).await.0.len(), 3);
    assert_eq!(setup.names(SHOP, BOB).await.0, ["production/eu/a"], "the token of a caller is used alone");
    assert_eq!(setup.names("/api/v1/environments?project=shop/web", None).await.0.len(), 2);
    assert_eq!(setup.names("/api/v1/environments", None).await, (vec![], vec![]));

    std::fs::write(file.path(), "revoked").unwrap();
    for (path, expected) in [
        (SHOP, "GitLab refuses the token"),
        ("/api/v1/environments?project=shop/web", "GitLab refuses the token of gitlab.deployment_token_file"),
    ] {
        let (names, missing) = setup.names(path, None).await;
        assert!(names.is_empty() && missing[0].starts_with(expected), "{missing:?}");
    }
    std::fs::remove_file(file.path()).unwrap();
    let (_, missing) = setup.names(SHOP, None).await;
    assert!(missing[0].starts_with("gitlab.deployment_token_file cannot be read"), "{missing:?}");
}

#[tokio::test(start_paused = true)]
async fn third_list_of_a_group_at_the_same_time_is_refused() {
    let setup = Setup::new().await;
    setup.gitlab.set_fault(Fault::Slow(Duration::from_secs(300)));
    let api = internal_api::server(&setup.world, Some(setup.sources.clone()), Default::default());
    let get = async |token: &'static str| {
        let mut request = valid_request(SHOP);
        request.headers_mut().insert("private-token", token.parse().unwrap());
        send_over(internal_api::connect_to(&api), request).await.status().as_u16()
    };
    let (first, second, third) = tokio::join!(get("a"), get("b"), get("c"));
    let mut statuses = [first, second, third];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 503]);
}

/// The environments of the file are there, however slow GitLab is.
#[tokio::test(start_paused = true)]
async fn third_list_of_a_group_for_a_client_without_a_token_has_the_other_sources() {
    let mut setup = Setup::new().await;
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "glpat-a\n").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("environments.yaml");
    let entry =
        "environments: [{id: 1, project: shop/tool, slug: live, agents: [{agent: prod, namespace: a}]}]";
    std::fs::write(&path, entry).unwrap();
    let client = client(&setup.gitlab).with_deployment_token_file(Some(token.path()));
    setup.sources = EnvironmentSources(vec![
        Arc::new(EnvironmentFile::read(&path).unwrap()),
        Arc::new(GitLabEnvironments::new(client, TTLS)),
    ]);
    setup.gitlab.set_fault(Fault::Slow(Duration::from_secs(300)));
    let api = internal_api::server(&setup.world, Some(setup.sources.clone()), Default::default());
    let get = async |path: &'static str| -> Value {
        let response = send_over(internal_api::connect_to(&api), valid_request(path)).await;
        assert_eq!(response.status(), 200, "{path}");
        serde_json::from_str(&text(response).await).unwrap()
    };
    let lists = tokio::join!(
        get(SHOP),
        get("/api/v1/environments?group=shop&slug=live"),
        get("/api/v1/environments?group=shop/eu"),
    );
    let reasons = [&lists.0, &lists.1, &lists.2].map(|list| list["missing"][0]["reason"].to_string());
    assert!(reasons.iter().any(|reason| reason.contains("are being made")), "{reasons:?}");
    for list in [&lists.0, &lists.1] {
        assert_eq!(list["environments"][0]["slug"], "live");
    }
}
