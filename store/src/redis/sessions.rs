//! The sessions of browsers, which all replicas share. Their records are encrypted by the caller.

use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::FromRedisValue;

use super::{RedisStore, keys::SESSION_HOLDER_LENGTH};
use crate::{
    routes::StoreError,
    sessions::{EndedSessions, NewSession, SESSION_TTL, SessionId, SessionLimits, SessionStore},
};

/// The most sessions in one script call of [`SessionStore::live_sessions`].
const PAGE: usize = 500;

impl SessionStore for RedisStore {
    fn begin_session(
        &self,
        session: NewSession,
        limits: SessionLimits,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let (shared, keys) = (&self.0, &self.0.keys);
            let NewSession { id, holder, record, ttl } = session;
            let mut script = shared.scripts.begin_session.key(keys.session(id));
            script.key(keys.holder_sessions(holder)).key(keys.sessions());
            script.arg(id.to_string()).arg(holder.to_string()).arg(record);
            script.arg(ttl.min(SESSION_TTL).as_millis().max(1) as u64).arg(SESSION_TTL.as_millis() as u64);
            script.arg(limits.per_holder).arg(limits.sessions);
            script.arg(keys.session_prefix()).arg(keys.holder_sessions_prefix());
            shared.query(&script).await
        })
    }

    fn replace_session(&self, id: SessionId, record: Vec<u8>) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let shared = &self.0;
            let mut script = shared.scripts.replace_session.key(shared.keys.session(id));
            script.arg(record);
            shared.query(&script).await
        })
    }

    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreError>> {
        Box::pin(async move {
            let bytes = SESSION_HOLDER_LENGTH..SESSION_HOLDER_LENGTH + NewSession::MAX_RECORD;
            let records: Vec<Vec<u8>> = self.query_sessions(&[id], bytes).await?;
            Ok(records.into_iter().next().filter(|record| !record.is_empty()))
        })
    }

    fn live_sessions<'a>(&'a self, ids: &'a [SessionId]) -> BoxFuture<'a, Result<Vec<bool>, StoreError>> {
        Box::pin(async move {
            let mut live = Vec::with_capacity(ids.len());
            for page in ids.chunks(PAGE) {
                let records: Vec<Vec<u8>> = self.query_sessions(page, 0..1).await?;
                live.extend(records.iter().map(|record| !record.is_empty()));
            }
            Ok(live)
        })
    }

    fn session_ttl(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Duration>, StoreError>> {
        Box::pin(async move {
            let shared = &self.0;
            let script = shared.scripts.session_ttl.key(shared.keys.session(id));
            let milliseconds: i64 = shared.query(&script).await?;
            // It is negative if there is no session.
            Ok(u64::try_from(milliseconds).ok().map(Duration::from_millis))
        })
    }

    fn end_sessions(&self, sessions: EndedSessions) -> BoxFuture<'_, Result<usize, StoreError>> {
        Box::pin(async move {
            let (shared, keys) = (&self.0, &self.0.keys);
            let (key, id) = match sessions {
                EndedSessions::One(id) => (keys.session(id), id.to_string()),
                EndedSessions::OfHolder(holder) => (keys.holder_sessions(holder), String::new()),
            };
            let mut script = shared.scripts.end_sessions.key(key);
            script.key(keys.sessions()).arg(id).arg(keys.session_prefix()).arg(keys.holder_sessions_prefix());
            shared.query(&script).await
        })
    }
}

impl RedisStore {
    /// Returns these bytes of the record of each session.
    async fn query_sessions<T: FromRedisValue>(
        &self,
        ids: &[SessionId],
        bytes: std::ops::Range<usize>,
    ) -> Result<Vec<T>, StoreError> {
        let shared = &self.0;
        let mut script = shared.scripts.sessions.arg(bytes.start);
        script.arg(bytes.end - 1);
        for id in ids {
            script.key(shared.keys.session(*id));
        }
        let records: Vec<T> = shared.query(&script).await?;
        if records.len() == ids.len() {
            Ok(records)
        } else {
            Err(StoreError("Redis returned other sessions".to_owned()))
        }
    }
}
