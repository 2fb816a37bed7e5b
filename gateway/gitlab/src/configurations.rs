//! Configurations in the repositories of GitLab, which Gitaly serves.

use access::AgentIdentity;
use access::{ConfigurationSource, FileKey, ReadError, Reading, read_repository};
use git::{AGENTS_DIRECTORY, Reference};
use router::BoxFuture;

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
            let Some(info) = self.agents.info(agent.id).await else { return Ok(None) };
            if info.gitaly.address.is_empty() {
                return Ok(None);
            }
            let (server, location) = ((*info.gitaly).clone(), info.repository.clone());
            let project = location.gl_project_path.clone();
            let branch = Reference::of_branch(Some(&info.default_branch));
            let name = format!("{} {}", server.address, location.gl_repository);
            let repository =
                GitalyRepository::new(self.gitaly.clone(), server, location, branch, Some(agent.id));
            let place = (&*name, AGENTS_DIRECTORY, Some(&*project));
            read_repository(&repository, place, &agent.name, known, self.max_bytes).await.map(Some)
        })
    }
}
