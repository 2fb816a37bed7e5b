//! agentk: serves the requests that kas sends into the cluster it runs in.
//!
//! ```text
//!   kas ◄── session: N tunnels, one slot each ──── connect, backoff, spread
//!    │
//!    └─ request ──► dispatch ──► services ──► policy ──► handlers ──► upstream ──► Kubernetes API, Prometheus
//!                      └──► control: kas asks to leave a tunnel
//! ```
//!
//! The library holds no globals: several agents may live in one process. [`Agent`] needs something that [`Dial`]s and
//! the [`Services`] to serve; the binary gives it [`TcpDial`] and the [`handlers`].
//!
//! Nothing listens for requests here. What agentk can do in its cluster is what its credentials there allow, and of that
//! what the [`policy`] of the cluster's owner lets through; who may ask for it is decided by kas.

pub mod address;
pub mod admin;
pub mod app;
pub mod backoff;
pub mod check;
pub mod cli;
pub mod cluster;
pub mod connect;
mod dispatch;
pub mod handlers;
pub mod headers;
pub mod health;
pub mod metrics;
pub mod policy;
pub mod probe;
mod repeats;
pub mod respond;
pub mod services;
pub mod session;
pub mod spread;
pub mod token;
mod traces;
pub mod upstream;

pub use self::address::Address;
pub use self::connect::{Dial, DialError, TcpDial};
pub use self::health::Telemetry;
pub use self::respond::Failure;
pub use self::services::{BoxService, Services};
pub use self::session::{Agent, Options, Pod};
pub use self::token::{Token, TokenError};
