//! The hooks by which features take part in the requests of callers.

use std::{fmt::Debug, net::IpAddr, sync::Arc};

use access::{Grant, ManagedEnvironment, RequestError};
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Response, Uri};
use tunnel::Body;

use crate::destination::Destination;

/// A request whose caller may send it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AuthorizedRequest<'a> {
    /// Identifies the request in the response and in all logs.
    pub(crate) id: &'a HeaderValue,
    /// The address of the caller.
    pub(crate) client: IpAddr,
    /// The method.
    pub(crate) method: &'a Method,
    /// Path and query as the service receives them.
    pub(crate) uri: &'a Uri,
    /// The caller asks for an upgrade to another protocol.
    pub(crate) upgrade: bool,
    /// The rights of the caller.
    pub(crate) grant: &'a Arc<Grant>,
    /// The agent and its service.
    pub(crate) destination: &'a Destination,
    /// The environment whose objects have to exist before.
    pub(crate) environment: Option<&'a ManagedEnvironment>,
}

/// Lets a feature answer or change the requests of callers. kas calls the methods in the order in which they stand here. Each decides by
/// itself which requests concern it, and returns at once for the others.
///
/// A request may be dropped at any time, with the future of [`Self::before`].
pub(crate) trait RequestHooks: Debug + Send + Sync {
    /// Answers the request, which is not sent to the agent then. `headers` are those of the caller.
    fn answer(
        &self,
        _request: AuthorizedRequest<'_>,
        _headers: &HeaderMap,
    ) -> Option<Result<Response<Body>, RequestError>> {
        None
    }

    /// Returns what has to be done before the request is sent, if there is something. Its error is that of the request.
    fn before<'a>(
        &'a self,
        _request: AuthorizedRequest<'a>,
    ) -> Option<BoxFuture<'a, Result<(), RequestError>>> {
        None
    }

    /// Changes the headers that the agent receives. They have the identity of the caller, and nothing of it that only kas may set.
    fn on_request(&self, _request: AuthorizedRequest<'_>, _headers: &mut HeaderMap) {}

    /// Changes a response of the agent, which is not trusted, or refuses it. Answers of hooks pass here, too.
    fn on_response(
        &self,
        _request: AuthorizedRequest<'_>,
        response: Response<Body>,
    ) -> Result<Response<Body>, RequestError> {
        Ok(response)
    }
}
