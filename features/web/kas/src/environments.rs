//! The environments that a caller may see. The page asks their agents for the health itself, with the session of the reader: kas would
//! see more objects than the caller.

use access::{Caller, Identity};
use environments_wire::{
    Environment, EnvironmentAgent, EnvironmentError, EnvironmentQuery, EnvironmentSources,
};
use serde::Serialize;

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
        identity: &Identity,
        caller: &Caller,
    ) -> Result<Self, EnvironmentError> {
        let mut environments = sources.list(&EnvironmentQuery::default(), None).await?;
        for environment in &mut environments {
            let places = std::mem::take(&mut environment.agents).into_iter();
            environment.agents = places.filter_map(|place| visible(place, identity, caller)).collect();
        }
        environments.retain(|environment| !environment.agents.is_empty());
        Ok(Self { environments })
    }
}

/// Returns a place with the name of its agent, if the caller may use this agent.
fn visible(place: EnvironmentAgent, identity: &Identity, caller: &Caller) -> Option<EnvironmentAgent> {
    let id = identity.find(&place.agent).filter(|id| caller.may_use(*id))?;
    Some(EnvironmentAgent { agent: identity.name(id)?.to_string(), ..place })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, future::ready, path::Path, sync::Arc};

    use access::token::TokenHash;
    use environments_wire::{EnvironmentSource, GitLabToken, Tier};
    use futures_util::future::BoxFuture;

    use super::*;

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
        let token = "kas-caller-1".into();
        let identity = format!(
            "agents: [{{id: 1, name: eu, tokens: []}}, {{id: 2, name: us, tokens: []}}]\n\
             callers: [{{name: me, tokens: ['{}'], agents: [eu], services: ['*']}}]",
            TokenHash::of(&token)
        );
        let identity = Identity::parse(Path::new("identity.yaml"), &identity).unwrap();
        let caller = Arc::clone(&identity.grant(&TokenHash::of(&token)).unwrap().caller);
        let sources = EnvironmentSources(vec![Arc::new(Source)]);
        let found = EnvironmentList::load(&sources, &identity, &caller).await.unwrap().environments;
        let found: Vec<_> =
            found.iter().map(|it| (&*it.slug, it.agents.iter().map(|at| &*at.agent).collect())).collect();
        assert_eq!(found, [("both", vec!["eu"])]);
    }
}
