//! Why a request failed, as one word that programs can compare and documentation can list.

use std::{fmt, str::FromStr};

use http::StatusCode;

/// Whose fault a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The request is wrong or not allowed: sending it again does not help.
    Caller,
    /// The agent is away or misbehaves.
    Agent,
    /// The cluster, or the Prometheus server in it, failed behind a healthy agent.
    Cluster,
    /// kas itself: a limit, a shutdown, a defect.
    Server,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $word:literal, $status:ident, $blame:ident;)*) => {
        /// A failure of the proxy itself, sent as the header `Kas-Error`. An answer of the cluster never has one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
        }

        impl Reason {
            /// Every reason, for tables and tests.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The word on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// The HTTP status that goes with it.
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status,)* }
            }

            /// Whose fault it is.
            pub const fn blame(self) -> Blame {
                match self { $(Self::$variant => Blame::$blame,)* }
            }
        }

        impl FromStr for Reason {
            type Err = UnknownReason;

            fn from_str(word: &str) -> Result<Self, Self::Err> {
                match word { $($word => Ok(Self::$variant),)* _ => Err(UnknownReason) }
            }
        }
    };
}

reasons! {
    /// The path is neither `/k8s-proxy/…` nor `/agents/<agent>/<service>/…`.
    UnknownPath = "unknown-path", NOT_FOUND, Caller;
    /// Malformed in a way that we refuse to pass on.
    BadRequest = "bad-request", BAD_REQUEST, Caller;
    /// No credential, or one that we do not know.
    Unauthorized = "unauthorized", UNAUTHORIZED, Caller;
    /// A known caller, who may not use this agent or service.
    Forbidden = "forbidden", FORBIDDEN, Caller;
    /// A web page of an origin that is not listed.
    OriginNotAllowed = "origin-not-allowed", FORBIDDEN, Caller;
    /// The caller sent `Impersonate-*` although kas already sets who the caller is in the cluster.
    NestedImpersonation = "nested-impersonation", BAD_REQUEST, Caller;
    /// There is no such agent among those the caller may use.
    UnknownAgent = "unknown-agent", NOT_FOUND, Caller;
    /// The agent is connected but does not serve this request type.
    UnknownService = "unknown-service", NOT_FOUND, Caller;
    /// The service exists but not this path or method of it.
    NotProxied = "not-proxied", FORBIDDEN, Caller;
    /// The service has this path, for other methods: `Allow` lists them.
    MethodNotAllowed = "method-not-allowed", METHOD_NOT_ALLOWED, Caller;
    /// The caller sees only series with certain labels, which cannot be enforced in this request.
    NotEnforceable = "not-enforceable", FORBIDDEN, Caller;
    /// agentk has a policy, which does not allow this request.
    RefusedByPolicy = "refused-by-policy", FORBIDDEN, Caller;
    /// No tunnel of this agent, nor did one come while the request waited.
    AgentNotConnected = "agent-not-connected", SERVICE_UNAVAILABLE, Agent;
    /// The tunnel ended before the agent answered.
    TunnelLost = "tunnel-lost", BAD_GATEWAY, Agent;
    /// The agent answered something that is not HTTP as we agreed on it.
    AgentMisbehaved = "agent-misbehaved", BAD_GATEWAY, Agent;
    /// The agent cannot reach its cluster's API server, or Prometheus.
    ClusterUnreachable = "cluster-unreachable", BAD_GATEWAY, Cluster;
    /// The upstream did not answer in time.
    ClusterTimeout = "cluster-timeout", GATEWAY_TIMEOUT, Cluster;
    /// The upstream answered garbage, or closed the connection before it answered.
    ClusterMisbehaved = "cluster-misbehaved", BAD_GATEWAY, Cluster;
    /// agentk has no valid credential for its cluster.
    ClusterCredential = "cluster-credential", BAD_GATEWAY, Cluster;
    /// kas is stopping.
    Draining = "draining", SERVICE_UNAVAILABLE, Server;
    /// A limit of kas was reached.
    TooManyRequests = "too-many-requests", TOO_MANY_REQUESTS, Server;
    /// The request's head has more or longer fields than kas takes.
    HeadTooLarge = "head-too-large", REQUEST_HEADER_FIELDS_TOO_LARGE, Caller;
    /// The request's body is larger than kas reads.
    BodyTooLarge = "body-too-large", PAYLOAD_TOO_LARGE, Caller;
    /// The other end does not speak our subprotocol.
    UnsupportedProtocol = "unsupported-protocol", UPGRADE_REQUIRED, Caller;
    /// A defect of ours.
    Internal = "internal", INTERNAL_SERVER_ERROR, Server;
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is no [`Reason`] of this version.
#[derive(Debug, thiserror::Error)]
#[error("not a known reason")]
pub struct UnknownReason;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_documented_with_its_status() {
        let documentation = include_str!("../../docs/errors.md");
        for reason in Reason::ALL {
            let blame = format!("{:?}", reason.blame()).to_lowercase();
            let row = format!("| `{reason}` | {} | {blame} |", reason.status().as_u16());
            assert!(documentation.contains(&row), "docs/errors.md has no row {row}");
        }
    }

    #[test]
    fn every_reason_reads_back_its_word() {
        for reason in Reason::ALL {
            assert_eq!(reason.as_str().parse::<Reason>().unwrap(), *reason);
            assert!(reason.status().is_client_error() || reason.status().is_server_error());
        }
        assert!("made-up".parse::<Reason>().is_err());
    }
}
