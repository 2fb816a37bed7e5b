//! Which web pages may use the listener for callers (the Fetch standard, "CORS protocol").
//!
//! Origins are compared whole, never by prefix or suffix. A page of an origin that is not listed is refused before
//! anything is looked at: browsers would not let it read the answer, but the request would have been made.

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

use crate::failure::Failure;

/// What a page may do once its origin is listed: what callers may do at all.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
/// What a page may read besides what every page may.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("Kas-Error, X-Request-Id, Server-Timing, Retry-After, Warning, Audit-Id");
/// Seconds for which a browser need not ask again.
const MAX_AGE: HeaderValue = HeaderValue::from_static("86400");

/// A web origin (RFC 6454): scheme, host and port, in the form in which browsers send it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Origin {
    scheme: String,
    /// Host and port; a scheme's default port is left out.
    authority: String,
}

/// A text that is no origin.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a web origin: write scheme, host and port only, as in https://gitlab.example.com")]
pub struct NotAnOrigin(String);

/// The origins that are listed.
#[derive(Clone, Debug, Default)]
pub struct Cors(Vec<Origin>);

/// What the answer to a request says to the browser.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The origin that was listed; `None` where no foreign page asks.
    origin: Option<HeaderValue>,
}

impl Cors {
    /// With these origins listed.
    pub fn new(allowed: Vec<Origin>) -> Self {
        Self(allowed)
    }

    /// Whether whoever asks is a page that may not.
    pub fn admit<B>(&self, request: &Request<B>) -> Result<Page, Failure> {
        let mut values = request.headers().get_all(ORIGIN).iter();
        let origin = match (values.next(), values.next()) {
            (None, _) => return Ok(Page::default()),
            (Some(origin), None) => origin,
            (Some(_), Some(_)) => {
                return Err(Failure::new(Reason::BadRequest, "there is more than one Origin header"));
            }
        };
        let parsed = origin.to_str().ok().and_then(|origin| Origin::from_str(origin).ok());
        match parsed {
            Some(parsed) if self.0.contains(&parsed) => Ok(Page { origin: Some(origin.clone()) }),
            Some(parsed) if parsed.is_own(request) => Ok(Page::default()),
            _ => {
                let what = "pages of this origin may not use kas: add it to agent.kubernetes_api.allowed_origins if they should";
                Err(Failure::new(Reason::OriginNotAllowed, what))
            }
        }
    }
}

impl Page {
    /// The answer to a browser that asks whether the page may, before it lets the page.
    pub fn preflight<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let asks = request.method() == Method::OPTIONS
            && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        self.origin.as_ref().filter(|_| asks)?;
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = StatusCode::NO_CONTENT;
        let headers = answer.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        if let Some(asked) = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
        }
        self.mark(headers);
        Some(answer)
    }

    /// Lets the page read the answer.
    pub fn mark(&self, headers: &mut HeaderMap) {
        let Some(origin) = &self.origin else { return };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        headers.append(VARY, HeaderValue::from_static("Origin"));
    }
}

impl Origin {
    /// Whether the page came from where the request goes. Some clients that are no browsers say so, too.
    fn is_own<B>(&self, request: &Request<B>) -> bool {
        let named = request.uri().authority().map(|authority| authority.as_str());
        let host = named.or_else(|| request.headers().get(HOST)?.to_str().ok());
        // Whether this connection is TLS does not matter: a proxy in front may have ended it.
        host.is_some_and(|host| {
            without_default_port(&self.scheme, host).eq_ignore_ascii_case(&self.authority)
        })
    }
}

impl FromStr for Origin {
    type Err = NotAnOrigin;

    fn from_str(text: &str) -> Result<Self, NotAnOrigin> {
        let wrong = || NotAnOrigin(text.to_owned());
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
    type Error = NotAnOrigin;

    fn try_from(text: String) -> Result<Self, NotAnOrigin> {
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

    fn admit(origins: &[&str]) -> Result<bool, Reason> {
        let mut request = Request::get("/k8s-proxy/api").header(HOST, "kas.example.com:443");
        for origin in origins {
            request = request.header(ORIGIN, *origin);
        }
        let page = cors().admit(&request.body(()).unwrap()).map_err(|failure| failure.reason)?;
        Ok(page.origin.is_some())
    }

    #[test]
    fn only_what_is_listed_is_allowed() {
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
            assert_eq!(admit(&[origin]), expected, "{origin}");
        }
        assert_eq!(admit(&[]), Ok(false));
        assert_eq!(admit(&["https://gitlab.example.com", "null"]), Err(Reason::BadRequest));
    }

    #[test]
    fn a_browser_that_asks_first_is_told_what_the_page_may() {
        let request = Request::options("/k8s-proxy/api")
            .header(ORIGIN, "https://gitlab.example.com")
            .header(ACCESS_CONTROL_REQUEST_METHOD, "PATCH")
            .header(ACCESS_CONTROL_REQUEST_HEADERS, "authorization,content-type")
            .body(())
            .unwrap();
        let answer = cors().admit(&request).unwrap().preflight(&request).unwrap();
        assert_eq!(answer.status(), StatusCode::NO_CONTENT);
        assert_eq!(answer.headers()["access-control-allow-origin"], "https://gitlab.example.com");
        assert_eq!(answer.headers()["access-control-allow-headers"], "authorization,content-type");
        assert_eq!(answer.headers()["vary"], "Origin");
    }

    #[test]
    fn other_options_are_for_the_cluster() {
        let request =
            Request::options("/k8s-proxy/api").header(ORIGIN, "http://localhost:3000").body(()).unwrap();
        assert!(cors().admit(&request).unwrap().preflight(&request).is_none());
        let request =
            Request::options("/k8s-proxy/api").header(ACCESS_CONTROL_REQUEST_METHOD, "GET").body(()).unwrap();
        assert!(cors().admit(&request).unwrap().preflight(&request).is_none());
    }

    #[test]
    fn what_is_no_origin_is_refused_in_the_configuration() {
        for text in
            ["*", "gitlab.example.com", "https://", "https://a/", "https://a/b", "ftp://a", "https://*.a b"]
        {
            assert!(text.parse::<Origin>().is_err(), "{text}");
        }
    }
}
