//! Attacks by callers, agents, servers and kas itself: the whole product in one process, over in-memory pipes and on a paused
//! clock, except where agentk dials.
//!
//! `docs/security.md` lists the attacks by the numbers in the names of the tests. Memory stays bounded, the attacker is cut off or held
//! back, and everybody else is served.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod agent_names;
mod answers;
mod api;
mod browser;
mod cluster;
mod floods;
mod gitlab;
mod gitlab_agentk;
mod hostile_agent;
mod hosts;
mod http1;
mod http1_front;
mod http1_headers;
mod http2;
mod http2_front;
mod http2_stall;
mod http2_tunnel;
mod identity;
mod listener_floods;
mod log_floods;
mod memory;
mod oidc;
mod private;
mod prometheus;
mod repeats;
mod revocation;
mod streams;
mod targets;
mod tunnel_ends;
mod two_agents;
mod unfinished;
mod upgrades;
mod upstream;
