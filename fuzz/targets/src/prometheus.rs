//! agentk's list of allowed Prometheus requests, with any method and path.
//!
//! Input: the method, a line feed, the path.
//!
//! * An allowed path is, byte for byte, on the documented list, or is `/api/v1/label/<name>/values`.
//! * The same holds for a path that is refused for its method only.
//! * The same holds after one and two rounds of percent-decoding and after `.`, `..` and `//` are resolved, as a server
//!   or a proxy might do: no allowed path becomes one that writes, deletes, stops the server or returns secrets.
//! * `/api/v1/label/<name>/values` is allowed with GET only.

use http::{Method, uri::PathAndQuery};
use percent_encoding::percent_decode_str;
use request_info::prometheus::{self as allowlist, AllowlistMatch};

const BOTH: &[&str] = &[
    "/api/v1/query",
    "/api/v1/query_range",
    "/api/v1/query_exemplars",
    "/api/v1/series",
    "/api/v1/labels",
    "/api/v1/format_query",
    "/api/v1/parse_query",
    "/api/v1/search/metric_names",
    "/api/v1/search/label_names",
    "/api/v1/search/label_values",
];
const GET: &[&str] = &[
    "/api/v1/metadata",
    "/api/v1/rules",
    "/api/v1/alerts",
    "/api/v1/targets",
    "/api/v1/alertmanagers",
    "/api/v1/targets/metadata",
    "/api/v1/targets/relabel_steps",
    "/api/v1/scrape_pools",
    "/api/v1/status/buildinfo",
    "/api/v1/status/runtimeinfo",
    "/api/v1/status/tsdb",
    "/api/v1/status/tsdb/blocks",
    "/api/v1/status/self_metrics",
    "/api/v1/status/walreplay",
    "/api/v1/features",
    "/api/v1/notifications",
    "/api/v1/notifications/live",
    "/federate",
    "/-/healthy",
    "/-/ready",
];
const POST: &[&str] = &["/api/v1/read"];
const HEAD: &[&str] = &["/-/healthy", "/-/ready"];

/// Checks one input.
pub fn run(data: &[u8]) {
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else { return };
    let Ok(method) = Method::from_bytes(&data[..end]) else { return };
    let Ok(path) = PathAndQuery::try_from(&data[end + 1..]) else { return };
    let path = path.path();
    let verdict = allowlist::check(&method, path);
    let listed = |list: &[&str]| list.contains(&path);
    let (get, post, head) = (method == Method::GET, method == Method::POST, method == Method::HEAD);
    if (get || post) && listed(BOTH) || get && listed(GET) || post && listed(POST) || head && listed(HEAD) {
        assert_eq!(verdict, AllowlistMatch::Allowed, "{method} {path} is on the list");
        return;
    }
    if listed(BOTH) || listed(GET) || listed(POST) {
        assert!(matches!(verdict, AllowlistMatch::WrongMethod(_)), "{method} {path}: {verdict:?}");
        return;
    }
    if verdict == AllowlistMatch::NotListed {
        return;
    }

    assert_eq!(verdict == AllowlistMatch::Allowed, get, "{method} {path}");
    let once = percent_decode_str(path).decode_utf8().expect("what is allowed is UTF-8");
    let twice = percent_decode_str(&once).decode_utf8().expect("what is allowed is UTF-8");
    for reading in [path, &once, &twice] {
        for cleaned in [reading.to_owned(), clean(reading), clean(&reading.replace('\\', "/"))] {
            let parts: Vec<&str> = cleaned.split('/').collect();
            let ["", "api", "v1", "label", name, "values"] = *parts else {
                panic!("{path:?} may be read as {cleaned:?}");
            };
            assert!(!name.is_empty() && name != "." && name != "..", "{path:?} may be read as {cleaned:?}");
            assert!(!name.contains(['?', '#', ';']) && !name.contains(char::is_control), "{path:?}");
        }
    }
}

/// Resolves `.`, `..` and `//` as Go's `path.Clean` does for an absolute path.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}
