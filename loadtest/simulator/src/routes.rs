//! The routes of the API server.

use http::{Method, StatusCode};

use super::error::StatusError;
use super::request::{ApiRequest, decode};
use super::resources::Resource;
use super::response::{self, ApiResponse};
use super::{discovery, identity, objects, openapi, prometheus};

/// The target of a path: an object, a collection or a subresource.
#[derive(Debug)]
pub(crate) struct Target {
    pub resource: &'static Resource,
    /// `None` for objects outside namespaces, and for a collection across all of them.
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub subresource: Option<String>,
}

/// Handles a request.
pub(crate) async fn route(call: ApiRequest) -> ApiResponse {
    let path = call.request.uri().path().to_owned();
    if let Some(path) = path.strip_prefix(prometheus::PREFIX) {
        return prometheus::answer(call, path).await;
    }
    match answer(call, &path).await {
        Ok(reply) => reply,
        Err(failure) => response::failure(&failure),
    }
}

async fn answer(call: ApiRequest, path: &str) -> Result<ApiResponse, StatusError> {
    let segments: Vec<String> =
        path.split('/').filter(|segment| !segment.is_empty()).map(|segment| decode(segment).into()).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    match segments.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => reading(&call).map(|()| response::text(StatusCode::OK, "ok")),
        ["openapi", "v3", document @ ..] => reading(&call).and_then(|()| openapi::answer(document)),
        ["version"] | ["api"] | ["apis"] | ["api", _] | ["apis", _] | ["apis", _, _] => {
            reading(&call).and_then(|()| discovery::answer(&segments))
        }
        ["apis", "authentication.k8s.io", "v1", "selfsubjectreviews"] => identity::review(call).await,
        ["api", version, rest @ ..] => objects::answer(call, target("", version, rest)?).await,
        ["apis", group, version, rest @ ..] => objects::answer(call, target(group, version, rest)?).await,
        _ => Err(StatusError::no_such_path()),
    }
}

fn reading(call: &ApiRequest) -> Result<(), StatusError> {
    match *call.request.method() {
        Method::GET | Method::HEAD => Ok(()),
        _ => Err(StatusError::method_not_allowed()),
    }
}

fn target(group: &str, version: &str, path: &[&str]) -> Result<Target, StatusError> {
    let (namespace, path) = match path {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
        _ => (None, path),
    };
    let (plural, rest) = path.split_first().ok_or_else(StatusError::no_such_path)?;
    let resource = Resource::find(group, version, plural).ok_or_else(StatusError::no_such_path)?;
    let (name, subresource) = match rest {
        [] => (None, None),
        [name] => (Some((*name).to_owned()), None),
        [name, subresource] => (Some((*name).to_owned()), Some((*subresource).to_owned())),
        _ => return Err(StatusError::no_such_path()),
    };
    // Only paths of namespaced objects contain a namespace.
    let misplaced =
        if resource.namespaced { namespace.is_none() && name.is_some() } else { namespace.is_some() };
    if misplaced {
        return Err(StatusError::no_such_path());
    }
    Ok(Target { resource, namespace, name, subresource })
}
