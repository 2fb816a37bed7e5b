//! Requests to Prometheus servers in an agent's cluster.

use ::promql::is_query;
use access::ErrorDialect;
use http::{Method, Uri};
use proto::ServiceName;

use crate::request_types::{Operation, RequestType, asks_for_stream};

/// The types `prometheus` and `prometheus.<name>`.
#[derive(Debug)]
pub(super) struct Prometheus;

impl RequestType for Prometheus {
    fn name(&self) -> &'static str {
        ServiceName::PROMETHEUS
    }

    fn serves(&self, service: &ServiceName) -> bool {
        service.is_prometheus()
    }

    fn dialect(&self) -> ErrorDialect {
        ErrorDialect::Prometheus
    }

    fn is_streaming(&self, path: &str, query: &str) -> bool {
        // Notifications are server-sent events.
        path == "/api/v1/notifications/live" || asks_for_stream(query)
    }

    fn operation(&self, method: &Method, uri: &Uri) -> Operation {
        let by_method = Operation::of_method(method);
        // PromQL in a form is a read, which Grafana sends as POST.
        let changes = by_method.changes && !is_query(method, uri.path());
        Operation { changes, ..by_method }
    }
}
