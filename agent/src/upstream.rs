//! HTTP/1.1 towards one server near the agent: the Kubernetes API, Prometheus.
//!
//! Kubernetes upgrades (exec, attach, port-forward) exist in HTTP/1.1 only, so that is all this client speaks. It is our
//! own, and deliberately small: one server, no queue for connections, no limit on those in use (kas limits requests), no
//! redirects followed (CVE-2020-8559: a compromised kubelet could otherwise send the agent's credentials elsewhere).
//!
//! No request is sent twice. An idle connection that the server has closed is passed over; whatever may have reached the
//! server is the caller's to repeat.

mod connect;
mod endpoint;
mod error;
mod http1;
mod pool;
mod tls;

#[cfg(test)]
mod tests;

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use cores::PerCore;
use http::{
    Method, Request, Response, Uri, Version,
    header::{HOST, UPGRADE},
};
use tokio::time::{Instant, timeout};
use tunnel::Body;

pub(crate) use self::connect::Connector;
use self::pool::Pool;
pub use self::{
    endpoint::{Endpoint, EndpointError, Scheme},
    error::UpstreamError,
    http1::Answer,
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
#[derive(Clone)]
pub struct Upstream(Arc<Inner>);

struct Inner {
    connector: Connector,
    /// Of each core: a connection is used where it was made.
    pools: PerCore<Arc<Pool>>,
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

impl Upstream {
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
    /// A 101 to an upgrade holds a [`tunnel::upgrade::Outside`]. Any other answer to one is an ordinary response: treating it
    /// as an open tunnel was CVE-2018-1002105.
    pub async fn send(&self, mut request: Request<Body>) -> Result<Response<Answer>, UpstreamError> {
        self.address_to_endpoint(&mut request)?;
        let upgrading = request.headers().contains_key(UPGRADE);

        let pool = self.0.pools.here();
        let lease = match pool.take(Instant::now()) {
            Some(lease) => lease,
            // Boxed: it is rare, and most of what a request's future would otherwise be moved around with.
            None => Box::pin(self.0.connector.connect(pool)).await?,
        };
        let exchange = http1::exchange(lease, request, upgrading);
        let answered = match self.0.response_timeout {
            None => exchange.await,
            Some(after) => timeout(after, exchange).await.map_err(|_| UpstreamError::ResponseTimeout {
                address: self.endpoint().to_string(),
                after,
            })?,
        };

        answered.map_err(|error| UpstreamError::exchange(self.endpoint(), error))
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

        Ok(())
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Upstream").field(self.0.connector.endpoint()).finish()
    }
}
