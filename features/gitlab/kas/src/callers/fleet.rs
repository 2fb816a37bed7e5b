//! All agents of a caller, for the answers about all of them.

use std::{collections::BTreeMap, sync::Arc};

use access::{
    CallerAgent, CallerAgents, Credential, MissingAgents, ProjectAgents, RequestError, UserAgent, UserAgents,
};
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
        let missing = MissingAgents::new(connected.missing, cut);
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
        UnreadableRecords::check(agents.is_empty(), missing.as_ref().and_then(MissingAgents::unreadable))?;
        let Some(first) = agents.first().map(|agent| agent.id) else {
            return Err(not_admitted(missing));
        };
        let kind = CredentialKind::User(AccessType::OauthLogin);
        let (caller, _) = self.caller(credential, kind, first, BudgetShare::KnownCallers).await?;
        let agents = agents
            .into_iter()
            .map(|UserAgent { id, name, caller }| CallerAgent::of_gitlab(id, Some(name), Arc::new(caller)));
        Ok(Some(CallerAgents { grant: caller.grant(first)?, agents: agents.collect(), missing }))
    }
}

/// Returns the error for a user whom no list admits. A list that is truncated may have left out the agents of the user.
fn not_admitted(missing: Option<MissingAgents>) -> RequestError {
    let limit = missing.map(|missing| format!("; agents may be missing: {}", missing.into_text()));
    let limit = limit.unwrap_or_default();
    let what = format!("user_access of no connected agent admits this user{limit}");
    RequestError::new(Reason::Forbidden, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_of_a_truncated_list_learns_the_limit() {
        let truncated = MissingAgents::Truncated("it names more than 2000 projects".to_owned());
        let error = not_admitted(Some(truncated));
        assert_eq!((error.reason, error.retry_after), (Reason::Forbidden, None));
        assert!(error.message.ends_with("agents may be missing: it names more than 2000 projects"));
        assert!(not_admitted(None).message.ends_with("admits this user"));
    }
}
