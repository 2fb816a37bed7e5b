//! The reasons for which kas refuses a tunnel, and the responses.

use std::{net::IpAddr, time::Duration};

use access::SourceUnavailable;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER, SEC_WEBSOCKET_PROTOCOL, UPGRADE},
};
use proto::{AgentName, TunnelProtocol};
use store::{AddressLimit, AddressRefusal};
use tunnel::Body;

use super::version_skew::served_versions;

/// `Retry-After` of a replica that stops: by then a load balancer has removed it.
const RETRY_AFTER_DRAINING: Duration = Duration::from_secs(5);

/// `Retry-After` if the agent has all of its tunnels: another one must end first.
const RETRY_AFTER_TUNNEL_LIMIT: Duration = Duration::from_secs(30);

/// The version of this kas.
const KAS: &str = env!("CARGO_PKG_VERSION");

/// The reason for which kas refuses a tunnel. The text is the body of the response.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum HandshakeError {
    #[error("{message}")]
    Protocol { status: StatusCode, message: String },
    #[error("this kas is stopping; try another replica")]
    Draining,
    #[error(
        "the agent token is unknown or was revoked: create one in GitLab, or create one with `kas token new` and put its hash \
         into the identity file of kas; put the token into agentk's secret"
    )]
    Unauthorized,
    #[error("the token of the agent cannot be checked: {0}")]
    SourceUnavailable(#[from] SourceUnavailable),
    #[error("connections from {address} are not allowed: it is in none of the networks of {key}")]
    AddressNotAllowed { address: IpAddr, key: String },
    #[error("{0}")]
    InvalidHello(String),
    #[error(
        "agentk {agentk} is too old for kas {}, which serves agentk {}: upgrade agentk",
        KAS,
        served_versions(KAS)
    )]
    TooOld { agentk: String },
    #[error(
        "agentk {agentk} is too new for kas {}, which serves agentk {}: upgrade kas first",
        KAS,
        served_versions(KAS)
    )]
    TooNew { agentk: String },
    #[error(
        "agent {agent} is pinned to the cluster {pinned} (agents[].cluster of the identity file), and this agentk {}",
        reported_cluster(reported.as_deref())
    )]
    WrongCluster { agent: AgentName, pinned: String, reported: Option<String> },
    #[error(
        "this kas opens as many tunnels per second as allowed (agent.listen.connections_per_second): many agents connect at \
         the same time"
    )]
    ReplicaRateLimit { wait: Duration },
    #[error(
        "the token of agent {agent} has opened as many tunnels in this minute as allowed \
         (agent.listen.connections_per_token_per_minute): wait, or run fewer agentk pods with it"
    )]
    TokenRateLimit { agent: AgentName, wait: Duration },
    #[error("{}", address_message(.0.limit))]
    AddressRateLimit(AddressRefusal),
    #[error(
        "agent {agent} has as many tunnels to this kas as allowed (agent.listen.max_tunnels_per_agent): let others end, or \
         run fewer agentk pods or tunnels"
    )]
    TunnelLimit { agent: AgentName },
}

/// Returns the message for an agent whose address has reached a limit.
fn address_message(limit: AddressLimit) -> &'static str {
    match limit {
        AddressLimit::Connections => {
            "this address has opened as many connections in this minute as allowed \
             (agent.listen.connections_per_address_per_minute): wait; if many agents share the address of a load balancer, name \
             it in agent.listen.trusted_proxies"
        }
        AddressLimit::UnknownTokens => {
            "this address has sent as many unknown agent tokens in this minute as allowed \
             (agent.listen.unknown_tokens_per_address_per_minute): wait, and check the token"
        }
    }
}

impl HandshakeError {
    /// Returns the value of the label `reason`.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Protocol { .. } => "protocol",
            Self::Draining => "draining",
            Self::Unauthorized => "unauthorized",
            Self::SourceUnavailable(_) => "identity-unavailable",
            Self::AddressNotAllowed { .. } => "address-not-allowed",
            Self::InvalidHello(_) => "invalid-hello",
            Self::TooOld { .. } | Self::TooNew { .. } => "version",
            Self::WrongCluster { .. } => "wrong-cluster",
            Self::ReplicaRateLimit { .. } => "replica-rate-limit",
            Self::TokenRateLimit { .. } => "token-rate-limit",
            Self::AddressRateLimit(refusal) => match refusal.limit {
                AddressLimit::Connections => "address-rate-limit",
                AddressLimit::UnknownTokens => "unknown-token-rate-limit",
            },
            Self::TunnelLimit { .. } => "tunnel-limit",
        }
    }

    /// Returns the status of the response.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Protocol { status, .. } => *status,
            Self::Draining | Self::SourceUnavailable(_) | Self::ReplicaRateLimit { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::InvalidHello(_) => StatusCode::BAD_REQUEST,
            Self::TooOld { .. } | Self::TooNew { .. } => StatusCode::UPGRADE_REQUIRED,
            Self::AddressNotAllowed { .. } | Self::WrongCluster { .. } => StatusCode::FORBIDDEN,
            Self::TokenRateLimit { .. } | Self::AddressRateLimit(_) | Self::TunnelLimit { .. } => {
                StatusCode::TOO_MANY_REQUESTS
            }
        }
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Draining => Some(RETRY_AFTER_DRAINING),
            Self::SourceUnavailable(unavailable) => Some(unavailable.retry_after),
            Self::ReplicaRateLimit { wait } | Self::TokenRateLimit { wait, .. } => Some(*wait),
            Self::AddressRateLimit(refusal) => Some(refusal.wait),
            Self::TunnelLimit { .. } => Some(RETRY_AFTER_TUNNEL_LIMIT),
            Self::Protocol { .. }
            | Self::Unauthorized
            | Self::AddressNotAllowed { .. }
            | Self::InvalidHello(_)
            | Self::TooOld { .. }
            | Self::TooNew { .. }
            | Self::WrongCluster { .. } => None,
        }
    }

    /// Returns the response, which names the subprotocols that kas supports where the client should use another one.
    pub(super) fn to_response(&self, supported: &[TunnelProtocol]) -> Response<Body> {
        let mut response = Response::new(Body::from(format!("{self}\n")));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if let Some(wait) = self.retry_after() {
            let seconds = wait.as_millis().div_ceil(1000) as u64;
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status() == StatusCode::UPGRADE_REQUIRED {
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            let supported = HeaderValue::from_str(&TunnelProtocol::list(supported)).expect("names are ASCII");
            headers.insert(SEC_WEBSOCKET_PROTOCOL, supported);
        }
        response
    }
}

/// Returns the end of the sentence about an agentk outside of its cluster, with the remedy.
fn reported_cluster(cluster: Option<&str>) -> String {
    match cluster {
        Some(cluster) => format!(
            "runs in the cluster {cluster}: give that cluster an agent and a token of its own, or correct the pin"
        ),
        None => "does not report its cluster: let it get the namespace kube-system in its cluster, upgrade it, or remove the pin"
            .to_owned(),
    }
}
