//! The services `prometheus` and `prometheus.<name>`: the read-only part of the HTTP API of a Prometheus server near agentk.
//!
//! A flag names the server, or [`discovery`] finds it. Bodies pass unchanged in both directions.
//!
//! There is no time limit: Prometheus has its own for queries (2 minutes by default), and a caller that disconnects cancels
//! its query.

pub mod discovery;
mod server;

use http::{Request, Response};
use proto::Reason;
use request_info::prometheus::{self as allowlist, AllowlistMatch, NOTIFICATIONS_PATH};
use tunnel::Body;

use self::{discovery::DiscoveredServer, server::PrometheusServer};
use super::{RequestHandler, ServiceError, response::WatchResponse};
use crate::{
    cluster::CredentialFile,
    upstream::{ServerUrl, UpstreamConfig},
};

/// Sends requests to Prometheus if they only read. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PrometheusService(ServerSource);

#[derive(Clone, Debug)]
enum ServerSource {
    Configured(PrometheusServer),
    Discovered(DiscoveredServer),
}

impl PrometheusService {
    /// Returns a service for the server at `url`, whose path is put before that of each request. It has no connection yet.
    pub fn new(url: ServerUrl, config: UpstreamConfig, credential: Option<CredentialFile>) -> Self {
        Self(ServerSource::Configured(PrometheusServer::new(url, config, credential)))
    }

    /// Sends a request of kas, if it only reads. Redirects are returned, never followed.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        let (method, path) = (request.method(), request.uri().path());
        let listed = allowlist::check(method, path);
        if let Some(refusal) = listed.refusal(method, path) {
            return Err(match listed {
                AllowlistMatch::WrongMethod(methods) => {
                    ServiceError::new(Reason::MethodNotAllowed, refusal).with_allow(methods)
                }
                _ => ServiceError::new(Reason::NotProxied, refusal),
            });
        }

        let is_watch = path == NOTIFICATIONS_PATH;
        let mut response = match &self.0 {
            ServerSource::Configured(server) => server.send(request).await?,
            ServerSource::Discovered(discovered) => discovered.server().await?.send(request).await?,
        };
        if is_watch {
            response.extensions_mut().insert(WatchResponse);
        }
        Ok(response)
    }
}

impl RequestHandler for PrometheusService {
    async fn handle(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        self.send(request).await
    }
}
