//! The deployments of GitLab's jobs with ID tokens: each is recorded with the first request of the job to an agent.
//!
//! The claims describe the job. GitLab accepts no ID token itself, so that kas cannot ask it about the job with the token: the result is
//! known only if the operator has given kas a token for that.

use std::{sync::Arc, time::SystemTime};

use environments_wire::{Deployment, DeploymentFacts, DeploymentRecords, DeploymentStatus, Tier};
use oidc::Claims;
use proto::{AgentId, audit::CiJob};
use sha2::{Digest as _, Sha256};

use crate::ci_job;

/// The action of a job that deploys. GitLab has others, such as `stop` and `verify`.
const START: &str = "start";
/// The longest slug of an environment, the characters of a longer name that it keeps, and the digits of base 36 after them.
const MAX_SLUG: usize = 24;
const SLUG_BEGINNING: usize = 17;
const SLUG_DIGITS: u32 = 6;

/// The records of the deployments of jobs with tokens of one GitLab.
#[derive(Debug)]
pub struct TokenDeployments {
    pub(crate) records: Arc<dyn DeploymentRecords>,
    pub(crate) gitlab: GitLabUrls,
}

/// The URLs of one GitLab, without a slash at the end.
#[derive(Debug)]
pub(crate) struct GitLabUrls(Vec<String>);

impl TokenDeployments {
    /// Records the deployments of jobs whose tokens have one of these URLs of GitLab as their issuer.
    pub fn new(records: Arc<dyn DeploymentRecords>, urls: impl IntoIterator<Item = String>) -> Self {
        Self { records, gitlab: GitLabUrls::new(urls) }
    }
}

impl GitLabUrls {
    fn new(urls: impl IntoIterator<Item = String>) -> Self {
        Self(urls.into_iter().map(|url| url.trim_end_matches('/').to_owned()).collect())
    }

    /// Returns the deployment with an agent, if these are the claims of a job of GitLab that deploys to an environment.
    pub(crate) fn deployment(&self, claims: &Claims, job: &CiJob, agent: AgentId) -> Option<Deployment> {
        let CiJob { environment, environment_tier, project, commit, user, .. } = job;
        // Most jobs have none, and each of their requests comes here.
        let environment = environment.as_deref()?;
        let claim = |name: &str| ci_job::text(claims.get(name)?);
        let issuer = claim("iss")?;
        let url = issuer.trim_end_matches('/');
        // Versions of GitLab without this claim do not say which action it is.
        let deploys = claim("environment_action").is_none_or(|action| action == START);
        if !deploys || !self.0.iter().any(|known| known == url) {
            return None;
        }
        let id: u64 = job.id.as_deref()?.parse().ok()?;
        let pipeline: Option<u64> = job.pipeline.as_deref().and_then(|id| id.parse().ok());
        let page = |path: String| project.as_ref().map(|project| format!("{url}/{project}/-/{path}"));
        let facts = DeploymentFacts {
            status: DeploymentStatus::Unknown,
            reference: claim("ref"),
            pipeline,
            job_url: page(format!("jobs/{id}")),
            pipeline_url: pipeline.and_then(|id| page(format!("pipelines/{id}"))),
            commit_url: commit.as_ref().and_then(|commit| page(format!("commit/{commit}"))),
            ..DeploymentFacts::default()
        };
        Some(Deployment {
            time: SystemTime::now(),
            agent,
            namespace: None,
            project_id: job.project_id.as_deref()?.parse().ok()?,
            project: project.clone(),
            environment: slug(environment),
            tier: Tier::of(environment_tier.as_deref().unwrap_or_default()),
            job: id,
            commit: commit.clone(),
            username: user.clone(),
            facts,
        })
    }
}

/// Returns the slug that GitLab gives to a new environment with this name (`Gitlab::Slug::Environment`). The token has the name alone.
fn slug(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let lower = name.to_lowercase();
    let begins_with_letter = lower.starts_with(|c: char| c.is_ascii_lowercase());
    let mut slug = if begins_with_letter { String::new() } else { "env-".to_owned() };
    for c in lower.chars().map(|c| if is_plain(c) { c } else { '-' }) {
        if c != '-' || !slug.ends_with('-') {
            slug.push(c);
        }
    }
    if slug == name && slug.len() <= MAX_SLUG {
        return slug.strip_suffix('-').unwrap_or(&slug).to_owned();
    }
    slug.truncate(SLUG_BEGINNING);
    if !slug.ends_with('-') {
        slug.push('-');
    }
    slug + &suffix(&Sha256::digest(name).into())
}

/// Returns the last digits of a number in base 36, whose bytes begin with the highest one.
fn suffix(number: &[u8; 32]) -> String {
    let last = number.iter().fold(0, |rest, byte| (rest * 256 + u64::from(*byte)) % 36_u64.pow(SLUG_DIGITS));
    let digits = (0..SLUG_DIGITS).rev().map(|place| (last / 36_u64.pow(place) % 36) as u32);
    digits.filter_map(|digit| char::from_digit(digit, 36)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns the deployment of a token with the claims of a job, some of which are changed.
    fn deployment(changed: &Value) -> Option<Deployment> {
        let mut claims = json!({
            "iss": "https://gitlab.example.com", "job_id": "302", "pipeline_id": "301", "project_id": "30",
            "project_path": "shop/web", "user_login": "alice", "ref": "main", "sha": "714a629c",
            "environment": "prod", "deployment_tier": "production", "environment_action": "start",
        });
        let claims = claims.as_object_mut().unwrap();
        claims.extend(changed.as_object().unwrap().clone());
        claims.retain(|_, value| !value.is_null());
        let job = ci_job::of_claims(claims)?;
        let urls = ["unix:/run/gitlab", "https://gitlab.example.com/"].map(str::to_owned);
        GitLabUrls::new(urls).deployment(claims, &job, AgentId(7))
    }

    #[test]
    fn deployment_is_described_by_the_claims() {
        let found = deployment(&json!({})).unwrap();
        assert_eq!((found.job, found.project_id, found.agent), (302, 30, AgentId(7)));
        assert_eq!((&*found.environment, found.tier), ("prod", Tier::Production));
        assert_eq!(
            (found.project.as_deref(), found.commit.as_deref(), found.username.as_deref()),
            (Some("shop/web"), Some("714a629c"), Some("alice"))
        );
        let DeploymentFacts { status, reference, pipeline, job_url, pipeline_url, commit_url, .. } =
            found.facts;
        assert_eq!(
            (status, reference.as_deref(), pipeline),
            (DeploymentStatus::Unknown, Some("main"), Some(301))
        );
        let pages = [job_url, pipeline_url, commit_url].map(Option::unwrap);
        let page = |path: &str| format!("https://gitlab.example.com/shop/web/-/{path}");
        assert_eq!(pages, [page("jobs/302"), page("pipelines/301"), page("commit/714a629c")]);
    }

    #[test]
    fn token_of_another_issuer_or_without_a_deployment_is_none() {
        for changed in [
            json!({"iss": "https://gitlab.example.com.evil"}),
            json!({"iss": "https://gitlab.example.com:8443"}),
            json!({"iss": "https://gitlab.example.com/other"}),
            json!({"iss": "http://gitlab.example.com"}),
            json!({"environment": null}),
            json!({"environment_action": "stop"}),
            json!({"job_id": "x"}),
            json!({"project_id": null}),
            json!({"job_id": null, "run_id": "1", "repository": "shop/web"}),
        ] {
            assert_eq!(deployment(&changed), None, "{changed}");
        }
        for changed in [json!({"environment_action": null}), json!({"iss": "https://gitlab.example.com/"})] {
            assert!(deployment(&changed).is_some(), "{changed}");
        }
    }

    /// The names and slugs are those of GitLab's own test, which replaces the digest by 32 bytes 0xaa.
    #[test]
    fn slug_is_that_of_gitlab() {
        assert_eq!(suffix(&[0xaa; 32]), "q517sa");
        for (name, beginning) in [
            ("staging-12345678901234567", "staging-123456789-"),
            ("9-staging-123456789012345", "env-9-staging-123-"),
            ("staging-1234567890123456-", "staging-123456789-"),
            ("PRODUCTION", "production-"),
            ("review/1-foo", "review-1-foo-"),
            ("1/foo", "env-1-foo-"),
            ("foo--bar", "foo-bar-"),
            ("*-foo", "env-foo-"),
            ("staging-12345678-01234567", "staging-12345678-"),
        ] {
            assert_eq!(slug(name), format!("{beginning}{}", suffix(&Sha256::digest(name).into())));
        }
        assert_eq!(slug("review/1-foo"), "review-1-foo-9tdj0u");
        for (name, expected) in [
            ("production", "production"),
            ("staging-1234567890123456", "staging-1234567890123456"),
            ("foo-", "foo"),
            ("staging-12345678-", "staging-12345678"),
        ] {
            assert_eq!(slug(name), expected);
        }
    }
}
