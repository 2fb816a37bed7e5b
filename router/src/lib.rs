//! Who holds whom: which replica holds an agent, and which of its tunnels takes a request.
//!
//! * [`LocalTunnels`] is this replica's own table: exact, in memory, the only thing most requests ask.
//! * [`RouteStore`] is the directory that all replicas share: a hint, possibly stale, never needed for a local agent.
//!   [`MemoryStore`] is for one replica, [`redis::RedisStore`] for several.
//! * [`RateLimit`] says how often somebody may come.
//! * [`Attempt`] says whether a failed request may be tried again.
//!
//! Knows nothing of connections: a tunnel is whatever handle the table was given.
#![warn(missing_docs)]

mod attempt;
mod choice;
mod limit;
mod memory;
pub mod redis;
mod store;
mod tunnels;

pub use self::attempt::{Attempt, Progress};
pub use self::choice::Class;
pub use self::limit::RateLimit;
pub use self::memory::MemoryStore;
pub use self::store::{
    BoxFuture, Health, Holding, Holdings, Instance, Record, Replica, Route, RouteStore, StoreError,
};
pub use self::tunnels::{Choice, InFlight, Lease, LocalTunnels, Registration, View};
