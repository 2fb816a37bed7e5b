//! The reasons for which kas opens no tunnel to an agent that it dials.

use std::{io, net::SocketAddr, time::Duration};

use http::StatusCode;
use proto::{AgentName, ErrorChain};

use super::super::refusal::HandshakeError;
use outbound::AddressError;

/// The reason for which a dial has failed. The text is one line for operators, and names the remedy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("cannot resolve {host}: {}", ErrorChain(.error))]
    Resolve { host: String, error: io::Error },
    #[error("{host} has no address that kas may dial: {error}")]
    Address { host: String, error: AddressError },
    #[error("ws:// has no TLS, and {0} is not on this machine: use wss://")]
    PlainText(SocketAddr),
    #[error("cannot connect to {address}: {}", ErrorChain(.error))]
    Connect { address: SocketAddr, error: io::Error },
    #[error("{address} did not respond within {after:?}")]
    Timeout { address: String, after: Duration },
    #[error("the TLS handshake with {address} failed: {}; compare ca_file and tls_server_name with the certificate of agentk", ErrorChain(.error))]
    Tls { address: SocketAddr, error: io::Error },
    #[error("{0}")]
    Setup(String),
    #[error("the connection broke before agentk responded: {}", ErrorChain(.0))]
    Lost(#[from] hyper::Error),
    #[error("agentk refuses the key of kas: compare key_file with the file of --listen-key-file, or the public key in GitLab with that of --listen-jwt-file{}", after(.message))]
    KeyRefused { message: String },
    #[error(
        "the server redirects to {location:?}, which kas does not follow: write the address of agentk itself"
    )]
    Redirect { location: String },
    #[error("the server responded with {status}{}", after(.message))]
    Refused { status: StatusCode, message: String, retry_after: Option<Duration> },
    #[error("the server is no agentk that listens for kas: {0}")]
    NotAgentk(String),
    #[error("{0}")]
    NotAdmitted(HandshakeError),
    #[error(
        "the agentk at this address has the token of agent {found}: use the token of this agent, or correct the address"
    )]
    WrongAgent { found: AgentName },
    #[error("{0}")]
    Incomplete(&'static str),
}

impl DialError {
    /// Returns the value of the label `result`.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Resolve { .. } => "dns",
            Self::Address { .. } | Self::PlainText(_) => "address-not-allowed",
            Self::Connect { .. } => "connect",
            Self::Timeout { .. } => "timeout",
            Self::Tls { .. } => "tls",
            Self::Setup(_) => "setup",
            Self::Lost(_) => "lost",
            Self::KeyRefused { .. } => "key-refused",
            Self::Redirect { .. } => "redirect",
            Self::Refused { .. } => "refused",
            Self::NotAgentk(_) => "not-agentk",
            Self::NotAdmitted(error) => error.label(),
            Self::WrongAgent { .. } => "wrong-agent",
            Self::Incomplete(_) => "incomplete",
        }
    }

    /// Returns the time before which another dial is useless.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            Self::NotAdmitted(error) => error.retry_after(),
            _ => None,
        }
    }

    /// Returns true if the connection was refused, as while agentk restarts.
    pub(crate) fn is_refused_connection(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Lost(_))
    }
}

fn after(message: &str) -> String {
    match message {
        "" => String::new(),
        message => format!(" (message: {message})"),
    }
}
