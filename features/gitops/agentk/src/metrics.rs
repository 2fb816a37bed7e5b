//! The metrics of GitOps. Only the pod that leads has series of projects.

use std::{fmt, sync::Arc, time::Duration};

use gitops_engine::Outcome;
use http::Request;
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeLabelSet},
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use request_info::{DecodedPath, RequestInfo};
use telemetry::{HistogramFamily, Label, RegistryExt as _, encode_gauge, encode_gauges};

use super::Gitops;

/// The buckets of syncs, in seconds.
const SYNC_TIMES: [f64; 8] = [0.05, 0.2, 1.0, 5.0, 20.0, 60.0, 300.0, 1800.0];
/// The actions of a sync on objects.
const ACTIONS: [&str; 4] = ["applied", "pruned", "kept", "failed"];
/// The results of a sync.
const RESULTS: [&str; 3] = ["ok", "failed", "stopped"];

telemetry::metrics! {
    /// The counters of syncs. Cheap to clone. The number of label values is bounded by that of projects, which is 100.
    pub(crate) struct GitopsMetrics {
        syncs: Family<SyncLabels, Counter> = create("agentk_gitops_syncs", "Syncs by project and result"),
        durations: HistogramFamily<Label<String>> =
            histograms("agentk_gitops_sync", "Durations of syncs", &SYNC_TIMES),
        objects: Family<ObjectLabels, Counter> = create(
            "agentk_gitops_objects",
            "Objects that syncs have changed, kept although they left Git, or failed to change",
        ),
        reverts: Family<Label<String>, Counter> =
            create("agentk_gitops_reverts", "Syncs that reverted changes by others"),
        requests: Family<ClusterRequestLabels, Counter> = create(
            "agentk_gitops_requests",
            "Requests of GitOps to the API of the cluster, each attempt and each page of a list",
        ),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SyncLabels {
    project: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObjectLabels {
    project: String,
    action: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterRequestLabels {
    verb: &'static str,
    dry_run: &'static str,
}

impl GitopsMetrics {
    /// Registers the states of the projects.
    pub(crate) fn register_states(registry: &mut Registry, gitops: &Arc<Gitops>) {
        let gitops = Arc::downgrade(gitops);
        registry.collect(move |encoder| match gitops.upgrade() {
            Some(gitops) => encode_states(encoder, &gitops),
            None => Ok(()),
        });
    }

    /// Counts a request to the API of the cluster.
    pub(super) fn count_request<B>(&self, request: &Request<B>) {
        let query = request.uri().query();
        let decoded = DecodedPath::new(request.uri());
        let info =
            decoded.as_ref().ok().and_then(|path| RequestInfo::new(request.method(), path, query).ok());
        let tries = query.is_some_and(|query| query.split('&').any(|pair| pair.starts_with("dryRun=")));
        let verb = info.map_or("unknown", |info| info.verb);
        let labels = ClusterRequestLabels { verb, dry_run: if tries { "true" } else { "false" } };
        self.requests.get_or_create(&labels).inc();
    }

    /// Records a sync.
    pub(super) fn record(&self, project: &str, outcome: &Outcome, took: Duration) {
        use proto::gitops::ProjectState;

        let result = match (outcome.stopped, outcome.state) {
            (Some(_), _) => "stopped",
            (None, ProjectState::Failed | ProjectState::InventoryLost) => "failed",
            (None, _) => "ok",
        };
        for each in RESULTS {
            let label = SyncLabels { project: project.to_owned(), result: each };
            // All exist from the start: the rate of a series misses the event with which it begins.
            self.syncs.get_or_create(&label).inc_by(u64::from(each == result));
        }
        let label = [("project", project.to_owned())];
        self.durations.get_or_create(&label).observe(took);
        self.reverts.get_or_create(&label).inc_by(u64::from(outcome.reverted > 0));
        let objects = outcome.objects;
        let counts = [objects.applied, objects.pruned, objects.kept, objects.failed];
        for (action, count) in ACTIONS.into_iter().zip(counts) {
            let label = ObjectLabels { project: project.to_owned(), action };
            self.objects.get_or_create(&label).inc_by(count.into());
        }
    }

    /// Removes the series of a project, so that the names of former projects do not accumulate.
    pub(super) fn forget(&self, project: &str) {
        let label = [("project", project.to_owned())];
        self.durations.remove(&label);
        self.reverts.remove(&label);
        for result in RESULTS {
            self.syncs.remove(&SyncLabels { project: project.to_owned(), result });
        }
        for action in ACTIONS {
            self.objects.remove(&ObjectLabels { project: project.to_owned(), action });
        }
    }
}

impl Default for GitopsMetrics {
    fn default() -> Self {
        Self::register(&mut Registry::default())
    }
}

fn encode_states(encoder: &mut DescriptorEncoder<'_>, gitops: &Gitops) -> fmt::Result {
    let leads = gitops.leader.is_leading();
    let help = "1 if this pod leads GitOps, else 0";
    encode_gauge(encoder, "agentk_gitops_leader", help, leads.into())?;
    let help = "1 if no pod leads GitOps, as far as this pod knows, else 0";
    let is_unattended = gitops.leader.unattended().is_some();
    encode_gauge(encoder, "agentk_gitops_unattended", help, is_unattended.into())?;
    let projects: Vec<_> =
        if leads { gitops.projects.lock().values().cloned().collect() } else { Vec::new() };
    let states = projects.iter().filter(|project| !project.is_gone());
    let states =
        states.map(|project| ([("project", &*project.id), ("state", project.status().state.as_str())], 1));
    encode_gauges(
        encoder,
        "agentk_gitops_project_state",
        "1 for the state of each project, in the pod that leads",
        states,
    )
}

#[cfg(test)]
mod tests {
    use proto::gitops::{ObjectCounts, ProjectState};
    use telemetry::ExpositionFormat;

    use super::*;

    #[test]
    fn syncs_are_counted_until_their_project_has_gone() {
        let mut registry = Registry::default();
        let metrics = GitopsMetrics::register(&mut registry);
        let outcome = Outcome {
            state: ProjectState::Synced,
            objects: ObjectCounts { applied: 2, pruned: 1, ..ObjectCounts::default() },
            reverted: 1,
            ..Outcome::default()
        };
        metrics.record("group/app", &outcome, Duration::from_millis(100));
        let text = ExpositionFormat::OpenMetrics.render(&registry);
        for expected in [
            r#"agentk_gitops_syncs_total{project="group/app",result="ok"} 1"#,
            r#"agentk_gitops_syncs_total{project="group/app",result="failed"} 0"#,
            r#"agentk_gitops_objects_total{project="group/app",action="applied"} 2"#,
            r#"agentk_gitops_reverts_total{project="group/app"} 1"#,
            r#"agentk_gitops_sync_seconds_count{project="group/app"} 1"#,
        ] {
            assert!(text.contains(expected), "{text}");
        }
        metrics.forget("group/app");
        assert!(!ExpositionFormat::OpenMetrics.render(&registry).contains("group/app"));
    }

    #[test]
    fn requests_are_counted_by_their_verbs() {
        let mut registry = Registry::default();
        let metrics = GitopsMetrics::register(&mut registry);
        for (method, uri) in [
            ("GET", "/api/v1/configmaps?labelSelector=a&limit=500"),
            ("GET", "/api/v1/configmaps?watch=true"),
            ("GET", "/api/v1/namespaces/shop/configmaps/a"),
            ("PATCH", "/api/v1/namespaces/shop/configmaps/a?dryRun=All&force=true"),
            ("PATCH", "/api/v1/namespaces/shop/configmaps/a?force=true"),
            ("PATCH", "/api/v1/namespaces/shop/configmaps/b?force=true"),
        ] {
            metrics.count_request(&Request::builder().method(method).uri(uri).body(()).unwrap());
        }
        let text = ExpositionFormat::OpenMetrics.render(&registry);
        for expected in [
            r#"agentk_gitops_requests_total{verb="list",dry_run="false"} 1"#,
            r#"agentk_gitops_requests_total{verb="watch",dry_run="false"} 1"#,
            r#"agentk_gitops_requests_total{verb="get",dry_run="false"} 1"#,
            r#"agentk_gitops_requests_total{verb="patch",dry_run="true"} 1"#,
            r#"agentk_gitops_requests_total{verb="patch",dry_run="false"} 2"#,
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }
}
