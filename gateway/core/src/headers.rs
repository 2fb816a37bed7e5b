//! The headers of requests and responses that pass through kas.
//!
//! kas removes hop-by-hop headers, headers for kas itself and headers that only kas may set from a request, and then adds its
//! own. The order matters: `Connection: Impersonate-User` must not remove a header that kas added (CVE-2021-31999). A
//! response keeps only headers of an allowlist, because the agent is not trusted.

mod response;

use access::{AccessAs, RequestError};
use http::{
    HeaderMap, HeaderName, HeaderValue, Version,
    header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE, VIA},
};
use kas_listen::addresses::{ForwardedFor, is_forwarded};
use proto::{Reason, ServiceName, hop_by_hop, impersonation};

pub use self::response::{ResponsePolicy, rewrite_addresses, to_caller};

pub(crate) use self::response::ExtraHeader;

/// Request headers for kas itself.
const CONSUMED: [&str; 5] = ["authorization", "cookie", "gitlab-agent-id", "x-csrf-token", "x-request-id"];

/// Headers that frame a message. Their spellings with `_` are refused as well.
static FRAMING: [HeaderName; 4] = [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE];

/// The headers that kas sets in a request.
#[derive(Clone, Copy, Debug)]
pub struct ProxyHeaders<'a> {
    /// The service of the agent.
    pub service: &'a ServiceName,
    /// The identity of the caller in the cluster.
    pub access_as: &'a AccessAs,
    /// The id of the request.
    pub request_id: &'a HeaderValue,
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
    let upgrade = proxy_headers.upgrade.then(|| hop_by_hop::upgrade_protocol(headers)).flatten();
    let mut refused = None;
    hop_by_hop::strip_with(headers, |name| {
        let text = name.as_str();
        if text.as_bytes().contains(&b'_') && is_underscore_spelling(text) {
            refused.get_or_insert_with(|| underscore_spelling(name));
        }
        if impersonated && text.starts_with(impersonation::PREFIX) {
            refused.get_or_insert_with(nested_impersonation);
        }
        is_consumed(text) || is_forwarded(name)
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
    if let AccessAs::Impersonate { headers: identity, .. } = proxy_headers.access_as {
        for (name, value) in identity {
            headers.append(name, value.clone());
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use kas_listen::addresses::PeerAddress;

    use super::*;

    /// Returns headers with these names and values.
    pub(super) fn map(entries: &[(&str, &str)]) -> HeaderMap {
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
}
