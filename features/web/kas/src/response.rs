//! Responses of the page itself.

use std::time::Duration;

use access::RequestError;
use axum::body::Body;
use http::{
    HeaderValue, Response, StatusCode,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, SET_COOKIE},
};
use proto::{Reason, header::ERROR};
use serde::Serialize;
use store::StoreError;

use super::{NO_STORE, RETRY_STORE, TOO_MANY};

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

pub(super) fn no_session() -> Response<Body> {
    unauthorized("log in: there is no session, or it has ended, or its token was revoked")
}

/// Refuses a request of a page that another caller has loaded. The two share the cookie of the browser.
pub(super) fn other_caller(name: &str) -> Response<Body> {
    unauthorized(&format!("this browser has logged in as {name} since the page was loaded: load it again"))
}

pub(super) fn unauthorized(what: &str) -> Response<Body> {
    let mut response = refusal(StatusCode::UNAUTHORIZED, what);
    // A 401 of a cluster has no `Kas-Error`, so that the page can tell them apart.
    response.headers_mut().insert(ERROR, HeaderValue::from_static(Reason::Unauthorized.as_str()));
    response
}

pub(super) fn limited(error: &RequestError) -> Response<Body> {
    refused(&RequestError { message: TOO_MANY.to_owned(), ..error.clone() })
}

pub(super) fn refused(error: &RequestError) -> Response<Body> {
    let mut response = refusal(error.reason.status(), &error.message);
    with_retry_after(&mut response, error.retry_after);
    response
}

pub(super) fn unavailable(error: &StoreError) -> Response<Body> {
    tracing::debug!(%error, "session of a browser not found");
    let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE, NO_STORE);
    with_retry_after(&mut response, Some(RETRY_STORE));
    response
}

pub(super) fn wrong_method(allowed: &'static str) -> Response<Body> {
    let mut response =
        refusal(StatusCode::METHOD_NOT_ALLOWED, &format!("the methods of this path are {allowed}"));
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

pub(super) fn with_cookie(status: StatusCode, cookie: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    let cookie = HeaderValue::from_str(cookie).expect("base64 and constants");
    response.headers_mut().insert(SET_COOKIE, cookie);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
