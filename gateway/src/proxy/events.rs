//! The events of one agent, which kas answers itself: `GET /agents/<agent>/events/v1/events`.

use std::time::Duration;

use access::RequestError;
use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use http_body_util::StreamBody;
use proto::{Reason, ServiceName, events::EVENTS_PATH};
use tokio::time::Instant;
use tunnel::Body;

use super::context::{Access, RequestContext};
use crate::{
    events::{EVENT_STREAM, EventAnswer, EventRequest, EventRequestError},
    forward::ForwardedResponse,
};

/// Returns whether kas answers requests for the service itself.
pub(super) fn answers(access: &Access) -> bool {
    access.destination.service.as_str() == ServiceName::EVENTS
}

/// Returns the response to a request for the events of the agent, which need not be connected.
///
/// # Errors
///
/// The path, the method or a parameter is wrong, or too many others follow.
pub(super) fn respond(
    context: &RequestContext,
    access: &Access,
    head: &Request<()>,
) -> Result<ForwardedResponse, RequestError> {
    let path = access.uri.path();
    if path != EVENTS_PATH {
        let what = format!("there is nothing at {path} of the service events; it has {EVENTS_PATH}");
        return Err(RequestError::new(Reason::UnknownPath, what));
    }
    if !matches!(*head.method(), Method::GET | Method::HEAD) {
        let mut error = RequestError::new(Reason::MethodNotAllowed, format!("the method of {path} is GET"));
        error.allow = Some(HeaderValue::from_static("GET, HEAD"));
        return Err(error);
    }
    let server = &context.server;
    let request = EventRequest {
        query: access.uri.query(),
        headers: head.headers(),
        only: Some(access.destination.agent),
        caller: Some(&access.grant.caller),
        replica: server.replica,
        draining: &server.connections.draining,
    };
    let answer = server.events.answer(request).map_err(|error| match error {
        EventRequestError::Query(error) => RequestError::bad_request(error.to_string()),
        EventRequestError::TooMany(error) => RequestError::new(Reason::TooManyRequests, error.to_string())
            .with_retry_after(Duration::from_secs(5)),
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
    let mut response = Response::new(if head.method() == Method::HEAD { Body::empty() } else { body });
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(ForwardedResponse { response, request_permit: None, owner: None, sent: Instant::now() })
}
