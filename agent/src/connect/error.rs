//! Why there is no tunnel: one line each, with what to do about it.

use std::{io, time::Duration};

use http::StatusCode;
use proto::{HelloError, SUBPROTOCOL};
use tunnel::websocket::handshake::Mismatch;

use crate::{Address, TokenError, upstream::UpstreamError};

/// An attempt to open a tunnel that failed.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// There is no token to show.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Name, TCP or TLS.
    #[error(transparent)]
    Network(#[from] UpstreamError),
    /// The proxy on the way.
    #[error("the proxy {proxy}: {what}")]
    Proxy {
        /// Its address, and which variable names it.
        proxy: String,
        /// What went wrong.
        what: String,
    },
    /// The stream broke before kas answered.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// Somebody answered, but not in time.
    #[error("no answer from {address} within {after:?}")]
    Timeout {
        /// kas's.
        address: String,
        /// How long it had.
        after: Duration,
    },
    /// `wss://` to a port without TLS.
    #[error("{address} does not speak TLS: use ws:// for a kas without TLS, or its port with TLS")]
    PlainText {
        /// kas's.
        address: String,
    },
    /// `ws://` to a port with TLS, or to something that is no web server.
    #[error("{address} did not answer in HTTP ({cause}): if that port speaks TLS, use wss://")]
    NotHttp {
        /// kas's.
        address: String,
        /// hyper's.
        cause: hyper::Error,
    },
    /// 401.
    #[error("kas refused the agent token: it is unknown or was revoked; renew {token}{}", after(message))]
    Unauthorized {
        /// Where our token comes from.
        token: String,
        /// kas's own words.
        message: String,
    },
    /// 404.
    #[error(
        "{address} has no agent listener there: check host, port and path of the address{}",
        after(message)
    )]
    NotFound {
        /// kas's.
        address: String,
        /// The server's own words.
        message: String,
    },
    /// 426.
    #[error(
        "{address} does not take our tunnel ({SUBPROTOCOL}): is it the agent address of kas, and kas not of another version?{}",
        after(message)
    )]
    Protocol {
        /// kas's.
        address: String,
        /// The server's own words.
        message: String,
    },
    /// 429 and 503.
    #[error("kas takes no tunnel now ({status}){}", after(message))]
    Busy {
        /// Which.
        status: StatusCode,
        /// kas's own words.
        message: String,
        /// When to come again.
        retry_after: Option<Duration>,
    },
    /// 3xx, never followed: the token would go along.
    #[error(
        "{address} redirects to {location:?}, which is not followed: configure the address of kas itself"
    )]
    Redirect {
        /// kas's.
        address: String,
        /// Where to.
        location: String,
    },
    /// Any other status.
    #[error("{address} answered {status}{}", after(message))]
    Refused {
        /// kas's.
        address: String,
        /// Which.
        status: StatusCode,
        /// The server's own words.
        message: String,
    },
    /// 101, but not from kas.
    #[error("{address} is not the agent address of kas: {cause}")]
    NotKas {
        /// kas's.
        address: String,
        /// What gives it away.
        cause: Mismatch,
    },
    /// 101 without a welcome.
    #[error("{address} is not kas, or something on the way removes the header Kas-Welcome")]
    NoWelcome {
        /// kas's.
        address: String,
    },
    /// 101 with something else in place of a welcome.
    #[error("{address} sent a header Kas-Welcome that cannot be used: {cause}")]
    Welcome {
        /// kas's.
        address: String,
        /// What is wrong with it.
        cause: HelloError,
    },
    /// What we would say of ourselves cannot be sent.
    #[error("the hello cannot be sent: {0}; check POD_NAME and POD_NAMESPACE")]
    Hello(HelloError),
}

impl DialError {
    /// What kas asked for.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// One word for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Token(_) => "token",
            Self::Proxy { .. } => "proxy",
            Self::Network(UpstreamError::Resolve { .. }) => "dns",
            Self::Network(UpstreamError::Connect { .. }) => "connect",
            Self::Network(UpstreamError::ConnectTimeout { .. }) | Self::Timeout { .. } => "timeout",
            Self::Network(UpstreamError::Tls { .. } | UpstreamError::TlsSetup { .. })
            | Self::PlainText { .. } => "tls",
            Self::Network(_) | Self::Io(_) => "lost",
            Self::Unauthorized { .. } => "unauthorized",
            Self::Busy { .. } => "busy",
            Self::NotHttp { .. }
            | Self::NotFound { .. }
            | Self::Protocol { .. }
            | Self::Redirect { .. }
            | Self::Refused { .. }
            | Self::NotKas { .. }
            | Self::NoWelcome { .. }
            | Self::Welcome { .. }
            | Self::Hello(_) => "refused",
        }
    }

    pub(super) fn timed_out(kas: &Address, after: Duration) -> Self {
        Self::Timeout { address: kas.to_string(), after }
    }

    /// Sorts hyper's error of the handshake.
    pub(super) fn http(kas: &Address, error: hyper::Error) -> Self {
        // A TLS server that is spoken to without TLS answers with an alert, or hangs up.
        if error.is_parse() || (error.is_incomplete_message() && !kas.is_secure()) {
            return Self::NotHttp { address: kas.to_string(), cause: error };
        }
        Self::Io(io::Error::other(error))
    }
}

impl From<hyper::Error> for DialError {
    fn from(error: hyper::Error) -> Self {
        Self::Io(io::Error::other(error))
    }
}

fn after(message: &str) -> String {
    match message {
        "" => String::new(),
        message => format!(" (it says: {message})"),
    }
}
