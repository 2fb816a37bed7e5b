//! The records that the replicas of kas share: in memory for one replica, in Redis for several.
//!
//! Each kind of record has a trait, and [`Store`] is all of them. [`MemoryStore`] serves one replica, [`redis::RedisStore`] serves several.
//!
//! * [`RouteStore`]: which replicas own an agent. It is a hint, which may be stale, and an agent with a tunnel to this replica does not
//!   need it.
//! * [`EventStore`]: the log of events, and [`CursorStore`]: how far it is processed.
//! * [`SessionStore`]: the sessions of browsers.
//! * [`LeaseStore`]: which replica dials an agent.
//! * [`PushStore`]: pushes to Git projects, which every replica learns of, and [`ProjectEventStore`]: their latest events.
//! * [`RateLimiter`], [`KeyedRateLimiter`] and [`AddressRateLimiter`] count events, at all replicas if they share Redis.
//!
//! This crate opens no connections but those to Redis.
#![warn(missing_docs)]

mod cursors;
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

pub use self::cursors::{CURSOR_TTL, CursorRequest, CursorStore};
pub use self::events::{
    EVENTS_PERIOD, EventPage, EventPosition, EventStore, InvalidEventPosition, LoggedEvent, MAX_EVENTS,
    MAX_EVENTS_PER_AGENT, NewEvent, StateScope, SubjectState,
};
pub use self::gcra::{AddressLimit, AddressRefusal};
pub use self::leases::{LEASE_TTL, LeaseRequest, LeaseStore};
pub use self::memory::MemoryStore;
pub use self::project_events::{ProjectEventStore, RecordedEvent};
pub use self::pushes::{GitPush, InvalidProject, PushStore};
pub use self::rate_limit::{AddressRateLimiter, KeyedRateLimiter, RateLimiter};
pub use self::routes::{
    AgentRoutes, Instance, InstanceList, ProjectAgent, ProjectAgentList, Replica, ReplicaInstances,
    ReportedInfo, Route, RouteStore, StoreError, StoreHealth,
};
pub use self::sessions::{
    EndedSessions, NewSession, SESSION_TTL, SessionHolder, SessionId, SessionLimits, SessionStore,
};
pub use self::waiters::{RouteChange, Waiters};

/// The records of all kinds.
pub trait Store:
    RouteStore + SessionStore + LeaseStore + PushStore + ProjectEventStore + EventStore + CursorStore
{
}

impl<T> Store for T where
    T: RouteStore + SessionStore + LeaseStore + PushStore + ProjectEventStore + EventStore + CursorStore
{
}
