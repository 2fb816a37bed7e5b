//! The headers of requests and responses that pass through kas.
//!
//! kas removes hop-by-hop headers, headers for kas itself and headers that only kas may set from a request, and then adds its
//! own. The order matters: `Connection: Impersonate-User` must not remove a header that kas added (CVE-2021-31999). A
//! response keeps only headers of an allowlist, because the agent is not trusted.

mod forwarded;
mod redirect;

use access::{AccessAs, RequestError};
use http::{
    HeaderMap, HeaderName, HeaderValue, Version,
    header::{
        ACCEPT_RANGES, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_DISPOSITION, CONTENT_ENCODING,
        CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_RANGE, CONTENT_SECURITY_POLICY,
        CONTENT_TYPE, DATE, ETAG, EXPIRES, HOST, LAST_MODIFIED, LOCATION, PRAGMA, REFRESH, RETRY_AFTER,
        SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, SET_COOKIE, TRAILER, TRANSFER_ENCODING, UPGRADE, VARY,
        VIA, WARNING, X_CONTENT_TYPE_OPTIONS,
    },
};
use proto::{Reason, ServiceName, hop_by_hop, impersonation};
use serde::Deserialize;

pub use self::forwarded::{ForwardedFor, PeerAddress};
pub use self::redirect::rewrite as rewrite_addresses;

/// Request headers for kas itself.
const CONSUMED: [&str; 5] = ["authorization", "cookie", "gitlab-agent-id", "x-csrf-token", "x-request-id"];

/// Headers that frame a message. Their spellings with `_` are refused as well.
static FRAMING: [HeaderName; 4] = [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE];

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
        CONNECTION | UPGRADE | SEC_WEBSOCKET_ACCEPT | SEC_WEBSOCKET_PROTOCOL => true,
        _ => matches!(name.as_str(), "x-stream-protocol-version" | "x-accept-stream-protocol-versions"),
    }
}

/// The headers that kas sets in a request.
#[derive(Clone, Copy, Debug)]
pub struct ProxyHeaders<'a> {
    /// The service of the agent.
    pub service: &'a ServiceName,
    /// The identity of the caller in the cluster.
    pub access_as: &'a AccessAs,
    /// The id of the request.
    pub request_id: &'a HeaderValue,
    /// The id of the request in the audit log of the cluster, if it is for a Kubernetes API. It replaces that of the caller, by which
    /// a caller could act under the id of another one.
    pub audit_id: Option<&'a HeaderValue>,
    /// The request becomes an upgrade. Otherwise its `Upgrade` is removed.
    pub upgrade: bool,
    /// The HTTP version between the caller and kas.
    pub version: Version,
    /// The addresses of the caller and of the proxies in front of kas.
    pub forwarded: &'a ForwardedFor,
}

/// Converts the headers of a caller's request into those of the request to the agent.
///
/// # Errors
///
/// The reason is `bad-request` for a spelling with `_` of a header that carries identity, and for one whose value would change on
/// its way; and `nested-impersonation` if the caller impersonates although kas does.
pub fn to_agent(headers: &mut HeaderMap, proxy_headers: ProxyHeaders<'_>) -> Result<(), RequestError> {
    let impersonated = matches!(proxy_headers.access_as, AccessAs::Impersonate { .. });
    let upgrade = hop_by_hop::upgrade_protocol(headers).filter(|_| proxy_headers.upgrade);
    let mut refused = None;
    hop_by_hop::strip_with(headers, |name| {
        let text = name.as_str();
        if text.as_bytes().contains(&b'_') && is_underscore_spelling(text) {
            refused.get_or_insert_with(|| underscore_spelling(name));
        }
        if impersonated && text.starts_with(impersonation::PREFIX) {
            refused.get_or_insert_with(nested_impersonation);
        }
        is_consumed(text) || forwarded::is_forwarded(name)
    });
    if let Some(failure) = refused {
        return Err(failure);
    }
    impersonation::check(headers).map_err(|error| RequestError::bad_request(error.to_string()))?;

    if let Some(protocol) = upgrade {
        headers.insert(UPGRADE, protocol);
    }
    proxy_headers.forwarded.write(headers);
    headers.append(VIA, via(proxy_headers.version));
    headers.insert(proto::header::SERVICE, proxy_headers.service.into());
    headers.insert(proto::header::REQUEST_ID, proxy_headers.request_id.clone());
    if let Some(audit_id) = proxy_headers.audit_id {
        headers.insert(proto::header::AUDIT_ID, audit_id.clone());
    }
    if let AccessAs::Impersonate { headers: identity, .. } = proxy_headers.access_as {
        for (name, value) in identity {
            headers.append(name, value.clone());
        }
    }
    Ok(())
}

/// Converts the headers of an agent's response into those of the response to the caller. `extra` are the headers that the
/// operator allows in addition to the allowlist.
pub fn to_caller(headers: &mut HeaderMap, upgraded: bool, extra: &[ExtraHeader], request_id: &HeaderValue) {
    hop_by_hop::remove_if(headers, |name| {
        let allowed = is_allowed_in_response(name)
            || (upgraded && is_allowed_in_upgrade(name))
            || extra.iter().any(|extra| extra.name() == name);
        !allowed
    });
    if !upgraded {
        sandbox(headers);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.append(VIA, via(Version::HTTP_2));
    headers.insert(proto::header::REQUEST_ID, request_id.clone());
}

/// Returns the `Via` entry of kas: the protocol of the received message (RFC 9110 section 7.6.3).
fn via(version: Version) -> HeaderValue {
    HeaderValue::from_static(match version {
        Version::HTTP_2 => "2 kas",
        Version::HTTP_10 => "1.0 kas",
        _ => "1.1 kas",
    })
}

/// Returns whether a header is for kas, or carries an identity that only the proxy of the cluster may set (`X-Remote-User`).
fn is_consumed(name: &str) -> bool {
    CONSUMED.contains(&name) || name.starts_with("x-remote-")
}

/// Returns whether servers that treat `X_Foo` as `X-Foo` read this name as a header that frames a message or identifies the
/// caller (CVE-2025-64484).
fn is_underscore_spelling(name: &str) -> bool {
    let name = name.replace('_', "-");
    is_sensitive(&name) || FRAMING.iter().any(|known| name == known.as_str())
}

fn underscore_spelling(name: &HeaderName) -> RequestError {
    RequestError::bad_request(format!("the header {name} is refused: write it with '-'"))
}

fn nested_impersonation() -> RequestError {
    RequestError::new(
        Reason::NestedImpersonation,
        "nested impersonation is not supported: kas already sets the identity of this caller in the cluster; remove --as and the \
         Impersonate-* headers",
    )
}

/// Returns whether a header carries the identity or the address of the caller, or the id of its request in the cluster. `name` is in lower case.
pub(crate) fn is_sensitive(name: &str) -> bool {
    name.starts_with(impersonation::PREFIX)
        || name.starts_with(proto::header::PREFIX)
        || name.starts_with("x-forwarded-")
        || name.starts_with("x-remote-")
        || name == "x-real-ip"
        || name == "forwarded"
        || name == "proxy-authorization"
        || name == proto::header::AUDIT_ID
        || name == HOST.as_str()
        || CONSUMED.contains(&name)
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

    fn map(entries: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in entries {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        headers
    }

    fn converted(entries: &[(&str, &str)], access_as: &AccessAs) -> Result<HeaderMap, Reason> {
        let mut headers = map(entries);
        let proxy_headers = ProxyHeaders {
            service: &"kubernetes".parse().unwrap(),
            access_as,
            request_id: &HeaderValue::from_static("id-1"),
            audit_id: Some(&HeaderValue::from_static("kas-1")),
            upgrade: true,
            version: Version::HTTP_11,
            forwarded: &ForwardedFor::new(&headers, &PeerAddress::new([192, 0, 2, 1].into()), &[]),
        };
        to_agent(&mut headers, proxy_headers).map_err(|failure| failure.reason)?;
        Ok(headers)
    }

    fn alice() -> AccessAs {
        let alice = impersonation::Impersonation {
            username: "alice".into(),
            groups: vec!["a".into(), "b".into()],
            ..Default::default()
        };
        AccessAs::Impersonate { username: alice.username.clone(), headers: alice.headers().unwrap() }
    }

    #[test]
    fn hop_by_hop_headers_and_headers_for_kas_are_removed() {
        let passed = converted(
            &[
                ("connection", "keep-alive, X-Private"),
                ("x-private", "1"),
                ("keep-alive", "5"),
                ("te", "gzip"),
                ("authorization", "Bearer secret"),
                ("cookie", "a=b"),
                ("kas-service", "control"),
                ("x-request-id", "theirs"),
                ("x-forwarded-for", "10.0.0.1"),
                ("x-remote-user", "root"),
                ("via", "1.1 proxy"),
                ("audit-id", "theirs"),
                ("audit-id", "theirs, too"),
                ("accept", "*/*"),
            ],
            &AccessAs::Agent,
        )
        .unwrap();
        let expected = map(&[
            ("accept", "*/*"),
            ("via", "1.1 proxy"),
            ("via", "1.1 kas"),
            ("x-forwarded-for", "192.0.2.1"),
            ("kas-service", "kubernetes"),
            ("x-request-id", "id-1"),
            ("audit-id", "kas-1"),
        ]);
        assert_eq!(passed, expected);
    }

    #[test]
    fn impersonation_headers_are_added() {
        let passed = converted(&[], &alice()).unwrap();
        assert_eq!(passed["impersonate-user"], "alice");
        assert_eq!(passed.get_all("impersonate-group").iter().count(), 2);
    }

    #[test]
    fn nested_impersonation_is_refused() {
        for name in ["Impersonate-User", "impersonate-group", "IMPERSONATE-UID", "Impersonate-Extra-x"] {
            assert_eq!(converted(&[(name, "root")], &alice()), Err(Reason::NestedImpersonation), "{name}");
        }
        let passed = converted(&[("Impersonate-User", "bob")], &AccessAs::Agent).unwrap();
        assert_eq!(passed["impersonate-user"], "bob");
    }

    #[test]
    fn impersonated_name_that_would_change_on_its_way_is_refused() {
        for value in ["", " bob", "bob\t"] {
            let headers = [("impersonate-user", "bob"), ("impersonate-group", value)];
            assert_eq!(converted(&headers, &AccessAs::Agent), Err(Reason::BadRequest), "{value:?}");
        }
    }

    #[test]
    fn connection_cannot_remove_headers_of_kas() {
        let passed =
            converted(&[("connection", "Impersonate-User, kas-service, X-Forwarded-For, upgrade")], &alice())
                .unwrap();
        assert_eq!(passed["impersonate-user"], "alice");
        assert_eq!(passed["kas-service"], "kubernetes");
        assert_eq!(passed["x-forwarded-for"], "192.0.2.1");
    }

    #[test]
    fn underscore_spellings_of_identity_headers_are_refused() {
        for name in ["impersonate_user", "audit_id", "kas_service", "x_forwarded_for", "impersonate-extra_a"]
        {
            assert_eq!(converted(&[(name, "x")], &AccessAs::Agent), Err(Reason::BadRequest), "{name}");
        }
        assert!(converted(&[("my_header", "x")], &AccessAs::Agent).is_ok());
    }

    #[test]
    fn upgrade_needs_the_connection_option() {
        let asked =
            converted(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")], &AccessAs::Agent).unwrap();
        assert_eq!(asked["upgrade"], "SPDY/3.1");
        let not_asked = converted(&[("upgrade", "SPDY/3.1")], &AccessAs::Agent).unwrap();
        assert!(!not_asked.contains_key("upgrade"));
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
        to_caller(&mut headers, false, &[], &HeaderValue::from_static("id-1"));
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
        to_caller(&mut headers, false, &extra, &HeaderValue::from_static("id-1"));
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
}
