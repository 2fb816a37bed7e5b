//! HTTP/1.1 towards one server near the agent: the Kubernetes API, Prometheus.
//!
//! Kubernetes upgrades (exec, attach, port-forward) exist in HTTP/1.1 only, so that is all this client speaks. The
//! pool is our own, on hyper's connections, and deliberately small: one server, no queue for connections, no limit
//! on those in use (kas limits requests), no redirects followed (CVE-2020-8559: a compromised kubelet could
//! otherwise send the agent's credentials elsewhere).
//!
//! A request is sent twice only if hyper hands it back unsent, which happens when the server closed an idle
//! connection. Whatever may have reached the server is the caller's to repeat.

mod connect;
mod early;
mod endpoint;
mod error;
mod pool;
mod tls;

#[cfg(test)]
mod tests;

use std::{error::Error as StdError, fmt, net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use cores::PerCore;
use http::{
    Method, Request, Response, StatusCode, Uri, Version,
    header::{HOST, UPGRADE},
};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

pub(crate) use self::connect::Connector;
use self::pool::{Lease, Pool};
pub use self::{
    endpoint::{Endpoint, EndpointError, Scheme},
    error::UpstreamError,
    tls::{ConfigFuture, Identity, Pem, Tls, TlsError, TlsOptions, TlsSource},
};

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
///
/// `B` is the body of requests.
pub struct Upstream<B>(Arc<Inner<B>>);

struct Inner<B> {
    connector: Connector,
    /// Of each core: a connection is driven where it was made.
    pools: PerCore<Arc<Pool<B>>>,
    response_timeout: Option<Duration>,
}

impl Default for Settings {
    /// Verifies against the system's roots.
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            response_timeout: None,
            idle_timeout: Duration::from_secs(60),
            max_idle: 64,
            tls: Arc::new(Tls::system()),
            may_be_at: |_| true,
        }
    }
}

impl<B> Upstream<B>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// Connects to nothing yet.
    pub fn new(endpoint: Endpoint, settings: Settings) -> Self {
        let pools = PerCore::new(|| Pool::new(settings.max_idle, settings.idle_timeout));
        let connector =
            Connector::new(endpoint, settings.connect_timeout, settings.tls).only_at(settings.may_be_at);

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
    /// After a 101, `hyper::upgrade::on` gives the raw connection. Any other answer to an upgrade request is an
    /// ordinary response: treating it as an open tunnel was CVE-2018-1002105.
    pub async fn send(&self, mut request: Request<B>) -> Result<Response<Incoming>, UpstreamError> {
        self.address_to_endpoint(&mut request)?;

        let pool = self.0.pools.here();
        if let Some(lease) = pool.take(Instant::now()) {
            match self.exchange(lease, request).await {
                Ok(response) => return Ok(response),
                Err(Failed { error, unsent: None }) => return Err(error),
                Err(Failed { error, unsent: Some(unsent) }) => {
                    tracing::debug!(%error, "an idle connection was closed; sending on a new one");
                    request = *unsent;
                }
            }
        }
        // Boxed: it is rare, and most of what a request's future would otherwise be moved around with.
        let lease = Box::pin(self.0.connector.connect(pool)).await?;

        self.exchange(lease, request).await.map_err(|failed| failed.error)
    }

    /// Uses no connection made before now for further requests: the certificate that they were opened with is no
    /// longer the one to show.
    pub fn renew_connections(&self) {
        self.0.pools.iter().for_each(|pool| pool.renew());
    }

    fn address_to_endpoint(&self, request: &mut Request<B>) -> Result<(), UpstreamError> {
        let endpoint = self.endpoint();
        let target = endpoint.target(request.uri()).map_err(|cause| UpstreamError::InvalidTarget {
            address: endpoint.to_string(),
            cause: Box::new(cause),
        })?;
        *request.uri_mut() = Uri::from(target);
        *request.version_mut() = Version::HTTP_11;
        request.headers_mut().insert(HOST, endpoint.authority().clone());

        Ok(())
    }

    async fn exchange(
        &self,
        mut lease: Lease<B>,
        request: Request<B>,
    ) -> Result<Response<Incoming>, Failed<B>> {
        let upgrade = request.headers().contains_key(UPGRADE) || request.method() == Method::CONNECT;
        let sending = lease.try_send(request);
        let answer = match self.0.response_timeout {
            None => sending.await,
            Some(after) => match timeout(after, sending).await {
                Ok(answer) => answer,
                Err(_) => {
                    return Err(self.failed(|address| UpstreamError::ResponseTimeout { address, after }));
                }
            },
        };
        let response = match answer {
            Ok(response) => response,
            Err(mut refused) => {
                let unsent = refused.take_message().map(Box::new);
                let error = UpstreamError::exchange(self.endpoint(), refused.into_error());
                return Err(Failed { error, unsent });
            }
        };

        if response.status() == StatusCode::SWITCHING_PROTOCOLS && !upgrade {
            return Err(self.failed(|address| UpstreamError::InvalidResponse {
                address,
                cause: "101 Switching Protocols, which was not asked for".into(),
            }));
        }
        // Not after an upgrade request, however it was answered: what a server does with bytes that follow a refused
        // upgrade is where request smuggling starts.
        if !upgrade {
            lease.give_back();
        }

        Ok(response)
    }

    fn failed(&self, error: impl FnOnce(String) -> UpstreamError) -> Failed<B> {
        Failed { error: error(self.endpoint().to_string()), unsent: None }
    }
}

/// An exchange without a response.
struct Failed<B> {
    error: UpstreamError,
    /// The request, if not a byte of it was written.
    unsent: Option<Box<Request<B>>>,
}

impl<B> Clone for Upstream<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> fmt::Debug for Upstream<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Upstream").field(self.0.connector.endpoint()).finish()
    }
}
