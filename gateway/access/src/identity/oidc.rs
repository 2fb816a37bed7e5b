//! Callers that prove who they are by an OIDC token: entries of the identity file with `oidc`.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak, atomic::AtomicU32},
    time::SystemTime,
};

use http::HeaderMap;
use parking_lot::Mutex;
use proto::audit::CiJob;
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};
use serde_json::{Map, Value};
use settings::Location;
use tokio_util::sync::CancellationToken;

use super::{AccessAs, Caller, Grant, Rights};

/// The claims of a token that its issuer has signed, and that was valid when it was verified.
#[derive(Debug)]
pub struct VerifiedClaims {
    /// The name of the issuer in the configuration of kas.
    pub issuer: String,
    /// The claims.
    pub claims: Map<String, Value>,
    /// The name of the user in a cluster, with the prefix of the issuer.
    pub username: String,
    /// The `Impersonate-*` headers of the user and its groups.
    pub impersonation: HeaderMap,
    /// The time at which the streams of the token end, if they do.
    pub streams_end: Option<SystemTime>,
    /// The CI job that the claims describe.
    pub job: Option<Box<CiJob>>,
}

/// An entry of the identity file with `oidc`.
#[derive(Clone, Debug)]
pub(super) struct OidcRule {
    /// The name of the issuer in the configuration of kas.
    pub(super) issuer: String,
    /// The position of that name, for errors.
    pub(super) location: Location,
    /// The key of the entry in the file, for errors.
    pub(super) key: String,
    pub(super) claims: Vec<ClaimRule>,
    pub(super) rights: Rights,
    pub(super) access: OidcAccess,
    /// Cancelled when the entry is removed or changed, or when another entry takes precedence.
    pub(super) revoked: CancellationToken,
    pub(super) in_flight: Arc<RequestsByUser>,
}

/// The identity in the cluster of a caller with an OIDC token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OidcAccess {
    /// The same for all tokens.
    Fixed(AccessAs),
    /// The user and the groups of the token.
    User,
}

/// A claim that a token must have, with one of several values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimRule {
    pub(super) name: String,
    pub(super) values: Vec<String>,
}

/// The requests in flight of each user with tokens of one entry.
#[derive(Debug, Default)]
pub(super) struct RequestsByUser(Mutex<HashMap<String, Weak<AtomicU32>>>);

/// The values of a claim in the file: one text, boolean or number, or a list of them.
#[derive(Debug)]
pub(super) struct ClaimValues(pub(super) Vec<String>);

impl OidcRule {
    /// Returns the rights of a token, or `None` if the entry does not match it.
    pub(super) fn grant(&self, token: &VerifiedClaims) -> Option<Grant> {
        let matches =
            self.issuer == token.issuer && self.claims.iter().all(|rule| rule.matches(&token.claims));
        let access_as = match &self.access {
            _ if !matches => return None,
            OidcAccess::Fixed(access_as) => access_as.clone(),
            OidcAccess::User => AccessAs::Impersonate {
                username: token.username.clone(),
                headers: token.impersonation.clone(),
            },
        };
        let user = Some(token.username.clone());
        Some(Grant {
            caller: Arc::new(Caller { rights: self.rights.clone(), access_as, user, job: token.job.clone() }),
            revoked: self.revoked.clone(),
            in_flight: self.in_flight.of(&token.username),
            streams_end: token.streams_end,
        })
    }

    /// Returns whether both entries give the same rights to the same tokens.
    fn is_same(&self, other: &Self) -> bool {
        self.issuer == other.issuer
            && self.claims == other.claims
            && self.rights == other.rights
            && self.access == other.access
    }
}

/// Takes over the state of the previous version's entries. Streams continue if their entry is unchanged and no other entry, which
/// could match their token, has come before it.
pub(super) fn inherit(new: &mut [OidcRule], previous: &[OidcRule]) {
    let mut inherited = vec![false; previous.len()];
    // For each issuer, the highest previous position of its entries so far, or `None` after an entry that is new.
    let mut highest: HashMap<String, Option<usize>> = HashMap::new();
    for rule in new {
        if let Some(old) = previous.iter().find(|old| old.rights.name == rule.rights.name) {
            rule.in_flight = Arc::clone(&old.in_flight);
        }
        let position = previous.iter().position(|old| old.is_same(rule));
        let highest = highest.entry(rule.issuer.clone()).or_insert(Some(0));
        *highest = highest.zip(position).map(|(highest, position)| highest.max(position));
        if let Some(position) = position.filter(|position| *highest == Some(*position)) {
            rule.revoked = previous[position].revoked.clone();
            inherited[position] = true;
        }
    }
    for (old, inherited) in previous.iter().zip(inherited) {
        if !inherited {
            old.revoked.cancel();
        }
    }
}

impl ClaimRule {
    fn matches(&self, claims: &Map<String, Value>) -> bool {
        match claims.get(&self.name) {
            None => false,
            Some(Value::Array(list)) => list.iter().any(|value| self.allows(value)),
            Some(value) => self.allows(value),
        }
    }

    fn allows(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.values.contains(text),
            Value::Bool(_) | Value::Number(_) => self.values.contains(&value.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => false,
        }
    }
}

impl RequestsByUser {
    fn of(&self, user: &str) -> Arc<AtomicU32> {
        let mut users = self.0.lock();
        if let Some(count) = users.get(user).and_then(Weak::upgrade) {
            return count;
        }
        if users.len() == users.capacity() {
            users.retain(|_, count| count.strong_count() > 0);
        }
        let count = Arc::default();
        users.insert(user.to_owned(), Arc::downgrade(&count));
        count
    }
}

impl<'de> Deserialize<'de> for ClaimValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values;

        impl<'de> Visitor<'de> for Values {
            type Value = ClaimValues;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a boolean or a number, or a list of them")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ClaimValues, E> {
                Ok(ClaimValues(vec![text.to_owned()]))
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<ClaimValues, E> {
                self.visit_str(&value.to_string())
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<ClaimValues, E> {
                self.visit_str(&value.to_string())
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<ClaimValues, E> {
                self.visit_str(&value.to_string())
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<ClaimValues, E> {
                self.visit_str(&Value::from(value).to_string())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ClaimValues, A::Error> {
                let mut values = Vec::new();
                while let Some(ClaimValues(one)) = list.next_element()? {
                    values.extend(one);
                }
                Ok(ClaimValues(values))
            }
        }

        deserializer.deserialize_any(Values)
    }
}

#[cfg(test)]
mod tests;
