//! Configurations in the repositories of GitLab, which Gitaly serves.

use access::AgentIdentity;
use access::{ConfigurationSource, FileKey, ReadError, Reading, RepositoryPlace, read_repository};
use futures_util::future::BoxFuture;
use git::{AGENTS_DIRECTORY, Reference};

use crate::{
    GitLabAgents,
    gitaly::{GitalyClient, GitalyRepository},
};

/// Reads the configuration of an agent of GitLab from the project of the agent.
#[derive(Debug)]
pub struct GitLabSource {
    agents: GitLabAgents,
    gitaly: GitalyClient,
    max_bytes: usize,
}

impl GitLabSource {
    /// Reads files of at most `max_bytes` bytes.
    pub fn new(agents: GitLabAgents, gitaly: GitalyClient, max_bytes: usize) -> Self {
        Self { agents, gitaly, max_bytes }
    }
}

impl ConfigurationSource for GitLabSource {
    fn read<'a>(
        &'a self,
        agent: &'a AgentIdentity,
        known: Option<&'a FileKey>,
    ) -> BoxFuture<'a, Result<Option<Reading>, ReadError>> {
        Box::pin(async move {
            let info = match self.agents.info(agent.id).await {
                Some(info) => info,
                // What GitLab has said about the agent is forgotten after an hour. That is no agent without a configuration.
                None if !self.agents.is_of_identity_file(agent.id) => {
                    let what = "GitLab has not said for an hour where the project of the agent is";
                    return Err(ReadError::Unavailable(what.to_owned()));
                }
                None => return Ok(None),
            };
            if info.gitaly.address.is_empty() {
                return Ok(None);
            }
            let (server, location) = ((*info.gitaly).clone(), info.repository.clone());
            let project = location.gl_project_path.clone();
            let branch = Reference::of_branch(Some(&info.default_branch));
            let name = format!("{} {}", server.address, location.gl_repository);
            let repository =
                GitalyRepository::new(self.gitaly.clone(), server, location, branch, Some(agent.id));
            let place = RepositoryPlace { name: &name, directory: AGENTS_DIRECTORY, project: Some(&project) };
            read_repository(&repository, place, &agent.name, known, self.max_bytes).await.map(Some)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{io, path::Path, time::Duration};

    use access::{Identities, Identity};
    use proto::AgentId;
    use settings::Secret;

    use super::*;
    use crate::{ApiRateLimit, CacheTtls, GitLabClient, Transport, gitaly::GitalyConfig};

    /// What GitLab said about an agent is forgotten while GitLab is away.
    #[tokio::test]
    async fn agent_of_which_gitlab_has_said_nothing_has_no_empty_configuration() {
        let address = "http://gitlab.example.com".parse().unwrap();
        let secret = Secret::parse("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=").unwrap();
        let away =
            Transport::from_fn(|| Err::<tokio::io::DuplexStream, _>(io::ErrorKind::ConnectionRefused.into()));
        let client = GitLabClient::new(address, secret, away, &ApiRateLimit::default());
        let text = format!(
            "agents: [{{id: 8, name: prod, tokens: ['{}']}}]",
            access::token::TokenHash::of(&"agent".to_owned().into())
        );
        let identities = Identities::new(Identity::parse(Path::new("id.yaml"), &text).unwrap());
        let ttls = CacheTtls { responses: Duration::ZERO, errors: Duration::ZERO };
        let agents = GitLabAgents::new(client, identities, ttls, 1, None);
        let source = GitLabSource::new(agents, GitalyClient::new(&GitalyConfig::default(), None, None), 1);
        let agent = |id| AgentIdentity {
            id: AgentId(id),
            name: "prod".parse().unwrap(),
            project: None,
            project_path: None,
        };
        let read = source.read(&agent(7), None).await;
        assert!(matches!(read, Err(ReadError::Unavailable(_))), "{read:?}");
        assert_eq!(source.read(&agent(8), None).await, Ok(None), "an agent of the identity file");
    }
}
