//! The type of the requests for the graph.

use http::{Method, Uri};
use proto::{ServiceName, graph::WATCH_PATH};

use kas_core::request_types::RequestType;

/// The type of the service `graph`.
#[derive(Debug)]
pub(crate) struct GraphRequests;

impl RequestType for GraphRequests {
    fn name(&self) -> &'static str {
        ServiceName::GRAPH
    }

    fn is_streaming(&self, path: &str, _query: &str) -> bool {
        path == WATCH_PATH
    }

    fn is_watch(&self, _method: &Method, uri: &Uri) -> bool {
        uri.path() == WATCH_PATH
    }
}
