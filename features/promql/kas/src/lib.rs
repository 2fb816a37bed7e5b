//! Requests to Prometheus servers in an agent's cluster.
#![warn(missing_docs)]

mod feature;

use std::{sync::Arc, time::Duration};

use ::promql::{Labels, QueryError, enforce, is_query};
use access::{ErrorDialect, RequestError};
use futures_util::future::BoxFuture;
use http::{Method, Request, Uri};
use moka::sync::Cache;
use proto::ServiceName;
use request_info::prometheus::{NOTIFICATIONS_PATH, SeriesLabels};
use tunnel::Body;

pub use self::feature::PromqlFeature;
use kas_core::{
    request_hooks::AuthorizedRequest,
    request_types::{RequestOperation, RequestType, asks_for_stream},
};

/// The labels of callers whose matchers are kept. Each has a compiled regular expression.
const MAX_LABELS: u64 = 1_000;
/// The time after the last request for which they are kept.
const IDLE_TIME: Duration = Duration::from_secs(600);

/// The types `prometheus` and `prometheus.<name>`.
#[derive(Debug)]
struct Prometheus {
    matchers: Cache<SeriesLabels, Arc<Labels>>,
}

impl Default for Prometheus {
    fn default() -> Self {
        Self { matchers: Cache::builder().max_capacity(MAX_LABELS).time_to_idle(IDLE_TIME).build() }
    }
}

impl Prometheus {
    /// Returns the matchers of these labels. To compile them takes as long as to rewrite a query with them.
    fn matchers(&self, labels: &SeriesLabels) -> Result<Arc<Labels>, QueryError> {
        if let Some(known) = self.matchers.get(labels) {
            return Ok(known);
        }
        let compiled = Arc::new(Labels::new(labels)?);
        self.matchers.insert(labels.clone(), Arc::clone(&compiled));
        Ok(compiled)
    }
}

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
        path == NOTIFICATIONS_PATH || asks_for_stream(query)
    }

    fn is_watch(&self, _method: &Method, uri: &Uri) -> bool {
        uri.path() == NOTIFICATIONS_PATH
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
            let labels = self.matchers(labels).map_err(refusal)?;
            let restricted = enforce(&labels, request, max_form).await;
            Ok(restricted.map_err(refusal)?.map(Body::from))
        })
    }

    fn operation(&self, method: &Method, uri: &Uri) -> RequestOperation {
        let by_method = RequestOperation::of_method(method);
        // PromQL in a form is a read, which Grafana sends as POST.
        let changes = by_method.changes && !is_query(method, uri.path());
        RequestOperation { changes, ..by_method }
    }
}

/// Returns the labels of the series that the caller may see, if it may not see all.
fn labels<'a>(authorized: AuthorizedRequest<'a>) -> Option<&'a SeriesLabels> {
    authorized.grant.caller.labels(&authorized.destination.service)
}

/// Returns the error for the caller: that with which kas has failed the body of the request, or the reason why its query is not sent.
fn refusal(error: QueryError) -> RequestError {
    let of_body = error.body.and_then(|body| body.downcast_ref().and_then(RequestError::of_body));
    of_body.unwrap_or_else(|| RequestError::new(error.reason, error.message))
}
