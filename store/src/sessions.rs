//! The sessions of browsers: the rule by which the oldest ones end in favour of new ones, and their table in memory.
//!
//! The store knows neither tokens nor cookies. The caller of the store encrypts the records.

use std::{collections::HashMap, fmt, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::routes::StoreError;

/// The longest time of a session.
pub const SESSION_TTL: Duration = Duration::from_secs(8 * 3600);

/// The key of a session. The session cannot be used with it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(pub [u8; 32]);

/// The key of all sessions of one token or of one user.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionHolder(pub [u8; 16]);

/// A session that begins.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// Its key.
    pub id: SessionId,
    /// The key of its holder.
    pub holder: SessionHolder,
    /// Its contents, at most [`NewSession::MAX_RECORD`] bytes.
    pub record: Vec<u8>,
    /// The time after which it ends, at most [`SESSION_TTL`].
    pub ttl: Duration,
}

/// The most sessions. At a limit, the one that ends first ends in favour of a new one.
#[derive(Clone, Copy, Debug)]
pub struct SessionLimits {
    /// The most sessions of all holders.
    pub sessions: u32,
    /// The most sessions of one holder.
    pub per_holder: u32,
}

/// The sessions that end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndedSessions {
    /// One session.
    One(SessionId),
    /// All sessions of a holder.
    OfHolder(SessionHolder),
}

/// The sessions of browsers that replicas share.
pub trait SessionStore: fmt::Debug + Send + Sync + 'static {
    /// Begins a session of a browser. At a limit, the session that ends first ends in favour of the new one.
    fn begin_session(
        &self,
        session: NewSession,
        limits: SessionLimits,
    ) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Replaces the record of a session, which keeps its holder and its end. Returns whether there is such a session.
    fn replace_session(&self, id: SessionId, record: Vec<u8>) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Returns the record of a session, or `None` if there is none. It is not read from memory, and not trusted.
    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreError>>;

    /// Returns for each session whether it has not ended.
    fn live_sessions<'a>(&'a self, ids: &'a [SessionId]) -> BoxFuture<'a, Result<Vec<bool>, StoreError>>;

    /// Returns the remaining time of a session by the clock of the store, or `None` if there is none.
    fn session_ttl(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Duration>, StoreError>>;

    /// Ends sessions. Returns their number: sessions that have ended before are no error, and do not count.
    fn end_sessions(&self, sessions: EndedSessions) -> BoxFuture<'_, Result<usize, StoreError>>;
}

/// The sessions in memory. The scripts `begin_session.lua` and `end_sessions.lua` have the same rule.
#[derive(Debug, Default)]
pub(crate) struct SessionTable(HashMap<SessionId, SessionEntry>);

#[derive(Debug)]
struct SessionEntry {
    holder: SessionHolder,
    record: Vec<u8>,
    end: Instant,
}

impl NewSession {
    /// The most bytes of a record. A longer one is cut.
    pub const MAX_RECORD: usize = 64 << 10;
}

impl SessionTable {
    pub(crate) fn begin(&mut self, session: NewSession, limits: SessionLimits, now: Instant) {
        let NewSession { id, holder, record, ttl } = session;
        self.0.retain(|_, entry| entry.end > now);
        let of_holder = |entry: &SessionEntry| entry.holder == holder;
        if self.0.values().filter(|entry| of_holder(entry)).count() >= limits.per_holder as usize {
            self.end_first(of_holder);
        } else if self.0.len() >= limits.sessions as usize {
            self.end_first(|_| true);
        }
        self.0.insert(id, SessionEntry { holder, record, end: now + ttl });
    }

    pub(crate) fn replace(&mut self, id: SessionId, record: Vec<u8>, now: Instant) -> bool {
        let entry = self.0.get_mut(&id).filter(|entry| entry.end > now);
        entry.map(|entry| entry.record = record).is_some()
    }

    pub(crate) fn read(&self, id: SessionId, now: Instant) -> Option<Vec<u8>> {
        self.live(id, now).map(|entry| entry.record.clone())
    }

    pub(crate) fn is_live(&self, id: SessionId, now: Instant) -> bool {
        self.live(id, now).is_some()
    }

    pub(crate) fn ttl(&self, id: SessionId, now: Instant) -> Option<Duration> {
        self.live(id, now).map(|entry| entry.end - now)
    }

    pub(crate) fn end(&mut self, sessions: EndedSessions, now: Instant) -> usize {
        self.0.retain(|_, entry| entry.end > now);
        let before = self.0.len();
        match sessions {
            EndedSessions::One(id) => drop(self.0.remove(&id)),
            EndedSessions::OfHolder(holder) => self.0.retain(|_, entry| entry.holder != holder),
        }
        before - self.0.len()
    }

    fn live(&self, id: SessionId, now: Instant) -> Option<&SessionEntry> {
        self.0.get(&id).filter(|entry| entry.end > now)
    }

    fn end_first(&mut self, which: impl Fn(&SessionEntry) -> bool) {
        let candidates = self.0.iter().filter(|(_, entry)| which(entry));
        let first = candidates.min_by_key(|(_, entry)| entry.end).map(|(id, _)| *id);
        first.and_then(|id| self.0.remove(&id));
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for SessionHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for SessionHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
