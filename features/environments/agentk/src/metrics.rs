//! The metrics of managed resources.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use proto::{
    Reason,
    provision::{Deletion, ObjectChange, ProvisionedObject},
};
use telemetry::{CounterByLabel, RegistryExt as _};

/// The results of a request.
const RESULTS: [&str; 3] = ["ok", "refused", "unavailable"];

/// The counters of managed resources. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ProvisionMetrics {
    requests: Family<RequestLabels, Counter>,
    objects: CounterByLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    operation: &'static str,
    result: &'static str,
}

impl ProvisionMetrics {
    /// Returns registered metrics.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: registry.create(
                "agentk_provision_requests",
                "Environments whose objects were made or deleted, by operation and result",
            ),
            objects: registry.counters(
                "agentk_provision_objects",
                "Objects of environments, by what was done with them",
                "change",
                ["created", "updated", "unchanged", "deleted", "kept"],
            ),
        };
        // All exist from the start: the rate of a series misses the event with which it begins.
        for (operation, result) in
            ["ensure", "delete"].into_iter().flat_map(|operation| RESULTS.map(|result| (operation, result)))
        {
            drop(metrics.requests.get_or_create(&RequestLabels { operation, result }));
        }
        let unmanaged = RequestLabels { operation: "ensure", result: "unmanaged" };
        drop(metrics.requests.get_or_create(&unmanaged));
        metrics
    }

    /// Counts a request that may change something, with the reason of its error.
    pub(super) fn count_request(&self, operation: &'static str, error: Option<Reason>) {
        let result = match error {
            None => "ok",
            Some(Reason::EnvironmentNotReady) => "unavailable",
            Some(Reason::EnvironmentUnmanaged) => "unmanaged",
            Some(_) => "refused",
        };
        self.requests.get_or_create(&RequestLabels { operation, result }).inc();
    }

    /// Counts the objects of an environment that exist.
    pub(super) fn count(&self, objects: &[ProvisionedObject]) {
        for object in objects {
            let change = match object.change {
                ObjectChange::Created => "created",
                ObjectChange::Updated => "updated",
                ObjectChange::Unchanged => "unchanged",
            };
            self.objects.get(change).inc();
        }
    }

    /// Counts the objects of an environment that has stopped.
    pub(super) fn count_deletion(&self, deletion: &Deletion) {
        for (change, number) in [("deleted", deletion.deleted.len()), ("kept", deletion.kept.len())] {
            self.objects.get(change).inc_by(number as u64);
        }
    }
}
