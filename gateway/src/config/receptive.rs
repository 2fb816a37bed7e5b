//! Sections `agent.receptive` and `agent.receptive_agent`: the agents that kas dials.

use std::{path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;
use settings::{AnyDuration, Network, patterns::NETWORK};

/// Section `agent.receptive`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("dependencies" = {"certificate_file": ["key_file"], "key_file": ["certificate_file"]}))]
pub struct ReceptiveConfig {
    /// The networks to which kas may connect. An empty list allows all but special addresses, such as loopback.
    #[schemars(with = "Vec<String>", inner(regex(pattern = NETWORK)))]
    pub allowed_networks: Vec<Network>,
    /// The certificate chain (PEM) with which kas authenticates to agentk.
    #[schemars(with = "Option<PathBuf>")]
    pub certificate_file: Option<Spanned<PathBuf>>,
    /// The private key (PEM).
    #[schemars(with = "Option<PathBuf>")]
    pub key_file: Option<Spanned<PathBuf>>,
}

/// Section `agent.receptive_agent`: the agents that GitLab lists for kas to dial.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReceptiveAgentConfig {
    /// The time between two lists, 10 s at least. Zero disables them.
    #[serde(with = "AnyDuration")]
    pub poll_interval: Duration,
}
