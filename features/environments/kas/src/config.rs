//! Section `agent.managed_resources`: the objects of environments, which must exist before the first request of a CI job.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use settings::Timeout;

/// Section `agent.managed_resources`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ManagedResourcesConfig {
    /// False ignores `resource_management` in the configurations of agents.
    pub enabled: bool,
    /// The time for which the first request of a job waits for the objects of its environment.
    #[serde(with = "Timeout")]
    pub timeout: Duration,
    /// The time after which the objects are looked at again for further requests of the same job.
    #[serde(with = "Timeout")]
    pub check_period: Duration,
}

impl Default for ManagedResourcesConfig {
    fn default() -> Self {
        Self { enabled: true, timeout: Duration::from_secs(20), check_period: Duration::from_secs(600) }
    }
}
