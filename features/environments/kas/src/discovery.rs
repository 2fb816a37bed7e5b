//! Environments without a file: those that objects in the clusters name by the labels and annotations of GitLab
//! (`app.gitlab.com/project_id` with `environment_slug`, or `app` with `env`). kas asks the agents for them, with the rights of agentk.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

use environments_wire::{
    Deployment, Environment, EnvironmentAgent, EnvironmentSelection, MissingEnvironments, Tier, is_label,
};
use kas_core::{
    agent_answers::AnswerDeadline,
    agent_inquiry::AgentInquiry,
    agent_locations::{AgentLookup, KnownAgent, KnownAgents},
};
use proto::{
    ServiceName,
    graph::{ENVIRONMENTS_PATH, FoundEnvironment, FoundEnvironmentList},
};

use super::named;

/// The most agents that are asked for one list. All are asked at the same time, so that one that hangs takes the turn of no other one.
const MAX_AGENTS: usize = 500;
/// The largest answer of an agent, in bytes, and the most environments of it.
const MAX_ANSWER: usize = 128 << 10;
const MAX_FOUND: usize = 200;
/// The most reasons for which an agent says that something may be missing, and the longest one in bytes.
const MAX_REASONS: usize = 8;
const MAX_REASON: usize = 512;
/// The longest slug of the path of a project, in bytes: that of a label.
const MAX_SLUG: usize = 63;

/// An agent with the environments in its cluster, or the reason why they are not known.
type Asked = (String, Result<FoundEnvironmentList, String>);

/// The paths of projects that kas knows, by their ids and by their slugs.
#[derive(Debug, Default)]
pub(crate) struct KnownProjects {
    by_id: HashMap<u64, String>,
    /// `None` is the slug of several paths.
    by_slug: HashMap<String, Option<String>>,
    tiers: HashMap<(String, String), Tier>,
}

impl KnownProjects {
    /// Returns the projects of deployments and of other environments.
    pub(crate) fn new(records: &[Deployment], environments: &[Environment]) -> Self {
        let mut known = Self::default();
        for record in records {
            let Some(path) = &record.project else { continue };
            known.add(Some(record.project_id), path);
            known.tiers.entry((path.clone(), record.environment.clone())).or_insert(record.tier);
        }
        environments.iter().for_each(|environment| known.add(None, &environment.project));
        known
    }

    /// Adds a project.
    pub(crate) fn add(&mut self, id: Option<u64>, path: &str) {
        if let Some(id) = id {
            self.by_id.entry(id).or_insert_with(|| path.to_owned());
        }
        match self.by_slug.entry(slug_of(path)) {
            Entry::Vacant(entry) => {
                entry.insert(Some(path.to_owned()));
            }
            Entry::Occupied(mut entry) => {
                // GitLab's paths have no case.
                if entry.get().as_ref().is_some_and(|known| !known.eq_ignore_ascii_case(path)) {
                    entry.insert(None);
                }
            }
        }
    }

    /// Returns the path of the project of an environment. Without one, or with several that have the same slug, it is the slug or the id
    /// of the project.
    fn path(&self, found: &FoundEnvironment) -> Option<String> {
        let of_id = found.project_id.map(|id| self.by_id.get(&id).cloned().unwrap_or_else(|| id.to_string()));
        let known = |app: &String| self.by_slug.get(app).cloned().flatten();
        let of_app = found.app.as_ref().map(|app| known(app).unwrap_or_else(|| app.clone()));
        match (of_id, of_app) {
            (Some(id), Some(app)) if id.bytes().all(|byte| byte.is_ascii_digit()) => Some(app),
            (Some(path), _) | (None, Some(path)) => Some(path),
            (None, None) => None,
        }
    }
}

/// Returns the environments in the clusters of all connected agents.
pub(crate) async fn discover(
    agents: &AgentInquiry,
    lookup: &AgentLookup,
    mut projects: KnownProjects,
) -> EnvironmentSelection {
    let deadline = AnswerDeadline::start();
    let KnownAgents { agents: mut all, missing } = lookup.list(None).await;
    all.sort_by_key(|agent| agent.id);
    let surplus = all.len().saturating_sub(MAX_AGENTS);
    all.truncate(MAX_AGENTS);
    for KnownAgent { project, project_path, .. } in &all {
        if let Some(path) = project_path {
            projects.add(*project, path);
        }
    }
    let questions = all.iter().map(|agent| ask(agents, agent)).collect();
    let answers = deadline.answers(questions, MAX_AGENTS).await;
    let names = all
        .iter()
        .map(|agent| if lookup.is_in_file(agent.id) { agent.name.to_string() } else { agent.id.to_string() });
    let asked: Vec<Asked> = names.zip(answers).collect();
    let mut selection = merge(asked, &projects);
    let reason =
        (surplus > 0).then(|| format!("kas asks {MAX_AGENTS} agents at once, and there are {surplus} more"));
    let missing = missing.map(|error| format!("the agents of other replicas are not known: {error}"));
    let unknown = missing.into_iter().chain(reason);
    let unknown = unknown.map(|reason| MissingEnvironments { reason, ..MissingEnvironments::default() });
    selection.missing.splice(0..0, unknown);
    selection
}

async fn ask(agents: &AgentInquiry, agent: &KnownAgent) -> Result<FoundEnvironmentList, String> {
    let body = agents.get(agent, ServiceName::GRAPH, ENVIRONMENTS_PATH, MAX_ANSWER).await?;
    let list = serde_json::from_slice(&body);
    list.map(bounded)
        .map_err(|error| format!("the response of the agent is no list of environments: {error}"))
}

/// Returns the part of an answer that kas keeps. The answer is not trusted.
fn bounded(mut list: FoundEnvironmentList) -> FoundEnvironmentList {
    let FoundEnvironmentList { environments, partial, .. } = &mut list;
    environments.retain(is_valid);
    environments.truncate(MAX_FOUND);
    environments.shrink_to_fit();
    partial.truncate(MAX_REASONS);
    partial.shrink_to_fit();
    for reason in partial {
        reason.truncate(reason.floor_char_boundary(MAX_REASON));
        reason.shrink_to_fit();
    }
    list
}

/// Returns the environments of all answers, which are bounded, in order of project and slug. Clusters that name the same one are its
/// places.
fn merge(asked: Vec<Asked>, projects: &KnownProjects) -> EnvironmentSelection {
    let (mut all, mut missing) = (BTreeMap::<(String, String), Environment>::new(), Vec::new());
    for (agent, answer) in asked {
        let FoundEnvironmentList { environments, omitted, partial } = match answer {
            Ok(list) => list,
            Err(reason) => {
                missing.push(missing_agent(agent, reason));
                continue;
            }
        };
        if omitted > 0 {
            missing
                .push(missing_agent(agent.clone(), format!("the cluster has {omitted} more environments")));
        }
        missing.extend(partial.into_iter().map(|reason| missing_agent(agent.clone(), reason)));
        for found in environments {
            let Some(project) = projects.path(&found) else { continue };
            let key = (project.clone(), found.slug.clone());
            let tier = projects.tiers.get(&key).copied().unwrap_or_default();
            let environment = all.entry(key).or_insert_with(|| Environment {
                id: named::id(&project, &found.slug),
                group: project.rsplit_once('/').map(|(group, _)| group.to_owned()),
                project,
                name: found.slug.clone(),
                slug: found.slug.clone(),
                tier,
                agents: Vec::new(),
            });
            let FoundEnvironment { namespace, labels, .. } = found;
            add_place(environment, EnvironmentAgent { agent: agent.clone(), namespace, labels });
        }
    }
    EnvironmentSelection { environments: all.into_values().collect(), missing }
}

/// Adds a place. Objects with labels and objects with annotations may name the same one: all objects of the namespace are meant then.
fn add_place(environment: &mut Environment, place: EnvironmentAgent) {
    let is_same =
        |known: &&mut EnvironmentAgent| known.agent == place.agent && known.namespace == place.namespace;
    match environment.agents.iter_mut().find(is_same) {
        Some(known) if known.labels != place.labels => known.labels.clear(),
        Some(_) => {}
        None => environment.agents.push(place),
    }
}

/// Returns whether an agent may name such an environment. The app is the slug of a path, so that an agent names no path itself.
fn is_valid(found: &FoundEnvironment) -> bool {
    let FoundEnvironment { namespace, slug, app, labels, .. } = found;
    is_label(slug)
        && is_label(namespace)
        && app.as_deref().is_none_or(is_label)
        && labels.len() <= 2
        && labels
            .iter()
            .all(|(key, value)| key.starts_with("app.gitlab.com/") && key.len() + value.len() <= 256)
}

fn missing_agent(agent: String, reason: String) -> MissingEnvironments {
    MissingEnvironments { agent: Some(agent), reason, ..MissingEnvironments::default() }
}

/// Returns the slug of the path of a project, as `CI_PROJECT_PATH_SLUG` has it.
fn slug_of(path: &str) -> String {
    let slug = path.to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let slug: String = slug.chars().take(MAX_SLUG).collect();
    slug.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(namespace: &str, slug: &str, project_id: Option<u64>, app: Option<&str>) -> FoundEnvironment {
        let labels = project_id.map(|id| ("app.gitlab.com/project_id".to_owned(), id.to_string()));
        FoundEnvironment {
            namespace: namespace.to_owned(),
            slug: slug.to_owned(),
            project_id,
            app: app.map(str::to_owned),
            labels: labels.into_iter().collect(),
            objects: 1,
        }
    }

    fn merged(asked: Vec<Asked>) -> (Vec<String>, Vec<MissingEnvironments>) {
        let mut projects = KnownProjects::default();
        projects.add(Some(30), "Shop/eu.web");
        let EnvironmentSelection { environments, missing } = merge(asked, &projects);
        let line = |environment: &Environment| {
            let places = environment
                .agents
                .iter()
                .map(|at| format!("{}/{}{}", at.agent, at.namespace, at.labels.len()));
            format!("{}:{} {}", environment.project, environment.slug, places.collect::<Vec<_>>().join(" "))
        };
        (environments.iter().map(line).collect(), missing)
    }

    fn list(environments: Vec<FoundEnvironment>) -> Result<FoundEnvironmentList, String> {
        Ok(bounded(FoundEnvironmentList { environments, ..FoundEnvironmentList::default() }))
    }

    #[test]
    fn project_is_known_by_its_id_or_by_the_slug_of_its_path() {
        let us = list(vec![
            found("web", "live", Some(30), None),
            found("web", "live", None, Some("shop-eu-web")),
            found("api", "live", Some(31), Some("shop-api")),
            found("x", "dev", Some(32), None),
        ]);
        let eu = list(vec![found("web-eu", "live", None, Some("shop-eu-web"))]);
        let (environments, missing) = merged(vec![("us".to_owned(), us), ("eu".to_owned(), eu)]);
        assert_eq!(
            environments,
            ["32:dev us/x1", "Shop/eu.web:live us/web0 eu/web-eu0", "shop-api:live us/api1"]
        );
        assert!(missing.is_empty());
    }

    #[test]
    fn hostile_answer_is_cut_and_hides_no_other_one() {
        let many = (0..300).map(|number| found("a", &format!("e{number}"), Some(30), None)).collect();
        let hostile = list(vec![
            found("../x", "live", Some(30), None),
            found("a", "Live", Some(30), None),
            found("a", "live", None, Some("")),
            found("a", "live", None, Some("a\nb")),
            found("a", "live", None, Some("shop/eu")),
            found("a", "live", None, Some("shop:eu")),
            found("a", "live", None, Some("Shop")),
            found("a", "live", None, Some("a".repeat(MAX_SLUG + 1).as_str())),
            found("a", "live", None, None),
        ]);
        let (environments, missing) = merged(vec![
            ("hostile".to_owned(), hostile),
            ("large".to_owned(), list(many)),
            ("away".to_owned(), Err("gone".to_owned())),
        ]);
        assert_eq!(environments.len(), MAX_FOUND);
        assert_eq!(missing, [missing_agent("away".to_owned(), "gone".to_owned())]);
    }

    #[test]
    fn slug_of_several_projects_stays_a_slug() {
        let mut projects = KnownProjects::default();
        for (id, path) in [(1, "shop/eu-web"), (2, "shop-eu/web"), (3, "shop/eu-web"), (4, "shop/api")] {
            projects.add(Some(id), path);
        }
        projects.add(None, "Shop/API");
        let path = |id, app| projects.path(&found("a", "live", id, app)).unwrap();
        assert_eq!(path(None, Some("shop-eu-web")), "shop-eu-web");
        assert_eq!(path(Some(2), Some("shop-eu-web")), "shop-eu/web", "the id decides");
        assert_eq!(path(None, Some("shop-api")), "shop/api", "both are the same project");
    }

    #[test]
    fn reasons_of_an_agent_are_missing_parts() {
        let partial = ["Deployment: agentk may not list them".to_owned()].into_iter();
        let partial: Vec<_> = partial.chain(vec!["é".repeat(MAX_REASON); 100]).collect();
        let environments = vec![found("web", "live", Some(30), None)];
        let answer = Ok(bounded(FoundEnvironmentList { environments, omitted: 3, partial }));
        let (environments, missing) = merged(vec![("us".to_owned(), answer)]);
        assert_eq!(environments, ["Shop/eu.web:live us/web1"]);
        assert_eq!(missing.len(), MAX_REASONS + 1);
        assert!(missing.iter().all(|part| part.agent.as_deref() == Some("us")));
        assert!(missing.iter().all(|part| part.reason.len() <= MAX_REASON));
        assert_eq!(missing[0].reason, "the cluster has 3 more environments");
        assert_eq!(missing[1].reason, "Deployment: agentk may not list them");
    }
}
