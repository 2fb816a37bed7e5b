//! The environments that a caller may see. The page asks their agents for the health itself, with the session of the reader: kas would
//! see more objects than the caller.

use environments_wire::{
    Environment, EnvironmentAgent, EnvironmentError, EnvironmentQuery, EnvironmentSources,
};
use serde::Serialize;

use crate::agent_list::CallerAgents;

/// The environments with a place that the caller may use.
#[derive(Debug, Serialize)]
pub(super) struct EnvironmentList {
    environments: Vec<Environment>,
}

impl EnvironmentList {
    /// Lists the environments of the sources. Of each one, only the places of agents that the caller may use are left, with the names
    /// of these agents.
    pub(super) async fn load(
        sources: &EnvironmentSources,
        agents: &CallerAgents,
    ) -> Result<Self, EnvironmentError> {
        let mut environments = sources.list(&EnvironmentQuery::default(), None).await?;
        for environment in &mut environments {
            let places = std::mem::take(&mut environment.agents).into_iter();
            environment.agents = places.filter_map(|place| visible(place, agents)).collect();
        }
        environments.retain(|environment| !environment.agents.is_empty());
        Ok(Self { environments })
    }
}

/// Returns a place with the name of its agent, if the caller may use this agent.
fn visible(place: EnvironmentAgent, agents: &CallerAgents) -> Option<EnvironmentAgent> {
    let agent = agents.find(&place.agent)?;
    Some(EnvironmentAgent { agent: agent.name.clone(), ..place })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, future::ready, sync::Arc};

    use environments_wire::{EnvironmentSource, GitLabToken, Tier};
    use futures_util::future::BoxFuture;
    use proto::AgentId;

    use super::*;
    use crate::agent_list::CallerAgent;

    /// A source with an environment at three places, and one at another place.
    #[derive(Debug)]
    struct Source;

    impl EnvironmentSource for Source {
        fn list<'a>(
            &'a self,
            _: &'a EnvironmentQuery,
            _: Option<&'a GitLabToken>,
        ) -> BoxFuture<'a, Result<Vec<Environment>, EnvironmentError>> {
            let environment = |id, slug: &str, agents: &[&str]| Environment {
                id,
                project: "p".to_owned(),
                slug: slug.to_owned(),
                tier: Tier::Other,
                group: None,
                agents: agents
                    .iter()
                    .map(|agent| EnvironmentAgent {
                        agent: (*agent).to_owned(),
                        namespace: "a".to_owned(),
                        labels: BTreeMap::new(),
                    })
                    .collect(),
            };
            let found = vec![environment(1, "both", &["1", "us", "gone"]), environment(2, "other", &["us"])];
            Box::pin(ready(Ok(found)))
        }
    }

    #[tokio::test]
    async fn places_of_other_agents_are_left_out() {
        let eu =
            CallerAgent { id: AgentId(1), name: "eu".to_owned(), of_gitlab: None, rights: BTreeMap::new() };
        let agents = CallerAgents { agents: vec![eu], missing: None };
        let sources = EnvironmentSources(vec![Arc::new(Source)]);
        let found = EnvironmentList::load(&sources, &agents).await.unwrap().environments;
        let found: Vec<_> =
            found.iter().map(|it| (&*it.slug, it.agents.iter().map(|at| &*at.agent).collect())).collect();
        assert_eq!(found, [("both", vec!["eu"])]);
    }
}
