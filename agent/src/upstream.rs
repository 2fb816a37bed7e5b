//! HTTP/1.1 towards one server near the agent: the Kubernetes API, Prometheus.
//!
//! Kubernetes upgrades (exec, attach, port-forward) exist in HTTP/1.1 only, so this client speaks nothing else. The protocol
//! is hyper's; the pool is ours and deliberately small: one server, no queue for connections, no limit on those in use (kas
//! limits requests), no redirects followed (CVE-2020-8559: a compromised kubelet could otherwise send the agent's
//! credentials elsewhere).
//!
//! ```text
//!  Pool ── Lease ── exchange ──> Response<ResponseBody> ── the last frame ──> Pool
//!            │                          │
//!            └── Connection: hyper's connection and its sender, polled by the exchange, then by the body
//! ```

mod body;
mod connect;
mod connection;
mod endpoint;
mod error;
mod exchange;
mod pool;
mod stream;
mod tls;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use cores::PerCore;
use http::{
    Method, Request, Response, Uri, Version,
    header::{HOST, UPGRADE},
};
use http_body::Body as _;
use tokio::time::{Instant, timeout};
use tower::Service;
use tunnel::Body;

pub(crate) use self::connect::Connector;
pub use self::{
    body::ResponseBody,
    endpoint::{Endpoint, EndpointError, Scheme},
    error::{ResponseBodyError, UpstreamError},
    tls::{ConfigFuture, Identity, Pem, Tls, TlsError, TlsOptions, TlsSource},
};
use self::{
    exchange::ExchangeError,
    pool::{Lease, Pool},
};

/// How long a connection must have been unused for a request without effects to be sent a second time.
///
/// 1 s: a connection that is used again sooner is not one that the server closes for idleness, and a busy agent does not
/// copy the head of every request.
const STALE_AFTER: Duration = Duration::from_secs(1);

/// How connections are made and kept.
#[derive(Clone)]
pub struct Settings {
    /// For name resolution, TCP and TLS together.
    ///
    /// 10 s: a lost SYN is sent again after 1 s and 3 s, so two losses pass, and the caller still gets an answer
    /// that names the address before its own patience ends.
    pub connect_timeout: Duration,
    /// From handing the request over until the head of the response. None by default: a PromQL query may take 2
    /// minutes, and a watch may say nothing for as long as nothing happens.
    pub response_timeout: Option<Duration>,
    /// How long a write may make no progress. The connection is closed then.
    ///
    /// 60 s, as nginx has it: a server may pause for a while in the middle of an upload. An upgraded connection has no such
    /// limit.
    pub write_timeout: Duration,
    /// How long an unused connection is kept.
    ///
    /// 60 s: below the 90 s of the API server (`IdleTimeout` in apiserver/pkg/server/secure_serving.go), so that it
    /// is the agent that closes, and rarely a request that finds out.
    pub idle_timeout: Duration,
    /// How many unused connections are kept on each core for that long. More than that wait for two seconds.
    ///
    /// 64: each holds some 30 kB here and two goroutines at the server; with fewer, a burst of short requests pays
    /// for a TLS handshake each.
    pub max_idle: usize,
    /// Asked for at every new connection to an `https` endpoint.
    pub tls: Arc<dyn TlsSource>,
    /// Which addresses are connected to: asked for each one that the endpoint's name resolves to, right before. All by
    /// default, since whoever names an endpoint in a flag means what it says.
    pub may_be_at: fn(&IpAddr) -> bool,
}

/// A client of one endpoint. Clones share their connections.
#[derive(Clone)]
pub struct Upstream(Arc<Inner>);

struct Inner {
    connector: Connector,
    /// Of each core: a connection is used where it was made.
    pools: PerCore<Arc<Pool>>,
    response_timeout: Option<Duration>,
}

/// Why one attempt to send a request got no response.
struct AttemptError {
    error: UpstreamError,
    /// The request, if it is safe to send again.
    repeatable: Option<Box<Request<Body>>>,
}

impl Default for Settings {
    /// Verifies against the system's roots.
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            response_timeout: None,
            write_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(60),
            max_idle: 64,
            tls: Arc::new(Tls::system()),
            may_be_at: |_| true,
        }
    }
}

impl Upstream {
    /// Connects to nothing yet.
    pub fn new(endpoint: Endpoint, settings: Settings) -> Self {
        let pools = PerCore::new(|| Pool::new(settings.max_idle, settings.idle_timeout));
        let connector = Connector::new(endpoint, settings.connect_timeout, settings.tls)
            .only_at(settings.may_be_at)
            .with_write_timeout(settings.write_timeout);

        Self(Arc::new(Inner { connector, pools, response_timeout: settings.response_timeout }))
    }

    /// Where requests go.
    pub fn endpoint(&self) -> &Endpoint {
        self.0.connector.endpoint()
    }

    /// Sends `request` and waits for the head of the response; its body is read from the connection as it is polled.
    ///
    /// The request's path and query are appended to the endpoint's base path byte for byte: the caller has dealt
    /// with `..`, with hop-by-hop headers and with credentials. Dropping this future, or the response's body before
    /// its end, closes the connection, which is how HTTP/1.1 cancels.
    ///
    /// A 101 to an upgrade holds a [`tunnel::upgrade::Outside`]. Any other response to one is an ordinary response:
    /// treating it as an open tunnel was CVE-2018-1002105.
    ///
    /// # Retry
    ///
    /// A request that was sent on a pooled connection is sent once more, on a new connection, if the server had closed the
    /// pooled one:
    ///
    /// * hyper returns the request, because it has written no byte of it; or
    /// * the method is GET, HEAD or OPTIONS, the body is empty, it is no upgrade, the connection had been unused for at
    ///   least a second, and it was closed before the first byte of a response (RFC 9110 section 9.2.2).
    ///
    /// It is never sent a third time. Any other request may have reached the server, and is the caller's to repeat.
    pub async fn send(&self, mut request: Request<Body>) -> Result<Response<ResponseBody>, UpstreamError> {
        self.address_to_endpoint(&mut request)?;
        let upgrading = request.headers().contains_key(UPGRADE);

        let pool = self.0.pools.here();
        if let Some(lease) = pool.take(Instant::now()) {
            match self.exchange(lease, request, upgrading).await {
                Ok(response) => return Ok(response),
                Err(AttemptError { error, repeatable: None }) => return Err(error),
                Err(AttemptError { error, repeatable: Some(repeatable) }) => {
                    tracing::debug!(%error, "a pooled connection was closed; sending the request on a new one");
                    request = *repeatable;
                }
            }
        }
        // Boxed: it is rare, and would be most of the size of this future.
        let lease = Box::pin(self.0.connector.connect(pool)).await?;

        self.exchange(lease, request, upgrading).await.map_err(|failed| failed.error)
    }

    async fn exchange(
        &self,
        lease: Lease,
        request: Request<Body>,
        upgrading: bool,
    ) -> Result<Response<ResponseBody>, AttemptError> {
        let stale = lease.unused.is_some_and(|unused| unused >= STALE_AFTER);
        let copy = if stale && !upgrading { copy_if_safe(&request) } else { None };
        let exchange = exchange::exchange(lease, request, upgrading);
        let exchanged = match self.0.response_timeout {
            None => exchange.await,
            Some(after) => timeout(after, exchange).await.map_err(|_| {
                let address = self.endpoint().to_string();
                AttemptError { error: UpstreamError::ResponseTimeout { address, after }, repeatable: None }
            })?,
        };

        exchanged.map_err(|error| match error {
            ExchangeError::Http { error, unsent, response_began } => {
                let error = UpstreamError::exchange(self.endpoint(), error);
                let closed = matches!(error, UpstreamError::ClosedBeforeResponse { .. }) && !response_began;
                AttemptError { error, repeatable: unsent.or_else(|| copy.filter(|_| closed)) }
            }
            ExchangeError::Refused(cause) => {
                let (address, cause) = (self.endpoint().to_string(), cause.into());
                AttemptError { error: UpstreamError::InvalidResponse { address, cause }, repeatable: None }
            }
        })
    }

    /// Uses no connection made before now for further requests: the certificate that they were opened with is no
    /// longer the one to show.
    pub fn renew_connections(&self) {
        self.0.pools.iter().for_each(|pool| pool.renew());
    }

    fn address_to_endpoint(&self, request: &mut Request<Body>) -> Result<(), UpstreamError> {
        let endpoint = self.endpoint();
        let invalid = |cause| UpstreamError::InvalidTarget { address: endpoint.to_string(), cause };
        if request.method() == Method::CONNECT {
            return Err(invalid("CONNECT is for forward proxies".into()));
        }
        let target = endpoint.target(request.uri()).map_err(|cause| invalid(Box::new(cause)))?;
        *request.uri_mut() = Uri::from(target);
        *request.version_mut() = Version::HTTP_11;
        request.headers_mut().insert(HOST, endpoint.authority().clone());

        exchange::announce_body(request).map_err(|cause| UpstreamError::RequestBody {
            address: endpoint.to_string(),
            cause: cause.into(),
        })
    }
}

/// Copies a request that may be sent a second time: its method has no effect, and its body is empty.
fn copy_if_safe(request: &Request<Body>) -> Option<Box<Request<Body>>> {
    let safe = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if !safe || !request.body().is_end_stream() {
        return None;
    }

    let mut copy = Request::new(Body::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(Box::new(copy))
}

impl Service<Request<Body>> for Upstream {
    type Response = Response<ResponseBody>;
    type Error = UpstreamError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, UpstreamError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), UpstreamError>> {
        Poll::Ready(Ok(()))
    }

    /// Like [`Self::send`], boxed.
    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { this.send(request).await })
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Upstream").field(self.0.connector.endpoint()).finish()
    }
}
