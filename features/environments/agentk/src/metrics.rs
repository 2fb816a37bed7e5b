//! The metrics of managed resources.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use proto::{
    Reason,
    provision::{Deletion, ObjectChange, ProvisionedObject},
};
use telemetry::CounterByLabel;

/// The operations and results of requests, each of which has a series from the start.
const REQUESTS: [(&str, &str); 7] = [
    ("ensure", "ok"),
    ("ensure", "refused"),
    ("ensure", "unavailable"),
    ("ensure", "unmanaged"),
    ("delete", "ok"),
    ("delete", "refused"),
    ("delete", "unavailable"),
];

telemetry::metrics! {
    /// The counters of managed resources. Cheap to clone.
    pub(crate) struct ProvisionMetrics {
        requests: Family<RequestLabels, Counter> = series(
            "agentk_provision_requests",
            "Environments whose objects were made or deleted, by operation and result",
            REQUESTS.map(|(operation, result)| RequestLabels { operation, result }),
        ),
        objects: CounterByLabel = counters(
            "agentk_provision_objects",
            "Objects of environments, by what was done with them",
            "change",
            ["created", "updated", "unchanged", "deleted", "kept"],
        ),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    operation: &'static str,
    result: &'static str,
}

impl ProvisionMetrics {
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
