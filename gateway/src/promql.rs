//! Callers who see only the series with certain labels: what they ask of Prometheus is rewritten, or refused.
//!
//! ```text
//!  request ──► endpoints: which parameters name series? ──► parameters: of the URL and the form
//!                                                               │
//!  request ◄── encoded anew ◄── selectors: every selector gets the matchers ◄── complexity: is it parsed quickly?
//! ```
//!
//! * **What is not understood is refused.** Endpoints, methods, content types, PromQL: all are lists of what is known.
//! * **The query that is sent is the one that was checked.** It is printed from the syntax tree, parsed once more and
//!   compared: no comment, escape or spelling that another parser might read differently gets through.
//! * **The result is an intersection.** Matchers are added, and none is taken away.

mod complexity;
mod endpoints;
mod form;
mod labels;
mod parameters;
mod selectors;

use http::{
    HeaderMap, HeaderValue, Method, Request, Uri,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING, UPGRADE},
    uri::PathAndQuery,
};
use proto::Reason;
use tunnel::Body;

use self::{endpoints::Endpoint, parameters::Parameters};
pub use self::{
    labels::{InvalidLabels, Labels},
    selectors::Rewriter,
};
use crate::failure::Failure;

/// Longest path and query of a rewritten request: a little less than what the `http` crate takes, 64 KiB.
pub const MAX_URL_BYTES: usize = 60 << 10;

const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");

/// Makes a request one that shows only series with these labels. Reads the form of a POST, of at most `max_form` bytes.
pub async fn enforce(
    labels: &Labels,
    request: Request<Body>,
    max_form: usize,
) -> Result<Request<Body>, Failure> {
    let (mut head, body) = request.into_parts();
    if head.headers.contains_key(UPGRADE) {
        // It would travel without its form, whose parameters were counted.
        return Err(not_enforceable("this caller sees only series with certain labels, and may not upgrade"));
    }
    let endpoint = Endpoint::of(&head.method, head.uri.path())?;
    let posted = head.method == Method::POST;
    let form = if posted { form::read(&head.headers, body, max_form).await? } else { Vec::new() };
    let mut url = Parameters::parse(head.uri.query().unwrap_or_default().as_bytes())?;
    let mut form = Parameters::parse(&form)?;

    // Prometheus looks at the form first, then at the URL, and at all values of `match[]` in both.
    let mut rewriter = Rewriter::new(labels);
    let found = endpoint.rewrite(&mut url, &mut rewriter)? + endpoint.rewrite(&mut form, &mut rewriter)?;
    if found == 0 {
        endpoint.add(if posted { &mut form } else { &mut url }, labels)?;
    }

    head.uri = uri(head.uri.path(), &url)?;
    let body = form.encode();
    describe(&mut head.headers, posted.then_some(body.len()));
    Ok(Request::from_parts(head, Body::from(body)))
}

fn uri(path: &str, parameters: &Parameters) -> Result<Uri, Failure> {
    let query = parameters.encode();
    let whole = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
    if whole.len() > MAX_URL_BYTES {
        let what = format!(
            "with the labels of this caller, the URL would have {} bytes and may have {MAX_URL_BYTES}: send the query as a \
             form, with POST",
            whole.len()
        );
        return Err(Failure::new(Reason::HeadTooLarge, what));
    }

    PathAndQuery::try_from(whole)
        .map(Uri::from)
        .map_err(|error| Failure::new(Reason::Internal, error.to_string()))
}

/// Makes the headers say what the body now is: a form of this length, or nothing.
fn describe(headers: &mut HeaderMap, form: Option<usize>) {
    for name in [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, TRANSFER_ENCODING, EXPECT] {
        headers.remove(name);
    }
    if let Some(length) = form {
        headers.insert(CONTENT_TYPE, FORM);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

fn not_enforceable(what: impl Into<String>) -> Failure {
    Failure::new(Reason::NotEnforceable, what)
}

fn bad_request(what: impl Into<String>) -> Failure {
    Failure::new(Reason::BadRequest, what)
}

#[cfg(test)]
mod tests;
