//! Environments of the file `environments.file`.

use std::{
    collections::{BTreeMap, HashSet},
    future::ready,
    path::Path,
    sync::Arc,
};

use arc_swap::ArcSwap;
use environments_wire::{
    Environment, EnvironmentAgent, EnvironmentError, EnvironmentQuery, EnvironmentReader,
    EnvironmentSelection, EnvironmentSource, Tier, is_label, is_name, is_project,
};
use futures_util::future::BoxFuture;
use proto::{AgentId, AgentName};
use serde::Deserialize;
use serde_saphyr::Spanned;
use settings::{ConfigError, parse};

/// The current version of the file. Clones are cheap, and share the version.
#[derive(Clone, Debug)]
pub struct EnvironmentFile(Arc<ArcSwap<Vec<Environment>>>);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    environments: Vec<EnvironmentEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvironmentEntry {
    id: Spanned<u64>,
    project: Spanned<String>,
    slug: Spanned<String>,
    /// The slug by default.
    #[serde(default)]
    name: Option<Spanned<String>>,
    #[serde(default)]
    tier: Tier,
    #[serde(default)]
    group: Option<String>,
    agents: Spanned<Vec<AgentEntry>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentEntry {
    agent: Spanned<String>,
    namespace: Spanned<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

impl EnvironmentFile {
    /// Reads the file for the first time.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Ok(Self(Arc::new(ArcSwap::from_pointee(read(path)?))))
    }

    /// Reads a new version. If the file is invalid, the current version stays.
    pub fn reload(&self, path: &Path) -> Result<(), ConfigError> {
        self.0.store(Arc::new(read(path)?));
        Ok(())
    }

    /// Returns the environments that the query selects, in order of their ids.
    pub fn select(&self, query: &EnvironmentQuery) -> Vec<Environment> {
        self.0.load().iter().filter(|environment| query.selects(environment)).cloned().collect()
    }
}

impl EnvironmentSource for EnvironmentFile {
    fn list<'a>(
        &'a self,
        query: &'a EnvironmentQuery,
        _: EnvironmentReader<'a>,
    ) -> BoxFuture<'a, Result<EnvironmentSelection, EnvironmentError>> {
        Box::pin(ready(Ok(self.select(query).into())))
    }
}

fn read(path: &Path) -> Result<Vec<Environment>, ConfigError> {
    build(path, &files::read_config(path)?)
}

/// Parses the text of the file, in order of the ids.
fn build(path: &Path, text: &str) -> Result<Vec<Environment>, ConfigError> {
    let file: Option<File> = parse(path, text)?;
    // An editor or `>` may leave the file empty for a moment.
    let file = file.ok_or_else(|| {
        ConfigError::whole(path, "the file is empty: to have no environments, write environments: []")
    })?;
    let (mut ids, mut names) = (HashSet::new(), HashSet::new());
    let mut environments = Vec::new();
    for (index, entry) in file.environments.into_iter().enumerate() {
        let at = |key: &str| format!("environments[{index}].{key}");
        if !ids.insert(entry.id.value) {
            let what = format!("another environment has the id {}", entry.id.value);
            return Err(ConfigError::new(path, entry.id.referenced, at("id"), what));
        }
        check(path, &at("project"), &entry.project, is_project, "the path of a project, like group/app")?;
        check(path, &at("slug"), &entry.slug, is_label, "lower-case letters, digits and '-', at most 63")?;
        if !names.insert((entry.project.value.clone(), entry.slug.value.clone())) {
            let what = format!("the project {} has another environment with this slug", entry.project.value);
            return Err(ConfigError::new(path, entry.slug.referenced, at("slug"), what));
        }
        if let Some(name) = &entry.name {
            check(
                path,
                &at("name"),
                name,
                is_name,
                "the name of an environment in GitLab, like production/eu",
            )?;
        }
        if entry.agents.value.is_empty() {
            let what = "an environment needs at least one agent and its namespace";
            return Err(ConfigError::new(path, entry.agents.referenced, at("agents"), what));
        }
        let mut agents = Vec::new();
        for (place, agent) in entry.agents.value.into_iter().enumerate() {
            let at = |key: &str| format!("environments[{index}].agents[{place}].{key}");
            check(path, &at("agent"), &agent.agent, is_agent, "the id or the name of an agent")?;
            check(path, &at("namespace"), &agent.namespace, is_label, "the name of a namespace")?;
            let AgentEntry { agent, namespace, labels } = agent;
            agents.push(EnvironmentAgent { agent: agent.value, namespace: namespace.value, labels });
        }
        environments.push(Environment {
            id: entry.id.value,
            project: entry.project.value,
            name: entry.name.map_or_else(|| entry.slug.value.clone(), |name| name.value),
            slug: entry.slug.value,
            tier: entry.tier,
            group: entry.group,
            agents,
        });
    }
    environments.sort_by_key(|environment| environment.id);
    Ok(environments)
}

fn check(
    path: &Path,
    key: &str,
    value: &Spanned<String>,
    is_valid: fn(&str) -> bool,
    expected: &str,
) -> Result<(), ConfigError> {
    if is_valid(&value.value) {
        return Ok(());
    }
    Err(ConfigError::new(path, value.referenced, key, format!("{:?} is not {expected}", value.value)))
}

fn is_agent(text: &str) -> bool {
    text.parse::<AgentId>().is_ok() || text.parse::<AgentName>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "environments:\n\
        - {id: 2, project: g/app, slug: staging, agents: [{agent: test, namespace: app}]}\n\
        - id: 1\n  project: g/app\n  slug: production\n  name: production/eu\n  tier: production\n  group: g\n  agents:\n  \
        - {agent: prod, namespace: app, labels: {app: web}}\n  - {agent: '7', namespace: app-eu}\n";

    fn slugs(query: EnvironmentQuery) -> Vec<String> {
        let file =
            EnvironmentFile(Arc::new(ArcSwap::from_pointee(build(Path::new("env.yaml"), EXAMPLE).unwrap())));
        file.select(&query).into_iter().map(|environment| environment.slug).collect()
    }

    #[test]
    fn query_selects_by_each_field() {
        let all = EnvironmentQuery::default;
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(slugs(all()), ["production", "staging"], "in order of their ids");
        assert_eq!(slugs(EnvironmentQuery { project: text("g/app"), ..all() }).len(), 2);
        assert_eq!(slugs(EnvironmentQuery { project: text("g"), ..all() }).len(), 0);
        assert_eq!(slugs(EnvironmentQuery { slug: text("staging"), ..all() }), ["staging"]);
        assert_eq!(
            slugs(EnvironmentQuery { name: Some("production/*".parse().unwrap()), ..all() }),
            ["production"]
        );
        assert_eq!(slugs(EnvironmentQuery { name: Some("stag*".parse().unwrap()), ..all() }), ["staging"]);
        assert_eq!(slugs(EnvironmentQuery { tier: Some(Tier::Other), ..all() }), ["staging"]);
        assert_eq!(
            slugs(EnvironmentQuery { group: text("g"), ..all() }),
            ["production", "staging"],
            "of its projects"
        );
        assert_eq!(slugs(EnvironmentQuery { group: text("other"), ..all() }).len(), 0);
        assert_eq!(slugs(EnvironmentQuery { agent: text("7"), ..all() }), ["production"]);
        assert_eq!(slugs(EnvironmentQuery { agent: text("8"), ..all() }).len(), 0);
    }

    #[test]
    fn invalid_entry_is_refused_with_its_position() {
        let entry = |fields: &str| format!("environments:\n- {{{fields}}}\n");
        let agents = "agents: [{agent: a, namespace: n}]";
        for (text, expected) in [
            (String::new(), "env.yaml: the file is empty"),
            ("environment: []".to_owned(), "unknown field `environment`"),
            (
                entry(&format!("id: 1, project: '', slug: s, {agents}")),
                "env.yaml:2:20: environments[0].project",
            ),
            (entry(&format!("id: 1, project: a//b, slug: s, {agents}")), "is not the path of a project"),
            (entry(&format!("id: 1, project: p, slug: Up, {agents}")), "environments[0].slug: \"Up\" is not"),
            (
                entry(&format!("id: 1, project: p, slug: s, name: '', {agents}")),
                "environments[0].name: \"\" is not the name of an environment",
            ),
            (entry("id: 1, project: p, slug: s, agents: []"), "environments[0].agents: an environment needs"),
            (
                entry("id: 1, project: p, slug: s, agents: [{agent: '+1', namespace: n}]"),
                "environments[0].agents[0].agent: \"+1\" is not the id or the name",
            ),
            (
                entry("id: 1, project: p, slug: s, agents: [{agent: a, namespace: '../x'}]"),
                "environments[0].agents[0].namespace: \"../x\" is not the name of a namespace",
            ),
            (entry(&format!("id: 1, project: p, slug: s, {agents}, tier: prod")), "unknown variant `prod`"),
            (
                entry(&format!("id: 1, project: p, slug: s, {agents}"))
                    + &format!("- {{id: 1, project: p, slug: t, {agents}}}\n"),
                "env.yaml:3:8: environments[1].id: another environment has the id 1",
            ),
            (
                entry(&format!("id: 1, project: p, slug: s, {agents}"))
                    + &format!("- {{id: 2, project: p, slug: s, {agents}}}\n"),
                "environments[1].slug: the project p has another environment with this slug",
            ),
        ] {
            let error = build(Path::new("env.yaml"), &text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}\n gave {error}");
        }
    }
}
