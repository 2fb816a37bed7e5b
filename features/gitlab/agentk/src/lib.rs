//! The connection to GitLab's kas: agentk is the client of HTTP/2 and of gRPC.
//!
//! ```text
//!   GitLab's kas                                                          agentk
//!    │◄── Connect ── Descriptor ──────────────────────── stream ◄── pool: some streams wait for a request
//!    ├── RequestInfo, HttpRequest ──► request ──► memory tunnel ─────► dispatch ──► policy ──► services
//!    │◄── Header, HttpResponse, Trailer ── response ◄─────────┘
//!    │◄── Register, GetConfiguration ─────────────────── registration, configuration
//! ```
//!
//! [`gitlab_protocol`] gives it to the sessions of agentk. One stream of HTTP/2 carries one request. `stream_set` keeps enough streams
//! open, and ends them at a drain. Requests pass a tunnel in memory to the dispatcher, so that they are served like those of the other
//! protocol.
#![warn(missing_docs)]

mod backoff;
mod check;
mod client;
mod configuration;
mod connection;
mod context;
mod error_response;
mod http2;
mod memory_tunnel;
mod pool;
mod protocol;
mod registration;
mod request;
mod response;
mod stream;
mod stream_set;
mod upload;

pub use self::{check::check, protocol::gitlab_protocol};
