//! The choice of the protocol inside a connection to kas.

use clap::ValueEnum;
use proto::TunnelProtocol;

use super::KasAddress;

/// The protocol that agentk uses, as `--protocol` sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ProtocolChoice {
    /// Both are offered, and kas chooses
    #[default]
    Auto,
    /// The protocol of this project
    KasTunnel,
    /// The protocol of GitLab's kas: gRPC
    #[value(name = "gitlab")]
    GitLab,
}

impl ProtocolChoice {
    /// Returns true if only the protocol of GitLab is possible.
    pub(crate) fn is_gitlab(self, kas: &KasAddress) -> bool {
        self == Self::GitLab || kas.is_grpc()
    }

    /// Returns the protocols that the WebSocket handshake offers.
    pub(super) const fn offered(self) -> &'static [TunnelProtocol] {
        match self {
            Self::Auto => &[TunnelProtocol::KasTunnel, TunnelProtocol::GitLab],
            Self::KasTunnel => &[TunnelProtocol::KasTunnel],
            Self::GitLab => &[TunnelProtocol::GitLab],
        }
    }
}
