//! kas without its features: connections of agents and callers, and the way of a request between them.
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
//! * [`proxy`] serves callers: start with its function `handle`. It uses the crate [`access`] (the path, authentication and
//!   authorization, errors), [`headers`], [`cors`] and [`traces`].
//! * [`audit`] writes the audit log.
//! * [`forward`] chooses the tunnel or the replica for a request, and retries.
//! * [`agents`] serves agents and registers their tunnels.
//! * [`addresses`] decides which address a client has, and whether it may connect.
//! * [`peers`] sends requests to other replicas, and serves theirs.
//! * [`configuration`] reads the configurations of agents from files and from a `git` repository, and sends them to agentk.
//! * [`api`] (for programs) and [`admin`] (probes, metrics, `GET /agents`) run on [`http_server`]. Both report the
//!   [`agent_locations`].
//!
//! A [`feature`] adds to it with the traits of [`request_types`], [`request_hooks`] and [`attachments`].

#![warn(missing_docs)]

pub mod addresses;
pub mod admin;
pub mod agent_list;
pub mod agent_locations;
pub mod agent_memory;
pub mod agent_metrics;
pub mod agent_requests;
pub mod agents;
pub mod api;
pub mod attachments;
pub mod audit;
pub mod config;
pub mod configuration;
pub mod cors;
pub mod destination;
pub mod feature;
pub mod forward;
pub mod gitlab_key;
pub mod headers;
pub mod hold_open;
pub mod hosts;
pub mod http_limits;
pub mod http_server;
pub mod io;
pub mod listen;
pub mod metrics;
pub mod peers;
pub mod proxy;
pub mod request_hooks;
pub mod request_types;
pub mod throttle;
pub mod timing;
pub mod tls;
pub mod traces;
pub mod tunnel_entry;
pub mod weak_map;
