//! Looks at repositories, which replicas share so that each version is looked at once.
//!
//! A record says when a replica looked and has the digest of what it found. Whoever can write to Redis can forge records, so that
//! a reader may use one for a single purpose: what it has seen itself is still there.

use std::time::Duration;

use super::{
    RedisStore, hex,
    keys::{LOOK_CLAIM_TTL, LOOK_TTL},
};
use crate::routes::StoreError;

/// The last look of a replica at a version of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedLook {
    /// There is none that is recent enough. The caller has claimed the next one, and looks now.
    Claimed,
    /// Another replica looks now.
    Running,
    /// A look has ended.
    Ended {
        /// The time since its end.
        age: Duration,
        /// The digest of what it found, or `None` if it failed. It is not trusted.
        found: Option<[u8; 16]>,
    },
}

impl RedisStore {
    /// Returns the last look of a replica at the version with this digest, if it ended at most `age` ago. Otherwise the caller
    /// claims the next one for 5 s.
    ///
    /// # Errors
    ///
    /// Redis did not answer.
    pub async fn claim_look(&self, key: [u8; 16], age: Duration) -> Result<SharedLook, StoreError> {
        let shared = &self.0;
        let mut script = shared.scripts.look.key(shared.keys.look(&hex(key)));
        let claim = LOOK_CLAIM_TTL.as_millis() as u64;
        script.arg(claim).arg("").arg(age.min(LOOK_TTL).as_millis() as u64).arg(claim);
        let (age, found): (i64, String) = shared.query(&script).await?;
        Ok(match u64::try_from(age) {
            Err(_) => SharedLook::Claimed,
            Ok(_) if found.is_empty() => SharedLook::Running,
            Ok(age) => SharedLook::Ended { age: Duration::from_millis(age), found: parse_digest(&found) },
        })
    }

    /// Records that this replica has looked at the version with this digest. `found` is the digest of what it found, or `None`
    /// if it failed.
    ///
    /// # Errors
    ///
    /// Redis did not answer.
    pub async fn record_look(&self, key: [u8; 16], found: Option<[u8; 16]>) -> Result<(), StoreError> {
        let shared = &self.0;
        let mut script = shared.scripts.look.key(shared.keys.look(&hex(key)));
        script.arg(LOOK_TTL.as_millis() as u64).arg(found.map_or_else(|| FAILED.to_owned(), hex));
        shared.query::<(i64, String)>(&script).await.map(drop)
    }
}

/// The result of a look that failed.
const FAILED: &str = "0";

fn parse_digest(text: &str) -> Option<[u8; 16]> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u128::from_str_radix(text, 16).ok())?.map(u128::to_be_bytes)
}
