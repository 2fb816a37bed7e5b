//! The environments of GitLab in the internal API, against the stand-in.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{sync::Arc, time::Duration};

use environments_wire::{Environment, EnvironmentSource, EnvironmentSources, GitLabToken, Tier};
use http::{StatusCode, header::RETRY_AFTER};
use kas_environments::EnvironmentFile;
use kas_gitlab::{CacheTtls, GitLabEnvironments};
use kas_testing::{
    internal_api::{connect_with, send_over, valid_request},
    world::{World, text},
};
use serde_json::{Value, json};
use testing::gitlab::{Endpoint, Fault, Job, Project, StandIn, User, sha_of_job};
use tokio::time::{Instant, advance};

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
        "id": 1, "project": "shop/web", "slug": "live", "name": "live", "tier": "production",
        "group": "shop",
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
        ("/api/v1/environments", "Private-Token: glpat-a", 400, "project and group are missing"),
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

/// Adds 100 deployments of jobs from 1000 on to `review/b`, so that older ones are beyond the newest page.
fn crowded(project: Project) -> Project {
    (1000..1100).fold(project, |project, job| project.with_deployment("review-b", "failed", job, Some(1)))
}

/// Returns the jobs of the last and of the last successful deployment to each environment of a list.
fn last_jobs(body: &Value) -> Vec<(String, Value, Value)> {
    let environments = body["environments"].as_array().unwrap().iter();
    let jobs = environments.map(|environment| {
        let last = &environment["deployments"];
        let slug = environment["slug"].as_str().unwrap().to_owned();
        (slug, last["last"]["job"].clone(), last["last_successful"]["job"].clone())
    });
    jobs.collect()
}

#[tokio::test(start_paused = true)]
async fn environments_have_the_last_deployments_that_gitlab_shows() {
    let setup = Setup::new().await;
    let project = Project::new(30, "shop/web")
        .with_environment(1, "live", "production", (7, "shop"))
        .with_environment(2, "review/a", "development", (8, "review"))
        .with_environment(3, "review/b", "development", (8, "review"))
        .with_deployment("review-a", "success", 20, Some(20));
    let project = crowded(project)
        .with_deployment("live", "success", 30, Some(40))
        .with_deployment("live", "success", 31, Some(35))
        .with_deployment("live", "running", 32, None)
        .with_deployment("live", "blocked", 33, None);
    setup.gitlab.state().projects = vec![project];
    let all = format!("{ALL}&deployments=true");
    for header in ["Private-Token: glpat-a", "Job-Token: job"] {
        let (status, _, body) = setup.get(&all, header).await;
        assert_eq!(status, 200, "{body}");
        let expected = [
            ("live".to_owned(), json!(32), json!(30)),
            ("review-a".to_owned(), json!(20), json!(20)),
            ("review-b".to_owned(), json!(1099), Value::Null),
        ];
        assert_eq!(last_jobs(&body), expected, "{header}");
        let live = &body["environments"][0]["deployments"];
        assert_eq!((&live["source"], &live["missing"]), (&json!("gitlab"), &Value::Null));
        let expected = json!({
            "commit": sha_of_job(30), "username": "root", "job": 30, "status": "success", "ref": "main",
            "author": "Alice Liddell", "pipeline": 1030, "started": "2026-01-01T00:00:00Z",
            "finished": "2026-01-01T00:00:40Z", "job_url": "https://gitlab.example.com/shop/web/-/jobs/30",
            "pipeline_url": "https://gitlab.example.com/shop/web/-/pipelines/1030",
            "commit_url": format!("https://gitlab.example.com/shop/web/-/commit/{}", sha_of_job(30)),
            "merge_request": null, "merge_request_url": null,
        });
        assert_eq!(live["last_successful"], expected);
    }
    let asked = || {
        [Endpoint::ProjectDeployments, Endpoint::ProjectEnvironment]
            .map(|endpoint| setup.gitlab.requests(endpoint))
    };
    assert_eq!(asked(), [2, 4], "one list for each token, and two environments without a recent success");
    setup.get(&all, "Private-Token: glpat-a").await;
    assert_eq!(asked(), [2, 4], "the answers are cached");
    advance(TTL).await;
    setup.get(&all, "Private-Token: glpat-a").await;
    assert_eq!(asked(), [3, 6]);
    setup.gitlab.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn deployments_that_gitlab_does_not_show_are_those_of_the_jobs_or_missing() {
    let mut setup = Setup::new().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("environments.yaml");
    let text = "environments:\n\
        - {id: 1, project: shop/web, slug: live, agents: [{agent: prod, namespace: file}]}\n";
    std::fs::write(&path, text).unwrap();
    let file: Arc<dyn EnvironmentSource> = Arc::new(EnvironmentFile::read(&path).unwrap());
    setup.sources.0.insert(0, file);
    let live = format!("{LIVE}&deployments=true");
    // Records of jobs do not show the holder of a token a project that GitLab hides from it.
    let hidden = json!("GitLab does not show the project to the holder of the token");
    for (header, source, missing) in [("", "jobs", Value::Null), ("Private-Token: glpat-b", "gitlab", hidden)]
    {
        let (_, _, body) = setup.get(&live, header).await;
        let deployments = &body["environments"][0]["deployments"];
        assert_eq!((&deployments["source"], &deployments["missing"]), (&json!(source), &missing), "{header}");
    }
    assert_eq!(setup.slugs(LIVE, "Private-Token: glpat-a").await, ["live"], "cached");
    setup.gitlab.set_fault(Fault::Slow(TTL));
    let (status, _, body) = setup.get(&live, "Private-Token: glpat-a").await;
    let deployments = &body["environments"][0]["deployments"];
    assert_eq!((status, &deployments["source"]), (StatusCode::OK, &json!("gitlab")));
    assert_eq!(deployments["missing"], "GitLab did not respond within 10 s");
}

/// The deployments of 20 projects are asked for, four at a time.
#[tokio::test(start_paused = true)]
async fn reader_waits_once_for_a_gitlab_that_hangs() {
    let gitlab = StandIn::start().await;
    gitlab.set_fault(Fault::Slow(10 * TTL));
    let environment = |id: u64| Environment {
        id,
        project: format!("shop/{id}"),
        name: "live".to_owned(),
        slug: "live".to_owned(),
        tier: Tier::of("production"),
        group: None,
        agents: Vec::new(),
    };
    let environments: Vec<_> = (0..20).map(environment).collect();
    let (token, start) = (GitLabToken::Personal("glpat-a".into()), Instant::now());
    let found = source(&gitlab).last_deployments(&environments, &token).await;
    assert!(start.elapsed() < Duration::from_secs(11), "{:?}", start.elapsed());
    assert_eq!(found.len(), environments.len());
    for last in found {
        assert_eq!(last.unwrap().missing.unwrap(), "GitLab did not respond within 10 s");
    }
    assert_eq!(gitlab.requests(Endpoint::ProjectDeployments), 4, "GitLab is not asked after the end");
}
