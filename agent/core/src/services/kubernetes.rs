//! The service `kubernetes`: the API of the cluster, with the credentials of agentk.
//!
//! kas sets the `Impersonate-*` headers, which name the caller's identity in the cluster; the API server decides what this
//! identity may do. Bodies pass unchanged in both directions.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body_util::{BodyExt as _, Limited};
use proto::{Reason, hop_by_hop, impersonation};
use request_info::{DecodedPath, RequestInfo, RequestTarget};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;
use tokio::time::timeout;
use tunnel::Body;

use super::{RequestHandler, ServiceError, headers, response::WatchResponse};
use crate::{
    cluster::Cluster,
    upstream::{Upstream, UpstreamConfig},
};

/// Sends requests to the API server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct KubernetesService {
    cluster: Arc<Cluster>,
    api: Upstream,
    response_timeout: Duration,
}

/// The default time that the API server may take to the first byte of a response.
///
/// 60 s: its own limit (`--request-timeout` of kube-apiserver) for the same requests.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// The time limit of agentk's own requests, which are small.
const OWN_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest response to one of them, in bytes.
const OWN_RESPONSE_MAX: usize = 256 << 10;

impl KubernetesService {
    /// Returns a service that has no connection yet.
    pub fn new(cluster: Arc<Cluster>) -> Self {
        let config = UpstreamConfig { tls: cluster.tls(), ..UpstreamConfig::default() };
        let api = Upstream::new(cluster.url(), config);
        Self { api, cluster, response_timeout: RESPONSE_TIMEOUT }
    }

    /// Sets the time that the API server may take to the first byte of a response, from the last byte of the request.
    /// Watches, logs, upgrades and proxied requests have no limit.
    #[must_use]
    pub fn with_response_timeout(self, response_timeout: Duration) -> Self {
        Self { response_timeout, ..self }
    }

    /// Sends a request of kas with the credential of agentk.
    ///
    /// A 401 for the credential of agentk is an error: a caller that received it would discard its own credential.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        let credential = self.credential().await?;
        let response = self.exchange(request, credential.clone()).await?;
        if response.status() == StatusCode::UNAUTHORIZED && self.is_refused(credential).await {
            return Err(self.unauthorized());
        }

        Ok(response)
    }

    /// Sends a request with this credential and returns any response.
    async fn exchange(
        &self,
        mut request: Request<Body>,
        credential: Option<HeaderValue>,
    ) -> Result<Response<Body>, ServiceError> {
        let upgrade = headers::to_upstream(request.headers_mut());
        if upgrade && !hop_by_hop::has_upgrade_method(request.method()) {
            // kas 0.1 makes an upgrade of each request with `Upgrade`, and drops its body, which may be `dryRun: [All]`.
            let what = "only a GET or a POST without a body can become an upgrade";
            return Err(ServiceError::new(Reason::BadRequest, what));
        }
        if upgrade && request.method() == Method::POST {
            // An upgrade has no body, but API servers wait for the body of a POST without a length (gitlab-agent#393).
            request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        // After the removal of hop-by-hop headers, so that `Connection` cannot remove these.
        self.impersonate(request.headers_mut())?;
        if let Some(credential) = credential {
            request.headers_mut().insert(AUTHORIZATION, credential);
        }
        let limited = !upgrade && has_time_limit(request.method(), request.uri());
        let mut response = self.api.send_within(limited.then_some(self.response_timeout), request).await?;
        headers::from_upstream(response.headers_mut());

        Ok(response.map(Body::from))
    }

    /// Returns true if the API server refuses the credential of agentk. Otherwise a server behind it sent the 401: an
    /// application behind `…/proxy/`, an aggregated API, a kubelet.
    ///
    /// The API server itself serves `/api`, and requires a credential for it. If it does not answer, the credential counts
    /// as refused: a 401 of another server is far rarer.
    async fn is_refused(&self, credential: Option<HeaderValue>) -> bool {
        let request = Request::get("/api").body(Body::empty()).expect("constants");
        let answered = timeout(OWN_REQUEST_TIMEOUT, self.exchange(request, credential)).await;
        !matches!(answered, Ok(Ok(response)) if response.status() != StatusCode::UNAUTHORIZED)
    }

    /// Discards the credential that the API server refused, and returns the error for it.
    fn unauthorized(&self) -> ServiceError {
        self.cluster.invalidate_credential();
        self.api.renew_connections();
        let what = if self.cluster.is_anonymous() {
            format!("{} requires a credential (401): name a user in agentk's kubeconfig", self.cluster)
        } else {
            format!("{} refused agentk's credential (401)", self.cluster)
        };
        ServiceError::new(Reason::ClusterCredential, what)
    }

    /// Returns the cluster's version, if the API server sends it. A response without one still proves that it is reachable.
    pub async fn version(&self) -> Result<Option<String>, ServiceError> {
        let request = Request::get("/version").body(Body::empty()).expect("constants");
        let (_, body) = self.send_own(request).await?;
        Ok(serde_json::from_slice(&body).ok().map(|Version { git_version }| git_version))
    }

    /// Returns true if agentk itself may do this to `resource` (`pods`, `pods/log`) in all namespaces.
    pub async fn may(&self, verb: &str, group: &str, resource: &str) -> Result<bool, ServiceError> {
        self.may_in(None, verb, group, resource).await
    }

    /// The same in one namespace, or in all.
    pub(crate) async fn may_in(
        &self,
        namespace: Option<&str>,
        verb: &str,
        group: &str,
        resource: &str,
    ) -> Result<bool, ServiceError> {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let namespace = namespace.unwrap_or_default();
        let attributes = json!({
            "namespace": namespace, "verb": verb, "group": group, "resource": resource, "subresource": subresource,
        });
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        });
        let request = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(review.to_string()))
            .expect("constants");
        let (status, body) = self.send_own(request).await?;
        serde_json::from_slice(&body).map(|Review { status }| status.allowed).map_err(|_| {
            let what = format!("{} answered {status} to a SelfSubjectAccessReview", self.cluster.url());
            ServiceError::new(Reason::ClusterMisbehaved, what)
        })
    }

    /// Looks a namespace up.
    pub(crate) async fn namespace(&self, name: &str) -> Result<NamespaceLookup, ServiceError> {
        let request = Request::get(format!("/api/v1/namespaces/{name}"))
            .header(ACCEPT, "application/json")
            .body(Body::empty())
            .expect("a namespace has a name without special characters");
        let (status, body) = self.send_own(request).await?;
        match status {
            StatusCode::NOT_FOUND => Ok(NamespaceLookup::Missing),
            StatusCode::FORBIDDEN => Ok(NamespaceLookup::Forbidden),
            _ => serde_json::from_slice(&body)
                .map(|Namespace { metadata }| NamespaceLookup::Found { uid: metadata.uid })
                .map_err(|_| {
                    let what = format!("{} answered {status} to GET of a namespace", self.cluster.url());
                    ServiceError::new(Reason::ClusterMisbehaved, what)
                }),
        }
    }

    /// Returns the UID of the namespace `kube-system`, which identifies the cluster, if agentk may read it.
    pub async fn cluster_uid(&self) -> Option<String> {
        match self.namespace("kube-system").await {
            Ok(NamespaceLookup::Found { uid }) => Some(uid),
            Ok(NamespaceLookup::Missing | NamespaceLookup::Forbidden) => None,
            Err(error) => {
                tracing::debug!(%error, "the UID of kube-system cannot be read");
                None
            }
        }
    }

    /// Returns the object, or the short list of objects, at `path`.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ServiceError> {
        let request = Request::get(path).header(ACCEPT, "application/json").body(Body::empty());
        let (status, body) = self.send_own(request.expect("a path of agentk's own")).await?;
        if status == StatusCode::FORBIDDEN {
            let what =
                format!("agentk may not read {path} in its cluster (403): its RBAC role lacks this right");
            return Err(ServiceError::new(Reason::ClusterCredential, what));
        }
        serde_json::from_slice(&body).map_err(|_| {
            let what = format!("{} answered {status} to GET {path}", self.cluster.url());
            ServiceError::new(Reason::ClusterMisbehaved, what)
        })
    }

    /// Sends a small request of agentk's own and collects the body of the response.
    async fn send_own(&self, request: Request<Body>) -> Result<(StatusCode, Bytes), ServiceError> {
        // Before the time starts: the API server is not the cause if a credential plugin hangs.
        let credential = self.credential().await?;
        let exchange = async {
            let response = self.exchange(request, credential).await?;
            let status = response.status();
            if status == StatusCode::UNAUTHORIZED {
                return Err(self.unauthorized());
            }
            if status.is_server_error() {
                let what = format!("{} answered {status}", self.cluster.url());
                return Err(ServiceError::new(Reason::ClusterMisbehaved, what));
            }
            let body = Limited::new(response.into_body(), OWN_RESPONSE_MAX).collect().await;
            Ok((status, body.map(|body| body.to_bytes()).unwrap_or_default()))
        };

        timeout(OWN_REQUEST_TIMEOUT, exchange).await.unwrap_or_else(|_| {
            let what = format!("no answer from {} within {OWN_REQUEST_TIMEOUT:?}", self.cluster.url());
            Err(ServiceError::new(Reason::ClusterTimeout, what))
        })
    }

    /// Returns the user of agentk in the cluster, if its credential is the token of a service account.
    pub async fn service_account(&self) -> Option<String> {
        let credential = self.credential().await.ok()??;
        let token = credential.to_str().ok()?.strip_prefix("Bearer ")?;
        subject(token).filter(|subject| subject.starts_with("system:serviceaccount:"))
    }

    /// Returns a description for people: the address of the API server and the identity of agentk there.
    pub fn describe(&self) -> String {
        self.cluster.to_string()
    }

    /// Adds the impersonation of the kubeconfig, if it has one.
    fn impersonate(&self, headers: &mut HeaderMap) -> Result<(), ServiceError> {
        let Some(impersonation) = self.cluster.impersonation() else { return Ok(()) };
        if headers.keys().any(|name| name.as_str().starts_with(impersonation::PREFIX)) {
            let what = "agentk's kubeconfig and kas's configuration both impersonate a user, which Kubernetes does not \
                        support: remove `as` from the kubeconfig, or access_as from kas's configuration";
            return Err(ServiceError::new(Reason::NestedImpersonation, what));
        }
        for (name, value) in impersonation {
            headers.append(name.clone(), value.clone());
        }

        Ok(())
    }

    async fn credential(&self) -> Result<Option<HeaderValue>, ServiceError> {
        let credential = self.cluster.authorization().await;
        credential.map_err(|error| ServiceError::new(Reason::ClusterCredential, error))
    }
}

impl RequestHandler for KubernetesService {
    async fn handle(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        let is_watch = is_watch(request.method(), request.uri());
        let mut response = self.send(request).await?;
        if is_watch {
            response.extensions_mut().insert(WatchResponse);
        }
        Ok(response)
    }
}

/// Returns the subject of a token (RFC 7519), which is agentk's own and need not be verified.
fn subject(token: &str) -> Option<String> {
    let claims = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let Claims { sub } = serde_json::from_slice(&claims).ok()?;
    Some(sub)
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    git_version: String,
}

/// The result of looking a namespace up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NamespaceLookup {
    /// The namespace exists.
    Found {
        /// The UID of the namespace.
        uid: String,
    },
    /// The namespace does not exist.
    Missing,
    /// agentk may not read the namespace.
    Forbidden,
}

#[derive(Deserialize)]
struct Namespace {
    metadata: NamespaceMetadata,
}

#[derive(Deserialize)]
struct NamespaceMetadata {
    uid: String,
}

#[derive(Deserialize)]
struct Review {
    status: ReviewStatus,
}

#[derive(Deserialize)]
struct ReviewStatus {
    allowed: bool,
}

/// Returns true if the request is a watch.
fn is_watch(method: &Method, uri: &Uri) -> bool {
    // Most requests are no watches, and are not parsed a second time.
    let path = uri.path();
    if uri.query().is_none() && !path.contains("/watch/") && !path.contains('%') {
        return false;
    }
    let Ok(path) = DecodedPath::new(uri) else { return false };
    RequestInfo::new(method, &path, uri.query()).is_ok_and(|info| info.verb == "watch")
}

/// Returns true if the API server itself limits the time of such a request: it is no watch, no log and no stream.
///
/// This is `BasicLongRunningRequestCheck` of k8s.io/apiserver (pkg/server/filters/longrunning.go) with the verbs and
/// subresources of kube-apiserver, whose `--request-timeout` (60 s) is for the same requests. A request that cannot be
/// interpreted has no limit: it may have a path of an application behind `…/proxy/`.
fn has_time_limit(method: &Method, uri: &Uri) -> bool {
    let Ok(path) = DecodedPath::new(uri) else { return false };
    let Ok(info) = RequestInfo::new(method, &path, uri.query()) else { return false };
    match info.target {
        RequestTarget::Path(path) => !path.starts_with("/debug/pprof/"),
        RequestTarget::Resource(resource) => {
            !matches!(info.verb, "watch" | "proxy")
                && !matches!(resource.subresource, Some("attach" | "exec" | "log" | "portforward" | "proxy"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_of_a_service_account_names_its_user() {
        let token = |claims: &str| format!("h.{}.s", BASE64_URL_SAFE_NO_PAD.encode(claims));
        let sub = "system:serviceaccount:agentk:agentk";
        assert_eq!(subject(&token(&format!(r#"{{"iss":"a","sub":"{sub}"}}"#))).as_deref(), Some(sub));
        for other in ["", "opaque", "a.b", "a.%.c", &token("{}"), &token("[]")] {
            assert_eq!(subject(other), None, "{other}");
        }
    }

    #[test]
    fn only_short_requests_have_a_time_limit() {
        for (target, expected) in [
            ("/version", true),
            ("/api/v1/pods", true),
            ("/api/v1/pods?watch=false", true),
            ("/api/v1/namespaces/a/pods/log", true),
            ("/apis/apps/v1/namespaces/a/deployments/b/scale", true),
            ("/api/v1/pods?watch=1", false),
            ("/api/v1/pods?watch", false),
            ("/api/v1/watch/pods", false),
            ("/api/v1/namespaces/a/pods/b/log", false),
            ("/api/v1/namespaces/a/pods/b/log?follow=true", false),
            ("/api/v1/namespaces/a/pods/b/exec?command=sh", false),
            ("/api/v1/namespaces/a/pods/b/attach", false),
            ("/api/v1/namespaces/a/pods/b/portforward", false),
            ("/api/v1/namespaces/a/services/b/proxy/slow", false),
            ("/api/v1/namespaces/a/services/b/proxy//slow", false),
            ("/debug/pprof/profile?seconds=120", false),
        ] {
            assert_eq!(has_time_limit(&Method::GET, &target.parse().unwrap()), expected, "{target}");
        }
    }
}
