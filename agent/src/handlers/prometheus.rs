//! What only reads of a Prometheus server in our cluster, and nothing else of it.
//!
//! The server is one that a flag names, or one that [`discovery`] finds. Bodies pass untouched, in both directions.
//!
//! No time limit: Prometheus has its own for queries (2 minutes by default), and a caller who leaves cancels.

pub mod allow;
pub mod discovery;
mod server;

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use http::{Request, Response};
use proto::Reason;
use tower::Service;
use tunnel::Body;

use self::{allow::Verdict, discovery::Finding, server::Server};
use crate::{
    Failure,
    cluster::CredentialFile,
    services::ServiceFuture,
    upstream::{Endpoint, Settings},
};

/// Answers from Prometheus. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Prometheus(Source);

#[derive(Clone, Debug)]
enum Source {
    Named(Server),
    Discovered(Finding),
}

impl Prometheus {
    /// Connects to nothing yet. A path of the endpoint stands before every request's.
    pub fn new(endpoint: Endpoint, settings: Settings, credential: Option<CredentialFile>) -> Self {
        Self(Source::Named(Server::new(endpoint, settings, credential)))
    }

    /// Sends a request of kas, if it only reads. Redirects are passed on, never followed.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<Body>, Failure> {
        let (method, path) = (request.method(), request.uri().path());
        match allow::judge(method, path) {
            Verdict::Allowed => {}
            Verdict::WrongMethod(methods) => {
                let what = format!("{method} {path} of Prometheus is not proxied: use {methods}");
                return Err(Failure::new(Reason::MethodNotAllowed, what).allow(methods));
            }
            Verdict::Refused => {
                let what = format!(
                    "{method} {path} of Prometheus is not proxied: only what reads, and shows no secrets, is (docs/prometheus.md)"
                );
                return Err(Failure::new(Reason::NotProxied, what));
            }
        }

        match &self.0 {
            Source::Named(server) => server.send(request).await,
            Source::Discovered(finding) => finding.server().await?.send(request).await,
        }
    }
}

impl Service<Request<Body>> for Prometheus {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ServiceFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> ServiceFuture {
        let this = self.clone();
        Box::pin(async move { Ok(this.send(request).await.unwrap_or_else(Failure::into_response)) })
    }
}
