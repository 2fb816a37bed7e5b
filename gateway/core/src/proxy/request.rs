//! The request of a caller with its guards, and the one that its agent receives.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use access::{ErrorFormat, Grant, RequestError};
use http::{
    HeaderMap, HeaderValue, Method, Request, Version,
    header::{CONNECTION, HOST, TRANSFER_ENCODING},
};
use hyper::upgrade::OnUpgrade;
use ipnet::IpNet;
use kas_listen::{
    addresses::{ForwardedFor, PeerAddress},
    metrics::Limit,
};
use proto::{Reason, header};
use router::RequestPermit;
use telemetry::GaugeGuard;
use tunnel::Body;

use super::{
    CallerBody, connection::RequestGuard, request_body::RequestBody, request_log::RequestLog,
    server::ProxyServer,
};
use crate::{
    headers::{self, ProxyHeaders},
    hosts::Route,
    metrics::ServiceMetrics,
    tunnel_entry::TunnelEntry,
};

/// Longest request id of a caller that is kept.
const MAX_REQUEST_ID: usize = 64;

/// A request that is not forwarded yet. Its body is in the context, so that no step before reads it by mistake.
#[derive(Debug)]
pub(super) struct ProxyRequest {
    pub(super) head: Request<()>,
    pub(super) context: Arc<RequestContext>,
}

/// The parts of kas that a request uses, and its log, from its head to the end of its response.
pub(super) struct RequestContext {
    /// The server that received the request.
    pub(super) server: Arc<ProxyServer>,
    /// The facts about the request.
    pub(super) log: RequestLog,
    /// The HTTP version between the caller and kas.
    pub(super) version: Version,
    /// The address of the caller, and the proxies in front of kas.
    pub(super) forwarded: ForwardedFor,
    /// The way in which the request names its agent.
    pub(super) route: Route,
    /// The dialect and encoding of an error.
    pub(super) error_format: ErrorFormat,
    /// The body of the request.
    pub(super) body: RequestBody,
    /// Counts the request on its connection.
    pub(super) guard: RequestGuard,
}

/// The resources of a request until its response has ended: a stream of its tunnel, its connection and its span.
#[derive(Debug)]
pub(super) struct ResponseGuard {
    /// Metrics of the service.
    pub(super) metrics: Arc<ServiceMetrics>,
    /// The request.
    pub(super) context: Arc<RequestContext>,
    /// The stream in the tunnel, if the tunnel ends at this replica.
    _request_permit: Option<RequestPermit<TunnelEntry>>,
    _in_flight: GaugeGuard,
}

/// One of the requests that a caller may have in flight.
#[derive(Debug)]
pub struct ConcurrencyPermit(Arc<AtomicU32>);

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
        let log = RequestLog::new(&server.observers, id, forwarded.client, route.host(), &parts);
        let (types, prefix) = (&server.handling.types, &server.config.url_path_prefix);
        let context = RequestContext {
            server: Arc::clone(server),
            log,
            version: parts.version,
            forwarded,
            error_format: ErrorFormat::new(route.dialect(types, parts.uri.path(), prefix), &parts.headers)
                .with_discovery(route.is_discovery(parts.uri.path(), prefix)),
            route,
            body: RequestBody::new(body, parts.headers.contains_key(http::header::EXPECT)),
            guard,
        };
        Self { head: Request::from_parts(parts, ()), context: Arc::new(context) }
    }
}

impl ResponseGuard {
    pub(super) fn new(
        context: Arc<RequestContext>,
        metrics: Arc<ServiceMetrics>,
        request_permit: Option<RequestPermit<TunnelEntry>>,
    ) -> Self {
        let in_flight = GaugeGuard::new(&metrics.in_flight);
        Self { metrics, context, _request_permit: request_permit, _in_flight: in_flight }
    }
}

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        self.metrics.observe_end(self.context.log.started.elapsed());
    }
}

impl ConcurrencyPermit {
    /// Takes a permit of the caller.
    ///
    /// # Errors
    ///
    /// Returns `too-many-requests` if `max_requests_per_caller` requests of the caller are in flight.
    pub(super) fn acquire(server: &ProxyServer, grant: &Grant) -> Result<Self, RequestError> {
        let permit = Self(Arc::clone(&grant.in_flight));
        if grant.in_flight.fetch_add(1, Relaxed) < server.config.limits.max_requests_per_caller {
            return Ok(permit);
        }
        server.observers.metrics.count_limit(Limit::RequestsPerCaller);
        let cause = format!(
            "caller {} has as many requests in flight as allowed (agent.kubernetes_api.limits.max_requests_per_caller)",
            grant.caller.name()
        );
        Err(RequestError::new(Reason::TooManyRequests, cause).with_retry_after(Duration::from_secs(1)))
    }
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl fmt::Debug for RequestContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestContext").field("id", &self.log.id).finish_non_exhaustive()
    }
}

/// Builds the request to the agent from the request of the caller. Returns it together with the caller's connection, if the
/// caller asks for an upgrade.
pub(super) async fn agent_request(
    context: &Arc<RequestContext>,
    mut request: Request<()>,
) -> Result<(Request<Body>, Option<OnUpgrade>), RequestError> {
    let (server, log) = (&context.server, &context.log);
    let access = log.access();
    if access.upgrade && context.version != Version::HTTP_11 {
        return Err(RequestError::bad_request("an upgrade needs HTTP/1.1"));
    }
    let service = &access.destination.service;
    let proxy_headers = ProxyHeaders {
        service,
        access_as: &access.grant.caller.access_as,
        request_id: &log.id,
        upgrade: access.upgrade,
        version: context.version,
        forwarded: &context.forwarded,
    };
    headers::to_agent(request.headers_mut(), proxy_headers)?;
    for hooks in &server.handling.hooks {
        hooks.on_request(log.request(), request.headers_mut());
    }
    log.sent(request.headers_mut());
    *request.uri_mut() = access.uri.clone();
    let upgrade = access.upgrade.then(|| hyper::upgrade::on(&mut request));

    let body = context.body.take(server, || log.body_bytes(server.observers.metrics.service(service)));
    let request = request.map(|()| body);
    let Some(kind) = server.handling.types.restriction(log.request())? else {
        return Ok((request, upgrade));
    };
    let restricted = kind.restrict(log.request(), request, server.config.limits.max_form_bytes).await;
    let restricted = restricted.inspect_err(|error| {
        if error.reason == Reason::BodyTooLarge {
            server.observers.metrics.count_limit(Limit::Form);
        }
    });
    Ok((restricted?, upgrade))
}

/// Returns an error if kas does not serve the request, or if two servers could parse its head differently.
pub(super) fn validate<B>(server: &ProxyServer, request: &Request<B>) -> Result<(), RequestError> {
    let headers = request.headers();
    if headers.len() > server.config.limits.max_headers {
        server.observers.metrics.count_limit(Limit::Head);
        return Err(RequestError::new(
            Reason::HeadTooLarge,
            "the request has more header fields than agent.kubernetes_api.limits.max_headers allows",
        ));
    }
    let defect = (request.method() == Method::CONNECT)
        .then_some("CONNECT is not served: this is no forward proxy")
        .or_else(|| ambiguous_coding(headers))
        .or_else(|| ambiguous_host(request))
        .or_else(|| listed_by_connection(headers));
    defect.map_or(Ok(()), |defect| Err(RequestError::bad_request(defect)))
}

/// Finds codings other than one `chunked`: hyper decodes the last one and leaves the others in the body
/// (RFC 9112 section 6.1).
fn ambiguous_coding(headers: &HeaderMap) -> Option<&'static str> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let first = codings.next()?;
    let plain = first.as_bytes().eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
    (!plain).then_some("Transfer-Encoding may only be chunked, once")
}

/// Finds a `Host` that is missing, malformed or contradicted (RFC 9112 section 3.2, RFC 9113 section 8.3.1).
fn ambiguous_host<B>(request: &Request<B>) -> Option<&'static str> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let Some(host) = hosts.next() else {
        return (request.version() == Version::HTTP_11).then_some("the request has no Host");
    };
    if hosts.next().is_some() {
        return Some("the request has more than one Host");
    }
    if !host.as_bytes().iter().all(|byte| is_host_byte(*byte)) {
        return Some("Host is not a host and a port");
    }
    let authority = request.uri().authority().filter(|_| request.version() == Version::HTTP_2)?;
    let same = host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes());
    (!same).then_some("Host differs from :authority")
}

/// Returns whether a byte may be part of a host or a port (RFC 3986 section 3.2.2).
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'-' | b'.' | b'_' | b'~' | b'%' | b'!' | b'$' | b'&'..=b',' | b';' | b'=' | b':' | b'[' | b']'
        )
}

/// Finds a `Connection` that lists a header of the caller's identity: a proxy would remove that header
/// (CVE-2021-31999).
fn listed_by_connection(headers: &HeaderMap) -> Option<&'static str> {
    // Requests over HTTP/1.0 and requests of nginx have one of these options.
    let harmless =
        |token: &str| token.eq_ignore_ascii_case("keep-alive") || token.eq_ignore_ascii_case("close");
    let sensitive = |token: &str| !harmless(token) && headers::is_sensitive(&token.to_ascii_lowercase());
    header::tokens(headers, &CONNECTION)
        .any(sensitive)
        .then_some("Connection may not list a header that identifies the caller")
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
        HeaderValue::try_from(format!("{:016x}", rand::random::<u64>())).expect("hexadecimal digits")
    })
}
