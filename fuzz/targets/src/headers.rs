//! Header filters of kas and agentk, with any list of headers.
//!
//! Input: `name: value` lines.
//!
//! * A request to the agent has no credentials, no hop-by-hop header, no header for kas itself, no forwarding or `kas-*`
//!   header but kas's own, and no header that `Connection` names. It has an `Upgrade` only if the caller asked for one,
//!   and never to HTTP. All other headers are unchanged.
//! * A request is rejected if the name of a header differs from a header of identity or framing only by `_` for `-`.
//! * A request with impersonation has exactly the `Impersonate-*` headers of kas, or is rejected. Without impersonation
//!   the caller's `Impersonate-*` headers are unchanged.
//! * A response to the caller has only the allowed headers. A browser that follows its `Location` stays on kas's origin.
//! * agentk does not depend on kas's filter: neither credentials nor `kas-*` headers reach the cluster, and the cluster's
//!   `kas-*` headers do not reach kas.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::LazyLock,
};

use access::AccessAs;
use gateway::test_support::{
    ForwardedFor, PeerAddress, ProxyHeaders, ResponsePolicy, rewrite_addresses, to_agent, to_caller,
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Version,
    header::{CONNECTION, LOCATION, UPGRADE, VIA},
};
use proto::{
    Reason, ServiceName, header, hop_by_hop,
    impersonation::{self, Impersonation},
};
use url::Url;

use crate::input;

const HOP_BY_HOP: &[&str] = &[
    "connection",
    "expect",
    "http2-settings",
    "proxy-connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "transfer-encoding",
    "upgrade",
];
const CREDENTIALS: &[&str] = &["authorization", "cookie"];
const FOR_KAS: &[&str] = &["gitlab-agent-id", "x-csrf-token", "x-request-id"];
const TO_CALLER: &[&str] = &[
    "accept-ranges",
    "allow",
    "audit-id",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expires",
    "last-modified",
    "location",
    "pragma",
    "retry-after",
    "trailer",
    "vary",
    "warning",
    "x-kubernetes-pf-flowschema-uid",
    "x-kubernetes-pf-prioritylevel-uid",
];
const TO_CALLER_UPGRADED: &[&str] = &[
    "connection",
    "sec-websocket-accept",
    "sec-websocket-extensions",
    "sec-websocket-protocol",
    "upgrade",
    "x-accept-stream-protocol-versions",
    "x-stream-protocol-version",
];

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

const ID: HeaderValue = HeaderValue::from_static("id-of-kas");

static SERVICE: LazyLock<ServiceName> = LazyLock::new(|| "kubernetes".parse().expect("it is a service"));
static ALICE: LazyLock<AccessAs> = LazyLock::new(|| {
    let alice = Impersonation {
        username: "alice".into(),
        uid: Some("7".into()),
        groups: vec!["a".into(), "b".into()],
        extra: vec![("team".into(), vec!["x".into(), "y".into()])],
    };
    let headers = alice.headers().expect("they are header values");
    AccessAs::Impersonate { username: alice.username, headers }
});

/// Checks one input.
pub fn run(data: &[u8]) {
    let input = input::headers(data);
    check_to_agent(&input, &AccessAs::Agent);
    check_to_agent(&input, &ALICE);
    check_to_caller(&input, false);
    check_to_caller(&input, true);
    check_agent(&input);
}

fn check_to_agent(input: &HeaderMap, access_as: &AccessAs) {
    let has_lookalike = input.keys().any(is_lookalike);
    let impersonating = input.keys().any(is_impersonation);
    let kas = match access_as {
        AccessAs::Agent => None,
        AccessAs::Impersonate { headers, .. } => Some(headers),
    };
    let forwarded = ForwardedFor::new(input, &PeerAddress::new(PEER), &[]);
    let proxy_headers = ProxyHeaders {
        service: &SERVICE,
        access_as,
        request_id: &ID,
        upgrade: true,
        version: Version::HTTP_11,
        forwarded: &forwarded,
    };
    let mut output = input.clone();
    if let Err(failure) = to_agent(&mut output, proxy_headers) {
        match failure.reason {
            Reason::BadRequest => assert!(has_lookalike || impersonation::check(input).is_err(), "{failure}"),
            Reason::NestedImpersonation => assert!(impersonating && kas.is_some(), "{failure}"),
            _ => panic!("{failure}"),
        }
        return;
    }
    assert!(!has_lookalike, "an underscore passed: {input:?}");
    assert!(!(impersonating && kas.is_some()), "two impersonations: {input:?}");

    assert_eq!(values(&output, "kas-service"), ["kubernetes"]);
    assert_eq!(values(&output, "x-request-id"), [ID]);
    assert_eq!(values(&output, "x-forwarded-for"), ["192.0.2.1"]);
    assert_eq!(values(&output, "via").last().map(|via| via.as_bytes()), Some(&b"1.1 kas"[..]));
    check_upgrade(input, &output);
    let named = connection_options(input);
    let stays = |name: &str| {
        !CREDENTIALS.contains(&name)
            && !FOR_KAS.contains(&name)
            && !HOP_BY_HOP.contains(&name)
            && !name.starts_with("kas-")
            && !name.starts_with("x-remote-")
            && !name.starts_with("x-forwarded-")
            && !matches!(name, "forwarded" | "x-real-ip")
            && !named.iter().any(|named| named == name)
    };
    for name in output.keys().chain(input.keys()).map(HeaderName::as_str) {
        if matches!(name, "kas-service" | "x-request-id" | "x-forwarded-for" | "via" | "upgrade" | "te") {
            continue;
        }
        let expected = match kas {
            Some(kas) if name.starts_with("impersonate-") => values(kas, name),
            _ if stays(name) => values(input, name),
            _ => Vec::new(),
        };
        assert_eq!(values(&output, name), expected, "{name} of {input:?}");
    }
    check_te(input, &output);
    for name in kas.into_iter().flat_map(HeaderMap::keys) {
        assert!(output.contains_key(name), "{name} is gone: {input:?}");
    }
}

fn check_to_caller(input: &HeaderMap, upgraded: bool) {
    let mut output = input.clone();
    to_caller(&mut output, ResponsePolicy { upgraded, ..ResponsePolicy::default() }, &ID);
    assert_eq!(values(&output, "x-request-id"), [ID]);
    assert_eq!(values(&output, "x-content-type-options"), ["nosniff"]);
    for name in output.keys().chain(input.keys()).map(HeaderName::as_str) {
        match name {
            "x-request-id"
            | "x-content-type-options"
            | "content-security-policy"
            | "via"
            | "location"
            | "content-location"
            | "refresh" => {
                continue;
            }
            _ if TO_CALLER.contains(&name) || upgraded && TO_CALLER_UPGRADED.contains(&name) => {
                assert_eq!(values(&output, name), values(input, name), "{name}");
            }
            _ => assert!(!output.contains_key(name), "{name} passed"),
        }
    }

    let here = Url::parse("https://kas.example:8154/agents/a/kubernetes/api/v1").expect("it is a URL");
    rewrite_addresses(&mut output, "/agents/a/kubernetes");
    for location in output.get_all(LOCATION) {
        // A browser does not follow an invalid URL.
        if let Ok(there) = here.join(&String::from_utf8_lossy(location.as_bytes())) {
            assert_eq!(there.origin(), here.origin(), "{location:?} leads to {there}");
        }
    }
}

fn check_agent(input: &HeaderMap) {
    let named = connection_options(input);
    let stays = |name: &str| {
        !HOP_BY_HOP.contains(&name) && !name.starts_with("kas-") && !named.iter().any(|named| named == name)
    };

    let mut request = input.clone();
    let upgrade = agentk_core::services::headers::to_upstream(&mut request);
    assert_eq!(upgrade, request.contains_key(UPGRADE));
    let options = match (upgrade, hop_by_hop::accepts_trailers(input)) {
        (true, _) => vec!["upgrade"],
        (false, true) => vec!["te"],
        (false, false) => vec![],
    };
    assert_eq!(values(&request, "connection"), options);
    if !upgrade {
        check_te(input, &request);
    }
    check_upgrade(input, &request);
    let mut response = input.clone();
    agentk_core::services::headers::from_upstream(&mut response);
    check_upgrade(input, &response);
    let ours = |name: &str| matches!(name, "connection" | "te" | "upgrade" | "via");
    for name in input.keys().map(HeaderName::as_str).filter(|name| !ours(name)) {
        let kept = if stays(name) { values(input, name) } else { Vec::new() };
        assert_eq!(values(&response, name), kept, "{name} of a response");
        let kept = if CREDENTIALS.contains(&name) { Vec::new() } else { kept };
        assert_eq!(values(&request, name), kept, "{name} of a request");
    }
    let known = |name: &HeaderName| name == CONNECTION || name == VIA || input.contains_key(name);
    assert!(request.keys().chain(response.keys()).all(known));
    assert!(!response.contains_key(CONNECTION));
}

/// Checks that at most one protocol is left, that it was offered, and that `Connection` has `upgrade`.
fn check_upgrade(input: &HeaderMap, output: &HeaderMap) {
    let requested = connection_options(input).iter().any(|option| option == "upgrade");
    let h2c = header::tokens(input, &UPGRADE).any(|protocol| protocol.eq_ignore_ascii_case("h2c"));
    match *values(output, "upgrade") {
        [] => assert!(!requested || h2c || !input.contains_key(UPGRADE), "an upgrade is lost: {input:?}"),
        [protocol] => assert!(requested && !h2c && values(input, "upgrade").contains(&protocol), "{input:?}"),
        [..] => panic!("several upgrades: {input:?}"),
    }
}

/// Checks that `TE` is `trailers` if trailers are wanted, and absent otherwise.
fn check_te(input: &HeaderMap, output: &HeaderMap) {
    assert_eq!(
        values(output, "te"),
        vec!["trailers"; usize::from(hop_by_hop::accepts_trailers(input))],
        "{input:?}"
    );
}

fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a HeaderValue> {
    headers.get_all(name).iter().collect()
}

/// Returns the names in `Connection`, in lower case. A value with bytes outside ASCII is not a list of names.
fn connection_options(headers: &HeaderMap) -> Vec<String> {
    let lists = headers.get_all(CONNECTION).iter().filter(|list| list.as_bytes().is_ascii());
    lists
        .flat_map(|list| list.as_bytes().split(|byte| *byte == b','))
        .map(|option| String::from_utf8_lossy(option.trim_ascii()).to_ascii_lowercase())
        .collect()
}

fn is_impersonation(name: &HeaderName) -> bool {
    name.as_str().starts_with("impersonate-")
}

/// Returns whether a server that treats `_` as `-` reads this name as an identity or framing header.
fn is_lookalike(name: &HeaderName) -> bool {
    let plain = name.as_str().replace('_', "-");
    let identity = ["impersonate-", "kas-", "x-forwarded-", "x-remote-"];
    plain != name.as_str()
        && (identity.iter().any(|prefix| plain.starts_with(prefix))
            || FOR_KAS.contains(&&*plain)
            || matches!(
                &*plain,
                "audit-id" | "content-length" | "proxy-authorization" | "transfer-encoding" | "x-real-ip"
            ))
}
