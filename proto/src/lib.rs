//! Data that kas and agentk exchange: ids, the hello and the welcome, header names, error reasons and configuration types.
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
//! The crate does no I/O. Every parser limits its input, because the bytes come from outside.
#![warn(missing_docs)]

pub mod agent_configuration;
mod agent_path;
pub mod audit;
pub mod control;
mod delivery;
pub mod dial_token;
mod error_chain;
pub mod events;
pub mod gitops;
pub mod graph;
pub mod header;
mod hello;
pub mod hop_by_hop;
mod id;
mod identity_value;
pub mod impersonation;
mod label_selector;
pub mod notify;
mod path_glob;
pub mod percent;
pub mod provision;
mod reason;
mod request_verb;
mod short_line;
mod tunnel_protocol;
mod verb;
pub mod webhook_signature;

pub use self::agent_path::agent_path;
pub use self::delivery::Delivery;
pub use self::error_chain::ErrorChain;
pub use self::hello::{Hello, HelloError, ScopeSummary, TunnelLimits, Welcome};
pub use self::id::{
    AgentId, AgentName, Epoch, InstanceId, InvalidAgentId, InvalidAgentName, InvalidId, InvalidServiceName,
    ReplicaId, ServiceName, TunnelId,
};
pub use self::identity_value::{IdentityValue, InvalidIdentityValue};
pub use self::label_selector::{InvalidSelector, LabelOperator, LabelSelector};
pub use self::path_glob::path_glob;
pub use self::reason::{Fault, Reason};
pub use self::short_line::short_line;
pub use self::tunnel_protocol::TunnelProtocol;
pub use self::verb::{InvalidServiceRight, ServiceRight, Verb};

/// The WebSocket subprotocol of the tunnel. Its version is that of all messages in this crate.
pub const SUBPROTOCOL: &str = TunnelProtocol::KasTunnel.subprotocol();
