//! The type of the requests for the graph.

use proto::{ServiceName, graph::WATCH_PATH};

use kas_core::request_types::RequestType;

/// The type of the service `graph`.
#[derive(Debug)]
pub(in crate::features) struct Graph;

impl RequestType for Graph {
    fn name(&self) -> &'static str {
        ServiceName::GRAPH
    }

    fn is_streaming(&self, path: &str, _query: &str) -> bool {
        path == WATCH_PATH
    }
}
