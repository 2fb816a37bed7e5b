//! Requests to the Kubernetes API of an agent's cluster.

use access::ErrorDialect;
use http::{Method, Uri};
use proto::ServiceName;
use request_info::{DecodedPath, RequestInfo, RequestTarget};

use super::{Operation, RequestType, asks_for_stream};

/// The type `kubernetes`.
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

    fn operation(&self, method: &Method, uri: &Uri) -> Operation {
        let by_method = Operation::of_method(method);
        let decoded = DecodedPath::new(uri);
        let info = decoded.as_ref().map_err(|error| *error);
        match info.and_then(|path| RequestInfo::new(method, path, uri.query())) {
            Ok(info) => {
                Operation { verb: info.verb.to_owned(), reads_secret: reads_secret(&info), ..by_method }
            }
            // Every other method is a change already, or reads nothing.
            Err(_) => Operation { unclear_path: matches!(*method, Method::GET | Method::HEAD), ..by_method },
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
