//! The identities of jobs and users in the cluster, exactly as GitLab's kas sets them: RBAC of clusters names them.

use access::{AccessAs, RequestError};
use proto::{AgentId, Reason, impersonation::Impersonation};

use super::{
    job::{AllowedAgent, JobAccessAs, JobInfo},
    user::{AccessType, UserAccessAs, UserInfo},
};

/// The most groups of one identity. Each of them is a header of each request.
const MAX_GROUPS: usize = 5_000;

/// Returns the identity of a job that uses an agent.
///
/// # Errors
///
/// The configuration of the agent has an unknown or invalid `access_as`.
pub(super) fn of_job(
    job: &JobInfo,
    agent: AgentId,
    allowed: &AllowedAgent,
) -> Result<AccessAs, RequestError> {
    match allowed.access_as() {
        JobAccessAs::Agent => Ok(AccessAs::Agent),
        JobAccessAs::CiJob => impersonate(ci_job(job, agent, allowed.config_project.id)),
        JobAccessAs::Impersonate(configured) => impersonate((**configured).clone()),
        JobAccessAs::Invalid => Err(invalid("access_as has an unknown mode, or more than one")),
    }
}

/// Returns the identity of a user that uses an agent.
///
/// # Errors
///
/// GitLab sent a name or role that is no header value.
pub(super) fn of_user(user: &UserInfo, access_type: AccessType) -> Result<AccessAs, RequestError> {
    match &user.access_as {
        UserAccessAs::Agent(_) => Ok(AccessAs::Agent),
        UserAccessAs::User(memberships) => {
            let username = &user.user.username;
            let roles = [("project_role", &memberships.projects), ("group_role", &memberships.groups)];
            let roles = roles.into_iter().flat_map(|(kind, list)| {
                list.iter().flat_map(move |membership| {
                    let id = membership.id;
                    membership.roles.iter().map(move |role| format!("gitlab:{kind}:{id}:{role}"))
                })
            });
            let agent = &user.agent;
            impersonate(Impersonation {
                username: format!("gitlab:user:{username}"),
                uid: None,
                groups: ["gitlab:user".to_owned()].into_iter().chain(roles).take(MAX_GROUPS + 1).collect(),
                extra: vec![
                    extra("id", agent.id),
                    extra("username", username),
                    extra("access_type", access_type.as_str()),
                    extra("config_project_id", agent.config_project.id),
                ],
            })
        }
    }
}

fn ci_job(info: &JobInfo, agent: AgentId, config_project: u64) -> Impersonation {
    let (job, project, environment) = (info.job.id, info.project.id, info.environment.as_ref());
    let mut groups = vec!["gitlab:ci_job".to_owned()];
    for group in info.project.groups.iter().take(MAX_GROUPS) {
        groups.push(format!("gitlab:group:{}", group.id));
        groups.extend(environment.map(|env| format!("gitlab:group_env_tier:{}:{}", group.id, env.tier)));
    }
    groups.push(format!("gitlab:project:{project}"));
    let mut extras = vec![
        extra("id", agent),
        extra("config_project_id", config_project),
        extra("project_id", project),
        extra("ci_pipeline_id", info.pipeline.id),
        extra("ci_job_id", job),
        extra("username", &info.user.username),
    ];
    if let Some(environment) = environment {
        groups.push(format!("gitlab:project_env:{project}:{}", environment.slug));
        groups.push(format!("gitlab:project_env_tier:{project}:{}", environment.tier));
        extras.push(extra("environment_slug", &environment.slug));
        extras.push(extra("environment_tier", &environment.tier));
    }
    Impersonation { username: format!("gitlab:ci_job:{job}"), uid: None, groups, extra: extras }
}

fn extra(key: &str, value: impl ToString) -> (String, Vec<String>) {
    (format!("agent.gitlab.com/{key}"), vec![value.to_string()])
}

fn impersonate(who: Impersonation) -> Result<AccessAs, RequestError> {
    if who.groups.len() > MAX_GROUPS {
        return Err(invalid("the identity has too many groups"));
    }
    let headers = who.headers().map_err(|error| invalid(&error.to_string()))?;
    Ok(AccessAs::Impersonate { username: who.username, headers })
}

fn invalid(what: &str) -> RequestError {
    let what = format!(
        "Failed to construct impersonation config: {what}; see access_as in the configuration of the agent"
    );
    RequestError::new(Reason::Internal, what)
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use serde_json::{Value, json};

    use super::*;

    fn headers(access_as: AccessAs) -> Vec<(String, String)> {
        let headers = match access_as {
            AccessAs::Agent => HeaderMap::new(),
            AccessAs::Impersonate { headers, .. } => headers,
        };
        let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            (name.to_string(), value.to_str().unwrap().to_owned())
        };
        headers.iter().map(line).collect()
    }

    fn lines(text: &str) -> Vec<(String, String)> {
        let pair = |line: &str| line.trim().split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned()));
        text.lines().filter_map(pair).collect()
    }

    fn job(access_as: &Value, environment: Option<Value>) -> Result<Vec<(String, String)>, RequestError> {
        let mut info = json!({
            "allowed_agents": [{"id": 7, "config_project": {"id": 107}, "configuration": {"access_as": access_as}}],
            "job": {"id": 3}, "pipeline": {"id": 6}, "project": {"id": 30, "groups": [{"id": 23}, {"id": 25}]},
            "user": {"id": 1, "username": "root", "roles_in_project": ["developer"]},
        });
        if let Some(environment) = environment {
            info["environment"] = environment;
        }
        let info: JobInfo = serde_json::from_value(info).unwrap();
        of_job(&info, AgentId(7), info.agent(AgentId(7)).unwrap()).map(headers)
    }

    #[test]
    fn agent_mode_has_no_identity() {
        assert_eq!(job(&json!({"agent": {}}), None).unwrap(), []);
        assert_eq!(job(&json!(null), None).unwrap(), []);
    }

    #[test]
    fn ci_job_mode_names_job_project_and_groups() {
        let expected = "impersonate-user: gitlab:ci_job:3
            impersonate-group: gitlab:ci_job
            impersonate-group: gitlab:group:23
            impersonate-group: gitlab:group:25
            impersonate-group: gitlab:project:30
            impersonate-extra-agent.gitlab.com%2fid: 7
            impersonate-extra-agent.gitlab.com%2fconfig_project_id: 107
            impersonate-extra-agent.gitlab.com%2fproject_id: 30
            impersonate-extra-agent.gitlab.com%2fci_pipeline_id: 6
            impersonate-extra-agent.gitlab.com%2fci_job_id: 3
            impersonate-extra-agent.gitlab.com%2fusername: root";
        assert_eq!(job(&json!({"ci_job": {}}), None).unwrap(), lines(expected));
    }

    #[test]
    fn ci_job_mode_names_the_environment() {
        let environment = json!({"slug": "prod-x", "tier": "production"});
        let expected = "impersonate-user: gitlab:ci_job:3
            impersonate-group: gitlab:ci_job
            impersonate-group: gitlab:group:23
            impersonate-group: gitlab:group_env_tier:23:production
            impersonate-group: gitlab:group:25
            impersonate-group: gitlab:group_env_tier:25:production
            impersonate-group: gitlab:project:30
            impersonate-group: gitlab:project_env:30:prod-x
            impersonate-group: gitlab:project_env_tier:30:production
            impersonate-extra-agent.gitlab.com%2fid: 7
            impersonate-extra-agent.gitlab.com%2fconfig_project_id: 107
            impersonate-extra-agent.gitlab.com%2fproject_id: 30
            impersonate-extra-agent.gitlab.com%2fci_pipeline_id: 6
            impersonate-extra-agent.gitlab.com%2fci_job_id: 3
            impersonate-extra-agent.gitlab.com%2fusername: root
            impersonate-extra-agent.gitlab.com%2fenvironment_slug: prod-x
            impersonate-extra-agent.gitlab.com%2fenvironment_tier: production";
        assert_eq!(job(&json!({"ci_job": {}}), Some(environment)).unwrap(), lines(expected));
    }

    #[test]
    fn impersonate_mode_has_the_configured_identity() {
        let entry = json!({"username": "alice", "uid": "7", "groups": ["a", "b"],
            "extra": [{"key": "Example.com/Key", "val": ["1", "2"]}]});
        let expected = "impersonate-user: alice
            impersonate-uid: 7
            impersonate-group: a
            impersonate-group: b
            impersonate-extra-example.com%2fkey: 1
            impersonate-extra-example.com%2fkey: 2";
        assert_eq!(job(&json!({"impersonate": entry}), None).unwrap(), lines(expected));
    }

    #[test]
    fn invalid_mode_is_refused_and_never_agent() {
        for access_as in [
            json!({"ci_user": {}}),
            json!({"impersonate": {"username": ""}}),
            json!({"impersonate": {"username": "a", "groups": [""]}}),
            json!({"impersonate": {"username": "a\r\nx: y"}}),
            json!({"impersonate": {"username": "a", "groups": [" system:masters"]}}),
            json!({"impersonate": {"username": "a ", "groups": []}}),
            json!({"impersonate": {"username": "a", "extra": [{"key": "", "val": ["v"]}]}}),
        ] {
            let error = job(&access_as, None).unwrap_err();
            assert!(
                error.message.starts_with("Failed to construct impersonation config"),
                "{}",
                error.message
            );
        }
        for slug in ["a\nb", "a "] {
            let environment = json!({"slug": slug, "tier": "other"});
            assert!(job(&json!({"ci_job": {}}), Some(environment)).is_err(), "{slug:?}");
        }
    }

    fn user(access_as: &Value, access_type: AccessType) -> Result<Vec<(String, String)>, RequestError> {
        let info = json!({
            "agent": {"id": 7, "config_project": {"id": 107}},
            "user": {"id": 5, "username": "alice"},
            "access_as": access_as,
        });
        of_user(&serde_json::from_value(info).unwrap(), access_type).map(headers)
    }

    #[test]
    fn user_mode_names_the_user_and_its_roles() {
        assert_eq!(user(&json!({"agent": {}}), AccessType::SessionCookie).unwrap(), []);
        let access_as = json!({"user": {
            "projects": [{"id": 30, "roles": ["reporter", "developer"]}],
            "groups": [{"id": 23, "roles": ["developer"]}],
        }});
        for (access_type, text) in [
            (AccessType::SessionCookie, "session_cookie"),
            (AccessType::PersonalAccessToken, "personal_access_token"),
        ] {
            let expected = format!(
                "impersonate-user: gitlab:user:alice
                impersonate-group: gitlab:user
                impersonate-group: gitlab:project_role:30:reporter
                impersonate-group: gitlab:project_role:30:developer
                impersonate-group: gitlab:group_role:23:developer
                impersonate-extra-agent.gitlab.com%2fid: 7
                impersonate-extra-agent.gitlab.com%2fusername: alice
                impersonate-extra-agent.gitlab.com%2faccess_type: {text}
                impersonate-extra-agent.gitlab.com%2fconfig_project_id: 107"
            );
            assert_eq!(user(&access_as, access_type).unwrap(), lines(&expected));
        }
    }

    #[test]
    fn user_whose_role_would_change_on_its_way_is_refused() {
        for role in ["", "developer ", "developer\t"] {
            let access_as = json!({"user": {"groups": [{"id": 23, "roles": [role]}]}});
            let result = user(&access_as, AccessType::SessionCookie);
            assert_eq!(result.is_err(), !role.is_empty(), "{role:?}");
        }
    }

    #[test]
    fn identity_with_too_many_groups_is_refused() {
        let roles = vec!["developer"; MAX_GROUPS + 1];
        let access_as = json!({"user": {"projects": [{"id": 30, "roles": roles}]}});
        assert!(user(&access_as, AccessType::SessionCookie).is_err());
    }
}
