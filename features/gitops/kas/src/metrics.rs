//! The metrics of manifests from Git. Labels have few values: repositories and agents are not among them.

use prometheus_client::metrics::counter::Counter;
use telemetry::CounterByLabel;

telemetry::metrics! {
    /// The metrics. Cheap to clone.
    pub(super) struct GitopsMetrics {
        renders: CounterByLabel = counters(
            "kas_gitops_renders",
            "Directories for kustomize and helm, by result",
            "result",
            ["rendered", "refused", "failed", "network-not-isolated"],
        ),
        commit_statuses: CounterByLabel = counters(
            "kas_gitops_commit_statuses",
            "Statuses of commits for GitLab, by result",
            "result",
            ["sent", "refused", "failed", "dropped"],
        ),
        merge_request_previews: CounterByLabel = counters(
            "kas_gitops_merge_request_previews",
            "Previews of merge requests for GitLab, by result",
            "result",
            ["created", "updated", "unchanged", "fork", "refused", "failed"],
        ),
        looks: CounterByLabel = counters(
            "kas_gitops_looks",
            "Looks at repositories with manifests, by result",
            "result",
            ["changed", "unchanged", "shared", "failed"],
        ),
        pub(super) delayed_looks: Counter = create(
            "kas_gitops_delayed_looks",
            "Looks at repositories that waited because of the limit of their server",
        ),
    }
}

impl GitopsMetrics {
    /// Counts a status of a commit.
    pub(super) fn count_commit_status(&self, result: &'static str) {
        self.commit_statuses.get(result).inc();
    }

    /// Counts a preview of a merge request.
    pub(super) fn count_merge_request_preview(&self, result: &'static str) {
        self.merge_request_previews.get(result).inc();
    }

    /// Counts a directory that was to be rendered.
    pub(super) fn count_render(&self, result: &'static str) {
        self.renders.get(result).inc();
    }

    /// Counts a look at a repository.
    pub(super) fn count_look(&self, result: &'static str) {
        self.looks.get(result).inc();
    }
}
