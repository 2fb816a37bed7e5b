//! The list of requests to Prometheus that only read, and the labels of the series that a caller may see.
//!
//! Paths are compared byte by byte with those of Prometheus. Another spelling of the same path is refused, so that no
//! spelling bypasses the list.

mod series_labels;

use http::Method;
use percent_encoding::percent_decode_str;

pub use self::series_labels::{MAX_VALUE_BYTES, SeriesLabels, SeriesLabelsError};

/// The result of [`check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowlistMatch {
    /// The request may be sent.
    Allowed,
    /// The path may be requested with these methods only, as `Allow` lists them.
    WrongMethod(&'static str),
    /// The path is not on the list.
    NotListed,
}

impl AllowlistMatch {
    /// Returns the message for the sender of a request that is not sent, or `None` if it is.
    pub fn refusal(self, method: &Method, path: &str) -> Option<String> {
        match self {
            Self::Allowed => None,
            Self::WrongMethod(methods) => {
                Some(format!("{method} {path} of Prometheus is not proxied: use {methods}"))
            }
            Self::NotListed => Some(format!(
                "{method} {path} of Prometheus is not proxied: only requests that read, and return no secrets, are \
                 (docs/prometheus.md)"
            )),
        }
    }
}

/// The path of the notifications of a server: server-sent events, whose reader connects again after their end.
pub const NOTIFICATIONS_PATH: &str = "/api/v1/notifications/live";

const GET: &str = "GET";
const POST: &str = "POST";
const GET_POST: &str = "GET, POST";
/// Load balancers probe with HEAD.
const GET_HEAD: &str = "GET, HEAD";

/// The paths and their methods: the HTTP API of Prometheus 3
/// (<https://prometheus.io/docs/prometheus/latest/querying/api/>), and the paths of federation and probes. Not listed are:
///
/// * requests that write, delete or stop the server: `write`, `otlp`, `admin/tsdb`, `-/reload`, `-/quit`;
/// * `debug`, which returns memory contents and uses processor time;
/// * `status/config` and `scrape_pools/config`. Prometheus blanks passwords there, but not the parameters and headers of a
///   scrape (CVE-2026-42151);
/// * `status/flags`. Prometheus has no secret in a flag, but other servers with its API do: Thanos takes the keys of its
///   buckets there;
/// * paths that neither Grafana nor a federating Prometheus requests: the web pages, `/metrics`, `/version`.
const ALLOWED: &[(&str, &str)] = &[
    ("/api/v1/query", GET_POST),
    ("/api/v1/query_range", GET_POST),
    ("/api/v1/query_exemplars", GET_POST),
    ("/api/v1/format_query", GET_POST),
    ("/api/v1/parse_query", GET_POST),
    ("/api/v1/series", GET_POST),
    ("/api/v1/labels", GET_POST),
    ("/api/v1/search/metric_names", GET_POST),
    ("/api/v1/search/label_names", GET_POST),
    ("/api/v1/search/label_values", GET_POST),
    ("/api/v1/metadata", GET),
    ("/api/v1/rules", GET),
    ("/api/v1/alerts", GET),
    ("/api/v1/alertmanagers", GET),
    ("/api/v1/targets", GET),
    ("/api/v1/targets/metadata", GET),
    ("/api/v1/targets/relabel_steps", GET),
    ("/api/v1/scrape_pools", GET),
    ("/api/v1/status/buildinfo", GET),
    ("/api/v1/status/runtimeinfo", GET),
    ("/api/v1/status/tsdb", GET),
    ("/api/v1/status/tsdb/blocks", GET),
    ("/api/v1/status/self_metrics", GET),
    ("/api/v1/status/walreplay", GET),
    ("/api/v1/features", GET),
    ("/api/v1/notifications", GET),
    (NOTIFICATIONS_PATH, GET),
    ("/api/v1/read", POST),
    ("/federate", GET),
    ("/-/healthy", GET_HEAD),
    ("/-/ready", GET_HEAD),
];

/// Returns whether a request with this method and path may be sent to Prometheus.
pub fn check(method: &Method, path: &str) -> AllowlistMatch {
    let methods = match label_name(path) {
        Some(name) => is_label_name(name).then_some(GET),
        None => ALLOWED.iter().find(|(allowed, _)| *allowed == path).map(|(_, methods)| *methods),
    };
    match methods {
        Some(methods) if methods.split(", ").any(|allowed| allowed == method.as_str()) => {
            AllowlistMatch::Allowed
        }
        Some(methods) => AllowlistMatch::WrongMethod(methods),
        None => AllowlistMatch::NotListed,
    }
}

fn label_name(path: &str) -> Option<&str> {
    path.strip_prefix("/api/v1/label/")?.strip_suffix("/values")
}

/// Returns true if this may be the name of a label, the only part of a path that may be percent-encoded: Prometheus 3
/// accepts any UTF-8.
///
/// Characters that would be a part of the path's structure once they are decoded are refused. Grafana writes them in
/// Prometheus' own escaping (`U__a_2f_b`), which is accepted.
fn is_label_name(name: &str) -> bool {
    let Ok(decoded) = percent_decode_str(name).decode_utf8() else { return false };
    !decoded.is_empty()
        && !matches!(&*decoded, "." | "..")
        && !decoded.contains(|c: char| c.is_control() || matches!(c, '/' | '\\' | '%' | '?' | '#' | ';'))
        && !name.contains('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed_methods(path: &str) -> String {
        let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "get", "PROPFIND"];
        let allowed = |method: &&str| check(&method.parse().unwrap(), path) == AllowlistMatch::Allowed;
        methods.into_iter().filter(allowed).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn listed_path_has_the_methods_of_prometheus() {
        for (path, methods) in ALLOWED {
            assert_eq!(allowed_methods(path), *methods, "{path}");
            assert_eq!(check(&Method::DELETE, path), AllowlistMatch::WrongMethod(methods), "{path}");
        }
        for name in ["job", "__name__", "a%20b.c", "U__a_2f_b", "%C3%BC"] {
            assert_eq!(allowed_methods(&format!("/api/v1/label/{name}/values")), "GET", "{name}");
        }
    }

    #[test]
    fn path_that_writes_stops_or_returns_secrets_is_not_listed() {
        for path in [
            "/api/v1/write",
            "/api/v1/otlp/v1/metrics",
            "/api/v1/admin/tsdb/delete_series",
            "/api/v1/admin/tsdb/snapshot",
            "/api/v1/admin/tsdb/clean_tombstones",
            "/-/reload",
            "/-/quit",
            "/debug/pprof/profile",
            "/api/v1/status/config",
            "/api/v1/status/flags",
            "/api/v1/scrape_pools/config",
            "/metrics",
            "/version",
            "/graph",
            "/",
        ] {
            assert_eq!(allowed_methods(path), "", "{path}");
            assert_eq!(check(&Method::POST, path), AllowlistMatch::NotListed, "{path}");
        }
    }

    /// Attack 67: unlisted paths in every spelling that a server or a proxy may take for one of them, and listed paths that
    /// may be taken for another.
    #[test]
    fn attack_67_other_spelling_of_a_path_is_not_listed() {
        for path in [
            "/api/v1/quer%79",
            "/api/v1/query/",
            "//api/v1/query",
            "/api/v1//query",
            "/api/v1/./query",
            "/api/v1/x/../query",
            "/API/v1/query",
            "/api/v1/query;x",
            "/api/v1/query%3Fx",
            "/api/v1/query/../admin/tsdb/snapshot",
            "/api/v1/query%2f..%2fwrite",
            "/api/v1/%77rite",
            "/api/v1/WRITE",
            "/%2d/quit",
            "/-/%71uit",
            "/./-/reload",
            "/-//reload",
            "/-/reload/",
            "/-/RELOAD",
            "/debug/",
            "/%64ebug/pprof/heap",
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
            assert_eq!(allowed_methods(path), "", "{path}");
            assert_eq!(check(&Method::GET, path), AllowlistMatch::NotListed, "{path}");
        }
    }
}
