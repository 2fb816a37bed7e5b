//! Responses of the page itself.

use std::time::Duration;

use axum::body::Body;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
};
use serde::Serialize;

pub(super) fn refusal(status: StatusCode, what: &str) -> Response<Body> {
    respond(status, "text/plain; charset=utf-8", format!("{what}\n"))
}

pub(super) fn json(value: &impl Serialize) -> Response<Body> {
    let text = serde_json::to_string(value).expect("it has keys that are text");
    respond(StatusCode::OK, "application/json", text)
}

pub(super) fn respond(status: StatusCode, content_type: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

pub(super) fn with_retry_after(response: &mut Response<Body>, wait: Option<Duration>) {
    if let Some(wait) = wait {
        response.headers_mut().insert(RETRY_AFTER, wait.as_secs().into());
    }
}
