//! The sessions of browsers. A session stands for the token with which it began: what the token may do is asked at each request.

use std::{collections::HashMap, fmt, time::Duration};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

/// The name of the cookie. With this prefix browsers accept it only with TLS or on loopback, for this host and for all paths
/// (RFC 6265bis section 4.1.3.2), so that no other host of the same site can set it.
const COOKIE: &str = "__Host-kas";
/// The time after which a person has to log in again.
pub(super) const LIFETIME: Duration = Duration::from_secs(8 * 3600);
/// The most sessions. The oldest one ends in favour of a new one.
const MAX_SESSIONS: usize = 10_000;
/// The most sessions of one token.
const MAX_PER_TOKEN: usize = 50;

/// The sessions of this replica.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<HashMap<Key, Session>>);

/// The hash of the value of a cookie: whoever reads the memory of kas learns no cookie.
type Key = [u8; 32];

/// One session.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) token: SecretString,
    /// The time at which it ends.
    pub(super) end: Instant,
}

impl Sessions {
    /// Begins a session. Returns the value of `Set-Cookie`.
    pub(super) fn begin(&self, token: SecretString, now: Instant) -> String {
        let random: [u8; 32] = rand::random();
        let value = BASE64_URL_SAFE_NO_PAD.encode(random);
        let mut sessions = self.0.lock();
        sessions.retain(|_, session| session.end > now);
        let of_token = |session: &Session| session.token.expose_secret() == token.expose_secret();
        if sessions.values().filter(|session| of_token(session)).count() >= MAX_PER_TOKEN {
            end_oldest(&mut sessions, of_token);
        } else if sessions.len() >= MAX_SESSIONS {
            end_oldest(&mut sessions, |_| true);
        }
        sessions.insert(key(&value), Session { token, end: now + LIFETIME });
        let seconds = LIFETIME.as_secs();
        format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Strict")
    }

    /// Returns the session of a request with this `Cookie`.
    pub(super) fn find(&self, cookies: &str, now: Instant) -> Option<Session> {
        let value = value(cookies)?;
        self.0.lock().get(&key(value)).filter(|session| session.end > now).cloned()
    }

    /// Ends the session of a request with this `Cookie`. Returns the value of `Set-Cookie`.
    pub(super) fn end(&self, cookies: &str) -> String {
        if let Some(value) = value(cookies) {
            self.0.lock().remove(&key(value));
        }
        format!("{COOKIE}=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Strict")
    }

    /// Returns the number of sessions.
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

fn end_oldest(sessions: &mut HashMap<Key, Session>, which: impl Fn(&Session) -> bool) {
    let candidates = sessions.iter().filter(|(_, session)| which(session));
    let oldest = candidates.min_by_key(|(_, session)| session.end).map(|(key, _)| *key);
    oldest.and_then(|oldest| sessions.remove(&oldest));
}

/// Returns the value of the cookie, or `None` if there is none or there are two: another one cannot be ours.
fn value(cookies: &str) -> Option<&str> {
    let mut values = cookies.split(';').filter_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        (name == COOKIE).then_some(value)
    });
    let first = values.next()?;
    values.next().is_none().then_some(first)
}

fn key(value: &str) -> Key {
    Sha256::digest(value).into()
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("end", &self.end).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cookie(set_cookie: &str) -> &str {
        set_cookie.split(';').next().unwrap()
    }

    fn token(text: &str) -> SecretString {
        text.into()
    }

    #[test]
    fn session_lasts_until_its_end_or_the_logout() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let set = sessions.begin(token("secret"), now);
        assert!(set.ends_with("; Path=/; Max-Age=28800; Secure; HttpOnly; SameSite=Strict"), "{set}");
        let cookies = format!("a=b; {}; c=d", cookie(&set));
        let found = sessions.find(&cookies, now + LIFETIME - Duration::from_secs(1)).unwrap();
        assert_eq!(found.token.expose_secret(), "secret");
        assert!(!format!("{found:?}{sessions:?}").contains("secret"));
        assert!(sessions.find(&cookies, now + LIFETIME).is_none());
        assert!(sessions.end(&cookies).contains("Max-Age=0"));
        assert!(sessions.find(&cookies, now).is_none());
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
            assert!(sessions.find(&cookies, now).is_none(), "{cookies}");
        }
    }

    #[test]
    fn number_of_sessions_is_limited() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let first = sessions.begin(token("first"), now);
        let later = now + Duration::from_secs(1);
        let mine: Vec<String> = (0..60).map(|_| sessions.begin(token("mine"), later)).collect();
        assert_eq!(sessions.len(), 1 + MAX_PER_TOKEN);
        assert!(sessions.find(cookie(&first), later).is_some(), "another token has lost nothing");
        assert!(sessions.find(cookie(&mine[59]), later).is_some());
        for number in 0..MAX_SESSIONS {
            sessions.begin(token(&format!("t{number}")), later + Duration::from_secs(1));
        }
        assert_eq!(sessions.len(), MAX_SESSIONS);
        assert!(sessions.find(cookie(&first), later).is_none(), "the oldest one has ended");
    }
}
