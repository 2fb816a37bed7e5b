//! The client of kube-rs over the connections of agentk.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use kube::client::Body as KubeBody;
use proto::{ServiceName, header};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};
use tunnel::Body;

use crate::{
    ServiceError,
    connect::USER_AGENT_VALUE,
    policy::{PolicyEnforcer, PolicyLayer, Restriction, ScopeEnforcer},
    services::{BoxService, KubernetesService, RequestHandler as _},
};

/// The restrictions of the requests that agentk sends to the cluster by itself.
#[derive(Clone, Debug, Default)]
pub struct Restrictions {
    /// The scope of `--namespaces` and of the agent's configuration.
    pub scope: Option<Arc<ScopeEnforcer>>,
    /// The policy file of the cluster's owner.
    pub policy: Option<Arc<PolicyEnforcer>>,
}

/// Returns the service that sends requests of kube-rs to the cluster, as far as the restrictions allow those of a service.
pub fn kube_service(
    name: &'static str,
    kubernetes: KubernetesService,
    restrictions: &Restrictions,
) -> KubeService {
    let handler = service_fn(move |request| {
        let kubernetes = kubernetes.clone();
        async move {
            Ok::<_, Infallible>(kubernetes.handle(request).await.unwrap_or_else(ServiceError::into_response))
        }
    });
    let name: ServiceName = name.parse().expect("a constant that is a service name");
    let mut service = BoxService::new(handler);
    if let Some(policy) = &restrictions.policy {
        let layer = PolicyLayer::new(Restriction::Policy(Arc::clone(policy)), name.clone());
        service = BoxService::new(layer.layer(service));
    }
    if let Some(scope) = &restrictions.scope {
        let layer = PolicyLayer::new(Restriction::Scope(Arc::clone(scope)), name);
        service = BoxService::new(layer.layer(service));
    }
    KubeService(service)
}

/// Turns requests of kube-rs into those of agentk, and errors of agentk into responses of an API server.
#[derive(Clone)]
pub struct KubeService(BoxService);

#[cfg(test)]
impl KubeService {
    pub(crate) fn of(service: BoxService) -> Self {
        Self(service)
    }
}

impl Service<Request<KubeBody>> for KubeService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<KubeBody>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            // The audit log of the cluster names the program.
            parts.headers.entry(http::header::USER_AGENT).or_insert(USER_AGENT_VALUE);
            let body = body.collect_bytes().await.unwrap_or_default();
            if !body.is_empty() {
                parts.headers.insert(http::header::CONTENT_LENGTH, body.len().into());
            }
            let response = service.oneshot(Request::from_parts(parts, Body::from(body))).await?;
            Ok(with_message(response))
        })
    }
}

/// Moves the message of an error of agentk into the body, where kube-rs looks for it.
fn with_message(response: Response<Body>) -> Response<Body> {
    let Some(reason) = response.headers().get(&header::ERROR).and_then(|reason| reason.to_str().ok()) else {
        return response;
    };
    let message = response.headers().get(&header::ERROR_MESSAGE).and_then(|message| message.to_str().ok());
    let message = percent_encoding::percent_decode_str(message.unwrap_or_default()).decode_utf8_lossy();
    let status = serde_json::json!({
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": response.status().as_u16(),
    });
    let status = Body::from(status.to_string());
    response.map(|_| status)
}

#[cfg(test)]
mod tests {
    use http::header::USER_AGENT;

    use super::*;

    /// Leases, for example, were requested without one.
    #[tokio::test]
    async fn each_request_names_the_program() {
        let echo = service_fn(async |request: Request<Body>| {
            let mut response = Response::new(Body::empty());
            response
                .headers_mut()
                .extend(request.headers().get(USER_AGENT).map(|value| (USER_AGENT, value.clone())));
            Ok::<_, Infallible>(response)
        });
        let service = KubeService(BoxService::new(echo));
        let sent = async |request: http::request::Builder| {
            let request = request.body(KubeBody::empty()).unwrap();
            service.clone().oneshot(request).await.unwrap().headers()[USER_AGENT].clone()
        };
        assert_eq!(sent(Request::builder()).await, USER_AGENT_VALUE);
        let named = sent(Request::builder().header(USER_AGENT, "agentk/1 gitops/2 (a)")).await;
        assert_eq!(named, "agentk/1 gitops/2 (a)");
    }
}
