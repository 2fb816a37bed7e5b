//! The meaning of GitLab's responses.

use std::time::Duration;

use bytes::Bytes;
use http::{
    Response, StatusCode,
    header::{LOCATION, RETRY_AFTER},
};
use serde::{Deserialize, de::DeserializeOwned};

use access::SourceUnavailable;

/// `Retry-After` for callers if GitLab has sent none.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(5);
/// The longest `Retry-After` of GitLab that kas uses.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// The longest message of GitLab in errors, in characters.
const MAX_MESSAGE: usize = 200;
/// The beginning of the message of a 401 that is about kas, and not about the credential of an agent or a user.
const JWT_REFUSED: &str = "KAS JWT";

/// The error of a request to GitLab.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GitLabError {
    /// GitLab has refused the request. The status is 4xx.
    #[error("GitLab responded with {status}: {message}")]
    Status {
        /// The status.
        status: StatusCode,
        /// The reason in the body, for logs. It is printable and has at most 200 characters.
        message: String,
    },
    /// GitLab gave no answer that can be used.
    #[error("GitLab is not available: {message}")]
    Unavailable {
        /// The cause.
        message: String,
        /// The time after which another attempt is useful.
        retry_after: Duration,
    },
}

/// A failed attempt.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) error: GitLabError,
    /// Another attempt may succeed.
    pub(super) retryable: bool,
    /// The `Retry-After` of GitLab.
    pub(super) requested: Option<Duration>,
    /// The body of the response is too large.
    pub(super) is_too_large: bool,
}

#[derive(Deserialize)]
struct ErrorBody {
    message: Option<serde_json::Value>,
    error: Option<serde_json::Value>,
    /// The errors of GraphQL, of which the first one is enough.
    #[serde(default)]
    errors: Vec<GraphQlError>,
}

#[derive(Deserialize)]
struct GraphQlError {
    message: Option<serde_json::Value>,
}

impl GitLabError {
    /// Creates the error of a GitLab that does not answer.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable { message: message.into(), retry_after: DEFAULT_RETRY_AFTER }
    }

    /// Returns whether GitLab responded with this status.
    pub fn is_status(&self, expected: StatusCode) -> bool {
        matches!(self, Self::Status { status, .. } if *status == expected)
    }
}

impl From<GitLabError> for SourceUnavailable {
    fn from(error: GitLabError) -> Self {
        let retry_after = match &error {
            GitLabError::Status { .. } => DEFAULT_RETRY_AFTER,
            GitLabError::Unavailable { retry_after, .. } => *retry_after,
        };
        Self { message: error.to_string(), retry_after }
    }
}

impl Failure {
    pub(super) fn unavailable(message: impl Into<String>, retryable: bool) -> Self {
        let error = GitLabError::unavailable(message);
        Self { error, retryable, requested: None, is_too_large: false }
    }
}

/// Returns the value in the body of a successful response, or the error of another one.
///
/// An empty body is `null`, which is the value `()`.
pub(super) fn parse<T: DeserializeOwned>(response: &Response<Bytes>) -> Result<T, Failure> {
    let (status, headers, body) = (response.status(), response.headers(), &**response.body());
    if status.is_success() {
        let body = if body.is_empty() { b"null" } else { body };
        // The error of the parser may quote the body, which has secrets.
        return serde_json::from_slice(body).map_err(|_| {
            Failure::unavailable(format!("the body of its {status} is not the expected JSON"), false)
        });
    }
    let message = message(body);
    if status.is_redirection() {
        let location = headers.get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or("nowhere");
        let what = format!(
            "it redirects to {}: gitlab.address has to be the URL that responds itself",
            printable(location)
        );
        return Err(Failure::unavailable(what, false));
    }
    if status == StatusCode::UNAUTHORIZED && message.starts_with(JWT_REFUSED) {
        let what = "it refuses the JWT of kas: gitlab.authentication_secret_file differs from the secret of GitLab, \
                    or the clocks differ";
        return Err(Failure::unavailable(what, false));
    }
    if status.is_client_error()
        && ![StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status)
    {
        let error = GitLabError::Status { status, message };
        return Err(Failure { error, retryable: false, requested: None, is_too_large: false });
    }
    let requested = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let requested = requested.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER));
    let retry_after = requested.unwrap_or(DEFAULT_RETRY_AFTER);
    let error = GitLabError::Unavailable { message: format!("it responded with {status}"), retry_after };
    Err(Failure { error, retryable: true, requested, is_too_large: false })
}

/// Returns the reason in the body of an error.
fn message(body: &[u8]) -> String {
    let parsed = serde_json::from_slice::<ErrorBody>(body).ok();
    let of_graphql = |errors: Vec<GraphQlError>| errors.into_iter().next()?.message;
    let value = parsed.and_then(|body| body.message.or(body.error).or_else(|| of_graphql(body.errors)));
    match value {
        Some(serde_json::Value::String(text)) => printable(&text),
        Some(other) => printable(&other.to_string()),
        None => "no message".to_owned(),
    }
}

fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};
    use serde_json::Value;

    use super::*;

    fn response(status: u16, body: &str) -> Response<Bytes> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        Response::builder().status(status).body(body).unwrap()
    }

    fn failure(status: u16, headers: &HeaderMap, body: &str) -> Failure {
        let mut response = response(status, body);
        response.headers_mut().clone_from(headers);
        parse::<Value>(&response).unwrap_err()
    }

    #[test]
    fn success_is_parsed() {
        assert_eq!(parse::<Value>(&response(200, "{}")).unwrap(), serde_json::json!({}));
        parse::<()>(&response(204, "")).unwrap();
    }

    #[test]
    fn refusal_has_the_reason_of_gitlab() {
        for (body, expected) in [
            (r#"{"message":"403 Forbidden"}"#, "403 Forbidden"),
            (r#"{"error":"404 Not Found"}"#, "404 Not Found"),
            (r#"{"errors":[{"message":"API not accessible for user"}, {}]}"#, "API not accessible for user"),
            (r#"{"errors":[]}"#, "no message"),
            (r#"{"message":{"agent_id":["is missing"]}}"#, r#"{"agent_id":["is missing"]}"#),
            ("{\"message\":\"a\\nb\"}", "ab"),
            ("<html>", "no message"),
        ] {
            let failure = failure(403, &HeaderMap::new(), body);
            let message = expected.to_owned();
            assert_eq!(failure.error, GitLabError::Status { status: StatusCode::FORBIDDEN, message });
            assert!(!failure.retryable);
        }
    }

    #[test]
    fn refused_jwt_is_no_answer_about_the_credential() {
        let body = r#"{"message":"KAS JWT authentication invalid"}"#;
        let failure = failure(401, &HeaderMap::new(), body);
        assert!(matches!(failure.error, GitLabError::Unavailable { .. }), "{failure:?}");
        assert!(!failure.retryable);
    }

    #[test]
    fn overload_and_failures_of_gitlab_are_retryable() {
        for status in [408, 429, 500, 502, 503] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static("7"));
            let failure = failure(status, &headers, "<html>");
            assert!(failure.retryable);
            assert_eq!(failure.requested, Some(Duration::from_secs(7)));
        }
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("99999999999"));
        assert_eq!(failure(503, &headers, "").requested, Some(MAX_RETRY_AFTER));
    }

    #[test]
    fn redirect_and_other_json_are_no_answer() {
        let mut headers = HeaderMap::new();
        headers.insert(LOCATION, HeaderValue::from_static("https://sso.example.com/"));
        let redirected = failure(302, &headers, "");
        assert!(redirected.error.to_string().contains("it redirects to https://sso.example.com/"));
        let garbage = failure(200, &HeaderMap::new(), "{\"secret\":");
        assert!(!garbage.retryable && !garbage.error.to_string().contains("secret"), "{garbage:?}");
    }
}
