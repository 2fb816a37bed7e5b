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

/// The results of a request.
const RESULTS: [&str; 3] = ["ok", "refused", "unavailable"];
/// What may be done with an object.
const CHANGES: [&str; 5] = ["created", "updated", "unchanged", "deleted", "kept"];

/// The counters of managed resources. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProvisionMetrics {
    requests: Family<RequestLabels, Counter>,
    objects: Family<ObjectLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    operation: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObjectLabels {
    change: &'static str,
}

impl ProvisionMetrics {
    /// Returns registered metrics.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        // All exist from the start: the rate of a series misses the event with which it begins.
        for (operation, result) in
            ["ensure", "delete"].into_iter().flat_map(|operation| RESULTS.map(|result| (operation, result)))
        {
            drop(metrics.requests.get_or_create(&RequestLabels { operation, result }));
        }
        let unmanaged = RequestLabels { operation: "ensure", result: "unmanaged" };
        drop(metrics.requests.get_or_create(&unmanaged));
        for change in CHANGES {
            drop(metrics.objects.get_or_create(&ObjectLabels { change }));
        }
        let help = "Environments whose objects were made or deleted, by operation and result";
        registry.register("agentk_provision_requests", help, metrics.requests.clone());
        let help = "Objects of environments, by what was done with them";
        registry.register("agentk_provision_objects", help, metrics.objects.clone());
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
            self.objects.get_or_create(&ObjectLabels { change }).inc();
        }
    }

    /// Counts the objects of an environment that has stopped.
    pub(super) fn count_deletion(&self, deletion: &Deletion) {
        for (change, number) in [("deleted", deletion.deleted.len()), ("kept", deletion.kept.len())] {
            self.objects.get_or_create(&ObjectLabels { change }).inc_by(number as u64);
        }
    }
}
