//! The paths of the services of agents, as callers request them.

use crate::percent;

/// Returns the path of a request to a service of an agent, which has a name or an id. `path` begins with a slash, and is encoded already.
pub fn agent_path(agent: &str, service: &str, path: &str) -> String {
    format!("/agents/{}/{service}{path}", percent::encode(agent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_an_agent_is_one_part_of_a_path() {
        assert_eq!(agent_path("edge-berlin.1", "graph", "/v1/tree"), "/agents/edge-berlin.1/graph/v1/tree");
        assert_eq!(agent_path("../a?b#c%", "graph", "/v1/tree"), "/agents/..%2Fa%3Fb%23c%25/graph/v1/tree");
    }
}
