//! The state of a request, from its head to the end of its response.

use std::{
    array, fmt,
    future::pending,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use access::{AccessControl, ErrorFormat, Grant, ManagedEnvironment, RequestError, UrlPathPrefix};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use ipnet::IpNet;
use parking_lot::Mutex;
use process::LogLimiter;
use proto::{Reason, header};
use telemetry::TraceId;
use tokio::time::{Instant, sleep};

use super::{
    CallerBody,
    budget::ResponseBudget,
    connection::{IdleConnections, RequestGuard},
    request_body::RequestBody,
};
use crate::{
    addresses::AddressRules,
    audit::{AuditLog, AuditRecord, ByteCounts, NewRequest},
    config::CallerLimits,
    cors::Cors,
    destination::Destination,
    forward::Forwarder,
    headers::{ExtraHeader, ForwardedFor, PeerAddress},
    hosts::{AgentHosts, Route},
    kill_switch::{KillSwitch, RequestAttributes},
    metrics::Metrics,
    recent::{Recent, RequestRecord},
    request_hooks::{AuthorizedRequest, RequestHooks},
    request_types::RequestTypes,
    tasks::TaskGroup,
    traces::{RequestTrace, Traces},
};

/// Longest request id of a caller that is kept.
const MAX_REQUEST_ID: usize = 64;

/// Serves callers. This is the state that all requests share.
#[derive(Debug)]
pub struct ProxyServer {
    /// Decides which caller may reach which agent, and as whom.
    pub access: AccessControl,
    /// The rules by which requests are disabled.
    pub kill_switch: Arc<KillSwitch>,
    /// The audit log, if it is configured.
    pub audit: Arc<OnceLock<AuditLog>>,
    /// Keeps the last requests for the web page, if kas serves it.
    pub recent: Option<Arc<Recent>>,
    /// Sends a request to its agent.
    pub forwarder: Forwarder,
    /// The types of requests.
    pub request_types: RequestTypes,
    /// The hooks of features.
    pub(crate) hooks: Vec<Box<dyn RequestHooks>>,
    /// Connections and upgrades. Once the group drains, connections close when they are idle.
    pub connections: TaskGroup,
    /// The metrics of this replica.
    pub metrics: Metrics,
    /// Limits the log lines of failed requests.
    pub log_limit: LogLimiter<Reason>,
    /// The tracing of requests, if it is enabled.
    pub traces: Option<Traces>,
    /// The limits of `agent.kubernetes_api.limits`.
    pub limits: CallerLimits,
    /// Closes idle connections.
    pub idle_connections: IdleConnections,
    /// The memory of all responses in flight.
    pub budget: Arc<ResponseBudget>,
    /// The web origins that may send requests.
    pub cors: Cors,
    /// The rules of the listener about addresses.
    pub addresses: AddressRules,
    /// The beginning of the paths of GitLab's kas.
    pub url_path_prefix: UrlPathPrefix,
    /// The host names of agents.
    pub hosts: AgentHosts,
    /// Response headers that the operator allows in addition to the harmless ones.
    pub extra_headers: Vec<ExtraHeader>,
}

/// A request as the layers pass it on. Its body is in the context, so that no layer reads it by mistake.
#[derive(Debug)]
pub(super) struct ProxyRequest {
    pub(super) head: Request<()>,
    pub(super) context: Arc<RequestContext>,
}

/// Facts about a request, from its head to the end of its response.
pub(super) struct RequestContext {
    /// The server that received the request.
    pub(super) server: Arc<ProxyServer>,
    /// Identifies the request in the response and in all logs.
    pub(super) id: HeaderValue,
    /// The time at which the head was complete.
    pub(super) started: Instant,
    /// The method of the request.
    pub(super) method: Method,
    /// The HTTP version between the caller and kas.
    pub(super) version: Version,
    /// The address of the caller, and the proxies in front of kas.
    pub(super) forwarded: ForwardedFor,
    /// The way in which the request names its agent.
    pub(super) route: Route,
    /// The dialect and encoding of an error.
    pub(super) error_format: ErrorFormat,
    /// The span of the request.
    pub(super) trace: Mutex<RequestTrace>,
    /// The record for the audit log, if there is one. The line is written when the context is dropped.
    pub(super) audit: Option<Box<Mutex<AuditRecord>>>,
    /// The record for the web page, if kas serves it, until the response begins.
    pub(super) recent: Option<Box<Mutex<Option<RequestRecord>>>>,
    /// The body of the request.
    pub(super) body: RequestBody,
    /// Counts the request on its connection.
    pub(super) guard: RequestGuard,
}

/// The result of authorization: the rights of the caller, and where its request goes.
#[derive(Debug)]
pub(super) struct Access {
    pub(super) grant: Arc<Grant>,
    pub(super) destination: Destination,
    /// Path and query as the service receives them.
    pub(super) uri: Uri,
    /// The part of the path before that, by which kas serves the agent.
    pub(super) prefix: Box<str>,
    /// The caller asks for an upgrade to another protocol.
    pub(super) upgrade: bool,
    /// The environment whose objects have to exist before.
    pub(super) environment: Option<Arc<ManagedEnvironment>>,
}

/// The future of [`Access::ended`]. It is created once for each request, and watches it from its authorization to its last byte.
pub(super) type AccessEnded = Pin<Box<dyn Future<Output = RequestError> + Send>>;

impl ProxyRequest {
    /// Takes a request over from the HTTP server, or from a part of kas that sends one for a caller, without a body. `proxies` are
    /// those of the listener whose `X-Forwarded-For` is trusted.
    pub(super) fn new(
        server: &Arc<ProxyServer>,
        (peer, proxies): (&PeerAddress, &[IpNet]),
        route: Route,
        guard: RequestGuard,
        request: Request<Option<CallerBody>>,
    ) -> Self {
        let (parts, body) = request.into_parts();
        let id = request_id(&parts.headers);
        let forwarded = ForwardedFor::new(&parts.headers, peer, proxies);
        let audit = server.audit.get().map(|log| {
            let (method, uri) = (&parts.method, &parts.uri);
            let request = NewRequest { id: &id, client: forwarded.client, method, host: route.host(), uri };
            Box::new(Mutex::new(AuditRecord::new(log, request)))
        });
        let recent = server.recent.as_ref();
        let recent = recent.map(|_| Box::new(Mutex::new(Some(RequestRecord::new(&id, &parts.method)))));
        let (types, prefix) = (&server.request_types, &server.url_path_prefix);
        let context = RequestContext {
            server: Arc::clone(server),
            id,
            started: Instant::now(),
            method: parts.method.clone(),
            version: parts.version,
            forwarded,
            error_format: ErrorFormat::new(route.dialect(types, parts.uri.path(), prefix), &parts.headers)
                .with_discovery(route.is_discovery(parts.uri.path(), prefix)),
            route,
            trace: Mutex::default(),
            audit,
            recent,
            body: RequestBody::new(body, parts.headers.contains_key(http::header::EXPECT)),
            guard,
        };
        Self { head: Request::from_parts(parts, ()), context: Arc::new(context) }
    }
}

impl Access {
    /// Returns the request as features see it.
    pub(super) fn authorized<'a>(&'a self, context: &'a RequestContext) -> AuthorizedRequest<'a> {
        AuthorizedRequest {
            id: &context.id,
            client: context.forwarded.client,
            method: &context.method,
            uri: &self.uri,
            upgrade: self.upgrade,
            grant: &self.grant,
            destination: &self.destination,
            environment: self.environment.as_deref(),
        }
    }

    /// Completes when the caller loses its rights, when its token has expired for too long, or when a rule disables the request.
    /// Returns the error for the caller.
    pub(super) fn ended(&self, context: &RequestContext) -> AccessEnded {
        let (server, client) = (Arc::clone(&context.server), context.forwarded.client);
        let (grant, destination) = (Arc::clone(&self.grant), self.destination.clone());
        Box::pin(async move {
            let request = RequestAttributes {
                address: Some(client),
                service: &destination.service,
                agent: Some(destination.attributes()),
                caller: Some(grant.caller.name()),
                user: grant.caller.user.as_deref(),
            };
            tokio::select! {
                () = grant.revoked.cancelled() => revoked(grant.caller.name()),
                () = passed(grant.streams_end) => expired(grant.caller.name()),
                error = server.kill_switch.disabled(request) => error,
            }
        })
    }
}

impl RequestContext {
    /// Adds a fact to the record for the audit log, if there is one.
    pub(super) fn audit(&self, add: impl FnOnce(&mut AuditRecord)) {
        if let Some(record) = &self.audit {
            add(&mut record.lock());
        }
    }

    /// Adds the result of the authorization to the record for the web page, if there is one.
    pub(super) fn record_access(&self, grant: &Arc<Grant>, destination: &Destination) {
        if let Some(slot) = &self.recent
            && let Some(record) = &mut *slot.lock()
        {
            record.set_access(grant, destination);
        }
    }

    /// Completes the record for the web page, if there is one, and shows it to readers.
    pub(super) fn complete_record(&self, complete: impl FnOnce(RequestRecord) -> RequestRecord) {
        if let (Some(slot), Some(recent)) = (&self.recent, &self.server.recent)
            && let Some(record) = slot.lock().take()
        {
            recent.requests.push(complete(record));
        }
    }

    /// Returns the counters of the audit log, if there is one.
    pub(super) fn audited_bytes(&self) -> Option<Arc<ByteCounts>> {
        self.audit.as_ref().map(|record| record.lock().bytes())
    }

    /// Returns the id of the request's trace, if it is traced.
    pub(super) fn trace_id(&self) -> Option<TraceId> {
        self.trace.lock().id()
    }
}

impl fmt::Debug for RequestContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestContext").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Returns the error of a request in flight whose caller may do less than before.
fn revoked(caller: &str) -> RequestError {
    let what =
        format!("the token of caller {caller} was revoked, or its rights were reduced, during the request");
    RequestError::new(Reason::Forbidden, what)
}

/// Returns the error of a request in flight whose token has expired for too long.
fn expired(caller: &str) -> RequestError {
    let what = format!(
        "the OIDC token of caller {caller} expired during the request, and oidc.issuers[].stream_grace has passed"
    );
    RequestError::new(Reason::Unauthorized, what)
}

/// Completes at a time of the system's clock as it is now, or never for `None`.
async fn passed(time: Option<SystemTime>) {
    match time {
        // The timer is boxed, because most requests have none.
        Some(time) => Box::pin(sleep(time.duration_since(SystemTime::now()).unwrap_or_default())).await,
        None => pending().await,
    }
}

/// Returns the id that the caller has sent, so that the caller finds its request in the logs of kas, or a new id if there
/// is none that fits into a log line.
///
/// tower-http's layer of request ids accepts an id of any length.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let given = headers
        .get(&header::REQUEST_ID)
        .filter(|id| (1..=MAX_REQUEST_ID).contains(&id.len()) && id.as_bytes().iter().all(plain));
    given.cloned().unwrap_or_else(|| {
        let random = rand::random::<[u8; 8]>();
        let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
        let digits: [u8; 16] = array::from_fn(|index| {
            let byte = random[index / 2];
            digit(if index % 2 == 0 { byte >> 4 } else { byte & 15 })
        });
        HeaderValue::from_bytes(&digits).expect("hexadecimal digits")
    })
}
