//! The state of a request, from its head to the end of its response.

use std::{array, fmt, sync::Arc};

use access::ErrorFormat;
use http::{HeaderMap, HeaderValue, Request, Version};
use ipnet::IpNet;
use proto::header;

use super::{
    CallerBody, connection::RequestGuard, request_body::RequestBody, request_log::RequestLog,
    server::ProxyServer,
};
use crate::{
    headers::{ForwardedFor, PeerAddress},
    hosts::Route,
};

/// Longest request id of a caller that is kept.
const MAX_REQUEST_ID: usize = 64;

/// A request that is not forwarded yet. Its body is in the context, so that no step before reads it by mistake.
#[derive(Debug)]
pub(super) struct ProxyRequest {
    pub(super) head: Request<()>,
    pub(super) context: Arc<RequestContext>,
}

/// Facts about a request, from its head to the end of its response.
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

impl fmt::Debug for RequestContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestContext").field("id", &self.log.id).finish_non_exhaustive()
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
