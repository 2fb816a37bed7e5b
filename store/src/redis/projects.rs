//! Reads the agents of projects from Redis, and adds those of this replica.

use std::{collections::HashMap, sync::Arc};

use proto::{ReplicaId, notify::is_project_path};

use super::{
    RedisState,
    routes::RouteField,
    wire::{self, MAX_PROJECT},
};
use crate::routes::{ProjectAgent, ProjectAgentList, StoreError};

/// The number of fields that one script call visits.
const FIELDS: usize = 1000;
/// The highest number of script calls for one replica: a million fields.
const MAX_CALLS: usize = 1000;

impl RedisState {
    /// Returns the agents of a project, with one script call, or of all projects, with one for each 1000 records.
    pub(super) async fn list_project_agents(&self, project: Option<u64>) -> ProjectAgentList {
        let others = self.members.lock().ids();
        let found = match project {
            // A replica that has not reached Redis does not know the others.
            _ if others.is_empty() => self.degraded().map_or_else(|| Ok(Vec::new()), Err),
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
        let (mut agents, mut paths) = (Vec::new(), HashMap::<u64, Arc<str>>::new());
        for replica in replicas {
            let mut cursor = b"0".to_vec();
            for _ in 0..MAX_CALLS {
                let mut script = self.scripts.projects.key(self.keys.routes(*replica));
                script.arg(cursor).arg(MAX_PROJECT).arg(FIELDS);
                let found: Vec<Vec<u8>> = self.query(&script).await?;
                let Some((next, fields)) = found.split_first() else { break };
                for pair in fields.chunks_exact(2) {
                    let field = str::from_utf8(&pair[0]).unwrap_or_default();
                    let number = |prefix| field.strip_prefix(prefix).and_then(|id| id.parse::<u64>().ok());
                    let path = str::from_utf8(&pair[1]).ok().filter(|path| is_project_path(path));
                    match (number('p'), number('n'), path) {
                        (Some(project), ..) => agents.extend(self.decode_project(project, &pair[1])),
                        (None, Some(project), Some(path)) => drop(paths.insert(project, path.into())),
                        (None, Some(_), None) => self.reject("project", &"its path is invalid"),
                        (None, None, _) => self.reject("project", &"its id is not a number"),
                    }
                }
                cursor = next.clone();
                if cursor == b"0" {
                    break;
                }
            }
        }
        for agent in &mut agents {
            agent.project_path = paths.get(&agent.project).cloned();
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
        rows.map(|(agent, name)| ProjectAgent { agent, name, project, project_path: None }).collect()
    }
}
