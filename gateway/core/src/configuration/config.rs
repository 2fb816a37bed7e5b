//! Section `agent.configuration`: the configuration files of agents.

use std::{sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;
use settings::{Timeout, Within};

use git::{RepositoryConfig, RepositorySettings};

/// Section `agent.configuration`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfigurationConfig {
    /// The time, ±10 %, after which a configuration is read again.
    #[serde(with = "Timeout")]
    pub poll_period: Duration,
    /// The largest configuration file, in bytes.
    #[serde(with = "Within::<1, { 1 << 20 }>")]
    pub max_configuration_file_size: usize,
    /// The repository of the agents whose entry in the identity file has no `configuration`.
    pub repository: Option<RepositoryConfig>,
    /// The validated repository.
    #[serde(skip)]
    pub settings: Option<Arc<RepositorySettings>>,
}

impl Default for AgentConfigurationConfig {
    fn default() -> Self {
        Self {
            poll_period: Duration::from_secs(300),
            max_configuration_file_size: proto::agent_configuration::DEFAULT_MAX_BYTES,
            repository: None,
            settings: None,
        }
    }
}
