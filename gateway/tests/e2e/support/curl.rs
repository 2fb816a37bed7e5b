//! HTTP requests with and without curl.

use std::{
    io::{Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs},
    path::Path,
    time::Duration,
};

use serde_json::Value;

use super::{kas::command_in_network, run};

/// The time limit of a request with curl, and of each read without it, in seconds.
const MAX_TIME: u8 = 40;

/// An HTTP response, or the error of the client.
#[derive(Clone, Debug)]
pub(crate) struct HttpResponse {
    /// The status code; 0 without a response.
    pub(crate) status: u16,
    head: String,
    /// The body as it was received.
    pub(crate) body: Vec<u8>,
    /// The standard error of curl, or the error of the connection.
    pub(crate) error: String,
}

/// Runs curl with these arguments.
pub(crate) fn curl(arguments: &[&str]) -> HttpResponse {
    curl_in(None, arguments)
}

/// Runs curl in a network namespace, or in that of the machine without one.
pub(crate) fn curl_in(network: Option<&str>, arguments: &[&str]) -> HttpResponse {
    let mut command = command_in_network(network, Path::new("curl"));
    // The API server indents its responses to the user agent of curl, and there Kubernetes 1.20 built by today's Go
    // panics.
    command.args(["--user-agent", "e2e"]);
    command.args(["--silent", "--show-error", "--include", "--max-time", &MAX_TIME.to_string()]);
    let output = run(command.args(["--header", "Expect:"]).args(arguments), b"");
    HttpResponse::new(&output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Requests a path without TLS and without curl. Tests read metrics thousands of times, and to start curl costs more than the request.
pub(crate) fn get(address: impl ToSocketAddrs, path: &str) -> HttpResponse {
    let mut received = Vec::new();
    let exchanged = TcpStream::connect(address).and_then(|mut connection| {
        connection.set_read_timeout(Some(Duration::from_secs(MAX_TIME.into())))?;
        // A response to HTTP/1.0 has no chunks, and ends with its connection.
        connection.write_all(format!("GET {path} HTTP/1.0\r\nHost: e2e\r\n\r\n").as_bytes())?;
        connection.read_to_end(&mut received)
    });
    let mut response = HttpResponse::new(&received, String::new());
    let length = response.header("content-length").map(str::to_owned);
    let is_whole = length.is_none_or(|length| length == response.body.len().to_string());
    response.error = match exchanged {
        Err(error) => error.to_string(),
        Ok(_) if !is_whole => "the response broke off".to_owned(),
        Ok(_) => String::new(),
    };
    response
}

impl HttpResponse {
    /// Parses what was received.
    fn new(received: &[u8], error: String) -> Self {
        let end = received.windows(4).position(|four| four == b"\r\n\r\n");
        let (head, body) = match end {
            Some(end) => (&received[..end], &received[end + 4..]),
            None => (received, &[][..]),
        };
        let head = String::from_utf8_lossy(head).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, head, body: body.to_vec(), error }
    }

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
