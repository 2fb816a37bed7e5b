//! The sessions of browsers. A session stands for the token with which it began: what the token may do is asked at each request.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use access::token::TokenHash;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{HeaderMap, header::COOKIE as COOKIE_HEADER};
use parking_lot::Mutex;
use secrecy::SecretString;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The name of the cookie. With this prefix browsers accept it only with TLS or on loopback, for this host and for all paths
/// (RFC 6265bis section 4.1.3.2), so that no other host of the same site can set it.
const COOKIE: &str = "__Host-kas";
/// The time after which a person has to log in again.
pub(super) const LIFETIME: Duration = Duration::from_secs(8 * 3600);
/// The limits of a replica.
const LIMITS: Limits = Limits { sessions: 10_000, per_token: 50 };

/// The most sessions, and the most of one token. The oldest one ends in favour of a new one.
#[derive(Clone, Copy)]
struct Limits {
    sessions: usize,
    per_token: usize,
}

/// The sessions of this replica.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions(Arc<Mutex<HashMap<Key, Entry>>>);

/// The hash of the value of a cookie, so that the time of a lookup says nothing about the cookies of others.
type Key = [u8; 32];

/// One session.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) token: SecretString,
    pub(super) hash: TokenHash,
    /// The time at which it ends.
    pub(super) end: Instant,
    ended: CancellationToken,
}

/// A session until it is removed, which ends its streams.
#[derive(Debug)]
struct Entry {
    session: Session,
    _end_streams: DropGuard,
}

impl Session {
    /// Waits until the session has ended: by the logout, in favour of a new one, or by its time.
    pub(super) async fn ended(self) {
        tokio::select! {
            () = self.ended.cancelled() => {}
            () = sleep_until(self.end) => {}
        }
    }
}

impl Sessions {
    /// Begins a session. Returns the value of `Set-Cookie`.
    pub(super) fn begin(&self, token: SecretString, now: Instant) -> String {
        self.begin_within(LIMITS, token, now)
    }

    fn begin_within(&self, limits: Limits, token: SecretString, now: Instant) -> String {
        let random: [u8; 32] = rand::random();
        let value = BASE64_URL_SAFE_NO_PAD.encode(random);
        let mut sessions = self.0.lock();
        sessions.retain(|_, entry| entry.session.end > now);
        let hash = TokenHash::of(&token);
        let of_token = |session: &Session| session.hash == hash;
        if sessions.values().filter(|entry| of_token(&entry.session)).count() >= limits.per_token {
            end_oldest(&mut sessions, of_token);
        } else if sessions.len() >= limits.sessions {
            end_oldest(&mut sessions, |_| true);
        }
        let ended = CancellationToken::new();
        let end_streams = ended.clone().drop_guard();
        let session = Session { token, hash, end: now + LIFETIME, ended };
        sessions.insert(key(value.as_bytes()), Entry { session, _end_streams: end_streams });
        let seconds = LIFETIME.as_secs();
        format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Strict")
    }

    /// Returns the session of a request with these headers.
    pub(super) fn find(&self, headers: &HeaderMap, now: Instant) -> Option<Session> {
        let key = key(value(headers)?);
        let sessions = self.0.lock();
        sessions.get(&key).map(|entry| entry.session.clone()).filter(|session| session.end > now)
    }

    /// Ends the session of a request with these headers, and its streams. Returns the value of `Set-Cookie`.
    pub(super) fn end(&self, headers: &HeaderMap) -> String {
        if let Some(value) = value(headers) {
            self.0.lock().remove(&key(value));
        }
        format!("{COOKIE}=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Strict")
    }

    /// Returns the number of sessions whose tokens are valid.
    pub(super) fn count(&self, is_valid: impl Fn(&TokenHash) -> bool, now: Instant) -> usize {
        let sessions = self.0.lock();
        sessions.values().filter(|entry| entry.session.end > now && is_valid(&entry.session.hash)).count()
    }
}

fn end_oldest(sessions: &mut HashMap<Key, Entry>, which: impl Fn(&Session) -> bool) {
    let candidates = sessions.iter().filter(|(_, entry)| which(&entry.session));
    let oldest = candidates.min_by_key(|(_, entry)| entry.session.end).map(|(key, _)| *key);
    oldest.and_then(|oldest| sessions.remove(&oldest));
}

/// Returns the value of the cookie, or `None` if there is none or there are two: another one cannot be ours. HTTP/2 may split `Cookie` into
/// several fields. Other cookies of the host may have any bytes.
fn value(headers: &HeaderMap) -> Option<&[u8]> {
    let fields = headers.get_all(COOKIE_HEADER).iter();
    let pairs = fields.flat_map(|field| field.as_bytes().split(|&byte| byte == b';'));
    let mut values =
        pairs.filter_map(|pair| pair.trim_ascii().strip_prefix(COOKIE.as_bytes())?.strip_prefix(b"="));
    let first = values.next()?;
    values.next().is_none().then_some(first)
}

fn key(value: &[u8]) -> Key {
    Sha256::digest(value).into()
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("end", &self.end).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    /// Returns the headers of a request with cookies, each in a field of its own.
    fn headers<const N: usize>(cookies: [&str; N]) -> HeaderMap {
        cookies.into_iter().map(|cookie| (COOKIE_HEADER, cookie.parse().unwrap())).collect()
    }

    fn cookie(set_cookie: &str) -> &str {
        set_cookie.split(';').next().unwrap()
    }

    fn token(text: &str) -> SecretString {
        text.into()
    }

    #[tokio::test(start_paused = true)]
    async fn session_lasts_until_its_end_or_the_logout() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let set = sessions.begin(token("secret"), now);
        assert!(set.ends_with("; Path=/; Max-Age=28800; Secure; HttpOnly; SameSite=Strict"), "{set}");
        let request = headers([&format!("a=b; {}; c=d", cookie(&set))]);
        let found = sessions.find(&request, now + LIFETIME - Duration::from_secs(1)).unwrap();
        assert_eq!(found.token.expose_secret(), "secret");
        assert!(!format!("{found:?}{sessions:?}").contains("secret"));
        assert!(sessions.find(&request, now + LIFETIME).is_none());
        let ended = tokio::spawn(found.ended());
        tokio::task::yield_now().await;
        assert!(!ended.is_finished());
        assert!(sessions.end(&request).contains("Max-Age=0"));
        ended.await.unwrap();
        assert!(now.elapsed() < LIFETIME && sessions.find(&request, now).is_none());

        let set = sessions.begin(token("secret"), Instant::now());
        sessions.find(&headers([cookie(&set)]), Instant::now()).unwrap().ended().await;
        assert_eq!(now.elapsed().as_secs(), LIFETIME.as_secs());
    }

    #[test]
    fn other_cookies_are_no_session() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let set = sessions.begin(token("secret"), now);
        let value = cookie(&set).split_once('=').unwrap().1;
        for cookies in [
            String::new(),
            "__Host-kas".to_owned(),
            "__Host-kas=".to_owned(),
            format!("kas={value}"),
            format!("__host-kas={value}"),
            format!("__Host-kas={value}x"),
            format!("__Host-kas=stolen; __Host-kas={value}"),
        ] {
            assert!(sessions.find(&headers([&cookies]), now).is_none(), "{cookies}");
        }
        let ours = format!("__Host-kas={value}");
        assert!(sessions.find(&headers(["__Host-kas=stolen", &ours]), now).is_none(), "two fields");
        assert!(sessions.find(&headers(["x=__Host-kas=y", "other=\u{e9}", &ours]), now).is_some());
    }

    #[test]
    fn number_of_sessions_is_limited() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let begin = |name: &str, now| {
            let set = sessions.begin_within(Limits { sessions: 20, per_token: 5 }, token(name), now);
            headers([cookie(&set)])
        };
        let first = begin("first", now);
        let later = now + Duration::from_secs(1);
        let mine: Vec<_> = (0..6).map(|_| begin("mine", later)).collect();
        assert_eq!(sessions.count(|_| true, later), 6);
        assert_eq!(sessions.count(|hash| *hash == TokenHash::of(&token("first")), later), 1);
        assert!(sessions.find(&first, later).is_some(), "another token has lost nothing");
        assert!(sessions.find(&mine[5], later).is_some());
        for number in 0..20 {
            begin(&format!("t{number}"), later + Duration::from_secs(1));
        }
        assert_eq!(sessions.count(|_| true, later), 20);
        assert!(sessions.find(&first, later).is_none(), "the oldest one has ended");
    }
}
