//! GitLab itself as a caller: it sends PromQL on behalf of a project.
//!
//! The token is the JWT of the internal API, signed with the secret of `api.listen`. Its claim `project_id` names the project for
//! which GitLab has checked the rights of a user.

use std::sync::Arc;

use access::{
    AccessAs, ApiTokenVerifier, AuthorizedCaller, Caller, CallerAuthorizer, CallerNames, Credential, Grant,
    Identities, ProjectAgentName, RequestError, ServiceRights, Target, TokenKind, unauthorized,
};
use futures_util::future::BoxFuture;
use jsonwebtoken::{Algorithm, decode_header};
use proto::{AgentId, AgentName, Reason, ServiceRight};
use secrecy::ExposeSecret as _;
use serde::Deserialize;

use super::{
    AgentNames,
    in_flight::{InFlightCounters, Subject},
};

/// An agent, with its name and the path of its project if they are known.
struct FoundAgent {
    agent: AgentId,
    name: Option<AgentName>,
    project_path: Option<Arc<str>>,
}

/// Authorizes requests of GitLab for PromQL.
#[derive(Debug)]
pub struct InternalApiAuthorizer {
    verifier: ApiTokenVerifier,
    identities: Identities,
    /// The names of GitLab's agents, which the identity file does not have.
    names: Option<AgentNames>,
    in_flight: InFlightCounters,
}

#[derive(Debug, Deserialize)]
struct Claims {
    project_id: Option<u64>,
}

impl InternalApiAuthorizer {
    /// Creates a source that accepts the tokens of `verifier`. `identities` has the agents of the file.
    pub fn new(
        verifier: ApiTokenVerifier,
        identities: Identities,
        names: Option<AgentNames>,
        in_flight: InFlightCounters,
    ) -> Self {
        Self { verifier, identities, names, in_flight }
    }

    async fn authorize(
        &self,
        credential: &Credential,
        target: &Target<'_>,
    ) -> Result<Option<AuthorizedCaller>, RequestError> {
        let token = credential.token.expose_secret();
        if credential.kind != TokenKind::Plain || credential.name.is_some() || !is_signed_with_secret(token) {
            return Ok(None);
        }
        let claims: Claims = self.verifier.claims(token).map_err(|error| unauthorized(&error.to_string()))?;
        let project = claims.project_id.ok_or_else(|| {
            let what = "the token names no project: requests of GitLab need the claim project_id";
            RequestError::new(Reason::Forbidden, what)
        })?;
        let name_of_caller = format!("gitlab:project:{project}");
        let authorized = self.authorize_project(project, target).await;
        let FoundAgent { agent, name, project_path } = authorized
            .map_err(|error| error.with_caller(CallerNames { name: name_of_caller.clone(), user: None }))?;
        let services = ServiceRights::Only(vec![ServiceRight::all(target.service.clone())]);
        let caller = Caller::of_agent(name_of_caller, agent, services, AccessAs::Agent);
        let grant = Arc::new(Grant::new(caller, self.in_flight.of(Subject::Project(project))));
        Ok(Some(AuthorizedCaller { grant, agent, name, project_path, login: false, environment: None }))
    }

    /// Authorizes the request of a project.
    async fn authorize_project(&self, project: u64, target: &Target<'_>) -> Result<FoundAgent, RequestError> {
        if !target.service.is_prometheus() {
            let what = "a token of GitLab may be used for the service prometheus only";
            return Err(RequestError::new(Reason::Forbidden, what));
        }
        let text = target.agent.as_deref().ok_or_else(|| {
            unauthorized("at this path the credential names the agent, which a token of GitLab does not")
        })?;
        self.find(text, project).await.ok_or_else(|| {
            RequestError::new(
                Reason::UnknownAgent,
                format!("there is no agent {text:?} for project {project}"),
            )
        })
    }

    /// Returns the agent that the path names. An agent of the identity file must belong to the project. GitLab knows which
    /// projects may use its own agents.
    async fn find(&self, text: &str, project: u64) -> Option<FoundAgent> {
        let identity = self.identities.load_full();
        if let Some(agent) = identity.find(text) {
            let name = identity.name(agent)?.clone();
            return (identity.project(agent) == Some(project)).then_some(FoundAgent {
                agent,
                name: Some(name),
                project_path: None,
            });
        }
        let (names, agent) = (self.names.as_ref()?, text.parse().ok()?);
        Some(match names.of_gitlab(agent).await {
            Some(ProjectAgentName { name, project_path }) => {
                FoundAgent { agent, name: Some(name), project_path }
            }
            None => FoundAgent { agent, name: None, project_path: None },
        })
    }
}

impl CallerAuthorizer for InternalApiAuthorizer {
    fn authorize<'a>(
        &'a self,
        credential: &'a Credential,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<Option<AuthorizedCaller>, RequestError>> {
        Box::pin(self.authorize(credential, target))
    }
}

/// Returns whether a token claims to be signed with a shared secret. Tokens of issuers are signed with a private key.
fn is_signed_with_secret(token: &str) -> bool {
    token.bytes().filter(|byte| *byte == b'.').count() == 2
        && decode_header(token)
            .is_ok_and(|header| [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512].contains(&header.alg))
}
