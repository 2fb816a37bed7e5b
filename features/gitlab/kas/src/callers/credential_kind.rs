//! The kinds of credentials that GitLab knows.

use access::{Credential, RequestError, Target, TokenKind, token::TokenHash, unauthorized};
use proto::{AgentId, Reason};

use super::user::AccessType;
use crate::login::GitLabLogins;

/// A kind of credentials.
#[derive(Clone, Copy, Debug)]
pub(super) enum CredentialKind {
    /// The token of a CI job.
    Job,
    /// The credential of a user.
    User(AccessType),
}

impl CredentialKind {
    /// Returns the kind of a credential and the agent of a request, or `None` if GitLab does not know such credentials.
    ///
    /// # Errors
    ///
    /// The credential is a login, and the path names no agent of GitLab.
    pub(super) fn of(
        credential: &Credential,
        target: &Target<'_>,
    ) -> Result<Option<(Self, AgentId)>, RequestError> {
        if let Some(named) = Self::with_agent(credential) {
            return Ok(Some(named));
        }
        let is_login = credential.name.is_none()
            && credential.kind == TokenKind::Plain
            && GitLabLogins::is_login(&credential.token);
        if !is_login {
            return Ok(None);
        }
        Ok(Some((Self::User(AccessType::OauthLogin), named_agent(target)?)))
    }

    /// Returns the kind of a credential that names its agent, with that agent.
    pub(super) fn with_agent(credential: &Credential) -> Option<(Self, AgentId)> {
        // GitLab has no user names in credentials, and a password manager would send the wrong one.
        if credential.name.is_some() {
            return None;
        }
        match credential.kind {
            TokenKind::CiJob(agent) => Some((Self::Job, agent)),
            TokenKind::Personal(agent) => Some((Self::User(AccessType::PersonalAccessToken), agent)),
            TokenKind::Session(agent) => Some((Self::User(AccessType::SessionCookie), agent)),
            TokenKind::Plain => None,
        }
    }

    /// Returns the key of the cache: the answer of GitLab about a job has all of its agents, that about a user has one.
    pub(super) fn cache_key(self, credential: &Credential, agent: AgentId) -> TokenHash {
        let context = match self {
            Self::Job => "ci".to_owned(),
            Self::User(access_type) => format!("{} {agent}", access_type.as_str()),
        };
        TokenHash::of_credential(&context, &credential.token, credential.csrf_token.as_ref())
    }
}

/// Returns the agent of a path. The name of an agent of GitLab is that of others in other projects, too.
fn named_agent(target: &Target<'_>) -> Result<AgentId, RequestError> {
    let Some(text) = target.agent.as_deref() else {
        return Err(unauthorized("the path names no agent: use /agents/<id>/<service>/"));
    };
    text.parse().map_err(|_| {
        let what =
            format!("there is no agent {text:?} for this caller: a path names an agent of GitLab by its id");
        RequestError::new(Reason::UnknownAgent, what)
    })
}
