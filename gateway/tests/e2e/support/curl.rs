//! HTTP, as curl speaks it.

use std::path::Path;

use serde_json::Value;

use super::{kas::in_network, run};

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// 0 if there was none.
    pub(crate) status: u16,
    head: String,
    /// As it came.
    pub(crate) body: Vec<u8>,
    /// What curl itself complains about.
    pub(crate) error: String,
}

/// Asks for what the arguments say.
pub(crate) fn curl(arguments: &[&str]) -> Reply {
    curl_in(None, arguments)
}

/// The same, in the network of this name.
pub(super) fn curl_in(network: Option<&str>, arguments: &[&str]) -> Reply {
    let mut command = in_network(network, Path::new("curl"));
    // To curl by its name, the API server answers indented, which is where Kubernetes 1.20 built by today's Go panics.
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
    Reply { status, head, body: body.to_vec(), error }
}

impl Reply {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The body.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body, which is JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}
