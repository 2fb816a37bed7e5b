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

const PREFIX: &str = "/agents/prod/kubernetes";

fn rewritten(name: &'static str, value: &str, prefix: &str) -> Option<String> {
    let mut headers = HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().unwrap())]);
    rewrite_addresses(&mut headers, prefix);
    headers.get(name).map(|value| value.to_str().unwrap().to_owned())
}

#[test]
fn path_gets_the_prefix_of_the_agent() {
    for (address, expected) in [
        (
            "/api/v1/namespaces/px/pods/http:box:8080/proxy/",
            "/agents/prod/kubernetes/api/v1/namespaces/px/pods/http:box:8080/proxy/",
        ),
        ("/", "/agents/prod/kubernetes/"),
        ("/graph?g0=/a/../b#x", "/agents/prod/kubernetes/graph?g0=/a/../b#x"),
        ("/agents/prod/kubernetes/graph", "/agents/prod/kubernetes/graph"),
        ("/agents/prod/kubernetes", "/agents/prod/kubernetes"),
        ("/agents/prod/kubernetes2/graph", "/agents/prod/kubernetes/agents/prod/kubernetes2/graph"),
        ("/agents/other/kubernetes/evil", "/agents/prod/kubernetes/agents/other/kubernetes/evil"),
        ("logs/", "logs/"),
        ("../", "../"),
        ("?page=2", "?page=2"),
        ("", ""),
    ] {
        for name in ["location", "content-location"] {
            assert_eq!(rewritten(name, address, PREFIX).as_deref(), Some(expected), "{address}");
        }
        assert_eq!(rewritten("location", address, "").as_deref(), Some(address), "a host of its own");
    }
}

#[test]
fn address_of_another_origin_or_agent_is_removed() {
    for address in [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example/",
        "/\t/evil.example",
        "\\\\evil.example",
        "javascript:alert(1)",
        "https:evil.example",
        "/../../../agents/other/kubernetes/evil",
        "/a/%2e%2E/b",
        "/a/.%2e",
    ] {
        for name in ["location", "content-location"] {
            assert_eq!(rewritten(name, address, PREFIX), None, "{address}");
        }
        assert_eq!(rewritten("refresh", &format!("0; url={address}"), PREFIX), None, "{address}");
    }
    let mut twice = HeaderMap::new();
    twice.append(LOCATION, HeaderValue::from_static("/a"));
    twice.append(LOCATION, HeaderValue::from_static("//evil.example/"));
    rewrite_addresses(&mut twice, PREFIX);
    assert!(twice.is_empty());
}

#[test]
fn refresh_keeps_its_time() {
    for (value, expected) in [
        ("5", "5"),
        ("0; url=/login", "0; url=/agents/prod/kubernetes/login"),
        ("0;URL='/login'", "0; url=/agents/prod/kubernetes/login"),
        ("3, url = \"/login\"", "3; url=/agents/prod/kubernetes/login"),
        ("1;/login", "1; url=/agents/prod/kubernetes/login"),
    ] {
        assert_eq!(rewritten("refresh", value, PREFIX).as_deref(), Some(expected), "{value}");
    }
    assert_eq!(rewritten("refresh", "0; url=https://evil.example", PREFIX), None);
    assert_eq!(rewritten("refresh", "0; url= javascript:alert(1)", PREFIX), None);
}
