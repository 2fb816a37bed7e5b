//! All agents of a caller, for the answers about all of them.

use std::{collections::BTreeMap, sync::Arc};

use access::{CallerAgent, CallerAgents, Credential, ProjectAgents, RequestError, UserAgent, UserAgents};
use kas_core::agent_locations::UnreadableRecords;
use proto::{AgentId, Reason};

use super::{GitLabAuthorizer, credential_kind::CredentialKind, user::AccessType};
use crate::BudgetShare;

/// The most agents of one job in a list.
const MAX_AGENTS: usize = 1000;

impl GitLabAuthorizer {
    /// Returns the agents of a job or of a user, whose token names one of them.
    pub(super) async fn agents_of_caller(
        &self,
        credential: &Credential,
        (kind, agent): (CredentialKind, AgentId),
    ) -> Result<CallerAgents, RequestError> {
        let (caller, _) = self.caller(credential, kind, agent, BudgetShare::KnownCallers).await?;
        let with_caller = |error: RequestError| error.with_caller(caller.names());
        let connected = ProjectAgents::list(&self.agents.facts).await;
        let mut names: BTreeMap<_, _> = connected.agents.into_iter().collect();
        let ids = caller.agents().unwrap_or_else(|| vec![agent]);
        let mut ids: Vec<_> = ids.into_iter().filter(|id| !self.agents.names.is_in_file(*id)).collect();
        let surplus = ids.len().saturating_sub(MAX_AGENTS);
        ids.truncate(MAX_AGENTS);
        // An entry of `ci_access` that is invalid closes its agent alone.
        let granted: Vec<_> = ids.into_iter().filter_map(|id| Some((id, caller.grant(id).ok()?))).collect();
        let grant = match granted.first() {
            Some((_, grant)) => Arc::clone(grant),
            None => caller.grant(agent).map_err(with_caller)?,
        };
        let agents = granted
            .into_iter()
            .map(|(id, grant)| CallerAgent::of_gitlab(id, names.remove(&id), Arc::clone(&grant.caller)));
        let cut = (surplus > 0).then(|| {
            format!("a list has at most {MAX_AGENTS} agents of a job, and it may use {surplus} more")
        });
        let reasons: Vec<String> = connected.missing.into_iter().chain(cut).collect();
        let missing = (!reasons.is_empty()).then(|| reasons.join("; "));
        Ok(CallerAgents { grant, agents: agents.collect(), missing })
    }

    /// Returns the agents of the user of a login.
    pub(super) async fn agents_of_user(
        &self,
        credential: &Credential,
    ) -> Result<Option<CallerAgents>, RequestError> {
        let Some(UserAgents { agents, missing }) =
            self.agents_of_login(&credential.token, credential.address).await?
        else {
            return Ok(None);
        };
        UnreadableRecords::check(agents.is_empty(), missing.as_deref())?;
        let Some(first) = agents.first().map(|agent| agent.id) else {
            let what = "user_access of no connected agent admits this user";
            return Err(RequestError::new(Reason::Forbidden, what));
        };
        let kind = CredentialKind::User(AccessType::OauthLogin);
        let (caller, _) = self.caller(credential, kind, first, BudgetShare::KnownCallers).await?;
        let agents = agents
            .into_iter()
            .map(|UserAgent { id, name, caller }| CallerAgent::of_gitlab(id, Some(name), Arc::new(caller)));
        Ok(Some(CallerAgents { grant: caller.grant(first)?, agents: agents.collect(), missing }))
    }
}
