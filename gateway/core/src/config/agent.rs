//! Types of section `agent.listen`: the protocols of agents, and the age of their tunnels.

use std::{borrow::Cow, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use settings::Timeout;

/// A protocol of agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
pub enum AgentProtocol {
    /// The protocol of this agentk, in a WebSocket.
    #[serde(rename = "kas-tunnel.v1")]
    KasTunnel,
    /// gRPC in a WebSocket: GitLab's agentk with `wss://`.
    #[serde(rename = "ws-tunnel")]
    WsTunnel,
    /// gRPC without a WebSocket: GitLab's agentk with `grpcs://`.
    #[serde(rename = "h2")]
    Http2,
}

impl AgentProtocol {
    /// All protocols.
    pub const ALL: [Self; 3] = [Self::KasTunnel, Self::WsTunnel, Self::Http2];
}

/// The maximum age of tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionAge {
    /// Two hours, or less if a load balancer cuts connections earlier.
    Auto,
    /// A configured age.
    Fixed(Duration),
}

impl ConnectionAge {
    /// Returns the maximum age of tunnels before a loss.
    pub fn initial(self) -> Duration {
        match self {
            Self::Auto => Duration::from_secs(2 * 3600),
            Self::Fixed(age) => age,
        }
    }
}

impl From<Duration> for ConnectionAge {
    fn from(age: Duration) -> Self {
        Self::Fixed(age)
    }
}

impl Serialize for ConnectionAge {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Fixed(age) => settings::duration::serialize(age, serializer),
        }
    }
}

impl JsonSchema for ConnectionAge {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ConnectionAge".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let age = Timeout::json_schema(generator);
        json_schema!({"anyOf": [{"const": "auto"}, age]})
    }
}

impl<'de> Deserialize<'de> for ConnectionAge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "auto" {
            return Ok(Self::Auto);
        }
        match settings::duration::parse(&text) {
            Ok(Duration::ZERO) => Err(D::Error::custom("the duration must be longer than zero")),
            Ok(age) => Ok(Self::Fixed(age)),
            Err(error) => Err(D::Error::custom(format!("{error}, or auto"))),
        }
    }
}
