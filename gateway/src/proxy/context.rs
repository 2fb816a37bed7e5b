//! A request on its way through the layers, and what is known of it.

use std::{array, fmt, sync::Arc};

use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use parking_lot::Mutex;
use proto::header;
use telemetry::TraceId;
use tokio::time::Instant;

use super::{Callers, connection::RequestGuard, request_body::RequestBody};
use crate::{
    failure::Reader,
    forward::Destination,
    headers::{ForwardedFor, Peer},
    identity::Grant,
    target::Target,
    traces::RequestTrace,
};

/// Longest request id of a caller that is taken over.
const MAX_REQUEST_ID: usize = 64;

/// A request before it is authorized. Its body stays in the context: no layer reads it by mistake.
#[derive(Debug)]
pub(super) struct ProxyRequest {
    pub(super) head: Request<()>,
    pub(super) context: Arc<RequestContext>,
}

/// A request that its caller may send. `B` is the body: none yet, or the one that is sent to the agent.
#[derive(Debug)]
pub(super) struct AuthorizedRequest<B = ()> {
    pub(super) request: Request<B>,
    pub(super) context: Arc<RequestContext>,
    pub(super) route: Arc<Route>,
}

/// Facts about a request that every layer may use, from its head to the end of its response.
pub(super) struct RequestContext {
    /// The server of which the caller asks this.
    pub(super) callers: Arc<Callers>,
    /// Names the request in the response and in all logs.
    pub(super) id: HeaderValue,
    /// When the head was complete.
    pub(super) started: Instant,
    /// How it came to kas.
    pub(super) version: Version,
    /// The address of the caller, and the proxies that it came through.
    pub(super) forwarded: ForwardedFor,
    /// The dialect and encoding of an error.
    pub(super) reader: Reader,
    /// The span of the request.
    pub(super) trace: Mutex<RequestTrace>,
    /// The body while no layer and no agent has it.
    pub(super) body: Mutex<RequestBody>,
    pub(super) guard: RequestGuard,
}

/// Where an authorized request goes, and on behalf of which caller.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) destination: Destination,
    pub(super) grant: Arc<Grant>,
    pub(super) method: Method,
    /// Path and query as the service gets them.
    pub(super) target: Uri,
    /// The caller asks for another protocol.
    pub(super) upgrading: bool,
}

impl ProxyRequest {
    /// Takes a request over from the HTTP server.
    pub(super) fn new(
        callers: &Arc<Callers>,
        peer: &Peer,
        guard: RequestGuard,
        request: Request<Incoming>,
    ) -> Self {
        let (parts, body) = request.into_parts();
        let body = if body.is_end_stream() {
            RequestBody::Finished
        } else {
            RequestBody::Unread { body, expects_continue: parts.headers.contains_key(http::header::EXPECT) }
        };
        let context = RequestContext {
            callers: Arc::clone(callers),
            id: request_id(&parts.headers),
            started: Instant::now(),
            version: parts.version,
            forwarded: ForwardedFor::of(&parts.headers, peer, &callers.trusted_proxies),
            reader: Reader::of(Target::dialect(parts.uri.path()), &parts.headers)
                .with_discovery(Target::is_discovery(parts.uri.path())),
            trace: Mutex::default(),
            body: Mutex::new(body),
            guard,
        };
        Self { head: Request::from_parts(parts, ()), context: Arc::new(context) }
    }
}

impl RequestContext {
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

/// Returns the caller's own id, so that the caller finds its request in the logs of kas, or a new one if it has none that
/// fits into a log line.
///
/// tower-http's layer of request ids takes every id over, of any length.
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
