//! Ids and names on the wire, as newtypes.

use std::{
    borrow::{Borrow, Cow},
    fmt,
    str::FromStr,
    sync::Arc,
};

use http::HeaderValue;
use serde::{Deserialize, Serialize};

/// Longest name of an agent or a service, in bytes: that of a DNS label (RFC 1123).
const MAX_NAME: usize = 63;

/// The number of an agent, which is one logical cluster connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AgentId(pub u64);

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that is no [`AgentId`].
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not the id of an agent: write the number without sign and leading zeros")]
pub struct InvalidAgentId(String);

impl FromStr for AgentId {
    type Err = InvalidAgentId;

    /// Parses an id in the form that `Display` writes. `+7` and `007` are errors: rules and logs name this agent 7.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let canonical = text == "0" || text.starts_with(|c: char| matches!(c, '1'..='9'));
        let id = text.parse().ok().filter(|_| canonical);
        id.map(Self).ok_or_else(|| InvalidAgentId(text.to_owned()))
    }
}

/// The name of an agent: an RFC 1123 label, which needs no escaping in a URL. Cheap to clone.
///
/// A name has at least one character that is not a digit, so no text is both an id and a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AgentName(Arc<str>);

/// A text that is no [`AgentName`].
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is not an agent name: use at most 63 lower-case letters, digits and '-', with a letter or a '-' \
     among them, starting and ending with a letter or digit"
)]
pub struct InvalidAgentName(String);

impl AgentName {
    /// Returns the name `agent-<id>`, for the files of an agent whose name is not known. Rules and rights must not compare it with a name.
    pub fn of_id(id: AgentId) -> Self {
        Self(format!("agent-{id}").into())
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for AgentName {
    type Err = InvalidAgentName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let label = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let valid = (1..=MAX_NAME).contains(&text.len())
            && text.bytes().all(label)
            && !text.starts_with('-')
            && !text.ends_with('-')
            && !text.bytes().all(|b| b.is_ascii_digit());
        if !valid {
            return Err(InvalidAgentName(text.to_owned()));
        }

        Ok(Self(text.into()))
    }
}

/// Maps with names as keys are searched with the text of a URL.
impl Borrow<str> for AgentName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for AgentName {
    type Error = InvalidAgentName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<AgentName> for String {
    fn from(name: AgentName) -> Self {
        name.0.as_ref().to_owned()
    }
}

impl fmt::Display for AgentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a request type: `kubernetes`, `prometheus`, `prometheus.thanos`, `control`, …
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServiceName(Cow<'static, str>);

/// A text that is no [`ServiceName`].
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is not a service name: use at most 63 lower-case letters, digits, '-' and '.', starting with a letter"
)]
pub struct InvalidServiceName(String);

impl ServiceName {
    /// The audit log of the agent's cluster.
    pub const AUDIT: &str = "audit";
    /// Events that agentk reports to kas. Callers cannot reach this service.
    pub const AGENT_EVENTS: &str = "agent-events";
    /// The traffic that network policies drop, and the violations that policy engines report.
    pub const ALERTS: &str = "alerts";
    /// Configurations that kas sends to agentk. Callers cannot reach this service.
    pub const CONFIGURATION: &str = "configuration";
    /// Requests of kas itself to agentk. Callers cannot reach this service.
    pub const CONTROL: &str = "control";
    /// The events of an agent. kas answers these requests itself, and sends none of them to an agent.
    pub const EVENTS: &str = "events";
    /// Environments whose objects agentk makes before the first request of a job. Callers cannot reach this service.
    pub const ENVIRONMENTS: &str = "environments";
    /// The state of the manifests from Git, and commands about them.
    pub const GITOPS: &str = "gitops";
    /// The objects of the agent's cluster, their relations and their health.
    pub const GRAPH: &str = "graph";
    /// The Kubernetes API of the agent's cluster.
    pub const KUBERNETES: &str = "kubernetes";
    /// Manifests from Git, which kas sends to agentk. Callers cannot reach this service.
    pub const MANIFESTS: &str = "manifests";
    /// Events of Git projects, which kas sends to agentk. Callers cannot reach this service.
    pub const NOTIFY: &str = "notify";
    /// A Prometheus server in the agent's cluster.
    pub const PROMETHEUS: &str = "prometheus";
    /// The objects that agentk has made for environments.
    pub const PROVISION: &str = "provision";

    /// The request types of callers that kas and agentk know. `prometheus.<name>` is one, too.
    pub const OF_CALLERS: [&str; 7] = [
        Self::ALERTS,
        Self::AUDIT,
        Self::GITOPS,
        Self::GRAPH,
        Self::KUBERNETES,
        Self::PROMETHEUS,
        Self::PROVISION,
    ];

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if only kas itself sends requests to this service.
    pub fn is_internal(&self) -> bool {
        matches!(
            self.as_str(),
            Self::AGENT_EVENTS
                | Self::CONFIGURATION
                | Self::CONTROL
                | Self::ENVIRONMENTS
                | Self::MANIFESTS
                | Self::NOTIFY
        )
    }

    /// Returns true if a replica forwards requests to this service for another replica: those of callers, and those about environments,
    /// which the replica of the job sends.
    pub fn is_forwarded(&self) -> bool {
        !self.is_internal() || self.as_str() == Self::ENVIRONMENTS
    }

    /// Returns true for `prometheus` and `prometheus.<name>`.
    pub fn is_prometheus(&self) -> bool {
        let rest = self.0.strip_prefix(Self::PROMETHEUS);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

impl FromStr for ServiceName {
    type Err = InvalidServiceName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
        let valid = text.len() <= MAX_NAME
            && text.bytes().all(allowed)
            && text.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
        if !valid {
            return Err(InvalidServiceName(text.to_owned()));
        }

        // Nearly every request names one of these, which then needs no allocation.
        let known = Self::OF_CALLERS.into_iter().find(|known| *known == text);
        Ok(Self(known.map_or_else(|| Cow::Owned(text.to_owned()), Cow::Borrowed)))
    }
}

impl From<&ServiceName> for HeaderValue {
    fn from(name: &ServiceName) -> Self {
        match &name.0 {
            Cow::Borrowed(name) => Self::from_static(name),
            Cow::Owned(name) => Self::from_str(name).expect("a service name is a header value"),
        }
    }
}

impl TryFrom<String> for ServiceName {
    type Error = InvalidServiceName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ServiceName> for String {
    fn from(name: ServiceName) -> Self {
        name.0.into_owned()
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Orders the records of one replica about one agent: a record never replaces one with a higher epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// A text that is no id of 32 hexadecimal digits.
#[derive(Debug, thiserror::Error)]
#[error("an id has 32 hexadecimal digits")]
pub struct InvalidId;

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(u128);

        impl $name {
            /// Creates a random id, with the random numbers of the operating system.
            pub fn random() -> Self {
                let mut bytes = [0; 16];
                getrandom::fill(&mut bytes).expect("the operating system has randomness");
                Self::from_bytes(bytes)
            }

            /// Returns the id with these bytes, in big-endian order.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(u128::from_be_bytes(bytes))
            }

            /// Returns the bytes of the id, in big-endian order.
            pub const fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
                if !hex {
                    return Err(InvalidId);
                }

                u128::from_str_radix(text, 16).map(Self).map_err(|_| InvalidId)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

random_id! {
    /// The id of one agentk process, new at each start.
    InstanceId
}
random_id! {
    /// The id of one kas process, new at each start.
    ReplicaId
}
random_id! {
    /// The id of one tunnel: one WebSocket that carries one HTTP/2 connection.
    TunnelId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_round_trips_through_text_and_bytes() {
        let id = ReplicaId::random();
        assert_eq!(id.to_string().parse::<ReplicaId>().unwrap(), id);
        assert_eq!(id.to_string().len(), 32);
        assert_eq!(ReplicaId::from_bytes(id.to_bytes()), id);
    }

    #[test]
    fn id_without_32_hexadecimal_digits_is_refused() {
        for bad in ["", "1", "+0000000000000000000000000000001", &"g".repeat(32), &"0".repeat(33)] {
            assert!(bad.parse::<TunnelId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn agent_name_is_a_dns_label_and_no_number() {
        for good in ["a", "prod-eu-1", "1a", &"x".repeat(63)] {
            assert!(good.parse::<AgentName>().is_ok(), "{good:?}");
        }
        let unnamed = AgentName::of_id(AgentId(u64::MAX));
        assert_eq!(unnamed.as_str().parse::<AgentName>().unwrap(), unnamed);
        for bad in ["", "-a", "a-", "A", "a.b", "a/b", "a%2f", "42", "ü", &"x".repeat(64)] {
            assert!(bad.parse::<AgentName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn agent_id_has_one_spelling() {
        for id in ["0", "7", "70", "18446744073709551615"] {
            assert_eq!(id.parse::<AgentId>().unwrap().to_string(), id);
        }
        for alias in
            ["+7", "007", "00", "-0", "7 ", " 7", "", "7.0", "0x7", "7_0", "٧", "18446744073709551616"]
        {
            assert!(alias.parse::<AgentId>().is_err(), "{alias:?}");
        }
    }

    #[test]
    fn service_name_may_have_dots() {
        assert!("prometheus.thanos".parse::<ServiceName>().is_ok());
        for bad in ["", ".a", "1a", "a/b", "A", &"x".repeat(64)] {
            assert!(bad.parse::<ServiceName>().is_err(), "{bad:?}");
        }
    }
}
