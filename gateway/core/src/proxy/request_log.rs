//! The facts of a request for all that observe it: its span, its line of the audit log, the observers of features, metrics, the log of kas.
//!
//! ```text
//!   new: head ─► authorized ─► sent ─► answered, or refused ─► dropped: end of the response
//! ```
//!
//! Records of requests to the API of clusters, for their audit logs, are made by a hook (`ClusterAudit`) from the same facts.

use std::{
    net::IpAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::SystemTime,
};

use access::{CallerNames, RequestError};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, request::Parts};
use parking_lot::Mutex;
use process::LogLimiter;
use proto::Reason;
use telemetry::TraceId;
use tokio::time::Instant;
use tracing::field::display;

use super::Access;
use crate::{
    audit::{AuditLog, AuditRecord, AuditedAccess, ByteCounts, NewRequest},
    metrics::{Metrics, ServiceMetrics},
    request_hooks::{AuthorizedRequest, Hop, ObservedRequest, RequestObserver, RequestResult},
    request_types::RequestTypes,
    timing::RequestTiming,
    traces::{RequestTrace, Traces},
};

/// The readers of the facts of all requests.
#[derive(Debug)]
pub struct RequestObservers {
    /// The metrics of this replica.
    pub metrics: Metrics,
    /// The tracing of requests, if it is enabled.
    pub traces: Option<Traces>,
    /// The audit log, if it is configured.
    pub audit: Arc<OnceLock<AuditLog>>,
    /// The features that see each request.
    pub features: Vec<Arc<dyn RequestObserver>>,
    /// Limits the log lines of failed requests.
    pub log_limit: LogLimiter<Reason>,
}

/// The facts of one request, from its head to the end of its response.
#[derive(Debug)]
pub(super) struct RequestLog {
    /// Identifies the request in the response and in all logs.
    pub(super) id: HeaderValue,
    /// The time at which the head was complete.
    pub(super) started: Instant,
    /// The method of the request.
    pub(super) method: Method,
    /// The address of the caller.
    pub(super) client: IpAddr,
    access: OnceLock<Access>,
    trace: Mutex<RequestTrace>,
    /// The record for the audit log, if there is one. The line is written when it is dropped.
    audit: Option<Box<Mutex<AuditRecord>>>,
    /// The features have seen the request.
    is_observed: AtomicBool,
}

/// Counts the bytes of the bodies of a request, or of the raw streams after an upgrade.
#[derive(Debug)]
pub(super) struct BodyBytes {
    metrics: Arc<ServiceMetrics>,
    audited: Option<Arc<ByteCounts>>,
}

impl BodyBytes {
    /// Counts bytes from the caller.
    pub(super) fn add_request(&self, bytes: usize) {
        self.metrics.request_bytes.inc_by(bytes as u64);
        if let Some(audited) = &self.audited {
            audited.add_request(bytes);
        }
    }

    /// Counts bytes to the caller.
    pub(super) fn add_response(&self, bytes: usize) {
        self.metrics.response_bytes.inc_by(bytes as u64);
        if let Some(audited) = &self.audited {
            audited.add_response(bytes);
        }
    }
}

impl RequestLog {
    /// Begins with the head of a request. `host` is its host, if that names the agent.
    pub(super) fn new(
        observers: &RequestObservers,
        id: HeaderValue,
        client: IpAddr,
        host: Option<&str>,
        head: &Parts,
    ) -> Self {
        let audit = observers.audit.get().map(|log| {
            let request = NewRequest { id: &id, client, method: &head.method, host, uri: &head.uri };
            Box::new(Mutex::new(AuditRecord::new(log, request)))
        });
        Self {
            id,
            started: Instant::now(),
            method: head.method.clone(),
            client,
            access: OnceLock::new(),
            trace: Mutex::default(),
            audit,
            is_observed: AtomicBool::new(false),
        }
    }

    /// Starts the span of the request.
    pub(super) fn start_trace(&self, observers: &RequestObservers, head: &Request<()>) {
        if let Some(traces) = &observers.traces {
            *self.trace.lock() = RequestTrace::start(Some(traces), head, &self.id);
        }
    }

    /// Returns the id of the request's trace, if it is traced.
    pub(super) fn trace_id(&self) -> Option<TraceId> {
        self.trace.lock().id()
    }

    /// Returns the result of the authorization, which is known from [`Self::authorized`] on.
    pub(super) fn access(&self) -> &Access {
        self.access.get().expect("the request is authorized")
    }

    /// Returns the request as features see it, from [`Self::authorized`] on.
    pub(super) fn request(&self) -> AuthorizedRequest<'_> {
        let Access { grant, destination, uri, upgrade, environment, .. } = self.access();
        AuthorizedRequest {
            id: &self.id,
            client: self.client,
            method: &self.method,
            uri,
            upgrade: *upgrade,
            grant,
            destination,
            environment: environment.as_deref(),
        }
    }

    /// Returns the counter of the bytes of the request's bodies.
    pub(super) fn body_bytes(&self, metrics: &Arc<ServiceMetrics>) -> BodyBytes {
        let audited = self.audit.as_ref().map(|record| record.lock().bytes());
        BodyBytes { metrics: Arc::clone(metrics), audited }
    }

    /// Adds the result of the authorization. `login`: GitLab or an issuer was asked for the caller.
    pub(super) fn authorized(&self, types: &RequestTypes, access: Access, login: bool) -> &Access {
        let access = self.access.get_or_init(|| access);
        let Access { grant, destination, uri, upgrade, .. } = access;
        self.trace.lock().set_destination(destination, &self.method);
        self.audit(|record| {
            let operation = types.of(&destination.service).operation(&self.method, uri);
            let (grant, destination) = (Arc::clone(grant), destination.clone());
            let access = AuditedAccess { grant, destination, operation, upgrade: *upgrade, login };
            record.set_access(access, self.trace_id());
        });
        access
    }

    /// Adds the headers of the request to the agent, which get those of the trace.
    pub(super) fn sent(&self, headers: &mut HeaderMap) {
        self.audit(|record| record.set_identity(headers));
        self.trace.lock().inject(headers);
    }

    /// Adds the head of the response, and the receiver of the request. Returns the metrics of the service.
    pub(super) fn answered<'a>(
        &self,
        observers: &'a RequestObservers,
        status: StatusCode,
        timing: &RequestTiming,
        hop: impl FnOnce() -> Option<Hop>,
    ) -> &'a Arc<ServiceMetrics> {
        let Access { grant, destination, uri, .. } = self.access();
        let metrics = observers.metrics.service(&destination.service);
        metrics.observe_head(status, timing);
        self.audit(|record| record.set_response(status));
        tracing::debug!(
            request.id = self.id.to_str().ok(),
            trace_id = self.trace_id().map(display),
            client = %self.client,
            caller = grant.caller.name(),
            user = grant.caller.user,
            agent.name = destination.name.as_ref().map(display),
            service = %destination.service,
            method = %self.method,
            path = uri.path(),
            status = status.as_u16(),
            queue = ?timing.queue,
            tunnel = ?timing.tunnel,
            upstream = ?timing.upstream,
            "request answered"
        );
        self.show(observers, || RequestResult::Answered { status, timing: *timing, hop: hop() });
        metrics
    }

    /// Adds the caller that asks for all of its agents.
    pub(super) fn lists_agents(&self, names: CallerNames) {
        let trace = self.trace_id();
        self.audit(|record| record.set_agent_list(names, trace));
    }

    /// Adds the answer about all agents, which has this number of bytes.
    pub(super) fn listed(&self, bytes: usize) {
        self.audit(|record| {
            record.set_response(StatusCode::OK);
            record.bytes().add_response(bytes);
        });
    }

    /// Adds the head of the response to the span, which ends after its body.
    pub(super) fn trace_response(&self, status: StatusCode, timing: &RequestTiming) {
        self.trace.lock().record_response(status, timing);
    }

    /// Adds the error of kas or of its agent that the caller receives.
    pub(super) fn refused(&self, observers: &RequestObservers, error: &RequestError) {
        let reason = error.reason.as_str();
        self.trace.lock().record_error(error);
        let trace = self.trace_id();
        observers.metrics.count_error(reason);
        self.audit(|record| record.refuse(error, trace));
        self.show(observers, || RequestResult::Refused(error));
        if let Some(suppressed) = observers.log_limit.admit(error.reason, std::time::Instant::now()) {
            let (client, id, trace_id) = (self.client, self.id.to_str().ok(), trace.map(display));
            tracing::info!(%client, request.id = id, trace_id, reason, suppressed, %error, "request failed");
        }
    }

    fn audit(&self, add: impl FnOnce(&mut AuditRecord)) {
        if let Some(record) = &self.audit {
            add(&mut record.lock());
        }
    }

    /// Shows the request to features, with the first response that begins.
    fn show<'a>(&'a self, observers: &RequestObservers, result: impl FnOnce() -> RequestResult<'a>) {
        if observers.features.is_empty() || self.is_observed.swap(true, Relaxed) {
            return;
        }
        let request = ObservedRequest {
            time: SystemTime::now() - self.started.elapsed(),
            id: &self.id,
            method: &self.method,
            access: self.access.get().map(|access| (&access.grant, &access.destination)),
            result: result(),
        };
        for feature in &observers.features {
            feature.on_result(&request);
        }
    }
}
