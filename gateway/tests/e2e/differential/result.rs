//! The result of a row.

use std::fmt::{self, Display, Formatter};

/// The maximum length of a text in messages, in characters.
const SHOWN: usize = 400;

/// The result of a row: the output of a program, or an HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RowResult {
    /// The result of a program.
    Program { code: i32, stdout: Vec<u8>, stderr: Vec<u8> },
    /// An HTTP response, and the standard error of curl.
    Http { status_line: String, headers: Vec<(String, String)>, body: Vec<u8>, stderr: Vec<u8> },
}

impl RowResult {
    pub(super) fn of_program(code: i32, stdout: &[u8], stderr: &[u8]) -> Self {
        Self::Program { code, stdout: stdout.to_vec(), stderr: stderr.to_vec() }
    }

    /// Parses the output of `curl --include`. Interim responses such as `100 Continue` are skipped.
    pub(super) fn of_curl(mut output: &[u8], stderr: &[u8]) -> Self {
        let (mut status_line, mut headers) = (String::new(), Vec::new());
        while output.starts_with(b"HTTP/") {
            let Some(end) = output.windows(4).position(|four| four == b"\r\n\r\n") else { break };
            let head = String::from_utf8_lossy(&output[..end]).into_owned();
            output = &output[end + 4..];
            let mut lines = head.lines();
            // Clients ignore the reason phrase (RFC 9112 section 4).
            let line = lines.next().unwrap_or_default();
            status_line = line.split(' ').take(2).collect::<Vec<_>>().join(" ");
            let pair =
                |line: &str| line.split_once(':').map(|(n, v)| (n.to_lowercase(), v.trim().to_owned()));
            headers = lines.filter_map(pair).collect();
            let interim = status_line.split(' ').nth(1).is_some_and(|status| status.starts_with('1'));
            if !interim {
                break;
            }
        }
        headers.sort();
        Self::Http { status_line, headers, body: output.to_vec(), stderr: stderr.to_vec() }
    }

    /// Returns the exit code or the status; 0 without a response.
    pub(super) fn code_or_status(&self) -> i32 {
        match self {
            Self::Program { code, .. } => *code,
            Self::Http { status_line, .. } => {
                status_line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
            }
        }
    }
}

impl Display for RowResult {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).chars().take(SHOWN).collect::<String>();
        match self {
            Self::Program { code, stdout, stderr } => {
                write!(f, "exit code {code}, output {:?}, errors {:?}", text(stdout), text(stderr))
            }
            Self::Http { status_line, body, stderr, .. } => {
                write!(f, "{status_line:?}, body {:?}, errors {:?}", text(body), text(stderr))
            }
        }
    }
}

#[test]
fn curl_output_keeps_the_last_response_head() {
    let output =
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nB: 2\r\nA: 1\r\n\r\nHTTP/ is the body";
    let RowResult::Http { status_line, headers, body, .. } = RowResult::of_curl(output, b"") else {
        unreachable!()
    };
    assert_eq!(status_line, "HTTP/1.1 201");
    assert_eq!(headers, [("a".into(), "1".into()), ("b".into(), "2".into())]);
    assert_eq!(body, b"HTTP/ is the body");
}
