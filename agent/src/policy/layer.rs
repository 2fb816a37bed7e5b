//! The policy as a tower layer around a service.

use std::{
    convert::Infallible,
    future::ready,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use proto::ServiceName;
use tower::{Layer, Service};
use tunnel::Body;

use super::{Guard, Permit};
use crate::services::ServiceFuture;

/// Lets requests to one service pass if the policy in force allows them.
#[derive(Clone, Debug)]
pub(crate) struct PolicyLayer {
    guard: Arc<Guard>,
    service: Arc<ServiceName>,
}

/// A service behind a [`PolicyLayer`].
#[derive(Clone, Debug)]
pub(crate) struct PolicyService<S> {
    policy: PolicyLayer,
    inner: S,
}

impl PolicyLayer {
    pub(crate) fn new(guard: Arc<Guard>, service: ServiceName) -> Self {
        Self { guard, service: Arc::new(service) }
    }
}

impl<S> Layer<S> for PolicyLayer {
    type Service = PolicyService<S>;

    fn layer(&self, inner: S) -> PolicyService<S> {
        PolicyService { policy: self.clone(), inner }
    }
}

impl<S> Service<Request<Body>> for PolicyService<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ServiceFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    /// Puts a [`Permit`] into the extensions of the response, so that a later version of the policy can end it.
    fn call(&mut self, request: Request<Body>) -> ServiceFuture {
        let PolicyLayer { guard, service } = &self.policy;
        match guard.check(service.as_str(), &request) {
            Ok(version) => {
                let permit = Permit::new(guard, version, service, &request);
                let responding = self.inner.call(request);
                Box::pin(async {
                    let mut response = responding.await?;
                    response.extensions_mut().insert(permit);
                    Ok(response)
                })
            }
            Err(failure) => Box::pin(ready(Ok(failure.into_response()))),
        }
    }
}
