//! The service `audit`: the audit events of the cluster, from the ring that the webhook fills.
//!
//! kas adds the callers of requests through kas, and decides who may read. The scope of the agent limits the events to its namespaces,
//! and the policy of the cluster's owner may refuse the service.
#![warn(missing_docs)]

mod check;
mod definition;
mod health;
mod parameters;
mod stream;
mod webhook;

use std::sync::Arc;

use agentk_core::{
    policy::ScopeEnforcer,
    services::{
        KubernetesService, RequestHandler, ServiceError,
        caller_permits::{CallerPermits, NoPermit},
        response::{JSON_LINES, bad_request, stream_response, wrong_method},
    },
};
use cluster_audit::RingView;
use http::{Method, Request, Response};
use proto::{Reason, audit::EVENTS_PATH, impersonation::Identity};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tunnel::Body;

pub use self::definition::DEFINITION;
use self::{parameters::Parameters, stream::EventStream};

/// The most responses at the same time. One caller has half of them at most.
const MAX_READERS: usize = 16;

/// Serves callers. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct AuditHandler {
    ring: RingView,
    /// The scope of `--namespaces` and of the agent's configuration.
    scope: Option<Arc<ScopeEnforcer>>,
    kubernetes: KubernetesService,
    readers: CallerPermits,
    /// Cancelled when agentk stops.
    stopping: CancellationToken,
}

impl AuditHandler {
    /// Returns a handler of the events of a ring. Responses that follow end with `stopping`: a stream that goes on would be a request in
    /// flight, for which agentk waits when it stops.
    pub(crate) fn new(
        ring: RingView,
        scope: Option<Arc<ScopeEnforcer>>,
        kubernetes: KubernetesService,
        stopping: CancellationToken,
    ) -> Self {
        Self { ring, scope, kubernetes, readers: CallerPermits::new(MAX_READERS), stopping }
    }
}

impl RequestHandler for AuditHandler {
    async fn handle(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        let path = request.uri().path();
        // `/agents/<agent>/audit` has the path `/`.
        if path != EVENTS_PATH && path != "/" {
            let what = format!("agentk has no path {path} for the audit log; it has {EVENTS_PATH}");
            return Err(ServiceError::new(Reason::UnknownPath, what));
        }
        if request.method() != Method::GET {
            return Err(wrong_method(EVENTS_PATH, "GET, HEAD"));
        }
        let parameters = Parameters::parse(request.uri().query().unwrap_or_default());
        let parameters = parameters.map_err(|error| bad_request(&error.to_string()))?;
        let caller = Identity::of_request(request.headers());
        let permit = self.readers.try_acquire(caller).map_err(|reason| {
            let what = match reason {
                NoPermit::All => format!("{MAX_READERS} callers read the audit log, which is the most"),
                NoPermit::Share(share) => format!(
                    "this caller has its share of the readers that other callers leave, which is {share} now"
                ),
            };
            ServiceError::new(Reason::TooManyRequests, what)
        })?;
        let stream = EventStream {
            changes: self.ring.changes(),
            cursor: parameters.cursor(self.ring.clone()),
            filter: Arc::new(parameters.filter),
            scope: self.scope.clone(),
            own_user: self.kubernetes.service_account().await,
            left: parameters.limit,
            follows: parameters.follows,
            // At once: a caller that loses the connection before the first event continues there.
            alive_at: Instant::now(),
            stopping: self.stopping.clone(),
            _permit: permit,
        };
        Ok(stream_response(JSON_LINES, stream.into_lines()))
    }
}

#[cfg(test)]
mod tests;
