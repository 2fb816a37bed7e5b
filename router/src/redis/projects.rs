//! Reads the agents of projects from Redis, and adds those of this replica.

use proto::ReplicaId;

use super::{
    Shared,
    routes::RouteField,
    wire::{self, MAX_PROJECT},
};
use crate::store::{ProjectAgent, ProjectAgentList, StoreError};

/// The number of fields that one script call visits.
const FIELDS: usize = 1000;
/// The highest number of script calls for one replica: a million fields.
const MAX_CALLS: usize = 1000;

impl Shared {
    /// Returns the agents of a project, with one script call, or of all projects, with one for each 1000 records.
    pub(super) async fn list_project_agents(&self, project: Option<u64>) -> ProjectAgentList {
        let others = self.members.lock().ids();
        let found = match project {
            _ if others.is_empty() => Ok(Vec::new()),
            Some(project) => self.query_project(&others, project).await,
            None => self.query_projects(&others).await,
        };
        let (mut agents, error) = match found {
            Ok(agents) => (agents, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        agents.extend(self.routes.lock().project_agents(project));
        agents.sort();
        // An agent usually has tunnels to several replicas.
        agents.dedup_by_key(|agent| agent.agent);
        ProjectAgentList { agents, error }
    }

    async fn query_project(
        &self,
        replicas: &[ReplicaId],
        project: u64,
    ) -> Result<Vec<ProjectAgent>, StoreError> {
        let (mut keys, field) = (replicas.iter(), RouteField::Project(project));
        let Some(first) = keys.next() else { return Ok(Vec::new()) };
        let mut script = self.scripts.project.key(self.keys.routes(*first));
        for other in keys {
            script.key(self.keys.routes(*other));
        }
        script.arg(field.to_string()).arg(MAX_PROJECT);
        let found: Vec<Vec<u8>> = self.query(&script).await?;
        Ok(found.iter().flat_map(|value| self.decode_project(project, value)).collect())
    }

    async fn query_projects(&self, replicas: &[ReplicaId]) -> Result<Vec<ProjectAgent>, StoreError> {
        let mut agents = Vec::new();
        for replica in replicas {
            let mut cursor = b"0".to_vec();
            for _ in 0..MAX_CALLS {
                let mut script = self.scripts.projects.key(self.keys.routes(*replica));
                script.arg(cursor).arg(MAX_PROJECT).arg(FIELDS);
                let found: Vec<Vec<u8>> = self.query(&script).await?;
                let Some((next, fields)) = found.split_first() else { break };
                for pair in fields.chunks_exact(2) {
                    let project = str::from_utf8(&pair[0]).ok().and_then(|field| field.strip_prefix('p'));
                    match project.and_then(|project| project.parse().ok()) {
                        Some(project) => agents.extend(self.decode_project(project, &pair[1])),
                        None => self.reject("project", &"its id is not a number"),
                    }
                }
                cursor = next.clone();
                if cursor == b"0" {
                    break;
                }
            }
        }
        Ok(agents)
    }

    /// Decodes the agents of a project; none if there is no value or it cannot be used.
    fn decode_project(&self, project: u64, text: &[u8]) -> Vec<ProjectAgent> {
        if text.is_empty() {
            return Vec::new();
        }
        let rows = wire::decode_project(text).inspect_err(|error| self.reject("project", error));
        let rows = rows.unwrap_or_default().into_iter();
        rows.map(|(agent, name)| ProjectAgent { agent, name, project }).collect()
    }
}
