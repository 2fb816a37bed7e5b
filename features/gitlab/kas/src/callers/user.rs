//! Users: the request to GitLab about a personal access token or a browser session, its response, and what it means.

use std::time::Duration;

use access::RequestError;
use http::StatusCode;
use proto::{AgentId, Reason, agent_configuration::Role};
use serde::{Deserialize, Serialize};

use crate::{GitLabError, agent_facts::UserAccessMode, login::LoginUser, user_access};

/// The body of `authorize_proxy_user`.
#[derive(Debug, Serialize)]
pub(super) struct UserRequest<'a> {
    pub(super) agent_id: AgentId,
    pub(super) access_type: AccessType,
    /// The cookie or the token.
    pub(super) access_key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) csrf_token: Option<&'a str>,
}

/// The kind of a user's credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AccessType {
    /// The cookie of a browser session.
    SessionCookie,
    /// A personal access token.
    PersonalAccessToken,
    /// A login at the page of kas, about which GitLab is not asked in this way.
    OauthLogin,
}

/// The response of `authorize_proxy_user`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct UserInfo {
    pub(super) agent: UserAgent,
    pub(super) user: User,
    pub(super) access_as: UserAccessAs,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct UserAgent {
    pub(super) id: AgentId,
    pub(super) config_project: ConfigProject,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct ConfigProject {
    pub(super) id: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct User {
    pub(super) id: u64,
    pub(super) username: String,
}

/// The identity of a user in the cluster. Another key than these, or none or both, fails to parse.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum UserAccessAs {
    /// The identity of agentk.
    Agent(Empty),
    /// An identity that names the user and its roles.
    User(Memberships),
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Empty {}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Memberships {
    #[serde(default)]
    pub(super) projects: Vec<Membership>,
    #[serde(default)]
    pub(super) groups: Vec<Membership>,
}

/// The roles of the user in a project or a group that `user_access` lists.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Membership {
    pub(super) id: u64,
    #[serde(default)]
    pub(super) roles: Vec<String>,
}

impl AccessType {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::SessionCookie => "session_cookie",
            Self::PersonalAccessToken => "personal_access_token",
            Self::OauthLogin => "oauth_login",
        }
    }
}

impl From<LoginUser> for UserInfo {
    fn from(login: LoginUser) -> Self {
        let LoginUser { agent: id, id: user, username, config_project, mode, projects, groups } = login;
        let memberships = |list: Vec<(u64, Vec<String>)>| {
            list.into_iter().map(|(id, roles)| Membership { id, roles }).collect()
        };
        let access_as = match mode {
            UserAccessMode::Agent => UserAccessAs::Agent(Empty {}),
            UserAccessMode::User => UserAccessAs::User(Memberships {
                projects: memberships(projects),
                groups: memberships(groups),
            }),
        };
        let agent = UserAgent { id, config_project: ConfigProject { id: config_project } };
        Self { agent, user: User { id: user, username }, access_as }
    }
}

impl UserInfo {
    /// Returns the greatest role of the user, as far as GitLab says it. It says none with `access_as: {agent: {}}`, and lets nobody with a
    /// lesser role than that of a developer use an agent.
    pub(super) fn role(&self) -> Role {
        let UserAccessAs::User(Memberships { projects, groups }) = &self.access_as else {
            return Role::Developer;
        };
        let roles = projects.iter().chain(groups).flat_map(|membership| &membership.roles);
        roles.filter_map(|role| Role::of_gitlab(role)).max().unwrap_or(Role::Developer)
    }

    /// Returns the number of its elements, as a measure of its memory.
    pub(super) fn weight(&self) -> usize {
        match &self.access_as {
            UserAccessAs::Agent(_) => 0,
            UserAccessAs::User(Memberships { projects, groups }) => {
                projects.iter().chain(groups).map(|membership| 1 + membership.roles.len()).sum()
            }
        }
    }
}

/// Returns the error for the caller if GitLab does not accept a user, or does not answer.
///
/// GitLab sends 403 about a user whom it knows and an agent that exists. The response is the same for all other reasons, so that it does
/// not reveal to strangers which users and agents exist. GitLab sends 400 for a credential that cannot be one.
pub(super) fn refusal(error: &GitLabError, agent: AgentId) -> RequestError {
    let retry_after = match error {
        GitLabError::Status { status, .. } => match *status {
            StatusCode::FORBIDDEN => return user_access::not_admitted(agent),
            StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::NOT_FOUND => {
                let what = "Unauthorized: GitLab does not let this user use this agent, or the credential is not valid";
                return RequestError::new(Reason::Unauthorized, what);
            }
            _ => Duration::from_secs(5),
        },
        GitLabError::Unavailable { retry_after, .. } => *retry_after,
    };
    let what = format!("Failed to authorize user session: {error}");
    RequestError::new(Reason::IdentityUnavailable, what).with_retry_after(retry_after)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(access_as: Value) -> Option<UserAccessAs> {
        let info = json!({
            "agent": {"id": 7, "config_project": {"id": 1}, "new": 1},
            "user": {"id": 5, "username": "alice"},
            "access_as": access_as,
        });
        Some(serde_json::from_value::<UserInfo>(info).ok()?.access_as)
    }

    #[test]
    fn access_as_has_exactly_one_known_mode() {
        assert_eq!(parsed(json!({"agent": {}})), Some(UserAccessAs::Agent(Empty {})));
        let role = json!([{"id": 3, "roles": ["developer"]}]);
        let expected = Membership { id: 3, roles: vec!["developer".into()] };
        let expected = Memberships { projects: vec![expected], groups: Vec::new() };
        assert_eq!(parsed(json!({"user": {"projects": role}})), Some(UserAccessAs::User(expected)));
        for other in [
            json!({}),
            json!(null),
            json!({"agent": {}, "user": {}}),
            json!({"root": {}}),
            json!({"agent": 1}),
        ] {
            assert_eq!(parsed(other.clone()), None, "{other}");
        }
    }

    #[test]
    fn role_is_the_greatest_one_of_all_memberships() {
        let role = |access_as: UserAccessAs| {
            let (agent, user) = (
                UserAgent { id: AgentId(7), config_project: ConfigProject { id: 1 } },
                User { id: 5, username: "alice".to_owned() },
            );
            UserInfo { agent, user, access_as }.role()
        };
        let membership =
            |roles: &[&str]| Membership { id: 3, roles: roles.iter().map(|&role| role.into()).collect() };
        let of = |projects: &[&[&str]], groups: &[&[&str]]| {
            let memberships = |list: &[&[&str]]| list.iter().map(|roles| membership(roles)).collect();
            role(UserAccessAs::User(Memberships {
                projects: memberships(projects),
                groups: memberships(groups),
            }))
        };
        assert_eq!(role(UserAccessAs::Agent(Empty {})), Role::Developer);
        assert_eq!(of(&[], &[]), Role::Developer);
        assert_eq!(of(&[&["reporter", "developer"]], &[]), Role::Developer);
        assert_eq!(of(&[&["developer"]], &[&["reporter", "developer", "maintainer"]]), Role::Maintainer);
        assert_eq!(of(&[&["owner", "security_manager"], &["maintainer"]], &[]), Role::Owner);
        assert_eq!(of(&[&["Owner"]], &[&["admin"]]), Role::Developer, "an unknown role is the least one");
    }

    /// The rows for users of the table of GitLab's kas. It answers 500 where this kas answers 503, and to a 400. To a 403 it answers 401,
    /// which does not tell the user that a list is missing.
    #[test]
    fn only_the_refusal_of_a_known_user_says_why() {
        for (status, expected, message) in [
            (401, 401, "Unauthorized"),
            (403, 403, "user_access in the configuration of agent 7 does not admit this user"),
            (404, 401, "Unauthorized"),
            (400, 401, "Unauthorized"),
            (422, 503, "Failed to authorize user session"),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let error =
                refusal(&GitLabError::Status { status, message: "text of GitLab".into() }, AgentId(7));
            assert_eq!(error.reason.status(), expected, "{status}");
            assert!(error.message.starts_with(message), "{}", error.message);
            assert_eq!(error.message.contains("text of GitLab"), expected == 503);
        }
        let retry_after = Duration::from_secs(9);
        let down = GitLabError::Unavailable { message: "it is down".into(), retry_after };
        let down = refusal(&down, AgentId(7));
        assert_eq!((down.reason.status().as_u16(), down.retry_after), (503, Some(retry_after)));
    }
}
