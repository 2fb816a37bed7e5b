//! The environments of GitLab in the internal API, against the stand-in.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{sync::Arc, time::Duration};

use environments_wire::{EnvironmentSource, EnvironmentSources};
use http::{StatusCode, header::RETRY_AFTER};
use kas_environments::EnvironmentFile;
use kas_gitlab::{CacheTtls, GitLabEnvironments};
use kas_testing::{
    internal_api::{connect_with, send_over, valid_request},
    world::{World, text},
};
use serde_json::{Value, json};
use testing::gitlab::{Endpoint, Fault, Job, Project, StandIn, User};
use tokio::time::advance;

use crate::gitlab_client::client;

const TTL: Duration = Duration::from_secs(60);
const ERROR_TTL: Duration = Duration::from_secs(10);
const LIVE: &str = "/api/v1/environments?project=shop/web&slug=live";
const ALL: &str = "/api/v1/environments?project=shop/web";

/// A kas with GitLab, where alice and a job may read a project with environments.
struct Setup {
    gitlab: StandIn,
    world: World,
    sources: EnvironmentSources,
}

impl Setup {
    async fn new() -> Self {
        let gitlab = StandIn::start().await;
        let project = Project::new(30, "shop/web")
            .with_environment(1, "live", "production", (7, "shop"))
            .with_environment(2, "review/a", "development", (8, "review"));
        let mut state = gitlab.state();
        state.projects.push(project);
        state.users.push(User::new(5, "alice").with_project("glpat-a", 30));
        state.users.push(User::new(6, "bob").with_project("glpat-b", 31).with_token("glpat-narrow"));
        state.add_job("job", Job::new(3, 30));
        drop(state);
        let sources = EnvironmentSources(vec![source(&gitlab)]);
        Self { gitlab, world: World::new(), sources }
    }

    /// Returns the status and the body for a request with a header `Name: value`.
    async fn get(&self, path: &str, header: &str) -> (StatusCode, Option<u64>, Value) {
        let mut request = valid_request(path);
        if let Some((name, value)) = header.split_once(": ") {
            let name: http::HeaderName = name.parse().unwrap();
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        let response = send_over(connect_with(&self.world, self.sources.clone()), request).await;
        let retry_after =
            response.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap().parse().unwrap());
        let status = response.status();
        (status, retry_after, serde_json::from_str(&text(response).await).unwrap())
    }

    async fn slugs(&self, path: &str, header: &str) -> Vec<String> {
        let (status, _, body) = self.get(path, header).await;
        assert_eq!(status, 200, "{body}");
        let environments = body["environments"].as_array().unwrap().iter();
        environments.map(|environment| environment["slug"].as_str().unwrap().to_owned()).collect()
    }
}

fn source(gitlab: &StandIn) -> Arc<dyn EnvironmentSource> {
    Arc::new(GitLabEnvironments::new(client(gitlab), CacheTtls { responses: TTL, errors: ERROR_TTL }))
}

#[tokio::test(start_paused = true)]
async fn caller_sees_the_environments_that_gitlab_shows_its_token() {
    let setup = Setup::new().await;
    for (path, header, expected) in [
        (ALL, "Private-Token: glpat-a", vec!["live", "review-a"]),
        (LIVE, "Private-Token: glpat-a", vec!["live"]),
        ("/api/v1/environments?project=shop/web&slug=review-a", "Private-Token: glpat-a", vec!["review-a"]),
        ("/api/v1/environments?project=shop/web&tier=production", "Private-Token: glpat-a", vec!["live"]),
        ("/api/v1/environments?project=shop/web&agent=8", "Private-Token: glpat-a", vec!["review-a"]),
        ("/api/v1/environments?project=shop/other", "Private-Token: glpat-a", vec![]),
        ("/api/v1/environments?project=shop//web", "Private-Token: glpat-a", vec![]),
        (ALL, "Private-Token: glpat-b", vec![]),
        (ALL, "Job-Token: job", vec!["live", "review-a"]),
        (LIVE, "Job-Token: job", vec!["live"]),
        (ALL, "", vec![]),
    ] {
        assert_eq!(setup.slugs(path, header).await, expected, "{path} {header}");
    }
    let (_, _, body) = setup.get(LIVE, "Private-Token: glpat-a").await;
    let labels = json!({"app.gitlab.com/project_id": "30", "app.gitlab.com/environment_slug": "live"});
    let expected = json!([{
        "id": 1, "project": "shop/web", "slug": "live", "tier": "production", "group": "shop",
        "agents": [{"agent": "7", "namespace": "shop", "labels": labels}],
    }]);
    assert_eq!(body["environments"], expected);
    setup.gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn refused_token_and_incomplete_query_are_errors_of_the_caller() {
    let setup = Setup::new().await;
    for (path, header, status, error) in [
        (ALL, "Private-Token: unknown", 403, "GitLab refuses the token"),
        (ALL, "Private-Token: glpat-narrow", 403, "needs the scope read_api"),
        (ALL, "Job-Token: unknown", 403, "GitLab refuses the token"),
        ("/api/v1/environments", "Private-Token: glpat-a", 400, "project is missing"),
    ] {
        let (actual, _, body) = setup.get(path, header).await;
        assert_eq!(actual, status, "{header}: {body}");
        assert!(body["message"].as_str().unwrap().contains(error), "{body}");
    }
    setup.gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn failing_gitlab_gives_cached_answers_and_then_503() {
    let setup = Setup::new().await;
    assert_eq!(setup.slugs(LIVE, "Private-Token: glpat-a").await, ["live"]);
    for fault in [Fault::Down, Fault::Status(StatusCode::BAD_GATEWAY), Fault::Garbage, Fault::Slow(TTL)] {
        setup.gitlab.set_fault(fault.clone());
        let asked = setup.gitlab.requests(Endpoint::ProjectEnvironments);
        assert_eq!(setup.slugs(LIVE, "Private-Token: glpat-a").await, ["live"], "{fault:?}");
        assert_eq!(setup.gitlab.requests(Endpoint::ProjectEnvironments), asked, "the answer is cached");

        advance(TTL).await;
        let (status, retry_after, body) = setup.get(LIVE, "Private-Token: glpat-a").await;
        assert_eq!(
            (status, &body["error"]),
            (StatusCode::SERVICE_UNAVAILABLE, &json!("unavailable")),
            "{fault:?}"
        );
        assert!(retry_after.is_some_and(|seconds| seconds > 0), "{fault:?}");
        assert_eq!(
            setup.get(LIVE, "Private-Token: glpat-b").await.0,
            503,
            "no answer of another caller is used"
        );

        setup.gitlab.set_fault(None);
        advance(ERROR_TTL).await;
        assert_eq!(setup.slugs(LIVE, "Private-Token: glpat-a").await, ["live"], "{fault:?}");
    }
    setup.gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn callers_share_no_answers_and_concurrent_ones_share_requests() {
    let setup = Setup::new().await;
    let requests = [(); 8].map(|()| setup.slugs(ALL, "Private-Token: glpat-a"));
    futures_util::future::join_all(requests).await;
    assert_eq!(setup.gitlab.requests(Endpoint::ProjectEnvironments), 1);
    assert!(setup.slugs(ALL, "Private-Token: glpat-b").await.is_empty());
    assert_eq!(setup.gitlab.requests(Endpoint::ProjectEnvironments), 2);
    // The text of a job's token is no token of a user.
    assert_eq!(setup.get(ALL, "Private-Token: job").await.0, 403);
}

#[tokio::test(start_paused = true)]
async fn long_list_is_cut_and_its_rest_is_found_by_slug() {
    let setup = Setup::new().await;
    let project = (0..700).fold(Project::new(30, "shop/web"), |project, n| {
        project.with_environment(n, &format!("review-{n}"), "development", (8, "review"))
    });
    setup.gitlab.state().projects = vec![project];
    assert_eq!(setup.slugs(ALL, "Private-Token: glpat-a").await.len(), 500);
    let last = "/api/v1/environments?project=shop/web&slug=review-699";
    assert_eq!(setup.slugs(last, "Private-Token: glpat-a").await, ["review-699"]);
    setup.gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn file_and_gitlab_are_listed_together_and_the_file_comes_first() {
    let mut setup = Setup::new().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("environments.yaml");
    let text = "environments:\n\
        - {id: 1, project: shop/web, slug: live, agents: [{agent: prod, namespace: file}]}\n";
    std::fs::write(&path, text).unwrap();
    let file: Arc<dyn EnvironmentSource> = Arc::new(EnvironmentFile::read(&path).unwrap());
    setup.sources.0.insert(0, file);
    assert_eq!(setup.slugs(ALL, "Private-Token: glpat-a").await, ["live", "review-a"]);
    let (_, _, body) = setup.get(LIVE, "Private-Token: glpat-a").await;
    assert_eq!(body["environments"][0]["agents"][0]["namespace"], "file");
    assert_eq!(setup.slugs(ALL, "").await, ["live"], "without a token");
}
