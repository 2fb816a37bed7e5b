//! A tunnel: a connection that an agent opens, and on which kas sends HTTP requests to the agent.
//!
//! agentk dials kas, and then *serves* HTTP/2 on that connection. kas is the HTTP/2 client:
//!
//! ```text
//!   kas                                                             agentk
//!   Tunnel::call ─┐                                               ┌─► IncomingRequest::respond(handler)
//!   Tunnel::call ─┼─► h2 ─► WebSocket ═ TCP or TLS ═ WebSocket ─► h2 ─┼─► …
//!   Tunnel::call ─┘  Driver::run                TunnelServer::run └─► …
//! ```
//!
//! # Tasks
//!
//! The crate spawns no task. The caller of the crate spawns and polls:
//!
//! * **One task per connection** at each end, which runs [`Driver::run`] at kas and [`TunnelServer::run`] at agentk. Only this
//!   task reads from the socket and writes to it. It also sends pings, and ends the connection if they are not answered.
//! * **The task of each request**. At kas it polls [`Tunnel::call`], then the [`Body`] of the response, which also sends the
//!   rest of the request's body. At agentk it polls [`IncomingRequest::respond`]. These tasks exchange frames with h2,
//!   which wakes the task of the connection.
//!
//! The crate does not dial, authenticate, route or retry either.
//!
//! # Modules
//!
//! * [`handshake`] has the headers of the WebSocket upgrade. [`websocket`] makes a byte stream of a WebSocket, by
//!   tungstenite; [`ReadAhead`] reads the socket below it.
//! * [`Tunnel`] and [`Driver`] are the end of kas, [`TunnelServer`] and [`IncomingRequest`] are the end of agentk.
//! * [`TunnelConfig`] and its module hold every limit of HTTP/2 and WebSocket.
//! * [`Body`] is the only type of body: frames move from one connection to the other and are never collected.
//!   [`StreamMonitor`] observes the reader of a body, and [`end_at`] ends that of a watch.
//! * [`upgrade`] carries exec, attach and port-forward over extended CONNECT (RFC 8441).
//! * [`OverheadStream`] limits the bytes without effect on a connection of HTTP/2 that has no WebSocket of this crate.
//!   [`CountedBody`] makes frames useful that are read there.
//! * [`direct`] is a tunnel without a WebSocket between two replicas of kas. There, [`IncomingRequest::relay`] forwards a
//!   request into the tunnel of the agent.
//! * [`TunnelServer::tunnel`] is a tunnel to GitLab's agentk, which is the HTTP/2 client, and carries requests in its calls.
#![warn(missing_docs)]

mod body;
mod body_error;
mod client;
mod config;
pub mod direct;
mod drain;
mod ending;
mod error;
mod forward_write;
mod frame_queue;
pub mod handshake;
mod idle_timeout;
mod keepalive;
mod monitor;
mod overhead;
mod overhead_stream;
mod read_ahead;
mod relay;
mod request_sender;
mod send_body;
mod server;
mod stall_timer;
pub mod upgrade;
pub mod websocket;

pub use proto::Delivery;

pub use self::{
    body::Body,
    body_error::BodyError,
    client::{CallFuture, Driver, Tunnel, open},
    config::TunnelConfig,
    drain::DrainHandle,
    ending::{WatchEnds, end_at},
    error::{CallError, CallErrorKind, CloseReason},
    idle_timeout::{IDLE_TIMEOUT_HINT, IdleTimeoutDetector},
    keepalive::KeepaliveConfig,
    monitor::{StreamMonitor, StreamStats},
    overhead::{OverheadCounter, OverheadError},
    overhead_stream::{CountedBody, OverheadStream},
    read_ahead::{ReadAhead, ReadBudget},
    send_body::StallCounter,
    server::{IncomingRequest, TunnelServer, accept},
    stall_timer::StallTimer,
};
