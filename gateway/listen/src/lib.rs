//! How kas listens: the way of a connection from the system to the server that gets it.
//!
//! ```text
//!  client ──► Listener ──► Handshake ──► Io ──► a server: of agents, of callers, of replicas, or an HttpServer
//!             limits       PROXY header
//!                          AddressRules
//!                          Acceptor (TLS)
//! ```
//!
//! * [`listener`] has the accept loop. A connection is a task on one of the [`cores`].
//! * [`addresses`] decides which address a client has, and whether it may connect.
//! * [`tls`] has certificates that are read again when their files change.
//! * [`io`] has an accepted connection, and wrappers that limit the time of its writes.
//! * [`http_limits`] has the limits of HTTP for all listeners. [`http_server`] serves routes on an internal listener, whose
//!   responses may be streams ([`hold_open`]).
//! * [`listen_address`] reads the address of a listener from the configuration.
//! * [`metrics`] has the limits that were reached and the connections that were refused.

#![warn(missing_docs)]

pub mod addresses;
pub mod hold_open;
pub mod http_limits;
pub mod http_server;
pub mod io;
pub mod listen_address;
pub mod listener;
pub mod metrics;
pub mod tls;
