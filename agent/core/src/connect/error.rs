//! The errors of opening a tunnel. Each is one line that includes a remedy.

use std::{io, time::Duration};

use http::StatusCode;
use proto::{ErrorChain, HelloError, SUBPROTOCOL};
use tunnel::handshake::UpgradeResponseError;

use super::{AgentTokenError, KasAddress};
use crate::upstream::UpstreamError;

/// The error of an attempt to open a tunnel.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// There is no usable token.
    #[error(transparent)]
    Token(#[from] AgentTokenError),
    /// DNS, TCP or TLS failed.
    #[error(transparent)]
    Network(#[from] UpstreamError),
    /// The proxy did not connect to kas.
    #[error("the proxy {proxy}: {problem}")]
    Proxy {
        /// The address of the proxy, and the variable that names it.
        proxy: String,
        /// The problem.
        problem: String,
    },
    /// The connection failed before kas answered.
    #[error("the connection broke: {}", ErrorChain(.0))]
    Io(#[from] io::Error),
    /// The handshake took too long.
    #[error("no answer from {address} within {after:?}")]
    Timeout {
        /// The address of kas.
        address: String,
        /// The time limit.
        after: Duration,
    },
    /// The URL has `wss://`, and the port no TLS.
    #[error("{address} does not speak TLS: use ws:// for a kas without TLS, or its port with TLS")]
    PlainText {
        /// The address of kas.
        address: String,
    },
    /// The URL has `ws://`, and the port TLS or another protocol.
    #[error("{address} did not answer in HTTP ({}): if that port speaks TLS, use wss://", ErrorChain(cause))]
    NotHttp {
        /// The address of kas.
        address: String,
        /// The error of hyper.
        cause: hyper::Error,
    },
    /// The response was 401.
    #[error("kas refused the agent token: it is unknown or was revoked; renew {token}{}", after(message))]
    Unauthorized {
        /// The source of the token.
        token: String,
        /// The message of kas.
        message: String,
    },
    /// The response was 404.
    #[error(
        "{address} has no agent listener there: check host, port and path of the address{}",
        after(message)
    )]
    NotFound {
        /// The address of kas.
        address: String,
        /// The message of the server.
        message: String,
    },
    /// The response was 426.
    #[error(
        "{address} accepts no tunnel ({SUBPROTOCOL}) of agentk {}: is it the agent address of kas, and does kas have a \
         compatible version?{}",
        env!("CARGO_PKG_VERSION"),
        after(message)
    )]
    Protocol {
        /// The address of kas.
        address: String,
        /// The message of the server.
        message: String,
    },
    /// The response was 429 or 503.
    #[error("kas accepts no tunnel now ({status}){}", after(message))]
    Busy {
        /// The status code.
        status: StatusCode,
        /// The message of kas.
        message: String,
        /// The value of `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The response was a redirect. It is not followed, since the token would be sent to another server.
    #[error(
        "{address} redirects to {location:?}, which is not followed: configure the address of kas itself"
    )]
    Redirect {
        /// The address of kas.
        address: String,
        /// The value of `Location`.
        location: String,
    },
    /// The response has another status.
    #[error("{address} answered {status}{}", after(message))]
    Refused {
        /// The address of kas.
        address: String,
        /// The status code.
        status: StatusCode,
        /// The message of the server.
        message: String,
    },
    /// The response was a 101 of another server than kas.
    #[error("{address} is not the agent address of kas: {cause}")]
    NotKas {
        /// The address of kas.
        address: String,
        /// The mismatch of the handshake.
        cause: UpgradeResponseError,
    },
    /// The response was a 101 of GitLab's kas, which does not have the chosen protocol.
    #[error(
        "{address} is GitLab's kas, which does not have the protocol kas-tunnel: use --protocol gitlab, or leave --protocol out"
    )]
    GitLabKas {
        /// The address of kas.
        address: String,
    },
    /// The response was a 101 without a welcome.
    #[error("{address} is not kas, or a proxy removes the header Kas-Welcome")]
    NoWelcome {
        /// The address of kas.
        address: String,
    },
    /// The response was a 101 with an invalid welcome.
    #[error("{address} sent a header Kas-Welcome that cannot be used: {cause}")]
    Welcome {
        /// The address of kas.
        address: String,
        /// The error of the welcome.
        cause: HelloError,
    },
    /// The port of GitLab's kas does not answer in HTTP/2.
    #[error(
        "{address} did not answer in HTTP/2 ({problem}): is it the agent address of GitLab's kas, and does its port have TLS?"
    )]
    NotHttp2 {
        /// The address of kas.
        address: String,
        /// The error of the connection.
        problem: String,
    },
    /// GitLab's kas did not register this process.
    #[error("GitLab's kas at {address} does not register this agent: {status}")]
    NotRegistered {
        /// The address of kas.
        address: String,
        /// The code of gRPC, and the message.
        status: String,
    },
    /// The hello header cannot be encoded.
    #[error("the hello cannot be sent: {0}; check POD_NAME and POD_NAMESPACE")]
    Hello(HelloError),
}

impl DialError {
    /// Returns the `Retry-After` of kas.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Returns true if the connection was refused, or failed before an answer.
    pub fn is_refused_connection(&self) -> bool {
        matches!(self, Self::Network(UpstreamError::Connect { .. }) | Self::Io(_))
    }

    /// Returns the label in metrics.
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
            | Self::GitLabKas { .. }
            | Self::NoWelcome { .. }
            | Self::Welcome { .. }
            | Self::NotHttp2 { .. }
            | Self::NotRegistered { .. }
            | Self::Hello(_) => "refused",
        }
    }

    /// Returns the error of a kas that did not answer in time.
    pub fn timed_out(kas: &KasAddress, after: Duration) -> Self {
        Self::Timeout { address: kas.to_string(), after }
    }

    /// Classifies hyper's error of the handshake.
    pub(super) fn http(kas: &KasAddress, error: hyper::Error) -> Self {
        // A TLS server answers plain text with an alert, or closes the connection.
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
        message => format!(" (message: {message})"),
    }
}
