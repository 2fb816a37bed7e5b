//! kas: the server to which agents connect, and through which callers reach their clusters.
//!
//! ```text
//!  caller ──► listen ──► proxy ──► forward ──► tunnel ═══► agentk ──► cluster
//!                          │          │  ▲
//!                 access, headers     │  │ LocalTunnels
//!  agentk ──► listen ──► agents ──────┼──┘
//!                                     ▼
//!                                   peers ═══► another replica
//! ```
//!
//! * `proxy` serves callers: start with its function `handle`. It uses the crate [`access`] (the path, authentication and
//!   authorization, errors), `headers`, `cors`, the crate [`promql`] (queries of restricted callers) and `traces`.
//! * [`audit`] writes the audit log.
//! * [`kill_switch`] has the rules by which the operator disables requests.
//! * [`oidc`] verifies the tokens of OpenID Connect issuers for `access`.
//! * `forward` chooses the tunnel or the replica for a request, and retries.
//! * `agents` serves agents and registers their tunnels.
//! * `addresses` decides which address a client has, and whether it may connect.
//! * [`peers`] sends requests to other replicas, and serves theirs.
//! * `configuration` reads the configurations of agents from files and from a [`git`] repository, and sends them to agentk.
//! * `features` has the features, each in a folder: what they do with requests (`request_types`, `request_hooks`) and in tunnels
//!   (`attachments`).
//! * [`gitlab`] sends requests to GitLab's internal API, and is the source of GitLab's agents, jobs and users for [`access`].
//! * `api` (for programs) and `admin` (probes, metrics, `GET /agents`) run on `http_server`. Both report the
//!   `agent_locations`.
//! * [`app`] builds a replica from its [`config`] and its [identity file](access::Identities), runs it and stops it.
#![warn(missing_docs)]

mod addresses;
mod admin;
mod agent_list;
mod agent_locations;
mod agent_memory;
mod agent_metrics;
mod agent_requests;
mod agents;
mod api;
pub mod app;
mod attachments;
pub mod audit;
pub mod cli;
pub mod config;
mod configuration;
mod cors;
mod destination;
mod features;
mod forward;
mod gitlab_key;
mod headers;
mod hold_open;
mod hosts;
mod http_limits;
mod http_server;
mod io;
pub mod kill_switch;
mod listen;
pub mod metrics;
pub mod peers;
mod proxy;
mod request_hooks;
mod request_types;
mod tasks;
mod throttle;
mod timing;
mod tls;
mod traces;
mod tunnel_entry;
mod weak_map;

/// Parts of a replica, for its tests, benchmarks and fuzz targets.
pub mod test_support {
    pub use crate::{
        addresses::AddressRules,
        agents::{Rebalancer, ReceptiveAgents},
        api::{ApiContext, ApiParts, ApiServer, Query},
        cli::serve::log_filter,
        destination::Destination,
        features::{
            environments::{api::EnvironmentsApi, health::HealthInquiry},
            events::webhooks::Webhook,
            request_types,
            web::WebServer,
        },
        headers::{
            ForwardedFor, PeerAddress, ProxyHeaders, ResponsePolicy, rewrite_addresses, to_agent, to_caller,
        },
        hosts::{AgentHosts, HostPattern, Route, TlsName},
        listen::proxy_header,
        request_types::RequestTypes,
        timing::RequestTiming,
        traces::{RequestTrace, Traces},
    };
    pub use strangers::Stranger;

    /// The messages of the RPCs of the internal API.
    pub mod api_messages {
        pub use crate::features::{gitlab::rpcs::messages::*, graph::views::rpc::*, notify::git_push::*};
    }
}
