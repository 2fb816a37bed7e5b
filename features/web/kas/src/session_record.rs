//! The record of a session in the store, which is not trusted: only the browser, which has the cookie, can open it.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use access::sealed;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use store::{SessionHolder, SessionId};

/// The version of the record, and the purpose of its key.
const PURPOSE: &[u8] = b"kas web session 1";

/// The contents of a session.
#[derive(Debug)]
pub(super) struct SessionRecord {
    pub(super) token: SecretString,
    pub(super) holder: SessionHolder,
    /// A time of the clocks of replicas, in whole seconds.
    pub(super) end: SystemTime,
}

#[derive(Serialize, Deserialize)]
struct Contents<'a> {
    #[serde(borrow)]
    token: Cow<'a, str>,
    holder: [u8; 16],
    end: u64,
}

/// Returns the key of the session of a cookie in the store.
pub(super) fn id(cookie: &[u8]) -> SessionId {
    SessionId(sealed::id(cookie))
}

impl SessionRecord {
    /// Encrypts the record for the holder of the cookie.
    pub(super) fn seal(&self, cookie: &[u8]) -> Vec<u8> {
        let end = self.end.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let contents = Contents { token: self.token.expose_secret().into(), holder: self.holder.0, end };
        let text = serde_json::to_vec(&contents).expect("it has keys that are text");
        sealed::seal(PURPOSE, cookie, text)
    }

    /// Decrypts a record. Returns `None` if it was not encrypted for the holder of the cookie.
    pub(super) fn open(cookie: &[u8], sealed: Vec<u8>) -> Option<Self> {
        let text = sealed::open(PURPOSE, cookie, sealed)?;
        let Contents { token, holder, end } = serde_json::from_slice(&text).ok()?;
        let end = UNIX_EPOCH + Duration::from_secs(end);
        Some(Self { token: token.into_owned().into(), holder: SessionHolder(holder), end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOKIE: &[u8] = b"BQuNYpXcHGmVXPAaWzTGUS0_VrAcEqIlwDo2v8EzTmw";

    fn sealed() -> Vec<u8> {
        let end = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let holder = SessionHolder([7; 16]);
        SessionRecord { token: "kas-caller-\"secret\"".into(), holder, end }.seal(COOKIE)
    }

    #[test]
    fn record_is_opened_with_its_cookie() {
        let record = SessionRecord::open(COOKIE, sealed()).unwrap();
        assert_eq!(record.token.expose_secret(), "kas-caller-\"secret\"");
        assert_eq!(record.holder, SessionHolder([7; 16]));
        assert_eq!(record.end, UNIX_EPOCH + Duration::from_secs(1_800_000_000));
        assert!(!sealed().windows(6).any(|part| part == b"secret"));
        assert_ne!(sealed(), sealed(), "each record has a nonce of its own");
    }

    #[test]
    fn foreign_record_is_refused() {
        assert!(SessionRecord::open(b"other", sealed()).is_none());
        assert!(SessionRecord::open(COOKIE, sealed::seal(PURPOSE, COOKIE, b"{}".to_vec())).is_none());
        assert_ne!(id(COOKIE), id(b"other"));
    }
}
