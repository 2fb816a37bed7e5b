//! Access of web pages to the listener for callers (Fetch standard, "CORS protocol").
//!
//! Origins are compared as a whole, never by prefix or suffix. A request of an origin that is not allowed is refused before
//! authorization: the browser would hide the response from the page, but the request would have been executed.

use std::str::FromStr;

use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{
        ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
        ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
        ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN, VARY,
    },
};
use proto::Reason;
use serde::Deserialize;
use tunnel::Body;

use access::RequestError;

/// The methods for pages of allowed origins: all methods that callers may use.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
/// Response headers that a page may read in addition to those of the Fetch standard.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("Kas-Error, X-Request-Id, Server-Timing, Retry-After, Warning, Audit-Id");
/// Seconds for which a browser may cache a preflight.
const MAX_AGE: HeaderValue = HeaderValue::from_static("86400");

/// A web origin (RFC 6454): scheme, host and port, in the form in which browsers send it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Origin {
    scheme: String,
    /// Host and port, without the default port of the scheme.
    authority: String,
}

/// A text that is not an origin.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a web origin: write scheme, host and port only, as in https://gitlab.example.com")]
pub struct OriginError(String);

/// The allowed origins.
#[derive(Clone, Debug, Default)]
pub struct Cors(Vec<Origin>);

/// The CORS headers of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorsHeaders {
    /// The allowed origin; `None` if the request is not of a page of another origin.
    origin: Option<HeaderValue>,
}

impl Cors {
    /// Allows these origins.
    pub fn new(allowed: Vec<Origin>) -> Self {
        Self(allowed)
    }

    /// Returns the CORS headers for the response.
    ///
    /// # Errors
    ///
    /// The reason is `origin-not-allowed`, or `bad-request` if there are several `Origin` headers.
    pub fn check<B>(&self, request: &Request<B>) -> Result<CorsHeaders, RequestError> {
        let mut values = request.headers().get_all(ORIGIN).iter();
        let origin = match (values.next(), values.next()) {
            (None, _) => return Ok(CorsHeaders::default()),
            (Some(origin), None) => origin,
            (Some(_), Some(_)) => {
                return Err(RequestError::bad_request("there is more than one Origin header"));
            }
        };
        let parsed = origin.to_str().ok().and_then(|origin| Origin::from_str(origin).ok());
        match parsed {
            Some(parsed) if self.0.contains(&parsed) => Ok(CorsHeaders { origin: Some(origin.clone()) }),
            Some(parsed) if parsed.is_own(request) => Ok(CorsHeaders::default()),
            _ => {
                let what = "pages of this origin may not use kas: to allow them, add the origin to agent.kubernetes_api.allowed_origins";
                Err(RequestError::new(Reason::OriginNotAllowed, what))
            }
        }
    }
}

impl CorsHeaders {
    /// Returns the response to a preflight, if the request is one.
    pub fn preflight<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let is_preflight = request.method() == Method::OPTIONS
            && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        self.origin.as_ref().filter(|_| is_preflight)?;
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        if let Some(asked) = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
        }
        self.apply(headers);
        Some(response)
    }

    /// Adds the headers with which the page may read the response.
    pub fn apply(&self, headers: &mut HeaderMap) {
        let Some(origin) = &self.origin else { return };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        headers.append(VARY, HeaderValue::from_static("Origin"));
    }
}

impl Origin {
    /// Returns the origin of a page at a URL.
    pub fn of_url(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let authority = rest.split(['/', '?', '#']).next()?;
        format!("{scheme}://{authority}").parse().ok()
    }

    /// Returns whether the request goes to the origin of its page. Some clients other than browsers send that, too.
    fn is_own<B>(&self, request: &Request<B>) -> bool {
        let named = request.uri().authority().map(|authority| authority.as_str());
        let host = named.or_else(|| request.headers().get(HOST)?.to_str().ok());
        // The scheme is not compared: a proxy in front of kas may terminate TLS.
        host.is_some_and(|host| {
            without_default_port(&self.scheme, host).eq_ignore_ascii_case(&self.authority)
        })
    }
}

impl FromStr for Origin {
    type Err = OriginError;

    fn from_str(text: &str) -> Result<Self, OriginError> {
        let wrong = || OriginError(text.to_owned());
        let (scheme, authority) = text.split_once("://").ok_or_else(wrong)?;
        if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
            return Err(wrong());
        }
        let uri = Uri::from_str(text).map_err(|_| wrong())?;
        let whole = uri.authority().is_some_and(|parsed| parsed.as_str() == authority);
        if !whole || authority.contains('@') {
            return Err(wrong());
        }
        let scheme = scheme.to_ascii_lowercase();
        let authority = without_default_port(&scheme, authority).to_ascii_lowercase();
        Ok(Self { scheme, authority })
    }
}

impl TryFrom<String> for Origin {
    type Error = OriginError;

    fn try_from(text: String) -> Result<Self, OriginError> {
        text.parse()
    }
}

fn without_default_port<'a>(scheme: &str, authority: &'a str) -> &'a str {
    let port = if scheme == "https" { ":443" } else { ":80" };
    authority.strip_suffix(port).unwrap_or(authority)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cors() -> Cors {
        Cors::new(vec![
            "https://gitlab.example.com".parse().unwrap(),
            "http://localhost:3000".parse().unwrap(),
        ])
    }

    fn check(origins: &[&str]) -> Result<bool, Reason> {
        let mut request = Request::get("/k8s-proxy/api").header(HOST, "kas.example.com:443");
        for origin in origins {
            request = request.header(ORIGIN, *origin);
        }
        let headers = cors().check(&request.body(()).unwrap()).map_err(|failure| failure.reason)?;
        Ok(headers.origin.is_some())
    }

    #[test]
    fn only_listed_and_own_origins_are_allowed() {
        for (origin, expected) in [
            ("https://gitlab.example.com", Ok(true)),
            ("https://GITLAB.example.com:443", Ok(true)),
            ("http://localhost:3000", Ok(true)),
            ("https://kas.example.com", Ok(false)),
            ("http://gitlab.example.com", Err(Reason::OriginNotAllowed)),
            ("https://gitlab.example.com:8443", Err(Reason::OriginNotAllowed)),
            ("https://gitlab.example.com.evil.example", Err(Reason::OriginNotAllowed)),
            ("https://evil.example/https://gitlab.example.com", Err(Reason::OriginNotAllowed)),
            ("https://evilgitlab.example.com", Err(Reason::OriginNotAllowed)),
            ("https://gitlab.example.com@evil.example", Err(Reason::OriginNotAllowed)),
            ("null", Err(Reason::OriginNotAllowed)),
            ("", Err(Reason::OriginNotAllowed)),
        ] {
            assert_eq!(check(&[origin]), expected, "{origin}");
        }
        assert_eq!(check(&[]), Ok(false));
        assert_eq!(check(&["https://gitlab.example.com", "null"]), Err(Reason::BadRequest));
    }

    #[test]
    fn preflight_of_allowed_origin_is_answered() {
        let request = Request::options("/k8s-proxy/api")
            .header(ORIGIN, "https://gitlab.example.com")
            .header(ACCESS_CONTROL_REQUEST_METHOD, "PATCH")
            .header(ACCESS_CONTROL_REQUEST_HEADERS, "authorization,content-type")
            .body(())
            .unwrap();
        let response = cors().check(&request).unwrap().preflight(&request).unwrap();
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        assert_eq!(response.headers()["access-control-allow-origin"], "https://gitlab.example.com");
        assert_eq!(response.headers()["access-control-allow-headers"], "authorization,content-type");
        assert_eq!(response.headers()["vary"], "Origin");
    }

    #[test]
    fn other_options_requests_are_forwarded() {
        let request =
            Request::options("/k8s-proxy/api").header(ORIGIN, "http://localhost:3000").body(()).unwrap();
        assert!(cors().check(&request).unwrap().preflight(&request).is_none());
        let request =
            Request::options("/k8s-proxy/api").header(ACCESS_CONTROL_REQUEST_METHOD, "GET").body(()).unwrap();
        assert!(cors().check(&request).unwrap().preflight(&request).is_none());
    }

    #[test]
    fn origin_of_a_url_has_no_path() {
        let origin: Origin = "https://gitlab.example.com".parse().unwrap();
        for url in [
            "https://gitlab.example.com/",
            "https://GitLab.example.com:443/a?b",
            "HTTPS://gitlab.example.com",
        ] {
            assert_eq!(Origin::of_url(url), Some(origin.clone()), "{url}");
        }
        assert_eq!(Origin::of_url("gitlab.example.com"), None);
        assert_eq!(Origin::of_url("https://a@b/"), None);
    }

    #[test]
    fn text_that_is_not_an_origin_is_refused() {
        for text in
            ["*", "gitlab.example.com", "https://", "https://a/", "https://a/b", "ftp://a", "https://*.a b"]
        {
            assert!(text.parse::<Origin>().is_err(), "{text}");
        }
    }
}
