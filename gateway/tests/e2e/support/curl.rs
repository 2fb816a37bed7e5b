//! HTTP requests with curl.

use std::path::Path;

use serde_json::Value;

use super::{kas::command_in_network, run};

/// An HTTP response, or the error of curl.
#[derive(Clone, Debug)]
pub(crate) struct CurlResponse {
    /// The status code; 0 without a response.
    pub(crate) status: u16,
    head: String,
    /// The body as it was received.
    pub(crate) body: Vec<u8>,
    /// The standard error of curl.
    pub(crate) error: String,
}

/// Runs curl with these arguments.
pub(crate) fn curl(arguments: &[&str]) -> CurlResponse {
    curl_in(None, arguments)
}

/// Runs curl in a network namespace, or in that of the machine without one.
pub(crate) fn curl_in(network: Option<&str>, arguments: &[&str]) -> CurlResponse {
    let mut command = command_in_network(network, Path::new("curl"));
    // The API server indents its responses to the user agent of curl, and there Kubernetes 1.20 built by today's Go
    // panics.
    command.args(["--user-agent", "e2e"]);
    command.args(["--silent", "--show-error", "--include", "--max-time", "40", "--header", "Expect:"]);
    let output = run(command.args(arguments), b"");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let end = output.stdout.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, body) = match end {
        Some(end) => (&output.stdout[..end], &output.stdout[end + 4..]),
        None => (&output.stdout[..], &[][..]),
    };
    let head = String::from_utf8_lossy(head).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    CurlResponse { status, head, body: body.to_vec(), error }
}

impl CurlResponse {
    /// Returns the value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Returns the name and the value of a cookie that the response sets.
    pub(crate) fn cookie(&self, name: &str) -> &str {
        let mut cookies = self.head.lines().filter_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case("set-cookie").then_some(value)
        });
        let found = cookies.rfind(|cookie| cookie.starts_with(&format!("{name}=")));
        found.and_then(|cookie| cookie.split(';').next()).unwrap_or_else(|| panic!("{self:?}"))
    }

    /// Returns the body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}
