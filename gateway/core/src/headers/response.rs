//! The headers of responses. Only those of an allowlist pass, because the agent is not trusted.
//!
//! Of the addresses in them (`Location`, `Content-Location`, `Refresh`), only paths pass: a redirect to another origin could send the
//! token of the caller there. The service knows its paths as it receives them, so that those that begin with `/` get the prefix by
//! which kas serves the agent.

use http::{
    HeaderMap, HeaderName, HeaderValue, Version,
    header::{
        ACCEPT_RANGES, AGE, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_DISPOSITION, CONTENT_ENCODING,
        CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_RANGE, CONTENT_SECURITY_POLICY,
        CONTENT_TYPE, DATE, ETAG, EXPIRES, LAST_MODIFIED, LINK, LOCATION, PRAGMA, REFRESH, RETRY_AFTER,
        SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
        SERVER, SET_COOKIE, TRAILER, UPGRADE, VARY, VIA, WARNING, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
    },
};
use proto::hop_by_hop;
use serde::Deserialize;

use super::via;

/// Further names of an application, or the beginnings of names: of its interface, and of no interest to browsers and proxies.
const OF_APPLICATIONS: [&str; 18] = [
    "accept-patch",
    "accept-post",
    "authentication-info",
    "content-digest",
    "content-md5",
    "dav",
    "deprecation",
    "docker-",
    "grpc-",
    "lock-token",
    "oci-",
    "preference-applied",
    "ratelimit",
    "repr-digest",
    "sunset",
    "tus-",
    "upload-",
    "x-",
];

/// Names that begin with `x-` and are no matter of an application: a proxy in front of kas would obey them, or they are about other
/// hops or other pages.
const NOT_OF_APPLICATIONS: [&str; 10] = [
    "x-accel-",
    "x-dns-prefetch-control",
    "x-envoy-",
    "x-forwarded-",
    "x-lighttpd-",
    "x-litespeed-",
    "x-real-ip",
    "x-remote-",
    "x-reproxy-",
    "x-sendfile",
];

/// Returns whether a header is allowed in a response.
fn is_allowed_in_response(name: &HeaderName) -> bool {
    match *name {
        ACCEPT_RANGES | ALLOW | CACHE_CONTROL | CONTENT_DISPOSITION | CONTENT_ENCODING | CONTENT_LANGUAGE
        | CONTENT_LENGTH | CONTENT_RANGE | CONTENT_TYPE | DATE | ETAG | EXPIRES | LAST_MODIFIED
        | LOCATION | CONTENT_LOCATION | REFRESH | PRAGMA | RETRY_AFTER | TRAILER | VARY | VIA | WARNING => {
            true
        }
        _ => matches!(
            name.as_str(),
            "audit-id"
                | "process-start-time-unix"
                | "x-kubernetes-pf-flowschema-uid"
                | "x-kubernetes-pf-prioritylevel-uid"
        ),
    }
}

/// Returns whether a header is also allowed in a 101.
fn is_allowed_in_upgrade(name: &HeaderName) -> bool {
    match *name {
        CONNECTION | UPGRADE | SEC_WEBSOCKET_ACCEPT | SEC_WEBSOCKET_EXTENSIONS | SEC_WEBSOCKET_PROTOCOL => {
            true
        }
        _ => matches!(name.as_str(), "x-stream-protocol-version" | "x-accept-stream-protocol-versions"),
    }
}

/// Returns whether a header is also allowed in the response of an application behind `…/proxy` of a Pod, a Service or a Node.
///
/// kube-apiserver passes all headers of an application. kas does not pass those by which one cluster could change how a browser
/// treats all others, since they share the origin of kas: cookies, CORS and policies of an origin.
fn is_allowed_of_application(name: &HeaderName) -> bool {
    match *name {
        AGE | LINK | SEC_WEBSOCKET_VERSION | SERVER | WWW_AUTHENTICATE => true,
        _ => {
            let begins = |names: &[&str]| names.iter().any(|known| name.as_str().starts_with(known));
            begins(&OF_APPLICATIONS) && !begins(&NOT_OF_APPLICATIONS)
        }
    }
}

/// The headers that pass in a response.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponsePolicy<'a> {
    /// It is a 101.
    pub upgraded: bool,
    /// It is a response of an application behind `…/proxy`.
    pub application: bool,
    /// The headers that the operator allows in addition.
    pub extra: &'a [ExtraHeader],
}

/// Converts the headers of an agent's response into those of the response to the caller.
pub fn to_caller(headers: &mut HeaderMap, policy: ResponsePolicy<'_>, request_id: &HeaderValue) {
    hop_by_hop::remove_if(headers, |name| {
        let allowed = is_allowed_in_response(name)
            || (policy.upgraded && is_allowed_in_upgrade(name))
            || (policy.application && is_allowed_of_application(name))
            || policy.extra.iter().any(|extra| extra.name() == name);
        !allowed
    });
    if !policy.upgraded {
        sandbox(headers);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.append(VIA, via(Version::HTTP_2));
    headers.insert(proto::header::REQUEST_ID, request_id.clone());
}

/// Forbids scripts, forms, frames and subresources, and gives the page an opaque origin.
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'none'");

/// Content types that browsers display as text or download, if they must not guess (`nosniff`).
const INERT: [&str; 11] = [
    "application/json",
    "application/jwk-set+json",
    "application/yaml",
    "application/octet-stream",
    "application/openmetrics-text",
    "application/vnd.kubernetes.protobuf",
    "application/x-ndjson",
    "application/x-protobuf",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "text/event-stream",
    "text/plain",
];

/// Adds the sandbox to a response unless its content type is inert.
fn sandbox(headers: &mut HeaderMap) {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let inert = match (types.next(), types.next()) {
        (Some(only), None) => is_inert(only),
        _ => false,
    };
    if !inert {
        headers.insert(CONTENT_SECURITY_POLICY, SANDBOX);
    }
}

fn is_inert(content_type: &HeaderValue) -> bool {
    let Ok(text) = content_type.to_str() else { return false };
    let kind = text.split(';').next().unwrap_or_default().trim();
    // Browsers differ in which type of a list they use.
    !text.contains(',') && INERT.iter().any(|known| kind.eq_ignore_ascii_case(known))
}

/// Rewrites the addresses of a response, or removes them.
pub fn rewrite_addresses(headers: &mut HeaderMap, prefix: &str) {
    // Most responses have no address.
    if !headers.keys().any(|name| matches!(*name, LOCATION | CONTENT_LOCATION | REFRESH)) {
        return;
    }
    for name in [LOCATION, CONTENT_LOCATION] {
        replace(headers, &name, |value| with_prefix(value, prefix));
    }
    replace(headers, &REFRESH, |value| refresh(value, prefix));
}

/// Replaces the values of a header, or removes it if one of them has no replacement.
fn replace(headers: &mut HeaderMap, name: &HeaderName, new: impl Fn(&str) -> Option<String>) {
    let values: Option<Vec<HeaderValue>> = {
        let values = headers.get_all(name).iter();
        values.map(|value| new(value.to_str().ok()?)?.parse().ok()).collect()
    };
    headers.remove(name);
    for value in values.into_iter().flatten() {
        headers.append(name, value);
    }
}

/// Returns the address as the caller needs it, or `None` if it leaves this origin or the paths of the agent.
fn with_prefix(address: &str, prefix: &str) -> Option<String> {
    if !is_within_origin(address) {
        return None;
    }
    let rest = address.strip_prefix(prefix);
    let is_complete = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#']));
    if !address.starts_with('/') || prefix.is_empty() || is_complete {
        return Some(address.to_owned());
    }
    let path = address.split(['?', '#']).next().unwrap_or_default();
    let is_parent = |part: &str| part.to_ascii_lowercase().replace("%2e", ".") == "..";
    (!path.split('/').any(is_parent)).then(|| format!("{prefix}{address}"))
}

/// Rewrites `5; url=/path` (HTML, section 7.1.9 of the standard). A value without an address stays.
fn refresh(value: &str, prefix: &str) -> Option<String> {
    let Some(at) = value.find([';', ',']) else { return Some(value.to_owned()) };
    let (time, rest) = value.split_at(at);
    let rest = rest[1..].trim_start();
    let named = rest.get(..3).is_some_and(|name| name.eq_ignore_ascii_case("url"));
    let address = named.then(|| rest[3..].trim_start().strip_prefix('=')).flatten().unwrap_or(rest);
    let address = address.trim_matches([' ', '"', '\'']);
    Some(format!("{time}; url={}", with_prefix(address, prefix)?))
}

/// Returns whether an address is a path, or relative to one as in Go's redirects (`logs/`).
///
/// Browsers read `\\` as `/` and drop tabs, so `/\\evil.example` is neither. A colon in the first segment ends a scheme
/// (RFC 3986 section 4.2).
fn is_within_origin(address: &str) -> bool {
    let first = address.split(['/', '?', '#']).next().unwrap_or_default();
    !address.starts_with("//") && !address.contains(['\\', '\t']) && !first.contains(':')
}

/// The name of an additional response header.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ExtraHeader(HeaderName);

/// The error of a name that cannot be allowed.
#[derive(Debug, thiserror::Error)]
pub enum ExtraHeaderError {
    /// The text is not a header name.
    #[error("{0:?} is not the name of a header")]
    InvalidName(String),
    /// Only kas may send the header.
    #[error("{0} cannot be allowed: only kas may send it")]
    Reserved(HeaderName),
    /// A browser would send the cookie to every cluster behind this listener.
    #[error("{0} cannot be allowed: browsers would send the cookies of one cluster to all others")]
    Cookie(HeaderName),
}

impl ExtraHeader {
    /// Returns the name.
    pub fn name(&self) -> &HeaderName {
        &self.0
    }
}

impl TryFrom<String> for ExtraHeader {
    type Error = ExtraHeaderError;

    fn try_from(text: String) -> Result<Self, ExtraHeaderError> {
        let Ok(name) = HeaderName::from_bytes(text.as_bytes()) else {
            return Err(ExtraHeaderError::InvalidName(text));
        };
        let reserved = |name: &str| {
            name.starts_with(proto::header::PREFIX)
                || name.starts_with("access-control-")
                || name == "connection"
        };
        match name {
            name if reserved(name.as_str()) => Err(ExtraHeaderError::Reserved(name)),
            SET_COOKIE => Err(ExtraHeaderError::Cookie(SET_COOKIE)),
            name => Ok(Self(name)),
        }
    }
}

#[cfg(test)]
mod tests;
