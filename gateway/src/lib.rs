//! kas: agents connect here, and callers reach their clusters here.
//!
//! ```text
//!  caller ──► listen ──► proxy ────► forward ──► tunnel ═══► agentk ──► cluster
//!                          │            ▲
//!                 target, access,       │ LocalTunnels
//!                 headers, failure      │
//!  agentk ──► listen ──► agents ────────┘
//! ```
//!
//! * [`forward`] decides who gets a request; the page to read first.
//! * [`proxy`] serves callers: [`cors`] says which web pages may, [`target`] takes the URL apart, [`access`] says who
//!   may, [`headers`] what crosses the border, [`failure`] how an error is said, [`traces`] what a trace is told of it.
//! * [`promql`] narrows the queries of callers who may see only certain series.
//! * [`peers`] are other replicas: whom a request goes to whose agent is not here, and what they may ask of this one.
//! * [`agents`] serves agents and keeps their tunnels in the table; [`roster`] lists them for operators, [`api`]
//!   for programs, both over [`http_server`]; [`whereabouts`] are what both know of other replicas' agents.
//! * [`app`] builds, wires and stops all of it; [`tasks`] are groups of tasks that end together. [`config`] and [`identity`] are what it is built from.
#![warn(missing_docs)]

pub mod access;
pub mod admin;
pub mod agents;
pub mod api;
pub mod app;

pub mod cli;
pub mod config;
pub mod connected;
pub mod cors;
pub mod failure;
pub mod forward;
pub mod headers;
pub mod http_server;
pub mod identity;
pub mod io;
pub mod listen;
pub mod metrics;
pub mod peers;
pub mod promql;
pub mod proxy;
pub mod reload;
pub mod roster;
pub mod target;
pub mod tasks;
pub mod timing;
pub mod tls;
pub mod token;
pub mod traces;
pub mod whereabouts;
