//! Section `environments`: the environments whose objects are in the cluster of the agent.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use super::{InvalidValue, is_namespace};

/// The most environments of an agent, and the most labels of one.
const MAX_ENVIRONMENTS: usize = 50;
const MAX_LABELS: usize = 16;
/// The longest path of a project, group, or label, in bytes.
const MAX_TEXT: usize = 255;
/// The tiers, as GitLab's CI knows them.
const TIERS: [&str; 5] = ["production", "staging", "testing", "development", "other"];

/// An environment of a project, in a namespace of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NamedEnvironment {
    /// The name of the environment in URLs and labels: a label of RFC 1123.
    pub slug: String,
    /// The full path of the project. The default is the project of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The tier: `production`, `staging`, `testing`, `development` or `other`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// The group whose environments are shown together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The namespace.
    pub namespace: String,
    /// The labels that all objects of the environment have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// An invalid value of an environment. The text begins with its key.
#[derive(Debug, thiserror::Error)]
enum InvalidEnvironment {
    #[error("slug: {0:?} is not lower-case letters, digits and '-', at most 63")]
    Slug(String),
    #[error("slug: {0} has this namespace twice")]
    Duplicate(String),
    #[error("namespace: {0:?} is not the name of a namespace")]
    Namespace(String),
    #[error("project: write the path of a project, like group/app")]
    Project,
    #[error("group: write the path of a group")]
    Group,
    #[error("tier: it must be one of {}", TIERS.join(", "))]
    Tier,
    #[error("labels: there are at most {MAX_LABELS}, of at most {MAX_TEXT} bytes")]
    Labels,
}

/// Returns the first invalid value.
pub(super) fn validate(environments: &[NamedEnvironment]) -> Result<(), InvalidValue> {
    const KEY: &str = "environments";
    if environments.len() > MAX_ENVIRONMENTS {
        return Err(InvalidValue::new(
            KEY,
            format!("an agent names at most {MAX_ENVIRONMENTS} environments"),
        ));
    }
    let mut places = HashSet::new();
    for (index, environment) in environments.iter().enumerate() {
        let at =
            |invalid: InvalidEnvironment| InvalidValue::new(KEY, format!("environments[{index}].{invalid}"));
        environment.validate().map_err(at)?;
        if !places.insert((&environment.project, &environment.slug, &environment.namespace)) {
            return Err(at(InvalidEnvironment::Duplicate(environment.slug.clone())));
        }
    }
    Ok(())
}

impl NamedEnvironment {
    fn validate(&self) -> Result<(), InvalidEnvironment> {
        let Self { slug, project, tier, group, namespace, labels } = self;
        if !is_namespace(slug) {
            return Err(InvalidEnvironment::Slug(slug.clone()));
        }
        if !is_namespace(namespace) {
            return Err(InvalidEnvironment::Namespace(namespace.clone()));
        }
        if project.as_ref().is_some_and(|project| !is_project(project)) {
            return Err(InvalidEnvironment::Project);
        }
        if group.as_ref().is_some_and(|group| !is_project(group)) {
            return Err(InvalidEnvironment::Group);
        }
        if tier.as_ref().is_some_and(|tier| !TIERS.contains(&&**tier)) {
            return Err(InvalidEnvironment::Tier);
        }
        let is_short = |text: &String| text.len() <= MAX_TEXT;
        if labels.len() > MAX_LABELS || !labels.iter().all(|(key, value)| is_short(key) && is_short(value)) {
            return Err(InvalidEnvironment::Labels);
        }
        Ok(())
    }

    /// Returns the project of the environment, if a configuration in the project `own` may name it: the project itself, or one in the
    /// same group or below. Whoever may write to `own` could otherwise attract the deployments of any project. A configuration without
    /// a project is a file of the operator, and may name all.
    pub fn project_for(&self, own: Option<&str>) -> Option<String> {
        let Some(own) = own else { return self.project.clone() };
        let Some(project) = &self.project else { return Some(own.to_owned()) };
        let group = own.rsplit_once('/').map(|(group, _)| group);
        let is_below = |group: &str| project.strip_prefix(group).is_some_and(|rest| rest.starts_with('/'));
        (project == own || group.is_some_and(is_below)).then(|| project.clone())
    }
}

fn is_project(text: &str) -> bool {
    (1..=MAX_TEXT).contains(&text.len())
        && text.split('/').all(|part| !part.is_empty())
        && !text.contains(|c: char| c == ':' || c.is_control() || c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::AgentConfiguration;
    use super::*;

    #[test]
    fn project_is_in_the_group_of_the_configuration() {
        let named = |project: Option<&str>| NamedEnvironment {
            project: project.map(str::to_owned),
            ..NamedEnvironment::default()
        };
        for (own, project, expected) in [
            (Some("shop/agents"), None, Some("shop/agents")),
            (Some("shop/agents"), Some("shop/web"), Some("shop/web")),
            (Some("shop/agents"), Some("shop/team/web"), Some("shop/team/web")),
            (Some("shop/agents"), Some("shopping/web"), None),
            (Some("shop/agents"), Some("bank/web"), None),
            (Some("shop/team/agents"), Some("shop/web"), None),
            (Some("agents"), Some("bank/web"), None),
            (None, Some("bank/web"), Some("bank/web")),
            (None, None, None),
        ] {
            assert_eq!(named(project).project_for(own).as_deref(), expected, "{own:?} {project:?}");
        }
    }

    #[test]
    fn invalid_environment_is_refused_with_its_key() {
        for (entry, expected) in [
            ("{slug: Live, namespace: a}", "environments[0].slug: \"Live\" is not"),
            ("{slug: live}", "environments[0].namespace: \"\" is not"),
            ("{slug: live, namespace: a, tier: prod}", "environments[0].tier: it must be one of production"),
            ("{slug: live, namespace: a, project: 'a b'}", "environments[0].project: write the path"),
            ("{slug: live, namespace: a, name: x}", "unknown field `name`"),
            ("{slug: live, namespace: a}, {slug: live, namespace: a}", "environments[1].slug: live has this"),
        ] {
            let text = format!("environments: [{entry}]");
            let error = AgentConfiguration::parse(Path::new("config.yaml"), &text).unwrap_err().to_string();
            assert!(error.contains(expected), "{entry}: {error}");
        }
    }
}
