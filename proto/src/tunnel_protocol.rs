//! The protocols that a tunnel may have inside its WebSocket.

use std::fmt;

/// A protocol between kas and agentk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelProtocol {
    /// HTTP/2 in which kas is the client.
    KasTunnel,
    /// The protocol of GitLab's kas and agentk: gRPC in which agentk is the client.
    GitLab,
}

impl TunnelProtocol {
    /// Returns the WebSocket subprotocol.
    pub const fn subprotocol(self) -> &'static str {
        match self {
            Self::KasTunnel => "kas-tunnel.v1",
            Self::GitLab => "ws-tunnel",
        }
    }

    /// Returns the subprotocols as a header lists them.
    pub fn list(protocols: &[Self]) -> String {
        let names: Vec<&str> = protocols.iter().map(|protocol| protocol.subprotocol()).collect();
        names.join(", ")
    }
}

impl fmt::Display for TunnelProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.subprotocol())
    }
}
