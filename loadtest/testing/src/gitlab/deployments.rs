//! The public API: jobs, the deployments of a project, and the last one to an environment, with the fields that GitLab documents.

use serde_json::{Value, json};

use crate::gitlab::{
    answer::{Answer, message, unauthorized},
    public::{readable_project, rest_environment},
    request::{KasRequest, Violation, violation},
    state::{GitLabDeployment, Job, Project, State, sha_of_job},
};

/// The deployments of one page.
const PAGE: usize = 100;
/// The host in the URLs of pages.
const HOST: &str = "https://gitlab.example.com";

/// Answers `GET /job`, which is for the tokens of running jobs.
pub(crate) fn job(state: &State, request: &KasRequest) -> Answer {
    match request.token.strip_prefix("job:").map(|token| state.jobs.get(token)) {
        None if state.reader(&request.token).is_some() => (404, message("404 Job Not Found")),
        Some(Some(job)) if !job.finished => (200, rest_job(state, job)),
        None | Some(_) => unauthorized(),
    }
}

/// Answers `GET /projects/:id/jobs/:job_id`. GitLab does not allow the token of a job.
pub(crate) fn project_job(state: &State, request: &KasRequest) -> Answer {
    if request.token.starts_with("job:") {
        return unauthorized();
    }
    let project = match readable_project(state, request) {
        Ok(project) => project,
        Err(answer) => return answer,
    };
    let is_asked = |job: &&Job| job.project == project.id && job.id.to_string() == request.part;
    match state.jobs.values().find(is_asked) {
        Some(job) => (200, rest_job(state, job)),
        None => (404, message("404 Not found")),
    }
}

/// Answers `GET /projects/:id/repository/commits/:sha/merge_requests`.
pub(crate) fn commit_merge_requests(state: &State, request: &KasRequest) -> Answer {
    let project = match readable_project(state, request) {
        Ok(project) => project,
        Err(answer) => return answer,
    };
    let is_asked = |(of, commit, _): &&(u64, String, u64)| *of == project.id && *commit == request.part;
    let entry = |(_, _, number): &(u64, String, u64)| {
        json!({
            "id": 1000 + number, "iid": number, "project_id": project.id, "state": "merged",
            "target_branch": "main", "merged_at": "2026-01-01T00:00:00.000Z",
            "web_url": format!("{HOST}/{}/-/merge_requests/{number}", project.path),
        })
    };
    (200, state.merged_commits.iter().filter(is_asked).map(entry).collect())
}

/// Answers `GET /projects/:id/deployments`.
pub(crate) fn deployments(state: &State, request: &KasRequest) -> Result<Answer, Violation> {
    if request.query != "order_by=id&sort=desc&per_page=100" {
        return Err(violation(400, format!("the query is {:?}", request.query)));
    }
    let project = match readable_project(state, request) {
        Ok(project) => project,
        Err(answer) => return Ok(answer),
    };
    let entry = |(id, deployment): (usize, &GitLabDeployment)| {
        let mut entry = rest_deployment(project, id, deployment);
        let slug = &deployment.environment;
        entry["environment"] = json!({"id": 9, "name": slug, "slug": slug, "external_url": null});
        entry
    };
    let newest = project.deployments.iter().enumerate().rev().take(PAGE);
    Ok((200, newest.map(entry).collect()))
}

/// Answers `GET /projects/:id/environments/:environment_id`. The last deployment there is the last successful one.
pub(crate) fn environment(state: &State, request: &KasRequest) -> Answer {
    let project = match readable_project(state, request) {
        Ok(project) => project,
        Err(answer) => return answer,
    };
    let found = project.environments.iter().find(|environment| environment.id.to_string() == request.part);
    let Some(environment) = found else { return (404, message("404 Not found")) };
    let successful = project.deployments.iter().enumerate().filter(|(_, deployment)| {
        deployment.environment == environment.slug && deployment.status == "success"
    });
    let last = successful.max_by_key(|(_, deployment)| deployment.finished);
    let mut answer = rest_environment(project, environment);
    answer["last_deployment"] = last.map_or(Value::Null, |(id, last)| rest_deployment(project, id, last));
    (200, answer)
}

/// Returns a deployment without its environment.
fn rest_deployment(project: &Project, id: usize, deployment: &GitLabDeployment) -> Value {
    let GitLabDeployment { environment: _, status, sha, job, finished } = deployment;
    let finished = finished.map(|second| format!("2026-01-01T00:00:{second:02}.250Z"));
    let job = job.map(|job| {
        let mut entry = job_entry(&project.path, job, 1000 + job, sha);
        entry["status"] = json!(status);
        entry["started_at"] = json!("2026-01-01T00:00:00.125Z");
        entry["finished_at"] = json!(finished);
        entry
    });
    json!({
        "id": id + 1, "iid": id + 1, "ref": "main", "sha": sha, "status": status,
        "created_at": "2026-01-01T00:00:00.000Z", "updated_at": "2026-01-01T00:00:59.000Z",
        "user": {"id": 1, "name": "Administrator", "username": "root", "state": "active"},
        "deployable": job,
    })
}

fn rest_job(state: &State, job: &Job) -> Value {
    let project = state.project(&job.project.to_string());
    let path = project.map_or_else(|| format!("group/project-{}", job.project), |it| it.path.clone());
    let mut entry = job_entry(&path, job.id, job.pipeline, &sha_of_job(job.id));
    let (status, finished) =
        if job.finished { (&*job.result, Some("2026-01-01T00:01:00.000Z")) } else { ("running", None) };
    entry["status"] = json!(status);
    entry["started_at"] = json!("2026-01-01T00:00:00.000Z");
    entry["finished_at"] = json!(finished);
    entry["user"] = json!({"id": job.user, "username": job.username, "name": "Administrator"});
    entry
}

/// Returns a job without its status and its times.
fn job_entry(path: &str, id: u64, pipeline: u64, sha: &str) -> Value {
    json!({
        "id": id, "name": "deploy", "stage": "deploy", "ref": "main", "tag": false, "coverage": null,
        "created_at": "2026-01-01T00:00:00.000Z", "duration": null, "runner": null, "artifacts": [],
        "commit": {"id": sha, "short_id": &sha[..8], "title": "Deploy", "author_name": "Alice Liddell",
            "author_email": "alice@example.com", "created_at": "2026-01-01T00:00:00.000+00:00"},
        "pipeline": {"id": pipeline, "sha": sha, "ref": "main", "status": "running",
            "web_url": format!("{HOST}/{path}/-/pipelines/{pipeline}")},
        "project": {"ci_job_token_scope_enabled": false},
        "web_url": format!("{HOST}/{path}/-/jobs/{id}"),
    })
}
