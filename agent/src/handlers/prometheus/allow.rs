//! Which requests only read. Compared byte by byte with how Prometheus writes its own paths: another spelling of the
//! same path is refused, so that none slips through.

use http::Method;
use percent_encoding::percent_decode_str;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Methods {
    Get,
    Post,
    GetOrPost,
}

/// <https://prometheus.io/docs/prometheus/latest/querying/api/>, without what writes (`write`, `otlp`), what deletes or
/// stops (`admin`, `-/reload`, `-/quit`), and what shows secrets (`status/config`, `status/flags`, `debug`).
const ALLOWED: &[(&str, Methods)] = &[
    ("/api/v1/query", Methods::GetOrPost),
    ("/api/v1/query_range", Methods::GetOrPost),
    ("/api/v1/query_exemplars", Methods::GetOrPost),
    ("/api/v1/series", Methods::GetOrPost),
    ("/api/v1/labels", Methods::GetOrPost),
    ("/api/v1/metadata", Methods::Get),
    ("/api/v1/format_query", Methods::GetOrPost),
    ("/api/v1/parse_query", Methods::GetOrPost),
    ("/api/v1/rules", Methods::Get),
    ("/api/v1/alerts", Methods::Get),
    ("/api/v1/targets", Methods::Get),
    ("/api/v1/targets/metadata", Methods::Get),
    ("/api/v1/status/buildinfo", Methods::Get),
    ("/api/v1/status/runtimeinfo", Methods::Get),
    ("/api/v1/read", Methods::Post),
    ("/federate", Methods::Get),
    ("/-/healthy", Methods::Get),
    ("/-/ready", Methods::Get),
];

pub(super) fn allows(method: &Method, path: &str) -> bool {
    let methods = match label(path) {
        Some(name) => is_label(name).then_some(Methods::Get),
        None => ALLOWED.iter().find(|(allowed, _)| *allowed == path).map(|(_, methods)| *methods),
    };
    match methods {
        Some(Methods::Get) => method == Method::GET,
        Some(Methods::Post) => method == Method::POST,
        Some(Methods::GetOrPost) => method == Method::GET || method == Method::POST,
        None => false,
    }
}

fn label(path: &str) -> Option<&str> {
    path.strip_prefix("/api/v1/label/")?.strip_suffix("/values")
}

/// The one part of a path that may be percent-encoded: Prometheus 3 takes any UTF-8 as the name of a label. What
/// would be part of the path's structure once it is decoded is no name here.
fn is_label(name: &str) -> bool {
    let Ok(decoded) = percent_decode_str(name).decode_utf8() else { return false };
    !decoded.is_empty()
        && !matches!(&*decoded, "." | "..")
        && !decoded.contains(|c: char| c.is_control() || matches!(c, '/' | '\\' | '%' | '?' | '#' | ';'))
        && !name.contains('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> bool {
        allows(&Method::GET, path)
    }

    fn post(path: &str) -> bool {
        allows(&Method::POST, path)
    }

    #[test]
    fn what_grafana_asks() {
        for path in ["/api/v1/query", "/api/v1/query_range", "/api/v1/series", "/api/v1/labels"] {
            assert!(get(path) && post(path), "{path}");
        }
        for path in ["/api/v1/metadata", "/api/v1/rules", "/api/v1/status/buildinfo", "/federate", "/-/ready"]
        {
            assert!(get(path) && !post(path), "{path}");
        }
        for path in
            ["/api/v1/label/job/values", "/api/v1/label/__name__/values", "/api/v1/label/a%20b.c/values"]
        {
            assert!(get(path) && !post(path), "{path}");
        }
        assert!(post("/api/v1/read") && !get("/api/v1/read"));
    }

    #[test]
    fn what_writes_stops_or_tells_secrets() {
        for path in [
            "/api/v1/write",
            "/api/v1/otlp/v1/metrics",
            "/api/v1/admin/tsdb/delete_series",
            "/-/reload",
            "/-/quit",
            "/debug/pprof/profile",
            "/api/v1/status/config",
            "/api/v1/status/flags",
            "/metrics",
            "/",
        ] {
            assert!(!get(path) && !post(path), "{path}");
        }
        for method in [Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS, Method::HEAD] {
            assert!(!allows(&method, "/api/v1/query"), "{method}");
        }
    }

    #[test]
    fn another_spelling_is_another_path() {
        for path in [
            "/api/v1/quer%79",
            "/api/v1/query/",
            "//api/v1/query",
            "/api/v1//query",
            "/api/v1/./query",
            "/api/v1/x/../query",
            "/API/v1/query",
            "/api/v1/label//values",
            "/api/v1/label/a/b/values",
            "/api/v1/label/../values",
            "/api/v1/label/%2e%2E/values",
            "/api/v1/label/..%2fadmin%2ftsdb/values",
            "/api/v1/label/a%5cb/values",
            "/api/v1/label/a%252fb/values",
            "/api/v1/label/a%00/values",
            "/api/v1/label/%ff/values",
            "/api/v1/label/job/values/",
        ] {
            assert!(!get(path), "{path}");
        }
    }
}
