//! A connection you can send requests into.
//!
//! agentk dials out and then *serves* HTTP/2 on that connection; kas is the HTTP/2 client:
//!
//! ```text
//!   kas                                                                       agentk
//!   Tunnel::call ─┐                                              ┌─► Exchange::answer(handler)
//!   Tunnel::call ─┼─► HTTP/2 ─► WebSocket ═══ TCP or TLS ═══ WebSocket ─► HTTP/2 ─┼─► …
//!   Tunnel::call ─┘   Driver::run                                Session::run      └─► …
//! ```
//!
//! * [`http2`] is what both ends speak, written for this.
//! * [`websocket`] turns a byte stream that spoke the WebSocket handshake into a byte stream again.
//! * [`Tunnel`] and [`Driver`] are kas's end, [`Session`] and [`Exchange`] are agentk's.
//! * [`Body`] is the one body type: frames move from one HTTP connection to the other, never collected.
//! * [`direct`] is the same without the WebSocket, and [`Exchange::relay`] goes from one connection into the next.
//! * [`upgrade`] carries exec, attach and port-forward over extended CONNECT (RFC 8441).
//!
//! What it does not do: dial, authenticate, route, retry, spawn. Drivers are values; the binaries run them.
#![warn(missing_docs)]

mod body;
pub mod direct;
mod driver;
mod grip;
mod handle;
pub mod http2;
mod keepalive;
mod pump;
mod serve;
mod settings;
pub mod upgrade;
pub mod websocket;

pub use self::body::{Body, BodyError};
pub use self::driver::{Driver, Ended};
pub use self::grip::{Grip, Look};
pub use self::handle::{CallError, CallErrorKind, Delivery, Tunnel, open};
pub use self::keepalive::Keepalive;
pub use self::pump::Stalls;
pub use self::serve::{Exchange, Leave, Session, accept};
pub use self::settings::Settings;
