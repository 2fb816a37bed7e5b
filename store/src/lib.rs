//! The records that the replicas of kas share: in memory for one replica, in Redis for several.
//!
//! * [`RouteStore`] is the table of owners of agents, and has the other records of this list. It is a hint, which may be stale, and an
//!   agent with a tunnel to this replica does not need it. [`MemoryStore`] serves one replica, [`redis::RedisStore`] serves several.
//! * [`GitPush`] is a push to a Git project, which the store sends to every replica.
//! * [`NewEvent`] is an event for the log that all replicas share, and [`EventPosition`] is the position of one in it.
//! * [`RateLimiter`], [`KeyedRateLimiter`] and [`AddressRateLimiter`] count events, at all replicas if they share Redis.
//!
//! This crate opens no connections but those to Redis.
#![warn(missing_docs)]

mod events;
mod gcra;
mod leases;
mod memory;
mod project_events;
mod pushes;
mod rate_limit;
pub mod redis;
mod routes;
mod sessions;
mod waiters;

pub use self::events::{
    CURSOR_TTL, CursorRequest, EVENTS_PERIOD, EventPage, EventPosition, InvalidEventPosition, LoggedEvent,
    MAX_EVENTS, MAX_EVENTS_PER_AGENT, NewEvent, StateScope, SubjectState,
};
pub use self::gcra::{AddressLimit, AddressRefusal};
pub use self::leases::{LEASE_TTL, LeaseRequest};
pub use self::memory::MemoryStore;
pub use self::project_events::RecordedEvent;
pub use self::pushes::{GitPush, InvalidProject};
pub use self::rate_limit::{AddressRateLimiter, KeyedRateLimiter, RateLimiter};
pub use self::routes::{
    AgentRoutes, Instance, InstanceList, ProjectAgent, ProjectAgentList, Replica, ReplicaInstances,
    ReportedInfo, Route, RouteStore, StoreError, StoreHealth,
};
pub use self::sessions::{EndedSessions, NewSession, SESSION_TTL, SessionHolder, SessionId, SessionLimits};
pub use self::waiters::{RouteChange, Waiters};
