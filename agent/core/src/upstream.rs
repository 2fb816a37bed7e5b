//! The HTTP/1.1 client for one server near agentk: the Kubernetes API, or Prometheus.
//!
//! Kubernetes upgrades (exec, attach, port-forward) exist in HTTP/1.1 only, so this client supports nothing else. The protocol
//! is hyper's. The pool is our own and deliberately small: it has one server, no queue for connections, and no limit on those
//! in use, since kas limits requests. Redirects are not followed (CVE-2020-8559): a compromised kubelet could otherwise have
//! agentk's credentials sent to another server.
//!
//! ```text
//!  Pool ── PooledConnection ── exchange ──> Response<ResponseBody> ── the last frame ──> Pool
//!            │
//!            └── Connection: hyper's connection and its sender, polled by the exchange, then by the body
//! ```

mod body;
mod connect;
mod connection;
mod error;
mod exchange;
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
    HeaderValue, Method, Request, Response, Uri, Version,
    header::{CONTENT_LOCATION, HOST, LOCATION, UPGRADE},
};
use http_body::Body as _;
use tokio::time::Instant;
use tower::Service;
use tunnel::Body;

pub use self::connect::UpstreamConnector;
pub use self::{
    body::ResponseBody,
    error::{ResponseBodyError, UpstreamError},
    stream::Io,
    tls::{ClientIdentity, ClientTls, ClientTlsConfig, Pem, TlsConfigFuture, TlsConfigSource, TlsError},
};
use self::{
    connection::{Pool, PooledConnection},
    exchange::ExchangeError,
};
/// The URL of an [`Upstream`].
pub use outbound::{Scheme, ServerUrl, ServerUrlError, is_service_address};

/// The time that a connection must have been unused before a safe request is sent a second time.
///
/// 1 s: a connection that is used again sooner is not one that the server closes for idleness, and a busy agent does not
/// copy the head of every request.
const STALE_AFTER: Duration = Duration::from_secs(1);

/// The configuration of an [`Upstream`].
#[derive(Clone)]
pub struct UpstreamConfig {
    /// The time limit of DNS, TCP and TLS together.
    ///
    /// 10 s: a lost SYN is sent again after 1 s and 3 s, so that two losses are tolerated, and callers receive an error that
    /// names the address before their own timeouts.
    pub connect_timeout: Duration,
    /// The time that a write may make no progress before the connection is closed.
    ///
    /// 60 s, the default of nginx: a server may pause for a while in the middle of an upload. An upgraded connection has no such
    /// limit.
    pub write_timeout: Duration,
    /// The time that an unused connection is kept.
    ///
    /// 60 s: below the 90 s of the API server (`IdleTimeout` in apiserver/pkg/server/secure_serving.go), so that agentk closes
    /// connections first, and requests rarely find a closed one.
    pub idle_timeout: Duration,
    /// The number of unused connections that each core keeps for this time. Further ones are kept for two seconds.
    ///
    /// 64: each uses some 30 kB here and two goroutines at the server; with fewer, each request of a burst would need a TLS
    /// handshake.
    pub max_idle: usize,
    /// The TLS configuration, which is obtained for every new connection to an `https` server.
    pub tls: Arc<dyn TlsConfigSource>,
    /// Returns true for the addresses that may be connected to, of those that the server's name resolves to. All may by
    /// default, since flags and kubeconfigs name servers on purpose.
    pub address_filter: fn(&IpAddr) -> bool,
}

/// A client of one server. Clones share their connections.
#[derive(Clone)]
pub struct Upstream(Arc<Inner>);

struct Inner {
    connector: UpstreamConnector,
    /// A pool for each core: a connection is used on the core that opened it.
    pools: PerCore<Arc<Pool>>,
}

/// The error of one attempt to send a request.
struct AttemptError {
    error: UpstreamError,
    retry: Retry,
}

/// The connections on which a request may be sent again.
enum Retry {
    /// The server may have received it.
    None,
    /// A new one: a copy of a request whose bytes were written.
    NewConnection(Box<Request<Body>>),
    /// Any: no byte of the request was written.
    AnyConnection(Box<Request<Body>>),
}

impl Default for UpstreamConfig {
    /// Returns a configuration that trusts the system's root certificates.
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(60),
            max_idle: 64,
            tls: Arc::new(ClientTls::system()),
            address_filter: |_| true,
        }
    }
}

impl Upstream {
    /// Returns a client that has no connection yet.
    pub fn new(url: ServerUrl, config: UpstreamConfig) -> Self {
        let pools = PerCore::new(|| Pool::new(config.max_idle, config.idle_timeout));
        let connector = UpstreamConnector::new(url, config.connect_timeout, config.tls)
            .with_address_filter(config.address_filter)
            .with_write_timeout(config.write_timeout);

        Self(Arc::new(Inner { connector, pools }))
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> &ServerUrl {
        self.0.connector.url()
    }

    /// Sends `request` and waits for the head of the response; its body is read from the connection as it is polled.
    ///
    /// The request's path and query are appended to the base path of the URL byte for byte: `..`, hop-by-hop headers and
    /// credentials are the responsibility of the caller. Dropping this future, or the response's body before its end, closes
    /// the connection, which is how HTTP/1.1 cancels a request.
    ///
    /// A 101 to an upgrade has a [`tunnel::upgrade::UpgradedConnection`] in its extensions. Any other response to an upgrade is an
    /// ordinary response, and not an open tunnel (CVE-2018-1002105).
    ///
    /// # Retry
    ///
    /// A request is sent again if the server had closed the pooled connection:
    ///
    /// * on another pooled connection that is still open, or else on a new one, if hyper returns the request, because it has
    ///   written no byte of it; or
    /// * on a new connection, if the method is GET, HEAD or OPTIONS, the body is empty, it is no upgrade, the connection had
    ///   been unused for at least a second, and it was closed before the first byte of a response (RFC 9110 section 9.2.2).
    ///
    /// At most two connections receive bytes of it. Any other request may have reached the server, so that only the caller
    /// can decide to repeat it.
    ///
    /// # Time
    ///
    /// The wait for the head has no limit: a PromQL query may take 2 minutes, and a watch may send nothing for hours.
    /// [`Self::send_within`] has a limit.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<ResponseBody>, UpstreamError> {
        self.send_within(None, request).await
    }

    /// Like [`Self::send`], but fails if there is no head of the response for this long after the last byte of the request
    /// was sent.
    pub async fn send_within(
        &self,
        response_timeout: Option<Duration>,
        mut request: Request<Body>,
    ) -> Result<Response<ResponseBody>, UpstreamError> {
        self.set_target(&mut request)?;
        let upgrading = request.headers().contains_key(UPGRADE);

        let pool = self.0.pools.current();
        while let Some(pooled) = pool.checkout(Instant::now()) {
            let AttemptError { error, retry } =
                match self.exchange(pooled, request, upgrading, response_timeout).await {
                    Ok(response) => return Ok(self.without_base_path(response)),
                    Err(failed) => failed,
                };
            tracing::debug!(%error, "request failed on a pooled connection");
            match retry {
                Retry::None => return Err(error),
                Retry::NewConnection(copy) => {
                    request = *copy;
                    break;
                }
                // A server that closes one connection has often closed many. With a response timeout, each attempt wraps the body.
                Retry::AnyConnection(unsent) => {
                    request = *unsent;
                    pool.discard_closed();
                }
            }
        }
        // Boxed: it is rare, and would be most of the size of this future.
        let new = Box::pin(self.0.connector.connect(pool)).await?;

        let exchanged = self.exchange(new, request, upgrading, response_timeout).await;
        exchanged.map(|response| self.without_base_path(response)).map_err(|failed| failed.error)
    }

    /// Removes the base path from the addresses of a response: the caller does not know it.
    fn without_base_path(&self, mut response: Response<ResponseBody>) -> Response<ResponseBody> {
        let base = self.url().base_path();
        if !base.is_empty() {
            for name in [LOCATION, CONTENT_LOCATION] {
                if let Some(value) = response.headers_mut().get_mut(name)
                    && let Some(path) = value.as_bytes().strip_prefix(base.as_bytes())
                    && path.first().is_none_or(|next| b"/?#".contains(next))
                {
                    let path = if path.is_empty() { b"/" } else { path };
                    *value = HeaderValue::from_bytes(path).expect("a part of a value");
                }
            }
        }
        response
    }

    async fn exchange(
        &self,
        pooled: PooledConnection,
        request: Request<Body>,
        upgrading: bool,
        response_timeout: Option<Duration>,
    ) -> Result<Response<ResponseBody>, AttemptError> {
        let stale = pooled.unused.is_some_and(|unused| unused >= STALE_AFTER);
        let copy = if stale && !upgrading { copy_if_safe(&request) } else { None };
        let exchanged = exchange::exchange(pooled, request, upgrading, response_timeout).await;

        exchanged.map_err(|error| match error {
            ExchangeError::Http { error, unsent, response_began } => {
                let error = UpstreamError::exchange(self.url(), error);
                let closed = matches!(error, UpstreamError::ClosedBeforeResponse { .. }) && !response_began;
                let retry = match (unsent, copy) {
                    (Some(unsent), _) => Retry::AnyConnection(unsent),
                    (None, Some(copy)) if closed => Retry::NewConnection(copy),
                    _ => Retry::None,
                };
                AttemptError { error, retry }
            }
            ExchangeError::Timeout(after) => {
                let address = self.url().to_string();
                AttemptError { error: UpstreamError::ResponseTimeout { address, after }, retry: Retry::None }
            }
            ExchangeError::Refused(cause) => {
                let (address, cause) = (self.url().to_string(), cause.into());
                AttemptError { error: UpstreamError::InvalidResponse { address, cause }, retry: Retry::None }
            }
        })
    }

    /// Sends no further request on connections that are open now: they were opened with a client certificate that is no longer
    /// valid.
    pub fn renew_connections(&self) {
        self.0.pools.iter().for_each(|pool| pool.renew());
    }

    /// Sets the target, the version and the headers that depend on the server and on the body.
    fn set_target(&self, request: &mut Request<Body>) -> Result<(), UpstreamError> {
        let url = self.url();
        let invalid = |cause| UpstreamError::InvalidTarget { address: url.to_string(), cause };
        if request.method() == Method::CONNECT {
            return Err(invalid("CONNECT is for forward proxies".into()));
        }
        let target = url.target(request.uri()).map_err(|cause| invalid(Box::new(cause)))?;
        *request.uri_mut() = Uri::from(target);
        *request.version_mut() = Version::HTTP_11;
        request.headers_mut().insert(HOST, url.authority().clone());

        exchange::announce_body(request)
            .map_err(|cause| UpstreamError::RequestBody { address: url.to_string(), cause: cause.into() })
    }
}

/// Copies a request that may be sent a second time: its method is safe, and its body is empty.
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
        f.debug_tuple("Upstream").field(self.0.connector.url()).finish()
    }
}
