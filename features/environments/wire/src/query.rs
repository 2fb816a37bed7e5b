//! The query of a list of environments, and the list that it selects.

use std::{collections::BTreeSet, str::FromStr};

use globset::{Error, GlobMatcher};
use proto::{LabelSelector, notify::is_at_or_below, path_glob};
use serde::{Deserialize, Serialize};

use super::{Environment, EnvironmentAgent, Tier};

/// The most environments of one list. Further ones are missing.
pub const MAX_ENVIRONMENTS: usize = 5000;
/// The most parts of a list of which it has the reason why they are missing.
const MAX_MISSING: usize = 100;

/// Selects environments. An empty field selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvironmentQuery {
    /// The full path of the project.
    pub project: Option<String>,
    /// The slug of the environment.
    pub slug: Option<String>,
    /// The pattern of the name of the environment.
    pub name: Option<NamePattern>,
    /// The tier.
    pub tier: Option<Tier>,
    /// The group of the environment, or a group of GitLab above its project.
    pub group: Option<String>,
    /// The agent, as the environment names it. With a namespace and labels, they are those of the same place.
    pub agent: Option<String>,
    /// The namespace of a place.
    pub namespace: Option<String>,
    /// The labels of a place.
    pub labels: LabelSelector,
}

/// A pattern of the names of environments: a glob whose `*` matches no `/`.
#[derive(Clone, Debug)]
pub struct NamePattern(GlobMatcher);

/// The environments that a query selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvironmentSelection {
    /// The environments.
    pub environments: Vec<Environment>,
    /// The parts that could not be read.
    pub missing: Vec<MissingEnvironments>,
}

/// Environments that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MissingEnvironments {
    /// The group whose projects are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The project whose environments are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The agent in whose cluster environments may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The reason, one sentence.
    pub reason: String,
}

impl EnvironmentQuery {
    /// Returns whether the query selects an environment.
    pub fn selects(&self, environment: &Environment) -> bool {
        self.project.as_ref().is_none_or(|project| *project == environment.project)
            && self.slug.as_ref().is_none_or(|slug| *slug == environment.slug)
            && self.name.as_ref().is_none_or(|name| name.is_match(&environment.name))
            && self.tier.is_none_or(|tier| tier == environment.tier)
            && self.group.as_ref().is_none_or(|group| is_in_group(environment, group))
            && (self.selects_every_place()
                || environment.agents.iter().any(|place| self.selects_place(place)))
    }

    fn selects_every_place(&self) -> bool {
        self.agent.is_none() && self.namespace.is_none() && self.labels == LabelSelector::default()
    }

    fn selects_place(&self, place: &EnvironmentAgent) -> bool {
        self.agent.as_ref().is_none_or(|agent| *agent == place.agent)
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == place.namespace)
            && self.labels.matches(|key| place.labels.get(key).map(String::as_str))
    }
}

/// Returns whether an environment is of this group, of one below it, or of a project below it.
fn is_in_group(environment: &Environment, group: &str) -> bool {
    let Environment { project, group: own, .. } = environment;
    let above = project.rsplit_once('/').map(|(above, _)| above);
    own.as_deref().into_iter().chain(above).any(|path| is_at_or_below(path, group))
}

impl NamePattern {
    /// Returns whether the pattern matches a name.
    pub fn is_match(&self, name: &str) -> bool {
        self.0.is_match(name)
    }

    /// Returns the only name that the pattern matches, if there is one.
    pub fn literal(&self) -> Option<&str> {
        let text = self.0.glob().glob();
        (!text.contains(['*', '?', '[', '{', '\\'])).then_some(text)
    }
}

impl FromStr for NamePattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        path_glob(text).map(Self)
    }
}

impl PartialEq for NamePattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.glob() == other.0.glob()
    }
}

impl Eq for NamePattern {}

impl EnvironmentSelection {
    /// Adds those environments of another source that are in no source before, and the parts that it could not read.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        let place = |environment: &Environment| (environment.project.clone(), environment.slug.clone());
        let known: BTreeSet<_> = self.environments.iter().map(place).collect();
        self.environments
            .extend(other.environments.into_iter().filter(|found| !known.contains(&place(found))));
        self.missing.extend(other.missing);
        self
    }

    /// Cuts what no answer has. Pages are made before.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let surplus = self.environments.len().saturating_sub(MAX_ENVIRONMENTS);
        self.environments.truncate(MAX_ENVIRONMENTS);
        if surplus > 0 {
            let reason = format!(
                "a list has at most {MAX_ENVIRONMENTS} environments, and {surplus} more are selected: select fewer, or ask for pages with limit"
            );
            self.missing.insert(0, MissingEnvironments { reason, ..MissingEnvironments::default() });
        }
        let more = self.missing.len().saturating_sub(MAX_MISSING);
        self.missing.truncate(MAX_MISSING);
        if more > 0 {
            let reason = format!("{more} more parts could not be read");
            self.missing.push(MissingEnvironments { reason, ..MissingEnvironments::default() });
        }
        self
    }
}

impl From<Vec<Environment>> for EnvironmentSelection {
    fn from(environments: Vec<Environment>) -> Self {
        Self { environments, missing: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> Environment {
        let place = |agent: &str, namespace: &str, app: &str| EnvironmentAgent {
            agent: agent.to_owned(),
            namespace: namespace.to_owned(),
            labels: [("app".to_owned(), app.to_owned())].into(),
        };
        Environment {
            id: 1,
            project: "shop/eu/web".to_owned(),
            slug: "production-us-1".to_owned(),
            name: "production/us-1".to_owned(),
            tier: Tier::Production,
            group: Some("front".to_owned()),
            agents: vec![place("7", "web", "web"), place("8", "web-b", "api")],
        }
    }

    #[test]
    fn group_is_that_of_the_environment_or_one_above_its_project() {
        for (group, expected) in [
            ("front", true),
            ("shop", true),
            ("SHOP/eu", true),
            ("shop/eu/web", false),
            ("shop/e", false),
            ("eu", false),
        ] {
            let query = EnvironmentQuery { group: Some(group.to_owned()), ..EnvironmentQuery::default() };
            assert_eq!(query.selects(&environment()), expected, "{group}");
        }
    }

    #[test]
    fn agent_namespace_and_labels_are_those_of_one_place() {
        for (agent, namespace, labels, expected) in [
            (None, None, "", true),
            (Some("7"), Some("web"), "app=web", true),
            (Some("8"), None, "app in (api,x)", true),
            (Some("8"), Some("web"), "", false),
            (None, Some("web"), "app=api", false),
            (None, None, "app=other", false),
            (None, None, "!app", false),
        ] {
            let query = EnvironmentQuery {
                agent: agent.map(str::to_owned),
                namespace: namespace.map(str::to_owned),
                labels: labels.parse().unwrap(),
                ..EnvironmentQuery::default()
            };
            assert_eq!(query.selects(&environment()), expected, "{agent:?} {namespace:?} {labels}");
        }
    }

    #[test]
    fn pattern_of_the_name_keeps_to_its_parts() {
        for (pattern, expected, literal) in [
            ("production/us-*", true, false),
            ("production/us-1", true, true),
            ("*", false, false),
            ("**", true, false),
            ("production-us-1", false, true),
        ] {
            let name: NamePattern = pattern.parse().unwrap();
            assert_eq!(name.literal().is_some(), literal, "{pattern}");
            let query = EnvironmentQuery { name: Some(name), ..EnvironmentQuery::default() };
            assert_eq!(query.selects(&environment()), expected, "{pattern}");
        }
    }

    #[test]
    fn surplus_of_a_list_is_missing() {
        let selection = EnvironmentSelection::from(vec![environment(); MAX_ENVIRONMENTS + 2]).bounded();
        assert_eq!(selection.environments.len(), MAX_ENVIRONMENTS);
        assert!(selection.missing[0].reason.contains("2 more are selected"), "{:?}", selection.missing);
        let missing = vec![MissingEnvironments::default(); MAX_MISSING + 3];
        let selection = EnvironmentSelection { environments: Vec::new(), missing }.bounded();
        assert_eq!(selection.missing.len(), MAX_MISSING + 1);
        assert_eq!(selection.missing[MAX_MISSING].reason, "3 more parts could not be read");
    }
}
