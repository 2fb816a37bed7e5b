//! Routing: which tunnel of this replica takes a request.
//!
//! * [`LocalTunnels`] is the exact table of the tunnels to this replica. Most requests need nothing else: the owners of agents without a
//!   tunnel here are in a [`store::RouteStore`].
//! * [`RetryPolicy`] decides whether a failed request may be sent again.
//!
//! This crate opens no connections: the type of a tunnel is a parameter of [`LocalTunnels`].
#![warn(missing_docs)]

mod local_tunnels;
mod retry;

pub use self::local_tunnels::{
    LocalTunnels, RegistrationGuard, RequestClass, RequestPermit, RequestsInFlight, TunnelChoice, TunnelView,
};
pub use self::retry::RetryPolicy;
