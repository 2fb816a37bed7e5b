//! The sessions of browsers. A session stands for the token with which it began: what the token may do is asked at each request.
//!
//! The store has the sessions of all replicas, as [records](super::session_record) that only the holder of the cookie can open. A
//! replica keeps those that its browsers use, and checks every few seconds whether they have ended. While Redis does not respond, these go
//! on.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use access::token::TokenHash;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::HeaderMap;
use parking_lot::Mutex;
use secrecy::SecretString;
use store::{
    EndedSessions, NewSession, SESSION_TTL, SessionHolder, SessionId, SessionLimits, Store, StoreError,
};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    cookies,
    session_record::{self, SessionRecord},
};

/// The name of the cookie. With this prefix browsers accept it only with TLS or on loopback, for this host and for all paths
/// (RFC 6265bis section 4.1.3.2), so that no other host of the same site can set it.
const COOKIE: &str = "__Host-kas";
/// The limits over all replicas.
const LIMITS: SessionLimits = SessionLimits { sessions: 10_000, per_holder: 50 };
/// The most sessions that a replica remembers as ended. All replicas together have fewer live ones.
const MAX_ENDED: usize = 20_000;
/// The time after which a session that is used is checked again: another replica may have ended it.
const CHECK_PERIOD: Duration = Duration::from_secs(3);
/// The same for a session that nobody uses.
const IDLE_CHECK_PERIOD: Duration = Duration::from_secs(60);

/// The sessions, as a replica sees them. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Sessions {
    store: Arc<dyn Store>,
    local: Arc<Mutex<LocalSessions>>,
}

/// The sessions that browsers have used at this replica.
#[derive(Debug, Default)]
struct LocalSessions {
    entries: HashMap<SessionId, Entry>,
    /// The sessions that have ended, and may still be in the store.
    unsent_ends: HashSet<EndedSessions>,
    /// The sessions that this replica has seen ending, until the time at which each would have ended by itself. A record that comes back
    /// in the store is not theirs: only a writer of Redis can put it there.
    ended: HashMap<SessionId, Instant>,
}

/// One session.
pub(super) struct Session {
    id: SessionId,
    pub(super) token: SecretString,
    /// The key of the sessions of the same token or user.
    holder: SessionHolder,
    /// The time at which it ends.
    pub(super) end: Instant,
    ended: CancellationToken,
}

/// A session until it is removed, which ends its streams.
#[derive(Debug)]
struct Entry {
    session: Arc<Session>,
    checked: Instant,
    _end_streams: DropGuard,
}

impl Session {
    /// Waits until the session has ended: by the logout, in favour of a new one, or by its time.
    pub(super) async fn ended(self: Arc<Self>) {
        tokio::select! {
            () = self.ended.cancelled() => {}
            () = sleep_until(self.end) => {}
        }
    }
}

impl Entry {
    fn new(id: SessionId, token: SecretString, holder: SessionHolder, end: Instant, now: Instant) -> Self {
        let ended = CancellationToken::new();
        let end_streams = ended.clone().drop_guard();
        let session = Session { id, token, holder, end, ended };
        Self { session: Arc::new(session), checked: now, _end_streams: end_streams }
    }

    /// Returns whether the store has to be asked about the session in this period.
    fn is_due(&self, now: Instant) -> bool {
        // The entry has one reference, and each request or stream has another.
        Arc::strong_count(&self.session) > 1 || now >= self.checked + IDLE_CHECK_PERIOD
    }
}

impl Sessions {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, local: Arc::default() }
    }

    /// Begins a session, which ends after `ttl` or 8 h. Returns the value of `Set-Cookie`.
    ///
    /// # Errors
    ///
    /// The store does not respond.
    pub(super) async fn begin(
        &self,
        token: SecretString,
        holder: SessionHolder,
        ttl: Duration,
        now: Instant,
    ) -> Result<String, StoreError> {
        let random: [u8; 32] = rand::random();
        let value = BASE64_URL_SAFE_NO_PAD.encode(random);
        let id = session_record::id(value.as_bytes());
        let ttl = ttl.min(SESSION_TTL);
        let record = SessionRecord { token: token.clone(), holder, end: SystemTime::now() + ttl };
        let (entry, record) = (Entry::new(id, token, holder, now + ttl, now), record.seal(value.as_bytes()));
        self.store.begin_session(NewSession { id, holder, record, ttl }, LIMITS).await?;
        self.local.lock().entries.insert(id, entry);
        let seconds = ttl.as_secs();
        Ok(format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Strict"))
    }

    /// Returns the session of a request with these headers, if this replica knows it.
    pub(super) async fn known(&self, headers: &HeaderMap, now: Instant) -> Option<Arc<Session>> {
        let id = session_record::id(cookies::value(headers, COOKIE)?);
        let session = {
            let mut local = self.local.lock();
            let entry = local.entries.get_mut(&id).filter(|entry| entry.session.end > now)?;
            let session = Arc::clone(&entry.session);
            if now < entry.checked + CHECK_PERIOD {
                return Some(session);
            }
            // One request of several at the same time asks the store.
            entry.checked = now;
            session
        };
        match self.store.live_sessions(&[id]).await {
            Ok(live) if live == [false] => {
                self.local.lock().remove(id, now);
                None
            }
            Ok(_) | Err(_) => Some(session),
        }
    }

    /// Returns the session of a request with these headers from the store.
    ///
    /// # Errors
    ///
    /// The store does not respond.
    pub(super) async fn load(
        &self,
        headers: &HeaderMap,
        now: Instant,
    ) -> Result<Option<Arc<Session>>, StoreError> {
        let Some(cookie) = cookies::value(headers, COOKIE) else { return Ok(None) };
        let id = session_record::id(cookie);
        let Some(sealed) = self.store.session(id).await? else { return Ok(None) };
        let Some(record) = SessionRecord::open(cookie, sealed) else {
            tracing::warn!(session = %id, "session of a browser refused: its record was changed");
            return Ok(None);
        };
        let left = record.end.duration_since(SystemTime::now()).unwrap_or_default().min(SESSION_TTL);
        let entry = Entry::new(id, record.token, record.holder, now + left, now);
        let mut local = self.local.lock();
        let ended = [EndedSessions::One(id), EndedSessions::OfHolder(record.holder)];
        if local.ended.contains_key(&id) {
            tracing::warn!(session = %id, "session of a browser refused: it has ended, and its record was written again");
            return Ok(None);
        }
        if left.is_zero() || ended.iter().any(|ended| local.unsent_ends.contains(ended)) {
            return Ok(None);
        }
        // Another request may have been faster.
        Ok(Some(Arc::clone(&local.entries.entry(id).or_insert(entry).session)))
    }

    /// Returns whether a request with these headers has a cookie of a session.
    pub(super) fn is_named_in(headers: &HeaderMap) -> bool {
        cookies::value(headers, COOKIE).is_some()
    }

    /// Ends the session of a request with these headers, and its streams. Returns the value of `Set-Cookie`.
    ///
    /// # Errors
    ///
    /// The store does not respond, and this replica does not know the session.
    pub(super) async fn end(&self, headers: &HeaderMap) -> Result<String, StoreError> {
        if let Some(cookie) = cookies::value(headers, COOKIE) {
            let id = session_record::id(cookie);
            if self.local.lock().end(EndedSessions::One(id), Instant::now()) {
                self.send_ends().await;
            } else {
                self.store.end_sessions(EndedSessions::One(id)).await?;
            }
        }
        Ok(format!("{COOKIE}=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Strict"))
    }

    /// Ends a session whose token is refused from now on.
    pub(super) async fn end_one(&self, session: &Session) {
        self.local.lock().end(EndedSessions::One(session.id), Instant::now());
        self.send_ends().await;
    }

    /// Ends all sessions of a token or of a user at all replicas.
    pub(super) async fn end_all_of(&self, holder: SessionHolder) {
        self.local.lock().end(EndedSessions::OfHolder(holder), Instant::now());
        self.send_ends().await;
    }

    /// Checks the sessions of this replica from time to time, and ends sessions that the store did not end.
    pub(super) async fn run(&self) {
        loop {
            sleep(CHECK_PERIOD).await;
            self.send_ends().await;
            self.check(Instant::now()).await;
        }
    }

    /// Ends sessions in the store. If it does not respond, the next call tries again.
    async fn send_ends(&self) {
        let unsent: Vec<_> = self.local.lock().unsent_ends.iter().copied().collect();
        for ended in unsent {
            if let Err(error) = self.store.end_sessions(ended).await {
                tracing::debug!(%error, "sessions of browsers not ended at other replicas yet");
                return;
            }
            self.local.lock().unsent_ends.remove(&ended);
        }
    }

    async fn check(&self, now: Instant) {
        let due: Vec<SessionId> = {
            let mut local = self.local.lock();
            local.entries.retain(|_, entry| entry.session.end > now);
            local.ended.retain(|_, end| *end > now);
            local.entries.iter().filter(|(_, entry)| entry.is_due(now)).map(|(id, _)| *id).collect()
        };
        if due.is_empty() {
            return;
        }
        let Ok(live) = self.store.live_sessions(&due).await else { return };
        let mut local = self.local.lock();
        for (id, is_live) in due.iter().zip(live) {
            if !is_live {
                local.remove(*id, now);
            } else if let Some(entry) = local.entries.get_mut(id) {
                entry.checked = now;
            }
        }
    }

    /// Returns the number of sessions that this replica knows.
    pub(super) fn count(&self, now: Instant) -> usize {
        self.local.lock().entries.values().filter(|entry| entry.session.end > now).count()
    }
}

impl LocalSessions {
    /// Removes sessions, and remembers that they have to end in the store. Returns whether they do.
    fn end(&mut self, ended: EndedSessions, now: Instant) -> bool {
        match ended {
            EndedSessions::One(id) => {
                if !self.remove(id, now) {
                    return false;
                }
            }
            EndedSessions::OfHolder(holder) => {
                let of_holder = self.entries.values().filter(|entry| entry.session.holder == holder);
                let ids: Vec<SessionId> = of_holder.map(|entry| entry.session.id).collect();
                for id in ids {
                    self.remove(id, now);
                }
            }
        }
        self.unsent_ends.insert(ended);
        true
    }

    /// Removes a session that has ended, and does not load it again. Returns whether this replica knew it.
    fn remove(&mut self, id: SessionId, now: Instant) -> bool {
        let known = self.entries.remove(&id);
        if self.ended.len() >= MAX_ENDED {
            self.ended.retain(|_, end| *end > now);
        }
        if self.ended.len() < MAX_ENDED {
            let end = known.as_ref().map_or(now + SESSION_TTL, |entry| entry.session.end);
            self.ended.insert(id, end);
        }
        known.is_some()
    }
}

/// Returns the key of the sessions of a token.
pub(super) fn holder(token: &TokenHash) -> SessionHolder {
    SessionHolder(token.digest())
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("end", &self.end).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http::header;
    use secrecy::ExposeSecret as _;
    use store::MemoryStore;

    use super::*;

    fn replicas() -> [Sessions; 2] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        [Sessions::new(Arc::clone(&store)), Sessions::new(store)]
    }

    /// Returns the headers of a request with the cookie of a response.
    fn headers(set_cookie: &str) -> HeaderMap {
        let cookie = set_cookie.split(';').next().unwrap();
        [(header::COOKIE, cookie.parse().unwrap())].into_iter().collect()
    }

    /// Begins a session with a token. Returns the headers of a request with its cookie.
    async fn begin(sessions: &Sessions, token: &str) -> HeaderMap {
        let (token, now) = (SecretString::from(token), Instant::now());
        let holder = holder(&TokenHash::of(&token));
        headers(&sessions.begin(token, holder, SESSION_TTL, now).await.unwrap())
    }

    async fn find(sessions: &Sessions, headers: &HeaderMap) -> Option<Arc<Session>> {
        match sessions.known(headers, Instant::now()).await {
            None => sessions.load(headers, Instant::now()).await.unwrap(),
            known => known,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn record_of_an_ended_session_that_comes_back_is_no_session() {
        let [sessions, other] = replicas();
        for ends in ["logout", "logout at the other replica", "end of the holder"] {
            let request = begin(&sessions, "secret").await;
            let id = session_record::id(cookies::value(&request, COOKIE).unwrap());
            assert!(find(&other, &request).await.is_some());
            let record = sessions.store.session(id).await.unwrap().unwrap();
            match ends {
                "logout" => drop(sessions.end(&request).await.unwrap()),
                "logout at the other replica" => drop(other.end(&request).await.unwrap()),
                _ => sessions.end_all_of(holder(&TokenHash::of(&"secret".into()))).await,
            }
            // Both see that it has ended.
            sleep(CHECK_PERIOD).await;
            assert!(find(&sessions, &request).await.is_none() && find(&other, &request).await.is_none());
            let holder = SessionHolder([9; 16]);
            let again = NewSession { id, holder, record, ttl: SESSION_TTL };
            sessions.store.begin_session(again, LIMITS).await.unwrap();
            for replica in [&sessions, &other] {
                assert!(find(replica, &request).await.is_none(), "{ends}");
            }
            assert!(find(&sessions, &begin(&sessions, "secret").await).await.is_some(), "another login");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn session_lasts_until_its_end_or_the_logout() {
        let ([sessions, _], start) = (replicas(), Instant::now());
        let holder = SessionHolder([1; 16]);
        let set = sessions.begin("secret".into(), holder, SESSION_TTL * 2, start).await.unwrap();
        assert!(set.ends_with("; Path=/; Max-Age=28800; Secure; HttpOnly; SameSite=Strict"), "{set}");
        let request = headers(&set);
        sleep(SESSION_TTL - Duration::from_secs(1)).await;
        let found = find(&sessions, &request).await.unwrap();
        assert_eq!(found.token.expose_secret(), "secret");
        assert!(!format!("{found:?}{sessions:?}").contains("secret"));
        sleep(Duration::from_secs(1)).await;
        assert!(find(&sessions, &request).await.is_none());

        let request = begin(&sessions, "secret").await;
        let ended = tokio::spawn(find(&sessions, &request).await.unwrap().ended());
        tokio::task::yield_now().await;
        assert!(!ended.is_finished());
        assert!(sessions.end(&request).await.unwrap().contains("Max-Age=0"));
        ended.await.unwrap();
        assert!(start.elapsed() == SESSION_TTL && find(&sessions, &request).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn logout_at_another_replica_ends_the_streams_here() {
        let [here, there] = replicas();
        let request = begin(&here, "secret").await;
        let (used, idle) = (find(&here, &request).await.unwrap(), find(&there, &request).await.unwrap());
        drop(idle);
        there.end(&request).await.unwrap();
        let start = Instant::now();
        tokio::select! {
            () = here.run() => {}
            () = used.ended() => {}
        }
        assert!(start.elapsed() <= CHECK_PERIOD, "{:?}", start.elapsed());
        assert!(find(&here, &request).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn idle_session_is_forgotten_after_its_end_elsewhere() {
        let [here, there] = replicas();
        let request = begin(&here, "secret").await;
        there.end(&request).await.unwrap();
        sleep(IDLE_CHECK_PERIOD - Duration::from_secs(1)).await;
        here.check(Instant::now()).await;
        assert_eq!(here.count(Instant::now()), 1);
        sleep(Duration::from_secs(1)).await;
        here.check(Instant::now()).await;
        assert_eq!(here.count(Instant::now()), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn removed_token_ends_its_sessions_at_all_replicas() {
        let [here, there] = replicas();
        let request = begin(&here, "secret").await;
        let other = begin(&here, "other").await;
        there.end_all_of(holder(&TokenHash::of(&"secret".into()))).await;
        sleep(CHECK_PERIOD).await;
        assert!(find(&here, &request).await.is_none() && find(&there, &request).await.is_none());
        assert!(find(&there, &other).await.is_some());
    }
}
