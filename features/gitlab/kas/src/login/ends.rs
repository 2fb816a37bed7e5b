//! The ends of logins: GitLab keeps the tokens of a login until it is asked to revoke them.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use access::token::TokenHash;
use parking_lot::Mutex;
use secrecy::SecretString;
use store::{SESSION_TTL, StoreError};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// The most logins that are in the list until their end. kas does not revoke the tokens of older ones.
const CAPACITY: usize = 10_000;
/// The tokens are revoked this long before the end, because the store forgets them at the end.
const BEFORE_END: Duration = Duration::from_secs(30);
/// A login that the store has for longer than this beside [`BEFORE_END`] was added by a clock that is fast.
const TOLERANCE: Duration = Duration::from_secs(10);
/// The time after which a login ends again for which the store did not respond.
const RETRY_PERIOD: Duration = Duration::from_secs(5);

/// The logins that began at this replica, or that it has served, by their ends. Clones are cheap, and share the list.
#[derive(Clone, Debug, Default)]
pub(super) struct LoginEnds(Arc<Pending>);

#[derive(Debug, Default)]
struct Pending {
    /// The first one ends first.
    logins: Mutex<VecDeque<PendingEnd>>,
    added: Notify,
    /// True after the warning that the list is full.
    warned: AtomicBool,
    /// True after the warning that the store does not respond, until it responds.
    store_is_away: AtomicBool,
}

#[derive(Debug)]
struct PendingEnd {
    due: Instant,
    hash: TokenHash,
    login: DueLogin,
}

/// A login whose end is due.
#[derive(Debug)]
pub(super) struct DueLogin {
    /// The token of the login.
    pub(super) token: SecretString,
    /// The time at which the store forgets the login, as far as this replica knows.
    end: Instant,
}

impl PendingEnd {
    fn new(token: SecretString, remaining: Duration) -> Self {
        let now = Instant::now();
        let due = now + remaining.saturating_sub(BEFORE_END);
        Self { due, hash: TokenHash::of(&token), login: DueLogin { token, end: now + remaining } }
    }
}

impl LoginEnds {
    /// Adds a login that may be in the list already, because another replica has begun it, or this one has forgotten it.
    pub(super) fn add_again(&self, token: SecretString, end: SystemTime) {
        self.remove(&token);
        self.add(token, end);
    }

    /// Adds a login that begins now, and has this end.
    pub(super) fn add(&self, token: SecretString, end: SystemTime) {
        let remaining = end.duration_since(SystemTime::now()).unwrap_or_default();
        self.insert(PendingEnd::new(token, remaining.min(SESSION_TTL)));
    }

    /// Adds a login again if the store has it for this time, which is longer than by the clock of this replica. Returns whether it is
    /// added.
    pub(super) fn postpone(&self, login: &DueLogin, remaining: Duration) -> bool {
        let is_early = remaining > BEFORE_END + TOLERANCE;
        if is_early {
            self.insert(PendingEnd::new(login.token.clone(), remaining.min(SESSION_TTL)));
        }
        is_early
    }

    /// Adds a login again for which the store did not respond. Returns false if the login has ended.
    pub(super) fn retry(&self, login: &DueLogin, error: &StoreError) -> bool {
        let DueLogin { token, end } = login;
        let now = Instant::now();
        if now >= *end {
            return false;
        }
        if !self.0.store_is_away.swap(true, Relaxed) {
            tracing::warn!(%error, "logins at GitLab not ended: kas tries again until their ends");
        }
        let again = DueLogin { token: token.clone(), end: *end };
        let due = (now + RETRY_PERIOD).min(*end);
        self.insert(PendingEnd { due, hash: TokenHash::of(token), login: again });
        true
    }

    /// Notes that the store responds: the next warning is about another outage.
    pub(super) fn on_store_response(&self) {
        self.0.store_is_away.store(false, Relaxed);
    }

    fn insert(&self, added: PendingEnd) {
        let mut logins = self.0.logins.lock();
        let position = logins.partition_point(|pending| pending.due <= added.due);
        logins.insert(position, added);
        let is_full = logins.len() > CAPACITY;
        if is_full {
            logins.pop_front();
        }
        drop(logins);
        if is_full && !self.0.warned.swap(true, Relaxed) {
            tracing::warn!(
                "more than {CAPACITY} logins at GitLab: kas does not revoke the tokens of the oldest ones when they end"
            );
        }
        self.0.added.notify_one();
    }

    /// Removes a login that ends before its time.
    pub(super) fn remove(&self, token: &SecretString) {
        let hash = TokenHash::of(token);
        self.0.logins.lock().retain(|pending| pending.hash != hash);
    }

    /// Waits for the end of the next login, and returns it. It considers logins that are added while it waits.
    ///
    /// If the future is dropped, the login stays in the list.
    pub(super) async fn next(&self) -> DueLogin {
        loop {
            let next = self.0.logins.lock().front().map(|pending| pending.due);
            let Some(due) = next else {
                self.0.added.notified().await;
                continue;
            };
            // An earlier end may have been added meanwhile.
            tokio::select! {
                biased;
                () = sleep_until(due) => {}
                () = self.0.added.notified() => continue,
            }
            let ended = self.0.logins.lock().pop_front_if(|pending| pending.due <= Instant::now());
            if let Some(PendingEnd { login, .. }) = ended {
                return login;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;
    use tokio::time::{sleep, timeout};

    use super::*;

    /// Returns the end of a login that begins now. The clock of the system goes on while that of tokio is paused, by less than a second.
    fn end_of_new() -> SystemTime {
        SystemTime::now() + SESSION_TTL
    }

    #[tokio::test(start_paused = true)]
    async fn each_login_is_returned_before_the_store_forgets_it() {
        let ends = LoginEnds::default();
        let start = Instant::now();
        ends.add("first".into(), end_of_new());
        sleep(Duration::from_secs(60)).await;
        ends.add("second".into(), end_of_new());
        assert!(timeout(SESSION_TTL / 2, ends.next()).await.is_err(), "it stays in the list");
        for (token, begun) in [("first", 0), ("second", 60)] {
            assert_eq!(ends.next().await.token.expose_secret(), token);
            let age = start.elapsed() - Duration::from_secs(begun);
            let second = Duration::from_secs(1);
            assert!(age < SESSION_TTL && age + second >= SESSION_TTL - BEFORE_END, "{token}: {age:?}");
        }
        let next = tokio::spawn({
            let ends = ends.clone();
            async move { ends.next().await }
        });
        sleep(Duration::from_secs(1)).await;
        ends.add("third".into(), end_of_new());
        assert_eq!(next.await.unwrap().token.expose_secret(), "third", "the list was empty");
    }

    #[tokio::test(start_paused = true)]
    async fn login_that_is_removed_does_not_end_again() {
        let ends = LoginEnds::default();
        ["first", "second", "third"].into_iter().for_each(|token| ends.add(token.into(), end_of_new()));
        let next = tokio::spawn({
            let ends = ends.clone();
            async move { ends.next().await }
        });
        sleep(Duration::from_secs(1)).await;
        ends.remove(&"first".into());
        ends.remove(&"third".into());
        assert_eq!(next.await.unwrap().token.expose_secret(), "second", "the wait was for the first one");
        assert!(timeout(SESSION_TTL * 2, ends.next()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn login_of_another_replica_ends_in_its_order() {
        let ends = LoginEnds::default();
        let start = Instant::now();
        ends.add("own".into(), end_of_new());
        let next = tokio::spawn({
            let ends = ends.clone();
            async move { ends.next().await }
        });
        sleep(Duration::from_secs(1)).await;
        let hour = Duration::from_secs(3600);
        // It is read from the store again after an hour without a request.
        (0..2).for_each(|_| ends.add_again("of another".into(), SystemTime::now() + hour));
        assert_eq!(next.await.unwrap().token.expose_secret(), "of another");
        assert!(start.elapsed() < hour, "{:?}", start.elapsed());
        assert_eq!(ends.next().await.token.expose_secret(), "own", "each login ends once");
        ends.add("ended".into(), SystemTime::UNIX_EPOCH);
        assert_eq!(timeout(BEFORE_END, ends.next()).await.unwrap().token.expose_secret(), "ended");
    }

    #[tokio::test(start_paused = true)]
    async fn login_that_a_fast_clock_has_added_ends_with_the_record_in_the_store() {
        let ends = LoginEnds::default();
        let start = Instant::now();
        let hour = Duration::from_secs(3600);
        // The clock of this replica is an hour ahead.
        ends.add("login".into(), end_of_new() - hour);
        let due = ends.next().await;
        assert!(start.elapsed() < SESSION_TTL - hour);
        assert!(ends.postpone(&due, SESSION_TTL - start.elapsed()), "the store has it for an hour");
        let due = ends.next().await;
        let age = start.elapsed();
        assert!(age < SESSION_TTL && age + Duration::from_secs(1) >= SESSION_TTL - BEFORE_END, "{age:?}");
        assert!(!ends.postpone(&due, SESSION_TTL - age), "it ends now");
        assert!(timeout(hour, ends.next()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn login_ends_again_until_its_end_while_the_store_does_not_respond() {
        let ends = LoginEnds::default();
        let error = StoreError("Redis was not reached yet".to_owned());
        ends.add("login".into(), SystemTime::now() + BEFORE_END);
        let mut due = ends.next().await;
        let (start, mut attempts) = (Instant::now(), 1);
        while ends.retry(&due, &error) {
            due = ends.next().await;
            assert_eq!(due.token.expose_secret(), "login");
            attempts += 1;
        }
        assert!(ends.0.store_is_away.load(Relaxed), "one warning is logged");
        ends.on_store_response();
        assert!(!ends.0.store_is_away.load(Relaxed));
        assert!(
            start.elapsed() < BEFORE_END + RETRY_PERIOD && attempts >= 6,
            "{:?}, {attempts}",
            start.elapsed()
        );
        assert!(timeout(SESSION_TTL, ends.next()).await.is_err(), "it has ended");
    }

    #[test]
    fn oldest_logins_are_left_out_beyond_the_capacity() {
        let ends = LoginEnds::default();
        (0..CAPACITY + 3).for_each(|number| ends.add(number.to_string().into(), end_of_new()));
        let logins = ends.0.logins.lock();
        assert_eq!((logins.len(), logins[0].login.token.expose_secret()), (CAPACITY, "3"));
        assert!(ends.0.warned.load(Relaxed));
    }
}
