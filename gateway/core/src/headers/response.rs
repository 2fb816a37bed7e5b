//! The headers of responses. Only those of an allowlist pass, because the agent is not trusted.

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
mod tests {
    use super::*;
    use crate::headers::tests::map;

    fn passes(name: &str, policy: ResponsePolicy<'_>) -> bool {
        let mut headers = map(&[(name, "x")]);
        to_caller(&mut headers, policy, &HeaderValue::from_static("id-1"));
        headers.get(name).is_some_and(|value| value == "x")
    }

    #[test]
    fn response_keeps_only_allowed_headers() {
        let mut headers = map(&[
            ("content-type", "application/json"),
            ("set-cookie", "a=b"),
            ("nel", "{}"),
            ("access-control-allow-origin", "*"),
            ("kas-error", "internal"),
            ("connection", "upgrade"),
        ]);
        to_caller(&mut headers, ResponsePolicy::default(), &HeaderValue::from_static("id-1"));
        let expected = map(&[
            ("content-type", "application/json"),
            ("x-content-type-options", "nosniff"),
            ("via", "2 kas"),
            ("x-request-id", "id-1"),
        ]);
        assert_eq!(headers, expected);
    }

    #[test]
    fn extra_headers_are_allowed() {
        let extra: Vec<ExtraHeader> = serde_json::from_str(r#"["X-Custom"]"#).unwrap();
        let mut headers = map(&[("x-custom", "1"), ("x-other", "1")]);
        let policy = ResponsePolicy { extra: &extra, ..ResponsePolicy::default() };
        to_caller(&mut headers, policy, &HeaderValue::from_static("id-1"));
        assert!(headers.contains_key("x-custom"));
        assert!(!headers.contains_key("x-other"));
    }

    #[test]
    fn types_that_are_not_inert_are_sandboxed() {
        for (types, sandboxed) in [
            (&["application/json"][..], false),
            (&["Application/JSON; charset=utf-8"], false),
            (&["application/json;stream=watch"], false),
            (&["text/plain; version=0.0.4"], false),
            (&["text/html"], true),
            (&["image/svg+xml"], true),
            (&["application/javascript"], true),
            (&["application/xhtml+xml"], true),
            (&["text/plain, text/html"], true),
            (&["text/plain", "text/html"], true),
            (&["text/html;application/json"], true),
            (&[], true),
        ] {
            let mut headers = HeaderMap::new();
            for kind in types {
                headers.append(CONTENT_TYPE, kind.parse().unwrap());
            }
            sandbox(&mut headers);
            assert_eq!(headers.contains_key(CONTENT_SECURITY_POLICY), sandboxed, "{types:?}");
        }
    }

    #[test]
    fn reserved_headers_cannot_be_allowed() {
        for name in ["Kas-Error", "Access-Control-Allow-Origin", "Set-Cookie", "connection", "a b", ""] {
            assert!(ExtraHeader::try_from(name.to_owned()).is_err(), "{name}");
        }
        assert_eq!(ExtraHeader::try_from("X-Custom".to_owned()).unwrap().name(), "x-custom");
    }

    /// A server that sees the left header of a request answers with the right one.
    #[test]
    fn answer_to_each_offer_that_passes_passes() {
        let upgraded = ResponsePolicy { upgraded: true, ..ResponsePolicy::default() };
        for (offer, answer, policy) in [
            ("upgrade", "upgrade", upgraded),
            ("sec-websocket-key", "sec-websocket-accept", upgraded),
            ("sec-websocket-protocol", "sec-websocket-protocol", upgraded),
            ("sec-websocket-extensions", "sec-websocket-extensions", upgraded),
            ("x-stream-protocol-version", "x-stream-protocol-version", upgraded),
            ("accept-encoding", "content-encoding", ResponsePolicy::default()),
            ("accept-language", "content-language", ResponsePolicy::default()),
            ("range", "content-range", ResponsePolicy::default()),
            ("if-none-match", "etag", ResponsePolicy::default()),
            ("te", "trailer", ResponsePolicy::default()),
        ] {
            assert!(passes(answer, policy), "{offer} passes, and {answer} does not");
        }
        assert!(!passes("sec-websocket-extensions", ResponsePolicy::default()));
    }

    #[test]
    fn application_behind_the_proxy_of_an_api_server_keeps_its_headers() {
        let application = ResponsePolicy { application: true, ..ResponsePolicy::default() };
        for name in [
            "www-authenticate",
            "link",
            "server",
            "age",
            "x-total-count",
            "x-csrf-token",
            "x-amz-request-id",
            "x-elastic-product",
            "docker-distribution-api-version",
            "grpc-status",
            "ratelimit-remaining",
            "sec-websocket-version",
        ] {
            assert!(passes(name, application), "{name}");
            assert!(!passes(name, ResponsePolicy::default()), "{name} of the Kubernetes API");
        }
        for name in [
            "set-cookie",
            "kas-error",
            "access-control-allow-origin",
            "alt-svc",
            "clear-site-data",
            "strict-transport-security",
            "nel",
            "report-to",
            "service-worker-allowed",
            "proxy-authenticate",
            "content-security-policy",
            "x-accel-redirect",
            "x-sendfile",
            "x-envoy-immediate-health-check-fail",
            "x-forwarded-for",
            "x-request-id",
        ] {
            assert!(!passes(name, application), "{name}");
        }
    }
}
