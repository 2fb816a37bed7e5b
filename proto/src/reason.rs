//! The reason of a failed request: one word, for programs and for the table in `docs/errors.md`.

use std::{fmt, str::FromStr};

use http::StatusCode;

/// The component that caused a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is wrong or not allowed. To send it again does not help.
    Caller,
    /// The agent is not connected, or breaks the protocol.
    Agent,
    /// The cluster, or the Prometheus server in it, failed behind a healthy agent.
    Cluster,
    /// kas itself failed the request: a limit, a shutdown, a defect.
    Server,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $word:literal, $status:ident, $fault:ident;)*) => {
        /// The reason of a failure between caller and cluster, sent as the header `Kas-Error`. A response of the cluster
        /// never has one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
        }

        impl Reason {
            /// Every reason, for tables and tests.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the value of the header.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// Returns the HTTP status of the response.
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status,)* }
            }

            /// Returns the component that caused the failure.
            pub const fn fault(self) -> Fault {
                match self { $(Self::$variant => Fault::$fault,)* }
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
    /// The host of the request is that of no agent, or differs from the name in the TLS handshake.
    MisdirectedRequest = "misdirected-request", MISDIRECTED_REQUEST, Caller;
    /// The request is malformed, and kas does not forward it.
    BadRequest = "bad-request", BAD_REQUEST, Caller;
    /// The request has no credential, or an unknown one.
    Unauthorized = "unauthorized", UNAUTHORIZED, Caller;
    /// The caller is known and may not use this agent or service.
    Forbidden = "forbidden", FORBIDDEN, Caller;
    /// The address of the caller is in none of the allowed networks.
    AddressNotAllowed = "address-not-allowed", FORBIDDEN, Caller;
    /// The source of identities that knows the credential cannot answer now.
    IdentityUnavailable = "identity-unavailable", SERVICE_UNAVAILABLE, Server;
    /// The request comes from a web page whose origin is not allowed.
    OriginNotAllowed = "origin-not-allowed", FORBIDDEN, Caller;
    /// The caller sent `Impersonate-*` headers, and kas already impersonates the caller.
    NestedImpersonation = "nested-impersonation", BAD_REQUEST, Caller;
    /// The agents that the caller may use do not include this one.
    UnknownAgent = "unknown-agent", NOT_FOUND, Caller;
    /// The agent is connected and does not serve this service.
    UnknownService = "unknown-service", NOT_FOUND, Caller;
    /// The service exists, and this path or method of it is not forwarded.
    NotProxied = "not-proxied", FORBIDDEN, Caller;
    /// The service has this path for other methods, which `Allow` lists.
    MethodNotAllowed = "method-not-allowed", METHOD_NOT_ALLOWED, Caller;
    /// The caller may read only series with certain labels, and kas cannot enforce that in this request.
    NotEnforceable = "not-enforceable", FORBIDDEN, Caller;
    /// The manifests of a project cannot be read now.
    SourceUnavailable = "source-unavailable", SERVICE_UNAVAILABLE, Server;
    /// The manifests of a version of a project are wrong, or the project cannot have this version.
    ManifestsRefused = "manifests-refused", UNPROCESSABLE_ENTITY, Caller;
    /// The objects of the environment of the job cannot be made: the template, the policy of the cluster or RBAC does not allow it.
    EnvironmentRefused = "environment-refused", FAILED_DEPENDENCY, Caller;
    /// agentk does not make the objects of environments: the policy of the cluster lists no kinds, or the configuration is not about them.
    EnvironmentUnmanaged = "environment-unmanaged", FAILED_DEPENDENCY, Caller;
    /// The objects of the environment of the job are not complete yet.
    EnvironmentNotReady = "environment-not-ready", SERVICE_UNAVAILABLE, Agent;
    /// The policy of agentk does not allow this request.
    RefusedByPolicy = "refused-by-policy", FORBIDDEN, Caller;
    /// agentk requires a scope, and has not received one since it started.
    ScopeAwaited = "scope-awaited", SERVICE_UNAVAILABLE, Server;
    /// The agent had no tunnel, and opened none while the request waited.
    AgentNotConnected = "agent-not-connected", SERVICE_UNAVAILABLE, Agent;
    /// The tunnel ended before the agent responded.
    TunnelLost = "tunnel-lost", BAD_GATEWAY, Agent;
    /// The response of the agent breaks the tunnel protocol.
    AgentMisbehaved = "agent-misbehaved", BAD_GATEWAY, Agent;
    /// The agent cannot reach its cluster's API server, or Prometheus.
    ClusterUnreachable = "cluster-unreachable", BAD_GATEWAY, Cluster;
    /// The upstream did not respond in time.
    ClusterTimeout = "cluster-timeout", GATEWAY_TIMEOUT, Cluster;
    /// The response of the upstream is not HTTP, or the upstream closed the connection before it responded.
    ClusterMisbehaved = "cluster-misbehaved", BAD_GATEWAY, Cluster;
    /// agentk has no valid credential for its cluster.
    ClusterCredential = "cluster-credential", BAD_GATEWAY, Cluster;
    /// kas is stopping.
    Draining = "draining", SERVICE_UNAVAILABLE, Server;
    /// The operator has disabled kas, or a part of it, for requests like this one.
    Disabled = "disabled", SERVICE_UNAVAILABLE, Server;
    /// A limit of kas was reached.
    TooManyRequests = "too-many-requests", TOO_MANY_REQUESTS, Server;
    /// The head of the request has more or longer fields than kas accepts.
    HeadTooLarge = "head-too-large", REQUEST_HEADER_FIELDS_TOO_LARGE, Caller;
    /// The body of the request is larger than kas accepts.
    BodyTooLarge = "body-too-large", PAYLOAD_TOO_LARGE, Caller;
    /// The caller stopped sending the body of the request, or sent it too slowly.
    BodyTimeout = "body-timeout", REQUEST_TIMEOUT, Caller;
    /// The other end does not support the subprotocol of the tunnel.
    UnsupportedProtocol = "unsupported-protocol", UPGRADE_REQUIRED, Caller;
    /// A defect of kas or agentk.
    Internal = "internal", INTERNAL_SERVER_ERROR, Server;
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is no [`Reason`] of this version.
#[derive(Debug, thiserror::Error)]
#[error("not a known reason")]
pub struct UnknownReason;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_documented_with_status_fault_and_anchor() {
        let documentation = include_str!("../../docs/errors.md");
        for reason in Reason::ALL {
            let fault = format!("{:?}", reason.fault()).to_lowercase();
            let status = reason.status().as_u16();
            let row = format!("| `{reason}` | {status} | {fault} | <a id=\"{reason}\"></a>");
            assert!(documentation.contains(&row), "docs/errors.md has no row {row}");
        }
    }

    #[test]
    fn each_reason_is_parsed_from_its_text() {
        for reason in Reason::ALL {
            assert_eq!(reason.as_str().parse::<Reason>().unwrap(), *reason);
            assert!(reason.status().is_client_error() || reason.status().is_server_error());
        }
        assert!("made-up".parse::<Reason>().is_err());
    }
}
