//! The routes of this replica, and which of them Redis does not have yet. It does no I/O.
//!
//! [`LocalRoutes`] is the source of truth: the sync task copies it to Redis, and again after each loss of Redis' data.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::Arc,
    time::SystemTime,
};

use proto::{AgentId, AgentName, Epoch, notify::is_project_path};

use super::wire::{self, RouteRecord};
use crate::routes::{Instance, ProjectAgent};

/// The epoch of an agent whose instances are known but whose route is not announced.
const NOT_ANNOUNCED: Epoch = Epoch(0);

/// A field of the hash with the records of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum RouteField {
    /// The record of an agent.
    Agent(AgentId),
    /// The list of the agents of a project.
    Project(u64),
    /// The path of a project.
    ProjectPath(u64),
}

/// The agents of this replica.
#[derive(Debug, Default)]
pub(super) struct LocalRoutes {
    agents: HashMap<AgentId, RouteRecord>,
    /// The projects of the agents that have one.
    projects: HashMap<AgentId, u64>,
    /// The agents of each project.
    project_agents: HashMap<u64, BTreeMap<AgentId, AgentName>>,
    /// The paths of the projects that have one.
    project_paths: HashMap<u64, Arc<str>>,
    /// The agents that were here, with the time when they disconnected.
    disconnected: HashMap<AgentId, SystemTime>,
    /// The fields in Redis that are out of date.
    dirty: HashSet<RouteField>,
    /// The fields in Redis.
    published: HashSet<RouteField>,
}

impl LocalRoutes {
    /// Adds the route of an agent. Returns whether this changed it.
    pub(super) fn announce(&mut self, agent: AgentId, epoch: Epoch) -> bool {
        let record = self.record(agent);
        let changed = record.epoch < epoch;
        if changed {
            record.epoch = epoch;
            self.disconnected.remove(&agent);
            self.dirty.insert(RouteField::Agent(agent));
        }
        changed
    }

    /// Sets the instances of an agent, before or after its route is announced.
    pub(super) fn set_instances(&mut self, agent: AgentId, instances: Vec<Instance>) {
        let record = self.record(agent);
        if record.instances != instances {
            record.instances = instances;
            if record.epoch > NOT_ANNOUNCED {
                self.dirty.insert(RouteField::Agent(agent));
            }
        }
    }

    /// Sets the name and the project of an agent, before its route is announced.
    pub(super) fn set_project(&mut self, agent: ProjectAgent) {
        let ProjectAgent { agent, name, project, project_path } = agent;
        if self.projects.get(&agent).is_some_and(|known| *known != project) {
            self.remove_project(agent);
        }
        self.projects.insert(agent, project);
        let known = self.project_agents.entry(project).or_default().insert(agent, name.clone());
        if known != Some(name) {
            self.dirty.insert(RouteField::Project(project));
        }
        if let Some(path) = project_path.filter(|path| is_project_path(path))
            && self.project_paths.get(&project) != Some(&path)
        {
            self.project_paths.insert(project, path);
            self.dirty.insert(RouteField::ProjectPath(project));
        }
    }

    fn remove_project(&mut self, agent: AgentId) {
        let Some(project) = self.projects.remove(&agent) else { return };
        if let Some(agents) = self.project_agents.get_mut(&project) {
            agents.remove(&agent);
            if agents.is_empty() {
                self.project_agents.remove(&project);
                if self.project_paths.remove(&project).is_some() {
                    self.dirty.insert(RouteField::ProjectPath(project));
                }
            }
        }
        self.dirty.insert(RouteField::Project(project));
    }

    /// Returns the agents of a project, or of all projects.
    pub(super) fn project_agents(&self, project: Option<u64>) -> Vec<ProjectAgent> {
        let all =
            self.project_agents.iter().filter(|(known, _)| project.is_none_or(|wanted| wanted == **known));
        let agents = all.flat_map(|(project, agents)| {
            let agent = |(agent, name): (&AgentId, &AgentName)| ProjectAgent {
                agent: *agent,
                name: name.clone(),
                project: *project,
                project_path: self.project_paths.get(project).cloned(),
            };
            agents.iter().map(agent)
        });
        agents.filter(|agent| self.get(agent.agent).is_some()).collect()
    }

    /// Removes the route of an agent unless a later epoch was announced. Returns whether this changed it.
    pub(super) fn withdraw(&mut self, agent: AgentId, epoch: Epoch, now: SystemTime) -> bool {
        let changed = self.get(agent).is_some_and(|record| record.epoch <= epoch);
        if changed {
            self.agents.remove(&agent);
            self.remove_project(agent);
            self.disconnected.insert(agent, now);
            self.dirty.insert(RouteField::Agent(agent));
        }
        changed
    }

    /// Returns the record of an agent whose route is announced.
    pub(super) fn get(&self, agent: AgentId) -> Option<&RouteRecord> {
        self.agents.get(&agent).filter(|record| record.epoch > NOT_ANNOUNCED)
    }

    /// Returns when the agent disconnected, if it was connected here and is not now.
    pub(super) fn disconnected_since(&self, agent: AgentId) -> Option<SystemTime> {
        self.disconnected.get(&agent).copied()
    }

    /// Marks every record dirty, because Redis may have none of them. Withdrawn agents that are dirty stay so.
    pub(super) fn mark_all_dirty(&mut self) {
        self.published.clear();
        self.dirty.extend(self.agents.keys().map(|agent| RouteField::Agent(*agent)));
        self.dirty.extend(self.project_agents.keys().map(|project| RouteField::Project(*project)));
        self.dirty.extend(self.project_paths.keys().map(|project| RouteField::ProjectPath(*project)));
    }

    /// Takes up to `limit` dirty fields with their encoded values; `None` is a field to remove.
    ///
    /// They count as published. If writing them fails, the sync task reconnects and marks all records dirty.
    pub(super) fn take_dirty(&mut self, limit: usize) -> Vec<(RouteField, Option<String>)> {
        let fields: Vec<RouteField> = self.dirty.iter().copied().take(limit).collect();
        let mut taken = Vec::with_capacity(fields.len());
        for field in fields {
            self.dirty.remove(&field);
            let value = match field {
                RouteField::Agent(agent) => self.get(agent).map(RouteRecord::encode),
                RouteField::Project(project) => self.project_agents.get(&project).map(wire::encode_project),
                RouteField::ProjectPath(project) => {
                    self.project_paths.get(&project).map(|path| path.to_string())
                }
            };
            match value {
                Some(_) => self.published.insert(field),
                None => self.published.remove(&field),
            };
            taken.push((field, value));
        }
        taken
    }

    /// Returns the number of fields in Redis.
    pub(super) fn published(&self) -> usize {
        self.published.len()
    }

    fn record(&mut self, agent: AgentId) -> &mut RouteRecord {
        let new = || RouteRecord { epoch: NOT_ANNOUNCED, instances: Vec::new() };
        self.agents.entry(agent).or_insert_with(new)
    }
}

impl RouteField {
    /// Returns the agent, unless this is a field of a project.
    pub(super) fn agent(self) -> Option<AgentId> {
        match self {
            Self::Agent(agent) => Some(agent),
            Self::Project(_) | Self::ProjectPath(_) => None,
        }
    }
}

/// The name of the field in Redis. Only those of agents are numbers.
impl fmt::Display for RouteField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent(agent) => write!(f, "{agent}"),
            Self::Project(project) => write!(f, "p{project}"),
            Self::ProjectPath(project) => write!(f, "n{project}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: AgentId = AgentId(7);
    const FIELD: RouteField = RouteField::Agent(AGENT);
    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    #[test]
    fn lower_epoch_never_replaces_or_removes_a_higher_one() {
        let mut routes = LocalRoutes::default();
        assert!(routes.announce(AGENT, Epoch(5)));
        assert!(!routes.announce(AGENT, Epoch(4)) && !routes.announce(AGENT, Epoch(5)));
        assert!(!routes.withdraw(AGENT, Epoch(4), NOW));
        assert_eq!(routes.get(AGENT).unwrap().epoch, Epoch(5));
        assert!(routes.withdraw(AGENT, Epoch(5), NOW) && !routes.withdraw(AGENT, Epoch(5), NOW));
        assert!(routes.get(AGENT).is_none());
        assert_eq!(routes.disconnected_since(AGENT), Some(NOW));
    }

    #[test]
    fn last_change_is_taken_once() {
        let mut routes = LocalRoutes::default();
        routes.announce(AGENT, Epoch(1));
        routes.announce(AGENT, Epoch(2));
        assert_eq!(routes.take_dirty(10), [(FIELD, Some("[1,2,[]]".to_owned()))]);
        assert_eq!(routes.take_dirty(10), []);
        routes.withdraw(AGENT, Epoch(2), NOW);
        assert_eq!(routes.take_dirty(10), [(FIELD, None)]);
        assert_eq!(routes.published(), 0);
    }

    #[test]
    fn withdraw_without_published_announce_is_published() {
        let mut routes = LocalRoutes::default();
        routes.announce(AGENT, Epoch(1));
        routes.withdraw(AGENT, Epoch(1), NOW);
        routes.mark_all_dirty();
        assert_eq!(routes.take_dirty(10), [(FIELD, None)]);
    }

    #[test]
    fn mark_all_dirty_takes_every_held_agent_again() {
        let mut routes = LocalRoutes::default();
        for n in 0..5 {
            routes.announce(AgentId(n), Epoch(1));
        }
        assert_eq!((routes.take_dirty(3).len(), routes.take_dirty(3).len(), routes.published()), (3, 2, 5));
        routes.withdraw(AgentId(0), Epoch(1), NOW);
        routes.mark_all_dirty();
        assert_eq!(routes.published(), 0);
        let mut again = routes.take_dirty(10);
        again.sort();
        let mut expected = vec![(RouteField::Agent(AgentId(0)), None)];
        expected.extend((1..5).map(|n| (RouteField::Agent(AgentId(n)), Some("[1,1,[]]".to_owned()))));
        assert_eq!(again, expected);
    }

    #[test]
    fn instances_without_announce_are_no_route() {
        let mut routes = LocalRoutes::default();
        routes.set_instances(AGENT, Vec::new());
        assert!(routes.get(AGENT).is_none());
        assert_eq!(routes.take_dirty(10), []);
    }

    #[test]
    fn project_has_its_agents_until_they_are_withdrawn() {
        let agent = |id: u64, name: &str, project: u64| ProjectAgent {
            agent: AgentId(id),
            name: name.parse().unwrap(),
            project,
            project_path: None,
        };
        let field = RouteField::Project(9);
        let mut routes = LocalRoutes::default();
        routes.set_project(agent(7, "a", 9));
        routes.set_project(agent(8, "b", 9));
        assert!(routes.project_agents(None).is_empty(), "not announced");
        assert_eq!(routes.take_dirty(10), [(field, Some("[1,[[7,\"a\"],[8,\"b\"]]]".to_owned()))]);
        for id in [7, 8] {
            routes.announce(AgentId(id), Epoch(1));
        }
        routes.set_project(agent(7, "a", 9));
        assert_eq!(routes.take_dirty(10).len(), 2, "the project has not changed");
        assert_eq!(routes.project_agents(Some(9)), [agent(7, "a", 9), agent(8, "b", 9)]);
        assert!(routes.project_agents(Some(1)).is_empty());

        routes.withdraw(AGENT, Epoch(1), NOW);
        let taken: HashMap<_, _> = routes.take_dirty(10).into_iter().collect();
        assert_eq!(taken[&field].as_deref(), Some("[1,[[8,\"b\"]]]"));
        routes.withdraw(AgentId(8), Epoch(1), NOW);
        let taken: HashMap<_, _> = routes.take_dirty(10).into_iter().collect();
        assert_eq!((taken[&field].as_deref(), routes.published()), (None, 0));
    }

    #[test]
    fn agent_that_moved_to_another_project_leaves_the_former_one() {
        let mut routes = LocalRoutes::default();
        for project in [1, 2] {
            routes.set_project(ProjectAgent {
                agent: AGENT,
                name: "a".parse().unwrap(),
                project,
                project_path: None,
            });
        }
        routes.announce(AGENT, Epoch(1));
        let projects: Vec<u64> = routes.project_agents(None).iter().map(|agent| agent.project).collect();
        assert_eq!(projects, [2]);
    }
}
