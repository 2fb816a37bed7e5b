//! The ends of logins: GitLab keeps the tokens of a login until it is asked to revoke them.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
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

/// The logins that began at this replica, by their ends. Clones are cheap, and share the list.
#[derive(Clone, Debug, Default)]
pub(super) struct LoginEnds(Arc<Pending>);

#[derive(Debug, Default)]
struct Pending {
    /// All logins have the same length, so that the first one that began ends first.
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
    /// Adds a login that begins now.
    pub(super) fn add(&self, token: SecretString) {
        let end =
            PendingEnd { due: Instant::now() + SESSION_TTL - BEFORE_END, hash: TokenHash::of(&token), token };
        let mut logins = self.0.logins.lock();
        logins.push_back(end);
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

    /// Waits for the end of the next login, and returns its token.
    ///
    /// If the future is dropped, the login stays in the list.
    pub(super) async fn next(&self) -> SecretString {
        loop {
            let next = self.0.logins.lock().front().map(|pending| pending.due);
            let Some(due) = next else {
                self.0.added.notified().await;
                continue;
            };
            sleep_until(due).await;
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

    #[tokio::test(start_paused = true)]
    async fn each_login_is_returned_before_the_store_forgets_it() {
        let ends = LoginEnds::default();
        let start = Instant::now();
        ends.add("first".into());
        sleep(Duration::from_secs(60)).await;
        ends.add("second".into());
        assert!(timeout(SESSION_TTL / 2, ends.next()).await.is_err(), "it stays in the list");
        for (token, begun) in [("first", 0), ("second", 60)] {
            assert_eq!(ends.next().await.expose_secret(), token);
            let age = start.elapsed() - Duration::from_secs(begun);
            assert!(age < SESSION_TTL && age >= SESSION_TTL - BEFORE_END, "{token}: {age:?}");
        }
        let next = tokio::spawn({
            let ends = ends.clone();
            async move { ends.next().await }
        });
        sleep(Duration::from_secs(1)).await;
        ends.add("third".into());
        assert_eq!(next.await.unwrap().expose_secret(), "third", "the list was empty");
    }

    #[tokio::test(start_paused = true)]
    async fn login_that_is_removed_does_not_end_again() {
        let ends = LoginEnds::default();
        ["first", "second", "third"].into_iter().for_each(|token| ends.add(token.into()));
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

    #[test]
    fn oldest_logins_are_left_out_beyond_the_capacity() {
        let ends = LoginEnds::default();
        (0..CAPACITY + 3).for_each(|number| ends.add(number.to_string().into()));
        let logins = ends.0.logins.lock();
        assert_eq!((logins.len(), logins[0].token.expose_secret()), (CAPACITY, "3"));
        assert!(ends.0.warned.load(Relaxed));
    }
}
