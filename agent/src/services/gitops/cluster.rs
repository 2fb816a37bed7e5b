//! The client of kube-rs over the connections of agentk.

use std::{convert::Infallible, sync::Arc};

use gitops_engine::KubeCluster;
use http::{Request, Response};
use kube::client::Body as KubeBody;
use proto::{ServiceName, header};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};
use tunnel::Body;

use crate::{
    ServiceError,
    policy::{PolicyEnforcer, PolicyLayer, Restriction, ScopeEnforcer},
    services::{BoxService, KubernetesService, RequestHandler as _},
};

/// Returns the cluster as the scope and the policy allow it. Without them, it is the cluster as agentk uses it itself.
pub(crate) fn cluster_client(
    kubernetes: KubernetesService,
    scope: Option<&Arc<ScopeEnforcer>>,
    policy: Option<&Arc<PolicyEnforcer>>,
) -> KubeCluster {
    let handler = service_fn(move |request| {
        let kubernetes = kubernetes.clone();
        async move {
            Ok::<_, Infallible>(kubernetes.handle(request).await.unwrap_or_else(ServiceError::into_response))
        }
    });
    let name: ServiceName = ServiceName::GITOPS.parse().expect("a constant that is a service name");
    let mut service = BoxService::new(handler);
    if let Some(policy) = policy {
        service = BoxService::new(
            PolicyLayer::new(Restriction::Policy(Arc::clone(policy)), name.clone()).layer(service),
        );
    }
    if let Some(scope) = scope {
        service =
            BoxService::new(PolicyLayer::new(Restriction::Scope(Arc::clone(scope)), name).layer(service));
    }
    KubeCluster::new(move || kube::Client::new(Adapter(service), "default"))
}

/// Turns requests of kube-rs into those of agentk, and errors of agentk into responses of an API server.
#[derive(Clone)]
struct Adapter(BoxService);

impl Service<Request<KubeBody>> for Adapter {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<KubeBody>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
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
