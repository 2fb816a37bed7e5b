//! The query API of a Prometheus server in our cluster, and nothing else of it.
//!
//! No time limit: Prometheus has its own for queries (2 minutes by default), and a caller who leaves cancels.

mod allow;

use http::{Request, Response};
use proto::Reason;
use tunnel::Body;

use super::unanswered;
use crate::{
    Failure, Handler, headers,
    services::Handling,
    upstream::{Endpoint, Settings, Upstream},
};

/// Answers from Prometheus. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Prometheus(Upstream<Body>);

impl Prometheus {
    /// Connects to nothing yet. A path of the endpoint stands before every request's.
    pub fn new(endpoint: Endpoint, settings: Settings) -> Self {
        Self(Upstream::new(endpoint, settings))
    }

    /// Sends a request of kas, if it only reads. Redirects are passed on, never followed.
    pub async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, Failure> {
        let (method, path) = (request.method(), request.uri().path());
        if !allow::allows(method, path) {
            let what = format!("{method} {path} of Prometheus is not proxied: only its query API is");
            return Err(Failure::new(Reason::NotProxied, what));
        }
        if headers::to_upstream(request.headers_mut()) {
            return Err(Failure::new(Reason::BadRequest, "Prometheus has nothing to upgrade to"));
        }
        let mut response = self.0.send(request).await.map_err(|error| unanswered(&error))?;
        headers::from_upstream(response.headers_mut());

        Ok(response.map(Body::from))
    }
}

impl Handler for Prometheus {
    fn handle(&self, request: Request<Body>) -> Handling {
        let this = self.clone();
        Box::pin(async move { this.send(request).await.unwrap_or_else(Failure::into_response) })
    }
}
