//! kas: the server to which agents connect, and through which callers reach their clusters.
//!
//! ```text
//!  caller ──► listen ──► proxy ──► forward ──► tunnel ═══► agentk ──► cluster
//!                          │          │  ▲
//!                 access, target,     │  │ LocalTunnels
//!                 headers, error      │  │
//!  agentk ──► listen ──► agents ──────┼──┘
//!                                     ▼
//!                                   peers ═══► another replica
//! ```
//!
//! * `proxy` serves callers: start with its function `handle`. It uses `target` (the path), `access` (authentication and
//!   authorization), `headers`, `cors`, the crate `promql` (queries of restricted callers), `error` and `traces`.
//! * [`audit`] writes the audit log.
//! * [`disabled`] is the kill switch: the rules by which the operator disables requests.
//! * [`oidc`] verifies the tokens of OpenID Connect issuers for `access`.
//! * `forward` chooses the tunnel or the replica for a request, and retries.
//! * `agents` serves agents and registers their tunnels.
//! * `addresses` decides which address a client has, and whether it may connect.
//! * [`peers`] sends requests to other replicas, and serves theirs.
//! * [`configuration`] reads the configurations of agents, from files and from a [`git`] repository, and sends them to agentk.
//! * [`gitlab`] sends requests to GitLab's internal API.
//! * `api` (for programs) and `admin` (probes, metrics, `GET /agents`) run on `http_server`. Both report the
//!   `agent_locations`.
//! * [`gitaly`] reads the [`git`] repository of a GitLab project.
//! * [`app`] builds a replica from its [`config`] and its [`identity`] file, runs it and stops it.
#![warn(missing_docs)]

mod access;
mod address_key;
mod addresses;
mod admin;
mod agent_list;
mod agent_locations;
mod agent_metrics;
mod agents;
mod api;
pub mod app;
pub mod audit;
pub mod cli;
pub mod config;
pub mod configuration;
mod cors;
pub mod deployments;
mod destination;
pub mod disabled;
pub mod environments;
mod error;
mod forward;
pub mod gitaly;
pub mod gitlab;
mod headers;
mod hosts;
mod http_limits;
mod http_server;
pub mod identity;
mod io;
mod listen;
pub mod metrics;
pub mod peers;
mod proxy;
mod request_count;
mod target;
mod tasks;
mod timing;
mod tls;
pub mod token;
mod traces;
mod tunnel_entry;

/// Parts of a replica, for its tests, benchmarks and fuzz targets.
pub mod internals {
    pub use crate::{
        access::{
            AccessControl, AuthorizedCaller, CallerAuthorizer, Credential, GitLabAuthorizer, OidcAuthorizer,
            TokenKind, UnknownCredentials,
        },
        addresses::AddressRules,
        agents::Rebalancer,
        api::{ApiServer, Query, TokenError, Verifier, grpc::messages as api_messages},
        cli::serve::log_filter,
        destination::Destination,
        error::{ErrorDialect, ErrorFormat, RequestError},
        headers::{ForwardedFor, PeerAddress, ProxyHeaders, to_agent, to_caller},
        hosts::{AgentHosts, HostPattern, Route, TlsName},
        listen::{Stranger, proxy_header},
        target::{Target, UrlPathPrefix},
        timing::RequestTiming,
        traces::{RequestTrace, Traces},
    };
}
