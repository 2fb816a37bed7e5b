//! The list `services` of a caller.

use std::fmt;

use proto::{ServiceName, ServiceRight};
use serde::{
    Deserialize, Deserializer,
    de::{self, IntoDeserializer as _, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_saphyr::Spanned;
use settings::ConfigError;

use super::At;
use crate::rights::ServiceRights;

/// An element of `services`.
#[derive(Debug)]
pub(super) enum ServiceEntry {
    /// `*`
    All,
    Right(ServiceRight),
}

/// A service that no caller can have by this list.
#[derive(Debug, thiserror::Error)]
enum InvalidService {
    #[error("the service '{0}' is reserved for kas")]
    Internal(ServiceName),
    #[error("the right to read the audit log of a cluster is cluster_audit: true")]
    Audit,
    #[error("the labels of all series of a caller are in the key prometheus.labels")]
    Labels,
}

/// Returns the rights of a list.
///
/// # Errors
///
/// The list has a service that callers cannot reach, or to which another key gives the right.
pub(super) fn rights(entries: Vec<Spanned<ServiceEntry>>, at: &At<'_>) -> Result<ServiceRights, ConfigError> {
    if entries.iter().any(|entry| matches!(entry.value, ServiceEntry::All)) {
        return Ok(ServiceRights::All);
    }

    let mut rights = Vec::new();
    for entry in entries {
        let location = entry.referenced;
        let refused = |invalid: InvalidService| {
            ConfigError::new(at.path, location, format!("{}.services", at.key), invalid.to_string())
        };
        match entry.value {
            ServiceEntry::All => {}
            ServiceEntry::Right(right) if right.service.is_internal() => {
                return Err(refused(InvalidService::Internal(right.service)));
            }
            ServiceEntry::Right(right) if right.service.as_str() == ServiceName::AUDIT => {
                return Err(refused(InvalidService::Audit));
            }
            ServiceEntry::Right(right) if right.labels.is_some() => {
                return Err(refused(InvalidService::Labels));
            }
            ServiceEntry::Right(right) => rights.push(right),
        }
    }
    Ok(ServiceRights::Only(rights))
}

impl<'de> Deserialize<'de> for ServiceEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entry;

        impl<'de> Visitor<'de> for Entry {
            type Value = ServiceEntry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a service, a map with the keys service and verbs, or *")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ServiceEntry, E> {
                match text {
                    "*" => Ok(ServiceEntry::All),
                    _ => ServiceRight::deserialize(text.into_deserializer()).map(ServiceEntry::Right),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ServiceEntry, A::Error> {
                ServiceRight::deserialize(MapAccessDeserializer::new(map)).map(ServiceEntry::Right)
            }
        }

        deserializer.deserialize_any(Entry)
    }
}
