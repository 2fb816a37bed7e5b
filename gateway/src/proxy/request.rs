//! The request that is sent to the agent.

use std::sync::Arc;

use access::RequestError;
use http::{
    HeaderMap, Method, Request, Version,
    header::{CONNECTION, HOST, TRANSFER_ENCODING},
};
use hyper::upgrade::OnUpgrade;
use promql::{Labels, QueryError};
use proto::{Reason, header};
use tunnel::Body;

use super::{context::RequestContext, server::ProxyServer};
use crate::{
    headers::{self, ProxyHeaders},
    metrics::Limit,
};

/// Builds the request to the agent from the request of the caller. Returns it together with the caller's connection, if the
/// caller asks for an upgrade.
pub(super) async fn to_agent(
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
    let request = match access.grant.caller.labels(service) {
        // Boxed: most requests are not restricted, and should not reserve memory for it.
        Some(labels) => Box::pin(restrict(context, request, labels)).await?,
        None => request,
    };
    Ok((request, upgrade))
}

/// Restricts the queries of a caller that may see only certain series.
async fn restrict(
    context: &RequestContext,
    request: Request<Body>,
    labels: &Labels,
) -> Result<Request<Body>, RequestError> {
    let restricted = promql::enforce(labels, request, context.server.config.limits.max_form_bytes).await;
    if let Err(QueryError { reason: Reason::BodyTooLarge, .. }) = &restricted {
        context.server.observers.metrics.count_limit(Limit::Form);
    }
    Ok(restricted?.map(Body::from))
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
