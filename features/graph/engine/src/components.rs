//! Well-known programs that run in the cluster, recognized by the rules of `components.yaml`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use proto::graph::{Component, ComponentList, HealthState};
use serde::Deserialize;

use crate::{access::Access, entry::Entry, graph::Graph, query::Query};

/// The most pieces of evidence of one component.
const MAX_EVIDENCE: usize = 10;
/// The kinds of `apps` whose images are looked at.
pub(crate) const WORKLOADS: [&str; 3] = ["Deployment", "StatefulSet", "DaemonSet"];

/// A rule by which a program is recognized.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ComponentRule {
    pub(crate) id: String,
    name: String,
    /// Without images, the API groups are the program.
    #[serde(default)]
    pub(crate) images: Vec<String>,
    /// The images without which the program does nothing for kas and agentk; empty if each of its images is enough.
    #[serde(default)]
    essential: Vec<String>,
    #[serde(default)]
    pub(crate) groups: Vec<String>,
}

pub(crate) static RULES: LazyLock<Vec<ComponentRule>> = LazyLock::new(|| {
    serde_saphyr::from_str(include_str!("components.yaml")).expect("a test reads the rules")
});

/// The facts that were found about one program.
#[derive(Debug, Default)]
pub(crate) struct FoundComponent {
    version: Option<String>,
    namespaces: BTreeSet<String>,
    /// The health of the worst workload.
    health: Option<HealthState>,
    /// The health of the best workload with an essential image.
    pub(crate) best: Option<HealthState>,
    evidence: BTreeSet<String>,
}

impl Graph {
    /// Returns the programs that are recognized among the visible objects.
    pub fn components(&self, access: &Access) -> ComponentList {
        let mut found: BTreeMap<&str, FoundComponent> = BTreeMap::new();
        let visible = self.entries().filter(|(_, entry)| access.sees_entry(entry));
        for (_, entry) in visible.filter(|(_, entry)| self.is_workload(entry)) {
            for rule in &*RULES {
                let image = entry
                    .facts
                    .images
                    .iter()
                    .find(|image| rule.images.iter().any(|name| is_named(image, name)));
                let Some(image) = image else { continue };
                let known = found.entry(&rule.id).or_default();
                let label = entry.facts.label("app.kubernetes.io/version");
                let version = version(image).or(label).map(str::to_owned);
                known.version = known.version.take().or(version);
                known.namespaces.insert(entry.facts.namespace.to_string());
                let health = entry.facts.health;
                known.health = known.health.max(Some(health));
                if rule.is_essential(image) {
                    known.best = Some(known.best.map_or(health, |best| best.min(health)));
                }
                known.add_evidence(format!(
                    "{} {}/{}",
                    self.api(entry).kind,
                    entry.facts.namespace,
                    entry.facts.name
                ));
            }
        }
        for (_, resource) in self.served() {
            let group = &resource.kind.api.group;
            for rule in RULES.iter().filter(|rule| rule.groups.contains(group)) {
                found.entry(&rule.id).or_default().add_evidence(format!("API group {group}"));
            }
        }
        let features = self.feature_needs(&found, access);
        let components = RULES.iter().filter_map(|rule| {
            let found = found.remove(&*rule.id)?;
            Some(Component {
                id: rule.id.clone(),
                name: rule.name.clone(),
                version: found.version,
                namespaces: found.namespaces.into_iter().collect(),
                health: found.health.unwrap_or(HealthState::Unknown),
                evidence: found.evidence.into_iter().collect(),
            })
        });
        ComponentList {
            components: components.collect(),
            features,
            partial: self.partial(&Query::default(), access),
        }
    }

    fn is_workload(&self, entry: &Entry) -> bool {
        let api = self.api(entry);
        api.group == "apps" && WORKLOADS.contains(&&*api.kind)
    }
}

impl ComponentRule {
    fn is_essential(&self, image: &str) -> bool {
        self.essential.is_empty() || self.essential.iter().any(|name| is_named(image, name))
    }
}

impl FoundComponent {
    fn add_evidence(&mut self, text: String) {
        if self.evidence.len() < MAX_EVIDENCE {
            self.evidence.insert(text);
        }
    }
}

/// Splits an image into its path and its tag.
fn parts(image: &str) -> (&str, Option<&str>) {
    let image = image.split_once('@').map_or(image, |(image, _)| image);
    match image.rsplit_once(':') {
        // A colon before a slash is that of a port.
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (image, None),
    }
}

/// Returns whether the path of an image ends with a name.
fn is_named(image: &str, name: &str) -> bool {
    let (path, _) = parts(image);
    path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
}

/// Returns the version of an image, if its tag is one, also after a word: `alpine-v17.5.0`.
fn version(image: &str) -> Option<&str> {
    let tag = parts(image).1?;
    let is_version =
        |text: &str| text.trim_start_matches('v').starts_with(|first: char| first.is_ascii_digit());
    if is_version(tag) {
        return Some(tag);
    }
    let after_word = tag.split_once('-').map(|(_, rest)| rest);
    after_word.filter(|rest| is_version(rest) && rest.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_sorted_and_have_evidence() {
        assert!(
            RULES.is_sorted_by(|a, b| a.id.replace('-', "") < b.id.replace('-', "")),
            "in order of their ids"
        );
        assert!(RULES.iter().all(|rule| !(rule.images.is_empty() && rule.groups.is_empty())));
        assert!(RULES.iter().all(|rule| rule.essential.iter().all(|name| rule.images.contains(name))));
    }

    #[test]
    fn image_has_a_name_and_a_version() {
        for (image, name, expected) in [
            ("quay.io/jetstack/cert-manager-controller:v1.15.0", "jetstack/cert-manager-controller", true),
            ("registry:5000/traefik", "traefik", true),
            ("traefik:v3.1", "traefik", true),
            ("example.com/eviltraefik:v3.1", "traefik", false),
            ("quay.io/prometheus/prometheus@sha256:abc", "prometheus/prometheus", true),
            ("quay.io/prometheus/prometheus-config", "prometheus/prometheus", false),
        ] {
            assert_eq!(is_named(image, name), expected, "{image}");
        }
        for (image, expected) in [
            ("a/b:v1.15.0", Some("v1.15.0")),
            ("a/b:2.5", Some("2.5")),
            ("a/b:latest", None),
            ("registry:5000/b", None),
            ("a/b:1.2@sha256:abc", Some("1.2")),
            ("a/b", None),
            ("a/b:alpine-v17.5.0", Some("v17.5.0")),
            ("a/b:stable-2.14.10", Some("2.14.10")),
            ("a/b:sha-1234abc", None),
        ] {
            assert_eq!(version(image), expected, "{image}");
        }
    }
}
