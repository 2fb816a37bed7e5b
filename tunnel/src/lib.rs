//! A connection to send requests into.
//!
//! agentk dials out and then *serves* HTTP/2 on that connection; kas is the HTTP/2 client:
//!
//! ```text
//!   kas                                                                    agentk
//!   Tunnel::call ─┐                                            ┌─► IncomingRequest::answer(handler)
//!   Tunnel::call ─┼─► h2 ─► WebSocket ═══ TCP or TLS ═══ WebSocket ─► h2 ─┼─► …
//!   Tunnel::call ─┘   Driver::run                               Session::run └─► …
//! ```
//!
//! * [`websocket`] makes a byte stream of a WebSocket, by tungstenite; [`ReadAhead`] reads the socket below it.
//! * [`Tunnel`] and [`Driver`] are kas's end, [`Session`] and [`IncomingRequest`] are agentk's.
//! * `settings` holds every limit of HTTP/2 and WebSocket.
//! * [`Body`] is the one type of body: frames move from one connection to the other and are never collected.
//! * [`direct`] is a tunnel without a WebSocket, and [`IncomingRequest::relay`] passes a request on into another tunnel.
//! * [`upgrade`] carries exec, attach and port-forward over extended CONNECT (RFC 8441).
//!
//! The task that runs [`Driver::run`] or [`Session::run`] polls the socket in both directions. The crate does not dial,
//! authenticate, route, retry or spawn.
#![warn(missing_docs)]

mod body;
mod client;
pub mod direct;
mod drain;
mod error;
pub mod handshake;
mod keepalive;
mod monitor;
mod read_ahead;
mod relay;
mod send_body;
mod server;
mod settings;
pub mod upgrade;
pub mod websocket;

pub use self::{
    body::{Body, BodyError},
    client::{Driver, Tunnel, open},
    drain::DrainHandle,
    error::{CallError, CallErrorKind, Delivery, Ended},
    keepalive::Keepalive,
    monitor::{StreamMonitor, StreamStats},
    read_ahead::ReadAhead,
    send_body::Stalls,
    server::{IncomingRequest, Session, accept},
    settings::Settings,
};
