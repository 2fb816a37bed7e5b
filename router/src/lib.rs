//! Routing: which replica holds an agent, and which of its tunnels takes a request.
//!
//! * [`LocalTunnels`] is the exact table of the tunnels to this replica. Most requests need nothing else.
//! * [`RouteStore`] is the table of owners that all replicas share. It is a hint, which may be stale, and an agent with a
//!   local tunnel does not need it. [`MemoryStore`] serves one replica, [`redis::RedisStore`] serves several.
//! * [`RetryPolicy`] decides whether a failed request may be sent again.
//! * [`GitPush`] is a push to a Git project, which the store sends to every replica.
//! * [`NewEvent`] is an event for the log that all replicas share, and [`EventPosition`] is the position of one in it.
//! * [`RateLimiter`], [`KeyedRateLimiter`] and [`AddressRateLimiter`] limit how often agents may open tunnels.
//!
//! This crate opens no connections but those to Redis: the type of a tunnel is a parameter of [`LocalTunnels`].
#![warn(missing_docs)]

mod choice;
mod events;
mod gcra;
mod leases;
mod local_tunnels;
mod memory;
mod project_events;
mod pushes;
mod rate_limit;
pub mod redis;
mod retry;
mod sessions;
mod store;
mod waiters;

pub use self::choice::RequestClass;
pub use self::events::{
    CURSOR_TTL, CursorRequest, EVENTS_PERIOD, EventPage, EventPosition, InvalidEventPosition, LoggedEvent,
    MAX_EVENTS, MAX_EVENTS_PER_AGENT, NewEvent, StateScope, SubjectState,
};
pub use self::gcra::{AddressLimit, AddressRefusal};
pub use self::leases::{LEASE_TTL, LeaseRequest};
pub use self::local_tunnels::{
    LocalTunnels, RegistrationGuard, RequestPermit, RequestsInFlight, TunnelChoice, TunnelView,
};
pub use self::memory::MemoryStore;
pub use self::project_events::RecordedEvent;
pub use self::pushes::{GitPush, InvalidProject};
pub use self::rate_limit::{AddressRateLimiter, KeyedRateLimiter, RateLimiter};
pub use self::retry::RetryPolicy;
pub use self::sessions::{EndedSessions, NewSession, SESSION_TTL, SessionHolder, SessionId, SessionLimits};
pub use self::store::{
    AgentRoutes, Instance, InstanceList, ProjectAgent, ProjectAgentList, Replica, ReplicaInstances,
    ReportedInfo, Route, RouteStore, StoreError, StoreHealth,
};
pub use self::waiters::RouteChange;
