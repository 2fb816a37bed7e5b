//! Requests to the Kubernetes API of an agent's cluster.

use access::ErrorDialect;
use http::{Method, Uri};
use proto::ServiceName;
use request_info::{DecodedPath, RequestInfo, RequestTarget};

use super::{RequestOperation, RequestType, asks_for_stream};

/// The type `kubernetes`.
#[derive(Debug)]
pub(super) struct Kubernetes;

impl RequestType for Kubernetes {
    fn name(&self) -> &'static str {
        ServiceName::KUBERNETES
    }

    fn dialect(&self) -> ErrorDialect {
        ErrorDialect::Kubernetes
    }

    fn is_streaming(&self, path: &str, query: &str) -> bool {
        path.starts_with("/api/v1/watch/") || asks_for_stream(query)
    }

    fn is_application(&self, path: &str) -> bool {
        let Some(path) = path.strip_prefix("/api/v1/") else { return false };
        let mut parts = path.split('/');
        match parts.next() {
            Some("namespaces") => {
                matches!(parts.nth(1), Some("pods" | "services")) && parts.nth(1) == Some("proxy")
            }
            Some("nodes") => parts.nth(1) == Some("proxy"),
            _ => false,
        }
    }

    fn operation(&self, method: &Method, uri: &Uri) -> RequestOperation {
        let by_method = RequestOperation::of_method(method);
        let decoded = DecodedPath::new(uri);
        let info = decoded.as_ref().map_err(|error| *error);
        match info.and_then(|path| RequestInfo::new(method, path, uri.query())) {
            Ok(info) => RequestOperation {
                verb: info.verb.to_owned(),
                reads_secret: reads_secret(&info),
                ..by_method
            },
            // Every other method is a change already, or reads nothing.
            Err(_) => {
                RequestOperation { unclear_path: matches!(*method, Method::GET | Method::HEAD), ..by_method }
            }
        }
    }
}

fn reads_secret(info: &RequestInfo<'_>) -> bool {
    let RequestTarget::Resource(target) = &info.target else { return false };
    let secrets = target.group.is_empty()
        && target.resource == "secrets"
        && matches!(info.verb, "get" | "list" | "watch");
    secrets || target.subresource == Some("token")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn application_is_behind_the_proxy_of_a_pod_a_service_or_a_node() {
        for (path, expected) in [
            ("/api/v1/namespaces/a/services/http:web:80/proxy/socket", true),
            ("/api/v1/namespaces/a/pods/b/proxy", true),
            ("/api/v1/nodes/c/proxy/metrics", true),
            ("/api/v1/namespaces/a/pods/proxy", false),
            ("/api/v1/namespaces/a/pods/b/log", false),
            ("/api/v1/namespaces/a/configmaps/b/proxy", false),
            ("/apis/v1/namespaces/a/services/b/proxy", false),
            ("/api/v1/namespaces/services/proxy", false),
            ("/api/v1/nodes", false),
            ("/", false),
        ] {
            assert_eq!(Kubernetes.is_application(path), expected, "{path}");
        }
    }
}
