//! Which requests only read. Compared byte by byte with how Prometheus writes its own paths: another spelling of the
//! same path is refused, so that none slips through.

use http::Method;
use percent_encoding::percent_decode_str;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allowed,
    /// The path is proxied with these methods, as `Allow` lists them.
    WrongMethod(&'static str),
    Refused,
}

const GET: &str = "GET";
const POST: &str = "POST";
const GET_POST: &str = "GET, POST";
/// Load balancers probe like that.
const GET_HEAD: &str = "GET, HEAD";

/// The HTTP API of Prometheus 3 (<https://prometheus.io/docs/prometheus/latest/querying/api/>), and of its other paths
/// what federation and probes need. Not here:
///
/// * what writes, deletes or stops: `write`, `otlp`, `admin/tsdb`, `-/reload`, `-/quit`;
/// * `debug`, which shows memory and takes processor time;
/// * `status/config` and `scrape_pools/config`. Prometheus blanks what it knows to be secret, which a parameter or a
///   header of a scrape is not (CVE-2026-42151);
/// * `status/flags`. Prometheus has no secret in a flag, but servers that speak its API do: Thanos takes the keys of
///   its buckets there;
/// * what neither Grafana nor a federating Prometheus asks for: the pages for people, `/metrics`, `/version`.
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
    ("/api/v1/notifications/live", GET),
    ("/api/v1/read", POST),
    ("/federate", GET),
    ("/-/healthy", GET_HEAD),
    ("/-/ready", GET_HEAD),
];

/// Decides whether agentk sends a request with this method and path to Prometheus.
pub fn judge(method: &Method, path: &str) -> Verdict {
    let methods = match label(path) {
        Some(name) => is_label(name).then_some(GET),
        None => ALLOWED.iter().find(|(allowed, _)| *allowed == path).map(|(_, methods)| *methods),
    };
    match methods {
        Some(methods) if methods.split(", ").any(|allowed| allowed == method.as_str()) => Verdict::Allowed,
        Some(methods) => Verdict::WrongMethod(methods),
        None => Verdict::Refused,
    }
}

fn label(path: &str) -> Option<&str> {
    path.strip_prefix("/api/v1/label/")?.strip_suffix("/values")
}

/// The one part of a path that may be percent-encoded: Prometheus 3 takes any UTF-8 as the name of a label. What
/// would be part of the path's structure once it is decoded is no name here; Prometheus' own escaping (`U__a_2f_b`)
/// is, and Grafana uses it.
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

    fn allowed(path: &str) -> String {
        let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "get", "PROPFIND"];
        let allowed = |method: &&str| judge(&method.parse().unwrap(), path) == Verdict::Allowed;
        methods.into_iter().filter(allowed).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn every_path_has_the_methods_that_prometheus_gives_it() {
        for (path, methods) in ALLOWED {
            assert_eq!(allowed(path), *methods, "{path}");
            assert_eq!(judge(&Method::DELETE, path), Verdict::WrongMethod(methods), "{path}");
        }
        for name in ["job", "__name__", "a%20b.c", "U__a_2f_b", "%C3%BC"] {
            assert_eq!(allowed(&format!("/api/v1/label/{name}/values")), "GET", "{name}");
        }
    }

    #[test]
    fn what_writes_stops_or_tells_secrets() {
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
            assert_eq!(allowed(path), "", "{path}");
            assert_eq!(judge(&Method::POST, path), Verdict::Refused, "{path}");
        }
    }

    /// Item 67: denied endpoints, in every spelling that a server or a proxy on the way may read as one of them, and
    /// allowed ones that may be read as something else.
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
            assert_eq!(allowed(path), "", "{path}");
            assert_eq!(judge(&Method::GET, path), Verdict::Refused, "{path}");
        }
    }
}
