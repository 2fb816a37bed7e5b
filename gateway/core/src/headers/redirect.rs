//! Headers of responses with addresses: `Location`, `Content-Location` and `Refresh`.
//!
//! The service knows its paths as it receives them, so that those that begin with `/` get the prefix by which kas serves the agent.
//! Only paths pass: a redirect to another origin could send the token of the caller there.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONTENT_LOCATION, LOCATION, REFRESH},
};

/// Rewrites the addresses of a response, or removes them.
pub fn rewrite(headers: &mut HeaderMap, prefix: &str) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "/agents/prod/kubernetes";

    fn rewritten(name: &'static str, value: &str, prefix: &str) -> Option<String> {
        let mut headers = HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().unwrap())]);
        rewrite(&mut headers, prefix);
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
        rewrite(&mut twice, PREFIX);
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
}
