//! The cluster for which charts are rendered.

use crate::{
    FileTree,
    plan::{Job, Tool},
};

/// The longest version of Kubernetes.
const MAX_VERSION: usize = 64;

/// The cluster for which charts are rendered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetCluster {
    pub(crate) version: Option<String>,
    pub(crate) api_versions: Vec<String>,
    /// API groups whose versions are not known, because their server does not respond.
    unavailable: Vec<String>,
    /// The agentk of the cluster runs hooks.
    pub(crate) hooks: bool,
}

impl TargetCluster {
    /// Returns a cluster of which nothing is known.
    pub fn unknown() -> &'static Self {
        static UNKNOWN: TargetCluster =
            TargetCluster { version: None, api_versions: Vec::new(), unavailable: Vec::new(), hooks: false };
        &UNKNOWN
    }

    /// Returns a cluster with a version of Kubernetes, and with its API versions as `group/version` and `group/version/Kind`. Texts that
    /// are not such are left out: they become arguments of helm.
    pub fn new(version: Option<String>, api_versions: Vec<String>, unavailable: Vec<String>) -> Self {
        let version = version.filter(|text| is_word(text, "+") && text.len() <= MAX_VERSION);
        let mut api_versions: Vec<_> = api_versions.into_iter().filter(|text| is_word(text, "/")).collect();
        api_versions.sort_unstable();
        api_versions.dedup();
        Self { version, api_versions, unavailable, hooks: false }
    }

    /// Sets whether charts are rendered with their hooks.
    pub fn with_hooks(self, hooks: bool) -> Self {
        Self { hooks, ..self }
    }

    /// Returns an API group that a chart names, and whose versions are not known.
    pub(crate) fn unavailable_group(&self, job: &Job, tree: &FileTree) -> Option<&str> {
        let names =
            |group: &str| tree.values().any(|content| String::from_utf8_lossy(content).contains(group));
        let groups = self.unavailable.iter().map(String::as_str).filter(|group| !group.is_empty());
        groups.filter(|_| job.tool == Tool::Helm).find(|group| names(group))
    }
}

/// Returns whether a text consists of letters, digits, `.`, `-` and further characters, and begins with a letter or a digit.
fn is_word(text: &str, further: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-') || further.contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_that_names_a_group_without_a_server_is_not_rendered() {
        let cluster = TargetCluster::new(None, Vec::new(), vec!["metrics.k8s.io".to_owned()]);
        let tree = |text: &str| FileTree::from([("shop/templates/a.yaml".to_owned(), text.into())]);
        let job = |tool: Tool| Job { tool, directory: "shop".to_owned() };
        let asks = tree("{{ if .Capabilities.APIVersions.Has \"metrics.k8s.io/v1beta1\" }}");
        assert_eq!(cluster.unavailable_group(&job(Tool::Helm), &asks), Some("metrics.k8s.io"));
        assert_eq!(cluster.unavailable_group(&job(Tool::Kustomize), &asks), None);
        assert_eq!(cluster.unavailable_group(&job(Tool::Helm), &tree("a: b")), None);
    }

    #[test]
    fn cluster_has_no_text_that_helm_could_misread() {
        let version = |text: &str| TargetCluster::new(Some(text.to_owned()), Vec::new(), Vec::new()).version;
        for text in ["v1.37.0", "v1.30.3-gke.100", "v1.31.2+k3s1", "1.29.0"] {
            assert_eq!(version(text).as_deref(), Some(text));
        }
        for text in ["--set", "v1,v2", "v1 2", "", "v1\n"] {
            assert_eq!(version(text), None, "{text}");
        }
        let known = ["v1", "apps/v1", "apps/v1", "apps/v1/Deployment", "a,b/v1", "--x", ""];
        let cluster = TargetCluster::new(None, known.map(str::to_owned).into(), Vec::new());
        assert_eq!(cluster.api_versions, ["apps/v1", "apps/v1/Deployment", "v1"]);
    }
}
