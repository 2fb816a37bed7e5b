//! The refusals of users whom `user_access` of an agent does not admit.

use std::time::Duration;

use access::RequestError;
use proto::{AgentId, Reason};

/// GitLab's page about the list.
const PAGE: &str = "https://docs.gitlab.com/user/clusters/agent/user_access/";
/// `Retry-After` while no replica knows the configuration of an agent.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Returns the error for a user whom GitLab knows, and whom the list does not admit.
pub(crate) fn not_admitted(agent: AgentId) -> RequestError {
    let what = format!(
        "user_access in the configuration of agent {agent} does not admit this user: it needs access_as, and below projects or groups one \
         in which the user is at least a developer ({PAGE})"
    );
    RequestError::new(Reason::Forbidden, what)
}

/// Returns the error while no replica can read the list.
pub(crate) fn unknown(agent: AgentId) -> RequestError {
    let what = format!(
        "kas does not know whom user_access of agent {agent} admits: the agent is not connected, or its configuration cannot be read \
         (kas agents shows the reason)"
    );
    RequestError::new(Reason::IdentityUnavailable, what).with_retry_after(RETRY_AFTER)
}
