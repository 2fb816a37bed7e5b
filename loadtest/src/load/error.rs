//! The reasons for a request without a response, in few classes so that a report can count them.

use std::{fmt, io};

use agent::DialError;

/// The error of a request without a complete response.
#[derive(Debug)]
pub enum LoadError {
    /// The connection could not be opened.
    Connect(String),
    /// The response was not complete in time.
    TimedOut,
    /// The connection was closed before the end of the response.
    Closed,
    /// The response is not HTTP/1.1.
    Malformed(String),
    /// The response to an upgrade request had this status instead of 101.
    NotUpgraded(u16),
    /// An upgraded session ended with this reason.
    Session(String),
    /// Any other I/O error.
    Io(io::ErrorKind),
}

impl From<io::Error> for LoadError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
                Self::Closed
            }
            kind => Self::Io(kind),
        }
    }
}

impl From<DialError> for LoadError {
    fn from(error: DialError) -> Self {
        match error {
            // Its own message recommends `ws://`, which is for tunnels.
            DialError::PlainText { .. } => Self::Connect("the server does not speak TLS".to_owned()),
            error => Self::Connect(error.to_string()),
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(reason) => f.write_str(reason),
            Self::TimedOut => f.write_str("no response in time"),
            Self::Closed => f.write_str("connection closed before the end of the response"),
            Self::Malformed(reason) => write!(f, "not HTTP/1.1: {reason}"),
            Self::NotUpgraded(status) => write!(f, "status {status} instead of 101"),
            Self::Session(reason) => write!(f, "the session ended: {reason}"),
            Self::Io(kind) => write!(f, "{kind}"),
        }
    }
}

impl std::error::Error for LoadError {}
