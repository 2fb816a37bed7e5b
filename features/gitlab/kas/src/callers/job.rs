//! CI jobs: the response of GitLab to a job token, and what it means.

use std::time::{Duration, SystemTime};

use access::{ManagedEnvironment, RequestError};
use environments_wire::{Deployment, DeploymentFacts, DeploymentStatus, Tier};
use http::StatusCode;
use proto::{
    AgentId, Reason, ServiceRight,
    agent_configuration::check_services_of_jobs,
    audit::CiJob,
    impersonation::Impersonation,
    provision::{EnvironmentJob, EnvironmentKey},
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::rights;
use crate::GitLabError;

/// The response of `/job/allowed_agents`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct JobInfo {
    allowed_agents: Vec<AllowedAgent>,
    pub(super) job: Id,
    pub(super) pipeline: Id,
    pub(super) project: JobProject,
    pub(super) user: JobUser,
    pub(super) environment: Option<Environment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Id {
    pub(super) id: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct JobProject {
    pub(super) id: u64,
    /// The group of the project and its ancestors.
    #[serde(default)]
    pub(super) groups: Vec<Id>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct JobUser {
    pub(super) id: u64,
    pub(super) username: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Environment {
    pub(super) slug: String,
    pub(super) tier: String,
}

/// An agent that the job may use.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct AllowedAgent {
    id: u64,
    pub(super) config_project: Id,
    #[serde(default)]
    configuration: Configuration,
}

/// The entry of `ci_access` that allows the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct Configuration {
    #[serde(default)]
    access_as: JobAccessAs,
    default_namespace: Option<String>,
    #[serde(default)]
    resource_management: Option<ResourceManagement>,
    #[serde(default)]
    services: JobServices,
}

/// The section `services` of the entry.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Value")]
enum JobServices {
    Configured(Vec<ServiceRight>),
    /// A value that this version does not know. It must not become the default, which it may narrow.
    Invalid,
}

/// The section `resource_management` of the entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
struct ResourceManagement {
    #[serde(default)]
    enabled: bool,
}

/// The identity of a job in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Value")]
pub(super) enum JobAccessAs {
    /// The identity of agentk.
    #[default]
    Agent,
    /// An identity that names the job, its project and its environment.
    CiJob,
    /// The identity of the configuration.
    Impersonate(Box<Impersonation>),
    /// A value that this version does not know. It must not become [`Self::Agent`].
    Invalid,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImpersonateEntry {
    username: String,
    uid: Option<String>,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    extra: Vec<ExtraEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtraEntry {
    key: String,
    val: Vec<String>,
}

impl JobInfo {
    /// Returns the agent, if the job may use it.
    pub(super) fn agent(&self, agent: AgentId) -> Option<&AllowedAgent> {
        self.allowed_agents.iter().find(|allowed| allowed.id == agent.0)
    }

    /// Returns the agents that the job may use.
    pub(super) fn agents(&self) -> Vec<AgentId> {
        self.allowed_agents.iter().map(|allowed| AgentId(allowed.id)).collect()
    }

    /// Returns the deployment with an agent, if the job has an environment.
    pub(super) fn deployment(&self, agent: AgentId) -> Option<Deployment> {
        let environment = self.environment.as_ref()?;
        let namespace = self.agent(agent)?.configuration.default_namespace.as_deref();
        let facts = DeploymentFacts {
            status: DeploymentStatus::Running,
            pipeline: Some(self.pipeline.id),
            ..DeploymentFacts::default()
        };
        Some(Deployment {
            time: SystemTime::now(),
            agent,
            namespace: namespace.filter(|name| !name.is_empty()).map(text),
            project_id: self.project.id,
            project: None,
            environment: text(&environment.slug),
            tier: Tier::of(&environment.tier),
            job: self.job.id,
            commit: None,
            username: Some(text(&self.user.username)),
            facts,
        })
    }

    /// Returns the job for the audit log.
    pub(super) fn ci_job(&self) -> CiJob {
        let environment = self.environment.as_ref();
        CiJob {
            id: Some(self.job.id.to_string()),
            pipeline: Some(self.pipeline.id.to_string()),
            project_id: Some(self.project.id.to_string()),
            user: Some(text(&self.user.username)),
            environment: environment.map(|environment| text(&environment.slug)),
            environment_tier: environment.map(|environment| text(&environment.tier)),
            ..CiJob::default()
        }
    }

    /// Returns the environment whose objects have to exist before the first request to an agent, if the job has one, and the entry that
    /// allows the agent wants that.
    ///
    /// # Errors
    ///
    /// The slug of the environment cannot be in names of a cluster.
    pub(super) fn managed_environment(
        &self,
        agent: AgentId,
    ) -> Result<Option<ManagedEnvironment>, RequestError> {
        let managed = self.agent(agent).and_then(|allowed| allowed.configuration.resource_management);
        let Some(environment) = self.environment.as_ref().filter(|_| managed.is_some_and(|it| it.enabled))
        else {
            return Ok(None);
        };
        let key = EnvironmentKey::new(self.project.id, &environment.slug)
            .map_err(|error| RequestError::new(Reason::EnvironmentRefused, error.to_string()))?;
        let job = EnvironmentJob {
            tier: environment.tier.clone(),
            pipeline: self.pipeline.id,
            job: self.job.id,
            user: self.user.id,
            username: self.user.username.clone(),
        };
        Ok(Some(ManagedEnvironment { key, job }))
    }

    /// Returns the number of its elements, as a measure of its memory.
    pub(super) fn weight(&self) -> usize {
        let services = self.allowed_agents.iter().map(|allowed| match &allowed.configuration.services {
            JobServices::Configured(services) => rights::weight(services.iter()),
            JobServices::Invalid => 0,
        });
        self.allowed_agents.len() + self.project.groups.len() + services.sum::<usize>()
    }
}

/// Returns the beginning of a text of GitLab, which is not trusted to send a short one.
fn text(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(255).collect()
}

impl AllowedAgent {
    pub(super) fn access_as(&self) -> &JobAccessAs {
        &self.configuration.access_as
    }

    /// Returns the services of the entry.
    ///
    /// # Errors
    ///
    /// The reason is `internal`: the list is invalid.
    pub(super) fn services(&self) -> Result<&[ServiceRight], RequestError> {
        match &self.configuration.services {
            JobServices::Configured(services) => Ok(services),
            JobServices::Invalid => {
                let what = "the entry of ci_access that GitLab has for this job has an invalid list services: correct it in the \
                            configuration of the agent";
                Err(RequestError::new(Reason::Internal, what))
            }
        }
    }
}

impl Default for JobServices {
    fn default() -> Self {
        Self::Configured(Vec::new())
    }
}

impl From<Value> for JobServices {
    fn from(value: Value) -> Self {
        if value.is_null() {
            return Self::default();
        }
        match serde_json::from_value::<Vec<ServiceRight>>(value) {
            Ok(services) if check_services_of_jobs(&services).is_ok() => Self::Configured(services),
            Ok(_) | Err(_) => Self::Invalid,
        }
    }
}

impl From<Value> for JobAccessAs {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Agent,
            Value::Object(modes) => Self::from_modes(modes),
            _ => Self::Invalid,
        }
    }
}

impl JobAccessAs {
    /// Converts the keys of `access_as`, of which there is one at most.
    fn from_modes(modes: Map<String, Value>) -> Self {
        let mut modes = modes.into_iter();
        match (modes.next(), modes.next()) {
            (None, _) => Self::Agent,
            (Some((mode, Value::Object(_))), None) if mode == "agent" => Self::Agent,
            (Some((mode, Value::Object(_))), None) if mode == "ci_job" => Self::CiJob,
            (Some((mode, entry @ Value::Object(_))), None) if mode == "impersonate" => {
                serde_json::from_value::<ImpersonateEntry>(entry).map_or(Self::Invalid, |entry| {
                    Self::Impersonate(Box::new(Impersonation {
                        username: entry.username,
                        uid: entry.uid.filter(|uid| !uid.is_empty()),
                        groups: entry.groups,
                        extra: entry.extra.into_iter().map(|extra| (extra.key, extra.val)).collect(),
                    }))
                })
            }
            (Some(_), _) => Self::Invalid,
        }
    }
}

/// Returns the error for the caller if GitLab does not accept the token of a job, or does not answer.
pub(super) fn refusal(error: &GitLabError) -> RequestError {
    let (status, retry_after) = match error {
        GitLabError::Status { status, .. } => (*status, Duration::from_secs(5)),
        GitLabError::Unavailable { retry_after, .. } => (StatusCode::SERVICE_UNAVAILABLE, *retry_after),
    };
    let (reason, message) = match status {
        StatusCode::UNAUTHORIZED => (
            Reason::Unauthorized,
            "Unauthorized: CI job token: GitLab refuses it; a token is valid while its job runs",
        ),
        StatusCode::FORBIDDEN => {
            (Reason::Forbidden, "Forbidden: CI job token: GitLab does not let this job use agents")
        }
        StatusCode::NOT_FOUND => (
            Reason::UnknownAgent,
            "Not found: agents for CI job token: the token is not that of a CI job; use CI_JOB_TOKEN",
        ),
        _ => {
            let what = format!("Failed to get allowed agents for CI job token: {error}");
            return RequestError::new(Reason::IdentityUnavailable, what).with_retry_after(retry_after);
        }
    };
    RequestError::new(reason, message)
}

/// Returns the error for an agent that the job may not use.
pub(super) fn not_allowed(agent: AgentId) -> RequestError {
    let what = format!(
        "Forbidden: agentId is not allowed: add the project of this job to ci_access in the configuration of agent {agent}, and \
         compare its environments and protected_branches_only with this job"
    );
    RequestError::new(Reason::Forbidden, what)
}

#[cfg(test)]
mod tests {
    use proto::Verb;
    use serde_json::json;

    use super::*;

    fn access_as(configuration: Value) -> JobAccessAs {
        let agent = json!({"id": 7, "config_project": {"id": 1}, "configuration": configuration});
        serde_json::from_value::<AllowedAgent>(agent).unwrap().configuration.access_as
    }

    #[test]
    fn access_as_has_one_known_mode() {
        for (configuration, expected) in [
            (json!({}), JobAccessAs::Agent),
            (json!({"access_as": {}, "default_namespace": "a"}), JobAccessAs::Agent),
            (json!({"access_as": null}), JobAccessAs::Agent),
            (json!({"access_as": {"agent": {}}}), JobAccessAs::Agent),
            (json!({"access_as": {"ci_job": {}}}), JobAccessAs::CiJob),
            (json!({"access_as": {"ci_job": null}}), JobAccessAs::Invalid),
            (json!({"access_as": {"ci_user": {}}}), JobAccessAs::Invalid),
            (json!({"access_as": {"agent": {}, "ci_job": {}}}), JobAccessAs::Invalid),
            (json!({"access_as": "agent"}), JobAccessAs::Invalid),
            (json!({"access_as": {"impersonate": {}}}), JobAccessAs::Invalid),
            (json!({"access_as": {"impersonate": {"username": "a", "user": "b"}}}), JobAccessAs::Invalid),
        ] {
            assert_eq!(access_as(configuration.clone()), expected, "{configuration}");
        }
        let entry =
            json!({"username": "a", "groups": ["g"], "uid": "1", "extra": [{"key": "k", "val": ["v"]}]});
        let expected = Impersonation {
            username: "a".into(),
            uid: Some("1".into()),
            groups: vec!["g".into()],
            extra: vec![("k".into(), vec!["v".into()])],
        };
        let impersonate = access_as(json!({"access_as": {"impersonate": entry}}));
        assert_eq!(impersonate, JobAccessAs::Impersonate(Box::new(expected)));
    }

    #[test]
    fn services_of_the_entry_are_valid_or_close_the_agent() {
        let services = |services: Value| {
            let agent =
                json!({"id": 7, "config_project": {"id": 1}, "configuration": {"services": services}});
            let agent: AllowedAgent = serde_json::from_value(agent).unwrap();
            agent.services().map(<[_]>::to_vec).map_err(|error| error.reason)
        };
        assert_eq!(services(Value::Null), Ok(Vec::new()));
        let configured =
            services(json!(["graph", {"service": "gitops", "verbs": ["read", "sync"]}])).unwrap();
        assert_eq!(configured[0], ServiceRight::all("graph".parse().unwrap()));
        assert_eq!(configured[1].verbs, [Verb::Read, Verb::Sync]);
        for invalid in [
            json!({}),
            json!("graph"),
            json!(["control"]),
            json!([{"service": "graph", "verbs": ["sync"]}]),
            json!([{"service": "graph", "role": "owner"}]),
            json!([{"service": "prometheus", "labels": null}]),
            json!([{"service": "gitops", "verbs": null}]),
            json!(["prometheus", {"service": "prometheus", "labels": {"ns": ["shop"]}}]),
            json!([
                {"service": "prometheus", "labels": {"ns": ["shop"]}},
                {"service": "prometheus", "labels": {"ns": ["web"]}},
            ]),
            json!(["provision"]),
            json!(vec!["graph"; 65]),
            json!([{"service": "prometheus", "labels": {"ns": vec!["a"; 257]}}]),
        ] {
            assert_eq!(services(invalid.clone()), Err(Reason::Internal), "{invalid}");
        }
    }

    #[test]
    fn environment_is_managed_if_the_entry_of_the_agent_says_so() {
        let job = |agents: Value, environment: Value| {
            let info = json!({"allowed_agents": agents, "job": {"id": 3}, "pipeline": {"id": 6}, "project": {"id": 30},
                "user": {"id": 1, "username": "root"}, "environment": environment});
            let info: JobInfo = serde_json::from_value(info).unwrap();
            info.managed_environment(AgentId(7))
        };
        let agent = |id: u64, configuration: Value| json!({"id": id, "config_project": {"id": 1}, "configuration": configuration});
        let (on, off) = (
            json!({"resource_management": {"enabled": true}}),
            json!({"resource_management": {"enabled": false}}),
        );
        let live = json!({"slug": "live", "tier": "production"});
        let managed = job(json!([agent(7, on.clone())]), live.clone()).unwrap().unwrap();
        assert_eq!(
            (managed.key.to_string(), managed.job.job, &*managed.job.username),
            ("live of project 30".to_owned(), 3, "root")
        );
        for (agents, environment) in [
            (json!([agent(7, on.clone())]), Value::Null),
            (json!([agent(7, off)]), live.clone()),
            (json!([agent(7, json!({"resource_management": null}))]), live.clone()),
            (json!([agent(7, json!({})), agent(8, on.clone())]), live),
        ] {
            assert_eq!(job(agents.clone(), environment), Ok(None), "{agents}");
        }
        let error = job(json!([agent(7, on)]), json!({"slug": "../x", "tier": "other"})).unwrap_err();
        assert_eq!(error.reason, Reason::EnvironmentRefused);
    }

    /// The rows for CI jobs of the table of GitLab's kas. It answers 500 where this kas answers 503.
    #[test]
    fn refusal_has_the_status_and_the_message_of_gitlab() {
        for (status, expected, message) in [
            (401, 401, "Unauthorized: CI job token"),
            (403, 403, "Forbidden: CI job token"),
            (404, 404, "Not found: agents for CI job token"),
            (400, 503, "Failed to get allowed agents for CI job token"),
            (422, 503, "Failed to get allowed agents for CI job token"),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let error = refusal(&GitLabError::Status { status, message: "text of GitLab".into() });
            assert_eq!(error.reason.status(), expected, "{status}");
            assert!(error.message.starts_with(message), "{}", error.message);
            assert_eq!(error.retry_after.is_some(), expected == 503);
        }
        let retry_after = Duration::from_secs(9);
        let down = refusal(&GitLabError::Unavailable { message: "it is down".into(), retry_after });
        assert_eq!((down.reason.status().as_u16(), down.retry_after), (503, Some(retry_after)));
        assert!(down.message.ends_with("GitLab is not available: it is down"), "{}", down.message);
        let not_allowed = not_allowed(AgentId(7));
        assert_eq!(not_allowed.reason.status(), 403);
        assert!(not_allowed.message.starts_with("Forbidden: agentId is not allowed"));
    }
}
