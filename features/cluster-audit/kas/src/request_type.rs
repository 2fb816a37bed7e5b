//! The type of the requests for the audit log of an agent's cluster.

use http::{Method, Uri};
use proto::ServiceName;

use kas_core::request_types::{RequestOperation, RequestType};

/// The type of the service `audit`.
#[derive(Debug)]
pub(crate) struct Audit;

impl RequestType for Audit {
    fn name(&self) -> &'static str {
        ServiceName::AUDIT
    }

    /// Whoever reads who did what has a line in the audit log of kas.
    fn operation(&self, method: &Method, _uri: &Uri) -> RequestOperation {
        RequestOperation { reads_secret: true, ..RequestOperation::of_method(method) }
    }
}
