//! Why a request has no answer: few classes, so that they can be counted.

use std::{fmt, io};

use agent::DialError;

/// One request without a whole answer.
#[derive(Debug)]
pub enum Failure {
    /// No connection was made.
    Connect(String),
    /// The whole answer was not there in time.
    TimedOut,
    /// The connection ended before the answer did.
    Closed,
    /// What came is not HTTP/1.1.
    Malformed(String),
    /// Another answer than 101 where there was to be a session.
    NotUpgraded(u16),
    /// A session ended, for the reason that it gives.
    Session(String),
    /// Anything else that a socket says.
    Io(io::ErrorKind),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
                Self::Closed
            }
            kind => Self::Io(kind),
        }
    }
}

impl From<DialError> for Failure {
    fn from(error: DialError) -> Self {
        match error {
            // Its advice speaks of the schemes of tunnels.
            DialError::PlainText { .. } => Self::Connect("the server does not speak TLS".to_owned()),
            error => Self::Connect(error.to_string()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(reason) => f.write_str(reason),
            Self::TimedOut => f.write_str("no answer in time"),
            Self::Closed => f.write_str("connection closed before the end of the answer"),
            Self::Malformed(reason) => write!(f, "not HTTP/1.1: {reason}"),
            Self::NotUpgraded(status) => write!(f, "status {status} instead of 101"),
            Self::Session(reason) => write!(f, "the session ended: {reason}"),
            Self::Io(kind) => write!(f, "{kind}"),
        }
    }
}

impl std::error::Error for Failure {}
