//! The hooks by which features take part in the requests of callers.

use std::{fmt::Debug, net::IpAddr, sync::Arc, time::SystemTime};

use access::{Grant, ManagedEnvironment, RequestError};
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri};
use proto::{Hello, ReplicaId, TunnelId};
use tunnel::Body;

use crate::{destination::Destination, timing::RequestTiming};

/// A request whose caller may send it.
#[derive(Clone, Copy, Debug)]
pub struct AuthorizedRequest<'a> {
    /// Identifies the request in the response and in all logs.
    pub id: &'a HeaderValue,
    /// The address of the caller.
    pub client: IpAddr,
    /// The method.
    pub method: &'a Method,
    /// Path and query as the service receives them.
    pub uri: &'a Uri,
    /// The caller asks for an upgrade to another protocol.
    pub upgrade: bool,
    /// The rights of the caller.
    pub grant: &'a Arc<Grant>,
    /// The agent and its service.
    pub destination: &'a Destination,
    /// The environment whose objects have to exist before.
    pub environment: Option<&'a ManagedEnvironment>,
}

/// Lets a feature answer or change the requests of callers. kas calls the methods in the order in which they stand here. Each decides by
/// itself which requests concern it, and returns at once for the others.
///
/// A request may be dropped at any time, with the future of [`Self::before`].
pub trait RequestHooks: Debug + Send + Sync {
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

/// Lets a feature see the result of each request, and each line of the audit log. The methods are called while callers wait, so that they do
/// no I/O.
pub trait RequestObserver: Debug + Send + Sync {
    /// A request has its response. Each request comes here at most once.
    fn on_result(&self, request: &ObservedRequest<'_>);

    /// The audit log has a new line, which ends with a line break.
    fn on_audit_line(&self, line: &[u8]);
}

/// A request of a caller, with its result.
#[derive(Debug)]
pub struct ObservedRequest<'a> {
    /// The time at which the head of the request was complete.
    pub time: SystemTime,
    /// Identifies the request in the response and in all logs.
    pub id: &'a HeaderValue,
    /// The method.
    pub method: &'a Method,
    /// The rights of the caller and the agent, if the request was authorized.
    pub access: Option<(&'a Arc<Grant>, &'a Destination)>,
    /// The response or the error that the caller receives.
    pub result: RequestResult<'a>,
}

/// The response or the error for a request.
#[derive(Debug)]
pub enum RequestResult<'a> {
    /// The response begins.
    Answered {
        /// The status of the response.
        status: StatusCode,
        /// The times up to the head of the response.
        timing: RequestTiming,
        /// The receiver of the request, unless a feature has answered it.
        hop: Option<Hop>,
    },
    /// The caller receives an error of kas or of its agent.
    Refused(&'a RequestError),
}

/// The receiver of a request.
#[derive(Clone, Debug)]
pub enum Hop {
    /// A tunnel to this replica.
    Tunnel(TunnelId, Arc<Hello>),
    /// A replica that holds a tunnel.
    Replica(ReplicaId),
}
