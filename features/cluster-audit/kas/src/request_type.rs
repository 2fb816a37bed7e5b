//! The type of the requests for the audit log of an agent's cluster.

use std::future::ready;

use access::RequestError;
use futures_util::future::BoxFuture;
use http::{Method, Request, Uri};
use kas_core::{
    request_hooks::AuthorizedRequest,
    request_types::{RequestOperation, RequestType},
};
use proto::ServiceName;
use tunnel::Body;

use crate::selection::{EventSelection, has_own, uri_of_agent};

/// The type of the service `audit`.
#[derive(Debug)]
pub(crate) struct Audit;

impl RequestType for Audit {
    fn name(&self) -> &'static str {
        ServiceName::AUDIT
    }

    fn restricts(&self, authorized: AuthorizedRequest<'_>) -> bool {
        authorized.uri.query().is_some_and(has_own)
    }

    /// Removes what kas selects by, which an agentk does not know.
    fn restrict<'a>(
        &'a self,
        authorized: AuthorizedRequest<'a>,
        mut request: Request<Body>,
        _max_form: usize,
    ) -> BoxFuture<'a, Result<Request<Body>, RequestError>> {
        let selection = EventSelection::parse(authorized.uri.query().unwrap_or_default());
        let restricted = selection.map(|_| {
            *request.uri_mut() = uri_of_agent(authorized.uri.clone());
            request
        });
        Box::pin(ready(restricted))
    }

    /// Each reading of who did what has a line in the audit log of kas.
    fn operation(&self, method: &Method, _uri: &Uri) -> RequestOperation {
        RequestOperation { reads_secret: true, ..RequestOperation::of_method(method) }
    }
}
