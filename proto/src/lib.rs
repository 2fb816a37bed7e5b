//! The words that kas and agentk share: ids, the hello and its answer, header names and error reasons.
//!
//! ```text
//!  agentk                                                       kas
//!    | GET / HTTP/1.1, Upgrade: websocket                        |
//!    | Sec-WebSocket-Protocol: kas-tunnel.v1                     |
//!    | Authorization: Bearer <agent token>                       |
//!    | Kas-Hello: {"instance":…,"version":…,"services":[…],…}    |
//!    |---------------------------------------------------------->|
//!    |             101, Kas-Welcome: {"replica":…,"tunnel":…,…}  |
//!    |<----------------------------------------------------------|
//!    |  binary messages that carry HTTP/2, kas is the client     |
//!    |<==========================================================|
//!    |      POST /…  Kas-Service: kubernetes, X-Request-Id: …    |
//! ```
//!
//! Nothing here does I/O; every parser here reads foreign bytes and is bounded.
#![warn(missing_docs)]

pub mod border;
pub mod control;
pub mod duration;
pub mod header;
mod hello;
mod id;
pub mod impersonation;
mod reason;
pub mod trailers;
pub mod yaml;

pub use self::hello::{Hello, HelloError, Limits, Welcome};
pub use self::id::{
    AgentId, AgentName, Epoch, InstanceId, InvalidAgentId, InvalidAgentName, InvalidId, InvalidServiceName,
    ReplicaId, ServiceName, TunnelId,
};
pub use self::reason::{Blame, Reason};

/// The WebSocket subprotocol of the tunnel, and with it the version of everything in this crate.
pub const SUBPROTOCOL: &str = "kas-tunnel.v1";
