//! Requests to Prometheus servers in an agent's cluster.

use ::promql::{Labels, enforce, is_query};
use access::{ErrorDialect, RequestError};
use futures_util::future::BoxFuture;
use http::{Method, Request, Uri};
use proto::ServiceName;
use tunnel::Body;

use crate::{
    request_hooks::AuthorizedRequest,
    request_types::{Operation, RequestType, asks_for_stream},
};

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

    fn restricts(&self, authorized: AuthorizedRequest<'_>) -> bool {
        labels(authorized).is_some()
    }

    fn restrict<'a>(
        &'a self,
        authorized: AuthorizedRequest<'a>,
        request: Request<Body>,
        max_form: usize,
    ) -> BoxFuture<'a, Result<Request<Body>, RequestError>> {
        Box::pin(async move {
            let Some(labels) = labels(authorized) else { return Ok(request) };
            Ok(enforce(labels, request, max_form).await?.map(Body::from))
        })
    }

    fn operation(&self, method: &Method, uri: &Uri) -> Operation {
        let by_method = Operation::of_method(method);
        // PromQL in a form is a read, which Grafana sends as POST.
        let changes = by_method.changes && !is_query(method, uri.path());
        Operation { changes, ..by_method }
    }
}

/// Returns the labels of the series that the caller may see, if it may not see all.
fn labels<'a>(authorized: AuthorizedRequest<'a>) -> Option<&'a Labels> {
    authorized.grant.caller.labels(&authorized.destination.service)
}
