//! The tokens of an agent in GitLab, and whether one of them is in use.

use std::time::{Duration, SystemTime};

use proto::AgentName;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::json;

use super::{agent::RegisteredAgent, gitlab::GitLab, project::AgentProject};
use crate::{CliError, chart::is_agent_token, table::printable};

/// The most active tokens that GitLab lets an agent have.
pub(super) const MAX_TOKENS: usize = 2;
/// The most tokens that are looked at: GitLab before 16.1 has no limit.
const MAX_LISTED: usize = 20;
/// The time since the last use of a token after which GitLab's page shows the agent as not connected.
const CONNECTED: Duration = Duration::from_secs(8 * 60);

/// The tokens of an agent, as their owner sees them.
pub(super) struct AgentTokens<'a> {
    gitlab: &'a GitLab,
    project: &'a AgentProject,
    agent: &'a RegisteredAgent,
}

/// An active token, without its text.
#[derive(Debug, Deserialize)]
pub(super) struct ActiveToken {
    /// The id.
    pub(super) id: u64,
    name: String,
}

/// A new token.
#[derive(Debug, Deserialize)]
pub(super) struct NewToken {
    /// The id.
    pub(super) id: u64,
    /// The text, which only this response has.
    #[serde(rename = "token")]
    pub(super) secret: SecretString,
}

/// The use of a token. Lists do not have it.
#[derive(Debug, Deserialize)]
struct TokenUse {
    last_used_at: Option<String>,
}

impl<'a> AgentTokens<'a> {
    /// Returns the tokens of an agent of a project.
    pub(super) fn new(gitlab: &'a GitLab, project: &'a AgentProject, agent: &'a RegisteredAgent) -> Self {
        Self { gitlab, project, agent }
    }

    /// Lists the active tokens.
    pub(super) async fn list(&self) -> Result<Vec<ActiveToken>, CliError> {
        let listed = self.gitlab.get(&self.path(&format!("?per_page={MAX_LISTED}"))).await;
        let mut tokens: Vec<_> =
            listed.map_err(|error| self.project.error(self.gitlab, error, "Maintainer"))?;
        tokens.truncate(MAX_LISTED);
        Ok(tokens)
    }

    /// Creates a token.
    pub(super) async fn create(&self, name: &AgentName) -> Result<NewToken, CliError> {
        let body =
            json!({"name": format!("kas-register-{name}"), "description": "Created by kas agents register"});
        let created: Result<NewToken, _> = self.gitlab.post(&self.path(""), &body).await;
        let token = created.map_err(|error| {
            let is_limit =
                error.refusal().is_some_and(|refusal| refusal.is_invalid_because("two active tokens"));
            if is_limit { self.limit(&[]) } else { self.project.error(self.gitlab, error, "Maintainer") }
        })?;
        if is_agent_token(token.secret.expose_secret()) {
            return Ok(token);
        }
        self.revoke(token.id).await;
        Err(CliError::unavailable("GitLab responded with a token that has characters which no token has"))
    }

    /// Revokes a token. Returns whether that succeeded.
    pub(super) async fn revoke(&self, id: u64) -> bool {
        self.gitlab.delete(&self.path(&format!("/{id}"))).await.is_ok()
    }

    /// Returns the time since the last use of one of these tokens, if GitLab's page shows the agent as connected by it.
    pub(super) async fn connected_since_use(&self, tokens: &[u64]) -> Result<Option<Duration>, CliError> {
        for id in tokens {
            let used = self.gitlab.get_with_time::<TokenUse>(&self.path(&format!("/{id}"))).await;
            let (used, now) = used.map_err(|error| match error.refusal() {
                Some(refusal) if refusal.is_missing() => {
                    CliError::usage(format!("the token {id} of the agent has been revoked"))
                }
                _ => self.project.error(self.gitlab, error, "Developer"),
            })?;
            if let Some(age) = used.last_used_at.as_deref().and_then(|time| recent_use(time, now)) {
                return Ok(Some(age));
            }
        }
        Ok(None)
    }

    /// Returns the error of an agent that cannot have one more token.
    pub(super) fn limit(&self, tokens: &[ActiveToken]) -> CliError {
        let page = self.project.page(self.gitlab, "clusters");
        CliError::usage(format!(
            "the agent has {MAX_TOKENS} active tokens{}, and GitLab allows no more: revoke one that is not in use, at {page} or \
             with `glab cluster agent token revoke`, and run the command again",
            names(tokens)
        ))
    }

    fn path(&self, rest: &str) -> String {
        format!("/projects/{}/cluster_agents/{}/tokens{rest}", self.project.id, self.agent.id)
    }
}

/// Returns the names of tokens in brackets, or nothing.
pub(super) fn names(tokens: &[ActiveToken]) -> String {
    if tokens.is_empty() {
        return String::new();
    }
    let name = |token: &ActiveToken| {
        let short: String = token.name.chars().take(64).collect();
        format!("{} (id {})", printable(&short), token.id)
    };
    let names: Vec<_> = tokens.iter().take(MAX_TOKENS).map(name).collect();
    format!(": {}", names.join(", "))
}

/// Returns the time since the use of a token, if it is recent.
fn recent_use(last_used_at: &str, now: SystemTime) -> Option<Duration> {
    let time = settings::rfc3339::parse(last_used_at)?;
    // The clock of another machine of GitLab may be ahead.
    let age = now.duration_since(time).unwrap_or_default();
    (age <= CONNECTED).then_some(age)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_is_connected_for_eight_minutes_after_a_use() {
        let now = settings::rfc3339::parse("2026-11-29T12:00:00Z").unwrap();
        for (time, expected) in [
            ("2026-11-29T11:59:30.123Z", Some(29)),
            ("2026-11-29T13:52:30+02:00", Some(450)),
            ("2026-11-29T12:00:05Z", Some(0)),
            ("2026-11-29T11:51:59Z", None),
            ("soon", None),
        ] {
            assert_eq!(recent_use(time, now).map(|age| age.as_secs()), expected, "{time}");
        }
    }

    #[test]
    fn names_of_tokens_cannot_control_the_terminal() {
        let token = |id, name: &str| ActiveToken { id, name: name.to_owned() };
        assert_eq!(names(&[]), "");
        assert_eq!(
            names(&[token(1, "a\u{1b}[2J"), token(2, &"b".repeat(1000))]),
            format!(": a?[2J (id 1), {} (id 2)", "b".repeat(64))
        );
    }
}
