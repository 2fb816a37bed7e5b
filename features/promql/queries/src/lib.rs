//! Restricts the Prometheus queries of callers that may see only series with certain labels: queries are rewritten or refused.
//!
//! ```text
//!  request ──► endpoints: the parameters with PromQL ──► parameters: of the URL and the form
//!                                                             │
//!  request ◄── encoded again ◄── selectors: add the matchers ◄── complexity: limit the work of the parser ◄── spelling
//! ```
//!
//! * **Unknown input is refused.** Endpoints, methods, content types and PromQL expressions are allowlists.
//! * **The query that is sent is the query that was checked.** It is printed from the syntax tree, parsed again and compared. No
//!   comment, escape or spelling that another parser could read differently is forwarded.
//! * **The result is an intersection.** Matchers are added, and none is removed.
#![warn(missing_docs)]

mod absent;
mod complexity;
mod endpoints;
mod error;
mod form;
mod labels;
mod parameters;
mod selectors;
mod spelling;

use std::error::Error;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Uri,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING, UPGRADE},
    uri::PathAndQuery,
};
use http_body::Body;
use proto::Reason;

use self::{endpoints::Endpoint, parameters::Parameters};
pub use self::{endpoints::is_query, error::QueryError, labels::Labels, selectors::Rewriter};

/// The longest path and query of a rewritten request: a little less than the limit of the `http` crate, 64 KiB.
const MAX_URL_BYTES: usize = 60 << 10;

/// Restricts a request to series with these labels. Reads the form of a POST, which may have `max_form` bytes.
///
/// # Errors
///
/// The reason is `not-enforceable`, `bad-request`, `body-too-large` or `head-too-large`.
pub async fn enforce<B>(
    labels: &Labels,
    request: Request<B>,
    max_form: usize,
) -> Result<Request<Bytes>, QueryError>
where
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>>,
{
    let (mut head, body) = request.into_parts();
    if head.headers.contains_key(UPGRADE) {
        // An upgrade is sent without its form, whose parameters were counted.
        return Err(QueryError::not_enforceable(
            "this caller may see only series with certain labels, and cannot use upgrades",
        ));
    }
    let endpoint = Endpoint::find(&head.method, head.uri.path())?;
    let posted = head.method == Method::POST;
    let form = if posted { form::read(&head.headers, body, max_form).await? } else { Vec::new() };
    let mut url = Parameters::parse(head.uri.query().unwrap_or_default().as_bytes())?;
    let mut form = Parameters::parse(&form)?;

    // Prometheus uses the form before the URL, and all values of `match[]` in both.
    let mut rewriter = Rewriter::new(labels);
    let found = endpoint.rewrite(&mut url, &mut rewriter)? + endpoint.rewrite(&mut form, &mut rewriter)?;
    if found == 0 {
        endpoint.add(if posted { &mut form } else { &mut url }, labels)?;
    }

    head.uri = uri(head.uri.path(), &url)?;
    let body = form.encode();
    describe(&mut head.headers, posted.then_some(body.len()));
    Ok(Request::from_parts(head, body.into()))
}

fn uri(path: &str, parameters: &Parameters) -> Result<Uri, QueryError> {
    let query = parameters.encode();
    let whole = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
    if whole.len() > MAX_URL_BYTES {
        let what = format!(
            "with the labels of this caller, the URL would have {} bytes, and {MAX_URL_BYTES} are allowed: send the query as a \
             form, with POST",
            whole.len()
        );
        return Err(QueryError::new(Reason::HeadTooLarge, what));
    }

    PathAndQuery::try_from(whole)
        .map(Uri::from)
        .map_err(|error| QueryError::new(Reason::Internal, error.to_string()))
}

/// Sets the headers for the new body: a form of this length, or no body.
fn describe(headers: &mut HeaderMap, form: Option<usize>) {
    for name in [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, TRANSFER_ENCODING, EXPECT] {
        headers.remove(name);
    }
    if let Some(length) = form {
        headers.insert(CONTENT_TYPE, form::CONTENT_TYPE_FORM);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

#[cfg(test)]
mod tests;
