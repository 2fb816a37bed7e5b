//! Requests to the REST API of GitLab, with the token of a user.

use std::{
    net::IpAddr,
    path::Path,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, DATE, LOCATION, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::refusal::{Refusal, RequestError};
use crate::{
    CliError,
    http_client::{HttpClient, explain, http_client},
    table::printable,
};

/// The time for one request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The largest response, in bytes: many times a configuration, or a page of agents.
const MAX_RESPONSE: usize = 4 << 20;
/// The waits before a request is sent again.
const WAITS: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// The longest wait that GitLab may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The address of GitLab: `http(s)://host[:port][/prefix]`, without a slash at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GitLabUrl(String);

/// The API of a GitLab, for the holder of a token.
pub(super) struct GitLab {
    url: GitLabUrl,
    authorization: HeaderValue,
    client: HttpClient,
}

/// A response of GitLab that is no error.
pub(super) struct Reply {
    headers: HeaderMap,
    body: Bytes,
}

impl GitLabUrl {
    /// Parses the value of `--gitlab`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let valid = || {
            let uri: Uri = text.parse().ok()?;
            let authority = uri.authority()?;
            let plain = !authority.as_str().contains('@') && uri.query().is_none() && !text.contains('#');
            let web = matches!(uri.scheme_str(), Some("https" | "http"));
            (web && plain && !authority.host().is_empty())
                .then(|| Self(uri.to_string().trim_end_matches('/').to_owned()))
        };
        valid().ok_or_else(|| "write it like https://gitlab.example.com".to_owned())
    }

    /// Returns the URL as text.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the token crosses a network in plain text.
    pub(super) fn is_plain(&self) -> bool {
        let url = self.0.parse::<Uri>().ok().filter(|url| url.scheme_str() == Some("http"));
        url.is_some_and(|url| {
            let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
            host != "localhost" && !host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        })
    }
}

impl GitLab {
    /// Creates a client for the holder of a token.
    pub(super) fn new(url: GitLabUrl, token: &SecretString, cacert: Option<&Path>) -> Result<Self, CliError> {
        let authorization = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret()));
        let mut authorization = authorization
            .map_err(|_| CliError::usage("the token of GitLab has characters that no token has"))?;
        authorization.set_sensitive(true);
        Ok(Self { url, authorization, client: http_client(cacert)? })
    }

    /// Returns the address.
    pub(super) fn url(&self) -> &GitLabUrl {
        &self.url
    }

    /// Requests an object. `path` is below `/api/v4`.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, RequestError> {
        self.parse(&self.send(Method::GET, path, None).await?)
    }

    /// Requests an object, and returns it with the time of GitLab's clock, or of this machine's if the response has none.
    pub(super) async fn get_with_time<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> Result<(T, SystemTime), RequestError> {
        let reply = self.send(Method::GET, path, None).await?;
        let date = reply.headers.get(DATE).and_then(|value| http_date(value.to_str().ok()?));
        Ok((self.parse(&reply)?, date.unwrap_or_else(SystemTime::now)))
    }

    /// Posts an object, and returns the object of the response.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<T, RequestError> {
        self.parse(&self.send(Method::POST, path, Some(body)).await?)
    }

    /// Deletes an object.
    pub(super) async fn delete(&self, path: &str) -> Result<(), RequestError> {
        self.send(Method::DELETE, path, None).await.map(|_| ())
    }

    /// Sends a request, and again as long as that is safe and GitLab is not available.
    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Reply, RequestError> {
        let mut waits = WAITS.iter();
        loop {
            let sent = timeout(TIMEOUT, self.exchange(&method, path, body)).await;
            let (error, status, asked) = match sent {
                Ok(Ok((status, reply))) if status.is_success() => return Ok(reply),
                Ok(Ok((status, reply))) => {
                    let asked =
                        reply.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                    (self.failure(status, &reply), Some(status), asked.map(Duration::from_secs))
                }
                Ok(Err(error)) => (error, None, None),
                Err(_) => {
                    (self.unavailable(&format!("no response within {} s", TIMEOUT.as_secs())), None, None)
                }
            };
            match waits.next() {
                Some(wait) if may_repeat(&method, &error, status) => {
                    sleep(asked.map_or(*wait, |asked| asked.clamp(*wait, LONGEST_WAIT))).await;
                }
                _ => return Err(error),
            }
        }
    }

    async fn exchange(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Reply), RequestError> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}/api/v4{path}", self.url.as_str()))
            .header(AUTHORIZATION, &self.authorization)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("kas/", env!("CARGO_PKG_VERSION")));
        let request = match body {
            Some(_) => request.header(CONTENT_TYPE, "application/json"),
            None => request,
        };
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::from(body));
        let request = request.map_err(|error| self.unavailable(&error.to_string()))?;
        let response = self.client.request(request).await;
        let (head, body) =
            response.map_err(|error| self.unavailable(&proto::ErrorChain(&error).to_string()))?.into_parts();
        let body = Limited::new(body, MAX_RESPONSE).collect().await;
        let body = body.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return self.unusable("the response is too large for GitLab's API");
            }
            self.unavailable(&error.to_string())
        });
        let body = body?.to_bytes();
        Ok((head.status, Reply { headers: head.headers, body }))
    }

    /// Returns the error of a response with a status that is no success.
    fn failure(&self, status: StatusCode, reply: &Reply) -> RequestError {
        if status.is_redirection() {
            let target = reply.headers.get(LOCATION).map(|value| String::from_utf8_lossy(value.as_bytes()));
            let target = printable(target.as_deref().unwrap_or("another address"));
            return self.unusable(&format!(
                "GitLab redirects to {target}, and the token is sent to no other address: give that one as --gitlab"
            ));
        }
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return self.unavailable(&format!("GitLab responded with {status}"));
        }
        RequestError::Refused(Refusal::new(status, &reply.body))
    }

    fn parse<T: DeserializeOwned>(&self, reply: &Reply) -> Result<T, RequestError> {
        // The error of the parser could hold a part of the response, which may be a token.
        serde_json::from_slice(&reply.body).map_err(|_| {
            self.unusable("the response is not that of GitLab's API: --gitlab has to be the URL of GitLab")
        })
    }

    fn unavailable(&self, error: &str) -> RequestError {
        // The errors of rustls for the wrong authority, name, time or port.
        if error.contains("certificate") || error.contains("InvalidContentType") {
            return self.unusable(error);
        }
        RequestError::Unavailable(format!("{}: {}", self.url.as_str(), explain(error)))
    }

    fn unusable(&self, error: &str) -> RequestError {
        RequestError::Unusable(format!("{}: {}", self.url.as_str(), explain(error)))
    }
}

/// Returns whether a failed request is sent again. One that creates something may have succeeded, unless GitLab has limited its rate.
fn may_repeat(method: &Method, error: &RequestError, status: Option<StatusCode>) -> bool {
    let RequestError::Unavailable(_) = error else { return false };
    match status {
        Some(StatusCode::TOO_MANY_REQUESTS) => true,
        Some(status) => *method == Method::GET && status.is_server_error(),
        None => *method == Method::GET,
    }
}

/// Parses the value of a header `Date` (RFC 9110 section 5.6.7).
fn http_date(text: &str) -> Option<SystemTime> {
    jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok().map(SystemTime::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_a_url_of_the_web_without_credentials() {
        for (text, expected) in [
            ("https://gitlab.example.com", "https://gitlab.example.com"),
            ("https://example.com:8443/gitlab/", "https://example.com:8443/gitlab"),
            ("HTTP://[::1]:3000/", "http://[::1]:3000"),
        ] {
            assert_eq!(GitLabUrl::parse(text).unwrap().as_str(), expected);
        }
        for bad in
            ["gitlab.example.com", "wss://a", "https://", "https://u:p@a", "https://a?b", "https://a/#b"]
        {
            assert!(GitLabUrl::parse(bad).is_err(), "{bad}");
        }
        let is_plain = |text| GitLabUrl::parse(text).unwrap().is_plain();
        for url in [
            "http://gitlab.example.com:80",
            "http://10.0.0.1",
            "http://127.evil.test",
            "http://[2001:db8::1]",
        ] {
            assert!(is_plain(url), "{url}");
        }
        assert!(!is_plain("http://[::1]:3000"));
        assert!(
            !is_plain("https://a") && !is_plain("http://127.0.0.1:8080") && !is_plain("http://localhost/a")
        );
    }

    #[test]
    fn request_that_may_have_created_something_is_not_repeated() {
        let failed = RequestError::Unavailable(String::new());
        let moved = RequestError::Unusable(String::new());
        let refused = RequestError::Refused(Refusal::new(StatusCode::NOT_FOUND, b""));
        for (method, error, status, expected) in [
            (Method::GET, &failed, None, true),
            (Method::GET, &failed, Some(502), true),
            (Method::GET, &moved, Some(301), false),
            (Method::GET, &moved, None, false),
            (Method::POST, &failed, None, false),
            (Method::POST, &failed, Some(502), false),
            (Method::POST, &failed, Some(429), true),
            (Method::GET, &refused, Some(404), false),
        ] {
            let status = status.map(|status| StatusCode::from_u16(status).unwrap());
            assert_eq!(may_repeat(&method, error, status), expected, "{method} {status:?}");
        }
    }

    #[test]
    fn date_of_a_response_is_a_time() {
        let expected = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(expected));
        assert_eq!(http_date("yesterday"), None);
    }
}
