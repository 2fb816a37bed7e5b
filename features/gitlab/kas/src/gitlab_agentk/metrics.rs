//! The metrics of GitLab's agentk.

use prometheus_client::metrics::{counter::Counter, family::Family};
use tonic::Code;

telemetry::metrics! {
    /// Counts the calls of GitLab's agentk.
    pub(super) struct RpcMetrics {
        calls: Family<[(&'static str, String); 2], Counter> = create(
            "kas_gitlab_agentk_calls",
            "Calls of GitLab's agentk by their method and the code of gRPC with which they ended, or began for streams",
        ),
        violations: Counter =
            create("kas_gitlab_agentk_violations", "Requests for which GitLab's agentk broke the protocol"),
    }
}

impl RpcMetrics {
    /// Counts a call. The name of a method that kas does not have is not a label.
    pub(super) fn count_call(&self, method: &'static str, code: Code) {
        self.calls.get_or_create(&[("method", method.to_owned()), ("code", format!("{code:?}"))]).inc();
    }

    pub(super) fn count_violation(&self) {
        self.violations.inc();
    }
}
