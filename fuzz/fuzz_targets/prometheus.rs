//! agentk's list of what is proxied to Prometheus, on any method and path. The list is that of the source file, which
//! is included: the crate does not export it.
//!
//! Input: the method, a line feed, the path.
//!
//! * What is allowed is, byte for byte, on the documented list, or `/api/v1/label/<name>/values`.
//! * The same holds after decoding once and twice and after resolving `.`, `..` and `//`, as a server or a proxy on
//!   the way might: nothing becomes a path that writes, deletes, stops or tells secrets.
//! * Only GET reads labels and status; only GET and POST do anything at all.
#![no_main]

use http::{Method, uri::PathAndQuery};
use libfuzzer_sys::fuzz_target;
use percent_encoding::percent_decode_str;

#[path = "../../agent/src/handlers/prometheus/allow.rs"]
mod allow;

const BOTH: &[&str] = &[
    "/api/v1/query",
    "/api/v1/query_range",
    "/api/v1/query_exemplars",
    "/api/v1/series",
    "/api/v1/labels",
    "/api/v1/format_query",
    "/api/v1/parse_query",
];
const GET: &[&str] = &[
    "/api/v1/metadata",
    "/api/v1/rules",
    "/api/v1/alerts",
    "/api/v1/targets",
    "/api/v1/targets/metadata",
    "/api/v1/status/buildinfo",
    "/api/v1/status/runtimeinfo",
    "/federate",
    "/-/healthy",
    "/-/ready",
];
const POST: &[&str] = &["/api/v1/read"];

fuzz_target!(|data: &[u8]| {
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else { return };
    let Ok(method) = Method::from_bytes(&data[..end]) else { return };
    let Ok(path) = PathAndQuery::try_from(&data[end + 1..]) else { return };
    let path = path.path();
    let allowed = allow::allows(&method, path);
    assert_eq!(allowed, allow::allows(&method, path));
    let listed = |list: &[&str]| list.contains(&path);
    let (get, post) = (method == Method::GET, method == Method::POST);
    if (get || post) && listed(BOTH) || get && listed(GET) || post && listed(POST) {
        assert!(allowed, "{method} {path} is on the list");
        return;
    }
    if !allowed {
        return;
    }

    assert!(get, "{method} {path}");
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
});

/// Go's `path.Clean` of an absolute path.
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
