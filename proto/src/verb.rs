//! The verbs of services: what a request does, as the rights of callers name it.

use std::fmt;

use request_info::prometheus::SeriesLabels;
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

/// The most bytes of the names and values of [`ServiceRight::labels`]. Each request of a caller may compile them anew.
const MAX_LABEL_BYTES: usize = 8 << 10;
/// The most values of [`ServiceRight::labels`]. A short value needs much more memory than its bytes.
const MAX_LABEL_VALUES: usize = 256;

/// A service, and what a caller may do with it. In a file it is the name of the service, which stands for all of its verbs, or
/// `{service: gitops, verbs: [read, sync]}`, or `{service: prometheus, labels: {namespace: [shop]}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceRight {
    /// The service.
    pub service: ServiceName,
    /// The verbs, which are some of [`ServiceName::verbs`].
    pub verbs: Vec<Verb>,
    /// The labels of the series to which PromQL is restricted, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<SeriesLabels>,
}

/// The form of a [`ServiceRight`] in a file, as a map.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServiceRightEntry {
    service: ServiceName,
    #[serde(default, deserialize_with = "present")]
    verbs: Option<Vec<Verb>>,
    #[serde(default, deserialize_with = "present")]
    labels: Option<SeriesLabels>,
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
    /// The service has no series.
    #[error("the service {0} has no labels; prometheus and prometheus.<name> have")]
    NoLabels(ServiceName),
    /// There are too many labels.
    #[error("the labels of the service {service} have {size} bytes; they may have {max}", max = MAX_LABEL_BYTES)]
    TooManyLabels {
        /// The service.
        service: ServiceName,
        /// The bytes of the names and values.
        size: usize,
    },
    /// There are too many values.
    #[error("the labels of the service {service} have {count} values; they may have {max}", max = MAX_LABEL_VALUES)]
    TooManyLabelValues {
        /// The service.
        service: ServiceName,
        /// The number of the values of all labels.
        count: usize,
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
        Self { service, verbs, labels: None }
    }

    /// Creates the right to some verbs of a service.
    ///
    /// # Errors
    ///
    /// The service does not have one of the verbs.
    pub fn new(service: ServiceName, verbs: Vec<Verb>) -> Result<Self, InvalidServiceRight> {
        match verbs.iter().find(|verb| !service.verbs().contains(verb)) {
            Some(verb) => Err(InvalidServiceRight::NoSuchVerb { service, verb: *verb }),
            None => Ok(Self { service, verbs, labels: None }),
        }
    }

    /// Restricts PromQL to series with these labels.
    ///
    /// # Errors
    ///
    /// The service has no series, or there are too many labels or values.
    pub fn with_labels(self, labels: SeriesLabels) -> Result<Self, InvalidServiceRight> {
        let (service, size, count) = (self.service, labels.size(), labels.value_count());
        if !service.is_prometheus() {
            return Err(InvalidServiceRight::NoLabels(service));
        }
        if size > MAX_LABEL_BYTES {
            return Err(InvalidServiceRight::TooManyLabels { service, size });
        }
        if count > MAX_LABEL_VALUES {
            return Err(InvalidServiceRight::TooManyLabelValues { service, count });
        }
        Ok(Self { service, labels: Some(labels), ..self })
    }

    /// Creates the right of an entry, which has all verbs unless it names some.
    pub(crate) fn of_entry(
        service: ServiceName,
        verbs: Option<Vec<Verb>>,
        labels: Option<SeriesLabels>,
    ) -> Result<Self, InvalidServiceRight> {
        let right = match verbs {
            Some(verbs) => Self::new(service, verbs)?,
            None => Self::all(service),
        };
        match labels {
            Some(labels) => right.with_labels(labels),
            None => Ok(right),
        }
    }
}

/// Deserializes the value of a key that widens a right when it is absent. So null is an error: a key without a value must not give more
/// than a key with one.
pub(crate) fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    match Option::deserialize(deserializer)? {
        Some(value) => Ok(Some(value)),
        None => Err(de::Error::custom("a value is required; to restrict nothing, remove the key")),
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
        struct Right;

        impl<'de> Visitor<'de> for Right {
            type Value = ServiceRight;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a service, or a map with the keys service, verbs and labels")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ServiceRight, E> {
                text.parse().map(ServiceRight::all).map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ServiceRight, A::Error> {
                let ServiceRightEntry { service, verbs, labels } =
                    ServiceRightEntry::deserialize(MapAccessDeserializer::new(map))?;
                ServiceRight::of_entry(service, verbs, labels).map_err(de::Error::custom)
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
            labels: None,
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
        for service in ["prometheus", "prometheus.thanos"] {
            let text = format!("{{service: {service}, labels: {{namespace: [shop, web], team: [a]}}}}");
            let found = parse(&text).unwrap();
            assert_eq!((found.service.as_str(), &*found.verbs), (service, &[Verb::Use][..]));
            let labels: Vec<_> = found.labels.as_ref().unwrap().iter().collect();
            assert_eq!(labels[0], ("namespace", &["shop".to_owned(), "web".to_owned()][..]));
            let json = serde_json::to_value(&found).unwrap();
            assert_eq!(serde_json::from_value::<ServiceRight>(json).unwrap(), found);
        }
        let long = format!("{{service: prometheus, labels: {{namespace: [{}]}}}}", "a".repeat(9 << 10));
        let values = |count| {
            let values = vec!["a"; count].join(", ");
            format!("{{service: prometheus, labels: {{namespace: [{values}], team: [b]}}}}")
        };
        assert!(parse(&values(MAX_LABEL_VALUES - 1)).is_ok());
        let many = values(MAX_LABEL_VALUES);
        for (text, expected) in [
            ("{service: graph, labels: {namespace: [shop]}}", "the service graph has no labels"),
            ("{service: prometheusx, labels: {namespace: [shop]}}", "the service prometheusx has no labels"),
            ("{service: prometheus, labels: {}}", "at least one label is required"),
            ("{service: prometheus, labels: {namespace: []}}", "the label namespace has no values"),
            ("{service: prometheus, labels: {namespace: ['']}}", "a value of namespace is empty"),
            ("{service: prometheus, labels: {__name__: [up]}}", "it cannot be enforced"),
            ("{service: prometheus, labels: {namespace: shop}}", "sequence"),
            ("{service: prometheus, labels: }", "a value is required"),
            ("{service: prometheus, labels: null}", "a value is required"),
            ("{service: prometheus, labels: ~}", "a value is required"),
            ("{service: gitops, verbs: }", "a value is required"),
            ("{service: gitops, verbs: null}", "a value is required"),
            (&*long, "have 9225 bytes; they may have 8192"),
            (&*many, "the labels of the service prometheus have 257 values; they may have 256"),
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
