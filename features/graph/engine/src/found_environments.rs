//! The environments of GitLab that the labels and annotations of objects name.

use std::collections::BTreeMap;

use proto::graph::{FoundEnvironment, FoundEnvironmentList};

use crate::{access::Access, entry::Entry, graph::Graph, groups, query::Query};

/// The most environments of one cluster that are reported.
const MAX_ENVIRONMENTS: usize = 200;

impl Graph {
    /// Returns the environments to which visible objects belong, in order of namespace and slug.
    pub fn found_environments(&self, access: &Access) -> FoundEnvironmentList {
        let mut counts = BTreeMap::<FoundEnvironment, u64>::new();
        for (_, entry) in self.entries().filter(|(_, entry)| access.sees_entry(entry)) {
            if let Some(found) = found(entry) {
                *counts.entry(found).or_default() += 1;
            }
        }
        let omitted = counts.len().saturating_sub(MAX_ENVIRONMENTS);
        let environments = counts.into_iter().take(MAX_ENVIRONMENTS);
        FoundEnvironmentList {
            environments: environments
                .map(|(found, objects)| FoundEnvironment { objects, ..found })
                .collect(),
            omitted: omitted as u64,
            partial: self.partial(&Query::default(), access),
        }
    }
}

/// Returns the environment of an object, without the number of its objects.
fn found(entry: &Entry) -> Option<FoundEnvironment> {
    let facts = &entry.facts;
    let part = |kind: &str| {
        let id = facts.groups.iter().find_map(|id| id.strip_prefix(kind)?.strip_prefix(':'));
        id.and_then(|id| id.split_once('/'))
    };
    let (by_id, by_app) = (part(groups::GITLAB), part(groups::GITLAB_APP));
    let (_, slug) = by_id.or(by_app)?;
    let project_id = by_id.and_then(|(project, _)| project.parse().ok());
    let app = by_app.filter(|(_, of_app)| *of_app == slug).map(|(app, _)| app.to_owned());
    let label = |key: &str| facts.label(key).map(|value| (key.to_owned(), value.to_owned()));
    let keys = if by_id.is_some() { groups::ENVIRONMENT_LABELS } else { groups::APP_KEYS };
    // With one label only, the objects of others would be selected, too.
    let labels: Option<BTreeMap<_, _>> = keys.into_iter().map(label).collect();
    Some(FoundEnvironment {
        namespace: facts.namespace.to_string(),
        slug: slug.to_owned(),
        project_id,
        app,
        labels: labels.unwrap_or_default(),
        objects: 0,
    })
}
