//! The verbs of services: what a request does, as the rights of callers name it.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};

use crate::{InvalidServiceName, ServiceName};

/// The kind of action of a request to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Anything: not the verb decides, but the service itself, such as the RBAC of the cluster for `kubernetes`.
    Use,
    /// Reads, and changes nothing. A diff is one, too.
    Read,
    /// Applies the manifests of a project now.
    Sync,
    /// Stops the syncs of a project, or lets them go on.
    Suspend,
    /// Lets a project delete or replace what agentk holds back: approves deletions, recovers an inventory, and prunes a project that is
    /// no longer in the configuration.
    Approve,
}

/// A service, and what a caller may do with it. In a file it is the name of the service, which stands for all of its verbs, or
/// `{service: gitops, verbs: [read, sync]}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceRight {
    /// The service.
    pub service: ServiceName,
    /// The verbs, which are some of [`ServiceName::verbs`].
    pub verbs: Vec<Verb>,
}

/// A text or a map that is no [`ServiceRight`].
#[derive(Debug, thiserror::Error)]
pub enum InvalidServiceRight {
    /// The service has no name that a service can have.
    #[error(transparent)]
    ServiceName(#[from] InvalidServiceName),
    /// The service does not have the verb.
    #[error("the service {service} has no verb {verb}; it has {}", Verbs(.service.verbs()))]
    NoSuchVerb {
        /// The service.
        service: ServiceName,
        /// The verb.
        verb: Verb,
    },
}

impl Verb {
    /// Returns the name of the verb.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Use => "use",
            Self::Read => "read",
            Self::Sync => "sync",
            Self::Suspend => "suspend",
            Self::Approve => "approve",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ServiceName {
    /// Returns the verbs of the service, in order of what they let a caller do.
    pub fn verbs(&self) -> &'static [Verb] {
        match self.as_str() {
            Self::GITOPS => &[Verb::Read, Verb::Sync, Verb::Suspend, Verb::Approve],
            Self::ALERTS | Self::AUDIT | Self::EVENTS | Self::GRAPH => &[Verb::Read],
            _ => &[Verb::Use],
        }
    }
}

impl ServiceRight {
    /// Creates the right to all verbs of a service.
    pub fn all(service: ServiceName) -> Self {
        let verbs = service.verbs().to_vec();
        Self { service, verbs }
    }

    /// Creates the right to some verbs of a service.
    ///
    /// # Errors
    ///
    /// The service does not have one of the verbs.
    pub fn new(service: ServiceName, verbs: Vec<Verb>) -> Result<Self, InvalidServiceRight> {
        match verbs.iter().find(|verb| !service.verbs().contains(verb)) {
            Some(verb) => Err(InvalidServiceRight::NoSuchVerb { service, verb: *verb }),
            None => Ok(Self { service, verbs }),
        }
    }
}

/// Verbs as a list for people.
struct Verbs<'a>(&'a [Verb]);

impl fmt::Display for Verbs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|verb| verb.as_str()).collect();
        f.write_str(&names.join(", "))
    }
}

impl<'de> Deserialize<'de> for ServiceRight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Entry {
            service: ServiceName,
            verbs: Option<Vec<Verb>>,
        }

        struct Right;

        impl<'de> Visitor<'de> for Right {
            type Value = ServiceRight;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a service, or a map with the keys service and verbs")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ServiceRight, E> {
                text.parse().map(ServiceRight::all).map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ServiceRight, A::Error> {
                let Entry { service, verbs } = Entry::deserialize(MapAccessDeserializer::new(map))?;
                match verbs {
                    Some(verbs) => ServiceRight::new(service, verbs).map_err(de::Error::custom),
                    None => Ok(ServiceRight::all(service)),
                }
            }
        }

        deserializer.deserialize_any(Right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_is_a_name_or_a_map_with_verbs_of_the_service() {
        let parse =
            |text: &str| serde_saphyr::from_str::<ServiceRight>(text).map_err(|error| error.to_string());
        let right = |service: &str, verbs: &[Verb]| ServiceRight {
            service: service.parse().unwrap(),
            verbs: verbs.to_vec(),
        };
        let all = [Verb::Read, Verb::Sync, Verb::Suspend, Verb::Approve];
        for (text, expected) in [
            ("gitops", right("gitops", &all)),
            ("{service: gitops}", right("gitops", &all)),
            ("{service: gitops, verbs: [read, sync]}", right("gitops", &all[..2])),
            ("{service: gitops, verbs: []}", right("gitops", &[])),
            ("kubernetes", right("kubernetes", &[Verb::Use])),
        ] {
            assert_eq!(parse(text).unwrap(), expected, "{text}");
        }
        for (text, expected) in [
            ("{service: graph, verbs: [sync]}", "the service graph has no verb sync; it has read"),
            ("{service: kubernetes, verbs: [read]}", "the service kubernetes has no verb read; it has use"),
            ("{service: gitops, verbs: [delete]}", "delete"),
            ("{service: gitops, verb: [read]}", "verb"),
            ("{verbs: [read]}", "service"),
            ("GITOPS", "is not a service name"),
            ("7", "the name of a service, or a map"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
