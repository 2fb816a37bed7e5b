//! The metrics of manifests from Git. Labels have few values: repositories and agents are not among them.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// The values of the label `result` of `kas_gitops_looks_total`.
const LOOK_RESULTS: [&str; 4] = ["changed", "unchanged", "shared", "failed"];

/// The values of the label `result` of `kas_gitops_commit_statuses_total`.
const STATUS_RESULTS: [&str; 4] = ["sent", "refused", "failed", "dropped"];

/// The values of the label `result` of `kas_gitops_renders_total`.
const RENDER_RESULTS: [&str; 4] = ["rendered", "refused", "failed", "network-not-isolated"];

/// The metrics. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct GitopsMetrics {
    looks: Family<ResultLabel, Counter>,
    renders: Family<ResultLabel, Counter>,
    commit_statuses: Family<ResultLabel, Counter>,
    /// Looks that waited because of the limit of their server.
    pub(super) delayed_looks: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl GitopsMetrics {
    /// Returns registered metrics.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        // All exist from the start: the rate of a series misses the event with which it begins.
        for result in LOOK_RESULTS {
            drop(metrics.looks.get_or_create(&ResultLabel { result }));
        }
        for result in STATUS_RESULTS {
            drop(metrics.commit_statuses.get_or_create(&ResultLabel { result }));
        }
        for result in RENDER_RESULTS {
            drop(metrics.renders.get_or_create(&ResultLabel { result }));
        }
        let help = "Directories for kustomize and helm, by result";
        registry.register("kas_gitops_renders", help, metrics.renders.clone());
        let help = "Statuses of commits for GitLab, by result";
        registry.register("kas_gitops_commit_statuses", help, metrics.commit_statuses.clone());
        let help = "Looks at repositories with manifests, by result";
        registry.register("kas_gitops_looks", help, metrics.looks.clone());
        let help = "Looks at repositories that waited because of the limit of their server";
        registry.register("kas_gitops_delayed_looks", help, metrics.delayed_looks.clone());
        metrics
    }

    /// Counts a status of a commit.
    pub(super) fn count_commit_status(&self, result: &'static str) {
        debug_assert!(STATUS_RESULTS.contains(&result), "{result} has no series from the start");
        self.commit_statuses.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts a directory that was to be rendered.
    pub(super) fn count_render(&self, result: &'static str) {
        debug_assert!(RENDER_RESULTS.contains(&result), "{result} has no series from the start");
        self.renders.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts a look at a repository.
    pub(super) fn count_look(&self, result: &'static str) {
        debug_assert!(LOOK_RESULTS.contains(&result), "{result} has no series from the start");
        self.looks.get_or_create(&ResultLabel { result }).inc();
    }
}
