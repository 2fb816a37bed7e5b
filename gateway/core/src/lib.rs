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
//! * The crate [`kas_listen`] accepts connections, and decides which address a client has and whether it may connect.
//! * [`proxy`] serves callers: start with its function `handle`. It uses the crate [`access`] (the path, authentication and
//!   authorization, errors), [`headers`], [`cors`] and [`traces`].
//! * [`audit`] writes the audit log.
//! * [`forward`] chooses the tunnel or the replica for a request, and retries.
//! * [`agents`] serves agents and registers their tunnels.
//! * [`peers`] sends requests to other replicas, and serves theirs.
//! * [`configuration`] reads the configurations of agents from files and from a `git` repository, and sends them to agentk.
//! * [`api`] (for programs) and [`admin`] (probes, metrics, `GET /agents`) run on [`kas_listen::http_server`]. Both report the
//!   [`agent_locations`].
//!
//! A [`feature`] adds to it with the traits of [`request_types`], [`request_hooks`], [`fleet_requests`] and
//! [`attachments`].

#![warn(missing_docs)]

pub mod admin;
pub mod agent_answers;
pub mod agent_inquiry;
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
pub mod fleet_requests;
pub mod forward;
pub mod gitlab_key;
pub mod headers;
pub mod hosts;
pub mod metrics;
pub mod peers;
pub mod proxy;
pub mod request_hooks;
pub mod request_types;
pub mod throttle;
pub mod timing;
pub mod traces;
pub mod tunnel_entry;
pub mod weak_map;
