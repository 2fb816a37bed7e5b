//! The requests of the page to agents, and what a browser gets of their responses.

use axum::body::Body;
use http::{
    HeaderValue, Request, Response,
    header::{
        AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, COOKIE,
        LOCATION, ORIGIN, REFERER, SET_COOKIE, UPGRADE,
    },
};
use secrecy::ExposeSecret as _;

use super::{assets, origin, sessions::Session};

/// Makes a response of an agent one that a browser never shows as a page. It has no `Location`, because the page would repeat its request
/// there with the session of the reader.
pub(super) fn contain(mut response: Response<Body>) -> Response<Body> {
    assets::secure(&mut response);
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.remove(SET_COOKIE);
    headers.remove(LOCATION);
    response
}

/// Replaces the cookie of a request by the token of its session. The headers of browsers about the page are of no use for a cluster.
pub(super) fn with_token<B>(mut request: Request<B>, session: &Session) -> Request<B> {
    let headers = request.headers_mut();
    for name in [COOKIE, ORIGIN, REFERER, UPGRADE, CONNECTION, origin::MARK, origin::CALLER] {
        headers.remove(name);
    }
    let value = format!("Bearer {}", session.token.expose_secret());
    // Fails for a token with control characters, which is none of a caller.
    if let Ok(mut value) = HeaderValue::from_str(&value) {
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    request
}

/// Returns whether a path of an agent leads to a server of the cluster, such as `services/web/proxy`. An API server may read a path in more
/// ways than one, so that one with `..` does.
pub(super) fn is_web_content(path: &str) -> bool {
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
    let parts: Vec<&str> = decoded.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let is_proxy = |parts: &[&str]| matches!(parts, ["services" | "pods" | "nodes", _, "proxy"]);
    let is_of_old = |parts: &[&str]| matches!(parts, ["api", _, "proxy"]);
    parts.contains(&"..") || parts.windows(3).any(|parts| is_proxy(parts) || is_of_old(parts))
}
