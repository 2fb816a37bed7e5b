//! The environments that a caller may see. The page asks their agents for the health itself, with the session of the reader: kas would
//! see more objects than the caller.

use std::sync::Arc;

use environments_wire::{
    Deployment, DeploymentOrigin, DeploymentRecords, Environment, EnvironmentAgent, EnvironmentError,
    EnvironmentQuery, EnvironmentReader, EnvironmentSources, LastDeployments,
};
use serde::Serialize;

use crate::agent_list::SessionAgents;

/// The environments of the page.
#[derive(Clone, Debug)]
pub struct WebEnvironments {
    /// The sources that need no token of GitLab.
    pub sources: EnvironmentSources,
    /// The records of deployments.
    pub deployments: Arc<dyn DeploymentRecords>,
}

/// The environments with a place that the caller may use.
#[derive(Debug, Serialize)]
pub(super) struct EnvironmentList {
    environments: Vec<ListedEnvironment>,
}

#[derive(Debug, Serialize)]
struct ListedEnvironment {
    #[serde(flatten)]
    environment: Environment,
    /// The last deployments of jobs with agents that the caller may use.
    deployments: LastDeployments,
}

impl EnvironmentList {
    /// Lists the environments of the sources. Of each one, only the places of agents that the caller may use are left, with the names
    /// of these agents.
    pub(super) async fn load(
        WebEnvironments { sources, deployments }: &WebEnvironments,
        agents: &SessionAgents,
    ) -> Result<Self, EnvironmentError> {
        let mut environments =
            sources.list(&EnvironmentQuery::default(), EnvironmentReader::Public).await?.environments;
        for environment in &mut environments {
            let places = std::mem::take(&mut environment.agents).into_iter();
            environment.agents = places.filter_map(|place| visible(place, agents)).collect();
        }
        environments.retain(|environment| !environment.agents.is_empty());
        let records = deployments.list().await;
        let is_visible = |record: &&Deployment| agents.contains(record.agent);
        let listed = |environment: Environment| {
            let deployments = match &records {
                Ok(records) => LastDeployments::of_records(&environment, records.iter().filter(is_visible)),
                Err(error) => LastDeployments::unknown(DeploymentOrigin::Jobs, error.to_string()),
            };
            ListedEnvironment { environment, deployments }
        };
        Ok(Self { environments: environments.into_iter().map(listed).collect() })
    }
}

/// Returns a place with the name of its agent, if the caller may use this agent.
fn visible(place: EnvironmentAgent, agents: &SessionAgents) -> Option<EnvironmentAgent> {
    let agent = agents.find(&place.agent)?;
    Some(EnvironmentAgent { agent: agent.path_name(), ..place })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, future::ready, time::SystemTime};

    use access::{AccessAs, Caller, CallerAgent, ServiceRights};
    use environments_wire::{DeploymentFacts, EnvironmentSelection, EnvironmentSource, Tier};
    use futures_util::future::BoxFuture;
    use proto::AgentId;
    use store::StoreError;

    use super::*;

    /// A source with an environment at three places, and one at another place.
    #[derive(Debug)]
    struct Source;

    impl EnvironmentSource for Source {
        fn list<'a>(
            &'a self,
            _: &'a EnvironmentQuery,
            _: EnvironmentReader<'a>,
        ) -> BoxFuture<'a, Result<EnvironmentSelection, EnvironmentError>> {
            let environment = |id, slug: &str, agents: &[&str]| Environment {
                id,
                project: "p".to_owned(),
                slug: slug.to_owned(),
                name: slug.to_owned(),
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
            Box::pin(ready(Ok(found.into())))
        }
    }

    /// The records of two jobs that have deployed to the first environment, each with another agent.
    #[derive(Debug)]
    struct Records;

    impl DeploymentRecords for Records {
        fn record(&self, _: Deployment) -> BoxFuture<'_, Result<(), StoreError>> {
            Box::pin(ready(Ok(())))
        }

        fn replace<'a>(
            &'a self,
            _: &'a Deployment,
            _: &'a Deployment,
        ) -> BoxFuture<'a, Result<(), StoreError>> {
            Box::pin(ready(Ok(())))
        }

        fn known(&self) -> BoxFuture<'_, Result<Arc<[Deployment]>, StoreError>> {
            self.list()
        }

        fn list(&self) -> BoxFuture<'_, Result<Arc<[Deployment]>, StoreError>> {
            let record = |number: u64| Deployment {
                time: SystemTime::UNIX_EPOCH,
                agent: AgentId(number),
                namespace: None,
                project_id: 7,
                project: Some("p".to_owned()),
                environment: "both".to_owned(),
                tier: Tier::Other,
                job: number,
                commit: None,
                username: None,
                facts: DeploymentFacts::default(),
            };
            Box::pin(ready(Ok(Arc::from([record(2), record(1)]))))
        }
    }

    #[tokio::test]
    async fn places_and_deployments_of_other_agents_are_left_out() {
        let services = ServiceRights::Only(Vec::new());
        let caller = Caller::of_agent("alice".to_owned(), AgentId(1), services, AccessAs::Agent);
        let eu = CallerAgent {
            id: AgentId(1),
            name: Some("eu".parse().unwrap()),
            project_path: None,
            is_of_file: true,
            caller: Arc::new(caller),
        };
        let agents = SessionAgents { agents: vec![eu], missing: None };
        let sources = EnvironmentSources(vec![Arc::new(Source)]);
        let environments = WebEnvironments { sources, deployments: Arc::new(Records) };
        let found = EnvironmentList::load(&environments, &agents).await.unwrap().environments;
        let names = found.iter().map(|it| {
            let ListedEnvironment { environment, deployments } = it;
            let agents = environment.agents.iter().map(|at| &*at.agent).collect();
            (&*environment.slug, agents, deployments.last.as_ref().and_then(|last| last.job))
        });
        assert_eq!(names.collect::<Vec<_>>(), [("both", vec!["eu"], Some(1))], "job 2 used the agent us");
    }
}
