//! The query of the subscription.

use std::{fmt, str::FromStr};

use crate::AgentId;

/// The parameter of a replica that has no projects.
const NO_PROJECTS: &str = "&projects=none";

/// The query of a subscription: `agent=<id>`, followed by `&projects=none` if the replica has no projects for the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceQuery {
    /// The agent.
    pub agent: AgentId,
    /// Whether the replica has projects for the agent. It has none if the configuration of the agent lists none, or was not read yet.
    /// agentk accepts such a subscription only if it has projects from before, and responds with 204 otherwise. An agentk that does not
    /// know the parameter responds with 400.
    pub has_projects: bool,
}

/// A text that is no [`SourceQuery`].
#[derive(Debug, thiserror::Error)]
#[error("the query must be agent=<id of the agent>, and may end in {NO_PROJECTS}")]
pub struct InvalidSourceQuery;

impl fmt::Display for SourceQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agent={}{}", self.agent, if self.has_projects { "" } else { NO_PROJECTS })
    }
}

impl FromStr for SourceQuery {
    type Err = InvalidSourceQuery;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rest = text.strip_prefix("agent=").ok_or(InvalidSourceQuery)?;
        let (agent, has_projects) =
            rest.strip_suffix(NO_PROJECTS).map_or((rest, true), |agent| (agent, false));
        Ok(Self { agent: agent.parse().map_err(|_| InvalidSourceQuery)?, has_projects })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_read_as_it_is_written() {
        for (text, has_projects) in [("agent=7", true), ("agent=7&projects=none", false)] {
            let query = SourceQuery { agent: AgentId(7), has_projects };
            assert_eq!(query.to_string(), text);
            assert_eq!(text.parse::<SourceQuery>().unwrap(), query);
        }
        for text in
            ["", "agent=", "agent=prod", "projects=none", "agent=7&projects=all", "agent=7&projects=none&x"]
        {
            assert!(text.parse::<SourceQuery>().is_err(), "{text}");
        }
    }
}
