//! The Kubernetes API of our cluster, as us, or as whom kas says.
//!
//! Who the caller is in the cluster is in the `Impersonate-*` headers that kas set; what they may do is for the API
//! server to decide. Bodies pass untouched, in both directions.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body_util::{BodyExt as _, Limited};
use proto::{Reason, impersonation};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;
use tokio::time::timeout;
use tower::Service;
use tunnel::Body;

use super::unanswered;
use crate::{
    Failure,
    cluster::Cluster,
    headers,
    services::ServiceFuture,
    upstream::{Settings, Upstream},
};

/// Answers from the API server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Kubernetes {
    cluster: Arc<Cluster>,
    api: Upstream,
}

/// For questions of our own, which are small.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_MAX: usize = 256 << 10;

impl Kubernetes {
    /// Connects to nothing yet.
    pub fn new(cluster: Arc<Cluster>) -> Self {
        let settings = Settings { tls: cluster.tls(), ..Settings::default() };
        Self { api: Upstream::new(cluster.endpoint(), settings), cluster }
    }

    /// Sends a request of kas, with our credentials.
    pub async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, Failure> {
        let upgrade = headers::to_upstream(request.headers_mut());
        if upgrade && request.method() == Method::POST {
            // An upgrade has no body, and an API server waits for one that a POST may still bring (gitlab-agent#393).
            request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        self.identify(&mut request).await?;
        let mut response = self.api.send(request).await.map_err(|error| unanswered(&error))?;
        if response.status() == StatusCode::UNAUTHORIZED {
            // Ours: the caller's own credential never gets here.
            self.cluster.rejected();
            self.api.renew_connections();
        }
        headers::from_upstream(response.headers_mut());

        Ok(response.map(Body::from))
    }

    /// The cluster's version, if it tells us. An answer without one still proves that the cluster is there.
    pub async fn version(&self) -> Result<Option<String>, Failure> {
        let request = Request::get("/version").body(Body::empty()).expect("constants");
        let (_, body) = self.ask(request).await?;
        Ok(serde_json::from_slice(&body).ok().map(|Version { git_version }| git_version))
    }

    /// Whether agentk itself may do this to `resource` (`pods`, `pods/log`) in all namespaces.
    pub async fn may(&self, verb: &str, group: &str, resource: &str) -> Result<bool, Failure> {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let attributes =
            json!({"verb": verb, "group": group, "resource": resource, "subresource": subresource});
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        });
        let request = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(review.to_string()))
            .expect("constants");
        let (status, body) = self.ask(request).await?;
        serde_json::from_slice(&body).map(|Review { status }| status.allowed).map_err(|_| {
            let what = format!("{} answered {status} to a review of access", self.cluster.endpoint());
            Failure::new(Reason::ClusterMisbehaved, what)
        })
    }

    /// An object, or a short list of them, for ourselves.
    pub(crate) async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let request = Request::get(path).header(ACCEPT, "application/json").body(Body::empty());
        let (status, body) = self.ask(request.expect("a path of ours")).await?;
        if status == StatusCode::FORBIDDEN {
            let what =
                format!("agentk may not read {path} in its cluster (403): its RBAC role lacks this right");
            return Err(Failure::new(Reason::ClusterCredential, what));
        }
        serde_json::from_slice(&body).map_err(|_| {
            let what = format!("{} answered {status} to GET {path}", self.cluster.endpoint());
            Failure::new(Reason::ClusterMisbehaved, what)
        })
    }

    /// A small question of our own.
    async fn ask(&self, request: Request<Body>) -> Result<(StatusCode, Bytes), Failure> {
        let asking = async {
            let response = self.send(request).await?;
            let status = response.status();
            if status == StatusCode::UNAUTHORIZED {
                let what = format!("{} refused agentk's credential (401)", self.cluster);
                return Err(Failure::new(Reason::ClusterCredential, what));
            }
            if status.is_server_error() {
                let what = format!("{} answered {status}", self.cluster.endpoint());
                return Err(Failure::new(Reason::ClusterMisbehaved, what));
            }
            let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
            Ok((status, body.map(|body| body.to_bytes()).unwrap_or_default()))
        };

        timeout(ASK_TIMEOUT, asking).await.unwrap_or_else(|_| {
            let what = format!("no answer from {} within {ASK_TIMEOUT:?}", self.cluster.endpoint());
            Err(Failure::new(Reason::ClusterTimeout, what))
        })
    }

    /// For people: where the API is, and who we are there.
    pub fn describe(&self) -> String {
        self.cluster.to_string()
    }

    async fn identify(&self, request: &mut Request<Body>) -> Result<(), Failure> {
        if let Some(who) = self.cluster.impersonation() {
            if request.headers().keys().any(|name| name.as_str().starts_with(impersonation::PREFIX)) {
                let what = "agentk's kubeconfig already impersonates somebody, and nobody can impersonate twice: remove \
                            `as` from it, or access_as from kas's configuration";
                return Err(Failure::new(Reason::NestedImpersonation, what));
            }
            for (name, value) in who.headers() {
                request.headers_mut().append(name.clone(), value.clone());
            }
        }
        let credential = self.cluster.authorization().await;
        let credential = credential.map_err(|error| Failure::new(Reason::ClusterCredential, error))?;
        if let Some(credential) = credential {
            request.headers_mut().insert(AUTHORIZATION, credential);
        }

        Ok(())
    }
}

impl Service<Request<Body>> for Kubernetes {
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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    git_version: String,
}

#[derive(Deserialize)]
struct Review {
    status: ReviewStatus,
}

#[derive(Deserialize)]
struct ReviewStatus {
    allowed: bool,
}
