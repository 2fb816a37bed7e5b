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
use store::SESSION_TTL;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// The most logins that are in the list until their end. kas does not revoke the tokens of older ones.
const CAPACITY: usize = 10_000;
/// The tokens are revoked this long before the end, because the store forgets them at the end.
const BEFORE_END: Duration = Duration::from_secs(30);

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
}

#[derive(Debug)]
struct PendingEnd {
    due: Instant,
    hash: TokenHash,
    token: SecretString,
}

impl LoginEnds {
    /// Adds a login that has this end, or changes its end.
    pub(super) fn add(&self, token: SecretString, end: SystemTime) {
        let remaining = end.duration_since(SystemTime::now()).unwrap_or_default().min(SESSION_TTL);
        let due = Instant::now() + remaining.saturating_sub(BEFORE_END);
        let added = PendingEnd { due, hash: TokenHash::of(&token), token };
        let mut logins = self.0.logins.lock();
        logins.retain(|pending| pending.hash != added.hash);
        let position = logins.partition_point(|pending| pending.due <= due);
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

    /// Waits for the end of the next login, and returns its token. It considers logins that are added while it waits.
    ///
    /// If the future is dropped, the login stays in the list.
    pub(super) async fn next(&self) -> SecretString {
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
            if let Some(PendingEnd { token, .. }) = ended {
                return token;
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
            assert_eq!(ends.next().await.expose_secret(), token);
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
        assert_eq!(next.await.unwrap().expose_secret(), "third", "the list was empty");
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
        assert_eq!(next.await.unwrap().expose_secret(), "second", "the wait was for the first one");
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
        (0..2).for_each(|_| ends.add("of another".into(), SystemTime::now() + hour));
        assert_eq!(next.await.unwrap().expose_secret(), "of another");
        assert!(start.elapsed() < hour, "{:?}", start.elapsed());
        assert_eq!(ends.next().await.expose_secret(), "own", "each login ends once");
        ends.add("ended".into(), SystemTime::UNIX_EPOCH);
        assert_eq!(timeout(BEFORE_END, ends.next()).await.unwrap().expose_secret(), "ended");
    }

    #[test]
    fn oldest_logins_are_left_out_beyond_the_capacity() {
        let ends = LoginEnds::default();
        (0..CAPACITY + 3).for_each(|number| ends.add(number.to_string().into(), end_of_new()));
        let logins = ends.0.logins.lock();
        assert_eq!((logins.len(), logins[0].token.expose_secret()), (CAPACITY, "3"));
        assert!(ends.0.warned.load(Relaxed));
    }
}
