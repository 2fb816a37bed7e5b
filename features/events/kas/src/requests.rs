//! The events of one agent, which kas answers itself: `GET /agents/<agent>/events/v1/events`.

use std::time::Duration;

use access::RequestError;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Response,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use http_body_util::StreamBody;
use proto::{Reason, ReplicaId, ServiceName, events::EVENTS_PATH};
use tokio_util::sync::CancellationToken;
use tunnel::Body;

use super::{EVENT_STREAM, EventAnswer, EventRequest, EventRequestError, Events};
use kas_core::request_hooks::{AuthorizedRequest, RequestHooks};

/// Answers the requests for the service `events`, whose agent need not be connected.
#[derive(Debug)]
pub(crate) struct EventRequests {
    pub(crate) events: Events,
    /// This replica.
    pub(crate) replica: ReplicaId,
    /// Cancelled when the replica stops.
    pub(crate) draining: CancellationToken,
}

impl RequestHooks for EventRequests {
    /// Answers a request for the events of the agent.
    ///
    /// # Errors
    ///
    /// The path, the method or a parameter is wrong, or too many others follow.
    fn answer(
        &self,
        request: AuthorizedRequest<'_>,
        headers: &HeaderMap,
    ) -> Option<Result<Response<Body>, RequestError>> {
        let is_own = request.destination.service.as_str() == ServiceName::EVENTS;
        is_own.then(|| self.respond(request, headers))
    }
}

impl EventRequests {
    fn respond(
        &self,
        request: AuthorizedRequest<'_>,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, RequestError> {
        let AuthorizedRequest { method, uri, .. } = request;
        let path = uri.path();
        if path != EVENTS_PATH {
            let what = format!("there is nothing at {path} of the service events; it has {EVENTS_PATH}");
            return Err(RequestError::new(Reason::UnknownPath, what));
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            let mut error =
                RequestError::new(Reason::MethodNotAllowed, format!("the method of {path} is GET"));
            error.allow = Some(HeaderValue::from_static("GET, HEAD"));
            return Err(error);
        }
        let request = EventRequest {
            query: uri.query(),
            headers,
            only: Some(request.destination.agent),
            caller: Some(&request.grant.caller),
            replica: self.replica,
            draining: &self.draining,
        };
        let answer = self.events.answer(request).map_err(|error| match error {
            EventRequestError::Query(error) => RequestError::bad_request(error.to_string()),
            EventRequestError::TooMany(error) => {
                RequestError::new(Reason::TooManyRequests, error.to_string())
                    .with_retry_after(Duration::from_secs(5))
            }
        })?;
        let (kind, body) = match answer {
            EventAnswer::List(list) => {
                let text = serde_json::to_string(&list).expect("it has keys that are text") + "\n";
                ("application/json", Body::from(Bytes::from(text)))
            }
            EventAnswer::Stream(stream) => {
                (EVENT_STREAM, Body::new(StreamBody::new(Box::pin(stream.into_frames()))))
            }
        };
        let mut response = Response::new(if *method == Method::HEAD { Body::empty() } else { body });
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }
}
