//! Deployments and their jobs in GitLab's REST API, as the holder of a credential sees them.
//!
//! The endpoints are public: requests have the credential of a user or a job, and not the JWT of kas.

use environments_wire::{DeploymentFacts, DeploymentStatus, EnvironmentDeployment, JobFacts};
use http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::SecretString;
use serde::Deserialize;
use settings::rfc3339;
use std::time::SystemTime;

use super::{Credential, Endpoint, GitLabClient, GitLabError, client::ObjectIds};

/// The deployments of one page. GitLab lists at most 100.
const PAGE: &str = "100";
/// The longest URL, in bytes.
const MAX_URL: usize = 512;
/// The longest other text, in characters.
const MAX_TEXT: usize = 255;
/// The part of the URL of a job between the URL of its project and its id.
const JOBS: &str = "/-/jobs/";

/// A deployment in a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectDeployment {
    /// The slug of the environment.
    pub environment: String,
    /// The facts.
    pub deployment: EnvironmentDeployment,
}

/// A deployment in a response. That of an environment does not name the environment.
#[derive(Debug, Deserialize)]
struct DeploymentEntry {
    status: Option<String>,
    sha: Option<String>,
    #[serde(rename = "ref")]
    reference: Option<String>,
    created_at: Option<String>,
    updated_at: Option<String>,
    user: Option<UserEntry>,
    environment: Option<SlugEntry>,
    /// The job, or nothing if a program has reported the deployment.
    deployable: Option<JobEntry>,
}

/// A job in a response.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JobEntry {
    id: Option<u64>,
    status: Option<String>,
    #[serde(rename = "ref")]
    reference: Option<String>,
    started_at: Option<String>,
    finished_at: Option<String>,
    user: Option<UserEntry>,
    commit: Option<CommitEntry>,
    pipeline: Option<PipelineEntry>,
    web_url: Option<String>,
}

#[derive(Debug, Deserialize)]
struct UserEntry {
    username: Option<String>,
}

#[derive(Debug, Deserialize)]
struct CommitEntry {
    id: Option<String>,
    author_name: Option<String>,
}

#[derive(Debug, Deserialize)]
struct PipelineEntry {
    id: Option<u64>,
    sha: Option<String>,
}

/// The environment of a deployment.
#[derive(Debug, Deserialize)]
struct SlugEntry {
    slug: Option<String>,
}

/// An environment with its last successful deployment.
#[derive(Debug, Deserialize)]
struct EnvironmentEntry {
    last_deployment: Option<DeploymentEntry>,
}

impl GitLabClient {
    /// Returns the job of a token. GitLab refuses the token when the job has ended.
    ///
    /// # Errors
    ///
    /// GitLab refuses the token, or gives no usable answer.
    pub async fn job(&self, token: &SecretString) -> Result<JobFacts, GitLabError> {
        let ids = ObjectIds::default();
        let job: JobEntry = self.get_at(Endpoint::Job, ids, &[], Credential::Job(token)).await?;
        Ok(job.into_facts(self.base_path()))
    }

    /// Returns a job of a project, or `None` if the holder of the credential cannot see the project or the job.
    ///
    /// # Errors
    ///
    /// GitLab refuses the credential, or gives no usable answer.
    pub async fn project_job(
        &self,
        project: u64,
        job: u64,
        credential: Credential<'_>,
    ) -> Result<Option<JobFacts>, GitLabError> {
        let [project, job] = [project, job].map(|id| id.to_string());
        let ids = ObjectIds { project: &project, object: &job, ..ObjectIds::default() };
        let found: Option<JobEntry> =
            none_if_missing(self.get_at(Endpoint::ProjectJob, ids, &[], credential).await)?;
        Ok(found.map(|job| job.into_facts(self.base_path())))
    }

    /// Returns the newest 100 deployments of a project, the newest first, or `None` if the holder of the credential cannot see it. Those
    /// that wait or were skipped are left out.
    ///
    /// # Errors
    ///
    /// GitLab refuses the credential, or gives no usable answer.
    pub async fn project_deployments(
        &self,
        project: &str,
        credential: Credential<'_>,
    ) -> Result<Option<Vec<ProjectDeployment>>, GitLabError> {
        let project = utf8_percent_encode(project, NON_ALPHANUMERIC).to_string();
        let ids = ObjectIds { project: &project, ..ObjectIds::default() };
        let query = [("order_by", "id"), ("sort", "desc"), ("per_page", PAGE)];
        let found: Option<Vec<DeploymentEntry>> =
            none_if_missing(self.get_at(Endpoint::ProjectDeployments, ids, &query, credential).await)?;
        Ok(found.map(|found| found.into_iter().filter_map(DeploymentEntry::into_deployment).collect()))
    }

    /// Returns the last successful deployment to an environment of a project, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// GitLab refuses the credential, or gives no usable answer.
    pub async fn last_successful_deployment(
        &self,
        project: &str,
        environment: u64,
        credential: Credential<'_>,
    ) -> Result<Option<EnvironmentDeployment>, GitLabError> {
        let project = utf8_percent_encode(project, NON_ALPHANUMERIC).to_string();
        let environment = environment.to_string();
        let ids = ObjectIds { project: &project, object: &environment, ..ObjectIds::default() };
        let found: Option<EnvironmentEntry> =
            none_if_missing(self.get_at(Endpoint::ProjectEnvironment, ids, &[], credential).await)?;
        let deployment = found.and_then(|environment| environment.last_deployment);
        Ok(deployment.map(DeploymentEntry::into_facts))
    }
}

impl DeploymentEntry {
    /// Returns the deployment, unless it has not begun.
    fn into_deployment(mut self) -> Option<ProjectDeployment> {
        let environment = text(self.environment.take()?.slug?);
        let deployment = self.into_facts();
        let is_visible = deployment.facts.status != DeploymentStatus::Unknown;
        is_visible.then_some(ProjectDeployment { environment, deployment })
    }

    fn into_facts(self) -> EnvironmentDeployment {
        let Self { status, sha, reference, created_at, updated_at, user, deployable, .. } = self;
        let status = DeploymentStatus::of(status.as_deref().unwrap_or_default());
        let has_job = deployable.is_some();
        let mut job = deployable.unwrap_or_default();
        let user = user.or_else(|| job.user.take());
        let id = job.id;
        // The path of the project is known.
        let JobFacts { commit, facts, .. } = job.into_facts("");
        let commit = sha.map(text).or(commit);
        let commit_url = project_url(facts.job_url.as_deref()).zip(commit.as_deref());
        EnvironmentDeployment {
            username: user.and_then(|user| user.username).map(text),
            job: id,
            facts: DeploymentFacts {
                status,
                reference: reference.map(text).or(facts.reference),
                commit_url: commit_url.and_then(|(base, commit)| url(format!("{base}/-/commit/{commit}"))),
                // A program reports a deployment when it begins or ends.
                started: facts.started.or_else(|| time(created_at.filter(|_| !has_job))),
                finished: facts
                    .finished
                    .or_else(|| time(updated_at.filter(|_| !has_job && status.is_final()))),
                ..facts
            },
            commit,
        }
    }
}

impl JobEntry {
    /// Returns the facts of the job in a GitLab whose URLs have this path.
    fn into_facts(self, base_path: &str) -> JobFacts {
        let Self { status, reference, started_at, finished_at, commit, pipeline, web_url, .. } = self;
        let (commit, author) = commit.map_or((None, None), |commit| (commit.id, commit.author_name));
        let (pipeline, sha) = pipeline.map_or((None, None), |pipeline| (pipeline.id, pipeline.sha));
        let commit = commit.or(sha).map(text);
        let job_url = web_url.and_then(url);
        let page = |path: String| url(format!("{}/-/{path}", project_url(job_url.as_deref())?));
        let merge_request = reference.as_deref().and_then(merge_request_of);
        let facts = DeploymentFacts {
            status: DeploymentStatus::of(status.as_deref().unwrap_or_default()),
            reference: reference.map(text),
            author: author.map(text),
            pipeline,
            pipeline_url: pipeline.and_then(|id| page(format!("pipelines/{id}"))),
            commit_url: commit.as_ref().and_then(|commit| page(format!("commit/{commit}"))),
            merge_request,
            merge_request_url: merge_request.and_then(|id| page(format!("merge_requests/{id}"))),
            started: time(started_at),
            finished: time(finished_at),
            job_url: job_url.clone(),
        };
        let project = project_path(job_url.as_deref(), base_path).map(str::to_owned);
        JobFacts { project, commit, facts }
    }
}

/// Returns the value of a response, or `None` if GitLab does not show the object.
pub(super) fn none_if_missing<T>(result: Result<T, GitLabError>) -> Result<Option<T>, GitLabError> {
    match result {
        Err(error) if error.is_status(StatusCode::NOT_FOUND) => Ok(None),
        result => result.map(Some),
    }
}

/// Returns the number of the merge request to whose pipelines a ref belongs, such as `refs/merge-requests/12/head`.
fn merge_request_of(reference: &str) -> Option<u64> {
    let (number, kind) = reference.strip_prefix("refs/merge-requests/")?.split_once('/')?;
    number.parse().ok().filter(|_| matches!(kind, "head" | "merge" | "train"))
}

/// Returns the URL of a project, if this is the URL of one of its jobs.
fn project_url(job: Option<&str>) -> Option<&str> {
    Some(job?.split_once(JOBS)?.0)
}

/// Returns the full path of a project, if this is the URL of one of its jobs in a GitLab whose URLs have this path.
fn project_path<'a>(job: Option<&'a str>, base_path: &str) -> Option<&'a str> {
    let (_, rest) = project_url(job)?.split_once("://")?;
    let path = &rest[rest.find('/')?..];
    let path = path.strip_prefix(base_path)?.strip_prefix('/')?;
    environments_wire::is_project(path).then_some(path)
}

/// Returns a URL that a page may link to: GitLab is not trusted to send none of another scheme.
pub(super) fn url(text: String) -> Option<String> {
    let is_web = text.starts_with("https://") || text.starts_with("http://");
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    (is_web && is_plain && text.len() <= MAX_URL).then_some(text)
}

/// Returns the beginning of a text without control characters.
fn text(text: String) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect()
}

pub(super) fn time(text: Option<String>) -> Option<SystemTime> {
    rfc3339::parse(&text?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const SHA: &str = "99d03678b90d914dbb1b109132516d71a4a03ea8";

    /// The job of the documentation of GitLab.
    fn job() -> Value {
        json!({
            "commit": {"author_email": "admin@example.com", "author_name": "Administrator", "id": SHA, "short_id": "99d03678"},
            "coverage": null, "created_at": "2016-08-11T07:36:27.357Z", "finished_at": "2016-08-11T07:36:39.851Z",
            "id": 657, "name": "deploy", "ref": "main", "runner": null, "stage": "deploy", "started_at": null,
            "status": "success", "tag": false, "project": {"ci_job_token_scope_enabled": false},
            "user": {"id": 1, "name": "Administrator", "username": "root", "state": "active"},
            "pipeline": {"id": 36, "ref": "main", "sha": SHA, "status": "success"},
            "web_url": "https://gitlab.example.com/git/shop/web/-/jobs/657",
        })
    }

    fn deployment(change: Value) -> Value {
        let mut entry = json!({
            "created_at": "2016-08-11T07:36:40.222Z", "updated_at": "2016-08-11T07:38:12.414Z", "status": "success",
            "deployable": job(), "environment": {"external_url": null, "id": 9, "name": "live", "slug": "live"},
            "id": 41, "iid": 1, "ref": "main", "sha": SHA,
            "user": {"id": 1, "name": "Alice", "username": "alice", "state": "active"},
        });
        for (key, value) in change.as_object().unwrap() {
            entry[key] = value.clone();
        }
        entry
    }

    fn found(change: Value) -> Option<ProjectDeployment> {
        serde_json::from_value::<DeploymentEntry>(deployment(change)).unwrap().into_deployment()
    }

    #[test]
    fn job_has_its_project_its_commit_and_their_urls() {
        let facts = |base: &str| serde_json::from_value::<JobEntry>(job()).unwrap().into_facts(base);
        let JobFacts { project, commit, facts: found } = facts("/git");
        assert_eq!((project.as_deref(), commit.as_deref()), (Some("shop/web"), Some(SHA)));
        assert_eq!((found.status, found.pipeline), (DeploymentStatus::Success, Some(36)));
        assert_eq!(
            (found.reference.as_deref(), found.author.as_deref()),
            (Some("main"), Some("Administrator"))
        );
        assert_eq!((found.started, found.finished), (None, rfc3339::parse("2016-08-11T07:36:39.851Z")));
        let base = "https://gitlab.example.com/git/shop/web/-";
        assert_eq!(found.job_url, Some(format!("{base}/jobs/657")));
        assert_eq!(found.pipeline_url, Some(format!("{base}/pipelines/36")));
        assert_eq!(found.commit_url, Some(format!("{base}/commit/{SHA}")));
        assert_eq!(facts("/other").project, None, "another GitLab");
    }

    #[test]
    fn pipeline_of_a_merge_request_names_it() {
        for (reference, expected) in [
            ("refs/merge-requests/12/head", Some(12)),
            ("refs/merge-requests/12/merge", Some(12)),
            ("refs/merge-requests/12/train", Some(12)),
            ("refs/merge-requests/12", None),
            ("refs/merge-requests/x/head", None),
            ("refs/merge-requests/12/other", None),
            ("refs/merge-requests/12/head/x", None),
            ("main", None),
        ] {
            let mut job = job();
            job["ref"] = json!(reference);
            let facts = serde_json::from_value::<JobEntry>(job).unwrap().into_facts("").facts;
            let url =
                format!("https://gitlab.example.com/git/shop/web/-/merge_requests/{}", expected.unwrap_or(0));
            let url = expected.map(|_| url);
            assert_eq!((facts.merge_request, facts.merge_request_url), (expected, url), "{reference}");
        }
    }

    #[test]
    fn deployment_has_the_facts_of_its_job() {
        let ProjectDeployment { environment, deployment } = found(json!({})).unwrap();
        assert_eq!((&*environment, deployment.job), ("live", Some(657)));
        assert_eq!(
            (deployment.commit.as_deref(), deployment.username.as_deref()),
            (Some(SHA), Some("alice"))
        );
        assert_eq!((deployment.facts.started, deployment.facts.pipeline), (None, Some(36)));
        let url = format!("https://gitlab.example.com/git/shop/web/-/commit/{SHA}");
        assert_eq!(deployment.facts.commit_url, Some(url));
    }

    #[test]
    fn deployment_without_a_job_has_the_times_of_its_reports() {
        let reported = found(json!({"deployable": null})).unwrap().deployment;
        let times = ["2016-08-11T07:36:40.222Z", "2016-08-11T07:38:12.414Z"].map(rfc3339::parse);
        assert_eq!([reported.facts.started, reported.facts.finished], times);
        assert_eq!((reported.job, reported.facts.commit_url), (None, None));
        let running = found(json!({"deployable": null, "status": "running"})).unwrap().deployment;
        assert_eq!(running.facts.finished, None);
    }

    #[test]
    fn deployment_that_has_not_begun_is_left_out() {
        for status in ["created", "blocked", "skipped", "a-new-one"] {
            assert_eq!(found(json!({"status": status})), None, "{status}");
        }
        assert_eq!(found(json!({"environment": null})), None);
    }

    #[test]
    fn url_of_another_scheme_and_long_texts_are_no_facts() {
        for web_url in [
            json!("javascript://gitlab.example.com/shop/web/-/jobs/1"),
            json!("https://gitlab.example.com/shop/web/-/jobs/1\n"),
            json!(format!("https://gitlab.example.com/{}/-/jobs/1", "a".repeat(MAX_URL))),
            Value::Null,
        ] {
            let mut job = job();
            job["web_url"] = web_url.clone();
            let JobFacts { project, facts, .. } =
                serde_json::from_value::<JobEntry>(job).unwrap().into_facts("");
            let urls = [facts.job_url, facts.pipeline_url, facts.commit_url];
            assert_eq!((project, urls), (None, [None, None, None]), "{web_url}");
        }
        let long = found(json!({"ref": "r\n".repeat(1000)})).unwrap().deployment;
        assert_eq!(long.facts.reference, Some("r".repeat(MAX_TEXT)));
    }
}
